"""Parsed blocks of an earlier epoch, so that they need not be read and parsed again.

The first blocks are kept until the memory is full: in one scan after the other, the block that was
used least recently is the next to be used.  A parsed block may hold places of kept rows; all are
dropped once these are numbered anew.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from snailps.api.block import Block

SEEN_BYTES_MAX = 128 << 20
"""Memory of the kept blocks: 16 million sparse entries, or about 100 MB of text."""

T = TypeVar("T")


class SeenBlocks(Generic[T]):
    """The blocks that a worker has parsed; in the last of `epochs` epochs none is kept.

    Used by the preparing thread alone.
    """

    def __init__(self, epochs: int, room: int = 0) -> None:
        self._epochs, self._room = epochs, room or SEEN_BYTES_MAX
        self._numbering = self.nbytes = 0
        self.blocks: dict[tuple[str, int, int], T] = {}

    def find(self, block: Block, numbering: int = 0) -> T | None:
        """Find a parsed block, with places of this numbering; None: it must be read."""
        self._begin(numbering)
        return self.blocks.get((block.path, block.start, block.stop))

    def keep(self, block: Block, seen: T, nbytes: int, numbering: int = 0) -> None:
        """Keep a parsed block for later epochs if there is room; nobody may change it."""
        self._begin(numbering)
        if block.epoch + 1 < self._epochs and self.nbytes + nbytes <= self._room:
            self.nbytes += nbytes
            self.blocks[block.path, block.start, block.stop] = seen

    def clear(self) -> None:
        self.nbytes = 0
        self.blocks.clear()

    def _begin(self, numbering: int) -> None:
        if numbering != self._numbering:
            self._numbering = numbering
            self.clear()
