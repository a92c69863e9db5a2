"""The course of rounds: the next one is trained while the model looks at the last, not applied."""

from types import SimpleNamespace

import pytest
from master_world import World, rejoin, takes_over

from snailps.config import JobSettings, MasterSettings, RawConfig
from snailps.master import effects, events
from snailps.master.effects import Fact
from snailps.master.job.job import Job as MasterJob
from snailps.master.job.job import JobClock
from snailps.master.job.model_class import ByInput, Look, RoundTerms
from snailps.master.job.round_controller import RoundController
from snailps.master.job.stop_rules import StopRules
from snailps.master.leases.rounds import RoundSchedule
from snailps.master.services import ModelAccess
from snailps.node.effects import WorkDone
from snailps.transport import messages as m

TARGET = 1.0


class Job:
    """What a `RoundController` uses of a job."""

    def __init__(self, workers, deadline_s):
        look = Look(("round",), lambda results, round_: {}, strict=True)
        self.model = SimpleNamespace(
            rounds=RoundTerms(4, 1.0, deadline_s), by_input=ByInput(looks=(look,))
        )
        self.clock = JobClock(0.0, 0.0)
        self.rules = StopRules()
        self.schedule, self.figures = RoundSchedule(4, workers), []

    def begin_round(self):
        pass

    def round_done(self, round_, figures):
        self.figures.append((round_, figures))
        if figures["loss"] <= TARGET:
            self.rules.reach("target_loss", round_)


class Rounds:
    """A controller whose shards and inspections are answered by the test."""

    def __init__(self, workers=(5,), deadline_s=0.0):
        self.job = Job(list(workers), deadline_s)
        self.facts, self.closed, self.inspections, self.failed, self.said = [], [], [], [], []
        self.rows = SimpleNamespace(clocks_set=True, close_clock=self._close)
        out = SimpleNamespace(
            journal=lambda kind, data: self.facts.append((kind, data)), say=self.said.append,
            work=self._begin_inspection,
        )  # fmt: skip
        present = SimpleNamespace(
            reading=lambda: ModelAccess(iter([1]), {}, {}), figures={},
            hooks=SimpleNamespace(fail_job=self.failed.append),
        )  # fmt: skip
        members = SimpleNamespace(nodes=lambda role: workers)
        self.checkpoints = SimpleNamespace(running=False, is_due=lambda now: False)
        self.control = RoundController(
            out, self.job, self.job.schedule.rounds, members, self.rows, self.checkpoints, present,
            self,
        )  # fmt: skip

    def _close(self, clock, parts, now):
        self.closed.append(clock)
        self.rows.clocks_set = False

    def look(self, job, looks, round_, reading, *, stays):
        assert stays
        self.parts = reading.figures["parts"]
        return round_

    def _begin_inspection(self, run, then):
        self.inspections.append((run(), then))

    def train(self, worker=5, now=0.0):
        """A worker trains its part of the present round; whether there was one."""
        entry = self.job.schedule.take(worker)
        if entry is not None:
            self.job.schedule.done(entry.number, worker)
        self.control.step(now)
        return entry is not None

    def apply(self):
        self.rows.clocks_set = True
        self.control.step(0.0)

    def inspected(self, loss, now=0.0):
        _, then = self.inspections.pop(0)
        then(WorkDone(0, [{"loss": loss}]), now)
        self.control.step(now)


@pytest.fixture
def rounds():
    return Rounds()


def test_next_round_is_trained_while_the_last_is_inspected_and_closed_behind_that(rounds):
    assert rounds.train()
    assert rounds.closed == [0]
    assert not rounds.train()  # not before the shards have applied it
    rounds.apply()
    assert rounds.train()
    assert (rounds.closed, [round_ for round_, _ in rounds.inspections]) == ([0], [0])
    assert rounds.parts == 1
    assert rounds.control.busy
    rounds.inspected(3.0)
    assert rounds.closed == [0, 1]
    assert rounds.job.figures == [(0, {"loss": 3.0})]


def test_round_that_is_ready_waits_for_a_checkpoint_that_is_due(rounds):
    """It would never come where rounds are shorter than the inspections at them."""
    checkpoints = rounds.checkpoints
    rounds.train()
    rounds.apply()
    checkpoints.is_due = lambda now: True
    rounds.train()
    rounds.inspected(3.0)
    assert rounds.closed == [0]
    assert not rounds.control.busy  # so that it may begin
    checkpoints.is_due, checkpoints.running = lambda now: False, True
    rounds.control.step(0.0)
    assert rounds.closed == [0]
    # The next one is due at its end, as it took longer than that: rounds go on between two.
    checkpoints.is_due, checkpoints.running = lambda now: True, False
    rounds.control.step(0.0)
    assert rounds.closed == [0, 1]


def test_what_is_trained_behind_the_target_is_never_closed(rounds):
    rounds.train()
    rounds.apply()
    rounds.train()
    rounds.inspected(TARGET)
    rounds.job.schedule.close()
    rounds.control.step(0.0)
    assert rounds.closed == [0]
    assert not rounds.control.busy


def test_round_that_is_ready_at_an_interrupt_is_closed_behind_the_inspection(rounds):
    rounds.train()
    rounds.apply()
    rounds.train()
    rounds.job.schedule.close()
    rounds.inspected(3.0)
    assert rounds.closed == [0, 1]
    rounds.apply()
    rounds.inspected(2.0)
    assert not rounds.control.busy
    assert rounds.job.schedule.over


def test_deadline_cuts_nobody_off_while_the_last_round_is_inspected():
    """The round could not be closed before the inspection ends: a late worker may still come."""
    rounds = Rounds(workers=(5, 6), deadline_s=1.0)
    assert rounds.train(5)
    assert rounds.train(6)
    rounds.apply()
    assert rounds.train(5)
    assert rounds.job.schedule.take(6) is not None
    rounds.control.step(2.0)
    assert rounds.said == []
    rounds.inspected(3.0, now=3.0)
    assert rounds.said == ["round 2 goes on without worker 6"]
    assert rounds.closed == [0, 1]


@pytest.mark.parametrize("error", [ValueError("no rows"), SystemExit(0)])
def test_inspection_that_fails_fails_the_job_and_names_its_round(rounds, error):
    rounds.train()
    rounds.apply()
    rounds.train()
    _, then = rounds.inspections.pop()
    then(WorkDone(0, None, error=error), 0.0)
    (text,) = rounds.failed
    assert "round 1: after_round failed" in text


def test_journal_that_begins_anew_says_what_is_under_way(rounds):
    assert rounds.control.facts() == []
    rounds.train()
    assert rounds.control.facts() == [Fact("close", {"parts": [0]})]
    rounds.apply()
    assert rounds.control.facts() == [Fact("look", {"round": 0})]
    rounds.inspected(3.0)
    assert rounds.control.facts() == []
    assert [kind for kind, _ in rounds.facts] == ["close", "look", "round"]


def test_round_whose_only_worker_was_lost_with_the_master_begins_anew_at_the_shards():
    """They may have its seal at some places only."""
    values = {"worker_class": "clock_models:Mean", "fraction": "0.34"}

    def job():
        return MasterJob(
            RawConfig.from_mapping(values, "test"), (JobSettings, MasterSettings), 100.0
        )

    world = World(job())
    _, *workers = world.forms()
    drawn = next(one for one in workers if world.ask(one, m.Lease("train")) is not None)
    (other,) = {*workers} - {drawn}
    after = takes_over(world, job())
    for number in (1, other):
        rejoin(after, number)
    for _ in range(50):
        after.tick()
        after.handle(events.Heartbeats({1: 0.1, other: 0.1}))
        after.now += 1.0
    assert after.core.reported_phase == "training"
    orders = [effect.message for effect in after.effects if isinstance(effect, effects.Order)]
    assert [one.clock for one in orders if isinstance(one, m.SetClock)] == [0]
    assert after.ask(other, m.Lease("train")).terms.slot == 0
