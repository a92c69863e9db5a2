"""Rows of a task in batches: their texts, the columns of a condition, and the file of those kept.

    Task -> Source -> batches: texts, columns, rows -> Target -> a file of the kept rows

Rows keep what they have: Parquet's other columns, bytes of lines.  Memory is that of a batch.
Formats are `data.formats`'.  Must not know models or conditions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from snailps.data.columns import TRUTH, is_number
from snailps.data.extras import optional_module
from snailps.data.formats import table as formats
from snailps.data.formats.table import (
    TableFile,
    Target,
    no_column,
    raw_text,
    table_errors,
)
from snailps.data.partitions import columns_of_folders
from snailps.errors import ConfigError, DataError
from snailps.filtering.tasks import Task, open_rows
from snailps.filtering.values import Column
from snailps.vectors.texts import pieces_of
from snailps.vectors.words import to_text


class Batch:
    """Some rows of a task; `first` is the number of the first one in the task, from 1."""

    def __init__(self, table: TableFile, batch: formats.Batch, column: str, first: int) -> None:
        self.rows, self.first = batch.rows, first
        self._table, self._batch, self._has_columns = table, batch, bool(column)
        self._path, texts = table.path, batch.column(column)
        if table.is_typed:
            self._texts = _stored(texts.data)
            return
        self._texts = texts.values(0, batch.rows)
        if not column:  # lines of text, which are bytes
            return
        self._texts = list(map(raw_text, self._texts))
        if not {*map(type, self._texts)} <= {bytes, type(None)}:
            for number, text in zip(batch.numbers, self._texts, strict=True):
                if not isinstance(text, (bytes, type(None))):
                    raise DataError(
                        f"{self._path}, line {number:,}: {column!r} is no text, but {text!r:.60}"
                    )

    def has(self, name: str) -> bool:
        return name in self._batch.columns

    @property
    def names(self) -> Sequence[str]:
        return self._batch.columns

    def is_missing(self) -> NDArray[np.bool_]:
        """Rows without a text."""
        if self._table.is_typed:
            return np.asarray(self._texts.is_null().to_numpy(zero_copy_only=False), bool)
        return np.fromiter((text is None for text in self._texts), bool, self.rows)

    def texts(self, rows: NDArray[np.int64]) -> Any:
        """Texts of rows, as `LabelModel` takes them; of rows that have one."""
        if len(rows) == self.rows:
            return self._texts
        if self._table.is_typed:
            return self._texts.take(_arrow().array(rows))
        return [self._texts[row] for row in rows.tolist()]

    def some_texts(self, rows: NDArray[np.int64]) -> list[str]:
        """Texts of a few rows."""
        texts = self.texts(rows)
        texts = texts if isinstance(texts, list) else _raw(texts).to_pylist()
        return [text.decode("utf-8", "replace") for text in texts]

    def column(self, name: str) -> Column:
        """Values of a column; DataError: it has neither numbers nor texts."""
        if not self._has_columns:
            raise DataError(f"{self._path} is text, which has no column {name!r}")
        there = self.has(name)
        if not there and (self._table.is_typed or name in columns_of_folders(self._path)):
            return _column_of_folders(self._path, name, self.rows, self.names)
        data = self._batch.column(name).data
        return self._typed(name, data) if self._table.is_typed else self._untyped(name, data)

    def _typed(self, name: str, data: Any) -> Column:
        values, kinds = _stored(data), _arrow().types
        if kinds.is_dictionary(values.type):
            values = values.dictionary_decode()
        present = np.asarray(values.is_valid().to_numpy(zero_copy_only=False), bool)
        if kinds.is_null(values.type):
            return Column(np.zeros(self.rows), present)
        if any(kind(values.type) for kind in (kinds.is_string, kinds.is_large_string)):
            texts = [None if text is None else to_text(text) for text in _raw(values).to_pylist()]
            return Column(np.array(texts, object), present, are_texts=True)
        if kinds.is_integer(values.type) or kinds.is_boolean(values.type):
            whole = "uint64" if kinds.is_unsigned_integer(values.type) else "int64"
            return Column(values.cast(whole).fill_null(0).to_numpy(), present)
        if kinds.is_floating(values.type):
            numbers = np.asarray(values.cast("float64").to_numpy(zero_copy_only=False))
            return Column(numbers, ~np.isnan(numbers))
        raise DataError(
            f"{self._path}: column {name!r} is of {values.type}: expected numbers or texts"
        )

    def _untyped(self, name: str, values: list[Any]) -> Column:
        present = np.fromiter((value == value and value is not None for value in values), bool)
        kinds = {type(value) for value in values} - {type(None)}
        if kinds <= {str}:
            return Column(np.array(values, object), present, are_texts=True)
        if kinds <= {int, float, bool}:
            return Column(_numbers_of(values, kinds), present)
        numbers = self._batch.numbers
        raise DataError(
            f"{self._path}, lines {numbers[0]:,} to {numbers[-1]:,}: {name!r} has "
            f"{', '.join(sorted(kind.__name__ for kind in kinds))}: expected numbers or texts"
        )

    def kept(self, rows: NDArray[np.int64], added: Mapping[str, NDArray[Any]]) -> Any:
        """These rows for `Target.write`, with more columns (float32 or object)."""
        return self._table.kept(self._batch, rows, added)


class Source:
    """A task that is read; a context manager.  DataError: another format, or no such column."""

    def __init__(self, task: Task, column: str) -> None:
        self.task, self._column = task, column
        self._table = open_rows(task.path)
        try:
            if self._table.is_typed:
                self._check_texts()
        except BaseException:
            self._table.close()
            raise

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._table.close()

    def batches(self) -> Iterator[Batch]:
        first = 1
        with table_errors(self.task.path):
            for batch in self._table.rows(part=self.task.groups):
                yield Batch(self._table, batch, self._column, first)
                first += batch.rows

    def check(self, columns: Sequence[str], added: Mapping[str, type]) -> list[str]:
        """Remarks on the file; ConfigError or DataError: columns that it cannot have, as far as is
        known at once."""
        path, folders = self.task.path, columns_of_folders(self.task.path)
        if self._table.is_typed:
            for name in columns:
                if name not in folders:
                    self._check_there(name)
            self._check_added(added)
            return self._table.remarks()
        if not self._column:
            for name in (*columns, *added):
                raise ConfigError(f"{name}: {path} is text, which has no columns")
            return []
        first = next(self.batches(), None)
        if first is None:
            return []
        for name in added:
            if first.has(name) or name in folders:
                raise ConfigError(f"--add {name}: {path} has that name")
        if not first.has(self._column):
            raise no_column(path, self._column, first.names)
        return [
            f"none of its first {first.rows} lines has {name!r}"
            for name in columns
            if not first.has(name) and name not in folders
        ]

    def target(self, file: IO[bytes], added: Mapping[str, type]) -> Target:
        """Begin a file of the same format, with further columns of float or str."""
        if self._table.is_typed:
            self._check_added(added)
        return self._table.target(file, added, self._column)

    def _check_texts(self) -> None:
        """Whether the column has texts, or nothing at all."""
        path, column = self.task.path, self._column
        self._check_there(column)
        with table_errors(path):  # of some types there are no values
            texts = _stored(self._table.no_values(column))
        try:
            if not _arrow().types.is_null(texts.type):
                list(pieces_of(texts))
        except DataError as error:
            raise DataError(f"{path}: column {column!r}: {error}") from None

    def _check_there(self, name: str) -> None:
        count = self._table.own_names.count(name)
        if not count:
            raise no_column(self.task.path, name, self._table.own_names)
        if count > 1:
            raise DataError(f"{self.task.path} has {count} columns {name!r}")

    def _check_added(self, added: Mapping[str, type]) -> None:
        path = self.task.path
        for name in added:
            if name in self._table.own_names or name in columns_of_folders(path):
                raise ConfigError(f"--add {name}: {path} has a column of that name")
            if name.encode("utf-8", "replace").decode() != name:
                raise ConfigError(f"--add {name!a}: Parquet's names are UTF-8: NAME=... is another")


def _column_of_folders(path: str, name: str, rows: int, names: Sequence[str]) -> Column:
    """A column that stands in the names of folders, one value for all rows of a file.

    It is a number if it can be, and a text where it is compared with one.
    """
    folders = columns_of_folders(path)
    if name not in folders:
        raise no_column(path, name, [*names, *folders])
    text = folders[name]
    texts = Column(np.full(rows, text, object), np.full(rows, text is not None), are_texts=True)
    if text is None or not is_number(text):
        return texts
    numbers = [int(text) if text.isdecimal() else float(TRUTH.get(text, text))] * rows
    values = _numbers_of(numbers, {*map(type, numbers)})
    return Column(values, values == values, texts=texts.values)


def _numbers_of(values: Sequence[Any], kinds: Set[type]) -> NDArray[Any]:
    """Numbers of JSON, of a type that has all of them exactly; 0 for None."""
    there = [0 if value is None else value for value in values]
    if float not in kinds:
        with suppress(OverflowError):
            return np.array(there, np.int64)
    return np.array(there, np.float64 if int not in kinds else object)


def _stored(column: Any) -> Any:
    """A column's values as they are stored: of types of Arrow's extensions, as JSON, the texts."""
    return getattr(column, "storage", column)


def _raw(texts: Any) -> Any:
    """Texts as bytes, which need not be UTF-8 whatever their type says."""
    return texts.cast("large_binary")


def _arrow() -> Any:
    return optional_module("pyarrow", "filtering Parquet", "snailps[data]")
