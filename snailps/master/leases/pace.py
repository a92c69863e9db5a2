"""Owns the clock of each worker, and how far ahead of the slowest one a worker may be.

    begun, done -> clock of a worker -> the slowest worker with work -> who may begin

A part of schedules in which entries belong to workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

from snailps.master.leases.records import BlockRecords
from snailps.master.leases.waits import Wait


class Pace:
    """The clock of each worker: how many entries it has finished."""

    def __init__(
        self,
        records: BlockRecords,
        nodes: Sequence[int],
        has_left: Callable[[int], bool],  # whether a worker owns entries that it may begin
        staleness: int,  # entries that a worker may begin ahead of the slowest clock; -1: no bound
    ) -> None:
        self._records, self._has_left, self._staleness = records, has_left, staleness
        self._clocks = dict.fromkeys(nodes, 0)
        self.ahead_max = 0  # how far ahead of the slowest a worker has been; a figure of the run
        # Heap of the clocks of workers with work, one each. Clocks change more often than the
        # slowest is asked for, so an item may be outdated: `slowest` corrects those at the top.
        # `_ahead_of_all`: heap of waiting workers, by the clock that they wait for.
        self._slow = [(0, node) for node in nodes]
        heapify(self._slow)
        self._in_slow = set(nodes)
        self._ahead_of_all: list[tuple[int, int]] = []

    @property
    def is_bound(self) -> bool:
        """Whether workers wait for the slowest."""
        return self._staleness >= 0

    def of(self, node: int) -> int | None:
        """Entries that a worker has finished; None if it does not take part."""
        return self._clocks.get(node)

    def slowest(self) -> tuple[int, int]:
        """The slowest clock of workers with work, and its worker (0: none has work)."""
        while self._slow:
            clock, node = self._slow[0]
            # A worker without work comes no further: the others would wait for ever.
            has_work = self._has_left(node) or self._records.count_of(node)
            now = self._clocks.get(node) if has_work else None
            if now == clock:
                return clock, node
            if now is None:
                heappop(self._slow)
                self._in_slow.discard(node)
            else:
                heapreplace(self._slow, (now, node))
        return max(self._clocks.values(), default=0), 0

    def has_work(self, node: int) -> None:
        """Add a worker with work to the heap, at its clock."""
        if node in self._clocks and node not in self._in_slow:
            self._in_slow.add(node)
            heappush(self._slow, (self._clocks[node], node))

    def finished(self, node: int) -> None:
        """The clock of a worker advances."""
        if node in self._clocks:
            self._clocks[node] += 1

    def begun(self, node: int, busy: Iterable[int]) -> None:
        """A worker has begun an entry; `busy` are the workers that have work."""
        ahead = self._next_clock(node) - 1 - self.slowest()[0]
        if ahead > self.ahead_max and any(other != node for other in busy):
            self.ahead_max = ahead

    def join(self, node: int) -> None:
        """A worker takes part from now on, at the slowest clock: at 0 all others would wait until
        it had caught up."""
        self._clocks[node] = self.slowest()[0]

    def level(self) -> None:
        """All workers are at the foremost clock: nothing is leased, and all is pushed."""
        self._clocks = dict.fromkeys(self._clocks, max(self._clocks.values(), default=0))

    def leave(self, node: int) -> None:
        """A worker takes no further part, and no other waits for it."""
        self._clocks.pop(node, None)
        self._in_slow.discard(node)  # it may join again, at an earlier clock

    # --- who is ahead ----------------------------------------------------------------------------

    def is_ahead(self, node: int) -> bool:
        """Whether the next entry of a worker would be too far ahead of the slowest clock."""
        return self.is_bound and self.slowest()[0] < self._needed(node)

    def wait(self, node: int) -> None:
        """A worker is too far ahead: `freed` names it once it no longer is."""
        heappush(self._ahead_of_all, (self._needed(node), node))

    def freed(self) -> set[int]:
        """Workers for which `wait` was called, and that are no longer too far ahead; each once."""
        nodes: set[int] = set()
        slowest = self.slowest()[0]
        while self._ahead_of_all and self._ahead_of_all[0][0] <= slowest:
            nodes.add(heappop(self._ahead_of_all)[1])
        return nodes

    def wait_of(self, node: int) -> Wait:
        """The slowest worker, and how far it is to come."""
        clock, slowest = self.slowest()
        if slowest == node:
            return Wait((), "finish")
        return Wait(
            (slowest,),
            f"finish its block {clock + 1}, being at its own block {self._clocks[node] + 1} "
            f"(staleness {self._staleness})",
        )

    def _needed(self, node: int) -> int:
        """The slowest clock with which a worker may begin its next entry."""
        return self._next_clock(node) - self._staleness

    def _next_clock(self, node: int) -> int:
        """The clock at which a worker begins its next entry."""
        return self._clocks[node] + self._records.count_of(node)

    # --- state -----------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        return {"consistency": "ssp", "ahead_max": self.ahead_max} if self.is_bound else {}

    def snapshot(self) -> dict[str, Any]:
        return {"clocks": sorted(self._clocks.items()), "ahead_max": self.ahead_max}

    def resume(self, clocks: Iterable[tuple[int, int]], ahead_max: int) -> None:
        """Continue from the fields of a `snapshot`."""
        self._clocks = {int(node): int(clock) for node, clock in clocks}
        self._slow = [(clock, node) for node, clock in self._clocks.items()]
        heapify(self._slow)
        self._in_slow = set(self._clocks)
        self.ahead_max = int(ahead_max)
