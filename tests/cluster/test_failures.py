"""Everything that can go wrong in a cluster: one clear sentence, an exit code, nothing left.

Each test ends with `Cluster.close`, which fails where a process had to be killed.
"""

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cluster_models import counting_job
from processes import Cluster, Gate, free_port
from test_cluster import assert_counted, figures_of
from waiting import LIMIT_S
from with_time import Clock

FAILED, WRONG, STOPPED, INTERRUPTED = 1, 2, 3, 130
LONG_S = int(11 * LIMIT_S)
"""More than any limit of time that a cluster has here."""


@pytest.fixture
def job(tmp_path):
    """A job of ten blocks; its result is known."""
    return counting_job(tmp_path)


@pytest.fixture
def gated(tmp_path, job):
    """The same, with a gate before block 2."""
    job["gates"] = str(tmp_path / "gates")
    return Gate(tmp_path / "gates", 2)


def assert_one_sentence(process, *parts, code=FAILED):
    """The process failed with one line that has all the parts, and without a traceback."""
    assert process.wait() == code, process.stderr
    assert "Traceback" not in process.stderr
    assert len(process.errors) == 1, process.stderr
    for part in parts:
        assert part in process.errors[0]


# --- a process is lost ------------------------------------------------------------------------


def test_cluster_that_stops_with_killed_server_ends_and_names_it(tmp_path, job, gated):
    job["on_node_loss"] = "stop"
    with Cluster(tmp_path, job=job, servers=2, workers=2) as cluster:
        master, (victim, _), _ = cluster.started_at(gated)
        name = cluster.name_of(victim)
        victim.send(signal.SIGKILL)
        gated.open()
        codes = cluster.codes()
        assert_one_sentence(master, f"{name} (", f"process {victim.pid}", "is lost", "on_node_loss")
        assert victim.wait() == -signal.SIGKILL
        others = [
            code
            for code, process in zip(codes, cluster.processes, strict=True)
            if process not in (master, victim)
        ]
        assert others == [STOPPED] * 3
        assert not (tmp_path / "out.npz").exists()


def test_cluster_with_killed_master_ends_and_each_node_says_so(tmp_path, job, gated):
    job["on_node_loss"] = "stop"
    with Cluster(tmp_path, job=job, workers=2) as cluster:
        master, *_ = cluster.started_at(gated)
        master.send(signal.SIGKILL)
        gated.open()
        cluster.codes()
        for process in cluster.processes[1:]:
            assert_one_sentence(process, "the master at", "is gone", cluster.address)


def test_cluster_with_silent_server_notices_by_heartbeat(tmp_path, job, gated):
    clock = Clock(tmp_path)
    job["on_node_loss"] = "stop"
    with Cluster(tmp_path, job=job, program=clock.program) as cluster:
        master, (victim,), _ = cluster.started_at(gated)
        victim.send(signal.SIGSTOP)
        clock.silent(LONG_S)
        gated.open()
        assert_one_sentence(master, "server", f"process {victim.pid}", "silent for", "heartbeat")
        victim.send(signal.SIGCONT)
        assert victim.wait() in (FAILED, STOPPED)
        cluster.codes()


def test_all_servers_with_sigterm_end_the_job_and_what_was_learnt_is_saved(tmp_path, job, gated):
    with Cluster(tmp_path, job=job, servers=2, workers=1) as cluster:
        master, (first, second), _ = cluster.started_at(gated)
        first.send(signal.SIGTERM)
        signal_other_thread(second, signal.SIGTERM)
        master.wait_line(r"was asked to leave, and its rows would go with it")
        gated.open()
        assert cluster.codes() == [INTERRUPTED, 0, 0, 0]
        assert "interrupted after" in master.stderr
    assert (tmp_path / "out.npz").exists()


def blocks(status, number):
    """Whether a thread blocks a signal, which the kernel then gives to another one."""
    (mask,) = re.findall(r"^SigBlk:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


def signal_other_thread(process, number):
    """Sends a signal that does not wake the main thread.

    So it may come to a process that was stopped and goes on; one that comes just before a call
    that waits has the same effect.
    """
    threads = [
        int(task.name)
        for task in Path(f"/proc/{process.pid}/task").iterdir()
        if not blocks((task / "status").read_text(), number)
    ]
    other = min(set(threads) - {process.pid})  # of signals, which lasts; the newest may just end
    assert ctypes.CDLL(None).tgkill(process.pid, other, number) == 0


def test_worker_whose_model_waits_hears_a_signal_all_the_same(tmp_path, job, gated):
    with Cluster(tmp_path, job=job) as cluster:
        master, _, (worker,) = cluster.started_at(gated)
        signal_other_thread(worker, signal.SIGINT)
        master.wait_line(rf"{cluster.name_of(worker)} .*SIGINT")
        master.wait_line("interrupted: finishing")
        gated.open()
        assert cluster.codes() == [INTERRUPTED, 0, 0]
    assert (tmp_path / "out.npz").exists()


def test_signals_of_a_model_and_of_its_children_do_not_end_the_worker(tmp_path, job, gated):
    job["worker_class"] = "cluster_models:Signalling"
    with Cluster(tmp_path, job=job) as cluster:
        master, *_ = cluster.started_at(gated)
        gated.open()
        assert cluster.codes() == [0, 0, 0]
        assert "SIG" not in master.stderr


# --- a survey whose parts are merged by the workers --------------------------------------------


def test_worker_killed_with_counted_blocks_has_them_counted_by_another(tmp_path, job):
    gate = Gate(tmp_path / "gates", 4, "survey")
    job |= {"worker_class": "cluster_models:Together", "gates": str(tmp_path / "gates")}
    job |= {"lines": 1000, "on_node_loss": "recover"}
    with Cluster(tmp_path, job=job) as cluster:
        *_, (victim,) = cluster.started_at(gate)
        other = cluster.start("worker")
        cluster.await_joined(other)
        victim.send(signal.SIGKILL)
        gate.open()
        assert cluster.codes() == [0, 0, -signal.SIGKILL, 0]
    assert_counted(tmp_path / "out.npz", 1)


def test_worker_told_to_leave_with_counted_blocks_sends_them_first(tmp_path, job):
    gate = Gate(tmp_path / "gates", 4, "survey")
    job |= {"worker_class": "cluster_models:Together", "gates": str(tmp_path / "gates")}
    job |= {"lines": 1000, "on_node_loss": "recover"}
    with Cluster(tmp_path, job=job) as cluster:
        master, _, (leaver,) = cluster.started_at(gate)
        other = cluster.start("worker")
        cluster.await_joined(other)
        leaver.send(signal.SIGTERM)
        master.wait_line(rf"process {leaver.pid}\): SIGTERM")
        gate.open()
        assert cluster.codes() == [0, 0, 0, 0]
        assert "left, 0 blocks returned" in master.stderr
    assert_counted(tmp_path / "out.npz", 1)


# --- interrupts -------------------------------------------------------------------------------


def test_all_processes_with_sigint_end_in_order(tmp_path, job, gated):
    with Cluster(tmp_path, job=job, servers=2, workers=2) as cluster:
        master, servers, workers = cluster.started_at(gated)
        for process in [*servers, *workers, master]:
            process.send(signal.SIGINT)
        for process in [*servers, *workers]:
            master.wait_line(rf"{cluster.name_of(process)} .*SIGINT")
        master.wait_line("interrupted: finishing")
        gated.open()
        assert cluster.codes() == [INTERRUPTED, 0, 0, 0, 0]
    assert (tmp_path / "out.npz").exists()


def test_master_with_sigint_while_forming_ends_at_once(tmp_path, job):
    with Cluster(tmp_path, job=job) as cluster:
        master = cluster.master()
        server = cluster.start("server")
        master.wait_line("server 1 .*registered")
        master.send(signal.SIGINT)
        assert cluster.codes() == [INTERRUPTED, STOPPED]
        assert "interrupted while starting the cluster; nothing was saved" in master.stderr
        assert "Traceback" not in master.stderr
        assert not server.errors


def test_worker_with_sigint_before_the_master_is_there_ends(tmp_path):
    port = free_port()
    with Cluster(tmp_path) as cluster, socket.create_server(("127.0.0.1", port)) as listener:
        worker = cluster.start("worker", f"master_addr=127.0.0.1:{port}")
        listener.accept()[0].close()
        worker.send(signal.SIGINT)
        assert worker.wait() == INTERRUPTED
        assert "Traceback" not in worker.stderr


# --- the cluster cannot form ------------------------------------------------------------------


def test_master_with_too_many_workers_says_that_servers_lack(tmp_path, job):
    clock = Clock(tmp_path)
    with Cluster(tmp_path, job=job, workers=1, program=clock.program) as cluster:
        master = cluster.master()
        for worker in (cluster.start("worker"), cluster.start("worker")):
            cluster.name_of(worker)
        clock.advance(LONG_S)
        cluster.codes()
        assert_one_sentence(master, "for 1 more server", "correct expected_servers")


def test_server_with_port_range_all_taken_says_so(tmp_path):
    with Cluster(tmp_path) as cluster, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = cluster.start(
            "server", "master_addr=127.0.0.1:9", f"port_range={port}-{port}", "init_timeout=1"
        )
        assert_one_sentence(server, f"no port of {port} to {port} is free", "port_range")


# --- the input and the output -----------------------------------------------------------------


def test_job_with_file_that_vanishes_names_file_and_block(tmp_path, job, gated):
    with Cluster(tmp_path, job={**job, "worker_class": "cluster_models:Counter"}) as cluster:
        master, *_ = cluster.started_at(gated)
        (tmp_path / "in.txt").unlink()
        gated.open()
        cluster.codes()
        name = cluster.name_of(cluster.processes[-1])
        assert_one_sentence(master, name, "cannot read", "in.txt", "bytes", "No such file")
    assert not (tmp_path / "out.npz").exists()


def test_job_with_file_that_shrinks_says_so(tmp_path, job, gated):
    with Cluster(tmp_path, job=job) as cluster:
        master, *_ = cluster.started_at(gated)
        os.truncate(tmp_path / "in.txt", 10)
        gated.open()
        cluster.codes()
        assert_one_sentence(master, "in.txt", "became shorter")


def test_job_with_output_in_a_folder_that_goes_says_so(tmp_path, job, gated):
    with Cluster(tmp_path, job={**job, "output": "new/folder/out"}) as cluster:
        master, *_ = cluster.started_at(gated)
        shutil.rmtree(tmp_path / "new" / "folder")  # it was made when the master started
        gated.open()
        assert cluster.codes() == [FAILED, STOPPED, STOPPED]
        assert_one_sentence(master, "new/folder/out.npz")


@pytest.fixture
def full_disk(tmp_path):
    """A folder on a file system of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    ) if os.geteuid() == 0 else None  # fmt: skip
    if made is None or made.returncode:
        pytest.skip("a full disk needs the right to mount one (root)")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def make_room(folder):
    subprocess.run(["mount", "-o", "remount,size=16m", str(folder)], check=True)


def test_job_with_full_disk_at_export_says_so_and_leaves_no_half_file(tmp_path, job, full_disk):
    """It waits for room, and goes on when there is some."""
    job = {**job, "output": str(full_disk / "out"), "dim": 1000}
    with Cluster(tmp_path, job=job) as cluster:
        master = cluster.master()
        cluster.nodes()
        master.wait_line(rf"{full_disk} is full.* It is tried again every .*make room")
        # The rows were to be saved instead: of that attempt the locked folder alone is left.
        kept = {"lock", "facts", "cluster", "base"}  # three of the journal
        assert {path.name for path in full_disk.rglob("*") if path.is_file()} <= kept
        make_room(full_disk)
        assert cluster.codes() == [0] * 3
    assert (full_disk / "out.npz").exists()


# --- settings and models ----------------------------------------------------------------------


def test_process_with_unknown_setting_suggests_the_nearest(tmp_path, job):
    with Cluster(tmp_path, job=job) as cluster:
        cluster.write("server.conf", {"heartbeat_timout": 3}, "job.conf")
        process = cluster.start("server")
        assert_one_sentence(
            process,
            "server.conf:2",
            "unknown setting 'heartbeat_timout'",
            "did you mean 'heartbeat_timeout'?",
            code=WRONG,
        )


@pytest.mark.long(but=["survey-2", "train-9"])
@pytest.mark.parametrize(
    ("method", "block"),
    [("survey", 2), ("setup", 0), ("prepare", 9), ("train", 2), ("train", 9), ("finish", 0)],
)  # block 9 is the last one
def test_job_with_failing_model_names_block_and_cause(tmp_path, job, method, block):
    job |= {"fails_in": method, "fails_on": block}
    if method == "survey":
        job |= {"worker_class": "cluster_models:Surveyed"}
    with Cluster(tmp_path, job=job) as cluster:
        codes, master = cluster.run()
        worker = cluster.processes[-1]
        parts = [f".{method} failed", "ValueError: planted failure", cluster.name_of(worker)]
        if method not in ("setup", "finish"):
            parts += [f"block {block} ", "in.txt", "bytes"]
        assert_one_sentence(master, *parts)
        assert "Traceback" in worker.stderr
        assert 'raise ValueError("planted failure")' in worker.stderr
        assert codes == [FAILED, STOPPED, FAILED]


@pytest.mark.parametrize("method", ["check", "result_files", "block_bytes"])
def test_master_with_a_model_that_fails_before_the_job_says_so(tmp_path, job, method):
    job |= {"worker_class": "cluster_models:FailsBefore", "fails_in": method}
    with Cluster(tmp_path, job=job) as cluster:
        master = cluster.master()
        assert master.wait() == FAILED
        (said,) = master.errors
        place = r"\(.*cluster_models\.py, line \d+, in _asked\)$"
        assert re.search(f"the job cannot begin: ValueError: planted failure {place}", said)


def test_worker_with_file_that_contradicts_the_job_refuses(tmp_path, job):
    with Cluster(tmp_path, job=job) as cluster:
        cluster.write("worker.conf", {"epochs": 7}, "common.conf")
        codes, master = cluster.run()
        said = "worker.conf:2", "epochs is '7' here, but '1' in the job"
        assert_one_sentence(master, *said, code=WRONG)
        assert codes[1:] == [STOPPED, WRONG]


# --- going on without a worker ---------------------------------------------------------------


def test_cluster_that_recovers_goes_on_without_a_killed_worker(tmp_path, job, gated):
    job["on_node_loss"] = "recover"
    with Cluster(tmp_path, job=job, workers=3) as cluster:
        master, *_ = cluster.started_at(gated)
        first, *others = [p for p in cluster.processes if p.name.startswith("worker")]
        for worker in (first, *others[:-1]):  # one is left at the gate
            worker.send(signal.SIGKILL)
            master.wait_line(rf"process {worker.pid}\) is lost: .* The others go on")
        gated.open()
        assert others[-1].wait() == 0
        assert master.wait() == 0
        assert any("to be leased again" in line for line in master.lines)
        cluster.codes()
    with np.load(tmp_path / "out.npz") as saved:
        # A block that was pushed and not reported is trained again.
        counts = saved["counts.rows"]
        assert (counts >= 20).all()
        assert counts.sum() < 1000 + 3 * 200


def test_cluster_that_lost_its_last_worker_goes_on_with_the_next(tmp_path, job, gated):
    job |= {"consistency": "bsp", "micro_batches": 2}
    with Cluster(tmp_path, job=job, workers=1) as cluster:
        master, *_ = cluster.started_at(gated)
        worker = cluster.processes[-1]
        worker.send(signal.SIGKILL)
        master.wait_line(rf"process {worker.pid}\) is lost: .* It was the last worker")
        master.wait_line("waiting for a worker: the last one is gone, .* s left")
        gated.open()
        cluster.start("worker")
        codes = cluster.codes()
        assert codes.count(0) == 3, master.stderr
    assert figures_of(master)["progress"] == 1
    with np.load(tmp_path / "out.npz") as saved:
        assert (saved["counts.rows"] == 20).all()


def test_cluster_that_recovers_ends_where_a_block_has_cost_three_workers(tmp_path, job):
    job |= {"on_node_loss": "recover", "gates": str(tmp_path / "gates")}
    gate = Gate(tmp_path / "gates", 2)
    with Cluster(tmp_path, job=job, workers=4) as cluster:
        master = cluster.master()
        _, workers = cluster.nodes()
        gate.meet()
        for lost in range(3):
            at = gate.who(workers)
            at.send(signal.SIGKILL)
            workers.remove(at)
            if lost < 2:
                master.wait_line(rf"process {at.pid}\) is lost")
        cluster.codes()
        gate.open()
        assert_one_sentence(master, "block 2", "in.txt", "has cost 3 workers")
