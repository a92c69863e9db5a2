"""Rows of a task: their texts, the columns of a condition, and the file that the kept ones go to.

    Task -> Source -> TextRows: some rows, their texts and columns -> Target -> a file of kept rows

Owns how a file describes its columns (`_FileColumns`, chosen once a file): by a schema with types
(Parquet, Arrow, ORC), line by line (JSON lines), or not at all (text).  A kept row keeps all it
has: Parquet's other columns, a line's bytes.  Memory is one batch of rows a thread.
Formats belong to `data.formats`.  Must not know models or conditions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from snailps.data.columns import TRUTH, as_float, is_number
from snailps.data.elements import decoded
from snailps.data.formats.table import (
    RowBatch,
    TableFile,
    Target,
    no_column,
    raw_text,
    table_errors,
)
from snailps.errors import ConfigError, DataError
from snailps.files.extras import optional_module
from snailps.files.lakes import fields_in, type_name
from snailps.files.partitions import columns_of_folders
from snailps.filtering.tasks import Task, open_rows
from snailps.filtering.values import Column
from snailps.vectors.texts import pieces_of
from snailps.vectors.words import to_text


class TextRows:
    """Consecutive rows of a task; `first` is the number of the first one in the task, from 1."""

    def __init__(self, columns: _FileColumns, batch: RowBatch, first: int) -> None:
        self.rows, self.first = batch.rows, first
        self._columns, self._batch = columns, batch
        self._texts = columns.texts(batch)

    def has(self, name: str) -> bool:
        """Whether one of these rows, lines of JSON, has this name, or such a field of an object."""
        if (path := _path_of(name, self._batch.columns)) is None:
            return False
        column, field = path
        return not field or any(_holds(value, field) for value in self._batch.column(column).data)

    @property
    def names(self) -> Sequence[str]:
        return self._batch.columns

    def is_missing(self) -> NDArray[np.bool_]:
        """Rows without a text."""
        return self._texts.is_missing()

    def texts(self, rows: NDArray[np.int64]) -> Any:
        """Texts of `rows`, each of which has one, as `LabelModel` takes them."""
        return self._texts.all if len(rows) == self.rows else self._texts.take(rows)

    def shown_texts(self, rows: NDArray[np.int64]) -> list[str]:
        """Texts of a few rows for a reader; bytes that are not UTF-8 are replaced."""
        return [text.decode("utf-8", "replace") for text in self._texts.raw(self.texts(rows))]

    def column(self, name: str) -> Column:
        """Values of a column.

        DataError: the file has no such column, or it holds neither numbers nor texts.
        """
        return self._columns.values(self._batch, name)

    def selected(self, rows: NDArray[np.int64], added: Mapping[str, NDArray[Any]]) -> Any:
        """`rows` for `Target.write`, with further columns (float32, bool or object)."""
        return self._columns.table.selected(self._batch, rows, added)


class OpenTask:
    """An open task; a context manager.

    DataError: the file is of another format than its name says, or has no such column.
    """

    def __init__(self, task: Task, column: str, *, skips_bad: bool = False) -> None:
        self.task = task
        self._table = open_rows(task.path, skips_bad=skips_bad)
        self._columns = _columns_of(self._table, column)
        try:
            self._columns.check_texts()
        except BaseException:
            self._table.close()
            raise

    def __enter__(self) -> OpenTask:
        return self

    def __exit__(self, *_: object) -> None:
        self._table.close()

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[TextRows]:
        """All rows.  `columns`: the only ones that are read beside the texts; the batches have
        other sizes then."""
        first, names = 1, None
        if columns is not None and self._table.is_typed:
            asked = (self._columns.text_column, *columns)
            paths = [_path_of(name, self._table.own_names) for name in asked]
            names = list(dict.fromkeys(path[0] for path in paths if path is not None))
        with table_errors(self.task.path):
            for batch in self._table.rows(names or None, self.task.groups):
                yield TextRows(self._columns, batch, first)
                first += batch.rows

    @property
    def bad_lines(self) -> tuple[int, str]:
        """Malformed lines left out so far, and what the first one was."""
        return self._table.bad_lines, self._table.first_bad

    def check(
        self, columns: Sequence[str], added: Mapping[str, type], computed: Sequence[str] = ()
    ) -> list[str]:
        """Check names before anything is written; return remarks about the file.

        `computed`: names by which a condition means no column.

        ConfigError or DataError: the file cannot have these columns.  JSON lines may have other
        names later, so their first batch decides: `check` reads it, and the source is used up.
        """
        return self._columns.check(columns, added, computed, lambda: next(self.batches(), None))

    def target(self, file: IO[bytes], added: Mapping[str, type]) -> Target:
        """Begin a file of the same format, with further columns of float, bool or str."""
        self._columns.check_added(added)
        return self._table.target(file, added, self._columns.text_column)


class _Texts(ABC):
    """The texts of some rows, in the form that the format stores and `LabelModel` takes."""

    def __init__(self, texts: Any) -> None:
        self.all = texts

    @abstractmethod
    def is_missing(self) -> NDArray[np.bool_]: ...

    @abstractmethod
    def take(self, rows: NDArray[np.int64]) -> Any: ...

    @staticmethod
    @abstractmethod
    def raw(texts: Any) -> list[bytes]:
        """The bytes of texts that `take` returned."""


class _ArrowTexts(_Texts):
    def is_missing(self) -> NDArray[np.bool_]:
        return np.asarray(self.all.is_null().to_numpy(zero_copy_only=False), bool)

    def take(self, rows: NDArray[np.int64]) -> Any:
        return self.all.take(_arrow().array(rows))

    @staticmethod
    def raw(texts: Any) -> list[bytes]:
        raw: list[bytes] = _raw(texts).to_pylist()
        return raw


class _ListedTexts(_Texts):
    def is_missing(self) -> NDArray[np.bool_]:
        return np.fromiter((text is None for text in self.all), bool, len(self.all))

    def take(self, rows: NDArray[np.int64]) -> Any:
        return [self.all[row] for row in rows.tolist()]

    @staticmethod
    def raw(texts: Any) -> list[bytes]:
        return list(texts)


class _FileColumns(ABC):
    """How a file describes its columns: what can be checked before reading, and what values are."""

    def __init__(self, table: TableFile, text_column: str) -> None:
        self.table, self.text_column = table, text_column

    @property
    def path(self) -> str:
        return self.table.path

    def check_texts(self) -> None:  # noqa: B027
        """DataError: the file says, before it is read, that the column has no texts."""

    def check_added(self, added: Mapping[str, type]) -> None:  # noqa: B027
        """ConfigError: the file says, before it is read, that it cannot have these columns."""

    def _refuse_columns(self, names: Iterable[str]) -> None:
        """ConfigError: the file has columns, or fields, of names that mean something else."""
        for name in names:
            column, _, field = name.partition(".")
            raise ConfigError(
                f'--keep: {self.path} has {name!r} itself: write {column}["{field}"] for what it '
                "has, or rename it for what is computed now"
            )

    @abstractmethod
    def check(
        self,
        columns: Sequence[str],
        added: Mapping[str, type],
        computed: Sequence[str],
        first_rows: Callable[[], TextRows | None],
    ) -> list[str]:
        """`OpenTask.check`; `first_rows` reads the first batch."""

    @abstractmethod
    def texts(self, batch: RowBatch) -> _Texts: ...

    @abstractmethod
    def values(self, batch: RowBatch, name: str) -> Column: ...


def _columns_of(table: TableFile, text_column: str) -> _FileColumns:
    """The only place that asks which way of describing columns a file has."""
    if table.is_typed:
        return _SchemaColumns(table, text_column)
    return (_JsonColumns if text_column else _NoColumns)(table, text_column)


class _SchemaColumns(_FileColumns):
    """Parquet, Arrow, ORC: a schema gives each column's name and type before any row is read."""

    def check_texts(self) -> None:
        self._check_once(self.text_column)
        # Reading no values can fail too: pyarrow lacks some types.
        with table_errors(self.path):
            texts = self._no_values(self.text_column)
        try:
            if not _arrow().types.is_null(texts.type):
                list(pieces_of(texts))
        except DataError as error:
            raise DataError(f"{self.path}: column {self.text_column!r}: {error}") from None

    def check_added(self, added: Mapping[str, type]) -> None:
        for name in added:
            if name in self.table.names:
                raise ConfigError(
                    f"--add {name}: {self.path} has a column of that name: choose another name, "
                    "NAME=..."
                )
            if name.encode("utf-8", "replace").decode() != name:
                raise ConfigError(
                    f"--add {name!a}: a column name in Parquet is UTF-8, and this one is not: "
                    "choose another name, NAME=..."
                )

    def check(
        self,
        columns: Sequence[str],
        added: Mapping[str, type],
        computed: Sequence[str],
        first_rows: Callable[[], TextRows | None],
    ) -> list[str]:
        self._refuse_columns(filter(self._has, computed))
        for name in columns:
            self._check_once(name)
            if _path_of(name, self.table.own_names) is not None:  # also the last file's, in time
                self._column(name, self._no_values(name))
        self.check_added(added)
        return self.table.remarks()

    def _has(self, name: str) -> bool:
        if _path_of(name, self.table.names) is None:
            return False
        with suppress(DataError):  # a column without such a field
            self._no_values(name)
            return True
        return False

    def texts(self, batch: RowBatch) -> _Texts:
        texts = self._stored_values(batch, self.text_column)
        if texts is None:
            return _ArrowTexts(self._nulls(batch.rows))
        has_codes = _arrow().types.is_dictionary(texts.type)
        if not has_codes or texts.dictionary.null_count:  # a code of null would count as a text
            texts = decoded(texts)
        return _ArrowTexts(texts)

    def values(self, batch: RowBatch, name: str) -> Column:
        if (stored := self._stored_values(batch, name)) is None:
            if name in self.table.folders or not self._is_listed(name):
                return _constant_column(self.path, self.table.folders, name, batch)
            stored = self._nulls(batch.rows)
        return self._column(name, stored)

    def _column(self, name: str, stored: Any) -> Column:
        values, types = decoded(stored), _arrow().types
        present = np.asarray(values.is_valid().to_numpy(zero_copy_only=False), bool)
        if types.is_null(values.type):
            return Column(np.zeros(len(present)), present)
        if types.is_string(values.type) or types.is_large_string(values.type):
            texts = [None if text is None else to_text(text) for text in _raw(values).to_pylist()]
            return Column(np.array(texts, object), present, are_texts=True)
        if types.is_integer(values.type) or types.is_boolean(values.type):
            whole = "uint64" if types.is_unsigned_integer(values.type) else "int64"
            return Column(values.cast(whole).fill_null(0).to_numpy(), present)
        if types.is_floating(values.type):
            numbers = np.asarray(values.to_numpy(zero_copy_only=False))
            return Column(numbers, ~np.isnan(numbers))
        raise DataError(
            f"{self.path}: column {name!r} has type {values.type}: expected numbers or texts"
        )

    def _nulls(self, rows: int) -> Any:
        """Texts of rows of a file that was written before its table got the column or field."""
        return _arrow().nulls(rows, "string")

    def _is_listed(self, name: str) -> bool:
        """Whether the table whose list has this file has this column, or field in one."""
        fields = self.table.listed_columns
        while (path := _path_of(name, fields)) is not None:
            kind, name = fields[path[0]], path[1]
            if not name or type_name(kind) == "map":
                return True
            fields = fields_in(kind)
        return False

    def _stored_values(self, batch: RowBatch, name: str) -> Any:
        """Values of a column, or of a field in one; None: the file has no such column."""
        if (path := _path_of(name, batch.columns)) is None:
            return None
        return self._field(_stored(batch.column(path[0]).data), *path)

    def _no_values(self, name: str) -> Any:
        """An empty array of a column's or field's type."""
        path = _path_of(name, self.table.own_names)
        if path is None:
            if name not in self.table.names and not self._is_listed(name):
                raise no_column(self.path, name, self.table.names)
            return self._nulls(0)
        return self._field(_stored(self.table.no_values(path[0])), *path)

    def _field(self, values: Any, column: str, path: str) -> Any:
        """The values of a field of structs, or of a key of maps; an empty path is the column.

        DataError: there is no such field.
        """
        types = _arrow().types
        while path:
            values = decoded(values)
            if types.is_map(values.type):
                return self._looked_up(values, column, path)
            if not types.is_struct(values.type):
                raise DataError(
                    f"{self.path}: column {column!r} has type {values.type}, which has no field "
                    f"{path!r}: expected a struct or a map"
                )
            fields = [field.name for field in values.type]
            if (inner := _path_of(path, fields)) is None:
                if self._is_listed(f"{column}.{path}"):
                    return self._nulls(len(values))
                raise no_column(f"{self.path}: column {column!r}", path, fields)
            compute = optional_module("pyarrow.compute", "fields of structs", "snailps[data]")
            values = _stored(compute.struct_field(values, fields.index(inner[0])))
            column, path = f"{column}.{inner[0]}", inner[1]
        return values

    def _looked_up(self, values: Any, column: str, text: str) -> Any:
        """The values of a key of maps, whose keys may be of any type that a text can be cast to."""
        arrow = _arrow()
        compute = optional_module("pyarrow.compute", "fields of maps", "snailps[data]")
        try:
            key = arrow.scalar(text).cast(values.type.key_type)
            return compute.map_lookup(values, key, "first")
        except arrow.ArrowException:
            raise DataError(
                f"{self.path}: cannot look up {text!r} in column {column!r}, whose keys have type "
                f"{values.type.key_type}: expected texts or numbers"
            ) from None

    def _check_once(self, name: str) -> None:
        """DataError: the file has no such column, or several."""
        path = _path_of(name, self.table.names)
        if path is None:
            raise no_column(self.path, name, self.table.names)
        if (count := self.table.names.count(path[0])) > 1:
            raise DataError(f"{self.path} has {count} columns {path[0]!r}: rename all but one")
        with table_errors(self.path):
            self._no_values(name)


class _JsonColumns(_FileColumns):
    """JSON lines: each line has its own names, and a value may be of any type."""

    def check(
        self,
        columns: Sequence[str],
        added: Mapping[str, type],
        computed: Sequence[str],
        first_rows: Callable[[], TextRows | None],
    ) -> list[str]:
        rows = first_rows()
        if rows is None:
            return []
        self._refuse_columns(filter(rows.has, computed))
        folders = columns_of_folders(self.path)
        for name in added:
            if name in rows.names or name in folders:
                raise ConfigError(
                    f"--add {name}: {self.path} has that name: choose another one, NAME=..."
                )
        if not rows.has(self.text_column):
            raise no_column(self.path, self.text_column, rows.names)
        return [
            f"none of its first {rows.rows} lines has {name!r}"
            for name in columns
            if not rows.has(name) and name not in folders
        ]

    def texts(self, batch: RowBatch) -> _Texts:
        skips = self.table.skips_bad
        texts = list(map(raw_text, self._listed(batch, self.text_column, any_value=skips)))
        if {*map(type, texts)} <= {bytes, type(None)}:
            return _ListedTexts(texts)
        if skips:
            return _ListedTexts([text if isinstance(text, bytes) else None for text in texts])
        line, text = next(
            (line, text)
            for line, text in zip(batch.numbers, texts, strict=True)
            if not isinstance(text, (bytes, type(None)))
        )
        raise DataError(
            f"{self.path}, line {line:,}: expected a text in {self.text_column!r}, got {text!r:.60}"
        )

    def values(self, batch: RowBatch, name: str) -> Column:
        if name not in batch.columns and name in (folders := columns_of_folders(self.path)):
            return _constant_column(self.path, folders, name, batch)
        values = self._listed(batch, name)
        present = np.fromiter((value == value and value is not None for value in values), bool)
        types = {type(value) for value in values} - {type(None)}
        if types <= {str}:
            return Column(np.array(values, object), present, are_texts=True)
        if types <= {int, float, bool}:
            return Column(_numbers_of(values, types), present)
        lines = batch.numbers
        raise DataError(
            f"{self.path}, lines {lines[0]:,} to {lines[-1]:,}: {name!r} has "
            f"{', '.join(sorted(kind.__name__ for kind in types))}: expected numbers or texts"
        )

    def _listed(self, batch: RowBatch, name: str, *, any_value: bool = False) -> list[Any]:
        """Values of a name, or of a name in an object; None where a line lacks it, and with
        `any_value` also where it has no object."""
        column, path = _path_of(name, batch.columns) or (name, "")
        values: list[Any] = batch.column(column).data
        if not path:
            return values
        return [
            self._inside(value, path, column, line, any_value)
            for line, value in zip(batch.numbers, values, strict=True)
        ]

    def _inside(self, value: Any, path: str, column: str, line: int, any_value: bool) -> Any:
        while path and value is not None:
            if not isinstance(value, dict):
                if any_value:
                    return None
                raise DataError(
                    f"{self.path}, line {line:,}: expected an object with {path!r} in {column!r}, "
                    f"got {value!r:.60}"
                )
            name, path = _path_of(path, value) or (path, "")
            value = value.get(name)
        return value


class _NoColumns(_FileColumns):
    """Text: a line is a text, and there is nothing else."""

    def check(
        self,
        columns: Sequence[str],
        added: Mapping[str, type],
        computed: Sequence[str],
        first_rows: Callable[[], TextRows | None],
    ) -> list[str]:
        for name in (*columns, *added):
            raise ConfigError(f"{name}: {self.path} is text, which has no columns")
        return []

    def texts(self, batch: RowBatch) -> _Texts:
        return _ListedTexts(batch.column("").values(0, batch.rows))

    def values(self, batch: RowBatch, name: str) -> Column:
        raise DataError(f"{self.path} is text, which has no column {name!r}")


def _path_of(name: str, names: Container[str]) -> tuple[str, str] | None:
    """A column and the path of a field in it, for ``column.field.field``; None: no such column.

    The longest beginning that is a column counts, since names of columns may have dots.
    """
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        if (column := ".".join(parts[:count])) in names:
            return column, ".".join(parts[count:])
    return None


def _holds(value: Any, field: str) -> bool:
    """Whether an object has a field of this path, also one without a value."""
    while field:
        if not isinstance(value, dict) or (path := _path_of(field, value)) is None:
            return False
        value, field = value[path[0]], path[1]
    return True


def _constant_column(
    path: str, folders: Mapping[str, str | None], name: str, batch: RowBatch
) -> Column:
    """A column in the names of folders (``day=7/``), or null: one value for all rows of a file.

    A value that reads as a number is one, and a text where it is compared with a text: the name
    of a folder has no type.  DataError: no folder has this name either.
    """
    rows = batch.rows
    if name not in folders:
        raise no_column(path, name, [*batch.columns, *folders])
    text = folders[name]
    texts = Column(np.full(rows, text, object), np.full(rows, text is not None), are_texts=True)
    if text is None or not is_number(text):
        return texts
    numbers = [int(text) if text.isdecimal() else as_float(TRUTH.get(text, text))] * rows
    values = _numbers_of(numbers, {*map(type, numbers)})
    return Column(values, values == values, texts=texts.values)


def _numbers_of(values: Sequence[Any], types: Set[type]) -> NDArray[Any]:
    """JSON numbers in a type that holds all of them exactly; 0 for None.

    Integers beyond int64, and integers beside floats, stay Python's own: float64 would round ids.
    """
    numbers = [0 if value is None else value for value in values]
    if float not in types:
        with suppress(OverflowError):
            return np.array(numbers, np.int64)
    return np.array(numbers, np.float64 if int not in types else object)


def _stored(column: Any) -> Any:
    """A column's stored values: of an Arrow extension type such as JSON, the texts below it."""
    return getattr(column, "storage", column)


def _raw(texts: Any) -> Any:
    """Texts as bytes: a file may declare UTF-8 and hold other bytes."""
    return texts.cast("large_binary")


def _arrow() -> Any:
    return optional_module("pyarrow", "filtering Parquet", "snailps[data]")
