"""Owns the entries that wait, where any worker may get any of them, and which one is next.

    returned entries -> the present epoch's, by the worker that had the block -> later epochs
    limit(place): lease up to a fixed number of entries after this place, then no more

From the second epoch on a worker gets the blocks that it had in the epoch before: it may have kept
what it read, and has their rows. It gets others when it has none of its own left.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from snailps.master.leases.entries import Entries
from snailps.master.leases.records import BlockRecords
from snailps.master.leases.waits import ANY_WORKER

MANY = 1 << 62
"""More entries than any training has."""
ENTRIES_AHEAD = 2
"""Entries trained after the one whose loss ends the training: a single worker has leased so many
when it reports one, so its result does not depend on when the master looks."""


class EntryQueue:
    """Numbers of entries, first in, first out; any of them is removed at once."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._numbers = OrderedDict.fromkeys(numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def take(self) -> int:
        return self._numbers.popitem(last=False)[0]

    def append(self, number: int) -> None:
        self._numbers[number] = None

    def extend(self, numbers: Iterable[int]) -> None:
        self._numbers.update(dict.fromkeys(numbers))

    def remove(self, number: int) -> None:
        """KeyError: it is not there."""
        del self._numbers[number]


class EpochQueues:
    """The entries of an epoch that are to be leased, by the worker that had their block before."""

    def __init__(
        self, records: BlockRecords, numbers: NDArray[np.int64], nodes: NDArray[np.int64]
    ) -> None:
        self._records = records
        by_node = np.argsort(nodes, kind="stable")
        workers, starts = np.unique(nodes[by_node], return_index=True)
        shares = np.split(numbers[by_node], starts)[1:]
        self._of = dict(zip(workers.tolist(), shares, strict=True))
        self._left = len(numbers)

    def __len__(self) -> int:
        return self._left

    def take(self, node: int) -> int:
        """The next entry of a worker. If it has none left: one of a block that no worker had, else
        one of the worker that has most left."""
        while True:
            owner = node if node in self._of else ANY_WORKER
            if owner not in self._of:
                owner = max(self._of, key=lambda other: len(self._of[other]))
            number, self._of[owner] = int(self._of[owner][0]), self._of[owner][1:]
            if not len(self._of[owner]):
                del self._of[owner]
            # Else it was leased in another way meanwhile; `withdraw` has counted that already.
            if self._records.is_waiting(number):
                self._left -= 1
                return number

    def withdraw(self) -> None:
        """One of the entries was leased in another way: `take` passes over it."""
        self._left -= 1


class BlockQueue:
    """The entries that wait, in the sequence in which they are leased."""

    def __init__(self, records: BlockRecords, entries: Entries) -> None:
        self._records, self._entries = records, entries
        self._size = entries.count
        self._next = 0  # the first entry that is in no queue yet
        self._epoch = self._no_epoch()
        self._back = EntryQueue()  # returned by workers
        self.is_limited = False
        """The entries that wait are the last ones, and are leased though the schedule is closed."""
        self._skip()

    def __len__(self) -> int:
        return len(self._back) + len(self._epoch) + self._size - self._next

    def ready(self, stop: int) -> int:
        """How many entries below `stop`, the first one of an epoch, wait."""
        return len(self._back) + len(self._epoch) + max(0, min(stop, self._size) - self._next)

    def take(self, node: int, stop: int = MANY) -> int | None:
        """Remove the next entry of a worker; None: none below `stop` waits."""
        if self._back:
            return self._back.take()
        if not len(self._epoch):
            if self._next >= min(stop, self._size):
                return None
            self._queue_epoch()
        return self._epoch.take(node)

    def put_back(self, numbers: Iterable[int]) -> None:
        """Entries that are to be leased again, before all others."""
        # Sorted, and not as they came: a master that takes over finds them in the records, without
        # that sequence.
        self._back = EntryQueue(sorted([*self._back, *numbers]))

    def remove(self, number: int) -> None:
        """Remove an entry that waits, because a worker reports to hold it."""
        epoch_of = self._entries.epoch_of
        is_later = number >= self._next and not len(self._epoch)
        if is_later and epoch_of(number) == epoch_of(self._next):
            self._queue_epoch()
        if number < self._next:
            if number in self._back:
                self._back.remove(number)
            elif len(self._epoch):
                self._epoch.withdraw()
            elif self._back:  # after a limit: it takes the place of another one
                self._back.take()
            return
        self._back.extend(self._records.waiting(self._next, number))
        self._next = number + 1
        self._skip()

    def ended(self, number: int) -> int:
        """The `place` of `limit` for a training whose loss was low enough with this entry."""
        return number + 1

    def limit(self, place: int) -> None:
        """End the training `ENTRIES_AHEAD` entries after the first `place` ones."""
        count = place + ENTRIES_AHEAD - self._records.finished - self._records.leased
        numbers: list[int] = []
        while len(numbers) < count and (number := self.take(ANY_WORKER)) is not None:
            numbers.append(number)
        self._back = EntryQueue(numbers)
        self._next, self._epoch = self._size, self._no_epoch()
        self.is_limited = True

    def _no_epoch(self) -> EpochQueues:
        nothing = np.zeros(0, np.int64)
        return EpochQueues(self._records, nothing, nothing)

    def _queue_epoch(self) -> None:
        """Queue what waits of the epoch of `_next`."""
        entries = self._entries
        epoch, count = entries.epoch_of(self._next), len(entries.blocks)
        stop = min((epoch + 1) * count, self._size)
        numbers = np.array(self._records.waiting(self._next, stop), np.int64)
        had = np.full(count, ANY_WORKER, np.int64)  # the worker that had each block before
        if epoch:
            had[entries.of_epoch(epoch - 1)] = self._records.nodes((epoch - 1) * count, count)
        places = numbers - epoch * count
        self._epoch = EpochQueues(self._records, numbers, had[entries.of_epoch(epoch)[places]])
        self._next = stop
        self._skip()

    def _skip(self) -> None:
        """Skip entries that are done already."""
        self._next = self._records.next_not_done(self._next, self._size)
