"""Tables of integers in real processes: whatever is killed and done again, the rows are exact."""

import signal

import numpy as np
import pytest
from cluster_models import gated_job
from processes import Cluster, Gate

import snailps
from snailps.errors import ConfigError

KEYS = 40
COMBINE = {"min": np.minimum, "max": np.maximum, "or": np.bitwise_or}
FIRST = {"min": np.iinfo(np.int64).max, "max": np.iinfo(np.int64).min, "or": 0}


def pairs(seed, n):
    rng = np.random.default_rng(seed)
    info = np.iinfo(np.int64)
    numbers = rng.integers(info.min, info.max, n, np.int64, endpoint=True)
    return rng.integers(0, KEYS, n), numbers >> rng.integers(0, 64, n)


def expected_of(access, keys, numbers):
    rows = np.full(KEYS, FIRST[access], np.int64)
    COMBINE[access].at(rows, keys, numbers)
    return rows[:, None]


def test_rows_are_exact_though_a_worker_and_a_server_are_killed_and_blocks_come_twice(tmp_path):
    """The lines give the rows; each block is pushed in every epoch, and again where it was lost."""
    job = gated_job(tmp_path) | {"worker_class": "cluster_models:Extremes", "epochs": 2}
    keys, numbers = pairs(1, 2000)
    lines = (f"{key} {number}\n" for key, number in zip(keys, numbers, strict=True))
    (tmp_path / "numbers.txt").write_text("".join(lines))
    job["input"] = tmp_path / "numbers.txt"
    gate = Gate(tmp_path / "gates", 2)
    with Cluster(tmp_path, job=job, servers=2, workers=2) as cluster:
        master, (server, _), workers = cluster.started_at(gate)
        master.wait_line("every shard has its standby")
        victim = next(worker for worker in workers if worker.pid == gate.pid)
        for process in (victim, server):
            process.send(signal.SIGKILL)
        gate.open()
        assert sorted(cluster.codes()) == [-signal.SIGKILL, -signal.SIGKILL, 0, 0, 0], master.stderr
    with np.load(tmp_path / "out.npz") as saved:
        for access in COMBINE:
            assert saved[f"{access}.keys"].tolist() == [*range(KEYS)]
            assert saved[f"{access}.rows"].dtype == np.int64
            assert np.array_equal(saved[f"{access}.rows"], expected_of(access, keys, numbers))


def test_session_saves_loads_reads_and_exports_integers(tmp_path):
    keys, numbers = pairs(2, 500)
    expected = expected_of("min", keys, numbers)
    with snailps.local_cluster(servers=1, workers=0) as cluster:
        table = cluster.table("least", access="min", dtype="int64")
        table.push_async(keys, numbers[:, None]).wait()
        table.push(keys[::-1], numbers[::-1].copy())
        assert np.array_equal(table.pull(np.arange(KEYS)), expected)
        with pytest.raises(ConfigError, match="declared in two ways"):
            cluster.table("least", access="min", dtype="uint64")
        with snailps.reader(cluster.address, "least") as reader:
            assert np.array_equal(reader.pull(np.arange(KEYS)), expected)
            assert reader.pull([10**9]).tolist() == [[FIRST["min"]]]
        path = cluster.save(tmp_path / "saved")
        (file,) = cluster.export(tmp_path / "out", "npz")
    with np.load(file) as saved:
        assert np.array_equal(saved["least.rows"], expected)
    saved = snailps.open_checkpoint(path)["least"]
    assert np.array_equal(saved.pull(np.arange(KEYS)), expected)
    assert saved.pull([10**9]).tolist() == [[FIRST["min"]]]
    with snailps.local_cluster(servers=2, workers=0) as cluster:
        cluster.load(path)
        table = cluster.table("least", access="min", dtype="int64")
        ((some, rows),) = [(some, rows) for some, rows in cluster.stored("least")]
        assert np.array_equal(rows, expected[some.astype(int)])
        table.assign(some, rows + 0)
        table.push(keys, numbers)  # has no effect: it came before
        assert np.array_equal(table.pull(np.arange(KEYS)), expected)
