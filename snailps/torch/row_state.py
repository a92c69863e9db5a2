"""Rows of modules in a `state_dict`, on request.

    state_dict(model, rows=True) -> rows of servers -> PREFIXrows.N.keys, PREFIXrows.N.values
    load_state_dict              -> these -> servers, replacing the rows of these keys

N counts the tables of a module, whatever their names.  Must not know autograd.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from snailps.api.tables import Table
from snailps.errors import MisuseError
from snailps.torch.exchange import Exchange

_PIECE = 1 << 18
"""Rows that are assigned at a time."""
_asked = threading.local()


class OfTables(Protocol):
    """A module, as far as its rows are saved and loaded."""

    @property
    def tables(self) -> Sequence[Table]: ...

    exchange: Exchange

    def flush(self) -> None: ...


def state_dict(model: nn.Module, *, rows: bool = False) -> dict[str, Any]:
    """Return `model.state_dict()`, optionally with the rows of its embeddings.

    Parameters
    ----------
    model : torch.nn.Module
    rows : bool
        Include the servers' rows with their optimizer state: for each table ``rows.N.keys``, int64
        (n,), and ``rows.N.values``, float32 (n, dim + state).  They must fit into the memory of
        this process; `Cluster.save` has no such limit.

    Returns
    -------
    dict
        `load_state_dict` of a model with the same tables writes the rows to its servers, where they
        replace the rows of the same keys.

    Raises
    ------
    MisuseError
        `rows` is set and the model belongs to a job on workers: its rows are the job's result.

    Examples
    --------
    >>> torch.save(snailps.torch.state_dict(model, rows=True), "model.pt")  # doctest: +SKIP
    >>> model.load_state_dict(torch.load("model.pt"))  # doctest: +SKIP
    """
    with with_rows(rows):
        state: dict[str, Any] = model.state_dict()
        return state


@contextlib.contextmanager
def with_rows(rows: bool) -> Iterator[None]:
    """Inside the context state dicts made by this thread include rows, if `rows`."""
    before = wanted()
    _asked.rows = before or rows
    try:
        yield
    finally:
        _asked.rows = before


def wanted() -> bool:
    return getattr(_asked, "rows", False)


def save_rows(module: OfTables, destination: MutableMapping[str, Any], prefix: str) -> None:
    """Add the rows of a module's tables to its state dict."""
    module.flush()
    for number, table in enumerate(module.tables):
        pieces = list(module.exchange.rows.stored(table.name))
        keys = np.concatenate([np.empty(0, np.uint64), *(keys for keys, _ in pieces)])
        width = table.dim + table.state_floats
        rows = np.concatenate([np.empty((0, width), np.float32), *(rows for _, rows in pieces)])
        destination[f"{prefix}rows.{number}.keys"] = torch.from_numpy(keys.view(np.int64))
        destination[f"{prefix}rows.{number}.values"] = torch.from_numpy(rows)


def described(tables: Sequence[Table]) -> list[tuple[int, str]]:
    """What rows of tables consist of: width alone does not tell weights from optimizer state."""
    return [(table.dim, table.access) for table in tables]


def load_rows(
    module: OfTables,
    state: MutableMapping[str, Any],
    prefix: str,
    saved: Sequence[Sequence[Any]],
    missing: list[str],
    unexpected: list[str],
) -> bool:
    """Write rows of a state dict to the servers, and remove their names from `unexpected`.

    `saved`: what `described` gave for the tables that were saved; empty: unknown.  Returns whether
    the state dict has the rows of all tables.
    """
    module.flush()
    module.exchange.forget_ahead()  # prefetched rows are older than the loaded ones
    count = 0
    for number, table in enumerate(module.tables):
        names = [f"{prefix}rows.{number}.{part}" for part in ("keys", "values")]
        lacking = [name for name in names if name not in state]
        unexpected[:] = [name for name in unexpected if name not in names]
        if lacking:
            missing += lacking if len(lacking) == 1 else ()
            continue
        count += 1
        if state[names[0]].dtype not in (torch.int64, torch.uint64) or state[names[0]].dim() != 1:
            raise MisuseError(
                f"{names[0]}: expected keys, int64 (n,), got {state[names[0]].dtype} "
                f"{tuple(state[names[0]].shape)}"
            )
        keys = state[names[0]].cpu().numpy().view(np.uint64)
        rows = np.ascontiguousarray(state[names[1]].float().cpu().numpy())
        width = table.dim + table.state_floats
        if rows.ndim != 2 or len(rows) != len(keys) or rows.shape[1] < table.dim:
            raise MisuseError(
                f"{names[1]}: expected a row of {table.dim} values or more for each of "
                f"{len(keys)} keys, got shape {tuple(rows.shape)}"
            )
        dim, access = saved[number] if number < len(saved) else (table.dim, table.access)
        if dim != table.dim:
            raise MisuseError(
                f"{names[1]}: expected rows of dim {table.dim}, as table {table.name!r} has, got "
                f"rows of dim {dim}"
            )
        if rows.shape[1] not in (width, table.dim) or access != table.access:
            warnings.warn(
                f"{names[1]} has the state of another optimizer than {table.access!r} of table "
                f"{table.name!r}: weights are loaded, and that state begins anew",
                stacklevel=2,
            )
            rows = np.ascontiguousarray(rows[:, : table.dim])
        for begin in range(0, len(keys), _PIECE):
            piece = slice(begin, begin + _PIECE)
            module.exchange.rows.assign(table.name, keys[piece], rows[piece])
    return count == len(module.tables)
