"""Sparse examples from text and matrix files: formats, settings, messages about lines.

    format, columns, ... -> ExampleReader;  bytes of whole lines -> read -> Examples
    bytes of a matrix file -> Examples

Turns a loop's fault into a message with file, line and column.  The loops are in `_examples.pyx`,
declarations of columns in `columns.py`.  No blocks, no roles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from snailps.data._examples import EntryReader, Examples, Fault, RowReader, first_row
from snailps.data.blocks import Place
from snailps.data.columns import Column, Declared, Kind, columns_of
from snailps.data.file_kinds import BOM, CELLS, OVER_LINES, first_line_of
from snailps.data.matrix_file import check_labels, examples_of, is_matrix
from snailps.data.scratch import open_input
from snailps.errors import ConfigError, DataError

FORMATS = ("auto", "libsvm", "libffm", "csv", "tsv")
ON_BAD_LINE = ("stop", "skip")
HASH_BITS_MAX = 62
STEP_BYTES = 1 << 20
SHOWN_BYTES = 40
EXAMPLE = "label:label, age:numeric log, city:categorical"

_EXPECTED = {
    "label": "a label, a number such as -1, 0.5 or 3",
    "low": "a label of at least {:g}",
    "index": "index:value, the index a whole number below 2^63",
    "colon": "a colon and a value behind the index",
    "value": "a finite number within float32's range as value, then a blank",
    "field": "field:index:value, the field a whole number below 2^31",
    "feature": "a colon and an index behind the field (field:index:value)",
    "qid": "a whole number behind qid:",
    "quote": "a closing quote{}, then a separator",
    "cell": "a finite number within float32's range, or nothing",
}
_BLANK = re.compile(rb"[ \t]")
_SEPARATED = re.compile(rb"[^ \t\n][,\t][^ \t\n]")
_ENTRY = re.compile(rb"[ \t]*[^ \t#]+[ \t]+(?:qid:[0-9]+[ \t]+)?[0-9]+:([0-9]+:)?")


class ExampleReader:
    """Reads sparse examples from text; threads may share it, and it reads without the GIL.

    ``auto``: the first line that shows the `format`, of the first text, decides; of CSV and TSV the
    first line of each file.  `columns` are of CSV and TSV only (`columns.columns_of`).  `hash_bits`
    folds keys to 2^hash_bits, 1 to 62; 0: not.  Without `needs_labels` missing labels are 0.
    `may_skip`: errors name `on_bad_line`.  `whole_rows`: texts end where rows do
    (`_examples.rows_end`), so cells in quotes may have newlines; blocks are cut at any.  A label
    below `label_min` is an error.

    `format` becomes what ``auto`` found; `field_num` is the number of feature columns of CSV and
    TSV, else 0; `first_bad` says where and why the first line was skipped.
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
        self.columns: tuple[Column, ...] = ()
        if declared:
            self.columns = columns_of(columns, needs_label=needs_labels)
        self._has_label = any(column.kind is Kind.LABEL for column in self.columns)
        self.field_num = sum(column.is_feature for column in self.columns)
        self.hash_bits = hash_bits
        self.on_bad_line = on_bad_line
        self.format = format
        self.first_bad = ""
        self._needs_labels, self._may_skip, self._whole_rows = needs_labels, may_skip, whole_rows
        self._label_min = label_min
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
        """The examples of a text or of a part of it, or of a matrix file.

        `data` has whole lines, the last maybe without newline.  `start` is its offset in the file's
        content or that of its block; 0: the first line may be a header.  `part` limits reading to a
        range of whole lines, or of rows.  `place` gives file and offset there (-1: unknown) of byte
        i of `data`, of a matrix file the row, for messages.  A malformed line raises DataError
        unless `on_bad_line` is skip.
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
            return examples
        first, last = part or (0, len(data))
        self.learn_format(data, start)
        if start + first == 0:
            first = self._first(data)
        # Until the format is known each text is examined.
        if self._reader is None and self.columns and start:
            raise DataError(
                f"{path or 'the text'}: whether it is CSV or TSV is told by its first line, got a "
                f"part of it from byte {start:,} on: set format to csv or tsv"
            )
        reader = self._reader or self._loops("csv" if self.columns else "libsvm")
        examples, fault = reader.read(data, first, last)
        if self.columns and not self._has_label:
            examples.labels[:] = 0
        if fault is not None:
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
            at = first
            while True:
                end = data.find(b"\n", at, last) + 1 or last
                if (reader.read(data, at, end)[0].labels < self._label_min).any():
                    break
                at = end
            column = next((n for n, one in enumerate(self.columns) if one.kind is Kind.LABEL), 0)
            fault = Fault("low", at - first, at - first, column, 0)
            raise DataError(self._message(data, first, fault, path, start, place))
        return examples

    def learn_format(self, data: bytes, start: int = 0) -> bool:
        """Whether the format is known: as given, from an earlier text, or from this one's lines.

        The first line of a file decides between CSV and TSV.
        """
        if self.is_guessed and (not start if self.columns else self._reader is None):
            found = self._guess(data, 0 if start else self._first(data), len(data))
            if found and found != self.format:
                self.format, self._reader = found, self._loops(found)
        return self.knows_format

    @property
    def knows_format(self) -> bool:
        return self._reader is not None

    def _check_matrix(self, data: bytes, path: str) -> None:
        if self.format != "auto" and not self.is_guessed:
            raise DataError(f"{path} is a matrix file, but format: {self.format}: set format: auto")
        if self.columns:
            raise DataError(
                f"{path} is a matrix file, whose columns are what they were written as: set no "
                "columns"
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
        """Offset of a file's examples: behind a byte order mark and a header."""
        first = len(BOM) if data.startswith(BOM) else 0
        if not self.columns:
            return first
        end = data.find(b"\n", first) + 1 or len(data)
        names = [column.name.encode() for column in self.columns]
        for format in [self.format] if self.format in CELLS else ["csv", "tsv"]:
            if first_row(data[first:end], *CELLS[format])[0] == names:
                return end
        return first

    def _guess(self, data: bytes, at: int, last: int) -> str:
        """The format of a text's part; empty if none of its lines shows it."""
        if self.columns:
            line, width = first_line_of(data), len(self.columns)
            return format_of_rows(line, lambda cells: cells == width) if line else ""
        while at < last:
            end = data.find(b"\n", at, last) + 1 or last
            found = _ENTRY.match(data, at, end)
            if found:
                return "libffm" if found[1] else "libsvm"
            at = end
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
        at = first + fault.offset
        begin = first + fault.line
        end = data.find(b"\n", at)
        line = data[begin : end if end >= 0 else len(data)].removesuffix(b"\r")
        at = min(at, begin + len(line))
        number = data.count(b"\n", 0, begin) + 1
        if place is None:
            before = lines_before(path, start)
            where = f"line {before + number}"
        else:
            path, at_byte = place(begin)
            before = lines_before(path, at_byte)
            where = f"line {before + 1}"
        if before < 0:
            where = f"line {number} of the block at byte {start:,}"
        expected, got = self._expected(fault, line, at - begin)
        return (
            f"{path or 'the text'}, {where}, column {at - begin + 1}: "
            f"expected {expected}, got {got}"
        )

    def _expected(self, fault: Fault, line: bytes, at: int) -> tuple[str, str]:
        if not self.columns:
            stop = _BLANK.search(line, at)
            expected = _EXPECTED[fault.kind].format(self._label_min)
            return expected, _shown(line[at : stop.start() if stop else len(line)])
        if fault.kind == "cells":
            return f"{len(self.columns)} columns", str(fault.cells)
        where = f" in column {self.columns[fault.column].name}"
        if fault.kind == "quote":
            same = "" if self._whole_rows else " on the same line"
            return _EXPECTED["quote"].format(same) + where, _shown(line[at:].strip())
        cells, _ = first_row(line, *self._cells(self.format))
        expected = _EXPECTED[fault.kind].format(self._label_min) + where
        return expected, _shown((cells[fault.column :] or [line[at:]])[0])


def format_of_rows(
    line: bytes, fits: Callable[[int], bool], formats: Sequence[str] = ("tsv", "csv")
) -> str:
    """The format in which a file's first line has a number of cells that `fits`.

    If none has, the first whose separator it has.
    """
    for format in formats:
        if fits(len(first_row(line, *CELLS[format])[0])):
            return format
    return next((format for format in formats if CELLS[format][0] in line), formats[-1])


def _shown(got: bytes) -> str:
    text = got[:SHOWN_BYTES].decode(errors="replace")
    return repr(text + "..." if len(got) > SHOWN_BYTES else text) if got else "nothing"


def lines_before(path: str, start: int) -> int:
    """Lines of a file before the first that begins at `start` or behind it; -1: unknown."""
    if start <= 0:
        return min(0, start)
    lines, left = 0, start - 1
    try:
        with open_input(path) as file:
            while left and (step := file.read(min(left, STEP_BYTES))):
                lines += step.count(b"\n")
                left -= len(step)
    except (OSError, DataError):
        return -1
    return -1 if left else lines + 1
