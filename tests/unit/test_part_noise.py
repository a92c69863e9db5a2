"""Negatives of a checkout: its contexts, and some of the other words of its partition."""

from __future__ import annotations

import numpy as np
import pytest
from rotating import MemoryTables, MemoryWorker, train_rotating

from snailps.data._text import WordCounter
from snailps.data.vocabulary import Vocabulary
from snailps.models.word_vectors import WordVectorSettings
from snailps.models.word_vectors.part_noise import PartNoise
from snailps.models.word_vectors.skip_gram import SkipGramTrainer

WORDS = np.arange(0, 2000, 2, dtype=np.int32)
NOISE = PartNoise(WORDS, np.sqrt(np.arange(1000, 0, -1)) / 10_000)
CONTEXTS = np.array([0, 10, 10, 1998, 44], np.int32)


def test_contexts_are_drawn_as_often_and_some_others_more_often() -> None:
    some = NOISE.among(CONTEXTS, 0.25, seed=3)
    mass = dict(zip(some.words.tolist(), some.mass.tolist(), strict=True))
    assert {0, 10, 44, 1998} <= set(mass)
    assert 200 < len(mass) < 300
    for word, own in mass.items():
        times = 1 if word in (0, 10, 44, 1998) else 4
        assert own == pytest.approx(times * NOISE.mass[word // 2])


def test_each_word_has_its_noise_on_average() -> None:
    sums = np.zeros(2000)
    for seed in range(2000):
        some = NOISE.among(CONTEXTS, 0.25, seed)
        sums[some.words] += some.mass
    mean = sums[WORDS] / 2000 / NOISE.mass
    assert np.abs(mean - 1).max() < 6 * np.sqrt(3 / 2000)
    assert abs(mean.mean() - 1) < 0.01


def test_which_words_are_drawn_depends_on_the_seed_alone() -> None:
    def words_of(contexts: list[int], seed: int) -> set[int]:
        return set(NOISE.among(np.array(contexts, np.int32), 0.25, seed).words.tolist())

    assert words_of([0], 7) == words_of([0], 7) != words_of([0], 8)
    assert words_of([0, 6, 8], 7) - {0, 6, 8} == words_of([0], 7) - {0, 6, 8}


def test_with_a_share_of_one_and_without_words_nothing_is_left_out() -> None:
    assert NOISE.among(CONTEXTS, 1.0, seed=3) is NOISE
    nothing = PartNoise(WORDS[:0], NOISE.mass[:0])
    assert len(nothing.among(CONTEXTS[:0], 0.25, seed=3).draw(0, seed=3)) == 0
    few = PartNoise(WORDS[:1], NOISE.mass[:1])
    assert few.among(CONTEXTS[:0], 1e-9, seed=3).draw(2, seed=3).tolist() == [0, 0]


def test_negatives_are_drawn_by_their_mass() -> None:
    some = NOISE.among(CONTEXTS, 0.25, seed=3)
    drawn = some.draw(100_000, seed=4)
    share = np.bincount(drawn, minlength=2000)[some.words] / 100_000
    assert np.abs(share - some.mass / some.mass.sum()).max() < 3e-5


def moved_and_loss(settings: WordVectorSettings, lines: list[bytes]) -> tuple[int, float]:
    """Output rows that four workers move, and the loss of their last chunk."""
    counter = WordCounter()
    counter.count(b"".join(lines))
    vocabulary = Vocabulary.from_counter(counter, 1)
    tables = MemoryTables(settings, len(vocabulary))
    workers = [MemoryWorker(settings, vocabulary, tables) for _ in range(4)]
    figures = train_rotating(workers, [lines], epochs=3, at_once=False)[-4:]
    loss = sum(part["loss"] for part in figures) / sum(part["examples"] for part in figures)
    return tables.moved["output"], loss


def test_fewer_rows_travel_and_workers_learn_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    rank = np.arange(1, 2001)
    names = [b"w%d" % word for word in range(len(rank))]
    drawn = rng.choice(len(rank), (500, 4), p=1 / rank / (1 / rank).sum())
    pairs = [[names[word] + b" " + names[1999 - word] for word in line] for line in drawn]
    lines = [b" ".join(line) + b"\n" for line in pairs]
    settings = WordVectorSettings(dim=16, min_count=1, sample=0.0, window=3, maxn=0)
    moved, loss = moved_and_loss(settings, lines)
    monkeypatch.setattr(SkipGramTrainer, "absent_share", 1.0)
    moved_before, loss_before = moved_and_loss(settings, lines)
    assert moved < 0.95 * moved_before
    assert loss < 1.02 * loss_before
