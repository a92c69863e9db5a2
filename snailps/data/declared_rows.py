"""Rows of tables as sparse examples, by declarations of their columns.

    Table, Columns -> piece_of -> Piece: labels, and keys and values as those of CSV
    dict of lists -> ListTable -> Table

Features are those of docs/sparse_data.md; `_cells.h` makes the same ones from text.  No files, no
libraries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data._examples import hash_bytes
from snailps.data._matrix import first_not_finite, hash_texts
from snailps.data.columns import Column, Kind
from snailps.data.elements import a_kind, is_missing
from snailps.data.feature_rows import Piece, Table
from snailps.data.matrix_file import floats
from snailps.errors import DataError

_NUMBERS = (int, float, np.integer, np.floating, np.bool_)


class ListTable(Table):
    """A table of Python lists of one length, by column; `name` is for messages."""

    def __init__(self, columns: Mapping[str, list[Any]], name: str) -> None:
        self._columns = columns
        self.columns, self.name = list(columns), name
        self.rows = len(next(iter(columns.values()))) if columns else 0

    def is_numeric(self, column: Any) -> bool:
        return all(isinstance(one, _NUMBERS) or is_missing(one) for one in self._columns[column])

    def numbers(self, column: Any, first: int, last: int) -> NDArray[Any]:
        """Numbers, NaN for missing ones; other values unchanged."""
        found = [math.nan if one is None else one for one in self._columns[column][first:last]]
        if all(isinstance(one, _NUMBERS) for one in found):
            try:
                return np.array(found, np.float64)
            except OverflowError:  # integers of more than 308 digits
                return np.array([_float(one) for one in found], np.float64)
        objects = np.empty(len(found), object)
        objects[:] = found
        return objects

    def texts(self, column: Any, first: int, last: int) -> list[Any]:
        return self._columns[column][first:last]

    def whole(self, column: Any) -> Any:
        return self._columns[column]


class SomeRows(Table):
    """Rows `first` to before `last` of a table."""

    def __init__(self, table: Table, first: int, last: int) -> None:
        self._table, self._first = table, first
        self.columns, self.name, self.rows = table.columns, table.name, last - first

    def is_numeric(self, column: Any) -> bool:
        return self._table.is_numeric(column)

    def numbers(self, column: Any, first: int, last: int) -> NDArray[Any]:
        return self._table.numbers(column, self._first + first, self._first + last)

    def texts(self, column: Any, first: int, last: int) -> list[Any]:
        return self._table.texts(column, self._first + first, self._first + last)

    def whole(self, column: Any) -> Any:
        return self.texts(column, 0, self.rows)


def piece_of(table: Table, columns: Sequence[Column], first: int, path: str) -> Piece:
    """The examples of all rows of a table, without labels if it has none.

    An entry's field is its column's number among those with features.  `first` is the number of
    the table's first row in its file, for messages.
    """
    features = [column for column in columns if column.is_feature]
    shape = table.rows, len(features)
    keys, values = np.zeros(shape, np.uint64), np.ones(shape, np.float32)
    there = np.zeros(shape, np.bool_)
    for at, column in enumerate(features):
        seed = hash_bytes(0, column.name.encode())
        where = _Where(path, column.name, first)
        if column.kind in (Kind.NUMERIC, Kind.BUCKET):
            numbers = _numbers(table, column, where)
            there[:, at] = ~np.isnan(numbers)
            if column.kind is Kind.NUMERIC:
                values[:, at], keys[:, at] = numbers, hash_bytes(seed, b"")
            else:
                keys[:, at] = _bucket_keys(seed, column, numbers)
        else:
            keys[:, at], there[:, at] = _categories(table, column, seed, where)
    ptr = np.concatenate(([0], np.cumsum(there.sum(axis=1))))
    fields = np.broadcast_to(np.arange(len(features), dtype=np.int32), shape)
    return Piece(
        ptr.astype(np.int64),
        keys[there] >> np.uint64(1),
        values[there],
        fields[there],
        labels=_labels(table, columns, first, path),
    )


class _Where:
    def __init__(self, path: str, column: str, first: int) -> None:
        self._path, self._column, self._first = path, column, first

    def wrong(self, row: int, value: object, expected: str) -> DataError:
        bare = value.item() if isinstance(value, np.generic) else value
        got = "missing" if is_missing(bare) else f"{bare!r:.60} ({type(bare).__name__})"
        return DataError(
            f"{self._path}: column {self._column!r}, row {self._first + row:,} is {got}: "
            f"expected {expected}"
        )


def _given(table: Table, name: str) -> NDArray[Any]:
    """A column as numbers with NaN, or as objects if one is no number."""
    try:
        return table.numbers(name, 0, table.rows)
    except (TypeError, ValueError):  # NumPy's, of texts
        found = table.texts(name, 0, table.rows)
        objects = np.empty(len(found), object)
        objects[:] = [math.nan if one is None else one for one in found]
        return objects


def _numbers(table: Table, column: Column, where: _Where) -> NDArray[np.float32]:
    """A column's numbers, NaN where one is missing."""
    given = _given(table, column.name)
    if given.dtype.kind not in "biuf":
        odd = next((at for at, one in enumerate(given.tolist()) if not _is_number(one)), 0)
        raise where.wrong(
            odd, given[odd], f"a number. Declare {column.name}:categorical in columns if it has "
            "texts"
        )  # fmt: skip
    with np.errstate(over="ignore"):
        found = np.asarray(given, np.float32)
    missing = np.isnan(found)
    if (at := first_not_finite(np.where(missing, np.float32(0), found))) >= 0:
        raise where.wrong(at, given[at], "finite numbers within float32's range, or none")
    if column.log:
        size = np.log1p(np.abs(found.astype(np.float64)))
        return np.copysign(size, found).astype(np.float32)
    return found


def _bucket_keys(seed: int, column: Column, numbers: NDArray[np.float32]) -> NDArray[np.uint64]:
    """The key of each number's bucket; any key for NaN."""
    buckets = [hash_bytes(seed, str(k).encode()) for k in range(len(column.bounds) + 1)]
    # Count of bounds (rising) that are at most the number.
    places = np.searchsorted(
        np.asarray(column.bounds, np.float64), numbers.astype(np.float64), side="right"
    )
    return np.array(buckets, np.uint64)[places]


def _categories(
    table: Table, column: Column, seed: int, where: _Where
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """The key of each text, and whether it is present."""
    texts = [_text(one) for one in table.texts(column.name, 0, table.rows)]
    keys, there = np.empty(len(texts), np.uint64), np.empty(len(texts), np.uint8)
    if (at := hash_texts(seed, texts, keys, there)) >= 0:
        raise where.wrong(
            at, texts[at], f"a text or a number. Declare {column.name}:ignore in columns if it is "
            "no feature"
        )  # fmt: skip
    if column.kind is Kind.HASHED:
        upper, places = np.unique(keys >> np.uint64(64 - column.bits), return_inverse=True)
        hashed = [hash_bytes(seed, one.to_bytes(8, "little")) for one in upper.tolist()]
        keys = np.array(hashed, np.uint64)[places.reshape(-1)]
    return keys, there.view(np.bool_)


def _text(value: Any) -> Any:
    """Shortest decimal text of a number; true and false as in JSON."""
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return str(value)
    if isinstance(value, (float, np.floating)) and not math.isnan(value):
        return str(int(value)) if float(value).is_integer() else repr(float(value))
    return value


def _labels(
    table: Table, columns: Iterable[Column], first: int, path: str
) -> NDArray[np.float64] | None:
    label = next((column for column in columns if column.kind is Kind.LABEL), None)
    if label is None or label.name not in table.columns:
        return None
    where = _Where(path, label.name, first)
    given = _given(table, label.name)
    if given.dtype.kind not in "biuf":
        odd = next((at for at, one in enumerate(given.tolist()) if not _is_number(one)), 0)
        raise where.wrong(odd, given[odd], "a number as label: number the classes from 0 on")
    labels = np.asarray(given, np.float64)
    if (at := first_not_finite(floats(labels))) >= 0:
        raise where.wrong(at, given[at], "a label, a finite number")
    return labels


def _is_number(value: object) -> bool:
    return isinstance(value, _NUMBERS)


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def kind_of_values(values: Sequence[Any], where: str) -> Kind:
    """Kind of a column with these first values; refuses lists, dicts, and texts among numbers."""
    there = [one for one in values if not is_missing(one)]
    if all(isinstance(one, _NUMBERS) for one in there):
        return Kind.NUMERIC if there else Kind.CATEGORICAL
    odd = next((one for one in there if not isinstance(one, (str, *_NUMBERS))), None)
    if odd is not None:
        raise DataError(
            f"{where} has {a_kind(odd)}: expected numbers or texts. Declare it as ignore in columns"
        )
    if all(isinstance(one, str) for one in there):
        return Kind.CATEGORICAL
    raise DataError(
        f"{where} has both numbers and texts: declare it in columns, as categorical or ignore"
    )
