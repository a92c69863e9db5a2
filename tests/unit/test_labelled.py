"""data._labelled: lines, features and labels against a plain twin."""

import itertools
import re

import numpy as np
import pytest
from cases import examples
from hypothesis import example, given
from hypothesis import strategies as st
from twins import labels as twin

from snailps.data._labelled import (
    GRAM_MAX,
    WEIGHT_MAX,
    KeptGrams,
    LineReader,
    WeightError,
    without_weights,
)

WORDS = [b"</s>", b"a", b"cat", "größe".encode(), b"eightchr-and-more"]
LABELS = [b"__label__x", b"__label__y"]
PIECES = st.sampled_from(
    [b"a", b"cat", "größe".encode(), b"unknown", b"eightchr-and-more", b"__label__x", b"__label__y",
     b"__label__z", b"__label__", b"__labe", b"</s>", b"x</s>", b"\xff\x80", b"z" * 70]
)  # fmt: skip
BLANKS = st.sampled_from([b" ", b"\n", b"\n\n", b"\t", b"\r\n", b" \0"])
TEXTS = st.lists(st.tuples(PIECES, BLANKS), max_size=150).map(
    lambda pairs: b"".join(piece + blank for piece, blank in pairs)
)
SHAPES = [
    {},
    {"word_ngrams": 2, "bucket": 7},
    {"word_ngrams": 5, "bucket": 1_000_003},
    {"minn": 2, "maxn": 4, "bucket": 100},
    {"word_ngrams": 3, "minn": 1, "maxn": 3, "bucket": 2_000_000},
]


def read(text, **shape):
    """Lines, tokens and words not read as the twin gives them."""
    reader = LineReader(WORDS, LABELS, label_prefix=b"__label__", **shape)
    found = reader.read(text)
    assert found.feature_ptr.dtype == found.label_ptr.dtype == np.int64
    assert found.features.dtype == found.labels.dtype == np.int32
    n = len(found.feature_ptr) - 1
    assert len(found.label_ptr) - 1 == n
    lines = [
        (
            sorted(found.features[found.feature_ptr[i] : found.feature_ptr[i + 1]].tolist()),
            found.labels[found.label_ptr[i] : found.label_ptr[i + 1]].tolist(),
        )
        for i in range(n)
    ]
    assert all(feature < reader.space for features, _ in lines for feature in features)
    return lines, found.tokens, found.unread


@pytest.mark.parametrize("shape", SHAPES)
@given(text=TEXTS, tail=st.booleans())
@example(b"", True)
@example(b"\n", True)
@example(b"__label__x", True)
@examples(40)
def test_reader_any_text_agrees_with_twin(shape, text, tail):
    text += b"a __label__y cat" if tail else b""
    assert read(text, **shape) == twin.lines_of(text, WORDS, LABELS, **shape)


def test_reader_known_line_gives_known_features():
    lines, tokens, _ = read(b"__label__y a cat unseen __label__z\ncat", word_ngrams=2, bucket=1000)
    # FNV-1a of a, cat, unseen and </s>, as fastText chains them, modulo 1000.
    hashes = [twin.signed(twin.ngram_hash(word)) for word in (b"a", b"cat", b"unseen", b"</s>")]
    pairs = [
        5 + (first * 116049371 + second) % (1 << 64) % 1000
        for first, second in itertools.pairwise(hashes)
    ]
    assert lines == [(sorted([1, 2, 0, *pairs]), [1]), ([2], [])]
    assert tokens == 7


def test_reader_end_token_within_a_line_leaves_it_one_line():
    text = b"__label__x a </s> cat __label__y </s> cat\ncat\n</s>\n\na </s> cat"
    lines, tokens, unread = read(text)
    assert lines == [([0, 1], [0]), ([0, 2], []), ([0], []), ([0], []), ([0, 1], [])]
    assert (tokens, unread) == (18 - 2, 4)


def test_reader_long_lines_and_many_labels_grow_its_arrays():
    text = b"__label__x " * 5000 + b"a " * 5000 + b"q\n"
    lines, tokens, _ = read(text, word_ngrams=4, bucket=50)
    assert len(lines) == 1
    assert len(lines[0][0]) == 5001 + 3 * 5002 - 6
    assert lines[0][1] == [0] * 5000
    assert tokens == 10_002


def test_reader_custom_prefix_takes_it_for_labels():
    reader = LineReader([b"a", b"__label__x"], [b"#one"], label_prefix=b"#")
    found = reader.read(b"#one #two a __label__x\n")
    assert (found.features.tolist(), found.labels.tolist()) == ([0, 1], [0])


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"word_ngrams": 0}, "word_ngrams"),
        ({"word_ngrams": GRAM_MAX + 1, "bucket": 5}, "word_ngrams"),
        ({"word_ngrams": 2}, "bucket"),
        ({"minn": 3, "maxn": 2, "bucket": 5}, "minn <= maxn"),
        ({"minn": 1, "maxn": 2}, "bucket"),
        ({"label_prefix": b""}, "label_prefix"),
    ],
)
def test_reader_with_senseless_setting_refuses(changed, what):
    with pytest.raises(ValueError, match=what):
        LineReader(WORDS, LABELS, **{"label_prefix": b"__label__", **changed})


def test_reader_with_pairs_of_words_alone_ignores_the_shortest_length_of_character_ngrams():
    text = b"__label__y a cat unseen\n"
    assert read(text, word_ngrams=2, bucket=50, minn=3) == read(text, word_ngrams=2, bucket=50)


def test_reader_with_a_word_that_is_a_label_refuses():
    with pytest.raises(ValueError, match="twice"):
        LineReader([b"a"], [b"a"], label_prefix=b"a")


@given(st.lists(st.lists(st.tuples(PIECES, BLANKS), max_size=8), max_size=30), st.integers(0, 9))
def test_texts_between_offsets_are_lines_whose_newlines_are_blanks(rows, before):
    texts = [b"".join(piece + blank for piece, blank in row) for row in rows]
    data = b"x" * before + b"".join(texts) + b"behind"
    offsets = np.cumsum([before, *map(len, texts)], dtype=np.int64)
    reader = LineReader(WORDS, LABELS, label_prefix=b"__label__", word_ngrams=2, bucket=50)
    found = reader.read(data, offsets)
    wanted = reader.read(b"".join(text.replace(b"\n", b" ") + b"\n" for text in texts))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("offsets", [[], [1, 0], [-1, 2], [0, 9]])
def test_offsets_that_do_not_fit_are_refused(offsets):
    reader = LineReader(WORDS, LABELS, label_prefix=b"__label__")
    with pytest.raises(ValueError, match="offsets that rise"):
        reader.read(b"a cat", np.array(offsets, np.int64))


@given(st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 40), max_size=40), st.data())
def test_kept_grams_are_found_and_others_left_out(kept, data):
    pairs = np.array(list(kept.items()), np.int32).reshape(-1, 2)
    made = KeptGrams(pairs)
    asked = data.draw(st.lists(st.sampled_from([*kept, 0, 5, 2**31 - 1]), max_size=50))
    assert len(made) == len(kept)
    assert made.rows(np.array(asked, np.int32)).tolist() == [kept.get(one, -1) for one in asked]


def test_lines_keep_their_words_and_the_rows_of_kept_grams():
    shape = {"word_ngrams": 2, "bucket": 9}
    reader = LineReader(WORDS, LABELS, label_prefix=b"__label__", **shape)
    text = b"a cat a\n\ncat cat unknown a\n"
    lines, words = reader.read(text), len(WORDS)
    kept = {1: 0, 4: 1, 7: 2, 8: 3}
    wanted = []
    for first, last in itertools.pairwise(lines.feature_ptr.tolist()):
        own = lines.features[first:last].tolist()
        wanted.append(
            [
                f if f < words else words + kept[f - words]
                for f in own
                if f < words or f - words in kept
            ]
        )
    found = KeptGrams(np.array(list(kept.items()), np.int32)).keep(reader.read(text), words)
    cut = itertools.pairwise(found.feature_ptr.tolist())
    assert [found.features[a:b].tolist() for a, b in cut] == wanted
    assert len(found.features) == found.feature_ptr[-1] < len(lines.features)
    none = KeptGrams(np.empty((0, 2), np.int32)).keep(reader.read(b""), words)
    assert none.feature_ptr.tolist() == [0]


@pytest.mark.parametrize("pairs", [[[0, 1, 2]], [[-1, 0]], [[0, -1]]])
def test_pairs_that_are_none_are_refused(pairs):
    with pytest.raises(ValueError, match="expected"):
        KeptGrams(np.array(pairs, np.int32))


# ---- weights ----

SUFFIXED = st.builds(
    lambda label, weight: label + weight,
    st.sampled_from([*LABELS, b"__label__z", b"__label__", b"__label__a:b"]),
    st.sampled_from([b"", b":", b":2", b":0.25", b":1e-3", b":0", b":1000000", b"::.5"]),
)


def weighed_twin(text):
    """[(known labels, their weights)] of each line and its weight; the plain text; all labels."""
    lines, every, of_lines = [], [], []
    plain = re.sub(
        rb"(?<![^ \n\t\r\0])__label__[^ \n\t\r\0]*",
        lambda match: split(match[0])[0].ljust(len(match[0])),
        text,
    )
    for line in re.findall(rb"[^\n]*\n|[^\n]+", text):
        tokens = re.split(rb"[ \n\t\r\0]+", line)
        tokens = tokens[: tokens.index(b"</s>")] if b"</s>" in tokens else tokens
        labels = [split(token) for token in tokens if token.startswith(b"__label__")]
        of_line = [weight for name, weight in labels if name == b"" and weight is not None]
        of_lines.append(of_line[-1] if of_line else 1.0)
        labels = [(name, weight) for name, weight in labels if name]
        lines.append([(LABELS.index(name), weight) for name, weight in labels if name in LABELS])
        every += [(name, of_lines[-1] * (1 if w is None else w)) for name, w in labels]
    return lines, of_lines, plain, every


def split(token):
    """Name and weight of a label; no name: the weight is its line's; no weight: None."""
    name, colon, number = token.rpartition(b":")
    if not colon:
        return token, None
    if not number:
        return name, None
    return (b"" if name == b"__label__" else name), float(np.float32(float(number)))


@given(words=st.lists(st.tuples(SUFFIXED | PIECES, BLANKS), max_size=60))
@examples(60)
def test_weights_of_any_text_agree_with_twin(words):
    text = b"".join(piece + blank for piece, blank in words)
    lines, of_lines, plain, every = weighed_twin(text)
    reader = LineReader(WORDS, LABELS, label_prefix=b"__label__", weighed=True)
    got = reader.read(text)
    is_line = [bool(line.strip(b" \t\r\0")) for line in re.findall(rb"[^\n]*\n|[^\n]+", text)]
    lines = [line for line, is_read in zip(lines, is_line, strict=True) if is_read]
    of_lines = [weight for weight, is_read in zip(of_lines, is_line, strict=True) if is_read]
    assert got.line_weights.tolist() == of_lines
    assert len(got.label_weights) == len(got.labels)
    weights = [None if np.isnan(weight) else weight for weight in got.label_weights.tolist()]
    read_labels = list(zip(got.labels.tolist(), weights, strict=True))
    assert [read_labels[a:b] for a, b in itertools.pairwise(got.label_ptr.tolist())] == lines
    blanked, names, sums = without_weights(text, b"__label__")
    assert blanked == plain
    assert list(zip(names, sums.tolist(), strict=True)) == every
    unweighed = LineReader(WORDS, LABELS, label_prefix=b"__label__").read(blanked)
    assert got.features.tolist() == unweighed.features.tolist()
    assert len(unweighed.line_weights) == len(unweighed.label_weights) == 0


@pytest.mark.parametrize(
    "number", ["-1", "nan", "inf", "1e7", "0x1", "1.2.3", "b", "0" * 41, "1,5"]
)
def test_weight_that_is_none_is_refused_with_its_place(number):
    text = f"__label__x:1 a\ncat __label__y:{number} cat\n".encode()
    reader = LineReader(WORDS, LABELS, label_prefix=b"__label__", weighed=True)
    for read_text in (reader.read, lambda data: without_weights(data, b"__label__")):
        with pytest.raises(WeightError, match="expected a weight from 0 to 1,000,000") as refused:
            read_text(text)
        assert refused.value.offset == text.index(b"__label__y")
        assert f"__label__y:{number}"[:70] in str(refused.value)


def test_weight_at_the_end_of_the_text_is_read():
    text = f"cat __label__y:{WEIGHT_MAX:.0f}".encode()
    reader = LineReader(WORDS, LABELS, label_prefix=b"__label__", weighed=True)
    assert reader.read(text).label_weights.tolist() == [WEIGHT_MAX]
    assert without_weights(text, b"__label__")[2].tolist() == [WEIGHT_MAX]


def test_colon_of_the_prefix_begins_no_weight():
    text = b"cat::2 cat:x cat:5 cat:x:0.5 cat: w\n"
    reader = LineReader([b"w"], [b"cat:x", b"cat:5"], label_prefix=b"cat:", weighed=True)
    lines = reader.read(text)
    assert (lines.labels.tolist(), lines.line_weights.tolist()) == ([0, 1, 0], [2])
    np.testing.assert_array_equal(lines.label_weights, np.array([np.nan, np.nan, 0.5], np.float32))
    plain, names, sums = without_weights(text, b"cat:")
    assert plain.split() == [b"cat:x", b"cat:5", b"cat:x", b"cat:", b"w"]
    assert ([*names], sums.tolist()) == ([b"cat:x", b"cat:5", b"cat:x", b"cat:"], [2, 2, 1, 2])


def test_weights_of_many_labels_in_one_line_are_all_read():
    text = (
        b"__label__:2 " + b"".join(b"__label__x:0.5 __label__z: " for _ in range(9000)) + b"cat\n"
    )
    reader = LineReader(WORDS, LABELS, label_prefix=b"__label__", weighed=True)
    got = reader.read(text)
    assert got.label_weights.tolist() == [0.5] * 9000
    assert got.line_weights.tolist() == [2]
    _, names, sums = without_weights(text, b"__label__")
    assert len(names) == 18000
    assert sums.tolist() == [1.0, 2.0] * 9000
