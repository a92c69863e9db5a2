"""The size of a worker's blocks and push periods, by the size of the input."""

from __future__ import annotations

import numpy as np

from snailps.api.block import Block
from snailps.dataclass import dataclass

BLOCK_LEAST = 512


@dataclass(frozen=True, slots=True)
class Pace:
    """The size of blocks, and of the push periods of kept rows.

    A worker's share of an epoch has `blocks` blocks, of at most `bytes_most`.  Blocks below
    `bytes_small`, where a lease costs more than a tenth of the training, are enlarged as long as
    the share still has `blocks_few`.  A period ends after `period_part` of the training, after
    `period_examples`, or after 1 / `period_growth` of the blocks that the worker has had so far,
    whichever comes first.  With the defaults each block is a period.
    """

    blocks: int
    bytes_most: int
    bytes_small: int = 0
    blocks_few: int = 1
    period_part: float = np.inf
    period_examples: float = np.inf
    period_growth: float = 0.0

    def block_bytes(self, total_bytes: int, workers: int) -> int:
        small = min(self.bytes_small, total_bytes // (self.blocks_few * workers))
        share = total_bytes // (self.blocks * workers)
        return max(BLOCK_LEAST, min(self.bytes_most, max(share, small)))

    def period_size(self, block: Block, examples: int, number: int) -> float:
        """Return which part of a period a block is; `number` counts this worker's blocks from 1."""
        before, after = block.progress
        of_input = max((after - before) / self.period_part, examples / self.period_examples)
        return max(of_input, self.period_growth / number) or np.inf


def of_workers(workers: int, *paces: Pace) -> Pace:
    """Choose from paces for one worker, two workers, ...; the last holds for any larger number."""
    return paces[min(workers, len(paces)) - 1]
