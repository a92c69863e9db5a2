"""The schedule of passes over ranges of names: a pass begins when all of the one before is done.

    blocks of the input (pass 0) -> all done -> ranges of pass 1 -> all done -> ranges of pass 2 ...

A policy over the records of `Schedule`.  A range is trained on rows that the pass before has
written, and writes rows that nothing in its own pass reads: so it may be trained again, by any
worker, with the same result, and a lost worker costs its range.  `api/range_passes.py` has what a
model sees of it.  No files, sockets or time.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from snailps.api.range_passes import RangePasses
from snailps.dataclass import replace
from snailps.master.leases import Training
from snailps.master.leases.entries import Entries, Entry
from snailps.master.leases.queue import EntryQueue, EpochQueues
from snailps.master.leases.records import BlockResult
from snailps.master.leases.schedule import BlockSchedule, Schedule
from snailps.master.leases.waits import Wait
from snailps.pieces import Piece
from snailps.transport.messages.terms import PassRange


class RangeEntries(Entries):
    """Entry n is block n of pass 0, then ``blocks + (p - 1) * ranges + i`` is range i of pass p.

    Progress counts ranges of passes that train, not bytes: ranges have about as many lines each.
    """

    def __init__(self, blocks: Sequence[Piece], plan: RangePasses) -> None:
        self.plan = plan
        self.passes = 1 + plan.before + plan.passes
        self._first = len(blocks) + plan.before * plan.ranges  # that trains
        super().__init__(blocks)
        self.count = len(self.blocks) + (self.passes - 1) * plan.ranges
        self.total_bytes, self.part = plan.passes * plan.ranges, 1.0

    def pass_of(self, number: int) -> int:
        """The pass of an entry."""
        beyond = number - len(self.blocks)
        return 0 if beyond < 0 else 1 + beyond // self.plan.ranges

    def numbers_of(self, pass_: int) -> range:
        """The entries of a pass."""
        if not pass_:
            return range(len(self.blocks))
        first = len(self.blocks) + (pass_ - 1) * self.plan.ranges
        return range(first, first + self.plan.ranges)

    def entry(self, number: int) -> Entry:
        pass_ = self.pass_of(number)
        numbers = self.numbers_of(pass_)
        terms = PassRange(pass_, number - numbers.start, len(numbers), len(self.blocks))
        if not pass_:
            return replace(super().entry(number), progress=(0.0, 0.0), terms=terms)
        shares = (self.bytes_before(number), self.bytes_before(number + 1))
        before, after = (share / self.total_bytes for share in shares)
        return Entry(number, Piece(), self.epoch_of(number), (before, after), terms)

    def epoch_of(self, number: int) -> int:
        return max(0, number - self._first) // self.results_per_epoch

    def first_of(self, epoch: int) -> int:
        return self._first + epoch * self.results_per_epoch if epoch else 0

    @property
    def results_per_epoch(self) -> int:
        """One for each range that trains."""
        return self.plan.per_epoch * self.plan.ranges

    def bytes_before(self, number: int) -> int:
        return max(0, number - self._first)

    def bytes_of(self, number: int) -> int:
        return int(number >= self._first)

    def bytes_of_all(self, numbers: NDArray[np.int64]) -> int:
        return int(np.count_nonzero(numbers >= self._first))


class RangeSchedule(BlockSchedule):
    """Every entry of the present pass, to the next worker that asks; first the ranges that it had
    in the last pass over the same side, whose lines it has kept."""

    plan: RangeEntries
    is_flushed = True

    def __init__(
        self,
        blocks: Sequence[Piece],
        plan: RangePasses,
        known: NDArray[Any] | None = None,
    ) -> None:
        super().__init__(RangeEntries(blocks, plan), known)
        self.ranges = plan
        self._returned = EntryQueue()
        self._pass = 0
        self._open(0)
        self._advance()

    def _open(self, pass_: int) -> None:
        """Queue what waits of a pass."""
        self._pass, plan = pass_, self.plan
        numbers = plan.numbers_of(pass_)
        waiting = np.array(self.records.waiting(numbers.start, numbers.stop), np.int64)
        had = np.zeros(len(numbers), np.int64)
        before = pass_ - plan.plan.per_epoch
        if before > 0:
            had[:] = self.records.nodes(plan.numbers_of(before).start, len(numbers))
        self._queue = EpochQueues(self.records, waiting, had[waiting - numbers.start])

    def _advance(self) -> None:
        """Open the next pass once all of the present one is done."""
        while True:
            numbers = self.plan.numbers_of(self._pass)
            is_last = self._pass == self.plan.passes - 1
            if is_last or self.records.next_not_done(numbers.start, numbers.stop) < numbers.stop:
                return
            self._open(self._pass + 1)

    def _next_of(self, node: int) -> Entry | None:
        if self.closed or not self._waiting or self._is_pass_held:
            return None
        number = self._returned.take() if self._returned else self._queue.take(node)
        self.records.lease(number, node)
        return self.plan.entry(number)

    @property
    def _waiting(self) -> int:
        return len(self._returned) + len(self._queue)

    def woken(self, waiting: Container[int]) -> list[int]:
        """As many workers as entries of the present pass wait."""
        if self.closed or self._is_pass_held:
            return []
        return list(islice(self._still(waiting), self._waiting))

    @property
    def _is_pass_held(self) -> bool:
        return self.is_held(self.plan.numbers_of(self._pass).start)

    def wait_of(self, node: int) -> Wait:
        late = [other for other in self.records.holders() if other != node]
        return Wait.for_some(late, f"finish pass {self._pass} of {self.plan.passes - 1}")

    def claim(self, number: int, node: int) -> bool:
        """Only of the present pass: what a later one was made of is not known to be complete."""
        return number in self.plan.numbers_of(self._pass) and super().claim(number, node)

    def _adopt(self, number: int, node: int) -> None:
        if number in self._returned:
            self._returned.remove(number)
        else:
            self._queue.withdraw()
        self.records.lease(number, node)

    def _finish(self, number: int, result: BlockResult) -> None:
        super()._finish(number, result)
        self._advance()

    def release(self, node: int) -> list[int]:
        numbers = self._release_all(node)
        self._returned = EntryQueue(sorted([*self._returned, *numbers]))
        return numbers

    @property
    def needs(self) -> Literal["", "clock", "fence"]:
        """A lost worker is fenced before its range is trained again: pushes of it that came late
        would take the place of rows of a later pass."""
        return "fence"

    @property
    def over(self) -> bool:
        return not self.records.leased and (self.closed or self.finished == self.size)


def of_training(job: Training) -> Schedule:
    """The schedule of a training in these passes."""
    assert isinstance(job.plan, RangePasses)
    return RangeSchedule(job.entries.blocks, job.plan, job.known)
