"""Decides who trains which block where any worker may: the next one to each that asks.

The schedule of `async`, and of each survey.

A policy over the records of `Schedule`.  No files, sockets or time.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import islice
from typing import Any

from numpy.typing import NDArray

from snailps.api.concurrency import ALL
from snailps.master.leases.entries import Entries, Entry
from snailps.master.leases.queue import MANY, BlockQueue
from snailps.master.leases.schedule import LOSSES_MAX, BlockSchedule
from snailps.master.leases.seats import Seats
from snailps.master.leases.survey_parts import SurveyParts
from snailps.master.leases.waits import MASTER, Wait
from snailps.pieces import Piece


class QueueSchedule(BlockSchedule):
    """The next entry of the queue to each worker that asks."""

    queue: BlockQueue
    seats: Seats

    def __init__(
        self,
        entries: Entries,
        known: NDArray[Any] | None = None,
        *,
        seats: int = ALL,  # most workers that train at a time
    ) -> None:
        super().__init__(entries, known)
        self.seats = Seats(seats)
        self.queue = BlockQueue(self.records, entries)

    def _next_of(self, node: int) -> Entry | None:
        if self._leases_none or (number := self.queue.take(node, self._stop)) is None:
            return None
        self.records.lease(number, node)
        return self.plan.entry(number)

    def woken(self, waiting: Container[int]) -> list[int]:
        """As many workers as entries wait."""
        count = 0 if self._leases_none else self.queue.ready(self._stop)
        return list(islice(self._still(waiting), count))

    @property
    def _stop(self) -> int:
        """The first entry that waits for a test."""
        return MANY if self.held is None else self.plan.first_of(self.held)

    @property
    def _leases_none(self) -> bool:
        return self.closed and not self.queue.is_limited

    def _adopt(self, number: int, node: int) -> None:
        self.queue.remove(number)
        self.records.lease(number, node)
        self.seats.keep(node)

    def release(self, node: int) -> list[int]:
        numbers = self._release_all(node)
        self.queue.put_back(numbers)
        return numbers

    def leave(self, node: int) -> None:
        """A worker leaves; its seat goes to the worker that has waited longest."""
        super().leave(node)
        self._refused.update(dict.fromkeys(self.seats.leave(node)))

    def close(self, size: int | None = None) -> None:
        """Lease nothing more, except what a `limit` leaves; a second call ends that, too."""
        self.queue.is_limited &= not self.closed
        super().close(size)

    @property
    def drops(self) -> bool:
        return self._leases_none

    @property
    def over(self) -> bool:
        return not self.records.leased and (self._leases_none or not len(self.queue))


class SurveySchedule(QueueSchedule):
    """The same for a survey, where a block is done when the part with its counts is merged."""

    survey: SurveyParts

    def __init__(self, blocks: Sequence[Piece]) -> None:
        super().__init__(Entries(blocks))
        self.survey = SurveyParts(self.records, self.plan, self._finish)

    def _release(self, number: int) -> None:
        self.survey.released(number)
        super()._release(number)

    def _suspects(self, node: int) -> list[tuple[int, int]]:
        """The first block that is not counted yet."""
        begun = self.records.begun_by(node)
        uncounted = [number for number in begun if not self.records.is_counted(number)]
        return [(number, LOSSES_MAX) for number in uncounted[:1]]

    def wait_of(self, node: int) -> Wait:
        wait = super().wait_of(node)
        if self.records.merging and not wait.nodes:
            return Wait((MASTER,), "merge the survey")
        return wait

    @property
    def over(self) -> bool:
        return super().over and not self.records.merging

    @property
    def progress(self) -> float:
        """Blocks that are counted and not merged yet count, too."""
        return (self._done_bytes + self.survey.counted_bytes) / self.plan.total_bytes


def no_schedule() -> QueueSchedule:
    """Make the schedule of a job before its first pass: nothing is left, and nothing done."""
    return QueueSchedule(Entries([Piece()], epochs=0))
