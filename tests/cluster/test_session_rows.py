"""Rows of a session in and out: saved, loaded, assigned."""

import numpy as np
import pytest
from cluster_models import COUNTER, write_numbers
from processes import environment
from waiting import LIMIT_S

import snailps
from snailps.errors import CheckpointError, ClusterError, ConfigError, DataError

KEYS = np.arange(5000, dtype=np.uint64) * 977
ADAM = {"dim": 3, "access": "adam", "lr": 0.1}


def gradients(seed):
    return np.random.default_rng(seed).normal(size=(len(KEYS), 3)).astype(np.float32)


def stored(cluster, table):
    """Rows with their state, by ascending key."""
    keys, rows = map(np.concatenate, zip(*cluster.stored(table), strict=True))
    order = np.argsort(keys)
    return keys[order], rows[order]


def test_tables_are_saved_and_loaded_into_another_number_of_servers(tmp_path):
    """Moments and counts of steps go along: the next steps are those of the first cluster."""
    with snailps.local_cluster(servers=1, workers=0, shard_num=1) as cluster:
        table, dense = cluster.table("w", **ADAM), cluster.tensor("t", (2, 2), access="sgd", lr=1.0)
        table.push(KEYS, gradients(1))
        dense.assign([[1, 2], [3, 4]])
        path = cluster.save(tmp_path / "saved")
        before = stored(cluster, "w")
        table.push(KEYS, gradients(2))
        after = stored(cluster, "w")
    with snailps.local_cluster(servers=2, workers=0, shard_num=2) as cluster:
        with pytest.raises(DataError, match="no such folder"):
            cluster.load(tmp_path / "nowhere")
        assert cluster.load(tmp_path / "saved") == len(KEYS) + 1
        table = cluster.table("w", **ADAM)
        for found, wanted in zip(stored(cluster, "w"), before, strict=True):
            assert np.array_equal(found, wanted)
        table.push(KEYS, gradients(2))
        for found, wanted in zip(stored(cluster, "w"), after, strict=True):
            assert np.array_equal(found, wanted)
        dense = cluster.tensor("t", (2, 2), access="sgd", lr=1.0)
        dense.push(np.ones((2, 2)))
        assert dense.pull().tolist() == [[0, 1], [2, 3]]
        assert cluster.load(path) == len(KEYS) + 1  # the folder of one
        assert np.array_equal(stored(cluster, "w")[1], before[1])
        with pytest.raises(ConfigError, match="declared in two ways"):
            cluster.table("w", dim=4)


def test_cluster_of_this_process_goes_on_from_its_own_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("SNAILPS_CHECKPOINT_INTERVAL", "0.001")  # of a job: none of a session's
    own = {"workers": 0, "checkpoint_dir": tmp_path / "own", "checkpoint_interval": 1000}
    with snailps.local_cluster(**own) as cluster:
        cluster.table("w", dim=1).push([1], [[5.0]])
    with snailps.local_cluster(servers=2, **own) as cluster:  # saved as it ended
        assert list(cluster.tables()) == ["w"]
        assert cluster.table("w", dim=1).pull([1]).tolist() == [[5.0]]
    with pytest.raises(ConfigError, match=r"continue from a journal\. Set checkpoint_dir"):
        snailps.cluster(journal_dir=tmp_path)


def test_cluster_with_checkpoints_of_its_own_trains_jobs_beside_its_tables(tmp_path, monkeypatch):
    """Its workers have these settings, too, and took them for a contradiction of the job's."""
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    own = {"checkpoint_dir": tmp_path / "own", "checkpoint_interval": 1000}
    numbers = write_numbers(tmp_path / "numbers.txt", 50)
    for job in (own, {"checkpoint_dir": tmp_path / "job", "checkpoint_interval": 0.001}, {}):
        with snailps.local_cluster(**own) as cluster:
            table = cluster.table("w", dim=1)
            table.push([1], [[5.0]])
            if job is own:
                with pytest.raises(CheckpointError, match=r"this master itself.* choose another"):
                    cluster.train(COUNTER, input=numbers, epochs=1, **job)
            else:
                assert (
                    cluster.train(COUNTER, input=numbers, epochs=1, **job)["ended_by"] == "epochs"
                )
    with snailps.local_cluster(**own) as cluster:
        assert cluster.table("w", dim=1).pull([1]).tolist() == [[15.0]]


def test_cluster_whose_master_cannot_begin_says_why_at_once(tmp_path):
    """The master listens before it reads its checkpoints: nobody waits for it once it has ended."""
    own = {"workers": 0, "checkpoint_dir": tmp_path, "checkpoint_interval": 1000}
    with snailps.local_cluster(**own) as cluster:
        cluster.table("w", dim=1).push([1], [[5.0]])
        with pytest.raises(ClusterError, match=r"could not start: .* another master keeps its che"):
            snailps.cluster(init_timeout=LIMIT_S, **own)
    with pytest.raises(ClusterError, match=r"could not start: .* frag_num is 7 here") as caught:
        snailps.cluster(init_timeout=LIMIT_S, frag_num=7, **own)
    assert caught.value.exit_code == 2
