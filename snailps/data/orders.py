"""Orders of examples or blocks that depend on seed and epoch alone, in every process.

    count, seed, epoch -> order -> a permutation

`_shuffling` orders the rows of a block.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from snailps.abi.key_hash import GOLDEN, mix64, seed_of


def order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A permutation of 0 to `count` - 1, another one for each seed and epoch.

    Sorts hashes: element i is draw i + 1 of SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014),
    started at a hash of seed and epoch.  It is bijective, so no two are equal: any way of sorting
    gives the same order, and an unstable one is the fastest.
    """
    draws = np.arange(1, count + 1, dtype=np.uint64)
    return np.argsort(mix64(draws * np.uint64(GOLDEN) + np.uint64(seed_of(seed, epoch))))
