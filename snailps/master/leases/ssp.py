"""Decides who trains which entry under bounded staleness (`ssp`): every n-th belongs to one worker.

    entry -> its owner; a worker that is too far ahead of the slowest waits

Without a bound it is `async` with `assign: own`. A policy over the records of `Schedule`; `pace.py`
has the clocks of workers.  No files, sockets or time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.concurrency import ALL
from snailps.master.leases.entries import Entries, Entry
from snailps.master.leases.pace import Pace
from snailps.master.leases.records import NO_RESULT, BlockResult
from snailps.master.leases.schedule import BlockSchedule
from snailps.master.leases.seats import Seats
from snailps.master.leases.waits import Wait

_FREE = 0
"""Stands for an owner: the first worker that joins."""


class SspSchedule(BlockSchedule):
    """Entry n belongs to worker n mod W; the clock of a worker counts the entries that it finished.

    Entries that a leaving worker has not begun are assigned to the others. A worker that joins gets
    a share of what each of the others has left, and the slowest clock: no other waits for it.
    """

    pace: Pace
    seats: Seats

    def __init__(
        self,
        entries: Entries,
        known: NDArray[Any] | None = None,
        *,
        nodes: Sequence[int],  # the workers; without any, the first that joins owns all
        # entries that a worker may begin ahead of the slowest clock; -1: no bound
        staleness: int = -1,
        seats: int = ALL,  # most workers that train at a time; the others own nothing
    ) -> None:
        super().__init__(entries, known, nodes)
        self.seats = Seats(seats)
        nodes = [node for node in nodes if self.seats.take(node)]
        # With a bound a worker reports an entry once its pushes are acknowledged: the clock of
        # others rests on that. Without one it begins the next block meanwhile.
        self.is_flushed = staleness >= 0
        self._left: dict[int, deque[int]] = {node: deque() for node in nodes}
        # The owner of each entry, as assigned last; valid while the entry waits.
        self._owner = np.resize(np.array(nodes or [_FREE], np.int32), self.size)
        self._unowned: deque[int] = deque()  # entries of the first worker that joins
        for number in self.records.waiting(0, self.size):
            share = self._left[nodes[number % len(nodes)]] if nodes else self._unowned
            share.append(number)
        self.pace = Pace(self.records, nodes, self.has_left, staleness)
        self._assigned: set[int] = set()  # workers that were assigned entries since `woken`

    def has_left(self, node: int) -> bool:
        """Whether a worker has entries of its own that it may begin. Nobody waits for a worker
        whose entries wait for a test: the test waits for the others."""
        share = self._left.get(node)
        return bool(share and not self.is_held(share[0]))

    def hold(self, epochs: int) -> None:
        """As in `Schedule`. Once all is done and pushed, workers go on from the same clock: one
        with fewer entries in that epoch is not behind."""
        if self.at_hold:
            self.pace.level()
        super().hold(epochs)
        for node in self._left:
            self._may_go(node)

    def _next_of(self, node: int) -> Entry | None:
        """Lease the next of a worker's own entries, unless it would get too far ahead."""
        if self.closed or not self.has_left(node):
            return None
        if self.pace.is_ahead(node):
            self.pace.wait(node)
            return None
        number = self._left[node].popleft()
        self._lease(number, node)
        self.pace.begun(node, self._busy())
        return self.plan.entry(number)

    def _lease(self, number: int, node: int) -> None:
        self.records.lease(number, node)
        self.pace.has_work(node)

    def _busy(self) -> Iterator[int]:
        """Workers that have work; some come twice."""
        yield from self.records.holders()
        yield from (node for node, share in self._left.items() if share)

    def woken(self, waiting: Container[int]) -> list[int]:
        """Workers that are no longer too far ahead, and workers that were assigned entries."""
        assigned, self._assigned = self._assigned, set()
        return sorted(node for node in assigned | self.pace.freed() if node in waiting)

    def wait_of(self, node: int) -> Wait:
        """The slowest worker, where this one is too far ahead."""
        if self.has_left(node) and self.pace.is_ahead(node):
            return self.pace.wait_of(node)
        return super().wait_of(node)

    def done(self, number: int, node: int, result: BlockResult = NO_RESULT) -> bool:
        """The clock of the worker advances."""
        if not super().done(number, node, result):
            return False
        self.pace.finished(node)
        return True

    def _adopt(self, number: int, node: int) -> None:
        for share in (*self._left.values(), self._unowned):
            if number in share:
                share.remove(number)
        self._lease(number, node)
        self.seats.keep(node)

    def release(self, node: int) -> list[int]:
        """Return a worker's leases: to its own share while it takes part, else to the others."""
        numbers = self._release_all(node)
        if node in self._left:
            self._give(node, numbers)
            self._may_go(node)
        else:
            self._assign(numbers)
        return numbers

    def join(self, node: int) -> None:
        """Give a worker that joins its share of what the others have left, if a seat is free."""
        super().join(node)
        if node in self._left or not self.seats.take(node):
            return
        self.pace.join(node)
        shares = [list(share) for share in self._left.values()]
        self._left[node] = deque()
        numbers = list(self._unowned)
        self._unowned.clear()
        for other, share in zip(list(self._left), shares, strict=False):
            remaining = len(share) - len(share) // len(self._left)
            self._left[other] = deque(share[:remaining])
            numbers += share[remaining:]
        self._give(node, numbers)
        self._may_go(node)

    def leave(self, node: int) -> None:
        """Assign what a worker has not begun to the others, which no longer wait for it; a worker
        that has waited for its seat gets a share."""
        super().leave(node)
        self.pace.leave(node)
        self._assign(self._left.pop(node, deque()))
        for other in self.seats.leave(node):
            self.join(other)

    def _assign(self, numbers: Collection[int]) -> None:
        """Assign entries to the remaining workers; without any, to the next that joins."""
        if not self._left:
            self._unowned.extend(sorted(numbers))
            self._owner[list(numbers)] = _FREE
            return
        nodes = sorted(self._left)
        shares: dict[int, list[int]] = {node: [] for node in nodes}
        for place, number in enumerate(sorted(numbers)):
            shares[nodes[place % len(nodes)]].append(number)
        for node, share in shares.items():
            if share:
                self._give(node, share)
                self._may_go(node)

    def _give(self, node: int, numbers: list[int]) -> None:
        """Add entries to the share of a worker."""
        self._left[node] = deque(sorted([*self._left[node], *numbers]))
        self._owner[numbers] = node

    def _may_go(self, node: int) -> None:
        self._assigned.add(node)
        self.pace.has_work(node)

    @property
    def over(self) -> bool:
        has_waiting = any(self._left.values()) or bool(self._unowned)
        return not self.records.leased and (self.closed or not has_waiting)

    def snapshot(self) -> dict[str, Any]:
        """``owner`` is valid for entries that are not done."""
        return {
            **super().snapshot(),
            "owner": self._owner.copy(),
            "nodes": sorted(self._left),
            **self.pace.snapshot(),
        }

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        super().resume(snapshot)
        self.pace.resume(snapshot["clocks"], snapshot["ahead_max"])
        self.workers = dict.fromkeys(map(int, snapshot["nodes"]))
        self.seats = Seats(self.seats.count)
        for node in self.workers:
            self.seats.keep(node)
        self._owner = snapshot["owner"].copy()
        numbers = np.array(self.records.waiting(0, self.size), np.int64)
        numbers = numbers[np.argsort(self._owner[numbers], kind="stable")]
        owners, starts = np.unique(self._owner[numbers], return_index=True)
        by_owner = zip(owners.tolist(), np.split(numbers, starts)[1:], strict=True)
        shares: dict[int, list[int]] = {node: share.tolist() for node, share in by_owner}
        self._left = {node: deque(shares.pop(node, ())) for node in self.workers}
        self._unowned = deque(shares.pop(_FREE, ()))
        for share in shares.values():  # of workers that had left, or were leaving
            self._assign(share)
