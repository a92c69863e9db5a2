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
import logging
import lzma
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, cast
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from snailps.data.extras import optional_module
from snailps.data.file_kinds import whole_lines
from snailps.data.reading import format_of
from snailps.data.table_formats import (
    BATCH_BYTES,
    no_column,
    object_of,
    parquet_batches,
    raw_text,
    table_errors,
)
from snailps.data.unpacking import (
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
log = logging.getLogger(__name__)


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
    def check(self, columns: Sequence[str], added: Mapping[str, type]) -> None:
        """ConfigError or DataError: columns that it cannot have, as far as is known at once."""

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


# --- Parquet ------------------------------------------------------------------------------------


class _ArrowBatch(Batch):
    def __init__(self, found: Any, column: str, first: int, path: str) -> None:
        super().__init__(found.num_rows, first)
        self._found, self._texts, self._path = found, _taken(found.column(column)), path

    def is_missing(self) -> NDArray[np.bool_]:
        return np.asarray(self._texts.is_null().to_numpy(zero_copy_only=False), bool)

    def texts(self, rows: NDArray[np.int64]) -> Any:
        return self._texts if len(rows) == self.rows else self._texts.take(_arrow().array(rows))

    def column(self, name: str) -> Column:
        if name not in self._found.schema.names:
            raise no_column(self._path, name, self._found.schema.names)
        found, kinds = _taken(self._found.column(name)), _arrow().types
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
        try:
            found = [
                _shrunk(_taken(column).take(arrow.array(rows))) for column in self._found.columns
            ]
        except arrow.ArrowException as error:
            raise DataError(f"{self._path} has a column that cannot be filtered: {error}") from None
        arrays = [*found, *(_of_arrow(values) for values in added.values())]
        return arrow.record_batch(arrays, names=[*self._found.schema.names, *added])


class _ParquetSource(Source):
    def __init__(self, task: Task, column: str) -> None:
        super().__init__(task, column)
        with table_errors(task.path):
            self._parquet = _open_parquet(task.path, self._opened)
            self._schema = self._parquet.schema_arrow
            self._check_there(column)
            try:  # whether it has texts
                list(pieces_of(self._schema.empty_table().column(column)))
            except DataError as error:
                raise DataError(f"{task.path}: column {column!r}: {error}") from None

    def batches(self) -> Iterator[Batch]:
        first, groups = 1, range(*(self.task.groups or (0, self._parquet.num_row_groups)))
        with table_errors(self.task.path):
            for found in parquet_batches(self._parquet, groups, BATCH_ROWS_MAX, BATCH_BYTES):
                # Encoded sizes say little of texts that are often the same.
                size = max(1, sum(map(_plain_bytes, found.columns)))
                few = max(1, found.num_rows * 2 * BATCH_BYTES // size)
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

    def check(self, columns: Sequence[str], added: Mapping[str, type]) -> None:
        for name in columns:
            self._check_there(name)
        for name in added:
            if name in self._schema.names:
                raise ConfigError(f"--add {name}: {self.task.path} has a column of that name")
            if name.encode("utf-8", "replace").decode() != name:
                raise ConfigError(f"--add {name!a}: Parquet's names are UTF-8: NAME=... is another")

    def target(self, file: IO[bytes], added: Mapping[str, type]) -> Target:
        self.check((), added)
        arrow, schema = _arrow(), self._schema
        for name, kind in added.items():
            schema = schema.append(arrow.field(name, "float32" if kind is float else "string"))
        about = self._parquet.metadata
        codec = "ZSTD"
        if about.num_row_groups and about.row_group(0).num_columns:
            codec = about.row_group(0).column(0).compression
        return _ParquetTarget(file, schema, "NONE" if codec == "UNCOMPRESSED" else codec)


class _ParquetTarget(Target):
    def __init__(self, file: IO[bytes], schema: Any, codec: str) -> None:
        parquet = optional_module("pyarrow.parquet", "writing Parquet", "snailps[data]")
        self._schema, self._bytes = schema, 0
        self._waiting: list[Any] = []
        self._writer = parquet.ParquetWriter(file, schema, compression=codec)

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

    def abandon(self) -> None:
        self._writer.is_open = False

    def _write_group(self) -> None:
        table = _arrow().Table.from_batches(self._waiting, self._schema)
        with suppress(_arrow().ArrowException):  # more values than the codes' type has
            table = table.unify_dictionaries()
        self._writer.write_table(table)
        self._waiting, self._bytes = [], 0


def _taken(column: Any) -> Any:
    """A column that rows can be taken of."""
    plain = {"string_view": "large_string", "binary_view": "large_binary"}.get(str(column.type))
    return column if plain is None else column.cast(plain)


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
    """A column whose dictionary has no other values than the column; one with an order as it is."""
    arrow, kind = _arrow(), column.type
    if not arrow.types.is_dictionary(kind) or kind.ordered or "view" in str(kind.value_type):
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

    def check(self, columns: Sequence[str], added: Mapping[str, type]) -> None:
        path = self.task.path
        if not self._column:
            for name in (*columns, *added):
                raise ConfigError(f"{name}: {path} is text, which has no columns")
            return
        first = next(self.batches(), None)
        if first is None:
            return
        for name in filter(first.has, added):
            raise first.has_already(name)
        if not first.has(self._column):
            raise no_column(path, self._column, first.names())
        for name in columns:
            if not first.has(name):
                log.warning("%s: none of its first %d lines has %r", path, first.rows, name)

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
    return file


# --- tasks --------------------------------------------------------------------------------------


def open_source(task: Task, column: str) -> Source:
    """Open a task; DataError: another format, or no such column."""
    kind: type[Source] = _ParquetSource if is_parquet(task.path) else _LineSource
    return kind(task, column)


def is_parquet(path: str) -> bool:
    return format_of(path) == "parquet"


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
    """Relative names: below the folder that all local files are in, and that of all URLs."""
    split = []
    for path in paths:
        words = urlsplit(path)
        parts = [words.netloc, *words.path.split("/")] if is_url(path) else path.split("/")
        split.append([part for part in parts if part not in ("", ".", "..")])
    same = {True: 0, False: 0}
    for kind in same:
        of_kind = [parts for path, parts in zip(paths, split, strict=True) if is_url(path) == kind]
        while of_kind and all(
            len(one) > same[kind] + 1 and one[same[kind]] == of_kind[0][same[kind]]
            for one in of_kind
        ):
            same[kind] += 1
    return ["/".join(one[same[is_url(path)] :]) for path, one in zip(paths, split, strict=True)]


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
    if kind not in ("parquet", "jsonl", None):
        raise DataError(f"{path} is {kind}: filter has Parquet, JSON lines and text")
    if kind is not None and not column:
        raise ConfigError(f"{path} is a table: name the column of its texts, --column NAME")
    if kind is None and column:
        raise ConfigError(
            f"--column {column}: {path} is text, by its name, and has no columns; tables are "
            ".parquet and .jsonl"
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
