"""models.word_vectors.contention: expected steps of other workers, curvatures of a block."""

import math
from dataclasses import replace

import numpy as np
import pytest

from snailps.data._subwords import subwords_csr
from snailps.data.huffman import Tree
from snailps.data.vocabulary import Vocabulary
from snailps.models.text_model import BUCKET_KEY
from snailps.models.word_vectors.contention import WordContention, steps_a_word
from snailps.models.word_vectors.examples import Bags
from snailps.models.word_vectors.outputs import Branches, Noise, output_rows
from snailps.models.word_vectors.settings import WordVectorSettings

WORDS = [b"</s>", b"the", b"cat", b"catalogue", b"sat"]
COUNTS = np.array([40, 30, 20, 6, 4], np.int64)
SETTINGS = WordVectorSettings(dim=4, minn=0, maxn=0, sample=1.0, window=3, negatives=2)


def bags_of(ptr, rows):
    return Bags.of(np.array(ptr, np.int64), np.array(rows, np.int32), None, max(rows) + 1)


def contention(settings, workers=3):
    vocabulary = Vocabulary(WORDS, COUNTS, int(COUNTS.sum()))
    return WordContention(vocabulary, settings, output_rows(vocabulary, settings), workers)


PATHS = Tree.of(COUNTS).paths()
"""</s>; the; cat; then catalogue and sat: each word turns off the path of those after it."""


@pytest.mark.parametrize("model", ["skipgram", "cbow"])
def test_steps_elsewhere_without_subwords_follow_counts_and_noise(model):
    settings = replace(SETTINGS, model=model)
    keys = np.array([4, 1], np.uint64)
    inputs, outputs = contention(settings).steps_elsewhere(1000, keys, keys)
    share = COUNTS[[4, 1]] / COUNTS.sum()
    noise = np.sqrt(COUNTS)[[4, 1]] / np.sqrt(COUNTS).sum()
    of_output = 4 if model == "skipgram" else 1
    np.testing.assert_allclose(inputs, 2 * 1000 * 4 * share, rtol=1e-5)
    np.testing.assert_allclose(outputs, 2 * 1000 * of_output * (share + 2 * noise), rtol=1e-5)


def test_steps_elsewhere_on_a_node_are_those_of_all_words_below_it():
    keys = np.arange(4, dtype=np.uint64)
    _, outputs = contention(replace(SETTINGS, loss="hs")).steps_elsewhere(1000, keys, keys)
    below = np.array([10, 30, 60, 100]) / 100
    np.testing.assert_allclose(outputs, 2 * 1000 * 4 * below, rtol=1e-5)


@pytest.mark.parametrize("words_at_once", [2, 100])
def test_steps_elsewhere_of_buckets_are_those_of_all_their_words(words_at_once, monkeypatch):
    monkeypatch.setattr("snailps.models.word_vectors.contention.WORDS_AT_ONCE", words_at_once)
    settings = replace(SETTINGS, minn=2, maxn=3, bucket=5)
    found = contention(settings)
    ptr, ids = subwords_csr(WORDS, 2, 3, 5)
    expected = np.zeros(5)
    for word in range(len(WORDS)):
        for row in ids[ptr[word] : ptr[word + 1]].tolist():
            if row >= len(WORDS):
                expected[row - len(WORDS)] += COUNTS[word] / COUNTS.sum() * 2 * 100 * 4
    keys = np.array([0, *(BUCKET_KEY + bucket for bucket in range(5))], np.uint64)
    inputs, _ = found.steps_elsewhere(100, keys, keys[:1])
    assert inputs[0] == pytest.approx(0.4 * 2 * 100 * 4)
    np.testing.assert_allclose(inputs[1:], expected, rtol=1e-5)


@pytest.mark.parametrize("noise_logit", [0.0, -2.0])  # of negative sampling, of NCE
@pytest.mark.parametrize("model", ["skipgram", "cbow"])
def test_bends_of_equal_rows_are_slope_times_products_of_the_other_side(model, noise_logit):
    found = contention(replace(SETTINGS, model=model))
    bags = bags_of([0, 2, 3, 5], [0, 3, 1, 2, 3])
    tokens = np.array([0, 1, 2, -1, 1, 0, 2, 1] * 5, np.int32)
    local = [np.full((4, 8), 0.5, np.float32), np.full((3, 8), 0.7, np.float32)]
    noise = Noise(tokens[:2], np.full(3, noise_logit, np.float32))
    of_input, of_output = found.curvatures_of(tokens, bags, noise, local)
    score = 4 * 0.5 * 0.7 - noise_logit
    slope = math.exp(-score) / (1 + math.exp(-score)) ** 2
    np.testing.assert_allclose(of_input, np.full((4, 4), slope * 0.49 * (1 + 2)), rtol=1e-4)
    np.testing.assert_allclose(of_output, np.full((4, 4), slope * 0.25), rtol=1e-4)


@pytest.mark.parametrize("model", ["skipgram", "cbow"])
def test_bends_of_paths_are_those_of_all_their_nodes(model):
    found = contention(replace(SETTINGS, model=model, loss="hs"))
    tokens = np.array([4, 2, 4, 2, 4, 2, 4, 2, 4], np.int32)
    local = [np.full((5, 8), 0.5, np.float32), np.full((4, 8), 0.7, np.float32)]
    paths = Branches.of(PATHS, 4)
    of_input, of_output = found.curvatures_of(tokens, bags_of(range(6), range(5)), paths, local)
    slope = math.exp(-1.4) / (1 + math.exp(-1.4)) ** 2
    at = tokens[2:-2] if model == "cbow" else tokens[3:-1]
    nodes = np.mean([3 if word == 2 else 4 for word in at])
    np.testing.assert_allclose(of_input, np.full((4, 4), slope * 0.49 * nodes), rtol=1e-4)
    np.testing.assert_allclose(of_output, np.full((4, 4), slope * 0.25), rtol=1e-4)


def test_bends_of_a_block_too_short_for_pairs_are_zero():
    found = contention(SETTINGS)
    rows = np.ones((1, 8), np.float32)
    tokens = np.array([0, -1, 0], np.int32)
    noise = Noise(np.zeros(3, np.int32), np.zeros(1, np.float32))
    for curvature in found.curvatures_of(tokens, bags_of([0, 1], [0]), noise, [rows, rows]):
        assert not curvature.any()


@pytest.mark.parametrize("model", ["skipgram", "cbow"])
def test_bends_of_lines_of_equal_length_see_all_of_their_words(model):
    """Five words in turns, each with a direction of its own: none of them is flat."""
    tokens = np.tile(np.arange(5, dtype=np.int32), 20_000)
    settings = replace(SETTINGS, model=model, dim=5, window=1)
    rows = np.zeros((5, 16), np.float32)
    rows[:, :5] = np.eye(5)
    own, noise = bags_of(range(6), range(5)), Noise(tokens[:1000], np.zeros(5, np.float32))
    for curvature in contention(settings).curvatures_of(tokens, own, noise, [rows, rows]):
        curvatures = np.linalg.eigvalsh(curvature)
        assert curvatures[0] > 0.05 * curvatures[-1] > 0


def test_steps_a_word_of_cbow_are_few_for_output_rows():
    assert steps_a_word(SETTINGS) == (4, 4)
    assert steps_a_word(replace(SETTINGS, model="cbow")) == (4, 1)


def test_saw_moves_expectations_from_the_vocabulary_to_the_blocks_met():
    settings = replace(SETTINGS, minn=2, maxn=3, bucket=5)
    found = contention(settings, workers=4)
    keys = np.array([1, 4, BUCKET_KEY + 2], np.uint64)
    outputs = np.array([1, 3], np.uint64)
    at_first = found.steps_elsewhere(10, keys, outputs)
    met = np.array([7, 1, 9], np.float32), np.array([20, 5], np.float32)
    found.saw(10, keys, outputs, met)
    for now, before, own in zip(
        found.steps_elsewhere(10, keys, outputs), at_first, met, strict=True
    ):
        np.testing.assert_allclose(now, (before + 3 * own) / 2, rtol=1e-5)
    for _ in range(300):
        found.saw(20, keys, outputs, (met[0] * 2, met[1] * 2))
    for now, own in zip(found.steps_elsewhere(10, keys, outputs), met, strict=True):
        np.testing.assert_allclose(now, 3 * own, rtol=0.01)


def test_saw_lets_go_of_rows_that_are_not_met():
    found = contention(SETTINGS)
    absent = np.array([4], np.uint64)
    before, _ = found.steps_elsewhere(100, absent, absent)
    met = np.array([2], np.float32)
    for _ in range(9):
        found.saw(50, np.array([1], np.uint64), np.array([1], np.uint64), (met, met))
    after, _ = found.steps_elsewhere(100, absent, absent)
    np.testing.assert_allclose(after, before / 10, rtol=1e-4)
