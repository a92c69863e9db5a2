"""Packed words: the list of bytes that they stand for is the twin of every method."""

import numpy as np
import pytest
from cases import examples
from hypothesis import given
from hypothesis import strategies as st

from snailps.data import packed_words as words_module
from snailps.data._text import without_tails
from snailps.data.packed_words import PackedWords

WORD = st.binary(min_size=1, max_size=20).map(lambda word: word.replace(b"\0", b"x"))
DISTINCT = st.lists(WORD, max_size=40, unique=True)
LIST = [b"to", b"be", b"or", b"not", b"\xff\xfe", b"a-word-of-more-than-16-bytes"]


@given(DISTINCT, st.integers(-50, 50), st.integers(-50, 50), st.integers(1, 3))
@examples(30)
def test_words_any_range_reads_as_the_list_does(words, start, stop, step):
    packed = PackedWords.of(words)
    assert len(packed) == len(words)
    assert list(packed) == words
    part = packed[start:stop:step]
    assert list(part) == words[start:stop:step]
    assert part.lengths.tolist() == [len(word) for word in words[start:stop:step]]
    assert part.joined().tobytes() == b"".join(words[start:stop:step])
    assert list(part[1:]) == words[start:stop:step][1:]


@given(DISTINCT, st.data())
@examples(30)
def test_words_taken_are_those_asked_for(words, data):
    ids = data.draw(st.lists(st.integers(0, len(words) - 1), max_size=60)) if words else []
    taken = PackedWords.of(words).take(np.array(ids, np.int64))
    assert list(taken) == [words[i] for i in ids]


@given(DISTINCT, st.integers(0, 3))
@examples(30)
def test_words_with_tails_have_each_its_own(words, width):
    tails = np.arange(len(words) * width).astype(np.uint8).reshape(len(words), width)
    expected = b"".join(word + tail.tobytes() for word, tail in zip(words, tails, strict=True))
    packed = PackedWords.of([b"other", *words])[1:]
    assert packed.with_tails(tails).tobytes() == expected
    if width and all(words) and not any(b"\0" in word for word in words):
        tails[:, 0] = 0
        data = b"xy" + packed.with_tails(tails).tobytes() + b"z"
        again, found = without_tails(data, 2, len(words), width)
        assert again == words
        np.testing.assert_array_equal(found, tails)
        short, _ = without_tails(data, 2, len(words) + 1, width)
        cut, _ = without_tails(data[:-2], 2, len(words), width)
        assert (short, cut) == (words, words[:-1])


@given(DISTINCT, st.data())
@examples(60)
def test_words_order_is_by_falling_count_then_bytes(words, data):
    size = len(words)
    counts = data.draw(st.lists(st.integers(1, 3), min_size=size, max_size=size))
    ids = PackedWords.of(words).order(np.array(counts, np.int64)).tolist()
    assert ids == sorted(range(size), key=lambda i: (-counts[i], words[i]))


def test_words_order_of_long_common_beginnings_is_by_what_follows():
    words = [b"x" * n + end for n in (7, 8, 9, 16, 17, 40) for end in (b"", b"b", b"a", b"\xff")]
    ids = PackedWords.of(words).order(np.ones(len(words), np.int64)).tolist()
    assert [words[i] for i in ids] == sorted(words)


def test_words_order_of_equal_words_ends():
    ids = PackedWords.of([b"same-same-same"] * 3).order(np.ones(3, np.int64))
    assert sorted(ids.tolist()) == [0, 1, 2]


@given(DISTINCT, st.binary(max_size=3))
@examples(30)
def test_words_begin_with_agrees_with_bytes(words, prefix):
    found = PackedWords.of(words).begin_with(prefix).tolist()
    assert found == [word.startswith(prefix) for word in words]


def test_words_in_several_pieces_are_all_there(monkeypatch):
    monkeypatch.setattr(words_module, "TOGETHER", 4)
    packed = PackedWords.of(LIST)
    assert list(packed) == LIST
    assert list(packed.take(np.arange(5, -1, -1))) == LIST[::-1]


def test_words_added_follow_each_other():
    packed = PackedWords.of(LIST)
    assert list(packed[2:4] + packed[:1]) == [b"or", b"not", b"to"]
    assert list(PackedWords.of([]) + packed) == LIST


def test_words_equal_a_sequence_of_the_same_words_only():
    packed = PackedWords.of(LIST)
    assert packed == LIST
    assert packed == tuple(LIST)
    assert packed == packed[:]
    assert packed != LIST[:-1]
    assert packed != [*LIST[:-1], b"?"]
    assert packed != 1


def test_words_packed_already_are_not_copied():
    packed = PackedWords.of(LIST)
    assert PackedWords.of(packed) is packed
    assert packed[1:].text is packed.text


@pytest.mark.parametrize("which", [6, -7])
def test_words_index_outside_is_refused(which):
    with pytest.raises(IndexError, match=f"below 6, got {which}"):
        PackedWords.of(LIST)[which]


def test_packed_words_are_equal_if_all_words_are():
    words = PackedWords.of([b"a", b"bc", b"d"])
    assert words == PackedWords.of([b"x", b"a", b"bc", b"d"])[1:]
    assert words != PackedWords.of([b"ab", b"c", b"d"])
    assert words != words[:2]
    assert words == [b"a", b"bc", b"d"]


@given(st.lists(st.binary(max_size=5).map(lambda word: word.replace(b"\n", b"")), max_size=9))
@examples(60)
def test_words_of_lines_are_those_that_were_written(words):
    text = np.frombuffer(b"\n".join(words), np.uint8)
    read = PackedWords.of_lines(text, len(words))
    assert read == words
    assert read.letters == sum(map(len, words))


@pytest.mark.parametrize(
    ("text", "number"), [(b"a\nb", 1), (b"a\nb", 3), (b"a", 0), (b"\n", 0), (b"", 1 << 62)]
)
def test_lines_of_another_number_are_refused(text, number):
    with pytest.raises(ValueError, match=r"expected .* words, got"):
        PackedWords.of_lines(np.frombuffer(text, np.uint8), number)
