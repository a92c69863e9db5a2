"""What signals at a master lead to, by its core alone; with real processes: test_signals.py."""

import signal
from types import SimpleNamespace

import pytest
from master_parts import context_of
from master_world import World, rejoin, takes_over

from snailps.master import effects, events
from snailps.master.interrupts import LEAVE_S, Interrupts
from snailps.master.phases import ClusterPhase, JobPhase
from snailps.transport import messages as m

TERM, INT, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP


def send(world, *numbers):
    for number in numbers:
        world.handle(events.Signal(number))
    world.tick()


def state(world):
    return world.core.phase, world.core.lifecycle.code


def exporting(make_job, **how):
    """A world whose model is being written."""
    world = World(make_job(), **how)
    _, *workers = world.forms()
    while sum(map(world.trains, workers)):  # both take a turn
        world.tick()
    world.slow = True
    for worker in workers:
        world.note(worker, m.Finished({}))
    world.tick(times=3)
    assert world.core.job_controller.phase is JobPhase.EXPORTING
    return world


def test_sigterm_leaves_without_a_word_to_anybody_and_the_next_master_goes_on(make_job):
    before = World(make_job())
    _, first, _ = before.forms()
    assert before.trains(first)
    send(before, TERM)
    assert before.trains(first)  # until it leaves all goes on
    before.tick(seconds=LEAVE_S)
    assert state(before) == (ClusterPhase.LEFT, 143)
    assert before.core.lifecycle.over
    assert not before.core.lifecycle.failed
    assert not any(isinstance(e, effects.Send) and isinstance(e.message, m.Stop)
                   for e in before.effects)  # fmt: skip
    assert {fact.kind for fact in before.facts()}.isdisjoint({"stopped", "early"})
    world = takes_over(before, make_job())
    for member in (1, 2, 3):
        rejoin(world, member)
    world.tick(times=4)
    assert world.core.reported_phase == "training"
    assert world.core.job_controller.job.schedule.finished == 2


@pytest.mark.parametrize("number", [INT, HUP])
def test_other_signals_end_the_training_early(make_job, number):
    world = World(make_job())
    world.forms()
    send(world, number)
    assert world.core.job_controller.present.interrupted
    assert state(world) == (ClusterPhase.FORMED, 0)


@pytest.mark.parametrize("how", [{"nodes_stay": False}, {"kept": False}])
def test_sigterm_is_sigint_where_nobody_can_go_on(make_job, how):
    world = World(make_job(), **how)
    world.forms()
    send(world, TERM)
    assert world.core.job_controller.present.interrupted
    world.tick(seconds=LEAVE_S)
    send(world, TERM)
    assert state(world) == (ClusterPhase.STOPPING, 130)


def test_sigterm_of_a_master_whose_journal_fails_meanwhile_saves_the_model(make_job):
    world = World(make_job())
    world.forms()
    send(world, TERM)
    world.handle(events.JournalFailed())
    world.tick(seconds=LEAVE_S)
    assert world.core.job_controller.present.interrupted


def test_sigterm_of_all_saves_the_model(make_job):
    world = World(make_job())
    server, *_ = world.forms()
    send(world, TERM)
    world.note(server, m.Leaving("SIGTERM"))
    world.tick(seconds=2 * LEAVE_S)
    assert world.core.job_controller.present.interrupted
    assert state(world) == (ClusterPhase.FORMED, 0)


def test_sigterm_leaves_a_training_that_ends_early(make_job):
    world = World(make_job())
    world.forms()
    send(world, INT)
    send(world, TERM)
    assert state(world) == (ClusterPhase.FORMED, 0)
    world.tick(seconds=LEAVE_S)
    assert state(world) == (ClusterPhase.LEFT, 143)
    assert "early" in {fact.kind for fact in world.facts()}


@pytest.mark.parametrize("at_member", [False, True])
def test_sigint_after_sigterm_saves_the_model(make_job, at_member):
    """The last signal counts, as it does the other way round."""
    world = World(make_job())
    server, *_ = world.forms()
    send(world, TERM)
    if at_member:
        world.note(server, m.Leaving("SIGINT"))
    else:
        send(world, INT)
    world.tick(seconds=2 * LEAVE_S)
    assert world.core.job_controller.present.interrupted
    assert state(world) == (ClusterPhase.FORMED, 0)


def test_sigterm_after_sigint_at_a_member_leaves(make_job):
    world = World(make_job())
    server, *_ = world.forms()
    world.note(server, m.Leaving("SIGINT"))
    world.tick()
    send(world, TERM)
    world.tick(seconds=LEAVE_S)
    assert state(world) == (ClusterPhase.LEFT, 143)
    assert "early" in {fact.kind for fact in world.facts()}


def test_sigterm_of_a_master_that_still_forms_leaves_its_nodes_waiting(make_job):
    world = World(make_job())
    server = world.join("server")
    send(world, TERM)
    world.tick(seconds=LEAVE_S)
    assert state(world) == (ClusterPhase.LEFT, 143)
    assert not world.sent(server, m.Stop)


@pytest.mark.parametrize("back", [(), (1,), (1, 2)], ids=["none", "server", "server and worker"])
@pytest.mark.parametrize(("number", "code"), [(INT, 130), (HUP, 130), (TERM, 143)])
def test_signal_during_a_takeover_leaves_the_run_to_the_next_master(make_job, number, code, back):
    before = World(make_job())
    _, first, _ = before.forms()
    assert before.trains(first)
    world = takes_over(before, make_job())
    for member in back:
        rejoin(world, member)
    send(world, number)
    world.tick(seconds=LEAVE_S)
    assert state(world) == (ClusterPhase.LEFT, code)
    assert "the same command goes on" in world.core.lifecycle.verdict
    assert not any(isinstance(e, effects.Send) and isinstance(e.message, m.Stop)
                   for e in world.effects)  # fmt: skip
    assert {fact.kind for fact in world.facts()}.isdisjoint({"stopped", "early"})


def test_signal_during_a_takeover_whose_nodes_end_with_it_saves_the_model(make_job):
    before = World(make_job(), nodes_stay=False)
    _, first, _ = before.forms()
    assert before.trains(first)
    world = takes_over(before, make_job(), nodes_stay=False)
    send(world, INT)
    assert state(world) == (ClusterPhase.FORMING, 0)
    for member in (1, 2, 3):
        rejoin(world, member)
    world.tick(times=4)
    assert world.core.job_controller.present.interrupted
    assert state(world) == (ClusterPhase.FORMED, 0)


@pytest.mark.parametrize("number", [INT, TERM, HUP])
@pytest.mark.parametrize("asked", [False, True])
def test_first_signal_lets_an_export_finish(make_job, number, asked):
    world = exporting(make_job)
    if asked:
        world.note(2, m.Leaving("SIGINT"))
    send(world, number)
    world.tick(seconds=2 * LEAVE_S)
    assert not world.core.job_controller.exporting.export.cancelled
    world.work()
    world.tick(times=3)
    assert state(world) == (ClusterPhase.STOPPING, 0)


def test_sigterm_that_comes_twice_is_one(make_job):
    """A scheduler sends it to a script and to its children, and the script passes it on."""
    world = World(make_job())
    server, *_ = world.forms()
    send(world, TERM, TERM)
    world.note(server, m.Leaving("SIGTERM"))
    send(world, TERM)
    world.tick(seconds=2 * LEAVE_S)
    assert world.core.job_controller.present.interrupted
    assert state(world) == (ClusterPhase.FORMED, 0)
    world = exporting(make_job)
    send(world, TERM, TERM)
    assert not world.core.job_controller.exporting.export.cancelled


@pytest.mark.parametrize("signals", [(INT, INT), (TERM, TERM), (INT, TERM)])
def test_second_signal_ends_an_export_and_leaves_the_journal(make_job, signals):
    world = exporting(make_job)
    send(world, signals[0])
    world.tick(seconds=LEAVE_S)
    send(world, signals[1])
    assert world.core.job_controller.exporting.export.cancelled
    world.tick(seconds=10.0)
    assert state(world) == (ClusterPhase.LEFT, 130 if signals[-1] == INT else 143)
    assert {fact.kind for fact in world.facts()}.isdisjoint({"stopped", "exported"})
    assert "nothing was saved" in world.core.lifecycle.verdict
    assert "the same command goes on" in world.core.lifecycle.verdict


def test_signal_after_one_that_has_ended_the_training_ends_its_export(make_job):
    world = World(make_job())
    _, *workers = world.forms()
    send(world, INT)
    world.slow = True
    for worker in workers:
        world.note(worker, m.Finished({}))
    world.tick(times=3)
    assert world.core.job_controller.phase is JobPhase.EXPORTING
    assert not world.core.job_controller.exporting.export.cancelled
    send(world, INT)
    assert world.core.job_controller.exporting.export.cancelled
    send(world, INT)  # at once
    assert state(world) == (ClusterPhase.LEFT, 130)


def test_second_signal_where_nodes_end_with_the_master_ends_all(make_job):
    world = exporting(make_job, nodes_stay=False)
    send(world, INT, INT)
    world.tick(seconds=10.0)
    assert state(world) == (ClusterPhase.STOPPING, 130)


@pytest.mark.parametrize("phase", [JobPhase.TRAINING, JobPhase.EXPORTING])
def test_session_whose_servers_leave_during_a_job_is_saved_after_it(phase):
    """Also where its master got SIGTERM as well: it does not leave before that."""
    saved, calls = [], []
    lifecycle = SimpleNamespace(ending=False, forming=False, fail=lambda *how: calls.append(how))
    job = SimpleNamespace(
        phase=phase, training=SimpleNamespace(interrupt=lambda now: calls.append("early")),
        exporting=SimpleNamespace(export=SimpleNamespace(cancelled=False)),
    )  # fmt: skip
    interrupts = Interrupts(
        context_of(effects.Outbox(kept=True)), lifecycle, job, SimpleNamespace(returning=False),
        saved.append,
    )  # fmt: skip
    interrupts.signal(TERM, 100.0)
    interrupts.all_servers_leave("all rows would go", 100.0)
    interrupts.step(100.1)
    assert set(calls) == ({"early"} if phase is JobPhase.TRAINING else set())
    assert not saved
    job.phase = JobPhase.IDLE
    interrupts.forget()  # the job has ended
    interrupts.step(100.0 + 2 * LEAVE_S)
    saved[0]()  # once the checkpoint is complete
    assert calls[-1] == ("all rows would go", 130)
