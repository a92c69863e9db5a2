"""Reads one table of a running cluster for serving, through a cache; rejoins after a loss.

    reader(address, table) -> LiveRows: a driver that joins, and joins again
        -> CachedRows -> TableReader.pull

Each shard is asked separately, so that a lost shard delays only its own keys.  A reader declares no
table and pushes nothing.  Must not know PyTorch.

Threads: any number of threads call `pull`; one, the keeper, joins again after a loss.  `_joined` is
replaced as one object, so that a lookup never combines the connections of one cluster with the
table of another.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.abi.key_hash import fragment_of
from snailps.api.tables import AnyKeys, Keys, Rows, Table
from snailps.errors import (
    ClusterError,
    ConfigError,
    ConnectionLost,
    ProtocolError,
    RemoteError,
    SnailError,
    WaitTimeout,
    explain,
)
from snailps.local.cluster import CONNECT_S, driver_settings
from snailps.local.driver import Driver
from snailps.node.process import ProcessEnd
from snailps.serving.cached_rows import CachedRows, ReaderStats, check_options, seconds
from snailps.serving.row_reader import RowReader, Unreachable
from snailps.transport._awake import awake_s

CACHE_BYTES = 64 << 20
MAX_AGE_S = 60.0
LIMIT_S = 1.0
"""Default limit in seconds of a lookup that can be answered without a server."""
AGAIN_S = 1.0
"""How long a shard that did not answer is not asked, and the pause between attempts to rejoin."""
AGAIN_S_MAX = 60.0
"""Longest pause between two joins.  The pause doubles after each join that was lost before a lookup
was answered: every join uses up an incarnation of the cluster, and makes work for its master."""
_OTHER_TABLE, _SHUT_OUT = "table", "fenced"
"""Codes of refusals that every further lookup would get too; other refusals concern one lookup."""


def reader(
    address: str,
    table: str,
    *,
    cache_bytes: int = CACHE_BYTES,
    max_age_s: float | None = MAX_AGE_S,
    unreachable: Unreachable = "error",
    modules: Collection[str] = (),
    timeout_s: float | None = None,
    secret_file: str = "",
    tls: str = "",
    **settings: Any,
) -> TableReader:
    """Read a table of a running cluster by key, through a bounded cache.

    Parameters
    ----------
    address : str
        The master's ``host:port``.
    table : str
        Name of the table.
    cache_bytes : int
        Memory of the cache in bytes, 64 MiB by default; 0: no cache.
    max_age_s : float or None
        Cached rows older than this many seconds are pulled again; None: never.
    unreachable : {"error", "stale", "first"}
        What `pull` returns for a row whose server does not answer within `timeout_s`.  "error":
        it raises.  "stale": the cached row of any age, else it raises.  "first": the cached row
        of any age, else the first value.
    modules : collection of str
        With "first": Python modules that may be imported for the access method of the table, which
        the cluster names.  Built-in methods need no entry.
    timeout_s : float, optional
        Limit of a lookup in seconds.  By default 1, or with "error" `request_timeout` (60).
    secret_file, tls : str
        As in the settings of the cluster's processes (docs/security.md).
    **settings
        Other settings of every process: ``init_timeout`` (limit of joining, 10 s by default),
        ``request_timeout``.

    Returns
    -------
    TableReader

    Raises
    ------
    ConfigError
        A setting is wrong, or there is no such table; the text lists the tables.
    ClusterError
        Nothing listens at the address, or the cluster refuses this process.

    Examples
    --------
    >>> rows = snailps.reader("node1:16831", "users", unreachable="stale")  # doctest: +SKIP
    >>> rows.pull([17, 4])  # doctest: +SKIP
    """
    check_options(cache_bytes, max_age_s, unreachable)

    def choose(tables: Tables, before: Table | None) -> tuple[int, Table]:
        if table not in tables:
            there = ", ".join(sorted(tables)) or "none"
            raise ConfigError(f"no table {table!r} in the cluster at {address}: there are {there}")
        number, chosen = tables[table]
        # Callers have arrays of the other width, or type.
        if before is not None and (chosen.dim, chosen.dtype) != (before.dim, before.dtype):
            raise ConfigError(
                f"table {table!r} has rows of {chosen.dim} {chosen.dtype} now, it had {before.dim} "
                f"{before.dtype}: make another reader"
            )
        return number, chosen

    source = LiveRows(
        address, choose, timeout_s, caller="reader", patient=unreachable == "error",
        secret_file=secret_file, tls=tls, settings=settings,
    )  # fmt: skip
    try:
        rows = CachedRows(source, cache_bytes=cache_bytes, max_age_s=max_age_s)
        return TableReader(rows, source, unreachable, modules)
    except BaseException:
        source.close()
        raise


class FromCluster:
    """Reads a running cluster through `live`; leaves it at the end of a block, or when dropped."""

    def __init__(self, live: LiveRows) -> None:
        self._live, self._process = live, os.getpid()
        self._finalizer = weakref.finalize(self, live.close)

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def connected(self) -> bool:
        """Whether the cluster is joined; if not, joining is tried again and again."""
        return os.getpid() == self._process and self._live.connected

    def close(self) -> None:
        """Leave the cluster; later lookups raise, whatever the cache has."""
        self._finalizer()

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise ClusterError(f"this {type(self).__name__} is closed: make another one")
        if os.getpid() != self._process:
            # No thread of a fork joins again, so rows that it has would be served for ever.
            raise ClusterError(
                f"this {type(self).__name__} belongs to process {self._process}, of which this one "
                "is a fork: make one in this process"
            )


C = TypeVar("C", bound=FromCluster)


class TableReader(FromCluster, RowReader):
    """The rows of one table of a running cluster; `snailps.reader` makes one.

    A context manager that leaves the cluster at the end.  Thread-safe: threads share cache and
    connections.  A process that forks must make its readers afterwards.

    Examples
    --------
    >>> with snailps.reader("node1:16831", "users") as rows:  # doctest: +SKIP
    ...     vectors = rows.pull([17, 4])
    ...     print(rows.stats().hits, rows.connected)
    """

    def __init__(
        self, cached: CachedRows, live: LiveRows, unreachable: Unreachable, modules: Collection[str]
    ) -> None:
        RowReader.__init__(self, cached, unreachable, modules)
        FromCluster.__init__(self, live)
        self._cached = cached

    def __repr__(self) -> str:
        state = "connected" if self.connected else "not connected"
        return f"<reader of table {self.table.name!r}, rows of {self.table.dim}: {state}>"

    def pull(self, keys: AnyKeys, out: Rows | None = None) -> Rows:
        self._check_open()
        return super().pull(keys, out)

    pull.__doc__ = RowReader.pull.__doc__

    def stats(self) -> ReaderStats:
        """Return counts of lookups and of the cache."""
        return self._cached.stats(self._stale, self._firsts)

    def clear(self) -> None:
        """Empty the cache, so that the next lookups ask the servers."""
        self._cached.clear()


class _JoinedDriver(Driver):
    """A driver that calls `ended` when it ends, and leaves once however often it is closed."""

    def __init__(self, settings: Any, ended: Callable[[], None]) -> None:
        super().__init__(settings)
        self._say_ended = ended
        self._leaving = threading.Lock()

    def join_again(self) -> None:
        """Join like `join`, but without log lines about a long wait."""
        self._join(self.settings.init_timeout)

    def close(self) -> None:
        """Leave the cluster, unless this process is a fork of the one that joined."""
        if self.is_own and self._leaving.acquire(blocking=False):
            with contextlib.suppress(SnailError):
                super().close()

    def on_end(self, end: ProcessEnd) -> None:
        super().on_end(end)
        self._say_ended()


Tables = Mapping[str, tuple[int, Table]]
"""Number and declaration of each table of a cluster."""


class TableMembership(NamedTuple):
    """This process as a member of a cluster, the table that is read, and the joins before."""

    driver: _JoinedDriver
    number: int
    table: Table
    joins: int


class LiveRows:
    """Pulls rows of one table of a running cluster, and rejoins after a loss.

    Options are as in `reader`; errors about them name `caller`.  ``choose(tables, table before)``
    gives number and declaration of the table at each join; ConfigError: there is none.  A `patient`
    lookup waits until its limit, for a lost shard and for the next join; others skip a shard that
    did not answer for `AGAIN_S`, since they can be answered without it.  `driver` asks for more
    than rows.

    The keeper thread alone writes `_joined`; lookups set `_lost` to wake it.
    """

    def __init__(
        self,
        address: str,
        choose: Callable[[Tables, Table | None], tuple[int, Table]],
        timeout_s: float | None,
        *,
        caller: str,
        patient: bool,
        secret_file: str,
        tls: str,
        settings: dict[str, Any],
    ) -> None:
        self._address, self._choose = address, choose
        limit_s = settings.pop("init_timeout", CONNECT_S)
        self._settings = driver_settings(
            address, caller, secret_file=secret_file, tls=tls, timeout_s=limit_s, **settings
        )
        limit_s = self._settings.request_timeout if patient else LIMIT_S
        self.limit_s = limit_s if timeout_s is None else seconds("timeout_s", timeout_s)
        if not self.limit_s > 0:
            raise ConfigError(f"timeout_s: expected more than 0 seconds, got {timeout_s!r}")
        self._patient = patient
        self.closed = threading.Event()
        self._lost = threading.Event()
        self._vain = 0  # joins in a row that were lost before a lookup was answered
        self._joined_at = math.inf  # inf: the last attempt failed
        self._why = ""  # why the last attempt to join again failed
        self._why_left = ""  # why this process leaves the cluster that it joined last
        self._avoided: dict[int, float] = {}  # shard -> time until which it is not asked
        self._joined = TableMembership(
            *self.join(), 0
        )  # one object: a lookup takes all of one join
        self._keeper = threading.Thread(
            target=keep_joined, args=(weakref.ref(self), self._lost, self.closed),
            name="snailps-reader", daemon=True,
        )  # fmt: skip
        try:
            self._keeper.start()
        except BaseException:  # this process can have no more threads
            self._joined.driver.close()
            raise

    @property
    def driver(self) -> Driver:
        """The member of the cluster that was joined last."""
        return self._joined.driver

    @property
    def table(self) -> Table:
        return self._joined.table

    @property
    def connected(self) -> bool:
        return not (
            self.closed.is_set() or self._lost.is_set() or self._joined.driver.ended.is_set()
        )

    def joins(self) -> int:
        """Number of rejoins.  Rows from before may be of another table, so they count as old."""
        return self._joined.joins

    def pull(self, keys: Keys, rows: Rows) -> tuple[NDArray[np.bool_], SnailError | None]:
        """Pull distinct keys; return which rows came in time, and why not all.

        A patient lookup that meets the loss of its cluster asks the next one, for all keys.
        """
        if self.closed.is_set():
            return np.zeros(len(keys), np.bool_), ClusterError("this reader is closed")
        self._joined.driver.check_process()
        until = awake_s() + self.limit_s
        while True:
            joined = self._joined
            come, why = self._asked(joined, keys, rows, until)
            if why is None or (joined is self._joined and self.connected):
                return come, why
            if not self._wait_joined(until):
                return come, self._why_lost()

    def _asked(
        self, joined: TableMembership, keys: Keys, rows: Rows, until: float
    ) -> tuple[NDArray[np.bool_], SnailError | None]:
        """Pull from one cluster, as `pull` does.

        All shards are asked before the first answer is awaited, and all share one deadline.
        """
        come = np.zeros(len(keys), np.bool_)
        driver, number, table, _ = joined
        if not self.connected:
            return come, self._why_lost()
        if rows.shape[1] != table.words:
            return come, ClusterError(
                f"table {table.name!r} has rows of {table.dim} now: ask again"
            )
        why: SnailError | None = None
        under_way = []
        for shard, places in self._by_shard(driver, keys):
            if not self._patient and self._avoided.get(shard, 0.0) > awake_s():
                why = why or WaitTimeout(f"shard {shard} has not answered just now")
                continue
            part = np.empty((len(places), rows.shape[1]), np.float32)
            try:
                under_way.append(
                    (shard, places, driver.client.pull_async(number, keys[places], part))
                )
            except SnailError as error:
                why = self._note_loss(driver, shard, error)
        for shard, places, pull in under_way:
            try:
                rows[places] = pull.wait(max(0.0, until - awake_s()))
                come[places] = True
                self._vain = 0
                self._avoided.pop(shard, None)
            except SnailError as error:
                pull.abandon()
                why = self._note_loss(driver, shard, error)
        return come, why

    def _by_shard(self, driver: Driver, keys: Keys) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield each shard with the indices of its keys."""
        route = driver.route
        owner = route.owner[fragment_of(keys, route.frag_num)]
        order = np.argsort(owner, kind="stable")
        shards, begins = np.unique(owner[order], return_index=True)
        for shard, places in zip(shards, np.split(order, begins[1:]), strict=True):
            yield int(shard), places

    def _note_loss(self, driver: Driver, shard: int, error: SnailError) -> SnailError:
        """Decide by an error whether to avoid the shard or to rejoin; return the error."""
        if isinstance(error, WaitTimeout):
            self._avoided[shard] = awake_s() + AGAIN_S
        elif isinstance(error, RemoteError) and error.code not in (_OTHER_TABLE, _SHUT_OUT):
            pass  # only this lookup is refused
        else:
            if isinstance(error, RemoteError) and error.code == _OTHER_TABLE:
                error = ClusterError(
                    f"the cluster at {self._address} has dropped its table "
                    f"{self.table.name!r}: the next job of the session has begun"
                )
            if driver is self._joined.driver:  # else of a driver that is already replaced
                self._why_left = str(error)
                self._lost.set()
        return error

    def _why_lost(self) -> ClusterError:
        driver = self._joined.driver
        why = self._why_left
        if not why:
            why = driver.verdict.text if driver.ended.is_set() else "its connections were lost"
        again = f"; joining again: {self._why}" if self._why else ""
        return ClusterError(f"the cluster at {self._address} is out of reach: {why}{again}")

    def _wait_joined(self, until: float) -> bool:
        """Return whether the cluster is joined; a patient lookup waits for that until its limit."""
        while self._patient and not self.connected and not self.closed.is_set():
            remaining_s = until - awake_s()
            if remaining_s <= 0:
                break
            self.closed.wait(min(remaining_s, AGAIN_S / 20))
        return self.connected

    def join(self, again: bool = False) -> tuple[_JoinedDriver, int, Table]:
        """Join the cluster; return the driver, the table's number and its declaration."""
        driver = _JoinedDriver(self._settings, self._lost.set)
        try:
            if again:
                driver.join_again()
            else:
                driver.join()
            until = awake_s() + self._settings.init_timeout
            while not driver.routed.wait(AGAIN_S / 10):
                if self.closed.is_set() or awake_s() > until:
                    raise ClusterError(f"the cluster at {self._address} is not complete yet")
            if driver.ended.is_set():
                raise ClusterError(driver.verdict.text)
            before = self.table if again else None
            return driver, *self._choose(driver.all_tables(), before)
        except (WaitTimeout, ConnectionLost, ProtocolError, RemoteError) as error:
            driver.close()
            raise ClusterError(f"no cluster at {self._address}: {error}") from None
        except BaseException:
            driver.close()
            raise

    def renew(self) -> None:
        """Leave the lost cluster, whose master waits for that, and try once to join again.

        Only the keeper thread calls it.
        """
        self._joined.driver.close()
        if awake_s() - self._joined_at > AGAIN_S_MAX:
            self._vain = 0
        pause_s = min(AGAIN_S * 2.0 ** (self._vain - 1), AGAIN_S_MAX) if self._vain else 0.0
        if self.closed.wait(pause_s):
            return
        self._vain, self._joined_at = self._vain + 1, math.inf
        try:
            joined = TableMembership(*self.join(again=True), self.joins() + 1)
        except ClusterError:  # not joined, so the cluster gave no incarnation
            self._vain -= 1
            raise
        self._joined, self._why, self._why_left = joined, "", ""
        self._joined_at = awake_s()
        self._avoided.clear()
        self._lost.clear()
        # `clear` may have undone a `set` for this very driver: look again.
        if joined.driver.ended.is_set() or self.closed.is_set():
            self._lost.set()
        if self.closed.is_set():  # `close` ran while this joined, and closed only the old driver
            joined.driver.close()

    def close(self) -> None:
        self.closed.set()
        self._lost.set()
        self._joined.driver.close()


def keep_joined(
    rows_ref: weakref.ref[LiveRows], lost: threading.Event, closed: threading.Event
) -> None:
    """Join again after each loss until the reader is closed; the keeper thread's body.

    It has only a weak reference, so that a reader that is dropped without `close` is collected; its
    finalizer then sets both events.
    """
    while True:
        lost.wait()
        rows = rows_ref()
        if closed.is_set() or rows is None:
            return
        try:
            rows.renew()
        except Exception as error:  # of any kind: a lack of descriptors or threads may pass
            rows._why = explain(error)
            closed.wait(AGAIN_S)
        del rows  # before the next wait, else the reader would live as long as this thread
