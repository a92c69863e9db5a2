"""data.vocabulary: which words, in which order, and their probabilities."""

import fasttext
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snailps.data._text import WordCounter
from snailps.data.vocabulary import Vocabulary
from snailps.data.word_counts import pack
from snailps.errors import DataError

TEXT = b"to be or not to be\nthat is the question\n\xff __label__x __label__x\n"


def vocabulary(text: bytes, min_count=1, max_size=0, **options) -> Vocabulary:
    counter = WordCounter()
    counter.count(text)
    return Vocabulary.from_counter(counter, min_count, max_size, **options)


def test_from_counter_sorts_by_count_then_bytes():
    words = vocabulary(TEXT)
    assert words.words == [
        b"</s>", b"be", b"to", b"is", b"not", b"or", b"question", b"that", b"the", b"\xff"
    ]  # fmt: skip
    assert words.counts.tolist() == [3, 2, 2, 1, 1, 1, 1, 1, 1, 1]
    assert words.counts.dtype == np.int64
    assert words.tokens == 16
    assert len(words) == 10


def test_from_counter_min_count_leaves_out_the_end_mark_too():
    assert vocabulary(b"a a a b b\n", 2).words == [b"a", b"b"]


def test_from_counter_max_size_keeps_the_most_frequent():
    assert vocabulary(TEXT, 1, 3).words == [b"</s>", b"be", b"to"]


def test_from_counter_labels_are_words_if_asked_for():
    assert b"__label__x" in vocabulary(TEXT, label_prefix=b"").words


def test_from_counter_nothing_left_names_min_count_and_best():
    with pytest.raises(DataError, match=r"min_count is 7, the most frequent of 2 words occurs 2"):
        vocabulary(b"a a b", 7)
    with pytest.raises(DataError, match="holds only blanks"):
        vocabulary(b"  \t ")
    with pytest.raises(DataError, match="holds only blanks"):
        vocabulary(b"\n \n\n")


@pytest.mark.parametrize("min_count", [1, 2, 5, 40])
def test_from_counter_same_file_equals_fasttext(tmp_path, min_count):
    rng = np.random.default_rng(7)
    ranks = rng.zipf(1.3, 4000)
    text = b"".join(
        b"w%d%s" % (rank % 500, rng.choice([b" ", b"\t", b"\n", b"\r\n", b"\n\n"]))
        for rank in ranks
    )
    text += "äöü 中文 ".encode() * 5 + b"\xc3 " * 6
    path = tmp_path / "zipf.txt"
    path.write_bytes(text)
    model = fasttext.train_unsupervised(
        str(path), dim=2, epoch=1, thread=1, minCount=min_count, bucket=100, verbose=0
    )
    words, counts = model.get_words(include_freq=True, on_unicode_error="replace")
    ours = vocabulary(text, min_count)
    found = [word.decode(errors="replace") for word in ours.words]
    assert dict(zip(found, ours.counts.tolist(), strict=True)) == dict(
        zip(words, counts.tolist(), strict=True)
    )
    assert ours.counts.tolist() == counts.tolist()  # both fall


def test_extended_keeps_ids_adds_counts_and_appends_new_words_by_count():
    old = vocabulary(b"b b b a a c c", 2)
    assert old.words == [b"b", b"a", b"c"]
    counter = WordCounter()
    counter.count(b"c c c x y y y x x x once __label__z __label__z a")
    new = old.extended(counter, 2)
    assert new.words == [b"b", b"a", b"c", b"x", b"y"]
    assert new.counts.tolist() == [3, 3, 5, 4, 3]
    assert new.tokens == old.tokens + counter.tokens
    again = Vocabulary.from_bytes(new.to_bytes())
    assert (again.words, again.counts.tolist()) == (new.words, new.counts.tolist())
    assert old.counts.tolist() == [3, 2, 2]  # as it was


@pytest.mark.parametrize(("size", "words"), [(4, 4), (2, 3), (0, 5)])
def test_extended_with_max_size_leaves_out_new_words_only(size, words):
    counter = WordCounter()
    counter.count(b"x y y")
    assert len(vocabulary(b"b b b a a c c", 2).extended(counter, 1, size)) == words


def test_extended_by_text_without_known_words_is_the_same_words():
    old = vocabulary(b"b b b a a c c", 2)
    counter = WordCounter()
    counter.count(b"q")
    assert old.extended(counter, 2).words == old.words
    assert old.extended(WordCounter(), 2).counts.tolist() == old.counts.tolist()


def test_index_known_and_unknown():
    words = vocabulary(TEXT)
    assert [words.index(word) for word in words.words] == list(range(10))
    assert words.index(b"never") == -1


def test_keep_probability_known_answers():
    words = Vocabulary([b"a", b"b", b"c"], np.array([8000, 400, 1]), 10_000)
    # f = 0.8 and 0.04: sqrt(0.01 / 0.8) + 0.01 / 0.8, and 0.5 + 0.25.
    expected = [0.1118034 + 0.0125, 0.75, 1.0]
    keep = words.keep_probability(0.01)
    assert keep.dtype == np.float32
    np.testing.assert_allclose(keep, expected, rtol=1e-6)


def test_keep_probability_is_relative_to_all_tokens():
    counts = np.array([100, 50])
    few = Vocabulary([b"a", b"b"], counts, 150).keep_probability(1e-3)
    many = Vocabulary([b"a", b"b"], counts, 15_000).keep_probability(1e-3)
    assert (few < many).all()


def test_keep_probability_without_sample_keeps_all():
    assert vocabulary(TEXT).keep_probability(0).tolist() == [1.0] * 10
    with pytest.raises(ValueError, match="0 or more, got -1"):
        vocabulary(TEXT).keep_probability(-1)


@pytest.mark.parametrize(
    ("options", "weights"), [({}, [4, 2]), ({"power": 0.75}, [8, 8**0.5]), ({"power": 0}, [1, 1])]
)
def test_noise_known_answers(options, weights):
    noise = Vocabulary([b"a", b"b"], np.array([16, 4]), 20).noise(**options)
    assert noise.dtype == np.float64
    np.testing.assert_allclose(noise, np.array(weights) / sum(weights), rtol=1e-15)


@given(st.lists(st.sampled_from([b"a", b"bc", b"\xff", b"\n", b"long-long-word"]), min_size=1))
@settings(max_examples=50, deadline=None)
def test_bytes_round_trip_is_the_same_vocabulary(tokens):
    words = vocabulary(b" ".join([b"a", *tokens]), 1, 4)
    again = Vocabulary.from_bytes(words.to_bytes())
    assert again.words == words.words
    assert again.counts.tolist() == words.counts.tolist()
    assert again.tokens == words.tokens


def test_from_bytes_every_truncation_is_data_error():
    data = vocabulary(TEXT).to_bytes()
    for size in range(len(data)):
        with pytest.raises(DataError, match="cannot read"):
            Vocabulary.from_bytes(data[:size])
    with pytest.raises(DataError, match="need"):
        Vocabulary.from_bytes(data + b"x")


@pytest.mark.parametrize(
    ("counts", "ends", "text", "tokens", "message"),
    [
        ([2, 1], [1, 2], b"aa", 3, "comes twice"),
        ([2, 1], [1, 2], b"ab", 2, "add up to 3, the tokens are 2"),
        ([2, 0], [1, 2], b"ab", 3, "between 1 and"),
        ([2, 1], [2, 1], b"ab", 3, "fill their bytes"),
        ([2, 1], [0, 2], b"ab", 3, "fill their bytes"),
        ([2, 1], [1, 1], b"a", 3, "fill their bytes"),
        ([2, 1], [1, 3], b"a b"[:3], 3, "separator"),
        ([2**62, 2**62], [1, 2], b"ab", 2**62, "between 1 and"),
    ],
)
def test_from_bytes_impossible_content_is_data_error(counts, ends, text, tokens, message):
    data = pack(b"SNVO", np.array(counts), np.array(ends, dtype=np.uint64), text, tokens)
    with pytest.raises(DataError, match=message):
        Vocabulary.from_bytes(data)


def test_from_bytes_word_counts_of_a_block_are_no_vocabulary():
    counter = WordCounter()
    counter.count(b"a b")
    with pytest.raises(DataError, match="begin with b'SNVO"):
        Vocabulary.from_bytes(counter.dump())
