"""Random orders of examples or blocks that every process computes alike from seed and epoch.

    count, seed, epoch -> order -> a permutation

`_shuffling` orders the rows within a block.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from snailps.abi.key_hash import GOLDEN, mix64, seed_of


def order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A permutation of 0 to `count` - 1, a different one for each seed and epoch.

    Sorts the draws of SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014), started at a hash of
    seed and epoch.  Its draws are a bijection of their numbers, so no two are equal: every sorting
    algorithm gives the same order, and the fastest, unstable one may be used.
    """
    draws = np.arange(1, count + 1, dtype=np.uint64)
    return np.argsort(mix64(draws * np.uint64(GOLDEN) + np.uint64(seed_of(seed, epoch))))
