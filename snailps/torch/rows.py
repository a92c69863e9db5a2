"""Where a module's rows come from: a cluster's session, or the tables of a model on workers.

    Table -> RowClient.declare;  keys -> pull_async -> rows;  keys, values -> push_async

`RowClient` is one interface with two implementations (and `serving.ServedRows`, read only).  A
module is bound to a client when it is made: inside `bound(...)` to that client, else to the cluster
that it is given, else to the cluster in effect.  Must not know tensors or autograd.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

from snailps.api.tables import Keys, Rows, Table
from snailps.api.traits import is_clocked
from snailps.api.worker import Worker
from snailps.errors import ConfigError, MisuseError
from snailps.local.cluster import default_cluster
from snailps.local.session import Cluster, within
from snailps.local.session_tables import LocalTable
from snailps.transport.client._client import Pending


class RowClient(Protocol):
    """The interface through which modules use the tables of one client."""

    @property
    def clocked(self) -> bool:
        """Whether rows belong to a step of a job (``bsp``), so a module's calls do not age them."""

    def declare(self, table: Table) -> None:
        """Declare a table; an equal declaration may be repeated."""

    def name(self, kind: str) -> str:
        """Make a name for a table without one, by the order of calls: ``embedding0``."""

    def has_rows(self, table: str) -> bool:
        """Whether a table has a stored row, declared or not; True if that cannot be known."""

    def pull_async(self, table: str, keys: Keys, out: Rows) -> Pending:
        """Start a pull into `out`, float32 (n, dim)."""

    def push_async(self, table: str, keys: Keys, values: Rows, factor: float) -> Pending:
        """Start a push; `factor` multiplies the step size of the table's optimizer."""

    def stored(self, table: str) -> Iterator[tuple[Keys, Rows]]:
        """Yield all stored rows with their optimizer state, in pieces."""

    def assign(self, table: str, keys: Keys, values: Rows) -> None:
        """Replace rows by these, with or without optimizer state."""

    def corked(self) -> contextlib.AbstractContextManager[None]:
        """Send asynchronous calls of this thread together, until the end of the context."""


class _Named:
    """Counts the default names that it has given.

    A pickle of it becomes the client in effect where it is loaded: connections cannot travel.
    """

    def __init__(self, given: dict[str, int]) -> None:
        self._given = given
        self._unnamed: set[str] = set()  # names that no user has chosen

    def __reduce__(self) -> Any:
        return inside, ()

    def name(self, kind: str) -> str:
        """Make a name for a table without one, by the order of calls: ``embedding0``."""
        number = self._given[kind] = self._given.get(kind, -1) + 1
        self._unnamed.add(f"{kind}{number}")
        return f"{kind}{number}"


class ClusterRows(_Named):
    """Tables of a session: `snailps.cluster`, `local_cluster` or `connect`."""

    clocked = False

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(_names.setdefault(cluster, {}))
        self._cluster = cluster
        self._tables: dict[str, LocalTable] = {}

    def declare(self, table: Table) -> None:
        if table.name in self._unnamed and table.name not in self._tables:
            self._say_if_shared(table.name)
        options = {name: value for name, value in table.to_dict().items() if name != "name"}
        self._tables[table.name] = self._cluster.table(table.name, **options)

    def has_rows(self, table: str) -> bool:
        return self._cluster.has_rows(table)

    def _say_if_shared(self, name: str) -> None:
        """Warn if a module shares rows with another process only because of its default name.

        No warning for ranks of torchrun, which make the same modules on purpose, or for a cluster
        that this process has started, which no other process knows.
        """
        alone = os.environ.get("WORLD_SIZE", "1") in ("", "1")
        if alone and not self._cluster.is_local and name in self._cluster.tables():
            warnings.warn(
                f"the cluster at {self._cluster.address} has a table {name!r} already, of another "
                "process or an earlier one: this module trains the rows that are there. Give "
                f"modules names that are not to share them: Embedding(dim, 'mine-{name}')",
                stacklevel=6,
            )

    def pull_async(self, table: str, keys: Keys, out: Rows) -> Pending:
        return self._tables[table].pull_async(keys, out)

    def push_async(self, table: str, keys: Keys, values: Rows, factor: float) -> Pending:
        return self._tables[table].push_async(keys, values, lr_scale=factor)

    def stored(self, table: str) -> Iterator[tuple[Keys, Rows]]:
        return self._cluster.stored(table)

    def assign(self, table: str, keys: Keys, values: Rows) -> None:
        self._tables[table].assign(keys, values)

    def corked(self) -> contextlib.AbstractContextManager[None]:
        return self._cluster.corked()


class WorkerRows(_Named):
    """Tables of a model on workers: collected first, usable after the job has declared them.

    `tables` are the modules' declarations by name, in order, for `Worker.tables`.
    """

    def __init__(self, worker: Worker) -> None:
        super().__init__({})
        self._worker = worker
        self.tables: dict[str, Table] = {}

    @property
    def clocked(self) -> bool:
        return is_clocked(type(self._worker), self._worker.settings)

    def declare(self, table: Table) -> None:
        if self.tables.setdefault(table.name, table) != table:
            raise ConfigError(f"two modules declare the table {table.name!r}, and differently")

    def has_rows(self, table: str) -> bool:
        return True  # the job's tables are there when it begins

    def pull_async(self, table: str, keys: Keys, out: Rows) -> Pending:
        return self._worker.pull_async(table, keys, out)

    def push_async(self, table: str, keys: Keys, values: Rows, factor: float) -> Pending:
        return self._worker.push_async(table, keys, values, lr_scale=factor)

    def stored(self, table: str) -> Iterator[tuple[Keys, Rows]]:
        raise MisuseError(
            f"the rows of table {table!r} are the result of its job: read them in `judge` or "
            "`export`, or save the cluster's with Cluster.save"
        )

    def assign(self, table: str, keys: Keys, values: Rows) -> None:
        self._worker.assign(table, keys, values)

    def corked(self) -> contextlib.AbstractContextManager[None]:
        return self._worker.corked()


_bound = threading.local()
_names: weakref.WeakKeyDictionary[Cluster, dict[str, int]] = weakref.WeakKeyDictionary()
"""Last number of each kind of name that a cluster's modules have been given."""
_of_clusters: weakref.WeakValueDictionary[int, ClusterRows] = weakref.WeakValueDictionary()
"""Clients by `id` of their cluster.  Modules refer to a client, which refers to its cluster;
nothing refers back, so a cluster is collected after its last module."""


@contextlib.contextmanager
def bound(rows: RowClient) -> Iterator[None]:
    """Bind the modules that this thread makes inside the context to `rows`."""
    before = getattr(_bound, "rows", None)
    _bound.rows = rows
    try:
        yield
    finally:
        _bound.rows = before


def current(cluster: Cluster | None = None) -> RowClient:
    """Return the client to which a new module is bound.

    Without `cluster`: the client of `bound`, else the cluster of the innermost ``with`` block, else
    a cluster that is started for this process.
    """
    inside: RowClient | None = getattr(_bound, "rows", None)
    if inside is not None:
        if cluster is not None:
            raise MisuseError(
                "a model on workers has the tables of its job: give its modules no cluster"
            )
        return inside
    cluster = cluster if cluster is not None else default_cluster()
    client = _of_clusters.get(id(cluster))
    if client is None:
        client = _of_clusters[id(cluster)] = ClusterRows(cluster)
    return client


def inside() -> RowClient:
    """Return the client for a module that is unpickled; no cluster is started for it."""
    if getattr(_bound, "rows", None) is None and within() is None:
        if multiprocessing.parent_process() is not None:
            raise MisuseError(
                "a module of snailps.torch came into a process that multiprocessing has spawned, "
                "as a DataLoader does with the dataset, collate_fn and worker_init_fn: have these "
                "return ids, and call the module in the training process. Or connect in the "
                "process itself: snailps.torch.Embedding.from_readers(snailps.reader(...))"
            )
        raise MisuseError(
            "the rows of a module of snailps.torch are not pickled with it: load it in the `with` "
            "block of a cluster that has them"
        )
    return current()
