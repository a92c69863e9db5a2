"""Sparse examples from text and matrix files: formats, settings, messages about lines.

    format, columns, ... -> ExampleReader;  bytes of whole lines -> read -> Examples
    bytes of a matrix file -> read, examples_of -> Examples
    InputFiles, ExampleReader -> entries_in -> how many entries there are

Owns which format a text has, and the words for a fault: file, line and column, what was expected,
what came.  The loops are in `_examples.pyx`, declarations of columns in `columns.py`.  Must not
know who reads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from snailps.data._examples import (
    EntryReader,
    Examples,
    Fault,
    RowReader,
    first_row,
    rows_that_repeat,
)
from snailps.data.columns import ColumnKind, Declared, DeclaredColumn, columns_of
from snailps.data.held_out import Side
from snailps.errors import ConfigError, DataError
from snailps.files._matrix import first_falling, first_not_finite, wide_keys
from snailps.files.blocks import InputFile, Place, cut, read_block
from snailps.files.file_kinds import BOM, CELLS, OVER_LINES, first_line_of, whole_lines
from snailps.files.input_files import InputFiles
from snailps.files.matrix_file import (
    AGAIN,
    HEADER_BYTES,
    Flags,
    check_labels,
    first_not_weight,
    floats,
    is_matrix,
    read_header,
)
from snailps.files.scratch import open_input

FORMATS = ("auto", "libsvm", "libffm", "csv", "tsv")
ON_BAD_LINE = ("stop", "skip")
HASH_BITS_MAX = 62
STEP_BYTES = 1 << 20
ROWS_BYTES = 8 << 20
"""Bytes of a matrix file whose rows are in memory at a time."""
SHOWN_BYTES = 40
"""Bytes of a malformed cell, in messages."""
EXAMPLE = "label:label, age:numeric log, city:categorical"

NUMBERS = "a number such as -1, 0.5 or 3"
_EXPECTED = {
    "label": f"a label, {NUMBERS}",
    "low": "a label of at least {:g}",
    "index": "index:value, the index a whole number below 2^63",
    "colon": "a colon and a value after the index",
    "value": "a finite number within float32's range as value, then a blank",
    "field": "field:index:value, the field a whole number below 2^31",
    "feature": "a colon and an index after the field (field:index:value)",
    "qid": "a whole number after qid:",
    "quote": "a closing quote{}, then a separator",
    "cell": "a finite number within float32's range, or nothing",
}
_BLANK = re.compile(rb"[ \t]")
_SEPARATED = re.compile(rb"[^ \t\n][,\t][^ \t\n]")
_ENTRY = re.compile(rb"[ \t]*[^ \t#]+[ \t]+(?:qid:[0-9]+[ \t]+)?[0-9]+:([0-9]+:)?")


def summed(examples: Examples) -> Examples:
    """Examples in which the values of a key that a row repeats, in one field, are added."""
    keys, ptr, fields = examples.keys, examples.ptr, examples.fields
    repeats = rows_that_repeat(ptr, keys, fields)
    if not len(repeats):
        return examples
    rows = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    entries = np.flatnonzero(repeats[rows])
    of_entries = fields[entries] if len(fields) else np.zeros(len(entries), np.int32)
    order = np.lexsort((keys[entries], of_entries, rows[entries]))  # stable: the first comes first
    entries, of_entries = entries[order], of_entries[order]
    again = np.zeros(len(entries), bool)
    for column in (keys[entries], of_entries, rows[entries]):
        again[1:] |= column[1:] != column[:-1]
    again = ~again
    again[0] = False
    values, most = examples.values.astype(np.float64), np.finfo(np.float32).max
    firsts = entries[~again][np.cumsum(~again)[again] - 1]
    np.add.at(values, firsts, values[entries[again]])
    stays = np.ones(len(keys), bool)
    stays[entries[again]] = False
    kept_before = np.concatenate(([0], np.cumsum(stays)))
    return examples._replace(
        ptr=kept_before[ptr].astype(np.int64), keys=keys[stays],
        values=np.clip(values[stays], -most, most).astype(np.float32),
        fields=fields[stays] if len(fields) else fields,
    )  # fmt: skip


class ExampleReader:
    """Reads sparse examples from text, without the GIL; threads may share it.

    An index that a line of LIBSVM or LIBFFM repeats (in one field) is one entry, the sum.

    Parameters
    ----------
    format : str
        One of `FORMATS`.  ``auto``: the first unambiguous line of the first text decides between
        LIBSVM and LIBFFM, the first line of each file between CSV and TSV.  Afterwards the
        attribute has what was found.
    columns : str or sequence
        Declarations for CSV and TSV (`columns.columns_of`); empty for the other formats.
    hash_bits : int
        Fold keys to 2^hash_bits, 1 to 62; 0: keep them.
    on_bad_line : str
        ``stop``: a malformed line raises DataError; ``skip``: it is counted and left out, and
        `first_bad` says where the first one was, and why.
    needs_labels : bool
        Else missing labels are 0.
    may_skip : bool
        Errors may advise ``on_bad_line: skip``.
    whole_rows : bool
        Texts end where rows do (`_examples.rows_end`), so quoted cells may hold newlines.  Blocks
        are cut at any newline, so there a quote has to close on its line.
    label_min : float
        A smaller label is an error.
    side : Side, optional
        Read the lines that are trained alone, or those that are held out.
    """

    def __init__(
        self,
        format: str = "auto",
        *,
        columns: Declared = "",
        hash_bits: int = 0,
        on_bad_line: str = "stop",
        needs_labels: bool = True,
        may_skip: bool = True,
        whole_rows: bool = False,
        label_min: float = -np.inf,
        side: Side | None = None,
    ) -> None:
        if format not in (*FORMATS, "blank"):
            raise ConfigError(f"format: expected one of {', '.join(FORMATS)}, got {format!r}")
        if on_bad_line not in ON_BAD_LINE:
            raise ConfigError(f"on_bad_line: expected stop or skip, got {on_bad_line!r}")
        if not 0 <= hash_bits <= HASH_BITS_MAX:
            raise ConfigError(f"hash_bits: expected 0 to {HASH_BITS_MAX}, got {hash_bits}")
        declared = bool(columns) and (not isinstance(columns, str) or bool(columns.strip()))
        if format in ("csv", "tsv") and not declared:
            raise ConfigError(
                f"format {format}: expected columns to be declared, got none. Set columns, for "
                f"example: {EXAMPLE}"
            )
        if format in ("libsvm", "libffm") and declared:
            raise ConfigError(f"columns: expected none with format {format}, which names keys")
        self.columns: tuple[DeclaredColumn, ...] = ()
        if declared:
            self.columns = columns_of(columns, needs_label=needs_labels)
        self._has_label = any(column.kind is ColumnKind.LABEL for column in self.columns)
        self.field_num = sum(column.is_feature for column in self.columns)
        self.hash_bits = hash_bits
        self.on_bad_line = on_bad_line
        self.format = format
        self.first_bad = ""
        self._needs_labels, self._may_skip, self._whole_rows = needs_labels, may_skip, whole_rows
        self._label_min, self._side = label_min, side
        self._reader: EntryReader | RowReader | None = None
        self.is_guessed = format == "auto"
        if format != "auto":
            self._reader = self._loops(format)

    def read(
        self,
        data: bytes,
        path: str = "",
        start: int = 0,
        part: tuple[int, int] | None = None,
        place: Place | None = None,
    ) -> Examples:
        """The examples of a text, of a part of it, or of a matrix file.

        `data` has whole lines; the last one may lack its newline.  `start` is the offset in the
        file of `data`, or of its block; 0: the first line may be a header.  `part` limits reading
        to a range of whole lines, or of rows.  `place`, for messages, gives the file and the offset
        there (-1: unknown) of a byte of `data`, or of a row of a matrix file.

        DataError: a malformed line, unless `on_bad_line` is skip; a label below `label_min`.
        """
        if is_matrix(data):
            path = path or "the input"
            self._check_matrix(data, path)
            examples = examples_of(data, path, hash_bits=self.hash_bits, part=part, place=place)
            for low in np.flatnonzero(examples.labels < self._label_min)[:1].tolist():
                row = low + (part[0] if part else 0)
                row = row if place is None else place(row)[1]
                raise DataError(
                    f"{path}, row {row:,}: expected {_EXPECTED['low'].format(self._label_min)}, "
                    f"got {examples.labels[low]:g}"
                )
            return examples if self._side is None else self._side.rows(examples)
        first, last = part or (0, len(data))
        self.learn_format(data, start)
        if start + first == 0:
            first = self._first(data)
        if self._reader is None and self.columns and start:
            raise DataError(
                f"{path or 'the text'}: expected its first line, which shows whether it is CSV or "
                f"TSV, got a part from byte {start:,} on: set format to csv or tsv"
            )
        # Without a line that shows the format there are no examples, or a fault to report.
        reader = self._reader or self._loops("csv" if self.columns else "libsvm")
        text, begin, end = data, first, last
        if self._side is not None:
            text = self._side.lines(data[first:last])
            begin, end = 0, len(text)
        examples, fault = reader.read(text, begin, end)
        if self.columns and not self._has_label:
            examples.labels[:] = 0
        # Only the first bad line is reported: to find its place takes long.
        if fault is not None and (self._reader is None or not self.first_bad):
            fault = self._in_whole(data[first:last], fault)
            message = self._message(data, first, fault, path, start, place)
            if self._reader is None and not self.columns and _SEPARATED.search(data, first, last):
                raise DataError(
                    f"{message}. No line looks like LIBSVM (label index:value ...) or LIBFFM. "
                    "Columns of CSV or TSV have to be declared: set columns, for example: "
                    + EXAMPLE
                )
            if self.on_bad_line == "stop":
                leave = ", or leave such lines out with on_bad_line: skip" * self._may_skip
                raise DataError(f"{message}. Correct the line{leave}")
            self.first_bad = self.first_bad or message
        if (examples.labels < self._label_min).any():
            # Rare, so the line is found by reading line by line.
            line = begin
            while True:
                line_end = text.find(b"\n", line, end) + 1 or end
                if (reader.read(text, line, line_end)[0].labels < self._label_min).any():
                    break
                line = line_end
            kinds = [column.kind for column in self.columns]
            label = kinds.index(ColumnKind.LABEL) if ColumnKind.LABEL in kinds else 0
            fault = Fault("low", line - begin, line - begin, label, 0)
            fault = self._in_whole(data[first:last], fault)
            raise DataError(self._message(data, first, fault, path, start, place))
        return examples if self.columns else summed(examples)

    def _in_whole(self, text: bytes, fault: Fault) -> Fault:
        """A fault of one side's lines, with its places among all lines of the text."""
        if self._side is None:
            return fault
        other = self._side.before(text, fault.line)
        return fault._replace(offset=fault.offset + other, line=fault.line + other)

    def learn_format(self, data: bytes, start: int = 0) -> bool:
        """Look for the format in a text unless it is known; return whether it is known now.

        The beginning of each file decides between CSV and TSV; a LIBSVM or LIBFFM format, once
        found, stays.
        """
        if self.is_guessed and (not start if self.columns else self._reader is None):
            format = self._guess(data, 0 if start else self._first(data), len(data))
            if format and format != self.format:
                self.format, self._reader = format, self._loops(format)
        return self.knows_format

    @property
    def is_one_sided(self) -> bool:
        """Whether it reads the lines that are trained alone, or those that are held out."""
        return self._side is not None

    @property
    def knows_format(self) -> bool:
        return self._reader is not None

    def _check_matrix(self, data: bytes, path: str) -> None:
        if self.format != "auto" and not self.is_guessed:
            raise DataError(
                f"{path} is a matrix file, but format is {self.format}: set format: auto"
            )
        if self.columns:
            raise DataError(
                f"{path} is a matrix file, whose columns were decided when it was written: leave "
                "columns empty"
            )
        if self._needs_labels:
            check_labels(data, path)

    def _loops(self, format: str) -> EntryReader | RowReader:
        skip = self.on_bad_line == "skip"
        if format in ("libsvm", "libffm"):
            return EntryReader(format == "libffm", self.hash_bits, skip)
        separator, quotes = self._cells(format)
        return RowReader(self.columns, separator, quotes, self.hash_bits, skip)

    def _cells(self, format: str) -> tuple[bytes, int]:
        separator, quotes = CELLS.get(format, CELLS["csv"])
        return separator, OVER_LINES if quotes and self._whole_rows else quotes

    def _first(self, data: bytes) -> int:
        """Offset of a file's first example, after a byte order mark and a header."""
        first = len(BOM) if data.startswith(BOM) else 0
        if not self.columns:
            return first
        end = data.find(b"\n", first) + 1 or len(data)
        names = [column.name.encode() for column in self.columns]
        for format in [self.format] if self.format in CELLS else ["csv", "tsv"]:
            if first_row(data[first:end], *CELLS[format])[0] == names:
                return end
        return first

    def _guess(self, data: bytes, begin: int, last: int) -> str:
        """The format of a part of a text; empty if none of its lines shows it."""
        if self.columns:
            line, width = first_line_of(data), len(self.columns)
            return format_of_rows(line, lambda cells: cells == width) if line else ""
        while begin < last:
            end = data.find(b"\n", begin, last) + 1 or last
            entry = _ENTRY.match(data, begin, end)
            if entry:
                return "libffm" if entry[1] else "libsvm"
            begin = end
        return ""

    def _message(
        self,
        data: bytes,
        first: int,
        fault: Fault,
        path: str,
        start: int,
        place: Place | None,
    ) -> str:
        """Words for a fault: file, line and column in bytes, what was expected, what came."""
        offset = first + fault.offset
        begin = first + fault.line
        end = data.find(b"\n", offset)
        line = data[begin : end if end >= 0 else len(data)].removesuffix(b"\r")
        offset = min(offset, begin + len(line))
        expected, got = self._expected(fault, line, offset - begin)
        return (
            f"{line_at(data, begin, path, start, place)}, column {offset - begin + 1}: "
            f"expected {expected}, got {got}"
        )

    def _expected(self, fault: Fault, line: bytes, begin: int) -> tuple[str, str]:
        """What was expected at byte `begin` of a line, and what is there."""
        if not self.columns:
            stop = _BLANK.search(line, begin)
            expected = _EXPECTED[fault.kind].format(self._label_min)
            return expected, _shown(line[begin : stop.start() if stop else len(line)])
        if fault.kind == "cells":
            return f"{len(self.columns)} columns", str(fault.cells)
        where = f" in column {self.columns[fault.column].name}"
        if fault.kind == "quote":
            same = "" if self._whole_rows else " on the same line"
            return _EXPECTED["quote"].format(same) + where, _shown(line[begin:].strip())
        cells, _ = first_row(line, *self._cells(self.format))
        expected = _EXPECTED[fault.kind].format(self._label_min) + where
        return expected, _shown((cells[fault.column :] or [line[begin:]])[0])


def format_of_rows(
    line: bytes, fits: Callable[[int], bool], formats: Sequence[str] = ("tsv", "csv")
) -> str:
    """The format in which a line has a number of cells that `fits`.

    If there is none: the first whose separator occurs in the line, else the last.
    """
    for format in formats:
        if fits(len(first_row(line, *CELLS[format])[0])):
            return format
    return next((format for format in formats if CELLS[format][0] in line), formats[-1])


def _shown(got: bytes) -> str:
    text = got[:SHOWN_BYTES].decode(errors="replace")
    return repr(text + "..." if len(got) > SHOWN_BYTES else text) if got else "nothing"


def line_at(data: bytes, offset: int, path: str, start: int, place: Place | None) -> str:
    """Words for the line of byte `offset` of a text (`ExampleReader.read`): file and number.

    Lines before the text are counted by reading the file again, which an error may cost.  If that
    fails, the line is counted within the text.
    """
    begin = data.rfind(b"\n", 0, offset) + 1
    number = data.count(b"\n", 0, begin) + 1
    if place is None:
        before = lines_before(path, start)
        where = f"line {before + number}"
    else:
        path, in_file = place(begin)
        before = lines_before(path, in_file)
        where = f"line {before + 1}"
    if before < 0:
        where = f"line {number} of the block at byte {start:,}"
    return f"{path or 'the text'}, {where}"


def lines_before(path: str, start: int) -> int:
    """Lines in front of the first one that begins at byte `start` or later; -1: unknown."""
    if start <= 0:
        return min(0, start)
    lines, unread = 0, start - 1
    try:
        with open_input(path) as file:
            while unread and (step := file.read(min(unread, STEP_BYTES))):
                lines += step.count(b"\n")
                unread -= len(step)
    except (OSError, DataError):
        return -1
    return -1 if unread else lines + 1


def entries_in(
    files: InputFiles, reader: ExampleReader, most: int, *, labels_only: bool = False
) -> int:
    """The number of entries and labels of examples in lines or matrix files, at most `most`;
    `labels_only`: of examples.

    Counts what the `reader` reads: the lines of one side alone, if it has one.
    Skips what cannot be read: the worker that trains on it reports the error, with its place.
    """
    numbers = 0
    for source in files.sources:
        with suppress(DataError), files.scratch.open(source.path) as file:
            head = file.read(HEADER_BYTES)
            has_rows = is_matrix(head)
            if has_rows and not reader.is_one_sided:
                header = read_header(head, file.seek(0, os.SEEK_END), source.path)
                numbers += header.rows + (0 if labels_only else header.nonzeros)
                continue
            offset = file.seek(0)
            lines = whole_lines(file, source.path, text=False)
            for data in _rows_in(files, source) if has_rows else lines:
                examples = reader.read(data, source.path, offset)
                numbers += len(examples.labels) + (0 if labels_only else len(examples.keys))
                offset += len(data)
                if numbers >= most:
                    return most
    return min(numbers, most)


def _rows_in(files: InputFiles, source: InputFile) -> Iterator[bytes]:
    """All rows of a matrix file, as matrix files of a few."""
    for piece in cut([source], ROWS_BYTES):
        yield read_block(piece.path, piece.start, piece.stop, unit="line", scratch=files.scratch)


def examples_of(
    data: bytes,
    path: str,
    *,
    hash_bits: int = 0,
    part: tuple[int, int] | None = None,
    place: Callable[[int], tuple[str, int]] | None = None,
) -> Examples:
    """Rows of a matrix file or block in memory as checked examples; labels are 0 if it has none.

    `hash_bits` as for text; `part` is a range of rows.  `place`, for messages, gives the file and
    the number there (-1: unknown) of a row of `data`.  Values and fields are views of `data`;
    labels and keys are converted in one pass.  Threads may read different rows.

    DataError: dense rows, or a damaged row: pointers, a key, value, field, label or weight out of
    range.
    """
    header = read_header(data, len(data), path)
    if header.dense:
        raise DataError(
            f"{path}: expected sparse examples, got dense ones: write them without dense=True, or "
            "train a model of dense examples, such as mlp"
        )
    first, last = part or (0, header.rows)
    ptr = header.array(data, "ptr")[first : last + 1]
    begin, end = int(ptr[0]), int(ptr[-1])

    def damaged(row: int, what: str) -> DataError:
        number = first + row
        in_file = header.first_row + number if place is None else place(number)[1]
        where = f"row {in_file:,}" if in_file >= 0 else f"row {number:,} of a block"
        return DataError(f"{path}: {where} {what}: damaged. {AGAIN}")

    def row_of(entry: int) -> int:
        return int(np.searchsorted(ptr, begin + entry, side="right")) - 1

    # Pointers before all else: they say where the other arrays are read.
    if (row := first_falling(ptr)) >= 0:
        raise damaged(row - 1, "has its entries' end before their beginning")
    if not 0 <= begin <= end <= header.nonzeros:
        raise damaged(0, f"begins at entry {begin:,} of {header.nonzeros:,}")
    stored = header.array(data, "keys")[begin:end]
    keys, entry = wide_keys(stored, header.key_limit, Flags.HASHED in header.flags, hash_bits)
    if entry >= 0:
        key, limit = int(stored[entry]), header.key_limit
        raise damaged(row_of(entry), f"has key {key:,}: expected keys below {limit:,}")
    values = header.array(data, "values")[begin:end]
    if (entry := first_not_finite(values)) >= 0:
        raise damaged(row_of(entry), f"has value {values[entry]}: expected finite ones")
    fields = header.array(data, "fields")[begin:end]
    if len(fields) and (low := int(fields.min())) < 0:
        raise damaged(row_of(int(fields.argmin())), f"has field {low}: expected 0 and above")
    labels = header.array(data, "labels")[first:last].astype(np.float64)
    if (row := first_not_finite(floats(labels))) >= 0:
        raise damaged(row, f"has label {labels[row]}: expected finite ones within float32's range")
    weights = header.array(data, "weights")[first:last]
    if (row := first_not_weight(weights)) >= 0:
        raise damaged(row, f"has weight {weights[row]}: expected 0 and above")
    if not header.labels:
        labels = np.zeros(last - first)
    if Flags.VALUES not in header.flags:
        values = _ones(end - begin)
    return Examples(labels, ptr - begin, keys, values, fields, 0, weights)


_all_ones = np.ones(1 << 16, np.float32)


def _ones(count: int) -> NDArray[np.float32]:
    """An array of `count` ones, shared by all callers: do not write to it."""
    global _all_ones
    ones = _all_ones  # a thread that grows it meanwhile makes another array, which does no harm
    if len(ones) < count:
        _all_ones = ones = np.ones(count, np.float32)
    return ones[:count]
