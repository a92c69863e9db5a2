"""Where the bytes of a block are: a piece of the input, and the files that it is read from.

    cut -> Piece -> a lease -> Piece, Layout -> joined -> files -> bytes

Values only: `blocks.py` cuts and reads, `joined.py` has blocks over several files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from snailps.dataclass import dataclass

FILES_MAX = 4096
"""Files of a block, which a lease lists, and of a driver."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes `start` to `stop` (exclusive) of a file's content; without a path none: a block that
    reads no input. Of files that are cut as one, `path` is a name for messages."""

    path: str = ""
    start: int = 0
    stop: int = 0


class JoinedFile(NamedTuple):
    """A file in a sequence of files: offset of its first byte there, and its length.

    `version` identifies the version of which the master has a copy.
    """

    path: str
    begin: int
    bytes: int
    version: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the bytes of a piece are found.

    `version`: identifies the copy of its file that the master has.  `spread`: bytes of the file or
    files over which the piece is spread; 0: it is one range.  `files`: those that it has bytes of,
    if it is over several; `by_file`: each of these is a text of its own.
    """

    version: str = ""
    spread: int = 0
    files: tuple[JoinedFile, ...] = ()
    by_file: bool = False

    def joined(self, piece: Piece) -> tuple[Sequence[JoinedFile], bool]:
        """The files that a piece has bytes of, and whether each is a text of its own."""
        if self.files:
            return self.files, self.by_file
        whole = max(piece.stop, self.spread)
        return [JoinedFile(piece.path, 0, whole, self.version)], True
