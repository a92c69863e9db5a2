"""Rows of one table that stay at a worker from chunk to chunk, while it keeps its partition.

    open:   rows that are not here, or that other workers train, too <- PULL, or first values
    pushes: rows less what the servers have of them -> PUSH, some rows at a time

Owns the rows, and which of them are here.  A row that no other worker trains equals the servers'
copy once it is pushed, so it is pulled only once.

With `bases`, a copy of each row as the servers have it is kept: deltas of any rows may be pushed at
any time, while others are trained.  When the route has changed all rows are pulled again: with
`replication: async` the new primary of a shard may lack the last pushes to the lost one.  Without
bases, the servers' rows are pulled again for the deltas, since copies would be two fifths of a
worker's memory; such a push also repairs what servers have lost.

Knows neither what the rows mean nor how many workers train one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from snailps.api.tables import Table
from snailps.api.worker import Pending
from snailps.kernels._row_exchange import (
    load_columns,
    merge_columns,
    move_changed,
    subtract_columns,
)
from snailps.models.local_sgd import ArrayPool, Floats, Keys, LocalSgd

BYTES_AT_ONCE = 1 << 20
"""Bytes of rows in one request."""
UNDER_WAY, UNDER_WAY_SOLE = 16, 2
"""Requests under way while other rows are loaded or subtracted, with bases and without.  Several
workers wait for the same servers at the end of a chunk; a single worker saves the memory."""

Places = NDArray[np.int64] | None
"""Places of rows; None: all."""
Some = NDArray[np.int64]
Push = tuple[Pending, Floats]
"""A push, and the array that it needs until it is acknowledged."""


class PartitionRows:
    """The rows of `keys`: place i has the row of key i.

    `local` are the rows to train, followed by AdaGrad's squares; empty before the first `open`.
    After them, `spare` rows have room for rows that come and go.  `base` are packed rows as the
    servers have them, or as they were sent last; empty without `bases`.
    """

    def __init__(
        self, sgd: LocalSgd, table: str, keys: Keys, *, bases: bool, spare: int = 0
    ) -> None:
        self._sgd, self._worker, self._table, self.keys = sgd, sgd.worker, table, keys
        self._bases, self._size = bases, len(keys) + spare
        self._under_way = UNDER_WAY if bases else UNDER_WAY_SOLE
        width = sgd.layout.width
        # Its own pool: the larger arrays of checkouts would be taken for these rows.
        self._packed = ArrayPool(lambda n: np.empty((n, width), np.float32))
        self._route_epoch = -1  # of the last `open`
        self._here = np.zeros(len(keys), np.bool_)
        self.local: tuple[Floats, ...] = ()
        self.base: Floats = np.zeros((0, 0), np.float32)

    def open(
        self, places: Places, shared: NDArray[np.bool_] | None = None, *, first: bool = False
    ) -> int:
        """Pull the rows that are not here, or are `shared` with other workers; returns how many.

        With `first` none is pulled: rows are made, as servers would make them.
        """
        sgd = self._sgd
        if not self.local:
            self.local = tuple(sgd.layout.make(self._size) for _ in range(sgd.layout.arrays))
            if self._bases:
                self.base = np.empty((self._size, sgd.layout.width), np.float32)
        epoch = self._worker.route_epoch  # read first: it may change during the pull
        if self._bases and self._route_epoch != epoch:
            self._here[:] = False
        self._route_epoch = epoch
        lacks = ~(self._here if places is None else self._here[places])
        if shared is not None:
            lacks |= shared
        wanted = places
        if not lacks.all():
            wanted = np.flatnonzero(lacks) if places is None else places[lacks]
        for some, packed in self._first(wanted) if first else self._pulled(wanted):
            self._here[some] = True
            sgd.in_threads(self._load, some, packed)
            self._packed.give(packed)
        self._packed.drop(0)
        return 0 if first else int(np.count_nonzero(lacks))

    def forget(self) -> None:
        """Have the next `open` pull all rows, because another worker has trained them."""
        self._here[:] = False

    def take_memory(self, of: PartitionRows) -> None:
        """Take the memory of as many rows that are trained no longer."""
        assert self._size == of._size
        self.local, self.base = of.local, of.base
        of.free()

    def free(self) -> None:
        """Free the memory of the rows."""
        self.local, self.base = (), np.zeros((0, 0), np.float32)
        self.forget()

    def deltas(self, places: Some, shares: Floats) -> Floats:
        """Compute shares of deltas, in an array to `give` back; the rows then count as sent."""
        packed = self._packed.take(len(places))
        self._subtract(places, packed, shares)
        return packed

    def merge(self, places: Some, merged: Floats) -> None:
        """Replace rows by the servers' packed rows, plus what was trained since they were sent."""
        for array, first, dim, at in self._parts():
            merge_columns(array, places, self.base, merged, first, dim, at)

    def take(self, n: int) -> Floats:
        """Get an array for packed rows, to `give` back."""
        return self._packed.take(n)

    def give(self, packed: Floats) -> None:
        self._packed.give(packed)

    def pushes(self, places: Places, shares: Floats | None = None) -> Iterator[Push]:
        """Start to push deltas of rows that have changed, one request for each `next`.

        With bases, `shares` are the shares of each row's delta (of weights) to push.
        """
        sgd, first = self._sgd, 0
        for some, deltas in self._of_servers(places):
            keys, values = self.keys[some], deltas
            own = None if shares is None else shares[first : first + len(keys)]
            sgd.in_threads(self._subtract, some, deltas, own)
            if self._bases:
                first += len(keys)
                changed = move_changed(deltas)
                keys, values = keys[changed], deltas[: len(changed)]
            if len(keys):
                yield self.push(keys, values), deltas
            else:
                self._packed.give(deltas)

    def push_all(self, places: Places, shares: Floats | None = None) -> deque[Push]:
        """Push deltas; returns the last few pushes, and waits for all before them.

        The deltas of all rows at once would take as much memory as the rows.
        """
        under_way: deque[Push] = deque()
        for push in self.pushes(places, shares):
            under_way.append(push)
            if len(under_way) > self._under_way:
                self.wait_for([under_way.popleft()])
        return under_way

    def close(self, places: Places, shares: Floats | None = None) -> None:
        """Push deltas, and wait until they are acknowledged."""
        self.wait_for(self.push_all(places, shares))
        self._packed.drop(0)

    def wait_for(self, pushes: Iterable[Push]) -> None:
        """Wait until pushes are acknowledged, and take their arrays back."""
        for push, deltas in pushes:
            push.wait()
            self._packed.give(deltas)

    def push(self, keys: Keys, values: Floats) -> Pending:
        """Start to push deltas of rows."""
        return self._worker.push_async(self._table, keys, values, state=self._sgd.state)

    def pull(self, keys: Keys, out: Floats) -> Pending:
        """Start to pull packed rows, after all pushes so far."""
        return self._worker.pull_async(self._table, keys, out, state=self._sgd.state)

    def _of_servers(self, places: Places) -> Iterator[tuple[Some, Floats]]:
        """Yield arrays for deltas, some rows at a time; without bases they hold servers' rows."""
        if not self._bases:
            yield from self._pulled(places)
            return
        for some in self._some(places):
            yield some, self._packed.take(len(some))

    def _first(self, places: Places) -> Iterator[tuple[Some, Floats]]:
        """Yield first rows, some at a time, with a state of 0."""
        (table,) = (each for each in self._worker.tables() if each.name == self._table)
        assert isinstance(table, Table)
        dim, fill = self._sgd.layout.dim, table.fill_first
        for some in self._some(places):
            packed, values = self._packed.take(len(some)), np.empty((len(some), dim), np.float32)
            fill(self.keys[some], values)
            packed[:, :dim], packed[:, dim:] = values, 0.0
            yield some, packed

    def _pulled(self, places: Places) -> Iterator[tuple[Some, Floats]]:
        """Yield the servers' rows, some at a time, pulled a few requests ahead."""
        coming = deque[tuple[Some, Pending]]()
        for some in self._some(places):
            keys = self.keys[some]
            coming.append((some, self.pull(keys, self._packed.take(len(keys)))))
            if len(coming) > self._under_way:
                pulled, pull = coming.popleft()
                yield pulled, pull.wait()
        for pulled, pull in coming:
            yield pulled, pull.wait()

    def _some(self, places: Places) -> Iterator[Some]:
        """Split places into the rows of one request each."""
        size = max(1, BYTES_AT_ONCE // (4 * self._sgd.layout.width))
        count = len(self.keys if places is None else places)
        for first in range(0, count, size):
            last = min(first + size, count)
            yield np.arange(first, last) if places is None else places[first:last]

    def _load(self, some: Some, packed: Floats) -> None:
        if self._bases:
            self.base[some] = packed
        self.load(some, packed)

    def load(self, places: Some, packed: Floats) -> None:
        """Set rows at any places, spare places too; threads may do so for different rows."""
        for array, first, dim, at in self._parts():
            load_columns(array, places, packed, first, dim, at)

    def subtract(self, places: Some, packed: Floats) -> None:
        """``packed = rows - packed`` at any places; threads may do so for different rows."""
        for array, first, dim, at in self._parts():
            subtract_columns(array, places, packed, first, dim, at=at)

    def _subtract(self, some: Some, deltas: Floats, shares: Floats | None) -> None:
        """Compute deltas (of weights, their `shares`); with bases the rows then count as sent."""
        bases = self.base if self._bases else None
        for array, first, dim, at in self._parts():
            subtract_columns(array, some, deltas, first, dim, bases, None if first else shares, at)

    def _parts(self) -> Iterator[tuple[Floats, int, int, int]]:
        """For each part of a row: its array, its first column and width when packed, and its first
        column in the array.
        """
        layout = self._sgd.layout
        for part in range(layout.parts):
            array, at = (part, 0) if layout.split else (0, part * layout.stride)
            yield self.local[array], part * layout.dim, layout.dim, at
