"""The files of an input before blocks are cut: found, and copied where they cannot be cut.

    expand -> InputFiles -> Adopted.measure, Cut.passes: what a model decides by its input

Counts the content that is trained on: the text of a table's column, the unpacked copy of a file.
**Nothing is estimated from a file's beginning.**  Must not know a job's blocks, or models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from snailps.dataclass import dataclass
from snailps.files.blocks import STEP_BYTES, InputFile
from snailps.files.file_kinds import whole_lines
from snailps.files.scratch import Scratch
from snailps.files.unpacking import read_errors


class Split(Protocol):
    """Which lines are trained (`data/held_out.py`)."""

    def trained(self, text: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Input files with their sizes; `scratch` has copies of those that cannot be cut."""

    sources: Sequence[InputFile]
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

    def trained_lines(self, most: int, split: Split | None) -> int:
        """The number of lines that a split leaves to train, or `most` if there are more."""
        if split is None:
            return self.lines(most)
        lines = 0
        for text in self.pieces(split):
            lines += text.count(b"\n") + (text[-1:] not in (b"", b"\n"))
            if lines >= most:
                return most
        return lines

    def pieces(self, split: Split | None = None) -> Iterator[bytes]:
        """Whole lines of all files that a split leaves to train, of about a MiB at a time."""
        for source in self.sources:
            with read_errors(source.path), self.scratch.open(source.path) as file:
                texts = whole_lines(file, source.path)
                yield from texts if split is None else map(split.trained, texts)
