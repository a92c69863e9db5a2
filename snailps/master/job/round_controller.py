"""The course of a job in rounds, at the master: draw, wait, close at the shards, look, go on.

    RoundLedger.ready or deadline -> CloseClock to every server -> answers -> after_round -> next

Which entries there are is `leases.RoundLedger`'s matter, rows are the shards'.  `now` is monotonic
seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from snailps.errors import SnailError, explain
from snailps.master.effects import Outbox
from snailps.master.job.job import Job
from snailps.master.leases import RoundLedger
from snailps.node.effects import WorkDone

if TYPE_CHECKING:
    from snailps.master.membership import Membership

log = logging.getLogger(__name__)


class RoundController:
    """Where the present round of a job is.

    Parameters
    ----------
    job : Job
        In its training.
    members : Membership
    out : Outbox
        The journal gets ``close`` with its parts, and ``round``.
    look : callable
        ``look(job, round, then, now)``: has `Worker.after_round` called beside the loop.
    fail : callable
        Ends the cluster, with a sentence.
    is_saving : callable
        Whether a checkpoint is being written: no round is closed then, the rows stay as they are.
    """

    def __init__(
        self,
        job: Job,
        members: Membership,
        out: Outbox,
        look: Callable[[Job, int, Callable[[WorkDone, float], None], float], None],
        fail: Callable[[str], None],
        is_saving: Callable[[], bool] = lambda: False,
    ) -> None:
        assert isinstance(job.ledger, RoundLedger)
        self._job, self._ledger, self._members = job, job.ledger, members
        self._out, self._begin_look, self._fail = out, look, fail
        self._is_saving = is_saving
        self._deadline_s = job.deadline_s
        self._begun: float | None = None
        self._forgotten = False
        self.closing = False
        """The round is being applied, or looked at."""
        self.looks = False
        """`Worker.after_round` is under way."""

    def lost(self, now: float) -> None:
        """A worker was lost at its part: where no other has begun, the round begins again.

        Some shards may have its seal.  What another worker brings for the same slot would be
        dropped there, and counted at the others: so all of them forget the round first.
        """
        if not (self.closing or self._ledger.begun):
            self._begun = None
            self._members.rows.set_clock(self._ledger.round, early=True, now=now)

    def step(self, now: float) -> None:
        """Begins what waited for work that has ended."""
        if self.closing and not self.looks and self._members.rows.clocks_set:
            self.looks = True
            self._begin_look(self._job, self._ledger.round, self._looked, now)
        # What all have done when Ctrl-C comes is not lost; behind the target nothing is wanted.
        whole = self._ledger.ready and self._job.ended_by != "target_loss"
        over = self._ledger.over and not whole
        if self.closing or over or not self._ledger.begun:
            return
        if self._begun is None:
            self._begun = now
        late_s = now - self._begun
        if not self._ledger.ready and self._deadline_s and late_s >= self._deadline_s:
            late = self._ledger.cut_off()
            if late:
                names = ", ".join(f"worker {node}" for node in late)
                log.info("round %d goes on without %s", self._ledger.round + 1, names)
        if self._ledger.ready and not self._is_saving():
            self.close(self._ledger.parts, now)

    def close(self, parts: list[int], now: float) -> None:
        """Has the shards apply the round with these slots; again it is harmless."""
        self._out.note("close", {"parts": parts})
        self.closing = True
        self._members.rows.close_clock(self._ledger.round, parts, now)

    def forget(self) -> None:
        """The job is over: the result of a look is ignored."""
        self._forgotten = True

    def _looked(self, look: WorkDone, now: float) -> None:
        if self._forgotten:
            return
        self.closing = self.looks = False
        self._begun = None
        number = self._ledger.round + 1  # for people
        try:
            if look.error is not None:
                raise look.error
            figures = dict(look.result)
            self._out.note("round", {"figures": figures})
            self._job.round_done(figures)
        except SnailError as error:
            self._fail(str(error))
        except Exception as error:
            log.error("after_round failed", exc_info=error)
            self._fail(f"round {number}: after_round failed at the master: {explain(error)}")
        else:
            self._ledger.advance()
            self._job.begin_round()
