"""The course of a job in rounds, at the master.

    Rounds.ready or deadline -> CloseClock to every server -> answers -> next round
    -> after_round

Workers train the next round while the model inspects the last one, whose rows stay as they are: no
round is closed before the inspection has ended. Training after the round that reaches the target is
never applied. `leases.Rounds` owns the entries, shards own rows. `now` is monotonic seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from snailps.errors import SnailError, explain
from snailps.master.checkpoints import CheckpointController
from snailps.master.effects import Fact, Outbox
from snailps.master.job.job import Job
from snailps.master.leases.round_entries import Rounds
from snailps.master.replication.shard_orders import ShardOrders
from snailps.node.effects import OnDone, WorkDone

log = logging.getLogger(__name__)


class RoundController:
    def __init__(
        self,
        # the journal gets ``close`` with its slots, ``look``, and ``round`` with its metrics
        out: Outbox,
        job: Job,  # in its training
        rounds: Rounds,  # of its schedule
        shard_orders: ShardOrders,
        checkpoints: CheckpointController,
        inspect: Callable[[int, OnDone, float], None],  # ``inspect(round, then, now)``
        fail_job: Callable[[str], None],
    ) -> None:
        self._out, self._job, self._shard_orders = out, job, shard_orders
        self._checkpoints, self._inspect, self._fail_job = checkpoints, inspect, fail_job
        self._schedule, self._rounds = job.schedule, rounds
        self._deadline_s = job.deadline_s
        self._begun: float | None = None
        self._forgotten = False
        self.closing = False
        """The round is being applied."""
        self._looks_at = self._saved_in = -1

    @property
    def looks(self) -> bool:
        """`InRounds.after_round` is under way, for the previous round."""
        return self._looks_at >= 0

    @property
    def busy(self) -> bool:
        """A round is being applied or inspected: the training does not end, nothing is saved."""
        return self.closing or self.looks

    def next(self) -> None:
        """Begin the next round: the previous one is applied."""
        self._rounds.advance()
        self._job.begin_round()

    def replay(self, fact: Fact) -> None:
        """Apply what an earlier master noted of a round."""
        if fact.kind == "close":
            self._rounds.only(fact.data["parts"])
            self.closing = True
        elif fact.kind == "look":
            self.closing, self._looks_at = False, fact.data["round"]
            if self._rounds.round == self._looks_at:  # else the state was kept after the look
                self.next()
        else:
            self._job.round_done(self._looks_at, fact.data["figures"])
            self._looks_at = -1

    def repeat(self, now: float) -> None:
        """Repeat what an earlier master had begun, and not seen ended."""
        if self.closing:
            self.close(self._rounds.done_slots, now)
        elif self.looks:
            self.look(self._looks_at, now)

    def facts(self) -> list[Fact]:
        """Facts that a compacted journal needs beside the schedule's state."""
        if self.closing:
            return [Fact("close", {"parts": self._rounds.done_slots})]
        return [Fact("look", {"round": self._looks_at})] if self.looks else []

    def lost(self, now: float) -> None:
        """A worker was lost with its entry: if no other has begun, begin the round again. Some
        shards may have its seal. What another worker pushes for the same slot would be dropped
        there and counted at the others: so all of them first forget the round."""
        if not (self.closing or self._rounds.begun):
            self._begun = None
            self._shard_orders.set_clock(self._rounds.round, early=True, now=now)

    def stood_still(self, seconds: float) -> None:
        if self._begun is not None:
            self._begun += seconds

    def step(self, now: float) -> None:
        """Begin what waited for finished work."""
        if self.closing and self._shard_orders.clocks_set:
            self.closing, self._begun = False, None
            round_ = self._rounds.round
            self._out.note("look", {"round": round_})
            self.next()
            self.look(round_, now)
        if self.closing or self._job.has_reached or not self._rounds.begun:
            return
        if (
            self._schedule.over and not self._rounds.ready
        ):  # what all have done at Ctrl-C is not lost
            return
        if self._begun is None:
            self._begun = now
        late = self._deadline_s and now - self._begun >= self._deadline_s
        # Not during the inspection of the last round: this one could not be closed yet.
        may_cut = late and not (self._rounds.ready or self.looks)
        if may_cut and (without := self._rounds.cut_off()):
            names = ", ".join(f"worker {node}" for node in without)
            self._out.say(f"round {self._rounds.round + 1} goes on without {names}")
        if self._rounds.ready and not (self.looks or self._saves(now)):
            self.close(self._rounds.done_slots, now)

    def _saves(self, now: float) -> bool:
        """Whether a checkpoint is written, for which rows stay as they are; or is to begin, which
        it can between two rounds only. A round waits for one: the next may be due at its end."""
        round_ = self._rounds.round
        if self._checkpoints.running:
            self._saved_in = round_
            return True
        may_begin = not (self._schedule.over or self._schedule.closed or self._saved_in == round_)
        return may_begin and self._checkpoints.is_due(now)

    def close(self, slots: list[int], now: float) -> None:
        """Have the shards apply the round with these slots; idempotent."""
        self._out.note("close", {"parts": slots})
        self.closing = True
        self._shard_orders.close_clock(self._rounds.round, slots, now)

    def look(self, round_: int, now: float) -> None:
        """Have the model inspect an applied round; idempotent."""
        self._looks_at = round_
        self._inspect(round_, self._looked, now)

    def forget(self) -> None:
        """Ignore the result of an inspection: the job is over."""
        self._forgotten = True

    def _looked(self, look: WorkDone, now: float) -> None:
        if self._forgotten:
            return
        round_, self._looks_at = self._looks_at, -1
        number = round_ + 1  # for people
        try:
            if look.error is not None:
                raise look.error
            figures = dict(look.result)
            self._out.note("round", {"figures": figures})
            self._job.round_done(round_, figures)
        except SnailError as error:
            self._fail_job(str(error))
        except (Exception, SystemExit) as error:
            log.error("after_round failed", exc_info=error)
            self._fail_job(f"round {number}: after_round failed at the master: {explain(error)}")
