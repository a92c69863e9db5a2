"""store._store: rows that come, go and outgrow their memory."""

import numpy as np
import pytest
from stores import TOP, UNIFORM, ZEROS, keys_of, make_store, scan_all, some_keys, ticks_of
from twins import store as twin

from snailps.abi.key_hash import fragment_of
from snailps.errors import ConfigError, SnailError

# --- deletion, ticks, rounds ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_store_delete_from_overflowing_buckets_keeps_every_other_key(seed):
    """200 keys in 32 buckets of 8: runs of full ones; gaps are closed again and again."""
    rng = np.random.default_rng(seed)
    keys = some_keys(200, seed=1000 + seed)
    store = make_store(1, 1)
    numbers = np.arange(len(keys), dtype=np.float32)[:, None]
    store.push(0, 1, 1, keys, numbers)
    left = np.ones(len(keys), bool)
    for seq in range(2, 400):
        i = rng.integers(len(keys))
        if left[i]:
            assert store.delete(0, keys[i : i + 1]) == 1
        else:
            assert store.push(0, 1, seq, keys[i : i + 1], numbers[i : i + 1]) == 1
        left[i] = not left[i]
        expected = np.where(left[:, None], numbers, 0)
        np.testing.assert_array_equal(store.pull(0, keys), expected)
        assert sorted(store.keys(0).tolist()) == sorted(keys[left].tolist())


def test_store_deleted_key_reads_as_at_first_and_its_slot_is_used_again():
    store = make_store(1, 3, twin.ADAGRAD, UNIFORM, track=1)
    keys = some_keys(1000)
    ones = np.ones((1000, 3), np.float32)
    first = store.pull(0, keys, state=True)
    store.push(0, 1, 1, keys, ones)
    full = store.bytes
    for seq in range(2, 12):
        gone = keys[seq::10]
        assert store.delete(0, gone) == len(gone)
        assert store.delete(0, gone) == 0
        np.testing.assert_array_equal(store.pull(0, gone, state=True), first[seq::10])
        store.push(0, 1, seq, gone, ones[: len(gone)])
        assert (store.rows(0), store.bytes) == (1000, full)
    whole = store.pull(0, keys, state=True)
    np.testing.assert_array_equal(whole[:, 3:], ones)


def test_store_bytes_of_deleted_rows_serve_other_fragments():
    store = make_store(2, 50)
    keys = some_keys(40_000)
    owner = fragment_of(keys, 2)
    for seq in range(1, 7):
        mine = keys[owner == seq % 2]
        store.push(0, 1, seq, mine, np.ones((len(mine), 50)))
        if seq == 1:
            once = store.bytes
        assert store.delete(0, mine) == len(mine)
        assert store.rows(0) == 0
        assert store.scan(0, seq % 2)[1].tolist() == []
    assert store.bytes < 1.1 * once


def test_store_scan_sees_rows_that_stay_once_while_others_come_and_go():
    store = make_store(1, 1)
    stay, go = np.arange(3000, dtype=np.uint64), np.arange(3000, 6000, dtype=np.uint64)
    rng = np.random.default_rng(5)
    mixed = rng.permutation(np.concatenate([stay, go]))
    store.push(0, 1, 1, mixed, mixed[:, None].astype(np.float32))
    cursor, seen, rows = 0, [], []
    for seq in range(2, 10**6):
        store.delete(0, go[seq % 30 :: 30])
        fresh = np.arange(20, dtype=np.uint64) + np.uint64(seq * 10_000)
        store.push(0, 1, seq, fresh, fresh[:, None].astype(np.float32))
        cursor, some, some_rows = store.scan(0, 0, cursor, 100)
        if not len(some):
            break
        seen += some.tolist()
        rows += some_rows[:, 0].tolist()
    assert [key for key, row in zip(seen, rows, strict=True) if np.float32(key) != row] == []
    assert sorted(key for key in seen if key < 3000) == stay.tolist()
    assert len(seen) == len(set(seen))


def test_store_key_that_equals_the_mark_of_a_free_slot_is_no_ghost():
    """A deleted row's key place holds a small number, which is an ordinary key elsewhere."""
    store = make_store(1, 1)
    keys = np.arange(40, dtype=np.uint64)
    store.push(0, 1, 1, keys, keys[:, None].astype(np.float32))
    store.delete(0, keys[5:35])
    assert sorted(store.keys(0).tolist()) == [*range(5), *range(35, 40)]
    assert sorted(scan_all(store, 0, 0, 3)[0]) == [*range(5), *range(35, 40)]


def test_store_expire_forgets_what_no_push_touched():
    store = make_store(4, 2, track=1)
    keys = some_keys(4000)
    for tick, part in ((3, keys), (7, keys[:1000]), (2**32 - 1, keys[:10])):
        store.set_tick(tick)
        store.push(0, tick, 1, part, np.ones((len(part), 2), np.float32))
    assert store.expire(0, 3) == 0
    assert store.expire(0, 7, [1]) == (fragment_of(keys[1000:], 4) == 1).sum()
    assert store.expire(0, 7) == (fragment_of(keys[1000:], 4) != 1).sum()
    assert sorted(store.keys(0).tolist()) == sorted(keys[:1000].tolist())
    ticks = dict.fromkeys(keys[:1000].tolist(), 7) | dict.fromkeys(keys[:10].tolist(), 2**32 - 1)
    assert ticks_of(store, 0) == ticks
    assert store.expire(0, 2**32 - 1) == 990
    with pytest.raises(ConfigError, match="tick"):
        store.set_tick(2**32)


def test_store_tracking_costs_four_bytes_a_row():
    sizes = []
    for track in (0, 1):
        store = make_store(1, 64, track=track)
        store.push(0, 1, 1, some_keys(20_000), np.ones((20_000, 64)))
        sizes.append(store.bytes)
        assert store.stats()["tables"][0]["row_bytes"] == 20_000 * 256
    assert (sizes[1] - sizes[0]) / 20_000 == pytest.approx(4, abs=4)


def test_store_what_a_table_does_not_have_is_refused():
    store = make_store()
    with pytest.raises(SnailError, match="does not track"):
        store.expire(0, 1)
    with pytest.raises(SnailError, match="takes no differences"):
        make_store(access=twin.AVERAGE).push(0, 1, 1, keys_of(1), np.zeros((1, 9)), state=True)


def test_store_clock_ends_the_round_of_its_average_tables_alone():
    store = make_store(4, 2, twin.AVERAGE, UNIFORM)
    store.add_table(1, 2, twin.AVERAGE, ZEROS, 0, 1, ())
    keys = some_keys(500)
    values = np.repeat([[6, 9, 3]], 500, 0).astype(np.float32)
    store.push(1, 1, 1, keys, values)
    store.stage(0, 0, 0, 2, keys, values)
    assert store.seal(0, 0, 1, 2)
    assert store.pull(0, keys).tolist() == [[2, 3]] * 500
    assert not store.pull(1, keys).any()


# --- growth, memory, scans -----------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "access"), [(1, twin.ADD), (7, twin.ADAGRAD), (100, twin.ADD)])
def test_store_one_fragment_with_many_rows_keeps_each(dim, access):
    store = make_store(1, dim, access, hyper=(1.0, 0, 0, 0))
    keys = some_keys(150_000)
    numbers = np.arange(1, len(keys) + 1, dtype=np.float32)
    for seq, start in enumerate(range(0, len(keys), 10_000), start=1):
        part = slice(start, start + 10_000)
        store.push(0, 1, seq, keys[part], np.repeat(numbers[part, None], dim, axis=1))
    order = np.random.default_rng(3).permutation(len(keys))
    # AdaGrad's first step is lr x sign.
    expected = numbers[order] if access == twin.ADD else np.full(len(keys), -1, np.float32)
    for column in (0, dim - 1):
        np.testing.assert_array_equal(store.pull(0, keys[order])[:, column], expected)
    np.testing.assert_array_equal(store.keys(0), keys)
    missing = some_keys(1000, seed=99)[2:]
    assert not store.pull(0, missing).any()


def test_store_rows_that_move_amid_a_push_get_their_values():
    """A fragment's first chunk doubles by copying, while a push has found rows in it already."""
    store, rng = make_store(1, 3, init=ZEROS), np.random.default_rng(1)
    expected = np.zeros((400, 3), np.float32)
    for seq in range(1, 60):
        keys = rng.permutation(np.arange(6 * seq, dtype=np.uint64))  # old and new ones mixed
        store.push(0, 1, seq, keys, np.full((len(keys), 3), seq, np.float32))
        expected[keys] += seq
    assert np.array_equal(store.pull(0, np.arange(400, dtype=np.uint64)), expected)


def test_store_rows_longer_than_a_chunk_are_kept():
    store = make_store(1, 70_001)
    values = np.arange(4, dtype=np.float32)[:, None] + np.arange(70_001, dtype=np.float32)
    store.push(0, 1, 1, keys_of(0, 1, 2, TOP), values)
    np.testing.assert_array_equal(store.pull(0, keys_of(TOP, 2, 1, 0)), values[::-1])
    assert store.bytes < 1.1 * values.nbytes


# Rows a fragment: what 10 million rows give 1,024 fragments, and the worst moments of growth,
# just after an index doubled.
@pytest.mark.parametrize("rows_per_fragment", [3400, 6700, 9766, 13400])
@pytest.mark.parametrize(("dim", "access"), [(100, twin.ADD), (50, twin.ADAGRAD)])
def test_store_bytes_of_large_table_stay_within_bound(rows_per_fragment, dim, access):
    frag_num = 8
    store = make_store(frag_num, dim, access)
    keys = some_keys(rows_per_fragment * frag_num)
    for seq, start in enumerate(range(0, len(keys), 5000), start=1):
        some = keys[start : start + 5000]
        store.push(0, 1, seq, some, np.zeros((len(some), dim)))
    row_bytes = store.stats()["tables"][0]["row_bytes"]
    assert row_bytes == len(keys) * 400
    assert store.bytes <= 1.15 * row_bytes


def test_store_bytes_of_small_table_in_many_fragments_stay_small():
    store = make_store(1024, 8)
    keys = some_keys(2000)
    assert store.bytes < 100_000
    store.push(0, 1, 1, keys, np.zeros((2000, 8)))
    assert store.bytes < 700_000


def test_store_bytes_of_dropped_fragments_serve_new_ones():
    store = make_store(16, 20)
    keys = some_keys(30_000)
    values = np.ones((len(keys), 20), np.float32)
    store.push(0, 1, 1, keys, values)
    full = store.bytes
    for _ in range(5):
        for fragment in range(16):
            store.disown(fragment)
        assert store.rows(0) == 0
        store.own(range(16))
        store.push(0, 1, 1, keys, values)
        np.testing.assert_array_equal(store.pull(0, keys), values)
    assert store.bytes < 1.15 * full


def test_store_scan_sees_each_row_once_while_rows_are_added():
    store = make_store(2, 3)
    keys = some_keys(6000)
    values = np.repeat(np.arange(6000, dtype=np.float32)[:, None], 3, axis=1)
    mine = fragment_of(keys, 2) == 1
    cursor, seen, rows = 0, [], []
    for seq, start in enumerate(range(0, 6000, 50), start=1):
        part = slice(start, start + 50)
        store.push(0, 1, seq, keys[part], values[part])
        cursor, some, some_rows = store.scan(0, 1, cursor, 20)
        seen += some.tolist()
        rows += some_rows.tolist()
    while len(some):
        cursor, some, some_rows = store.scan(0, 1, cursor, 999)
        seen += some.tolist()
        rows += some_rows.tolist()
    assert seen == keys[mine].tolist()
    assert rows == values[mine].tolist()
