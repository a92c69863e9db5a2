"""Bounded staleness on clusters of real processes: which worker waits, for which, how long."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from cluster_models import write_numbers
from processes import Cluster, Gate, run_snailps
from test_cluster import figures_of

pytestmark = pytest.mark.limit(600)

BLOCKS = 30
WORKERS = 3


@pytest.fixture
def job(tmp_path):
    """A job of thirty blocks, ten a worker, each block of ten lines; its result is known."""
    write_numbers(tmp_path / "in.txt", 300, rows=10)
    return {
        "worker_class": "clock_models:GatedCounter", "input": "in.txt", "output": "out",
        "epochs": 1, "block_bytes": 20, "consistency": "ssp", "on_node_loss": "recover",
        "gates": str(tmp_path / "gates"), "journal": str(tmp_path / "journal"),
    }  # fmt: skip


def journal(folder):
    """Numbers of the blocks that each process trained, by process id."""
    return {
        int(path.name): [int(line.split()[0]) for line in path.read_text().splitlines()]
        for path in Path(folder).iterdir()
    }


def names_but(cluster, workers, pid):
    """What the master calls the workers, all but one."""
    return [cluster.name_of(worker) for worker in workers if worker.pid != pid]


def test_ssp_with_a_worker_that_stands_still_lets_others_get_staleness_ahead(tmp_path, job):
    staleness = 2
    (tmp_path / "journal").mkdir()
    gate = Gate(tmp_path / "gates", 3, "before")  # the second block of one of them
    with Cluster(tmp_path, job={**job, "staleness": staleness}, workers=WORKERS) as cluster:
        master = cluster.master()
        _, workers = cluster.nodes()
        gate.meet()
        pid = gate.pid
        slow = cluster.name_of(next(p for p in workers if p.pid == pid))
        number = slow.split()[1]
        for other in names_but(cluster, workers, pid):
            line = master.wait_line(rf"{other} .*waits for {slow} to finish its block 2")
            assert f"(staleness {staleness})" in line
        trained = {p: blocks for p, blocks in journal(tmp_path / "journal").items() if p != pid}
        status = run_snailps("status", "--set", f"master_addr={cluster.address}")
        rows = [line for line in status.stdout.splitlines() if line.startswith("worker")]
        assert sum(f"worker {number} to finish its block 2" in row for row in rows) == WORKERS - 1
        own = next(row for row in rows if row.startswith(slow))  # of the table of processes
        assert own.split()[-1] == "1" or "k" in own  # its clock, and maybe its speed
        # The slow one has finished one block: others began one and `staleness` more, no further.
        assert [len(blocks) for blocks in trained.values()] == [2 + staleness] * (WORKERS - 1)
        gate.open()
        assert cluster.codes() == [0] * (2 + WORKERS)
        figures = figures_of(master)
        assert figures["ahead_max"] == staleness
        waited_s = figures["waited_s"]
        assert waited_s.keys() > {slow}
        assert all(waited_s[name] > 0 for name in waited_s.keys() - {slow})
    for blocks in journal(tmp_path / "journal").values():
        assert len({block % WORKERS for block in blocks}) == 1  # each its own
    with np.load(tmp_path / "out.npz") as saved:
        np.testing.assert_array_equal(saved["counts.rows"], np.full((10, 1), 30, np.float32))


@pytest.mark.long(but=["9"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_ssp_worker_that_dies_or_leaves_does_not_hold_others_back(tmp_path, job, how):
    (tmp_path / "journal").mkdir()
    gate = Gate(tmp_path / "gates", 0, "before")
    with Cluster(tmp_path, job={**job, "staleness": 1}, workers=WORKERS) as cluster:
        master = cluster.master()
        cluster.nodes()
        gate.meet()
        pid = gate.pid
        slow = next(process for process in cluster.processes if process.pid == pid)
        name = cluster.name_of(slow)
        master.wait_line(rf"waits for {name} to finish its block 1")
        os.kill(pid, how)
        # While it still stands at its block, all others do the rest of the work.
        if how == signal.SIGTERM:
            master.wait_line("goes on after")
        else:
            master.wait_line("is lost: .* The others go on")
        gate.open()
        codes = {process.pid: process.wait() for process in cluster.processes}
        expected = -signal.SIGKILL if how == signal.SIGKILL else 0
        assert {p: code for p, code in codes.items() if code} == (
            {pid: expected} if expected else {}
        )
        assert figures_of(master)["progress"] == 1
    with np.load(tmp_path / "out.npz") as saved:
        np.testing.assert_array_equal(saved["counts.rows"], np.full((10, 1), 30, np.float32))


def test_async_with_own_data_deals_every_nth_block_and_waits_for_nobody(tmp_path, job):
    (tmp_path / "journal").mkdir()
    gate = Gate(tmp_path / "gates", 1, "before")
    job |= {"consistency": "async", "assign": "own"}
    with Cluster(tmp_path, job=job, workers=WORKERS) as cluster:
        master = cluster.master()
        _, workers = cluster.nodes()
        gate.meet()
        pid = gate.pid
        for other in names_but(cluster, workers, pid):  # all of theirs is done
            master.wait_line(rf"{other} .*waits for worker [0-9]+ to finish, for")
        trained = journal(tmp_path / "journal")
        assert [len(blocks) for p, blocks in trained.items() if p != pid] == [10, 10]
        gate.open()
        assert cluster.codes() == [0] * (2 + WORKERS)
        assert "waited_s" not in figures_of(master)
