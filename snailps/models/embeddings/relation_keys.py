"""Keys of relations: each `GROUP` of relations is in one shard, so that few requests move it.

In a rotation all workers exchange all relations after each checkout.  With keys whose hashes are
spread each exchange would be a push and a pull at every shard and its standby, for a row or two.

Knows how keys become fragments, and neither shards nor rows.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from snailps.abi.key_hash import fragment_of, mix64
from snailps.models.embeddings.worker import KIND_KEY
from snailps.models.local_sgd import Keys

GROUP = 64
"""Relations whose keys are near each other: about one request, and not all of a large graph."""
PLACES = 64
"""Parts of the hashes, in one of which the keys of a group are: with so many shards or fewer each
part is in one of them, or in two."""
TRIES = 1 << 16
"""Keys of a relation to choose from: every 64th fits, so the chance that none does is e^-1024."""
TRIED_AT_ONCE = 128
NUMBERS_AT_ONCE = 1 << 12


@lru_cache(maxsize=2)
def relation_keys(count: int) -> Keys:
    """Give the keys of relations 0 to ``count - 1``; the key of a relation depends on its number
    alone."""
    numbers = np.arange(count, dtype=np.uint64)
    parts = [_chosen(numbers[at : at + NUMBERS_AT_ONCE]) for at in range(0, count, NUMBERS_AT_ONCE)]
    keys: Keys = np.concatenate([np.zeros(0, np.uint64), *parts])
    keys.flags.writeable = False
    return keys


def _chosen(numbers: NDArray[np.uint64]) -> Keys:
    """The first key of each relation whose hash is in the part of its group."""
    places = mix64(numbers // np.uint64(GROUP)) % np.uint64(PLACES)
    firsts = numbers * np.uint64(TRIES) + np.uint64(KIND_KEY)
    keys: Keys = firsts.copy()
    without = np.arange(len(numbers))
    for first in range(0, TRIES, TRIED_AT_ONCE):
        tried = np.arange(first, first + TRIED_AT_ONCE, dtype=np.uint64)
        candidates = firsts[without, None] + tried
        fits = fragment_of(candidates, PLACES) == places[without, None]
        rows = np.flatnonzero(fits.any(axis=1))
        keys[without[rows]] = candidates[rows, fits[rows].argmax(axis=1)]
        without = np.delete(without, rows)
        if not len(without):
            break
    return keys
