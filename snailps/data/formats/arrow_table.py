"""Tables that pyarrow reads, and files of selected rows, which pyarrow writes.

    File.schema, record batches -> ArrowTable -> RowBatch -> selected -> ArrowTarget

Owns what Parquet, Arrow and ORC have in common: bounded batches, and types that keep their meaning
(dictionaries, views, extensions).  A format adds how a file is opened and its batches are read.
pyarrow is imported for the first file.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from snailps.data.columns import ColumnKind
from snailps.data.elements import ARROW_CODES, ARROW_NUMBER, decoded, table_of
from snailps.data.formats.table import RowBatch, TableFile, Target, table_errors
from snailps.errors import DataError
from snailps.files.extras import optional_module
from snailps.files.host_cache import Make
from snailps.files.unpacking import is_sequential

GROUP_BYTES = 64 << 20
"""Bytes of rows, as they are in memory, written together: a row group of Parquet, say."""
_RUNS = re.compile(r"run_end_encoded<run_ends: int[0-9]+, values: (.*)>")
_TEXT = re.compile(r"(large_)?string(_view)?|dictionary<values=(large_)?string\b.*")


class ArrowTable(TableFile):
    """A table that pyarrow reads."""

    is_typed = True
    schema: Any
    """The Arrow schema of the file."""

    def _begin(self, make: Make | None) -> None:
        if is_sequential(self.path):  # pyarrow seeks: to the footer, then to columns
            self._file = self._copied(make)
        self._open()
        self._plain = _plain(self.schema)
        codes = ("dictionary<", "run_end_encoded<")
        self._has_codes = any(code in str(field.type) for field in self.schema for code in codes)

    @abstractmethod
    def _open(self) -> None:
        """Set `schema`."""

    @abstractmethod
    def _record_batches(
        self, names: Sequence[str] | None, part: tuple[int, int] | None
    ) -> Iterator[Any]:
        """Record batches of these columns (None: all), of the whole file or of a part (`cuts`)."""

    def _names(self) -> list[str]:
        return list(self.schema.names)

    def _copied(self, make: Make | None) -> BinaryIO:
        """The unpacked content in a file of its own; closes the packed one."""
        with self._file as packed, ExitStack() as stack:
            if make is None:
                copy = cast(BinaryIO, stack.enter_context(tempfile.TemporaryFile()))
                shutil.copyfileobj(packed, copy, self.batch_bytes)
                copy.seek(0)
            else:
                scratch = make("its content")
                while piece := packed.read(self.batch_bytes):
                    scratch.write(piece)
                copy = stack.enter_context(scratch.path.open("rb"))
            stack.pop_all()
        return copy

    def _kinds(self, but: Sequence[str]) -> dict[str, ColumnKind]:
        kinds, coded = {}, self._coded()
        for field in self.schema:
            if field.name in but:
                continue
            type_name = _RUNS.sub(r"\1", str(field.type))
            if field.name in coded or ARROW_CODES.match(type_name):
                kinds[field.name] = ColumnKind.CATEGORICAL
            elif ARROW_NUMBER.fullmatch(type_name):
                kinds[field.name] = ColumnKind.NUMERIC
            elif _TEXT.fullmatch(type_name):
                kinds[field.name] = ColumnKind.CATEGORICAL
            elif type_name != "null":
                raise self.odd_type(field.name, type_name)
        return kinds

    def has_numbers(self, name: str) -> bool:
        kind, types = self.schema.field(name).type, arrow_module().types
        has_codes = types.is_dictionary(kind) or types.is_run_end_encoded(kind)
        return ARROW_NUMBER.fullmatch(str(kind.value_type if has_codes else kind)) is not None

    def _coded(self) -> set[str]:
        """Columns of numbers that were categories to who wrote the file, though no type says so."""
        return set()

    def rows(
        self, names: Sequence[str] | None = None, part: tuple[int, int] | None = None
    ) -> Iterator[RowBatch]:
        chosen = None if names is None else [name for name in names if name in self.own_names]
        for name in chosen or ():
            if (count := self.own_names.count(name)) > 1:
                raise DataError(f"{self.path} has {count} columns {name!r}: rename one")
        first = 1
        with table_errors(self.path):
            for batch in self._record_batches(chosen, part):
                plain = batch if self._plain is None else _cast(batch, self._plain)
                for part_of_batch in self._slices(plain):
                    yield self._batch(part_of_batch, first)
                    first += part_of_batch.num_rows

    def no_values(self, name: str) -> Any:
        kind = (self.schema if self._plain is None else self._plain).field(name).type
        return arrow_module().array([], kind)

    def _batch(self, record: Any, first: int) -> RowBatch:
        table = table_of(record)
        assert table is not None
        numbers = range(first, first + table.rows)
        return RowBatch(table.columns, table.rows, table.name, table.column, numbers, record)

    def _slices(self, batch: Any) -> Iterator[Any]:
        """Parts of a record batch that are small when decoded.

        A dictionary or run of equal texts may be a thousand times as large once each row has its
        own, so the file's own batches bound nothing.
        """
        size = sum(map(_plain_bytes, batch.columns)) if self._has_codes else batch.nbytes
        rows = max(1, min(self.batch_rows, batch.num_rows * 2 * self.batch_bytes // max(1, size)))
        if 0 < batch.num_rows <= rows:
            return iter([batch])
        return (batch.slice(first, rows) for first in range(0, batch.num_rows, rows))

    def selected(
        self, batch: RowBatch, rows: NDArray[np.int64], added: Mapping[str, NDArray[Any]]
    ) -> Any:
        arrow, record = arrow_module(), batch.raw
        with table_errors(self.path):
            places = arrow.array(rows)
            columns = [self._to_write(_taken(column, places)) for column in record.columns]
        arrays = [*columns, *map(_of_array, added.values())]
        return arrow.record_batch(arrays, names=[*record.schema.names, *added])

    def _to_write(self, column: Any) -> Any:
        """Selected values of a column, in the form that is written."""
        return column


def schema_with(schema: Any, added: Mapping[str, type]) -> Any:
    """A schema with further columns of float, bool or str."""
    names = {float: "float32", bool: "bool", str: "string"}
    for name, kind in added.items():
        schema = schema.append(arrow_module().field(name, names[kind]))
    return schema


class ArrowTarget(Target):
    """Collects rows and writes them together: a filter keeps few of each batch."""

    def __init__(self, schema: Any, writer: Any) -> None:
        self._schema, self._writer, self._bytes = schema, writer, 0
        self._waiting: list[Any] = []
        """Record batches not written yet, `_bytes` in memory, `GROUP_BYTES` at most."""

    def write(self, kept: Any) -> None:
        if kept.num_rows:
            self._waiting.append(kept.cast(self._schema))
            self._bytes += kept.nbytes
        if self._bytes >= GROUP_BYTES:
            self.write_group()

    def close(self) -> None:
        if self._waiting:
            self.write_group()
        self._writer.close()

    def write_group(self) -> None:
        table = arrow_module().Table.from_batches(self._waiting, self._schema)
        self._write_table(table)
        self._waiting, self._bytes = [], 0

    def _write_table(self, table: Any) -> None:
        self._writer.write_table(table)


def _taken(column: Any, places: Any) -> Any:
    """Values at these places, in the column's type; pyarrow takes none from runs."""
    if not arrow_module().types.is_run_end_encoded(column.type):
        return column.take(places)
    compute = optional_module("pyarrow.compute", "reading runs", "snailps[data]")
    return compute.run_end_encode(decoded(column).take(places), column.type.run_end_type)


def _plain(schema: Any) -> Any:
    """A schema of the same values from which rows can be taken; None: this one will do."""
    if all(_plain_type(field.type) == field.type for field in schema):
        return None
    fields = [field.with_type(_plain_type(field.type)) for field in schema]
    return arrow_module().schema(fields, schema.metadata)


def _plain_type(kind: Any) -> Any:
    """The same type without views: pyarrow reads views, but its `take` refuses them."""
    arrow, types = arrow_module(), arrow_module().types
    if "_view" not in str(kind):
        return kind
    plain = {"string_view": "large_string", "binary_view": "large_binary"}.get(str(kind))
    if plain is not None:
        return getattr(arrow, plain)()
    if types.is_struct(kind):
        return arrow.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if types.is_map(kind):
        return arrow.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind):
        make = arrow.list_ if types.is_list(kind) else arrow.large_list
        return make(kind.value_field.with_type(_plain_type(kind.value_type)))
    if types.is_dictionary(kind):
        return arrow.dictionary(kind.index_type, _plain_type(kind.value_type), kind.ordered)
    return kind


def _cast(batch: Any, plain: Any) -> Any:
    """The columns of a batch, which may be fewer than the schema's, in the schema's types."""
    fields = [plain.field(name) for name in batch.schema.names]
    if len(batch.schema.names) == len(plain.names):
        return batch.cast(plain)
    return batch.cast(arrow_module().schema(fields))


def _plain_bytes(column: Any) -> int:
    """Estimated size of a column if each row had its own copy of its value."""
    size: int = column.nbytes
    if arrow_module().types.is_dictionary(column.type):
        values = column.dictionary
        size = column.indices.nbytes + len(column) * values.nbytes // max(len(values), 1)
    elif arrow_module().types.is_run_end_encoded(column.type):
        size = len(column) * column.values.nbytes // max(len(column.values), 1)
    return size


def _of_array(values: NDArray[Any]) -> Any:
    arrow = arrow_module()
    if values.dtype == object:
        try:
            return arrow.array(values, "string")
        except UnicodeEncodeError as error:
            raise DataError(
                f"label {error.object!r} is not UTF-8, as texts in Parquet, Arrow and ORC have to "
                "be: leave it out of --add"
            ) from None
    if values.dtype == bool:
        return arrow.array(values)
    return arrow.array(values, "float32", mask=np.isnan(values))


def arrow_module() -> Any:
    return optional_module("pyarrow", "tables of Arrow", "snailps[data]")
