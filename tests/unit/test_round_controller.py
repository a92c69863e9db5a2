"""The course of rounds: the next one is trained while the model looks at the last, not applied."""

from types import SimpleNamespace

import pytest

from snailps.master.effects import Fact
from snailps.master.job.round_controller import RoundController
from snailps.master.leases import RoundLedger
from snailps.node.effects import WorkDone

TARGET = 1.0


class Job:
    """What a `RoundController` uses of a job."""

    deadline_s = 0.0

    def __init__(self):
        self.ledger, self.figures = RoundLedger(4, [5]), []
        self.has_reached_target = False

    def next_round(self):
        self.ledger.advance()

    def round_done(self, round_, figures):
        self.figures.append((round_, figures))
        self.has_reached_target = figures["loss"] <= TARGET


class Rounds:
    """A controller whose shards and looks are answered by the test."""

    def __init__(self):
        self.job, self.facts, self.closed, self.looks, self.failed = Job(), [], [], [], []
        self.saves = False
        rows = SimpleNamespace(clocks_set=True, close_clock=self._close)
        out = SimpleNamespace(note=lambda kind, data: self.facts.append((kind, data)))
        self.control = RoundController(
            self.job, SimpleNamespace(rows=rows), out, self._look, self.failed.append,
            lambda: self.saves,
        )  # fmt: skip
        self.rows = rows

    def _close(self, clock, parts, now):
        self.closed.append(clock)
        self.rows.clocks_set = False

    def _look(self, job, round_, then, now):
        self.looks.append((round_, then))

    def train(self):
        """The worker trains its part of the present round; whether there was one."""
        entry = self.job.ledger._next_of(5)
        if entry is not None:
            self.job.ledger.done(entry.number, 5)
        self.control.step(0.0)
        return entry is not None

    def apply(self):
        self.rows.clocks_set = True
        self.control.step(0.0)

    def looked(self, loss):
        _, then = self.looks.pop(0)
        then(WorkDone(0, {"loss": loss}), 0.0)
        self.control.step(0.0)


@pytest.fixture
def rounds():
    return Rounds()


def test_next_round_is_trained_while_the_last_is_looked_at_and_closed_behind_that(rounds):
    assert rounds.train()
    assert rounds.closed == [0]
    assert not rounds.train()  # not before the shards have applied it
    rounds.apply()
    assert rounds.train()
    assert (rounds.closed, [round_ for round_, _ in rounds.looks]) == ([0], [0])
    assert rounds.control.busy
    rounds.looked(3.0)
    assert rounds.closed == [0, 1]
    assert rounds.job.figures == [(0, {"loss": 3.0})]


def test_what_is_trained_behind_the_target_is_never_closed(rounds):
    rounds.train()
    rounds.apply()
    rounds.train()
    rounds.looked(TARGET)
    rounds.job.ledger.close()
    rounds.control.step(0.0)
    assert rounds.closed == [0]
    assert not rounds.control.busy


def test_round_that_is_ready_at_an_interrupt_is_closed_behind_the_look(rounds):
    rounds.train()
    rounds.apply()
    rounds.train()
    rounds.job.ledger.close()
    rounds.looked(3.0)
    assert rounds.closed == [0, 1]
    rounds.apply()
    rounds.looked(2.0)
    assert not rounds.control.busy
    assert rounds.job.ledger.over


def test_look_that_fails_fails_the_job_and_names_its_round(rounds):
    rounds.train()
    rounds.apply()
    rounds.train()
    _, then = rounds.looks.pop()
    then(WorkDone(0, None, error=ValueError("no rows")), 0.0)
    (text,) = rounds.failed
    assert "round 1: after_round failed" in text


def test_journal_that_begins_anew_says_what_is_under_way(rounds):
    assert rounds.control.facts() == []
    rounds.train()
    assert rounds.control.facts() == [Fact("close", {"parts": [0]})]
    rounds.apply()
    assert rounds.control.facts() == [Fact("look", {"round": 0})]
    rounds.looked(3.0)
    assert rounds.control.facts() == []
    assert [kind for kind, _ in rounds.facts] == ["close", "look", "round"]
