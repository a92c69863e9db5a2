"""Tables that pyarrow reads, and files of some of their rows, which pyarrow writes.

Types keep their meaning: dictionaries, views, extensions.  pyarrow is imported for the first file.
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

from snailps.data.columns import Kind
from snailps.data.elements import ARROW_NUMBER, table_of
from snailps.data.extras import optional_module
from snailps.data.formats.table import RowBatch, TableFile, Target, table_errors
from snailps.data.host_cache import Make
from snailps.data.unpacking import is_sequential
from snailps.errors import DataError

GROUP_BYTES = 64 << 20
"""Bytes of rows that are written together, as they are in memory."""
_TEXT = re.compile(r"(large_)?string(_view)?|dictionary<values=(large_)?string\b.*")


class ArrowTable(TableFile):
    """A table that pyarrow reads; some rows at a time."""

    is_typed = True
    schema: Any
    """Arrow's schema of the file."""

    def _begin(self, make: Make | None) -> None:
        if is_sequential(self.path):
            self._file = self._copied(make)
        self._open()
        self._plain = _plain(self.schema)
        self._has_codes = any("dictionary<" in str(field.type) for field in self.schema)

    @abstractmethod
    def _open(self) -> None:
        """Set `schema`."""

    @abstractmethod
    def _record_batches(
        self, names: Sequence[str] | None, part: tuple[int, int] | None
    ) -> Iterator[Any]: ...

    def _names(self) -> list[str]:
        return list(self.schema.names)

    def _copied(self, make: Make | None) -> BinaryIO:
        """The content in a file of its own; closes that of the path."""
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

    def _kinds(self, but: Sequence[str]) -> dict[str, Kind]:
        kinds = {}
        for field in self.schema:
            if field.name in but:
                continue
            of = str(field.type)
            if ARROW_NUMBER.fullmatch(of):
                kinds[field.name] = Kind.NUMERIC
            elif _TEXT.fullmatch(of):
                kinds[field.name] = Kind.CATEGORICAL
            elif of != "null":
                raise DataError(
                    f"{self.path}: column {field.name!r} is of {of}: expected numbers or texts. "
                    f"Declare {field.name}:ignore in columns, or convert it"
                )
        return kinds

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
                for some in self._slices(plain):
                    yield self._batch(some, first)
                    first += some.num_rows

    def no_values(self, name: str) -> Any:
        kind = (self.schema if self._plain is None else self._plain).field(name).type
        return arrow_module().array([], kind)

    def _batch(self, record: Any, first: int) -> RowBatch:
        table = table_of(record)
        assert table is not None
        numbers = range(first, first + table.rows)
        return RowBatch(table.columns, table.rows, table.name, table.column, numbers, record)

    def _slices(self, batch: Any) -> Iterator[Any]:
        """Some rows at a time: encoded sizes say little of texts that are often the same."""
        size = sum(map(_plain_bytes, batch.columns)) if self._has_codes else batch.nbytes
        few = max(1, min(self.batch_rows, batch.num_rows * 2 * self.batch_bytes // max(1, size)))
        if 0 < batch.num_rows <= few:
            return iter([batch])
        return (batch.slice(at, few) for at in range(0, batch.num_rows, few))

    def selected(
        self, batch: RowBatch, rows: NDArray[np.int64], added: Mapping[str, NDArray[Any]]
    ) -> Any:
        arrow, record = arrow_module(), batch.raw
        with table_errors(self.path):
            columns = [self._taken(column.take(arrow.array(rows))) for column in record.columns]
        arrays = [*columns, *map(_of_array, added.values())]
        return arrow.record_batch(arrays, names=[*record.schema.names, *added])

    def _taken(self, column: Any) -> Any:
        """Some values of a column, as they are to be written."""
        return column


def schema_with(schema: Any, added: Mapping[str, type]) -> Any:
    for name, kind in added.items():
        schema = schema.append(arrow_module().field(name, "float32" if kind is float else "string"))
    return schema


class ArrowTarget(Target):
    """Writes some rows together, GROUP_BYTES in memory."""

    def __init__(self, schema: Any, writer: Any) -> None:
        self._schema, self._writer, self._bytes = schema, writer, 0
        self._waiting: list[Any] = []

    def write(self, kept: Any) -> None:
        if kept.num_rows:
            self._waiting.append(kept.cast(self._schema))
            self._bytes += kept.nbytes
        if self._bytes >= GROUP_BYTES:
            self._write_group()

    def close(self) -> None:
        if self._waiting:
            self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        table = arrow_module().Table.from_batches(self._waiting, self._schema)
        self._write_table(table)
        self._waiting, self._bytes = [], 0

    def _write_table(self, table: Any) -> None:
        self._writer.write_table(table)


def _plain(schema: Any) -> Any:
    """A schema of the same values that rows can be taken of; None: this is one."""
    if all(_plain_type(field.type) == field.type for field in schema):
        return None
    fields = [field.with_type(_plain_type(field.type)) for field in schema]
    return arrow_module().schema(fields, schema.metadata)


def _plain_type(kind: Any) -> Any:
    """A type without views, which pyarrow reads, but takes no rows of; itself if it has none."""
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
    """The columns of a batch, some or all, as a schema has them."""
    fields = [plain.field(name) for name in batch.schema.names]
    if len(batch.schema.names) == len(plain.names):
        return batch.cast(plain)
    return batch.cast(arrow_module().schema(fields))


def _plain_bytes(column: Any) -> int:
    """Size of a column, about, if its values were written out in each row."""
    size: int = column.nbytes
    if arrow_module().types.is_dictionary(column.type):
        values = column.dictionary
        size = column.indices.nbytes + len(column) * values.nbytes // max(len(values), 1)
    return size


def _of_array(values: NDArray[Any]) -> Any:
    arrow = arrow_module()
    if values.dtype == object:
        try:
            return arrow.array(values, "string")
        except UnicodeEncodeError as error:
            raise DataError(f"label {error.object!r} is no UTF-8, which Parquet has") from None
    return arrow.array(values, "float32", mask=np.isnan(values))


def arrow_module() -> Any:
    return optional_module("pyarrow", "tables of Arrow", "snailps[data]")
