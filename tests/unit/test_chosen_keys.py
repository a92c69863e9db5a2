"""Keys chosen by whoever knows the published hash cost no more than others, in any table."""

import socket
import time
from functools import cache

import numpy as np
import pytest
from twins import store as twin

from snailps.data._key_numbering import KeptNumbers, number_keys
from snailps.data._text import WordCounter
from snailps.kernels import row_ops
from snailps.serving._row_cache import FRESH, RowCache
from snailps.store._store import ShardStore
from snailps.transport.client._client import Client

N = 8_000
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


@cache
def chosen():
    """Keys whose hashes agree in their low halves."""
    return np.array([key_of(i << 32 | 0x12345678) for i in range(N)], np.uint64)


@cache
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


def stage(keys):
    store = ShardStore(1, row_ops())
    store.own([0])
    store.add_table(1, 1, 0, 0, 0.0, 0, [])
    store.set_clock(0)
    store.stage(1, 0, 0, 1, keys, np.ones((len(keys), 1), np.float32))
    store.seal(0, 0, 1, 1)


def count_words(keys):
    counter = WordCounter()
    text = b" ".join(key.tobytes() for key in keys)
    counter.count(np.frombuffer(text, np.uint8))
    assert len(counter) == len(keys)


def ending_alike():
    """Words that differ in their last two bytes alone, the upper ones of a number."""
    ends = [low | high << 8 for high in range(128, 255) for low in range(128, 255)][:N]
    return np.array([0x414243444546 | end << 48 for end in ends], np.uint64)


def words():
    """Eight letters each, all of them different."""
    letters = np.random.default_rng(2).integers(97, 123, (N, 8), dtype=np.uint8)
    return np.unique(letters.view(np.uint64).ravel())


def merge(keys):
    """The table of a request's keys, on the way to a shard that never answers."""
    near, far = socket.socketpair()
    near.setblocking(False)
    client = Client(
        lambda shard: near.detach(), ["s"], np.zeros(1, np.uint32), 1, 1, 1, timeout_s=1.0
    )
    try:
        client.push_async(1, keys, np.ones((len(keys), 1), np.float32), merge=True)
    finally:
        client.close()
        near.close()
        far.close()


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
    ("work", "keys", "others"),
    [
        (push, chosen, others),
        (stage, chosen, others),
        (merge, chosen, others),
        (number, chosen_for_products, others),
        (keep, chosen_for_products, others),
        (count_words, ending_alike, words),
    ],
)
def test_table_of_chosen_keys_takes_no_longer_than_that_of_others(work, keys, others):
    """Each of 8,000 that meet in one place would take 4,000 looks: some hundred times as long."""
    assert cost(work, keys()) < 10 * cost(work, others()) + 2e-3


def test_cache_keeps_chosen_keys_as_it_does_others():
    cache = RowCache(1, 1 << 20)
    keys = chosen()[: cache.capacity // 8]
    cache.put(keys, np.ones((len(keys), 1), np.float32), 1)
    states, _ = cache.find(keys, 1, np.zeros((len(keys), 1), np.float32))
    assert (states == FRESH).mean() > 0.9
