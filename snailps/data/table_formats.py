"""Formats of tables in files: Parquet, Arrow, JSON lines, CSV and TSV with a header.

    path -> open_table -> TableFile: names of columns, kinds, batches and pieces of rows

Memory stays bounded: some ten thousand rows at a time, of Arrow's compressed files a batch of
theirs.  pyarrow is imported for Parquet and Arrow; JSON and CSV need no library.  Cells of CSV,
features, labels and texts, are those of `ExampleReader`.  Must not know what jobs take of tables.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from snailps.data._examples import Examples, first_row, rows_end
from snailps.data.columns import MISSING, TRUTH, Column, Kind, is_number
from snailps.data.elements import (
    ARROW_NUMBER,
    NUMBERS,
    DataTable,
    a_kind,
    is_missing,
    table_of,
    table_of_lists,
)
from snailps.data.examples import ExampleReader
from snailps.data.extras import optional_module
from snailps.data.feature_rows import Piece, Rule
from snailps.data.file_kinds import (
    BOM,
    CELLS,
    HEAD_BYTES,
    OVER_LINES,
    UNIT_BYTES_MAX,
    line_of,
    refuse_foreign,
)
from snailps.data.host_cache import Make
from snailps.data.packed_words import PackedWords
from snailps.data.partitions import columns_of_folders
from snailps.data.reading import format_of
from snailps.data.unpacking import is_sequential, is_url, open_content, read_errors
from snailps.errors import ConfigError, DataError, shown_bytes

log = logging.getLogger(__name__)

HEAD_ROWS = 10_000
"""Rows that show what the columns of CSV and of JSON lines are."""
HEAD_BYTES_MAX = 64 << 20
"""The same of JSON lines that are long."""
BATCH_ROWS = 1 << 14
BATCH_BYTES = 4 << 20
"""Bytes of rows parsed together."""
HEADER_BYTES = 1 << 16
"""First read of CSV: the names of columns, and some rows."""
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
"""A number, too, so that such a cell is refused instead of making the column one of texts."""
_ARROW_TEXT = re.compile(r"(large_)?string(_view)?|dictionary<values=(large_)?string\b.*")
_CODEC = ("utf-8", "surrogateescape")


class TableFile(ABC):
    """A table in an open file; a context manager that closes it.

    `names` are those of its columns, in order; of JSON lines, those of the first rows.  Columns in
    the names of folders (`folders`, with their values) are the last ones.
    """

    names: list[str]
    has_more = False
    """Whether later rows may have other names."""
    is_complete = True
    """Whether a column that the first rows lack is absent."""
    needs_labels = False
    """Whether a declared column of labels cannot be absent."""
    is_typed = False
    """Whether columns have types, instead of values that have."""
    known: AbstractSet[str] | None = None
    """The only names that rows may have; None: any."""

    def __init__(self, path: str, format: str, make: Make | None) -> None:
        self.path, self._format = path, format
        self._file = open_content(path)
        try:
            self._begin(make)
        except BaseException:
            self._file.close()
            raise
        in_folders = columns_of_folders(path).items()
        self.folders = {name: text for name, text in in_folders if name not in self.names}
        self._own = self.names
        self.names = [*self._own, *self.folders]

    @abstractmethod
    def _begin(self, make: Make | None) -> None:
        """Read the names."""

    def __enter__(self) -> TableFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def kinds(self, but: Sequence[str]) -> dict[str, Kind]:
        """Kind of each column except `but` that has a value in the first rows, or a type.

        DataError if it has neither numbers nor texts.  Those of folders: see `kinds_of_folders`.
        """
        return self._kinds([*but, *self.folders])

    @abstractmethod
    def _kinds(self, but: Sequence[str]) -> dict[str, Kind]:
        """`kinds` of the columns in the file."""

    def later_kinds(self, names: Sequence[str], bytes_max: int) -> tuple[dict[str, Kind], int]:
        """Kind of those of these columns that have a value in the following rows, each by the rows
        with the first one; and the bytes read, about `bytes_max` at most."""
        return {}, 0

    def batches(self, names: Sequence[str]) -> Iterator[DataTable]:
        """Yield those of these columns that exist, some rows at a time; once."""
        folders = {name: text for name, text in self.folders.items() if name in names}
        own = [name for name in names if name not in folders] or self._own[:1]
        for batch in self._batches(own):
            yield batch_with(batch, folders) if folders else batch

    @abstractmethod
    def _batches(self, names: Sequence[str]) -> Iterator[DataTable]:
        """`batches` of the columns in the file."""

    def pieces(
        self, columns: Sequence[Column], label: str = "", on_bad_line: str = ""
    ) -> Iterator[tuple[Piece, Any]]:
        """Examples of all rows, and the cells of a column as the table has them; once.

        A column of kind label that the table lacks is left out.  `on_bad_line` is of CSV and TSV.
        """
        apart = [column for column in columns if column.name in self.folders]
        own = [column for column in columns if column.name not in self.folders]
        if not apart and label not in self.folders:
            yield from self._pieces(columns, label, on_bad_line)
            return
        features = [column.name for column in columns if column.is_feature]
        places = [
            np.array([features.index(one.name) for one in some if one.is_feature], np.int32)
            for some in (own, apart)
        ]
        entries = self._of_folders(apart)
        text = self.folders.get(label)
        for piece, labels in self._pieces(own, "" if label in self.folders else label, on_bad_line):
            yield (
                piece_with(piece, entries, *places),
                [text] * piece.rows if label in self.folders else labels,
            )

    def _of_folders(self, columns: Sequence[Column]) -> Piece:
        """What columns of folders add to each row, as a piece of one row."""
        cells: dict[str, list[Any]] = {}
        for column in columns:
            cell = cells.setdefault(column.name, [self.folders[column.name]])
            is_text = column.kind in (Kind.CATEGORICAL, Kind.HASHED)
            if not is_text and cell[0] in MISSING:
                cell[0] = None
            elif not is_text and cell[0] is not None and is_number(cell[0]):
                cell[0] = float(TRUTH.get(cell[0], cell[0]))
        table = table_of_lists(cells, self.path)
        return Rule(columns, self.path).piece(table, 0, 1, 1)

    def _pieces(
        self, columns: Sequence[Column], label: str, on_bad_line: str
    ) -> Iterator[tuple[Piece, Any]]:
        """`pieces` of the columns in the file."""
        rule, first = Rule(columns, self.path), 1
        names = [column.name for column in columns if column.kind is Kind.LABEL]
        names = [name for name in (*names, label) if name in self.names]
        for batch in self.batches([*(column.name for column in rule.features), *names]):
            labels: Any = []
            if label:
                column = batch.column(label)
                is_typed = self.is_typed and column.is_numeric()
                labels = (column.numbers if is_typed else column.values)(0, batch.rows)
            yield rule.piece(batch, 0, batch.rows, first), labels
            first += batch.rows


class _ArrowTable(TableFile):
    """A table that pyarrow reads; some rows at a time."""

    is_typed = True
    _schema: Any

    def _begin(self, make: Make | None) -> None:
        if is_sequential(self.path):
            self._file = self._copied(make)
        self._open()
        self.names = list(self._schema.names)

    @abstractmethod
    def _open(self) -> None:
        """Set `_schema`, of Arrow."""

    @abstractmethod
    def _record_batches(self, names: Sequence[str]) -> Iterator[Any]: ...

    def _copied(self, make: Make | None) -> BinaryIO:
        """The content in a file of its own; closes that of the path."""
        with self._file as packed, ExitStack() as stack:
            if make is None:
                copy = cast(BinaryIO, stack.enter_context(tempfile.TemporaryFile()))
                shutil.copyfileobj(packed, copy, BATCH_BYTES)
                copy.seek(0)
            else:
                scratch = make("its content")
                while piece := packed.read(BATCH_BYTES):
                    scratch.write(piece)
                copy = stack.enter_context(scratch.path.open("rb"))
            stack.pop_all()
        return copy

    def _kinds(self, but: Sequence[str]) -> dict[str, Kind]:
        found = {}
        for field in self._schema:
            if field.name in but:
                continue
            of = str(field.type)
            if ARROW_NUMBER.fullmatch(of):
                found[field.name] = Kind.NUMERIC
            elif _ARROW_TEXT.fullmatch(of):
                found[field.name] = Kind.CATEGORICAL
            elif of != "null":
                raise DataError(
                    f"{self.path}: column {field.name!r} is of {of}: expected numbers or texts. "
                    f"Declare {field.name}:ignore in columns, or convert it"
                )
        return found

    def _batches(self, names: Sequence[str]) -> Iterator[DataTable]:
        there = [name for name in names if name in self.names]
        if twice := [name for name in there if self.names.count(name) > 1]:
            raise DataError(
                f"{self.path} has {self.names.count(twice[0])} columns {twice[0]!r}: rename one"
            )
        for batch in self._record_batches(there):
            table = table_of(batch)
            assert table is not None
            yield table


class ParquetFile(_ArrowTable):
    def _open(self) -> None:
        parquet = optional_module("pyarrow.parquet", f"reading {self.path}", "snailps[data]")
        self._parquet = parquet.ParquetFile(self._file)
        self._schema = self._parquet.schema_arrow

    def _record_batches(self, names: Sequence[str]) -> Iterator[Any]:
        groups = range(self._parquet.num_row_groups)
        return parquet_batches(self._parquet, groups, BATCH_ROWS, BATCH_BYTES, names)


class ArrowFile(_ArrowTable):
    """Arrow's files (Feather is one) and streams, as Hugging Face's save_to_disk writes."""

    def _open(self) -> None:
        self._schema, _ = open_arrow(self._file, self.path)

    def _record_batches(self, names: Sequence[str]) -> Iterator[Any]:
        _, batches = open_arrow(self._file, self.path, names)
        return (some for batch in batches for some in slices(batch, BATCH_ROWS, BATCH_BYTES))


class JsonLines(TableFile):
    """An object a line; a key that a line lacks is missing, as is null."""

    is_complete = False

    def _begin(self, make: Make | None) -> None:
        self._lines = self._bytes = 0  # so far
        self._later = self._rows()
        self._head = self._take(HEAD_ROWS, HEAD_BYTES_MAX)
        if not self._head:
            raise DataError(f"{self.path} is empty: it has no line")
        self.names = list(dict.fromkeys(name for row in self._head for name in row))
        self.has_more = len(self._head) == HEAD_ROWS or self._bytes >= HEAD_BYTES_MAX

    def _kinds(self, but: Sequence[str]) -> dict[str, Kind]:
        return self._kinds_in(self._head, [name for name in self.names if name not in but])

    def later_kinds(self, names: Sequence[str], bytes_max: int) -> tuple[dict[str, Kind], int]:
        found, begin = dict[str, Kind](), self._bytes
        while len(found) < len(names) and self._bytes - begin < bytes_max:
            if not (rows := self._take(BATCH_ROWS, BATCH_BYTES)):
                break
            found |= self._kinds_in(rows, [name for name in names if name not in found])
        return found, self._bytes - begin

    def _kinds_in(self, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Kind]:
        kinds = {
            name: _kind_of([row.get(name) for row in rows], f"{self.path}: column {name!r}")
            for name in names
        }
        return {name: kind for name, kind in kinds.items() if kind is not None}

    def _batches(self, names: Sequence[str]) -> Iterator[DataTable]:
        """Refuses names that are not among the known ones."""
        first, rows, head_rows = 1, self._head, len(self._head)
        while rows:
            for number, row in enumerate(rows, first):
                if self.known is not None and not row.keys() <= self.known:
                    other = min(row.keys() - self.known)
                    raise DataError(
                        f"{self.path}: row {number:,} has {other!r}, which the first "
                        f"{head_rows:,} rows have not: declare it in columns, as {other}:numeric, "
                        f"{other}:categorical or {other}:ignore"
                    )
            first += len(rows)
            lists = {name: [row.get(name) for row in rows] for name in names}
            yield table_of_lists(lists, self.path)
            rows = self._head = self._take(BATCH_ROWS, BATCH_BYTES)

    def _take(self, count: int, size: int) -> list[dict[str, Any]]:
        """The following rows: `count`, or as many as have `size` bytes."""
        found: list[dict[str, Any]] = []
        stop = self._bytes + size
        for row in islice(self._later, count):
            found.append(row)
            if self._bytes >= stop:
                break
        return found

    def _rows(self) -> Iterator[dict[str, Any]]:
        """The following rows, without blank lines."""
        while line := line_of(self._file, self.path):
            self._lines, self._bytes = self._lines + 1, self._bytes + len(line)
            if line.removeprefix(BOM).strip():
                yield object_of(line, self.path, self._lines)


class SeparatedFile(TableFile):
    """CSV or TSV whose first line names the columns; empty cells are missing values.

    A column without a name, as pandas writes its index, is ``unnamed_1``, ... and no feature.
    """

    needs_labels = True

    def _begin(self, make: Make | None) -> None:
        separator, quotes = CELLS[self._format]
        self._cells = separator, OVER_LINES if quotes else 0
        rows = self._whole_rows()
        data, _ = next(rows, (b"", 0))
        first = len(BOM) if data.startswith(BOM) else 0
        found, size = first_row(data[first:], *self._cells)
        self._rows = chain([(data[first + size :], first + size)], rows)
        cells = [cell.decode(*_CODEC) for cell in found]
        self.names = [cell.strip() or f"unnamed_{at}" for at, cell in enumerate(cells, 1)]
        self._unnamed = {
            name for cell, name in zip(cells, self.names, strict=True) if not cell.strip()
        }
        for cell in found:
            if cell.decode(errors="ignore").encode() != cell:
                raise DataError(
                    f"{self.path}: the name of a column, {shown_bytes(cell, 60)}, is not UTF-8: "
                    "convert the file, such as by iconv -f latin1 -t utf-8"
                )
        twice = [name for at, name in enumerate(self.names) if name in self.names[:at]]
        numbers = [name for name in self.names if _NUMBER.fullmatch(name)]
        line = data[first : first + size]
        more = line.rstrip(b"\r\n") + separator + b"more\n"  # no cell behind a malformed one
        is_odd = b"\r" in b"".join(found) or len(first_row(more, *self._cells)[0]) <= len(found)
        if not cells or twice or len(numbers) == len(cells) or is_odd:
            got = line.decode(*_CODEC).strip()
            why = f"it has {twice[0]!r} twice" if twice else f"got {got!r:.80}"
            raise DataError(f"{self.path}: expected names of columns in the first line; {why}")

    def _kinds(self, but: Sequence[str]) -> dict[str, Kind]:
        """Judge by the cells of the first rows: numbers if all present cells are."""
        names = [name for name in self.names if name not in but]
        seen = {name: set[Kind]() for name in names}
        left = HEAD_ROWS
        for cells, rows, _ in self._cells_of(names):
            for name, some in zip(names, cells, strict=True):
                seen[name] |= _kinds_of(some[:left])
            left -= rows
            if left <= 0:
                break
        found = {name: _whole(kinds) for name, kinds in seen.items() if kinds}
        return found | {name: Kind.IGNORE for name in names if name in self._unnamed}

    def later_kinds(self, names: Sequence[str], bytes_max: int) -> tuple[dict[str, Kind], int]:
        left, size, found = [name for name in self._own if name in names], 0, dict[str, Kind]()
        for cells, _, read in self._cells_of(left) if left else ():
            size += read
            for name, some in zip(left, cells, strict=True):
                if name not in found and some.letters and (kinds := _kinds_of(some)):
                    found[name] = _whole(kinds)
            if len(found) == len(left) or size >= bytes_max:
                break
        return found, size

    def _cells_of(self, names: Sequence[str]) -> Iterator[tuple[Sequence[PackedWords], int, int]]:
        """Cells of these columns, in the order of the file, number and bytes of some rows."""
        # Malformed rows are reported when they are used.
        reader = self._reader([Column(name, Kind.TEXT) for name in names], "skip")
        for data, at in self._rows:
            found = self._parsed(reader, data, at)
            yield found.cells, len(found.labels), len(data)

    def _batches(self, names: Sequence[str]) -> Iterator[DataTable]:
        kept = [name for name in self._own if name in names]
        for found in self._read(self._reader([Column(name, Kind.TEXT) for name in kept])):
            cells = ([text or None for text in _texts(some)] for some in found.cells)
            yield table_of_lists(dict(zip(kept, cells, strict=True)), self.path)

    def _pieces(
        self, columns: Sequence[Column], label: str, on_bad_line: str
    ) -> Iterator[tuple[Piece, Any]]:
        texts = [Column(label, Kind.TEXT)] if label else []
        reader, bad = self._reader([*columns, *texts], on_bad_line), 0
        features = [column.name for column in columns if column.is_feature]
        places = {name: at for at, name in enumerate(features)}
        fields = np.array([places[name] for name in self.names if name in places], np.int32)
        for found in self._read(reader):
            bad += found.bad
            labels = found.labels if len(features) < len(columns) else None
            piece = Piece(found.ptr, found.keys, found.values, fields[found.fields], labels=labels)
            cells = _texts(found.cells[0]) if label else []
            if on_bad_line == "skip" and "" in cells:
                bad += cells.count("")
                piece, cells = _labelled(piece, cells), [cell for cell in cells if cell]
            yield piece, cells
        if bad:
            first = reader.first_bad or f"they have no {label}"
            log.warning("%s: %d malformed lines were left out: %s", self.path, bad, first)

    def _reader(self, columns: Sequence[Column], on_bad_line: str = "") -> ExampleReader:
        """Reader of these columns, in the order of the file; ignores others."""
        by_name = {column.name: column for column in columns}
        return ExampleReader(
            self._format,
            columns=[by_name.get(name, Column(name, Kind.IGNORE)) for name in self._own],
            on_bad_line=on_bad_line or "stop",
            needs_labels=False,
            may_skip=bool(on_bad_line),
            whole_rows=True,
        )

    def _read(self, reader: ExampleReader) -> Iterator[Examples]:
        for data, at in self._rows:
            yield self._parsed(reader, data, at)

    def _parsed(self, reader: ExampleReader, data: bytes, at: int) -> Examples:
        try:
            return reader.read(data, self.path, at)
        except DataError as error:
            cure = ". What columns are is set by columns, for example NAME:categorical"
            raise DataError(f"{error}{cure if reader.field_num else ''}") from None

    def _whole_rows(self) -> Iterator[tuple[bytes, int]]:
        """Whole rows, about `BATCH_BYTES`, and their offsets."""
        at, data, size = 0, b"", HEADER_BYTES
        while step := self._file.read(size):
            data += step
            end = rows_end(data, *self._cells)
            size = BATCH_BYTES if end else max(len(data), BATCH_BYTES)
            if end:
                yield data[:end], at
                at, data = at + end, data[end:]
            elif len(data) > UNIT_BYTES_MAX:
                raise DataError(
                    f"{self.path} has a row of more than {UNIT_BYTES_MAX:,} bytes at byte {at:,}: "
                    "is it text, and is a quote closed?"
                )
        if data:
            yield data, at


def open_table(path: str, make: Make | None = None) -> TableFile:
    """Open a table; report at once what is wrong with its beginning.

    Packed or remote Parquet or Arrow is copied to a file that `make` gives for a purpose; None: to
    the system's temporary folder.
    """
    found = format_of(path)
    assert found is not None
    with table_errors(path):
        _refuse_other_files(path)
        kinds: dict[str, type[TableFile]] = {
            "parquet": ParquetFile, "arrow": ArrowFile, "jsonl": JsonLines,
        }  # fmt: skip
        return kinds.get(found, SeparatedFile)(path, found, make)


def first_cells(path: str) -> list[str] | None:
    """The cells of the first line of CSV or TSV, [] of a pipe; None: it is of another format."""
    found = format_of(path)
    if found not in CELLS:
        return None
    with table_errors(path):
        if not is_url(path) and not stat.S_ISREG(Path(path).stat().st_mode):
            return []  # reading would consume it
        with open_content(path) as file:
            line = line_of(file, path).removeprefix(BOM)
    return [cell.decode(*_CODEC).strip() for cell in first_row(line, *CELLS[found])[0]]


def _refuse_other_files(path: str) -> None:
    """Refuse pipes, as a table is opened more than once, and files that are no tables."""
    if is_url(path):
        return  # each opening is a request
    # Before opening, which would wait for a writer.
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise DataError(
            f"expected a regular file, got something else: {path}. A table is read more than once: "
            "write what a pipe has into a file"
        )
    if format_of(path) not in ("parquet", "arrow"):
        with open_content(path) as file:
            refuse_foreign(file.read(HEAD_BYTES), path, text=True)


def parquet_batches(
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


def open_arrow(
    file: BinaryIO, path: str, names: Sequence[str] | None = None
) -> tuple[Any, Iterator[Any]]:
    """Schema and batches of an open file or stream of Arrow's, with all columns or with some."""
    arrow = optional_module("pyarrow", f"reading {path}", "snailps[data]")
    file.seek(0)
    head = file.read(HEAD_BYTES)
    if head.startswith(b"FEA1"):
        refuse_foreign(head, path)

    def reader(included: list[int] | None) -> Any:
        file.seek(0)
        options = arrow.ipc.IpcReadOptions(included_fields=included)
        opener = arrow.ipc.open_file if is_arrow_file(head) else arrow.ipc.open_stream
        return opener(file, options=options)

    opened = reader(None)
    schema = opened.schema
    if names is not None:
        opened = reader([schema.get_field_index(name) for name in names])
    if is_arrow_file(head):
        return schema, map(opened.get_batch, range(opened.num_record_batches))
    return schema, iter(opened)


def is_arrow_file(head: bytes) -> bool:
    """Whether bytes begin one of Arrow's files, whose batches may be read in any order."""
    return head.startswith(b"ARROW1")


def slices(batch: Any, rows: int, size: int) -> Iterator[Any]:
    """A batch of Arrow's, some rows at a time: of about `size` bytes, `rows` at most."""
    rows = min(rows, max(1, size * batch.num_rows // max(batch.nbytes, 1)))
    return (batch.slice(at, rows) for at in range(0, batch.num_rows, rows))


def batch_with(batch: DataTable, columns: Mapping[str, str | None]) -> DataTable:
    """Some rows, with further columns of one value each."""
    constant = table_of_lists({name: [text] * batch.rows for name, text in columns.items()}, "")

    def column(name: Any) -> Any:
        return (constant if name in columns else batch).column(name)

    return DataTable([*batch.columns, *columns], batch.rows, batch.name, column)


def piece_with(
    piece: Piece, entries: Piece, fields: NDArray[np.int32], of_entries: NDArray[np.int32]
) -> Piece:
    """A piece each of whose rows has further entries, those of one row.

    `fields`, `of_entries`: what the fields of each are among those of both.
    """
    assert piece.ptr is not None
    assert piece.keys is not None
    assert piece.values is not None
    assert piece.fields is not None
    assert entries.keys is not None
    assert entries.values is not None
    assert entries.fields is not None
    count, at = len(entries.keys), np.repeat(piece.ptr[1:], len(entries.keys))
    labels = piece.labels
    if labels is None and entries.labels is not None:
        labels = np.repeat(entries.labels, piece.rows)
    return Piece(
        piece.ptr + np.arange(len(piece.ptr)) * count,
        np.insert(piece.keys, at, np.tile(entries.keys, piece.rows)),
        np.insert(piece.values, at, np.tile(entries.values, piece.rows)),
        np.insert(fields[piece.fields], at, np.tile(of_entries[entries.fields], piece.rows)),
        labels=labels,
    )


def kinds_of_folders(paths: Iterable[str]) -> dict[str, Kind]:
    """Kind of each column in the names of folders: as of CSV, by its values in all files."""
    values: dict[str, set[bytes]] = {}
    for path in paths:
        for name, text in columns_of_folders(path).items():
            values.setdefault(name, set()).update([] if text is None else [text.encode(*_CODEC)])
    found = {name: _kinds_of([*some]) for name, some in values.items()}
    return {name: _whole(kinds) for name, kinds in found.items() if kinds}


def object_of(line: bytes, path: str, number: int) -> dict[str, Any]:
    """The object of a line of JSON."""
    try:
        row = json.loads(line.removeprefix(BOM).decode(*_CODEC))
    except ValueError as error:
        raise DataError(f"{path}, line {number:,}: no JSON: {error}") from None
    except RecursionError:
        raise DataError(
            f"{path}, line {number:,}: expected an object of numbers and texts, got lists or "
            "objects nested too deeply: leave such names out"
        ) from None
    if not isinstance(row, dict):
        raise DataError(
            f"{path}, line {number:,}: expected an object with names, {{...}}, got {row!r:.60}"
        )
    return row


def no_column(path: str, name: str, names: Iterable[str]) -> DataError:
    """The error of a table without a column."""
    return DataError(f"{path} has no column {name!r}, but {', '.join(names)}")


def raw_text(value: Any) -> Any:
    """The bytes of a text that was read, as a file of text has them; other values as they are.

    Halves of pairs, which some crawls have in JSON, become bytes that are no text, as in others.
    """
    if not isinstance(value, str):
        return value
    try:
        return value.encode(*_CODEC)
    except UnicodeEncodeError:
        return b"".join(
            one.encode("utf-8", _CODEC[1] if "\udc80" <= one <= "\udcff" else "surrogatepass")
            for one in value
        )


@contextmanager
def table_errors(path: str) -> Iterator[None]:
    """Turn errors of parsers into DataError, and those of `unpacking.read_errors`."""
    known: AbstractContextManager[None] = read_errors(path)
    with known:
        try:
            yield
        except (DataError, ConfigError):
            raise
        except Exception as error:
            if not isinstance(error, ValueError) and not is_of_arrow(error):
                raise
            raise DataError(f"cannot read {path}: {error}{_cure_of(error)}") from error


def is_of_arrow(error: Exception) -> bool:
    """Whether it is pyarrow's: some are no ValueError, as of types that it lacks."""
    return any(kind.__name__ == "ArrowException" for kind in type(error).__mro__)


def _cure_of(error: Exception) -> str:
    if isinstance(error, NotImplementedError) or "not implemented" in f"{error}".lower():
        return ". Write it again with another type or codec, such as text, or without that column"
    return ""


def _labelled(piece: Piece, labels: Sequence[str]) -> Piece:
    """The rows whose label is not empty."""
    assert piece.ptr is not None
    assert piece.keys is not None
    assert piece.values is not None
    assert piece.fields is not None
    sizes, has_label = np.diff(piece.ptr), np.array(labels, object) != ""
    ptr = np.concatenate([[0], sizes[has_label]]).cumsum()
    kept = np.repeat(has_label, sizes)
    return Piece(ptr, piece.keys[kept], piece.values[kept], piece.fields[kept])


def _texts(cells: Iterable[bytes]) -> list[str]:
    return [cell.decode(*_CODEC) for cell in cells]


def _kinds_of(cells: Sequence[bytes]) -> set[Kind]:
    """Whether cells of CSV have numbers, texts, or both."""
    found = set()
    for cell in map(str.strip, _texts(set(cells))):
        if _NUMBER.fullmatch(cell) or cell in TRUTH or _INFINITE.fullmatch(cell):
            found.add(Kind.NUMERIC)
        elif cell and cell not in MISSING:
            found.add(Kind.CATEGORICAL)
    return found


def _whole(kinds: AbstractSet[Kind]) -> Kind:
    """Kind of a column that has cells of these kinds: a number may be a text as well."""
    return max(kinds, key=lambda kind: kind is Kind.CATEGORICAL)


def _kind_of(values: Sequence[Any], where: str) -> Kind | None:
    """Kind of a column with these values, None: all are missing; refuses lists, dicts, and texts
    among numbers."""
    there = [one for one in values if not is_missing(one)]
    if all(isinstance(one, NUMBERS) for one in there):
        return Kind.NUMERIC if there else None
    odd = next((one for one in there if not isinstance(one, (str, *NUMBERS))), None)
    if odd is not None:
        raise DataError(
            f"{where} has {a_kind(odd)}: expected numbers or texts. Declare it as ignore in columns"
        )
    if all(isinstance(one, str) for one in there):
        return Kind.CATEGORICAL
    raise DataError(
        f"{where} has both numbers and texts: declare it in columns, as categorical or ignore"
    )
