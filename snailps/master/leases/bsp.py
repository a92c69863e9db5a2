"""The ledger of synchronous steps (`bsp`): an entry is a slot of a clock.

    entry -> (clock, slot); a clock is complete when all of its slots are done

A policy over the records of `Ledger`.  No files, sockets or time.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.dataclass import replace
from snailps.master.leases.ledger import ANY_WORKER, MASTER, NAMED_MAX, Entry, Ledger, Wait
from snailps.master.leases.records import NO_RESULT, BlockResult
from snailps.pieces import Piece
from snailps.transport.messages.terms import Step

CLOCKS_AHEAD = 2
"""Clocks leased beyond the first unfinished one: the result depends on it where a limit ends it."""


class BspLedger(Ledger):
    """Entry n is slot ``n % micro_batches`` of clock ``n // micro_batches``. Early clocks are
    leased first. A worker with a slot of a clock gets a second one ahead only where enough are left
    for workers without one. Free slots of the open clock go to workers without a slot of it, so
    that no clock stays open for want of a worker. For a checkpoint the last slot of a clock and all
    behind it are withheld (`withhold`): rows stay as at the beginning of that clock."""

    def __init__(
        self,
        blocks: Sequence[Piece],
        epochs: int = 1,
        limit: int = 0,
        known: NDArray[Any] | None = None,
        order: int | None = None,
        *,
        micro_batches: int,  # slots of a clock; the last clock may have fewer
        nodes: Sequence[int] = (),  # the workers
    ) -> None:
        self.micro_batches = micro_batches
        self._open = 0  # the first clock with entries that are not done
        self._abandoned = self._limited = False
        self._nodes = set(nodes)
        self._last: dict[int, int] = {}  # the entry that each worker finished last
        self._free: dict[int, list[int]] = {}  # by clock: entries that may be leased, ascending
        self._filled = 0  # clocks below have been in `_free`
        self._done_of: dict[int, int] = {}  # by clock that is not complete: entries done
        self._holders: dict[int, dict[int, int]] = {}  # by clock: entries held by each worker
        self._missing: list[tuple[int, int]] | None = None
        self._withheld = -1  # entries from this one on are not leased; -1: all are
        self._withheld_for = 0  # checkpoint
        self._copied = -1  # the last clock that was withheld until it was copied
        self._news = False  # an entry may be free for others than the worker that finished one
        self._done_now: set[int] = set()  # workers that have finished one since the last `woken`
        super().__init__(blocks, epochs, limit, known, order)
        clocks, counts = np.unique(self.records.done() // micro_batches, return_counts=True)
        self._done_of = dict(zip(clocks.tolist(), counts.tolist(), strict=True))
        self._advance()
        self._counted = self.records.next_not_done(0, self._size)

    def entry(self, number: int) -> Entry:
        return replace(super().entry(number), terms=self._step(number))

    def _step(self, number: int) -> Step:
        clock, slot = divmod(number, self.micro_batches)
        slots = min(self.micro_batches, self._size - clock * self.micro_batches)
        return Step(clock, slot, slots)

    def _next_of(self, node: int) -> Entry | None:
        """None also where the next entry is too many clocks ahead."""
        if self._abandoned:
            return None
        for clock in sorted(self._free):
            holders = self._holders.get(clock, {})
            if node not in holders or len(self._free[clock]) > len(self._nodes.difference(holders)):
                return self._give(clock, node)
        return None

    def woken(self, waiting: Container[int]) -> list[int]:
        """Workers without an entry of a clock with free ones, and those that finished one."""
        done, self._done_now = self._done_now, set()
        news, self._news = self._news, False
        found = sorted(node for node in done if node in waiting and node in self._refused)
        if not news or not self._free:
            return found
        free = sum(map(len, self._free.values()))
        # Workers without an entry of these clocks surely get one; the others may get the rest.
        held = {n for at in self._free for n in self._holders.get(at, ())}
        others = [n for n in self._still(waiting) if n not in done]
        found += [n for n in others if n not in held][:free]
        return found if len(found) >= free else found + [n for n in others if n in held]

    def _lease(self, number: int, node: int) -> None:
        super()._lease(number, node)
        self._missing = None
        holders = self._holders.setdefault(number // self.micro_batches, {})
        holders[node] = holders.get(node, 0) + 1

    def _release(self, number: int) -> None:
        self._unhold(number)
        super()._release(number)

    def _unhold(self, number: int) -> None:
        self._missing = None
        clock, node = number // self.micro_batches, self.records.holder(number)
        holders = self._holders[clock]
        holders[node] -= 1
        if not holders[node]:
            del holders[node]
        if not holders:
            del self._holders[clock]

    def _finish(self, number: int, result: BlockResult) -> None:
        self._unhold(number)
        super()._finish(number, result)
        clock = number // self.micro_batches
        self._done_of[clock] = self._done_of.get(clock, 0) + 1

    def counted(self, number: int, result: BlockResult) -> Iterator[tuple[int, BlockResult]]:
        """Results in the order of the entries, at any order of arrival."""
        while self._counted < self._size and self.records.is_done(self._counted):
            yield self._counted, self.records.result(self._counted)
            self._counted += 1

    def _withdraw(self, number: int) -> None:
        clock = number // self.micro_batches
        left = [n for n in self._free.pop(clock, ()) if n != number]
        if left:
            self._free[clock] = left

    def take_back(self, node: int) -> Entry | None:
        """Lease a free entry of an earlier clock than those that a worker holds."""
        first = min(self._free, default=-1)
        held = self.clock_of(node)
        if self._abandoned or first < 0 or (held is not None and first >= held):
            return None
        return self._give(first, node)

    def done(
        self, number: int, node: int, result: BlockResult = NO_RESULT, *, whole: bool = True
    ) -> bool:
        """The worker has pushed all of an entry, and seals it next."""
        if not super().done(number, node, result):
            return False
        self._last[node] = number
        self._done_now.add(node)
        self._advance()
        return True

    def last_of(self, node: int) -> Step | None:
        """The step of the entry that a worker finished last: it may not have sealed it at every
        shard."""
        number = self._last.get(node)
        return None if number is None else self._step(number)

    def release(self, node: int) -> list[int]:
        """Return a worker's leases, to be leased first; their numbers."""
        numbers = self._release_all(node)
        for number in numbers:
            free = self._free.setdefault(number // self.micro_batches, [])
            free.append(number)
            free.sort()
        self._news = True
        return numbers

    def join(self, node: int) -> None:
        self._nodes.add(node)

    def leave(self, node: int) -> None:
        self._nodes.discard(node)
        self._news = True

    def snapshot(self) -> dict[str, Any]:
        return {
            **super().snapshot(),
            "nodes": sorted(self._nodes),
            "last": sorted(self._last.items()),
        }

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        super().resume(snapshot)
        self._nodes = {int(node) for node in snapshot["nodes"]}
        self._last = {int(node): int(number) for node, number in snapshot["last"]}

    def close(self, size: int | None = None) -> None:
        super().close()
        if not self._limited or size is not None:
            self._lease_until(
                (self.records.last if size is None else size - 1) // self.micro_batches
            )

    def limit(self, place: int) -> None:
        self._limited = True
        self._lease_until(place + CLOCKS_AHEAD)

    def _lease_until(self, clock: int) -> None:
        """Lease nothing behind a clock, behind which nothing has been leased."""
        self._size = min(self._size, (clock + 1) * self.micro_batches)
        self._missing = None
        self._free = {at: free for at, free in self._free.items() if at <= clock}

    def abandon(self, node: int) -> None:
        """Stop waiting for a worker; the clock that it held up is never applied."""
        self._release_all(node)
        self._abandoned = True

    def withdraw(self) -> dict[int, BlockResult]:
        counted, first = self._counted, self._open * self.micro_batches
        self._counted = min(counted, first)
        return {n: result for n, result in super().withdraw().items() if n < counted}

    def unpushed(self) -> list[int]:
        """What is done of clocks that no shard applies."""
        first = self._open * self.micro_batches
        return [number for number in self.records.done().tolist() if number >= first]

    # --- checkpoints -----------------------------------------------------------------------------

    needs = "clock"
    judged = "clock"

    def withhold(self, checkpoint: int) -> int:
        """Withhold the last slot of a clock and all behind it, until `resume_leases`; returns the
        clock. It is the first clock behind which nothing is leased and whose last slot is not; at
        the end of the training the clock behind the last one. No clock that was copied is withheld
        again: each is applied however often checkpoints are made."""
        assert self._withheld < 0
        if self._abandoned:
            return self._open
        clock = max(self._open, self.records.last // self.micro_batches, self._copied + 1)
        numbers = self._numbers_of(clock)
        if numbers and not self.records.is_waiting(numbers[-1]):
            clock += 1
            numbers = self._numbers_of(clock)
        if not numbers:
            return self._clocks
        self._withheld, self._withheld_for, self._missing = numbers[-1], checkpoint, None
        for at in [at for at in self._free if at >= clock]:
            self._free[at] = [number for number in self._free[at] if number < self._withheld]
            if not self._free[at]:
                del self._free[at]
        return clock

    def resume_leases(self) -> None:
        if self._withheld < 0:
            return
        first, self._withheld, self._missing = self._withheld, -1, None
        clock = first // self.micro_batches
        if clock <= self._open:
            self._copied = clock
        for at in range(clock, self._filled):
            numbers = self._numbers_of(at)
            free = self.records.waiting(max(first, numbers.start), numbers.stop)
            if free:
                self._free.setdefault(at, []).extend(free)
        self._news = True

    def comes(self, clock: int) -> bool:
        """Whether a clock begins, or has begun; False where the training ends before it."""
        return clock <= (self._open if self._abandoned else self._clocks)

    @property
    def waits_for_copy(self) -> bool:
        """Whether the open clock lacks only the withheld slot."""
        return [holder for _, holder in self.missing()] == [MASTER]

    @property
    def _clocks(self) -> int:
        return -(-self._size // self.micro_batches)

    # --- waits -----------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Every clock complete, or abandoned."""
        return not self.records.leased and (self._abandoned or self.finished >= self._size)

    def ended_clock(self, number: int) -> int | None:
        clock, slot = divmod(number, self.micro_batches)
        return clock if slot == self.micro_batches - 1 else None

    def figures(self) -> dict[str, Any]:
        return {"consistency": "bsp", "clocks": self._open}

    def durable(self, clock: int = -1) -> NDArray[Any]:
        records = self.records
        return records.first(clock * self.micro_batches) if clock >= 0 else records.durable()

    @property
    def open_clock(self) -> int:
        """The first clock with entries that are not done."""
        return self._open

    def missing(self) -> list[tuple[int, int]]:
        """Unfinished slots of the open clock, and their workers, `ANY_WORKER` or `MASTER`."""
        if self._missing is None:  # a thousand may wait for the same
            numbers = self._numbers_of(self._open)
            self._missing = [
                (number % self.micro_batches, self._holder(number))
                for number in self.records.not_done(numbers.start, numbers.stop)
            ]
        return self._missing

    def _holder(self, number: int) -> int:
        if number == self._withheld:
            return MASTER
        return self.records.holder(number) or ANY_WORKER

    def wait_of(self, node: int) -> Wait:
        """Say what the open clock lacks, and who is to finish it."""
        if self.waits_for_copy:
            text = f"copy the rows of clock {self._open} for checkpoint {self._withheld_for}"
            return Wait((MASTER,), text)
        missing = ((slot, at) for slot, at in self.missing() if at not in (node, MASTER))
        slots = list(islice(missing, NAMED_MAX + 1))
        if not slots:
            return super().wait_of(node)
        named = ", ".join(f"{slot}" for slot, _ in slots[:4]) + ", ..." * (len(slots) > 4)
        plural = "s" * (len(slots) > 1)
        return Wait.for_some(
            {holder for _, holder in slots}, f"finish slot{plural} {named} of clock {self._open}"
        )

    def clock_of(self, node: int) -> int | None:
        """The clock of the first entry that a worker holds."""
        held = self.records.held_by(node)
        return held[0] // self.micro_batches if held else None

    def held_up(self, node: int) -> Wait | None:
        """The missing slots, where this worker holds entries of later clocks only."""
        clock = self.clock_of(node)
        if clock is None or clock <= self._open:
            return None
        return self.wait_of(node)

    def _numbers_of(self, clock: int) -> range:
        return range(clock * self.micro_batches, min(self._size, (clock + 1) * self.micro_batches))

    def _advance(self) -> None:
        """Advance the open clock, and add what may be leased now."""
        while (numbers := self._numbers_of(self._open)) and (
            self._done_of.get(self._open, 0) >= len(numbers)
        ):
            self._done_of.pop(self._open)
            self._open += 1
            self._missing = None
        while self._filled <= self._open + CLOCKS_AHEAD:
            numbers = self._numbers_of(self._filled)
            stop = numbers.stop if self._withheld < 0 else min(numbers.stop, self._withheld)
            free = self.records.waiting(numbers.start, stop)
            if free:
                self._free[self._filled] = free
            self._filled += 1
            self._news = True

    def _give(self, clock: int, node: int) -> Entry:
        number = self._free[clock].pop(0)
        if not self._free[clock]:
            del self._free[clock]
        self._lease(number, node)
        return self.entry(number)
