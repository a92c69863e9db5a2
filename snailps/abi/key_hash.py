"""SplitMix64's finaliser, as ``_key_hash.h`` has it; fragments and seeds made with it."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15
"""A step between seeds: 2^64 by the golden ratio."""
MASK64 = (1 << 64) - 1

Bits = TypeVar("Bits", int, NDArray[np.uint64])


def mix64(x: Bits) -> Bits:
    """The finaliser of a number below 2^64, or of each element of an array."""
    y: Any = x
    y = (y ^ (y >> 30)) * 0xBF58476D1CE4E5B9 & MASK64
    y = (y ^ (y >> 27)) * 0x94D049BB133111EB & MASK64
    found: Bits = y ^ (y >> 31)
    return found


def seed_of(seed: int, number: int) -> int:
    """Seed of a lease or an epoch: SplitMix64's step of the job's seed and the number."""
    return mix64((seed * GOLDEN + number + 1) & MASK64)


def order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A permutation of 0 to `count` - 1, a different one for each seed and epoch.

    Sorts the draws of SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014), started at a hash of
    seed and epoch.  Its draws are a bijection of their numbers, so no two are equal: every sorting
    algorithm gives the same order, and the fastest, unstable one may be used.
    """
    draws = np.arange(1, count + 1, dtype=np.uint64)
    return np.argsort(mix64(draws * np.uint64(GOLDEN) + np.uint64(seed_of(seed, epoch))))


def fragment_of(keys: NDArray[np.uint64], frag_num: int) -> NDArray[np.uint32]:
    """Fragments of an array of uint64 keys; the twin of `fragment_of_hash` in ``_key_hash.h``."""
    hashed = mix64(np.asarray(keys, dtype=np.uint64) + np.uint64(GOLDEN))
    scaled: NDArray[np.uint64] = ((hashed >> np.uint64(32)) * np.uint64(frag_num)) >> np.uint64(32)
    return scaled.astype(np.uint32)
