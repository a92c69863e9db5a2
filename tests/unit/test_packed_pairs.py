"""kernels._packed_pairs: pairs by range, in order again, against sorting them with NumPy."""

import numpy as np
import pytest
from cases import examples
from hypothesis import given
from hypothesis import strategies as st

from snailps.kernels._packed_pairs import pack, pack_sorted, place, unpack

NO_WEIGHTS = np.zeros(0, np.float32)


def pairs_of(seed, count, firsts, seconds):
    rng = np.random.default_rng(seed)
    return rng.integers(0, firsts, count), rng.zipf(1.3, count) % seconds


def in_range(pieces, part):
    """The words of a range of some blocks, as `shared_blocks.read` joins them, and their sizes."""
    words = [block[ends[part - 1] if part else 0 : ends[part]] for block, ends in pieces]
    return np.concatenate(words), np.array(list(map(len, words)), np.int64)


@given(
    seed=st.integers(0, 1 << 30), count=st.integers(0, 400), blocks=st.integers(1, 5),
    firsts=st.integers(1, 60), seconds=st.sampled_from([1, 50, 1 << 24]), has_weights=st.booleans(),
)  # fmt: skip
@examples(150)
def test_pairs_of_any_blocks_come_back_in_order(seed, count, blocks, firsts, seconds, has_weights):
    own, other = pairs_of(seed, count, firsts, seconds)
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=count * has_weights).astype(np.float32)
    bounds = np.sort([0, *rng.integers(0, firsts + 1, 2), firsts])
    pieces = [
        pack(own[some], other[some], weights[some] if has_weights else weights, bounds)
        for some in np.array_split(np.arange(count), blocks)
    ]
    for part in range(3):
        names = int(bounds[part + 1] - bounds[part])
        ptr, others, read = unpack(*in_range(pieces, part), names, seconds, has_weights)
        here = np.flatnonzero((own >= bounds[part]) & (own < bounds[part + 1]))
        keys = [other[here], own[here]]
        here = here[np.lexsort([weights[here], *keys] if has_weights else keys)]
        np.testing.assert_array_equal(others, other[here])
        np.testing.assert_array_equal(read, weights[here] if has_weights else NO_WEIGHTS)
        counts = np.bincount(own[here] - bounds[part], minlength=names)
        np.testing.assert_array_equal(np.diff(ptr, prepend=0)[1:], counts[:names])
        words = pack_sorted(ptr, others, read)
        again = unpack(words, np.array([len(words)]), names, seconds, has_weights)
        for of_pairs, of_sorted in zip((ptr, others, read), again, strict=True):
            np.testing.assert_array_equal(of_pairs, of_sorted)


def test_second_numbers_that_many_pairs_share_their_first_are_sorted():
    """More than are sorted by insertion, with some twice."""
    other = np.random.default_rng(1).integers(0, 1 << 24, 5000) // 3 * 3
    other[:50] = other[50:100]
    words, ends = pack(np.zeros(5000, np.int64), other, NO_WEIGHTS, np.array([0, 1]))
    ptr, others, _ = unpack(words, ends, 1, 1 << 24, False)
    assert ptr.tolist() == [0, 5000]
    np.testing.assert_array_equal(others, np.sort(other))


def test_pairs_take_two_to_four_bytes():
    own, other = pairs_of(1, 100_000, 3000, 200_000)
    order = np.argsort(own, kind="stable")
    words, ends = pack(own[order], other[order], NO_WEIGHTS, np.arange(0, 3001, 300))
    assert ends[-1] == len(words)
    assert 4 * len(words) < 3.2 * len(own)


@pytest.mark.parametrize(
    ("own", "other", "weights"),
    [([3], [0], []), ([-1], [0], []), ([0], [1 << 24], []), ([0], [-1], []), ([0], [0, 1], []),
     ([0], [0], [1.0, 2.0])],
)  # fmt: skip
def test_pairs_beyond_what_is_packed_are_refused(own, other, weights):
    with pytest.raises(ValueError, match="expected"):
        pack(np.array(own), np.array(other), np.array(weights, np.float32), np.array([0, 2, 3]))


@given(st.binary(max_size=40), st.integers(1, 3), st.booleans())
@examples(300)
def test_any_bytes_are_pairs_within_bounds_or_refused(content, firsts, has_weights):
    content = content.ljust(-(-len(content) // 4) * 4, b"\0")
    words = np.frombuffer(content, np.float32)
    try:
        ptr, others, weights = unpack(words, np.array([len(words)]), firsts, 100, has_weights)
    except ValueError:
        return
    assert len(weights) == len(others) * has_weights
    assert (ptr[0], ptr[-1]) == (0, len(others))
    assert (np.diff(ptr) >= 0).all()
    assert len(others) == 0 or 0 <= others.min() <= others.max() < 100


def test_places_go_to_new_numbers_in_ascending_order():
    place_of = np.full(10, -1, np.int32)
    new, places = place(np.array([7, 3, 7, 9], np.int32), place_of, 0)
    assert (new.tolist(), places.tolist()) == ([3, 7, 9], [1, 0, 1, 2])
    new, places = place(np.array([9, 0, 5, 0], np.int32), place_of, 3)
    assert (new.tolist(), places.tolist()) == ([0, 5], [2, 3, 4, 3])
    with pytest.raises(ValueError, match=r"expected numbers below 10, got 10"):
        place(np.array([1, 10], np.int32), place_of, 5)
