"""Stores with one table, and keys for them: for the tests of store._store."""

import numpy as np
from twins import store as twin

from snailps import kernels
from snailps.store._store import ShardStore

ZEROS, UNIFORM, NORMAL = 0, 1, 2
TOP = 2**64 - 1


def make_store(
    frag_num=1, dim=4, access=twin.ADD, init=ZEROS, scale=0.5, seed=7, hyper=None, track=0
):
    """A store that owns every fragment and has table 0."""
    store = ShardStore(frag_num, kernels.row_ops())
    store.own(range(frag_num))
    store.add_table(0, dim, access, init, scale, seed, hyper or (0.5, 1e-6, 0, 0), track)
    return store


def keys_of(*keys):
    return np.array(keys, np.uint64)


def some_keys(count, seed=1):
    """Different keys, 0 and 2^64 - 1 among them."""
    drawn = np.random.default_rng(seed).integers(1, TOP, 2 * count, dtype=np.uint64)
    return np.concatenate([keys_of(0, TOP), np.unique(drawn)])[:count]


def scan_all(store, table_id, fragment, max_rows):
    cursor, keys, rows = 0, [], []
    while True:
        cursor, more_keys, more_rows = store.scan(table_id, fragment, cursor, max_rows)
        if not len(more_keys):
            return keys, rows
        keys += more_keys.tolist()
        rows += list(more_rows)
