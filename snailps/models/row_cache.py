"""Rows of one table that a worker keeps while it is the only one: nobody else changes them.

    ids of a block -> `ask`: a place for each; those that have none yet -> PULL
    places -> `lend`: copies to train on -> `settle`: what changed -> PUSH, and is kept

So a row is pulled when it is met, not at every block, and nothing that is pulled lacks an own
push; every block is pushed as ever.  Memory is bounded: where there is no more room, rows that
three blocks in a row do not use are forgotten.  What the rows mean is the model's.

What holds
----------
* `ask` for block n + 1 may run while block n trains, in another thread: it reads and writes places
  only, values change in `lend` and `settle`.
* A push begins when the one before it is done.  So when `ask` for block n + 1 is called, all of
  block n - 2 and before have arrived, and only rows that neither n - 1 nor n uses are forgotten: a
  pull may go ahead of the pushes under way, because they have no part in its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.worker import Pending, Worker
from snailps.models.local_sgd import Floats, Keys, Shelf

KEPT_BYTES_MAX = 512 << 20
"""Values kept of one table, unless three blocks need more.  A million rows of 100 columns: all that
50,651 package descriptions have in words and pairs are 650,000."""

Ids = NDArray[np.int32]
_NONE = np.empty((0, 0), np.float32)


@dataclass(slots=True)
class Lent:
    """Rows of a block: places of all and of the `new` ones, being pulled; copies to train on."""

    keys: Keys
    places: Ids
    rows: Floats
    new: Ids
    pull: Pending | None = None
    pulled: Floats | None = None


class RowCache:
    """Rows of a table of access method ``add`` at the only worker of a job.

    Parameters
    ----------
    worker : Worker
        Who pulls and pushes.
    table : str
    dim : int
        Of the table.
    id_num : int
        Rows are known by ids below it; takes 4 bytes each.
    in_threads : callable
        ``in_threads(function, *arrays)`` calls a row-wise kernel on row ranges at once.
    bytes_max : int
        Of values kept, unless three blocks need more.
    """

    def __init__(
        self,
        worker: Worker,
        table: str,
        dim: int,
        id_num: int,
        in_threads: Callable[..., None],
        bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        self._worker, self._table, self._dim = worker, table, dim
        self._in_threads = in_threads
        self._copies = Shelf(lambda n: kernels.padded(n, dim))
        self._pushes: list[tuple[Pending, Floats]] = []
        self._place_of = np.full(id_num, -1, np.int32)
        room = bytes_max // (4 * kernels.padded(1, dim).shape[1])
        room = max(1, min(id_num, room))
        self._rows = kernels.padded(room, dim)
        # By place: whose row it holds, the block that used it last; and the places that are free.
        self._id_at = np.full(room, -1, np.int32)
        self._used_in = np.zeros(room, np.int32)
        self._free = np.arange(room, dtype=np.int32)
        self._block = 0

    def ask(self, ids: Ids, keys: Keys) -> Lent:
        """Finds the rows of the next block, each once, and starts to pull those not kept."""
        self._block += 1
        places = self._place_of[ids]
        new = np.flatnonzero(places < 0)
        self._used_in[places[places >= 0]] = self._block
        taken = self._take(len(new))
        places[new] = taken
        self._place_of[ids[new]] = taken
        self._id_at[taken] = ids[new]
        self._used_in[taken] = self._block
        lent = Lent(keys, places, _NONE, taken)
        if len(new):
            lent.pulled = self._copies.take(len(new))
            out = lent.pulled[:, : self._dim]
            lent.pull = self._worker.pull_async(self._table, keys[new], out, ahead=True)
        return lent

    def lend(self, lent: Lent) -> Floats:
        """Waits for the rows; a padded array to train on, in the order of the ids."""
        if len(self._rows) < len(self._id_at):
            rows = kernels.padded(len(self._id_at), self._dim)
            rows[: len(self._rows)] = self._rows
            self._rows = rows
        if lent.pull is not None and lent.pulled is not None:
            lent.pull.wait()
            self._in_threads(partial(kernels.settle_rows, self._rows), lent.new, lent.pulled)
            self._copies.give(lent.pulled)
        lent.rows = self._copies.take(len(lent.places))
        self._in_threads(partial(kernels.take_rows, self._rows), lent.places, lent.rows)
        return lent.rows

    def settle(self, lent: Lent) -> None:
        """Keeps what training made of the rows and starts to push the difference."""
        self._in_threads(partial(kernels.settle_rows, self._rows), lent.places, lent.rows)
        self.wait()  # it had all of this block's training to arrive
        differences = lent.rows[:, : self._dim]
        push = self._worker.push_async(self._table, lent.keys, differences)
        self._pushes.append((push, lent.rows))

    def wait(self) -> None:
        """Waits for the last push."""
        for push, rows in self._pushes:
            push.wait()
            self._copies.give(rows)
        self._pushes = []

    def _take(self, n: int) -> Ids:
        """Free places; if there are too few, forgets what three blocks do not use, then grows."""
        if n > len(self._free):
            stale = np.flatnonzero((self._used_in < self._block - 2) & (self._id_at >= 0))
            self._place_of[self._id_at[stale]] = -1
            self._id_at[stale] = -1
            self._free = np.concatenate((self._free, stale.astype(np.int32)))
        if n > len(self._free):
            room = len(self._id_at)
            more = n - len(self._free) + n // 8
            self._free = np.append(self._free, np.arange(room, room + more, dtype=np.int32))
            self._id_at = np.append(self._id_at, np.full(more, -1, np.int32))
            self._used_in = np.append(self._used_in, np.zeros(more, np.int32))
        taken, self._free = self._free[:n], self._free[n:]
        return taken
