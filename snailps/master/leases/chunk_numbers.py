"""Numbers of a rotation's entries: arithmetic on how the input is cut, without any state.

    number of an entry <-> chunk and block in it, or chunk and partition; epoch, bytes before

Chunk k is the ``k % chunks``-th piece of the blocks, in pass ``k // chunks`` over them; an epoch
has one pass, or more. Entry ``k * stride + s`` encodes its s-th block, entry ``k * stride +
blocks_most + i`` is its i-th partition; so a run of more epochs continues one of fewer with the
same numbers.
"""

from __future__ import annotations

import numpy as np

from snailps.api.rotation import Rotation
from snailps.master.leases.entries import Entries


class ChunkNumbers:
    """Which chunk, block or partition a number means; chunks need not be open."""

    def __init__(
        self,
        entries: Entries,  # the blocks of all passes, in order
        rotation: Rotation,  # at most as many chunks as blocks
    ) -> None:
        self._entries, self._in_pass, self._is_kept = entries, rotation.chunks, rotation.is_kept
        self.in_epoch = rotation.chunks * rotation.passes
        blocks = len(entries.blocks)
        self.chunks = entries.count // blocks * self._in_pass
        """Chunks of all epochs."""
        self._starts = [chunk * blocks // self._in_pass for chunk in range(self._in_pass + 1)]
        self.blocks_most = int(np.diff(self._starts).max())
        """Blocks of the largest chunk."""
        self.stride = self.blocks_most + rotation.most_parts
        """Numbers of a chunk."""

    def is_partition(self, number: int) -> bool:
        return number % self.stride >= self.blocks_most

    def encodes(self, number: int) -> bool:
        """Whether an entry is a block to encode for all workers, and not trained."""
        return not self.is_partition(number)

    def chunk_of(self, number: int) -> int:
        return number // self.stride

    def is_first(self, number: int) -> bool:
        """Whether an entry is of the first pass over its epoch's blocks: each has them all."""
        return self.chunk_of(number) % self.in_epoch < self._in_pass

    def keeps(self, chunk: int) -> bool:
        """Whether the blocks of a chunk are encoded already, by an earlier chunk of the same
        input."""
        return self._is_kept and chunk >= self._in_pass

    def epoch_of(self, number: int) -> int:
        return self.chunk_of(number) // self.in_epoch

    def number(self, chunk: int, part: int) -> int:
        """The entry of a partition."""
        return chunk * self.stride + self.blocks_most + part

    def part(self, number: int) -> int:
        return number % self.stride - self.blocks_most

    def blocks_in(self, chunk: int) -> int:
        place = chunk % self._in_pass
        return self._starts[place + 1] - self._starts[place]

    def blocks_of(self, chunk: int) -> range:
        """The entries that encode a chunk."""
        first = chunk * self.stride
        return range(first, first + self.blocks_in(chunk))

    def block_of(self, number: int) -> int:
        """Place, among the blocks of all passes, of the block that an entry encodes."""
        return self.blocks_before(self.chunk_of(number)) + number % self.stride

    def blocks_before(self, chunk: int) -> int:
        """Blocks of all earlier chunks."""
        passes, place = divmod(chunk, self._in_pass)
        return passes * len(self._entries.blocks) + self._starts[place]

    def bytes_before(self, chunk: int) -> int:
        return self._entries.bytes_before(self.blocks_before(chunk))
