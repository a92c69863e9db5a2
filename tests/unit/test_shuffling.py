"""data._shuffling: rows of a CSR matrix come in an order that a seed determines, each once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snailps.data._matrix import wide_keys
from snailps.data._shuffling import drawn_order, entries_in_order, pointers_in_order


@given(st.lists(st.integers(0, 90), max_size=40), st.integers(0, (1 << 64) - 1))
def test_rows_in_order_have_their_entries(counts, seed):
    ptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    order = drawn_order(seed, len(counts))
    assert sorted(order.tolist()) == list(range(len(counts)))
    assert np.array_equal(order, drawn_order(seed, len(counts)))
    behind = pointers_in_order(ptr, order)
    for dtype in (np.float32, np.int32, np.uint64):
        array = np.arange(int(ptr[-1])).astype(dtype)
        found = entries_in_order(array, ptr, order)
        assert found.dtype == dtype
        for at, row in enumerate(order.tolist()):
            wanted = array[ptr[row] : ptr[row + 1]]
            assert np.array_equal(found[behind[at] : behind[at + 1]], wanted)
    for dtype in (np.uint32, np.uint64):
        keys = np.arange(int(ptr[-1])).astype(dtype)
        wide, wrong = wide_keys(keys, 1 << 20, False, 0, ptr, order)
        assert np.array_equal(wide, entries_in_order(keys, ptr, order))
        assert wrong == -1


def test_each_order_is_as_likely_as_others():
    orders = [tuple(drawn_order(seed, 4).tolist()) for seed in range(24_000)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert 850 < counts.min() <= counts.max() < 1150  # 4.7 deviations


def test_key_out_of_range_is_told_by_its_place_in_the_matrix():
    keys, ptr = np.array([1, 2, 9, 3], np.uint32), np.array([0, 1, 4])
    for order in ([0, 1], [1, 0]):
        assert wide_keys(keys, 9, False, 0, ptr, np.array(order, np.uint32))[1] == 2


@pytest.mark.parametrize(
    ("array", "ptr", "order"),
    [
        (np.zeros(3, np.float32), [0, 2, 4], [0, 1]),
        (np.zeros(4, np.float32), [0, 2, 4], [0]),
        (np.zeros(4, np.float32), [-1, 2, 4], [0, 1]),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused(array, ptr, order):
    with pytest.raises(ValueError, match="expected"):
        entries_in_order(array, np.array(ptr), np.array(order, np.uint32))
