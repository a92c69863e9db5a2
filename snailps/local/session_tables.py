"""Rows of a running cluster in a Python session: tables, tensors, and the source of an export.

    LocalTable, LocalTensor -> keys and values checked -> Driver -> rows
    ClusterSource -> Results -> pieces of keys and rows -> export_tables

Must not know jobs, nor how the cluster was started.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from snailps.api.class_loading import OF_SESSION, admit
from snailps.api.export_progress import ExportProgress
from snailps.api.results import Results
from snailps.api.tables import AnyKeys, Keys, Rows, Table, Tensor
from snailps.config import JobSettings
from snailps.local.driver import Driver
from snailps.transport.client._client import Pending


class LocalTable:
    """A table of a `Cluster`: ``pull(keys)``, ``push(keys, values)``."""

    def __init__(self, cluster: object, driver: Driver, table: Table) -> None:
        self._cluster = cluster  # keeps the cluster running
        self._driver, self.declaration = driver, table

    def __repr__(self) -> str:
        return f"<table {self.declaration.name!r}, rows of {self.declaration.dim}>"

    def pull(self, keys: AnyKeys, out: Rows | None = None) -> Rows:
        """Rows of `keys` (any integers from 0), (n, dim) of `Table.dtype`, in `out` if given."""
        return self._driver.pull(self.declaration.name, keys, out)

    def push(self, keys: AnyKeys, values: Any, *, lr_scale: float = 1.0) -> None:
        """Push `values` (n, dim) to the rows of `keys`; returns once they are applied.

        `lr_scale`: this push's step size as a multiple of `Table.lr`, where there is one.
        """
        wanted, rows = self.declaration.keys(keys), self.declaration.values(values)
        if rows.ndim == 1 and len(wanted) and len(rows) % len(wanted) == 0:
            rows = rows.reshape(len(wanted), -1)
        self._driver.push(self.declaration.name, wanted, rows, lr_scale=lr_scale)

    def assign(self, keys: AnyKeys, rows: Any) -> None:
        """Replace the rows of `keys` by `rows`, such as pretrained values.

        Parameters
        ----------
        keys : array_like
            Integers from 0, (n,); of a repeated key the last row counts.
        rows : array_like
            Weights (n, dim), which reset the optimizer's state; or weights and state,
            (n, dim + state_floats), as `Cluster.stored` yields them.

        Raises
        ------
        MisuseError
            Another shape.
        NotFinite
            A value is NaN or infinite, unless `Table.finite` is False; nothing was changed.

        Notes
        -----
        Returns once servers and standbys have the rows; nothing of the previous rows remains.

        Examples
        --------
        >>> with snailps.local_cluster() as cluster:
        ...     table = cluster.table("w", dim=2, access="adagrad", lr=0.1)
        ...     table.assign([7, 8], [[1.0, 2.0], [3.0, 4.0]])
        ...     print(table.pull([8, 9]))
        [[3. 4.]
         [0. 0.]]
        """
        self._driver.assign(self.declaration.name, keys, rows)

    def pull_async(self, keys: AnyKeys, out: Rows | None = None) -> Pending:
        """Start a pull; ``.wait()`` returns the rows.  It sees pushes begun before the call."""
        return self._driver.pull_async(self.declaration.name, keys, out)

    def push_async(self, keys: AnyKeys, values: Any, *, lr_scale: float = 1.0) -> Pending:
        """Start a push; `values` (n, dim) must not change until ``.wait()`` has returned."""
        return self._driver.push_async(self.declaration.name, keys, values, lr_scale=lr_scale)


class LocalTensor:
    """A tensor of a `Cluster`: ``pull()``, ``push(values)``."""

    def __init__(self, cluster: object, driver: Driver, tensor: Tensor) -> None:
        self._cluster = cluster
        self._driver, self.declaration = driver, tensor

    def __repr__(self) -> str:
        return f"<tensor {self.declaration.name!r} of shape {tuple(self.declaration.shape)}>"

    def pull(self) -> Rows:
        """Return all values of the tensor, float32, in its shape."""
        tensor = self.declaration
        return tensor.from_rows(self._driver.pull(tensor.name, tensor.keys()))

    def assign(self, values: Any) -> None:
        """Replace the tensor by `values` of its shape; resets the optimizer's state."""
        tensor = self.declaration
        self._driver.assign(tensor.name, tensor.keys(), tensor.to_rows(values))

    def push(self, values: Any, *, lr_scale: float = 1.0) -> None:
        """Push `values` of the tensor's shape; returns once they are applied.

        `lr_scale` as in `LocalTable.push`.
        """
        tensor = self.declaration
        rows = tensor.to_rows(values)
        self._driver.push(tensor.name, tensor.keys(), rows, lr_scale=lr_scale)


class ClusterSource:
    """The tables of a running cluster, for `export_tables`.

    `is_local`: only processes of this user can have declared its tables, so classes are trusted.
    """

    def __init__(self, driver: Driver, *, state: bool = False, is_local: bool = False) -> None:
        declared = driver.all_tables()
        for name, (_, table) in declared.items() if state and not is_local else ():
            # Only the class of an access method in Python knows the width of its state.
            if table.in_python and not driver.has_declared(table):
                admit(table.access, f"table {name!r}", sys.modules, OF_SESSION)
        self.tables: Mapping[str, Table] = {name: table for name, (_, table) in declared.items()}
        self._numbers = {name: number for name, (number, _) in declared.items()}
        self._driver = driver

    def pieces(
        self, table: str, state: bool, progress: ExportProgress
    ) -> Iterator[tuple[Keys, Rows]]:
        """Like `TableSource.pieces`; with `state` each piece is pulled once more."""
        client, declared = self._driver.client, self.tables[table]
        results = self._results(progress)
        for keys, rows in results.scan(table):
            if state:
                whole = declared.empty(len(keys), state)
                client.pull(self._numbers[table], keys, whole, True)
                whole[:, : declared.dim] = rows  # as pulled: a method may derive it
                rows = whole
                declared.check_finite(keys, rows)
            yield keys, rows

    def stored(self, table: str) -> Iterator[tuple[Keys, Rows]]:
        """Yield rows that `assign` can restore: weights and state, or weights alone if the
        table has no state."""
        results = self._results(ExportProgress())
        pieces = results.scan(table)
        if not self.tables[table].state_floats:
            return pieces
        return results.packed(table, (keys for keys, _ in pieces))

    def _results(self, progress: ExportProgress) -> Results:
        client, frag_num = self._driver.client, self._driver.route.frag_num
        return Results(
            JobSettings(), b"", {}, client, self._numbers, self.tables, frag_num, progress
        )
