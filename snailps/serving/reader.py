"""A client that reads one table of a running cluster for serving, through a cache.

    reader(address, table) -> LiveRows: a driver that joins, and joins again
        -> CachedRows -> TableReader.pull

Asks the shards separately, so that a lost one delays its own keys alone.  It declares nothing and
pushes nothing; no torch.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.abi.key_hash import fragment_of
from snailps.api.tables import Keys, Rows, Table
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
from snailps.node.process import End
from snailps.serving.cached_rows import CachedRows, ReaderStats, check_options
from snailps.serving.row_reader import RowReader, Unreachable

CACHE_BYTES = 64 << 20
MAX_AGE_S = 60.0
LIMIT_S = 1.0
"""Seconds for a lookup that may be answered without a server."""
AGAIN_S = 1.0
"""How long a shard that did not answer is left alone, and between two attempts to join again."""
AGAIN_S_MAX = 60.0
"""The same between two joins, each twice as long after the one before, if no lookup was answered
in between and none lasted this long: each costs the cluster a number."""
_OTHER_TABLE, _SHUT_OUT = "table", "fenced"
"""Codes of refusals that each lookup would get; others are of one lookup."""


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
        Of the master, ``host:port``.
    table : str
        Name of the table.
    cache_bytes : int
        Memory of the cache; 0: none.
    max_age_s : float or None
        Older rows are pulled again.  None: never.
    unreachable : str
        A row whose server does not answer within `timeout_s`: ``error`` raises; ``stale`` takes the
        cached row of any age, else raises; ``first`` takes the cached row, else the first value.
    modules : collection of str
        With ``first``: modules that may be imported for the first values of a table with an access
        method of your own, which the cluster names.  Built-in ones need no entry.
    timeout_s : float, optional
        Limit of a lookup, seconds.  Default: `request_timeout` (60) for ``error``, else 1.
    secret_file, tls : str
        As in the files of the cluster's processes (docs/security.md).
    **settings
        Others of every process: ``init_timeout``, the limit of joining (10 s);
        ``request_timeout``.

    Returns
    -------
    TableReader

    Raises
    ------
    ConfigError
        A setting is wrong, or there is no such table: names those that there are.
    ClusterError
        Nothing listens there, or it does not take this process.

    Examples
    --------
    >>> rows = snailps.reader("node1:16831", "users", unreachable="stale")  # doctest: +SKIP
    >>> rows.pull([17, 4])  # doctest: +SKIP
    """
    check_options(cache_bytes, max_age_s, unreachable)
    source = LiveRows(
        address, table, timeout_s, patient=unreachable == "error", secret_file=secret_file, tls=tls,
        settings=settings,
    )  # fmt: skip
    try:
        rows = CachedRows(source, cache_bytes=cache_bytes, max_age_s=max_age_s)
        return TableReader(rows, source, unreachable, modules)
    except BaseException:
        source.close()
        raise


class TableReader(RowReader):
    """Rows of one table of a cluster, made by `snailps.reader`; a context manager.

    Thread-safe: threads share cache and connections.  Make readers after a fork.
    """

    def __init__(
        self, cached: CachedRows, live: LiveRows, unreachable: Unreachable, modules: Collection[str]
    ) -> None:
        super().__init__(cached, unreachable, modules)
        self._cached, self._live = cached, live
        self._finalizer = weakref.finalize(self, live.close)

    def __repr__(self) -> str:
        state = "connected" if self.connected else "not connected"
        return f"<reader of table {self.table.name!r}, rows of {self.table.dim}: {state}>"

    def __enter__(self) -> TableReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def connected(self) -> bool:
        """Whether the reader is joined; if not, it keeps trying."""
        return self._live.connected

    def stats(self) -> ReaderStats:
        """Counts of lookups and of the cache."""
        return self._cached.stats(self._stale, self._firsts)

    def clear(self) -> None:
        """Empty the cache."""
        self._cached.clear()

    def close(self) -> None:
        """Leave the cluster; later lookups raise."""
        self._finalizer()


class _Joined(Driver):
    """A driver that says when it has ended, and leaves once however often it is closed."""

    def __init__(self, settings: Any, ended: Callable[[], None]) -> None:
        super().__init__(settings)
        self._say_ended = ended
        self._leaving = threading.Lock()

    def join_again(self) -> None:
        """Like `join`, without the log lines on a long wait."""
        self._join(self.settings.init_timeout)

    def close(self) -> None:
        """Leaves the cluster; a fork of this process does not."""
        if self.is_own and self._leaving.acquire(blocking=False):
            with contextlib.suppress(SnailError):
                super().close()

    def on_end(self, end: End) -> None:
        super().on_end(end)
        self._say_ended()


class LiveRows:
    """Rows of one table of a running cluster, joined again after a loss; options as of `reader`.

    A `patient` lookup waits for its limit; others skip for `AGAIN_S` a shard that did not answer.
    """

    def __init__(
        self,
        address: str,
        table: str,
        timeout_s: float | None,
        *,
        patient: bool,
        secret_file: str,
        tls: str,
        settings: dict[str, Any],
    ) -> None:
        self._address, self._name = address, table
        limit_s = settings.pop("init_timeout", CONNECT_S)
        self._settings = driver_settings(
            address, "reader", secret_file=secret_file, tls=tls, timeout_s=limit_s, **settings
        )
        limit_s = self._settings.request_timeout if patient else LIMIT_S
        self.limit_s = limit_s if timeout_s is None else float(timeout_s)
        if not self.limit_s > 0:
            raise ConfigError(f"timeout_s: expected more than 0 seconds, got {timeout_s!r}")
        self._patient = patient
        self.closed = threading.Event()
        self._lost = threading.Event()
        self._joins = 0
        self._vain = 0  # joins in a row that were soon over, without an answered lookup
        self._joined_at = math.inf  # inf: the last attempt has failed
        self._why = ""  # it could not join again
        self._avoided: dict[int, float] = {}  # shard -> until when
        driver, number, self.table = self.join()
        self._joined = driver, number  # one object, so that a lookup takes both of one join
        self._keeper = threading.Thread(
            target=keep_joined, args=(weakref.ref(self), self._lost, self.closed),
            name="snailps-reader", daemon=True,
        )  # fmt: skip
        self._keeper.start()

    @property
    def connected(self) -> bool:
        return not (self.closed.is_set() or self._lost.is_set() or self._joined[0].ended.is_set())

    def joins(self) -> int:
        """Number of joins; rows of earlier ones are perhaps of another table, and count as old."""
        return self._joins

    def pull(self, keys: Keys, rows: Rows) -> tuple[NDArray[np.bool_], SnailError | None]:
        """Pull distinct keys from each shard that answers in time: which came, why not all."""
        come = np.zeros(len(keys), np.bool_)
        if self.closed.is_set():
            return come, ClusterError("this reader is closed")
        self._joined[0].check_process()
        until = time.monotonic() + self.limit_s
        if not self.connected and not self._wait_joined(until):
            return come, self._why_lost()
        driver, number = self._joined
        why: SnailError | None = None
        under_way = []
        for shard, places in self._by_shard(driver, keys):
            if not self._patient and self._avoided.get(shard, 0.0) > time.monotonic():
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
                rows[places] = pull.wait(max(0.0, until - time.monotonic()))
                come[places] = True
                self._vain = 0
                self._avoided.pop(shard, None)
            except SnailError as error:
                pull.abandon()
                why = self._note_loss(driver, shard, error)
        return come, why

    def _by_shard(self, driver: Driver, keys: Keys) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """(shard, places of its keys)."""
        route = driver.route
        owner = route.owner[fragment_of(keys, route.frag_num)]
        order = np.argsort(owner, kind="stable")
        shards, begins = np.unique(owner[order], return_index=True)
        for shard, places in zip(shards, np.split(order, begins[1:]), strict=True):
            yield int(shard), places

    def _note_loss(self, driver: Driver, shard: int, error: SnailError) -> SnailError:
        if isinstance(error, WaitTimeout):
            self._avoided[shard] = time.monotonic() + AGAIN_S
        elif isinstance(error, RemoteError) and error.code not in (_OTHER_TABLE, _SHUT_OUT):
            pass  # this lookup alone is refused
        elif driver is self._joined[0]:  # the client has ended, or the table is another one
            self._lost.set()
        return error

    def _why_lost(self) -> ClusterError:
        driver, _ = self._joined
        why = driver.verdict.text if driver.ended.is_set() else "its connections were lost"
        again = f"; joining again: {self._why}" if self._why else ""
        return ClusterError(f"the cluster at {self._address} is out of reach: {why}{again}")

    def _wait_joined(self, until: float) -> bool:
        """Whether the cluster is joined; a patient lookup waits for it."""
        while self._patient and not self.connected and not self.closed.is_set():
            left_s = until - time.monotonic()
            if left_s <= 0:
                break
            self.closed.wait(min(left_s, AGAIN_S / 20))
        return self.connected

    def join(self, again: bool = False) -> tuple[_Joined, int, Table]:
        """Driver, table number and declaration."""
        driver = _Joined(self._settings, self._lost.set)
        try:
            if again:
                driver.join_again()
            else:
                driver.join()
            until = time.monotonic() + self._settings.init_timeout
            while not driver.routed.wait(AGAIN_S / 10):
                if self.closed.is_set() or time.monotonic() > until:
                    raise ClusterError(f"the cluster at {self._address} is not complete yet")
            if driver.ended.is_set():
                raise ClusterError(driver.verdict.text)
            found = driver.all_tables()
        except (WaitTimeout, ConnectionLost, ProtocolError, RemoteError) as error:
            driver.close()
            raise ClusterError(f"no cluster at {self._address}: {error}") from None
        except BaseException:
            driver.close()
            raise
        if self._name not in found:
            driver.close()
            there = ", ".join(sorted(found)) or "none"
            raise ConfigError(
                f"no table {self._name!r} in the cluster at {self._address}: there are {there}"
            )
        return driver, *found[self._name]

    def renew(self) -> None:
        """Leave the lost cluster, whose master waits for that, and try once to join again."""
        self._joined[0].close()
        if time.monotonic() - self._joined_at > AGAIN_S_MAX:
            self._vain = 0
        pause_s = min(AGAIN_S * 2.0 ** (self._vain - 1), AGAIN_S_MAX) if self._vain else 0.0
        if self.closed.wait(pause_s):
            return
        self._vain, self._joined_at = self._vain + 1, math.inf
        try:
            driver, number, table = self.join(again=True)
        except ClusterError:  # nobody took it
            self._vain -= 1
            raise
        if table.dim != self.table.dim:
            driver.close()
            raise ConfigError(
                f"table {table.name!r} has rows of {table.dim} now, it had {self.table.dim}"
            )
        self._joined, self.table, self._why = (driver, number), table, ""
        self._joins, self._joined_at = self._joins + 1, time.monotonic()
        self._avoided.clear()
        self._lost.clear()
        if driver.ended.is_set() or self.closed.is_set():
            self._lost.set()
        if self.closed.is_set():  # while this joined: `close` has seen the old driver alone
            driver.close()

    def close(self) -> None:
        self.closed.set()
        self._lost.set()
        self._joined[0].close()


def keep_joined(
    rows_ref: weakref.ref[LiveRows], lost: threading.Event, closed: threading.Event
) -> None:
    """Join again after each loss, until the reader is closed or dropped (a thread's body)."""
    while True:
        lost.wait()
        rows = rows_ref()
        if closed.is_set() or rows is None:
            return
        try:
            rows.renew()
        except Exception as error:  # also for want of descriptors or threads
            rows._why = explain(error)
            closed.wait(AGAIN_S)
        del rows
