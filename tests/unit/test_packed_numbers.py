"""kernels._packed_numbers: numbers of a few bits, any range of which is read."""

import numpy as np
import pytest
from cases import examples
from hypothesis import given
from hypothesis import strategies as st

from snailps.kernels._packed_numbers import GROUP, pack, unpack


@given(
    bits=st.integers(1, 25), count=st.integers(0, 200), seed=st.integers(0, 1 << 30),
    range_=st.tuples(st.integers(0, 200), st.integers(0, 200)),
)  # fmt: skip
@examples(200)
def test_any_range_of_packed_numbers_is_read(bits, count, seed, range_):
    numbers = np.random.default_rng(seed).integers(-1, (1 << bits) - 1, count).astype(np.int32)
    words = pack(numbers, bits)
    assert len(words) == -(-count // GROUP) * bits
    first, last = sorted(min(count, edge) for edge in range_)
    begin, end = first // GROUP * bits, -(-last // GROUP) * bits
    out = np.empty(last - first, np.int32)
    unpack(words[begin : max(begin, end)].copy(), bits, first % GROUP, out)
    np.testing.assert_array_equal(out, numbers[first:last])


def test_the_least_and_the_largest_numbers_come_back():
    numbers = np.array([-1, (1 << 25) - 2] * 40, np.int32)
    out = np.empty(80, np.int32)
    unpack(pack(numbers, 25), 25, 0, out)
    np.testing.assert_array_equal(out, numbers)


def test_numbers_that_do_not_fit_are_refused():
    for number in (-2, 7):
        with pytest.raises(ValueError, match="from -1 to 6"):
            pack(np.array([0, number], np.int32), 3)
    with pytest.raises(ValueError, match="1 to 25 bits, got 26"):
        pack(np.zeros(1, np.int32), 26)
    words = pack(np.zeros(GROUP, np.int32), 3)
    for first, count in ((0, 33), (1, 32), (-1, 2)):
        with pytest.raises(ValueError, match="words"):
            unpack(words, 3, first, np.empty(count, np.int32))
