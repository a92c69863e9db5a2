"""Five hundred clusters, each drawn from its seed, and the simulation itself: it replays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cases import seeds

from tests.sim import cluster
from tests.sim.__main__ import failure, quiet_run
from tests.sim.scheduler import Future, Process, Stuck, World, first_of

ROOT = Path(__file__).resolve().parents[2]
CHUNK = 25


@pytest.mark.parametrize("first", range(0, len(seeds(500)), CHUNK))
def test_every_invariant_holds_in_each_cluster(first):
    failed = [
        outcome for outcome in map(quiet_run, range(first, first + CHUNK)) if outcome.problems
    ]
    assert not failed, "\n\n".join(map(failure, failed))


def test_seed_gives_the_same_events_again_and_in_a_process_with_other_hashes():
    script = (
        "from tests.sim.__main__ import quiet_run\n"
        "for seed in (3, 9, 21, 210): print(seed, quiet_run(seed).digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashes in ("1", "2")
    }
    expected = "".join(f"{seed} {quiet_run(seed).digest}\n" for seed in (3, 9, 21, 210))
    assert digests == {expected}


def test_folder_of_a_killed_run_goes_with_the_next_run_and_that_of_a_living_one_stays(
    tmp_path, monkeypatch
):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    for process in (ended.pid, os.getppid()):
        (tmp_path / f"{cluster.PREFIX}{process:09d}" / "journal").mkdir(parents=True)
    monkeypatch.setattr(cluster, "SHM", tmp_path)
    quiet_run(3)
    assert [path.name for path in tmp_path.iterdir()] == [f"{cluster.PREFIX}{os.getppid():09d}"]


# --- the scheduler -------------------------------------------------------------------------------


def test_events_come_by_time_and_then_by_order():
    world, seen = World(1), []
    for name, delay in (("b", 2.0), ("a", 1.0), ("c", 2.0)):
        world.after(delay, seen.append, name)
    world.run(lambda: False, 10)
    assert seen == ["a", "b", "c"]


def test_events_of_a_stalled_process_wait_and_those_of_a_dead_one_do_not_happen():
    world, seen = World(1), []
    stalled, dead = Process(world, "s", "h1"), Process(world, "d", "h2")
    stalled.after(1.0, lambda: seen.append(world.now))
    dead.after(1.0, seen.append, "never")
    stalled.stalled_until = world.now + 5.0
    begin = world.now
    dead.die("killed")
    world.run(lambda: False, 10)
    assert seen == [begin + 5.0]


def test_task_resumes_with_the_result_or_the_error_of_what_it_waits_for():
    world = World(1)
    process, good, bad = Process(world, "p", "h"), Future(), Future()

    def work():
        value = yield good
        try:
            yield bad
        except ValueError as error:
            value += str(error)
        yield 1.0
        return value + str((yield first_of(Future(), good)))

    task = process.spawn(work())
    good.set("a")
    bad.fail(ValueError("b"))
    world.run(lambda: False, 10)
    assert task.value == "ab1"


def test_run_without_an_end_is_told():
    world = World(1)

    def again():
        world.after(1.0, again)

    again()
    with pytest.raises(Stuck, match="100 events"):
        world.run(lambda: False, 100)
