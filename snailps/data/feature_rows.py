"""Rows of features by name: tables and lists of dicts become keys and values, as cells of CSV do.

    DataTable, declared columns -> Rule.piece -> Piece, for tables in memory (TableRows), in files
    [{name: number or text}, ...] -> DictRows.pieces -> Piece

docs/design/columns.md says how tables of all kinds come to one rule, which is C.  A missing value
or empty text makes no entry.  Calls only methods of the given objects, no library.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data._examples import RowReader, hash_bytes
from snailps.data._matrix import first_not_finite
from snailps.data.columns import Column, Kind, columns_of, declaration_of
from snailps.data.elements import (
    NUMBERS,
    DataTable,
    is_missing,
    objects_of,
    shown_names,
    table_of_lists,
)
from snailps.data.matrix_file import Flags, floats
from snailps.dataclass import dataclass
from snailps.errors import DataError

PIECE_CELLS = 1 << 18
NAMES_KEPT = 1 << 20
"""Cached hashes of (name, text): dicts repeat them."""
KINDS_MAX = 1 << 16
"""Names of dicts whose kinds a model knows, below."""
_STR = "str or a missing value, as the column is none of numbers. Convert it, or leave it out"
_ANY_TEXT = "a text or a number. Declare {}:ignore in columns if it is no feature"
_AS_FITTED = "a number, as the column had when the model was fitted: convert it"
NAMED = Flags.VALUES | Flags.FIELDS | Flags.WIDE | Flags.HASHED
"""Flags of rows whose features are named, each column a field."""


Fields = Sequence[int] | NDArray[Any]


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


def dense_piece(
    ptr: NDArray[np.int64], keys: NDArray[Any], values: NDArray[np.float32] | int, columns: int
) -> Piece:
    """Rows with all their values; DataError if memory has no room."""
    try:
        x = np.zeros((len(ptr) - 1, columns), np.float32)
    except (MemoryError, ValueError):
        raise DataError(
            f"X: no memory for {len(ptr) - 1:,} dense rows of {columns:,} values: number the "
            "columns from 0 on, or choose an estimator of sparse examples"
        ) from None
    x[np.repeat(np.arange(len(x)), np.diff(ptr)), keys.astype(np.int64)] = values
    return Piece(None, None, x.ravel(), None, len(x))


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

    def write_as(self, *, fields: Fields | None = None, dense: bool = False) -> None:
        """Set how rows are given: with these fields of the columns, or with all their values."""
        if fields is not None:
            raise DataError(f"fields: expected none for {self.name}: its columns are its fields")
        if dense:
            raise DataError(f"X: {self.name} is not dense: make an array of it")

    def labels(self) -> Any:
        raise NotImplementedError

    @abstractmethod
    def pieces(self) -> Iterator[Piece]:
        """All rows in order; DataError for a value that no example can have."""


class Rule:
    """Makes examples of rows of a table: the features of docs/sparse_data.md, by `_cells.h`.

    `columns` are declared; an entry's field is its column's number among those with features.
    `path` begins messages; empty: of a table without declarations, whose texts are str.
    """

    def __init__(self, columns: Sequence[Column], path: str = "") -> None:
        self.features = [column for column in columns if column.is_feature]
        self._label = next((column for column in columns if column.kind is Kind.LABEL), None)
        self._path = path
        self._reader = RowReader(self.features, b",", 0, 0, False)

    def piece(self, table: DataTable, first: int, last: int, number: int) -> Piece:
        """The examples of some rows, without labels if the table has none.

        `number` is that of the first one, for messages.
        """
        columns = [
            self.floats(table, column, first, last, number)
            if column.kind in (Kind.NUMERIC, Kind.BUCKET)
            else self._texts(table.column(column.name), first, last)
            for column in self.features
        ]
        text_of, expected = (_text, _ANY_TEXT) if self._path else (None, _STR)
        found, odd = self._reader.of_columns(columns, last - first, text_of)
        if odd is not None:
            row, name = odd[0], self.features[odd[1]].name
            value = columns[odd[1]][row]
            raise self._wrong(name, number + row, value, expected.format(name))
        labels = None
        if self._label is not None and self._label.name in table.columns:
            labels = self._labels(table, self._label, first, last, number)
        return Piece(found.ptr, found.keys, found.values, found.fields, labels=labels)

    def _texts(self, column: Any, first: int, last: int) -> list[Any]:
        """Texts of a column; numbers of one without a declaration have their own in its place."""
        values: list[Any] = column.values(first, last)
        if self._path or not (column.is_numeric() or column.has_codes()):
            return values
        return [None if is_missing(one) else _text(one) for one in values]

    def floats(
        self, table: DataTable, column: Column, first: int, last: int, number: int
    ) -> NDArray[np.float32]:
        """A column's numbers, NaN where one is missing."""
        expected = f"a number. Declare {column.name}:categorical in columns if it has texts"
        if self._path in ("", "X"):
            expected = _AS_FITTED
        given = self._given(table, column.name, first, last, number, expected)
        found = floats(given)
        if (infinite := np.isinf(found)).any():
            at = int(infinite.argmax())
            bounds = "finite numbers within float32's range, or none"
            raise self._wrong(column.name, number + at, given[at], bounds)
        return found

    def _labels(
        self, table: DataTable, column: Column, first: int, last: int, number: int
    ) -> NDArray[np.float64]:
        expected = "a number as label: number the classes from 0 on"
        given = self._given(table, column.name, first, last, number, expected)
        labels = np.asarray(given, np.float64)
        if (at := first_not_finite(floats(labels))) >= 0:
            raise self._wrong(column.name, number + at, given[at], "a label, a finite number")
        return labels

    def _given(
        self, table: DataTable, name: str, first: int, last: int, number: int, expected: str
    ) -> NDArray[Any]:
        """A column's numbers, NaN where one is missing; refuses others."""
        column = table.column(name)
        try:
            given = column.numbers(first, last)
        except (TypeError, ValueError, NotImplementedError):  # NumPy's of texts, pyarrow's
            given = objects_of(column.values(first, last))
        if given.dtype.kind not in "biuf":
            if given.dtype.kind != "O":  # the numbers of times are no numbers of a user
                given = objects_of(column.values(first, last))
            given = objects_of([math.nan if is_missing(one) else one for one in given.tolist()])
            for at, one in enumerate(given.tolist()):
                if not isinstance(one, NUMBERS):
                    raise self._wrong(name, number + at, one, expected)
        return given

    def _wrong(self, column: str, row: int, value: object, expected: str) -> DataError:
        bare = value.item() if isinstance(value, np.generic) else value
        got = "missing" if is_missing(bare) else _shown(bare)
        where = f"{self._path}: " if self._path else ""
        return DataError(f"{where}column {column!r}, row {row:,} is {got}: expected {expected}")


def _text(value: Any) -> Any:
    """Shortest decimal text of a number; true and false as in JSON."""
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return str(value)
    if isinstance(value, (float, np.floating, Decimal)):
        return str(int(value)) if float(value).is_integer() else repr(float(value))
    return value


def numbers_of(table: DataTable, name: Any) -> NDArray[Any]:
    """A column's numbers, NaN where one is missing; DataError of the column for others."""
    return Rule((), "X")._given(table, name, 0, table.rows, 0, _AS_FITTED)


class TableRows(RowsSource):
    """Rows of a table in memory, whose columns are as declared, or by type numbers or texts.

    `kinds`: kinds of the columns that a model knows by name; they win over the types.
    """

    def __init__(
        self,
        table: DataTable,
        label: str = "",
        declared: Sequence[str] = (),
        *,
        kinds: Mapping[str, Kind] | None = None,
    ) -> None:
        self._table, self._label, self.has_label = table, label, bool(label)
        self.name, self.rows, self.columns, self.entries = table.name, table.rows, 0, -1
        self.flags = NAMED
        if declared:
            self._rule = Rule(columns_of(declared, needs_label=False), "X")
            return
        names = _names_of_features(table, label)
        by_type = {name: kind_of_column(table.column(name)) for name in names}
        known = {name: (kinds or {}).get(name, kind) for name, kind in by_type.items()}
        columns = [Column(name, kind) for name, kind in known.items()]
        self._rule = Rule(columns)

    def write_as(self, *, fields: Fields | None = None, dense: bool = False) -> None:
        super().write_as(fields=fields)
        if not dense:
            return
        for column in self._rule.features:
            if column.kind is Kind.CATEGORICAL:
                raise DataError(
                    f"column {column.name!r}: expected numbers, as examples are to be dense"
                )
        self.columns = len(self._rule.features)
        self.entries = self.rows * self.columns
        self.flags = Flags.DENSE | Flags.VALUES

    @property
    def declared(self) -> tuple[str, ...]:
        """What its columns are, as ``name:kind``."""
        return tuple(map(declaration_of, self._rule.features))

    def labels(self) -> Any:
        return self._table.column(self._label).data

    def pieces(self) -> Iterator[Piece]:
        step = max(1, PIECE_CELLS // len(self._rule.features))
        for first in range(0, self.rows, step):
            last = min(first + step, self.rows)
            if self.dense:
                yield self._dense(first, last)
            else:
                yield self._rule.piece(self._table, first, last, first)

    def _dense(self, first: int, last: int) -> Piece:
        features = self._rule.features
        columns = [self._rule.floats(self._table, one, first, last, first) for one in features]
        x = np.stack(columns, axis=1)
        missing = np.argwhere(np.isnan(x))
        if len(missing):
            row, column = missing[0].tolist()
            raise DataError(
                f"column {features[column].name!r}, row {first + row:,} is missing: dense examples "
                "have all values. Fill it, or leave the row out"
            )
        return Piece(None, None, x.ravel(), None, len(x))


def kind_of_column(column: Any) -> Kind:
    """What the type of a table's column makes it; without type and values it is of numbers, so that
    a text in it is refused where it comes, as in files."""
    return Kind.NUMERIC if column.is_numeric() or column.is_null() else Kind.CATEGORICAL


def table_of_dicts(rows: Sequence[Any], names: Sequence[str]) -> DataTable:
    """The columns of these names of a list of dicts; None where a dict lacks one."""
    for number, row in enumerate(rows):
        _check_dict(row, number)
    name = f"a {type(rows).__name__} of {len(rows):,} dicts"
    if rows and not any(row.keys() & set(names) for row in rows):
        raise DataError(
            f"X: {name} has none of the model's columns, {shown_names(names)}; element 0 has "
            f"{shown_names(list(rows[0]))}"
        )
    return table_of_lists({name: [row.get(name) for row in rows] for name in names}, name)


def _check_dict(row: Any, number: int) -> None:
    if not isinstance(row, Mapping):
        raise DataError(
            f"X: element {number:,} is {_shown(row)}: expected a dict from names to numbers or "
            "strings"
        )


def _names_of_features(table: DataTable, label: str) -> list[str]:
    odd = [column for column in table.columns if not isinstance(column, str)]
    if odd:
        raise DataError(f"X: expected names of columns that are str, got {odd[0]!r:.80}")
    twice = [name for name, count in Counter(table.columns).items() if count > 1]
    if twice:
        raise DataError(f"X: expected every column once, got {twice[0]!r} more than once")
    if label and label not in table.columns:
        raise DataError(
            f"label: {table.name} has no column {label!r}: {', '.join(table.columns)[:200]}"
        )
    names = [name for name in table.columns if name != label]
    if not names:
        raise DataError(f"X: {table.name} has no column of features")
    return names


class DictRows(RowsSource):
    """Rows of features by name, each a number or a text.

    `seen` are kinds of names that a model has seen as numbers only, or as texts only.
    """

    def __init__(self, rows: Sequence[Any], seen: Mapping[str, Kind] | None = None) -> None:
        self._rows, self._seen = rows, seen or {}
        self.rows, self.columns, self.entries = len(rows), 0, -1
        self.flags = Flags.VALUES | Flags.WIDE | Flags.HASHED
        self.name = f"a {type(rows).__name__} of {len(rows):,} dicts"
        self._kept: dict[tuple[str, str], int] = {}
        self._seeds: dict[str, int] = {}
        self._kinds: dict[str, Kind] = {}
        """By name; LABEL: it had numbers and texts."""

    def kinds(self) -> dict[str, Kind]:
        """Kinds of the names in all pieces so far, and of those that were seen before.

        Names that have both numbers and texts are left out; empty of `KINDS_MAX` names and more.
        """
        every = {**self._kinds, **self._seen}
        if len(every) >= KINDS_MAX:
            return {}
        return {name: kind for name, kind in every.items() if kind is not Kind.LABEL}

    def pieces(self) -> Iterator[Piece]:
        ptr, keys, values, kept = [0], [], [], self._kept
        for number, row in enumerate(self._rows):
            _check_dict(row, number)
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
        if isinstance(value, NUMBERS):
            try:
                return float(value)
            except OverflowError:
                return math.inf
        raise DataError(
            f"X: element {number:,} has {_shown(value)} for {name!r:.80}: expected a number or a "
            "str"
        )

    def _piece(self, ptr: list[int], keys: list[int], values: list[float], last: int) -> Piece:
        found = floats(np.array(values, np.float64))
        if (at := first_not_finite(found)) >= 0:
            row = last - len(ptr) + 2 + int(np.searchsorted(ptr, at, side="right")) - 1
            raise DataError(
                f"X: element {row:,} has the value {values[at]}: expected finite numbers within "
                "float32's range"
            )
        whole = np.array(keys, np.uint64) >> np.uint64(1)
        return Piece(np.array(ptr, np.int64), whole, found, None)

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
        self._look_at(name, text, number)
        self._kept[name, text] = key
        return key

    def _look_at(self, name: str, text: str, number: int) -> None:
        """Note what a name has; refuse what the model has not seen of it."""
        kind = Kind.CATEGORICAL if text else Kind.NUMERIC
        wanted = self._seen.get(name, kind)
        if wanted is not kind:
            kinds = {Kind.NUMERIC: "a number", Kind.CATEGORICAL: "a text"}
            raise DataError(
                f"X: element {number:,} has {kinds[kind]} for {name!r:.80}, which was "
                f"{kinds[wanted]} when the model was fitted: convert it"
            )
        if len(self._kinds) < KINDS_MAX and self._kinds.setdefault(name, kind) is not kind:
            self._kinds[name] = Kind.LABEL


def _shown(value: Any) -> str:
    return f"{value!r:.60} ({type(value).__name__})"
