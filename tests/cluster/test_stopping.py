"""Every way to end a training: steps, time, loss, Ctrl-C; and what is looked at meanwhile."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cluster_models import counting_job
from processes import LIMIT_S, Cluster, Gate, environment, run_well
from test_cluster import figures_of
from test_ends import Observer
from test_failures import LONG_S
from with_time import Clock

from snailps import local_cluster

INTERRUPTED, FAILED, STOPPED = 130, 1, 3
PAUSE_S = 1.0


@pytest.fixture
def job(tmp_path):
    """A job of 20 blocks of 100 lines; its result is known."""
    return counting_job(tmp_path, gates=str(tmp_path / "gates"), epochs=2)


@pytest.fixture
def gate(tmp_path):
    """Makes gates."""
    return lambda number, kind="block": Gate(tmp_path / "gates", number, kind)


def counted(folder):
    """How many lines the result has counted."""
    with np.load(folder / "out.npz") as saved:
        return saved["counts.rows"].sum()


# --- limits -----------------------------------------------------------------------------------


def test_job_with_max_steps_trains_on_exactly_so_many_blocks(tmp_path, job):
    figures = figures_of(run_well(tmp_path, job=job | {"max_steps": 13}, workers=3))
    assert (figures["ended_by"], figures["blocks"], figures["examples"]) == ("max_steps", 13, 1300)
    assert figures["progress"] == 1.0
    assert counted(tmp_path) == 1300


def test_job_with_target_loss_ends_there(tmp_path, job):
    figures = figures_of(run_well(tmp_path, job=job | {"target_loss": 1.0, "epochs": 1000}))
    assert figures["ended_by"] == "target_loss"
    assert 10 <= figures["blocks"] < 10_000
    assert counted(tmp_path) == 100 * figures["blocks"]


@pytest.mark.long
def test_job_of_a_session_after_one_that_left_a_block_behind_is_whole(
    tmp_path, job, gate, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    job = {**job, "input": str(tmp_path / "in.txt"), "output": str(tmp_path / "out")}
    del job["worker_class"]
    cls = "cluster_models:Hurried"
    at_block = gate(2)
    clock = Clock(job["gates"])
    with local_cluster(workers=1) as cluster, ThreadPoolExecutor(1) as helper:
        first = helper.submit(cluster.train, cls, timeout_s=LIMIT_S, max_seconds=LONG_S - 1, **job)
        at_block.meet()
        clock.advance(LONG_S)
        figures = first.result()
        assert (figures["ended_by"], figures["blocks"]) == ("max_seconds", 2)
        assert counted(tmp_path) == 200
        at_block.open()  # another worker is in its place
        assert cluster.train(cls, timeout_s=LIMIT_S, **job)["ended_by"] == "epochs"
        assert counted(tmp_path) == 2000


# --- Ctrl-C -----------------------------------------------------------------------------------


def test_interrupt_drops_what_is_prefetched_and_keeps_what_is_at_work(tmp_path, job, gate):
    at_block = gate(2)
    with Cluster(tmp_path, job=job) as cluster:
        master, *_ = cluster.started_at(at_block)
        master.send(signal.SIGINT)
        master.wait_line("interrupted: finishing")
        at_block.open()
        assert cluster.codes() == [INTERRUPTED, 0, 0]
        assert figures_of(master)["ended_by"] == "interrupt"
        assert "interrupted after" in master.stderr
        assert "the model so far is saved" in master.stderr
        assert "Traceback" not in master.stderr
    assert counted(tmp_path) == 300


def test_interrupt_with_a_block_that_does_not_end_saves_without_it(tmp_path, job, gate):
    at_block, at_export = gate(2), gate(0, "export")
    with Cluster(
        tmp_path, job=job | {"worker_class": "cluster_models:Hurried"}, workers=2
    ) as cluster:
        master, *_ = cluster.started_at(at_block)
        with Observer(cluster) as observer:  # the other one may still be at an earlier block
            observer.until(lambda status: status["blocks"]["done"] >= 2)
        master.send(signal.SIGINT)
        master.wait_line("is given up as the training ends: 1 s at its last blocks, and none of")
        at_export.meet()
        at_block.open()  # its pushes are refused, if it has not ended yet
        at_export.open()
        assert sorted(cluster.codes()) == [0, 0, STOPPED, INTERRUPTED]
        assert not master.errors
    assert counted(tmp_path) == figures_of(master)["examples"] >= 200


def test_interrupt_in_the_middle_of_a_push_waits_for_the_rest_of_it(tmp_path, job, gate):
    """Half of a block is in the rows: nothing undoes that."""
    at_half = gate(2, "half")
    with Cluster(tmp_path, job=job | {"worker_class": "cluster_models:HalfPushed"}) as cluster:
        master, *_ = cluster.started_at(at_half)
        master.send(signal.SIGINT)
        master.wait_line("has pushed a part of its last blocks, and nothing for 1 s")
        at_half.open()
        assert cluster.codes() == [INTERRUPTED, 0, 0]
    assert counted(tmp_path) == figures_of(master)["examples"] == 300


def test_worker_whose_push_stays_half_is_given_up_at_last_and_its_block_does_not_count(
    tmp_path, job, gate
):
    at_half = gate(2, "half")
    job = job | {"worker_class": "cluster_models:HalfPushed"}
    clock = Clock(job["gates"])
    with Cluster(tmp_path, job=job) as cluster:
        master, *_ = cluster.started_at(at_half)
        master.send(signal.SIGINT)
        master.wait_line("has pushed a part of its last blocks")
        clock.advance(LONG_S)
        master.wait_line("given up as the training ends: not a byte in .*, and a part of its last")
        assert cluster.codes() == [INTERRUPTED, 0, STOPPED]
    assert figures_of(master)["examples"] == 200
    assert counted(tmp_path) == 250


def test_master_that_was_stopped_gives_nobody_up_for_that(tmp_path, job, gate):
    """SIGSTOP, a laptop's lid, a pause of the virtual machine."""
    at_block = gate(2)
    job = job | {"worker_class": "cluster_models:Paused"}
    with Cluster(tmp_path, job=job) as cluster:
        master, *_ = cluster.started_at(at_block)
        master.send(signal.SIGINT)
        master.wait_line("interrupted: finishing")
        master.send(signal.SIGSTOP)
        time.sleep(PAUSE_S)
        master.send(signal.SIGCONT)
        at_block.open()
        assert cluster.codes() == [INTERRUPTED, 0, 0]
    assert counted(tmp_path) == figures_of(master)["examples"] == 300


def test_interrupt_with_a_block_that_never_ends_ends_the_cluster_in_bounded_time(
    tmp_path, job, gate
):
    at_block = gate(2)
    with Cluster(tmp_path, job=job | {"worker_class": "cluster_models:Hurried"}) as cluster:
        master, _, (worker,) = cluster.started_at(at_block)
        master.send(signal.SIGINT)
        assert cluster.codes() == [INTERRUPTED, 0, STOPPED]
        worker.wait_line("still busy 1 s after the end")
        at_block.open()
    assert counted(tmp_path) == 200


# --- rows that the tables begin with ----------------------------------------------------------


def test_loader_puts_rows_once_whoever_leaves_or_joins_meanwhile(tmp_path, job, gate):
    at_load = gate(0, "load")
    job |= {"worker_class": "cluster_models:Loaded", "lines": 1000}
    with Cluster(tmp_path, job=job, workers=2, servers=2) as cluster:
        master, _, (leaving, _) = cluster.started_at(at_load)
        cluster.await_joined(leaving)
        leaving.send(signal.SIGTERM)
        master.wait_line("SIGTERM")
        late = cluster.start("worker")
        cluster.name_of(late)
        with Observer(cluster) as observer:
            assert observer.status()["phase"] == "loading"
        at_load.open()
        assert cluster.codes() == [0] * 6
        assert figures_of(master)["examples"] == 2000
    with np.load(tmp_path / "out.npz") as saved:
        assert saved["counts.rows"].ravel().tolist() == [1040.5] * 50


def test_worker_killed_while_rows_are_put_ends_the_job_without_a_result(tmp_path, job, gate):
    at_load = gate(0, "load")
    job |= {"worker_class": "cluster_models:Loaded", "lines": 1000, "on_node_loss": "stop"}
    with Cluster(tmp_path, job=job) as cluster:
        master, _, (worker,) = cluster.started_at(at_load)
        worker.send(signal.SIGKILL)
        master.wait_line("is lost")
        at_load.open()
        assert cluster.codes()[0] == FAILED
    assert not (tmp_path / "out.npz").exists()


# --- looking ----------------------------------------------------------------------------------


def test_inspector_looks_during_the_training_and_at_its_end(tmp_path, job, gate):
    at_block = gate(10)
    log = tmp_path / "log"
    job |= {"worker_class": "cluster_models:Watched"}
    with Cluster(tmp_path, job=job) as cluster:
        master, *_ = cluster.started_at(at_block, f"json_log={log}")
        with Observer(cluster) as observer:
            observer.until(lambda status: status["validation"] == {"seven": [["count", 20.0]]})
        at_block.open()
        assert cluster.codes() == [0, 0, 0]
        assert figures_of(master)["validation"] == {"seven": [["count", 40.0]]}
    records = [json.loads(line) for line in log.read_text().splitlines()]
    seen = [record["validation"]["seven"][0][1] for record in records if record["validation"]]
    assert {20.0, 40.0} <= set(seen)
    assert seen == sorted(seen)


def test_inspector_that_fails_is_told_and_the_job_goes_on(tmp_path, job, gate):
    job |= {"worker_class": "cluster_models:Watched", "fails_in": "look"}
    early, late = gate(4), gate(12)
    with Cluster(tmp_path, job=job) as cluster:
        master, *_ = cluster.started_at(early)
        with Observer(cluster) as observer:
            observer.until(lambda status: status["validation"] == {"seven": [["count", 8.0]]})
        early.open()
        late.meet()
        master.wait_line("the inspection of the model failed, the job goes on: ValueError: planted")
        late.open()
        assert cluster.codes() == [0, 0, 0]
        assert figures_of(master)["validation"]["seven"][0][1] <= 20
    assert counted(tmp_path) == 2000
