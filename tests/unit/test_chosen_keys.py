"""Keys chosen by whoever knows the published hash cost no more than others, in every table of keys."""

import time

import numpy as np
import pytest
from twins import store as twin

from snailps.data._key_numbering import KeptNumbers, number_keys
from snailps.kernels import row_ops
from snailps.serving._row_cache import FRESH, RowCache
from snailps.store._store import ShardStore

N = 12_000
ALL = (1 << 64) - 1
FOLDED = 0x9E3779B97F4A7C15


def unshifted(x, shift):
    """Inverse of ``x ^ x >> shift``."""
    y = x
    for _ in range(64 // shift + 1):
        y = x ^ y >> shift
    return y


def key_of(hashed):
    """Inverse of `hash_key`."""
    x = unshifted(hashed, 31) * pow(0x94D049BB133111EB, -1, 1 << 64) & ALL
    x = unshifted(x, 27) * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & ALL
    return unshifted(x, 30) - 0x9E3779B97F4A7C15 & ALL


def chosen():
    """Keys whose hashes agree in their low halves."""
    return np.array([key_of(i << 32 | 0x12345678) for i in range(N)], np.uint64)


def chosen_for_products():
    """Keys that agree in the upper bits of a product by the golden ratio."""
    inverse = pow(FOLDED, -1, 1 << 64)
    return np.array([unshifted(i * inverse & ALL, 32) for i in range(1, N + 1)], np.uint64)


def others():
    return np.random.default_rng(1).integers(1 << 40, 1 << 63, N, dtype=np.uint64)


def push(keys):
    store = ShardStore(1, row_ops())
    store.own([0])
    store.add_table(1, 1, 0, 0, 0.0, 0, [])
    store.push(1, 1, 1, keys, np.ones((len(keys), 1), np.float32))
    assert store.rows(1) == len(keys)


def number(keys):
    unique, _ = number_keys(keys)
    assert len(unique) == len(keys)


def keep(keys):
    known = KeptNumbers(len(keys))
    rows, missing, _ = known.find(keys)
    new, whole = known.number(keys, missing, rows)
    assert len(new) == len(keys)
    assert whole


def cost(work, keys):
    """Seconds of this thread's own time, the least of three."""
    seconds = []
    for _ in range(3):
        begin = time.thread_time()
        work(keys)
        seconds.append(time.thread_time() - begin)
    return min(seconds)


def test_chosen_keys_have_equal_low_hashes():
    assert {twin.hash_key(key) & 0xFFFFFFFF for key in chosen()[:50].tolist()} == {0x12345678}


@pytest.mark.parametrize(
    ("work", "keys"), [(push, chosen), (number, chosen_for_products), (keep, chosen_for_products)]
)
def test_table_of_chosen_keys_takes_no_longer_than_that_of_others(work, keys):
    """Each of 12,000 that meet in one place would take 6,000 looks: a thousand times as long."""
    assert cost(work, keys()) < 30 * cost(work, others()) + 1e-3


def test_cache_keeps_chosen_keys_as_it_does_others():
    cache = RowCache(1, 1 << 20)
    keys = chosen()[: cache.capacity // 8]
    cache.put(keys, np.ones((len(keys), 1), np.float32), 1)
    states, _ = cache.find(keys, 1, np.zeros((len(keys), 1), np.float32))
    assert (states == FRESH).mean() > 0.9
