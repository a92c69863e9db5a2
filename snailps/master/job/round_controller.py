"""Decides when a round is closed, inspected and followed by the next, in a job in rounds.

    registry.named("rounds") -> RoundSchedule, RoundController
    workers train > ready or deadline > closing (CloseClock) > applied > next round
                                                                       > inspected (after_round)

Workers train the next round while the model inspects the last one, whose rows stay as they are: no
round is closed before the inspection has ended. What is trained after the round that reaches the
target is never applied. `leases.Rounds` owns the entries of a round, shards own rows.

The journal has "close" with its slots before any server is ordered to close, "look" when all have,
and "round" with the result of the inspection. A master that takes over repeats whichever step was
noted last; each is idempotent. `now` is monotonic seconds.
"""

from __future__ import annotations

import logging
from functools import partial

from snailps.dataclass import replace
from snailps.errors import SnailError, explain
from snailps.master.checkpoints import CheckpointSaver
from snailps.master.effects import Fact, Outbox
from snailps.master.job.job import Job
from snailps.master.job.present import PresentJob
from snailps.master.leases.round_entries import Rounds
from snailps.master.leases.rounds import RoundSchedule as RoundSchedule
from snailps.master.membership import Membership
from snailps.master.replication.shard_orders import ShardOrders
from snailps.master.services import ModelAccess, Reader
from snailps.node.effects import WorkDone

log = logging.getLogger(__name__)


class RoundController:
    def __init__(
        self,
        out: Outbox,  # for facts of the round
        job: Job,  # in its training
        rounds: Rounds,  # of its schedule
        members: Membership,
        shard_orders: ShardOrders,
        saver: CheckpointSaver,
        present: PresentJob,
        reader: Reader,
    ) -> None:
        self._out, self._job, self._shard_orders = out, job, shard_orders
        self._members, self._saver = members, saver
        self._present, self._reader = present, reader
        self._looks = job.model.by_input.at("round")
        self._reading: ModelAccess | None = None  # of the connection that serves all rounds
        self._schedule, self._rounds = job.schedule, rounds
        self._deadline_s = job.model.rounds.deadline_s
        self._begun: float | None = None  # when a worker began with the round; None: none has
        self._forgotten = False
        self.closing = False
        """Servers have the order to apply the round."""
        self._inspected = -1  # the round that is inspected; -1: none
        self._parts = 0  # contributions to the round that was applied last; 0: not known
        self._saved_in = -1  # the last round in which a checkpoint was made

    @property
    def inspecting(self) -> bool:
        """Whether the model inspects the previous round: `InRounds.after_round` runs."""
        return self._inspected >= 0

    @property
    def busy(self) -> bool:
        """Whether a round is being applied or inspected: the training does not end meanwhile, and
        no checkpoint begins."""
        return self.closing or self.inspecting

    def next(self) -> None:
        """Begin the next round: the previous one is applied."""
        self._parts = len(self._rounds.done_slots)
        self._rounds.advance()
        self._job.begin_round()

    def replay(self, fact: Fact) -> None:
        """Apply what an earlier master noted of a round."""
        if fact.kind == "close":
            self._rounds.only(fact.data["parts"])
            self.closing = True
        elif fact.kind == "look":
            self.closing, self._inspected = False, fact.data["round"]
            if self._rounds.round == self._inspected:  # else the state was kept after the fact
                self.next()
        else:
            self._job.round_done(self._inspected, fact.data["figures"])
            self._inspected = -1

    def repeat(self, now: float) -> None:
        """Repeat the step that an earlier master had begun, and whose end it did not note."""
        if self.closing:
            self.close(self._rounds.done_slots, now)
        elif self.inspecting:
            self.inspect(self._inspected, now)

    def facts(self) -> list[Fact]:
        """Facts that a compacted journal needs beside the schedule's state."""
        if self.closing:
            return [Fact("close", {"parts": self._rounds.done_slots})]
        return [Fact("look", {"round": self._inspected})] if self.inspecting else []

    def lost(self, now: float) -> None:
        """A worker was lost with its entry: if no other has begun, begin the round again.

        Some shards may have sealed the lost worker's slot. Another worker's pushes to the same slot
        would be dropped there and counted at the other shards, so all shards first forget the
        round.
        """
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
            self._out.journal("look", {"round": round_})
            self.next()
            self.inspect(round_, now)
        if self.closing or self._job.rules.has_reached or not self._rounds.begun:
            return
        # At Ctrl-C a round that all workers have finished is still applied; another one is not.
        if self._schedule.over and not self._rounds.ready:
            return
        if self._begun is None:
            self._begun = now
        late = self._deadline_s and now - self._begun >= self._deadline_s
        # Not during an inspection: the round could not be closed yet, so late workers may as well
        # finish meanwhile.
        may_cut = late and not (self._rounds.ready or self.inspecting)
        if may_cut and (without := self._rounds.cut_off()):
            names = ", ".join(f"worker {node}" for node in without)
            self._out.say(f"round {self._rounds.round + 1} goes on without {names}")
        if self._rounds.ready and not (self.inspecting or self._saves(now)):
            self.close(self._rounds.done_slots, now)

    def _saves(self, now: float) -> bool:
        """Whether the round waits for a checkpoint: one is being written, for which rows must stay
        as they are, or is due, and can begin between two rounds only. At most one for each round:
        with a short interval the next would be due at the end of the first, and no round ever
        closed."""
        round_ = self._rounds.round
        if self._saver.running:
            self._saved_in = round_
            return True
        may_begin = not (self._schedule.over or self._schedule.closed or self._saved_in == round_)
        return may_begin and self._saver.is_due(now)

    def close(self, slots: list[int], now: float) -> None:
        """Have the shards apply the round with these slots; idempotent."""
        self._out.journal("close", {"parts": slots})
        self.closing = True
        self._shard_orders.close_clock(self._rounds.round, slots, now)

    def inspect(self, round_: int, now: float) -> None:
        """Have the model inspect an applied round; idempotent."""
        self._inspected = round_
        if not self._looks:
            self._inspection_done(WorkDone(0, ()), now)
            return
        if self._reading is None:
            self._reading = self._present.reading()
        figures = {
            **self._present.figures,
            "parts": self._parts,
            "train_s": round(self._job.clock.elapsed_s(now), 3),
            "workers": len(self._members.nodes("worker")),
        }
        reading = replace(self._reading, figures=figures)
        look = partial(self._reader.look, self._job, self._looks, round_, reading, stays=True)
        self._out.work(look, self._inspection_done)

    def forget(self) -> None:
        """Ignore the result of an inspection: the job is over."""
        self._forgotten = True

    def _inspection_done(self, done: WorkDone, now: float) -> None:
        if self._forgotten:
            return
        round_, self._inspected = self._inspected, -1
        number = round_ + 1  # for people
        try:
            if done.error is not None:
                raise done.error
            figures = {name: value for seen in done.result for name, value in seen.items()}
            self._out.journal("round", {"figures": figures})
            self._job.round_done(round_, figures)
        except SnailError as error:
            self._present.hooks.fail_job(str(error))
        except (Exception, SystemExit) as error:
            log.error("after_round failed", exc_info=error)
            self._present.hooks.fail_job(
                f"round {number}: after_round failed at the master: {explain(error)}"
            )
