"""Files of texts as batches of rows, and files of the same format made of some of them.

    file -> open_source -> batches: texts, columns, rows -> Target -> a file of the kept rows

Rows keep what they have: Parquet's other columns, bytes of lines.  Memory is that of a batch.  Must
not know models or conditions.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, NamedTuple, cast
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from snailps.data.columns import TRUTH, is_number
from snailps.data.extras import optional_module
from snailps.data.file_kinds import whole_lines
from snailps.data.partitions import columns_of_folders
from snailps.data.reading import format_of
from snailps.data.table_formats import (
    BATCH_BYTES,
    is_arrow_file,
    no_column,
    object_of,
    open_arrow,
    parquet_batches,
    raw_text,
    table_errors,
)
from snailps.data.unpacking import (
    MARK,
    STEP_BYTES,
    is_sequential,
    is_url,
    open_content,
    packing_of,
    read_errors,
    version_of,
)
from snailps.errors import ConfigError, DataError
from snailps.filtering.values import Column
from snailps.vectors.texts import pieces_of
from snailps.vectors.words import to_text

BATCH_ROWS_MAX = 1 << 14
GROUP_BYTES = 64 << 20
"""Bytes of a group of rows in Parquet, as it is in memory."""
_SCHEMA_LINE = re.compile(
    r"(?P<depth>(  )+)(required|optional|repeated) \S+ (field_id=\S+ )?"
    r"(?P<name>.*?)( \((?P<meaning>[A-Z][A-Za-z0-9_]*.*)\))?( \{|;)"
)
"""A line of pyarrow's text of a Parquet schema."""
_HISTORY = re.compile(r", (is_from_converted_type|force_set_converted_type)=[a-z]+")
"""How the file says it, which is no part of the meaning."""
_OF_ARROW = re.compile(r"|List|Map|MAP_KEY_VALUE|Int\(bitWidth=(32|64), isSigned=true\)")
"""What says no more than the types of Parquet and Arrow."""
_ARROW_BEGIN = 8
"""Bytes of Arrow's files before the first message."""
_ARROW_CODECS = {b"\x04\x22\x4d\x18": "lz4", b"\x28\xb5\x2f\xfd": "zstd"}
DICTIONARY_BYTES = 1 << 16
"""A dictionary up to this size is kept whole: it costs little beside a batch's 4 MB."""


class Task(NamedTuple):
    """A file of the input, or some groups of rows of a Parquet file, and the name of its output.

    `version` of the file differs when its content does; empty: not known.
    """

    path: str
    name: str
    groups: tuple[int, int] | None
    bytes: int
    version: str


class Batch(ABC):
    """Some rows of a task; `first` is the number of the first one in the task, from 1."""

    def __init__(self, rows: int, first: int) -> None:
        self.rows, self.first = rows, first

    @abstractmethod
    def is_missing(self) -> NDArray[np.bool_]:
        """Rows without a text."""

    @abstractmethod
    def texts(self, rows: NDArray[np.int64]) -> Any:
        """Texts of rows, as `LabelModel` takes them; of rows that have one."""

    @abstractmethod
    def column(self, name: str) -> Column:
        """Values of a column; DataError: it has neither numbers nor texts."""

    @abstractmethod
    def kept(self, rows: NDArray[np.int64], added: Mapping[str, NDArray[Any]]) -> Any:
        """Return these rows for `Target.write`, with more columns (float32 or object)."""

    def some_texts(self, rows: NDArray[np.int64]) -> list[str]:
        """Texts of a few rows."""
        texts = self.texts(rows)
        texts = texts if isinstance(texts, list) else _raw(texts).to_pylist()
        return [text.decode("utf-8", "replace") for text in texts]


class Source(ABC):
    """A task that is read; a context manager."""

    def __init__(self, task: Task, column: str) -> None:
        self.task, self._column = task, column
        self._opened = ExitStack()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @abstractmethod
    def batches(self) -> Iterator[Batch]: ...

    @abstractmethod
    def check(self, columns: Sequence[str], added: Mapping[str, type]) -> list[str]:
        """Remarks on the file; ConfigError or DataError: columns that it cannot have, as far as is
        known at once."""

    @abstractmethod
    def target(self, file: IO[bytes], added: Mapping[str, type]) -> Target:
        """Begin a file of the same format, with further columns of float or str."""


class Target(ABC):
    """A file that is written."""

    @abstractmethod
    def write(self, kept: Any) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Write its end."""

    def abandon(self) -> None:  # noqa: B027
        """The file is not wanted: nothing more is written."""


# --- Parquet and Arrow --------------------------------------------------------------------------


class _ArrowBatch(Batch):
    def __init__(self, found: Any, column: str, first: int, path: str) -> None:
        super().__init__(found.num_rows, first)
        self._found, self._texts, self._path = found, _stored(found.column(column)), path

    def is_missing(self) -> NDArray[np.bool_]:
        return np.asarray(self._texts.is_null().to_numpy(zero_copy_only=False), bool)

    def texts(self, rows: NDArray[np.int64]) -> Any:
        return self._texts if len(rows) == self.rows else self._texts.take(_arrow().array(rows))

    def column(self, name: str) -> Column:
        if name not in self._found.schema.names:
            return _column_of_folders(self._path, name, self.rows, self._found.schema.names)
        found, kinds = _stored(self._found.column(name)), _arrow().types
        if kinds.is_dictionary(found.type):
            found = found.dictionary_decode()
        present = np.asarray(found.is_valid().to_numpy(zero_copy_only=False), bool)
        if kinds.is_null(found.type):
            return Column(np.zeros(self.rows), present)
        if any(kind(found.type) for kind in (kinds.is_string, kinds.is_large_string)):
            texts = [None if text is None else to_text(text) for text in _raw(found).to_pylist()]
            return Column(np.array(texts, object), present, are_texts=True)
        if kinds.is_integer(found.type) or kinds.is_boolean(found.type):
            whole = "uint64" if kinds.is_unsigned_integer(found.type) else "int64"
            return Column(found.cast(whole).fill_null(0).to_numpy(), present)
        if kinds.is_floating(found.type):
            numbers = np.asarray(found.cast("float64").to_numpy(zero_copy_only=False))
            return Column(numbers, ~np.isnan(numbers))
        raise DataError(
            f"{self._path}: column {name!r} is of {found.type}: expected numbers or texts"
        )

    def kept(self, rows: NDArray[np.int64], added: Mapping[str, NDArray[Any]]) -> Any:
        arrow = _arrow()
        # A file of Arrow's has one dictionary a column, for all of its batches.
        shrunk = _shrunk if is_parquet(self._path) else lambda column: column
        with table_errors(self._path):
            found = [shrunk(column.take(arrow.array(rows))) for column in self._found.columns]
        arrays = [*found, *(_of_arrow(values) for values in added.values())]
        return arrow.record_batch(arrays, names=[*self._found.schema.names, *added])


class _ArrowSource(Source):
    """A table that pyarrow reads."""

    _schema: Any
    """Arrow's, of what is read; and of what is written, without what is added."""

    def __init__(self, task: Task, column: str) -> None:
        super().__init__(task, column)
        with table_errors(task.path):
            self._open()
            self._plain = _plain(self._schema)
            self._check_there(column)
            texts = _stored(_arrow().array([], self._schema.field(column).type))
            try:  # whether it has texts, or nothing at all
                if not _arrow().types.is_null(texts.type):
                    list(pieces_of(texts))
            except DataError as error:
                raise DataError(f"{task.path}: column {column!r}: {error}") from None

    @abstractmethod
    def _open(self) -> None:
        """Set `_schema`."""

    @abstractmethod
    def _record_batches(self) -> Iterator[Any]: ...

    def batches(self) -> Iterator[Batch]:
        first = 1
        with table_errors(self.task.path):
            for found in self._record_batches():
                if self._plain is not None:
                    found = found.cast(self._plain)
                # Encoded sizes say little of texts that are often the same.
                size = max(1, sum(map(_plain_bytes, found.columns)))
                few = max(1, min(BATCH_ROWS_MAX, found.num_rows * 2 * BATCH_BYTES // size))
                for at in range(0, found.num_rows, few):
                    some = found.slice(at, few)
                    yield _ArrowBatch(some, self._column, first, self.task.path)
                    first += some.num_rows

    def _check_there(self, name: str) -> None:
        count = self._schema.names.count(name)
        if not count:
            raise no_column(self.task.path, name, self._schema.names)
        if count > 1:
            raise DataError(f"{self.task.path} has {count} columns {name!r}")

    def check(self, columns: Sequence[str], added: Mapping[str, type]) -> list[str]:
        for name in columns:
            if name not in columns_of_folders(self.task.path):
                self._check_there(name)
        self._check_added(added)
        return []

    def _check_added(self, added: Mapping[str, type]) -> None:
        for name in added:
            if name in self._schema.names or name in columns_of_folders(self.task.path):
                raise ConfigError(f"--add {name}: {self.task.path} has a column of that name")
            if name.encode("utf-8", "replace").decode() != name:
                raise ConfigError(f"--add {name!a}: Parquet's names are UTF-8: NAME=... is another")

    def _schema_with(self, schema: Any, added: Mapping[str, type]) -> Any:
        self._check_added(added)
        for name, kind in added.items():
            schema = schema.append(_arrow().field(name, "float32" if kind is float else "string"))
        return schema


class _ParquetSource(_ArrowSource):
    def _open(self) -> None:
        self._parquet = _open_parquet(self.task.path, self._opened)
        self._schema = self._parquet.schema_arrow

    def _record_batches(self) -> Iterator[Any]:
        groups = range(*(self.task.groups or (0, self._parquet.num_row_groups)))
        return parquet_batches(self._parquet, groups, BATCH_ROWS_MAX, BATCH_BYTES)

    def check(self, columns: Sequence[str], added: Mapping[str, type]) -> list[str]:
        super().check(columns, added)
        with table_errors(self.task.path):
            return [
                f"column {name} is {before}, which pyarrow {_arrow().__version__} writes as "
                f"{after}: its values stay, this annotation does not"
                for name, before, after in _lost_annotations(self._parquet)
            ]

    def target(self, file: IO[bytes], added: Mapping[str, type]) -> Target:
        schema = self._schema_with(_schema_of(self._parquet), added)
        return _ParquetTarget(file, schema, _codec_of(self._parquet, self._column))


class _IpcSource(_ArrowSource):
    """A file of Arrow's, as Feather, or a stream."""

    def _open(self) -> None:
        if is_sequential(self.task.path):
            raise DataError(
                f"{self.task.path}: filtering Arrow needs a file that is not packed, and can be "
                "sought in"
            )
        file = self._opened.enter_context(open_content(self.task.path))
        self._schema, self._batches = open_arrow(file, self.task.path)

    def _record_batches(self) -> Iterator[Any]:
        return self._batches

    def target(self, file: IO[bytes], added: Mapping[str, type]) -> Target:
        with open_content(self.task.path) as read:
            is_file = is_arrow_file(read.read(_ARROW_BEGIN))
            read.seek(_ARROW_BEGIN if is_file else 0)
            codec = _codec_of_messages(read)
        return _IpcTarget(file, self._schema_with(self._schema, added), codec, is_file=is_file)


class _ArrowTarget(Target):
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
        table = _arrow().Table.from_batches(self._waiting, self._schema)
        self._writer.write_table(self._unified(table))
        self._waiting, self._bytes = [], 0

    def _unified(self, table: Any) -> Any:
        return table


class _ParquetTarget(_ArrowTarget):
    def __init__(self, file: IO[bytes], schema: Any, codec: str) -> None:
        parquet = optional_module("pyarrow.parquet", "writing Parquet", "snailps[data]")
        super().__init__(schema, parquet.ParquetWriter(file, schema, compression=codec))

    def _unified(self, table: Any) -> Any:
        with suppress(_arrow().ArrowException):  # more values than the codes' type has
            return table.unify_dictionaries()
        return table

    def abandon(self) -> None:
        self._writer.is_open = False


class _IpcTarget(_ArrowTarget):
    def __init__(self, file: IO[bytes], schema: Any, codec: str | None, *, is_file: bool) -> None:
        ipc = _arrow().ipc
        options = ipc.IpcWriteOptions(compression=codec, emit_dictionary_deltas=True)
        super().__init__(
            schema, (ipc.new_file if is_file else ipc.new_stream)(file, schema, options=options)
        )


def _codec_of_messages(file: IO[bytes]) -> str | None:
    """The codec of Arrow's messages, by the first buffer: its length, then a frame of the codec."""
    messages = _arrow().ipc.MessageReader.open_stream(file)
    with suppress(StopIteration):
        while (message := messages.read_next_message()).type == "schema":
            pass
        return _ARROW_CODECS.get(bytes(message.body[8:12]))
    return None


def _codec_of(parquet: Any, column: str) -> str:
    """The codec of the texts, or another one where it can be read only, as Hadoop's LZ4."""
    about, codec = parquet.metadata, "ZSTD"
    if about.num_row_groups:
        group = about.row_group(0)
        parts = [group.column(at) for at in range(group.num_columns)]
        texts = [part for part in parts if part.path_in_schema == column]
        codec = (texts or parts)[0].compression
    if codec == "UNCOMPRESSED":
        return "NONE"
    with suppress(ValueError):  # of a name that is not known
        if _arrow().Codec.is_available(codec.lower()):
            return str(codec)
    return "ZSTD" if _arrow().Codec.is_available("zstd") else "NONE"


def _schema_of(parquet: Any) -> Any:
    """The schema of a file as it is to be written: geometries keep their annotation and CRS.

    pyarrow reads these as bytes, but writes them as geometries if they are of GeoArrow's type.
    """
    schema, types = parquet.schema_arrow, _arrow().types
    for column in map(parquet.schema.column, range(len(parquet.schema))):
        place = schema.get_field_index(column.path)
        kind = None if place < 0 else schema.field(place).type
        if kind is None or not (types.is_binary(kind) or types.is_large_binary(kind)):
            continue
        about = json.loads(column.logical_type.to_json())
        if about["Type"] in ("Geometry", "Geography"):
            meta = {name: value for name, value in about.items() if name == "crs"}
            if about["Type"] == "Geography":
                meta["edges"] = about.get("algorithm", "spherical")
            known = dict(schema.field(place).metadata or {})
            known.pop(b"ARROW:extension:name", None)
            text = known.pop(b"ARROW:extension:metadata", json.dumps(meta).encode())
            field = schema.field(place).with_type(_geometry_type()(kind, text))
            schema = schema.set(place, field.with_metadata(known or None))
    return schema


@cache
def _geometry_type() -> Any:
    """Arrow's type of geometries, by its name; geoarrow need not be there."""
    arrow = _arrow()

    class Geometry(arrow.ExtensionType):  # type: ignore[misc, name-defined]
        def __init__(self, storage: Any, about: bytes) -> None:
            self._about = about
            super().__init__(storage, "geoarrow.wkb")

        def __arrow_ext_serialize__(self) -> bytes:
            return self._about

        @classmethod
        def __arrow_ext_deserialize__(cls, storage: Any, about: bytes) -> Any:
            return cls(storage, about)

    return Geometry


def _lost_annotations(parquet: Any) -> Iterator[tuple[str, str, str]]:
    """Columns that are written without what Parquet says of their meaning: it before, and after."""
    module = optional_module("pyarrow.parquet", "writing Parquet", "snailps[data]")
    file = io.BytesIO()
    module.ParquetWriter(file, _schema_of(parquet)).close()
    yield from _lost(*map(_annotations, (parquet.schema, module.ParquetFile(file).schema)))


Annotations = dict[str, list[tuple[str, str]]]
"""Of each column of a Parquet schema: parts that it says the meaning of, and what it is."""


def _lost(before: Annotations, after: Annotations) -> Iterator[tuple[str, str, str]]:
    for column, parts in before.items():
        written = [kind for _, kind in after.get(column, ())]
        for path, kind in parts:
            if kind in written:
                written.remove(kind)
            else:
                yield path, kind, written[0] if written else "its bytes"


def _annotations(schema: Any) -> Annotations:
    """Annotations of groups, too; without lists and maps, which some write in their own way."""
    found, above = Annotations(), list[str]()
    for line in f"{schema}".splitlines():
        if not (match := _SCHEMA_LINE.fullmatch(line)):
            continue
        del above[len(match["depth"]) // 2 - 1 :]
        above.append(match["name"])
        meaning = _HISTORY.sub("", match["meaning"] or "")
        if not _OF_ARROW.fullmatch(meaning):
            found.setdefault(above[0], []).append((".".join(above), meaning))
    return found


def _plain(schema: Any) -> Any:
    """A schema of the same values that rows can be taken of; None: this is one."""
    if all(_plain_type(field.type) == field.type for field in schema):
        return None
    fields = [field.with_type(_plain_type(field.type)) for field in schema]
    return _arrow().schema(fields, schema.metadata)


def _plain_type(kind: Any) -> Any:
    """A type without views, which pyarrow reads, but takes no rows of; itself if it has none."""
    arrow, types = _arrow(), _arrow().types
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


def _stored(column: Any) -> Any:
    """A column's values as they are stored: of types of Arrow's extensions, as JSON, the texts."""
    return getattr(column, "storage", column)


def _raw(texts: Any) -> Any:
    """Texts as bytes, which need not be UTF-8 whatever their type says."""
    return texts.cast("large_binary")


def _plain_bytes(column: Any) -> int:
    """Size of a column, about, if its values were written out in each row."""
    size: int = column.nbytes
    if _arrow().types.is_dictionary(column.type):
        values = column.dictionary
        size = column.indices.nbytes + len(column) * values.nbytes // max(len(values), 1)
    return size


def _shrunk(column: Any) -> Any:
    """A column whose dictionary, unless it is small or has an order, has no values but its own.

    Categories that no row has are of a meaning, as are their codes; URLs of other rows are not.
    """
    arrow, kind = _arrow(), column.type
    if not arrow.types.is_dictionary(kind) or kind.ordered:
        return column
    if column.dictionary.nbytes <= DICTIONARY_BYTES or "view" in str(kind.value_type):
        return column
    codes = column.indices
    used = arrow.array(np.unique(codes.drop_null()), codes.type)
    places = optional_module("pyarrow.compute", "filtering Parquet", "snailps[data]")
    return arrow.DictionaryArray.from_arrays(
        places.index_in(codes, used).cast(codes.type), column.dictionary.take(used)
    )


def _arrow() -> Any:
    return optional_module("pyarrow", "filtering Parquet", "snailps[data]")


def _of_arrow(values: NDArray[Any]) -> Any:
    arrow = _arrow()
    if values.dtype == object:
        try:
            return arrow.array(values, "string")
        except UnicodeEncodeError as error:
            raise DataError(f"label {error.object!r} is no UTF-8, which Parquet has") from None
    return arrow.array(values, "float32", mask=np.isnan(values))


def _open_parquet(path: str, opened: ExitStack) -> Any:
    if is_sequential(path):
        raise DataError(
            f"{path}: filtering Parquet needs a file that is not packed, and can be sought in"
        )
    parquet = optional_module("pyarrow.parquet", f"reading {path}", "snailps[data]")
    # Else a group is read in one piece; at a URL each step would be a request.
    steps: dict[str, Any] = {} if is_url(path) else {"pre_buffer": False, "buffer_size": STEP_BYTES}
    return parquet.ParquetFile(
        opened.enter_context(open_content(path)),
        page_checksum_verification=True,
        coerce_int96_timestamp_unit="us",  # in nanoseconds the year 9999 is another one
        **steps,
    )


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


# --- lines --------------------------------------------------------------------------------------


class _Lines(Batch):
    """Lines of text, or objects of JSON, with their newlines; blank lines are no objects.

    `line` is the number of the first one in the file.
    """

    def __init__(self, lines: list[bytes], column: str, first: int, line: int, path: str) -> None:
        self._numbers: Sequence[int] = range(line, line + len(lines))
        if column and any(map(bytes.isspace, lines)):
            there = [at for at, one in enumerate(lines) if not one.isspace()]
            lines, self._numbers = [lines[at] for at in there], [line + at for at in there]
        super().__init__(len(lines), first)
        self._lines, self._path = lines, path
        self._rows: list[dict[str, Any]] = []
        self._texts: list[Any] = [line.removesuffix(b"\n") for line in lines]
        if column:
            self._rows = [
                object_of(one, path, number)
                for one, number in zip(lines, self._numbers, strict=True)
            ]
            self._texts = [row.get(column) for row in self._rows]
            for number, text in zip(self._numbers, self._texts, strict=True):
                if not isinstance(text, (str, type(None))):
                    raise DataError(
                        f"{path}, line {number:,}: {column!r} is no text, but {text!r:.60}"
                    )
            self._texts = list(map(raw_text, self._texts))

    def has(self, name: str) -> bool:
        return any(name in row for row in self._rows)

    def names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self._rows for name in row))

    def has_already(self, name: str) -> ConfigError:
        return ConfigError(f"--add {name}: {self._path} has that name")

    def is_missing(self) -> NDArray[np.bool_]:
        return np.fromiter((text is None for text in self._texts), bool, self.rows)

    def texts(self, rows: NDArray[np.int64]) -> Any:
        return (
            self._texts if len(rows) == self.rows else [self._texts[row] for row in rows.tolist()]
        )

    def column(self, name: str) -> Column:
        if not self._rows:
            raise DataError(f"{self._path} is text, which has no column {name!r}")
        if name in columns_of_folders(self._path) and not self.has(name):
            return _column_of_folders(self._path, name, self.rows, self.names())
        values = [row.get(name) for row in self._rows]
        present = np.fromiter((value == value and value is not None for value in values), bool)
        kinds = {type(value) for value in values} - {type(None)}
        if kinds <= {str}:
            return Column(np.array(values, object), present, are_texts=True)
        if kinds <= {int, float, bool}:
            return Column(_numbers_of(values, kinds), present)
        raise DataError(
            f"{self._path}, lines {self._numbers[0]:,} to {self._numbers[-1]:,}: {name!r} has "
            f"{', '.join(sorted(kind.__name__ for kind in kinds))}: expected numbers or texts"
        )

    def kept(self, rows: NDArray[np.int64], added: Mapping[str, NDArray[Any]]) -> Any:
        lines = [self._lines[row] for row in rows.tolist()]
        if not added:
            return b"".join(lines)
        for name in added:
            if any(name in self._rows[row] for row in rows.tolist()):
                raise self.has_already(name)
        values = zip(*(array.tolist() for array in added.values()), strict=True)
        keys = [json.dumps(name) for name in added]
        return b"".join(map(_with, lines, (
            ", ".join(f"{key}: {_json(one)}" for key, one in zip(keys, some, strict=True))
            for some in values
        )))  # fmt: skip


def _numbers_of(values: Sequence[Any], kinds: Set[type]) -> NDArray[Any]:
    """Numbers of JSON, of a type that has all of them exactly; 0 for None."""
    there = [0 if value is None else value for value in values]
    if float not in kinds:
        with suppress(OverflowError):
            return np.array(there, np.int64)
    return np.array(there, np.float64 if int not in kinds else object)


def _json(value: Any) -> str:
    """A text or a number; numbers that are none are null."""
    if isinstance(value, float):
        return "null" if value != value else repr(float(f"{value:.9g}"))
    return json.dumps(value)


def _with(line: bytes, pairs: str) -> bytes:
    """An object with further names, its own bytes as they were."""
    body = line.rstrip()
    head = body[:-1].rstrip()
    comma = b"" if head.endswith(b"{") else b", "
    return head + comma + pairs.encode() + b"}" + line[len(body) :]


class _LineSource(Source):
    def __init__(self, task: Task, column: str) -> None:
        super().__init__(task, column)
        with read_errors(task.path):
            self._file = self._opened.enter_context(open_content(task.path))

    def batches(self) -> Iterator[_Lines]:
        first, line, path = 1, 1, self.task.path
        with read_errors(path):
            for data in whole_lines(self._file, path):
                lines = io.BytesIO(data).readlines()
                for at in range(0, len(lines), BATCH_ROWS_MAX):
                    some = lines[at : at + BATCH_ROWS_MAX]
                    batch = _Lines(some, self._column, first, line, path)
                    first, line = first + batch.rows, line + len(some)
                    if batch.rows:
                        yield batch

    def check(self, columns: Sequence[str], added: Mapping[str, type]) -> list[str]:
        path = self.task.path
        if not self._column:
            for name in (*columns, *added):
                raise ConfigError(f"{name}: {path} is text, which has no columns")
            return []
        first = next(self.batches(), None)
        if first is None:
            return []
        for name in added:
            if first.has(name) or name in columns_of_folders(path):
                raise first.has_already(name)
        if not first.has(self._column):
            raise no_column(path, self._column, first.names())
        return [
            f"none of its first {first.rows} lines has {name!r}"
            for name in columns
            if not first.has(name) and name not in columns_of_folders(path)
        ]

    def target(self, file: IO[bytes], added: Mapping[str, type]) -> Target:
        return _LineTarget(file, packing_of(self.task.path))


class _LineTarget(Target):
    def __init__(self, file: IO[bytes], packing: str) -> None:
        self._file = _packer(file, packing)
        self._is_own = bool(packing)

    def write(self, kept: bytes) -> None:
        self._file.write(kept)

    def close(self) -> None:
        if self._is_own:
            self._file.close()


def _packer(file: IO[bytes], packing: str) -> IO[bytes]:
    """Packs what is written, to the same bytes each time; does not close `file`."""
    if packing == ".gz":
        return cast("IO[bytes]", gzip.GzipFile("", "wb", 6, file, mtime=0))
    if packing == ".bz2":
        return bz2.BZ2File(file, "wb")
    if packing == ".xz":
        return lzma.LZMAFile(file, "wb")
    if packing == ".zst":
        zstandard = optional_module("zstandard", "writing .zst", "snailps[data]")
        return cast(
            "IO[bytes]",
            zstandard.ZstdCompressor(write_checksum=True).stream_writer(file, closefd=False),
        )
    if packing == ".lz4":
        import lz4.frame

        return cast("IO[bytes]", lz4.frame.LZ4FrameFile(file, "wb"))
    return file


# --- tasks --------------------------------------------------------------------------------------


def open_source(task: Task, column: str) -> Source:
    """Open a task; DataError: another format, or no such column."""
    kinds: dict[str | None, type[Source]] = {"parquet": _ParquetSource, "arrow": _IpcSource}
    return kinds.get(format_of(task.path), _LineSource)(task, column)


def is_parquet(path: str) -> bool:
    return format_of(path) == "parquet"


def has_columns(path: str) -> bool:
    """Whether a file says at its beginning which columns it has, and of what types."""
    return format_of(path) in ("parquet", "arrow")


def tasks_of(paths: Sequence[str], column: str, task_bytes: int) -> list[Task]:
    """Parts of files, each with the name of its output: as below the folder that all are in.

    A Parquet file is cut between groups of rows, so that none but a single group has more than
    `task_bytes`.
    """
    tasks: list[Task] = []
    for path, name in zip(paths, _names_of(paths), strict=True):
        _check(path, column)
        version = version_now(path)
        cuts = _cuts(path, task_bytes) if is_parquet(path) else []
        if len(cuts) < 2:
            size = cuts[0][1] if cuts else _size(path)
            tasks.append(Task(path, name, None, size, version))
            continue
        stem = name.removesuffix(".parquet")
        tasks += [
            Task(path, f"{stem}-{number:05d}.parquet", groups, size, version)
            for number, (groups, size) in enumerate(cuts)
        ]
    first: dict[str, Task] = {}
    for task in tasks:
        other = first.setdefault(task.name, task)
        if other is not task:
            raise ConfigError(f"{task.path} and {other.path} would both be {task.name}")
    return tasks


def _names_of(paths: Sequence[str]) -> list[str]:
    """Relative names: below the folder that all local files are in, and that of all URLs.

    Columns in the names of folders stay there, even if all files have the same.
    """

    def parts_of(path: str) -> list[str]:
        words = urlsplit(path)
        host = words.netloc.rpartition("@")[2]
        parts = [host, *words.path.split("/")] if is_url(path) else path.split("/")
        return [part for part in parts if part not in ("", ".", "..")]

    def before_columns(path: str) -> int:
        mark = MARK.search(path)
        return len(parts_of(path[: mark.start()])) if mark else len(parts_of(path)) - 1

    same = {True: 0, False: 0}
    for kind in same:
        of_kind = [path for path in paths if is_url(path) == kind]
        split = [parts_of(path)[: before_columns(path)] for path in of_kind]
        pairs = zip(min(split, default=[]), max(split, default=[]), strict=False)
        same[kind] = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return ["/".join(parts_of(path)[same[is_url(path)] :]) for path in paths]


def version_now(path: str) -> str:
    """Return a text that differs when a file's content does; empty for some URLs, as unknown."""
    if is_url(path):
        return version_of(path)
    with read_errors(path):
        found = Path(path).stat()
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"{path} is no regular file, which a filter can read more than once")
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"


def _check(path: str, column: str) -> None:
    kind = format_of(path)
    if kind not in ("parquet", "arrow", "jsonl", None):
        raise DataError(f"{path} is {kind}: filter has Parquet, Arrow, JSON lines and text")
    if kind is not None and not column:
        raise ConfigError(f"{path} is a table: name the column of its texts, --column NAME")
    if kind is None and column:
        raise ConfigError(
            f"--column {column}: {path} is text, by its name, and has no columns; tables are "
            ".parquet, .arrow and .jsonl"
        )


def _size(path: str) -> int:
    return 0 if is_url(path) else Path(path).stat().st_size


def _cuts(path: str, task_bytes: int) -> list[tuple[tuple[int, int], int]]:
    """Groups of rows, first and behind the last, and their packed bytes."""
    cuts: list[tuple[tuple[int, int], int]] = []
    with table_errors(path), ExitStack() as opened:
        about = _open_parquet(path, opened).metadata
        begin = size = 0
        for group in range(about.num_row_groups):
            row_group = about.row_group(group)
            more = sum(
                row_group.column(at).total_compressed_size for at in range(row_group.num_columns)
            )
            if size and size + more > task_bytes:
                cuts.append(((begin, group), size))
                begin, size = group, 0
            size += more
        cuts.append(((begin, about.num_row_groups), size))
    return cuts
