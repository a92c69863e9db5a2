"""The files of an input, found and copied where they have to be, before blocks are cut.

    expand -> InputFiles -> Adopted.measure, Cut.passes: what a model decides by its input

What is counted is counted in the content that is trained: the text of a table's column, an unpacked
copy.  **Nothing is estimated from a file's beginning.**  No blocks, no models.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from snailps.data.blocks import STEP_BYTES, Source
from snailps.data.examples import ExampleReader
from snailps.data.file_kinds import whole_lines
from snailps.data.matrix_file import HEADER_BYTES, is_matrix, read_header
from snailps.data.scratch import Scratch
from snailps.data.unpacking import read_errors
from snailps.dataclass import dataclass
from snailps.errors import DataError


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Files with their sizes, and the copies in `scratch` of the files that cannot be cut."""

    sources: Sequence[Source]
    scratch: Scratch

    @property
    def total_bytes(self) -> int:
        """Of one epoch: of packed files and tables the bytes of what is made of them."""
        return sum(source.bytes for source in self.sources)

    def lines(self, most: int) -> int:
        """Count the lines of all files; stops at `most`, so that a large text costs no pass."""
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

    def pieces(self) -> Iterator[bytes]:
        """Whole lines of all files, about a MiB at a time."""
        for source in self.sources:
            with read_errors(source.path), self.scratch.open(source.path) as file:
                yield from whole_lines(file, source.path)

    def numbers(self, reader: ExampleReader, most: int) -> int:
        """Count the entries and labels of examples, in lines or matrix files; stops at `most`.

        What cannot be read is left out: its error is reported where it is trained.
        """
        numbers = 0
        for source in self.sources:
            with suppress(DataError), self.scratch.open(source.path) as file:
                head = file.read(HEADER_BYTES)
                if is_matrix(head):
                    header = read_header(head, file.seek(0, os.SEEK_END), source.path)
                    numbers += header.nonzeros + header.rows
                    continue
                at = file.seek(0)
                for data in whole_lines(file, source.path, text=False):
                    found = reader.read(data, source.path, at)
                    numbers, at = numbers + len(found.keys) + len(found.labels), at + len(data)
                    if numbers >= most:
                        return most
        return min(numbers, most)
