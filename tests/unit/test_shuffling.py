"""data._shuffling: rows of a CSR matrix come in an order that a seed determines, each once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        for some in range(len(counts)):
            assert np.array_equal(entries_in_order(array, ptr, order[:some]), found[: behind[some]])


def test_each_order_is_as_likely_as_others():
    orders = [tuple(drawn_order(seed, 4).tolist()) for seed in range(24_000)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert 850 < counts.min() <= counts.max() < 1150  # 4.7 deviations


@pytest.mark.parametrize(
    ("array", "ptr", "order"),
    [
        (np.zeros(3, np.float32), [0, 2, 4], [0, 1]),
        (np.zeros(4, np.float32), [0, 2, 4], [0, 2]),
        (np.zeros(4, np.float32), [-1, 2, 4], [0, 1]),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused(array, ptr, order):
    with pytest.raises(ValueError, match="expected"):
        entries_in_order(array, np.array(ptr), np.array(order, np.uint32))


def test_pointers_of_rows_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="expected numbers of 2 rows"):
        pointers_in_order(np.array([0, 2, 4]), np.array([0, 2], np.uint32))
