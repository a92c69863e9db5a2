"""Rows of features by name: tables and lists of dicts become keys and values, as cells of CSV do.

    DataFrame or Table -> columns -> TableRows.pieces -> Piece
    [{name: number or text}, ...] -> DictRows.pieces -> Piece

Column or name c with a number: key ``hash(hash(0, c), "")``, the number as value.  With a text t:
key ``hash(hash(0, c), t)``, value 1 (docs/sparse_data.md).  A missing value or empty text makes no
entry.  Calls only methods of the given objects, no library.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data._examples import hash_bytes
from snailps.data._matrix import first_not_finite, hash_texts
from snailps.data.elements import a_kind
from snailps.data.matrix_file import Flags
from snailps.errors import DataError

PIECE_CELLS = 1 << 18
NAMES_KEPT = 1 << 20
"""Cached hashes of (name, text): dicts repeat them."""
LIBRARIES = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "Table"}


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows: sparse with `ptr` (int64 (n + 1,), from 0) and `keys` (uint32 or uint64), or
    dense.

    `values` are float32, or uint8 if dense; None: all 1.  `fields` are int32.  `dense_rows` counts
    dense rows.  `labels` are those that came with the rows.
    """

    ptr: NDArray[np.int64] | None
    keys: NDArray[Any] | None
    values: NDArray[Any] | None
    fields: NDArray[np.int32] | None
    dense_rows: int = 0
    labels: NDArray[np.float64] | None = None

    @property
    def rows(self) -> int:
        return self.dense_rows if self.ptr is None else len(self.ptr) - 1

    @property
    def entries(self) -> int:
        if self.keys is not None:
            return len(self.keys)
        assert self.values is not None
        return len(self.values)


class RowsSource(ABC):
    """A source of rows of examples, called `name` in messages.

    `flags` are the file's, without values if all are 1 and `entries` is unknown; `rows` and
    `entries` are -1 before the last piece if unknown; `columns` 0 means hashed keys.
    """

    name: str
    flags: Flags
    rows: int
    entries: int
    columns: int
    has_label = False
    """Whether `labels` may be called: a column was named."""

    @property
    def dense(self) -> bool:
        return Flags.DENSE in self.flags

    def labels(self) -> Any:
        raise NotImplementedError

    @abstractmethod
    def pieces(self) -> Iterator[Piece]:
        """All rows in order; DataError for a value that no example can have."""


def features_of(X: Any, modules: set[str], label: str, dense: bool) -> RowsSource:
    if "datasets" in modules:
        X, modules = arrow_of(X), {"pyarrow"}
    for library, kind in LIBRARIES.items():
        if library in modules and type(X).__name__ == kind:
            table = table_of(library, X)
            return DenseTableRows(table, label) if dense else TableRows(table, label)
    if isinstance(X, Sequence) and not isinstance(X, (str, bytes)):
        if dense:
            raise DataError("X: a list is not dense: make an array of it")
        return DictRows(X)
    raise DataError(
        f"X: expected a scipy.sparse matrix, an array of two axes, a DataFrame, a Table or a list "
        f"of dicts, got {type(X).__module__}.{type(X).__name__}"
    )


class Table(ABC):
    """A table of any library."""

    name: str
    columns: list[Any]
    rows: int

    @abstractmethod
    def is_numeric(self, column: Any) -> bool:
        """Whether a column has numbers or truth values."""

    @abstractmethod
    def numbers(self, column: Any, first: int, last: int) -> NDArray[Any]:
        """Numbers of some rows, NaN for missing ones."""

    @abstractmethod
    def texts(self, column: Any, first: int, last: int) -> list[Any]:
        """Python's values of some rows, None or NaN for missing ones."""

    @abstractmethod
    def whole(self, column: Any) -> Any:
        """A column."""


class PandasTable(Table):
    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self.columns, self.rows = list(frame.columns), len(frame)
        self.name = f"a DataFrame of {len(self.columns):,} columns"

    def is_numeric(self, column: Any) -> bool:
        """By type; truth values with missing ones are objects, as `pandas.read_csv` makes them."""
        dtype = self._frame[column].dtype
        if dtype.name == "object":
            return _are_truths(self._frame[column])
        return getattr(dtype, "kind", "O") in "biuf" and dtype.name != "category"

    def numbers(self, column: Any, first: int, last: int) -> NDArray[Any]:
        part = self._frame[column].iloc[first:last]
        if part.dtype.name == "object" and _are_truths(part):
            part = part.astype("boolean")
        if isinstance(part.dtype, np.dtype):
            return np.asarray(part.to_numpy())
        return np.asarray(part.to_numpy(np.float64, na_value=np.nan))

    def texts(self, column: Any, first: int, last: int) -> list[Any]:
        found: list[Any] = self._frame[column].iloc[first:last].tolist()
        return found

    def whole(self, column: Any) -> Any:
        return self._frame[column]


def _are_truths(series: Any) -> bool:
    from pandas.api.types import infer_dtype

    return bool(infer_dtype(series, skipna=True) == "boolean")


class PolarsTable(Table):
    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self.columns, self.rows = list(frame.columns), frame.height
        self.name = f"a DataFrame of {len(self.columns):,} columns"

    def is_numeric(self, column: Any) -> bool:
        dtype = self._frame[column].dtype
        return bool(dtype.is_numeric() or str(dtype) == "Boolean")

    def numbers(self, column: Any, first: int, last: int) -> NDArray[Any]:
        part = self._frame[column].slice(first, last - first)
        if part.null_count():
            return np.array([np.nan if one is None else one for one in part.to_list()], np.float64)
        return np.asarray(part.to_numpy())

    def texts(self, column: Any, first: int, last: int) -> list[Any]:
        found: list[Any] = self._frame[column].slice(first, last - first).to_list()
        return found

    def whole(self, column: Any) -> Any:
        return self._frame[column]


class ArrowTable(Table):
    def __init__(self, table: Any) -> None:
        self._table = table
        self.columns, self.rows = list(table.column_names), table.num_rows
        self.name = f"a Table of {len(self.columns):,} columns"

    def is_numeric(self, column: Any) -> bool:
        kind = str(self._table.column(column).type)
        return kind.startswith(("int", "uint", "float", "double", "halffloat", "bool"))

    def numbers(self, column: Any, first: int, last: int) -> NDArray[Any]:
        """Null becomes NaN; truth values with nulls are objects."""
        part = self._table.column(column).slice(first, last - first)
        found = np.asarray(part.to_numpy())
        if found.dtype == object:
            return np.array([np.nan if one is None else one for one in found], np.float64)
        return found

    def texts(self, column: Any, first: int, last: int) -> list[Any]:
        found: list[Any] = self._table.column(column).slice(first, last - first).to_pylist()
        return found

    def whole(self, column: Any) -> Any:
        return self._table.column(column)


def arrow_of(dataset: Any) -> Any:
    """The table of a Hugging Face `Dataset`, most of it still in its files."""
    if isinstance(dataset, Mapping):
        raise DataError(
            f"X: {a_kind(dataset)} has several datasets: choose one of "
            f"{', '.join(map(repr, dataset))}"
        )
    if not isinstance(dataset, Sized):
        raise DataError(
            f"X: {a_kind(dataset)} is not there as a whole, and its columns are not known "
            "before: load it without streaming, or train on its Parquet files with label_column"
        )
    whole: Any = dataset
    return whole.with_format("arrow")[:]


def table_of(library: str, X: Any) -> Table:
    if library == "pandas":
        return PandasTable(X)
    return PolarsTable(X) if library == "polars" else ArrowTable(X)


class _Columns(RowsSource):
    def __init__(self, table: Table, label: str) -> None:
        self._table, self._label = table, label
        self.has_label = bool(label)
        self.name, self.rows = table.name, table.rows
        odd = [column for column in table.columns if not isinstance(column, str)]
        if odd:
            raise DataError(f"X: expected names of columns that are str, got {odd[0]!r:.80}")
        twice = [name for name, count in Counter(table.columns).items() if count > 1]
        if twice:
            raise DataError(f"X: expected every column once, got {twice[0]!r} more than once")
        if label and label not in table.columns:
            raise DataError(
                f"label: {self.name} has no column {label!r}: {', '.join(table.columns)[:200]}"
            )
        self._columns = [name for name in table.columns if name != label]
        if not self._columns:
            raise DataError(f"X: {self.name} has no column of features")

    def labels(self) -> Any:
        return self._table.whole(self._label)

    def _numbers(self, column: str, first: int, last: int) -> NDArray[np.float32]:
        given = self._table.numbers(column, first, last)
        with np.errstate(over="ignore"):
            found = np.asarray(given, np.float32)
        # Only NaN is missing.
        if (at := first_not_finite(np.where(np.isnan(found), np.float32(0), found))) >= 0:
            raise DataError(
                f"column {column!r}, row {first + at:,} is {given[at]}: expected finite numbers "
                "within float32's range, or a missing value"
            )
        return found

    def _steps(self) -> Iterator[tuple[int, int]]:
        step = max(1, PIECE_CELLS // len(self._columns))
        for first in range(0, self.rows, step):
            yield first, min(first + step, self.rows)


class TableRows(_Columns):
    def __init__(self, table: Table, label: str) -> None:
        super().__init__(table, label)
        self.columns, self.entries = 0, -1  # values may be missing
        self.flags = Flags.VALUES | Flags.FIELDS | Flags.WIDE | Flags.HASHED
        self._seeds = [hash_bytes(0, name.encode()) for name in self._columns]
        self._numeric = [table.is_numeric(name) for name in self._columns]

    def pieces(self) -> Iterator[Piece]:
        count = len(self._columns)
        for first, last in self._steps():
            shape = last - first, count
            keys, values = np.empty(shape, np.uint64), np.ones(shape, np.float32)
            there = np.empty(shape, np.uint8)
            for at, name in enumerate(self._columns):
                if self._numeric[at]:
                    values[:, at] = numbers = self._numbers(name, first, last)
                    keys[:, at] = hash_bytes(self._seeds[at], b"")
                    there[:, at] = ~np.isnan(numbers)
                else:
                    keys[:, at], there[:, at] = self._hashed(name, self._seeds[at], first, last)
            kept = there.view(np.bool_)
            ptr = np.concatenate(([0], np.cumsum(kept.sum(axis=1))))
            fields = np.broadcast_to(np.arange(count, dtype=np.int32), shape)
            yield Piece(
                ptr.astype(np.int64), keys[kept] >> np.uint64(1), values[kept], fields[kept]
            )

    def _hashed(
        self, name: str, seed: int, first: int, last: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        texts = self._table.texts(name, first, last)
        keys, there = np.empty(len(texts), np.uint64), np.empty(len(texts), np.uint8)
        if (at := hash_texts(seed, texts, keys, there)) >= 0:
            raise DataError(
                f"column {name!r}, row {first + at:,} is {_shown(texts[at])}: expected str or a "
                "missing value, as the column is none of numbers. Convert it, or leave it out"
            )
        return keys, there


class DenseTableRows(_Columns):
    def __init__(self, table: Table, label: str) -> None:
        super().__init__(table, label)
        texts = [name for name in self._columns if not table.is_numeric(name)]
        if texts:
            raise DataError(f"column {texts[0]!r}: expected numbers, as examples are to be dense")
        self.columns, self.entries = len(self._columns), self.rows * len(self._columns)
        self.flags = Flags.DENSE | Flags.VALUES

    def pieces(self) -> Iterator[Piece]:
        for first, last in self._steps():
            columns = [self._numbers(name, first, last) for name in self._columns]
            x = np.stack(columns, axis=1)
            missing = np.argwhere(np.isnan(x))
            if len(missing):
                row, column = missing[0].tolist()
                raise DataError(
                    f"column {self._columns[column]!r}, row {first + row:,} is missing: dense "
                    "examples have all values. Fill it, or leave the row out"
                )
            yield Piece(None, None, x.ravel(), None, len(x))


class DictRows(RowsSource):
    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows = rows
        self.rows, self.columns, self.entries = len(rows), 0, -1
        self.flags = Flags.VALUES | Flags.WIDE | Flags.HASHED
        self.name = f"a {type(rows).__name__} of {len(rows):,} dicts"
        self._kept: dict[tuple[str, str], int] = {}
        self._seeds: dict[str, int] = {}

    def pieces(self) -> Iterator[Piece]:
        ptr, keys, values, kept = [0], [], [], self._kept
        for number, row in enumerate(self._rows):
            if not isinstance(row, Mapping):
                raise DataError(
                    f"X: element {number:,} is {_shown(row)}: expected a dict from names to "
                    "numbers or strings"
                )
            for name, value in row.items():
                if isinstance(value, str):
                    text, amount = value.strip(" "), 1.0
                    if not text:
                        continue
                else:
                    text, amount = "", value
                    if type(value) is not float:
                        amount = self._amount(name, value, number)
                    if amount != amount:
                        continue
                key = kept.get((name, text))
                keys.append(self._key(name, text, number) if key is None else key)
                values.append(amount)
            ptr.append(len(keys))
            if len(keys) >= PIECE_CELLS or len(ptr) > PIECE_CELLS:
                yield self._piece(ptr, keys, values, number)
                ptr, keys, values = [0], [], []
        if len(ptr) > 1:
            yield self._piece(ptr, keys, values, self.rows - 1)

    @staticmethod
    def _amount(name: Any, value: Any, number: int) -> float:
        """The number of a feature; NaN if missing, infinite if out of range."""
        if value is None:
            return math.nan
        if isinstance(value, (int, float, np.integer, np.floating, np.bool_)):
            try:
                return float(value)
            except OverflowError:
                return math.inf
        raise DataError(
            f"X: element {number:,} has {_shown(value)} for {name!r:.80}: expected a number or a "
            "str"
        )

    def _piece(self, ptr: list[int], keys: list[int], values: list[float], last: int) -> Piece:
        with np.errstate(over="ignore"):
            floats = np.array(values, np.float64).astype(np.float32)
        if (at := first_not_finite(floats)) >= 0:
            row = last - len(ptr) + 2 + int(np.searchsorted(ptr, at, side="right")) - 1
            raise DataError(
                f"X: element {row:,} has the value {values[at]}: expected finite numbers within "
                "float32's range"
            )
        whole = np.array(keys, np.uint64) >> np.uint64(1)
        return Piece(np.array(ptr, np.int64), whole, floats, None)

    def _key(self, name: Any, text: str, number: int) -> int:
        found = self._kept.get((name, text))
        if found is not None:
            return found
        if not isinstance(name, str):
            raise DataError(f"X: element {number:,} has the name {name!r:.80}: expected a str")
        try:
            if name not in self._seeds:
                self._seeds[name] = hash_bytes(0, name.encode())
            key = hash_bytes(self._seeds[name], text.encode())
        except UnicodeEncodeError:
            raise DataError(
                f"X: element {number:,} has a text for {name!r:.80} that is no Unicode (lone "
                "surrogates)"
            ) from None
        if len(self._kept) >= NAMES_KEPT:
            self._kept.clear()
            self._seeds.clear()
        self._kept[name, text] = key
        return key


def _shown(value: Any) -> str:
    return f"{value!r:.60} ({type(value).__name__})"
