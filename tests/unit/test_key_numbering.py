"""data._key_numbering: different keys in the order of their first appearance, and rows."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cases import examples
from hypothesis import given
from hypothesis import strategies as st
from waiting import run_all

from snailps.data._key_numbering import (
    KeptNumbers,
    KeyNumbers,
    WordNumbers,
    number_columns,
    number_keys,
    renumber,
)

KEYS = st.one_of(
    st.integers(0, 30), st.integers(0, 2**64 - 1), st.integers(0, 9).map(lambda i: i << 60)
)


def check(number, keys):
    keys = np.asarray(keys, np.uint64)
    unique, rows = number(keys)
    assert (unique.dtype, rows.dtype) == (np.uint64, np.int32)
    assert unique.tolist() == list(dict.fromkeys(keys.tolist()))
    assert (unique[rows] == keys).all()
    assert len(rows) == len(keys)


@given(st.lists(st.lists(KEYS, max_size=80), min_size=1, max_size=6))
@examples(40)
def test_numbers_any_batches_one_after_another_agree_with_a_dictionary(batches):
    numbers = KeyNumbers()
    for keys in batches:
        check(numbers.number, keys)
        check(number_keys, keys)


@pytest.mark.parametrize(
    ("n", "step"),
    [(n, 1) for n in (2047, 2048, 2049, 4096)]
    + [(100_000, step) for step in (1, 1 << 32, 0x9E3779B97F4A7C15, 1 << 11)],
)
def test_numbers_batches_that_outgrow_the_table_keep_their_order(n, step):
    numbers = KeyNumbers()
    keys = np.arange(n, dtype=np.uint64) * np.uint64(step)
    check(numbers.number, np.concatenate([keys, keys[::-1]]))
    check(numbers.number, keys[::3].copy())


def test_numbers_keys_stay_valid_when_the_next_batch_is_numbered():
    numbers = KeyNumbers()
    unique, rows = numbers.number(np.array([5, 6, 5], np.uint64))
    numbers.number(np.array([9, 9, 9], np.uint64))
    assert (unique.tolist(), rows.tolist()) == ([5, 6], [0, 1, 0])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (40, 7), (3000, 3)])
def test_number_columns_numbers_each_column_behind_the_one_before(shape):
    rng = np.random.default_rng(shape[0])
    keys = rng.integers(0, 900, shape).astype(np.uint64) << np.uint64(40)
    for same in (keys, np.asfortranarray(keys), keys[:, ::-1].copy()[:, ::-1]):
        unique, starts, rows = number_columns(same)
        parts = [number_keys(np.ascontiguousarray(column))[0] for column in keys.T]
        assert starts == np.cumsum([0, *map(len, parts)]).tolist()
        assert unique.tolist() == [key for part in parts for key in part.tolist()]
        assert (rows.dtype, rows.shape) == (np.int32, shape)
        assert (unique[rows] == keys).all()
        assert all((rows[:, i] < starts[i + 1]).all() for i in range(shape[1]))
        assert all((rows[:, i] >= starts[i]).all() for i in range(shape[1]))


def test_number_keys_in_several_threads_do_not_disturb_each_other():
    rng = np.random.default_rng(1)
    batches = [rng.integers(0, 50_000, 40_000).astype(np.uint64) for _ in range(4)]
    wrong = []

    def work(keys):
        for _ in range(5):
            unique, rows = number_keys(keys)
            if len(unique) != len(np.unique(keys)) or (unique[rows] != keys).any():
                wrong.append(1)

    run_all(*(partial(work, one) for one in batches))
    assert not wrong


# --- numbers that stay -------------------------------------------------------------------------


def numbered(numbers, keys):
    """All numbers of keys, what is new, what is touched, and whether there was room."""
    keys = np.asarray(keys, np.uint64)
    first = len(numbers)
    rows, missing, touched = numbers.find(keys)
    assert (rows.dtype, missing.dtype, touched.dtype) == (np.int32,) * 3
    assert np.flatnonzero(rows < 0).tolist() == missing.tolist()
    new, fits = numbers.number(keys, missing, rows)
    return rows, new, {*touched.tolist(), *range(first, len(numbers))}, fits


LOW = 1 << 22
"""Keys below are in a table by key, others in a hash table."""


@pytest.mark.parametrize("shift", [0, LOW - 90_000, LOW, 1 << 40])
def test_kept_numbers_over_batches_stay_and_tell_what_is_new_and_touched(shift):
    rng = np.random.default_rng(5)
    numbers, known, touched = KeptNumbers(1 << 20), {}, set()
    for batch in range(12):
        keys = rng.integers(0, 16_000 * (batch + 1), 12_000).astype(np.uint64) + np.uint64(shift)
        keys[:5] = [0, LOW - 1, LOW, 2**64 - 1, 2**63]
        rows, new, ids, fits = numbered(numbers, keys)
        want_new = [key for key in dict.fromkeys(keys.tolist()) if key not in known]
        known |= {key: len(known) + at for at, key in enumerate(want_new)}
        assert fits
        assert new.tolist() == want_new
        assert rows.tolist() == [known[key] for key in keys.tolist()]
        assert ids == {known[key] for key in keys.tolist()} - touched
        touched |= ids
        if batch % 4 == 3:
            numbers.begin_period()
            touched = set()
    assert len(numbers) == len(known)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc/self/maps")
def test_kept_numbers_lie_in_memory_that_huge_pages_can_back():
    """A shared mapping has none where only those that ask get them."""
    before = Path("/proc/self/maps").read_text().count("/dev/zero")
    numbers = KeptNumbers(1 << 20)
    assert Path("/proc/self/maps").read_text().count("/dev/zero") == before
    assert len(numbers) == 0


def test_kept_numbers_touched_again_by_number_are_told_once_a_round():
    numbers = KeptNumbers(1 << 10)
    rows, *_ = numbered(numbers, np.arange(100, dtype=np.uint64))
    assert numbers.touch(rows).tolist() == []
    numbers.begin_period()
    assert numbers.touch(rows[[7, 70, 7]]).tolist() == rows[[7, 70]].tolist()
    found = numbers.find(np.arange(100, dtype=np.uint64))
    assert set(found[2].tolist()) == set(range(100)) - set(rows[[7, 70]].tolist())
    for wrong in (-1, 100):
        with pytest.raises(ValueError, match="numbers of 0 to 99"):
            numbers.touch(np.array([0, wrong], np.int32))


@pytest.mark.parametrize("shift", [0, LOW - 50_000, LOW])
def test_kept_numbers_found_by_several_threads_are_touched_once(shift):
    keys = np.arange(shift, shift + 100_000, dtype=np.uint64)
    numbers = KeptNumbers(1 << 20)
    numbered(numbers, keys)
    for _ in range(5):
        numbers.begin_period()
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(numbers.find, [keys] * 4))
        assert all((rows == np.arange(100_000)).all() for rows, _, _ in found)
        touched = np.concatenate([touched for _, _, touched in found])
        assert sorted(touched.tolist()) == list(range(100_000))


@pytest.mark.parametrize("shift", [0, LOW - 8, LOW])
def test_kept_numbers_without_room_say_so_and_know_the_old_ones(shift):
    numbers = KeptNumbers(3)
    a, b, c, d = (key + shift for key in (7, 8, 9, 10))
    rows, _, _, fits = numbered(numbers, [a, b, a])
    assert fits
    assert rows.tolist() == [0, 1, 0]
    assert not numbered(numbers, [c, d, a])[3]
    rows, new, _, fits = numbered(numbers, [b, a, c])
    assert fits
    assert len(new) == 0
    assert rows.tolist() == [1, 0, 2]


def test_kept_numbers_of_nothing_are_nothing():
    numbers = KeptNumbers(5)
    rows, new, ids, fits = numbered(numbers, [])
    assert (len(rows), len(new), len(ids), fits, len(numbers)) == (0, 0, 0, True, 0)


@pytest.mark.parametrize("most", [0, -1, 1 << 30])
def test_kept_numbers_of_impossible_room_refuse(most):
    with pytest.raises(ValueError, match="expected room for"):
        KeptNumbers(most)


@pytest.mark.parametrize(
    ("places", "missing", "what"),
    [(1, [0], "room for 2"), (2, [2], "places of the 2 keys"), (2, [-1], "places of the 2 keys")],
)
def test_kept_numbers_with_places_that_are_none_refuse(places, missing, what):
    missing = np.array(missing, np.int32)
    with pytest.raises(ValueError, match=what):
        KeptNumbers(5).number(np.zeros(2, np.uint64), missing, np.empty(places, np.int32))


# --- words ------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 30)), st.lists(st.integers(0, 30)))
def test_words_of_two_arrays_are_numbered_as_they_appear(first, second):
    table = WordNumbers(31)
    one, two = np.array(first, np.int32), np.array(second, np.int32)
    for _ in range(2):  # the table is as before afterwards
        different, of_one, of_two = table.number(one, two)
        assert different.tolist() == list(dict.fromkeys(first + second))
        assert different[of_one].tolist() == first
        assert different[of_two].tolist() == second
    different = table.number_in_place(one)
    assert different.tolist() == list(dict.fromkeys(first))
    assert different[one].tolist() == first


@pytest.mark.parametrize("wrong", [-1, 5, 2**31 - 1])
@pytest.mark.parametrize("second", [False, True])
def test_words_out_of_range_are_refused_and_leave_nothing_behind(wrong, second):
    table = WordNumbers(5)
    good, bad = np.array([3, 1], np.int32), np.array([2, wrong], np.int32)
    with pytest.raises(ValueError, match=rf"below 5, got {wrong}"):
        table.number(*((good, bad) if second else (bad, good)))
    with pytest.raises(ValueError, match=rf"below 5, got {wrong}"):
        table.number_in_place(bad)
    assert table.number(good, good)[0].tolist() == [3, 1]


def test_numbers_are_replaced_by_places_and_wrong_ones_refused():
    places = np.array([7, 0, 5], np.int32)
    numbers = np.array([2, 2, 0, 1], np.int32)
    renumber(numbers, places)
    assert numbers.tolist() == [5, 5, 7, 0]
    renumber(numbers[:0], places)
    for wrong in (-1, 3):
        with pytest.raises(ValueError, match=rf"below 3, got {wrong}"):
            renumber(np.array([1, wrong], np.int32), places)
