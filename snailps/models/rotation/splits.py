"""How names are split into partitions that are alike; pure functions, so that all workers agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PLACED_SINGLY = 64
"""Names for each partition that are assigned one by one."""


def assign(mass: NDArray[np.float64], sizes: Sequence[int], seed: int) -> NDArray[np.int32]:
    """The partition of each name, so that their sums of `mass` are as these sizes.

    The heaviest go one by one to the partition that then has least of its own, the others in
    shuffled rounds, of as many a partition as its size.
    """
    parts = len(sizes)
    order = np.argsort(-mass, kind="stable")
    found = np.empty(len(mass), np.int32)
    singly = min(len(order), PLACED_SINGLY * parts)
    load, size = np.zeros(parts), np.asarray(sizes, np.float64)
    for name in order[:singly].tolist():
        part = int(((load + mass[name]) / size).argmin())
        found[name] = part
        load[part] += mass[name]
    rest, places = order[singly:], np.repeat(np.arange(parts, dtype=np.int32), sizes)
    rounds = -(-len(rest) // len(places))
    shuffled = np.random.default_rng(seed).random((rounds, len(places))).argsort(1)
    found[rest] = places[shuffled.ravel()[: len(rest)]]
    return found
