"""`snailps.dedup`: what is removed of texts, and that a kept text covers it."""

import itertools
import math

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from near_copies import (
    anchors_by_keys,
    corpus,
    covers_of,
    every_text_before,
    grams_of,
    place_of,
    words_of,
)

import snailps
from snailps.duplicates import search
from snailps.duplicates._pages import PageKeys
from snailps.errors import ConfigError, DataError
from snailps.vectors import texts as texts_module

SEEDS = (1, 2, 3)


def is_covered(cover):
    return (
        cover.exact
        or np.float32(cover.contained) >= np.float32(0.98)
        or np.float32(cover.near) >= np.float32(0.85)
    )


def keys_of(texts):
    batches = search.batches_of(texts)
    return [[*map(int, row)] for batch in batches for row in PageKeys().of(*batch)[0]]


def small_pieces(monkeypatch):
    monkeypatch.setattr(texts_module, "PIECE_BYTES", 2000)
    monkeypatch.setattr(search, "CHUNK_PAGES", 7)
    monkeypatch.setattr(search, "CHUNK_PAIRS", 5)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_text_has_the_cover_that_the_definition_gives(seed, monkeypatch):
    """The same keys, judged by sets of strings, one text after the other."""
    texts, _ = corpus(seed)
    covers, kept = covers_of(texts, anchors_by_keys(texts, keys_of(texts)), is_covered)
    small_pieces(monkeypatch)
    found = snailps.dedup(texts, threads=2)
    assert found.keep.tolist() == kept
    assert found.of.tolist() == [cover.of for cover in covers]
    assert found.exact.tolist() == [cover.exact for cover in covers]
    for values, name in ((found.contained, "contained"), (found.near, "near")):
        wanted = np.array([getattr(cover, name) for cover in covers], np.float32)
        assert values.tolist() == wanted.tolist()
    removed = [cover.of for cover, stays in zip(covers, kept, strict=True) if not stays]
    assert found.covers.tolist() == [removed.count(number) for number in range(len(texts))]
    assert found.covers.sum() == len(removed) > 30


@pytest.mark.parametrize("seed", SEEDS)
def test_no_text_goes_without_a_kept_cover_and_copies_are_found(seed):
    texts, planted = corpus(seed, pages=40)
    found = snailps.dedup(texts)
    for number in np.flatnonzero(~found.keep).tolist():
        of = int(found.of[number])
        ours, other = grams_of(texts[number]), grams_of(texts[of])
        assert found.keep[of]
        assert place_of(texts, of) < place_of(texts, number)
        contained, jaccard = (len(ours & other) / len(s) for s in (ours, ours | other))
        assert (
            contained >= 0.98 or jaccard >= 0.85 or words_of(texts[number]) == words_of(texts[of])
        )
    _, kept = covers_of(texts, every_text_before(texts), is_covered)
    assert {*np.flatnonzero(~found.keep)} >= {  # 0 or 1 missed: see below
        at for at in planted["equal"] if not kept[at]
    }
    # A pair with Jaccard J shares none of 18 keys of 9 least hashes with probability
    # (1 - J^9)^18: .0002 at .9.  Of 40 pages 2 are missed with probability (40 x .0002)^2 / 2.
    missed = [at for at, stays in enumerate(kept) if not stays and found.keep[at]]
    near = [at for at in missed if at not in planted["part"] and at not in planted["inside"]]
    assert len(near) <= 1
    assert len(missed) <= len(kept) / 20
    assert math.isclose(found.keep.mean(), np.mean(kept), abs_tol=0.05)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_and_pieces_change_nothing(threads, monkeypatch):
    texts, _ = corpus(4)
    whole = snailps.dedup(texts, threads=1)
    small_pieces(monkeypatch)
    found = snailps.dedup(texts, threads=threads)
    for name in ("keep", "of", "contained", "near", "exact", "covers"):
        assert np.array_equal(getattr(found, name), getattr(whole, name)), name


def copies():
    text = " ".join(f"w{number}" for number in range(40))
    return [text, text.upper(), "five six", None, "", "!", "Five, six.", text[:-4]]


COPIES_KEPT = [True, False, True, True, True, True, False, False]
FORMS = {
    "list": list, "bytes": lambda rows: [row if row is None else row.encode() for row in rows],
    "generator": iter, "numpy": lambda rows: np.array(rows, object), "pandas": pd.Series,
    "pandas text": lambda rows: pd.Series(rows, dtype="string"),
    "pandas codes": lambda rows: pd.Series(rows).astype("category"), "polars": pl.Series,
    "arrow": pa.array, "arrow codes": lambda rows: pa.array(rows).dictionary_encode(),
    "arrow views": lambda rows: pa.array(rows, pa.string_view()),
    "arrow chunks": lambda rows: pa.chunked_array([rows[:3], rows[3:]]),
    "arrow slice": lambda rows: pa.array(["", *rows]).slice(1),
    "arrow bytes": lambda rows: pa.array([row and row.encode() for row in rows], pa.binary()),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_texts_of_any_library_give_a_mask_for_it(form):
    """A missing text, and one without a word, is no copy of another."""
    found = snailps.dedup(FORMS[form](copies()))
    assert found.keep.tolist() == COPIES_KEPT
    assert found.of.tolist() == [-1, 0, -1, -1, -1, -1, 2, 0]
    assert found.covers.tolist() == [2, 0, 1, 0, 0, 0, 0, 0]
    assert repr(found) == "Duplicates(texts=8, kept=5)"
    frame = pd.DataFrame({"text": copies()})
    assert frame[found.keep].index.tolist() == [0, 2, 3, 4, 5]


@pytest.mark.parametrize("times", [2, 5])
def test_pages_inside_longer_texts_are_found_as_often_as_said(times):
    """One of the longer text's 6 least windows has to be the page's: docs/duplicates.md."""
    pages, length, draw = 200, 100, np.random.default_rng(times)
    texts = []
    for _ in range(pages):
        words = [f"w{number}" for number in draw.integers(0, 10**6, times * length)]
        begin = draw.integers(0, (times - 1) * length)
        texts += [" ".join(words), " ".join(words[begin : begin + length])]
    found = snailps.dedup(texts)
    assert found.keep[::2].all()
    removed = np.flatnonzero(~found.keep)
    assert found.of[removed].tolist() == (removed - 1).tolist()
    share = (length - 24) / (times * length - 24)
    wanted = 1 - (1 - share) ** 6
    spread = math.sqrt(wanted * (1 - wanted) / pages)
    assert abs((~found.keep[1::2]).mean() - wanted) < 4 * spread + 0.01


def test_bounds_say_what_goes():
    """The first 100 words of 125 and of 124 in common: 98 of 123 and of 122 3-grams."""
    shared = [f"s{number}" for number in range(100)]
    texts = [" ".join([*shared, *(f"{side}{at}" for at in range(count))])
             for side, count in (("a", 25), ("b", 24))]  # fmt: skip
    texts += ["x y z", "x y z x y z", "X Y Z!"]
    found = snailps.dedup(texts, contained=98 / 122, near=None)
    assert found.contained[1] == np.float32(98 / 122)
    assert found.near[1] == np.float32(98 / 147)
    assert found.keep.tolist() == [True, False, True, True, False]
    assert snailps.dedup(texts, near=0.66).keep.tolist() == [True, False, True, True, False]
    only_equal = snailps.dedup(texts, contained=None, near=None)
    assert only_equal.keep.tolist() == [True, True, True, True, False]
    assert only_equal.of[4] == 2
    assert only_equal.exact.tolist() == [False] * 4 + [True]
    # Without the key of all words the longest of three texts with one 3-gram would hide the second.
    rounds = ["x y z x y z x y z", "x y z x y z", "x y z x y z"]
    assert snailps.dedup(rounds, contained=None, near=None).keep.tolist() == [True, True, False]


def test_chain_of_copies_keeps_what_no_kept_text_covers():
    """Each text lacks a bit of the one before it: only kept ones remove, so some stay."""
    words = [f"w{number}" for number in range(400)]
    texts = [" ".join(words[: 400 - 20 * at]) for at in range(12)]
    found = snailps.dedup(texts, contained=None, near=0.9)
    grams = [*map(grams_of, texts)]
    kept = [0]
    for number in range(1, 12):
        if all(len(grams[number]) / len(grams[other]) < 0.9 for other in kept):
            kept.append(number)
    assert np.flatnonzero(found.keep).tolist() == kept
    assert kept == [0, 2, 4, 6, 8, 10, 11]  # of 398, 358, 318, ... 198, 178 3-grams


def test_one_text_many_times_is_one_bucket():
    found = snailps.dedup(["the same words as ever"] * 3000, threads=2)
    assert found.keep.tolist() == [True] + [False] * 2999
    assert found.covers[0] == 2999
    assert not len(snailps.dedup([]))
    assert snailps.dedup(pa.array([], "string")).keep.dtype == bool


def test_long_chains_are_judged_in_waves():
    """Each page is judged after its anchor, however long the chain; every second one stays."""
    count = 2000
    page, anchor = np.arange(1, count), np.arange(count - 1)
    ones = np.ones(count - 1, np.float32)
    overlaps = search.Overlaps(page, anchor, ones > 2, ones, ones)
    done = search.judged(
        overlaps, np.arange(count, 0, -1).astype(np.uint32),
        lambda now, rows: now.contained[rows] < 1,
    )  # fmt: skip
    assert done.kept.tolist() == [at % 2 == 0 for at in range(count)]
    assert done.of.tolist() == [at - 1 if at % 2 else -1 for at in range(count)]


def test_mistakes_are_refused_by_name(tmp_path, monkeypatch):
    for options, words in (
        ({"contained": 0}, "contained: expected a number above 0"),
        ({"near": 1.5}, "near: expected a number above 0"),
        ({"near": True}, "near: "), ({"contained": "all"}, "contained: "),
        ({"threads": -1}, "threads: expected 0"),
        ({"scratch": tmp_path / "none"}, "scratch .*none"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            snailps.dedup(["a b", "a b"], **options)
    for texts, words in (
        ("one text", "expected a list or column of texts"), ([1, 2], "text 0, got 1"),
        (pa.array([1, None]), "of int64"), (pd.DataFrame({"a": ["x"], "b": ["y"]}), "a column"),
        (["a", 3], "line of text as text 1"),
        ({"a": 1}, "got {'a': 1}"),
        ({"a"}, "got {'a'}"),
        (None, "got None"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=words):
            snailps.dedup(texts)
    monkeypatch.setattr(search, "free_bytes", lambda folder: 100)
    texts = [" ".join(itertools.repeat("a b c d", 20)), " ".join(itertools.repeat("a b c d", 19))]
    with pytest.raises(ConfigError, match=r"2 texts .* up to 608 B .* 100 B free: .*--scratch"):
        snailps.dedup(texts)
