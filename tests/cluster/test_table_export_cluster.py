"""Tables of a running cluster in files: of this session and of others, with state, while used."""

import os

import numpy as np
import pytest
import session_models as models
from processes import PACKAGE, SUPPORT
from safetensors.numpy import load_file

import snailps
from snailps.errors import ConfigError, ModelWriteError


def test_running_cluster_exports_what_its_tables_hold(tmp_path):
    keys = np.append(np.arange(30_000, dtype=np.uint64) << np.uint64(20), np.uint64(2**64 - 1))
    with snailps.local_cluster(servers=2, workers=0, shard_num=2, frag_num=64) as cluster:
        with pytest.raises(ConfigError, match="no tables"):
            cluster.export(tmp_path / "none")
        ada = cluster.table("ada", dim=3, access="adagrad", lr=0.5, init="uniform", seed=3)
        ada.push(keys, np.tile(np.float32([[1, 2, -2]]), (len(keys), 1)))
        cluster.table("plain", dim=2).push([5], [[1.5, 2.5]])
        (path,) = cluster.export(tmp_path / "out", state=True)
        arrays = load_file(path)
        assert set(arrays) == {"ada.keys", "ada.rows", "ada.state", "plain.keys", "plain.rows"}
        assert np.array_equal(arrays["ada.keys"], keys)
        assert np.array_equal(arrays["ada.rows"], ada.pull(keys))
        assert np.array_equal(arrays["ada.state"], np.tile(np.float32([1, 4, 4]), (len(keys), 1)))
        assert arrays["plain.rows"].tolist() == [[1.5, 2.5]]
        with pytest.raises(ConfigError, match="To replace it, pass overwrite=True; to keep"):
            cluster.export(tmp_path / "out")
        with pytest.raises(ModelWriteError, match=r"the folder .*missing does not exist"):
            cluster.export(tmp_path / "missing" / "out")
        assert not (tmp_path / "missing").exists()
        assert cluster.export(tmp_path / "out", tables=["plain"], overwrite=True) == [path]
        assert set(load_file(path)) == {"plain.keys", "plain.rows"}


def test_another_session_exports_the_tables_of_a_job_that_has_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE), str(SUPPORT)]))
    text = tmp_path / "in.txt"
    text.write_text("a b c\n" * 50)
    with snailps.local_cluster() as cluster:
        cluster.run(models.Lines, {"epochs": 1}, input=text)
        with snailps.connect(cluster.address) as other:
            (path,) = other.export(tmp_path / "out", "npz")
            with np.load(path) as file:
                assert file["lines.rows"].tolist() == [[50.0]]
