"""Parquet: row groups, read batch by batch; written with the annotations of the file's columns.

Owns what pyarrow would lose on the way: geometries, instants, other writers' copies of the schema,
dictionaries of a bounded size, the codec.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import groupby
from typing import IO, Any

import numpy as np

from snailps.data.elements import ARROW_CODES
from snailps.data.formats.arrow_table import ArrowTable, ArrowTarget, arrow_module, schema_with
from snailps.data.formats.table import Target, table_errors
from snailps.files.extras import optional_module
from snailps.files.unpacking import STEP_BYTES, is_url

_SCHEMA_LINE = re.compile(
    r"(?P<depth>(  )+)(required|optional|repeated) \S+ (field_id=\S+ )?"
    r"(?P<name>.*?)( \((?P<meaning>[A-Z][A-Za-z0-9_]*.*)\))?( \{|;)"
)
"""A line of pyarrow's text of a Parquet schema."""
_HISTORY = re.compile(r", (is_from_converted_type|force_set_converted_type)=[a-z]+")
"""Parts of an annotation about its encoding in the file, not about the meaning."""
_OF_ARROW = re.compile(r"|List|Map|MAP_KEY_VALUE|Int\(bitWidth=(32|64), isSigned=true\)")
"""Annotations that say no more than the type itself."""
DICTIONARY_BYTES = 1 << 16
"""A dictionary up to this size is kept whole: it costs little beside a batch's 4 MB."""


class ParquetFile(ArrowTable):
    has_parts = True

    def _open(self) -> None:
        parquet = optional_module("pyarrow.parquet", f"reading {self.path}", "snailps[data]")
        # By default pyarrow reads a column of a row group in one piece, often 100 MB.  At a URL it
        # should: each step would be a request.
        steps: dict[str, Any] = {"pre_buffer": False, "buffer_size": STEP_BYTES}
        self._parquet = parquet.ParquetFile(
            self._file,
            page_checksum_verification=True,
            coerce_int96_timestamp_unit="us",  # in nanoseconds int64 ends in 2262 and wraps round
            **({} if is_url(self.path) else steps),
        )
        self.schema = self._parquet.schema_arrow

    def _record_batches(
        self, names: Sequence[str] | None, part: tuple[int, int] | None
    ) -> Iterator[Any]:
        groups = range(*(part or (0, self._parquet.num_row_groups)))
        return batches_of(self._parquet, groups, self.batch_rows, self.batch_bytes, names)

    def cuts(self, part_bytes: int) -> list[tuple[tuple[int, int], int]]:
        """Row groups, first and after the last, and their packed bytes."""
        cuts: list[tuple[tuple[int, int], int]] = []
        metadata, begin, size = self._parquet.metadata, 0, 0
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            columns = map(row_group.column, range(row_group.num_columns))
            group_bytes = sum(column.total_compressed_size for column in columns)
            if size and size + group_bytes > part_bytes:
                cuts.append(((begin, group), size))
                begin, size = group, 0
            size += group_bytes
        return [*cuts, ((begin, metadata.num_row_groups), size)]

    def _coded(self) -> set[str]:
        """By the Arrow schema or pandas' description in the file; Parquet has no such type."""
        metadata = self._parquet.metadata.metadata or {}
        coded = set()
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            raw = base64.b64decode(metadata[b"ARROW:schema"])
            stored = arrow_module().ipc.read_schema(arrow_module().py_buffer(raw))
            coded = {field.name for field in stored if ARROW_CODES.match(str(field.type))}
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            described = json.loads(metadata[b"pandas"])["columns"]
            coded |= {
                column.get("field_name", column["name"])
                for column in described
                if column["pandas_type"] == "categorical"
            }
        return coded

    def remarks(self) -> list[str]:
        with table_errors(self.path):
            return [
                f"column {name} is {before}, which pyarrow {arrow_module().__version__} writes as "
                f"{after}: its values are kept, the annotation is lost"
                for name, before, after in _lost_annotations(self._parquet)
            ]

    def target(self, file: IO[bytes], added: Mapping[str, type], column: str) -> Target:
        schema = schema_with(_schema_of(self._parquet), added)
        stored = schema.metadata or {}
        if (copies := _copies_with(stored, added)) != stored:
            schema = schema.with_metadata(copies)
        return ParquetTarget(file, schema, _codec_of(self._parquet, column))

    def _to_write(self, column: Any) -> Any:
        return _shrunk(column)


class ParquetTarget(ArrowTarget):
    def __init__(self, file: IO[bytes], schema: Any, codec: str) -> None:
        parquet = optional_module("pyarrow.parquet", "writing Parquet", "snailps[data]")
        super().__init__(schema, parquet.ParquetWriter(file, schema, compression=codec))

    def _write_table(self, table: Any) -> None:
        # Each batch has its own dictionary; a row group's column has one.  If the codes' type
        # cannot number all values of it, the dictionaries stay as they are.
        with suppress(arrow_module().ArrowException):
            table = table.unify_dictionaries()
        super()._write_table(table)

    def abandon(self) -> None:
        # Else the writer's destructor would write a footer into a file that is being removed.
        self._writer.is_open = False


def batches_of(
    file: Any, groups: Iterable[int], rows_max: int, size: int, names: Sequence[str] | None = None
) -> Iterator[Any]:
    """Record batches of row groups of a Parquet file, about `size` bytes each.

    `names` selects columns, None: all.
    """
    paths = [f"{file.schema.column(leaf).path}." for leaf in range(len(file.schema))]
    wanted = "" if names is None else tuple(f"{name}." for name in names)
    leaves = [leaf for leaf, path in enumerate(paths) if path.startswith(wanted)]

    def rows_at_once(group: int) -> int:
        """A power of two: groups of about the same size then share one reader."""
        row_group = file.metadata.row_group(group)
        total = row_group.total_byte_size
        if len(leaves) < len(paths):
            total = sum(row_group.column(leaf).total_uncompressed_size for leaf in leaves)
        rows: int = max(1, size * row_group.num_rows // max(total, 1))
        return min(rows_max, 1 << rows.bit_length() - 1)

    for rows, alike in groupby(groups, rows_at_once):
        yield from file.iter_batches(rows, row_groups=list(alike), columns=names)


def _codec_of(parquet: Any, column: str) -> str:
    """The codec of the texts' column; Zstandard if pyarrow only reads it, such as Hadoop's LZ4."""
    metadata, codec = parquet.metadata, "ZSTD"
    if metadata.num_row_groups:
        row_group = metadata.row_group(0)
        columns = [row_group.column(leaf) for leaf in range(row_group.num_columns)]
        texts = [part for part in columns if part.path_in_schema == column]
        codec = (texts or columns)[0].compression
    if codec == "UNCOMPRESSED":
        return "NONE"
    with suppress(ValueError):  # a name that pyarrow does not know
        if arrow_module().Codec.is_available(codec.lower()):
            return str(codec)
    return "ZSTD" if arrow_module().Codec.is_available("zstd") else "NONE"


def _schema_of(parquet: Any) -> Any:
    """The schema to write: the file's own, in which instants and geometries keep their meaning.

    INT96 is an instant for its writers, Spark, Hive and Impala; pyarrow reads a time without zone.
    pyarrow reads a geometry as bytes, and writes one where a column has GeoArrow's extension type.
    """
    schema, types = parquet.schema_arrow, arrow_module().types
    physical = [parquet.schema.column(leaf).physical_type for leaf in range(len(parquet.schema))]
    if "INT96" in physical:
        leaves = iter(physical)
        fields = [field.with_type(_with_instants(field.type, leaves)) for field in schema]
        schema = arrow_module().schema(fields, schema.metadata)
    for column in map(parquet.schema.column, range(len(parquet.schema))):
        place = schema.get_field_index(column.path)
        kind = None if place < 0 else schema.field(place).type
        if kind is None or not (types.is_binary(kind) or types.is_large_binary(kind)):
            continue
        annotation = json.loads(column.logical_type.to_json())
        if annotation["Type"] in ("Geometry", "Geography"):
            extension = {name: value for name, value in annotation.items() if name == "crs"}
            if annotation["Type"] == "Geography":
                extension["edges"] = annotation.get("algorithm", "spherical")
            metadata = dict(schema.field(place).metadata or {})
            metadata.pop(b"ARROW:extension:name", None)
            text = metadata.pop(b"ARROW:extension:metadata", json.dumps(extension).encode())
            field = schema.field(place).with_type(geometry_type()(kind, text))
            schema = schema.set(place, field.with_metadata(metadata or None))
    return schema


def _with_instants(kind: Any, leaves: Iterator[str]) -> Any:
    """A type in which times that are INT96 in the file have the zone UTC.

    `leaves`: physical types of the file's columns, in the order of the leaves of its Arrow types.
    """
    arrow, types = arrow_module(), arrow_module().types

    def inner(field: Any) -> Any:
        return field.with_type(_with_instants(field.type, leaves))

    if isinstance(kind, arrow.BaseExtensionType):
        for _ in range(_leaves_of(kind.storage_type)):
            next(leaves)
        return kind
    if types.is_struct(kind):
        return arrow.struct([inner(field) for field in kind])
    if types.is_map(kind):
        return arrow.map_(inner(kind.key_field), inner(kind.item_field), kind.keys_sorted)
    if types.is_large_list(kind):
        return arrow.large_list(inner(kind.value_field))
    if types.is_fixed_size_list(kind):
        return arrow.list_(inner(kind.value_field), kind.list_size)
    if types.is_list(kind):
        return arrow.list_(inner(kind.value_field))
    return arrow.timestamp(kind.unit, "UTC") if next(leaves) == "INT96" else kind


def _leaves_of(kind: Any) -> int:
    """Columns of Parquet that an Arrow type is stored in."""
    fields = [kind.field(place) for place in range(kind.num_fields)]
    return sum(_leaves_of(field.type) for field in fields) if fields else 1


def _copies_with(metadata: Mapping[bytes, bytes], added: Mapping[str, type]) -> dict[bytes, bytes]:
    """The metadata of a file that gets further columns.

    Spark and Avro believe their own copy of the schema, and not the file's.  A copy that cannot
    list the columns is left out: then they read the file's.
    """
    copies = dict(metadata)
    for key, extended in _COPIES.items() if added else ():
        if key in copies:
            try:
                copies[key] = json.dumps(extended(json.loads(copies[key]), added)).encode()
            except (ValueError, KeyError, TypeError, AttributeError):
                del copies[key]
    return copies


_COPIED_TYPES = {float: "float", bool: "boolean", str: "string"}
"""Types of added columns, as Spark and Avro name them."""


def _spark_schema(schema: Any, added: Mapping[str, type]) -> Any:
    for name, kind in added.items():
        field = {"name": name, "type": _COPIED_TYPES[kind], "nullable": True, "metadata": {}}
        schema["fields"].append(field)
    return schema


def _avro_schema(schema: Any, added: Mapping[str, type]) -> Any:
    for name, kind in added.items():
        if not _AVRO_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name in Avro")
        types = ["null", _COPIED_TYPES[kind]]
        schema["fields"].append({"name": name, "type": types, "default": None})
    return schema


_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COPIES: dict[bytes, Callable[[Any, Mapping[str, type]], Any]] = {
    b"org.apache.spark.sql.parquet.row.metadata": _spark_schema,
    b"parquet.avro.schema": _avro_schema,
    b"avro.schema": _avro_schema,
}
"""By key of a file's metadata that has a copy of its schema, how columns are added to it."""


@cache
def geometry_type() -> Any:
    """GeoArrow's extension type, by name: the library itself need not be installed."""
    arrow = arrow_module()

    class Geometry(arrow.ExtensionType):  # type: ignore[misc, name-defined]
        def __init__(self, storage: Any, metadata: bytes) -> None:
            self._metadata = metadata
            super().__init__(storage, "geoarrow.wkb")

        def __arrow_ext_serialize__(self) -> bytes:
            return self._metadata

        @classmethod
        def __arrow_ext_deserialize__(cls, storage: Any, metadata: bytes) -> Any:
            return cls(storage, metadata)

    return Geometry


def _lost_annotations(parquet: Any) -> Iterator[tuple[str, str, str]]:
    """Columns whose annotation this pyarrow cannot write: path, annotation read, and written.

    Found by writing a file without rows and comparing the schemas: releases of pyarrow differ.
    """
    module = optional_module("pyarrow.parquet", "writing Parquet", "snailps[data]")
    file = io.BytesIO()
    module.ParquetWriter(file, _schema_of(parquet)).close()
    yield from lost(*map(annotations_of, (parquet.schema, module.ParquetFile(file).schema)))


Annotations = dict[str, list[tuple[str, str]]]
"""By top-level column of a Parquet schema: paths with an annotation, and the annotation."""


def lost(before: Annotations, after: Annotations) -> Iterator[tuple[str, str, str]]:
    """Path, annotation before, and annotation after, of those that differ."""
    for column, parts in before.items():
        written = [kind for _, kind in after.get(column, ())]
        for path, kind in parts:
            if kind in written:
                written.remove(kind)
            else:
                yield path, kind, written[0] if written else "its bytes"


def annotations_of(schema: Any) -> Annotations:
    """The annotations of a Parquet schema, read from pyarrow's text of it.

    Groups count too, which its objects do not show; lists and maps do not, because writers name
    their levels differently.
    """
    annotations, path = Annotations(), list[str]()
    for line in f"{schema}".splitlines():
        if not (match := _SCHEMA_LINE.fullmatch(line)):
            continue
        del path[len(match["depth"]) // 2 - 1 :]
        path.append(match["name"])
        meaning = _HISTORY.sub("", match["meaning"] or "")
        if not _OF_ARROW.fullmatch(meaning):
            annotations.setdefault(path[0], []).append((".".join(path), meaning))
    return annotations


def _shrunk(column: Any) -> Any:
    """A column without the dictionary values that none of its rows uses.

    Small and ordered dictionaries stay whole: a category without rows means something.  Large ones
    hold texts such as URLs, and each batch would write the texts of all rows that were not kept.
    """
    arrow, kind = arrow_module(), column.type
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
