"""CSV and TSV whose first line names the columns, as tables.

    path -> header -> names; whole rows -> ExampleReader -> cells or examples

Owns the header and where rows end; `ExampleReader` parses, so that a cell means the same as in a
file without a header.  Must not know what columns are for.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from snailps.data._examples import Examples, first_row, rows_end
from snailps.data.columns import NUMBER, ColumnKind, DeclaredColumn, kind_of_cells, kinds_of_cells
from snailps.data.elements import table_of_lists
from snailps.data.examples import ExampleReader
from snailps.data.feature_rows import ExampleRows
from snailps.data.formats.table import CODEC, RowBatch, TableFile, table_errors
from snailps.data.packed_words import PackedWords
from snailps.errors import DataError, shown_bytes
from snailps.files.file_kinds import (
    BOM,
    CELLS,
    HEAD_BYTES,
    OVER_LINES,
    UNIT_BYTES_MAX,
    line_of,
    refuse_foreign,
)
from snailps.files.formats import format_of
from snailps.files.host_cache import Make
from snailps.files.unpacking import is_url, open_content

log = logging.getLogger(__name__)


class SeparatedFile(TableFile):
    """CSV or TSV whose first line names the columns; empty cells are missing values.

    A column without a name, such as the index that pandas writes, is called ``unnamed_1``, ... by
    its place, and is no feature.
    """

    needs_labels = True
    is_written = False
    first_bytes = 1 << 16
    """Bytes of the first read, which is for the header."""

    def _begin(self, make: Make | None) -> None:
        self._format = str(format_of(self.path))
        separator, quotes = CELLS[self._format]
        self._cells = separator, OVER_LINES if quotes else 0
        rows = self._whole_rows()
        data, _ = next(rows, (b"", 0))
        first = len(BOM) if data.startswith(BOM) else 0
        raw_cells, size = first_row(data[first:], *self._cells)
        self._rows = chain([(data[first + size :], first + size)], rows)
        cells = [cell.decode(*CODEC) for cell in raw_cells]
        names = [cell.strip() or f"unnamed_{place}" for place, cell in enumerate(cells, 1)]
        self._header = names
        self._unnamed = {name for cell, name in zip(cells, names, strict=True) if not cell.strip()}
        for cell in raw_cells:
            if cell.decode(errors="ignore").encode() != cell:
                raise DataError(
                    f"{self.path}: the name of a column, {shown_bytes(cell, 60)}, is not UTF-8: "
                    "convert the file, such as by iconv -f latin1 -t utf-8"
                )
        twice = [name for place, name in enumerate(names) if name in names[:place]]
        numbers = [name for name in names if NUMBER.fullmatch(name)]
        line = data[first : first + size]
        # `first_row` stops in front of a malformed cell.  With a cell more at the end of the line
        # it returns one more, unless it has stopped before.
        more = line.rstrip(b"\r\n") + separator + b"more\n"
        is_malformed = len(first_row(more, *self._cells)[0]) <= len(cells)
        is_odd = b"\r" in b"".join(raw_cells) or is_malformed
        if not cells or twice or len(numbers) == len(cells) or is_odd:
            got = line.decode(*CODEC).strip()
            why = f"it has {twice[0]!r} twice" if twice else f"got {got!r:.80}"
            raise DataError(f"{self.path}: expected names of columns in the first line; {why}")

    def _names(self) -> list[str]:
        return self._header

    def _kinds(self, but: Sequence[str]) -> dict[str, ColumnKind]:
        """By the cells of the first rows: a column is numeric if all its present cells are."""
        names = [name for name in self.names if name not in but]
        kinds_in = {name: set[ColumnKind]() for name in names}
        rows_left = self.head_rows
        for columns, rows, _ in self._cells_of(names):
            for name, cells in zip(names, columns, strict=True):
                kinds_in[name] |= kinds_of_cells(cells[:rows_left])
            rows_left -= rows
            if rows_left <= 0:
                break
        by_name = {name: kind_of_cells(kinds) for name, kinds in kinds_in.items() if kinds}
        return by_name | {name: ColumnKind.IGNORE for name in names if name in self._unnamed}

    def later_kinds(
        self, names: Sequence[str], bytes_max: int
    ) -> tuple[dict[str, ColumnKind], int]:
        wanted, size = [name for name in self.own_names if name in names], 0
        by_name = dict[str, ColumnKind]()
        for columns, _, read in self._cells_of(wanted) if wanted else ():
            size += read
            for name, cells in zip(wanted, columns, strict=True):
                if name not in by_name and cells.letters and (kinds := kinds_of_cells(cells)):
                    by_name[name] = kind_of_cells(kinds)
            if len(by_name) == len(wanted) or size >= bytes_max:
                break
        return by_name, size

    def _cells_of(self, names: Sequence[str]) -> Iterator[tuple[Sequence[PackedWords], int, int]]:
        """Cells of these columns in the order of the file, the number of rows, and their bytes."""
        # Malformed rows are skipped here, and reported when they are trained on.
        reader = self._reader([DeclaredColumn(name, ColumnKind.TEXT) for name in names], "skip")
        for data, offset in self._rows:
            examples = self._parsed(reader, data, offset)
            yield examples.cells, len(examples.labels), len(data)

    def rows(
        self, names: Sequence[str] | None = None, part: tuple[int, int] | None = None
    ) -> Iterator[RowBatch]:
        chosen = [name for name in self.own_names if names is None or name in names]
        first = 1
        for examples in self._read(
            self._reader([DeclaredColumn(name, ColumnKind.TEXT) for name in chosen])
        ):
            cells = ([text or None for text in _texts(column)] for column in examples.cells)
            table = table_of_lists(dict(zip(chosen, cells, strict=True)), self.path)
            numbers = range(first, first + table.rows)
            yield RowBatch(table.columns, table.rows, table.name, table.column, numbers, None)
            first += table.rows

    def _pieces(
        self, columns: Sequence[DeclaredColumn], label: str, on_bad_line: str
    ) -> Iterator[tuple[ExampleRows, Any]]:
        texts = [DeclaredColumn(label, ColumnKind.TEXT)] if label else []
        reader, skipped = self._reader([*columns, *texts], on_bad_line), 0
        features = [column.name for column in columns if column.is_feature]
        places = {name: place for place, name in enumerate(features)}
        # The reader numbers fields in the order of the file, the model in that of its columns.
        fields = np.array([places[name] for name in self.names if name in places], np.int32)
        for read in self._read(reader):
            skipped += read.bad
            labels = read.labels if len(features) < len(columns) else None
            piece = ExampleRows(
                read.ptr, read.keys, read.values, fields[read.fields], labels=labels
            )
            cells = _texts(read.cells[0]) if label else []
            if on_bad_line == "skip" and "" in cells:
                skipped += cells.count("")
                piece, cells = _filled(piece, cells), [cell for cell in cells if cell]
            yield piece, cells
        if skipped:
            first = reader.first_bad or f"they have no {label}"
            log.warning("%s: %d malformed lines were left out: %s", self.path, skipped, first)

    def _reader(self, columns: Sequence[DeclaredColumn], on_bad_line: str = "") -> ExampleReader:
        """A reader of these columns, in the order of the file; it ignores the others."""
        by_name = {column.name: column for column in columns}
        return ExampleReader(
            self._format,
            columns=[
                by_name.get(name, DeclaredColumn(name, ColumnKind.IGNORE))
                for name in self.own_names
            ],
            on_bad_line=on_bad_line or "stop",
            needs_labels=False,
            may_skip=bool(on_bad_line),
            whole_rows=True,
        )

    def _read(self, reader: ExampleReader) -> Iterator[Examples]:
        for data, offset in self._rows:
            yield self._parsed(reader, data, offset)

    def _parsed(self, reader: ExampleReader, data: bytes, offset: int) -> Examples:
        try:
            return reader.read(data, self.path, offset)
        except DataError as error:
            cure = ". What columns are is set by columns, for example NAME:categorical"
            is_feature = reader.field_num and "expected a label" not in str(error)
            raise DataError(f"{error}{cure if is_feature else ''}") from None

    def _whole_rows(self) -> Iterator[tuple[bytes, int]]:
        """Whole rows, about `self.batch_bytes`, and their offsets in the file."""
        offset, data, size = 0, b"", self.first_bytes
        while step := self._file.read(size):
            if not offset and not data:
                refuse_foreign(step[:HEAD_BYTES], self.path, text=True)
            data += step
            end = rows_end(data, *self._cells)
            # A row of many MB is read in doubling steps: each try parses all of it again.
            size = self.batch_bytes if end else max(len(data), self.batch_bytes)
            if end:
                yield data[:end], offset
                offset, data = offset + end, data[end:]
            elif len(data) > UNIT_BYTES_MAX:
                raise DataError(
                    f"{self.path} has a row of more than {UNIT_BYTES_MAX:,} bytes at byte "
                    f"{offset:,}: is it text, and is a quote closed?"
                )
        if data:
            yield data, offset


def first_cells(path: str) -> list[str] | None:
    """The cells of the first line of CSV or TSV; [] for a pipe; None: it has another format."""
    format = format_of(path)
    if format not in CELLS:
        return None
    with table_errors(path):
        if not is_url(path) and not stat.S_ISREG(Path(path).stat().st_mode):
            return []  # reading would consume it
        with open_content(path) as file:
            line = line_of(file, path).removeprefix(BOM)
    return [cell.decode(*CODEC).strip() for cell in first_row(line, *CELLS[format])[0]]


def _filled(piece: ExampleRows, cells: Sequence[str]) -> ExampleRows:
    """The rows of a piece whose cell is not empty."""
    assert piece.ptr is not None
    assert piece.keys is not None
    assert piece.values is not None
    assert piece.fields is not None
    sizes, is_filled = np.diff(piece.ptr), np.array(cells, object) != ""
    ptr = np.concatenate([[0], sizes[is_filled]]).cumsum()
    of_rows = np.repeat(is_filled, sizes)
    numbers = piece.labels if piece.labels is None else piece.labels[is_filled]
    return ExampleRows(
        ptr, piece.keys[of_rows], piece.values[of_rows], piece.fields[of_rows], labels=numbers
    )


def _texts(cells: Iterable[bytes]) -> list[str]:
    return [cell.decode(*CODEC) for cell in cells]
