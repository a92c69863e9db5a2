"""Trained modules without training: rows of a checkpoint, or of a reader of a running cluster.

    SavedTables | TableReader -> ServedRows -> Embedding, EmbeddingBag, EmbeddingBagCollection

The modules compute what the trained ones do and never push: gradients end at the rows.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any, TypeVar

from torch import nn

from snailps.api.tables import Keys, Rows, Table
from snailps.errors import ConfigError, MisuseError
from snailps.serving.row_reader import RowReader
from snailps.serving.saved_tables import SavedTables, open_checkpoint
from snailps.torch import embedding
from snailps.torch.exchange import Exchange

M = TypeVar("M", bound="embedding.TableModule")


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


KINDS = (embedding.Embedding, embedding.EmbeddingBag, embedding.EmbeddingBagCollection)


def served(
    kind: type[M],
    tables: Sequence[RowReader],
    *,
    mode: str | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> M:
    """A module of a kind over tables that are read only: of a collection one a feature.

    The options are those that it was trained with, with the defaults of `kind`.
    """
    if kind not in KINDS:
        raise ConfigError(f"expected {', '.join(one.__name__ for one in KINDS)}, got {kind!r}")
    several = kind is embedding.EmbeddingBagCollection
    if not tables or (len(tables) > 1 and not several):
        raise ConfigError(f"{kind.__name__}: expected one table, got {len(tables)}")
    declared = tuple(one.table for one in tables)
    if len({table.dim for table in declared}) > 1:
        widths = ", ".join(f"{table.name} {table.dim}" for table in declared)
        raise ConfigError(f"tables of one module have one width, got {widths}")
    module: Any = kind.__new__(kind)
    nn.Module.__init__(module)
    module.tables, module.embedding_dim = declared, declared[0].dim
    padding = [embedding.as_id(padding_idx)] * len(tables)
    module.exchange = Exchange(ServedRows(tables), declared, padding, 0)
    module.rows = None
    module.padding_idx = padding_idx
    if kind is not embedding.Embedding:
        module.mode = embedding.checked_mode(mode or ("sum" if several else "mean"))
        module.include_last_offset = include_last_offset
    result: M = module.eval()
    return result


def from_checkpoint(
    kind: type[M],
    checkpoint: SavedTables | str | os.PathLike[str],
    names: str | Sequence[str],
    **options: Any,
) -> M:
    """A module of a kind over the rows of a checkpoint; see `served` for `options`."""
    saved = checkpoint if isinstance(checkpoint, SavedTables) else open_checkpoint(checkpoint)
    wanted = [names] if isinstance(names, str) else list(names)
    if missing := [name for name in wanted if name not in saved]:
        raise ConfigError(
            f"no table {missing[0]!r} in {saved.path}: there are {', '.join(saved) or 'none'}"
        )
    return served(kind, [saved[name] for name in wanted], **options)
