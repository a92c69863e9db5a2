"""Pairs that workers compare: shares by the definition, however the pairs are cut."""

import random

import numpy as np
import pytest

from snailps.duplicates.search import batches_of
from snailps.filtering import page_sets
from snailps.filtering.page_sets import AskedPairs, PageSets, compared

NONE = np.empty(0, np.int64)


def texts_of(seed, count):
    draw = random.Random(seed)
    words = [f"w{number}" for number in range(6)]
    return [" ".join(draw.choices(words, k=draw.randrange(1, 30))) for _ in range(count)]


def grams_of(text):
    words = text.split()
    size = min(len(words), 3)
    return {tuple(words[at : at + size]) for at in range(len(words) - size + 1)}


def sets_of(path, numbers, texts):
    readings = [batches_of(texts[: len(texts) // 2]), batches_of(texts[len(texts) // 2 :])]
    PageSets.write(path, readings, len(texts), threads=2)
    return PageSets(path, numbers)


@pytest.mark.parametrize("grams", [1, 40, 1 << 22])
@pytest.mark.parametrize("threads", [1, 3])
def test_shares_are_those_of_the_definition_wherever_pairs_are_cut(
    tmp_path, monkeypatch, grams, threads
):
    monkeypatch.setattr(page_sets, "CHUNK_GRAMS", grams)
    texts = [texts_of(1, 20), texts_of(2, 31)]
    numbers = [np.arange(3, 63, 3), np.arange(100, 131)]
    own, other = (sets_of(tmp_path / f"{side}", numbers[side], texts[side]) for side in (0, 1))
    rng = np.random.default_rng(3)
    page, anchor = rng.integers(0, 20, 50), np.sort(rng.integers(0, 31, 50))
    found = compared(own, numbers[0][page], other, numbers[1][anchor], threads)
    for row, (of_page, of_anchor) in enumerate(zip(page, anchor, strict=True)):
        mine, theirs = grams_of(texts[0][of_page]), grams_of(texts[1][of_anchor])
        both = len(mine & theirs)
        assert (
            found[row].tolist()
            == np.float32([both / len(mine), both / len(mine | theirs)]).tolist()
        )


@pytest.mark.parametrize("text", ["one two three", "one two three four"])
def test_sets_of_an_odd_and_of_an_even_number_of_3_grams_are_read(tmp_path, text):
    sets = sets_of(tmp_path / "sets", np.array([7]), [text])
    shares = compared(sets, np.array([7]), sets, np.array([7]), 1)
    assert shares.tolist() == [[1, 1]]


def test_task_of_which_nothing_is_asked_has_files(tmp_path):
    AskedPairs.write(tmp_path / "asked", *[NONE] * 4)
    asked = AskedPairs(tmp_path / "asked")
    assert [len(part) for part in vars(asked).values()] == [0] * 4
    PageSets.write(tmp_path / "sets", (), 0, threads=1)
    PageSets(tmp_path / "sets", asked.pages)
