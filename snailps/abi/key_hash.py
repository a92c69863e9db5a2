"""SplitMix64's finaliser and seeds made with it: the NumPy twin of ``_key_hash.h``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15


def mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Replace each element by the finaliser of it; returns `x`."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def seed_of(seed: int, number: int) -> int:
    """Seed of a lease or an epoch: SplitMix64's step of the job's seed and the number."""
    return int(mix64(np.array([(seed * GOLDEN + number + 1) % (1 << 64)], np.uint64))[0])
