"""Checkpoints in bsp and in rounds, by real processes: what follows has the same bits."""

import re
import signal

import pytest
from processes import Cluster, Gate, run_well
from test_bsp import files_of, prepare
from test_cluster import figures_of
from test_ends import Observer
from test_failures import FAILED
from with_time import Clock

from snailps.master.transfers import LATE_S

pytestmark = pytest.mark.limit(600)  # several clusters a test


def run(folder, job, servers, workers):
    """Runs a job in a folder to its end; the master."""
    return run_well(folder, job=job, servers=servers, workers=workers)


def stop_at(folder, job, gate, servers, workers):
    """Kills a server once two checkpoints were made while a worker stood at a gate."""
    with Cluster(folder, job=job, servers=servers, workers=workers) as cluster:
        master = cluster.master()
        killed = cluster.nodes()[0][0]
        gate.meet()
        with Observer(cluster) as observer:
            newest = observer.status()["checkpoint"]["number"]
        master.wait_line(f"checkpoint {newest + 2}: ")
        fail(cluster, master, killed, gate)


def fail(cluster, master, server, gate):
    """Kills a server whose rows are lost with it; a worker stands at a gate."""
    server.send(signal.SIGKILL)
    gate.open()
    assert cluster.codes()[0] == FAILED
    assert "The same command goes on from checkpoint" in master.errors[0]


def stop_between(folder, job, first, last):
    """Kills the only server once a checkpoint is made of a clock between two gates.

    It is withheld while a worker stands at the first one, and has to come before the other one.
    """
    clock = Clock(folder)
    with Cluster(folder, job=job, servers=1, workers=2, program=clock.program) as cluster:
        master = cluster.master()
        killed = cluster.nodes()[0][0]
        first.meet()
        number = withheld(cluster, master, clock)
        first.open()
        last.meet()
        master.wait_line(f"checkpoint {number}: ")
        fail(cluster, master, killed, last)


def withheld(cluster, master, clock):
    """Waits until a checkpoint waits for its clock to begin; its number.

    The master says so when that takes long: time passes whenever all members have been heard of.
    """

    def told():
        found = (re.search(r"checkpoint (\d+) waits for clock", line) for line in master.lines)
        return next(filter(None, found), None)

    def advanced(status):
        heard = all((node["heartbeat_s"] or 0) < LATE_S for node in status["nodes"])
        if heard and status["checkpoint"]["writing"]:
            clock.advance(int(LATE_S) + 1)
        return told()

    with Observer(cluster) as observer:
        observer.until(advanced)
    return int(told()[1])


@pytest.mark.long(but=["logistic"])
@pytest.mark.parametrize("model", ["logistic", "words", "fm", "classifier"])
def test_bsp_job_continued_from_a_checkpoint_has_the_bits_of_one_undisturbed(tmp_path, model):
    whole, again = tmp_path / "whole", tmp_path / "again"
    whole.mkdir()
    again.mkdir()
    gates = tmp_path / "gates"  # a setting, which a model's file names
    run(whole, prepare(whole, model, gates=gates), 1, 1)
    job = prepare(again, model, checkpoint_interval=0.3, checkpoint_dir="saved", gates=gates)
    (again / "input").write_bytes((whole / "input").read_bytes())
    stop_between(again, job, Gate(gates, 4, "before"), Gate(gates, 15, "before"))
    master = run(again, job, 2, 3)
    line = master.wait_line(r"continuing from checkpoint \d+ .* of the training")
    assert 0 < int(re.search(r": (\d+)% of", line)[1]) < 100
    assert files_of(again) == files_of(whole)
    assert figures_of(master)["continued_from"] > 0


def test_job_in_rounds_continued_from_a_checkpoint_ends_with_the_same_model(tmp_path):
    whole, again = tmp_path / "whole", tmp_path / "again"
    job = {"worker_class": "clock_models:Mean", "output": "out", "rounds": 5}
    models = []
    for folder in (whole, again):
        folder.mkdir()
        if folder is again:
            job |= {"checkpoint_interval": 0.3, "gates": again / "gates"}
            stop_at(again, job, Gate(again / "gates", 2 * 2, "before"), 1, 2)
        master = run(folder, job, 1 + (folder is again), 2)
        figures = figures_of(master)
        models.append((figures["model"], figures.get("rounds")))
    master.wait_line(r"continuing from checkpoint \d+ .* 40% of the training")
    assert models[0] == models[1]
