"""How names are split into partitions that are alike; pure functions, so that all workers agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from snailps.abi.key_hash import fragment_of

PLACED_SINGLY = 64
"""Names for each partition that are assigned one by one."""
BEYOND_MEAN = 1.05
"""Most that a partition by hashes has, over the mean, where some of its names can go elsewhere."""


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


def assign_by_hash(
    mass: NDArray[np.float64], keys: NDArray[np.uint64], parts: int
) -> NDArray[np.int32]:
    """The partition of each name, by the key of its row: equal ranges of the keys' hashes.

    Shards own such ranges, too, so that few of them have rows of a partition: one or two if there
    are as many partitions as shards, until shards move.  Of one that has too much, the heaviest of
    the names that `assign` places singly go to the partition that has least.
    """
    found = fragment_of(keys, parts).astype(np.int32)
    load = np.bincount(found, mass, parts)
    most = BEYOND_MEAN * load.mean()
    heaviest = np.argsort(-mass, kind="stable")[: PLACED_SINGLY * parts]
    for name in heaviest.tolist():
        part, to = int(found[name]), int(load.argmin())
        if load[part] > most and load[to] + mass[name] < load[part]:
            found[name] = to
            load[part] -= mass[name]
            load[to] += mass[name]
    return found
