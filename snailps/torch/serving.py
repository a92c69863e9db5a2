"""Rows for trained modules without training: of a checkpoint, or a reader of a running cluster.

    SavedTables | TableReader -> ServedRows -> `embedding.served` -> a module

Nothing is pushed: gradients end at the rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from snailps.api.tables import Keys, Rows, Table
from snailps.errors import ConfigError, MisuseError
from snailps.serving.row_reader import RowReader


class _Done:
    """A pull that is over."""

    done = True

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def wait(self, timeout_s: float | None = None) -> Rows:
        """The rows."""
        return self.rows

    def abandon(self) -> None:
        """Nothing is under way."""


class ServedRows:
    """Tables that are read alone, in the place of a cluster's (`snailps.torch.rows.RowClient`)."""

    clocked = False

    def __reduce__(self) -> Any:
        raise MisuseError("a module that is read only is not pickled: make it where it is used")

    def __init__(self, tables: Sequence[RowReader]) -> None:
        self._tables = {one.table.name: one for one in tables}

    def declare(self, table: Table) -> None:
        """Accept the tables that there are."""
        found = self._tables.get(table.name)
        if found is None or found.table != table:
            raise ConfigError(f"table {table.name!r} is not among those that are read here")

    def name(self, kind: str) -> str:
        """Refused: tables have their names."""
        raise MisuseError("rows that are read only need the names of their tables")

    def has_rows(self, table: str) -> bool:
        """What is read is there."""
        return True

    def pull_async(self, table: str, keys: Keys, out: Rows) -> Any:
        """Pulls, and returns what is done."""
        return _Done(self._tables[table].pull(keys, out))

    def push_async(self, table: str, keys: Keys, values: Rows, factor: float) -> Any:
        """Refused."""
        raise MisuseError(f"table {table!r} is read only: it is served, not trained")

    def stored(self, table: str) -> Any:
        """Refused."""
        raise MisuseError(
            f"table {table!r} is served by key: its checkpoint or cluster has all rows"
        )

    def assign(self, table: str, keys: Keys, values: Rows) -> None:
        """Refused."""
        raise MisuseError(f"table {table!r} is read only: it is served, not changed")

    def corked(self) -> contextlib.AbstractContextManager[None]:
        """Nothing travels."""
        return contextlib.nullcontext()
