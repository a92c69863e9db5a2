"""Rows of all tables of a model with the state of their optimiser, from which training continues.

    a finished job -> Results.packed -> Packed [-> widened] -> write_packed -> a file
    `continue_from` of the next job -> put_tables -> Results.put_packed -> tables

The file has two arrays a table, ``NAME.keys`` (uint64) and ``NAME.rows`` (float32, weights and
state).  Result files hold weights only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.tables import Table, Tensor
from snailps.api.worker import Results
from snailps.config import JobSettings
from snailps.data.scratch import release_whole, whole_file
from snailps.dataclass import dataclass
from snailps.errors import ConfigError, ModelFileError
from snailps.vectors.model_file import check_rows, read_model, refuse_pipe, write_model

COLUMN: Mapping[str, Any] = {
    "help": "The column to read, as text, of an input of tables: Parquet, JSON lines, CSV or TSV "
    "whose first line names the columns. Empty: the input is text.",
    "when": "The input is tables.",
    "unit": "column",
}
"""The setting of models of text."""
CONTINUE_FROM: Mapping[str, Any] = {
    "help": "A file of weights with the state of their optimizer, from which training continues; "
    "of `partial_fit` of the estimators. Features that it lacks are added; shapes, classes and "
    "optimizer are those of the file.",
    "when": "Never; estimators fill it in.",
    "unit": "path",
    "hidden": True,
}
"""The setting of models that continue from such a file."""
SHUFFLE: Mapping[str, Any] = {
    "help": "Whether examples are trained in an order that is drawn from `seed`, another one in "
    "each epoch; a block is read from all over the input's files. `false`, or with `expire_after`: "
    "as they come.",
    "when": "`false` if their order means something, or if they are already shuffled and more than "
    "fit in memory on a disk that seeks slowly.",
}
"""The setting of models that do not depend on the order of the examples."""
_KEYS, _ROWS = ".keys", ".rows"
_PUT_FLOATS = 1 << 20
"""Floats that are pushed at a time."""


def check_optimizer(settings: JobSettings, methods: Collection[str], why: str) -> None:
    """Refuse an `optimizer` that is not in `methods`, for the reason `why`."""
    if settings.optimizer not in ("auto", *methods):
        raise ConfigError(
            f"optimizer: {settings.optimizer} does not fit {why}: expected one of auto, "
            + ", ".join(methods)
        )


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows with the state of their optimiser: keys uint64 (n,), rows float32 (n, dim + state)."""

    keys: NDArray[np.uint64]
    rows: NDArray[np.float32]


def write_packed(path: str, tables: Mapping[str, Packed]) -> str:
    arrays: dict[str, NDArray[Any]] = {}
    for name, table in tables.items():
        arrays |= {name + _KEYS: table.keys, name + _ROWS: table.rows}
    return write_model(path, arrays)


def read_packed(path: str) -> dict[str, Packed]:
    """Read what `write_packed` wrote, or raise a `ModelFileError`."""
    what = "weights with the state of their optimizer"
    with read_model(path, what, ()) as (_, arrays):
        names = [name.removesuffix(_KEYS) for name in arrays if name.endswith(_KEYS)]
    try:
        found = {name: Packed(arrays[name + _KEYS], arrays[name + _ROWS]) for name in names}
        for name, table in found.items():
            check_rows(name, table.keys, table.rows)
    except (KeyError, ValueError):
        found = {}
    if not found or 2 * len(found) != len(arrays):
        raise ModelFileError(
            f"{path}: continue_from: expected {what}, as partial_fit writes them, got other arrays"
        )
    return found


def widened(packed: Packed, before: Tensor, after: Tensor, places: NDArray[np.int64]) -> Packed:
    """Rows of a tensor whose last axis has grown; new values begin with zeros.

    `packed` has all chunks, keys ascending; `places`, int64 ascending, are the new places of the
    old values, relative to the first of them.
    """
    table = before.table()
    steps = int(table.access == "adam")  # a number of a chunk; all chunks take every step
    if packed.rows.shape != (len(before.keys()), table.dim + table.state_floats):
        raise ModelFileError(
            f"tensor {before.name}: expected {len(before.keys())} rows of "
            f"{table.dim + table.state_floats} numbers, got {packed.rows.shape}"
        )
    kept = before.shape[-1] - len(places)
    at = np.concatenate((np.arange(kept), kept + places))
    parts = []
    for first in range(0, packed.rows.shape[1] - steps, table.dim):
        made = np.zeros(after.shape, np.float32)
        part = np.ascontiguousarray(packed.rows[:, first : first + table.dim])
        made[..., at] = before.from_rows(part)
        parts.append(after.to_rows(made))
    if steps:
        parts.append(np.full((len(after.keys()), 1), packed.rows[:, -1].max(), np.float32))
    return Packed(after.keys(), np.hstack(parts))


def opened(settings: JobSettings) -> str:
    """The path of `continue_from`, fetched first if it is a driver's file."""
    path: str = settings.continue_from  # type: ignore[attr-defined]
    refuse_pipe(path)
    return whole_file(path, settings.scratch_dir, settings.scratch_bytes)


def put_tables(results: Results) -> None:
    """Set rows and state from `continue_from`, or raise a `ModelFileError`."""
    path: str = results.settings.continue_from  # type: ignore[attr-defined]
    tables = read_packed(opened(results.settings))
    results.exporting.plan([packed.rows.size for packed in tables.values()])
    for name, packed in tables.items():
        table = results.tables.get(name)
        width = packed.rows.shape[1]
        if table is None or width != table.dim + table.state_floats:
            expected = f"tables {sorted(results.tables)}"
            if table is not None:
                expected = f"rows of {table.dim + table.state_floats} numbers"
            raise ModelFileError(
                f"{path}: continue_from: table {name}: expected {expected}, as the settings have "
                f"it, got {width} numbers a row"
            )
        step = max(1, _PUT_FLOATS // width)
        edges = range(0, len(packed.keys), step)
        pieces = (
            (packed.keys[at : at + step], _resumed(table, packed.rows[at : at + step]))
            for at in edges
        )
        results.put_packed(
            name,
            results.exporting.count(
                f"reading {path}", len(packed.keys), "rows", pieces, lambda piece: len(piece[0])
            ),
        )
    release_whole(path)


def _resumed(table: Table, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows with the same weights under the table's hyper-parameters.

    FTRL's weights follow from z and n: after a change of `lr`, `beta` or `l1` the z of before would
    scale them.  Where the weight is 0, z may not exceed `l1`.  What fits stays to the bit.
    """
    if table.access != "ftrl":
        return rows
    w, z, n = np.split(rows, 3, axis=1)
    wanted = -w * (table.beta + np.sqrt(n)) / table.lr - table.l1 * np.sign(w)
    wanted = np.where(w == 0, np.clip(z, -table.l1, table.l1), wanted)
    return np.hstack((w, np.where(np.isclose(z, wanted, 1e-5, 0), z, wanted), n))


class NoSurvey:
    """A survey without a result: rows are set after a survey."""

    def add(self, part: bytes) -> None:
        """Ignore the part."""

    def result(self) -> bytes:
        return b""
