"""Blocks as they were parsed in an epoch before, with the places of their features.

    batches of a block -> keep;  the block in a later epoch -> find -> batches, nothing is read

The first blocks are kept until there is no room.  Places are those of kept rows (`shared_rows`),
and no good once these are numbered anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from snailps.api.block import Block
from snailps.models.sparse.batch import Batch

SEEN_BYTES_MAX = 128 << 20
"""16 million entries, about 100 MB of text.  Reading one and finding its place again takes some 20
ns of processor time."""


class SeenBlocks:
    """The blocks that a worker has seen.

    Parameters
    ----------
    epochs : int
        Of the job: in the last one nothing is kept.
    """

    def __init__(self, epochs: int) -> None:
        self._epochs, self._numbering, self._bytes = epochs, 0, 0
        self._blocks: dict[tuple[str, int, int], Sequence[Batch]] = {}

    def find(self, block: Block, numbering: int) -> Sequence[Batch] | None:
        """The batches of a block whose places are of this numbering; None: it is to be read."""
        self._begin(numbering)
        return self._blocks.get((block.path, block.start, block.stop))

    def keep(self, block: Block, numbering: int, batches: Sequence[Batch]) -> None:
        """Keeps a block's batches, if it comes again and there is room; they must not change."""
        self._begin(numbering)
        size = sum(batch.nbytes for batch in batches)
        if block.epoch + 1 < self._epochs and self._bytes + size <= SEEN_BYTES_MAX:
            self._bytes += size
            self._blocks[block.path, block.start, block.stop] = batches

    def _begin(self, numbering: int) -> None:
        """Drops what has other places."""
        if numbering != self._numbering:
            self._numbering, self._bytes = numbering, 0
            self._blocks.clear()
