"""The files of an input before blocks are cut: found, and copied where they cannot be cut.

    expand -> InputFiles -> Adopted.measure, Cut.passes: what a model decides by its input

Counts the content that is trained on: the text of a table's column, the unpacked copy of a file.
**Nothing is estimated from a file's beginning.**  Must not know a job's blocks, or models.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from snailps.data.blocks import STEP_BYTES, Source, cut, read_block
from snailps.data.examples import ExampleReader
from snailps.data.file_kinds import whole_lines
from snailps.data.held_out import HeldOut
from snailps.data.matrix_file import HEADER_BYTES, is_matrix, read_header
from snailps.data.scratch import Scratch
from snailps.data.unpacking import read_errors
from snailps.dataclass import dataclass
from snailps.errors import DataError

ROWS_BYTES = 8 << 20
"""Bytes of a matrix file whose rows are in memory at a time."""


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Input files with their sizes; `scratch` has copies of those that cannot be cut."""

    sources: Sequence[Source]
    scratch: Scratch

    @property
    def total_bytes(self) -> int:
        """Bytes of one epoch; for packed files and tables, of what is made of them."""
        return sum(source.bytes for source in self.sources)

    def lines(self, most: int) -> int:
        """The number of lines of all files, or `most` if there are more.

        Stops counting at `most`, so that a large input does not cost a pass.
        """
        lines = 0
        for source in self.sources:
            with read_errors(source.path), self.scratch.open(source.path) as file:
                data = last = b""
                while lines < most and (data := file.read(STEP_BYTES)):
                    lines, last = lines + data.count(b"\n"), data
            lines += not (data or last.endswith(b"\n"))  # the last line may lack its end
            if lines >= most:
                return most
        return lines

    def trained_lines(self, most: int, split: HeldOut | None) -> int:
        """The number of lines that a split leaves to train, or `most` if there are more."""
        if split is None:
            return self.lines(most)
        lines = 0
        for text in self.pieces(split):
            lines += text.count(b"\n") + (text[-1:] not in (b"", b"\n"))
            if lines >= most:
                return most
        return lines

    def pieces(self, split: HeldOut | None = None) -> Iterator[bytes]:
        """Whole lines of all files that a split leaves to train, of about a MiB at a time."""
        for source in self.sources:
            with read_errors(source.path), self.scratch.open(source.path) as file:
                texts = whole_lines(file, source.path)
                yield from texts if split is None else map(split.trained, texts)

    def numbers(self, reader: ExampleReader, most: int, *, labels_only: bool = False) -> int:
        """The number of entries and labels of examples in lines or matrix files, at most `most`;
        `labels_only`: of examples.

        Counts what the `reader` reads: the lines of one side alone, if it has one.
        Skips what cannot be read: the worker that trains on it reports the error, with its place.
        """
        numbers = 0
        for source in self.sources:
            with suppress(DataError), self.scratch.open(source.path) as file:
                head = file.read(HEADER_BYTES)
                has_rows = is_matrix(head)
                if has_rows and not reader.is_one_sided:
                    header = read_header(head, file.seek(0, os.SEEK_END), source.path)
                    numbers += header.rows + (0 if labels_only else header.nonzeros)
                    continue
                offset = file.seek(0)
                lines = whole_lines(file, source.path, text=False)
                for data in self._rows(source) if has_rows else lines:
                    examples = reader.read(data, source.path, offset)
                    numbers += len(examples.labels) + (0 if labels_only else len(examples.keys))
                    offset += len(data)
                    if numbers >= most:
                        return most
        return min(numbers, most)

    def _rows(self, source: Source) -> Iterator[bytes]:
        """All rows of a matrix file, as matrix files of a few."""
        for piece in cut([source], ROWS_BYTES):
            yield read_block(piece.path, piece.start, piece.stop, unit="line", scratch=self.scratch)
