"""Splits names (words, users, items) into partitions of given sizes.

Pure functions of counts, keys and a seed: each worker computes the same split, and none is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from snailps.abi.key_hash import fragment_of

PLACED_SINGLY = 64
"""Heaviest names, for each partition, that are assigned one by one."""
BEYOND_MEAN = 1.05
"""Load of a partition by hashes, as a multiple of the mean, beyond which heavy names leave it."""


def assign(mass: NDArray[np.float64], sizes: Sequence[int], seed: int) -> NDArray[np.int32]:
    """Choose each name's partition; the partitions' sums of `mass` are in proportion to `sizes`.

    The heaviest names go one by one to the partition that has least for its size.  The others are
    assigned in shuffled rounds, in each of which a partition gets as many names as its size says.
    """
    parts = len(sizes)
    order = np.argsort(-mass, kind="stable")
    part_of = np.empty(len(mass), np.int32)
    singly = min(len(order), PLACED_SINGLY * parts)
    load, size = np.zeros(parts), np.asarray(sizes, np.float64)
    for name in order[:singly].tolist():
        part = int(((load + mass[name]) / size).argmin())
        part_of[name] = part
        load[part] += mass[name]
    others, places = order[singly:], np.repeat(np.arange(parts, dtype=np.int32), sizes)
    rounds = -(-len(others) // len(places))
    shuffled = np.random.default_rng(seed).random((rounds, len(places))).argsort(1)
    part_of[others] = places[shuffled.ravel()[: len(others)]]
    return part_of


def assign_by_hash(
    mass: NDArray[np.float64], keys: NDArray[np.uint64], parts: int
) -> NDArray[np.int32]:
    """Choose each name's partition by the key of its row: equal ranges of the keys' hashes.

    Shards own such ranges, too, so a partition's rows are at few shards: at one or two if there are
    as many partitions as shards, until shards move.  Heavy names leave an overfull partition for
    the one with the smallest load.
    """
    part_of = fragment_of(keys, parts).astype(np.int32)
    loads = np.bincount(part_of, mass, parts)
    most, load = BEYOND_MEAN * loads.mean(), loads.tolist()
    if max(load) <= most:
        return part_of
    heaviest = np.argsort(-mass, kind="stable")[: PLACED_SINGLY * parts]
    of_heaviest = zip(heaviest.tolist(), part_of[heaviest].tolist(), strict=True)
    for (name, part), name_mass in zip(of_heaviest, mass[heaviest].tolist(), strict=True):
        if load[part] > most:
            to = load.index(min(load))
            if load[to] + name_mass < load[part]:
                part_of[name] = to
                load[part] -= name_mass
                load[to] += name_mass
    return part_of
