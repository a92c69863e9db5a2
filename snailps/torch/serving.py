"""Read-only rows for trained modules: from a checkpoint, or from a reader of a running cluster.

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


class _FinishedPull:
    """A finished pull."""

    done = True

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def wait(self, timeout_s: float | None = None) -> Rows:
        """Return the rows."""
        return self.rows

    def abandon(self) -> None:
        """Do nothing: no pull is under way."""


class ServedRows:
    """A `snailps.torch.rows.RowClient` whose tables can only be read."""

    clocked = False

    def __reduce__(self) -> Any:
        raise MisuseError("a module that is read only is not pickled: make it where it is used")

    def __init__(self, tables: Sequence[RowReader]) -> None:
        self._tables = {reader.table.name: reader for reader in tables}

    def declare(self, table: Table) -> None:
        """Accept the tables of the readers; ConfigError for any other."""
        reader = self._tables.get(table.name)
        if reader is None or reader.table != table:
            raise ConfigError(f"table {table.name!r} is not among those that are read here")

    def name(self, kind: str) -> str:
        """Raise MisuseError: the tables already have names."""
        raise MisuseError("rows that are read only need the names of their tables")

    def has_rows(self, table: str) -> bool:
        """Return True: a reader's table exists."""
        return True

    def pull_async(self, table: str, keys: Keys, out: Rows) -> Any:
        """Pull at once, and return the finished pull."""
        return _FinishedPull(self._tables[table].pull(keys, out))

    def push_async(self, table: str, keys: Keys, values: Rows, factor: float) -> Any:
        """Raise MisuseError: the rows are read only."""
        raise MisuseError(f"table {table!r} is read only: it is served, not trained")

    def stored(self, table: str) -> Any:
        """Raise MisuseError: rows are read by key only."""
        raise MisuseError(
            f"table {table!r} is served by key: its checkpoint or cluster has all rows"
        )

    def assign(self, table: str, keys: Keys, values: Rows) -> None:
        """Raise MisuseError: the rows are read only."""
        raise MisuseError(f"table {table!r} is read only: it is served, not changed")

    def corked(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: nothing is sent."""
        return contextlib.nullcontext()
