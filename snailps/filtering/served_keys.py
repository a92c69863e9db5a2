"""The least row of each key that came more than once, at the servers of a cluster.

    note -> bits of all keys (access method `again`) -> push: only keys whose bits came again
    push -> the least value of each (`min`)          -> pull

It answers as `KeyTable` does, but that some keys which came once have a row too: a row is never
missing.  A note, push or pull may come twice, from any worker.  Must not know pages.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from snailps.api.model_tables import ModelTables
from snailps.api.tables import Table
from snailps.duplicates._pages import NO_KEY

BITS_A_KEY = 8
"""Bits for each key that is expected.  As many say whether a bit came again."""
WORDS = 2
"""Words of 64 bits whose bits one row of `again` has: more cost more on the network, a row for a
key, and fewer cost more memory, as each row has a number and a place in the index."""
SHIFTS = 43, 50, 57
"""Where the number of a key's bits in its row stand in the key, 7 bits each."""
Keys = NDArray[np.uint64]


class ServedKeys:
    """The table, through the pulls and pushes of `model`; threads may share it."""

    TABLES = (
        Table("keys.again", 2 * WORDS, access="again", dtype="uint64"),
        Table("keys.first", 1, access="min", dtype="uint64"),
    )

    def __init__(self, model: ModelTables, expected_keys: int) -> None:
        self._model, self._rows = model, max(1, expected_keys * BITS_A_KEY // (64 * WORDS))

    def note(self, keys: Keys) -> None:
        """See keys: those that come again may have rows."""
        rows, bits = self._bits_of(keys[keys != NO_KEY])
        self._model.push("keys.again", rows, np.column_stack([bits, np.zeros_like(bits)]))

    def push(self, keys: Keys, values: Keys) -> None:
        """Keep the least value of each key that was noted more than once."""
        known = keys != NO_KEY
        keys, values = keys[known], values[known]
        rows, bits = self._bits_of(keys)
        again: Keys = self._model.pull("keys.again", rows).view(np.uint64)[:, WORDS:]
        chosen = (again & bits == bits).all(axis=1)
        self._model.push("keys.first", keys[chosen], values[chosen, None])

    def pull(self, keys: Keys) -> Keys:
        """The least value of each key, in the shape of `keys`; all ones where it has no row."""
        values, known = np.full(keys.shape, NO_KEY, np.uint64), keys != NO_KEY
        values[known] = self._model.pull("keys.first", keys[known])[:, 0]
        return values

    def _bits_of(self, keys: Keys) -> tuple[Keys, Keys]:
        """By key, the number of its row, and its bits in it."""
        bits = np.zeros((len(keys), WORDS), np.uint64)
        for shift in SHIFTS:
            place = keys >> np.uint64(shift) & np.uint64(64 * WORDS - 1)
            word = (place >> np.uint64(6)).astype(np.intp)
            bits[np.arange(len(keys)), word] |= np.uint64(1) << (place & np.uint64(63))
        return keys % np.uint64(self._rows), bits
