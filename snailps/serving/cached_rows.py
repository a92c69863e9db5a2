"""Rows by key for serving: from a bounded cache where they are young enough, else from a source.

    keys -> RowCache.find -> what is fresh; the rest -> RowSource.pull -> rows, RowCache.put
                          -> what the source does not give: an older row, a first value, an error

Thread-safe.  The policy for losses is here; how rows come is the source's business: no sockets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from snailps.api.tables import AnyKeys, Keys, Rows, Table
from snailps.errors import ConfigError, MisuseError, SnailError
from snailps.serving._row_cache import FRESH, NOT_THERE, RowCache
from snailps.serving.first_values import FirstValues

TICK_S = 0.01
"""Unit of the times in the cache."""
Unreachable = Literal["error", "stale", "first"]
POLICIES = ("error", "stale", "first")


@dataclass(frozen=True, slots=True)
class ReaderStats:
    """Counts of a reader since it was made.

    Attributes
    ----------
    keys : int
        Looked up.
    hits : int
        Of those, answered by a row of the cache that was young enough.
    pulled : int
        Rows that servers gave.
    stale : int
        Answered by a row older than `max_age_s`, as its server could not be reached.
    first : int
        Answered by the first value, as neither server nor cache had the row.
    evicted : int
        Rows that made room for others.
    rows, bytes : int
        Rows in the cache now; bytes that it takes when it is full.
    """

    keys: int
    hits: int
    pulled: int
    stale: int
    first: int
    evicted: int
    rows: int
    bytes: int


class RowSource(Protocol):
    """A source of rows; `table` is of its current life."""

    table: Table

    def pull(self, keys: Keys, rows: Rows) -> tuple[NDArray[np.bool_], SnailError | None]:
        """Fill `rows` within the source's limit: which keys (distinct) were read, why not all."""

    def life(self) -> int:
        """Number that grows when earlier rows are of another table and count as old."""


class CachedRows:
    """Look rows up in a cache, then at a source; options as of `reader`."""

    def __init__(
        self,
        source: RowSource,
        *,
        cache_bytes: int,
        max_age_s: float | None,
        unreachable: Unreachable,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_options(cache_bytes, max_age_s, unreachable)
        self._source, self.table = source, source.table
        self._max_age_s, self._unreachable, self._clock = max_age_s, unreachable, clock
        self._cache = RowCache(self.table.dim, cache_bytes)
        self._first = FirstValues(self.table) if unreachable == "first" else None
        self._lock = threading.Lock()
        self._begun_s = clock()
        self._life, self._floor = source.life(), 1
        self._keys = self._hits = self._pulled = self._stale = self._firsts = 0

    def pull(self, keys: AnyKeys, out: Rows | None = None) -> Rows:
        """`TableReader.pull`."""
        wanted = self.table.keys(keys)
        rows = self._room(len(wanted), out)
        # A row is as old as the request for it, not as the answer.
        now = self._now()
        with self._lock:
            life = self._source.life()
            if life != self._life:
                if self._first is not None and self._source.table != self.table:
                    self._first = FirstValues(self._source.table)
                self.table = self._source.table
                self._life, self._floor = life, now + 1
            oldest = self._floor
            if self._max_age_s is not None:
                # One tick more, as both times are rounded down: of 0 s, nothing is young enough.
                oldest = max(oldest, now + 1 - int(self._max_age_s / TICK_S))
            states, fresh = self._cache.find(np.ascontiguousarray(wanted), oldest, rows)
            self._keys += len(wanted)
            self._hits += fresh
        if fresh < len(wanted):
            self._fetch(wanted, states, rows, now, life)
        return rows

    def _now(self) -> int:
        return 1 + int((self._clock() - self._begun_s) / TICK_S)

    def _fetch(
        self, keys: Keys, states: NDArray[np.uint8], rows: Rows, now: int, life: int
    ) -> None:
        """Pull rows that are not fresh, each key once; fill missing ones by the policy."""
        lacking = np.flatnonzero(states != FRESH)
        wanted, places = np.unique(keys[lacking], return_inverse=True)
        found = np.empty((len(wanted), self.table.dim), np.float32)
        come, why = self._source.pull(wanted, found)
        all_come = bool(come.all())
        with self._lock:
            kept = (wanted, found) if all_come else (wanted[come], found[come])
            # One that was asked of another life would look as young as those of this one.
            if life == self._source.life():
                self._cache.put(*kept, now)
            self._pulled += len(kept[0])
        if all_come:
            rows[lacking] = found[places]
            return
        answered = come[places]
        rows[lacking[answered]] = found[places[answered]]
        left = lacking[~answered]
        new = left[states[left] == NOT_THERE]
        assert why is not None
        first = self._first
        if self._unreachable == "error" or (len(new) and first is None):
            raise why
        with self._lock:
            self._stale += len(left) - len(new)
            self._firsts += len(new)
        if len(new) and first is not None:
            rows[new] = first.pull(keys[new])

    def _room(self, n: int, out: Rows | None) -> Rows:
        if out is None:
            return np.empty((n, self.table.dim), np.float32)
        self.table.check_width(out, self.table.dim)
        if len(out) != n or not out.flags.c_contiguous or not out.flags.writeable:
            raise MisuseError(
                f"table {self.table.name!r}: out: expected a C-contiguous, writable array of "
                f"{n} rows, got shape {out.shape}"
            )
        return out

    def clear(self) -> None:
        """Empty the cache; rows of pulls in flight count as old."""
        with self._lock:
            self._cache.clear()
            self._floor = self._now() + 1

    def stats(self) -> ReaderStats:
        with self._lock:
            return ReaderStats(
                self._keys, self._hits, self._pulled, self._stale, self._firsts,
                self._cache.evicted, self._cache.rows, self._cache.bytes,
            )  # fmt: skip


def check_options(cache_bytes: int, max_age_s: float | None, unreachable: str) -> None:
    """Refuse wrong options of a reader before it connects."""
    if unreachable not in POLICIES:
        raise ConfigError(f"unreachable: expected {', '.join(POLICIES)}, got {unreachable!r}")
    if type(cache_bytes) is not int or cache_bytes < 0:
        raise ConfigError(f"cache_bytes: expected a whole number from 0, got {cache_bytes!r}")
    if max_age_s is not None and not max_age_s >= 0:
        raise ConfigError(f"max_age_s: expected seconds from 0, or None, got {max_age_s!r}")
