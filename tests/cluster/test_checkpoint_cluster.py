"""Checkpoints of real clusters: saved while training goes on, continued by the same command."""

import json
import re
import shutil
import signal

import numpy as np
import pytest
from cluster_models import COUNTER, write_numbers
from processes import SNAILPS, Cluster, Gate, Process, run_well
from test_cluster import figures_of
from test_failures import FAILED, INTERRUPTED, assert_one_sentence, full_disk

from snailps.store.checkpoint.folder import PASSED, CheckpointFolder
from snailps.store.checkpoint.manifest import NAME

__all__ = ["full_disk"]
LINES, ROWS = 1000, 50


@pytest.fixture
def job(tmp_path):
    """A job of ten blocks that saves whenever something was pushed; its result is known."""
    write_numbers(tmp_path / "in.txt", LINES, ROWS)
    (tmp_path / "journal").mkdir()
    return {
        "worker_class": COUNTER,
        "input": "in.txt",
        "output": "out",
        "epochs": 1,
        "gates": str(tmp_path / "gates"),
        "journal": str(tmp_path / "journal"),
        "param_backup_period": 1,
        "checkpoint_interval": 5,  # should pushes be counted before the master knows of their block
        "checkpoints_kept": 3,
    }


@pytest.fixture
def saved(tmp_path):
    return CheckpointFolder(tmp_path / "out.checkpoints")


def trained(tmp_path):
    """Numbers of the blocks that were trained, in no order, repetitions included."""
    lines = [
        line for file in (tmp_path / "journal").iterdir() for line in file.read_text().splitlines()
    ]
    return sorted(int(line.split()[0]) for line in lines)


def assert_counted_once(tmp_path, rows=ROWS, lines=LINES):
    with np.load(tmp_path / "out.npz") as tables:
        assert tables["counts.keys"].tolist() == list(range(rows))
        assert np.unique(tables["counts.rows"]).tolist() == [lines / rows]


def stop_at_block(tmp_path, job, number, *, earlier=(), kill="server"):
    """Runs to a block, waits for a checkpoint of all before it, then kills a process; the master.

    The same checkpoint, without a death, at the blocks that are named as `earlier`.  Others, which
    were saved while a block was pushed and have rows of it, are removed.
    """
    gate = Gate(tmp_path / "gates", number)
    before = [Gate(tmp_path / "gates", block) for block in earlier]
    whole = []
    with Cluster(tmp_path, job=job) as cluster:
        master = cluster.master()
        nodes = cluster.nodes()
        for block, other in zip(earlier, before, strict=True):
            other.meet()
            whole.append(master.wait_line(rf"checkpoint \d+: {block * 10}% of the training"))
            other.open()
        gate.meet()
        whole.append(master.wait_line(rf"checkpoint \d+: {number * 10}% of the training, \d+ rows"))
        victim = {"server": nodes[0][0], "worker": nodes[1][0], "master": master}[kill]
        victim.send(signal.SIGKILL)
        if kill != "worker":
            gate.open()
        codes = cluster.codes()
        gate.open()
        assert codes.count(-signal.SIGKILL) == 1
    numbers = [int(re.search(r"checkpoint (\d+):", line)[1]) for line in whole]
    for one in CheckpointFolder(tmp_path / "out.checkpoints").found():
        if one.number < numbers[-1] and one.number not in numbers:
            shutil.rmtree(one.path)
    return master


def run_on(tmp_path, job, *sets, servers=1, workers=1):
    """The same command again: runs to the end; the master."""
    return run_well(tmp_path, job=job, servers=servers, workers=workers, sets=sets)


# --- going on -----------------------------------------------------------------------------------


def test_job_whose_server_was_killed_is_continued_by_the_same_command(tmp_path, job, saved):
    master = stop_at_block(tmp_path, job, 6)
    assert_one_sentence(
        master, "is lost", "The same command goes on from checkpoint", "60% of the training"
    )
    newest = max(one.number for one in saved.found() if one.state == "good")
    master = run_on(tmp_path, job, servers=3, workers=2)
    master.wait_line(rf"continuing from checkpoint {newest} .* 60% of the training, 50 rows")
    assert_counted_once(tmp_path)
    assert trained(tmp_path) == [*range(10)]
    figures = figures_of(master)
    assert (figures["examples"], figures["blocks"], figures["progress"]) == (LINES, 10, 1.0)
    assert figures["continued_from"] == newest
    assert figures["loss_by_epoch"] == [1.0]
    assert figures["rows"] == ROWS


def test_job_that_was_interrupted_saves_itself_and_is_continued(tmp_path, job, saved):
    job |= {"param_backup_period": 0, "checkpoint_interval": 3600}
    lines = "".join(f"{name}: {value}\n" for name, value in job.items())
    (tmp_path / "job.conf").write_text(lines)
    gate = Gate(tmp_path / "gates", 3)
    with Process("snailps", [*SNAILPS, "local", "-c", "job.conf", "--json"], cwd=tmp_path) as run:
        gate.meet()
        run.send(signal.SIGINT)
        run.wait_line("interrupted: finishing")
        gate.open()
        assert run.wait() == INTERRUPTED, run.stderr
    (kept,) = saved.candidates()
    share, folder = kept.manifest.job["progress"], kept.path.parent
    assert (kept.number, round(share, 2)) == (1, 0.4)
    run.wait_line(
        rf"saved: checkpoint 1 \(40% of the training\) in {folder}: "
        "the same command continues from there"
    )
    told = json.loads(run.stdout)["checkpoint"]
    assert told == {"number": 1, "progress": share, "path": str(folder)}
    run_on(tmp_path, job)
    assert_counted_once(tmp_path)
    assert trained(tmp_path) == [*range(10)]


@pytest.mark.long
def test_job_that_ended_begins_anew_by_the_same_command(tmp_path, job, saved):
    gate = Gate(tmp_path / "gates", 5)
    with Cluster(tmp_path, job=job) as cluster:
        master, *_ = cluster.started_at(gate)
        master.wait_line(r"checkpoint \d+: 50% of the training")
        gate.open()
        assert cluster.codes() == [0, 0, 0]
    assert json.loads((saved.path / PASSED).read_text())["why"] == "the run ended"
    assert list(saved.candidates()) == []
    run_on(tmp_path, job, "overwrite=true")
    assert_counted_once(tmp_path)
    assert len(trained(tmp_path)) == 20


def test_job_with_fresh_begins_anew_and_the_one_after_it_goes_on_from_that(tmp_path, job):
    stop_at_block(tmp_path, job, 6)
    master = run_on(tmp_path, job, "fresh=true")
    assert "continuing" not in master.stderr
    assert trained(tmp_path) == sorted([*range(6), *range(10)])
    assert_counted_once(tmp_path)


def test_job_continued_for_more_epochs_trains_only_those(tmp_path, job):
    stop_at_block(tmp_path, job, 6)
    run_on(tmp_path, {**job, "epochs": 2})
    assert trained(tmp_path) == [*range(20)]
    with np.load(tmp_path / "out.npz") as tables:
        assert np.unique(tables["counts.rows"]).tolist() == [2 * LINES / ROWS]


# --- what cannot be gone on from ------------------------------------------------------------------


def test_damaged_checkpoint_is_named_and_the_one_before_it_used(tmp_path, job, saved):
    stop_at_block(tmp_path, job | {"checkpoints_kept": 20}, 6, earlier=[3])
    before, newest = [one for one in saved.found() if one.state == "good"][-2:]
    share = before.manifest.job["progress"]
    rows = next(newest.path.glob("*.rows"))
    data = bytearray(rows.read_bytes())
    data[4096] ^= 1
    rows.write_bytes(data)
    master = run_on(tmp_path, job, servers=2)
    master.wait_line(rf"checkpoint {newest.number} cannot be used: .*{newest.path}")
    master.wait_line(f"continuing from checkpoint {before.number} ")
    assert_counted_once(tmp_path)
    assert trained(tmp_path) == sorted([*range(6), *range(round(share * 10), 10)])


def test_unfinished_checkpoint_is_named_and_removed(tmp_path, job, saved):
    stop_at_block(tmp_path, job, 6)
    newest = max(one.number for one in saved.found() if one.state == "good")
    part = saved.path / f"checkpoint-{newest + 1:06d}.part"
    shutil.copytree(saved.path / f"checkpoint-{newest:06d}", part)
    master = run_on(tmp_path, job)
    master.wait_line(f"checkpoint {newest + 1} is unfinished: it was never finished")
    master.wait_line(f"continuing from checkpoint {newest} ")
    assert not part.exists()
    assert_counted_once(tmp_path)


def test_job_with_damaged_checkpoints_only_says_what_to_do(tmp_path, job, saved):
    stop_at_block(tmp_path, job, 2)
    for one in saved.found():
        (one.path / NAME).write_text("{}")
    with Cluster(tmp_path, job=job) as cluster:
        master = cluster.master()
        assert_one_sentence(master, "no checkpoint here can be used", NAME, "--fresh")


def test_job_with_checkpoints_of_another_one_refuses(tmp_path, job):
    """Settings, input and fragments, each by itself: tests/unit/test_checkpoints.py."""
    stop_at_block(tmp_path, job, 2)
    with Cluster(tmp_path, job={**job, "dim": 2}) as cluster:
        words = "dim is 2 here and 1 there"
        assert_one_sentence(cluster.master(), "of another job", words, "--fresh", code=2)


def test_second_master_with_the_same_folder_refuses(tmp_path, job):
    gate = Gate(tmp_path / "gates", 2)
    with Cluster(tmp_path, job=job) as cluster:
        cluster.master()
        cluster.nodes()
        gate.meet()
        second = Process("second", [*SNAILPS, "master", "-c", str(tmp_path / "master.conf"),
                                    "--set", "listen_addr=127.0.0.1:0"], cwd=tmp_path)  # fmt: skip
        cluster.processes.append(second)
        assert_one_sentence(second, "another master keeps its")
        gate.open()
        assert cluster.codes() == [0, 0, 0, FAILED]


# --- trouble while saving ---------------------------------------------------------------------


@pytest.mark.long
def test_checkpoint_that_outlasts_the_training_is_finished_first(tmp_path, job, saved):
    run_on(tmp_path, job | {"param_backup_period": 0, "checkpoint_interval": 0.001})
    assert_counted_once(tmp_path)
    assert all(one.state == "good" for one in saved.found())
