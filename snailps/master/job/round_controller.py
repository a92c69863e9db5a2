"""The course of a job in rounds, at the master: draw, wait, close at the shards, look, go on.

    RoundLedger.ready or deadline -> CloseClock to every server -> answers -> after_round -> next

Which entries there are is `leases.RoundLedger`'s matter, rows are the shards'.  Called by the
master's loop; it waits for nothing itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from snailps.errors import SnailError
from snailps.master.job.job import Job
from snailps.master.leases import RoundLedger
from snailps.master.membership import Membership
from snailps.node.process import explain

log = logging.getLogger(__name__)


class RoundController:
    """Where the present round of a job is.

    Parameters
    ----------
    job : Job
        In its training.
    members : Membership
    look : callable
        ``look(job, round)``: begins `Worker.after_round` beside the loop.
    fail : callable
        Ends the cluster, with a sentence.
    clock : callable
        Monotonic seconds.
    is_saving : callable
        Whether a checkpoint is being written: no round is closed then, the rows stay as they are.
    note : callable
        Gets what a master that takes over has to know: ``close`` with its parts, ``round``.
    """

    def __init__(
        self,
        job: Job,
        members: Membership,
        look: Callable[[Job, int], Future[Mapping[str, Any]]],
        fail: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        is_saving: Callable[[], bool] = lambda: False,
        note: Callable[[str, dict[str, Any]], None] = lambda kind, data: None,
    ) -> None:
        assert isinstance(job.ledger, RoundLedger)
        self._job, self._ledger, self._members = job, job.ledger, members
        self._begin_look, self._fail, self._clock = look, fail, clock
        self._is_saving, self._note = is_saving, note
        self._deadline_s = job.cls.deadline(job.settings)
        self._begun: float | None = None
        self._closing = False
        self._look: Future[Mapping[str, Any]] | None = None

    @property
    def looks(self) -> bool:
        """`Worker.after_round` is under way."""
        return self._look is not None

    @property
    def closing(self) -> bool:
        """The round is being applied, or looked at."""
        return self._closing

    def lost(self) -> None:
        """A worker was lost at its part: where nobody else has begun, the round begins again.

        Some shards may have its seal.  What another worker brings for the same slot would be
        dropped there, and counted at the others: so all of them forget the round first.
        """
        if not (self._closing or self._ledger.begun):
            self._begun = None
            self._members.rows.set_clock(self._ledger.round, early=True)

    def step(self) -> None:
        """Goes on where something has come to its end."""
        if self._closing and self._look is None and self._members.rows.clocks_set:
            self._look = self._begin_look(self._job, self._ledger.round)
        if self._look is not None:
            self._looked()
        # What all have done when Ctrl-C comes is not lost; behind the target nothing is wanted.
        whole = self._ledger.ready and self._job.ended_by != "target_loss"
        over = self._ledger.over and not whole
        if self._closing or over or not self._ledger.begun:
            return
        if self._begun is None:
            self._begun = self._clock()
        late_s = self._clock() - self._begun
        if not self._ledger.ready and self._deadline_s and late_s >= self._deadline_s:
            late = self._ledger.cut_off()
            if late:
                names = ", ".join(f"worker {node}" for node in late)
                log.info("round %d goes on without %s", self._ledger.round + 1, names)
        if self._ledger.ready and not self._is_saving():
            self.close(self._ledger.parts)

    def close(self, parts: list[int]) -> None:
        """Has the shards apply the round with these slots; again it is harmless."""
        self._note("close", {"parts": parts})
        self._closing = True
        self._members.rows.close_clock(self._ledger.round, parts)

    def _looked(self) -> None:
        assert self._look is not None
        if not self._look.done():
            return
        look, self._look = self._look, None
        self._closing, self._begun = False, None
        number = self._ledger.round + 1  # for people
        try:
            figures = dict(look.result())
            self._note("round", {"figures": figures})
            self._job.round_done(figures)
        except SnailError as error:
            self._fail(str(error))
        except Exception as error:
            log.exception("after_round failed")
            self._fail(f"round {number}: after_round failed at the master: {explain(error)}")
        else:
            self._ledger.advance()
            self._job.begin_round()
