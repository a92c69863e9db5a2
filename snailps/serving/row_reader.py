"""Reads rows of one table by key; owns what a caller gets for a row that a source lacks.

    keys -> RowReader.pull -> RowSource.find -> rows, and the keys that it lacks
                           -> a first value, an older row, an error

Sources are `saved_tables.SavedRows` and `cached_rows.CachedRows`.  Must not know sockets or files.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.access_method import load_method
from snailps.api.class_loading import OF_CLUSTER, admit
from snailps.api.tables import AnyKeys, Keys, Rows, Table
from snailps.errors import MisuseError, SnailError
from snailps.store._store import ShardStore

Unreachable = Literal["error", "stale", "first"]
POLICIES = ("error", "stale", "first")
_TABLE = 1


class FirstValues:
    """Computes the first values of a table's keys, as a server would.

    ConfigError if the table's access method is in Python and not in one of `modules`, or cannot be
    imported.  `modules` None: the caller has admitted it already.
    """

    def __init__(self, table: Table, modules: Collection[str] | None = None) -> None:
        self.table = table
        if table.in_python and modules is not None:
            admit(table.access, f"table {table.name!r}", modules, OF_CLUSTER)
        self._method = load_method(table) if table.in_python else None
        self._lock = threading.Lock()
        if self._method is None:
            self._store = ShardStore(1, kernels.row_ops())
            self._store.own([0])
            self._store.add_table(_TABLE, *table.store_arguments())

    def pull(self, keys: Keys) -> Rows:
        """Return first values, float32 (n, words); thread-safe."""
        if self._method is not None:
            return np.asarray(self._method.pull(self._method.init(keys)), np.float32)
        with self._lock:  # a store belongs to one thread at a time
            return self._store.pull(_TABLE, keys)


class Lack(NamedTuple):
    """Keys for which a source has no row, or only an old one."""

    new: NDArray[Any]
    """Which keys have no row: indices, or a mask."""
    old: int
    """How many keys have an old row, which is already in the caller's array."""
    why: SnailError | None
    """Why their server did not answer; None: the keys of `new` were never pushed."""


class RowSource(Protocol):
    """A source of rows of `table`."""

    @property
    def table(self) -> Table:
        """Declaration of the table; it may change when another cluster is joined."""

    def find(self, keys: Keys, rows: Rows) -> Lack | None:
        """Fill `rows`, float32 (n, words), as far as possible; return what is lacking, if any."""


class RowReader:
    """Read-only access to the rows of one table.  Thread-safe."""

    def __init__(
        self,
        source: RowSource,
        unreachable: Unreachable = "first",
        modules: Collection[str] | None = None,
    ) -> None:
        self._source, self._unreachable, self._modules = source, unreachable, modules
        self._first = FirstValues(source.table, modules) if unreachable == "first" else None
        self._lock = threading.Lock()
        self._stale = self._firsts = 0

    @property
    def table(self) -> Table:
        """Declaration of the table in the checkpoint, or in the cluster that was joined last."""
        return self._source.table

    def pull(self, keys: AnyKeys, out: Rows | None = None) -> Rows:
        """Return the rows of keys.

        A key that was never pushed gets its first value, as from a server.

        Parameters
        ----------
        keys : array or sequence of n integers
            0 to 2^64 - 1; keys may repeat.
        out : numpy.ndarray, optional
            (n, dim) of `Table.dtype`, C-contiguous: filled and returned instead of a new array.

        Returns
        -------
        (n, dim) of `Table.dtype`

        Raises
        ------
        MisuseError
            Keys or `out` have a wrong type or shape.
        SnailError
            A server did not answer in time, and `unreachable` does not allow another row.

        Notes
        -----
        Rows of one call may come from different moments of a training.  `stats` counts answers that
        were older than `max_age_s`.
        """
        table = self._source.table
        wanted = np.ascontiguousarray(table.keys(keys))
        if out is None:
            out = table.empty(len(wanted))
        else:
            table.check_width(out, table.dim)
            if len(out) != len(wanted) or not out.flags.c_contiguous or not out.flags.writeable:
                raise MisuseError(
                    f"table {table.name!r}: out: expected a C-contiguous, writable array of "
                    f"{len(wanted)} rows, got shape {out.shape}"
                )
        words = out.view(np.float32)
        if (lack := self._source.find(wanted, words)) is None:
            return out
        new, old, why = lack
        first = self._first
        if why is not None:
            if self._unreachable == "error" or (len(new) and first is None):
                raise why
            with self._lock:
                self._stale += old
                self._firsts += len(new)
        if first is not None and len(lacking := wanted[new]):
            # Another cluster was joined: its table may have another seed or first value.
            if first.table is not self._source.table:
                first = self._first = FirstValues(self._source.table, self._modules)
            words[new] = first.pull(lacking)
        return out
