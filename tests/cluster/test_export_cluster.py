"""Exports of real clusters: the memory they take, and how they are ended."""

import signal
from pathlib import Path

import numpy as np
import pytest
from cluster_models import write_numbers
from processes import Cluster, Gate
from test_ends import Observer
from test_failures import INTERRUPTED

# --- real processes ------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path):
    write_numbers(tmp_path / "in.txt", 1000)
    return {
        "worker_class": "cluster_models:SlowExport",
        "input": "in.txt",
        "output": "out",
        "epochs": 1,
        "gates": str(tmp_path / "gates"),
    }


def test_export_that_waits_for_a_server_tells_its_state_and_ends_by_a_second_signal(tmp_path, job):
    at_export = Gate(tmp_path / "gates", 0, "export")
    with Cluster(tmp_path, {"on_node_loss": "stop"}, job=job) as cluster:
        master, (server,), _ = cluster.started_at(at_export)
        server.send(signal.SIGSTOP)
        try:
            at_export.open()
            with Observer(cluster) as observer:
                status = observer.until(lambda status: "reading table" in status["pass_"])
                assert status["phase"] == "exporting"
                assert status["pass_"].startswith("reading table counts, 0 of ")
                master.send(signal.SIGINT)
                master.wait_line("being saved, and that continues")
                master.send(signal.SIGINT)
                assert master.wait() == INTERRUPTED
        finally:
            server.send(signal.SIGCONT)
        assert "interrupted while saving the model, 0% done; nothing was saved" in master.stderr
        assert "Traceback" not in master.stderr
    assert not [each.name for each in tmp_path.iterdir() if "out" in each.name]


@pytest.mark.long
def test_master_writes_a_table_of_a_hundred_megabytes_with_less_memory_than_that(tmp_path, job):
    job |= {"worker_class": "cluster_models:Wide"}
    write_numbers(tmp_path / "in.txt", 500, rows=500)
    before_it, behind_it = (Gate(tmp_path / "gates", number, "export") for number in (0, 1))
    with Cluster(tmp_path, job=job) as cluster:
        master, *_ = cluster.started_at(before_it)
        before = memory_of(master.pid, "VmRSS")
        before_it.open()
        behind_it.meet()
        grown = memory_of(master.pid, "VmHWM") - before
        behind_it.open()
        assert cluster.codes() == [0, 0, 0]
    with np.load(tmp_path / "out.npz", mmap_mode="r") as saved:
        assert saved["counts.rows"].nbytes == 100e6
    assert grown < 130e6


def memory_of(pid, name):
    """Bytes, from /proc."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(name)) * 1024
