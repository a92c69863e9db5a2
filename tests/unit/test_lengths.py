"""Lengths and pointers at the ends of their types: by arithmetic, without 2^31 rows of anything."""

import re
from pathlib import Path

import numpy as np
import pytest
from cases import each
from shards import ADD, ZEROS, Shards
from vast import vast

from snailps import kernels
from snailps.data._key_numbering import KeyNumbers
from snailps.data._labelled import KeptGrams
from snailps.data._shuffling import entries_in_order
from snailps.data._text import hashes_of_rows
from snailps.errors import MisuseError
from snailps.kernels import _packed_numbers, _packed_pairs, _triple_order
from snailps.kernels._labelling import Labelling

BUILDS = kernels.builds_available()
MANY = 1 << 31
AROUND = np.array([0, 1 << 62, -(1 << 63) + 1, -(1 << 62), 5])
"""Pointers whose differences, modulo 2^64, are all above 0, and which begin and end within 5."""
NONE, SINGLES = np.zeros(0, np.float32), np.zeros(5, np.float32)


def test_differences_of_these_pointers_wrap():
    assert (np.diff(AROUND) > 0).all()
    assert not (AROUND[1:] > AROUND[:-1]).all()


@pytest.mark.parametrize("build", BUILDS)
def test_kernels_refuse_pointers_that_wrap(build):
    made, rows = kernels.load(build), np.zeros(5, np.int32)
    table, out = np.zeros((3, 4), np.float32), np.zeros((4, 4), np.float32)
    with pytest.raises(ValueError, match="bag_ptr must rise by at least 1"):
        made.checked_bags(AROUND.copy(), rows.copy(), 3)
    with pytest.raises(ValueError, match="ptr must rise by at least 0"):
        made.csr_product(AROUND, rows, SINGLES, table, out)
    with pytest.raises(ValueError, match="ptr must rise"):
        made.csr_gradients(AROUND, rows, SINGLES, out, table)
    with pytest.raises(ValueError, match="ptr must rise"):
        Labelling(made, table, kernels.padded(2, 4), 4, True).hidden(AROUND, rows)


def test_rows_whose_pointers_wrap_have_no_hash():
    keys = np.zeros(5, np.uint64)
    for ptr in (AROUND, np.array([1, -(1 << 63), 0, 0, 0])):
        with pytest.raises(ValueError, match="expected ascending pointers to 5 entries"):
            hashes_of_rows(np.zeros(4), ptr, keys, SINGLES, np.zeros(0, np.int32), 7)


def test_product_of_examples_whose_pointers_wrap_is_refused():
    with Shards(1) as cluster:
        cluster.add_table(1, 4, ADD, ZEROS)
        with pytest.raises(MisuseError, match="ptr must begin with 0 and rise"):
            cluster.client().forward_async(1, AROUND, np.zeros(5, np.uint64), None, 4)


@each("first", [1 << 62, (1 << 63) - 1, (1 << 61) - 2, -1, 5])
def test_packed_numbers_from_a_place_beyond_the_words_are_refused(first):
    """4 words have 32 numbers of 4 bits; 2^62 of them end, modulo 2^64 bits, where they began."""
    with pytest.raises(
        ValueError, match=f"28 numbers of 4 bits from place {first} on, got 4 words"
    ):
        _packed_numbers.unpack(np.zeros(4, np.float32), 4, first, np.zeros(28, np.int32))


def test_packed_pieces_whose_sizes_wrap_are_refused():
    words, _ = _packed_pairs.pack(*(np.arange(9),) * 2, NONE, np.array([0, 9]))
    sizes = np.array([1 << 61] * 8 + [len(words)])
    assert np.sum(sizes) == len(words)
    with pytest.raises(ValueError, match=f"expected pieces of {len(words)} words, got one of 23"):
        _packed_pairs.unpack(words, sizes, 9, 9, False)


@each("first", [(1 << 24) - 1, 1 << 24])
def test_packed_numbers_are_those_that_can_be_unpacked(first):
    """From 2^25 on a step had no room: what was packed was called damaged when it was unpacked."""
    one, bounds = np.array([first]), np.array([0, first + 1])
    ptr = vast(np.int64, first + 2)
    ptr[-1] = 1
    if first >= 1 << 24:
        with pytest.raises(ValueError, match="expected first numbers below 16777216"):
            _packed_pairs.pack(one, one * 0, NONE, bounds)
        with pytest.raises(ValueError, match="expected numbers below 16777216"):
            _packed_pairs.pack_sorted(ptr, np.zeros(1, np.int32), NONE)
        return
    words, ends = _packed_pairs.pack(one, one * 0, NONE, bounds)
    again, seconds, _ = _packed_pairs.unpack(words, ends, first + 1, 1, False)
    assert again[-2:].tolist() == [0, 1]
    assert seconds.tolist() == [0]
    assert _packed_pairs.pack_sorted(ptr, np.zeros(1, np.int32), NONE).tobytes() == words.tobytes()


@each("ptr", [[0, 9, 2], [0, -9, 2]])
def test_pairs_are_packed_within_their_pointers(ptr):
    with pytest.raises(ValueError, match="pointers that rise"):
        _packed_pairs.pack_sorted(np.array(ptr), np.zeros(2, np.int32), NONE)


def test_two_to_the_31_of_anything_with_places_of_32_bits_are_refused():
    numbers, pointers = vast(np.int64, MANY), np.array([0, MANY])
    with pytest.raises(ValueError, match=r"fewer than 2.31 pairs, got 2147483648"):
        _packed_pairs.pack(numbers, numbers, NONE, pointers)
    with pytest.raises(ValueError, match=r"fewer than 2.31 pairs, got 2147483648"):
        _packed_pairs.pack_sorted(pointers, vast(np.int32, MANY), NONE)
    with pytest.raises(ValueError, match=r"fewer than 2.31 keys, got 2147483648"):
        KeyNumbers().number(numbers.view(np.uint64))
    with pytest.raises(ValueError, match=r"tokens must be fewer than 2.31, got 2147483648"):
        kernels.load("base").sort_pairs(vast(np.int32, MANY), 5, 1)
    places = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match=r"fewer than 2.31"):
        _triple_order.in_order(
            vast(np.int32, 3, MANY), MANY - 9, MANY, places.astype(np.int16), places, 1, 1, 1, 1
        )


def test_output_partitions_are_as_many_as_their_numbers_can_name():
    triples, places = np.zeros((3, 2), np.int32), np.zeros(1, np.int32)
    with pytest.raises(ValueError, match=r"fewer than 2.15 output partitions, got 32768"):
        _triple_order.in_order(
            triples, 0, 2, -places.astype(np.int16) - 1, places, 1, MANY >> 16, 1, 1
        )


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("count", [MANY, MANY + 1, 2 * MANY + 2])
def test_rows_of_a_classifier_may_be_more_than_its_features_can_name(build, count):
    """The last row was narrowed to int32: of 2^31 + 1 rows none was in range, of 2^32 + 2 two."""
    outputs = kernels.padded(2, 1)
    outputs[:] = 0
    made = Labelling(kernels.load(build), vast(np.float32, count, 1), outputs, 1, True)
    best, chances = made.chances(np.array([0, 2]), np.array([3, 70_000], np.int32))
    assert (best.tolist(), chances.tolist()) == ([0], [[0.5, 0.5]])


def test_n_grams_of_a_pruned_model_are_as_many_as_slots_can_be_numbered():
    with pytest.raises(ValueError, match=r"at most 2\^30 n-grams, got 1073741825"):
        KeptGrams(vast(np.int32, (1 << 30) + 1, 2))


def test_entries_of_rows_whose_bytes_wrap_are_refused():
    """2^61 entries of eight bytes are none, modulo 2^64."""
    with pytest.raises(ValueError, match="expected 1 rows within 5 entries"):
        entries_in_order(np.zeros(5), np.array([0, 1 << 61]), np.zeros(1, np.uint32))


def test_no_buffer_is_of_plain_char():
    """Whose sign depends on the processor: a buffer of int8 is one of `char` on x86 alone."""
    sources = (Path(__file__).resolve().parents[2] / "snailps").rglob("*.p[yx][xd]")
    of_char = re.compile(r"(?<!signed )\bchar ?\[:")
    assert [path.name for path in sources if of_char.search(path.read_text("utf-8"))] == []
