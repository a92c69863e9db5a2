"""Orders of examples or blocks that depend on seed and epoch alone, in every process.

    count, seed, epoch -> order -> a permutation

`_shuffling` orders the rows of a block.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


def order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A permutation of 0 to `count` - 1, another one for each seed and epoch.

    Sorts hashes: element i is draw i + 1 of SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014),
    started at a hash of seed and epoch.  It is bijective, so no two are equal: any way of sorting
    gives the same order, and an unstable one is the fastest.
    """
    start = _mixed(np.array([seed & _MASK], np.uint64) * _GOLDEN + np.uint64((epoch + 1) & _MASK))
    draws = np.arange(1, count + 1, dtype=np.uint64)
    return np.argsort(_mixed(draws * _GOLDEN + start))


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser of each element."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
