"""The cache of rows: what it has is exact, what it takes is bounded, the least used goes first."""

import numpy as np
import pytest

from snailps.errors import MisuseError
from snailps.serving._row_cache import FRESH, NOT_THERE, OLD, RowCache

DIM = 5
SET = 8 * (16 + 4 * DIM)


def rows_of(keys):
    keys = np.asarray(keys, np.uint64)
    return ((keys % np.uint64(9973)).astype(np.float32)[:, None] + np.arange(DIM)).astype(
        np.float32
    )


def asked(cache, keys, oldest=1):
    """States of keys; the rows of those that are there must be theirs, others untouched."""
    keys = np.asarray(keys, np.uint64)
    out = np.full((len(keys), DIM), -7, np.float32)
    states, fresh = cache.find(keys, oldest, out)
    there = states != NOT_THERE
    assert np.array_equal(out[there], rows_of(keys)[there])
    assert (out[~there] == -7).all()
    assert fresh == (states == FRESH).sum()
    return states.tolist()


def put(cache, keys, now=1):
    keys = np.asarray(keys, np.uint64)
    cache.put(keys, rows_of(keys), now)


def test_rows_are_found_by_any_key_and_no_other_key_is():
    cache = RowCache(DIM, 64 * SET)
    keys = [0, 1, 2**64 - 1, 2**63, 12345678901234567890]
    assert asked(cache, keys) == [NOT_THERE] * 5
    put(cache, keys)
    assert asked(cache, [*keys, 3, *keys]) == [FRESH] * 5 + [NOT_THERE] + [FRESH] * 5
    assert cache.rows == 5


def test_rows_put_again_replace_the_earlier_ones_and_are_as_old_as_the_last_put():
    cache = RowCache(DIM, 4 * SET)
    keys = np.array([7], np.uint64)
    cache.put(keys, np.zeros((1, DIM), np.float32), 1)
    put(cache, keys, now=9)
    assert asked(cache, keys, oldest=9) == [FRESH]
    assert asked(cache, keys, oldest=10) == [OLD]
    assert cache.rows == 1


def test_memory_is_within_the_limit_and_full_of_rows():
    cache = RowCache(DIM, 100 * SET + SET // 2)
    assert (cache.bytes, cache.capacity) == (100 * SET, 800)
    keys = np.random.default_rng(1).integers(0, 1 << 63, 20_000, dtype=np.uint64)
    put(cache, keys)
    assert cache.rows == 800  # every place of every set
    assert cache.evicted == 20_000 - 800
    assert sum(state == FRESH for state in asked(cache, keys)) == 800


def test_row_unused_for_longest_goes_first():
    cache = RowCache(DIM, SET)  # one set: the order is that of a list of eight
    kept = []
    rng = np.random.default_rng(2)
    for _ in range(500):
        key = int(rng.integers(0, 14))
        state = asked(cache, [key])
        assert (state == [FRESH]) == (key in kept)
        put(cache, [key])
        kept = [*(other for other in kept if other != key), key][-8:]
    assert set(kept) == {key for key in range(14) if asked(cache, [key]) == [FRESH]}


def test_skewed_lookups_hit_nearly_as_often_as_with_perfect_lru():
    """Sets of eight lose little: the reference is one list of all rows."""
    rng = np.random.default_rng(3)
    keys = rng.zipf(1.2, 20_000).astype(np.uint64)
    cache = RowCache(DIM, 64 * SET)
    lru: dict[int, None] = {}
    hits = ideal = 0
    for start in range(0, len(keys), 100):
        some = np.unique(keys[start : start + 100])
        states = np.array(asked(cache, some))
        hits += int((states == FRESH).sum())
        put(cache, some[states != FRESH])
        for key in some.tolist():
            ideal += key in lru
            lru.pop(key, None)
            lru[key] = None
        while len(lru) > cache.capacity:
            del lru[next(iter(lru))]
    assert hits > 0.95 * ideal


def test_no_memory_keeps_nothing():
    for limit in (0, SET - 1):
        cache = RowCache(DIM, limit)
        put(cache, [1, 2])
        assert asked(cache, [1, 2]) == [NOT_THERE] * 2
        assert (cache.rows, cache.bytes) == (0, 0)


def test_cleared_cache_is_empty():
    cache = RowCache(DIM, 10 * SET)
    put(cache, range(50))
    cache.clear()
    assert set(asked(cache, range(50))) == {NOT_THERE}
    assert cache.rows == 0


def test_arrays_of_other_shapes_are_refused():
    cache = RowCache(DIM, SET)
    keys = np.arange(3, dtype=np.uint64)
    with pytest.raises(MisuseError, match=r"expected \(3, 5\)"):
        cache.put(keys, np.zeros((2, DIM), np.float32), 1)
    with pytest.raises(MisuseError, match=r"expected \(3, 5\)"):
        cache.find(keys, 1, np.zeros((3, DIM + 1), np.float32))
    with pytest.raises(MisuseError):
        cache.put(keys, rows_of(keys), 0)  # the time that empty places have
    with pytest.raises(ValueError, match="Buffer dtype"):
        cache.find(keys.astype(np.int64), 1, rows_of(keys))
    with pytest.raises(MisuseError):
        RowCache(0, 100)


def test_answer_that_was_asked_for_earlier_replaces_no_newer_row():
    cache = RowCache(DIM, 1 << 16)
    newer, older = np.full((1, DIM), 2, np.float32), np.full((2, DIM), 1, np.float32)
    keys = np.array([7, 8], np.uint64)
    cache.put(keys[:1], newer, 100)
    cache.put(keys, older, 90)  # its answer comes later
    out = np.empty((2, DIM), np.float32)
    states, _ = cache.find(keys, 95, out)
    assert states.tolist() == [FRESH, OLD]
    assert out[:, 0].tolist() == [2, 1]
