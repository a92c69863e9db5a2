"""Rows of sparse examples that a worker keeps while it is the only one: nobody else changes them.

    keys -> `find`: the place of each, for good -> `ask`: those never met before -> PULL
    places -> `ready`: rows to train on, where they lie -> `changes` of several blocks -> PUSH

A row is pulled when it is met and pushed every `BLOCKS` blocks, so that frequent rows travel once
and not with every block, and what is trained on lacks nothing.  Memory is bounded: where there is
no room for a block's new rows, `ask` says so, and the worker goes on without.  Where another worker
comes, it pushes its `changes`, and what was asked for is pulled anew (`apart`).  No optimiser, no
text.

What holds
----------
* `find` and `ask` for a later block may run while a block trains, in other threads: they write
  places of new rows only, which no block before it has.
* `find` may run in several threads at once, but not while `ask` does, which must come before the
  next block's.
* A pull goes ahead of pushes under way: they have no part in rows never met before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.worker import Pending, Worker
from snailps.data.examples import KeptNumbers
from snailps.models.sparse.batch import Batch, Floats, Keys, whole

BYTES_MAX = 512 << 20
"""Of all that is kept: 6.8 million features of a linear model with FTRL."""
BLOCKS = 4
"""From push to push.  Clicks with 39 features: 290,000 rows a block, 580,000 every four."""
_NUMBER_BYTES = 51
"""Of a key: itself, and its part of a table of numbers at its emptiest."""

Ids = NDArray[np.int32]


@dataclass(slots=True)
class Found:
    """What `find` knows of keys; see `KeptNumbers.find`."""

    keys: Keys
    places: Ids
    missing: Ids
    touched: Ids


@dataclass(slots=True)
class Asked:
    """What a block asked for.

    Attributes
    ----------
    row_num : int
        Rows kept, this block's included.
    first : int
        Place of the first new one.
    pull : Pending or None
        Of the new ones, if there are any.
    touched : numpy.ndarray
        int32: places that no block since the last push had used.
    closes : bool
        Whether a push is due behind this block.
    keys : numpy.ndarray
        uint64, by place, of all rows kept.
    """

    row_num: int
    first: int
    pull: Pending | None
    touched: Ids
    closes: bool
    keys: Keys

    def apart(self, batches: Sequence[Batch]) -> Batch:
        """The block's batches as one, with places among its own keys, as if no rows were kept."""
        batch = whole(batches)
        used = np.zeros(self.row_num, np.bool_)
        used[batch.places] = True
        if batch.bias >= 0:
            used[batch.bias] = True
        place = np.cumsum(used, dtype=np.int32) - 1
        bias = int(place[batch.bias]) if batch.bias >= 0 else -1
        keys = self.keys[: self.row_num][used]
        return replace(batch, places=place[batch.places], keys=keys, bias=bias)


class WriteBackCache:
    """Rows with state of one table at the only worker of a job.

    Parameters
    ----------
    worker : Worker
        Who pulls and pushes.
    table : str
    dim, parts : int
        Floats of a row's weights, and how many arrays of these it has with its state.
    stride : int
        Floats of each array as the model trains it, `dim` and what pads it.
    in_threads : callable
        ``in_threads(function, *arrays)`` calls a row-wise function on row ranges at once.
    load : callable
        ``load(base, rows)`` makes rows to train of rows as pulled.
    take : callable
        ``take(n)`` gives an array for n differences.
    bytes_max : int
        Of memory.
    """

    def __init__(
        self,
        worker: Worker,
        table: str,
        *,
        dim: int,
        parts: int,
        stride: int,
        in_threads: Callable[..., None],
        load: Callable[[Floats, Floats], None],
        take: Callable[[int], Floats],
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._worker, self._table, self._dim, self._parts = worker, table, dim, parts
        self._in_threads, self._load, self._take = in_threads, load, take
        most = max(1, bytes_max // (4 * parts * (dim + stride) + _NUMBER_BYTES))
        self._numbers = KeptNumbers(min(most, (1 << 30) - 1))
        # Memory is taken as it is touched; so nothing ever moves.
        self._base = np.empty((most, parts * dim), np.float32)  # as the servers have them
        padded = stride > dim
        shape = (most, parts * stride)
        self._rows = kernels.padded(*shape) if padded else np.empty(shape, np.float32)
        self._keys = np.empty(most, np.uint64)
        self._blocks = 0
        self._touched: list[Ids] = []

    def find(self, keys: Keys) -> Found:
        """Places of the keys, of which those never met before are still missing."""
        return Found(keys, *self._numbers.find(keys))

    def ask(self, found: Sequence[Found]) -> Asked | None:
        """A block's keys get their places, and its new rows are asked for; None: no room.

        Parameters
        ----------
        found : sequence of Found
            The block's keys, in any number of parts; what is missing in their places is filled in.
        """
        first = len(self._numbers)
        parts = [self._numbers.number(one.keys, one.missing, one.places) for one in found]
        if not all(fits for _, fits in parts):
            return None
        new = np.concatenate([new for new, _ in parts])
        row_num = first + len(new)
        fresh = np.arange(first, row_num, dtype=np.int32)
        touched = np.concatenate([*(one.touched for one in found), fresh])
        self._keys[first:row_num] = new
        pull = None
        if len(new):
            out = self._base[first:row_num]
            pull = self._worker.pull_async(self._table, new, out, state=True, ahead=True)
        self._blocks += 1
        closes = self._blocks % BLOCKS == 0
        if closes:
            self._numbers.begin_round()
        return Asked(row_num, first, pull, touched, closes, self._keys)

    def ready(self, asked: Asked) -> Floats:
        """Waits for a block's new rows; all rows, to be trained where they lie."""
        if asked.pull is not None:
            asked.pull.wait()
            new = slice(asked.first, asked.row_num)
            self._in_threads(self._load, self._base[new], self._rows[new])
        self._touched.append(asked.touched)
        return self._rows[: asked.row_num]

    @property
    def changed(self) -> bool:
        """Whether a block was trained since `changes`."""
        return bool(self._touched)

    def changes(self) -> tuple[Keys, Floats] | None:
        """What changed since the last time: keys, differences with state; None: no block trained.

        From here on it counts as pushed.
        """
        if not self.changed:
            return None
        ids = np.concatenate(self._touched)
        self._touched = []
        out = self._take(len(ids))

        def compare(some: Ids, changed: Floats) -> None:
            kernels.take_changes(self._rows, self._base, some, changed, self._dim, self._parts)

        self._in_threads(compare, ids, out)
        return self._keys[ids], out
