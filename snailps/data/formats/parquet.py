"""Parquet: groups of rows, read some at a time, and written with what the file says of them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import groupby
from typing import IO, Any

import numpy as np

from snailps.data.extras import optional_module
from snailps.data.formats.arrow_table import ArrowTable, ArrowTarget, arrow_module, schema_with
from snailps.data.formats.table import Target, table_errors
from snailps.data.unpacking import STEP_BYTES, is_url

_SCHEMA_LINE = re.compile(
    r"(?P<depth>(  )+)(required|optional|repeated) \S+ (field_id=\S+ )?"
    r"(?P<name>.*?)( \((?P<meaning>[A-Z][A-Za-z0-9_]*.*)\))?( \{|;)"
)
"""A line of pyarrow's text of a Parquet schema."""
_HISTORY = re.compile(r", (is_from_converted_type|force_set_converted_type)=[a-z]+")
"""How the file says it, which is no part of the meaning."""
_OF_ARROW = re.compile(r"|List|Map|MAP_KEY_VALUE|Int\(bitWidth=(32|64), isSigned=true\)")
"""What says no more than the types of Parquet and Arrow."""
DICTIONARY_BYTES = 1 << 16
"""A dictionary up to this size is kept whole: it costs little beside a batch's 4 MB."""


class File(ArrowTable):
    has_parts = True

    def _open(self) -> None:
        parquet = optional_module("pyarrow.parquet", f"reading {self.path}", "snailps[data]")
        # Else a group is read in one piece; at a URL each step would be a request.
        steps: dict[str, Any] = {"pre_buffer": False, "buffer_size": STEP_BYTES}
        self._parquet = parquet.ParquetFile(
            self._file,
            page_checksum_verification=True,
            coerce_int96_timestamp_unit="us",  # in nanoseconds the year 9999 is another one
            **({} if is_url(self.path) else steps),
        )
        self.schema = self._parquet.schema_arrow

    def _record_batches(
        self, names: Sequence[str] | None, part: tuple[int, int] | None
    ) -> Iterator[Any]:
        groups = range(*(part or (0, self._parquet.num_row_groups)))
        return batches_of(self._parquet, groups, self.batch_rows, self.batch_bytes, names)

    def cuts(self, part_bytes: int) -> list[tuple[tuple[int, int], int]]:
        """Groups of rows, first and after the last, and their packed bytes."""
        cuts: list[tuple[tuple[int, int], int]] = []
        about, begin, size = self._parquet.metadata, 0, 0
        for group in range(about.num_row_groups):
            row_group = about.row_group(group)
            more = sum(
                row_group.column(at).total_compressed_size for at in range(row_group.num_columns)
            )
            if size and size + more > part_bytes:
                cuts.append(((begin, group), size))
                begin, size = group, 0
            size += more
        return [*cuts, ((begin, about.num_row_groups), size)]

    def remarks(self) -> list[str]:
        with table_errors(self.path):
            return [
                f"column {name} is {before}, which pyarrow {arrow_module().__version__} writes as "
                f"{after}: its values stay, this annotation does not"
                for name, before, after in _lost_annotations(self._parquet)
            ]

    def target(self, file: IO[bytes], added: Mapping[str, type], column: str) -> Target:
        schema = schema_with(_schema_of(self._parquet), added)
        return ParquetTarget(file, schema, _codec_of(self._parquet, column))

    def _taken(self, column: Any) -> Any:
        return _shrunk(column)


class ParquetTarget(ArrowTarget):
    def __init__(self, file: IO[bytes], schema: Any, codec: str) -> None:
        parquet = optional_module("pyarrow.parquet", "writing Parquet", "snailps[data]")
        super().__init__(schema, parquet.ParquetWriter(file, schema, compression=codec))

    def _write_table(self, table: Any) -> None:
        with suppress(arrow_module().ArrowException):  # more values than the codes' type has
            table = table.unify_dictionaries()
        super()._write_table(table)

    def abandon(self) -> None:
        self._writer.is_open = False


def batches_of(
    file: Any, groups: Iterable[int], rows_max: int, size: int, names: Sequence[str] | None = None
) -> Iterator[Any]:
    """Rows of groups of a Parquet file, of all columns or of some, about `size` bytes at a time."""
    paths = [f"{file.schema.column(at).path}." for at in range(len(file.schema))]
    wanted = "" if names is None else tuple(f"{name}." for name in names)
    places = [at for at, path in enumerate(paths) if path.startswith(wanted)]

    def rows_at_once(group: int) -> int:
        """A power of two, so that groups alike share one."""
        about = file.metadata.row_group(group)
        total = about.total_byte_size
        if len(places) < len(paths):
            total = sum(about.column(at).total_uncompressed_size for at in places)
        rows: int = max(1, size * about.num_rows // max(total, 1))
        return min(rows_max, 1 << rows.bit_length() - 1)

    for rows, alike in groupby(groups, rows_at_once):
        yield from file.iter_batches(rows, row_groups=list(alike), columns=names)


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
        if arrow_module().Codec.is_available(codec.lower()):
            return str(codec)
    return "ZSTD" if arrow_module().Codec.is_available("zstd") else "NONE"


def _schema_of(parquet: Any) -> Any:
    """The schema of a file as it is to be written: geometries keep their annotation and CRS.

    pyarrow reads these as bytes, but writes them as geometries if they are of GeoArrow's type.
    """
    schema, types = parquet.schema_arrow, arrow_module().types
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
            field = schema.field(place).with_type(geometry_type()(kind, text))
            schema = schema.set(place, field.with_metadata(known or None))
    return schema


@cache
def geometry_type() -> Any:
    """Arrow's type of geometries, by its name; geoarrow need not be there."""
    arrow = arrow_module()

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
    yield from lost(*map(annotations_of, (parquet.schema, module.ParquetFile(file).schema)))


Annotations = dict[str, list[tuple[str, str]]]
"""Of each column of a Parquet schema: parts that it says the meaning of, and what it is."""


def lost(before: Annotations, after: Annotations) -> Iterator[tuple[str, str, str]]:
    for column, parts in before.items():
        written = [kind for _, kind in after.get(column, ())]
        for path, kind in parts:
            if kind in written:
                written.remove(kind)
            else:
                yield path, kind, written[0] if written else "its bytes"


def annotations_of(schema: Any) -> Annotations:
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


def _shrunk(column: Any) -> Any:
    """A column whose dictionary, unless it is small or has an order, has no values but its own.

    Categories that no row has are of a meaning, as are their codes; URLs of other rows are not.
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
