"""Rows of a cluster: from a bounded cache if they are young enough, else from the servers.

    keys -> RowCache.find -> fresh rows; other keys -> LiveRows.pull -> rows, RowCache.put

Owns when a row is young enough.  Thread-safe: the lock is held while the cache is read or written,
never during a pull, so a slow server does not delay lookups that the cache answers.  Must not know
connections (`reader.LiveRows`).
"""

from __future__ import annotations

import math
import numbers
import threading
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from snailps.api.tables import Keys, Rows, Table
from snailps.dataclass import dataclass
from snailps.errors import ConfigError, SnailError
from snailps.serving._row_cache import FRESH, NOT_THERE, RowCache
from snailps.serving.row_reader import POLICIES, Lack

TICK_S = 0.01
"""Unit of the times in the cache: the precision of `max_age_s`."""


@dataclass(frozen=True, slots=True)
class ReaderStats:
    """Counts of a reader since it was made.

    Attributes
    ----------
    keys : int
        Keys that were looked up, repeated ones included.
    hits : int
        Keys answered by a cached row that was young enough.
    pulled : int
        Rows pulled from servers.
    stale : int
        Keys answered by a row older than `max_age_s`, because its server could not be reached.
    first : int
        Keys answered by the first value, because their server could not be reached and the cache
        did not have the row.
    evicted : int
        Rows that made room for others in the cache.
    rows, bytes : int
        Rows in the cache now; memory of the full cache.
    """

    keys: int
    hits: int
    pulled: int
    stale: int
    first: int
    evicted: int
    rows: int
    bytes: int


class LiveRows(Protocol):
    """The interface of `reader.LiveRows`."""

    @property
    def table(self) -> Table:
        """The declaration of the table, in the cluster that was joined last."""

    def joins(self) -> int:
        """Number of times that the cluster was joined; rows from earlier joins count as old."""

    def pull(self, keys: Keys, rows: Rows) -> tuple[NDArray[np.bool_], SnailError | None]:
        """Pull rows; return which have come, and why others have not."""


class CachedRows:
    """A `RowSource` that puts a cache before the rows of a cluster; options as in `reader`."""

    def __init__(
        self,
        live: LiveRows,
        *,
        cache_bytes: int,
        max_age_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._live, self._clock = live, clock
        self._max_age_s = math.inf if max_age_s is None else max_age_s
        self._cache_bytes = cache_bytes
        self._cache = RowCache(self.table.words, cache_bytes)
        self._lock = threading.Lock()
        self._begun_s = clock()
        self._joins, self._floor = live.joins(), 1
        self._keys = self._hits = self._pulled = 0

    @property
    def table(self) -> Table:
        return self._live.table

    def find(self, keys: Keys, rows: Rows) -> Lack | None:
        lack, fresh, joins = self._find(keys, rows)
        if fresh and joins != self._live.joins():  # what counted as fresh is of the cluster before
            lack, _, _ = self._find(keys, rows)
        return lack

    def _find(self, keys: Keys, rows: Rows) -> tuple[Lack | None, int, int]:
        """Answer from cache and servers; also how many rows were fresh, and after which join."""
        with self._lock:
            # The age of a row counts from its request, as a push may have changed it before the
            # answer.
            # Read under the lock: no row of an earlier cluster may be younger than the floor.
            now = self._now()
            joins = self._live.joins()
            if joins != self._joins:
                self._joins, self._floor = joins, now + 1
            if rows.shape[1] != self._cache.dim:  # the next cluster's table has another width
                self._cache = RowCache(rows.shape[1], self._cache_bytes)
            oldest = self._floor
            if self._max_age_s < math.inf:
                # One tick more, because both times are rounded down: with 0 s nothing is fresh.
                oldest = max(oldest, now + 1 - int(self._max_age_s / TICK_S))
            states, fresh = self._cache.find(keys, oldest, rows)
            self._keys += len(keys)
            self._hits += fresh
        lack = self._fetch(keys, states, rows, now, joins) if fresh < len(keys) else None
        return lack, fresh, joins

    def _now(self) -> int:
        return 1 + int((self._clock() - self._begun_s) / TICK_S)

    def _fetch(
        self, keys: Keys, states: NDArray[np.uint8], rows: Rows, now: int, joins: int
    ) -> Lack | None:
        """Pull the rows that are not fresh, each key once; return what could not be answered."""
        lacking = np.flatnonzero(states != FRESH)
        wanted, places = np.unique(keys[lacking], return_inverse=True)
        pulled = np.empty((len(wanted), rows.shape[1]), np.float32)
        come, why = self._live.pull(wanted, pulled)
        all_come = bool(come.all())
        with self._lock:
            arrived = (wanted, pulled) if all_come else (wanted[come], pulled[come])
            # If the cluster was joined again meanwhile, these rows may be of the earlier cluster:
            # in the cache they would look as young as rows of the new one.
            if joins == self._live.joins() and self._cache.dim == rows.shape[1]:
                self._cache.put(*arrived, now)
            self._pulled += len(arrived[0])
        if all_come:
            rows[lacking] = pulled[places]
            return None
        answered = come[places]
        rows[lacking[answered]] = pulled[places[answered]]
        unanswered = lacking[~answered]
        new = unanswered[states[unanswered] == NOT_THERE]
        return Lack(new, len(unanswered) - len(new), why)

    def clear(self) -> None:
        """Empty the cache; rows of pulls that are under way will count as old."""
        with self._lock:
            self._cache.clear()
            self._floor = self._now() + 1

    def stats(self, stale: int, first: int) -> ReaderStats:
        with self._lock:
            return ReaderStats(
                self._keys, self._hits, self._pulled, stale, first,
                self._cache.evicted, self._cache.rows, self._cache.bytes,
            )  # fmt: skip


def seconds(name: str, given: object) -> float:
    """Return an option of seconds as a float; ConfigError if it is no number."""
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        raise ConfigError(f"{name}: expected a number of seconds, got {given!r:.60}")
    return float(given)


def check_options(cache_bytes: int, max_age_s: float | None, unreachable: str) -> None:
    """Raise ConfigError for wrong options of a reader, before it connects."""
    if unreachable not in POLICIES:
        raise ConfigError(f"unreachable: expected {', '.join(POLICIES)}, got {unreachable!r}")
    if (
        isinstance(cache_bytes, bool)
        or not isinstance(cache_bytes, numbers.Integral)
        or cache_bytes < 0
    ):
        raise ConfigError(f"cache_bytes: expected a whole number from 0, got {cache_bytes!r}")
    if max_age_s is not None and not seconds("max_age_s", max_age_s) >= 0:
        raise ConfigError(f"max_age_s: expected seconds from 0, or None, got {max_age_s!r}")
