"""Blocks as they were parsed in an earlier epoch, with the places of their features.

    batches of a block -> keep;  the block in a later epoch -> find -> batches, nothing is read

The first blocks are kept until the memory is full.  Places are those of kept rows (`shared_rows`),
and invalid once these are numbered anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from snailps.api.block import Block
from snailps.models.sparse.batch import Batch

SEEN_BYTES_MAX = 128 << 20
"""Memory of the kept blocks: 16 million entries, about 100 MB of text."""


class SeenBlocks:
    """The blocks that a worker has seen; in the last of the job's `epochs` nothing is kept."""

    def __init__(self, epochs: int) -> None:
        self._epochs, self._numbering, self._bytes = epochs, 0, 0
        self._blocks: dict[tuple[str, int, int], Sequence[Batch]] = {}

    def find(self, block: Block, numbering: int) -> Sequence[Batch] | None:
        """The batches of a block with places in this numbering; None: it must be read."""
        self._begin(numbering)
        return self._blocks.get((block.path, block.start, block.stop))

    def keep(self, block: Block, numbering: int, batches: Sequence[Batch]) -> None:
        """Keep a block's batches for later epochs if there is room; they must not change."""
        self._begin(numbering)
        size = sum(batch.nbytes for batch in batches)
        if block.epoch + 1 < self._epochs and self._bytes + size <= SEEN_BYTES_MAX:
            self._bytes += size
            self._blocks[block.path, block.start, block.stop] = batches

    def _begin(self, numbering: int) -> None:
        if numbering != self._numbering:
            self._numbering, self._bytes = numbering, 0
            self._blocks.clear()
