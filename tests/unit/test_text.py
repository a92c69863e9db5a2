"""data._text: tokens, counts and ids, against plain Python twins and the official fastText."""

import tracemalloc
from functools import partial

import fasttext
import numpy as np
import official_fasttext
import pytest
from cases import examples
from hypothesis import example, given
from hypothesis import strategies as st
from twins import text as twin
from waiting import run_all

from snailps.data._text import Lexicon, WordCounter
from snailps.data.packed_words import PackedWords
from snailps.errors import DataError

# Few letters, all separators, control characters that are none, UTF-8 and bytes that never are.
PIECES = st.sampled_from(
    [b"a", b"b", b"ab", b" ", b"  ", b"\n", b"\r\n", b"\t", b"\v", b"\f", b"\0", b"\x01", b"\x1f",
     b"\x7f", b"\x80", b"\xff\xfe", "é".encode(), b"</s>", b"eightchr", b"ninechars", b"!", b"0",
     b"sixteencharacter", b"sixteencharacterandmore"]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=60).map(b"".join)
CORPUS = (
    b"the cat sat\r\non the\tmat\n\n\n"
    b"na\xc3\xafve caf\xc3\xa9 \xe4\xb8\xad\xe6\x96\x87 the\0the\n"
    b"bad \xff\xfebytes \x80start end\xc3\n"
    b"\v\fcontrol \x01 x\x1fy \n"
    b"  leading and trailing  \n"
    b"a literal </s> inside\n"
    b"a-rather-long-word-of-more-than-sixteen-bytes a-rather-long-word-of-more-than-sixteen\n"
    b"__label__kind the last line without a newline"
)


def counted(*texts: bytes) -> WordCounter:
    counter = WordCounter()
    for text in texts:
        counter.count(text)
    return counter


def as_dict(counter: WordCounter) -> dict:
    return dict(zip(counter.words(), counter.counts().tolist(), strict=True))


@given(TEXTS)
@example(b"")
@example(b"\n")
@example(b"eightchreightchr eightchr\n")
@examples(100)
def test_counter_any_bytes_agrees_with_twin(text):
    counter = WordCounter()
    expected = twin.count(text)
    assert counter.count(text) == expected.total() == counter.tokens
    assert as_dict(counter) == dict(expected)
    assert len(counter) == len(expected)


def test_counter_every_control_byte_splits_as_in_fasttext():
    for byte in range(256):
        text = b"x" * 3 + bytes([byte]) + b"y" * 11
        assert as_dict(counted(text)) == dict(twin.count(text)), byte


def test_counter_takes_crlf_as_lf_and_a_byte_order_mark_as_part_of_a_word_as_fasttext_does():
    assert as_dict(counted(b"a b\r\nc\r\n")) == as_dict(counted(b"a b\nc\n"))
    assert as_dict(counted(b"\xef\xbb\xbfa a")) == {b"\xef\xbb\xbfa": 1, b"a": 1}


def test_counter_many_words_grows_and_keeps_counts():
    words = [b"w%d" % (i * i) for i in range(30_000)] + [
        b"prefix-of-eight%d" % i for i in range(99)
    ]
    counter = counted(b" ".join(words), b" ".join(words[:5000]))
    assert counter.words() == words
    assert counter.counts().tolist() == [2] * 5000 + [1] * 25_099
    assert counter.words()[7] == words[7]


def test_counter_word_of_megabytes_is_one_word():
    word = b"x" * 3_000_001
    counter = counted(b"a " + word + b" " + word[:-1] + b" " + word + b"\n")
    assert as_dict(counter) == {b"a": 1, word: 2, word[:-1]: 1, b"</s>": 1}


def test_counter_takes_slices_without_copy():
    text = memoryview(b"one two three")
    assert as_dict(counted(text[4:7])) == {b"two": 1}


def test_counter_from_threads_loses_nothing():
    text = b"some words and some more\n" * 2000
    counter = WordCounter()
    run_all(*[partial(counter.count, text)] * 4)
    assert as_dict(counter) == dict(twin.count(text * 4))


def test_counter_counts_words_behind_the_end_of_their_line():
    counter = counted(b"a </s> b c\nd\n</s> e </s> f\n", b"g\n")
    assert (counter.unread, counter.tokens) == (4, 14)


@given(st.lists(TEXTS, max_size=4))
@examples(60)
def test_counter_merged_dumps_equal_one_counter(texts):
    merged = WordCounter()
    for text in texts:
        merged.merge(counted(text).dump())
    whole = twin.count(b" ".join(texts))
    assert as_dict(merged) == dict(whole)
    assert merged.tokens == whole.total()


def test_counter_merged_large_dumps_equal_one_counter():
    """So large that the table is that of huge pages, and grows in the middle of a batch."""
    words = [b"%d" % i for i in range(0, 150_000, 3)]
    words += [b"a-word-of-more-than-sixteen-%d" % (i % 777) for i in range(50_001)]
    texts = [b" ".join(words[at::7] + words[:100]) for at in range(7)]
    merged = WordCounter()
    for text in texts:
        part = counted(text)
        assert len(part.dump()) == part.dump_bytes
        merged.merge(part.dump())
    assert as_dict(merged) == as_dict(counted(*texts))
    assert merged.tokens == counted(*texts).tokens


def test_counter_counts_each_word_of_a_list_once():
    counter = counted(b"a b a")
    counter.add([b"b", b"new", b"new"])
    counter.add(PackedWords.of([b"x", b"a", b"y"])[1:2])
    counter.add([])
    assert as_dict(counter) == {b"a": 3, b"b": 2, b"new": 2}
    assert counter.tokens == 7
    for wrong in (b"", b"two words"):
        with pytest.raises(DataError):
            counter.add([wrong])


def test_counter_dump_golden_bytes():
    assert counted(b"ab c\nab").dump() == (
        b"SNWC\x01\0\0\0"
        + b"\x03\0\0\0\0\0\0\0" + b"\x04\0\0\0\0\0\0\0" + b"\x07\0\0\0\0\0\0\0"
        + b"\x02\0\0\0\0\0\0\0" + b"\x01\0\0\0\0\0\0\0" + b"\x01\0\0\0\0\0\0\0"
        + b"\x02\0\0\0\0\0\0\0" + b"\x03\0\0\0\0\0\0\0" + b"\x07\0\0\0\0\0\0\0"
        + b"abc</s>"
    )  # fmt: skip


def test_merge_every_truncation_is_data_error_and_changes_nothing():
    dump = counted(b"ab c\nab").dump()
    counter = counted(b"ab")
    for size in range(len(dump)):
        with pytest.raises(DataError, match="cannot read word counts"):
            counter.merge(dump[:size])
    assert as_dict(counter) == {b"ab": 1}


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, b"SNVO", "begin with"),
        (4, b"\x02", "begin with"),
        (8, b"\xff" * 8, "need"),
        (8, b"\x02", "need"),
        (16, b"\x05", "add up to 4, the tokens are 5"),
        (24, b"\x08", "need"),
        (32, b"\0", "between 1 and"),
        (39, b"\x80", "between 1 and"),
        (32, b"\xff" * 7 + b"\x7f", "between 1 and"),
        (56, b"\0", "fill their bytes"),
        (56, b"\x03", "fill their bytes"),
        (63, b"\xff", "fill their bytes"),
        (72, b"\x06", "fill their bytes"),
        (81, b" ", "separator"),
    ],
)
def test_merge_corrupt_field_is_data_error(place, value, message):
    dump = bytearray(counted(b"ab c\nab").dump())
    dump[place : place + len(value)] = value
    counter = WordCounter()
    with pytest.raises(DataError, match=message):
        counter.merge(bytes(dump))
    assert len(counter) == counter.tokens == 0


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    """The corpus and what fastText's own dictionary makes of it."""
    path = tmp_path_factory.mktemp("fasttext") / "corpus.txt"
    text = CORPUS + b"\n" + b" ".join(b"w%d" % (i % 37) for i in range(3000)) + b"\n"
    path.write_bytes(text)
    model = fasttext.train_unsupervised(
        str(path), dim=2, epoch=1, thread=1, minCount=1, bucket=1000, verbose=0
    )
    return text, official_fasttext.saved(model, path.with_suffix(".bin"))


def test_counter_same_file_has_fasttext_counts(official):
    text, model = official
    words, counts = model.get_words(include_freq=True, on_unicode_error="replace")
    ours = {
        word.decode(errors="replace"): n
        for word, n in as_dict(counted(text)).items()
        if not word.startswith(b"__label__")
    }
    assert ours == dict(zip(words, counts.tolist(), strict=True))
    assert ours["</s>"] == text.count(b"\n") + 1


# ---- Lexicon ----

WORDS = [b"</s>", b"a", b"ab", b"eightchr", b"sixteencharacter", "é".encode(), b"\xff\xfe"]


@given(TEXTS, st.booleans(), st.integers(0, 2**64 - 1))
@examples(100)
def test_encode_any_bytes_agrees_with_twin(text, with_end, seed):
    words = WORDS if with_end else WORDS[1:]
    keep = np.linspace(0.2, 1.2, len(words), dtype=np.float32)
    ids, tokens = Lexicon(words).encode(text, keep, seed)
    assert (ids.tolist(), tokens) == twin.encode(text, words, keep, seed)
    assert ids.dtype == np.int32


def test_encode_without_keep_keeps_every_known_word():
    ids, tokens = Lexicon([b"</s>", b"a", b"b"]).encode(b"a x b\n\nb a")
    assert ids.tolist() == [1, 2, 0, -1, 0, -1, 2, 1, -1]
    assert tokens == 7


def test_encode_end_mark_not_in_vocabulary_does_not_end_sentences():
    """fastText looks a token up before it asks whether it ends the sentence."""
    ids, tokens = Lexicon([b"a", b"b"]).encode(b"a\nb\na\n")
    assert ids.tolist() == [0, 1, 0, -1]
    assert tokens == 6


def test_encode_long_line_breaks_behind_1025_known_tokens():
    ids, tokens = Lexicon([b"a"]).encode(b"a x " * 1500)
    assert ids.tolist() == [0] * 1025 + [-1] + [0] * 475 + [-1]
    assert tokens == 3000


def test_encode_dense_text_outgrows_first_estimate():
    text = b"\n" * 100_000
    ids, tokens = Lexicon([b"</s>"]).encode(text)
    assert ids.tolist() == [0, -1] * 100_000
    assert tokens == 100_000


def test_encode_everything_dropped_leaves_no_marks():
    ids, tokens = Lexicon([b"</s>", b"a"]).encode(b"a a\na\n", np.zeros(2, np.float32))
    assert ids.tolist() == []
    assert tokens == 5


def test_encode_keep_has_its_frequency_and_seed_decides():
    lexicon = Lexicon([b"a", b"b"])
    text = b"a b " * 100_000
    keep = np.array([0.25, 1.0], dtype=np.float32)
    first, _ = lexicon.encode(text, keep, 1)
    again, _ = lexicon.encode(text, keep, 1)
    other, _ = lexicon.encode(text, keep, 2)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.count_nonzero(first == 1) == 100_000
    # 100,000 draws: a standard deviation of 137; the seed is fixed.
    assert abs(np.count_nonzero(first == 0) - 25_000) < 600


def test_encode_from_threads_is_the_same():
    lexicon = Lexicon(WORDS)
    text = b"a ab eightchr\nx sixteencharacter " * 5000
    expected = lexicon.encode(text)[0]
    run_all(*[lambda: np.testing.assert_array_equal(lexicon.encode(text)[0], expected)] * 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([b"a", b""], "word 1"),
        ([b"a b"], "without separators"),
        ([b"a\0"], "without separators"),
        ([b"a", b"b", b"a"], "comes twice"),
    ],
)
def test_lexicon_impossible_words_are_value_errors(words, message):
    with pytest.raises(ValueError, match=message):
        Lexicon(words)


def test_encode_wrong_number_of_probabilities_is_value_error():
    with pytest.raises(ValueError, match="expected 2 probabilities, got 3"):
        Lexicon([b"a", b"b"]).encode(b"a", np.ones(3, np.float32))


def test_lexicon_without_words_encodes_to_nothing():
    lexicon = Lexicon([])
    assert len(lexicon) == 0
    ids, tokens = lexicon.encode(b"a b\n", np.ones(0, np.float32))
    assert ids.tolist() == []
    assert tokens == 3


def test_merging_known_words_takes_no_memory():
    """A part of a survey has mostly words that the master knows: they need no room twice."""
    words = 300_000  # several pieces of a merge, and just above a power of 2
    part = counted(b" ".join(b"%d" % i for i in range(words))).dump()
    counter = WordCounter()
    counter.merge(part)
    tracemalloc.start()
    counter.merge(part)
    more = counted(b"0 1 2 new").dump()
    counter.merge(more)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000  # a larger table would have 4 MB of counts
    assert len(counter) == words + 1
    assert counter.counts()[:4].tolist() == [3, 3, 3, 2]
    assert (counter.counts()[4:words] == 2).all()
    assert counter.counts()[-1] == 1
    assert list(counter.words()[-2:]) == [b"%d" % (words - 1), b"new"]
    assert counter.tokens == 2 * words + 4


def test_merge_without_memory_changes_nothing(monkeypatch):
    text, more = b"the cat saw the dog\n", b"the new w7\n"
    counter = counted(text)
    before, tokens = as_dict(counter), counter.tokens
    # Known words and new ones in the first piece; the third one needs a larger table.
    part = counted(b" ".join([b"the", b"cat", *(b"w%d" % n for n in range(150_000))])).dump()
    zeros = np.zeros

    def full(size, dtype):
        if size > 200_000:
            raise MemoryError
        return zeros(size, dtype)

    with monkeypatch.context() as patch:
        patch.setattr(np, "zeros", full)
        for _ in range(2):
            with pytest.raises(MemoryError):
                counter.merge(part)
    assert (as_dict(counter), counter.tokens) == (before, tokens)
    counter.merge(counted(more).dump())
    assert as_dict(counter) == as_dict(counted(text, more))
    assert list(counter.words()) == list(counted(text, more).words())
    counter.merge(part)
    assert len(counter) == 150_006
    assert counter.tokens == tokens + 4 + 150_002


def test_dump_of_nothing_is_merged_as_nothing():
    counter = counted(b"a b")
    counter.merge(WordCounter().dump())
    assert list(counter.words()) == [b"a", b"b"]
