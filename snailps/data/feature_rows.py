"""Rows with named features: tables and lists of dicts become keys and values, as cells of CSV do.

    DataTable, declared columns -> Rule.piece -> Piece, for tables in memory (TableRows) and files
    [{name: number or text}, ...] -> DictRows.pieces -> Piece

A missing value or empty text makes no entry.  CSV, Parquet, data frames and dicts all get their
keys and values from one rule in C (`_cells.h`), so the same table gives the same keys in every form
(docs/design/columns.md).  Must not know libraries: calls methods of the objects.
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
from snailps.data.columns import ColumnKind, DeclaredColumn, columns_of, declaration_of
from snailps.data.elements import (
    NUMBERS,
    DataTable,
    is_missing,
    objects_of,
    shown_names,
    table_of_lists,
)
from snailps.dataclass import dataclass
from snailps.errors import DataError
from snailps.files._matrix import first_not_finite
from snailps.files.matrix_file import Flags, floats

PIECE_CELLS = 1 << 18
"""Cells of a table, or entries of dicts, in a piece."""
NAMES_KEPT = 1 << 20
"""Cached hashes of (name, text), since dicts repeat them; the cache is emptied beyond."""
KINDS_MAX = 1 << 16
"""A model remembers the kinds of fewer names of dicts; of more it remembers none."""
_STR = "a str or a missing value, since the column is not numeric. Convert it, or leave it out"
_ANY_TEXT = "a text or a number. Declare {}:ignore in columns if it is no feature"
_AS_FITTED = "a number, since the column had numbers when the model was fitted: convert it"
NAMED = Flags.VALUES | Flags.FIELDS | Flags.WIDE | Flags.HASHED
"""Flags of rows with named features; an entry's field is its column."""


Fields = Sequence[int] | NDArray[Any]


@dataclass(frozen=True, slots=True)
class ExampleRows:
    """Consecutive rows of examples, sparse or dense.

    Sparse: row i has the entries ``ptr[i]`` to before ``ptr[i + 1]`` (int64 (n + 1,), from 0) of
    `keys` (uint32 or uint64), `values` (float32; None: all 1) and `fields` (int32, or None).
    Dense: `values` (float32 or uint8) row by row, `dense_rows` of them; `ptr` and `keys` are None.
    `labels`, `weights`: those that came with the rows, or None.
    """

    ptr: NDArray[np.int64] | None
    keys: NDArray[Any] | None
    values: NDArray[Any] | None
    fields: NDArray[np.int32] | None
    dense_rows: int = 0
    labels: NDArray[np.float64] | None = None
    weights: NDArray[np.float32] | None = None

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
) -> ExampleRows:
    """Rows with all their values, zeros included; entries of one key are added.

    DataError: not enough memory.
    """
    try:
        x = np.zeros((len(ptr) - 1, columns), np.float32)
    except (MemoryError, ValueError):
        raise DataError(
            f"X: no memory for {len(ptr) - 1:,} dense rows of {columns:,} values: number the "
            "columns from 0 without gaps, or choose an estimator for sparse examples"
        ) from None
    rows = np.repeat(np.arange(len(x)), np.diff(ptr))
    np.add.at(x.ravel(), rows * columns + keys.astype(np.int64), values)
    return ExampleRows(None, None, x.ravel(), None, len(x))


class RowsSource(ABC):
    """A source of rows of examples.

    Attributes
    ----------
    name : str
        Describes the data, for messages.
    flags : Flags
        Of the matrix file that the rows make.  VALUES may be set though all values will be 1.
    rows, entries : int
        How many there are; -1: unknown before the last piece.
    columns : int
        Keys are below; 0: keys are hashes.
    """

    name: str
    flags: Flags
    rows: int
    entries: int
    columns: int
    has_label = False
    """Whether `labels` may be called: a column of labels was named."""

    @property
    def dense(self) -> bool:
        return Flags.DENSE in self.flags

    def write_as(self, *, fields: Fields | None = None, dense: bool = False) -> None:
        """Set the form of the pieces, before the first one.

        `fields`: the field of each column.  `dense`: rows with all their values.  DataError: this
        source cannot have that form.
        """
        if fields is not None:
            raise DataError(f"fields: expected none for {self.name}: its columns are its fields")
        if dense:
            raise DataError(f"X: {self.name} is not dense: convert it to an array")

    def labels(self) -> Any:
        raise NotImplementedError

    @abstractmethod
    def pieces(self) -> Iterator[ExampleRows]:
        """All rows in order; DataError: a value that no example can have, with its row."""


class Rule:
    """Makes examples from rows of a table: the features of docs/sparse_data.md, by `_cells.h`.

    `columns`: declarations; an entry's field is its column's number among the features.  `path`:
    for messages; empty: a table in memory without declarations, whose texts have to be str.
    """

    def __init__(self, columns: Sequence[DeclaredColumn], path: str = "") -> None:
        self.features = [column for column in columns if column.is_feature]
        self._label = next((column for column in columns if column.kind is ColumnKind.LABEL), None)
        self._path = path
        self._reader = RowReader(self.features, b",", 0, 0, False)

    def piece(self, table: DataTable, first: int, last: int, number: int) -> ExampleRows:
        """The examples of rows `first` to before `last`, without labels if the table has none.

        `number`: the first row's number, for messages.
        """
        columns = [
            self.floats(table, column, first, last, number)
            if column.kind in (ColumnKind.NUMERIC, ColumnKind.BUCKET)
            else self._texts(table.column(column.name), first, last)
            for column in self.features
        ]
        text_of, expected = (_text, _ANY_TEXT) if self._path else (None, _STR)
        examples, odd_cell = self._reader.of_columns(columns, last - first, text_of)
        if odd_cell is not None:
            row, name = odd_cell[0], self.features[odd_cell[1]].name
            value = columns[odd_cell[1]][row]
            raise self._wrong(name, number + row, value, expected.format(name))
        labels = None
        if self._label is not None and self._label.name in table.columns:
            labels = self._labels(table, self._label, first, last, number)
        return ExampleRows(
            examples.ptr, examples.keys, examples.values, examples.fields, labels=labels
        )

    def _texts(self, column: Any, first: int, last: int) -> list[Any]:
        """Texts of a categorical column.

        Without declarations the type decides, and numbers that are categories by type (pandas'
        category, Arrow's dictionary) become their texts here.  With declarations any number may be
        a category, and the loop asks for its text.
        """
        values: list[Any] = column.values(first, last)
        if self._path or not (column.is_numeric() or column.has_codes()):
            return values
        return [None if is_missing(value) else _text(value) for value in values]

    def floats(
        self, table: DataTable, column: DeclaredColumn, first: int, last: int, number: int
    ) -> NDArray[np.float32]:
        """A column's numbers as float32, NaN where one is missing."""
        expected = f"a number. Declare {column.name}:categorical in columns if it has texts"
        if self._path in ("", "X"):
            expected = _AS_FITTED
        numbers = self.numbers(table, column.name, first, last, number, expected)
        narrow = floats(numbers)
        if (infinite := np.isinf(narrow)).any():
            row = int(infinite.argmax())
            bounds = "a finite number within float32's range, or a missing value"
            raise self._wrong(column.name, number + row, numbers[row], bounds)
        return narrow

    def _labels(
        self, table: DataTable, column: DeclaredColumn, first: int, last: int, number: int
    ) -> NDArray[np.float64]:
        expected = "a number as label: number the classes from 0 on"
        numbers = self.numbers(table, column.name, first, last, number, expected)
        labels = np.asarray(numbers, np.float64)
        if (row := first_not_finite(floats(labels))) >= 0:
            raise self._wrong(column.name, number + row, numbers[row], "a label, a finite number")
        return labels

    def numbers(
        self, table: DataTable, name: str, first: int, last: int, number: int, expected: str
    ) -> NDArray[Any]:
        """A column's numbers in their own type, NaN where one is missing.

        DataError, with `expected`: a value is no number.
        """
        column = table.column(name)
        try:
            numbers = column.numbers(first, last)
        except (TypeError, ValueError, NotImplementedError):  # NumPy for texts, and pyarrow
            numbers = objects_of(column.values(first, last))
        if numbers.dtype.kind not in "biuf":
            if numbers.dtype.kind != "O":  # a time is stored as a number, but is none to its user
                numbers = objects_of(column.values(first, last))
            values = [math.nan if is_missing(value) else value for value in numbers.tolist()]
            numbers = objects_of(values)
            for row, value in enumerate(values):
                if not isinstance(value, NUMBERS):
                    raise self._wrong(name, number + row, value, expected)
        return numbers

    def _wrong(self, column: str, row: int, value: object, expected: str) -> DataError:
        bare = value.item() if isinstance(value, np.generic) else value
        got = "missing" if is_missing(bare) else _shown(bare)
        where = f"{self._path}: " if self._path else ""
        return DataError(f"{where}column {column!r}, row {row:,} is {got}: expected {expected}")


def _text(value: Any) -> Any:
    """The text of a number as a category: the shortest decimal, true and false as in JSON.

    Values of other types are returned unchanged.
    """
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return str(value)
    if isinstance(value, (float, np.floating, Decimal)):
        return str(int(value)) if float(value).is_integer() else repr(float(value))
    return value


def numbers_of(table: DataTable, name: Any) -> NDArray[Any]:
    """All numbers of a column, NaN where one is missing; DataError: a value is no number."""
    return Rule((), "X").numbers(table, name, 0, table.rows, 0, _AS_FITTED)


class TableRows(RowsSource):
    """Rows of a table in memory.

    Columns are what `declared` says; without it, numbers or texts by their types.  `kinds`: kinds
    by name that a model knows; they win over the types.
    """

    def __init__(
        self,
        table: DataTable,
        label: str = "",
        declared: Sequence[str] = (),
        *,
        kinds: Mapping[str, ColumnKind] | None = None,
    ) -> None:
        self._table, self._label, self.has_label = table, label, bool(label)
        self.name, self.rows, self.columns, self.entries = table.name, table.rows, 0, -1
        self.flags = NAMED
        if declared:
            self._rule = Rule(columns_of(declared, needs_label=False), "X")
            return
        names = _names_of_features(table, label)
        by_type = {name: kind_of_column(table.column(name)) for name in names}
        columns = [
            DeclaredColumn(name, (kinds or {}).get(name, kind)) for name, kind in by_type.items()
        ]
        self._rule = Rule(columns)

    def write_as(self, *, fields: Fields | None = None, dense: bool = False) -> None:
        super().write_as(fields=fields)
        if not dense:
            return
        for column in self._rule.features:
            if column.kind is ColumnKind.CATEGORICAL:
                raise DataError(
                    f"column {column.name!r}: expected numbers, since examples are dense: leave it "
                    "out, or encode it"
                )
        self.columns = len(self._rule.features)
        self.entries = self.rows * self.columns
        self.flags = Flags.DENSE | Flags.VALUES

    @property
    def declared(self) -> tuple[str, ...]:
        """Declarations ``name:kind`` of its features."""
        return tuple(map(declaration_of, self._rule.features))

    def labels(self) -> Any:
        return self._table.column(self._label).data

    def pieces(self) -> Iterator[ExampleRows]:
        step = max(1, PIECE_CELLS // len(self._rule.features))
        for first in range(0, self.rows, step):
            last = min(first + step, self.rows)
            if self.dense:
                yield self._dense(first, last)
            else:
                yield self._rule.piece(self._table, first, last, first)

    def _dense(self, first: int, last: int) -> ExampleRows:
        features = self._rule.features
        columns = [
            self._rule.floats(self._table, column, first, last, first) for column in features
        ]
        x = np.stack(columns, axis=1)
        missing = np.argwhere(np.isnan(x))
        if len(missing):
            row, column = missing[0].tolist()
            raise DataError(
                f"column {features[column].name!r}, row {first + row:,} is missing: dense examples "
                "have all values. Fill it, or leave the row out"
            )
        return ExampleRows(None, None, x.ravel(), None, len(x))


def kind_of_column(column: Any) -> ColumnKind:
    """Kind of a column by its type.

    A column without type and values counts as numeric, so that a later text in it is refused with
    its row, as in files.
    """
    return ColumnKind.NUMERIC if column.is_numeric() or column.is_null() else ColumnKind.CATEGORICAL


def table_of_dicts(rows: Sequence[Any], names: Sequence[str]) -> DataTable:
    """A list of dicts as a table with these columns; None where a dict lacks a name.

    DataError: an element is no dict, or no dict has any of the names.
    """
    for number, row in enumerate(rows):
        _check_dict(row, number)
    name = f"a {type(rows).__name__} of {len(rows):,} dicts"
    if rows and not any(row.keys() & set(names) for row in rows):
        raise DataError(
            f"X: {name} has none of the model's columns, which are {shown_names(names)}; element 0 "
            f"has {shown_names(list(rows[0]))}"
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
        raise DataError(
            f"X: expected column names of type str, got {odd[0]!r:.80}: rename the column"
        )
    twice = [name for name, count in Counter(table.columns).items() if count > 1]
    if twice:
        raise DataError(f"X: expected every column once, got {twice[0]!r} more than once")
    if label and label not in table.columns:
        raise DataError(
            f"label: {table.name} has no column {label!r}: {', '.join(table.columns)[:200]}"
        )
    names = [name for name in table.columns if name != label]
    if not names:
        raise DataError(f"X: {table.name} has no column of features, only the labels")
    return names


class DictRows(RowsSource):
    """A list of dicts from names to numbers or texts.

    There are no columns: names are hashed as they come.  `seen`: kinds of the names that a model
    has seen with numbers only, or with texts only; other values of them are refused.
    """

    def __init__(self, rows: Sequence[Any], seen: Mapping[str, ColumnKind] | None = None) -> None:
        self._rows, self._seen = rows, seen or {}
        self.rows, self.columns, self.entries = len(rows), 0, -1
        self.flags = Flags.VALUES | Flags.WIDE | Flags.HASHED
        self.name = f"a {type(rows).__name__} of {len(rows):,} dicts"
        self._keys: dict[tuple[str, str], int] = {}
        """Cached hashes by name and text; the text of a number is empty."""
        self._seeds: dict[str, int] = {}
        """Cached hashes of names."""
        self._kinds: dict[str, ColumnKind] = {}
        """By name; LABEL stands for both numbers and texts."""

    def kinds(self) -> dict[str, ColumnKind]:
        """Kinds of the names in the pieces read so far, and of those seen before.

        Names with both numbers and texts are left out; empty from `KINDS_MAX` names on.
        """
        every = {**self._kinds, **self._seen}
        if len(every) >= KINDS_MAX:
            return {}
        return {name: kind for name, kind in every.items() if kind is not ColumnKind.LABEL}

    def pieces(self) -> Iterator[ExampleRows]:
        ptr, keys, values, cached = [0], [], [], self._keys
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
                key = cached.get((name, text))
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

    def _piece(
        self, ptr: list[int], keys: list[int], values: list[float], last: int
    ) -> ExampleRows:
        """A piece; `last` is the number of its last row, for messages."""
        narrow = floats(np.array(values, np.float64))
        if (entry := first_not_finite(narrow)) >= 0:
            row = last - len(ptr) + 2 + int(np.searchsorted(ptr, entry, side="right")) - 1
            raise DataError(
                f"X: element {row:,} has the value {values[entry]}: expected a finite number "
                "within float32's range"
            )
        file_keys = np.array(keys, np.uint64) >> np.uint64(1)  # the upper 63 bits of the hash
        return ExampleRows(np.array(ptr, np.int64), file_keys, narrow, None)

    def _key(self, name: Any, text: str, number: int) -> int:
        """The 64-bit hash of a name and a text, cached; `number` of the row, for messages."""
        if not isinstance(name, str):
            raise DataError(f"X: element {number:,} has the name {name!r:.80}: expected a str")
        try:
            if name not in self._seeds:
                self._seeds[name] = hash_bytes(0, name.encode())
            key = hash_bytes(self._seeds[name], text.encode())
        except UnicodeEncodeError:
            raise DataError(
                f"X: element {number:,} has a name or text with a lone surrogate, {name!r:.80}: it "
                "is no text. Decode the bytes that it comes from"
            ) from None
        if len(self._keys) >= NAMES_KEPT:
            self._keys.clear()
            self._seeds.clear()
        self._look_at(name, text, number)
        self._keys[name, text] = key
        return key

    def _look_at(self, name: str, text: str, number: int) -> None:
        """Note the kind of a name's value; refuse one that the model has not seen.

        Called when a hash is not cached, so not for each entry: hashes of a name's numbers and
        of its texts are different cache entries, so each kind is seen at least once.
        """
        kind = ColumnKind.CATEGORICAL if text else ColumnKind.NUMERIC
        wanted = self._seen.get(name, kind)
        if wanted is not kind:
            kinds = {ColumnKind.NUMERIC: "a number", ColumnKind.CATEGORICAL: "a text"}
            raise DataError(
                f"X: element {number:,} has {kinds[kind]} for {name!r:.80}, which was "
                f"{kinds[wanted]} when the model was fitted: convert it"
            )
        if len(self._kinds) < KINDS_MAX and self._kinds.setdefault(name, kind) is not kind:
            self._kinds[name] = ColumnKind.LABEL


def _shown(value: Any) -> str:
    return f"{value!r:.60} ({type(value).__name__})"
