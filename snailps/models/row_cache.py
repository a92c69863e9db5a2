"""Rows of one table cached at the only worker of a job, where pulled rows stay valid.

    keys of a block -> find, ask: a place each; keys without one -> PULL
    places -> ready: rows to train where they lie -> changes, every few blocks -> PUSH

A row is pulled once and not with every block; a row that several blocks change between two pushes
is pushed once.  When a second worker joins, the model pushes `changes` and drops the cache.  Two
numberings give places: `KeyPlaces` for any keys, until it is full; `IdPlaces` for small ids, with
eviction.  No optimizer, no text.

Invariants
----------
* `find` and `ask` for a later block may run in other threads while a block trains: they write
  places, rows are written by the training thread only (`ready`).
* `find` may run in several threads at once (`KeyPlaces`), but not while `ask` does.  Blocks are
  asked for, and trained, in one order.
* A pull goes ahead of pushes in flight: these have no part in rows that have no place yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.worker import Pending
from snailps.data._key_numbering import KeptNumbers
from snailps.models.local_sgd import Floats, Keys, LocalSgd

CACHE_BYTES = 512 << 20
"""Memory of one table's cached rows and their numbering: 8.5 million features of a linear model
with FTRL, 1.2 million rows of 100 columns."""
KEY_BYTES = 51
"""Memory of a key in `KeyPlaces`: itself, and its part of the hash table at its emptiest."""

Ids = NDArray[np.int32]


@dataclass(slots=True)
class Found:
    """Places of some keys of a block.

    Attributes
    ----------
    keys : numpy.ndarray
        uint64 of `KeyPlaces`, int32 ids of `IdPlaces`.
    places : numpy.ndarray
        int32, one a key; -1 where it has none yet, until `RowCache.ask`.
    missing : numpy.ndarray
        int32: indices of those.
    touched : numpy.ndarray
        int32: places that no block since the last push has used.
    """

    keys: NDArray[Any]
    places: Ids
    missing: Ids
    touched: Ids


class KeyPlaces:
    """A numbering of any keys: consecutive places, which they keep.

    Parameters
    ----------
    room : int
        Places there are.
    """

    consecutive = True

    def __init__(self, room: int) -> None:
        self.room = min(max(1, room), (1 << 30) - 1)
        self._numbers = KeptNumbers(self.room)
        self.begin_round = self._numbers.begin_round

    def find(self, keys: Keys) -> Found:
        """Places of keys, which count as touched; several threads may call it."""
        return Found(keys, *self._numbers.find(keys))

    def number(self, found: Sequence[Found]) -> tuple[Keys, Ids] | None:
        """Gives the missing keys of a block places; keys, places, or None if there is no room."""
        first = len(self._numbers)
        parts = [self._numbers.number(one.keys, one.missing, one.places) for one in found]
        if not all(fits for _, fits in parts):
            return None
        new = np.concatenate([keys for keys, _ in parts])
        return new, np.arange(first, first + len(new), dtype=np.int32)


class IdPlaces:
    """A numbering of ids from 0 on, with eviction; a round is the time between two pushes.

    If there is no free place, ids are evicted that the last three rounds did not touch: their
    pushes have arrived, because a push starts only when the one before it is done.  If that is not
    enough, `room` grows.

    Parameters
    ----------
    id_num : int
        Ids are below it; takes 4 bytes each.
    room : int
        Places there are at first.
    key_of : callable
        Ids -> the table's keys.
    """

    consecutive = False

    def __init__(self, id_num: int, room: int, key_of: Callable[[Ids], Keys]) -> None:
        self.room = max(1, min(id_num, room))
        self._key_of = key_of
        self._place_of = np.full(id_num, -1, np.int32)
        # By place: its id, and the last round that touched it.
        self._id_at = np.full(self.room, -1, np.int32)
        self._round_at = np.zeros(self.room, np.int32)
        self._free = np.arange(self.room, dtype=np.int32)
        self._round = 1

    def begin_round(self) -> None:
        """Every place counts as not touched."""
        self._round += 1

    def find(self, ids: Ids) -> Found:
        """Places of different ids, which count as touched."""
        places = self._place_of[ids]
        known = places[places >= 0]
        touched = known[self._round_at[known] < self._round]
        self._round_at[touched] = self._round
        return Found(ids, places, np.flatnonzero(places < 0).astype(np.int32), touched)

    def number(self, found: Sequence[Found]) -> tuple[Keys, Ids]:
        """Gives the missing ids of a block places; keys, places."""
        (one,) = found
        ids = one.keys[one.missing]
        taken = self._take(len(ids))
        one.places[one.missing] = taken
        self._place_of[ids] = taken
        self._id_at[taken] = ids
        self._round_at[taken] = self._round
        return self._key_of(ids), taken

    def _take(self, n: int) -> Ids:
        """Free places: evicts ids, then adds places, if there are too few."""
        if n > len(self._free):
            stale = np.flatnonzero((self._round_at < self._round - 2) & (self._id_at >= 0))
            self._place_of[self._id_at[stale]] = -1
            self._id_at[stale] = -1
            self._free = np.concatenate((self._free, stale.astype(np.int32)))
        if n > len(self._free):
            more = n - len(self._free) + n // 8
            added = np.arange(self.room, self.room + more, dtype=np.int32)
            self._free = np.concatenate((self._free, added))
            self._id_at = np.concatenate((self._id_at, np.full(more, -1, np.int32)))
            self._round_at = np.concatenate((self._round_at, np.zeros(more, np.int32)))
            self.room += more
        taken, self._free = self._free[:n], self._free[n:]
        return taken


@dataclass(slots=True)
class CachedRows:
    """A block's rows in the cache.

    Attributes
    ----------
    row_num : int
        Places in use, this block's included.
    new : numpy.ndarray
        int32: places of rows that are being pulled.
    pull : Pending or None
        Of these.
    touched : numpy.ndarray
        int32: places that no block since the last push had used, the new ones included.
    closes : bool
        Whether a push is due after this block.
    keys : numpy.ndarray
        uint64: the table's keys, by place.
    """

    row_num: int
    new: Ids
    pull: Pending | None
    touched: Ids
    closes: bool
    keys: Keys

    def abandon(self) -> None:
        """Cancels the pull."""
        if self.pull is not None:
            self.pull.abandon()


class RowCache:
    """Rows of one table at the only worker of a job.

    Parameters
    ----------
    sgd : LocalSgd
        Pulls the rows; its layout must not be split if rows have state.
    table : str
    places : KeyPlaces or IdPlaces
        The numbering; used by this cache only.
    push_blocks : int
        Blocks from push to push.
    """

    def __init__(
        self, sgd: LocalSgd, table: str, places: KeyPlaces | IdPlaces, *, push_blocks: int = 1
    ) -> None:
        self._sgd, self._table, self._push_blocks = sgd, table, push_blocks
        self._places = places
        self._row_num = 0
        # Pages of memory are taken when they are first written, so all of the room is cheap.
        self._rows = sgd.layout.make(places.room)
        self._keys = np.empty(places.room, np.uint64)
        self._blocks = 0
        # Since the last push: places, and their packed rows as they were.
        self._before: list[tuple[Ids, Floats]] = []

    def find(self, keys: NDArray[Any]) -> Found:
        """Places of keys of the next block."""
        return self._places.find(keys)

    def ask(self, found: Sequence[Found]) -> CachedRows | None:
        """Gives the missing keys of a block places and starts to pull their rows; None: no room.

        Parameters
        ----------
        found : sequence of Found
            All keys of the block; their places are completed.
        """
        numbered = self._places.number(found)
        if numbered is None:
            return None
        keys, new = numbered
        if self._places.room > len(self._keys):
            more = np.empty(self._places.room - len(self._keys), np.uint64)
            self._keys = np.concatenate((self._keys, more))
        self._keys[new] = keys
        self._row_num = max(self._row_num, int(new.max(initial=-1)) + 1)
        pull = self._sgd.pull_rows(self._table, keys) if len(new) else None
        touched = np.concatenate([*(one.touched for one in found), new])
        self._blocks += 1
        closes = self._blocks % self._push_blocks == 0
        if closes:
            self._places.begin_round()
        return CachedRows(self._row_num, new, pull, touched, closes, self._keys)

    def ready(self, cached: CachedRows) -> Floats:
        """Waits for a block's new rows; the rows of all places, to be trained where they lie."""
        layout, sgd = self._sgd.layout, self._sgd
        if cached.row_num > len(self._rows):
            rows = layout.make(self._places.room)
            rows[: len(self._rows)] = self._rows
            self._rows = rows
        if cached.pull is not None:
            pulled = cached.pull.wait()
            sgd.in_threads(self._put, cached.new, pulled)
            sgd.packed.give(pulled)
        before = sgd.packed.take(len(cached.touched))
        take = partial(kernels.take_rows, self._rows, dim=layout.dim, parts=layout.parts)
        sgd.in_threads(take, cached.touched, before)
        self._before.append((cached.touched, before))
        return self._rows[: cached.row_num]

    def _put(self, places: Ids, packed: Floats) -> None:
        """Writes packed rows to their places."""
        layout = self._sgd.layout
        if self._places.consecutive:
            first = int(places[0]) if len(places) else 0
            layout.load(packed, self._rows[first : first + len(places)])
        else:
            rows = self._rows.reshape(-1, layout.parts, layout.stride)
            rows[places, :, : layout.dim] = packed.reshape(-1, layout.parts, layout.dim)

    @property
    def changed(self) -> bool:
        """Whether a block was trained since `changes`."""
        return bool(self._before)

    def changes(self) -> tuple[Keys, Floats]:
        """Keys and packed deltas of the rows trained since the last call, to be pushed now."""
        sgd, layout = self._sgd, self._sgd.layout
        take = partial(kernels.take_changes, self._rows, dim=layout.dim, parts=layout.parts)
        for places, before in self._before:
            sgd.in_threads(take, places, before)
        if len(self._before) == 1:
            ((places, deltas),) = self._before
        else:
            places = np.concatenate([places for places, _ in self._before])
            deltas = sgd.packed.take(len(places))
            np.concatenate([before for _, before in self._before], out=deltas)
            for _, before in self._before:
                sgd.packed.give(before)
        self._before = []
        return self._keys[places], deltas
