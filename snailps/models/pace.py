"""How much a worker reads at a time, a block, and how much it trains before it pushes, a period."""

from __future__ import annotations

import numpy as np

from snailps.api.block import Block
from snailps.dataclass import dataclass

BLOCK_LEAST = 512


@dataclass(frozen=True, slots=True)
class Pace:
    """Blocks of a training, and push periods of its kept rows; those of an only worker are large.

    A block is a worker's share of an epoch over `blocks`, at most `bytes_most`.  If that is below
    `bytes_small`, of which a lease costs more than a tenth of the training, it is up to the share
    over `blocks_few`.  A period is the least of `period_part` of the training, `period_examples`,
    and 1 / `period_growth` of the blocks that the worker had so far; without these a block is one.
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
        """The part of a period that a block is, the `number`-th of this worker, from 1 on."""
        before, after = block.progress
        of_input = max((after - before) / self.period_part, examples / self.period_examples)
        return max(of_input, self.period_growth / number) or np.inf


def of_workers(workers: int, *paces: Pace) -> Pace:
    """Choose the pace for `workers` of those for one worker, for two, ...; the last is for more."""
    return paces[min(workers, len(paces)) - 1]
