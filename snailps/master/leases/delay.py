"""The schedule of bounded delay (`delay`): no block lacks more than so many others.

    entry -> begun, while the oldest at work was begun at most `staleness` entries before

A policy over the records of `Schedule`.  No files, sockets or time.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from numpy.typing import NDArray

from snailps.api.concurrency import ALL
from snailps.master.leases.entries import Entries, Entry
from snailps.master.leases.records import BlockResult
from snailps.master.leases.shared import QueueSchedule
from snailps.master.leases.waits import Wait


class DelaySchedule(QueueSchedule):
    """The next entry to each worker that asks, unless one that was begun more than `staleness`
    entries before is still at work: rows lack pushes of as many blocks at most."""

    is_flushed = True

    def __init__(
        self,
        entries: Entries,
        known: NDArray[Any] | None = None,
        *,
        staleness: int,
        seats: int = ALL,
    ) -> None:
        super().__init__(entries, known, seats=seats)
        self._staleness = staleness
        self._count = 0  # entries begun
        self._begun: dict[int, int] = {}  # entry at work -> entries begun before it

    def _next_of(self, node: int) -> Entry | None:
        entry = None if self._is_late else super()._next_of(node)
        if entry is not None:
            self._begin(entry.number)
        return entry

    def _adopt(self, number: int, node: int) -> None:
        super()._adopt(number, node)
        self._begin(number)

    def _begin(self, number: int) -> None:
        self._begun[number] = self._count
        self._count += 1

    def _finish(self, number: int, result: BlockResult) -> None:
        super()._finish(number, result)
        del self._begun[number]

    def _release(self, number: int) -> None:
        super()._release(number)
        del self._begun[number]

    def woken(self, waiting: Container[int]) -> list[int]:
        return [] if self._is_late else super().woken(waiting)

    def wait_of(self, node: int) -> Wait:
        """The worker of the oldest entry at work."""
        if not self._is_late:
            return super().wait_of(node)
        oldest = next(iter(self._begun))
        holder = self.records.holder(oldest)
        return Wait((), "finish") if holder == node else Wait((holder,), f"finish block {oldest}")

    @property
    def _is_late(self) -> bool:
        """Whether the oldest entry at work was begun too many entries before the next one."""
        oldest = next(iter(self._begun.values()), self._count)
        return self._count - oldest > self._staleness

    def figures(self) -> dict[str, Any]:
        return {"consistency": "delay"}
