"""Owns clocks of slots: an entry is a slot of a clock, which shards apply when all slots are in.

    entry -> (clock, slot);  free -> held by a worker -> done;  all done -> the next clock opens
    withhold(checkpoint): the last slot of a clock and all after it wait until its rows are copied

A part of the schedule of synchronous steps. Decides which entries may be leased; must not know
which worker is to get one (`bsp.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.dataclass import replace
from snailps.master.leases.entries import Entries, Entry
from snailps.master.leases.records import BlockRecords, BlockResult
from snailps.master.leases.waits import ANY_WORKER, MASTER, NAMED_MAX, Wait
from snailps.transport.messages.terms import Step

NEVER = 1 << 62
CLOCKS_AHEAD = 2
"""Clocks leased beyond the first unfinished one. A training that reaches its target ends so many
clocks later, so results depend on this number."""


class SlotClocks:
    """Entry n is slot ``n % micro_batches`` of clock ``n // micro_batches``.

    Early clocks are leased first, at most `CLOCKS_AHEAD` after the open one. For a checkpoint the
    last slot of a clock and all entries after it are withheld: a clock that lacks a slot is not
    applied, so rows stay as they were at its beginning until every server has copied them.
    """

    def __init__(
        self,
        records: BlockRecords,
        entries: Entries,
        micro_batches: int,  # slots of a clock; the last clock may have fewer
    ) -> None:
        self._records, self._entries = records, entries
        self.micro_batches = micro_batches
        self.size = entries.count
        """Entries in all: fewer where the training ends early."""
        self.stop = NEVER
        """The first clock that waits for a test of the model (`Schedule.hold`)."""
        self.open = 0
        """The first clock with entries that are not done."""
        self.is_abandoned = False
        """The open clock is never applied: nothing is leased any more."""
        self.has_news = False
        """An entry may be free for workers other than the one that finished an entry."""
        self.free: dict[int, list[int]] = {}
        """By clock: entries that may be leased, ascending."""
        self._is_limited = False
        self._last: dict[int, int] = {}  # the entry that each worker finished last
        self._filled = 0  # entries of all clocks below have been put into `free`
        self._holders: dict[int, dict[int, int]] = {}  # by clock: entries held by each worker
        self._missing: list[tuple[int, int]] | None = None  # of `missing`; None: to be found anew
        self._withheld = -1  # entries from this one on are not leased; -1: none is withheld
        self._withheld_for = 0  # number of the checkpoint
        self._copied = -1  # the last clock whose rows were copied while it was withheld
        clocks, counts = np.unique(records.done() // micro_batches, return_counts=True)
        # Entries done, by clock that is not complete.
        self._done_of: dict[int, int] = dict(zip(clocks.tolist(), counts.tolist(), strict=True))
        self._advance()
        self._counted = records.next_not_done(0, self.size)

    def entry(self, number: int) -> Entry:
        return replace(self._entries.entry(number), terms=self._step(number))

    def _step(self, number: int) -> Step:
        clock, slot = divmod(number, self.micro_batches)
        slots = min(self.micro_batches, self.size - clock * self.micro_batches)
        return Step(clock, slot, slots)

    def of(self, node: int) -> int | None:
        """The clock of the first entry that a worker holds."""
        held = self._records.held_by(node)
        return held[0] // self.micro_batches if held else None

    def _numbers_of(self, clock: int) -> range:
        return range(clock * self.micro_batches, min(self.size, (clock + 1) * self.micro_batches))

    @property
    def _clocks(self) -> int:
        return -(-self.size // self.micro_batches)

    # --- entries of clocks -----------------------------------------------------------------------

    def holders(self, clock: int) -> Mapping[int, int]:
        """Workers that hold entries of a clock, and how many."""
        return self._holders.get(clock, {})

    def give(self, clock: int, node: int) -> Entry:
        """Lease the first free entry of a clock."""
        number = self.free[clock].pop(0)
        if not self.free[clock]:
            del self.free[clock]
        self._lease(number, node)
        return self.entry(number)

    def take_back(self, node: int) -> Entry | None:
        """Lease to a worker a free entry of an earlier clock than all that it holds: a lost
        worker's, for which everyone waits."""
        first, held = min(self.free, default=-1), self.of(node)
        if self.is_abandoned or first < 0:
            return None
        # A worker that holds nothing asked while it waited for a clock, and has trained that block
        # since. Now it waits for its ordinary call, and would not see what this one brings: the
        # entry would stay with it, and a checkpoint that waits for its clock would wait for ever.
        if held is None or first >= held:
            return None
        return self.give(first, node)

    def adopt(self, number: int, node: int) -> None:
        """Lease this entry, which waits, to a worker that reports to hold it."""
        clock = number // self.micro_batches
        others = [n for n in self.free.pop(clock, ()) if n != number]
        if others:
            self.free[clock] = others
        self._lease(number, node)

    def _lease(self, number: int, node: int) -> None:
        self._records.lease(number, node)
        self._missing = None
        holders = self._holders.setdefault(number // self.micro_batches, {})
        holders[node] = holders.get(node, 0) + 1

    def ends(self, number: int) -> None:
        """The lease of an entry is about to end."""
        self._missing = None
        clock, node = number // self.micro_batches, self._records.holder(number)
        holders = self._holders[clock]
        holders[node] -= 1
        if not holders[node]:
            del holders[node]
        if not holders:
            del self._holders[clock]

    def put_back(self, numbers: Iterable[int]) -> None:
        """Entries that are to be leased again, before all others."""
        for number in numbers:
            free = self.free.setdefault(number // self.micro_batches, [])
            free.append(number)
            free.sort()
        self.has_news = True

    def done(self, number: int, node: int) -> None:
        """A worker has pushed all of an entry, and seals it next: `Done` comes before the seal, as
        the last seal of a clock applies it (docs/design/clocks.md)."""
        clock = number // self.micro_batches
        self._done_of[clock] = self._done_of.get(clock, 0) + 1
        self._last[node] = number
        self._advance()

    def _advance(self) -> None:
        """Advance the open clock past complete ones, and free what may be leased now."""
        while (numbers := self._numbers_of(self.open)) and (
            self._done_of.get(self.open, 0) >= len(numbers)
        ):
            self._done_of.pop(self.open)
            self.open += 1
            self._missing = None
        while self._filled <= self.open + CLOCKS_AHEAD:
            numbers = self._numbers_of(self._filled)
            stop = numbers.stop if self._withheld < 0 else min(numbers.stop, self._withheld)
            free = self._records.waiting(numbers.start, stop)
            if free:
                self.free[self._filled] = free
            self._filled += 1
            self.has_news = True

    def last_of(self, node: int) -> Step | None:
        """The step of the entry that a worker finished last: it may not have sealed it at every
        shard."""
        number = self._last.get(node)
        return None if number is None else self._step(number)

    # --- results ---------------------------------------------------------------------------------

    def in_order(self) -> Iterator[tuple[int, BlockResult]]:
        """Yield entries and results that count now, in the sequence of the entries, whatever the
        sequence of arrival: sums of floats would differ."""
        while self._counted < self.size and self._records.is_done(self._counted):
            yield self._counted, self._records.result(self._counted)
            self._counted += 1

    def ended(self, number: int) -> int | None:
        """The clock that ends with this entry, as `place` of `limit`; None: the entry ends none."""
        clock, slot = divmod(number, self.micro_batches)
        return clock if slot == self.micro_batches - 1 else None

    def unapplied(self) -> list[int]:
        """Entries that are done, of clocks that no shard will apply: one of their slots is lost."""
        first = self.open * self.micro_batches
        return [number for number in self._records.done().tolist() if number >= first]

    def uncount(self) -> int:
        """Take back the count of clocks that no shard will apply; returns the first entry that was
        not counted before."""
        counted = self._counted
        self._counted = min(counted, self.open * self.micro_batches)
        return counted

    def durable(self, clock: int) -> NDArray[Any]:
        """`OUTCOME` of each entry at the beginning of a clock."""
        return self._records.first(clock * self.micro_batches)

    # --- the end ---------------------------------------------------------------------------------

    def close(self, size: int | None) -> None:
        """End with a whole clock: the one of the last entry leased, or of `size` entries."""
        if not self._is_limited or size is not None:
            last = self._records.last if size is None else size - 1
            self._lease_until(last // self.micro_batches)

    def limit(self, place: int) -> None:
        """The loss of a clock ends the training, `CLOCKS_AHEAD` clocks later."""
        self._is_limited = True
        self._lease_until(place + CLOCKS_AHEAD)

    def _lease_until(self, clock: int) -> None:
        """Lease nothing after a clock, after which nothing has been leased."""
        self.size = min(self.size, (clock + 1) * self.micro_batches)
        self._missing = None
        self.free = {early: free for early, free in self.free.items() if early <= clock}

    # --- checkpoints -----------------------------------------------------------------------------

    def withhold(self, checkpoint: int) -> int:
        """Withhold the last slot of a clock and all entries after it, until `resume_leases`;
        returns the clock.

        It is the first clock whose last slot is not leased yet, and no entry after it; at the end
        of the training the clock after the last one. No clock that was copied is withheld again:
        else frequent checkpoints could keep one from ever being applied.
        """
        assert self._withheld < 0
        if self.is_abandoned:
            return self.open
        if self.stop <= self.open:
            clock = self.open  # nothing is leased: it begins after a test of the model
        else:
            clock = max(self.open, self._records.last // self.micro_batches, self._copied + 1)
        numbers = self._numbers_of(clock)
        if numbers and not self._records.is_waiting(numbers[-1]):
            clock += 1
            numbers = self._numbers_of(clock)
        if not numbers:
            return self._clocks
        self._withheld, self._withheld_for, self._missing = numbers[-1], checkpoint, None
        for later in [free_clock for free_clock in self.free if free_clock >= clock]:
            self.free[later] = [number for number in self.free[later] if number < self._withheld]
            if not self.free[later]:
                del self.free[later]
        return clock

    def resume_leases(self) -> None:
        """Release what `withhold` held back."""
        if self._withheld < 0:
            return
        first, self._withheld, self._missing = self._withheld, -1, None
        clock = first // self.micro_batches
        if clock <= self.open:
            self._copied = clock
        for later in range(clock, self._filled):
            numbers = self._numbers_of(later)
            free = self._records.waiting(max(first, numbers.start), numbers.stop)
            if free:
                self.free.setdefault(later, []).extend(free)
        self.has_news = True

    def comes(self, clock: int) -> bool:
        """Whether a clock begins, or has begun; False where the training ends before it."""
        return clock <= (self.open if self.is_abandoned else self._clocks)

    @property
    def waits_for_copy(self) -> bool:
        """Whether the open clock lacks only the withheld slot."""
        return [holder for _, holder in self.missing()] == [MASTER]

    # --- waits -----------------------------------------------------------------------------------

    def missing(self) -> list[tuple[int, int]]:
        """Unfinished slots of the open clock, each with the worker that has it; `ANY_WORKER`: it
        waits to be leased; `MASTER`: it is withheld."""
        if self._missing is None:  # found once: a thousand workers may wait for the same slots
            numbers = self._numbers_of(self.open)
            self._missing = [
                (number % self.micro_batches, self._holder(number))
                for number in self._records.not_done(numbers.start, numbers.stop)
            ]
        return self._missing

    def _holder(self, number: int) -> int:
        if number == self._withheld:
            return MASTER
        return self._records.holder(number) or ANY_WORKER

    def wait_of(self, node: int) -> Wait | None:
        """What the open clock lacks from others, and who is to finish it; None: nothing."""
        if self.waits_for_copy:
            text = f"copy the rows of clock {self.open} for checkpoint {self._withheld_for}"
            return Wait((MASTER,), text)
        missing = (
            (slot, holder) for slot, holder in self.missing() if holder not in (node, MASTER)
        )
        slots = list(islice(missing, NAMED_MAX + 1))
        if not slots:
            return None
        named = ", ".join(f"{slot}" for slot, _ in slots[:4]) + ", ..." * (len(slots) > 4)
        plural = "s" * (len(slots) > 1)
        return Wait.for_some(
            {holder for _, holder in slots}, f"finish slot{plural} {named} of clock {self.open}"
        )

    def held_up(self, node: int) -> Wait | None:
        """What the open clock lacks, if a worker holds entries of later clocks only; None: the
        worker can train."""
        clock = self.of(node)
        return None if clock is None or clock <= self.open else self.wait_of(node)

    # --- state -----------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        return {"consistency": "bsp", "clocks": self.open}

    def snapshot(self) -> dict[str, Any]:
        return {"last": sorted(self._last.items())}

    def resume(self, last: Iterable[tuple[int, int]]) -> None:
        """Continue from the field of a `snapshot`."""
        self._last = {int(node): int(number) for node, number in last}
