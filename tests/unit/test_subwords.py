"""data._subwords: fastText's n-gram buckets, against a plain twin and the official package."""

import fasttext
import numpy as np
import official_fasttext
import pytest
from cases import examples
from hypothesis import given
from hypothesis import strategies as st
from twins import text as twin

from snailps.data._subwords import ngram_hash, subword_ids, subwords_csr

ODD_WORDS = [
    b"a", b"ab", b"the", b"words", "naïve".encode(), "中文字".encode(), "Žluťoučký".encode(),
    "😀x".encode(), b"</s>x", b"\xff\xfe", b"\x80\x81start", b"end\xc3", b"mid\x80\xffdle", b"<",
    b">",
]  # fmt: skip
RANGES = [(1, 1), (1, 3), (2, 4), (3, 6), (0, 2), (5, 5)]


@pytest.mark.parametrize(
    ("ngram", "value"),
    [
        # The published FNV-1a vectors hold for ASCII; from 0x80 on fastText differs.
        (b"", 0x811C9DC5),
        (b"a", 0xE40C292C),
        (b"foobar", 0xBF9CF968),
        (b"\x80", ((0x811C9DC5 ^ 0xFFFFFF80) * 16777619) & 0xFFFFFFFF),
    ],
)
def test_ngram_hash_known_answers(ngram, value):
    assert ngram_hash(ngram) == value


@given(st.binary(max_size=30), st.integers(0, 4), st.integers(0, 4), st.integers(1, 2**31 - 1))
@examples(100)
def test_subword_ids_any_bytes_agree_with_twin(word, minn, more, bucket):
    # A word never begins with a continuation byte *before* its bracket, so the twin's rule holds.
    nwords = 2**31 - bucket
    ours = subword_ids(word, minn, minn + more, bucket, nwords)
    assert ours.dtype == np.int32
    assert ours.tolist() == twin.subword_ids(word, minn, minn + more, bucket, nwords)


@pytest.fixture(scope="module", params=RANGES, ids=lambda range_: f"{range_[0]}-{range_[1]}")
def official(request, tmp_path_factory):
    minn, maxn = request.param
    path = tmp_path_factory.mktemp("fasttext") / "words.txt"
    path.write_bytes(b" ".join([b"known", "wörter".encode(), b"x"] * 5) + b"\n")
    model = fasttext.train_unsupervised(
        str(path), dim=2, epoch=1, thread=1, minCount=1, bucket=997, minn=minn, maxn=maxn, verbose=0
    )
    return minn, maxn, official_fasttext.saved(model, path.with_suffix(".bin"))


def test_subword_ids_unknown_words_equal_fasttext(official):
    minn, maxn, model = official
    for word in ODD_WORDS:
        theirs = model.f.getSubwords(word, "replace")[1]
        assert subword_ids(word, minn, maxn, 997, len(model.words)).tolist() == theirs, word


def test_subwords_csr_known_words_equal_fasttext(official):
    minn, maxn, model = official
    words = [word.encode() for word in model.get_words()]
    indptr, ids = subwords_csr(words, minn, maxn, 997)
    assert (indptr.dtype, ids.dtype) == (np.int64, np.int32)
    for i, word in enumerate(model.get_words()):
        assert ids[indptr[i] : indptr[i + 1]].tolist() == model.get_subwords(word)[1].tolist()
    assert indptr[-1] == len(ids)


def test_subwords_csr_bag_is_word_then_its_ngrams():
    words = [b"</s>", *ODD_WORDS, b"banana-banana"]
    indptr, ids = subwords_csr(words, 2, 3, 50)
    for i, word in enumerate(words):
        bag = ids[indptr[i] : indptr[i + 1]].tolist()
        assert bag == [i, *twin.subword_ids(word, 2, 3, 50, len(words))]
    assert len(ids[indptr[0] : indptr[1]]) == 1
    assert len(set(bag)) < len(bag)  # repeats are kept


def test_subwords_csr_without_ngrams_is_words_alone():
    indptr, ids = subwords_csr([b"a", b"b", b"c"], 3, 0, 0)
    assert indptr.tolist() == [0, 1, 2, 3]
    assert ids.tolist() == [0, 1, 2]
    assert subword_ids(b"word", 0, 0, 0, 3).tolist() == []


def test_subwords_csr_no_words_is_empty():
    indptr, ids = subwords_csr([], 3, 6, 100)
    assert indptr.tolist() == [0]
    assert ids.tolist() == []


@pytest.mark.parametrize(
    ("minn", "maxn", "bucket", "nwords", "message"),
    [
        (4, 3, 10, 1, "minn <= maxn"),
        (-1, 3, 10, 1, "0 or more"),
        (3, 6, 0, 1, "bucket of 1"),
        (3, 6, 2**31, 1, "bucket of 1"),
        (3, 6, 2**31 - 1, 2, "at most 2"),
        (3, 6, 10, -1, "at most 2"),
    ],
)
def test_subword_ids_impossible_settings_are_value_errors(minn, maxn, bucket, nwords, message):
    with pytest.raises(ValueError, match=message):
        subword_ids(b"word", minn, maxn, bucket, nwords)
