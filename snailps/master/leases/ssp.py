"""The ledger of bounded staleness (`ssp`): every n-th entry belongs to one worker.

    entry -> its owner; a worker that is too far ahead of the slowest gets none at present

A policy over the records of `Ledger`.  No files, sockets or time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.concurrency import ALL
from snailps.master.leases.ledger import Entry, EntryQueue, Ledger, Wait
from snailps.master.leases.records import NO_RESULT, BlockResult
from snailps.master.leases.seats import Seats
from snailps.pieces import Piece

_FREE = 0
"""Stands for an owner: the first worker that joins."""


class SspLedger(Ledger):
    """Entry n belongs to worker n mod W; a worker's clock is how many it has finished. What a
    worker that leaves has not begun is assigned to the others. One that joins gets a share of what
    each of the others has left, and the slowest clock, so that no other worker waits for it."""

    def __init__(
        self,
        blocks: Sequence[Piece],
        epochs: int = 1,
        limit: int = 0,
        known: NDArray[Any] | None = None,
        order: int | None = None,
        *,
        nodes: Sequence[int],  # the workers; without any, the first that joins owns all
        # entries that a worker may begin ahead of the slowest clock; -1: no bound
        staleness: int = -1,
        seats: int = ALL,  # most workers that train at a time; the others own nothing
    ) -> None:
        super().__init__(blocks, epochs, limit, known, order, seats=seats)
        nodes = [node for node in nodes if self._seats.take(node)]
        self._staleness = staleness
        self.flushed = staleness >= 0  # else its workers begin a block before pushes are there
        self._left: dict[int, deque[int]] = {node: deque() for node in nodes}
        self._clocks = dict.fromkeys(nodes, 0)
        # The owner of each entry when it was assigned; what is leased or done keeps it.
        self._owner = np.resize(np.array(nodes or [_FREE], np.int32), self._size)
        for number in self.records.waiting(0, self._size):
            mine = self._left[nodes[number % len(nodes)]] if nodes else self._back
            mine.append(number)
        self._next = self._size  # only what was assigned is leased
        self.ahead_max = 0
        # Heap of the clocks of workers with work, one each; `slowest` mends outdated ones at the
        # top. And the waiting workers, by the clock that they wait for.
        self._slow = [(0, node) for node in nodes]
        heapify(self._slow)
        self._in_slow = set(nodes)
        self._ahead_of_all: list[tuple[int, int]] = []
        self._assigned: set[int] = set()

    judged = "look"

    def _next_of(self, node: int) -> Entry | None:
        """The next of a worker's own entries, unless it would get too far ahead."""
        mine = self._left.get(node)
        if self.closed or not mine:
            return None
        if self._ahead(node):
            heappush(self._ahead_of_all, (self._needed(node), node))
            return None
        number = mine.popleft()
        self._lease(number, node)
        ahead = self._begun(node) - 1 - self._slowest()[0]
        if ahead > self.ahead_max and any(other != node for other in self._busy()):
            self.ahead_max = ahead
        return self.entry(number)

    def woken(self, waiting: Container[int]) -> list[int]:
        """Workers that are no longer too far ahead, and those that were assigned something."""
        found, self._assigned = self._assigned, set()
        slowest = self._slowest()[0]
        while self._ahead_of_all and self._ahead_of_all[0][0] <= slowest:
            found.add(heappop(self._ahead_of_all)[1])
        return sorted(node for node in found if node in waiting)

    def _lease(self, number: int, node: int) -> None:
        super()._lease(number, node)
        self._has_work(node)

    def _has_work(self, node: int) -> None:
        """Add a worker with work to the heap, at its clock."""
        if node in self._clocks and node not in self._in_slow:
            self._in_slow.add(node)
            heappush(self._slow, (self._clocks[node], node))

    def done(
        self, number: int, node: int, result: BlockResult = NO_RESULT, *, whole: bool = True
    ) -> bool:
        """The clock of the worker advances."""
        if not super().done(number, node, result):
            return False
        if node in self._clocks:
            self._clocks[node] += 1
        return True

    def _withdraw(self, number: int) -> None:
        queues: list[deque[int] | EntryQueue] = [*self._left.values(), self._back]
        for shares in queues:
            if number in shares:
                shares.remove(number)

    def release(self, node: int) -> list[int]:
        """A worker's leases stay its own while it takes part."""
        numbers = self._release_all(node)
        if node in self._left:
            self._left[node] = deque(sorted([*self._left[node], *numbers]))
            self._owner[numbers] = node
            self._may_go(node)
        else:
            self._assign(numbers)
        return numbers

    def join(self, node: int) -> None:
        """Give a worker that joins its share of what the others have left, if there is a seat."""
        if node in self._left or not self._seats.take(node):
            return
        clock = self._slowest()[0]
        shares = [list(left) for left in self._left.values()]
        self._left[node] = deque()
        self._clocks[node] = clock
        mine = list(self._back)
        self._back = EntryQueue()
        for other, share in zip(list(self._left), shares, strict=False):
            kept = len(share) - len(share) // len(self._left)
            self._left[other] = deque(share[:kept])
            mine += share[kept:]
        self._left[node] = deque(sorted(mine))
        self._owner[mine] = node
        self._may_go(node)

    def _may_go(self, node: int) -> None:
        self._assigned.add(node)
        self._has_work(node)

    def snapshot(self) -> dict[str, Any]:
        """``owner`` is valid for entries that are not done."""
        return {
            **super().snapshot(),
            "owner": self._owner.copy(),
            "nodes": sorted(self._left),
            "clocks": sorted(self._clocks.items()),
            "ahead_max": self.ahead_max,
        }

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        super().resume(snapshot)
        self._clocks = {int(node): int(clock) for node, clock in snapshot["clocks"]}
        self._owner = snapshot["owner"].copy()
        numbers = np.array(self.records.waiting(0, self._size), np.int64)
        numbers = numbers[np.argsort(self._owner[numbers], kind="stable")]
        owners, starts = np.unique(self._owner[numbers], return_index=True)
        shares = dict(zip(owners.tolist(), np.split(numbers, starts)[1:], strict=True))
        self._left = {int(node): deque() for node in snapshot["nodes"]}
        self._seats = Seats(self._seats.count)
        for node in self._left:
            self._seats.keep(node)
        self._back = EntryQueue(shares.pop(_FREE, np.zeros(0, np.int64)).tolist())
        for node in self._left:
            self._left[node].extend(shares.pop(node, np.zeros(0, np.int64)).tolist())
        for share in shares.values():  # of workers that were to leave
            self._assign(share.tolist())
        self._slow = [(clock, node) for node, clock in self._clocks.items()]
        heapify(self._slow)
        self._in_slow = set(self._clocks)
        self.ahead_max = int(snapshot["ahead_max"])

    def leave(self, node: int) -> None:
        """Assign what a worker has not begun to the others, which no longer wait for it; one that
        waits for its seat gets a share."""
        self._clocks.pop(node, None)
        self._in_slow.discard(node)  # one that comes back may be at an earlier clock
        self._assign(self._left.pop(node, deque()))
        for other in self._seats.leave(node):
            self.join(other)

    @property
    def over(self) -> bool:
        left = any(self._left.values()) or bool(self._back)
        return not self.records.leased and (self.closed or not left)

    def slowest(self) -> tuple[int, int] | None:
        return self._slowest() if self._staleness >= 0 else None

    def figures(self) -> dict[str, Any]:
        if self._staleness < 0:
            return {}
        return {"consistency": "ssp", "ahead_max": self.ahead_max}

    def _slowest(self) -> tuple[int, int]:
        """The slowest clock of workers with work, and its worker (0: none has work)."""
        while self._slow:
            clock, node = self._slow[0]
            has_work = self._left.get(node) or self.records.count_of(node)
            now = self._clocks.get(node) if has_work else None
            if now == clock:
                return clock, node
            if now is None:
                heappop(self._slow)
                self._in_slow.discard(node)
            else:
                heapreplace(self._slow, (now, node))
        return max(self._clocks.values(), default=0), 0

    def clock_of(self, node: int) -> int | None:
        """Entries that a worker has finished; None if it takes no part."""
        return self._clocks.get(node)

    def wait_of(self, node: int) -> Wait:
        """The slowest worker, where this one is too far ahead."""
        if not (self._left.get(node) and self._ahead(node)):
            return super().wait_of(node)
        clock, slowest = self._slowest()
        if slowest == node:
            return Wait((), "finish")
        return Wait(
            (slowest,),
            f"finish its block {clock + 1}, being at its own block {self._clocks[node] + 1} "
            f"(staleness {self._staleness})",
        )

    def _ahead(self, node: int) -> bool:
        """Whether the next entry of a worker would be too far ahead of the slowest clock."""
        return self._staleness >= 0 and self._slowest()[0] < self._needed(node)

    def _needed(self, node: int) -> int:
        """The slowest clock with which a worker may begin its next entry."""
        return self._begun(node) - self._staleness

    def _begun(self, node: int) -> int:
        """The clock at which a worker begins its next entry."""
        return self._clocks[node] + self.records.count_of(node)

    def _busy(self) -> Iterator[int]:
        """Workers that have work, some of them twice."""
        yield from self.records.holders()
        yield from (node for node, left in self._left.items() if left)

    def _assign(self, numbers: Collection[int]) -> None:
        """Assign entries to the remaining workers; without any, to the next that joins."""
        if not self._left:
            self._back.extend(sorted(numbers))
            self._owner[list(numbers)] = _FREE
            return
        nodes = sorted(self._left)
        shares: dict[int, list[int]] = {node: [] for node in nodes}
        for at, number in enumerate(sorted(numbers)):
            shares[nodes[at % len(nodes)]].append(number)
        for node, more in shares.items():
            if more:
                self._left[node] = deque(sorted([*self._left[node], *more]))
                self._owner[more] = node
                self._may_go(node)
