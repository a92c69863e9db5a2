"""Private rows: one row stands for the rare rows of a word's bag during a run of targets."""

from types import SimpleNamespace

import numpy as np
import pytest

from snailps import kernels
from snailps.models.word_vectors import WordVectorSettings
from snailps.models.word_vectors.cbow import turns_of_grams
from snailps.models.word_vectors.examples import Bags, Windows
from snailps.models.word_vectors.private_rows import PLACES_LEAST, PrivateRows, private_num

DIM = 21
BAGS = [[0, 4, 5, 6], [1, 4], [2, 5, 7, 8, 4], [3, 6, 8]]
WEIGHTS = [[2, 1, 1, 1], [1, 3], [1, 1, 2, 1, 1], [1, 1, 1]]
RARE = np.array([0, 0, 1, 0, 0, 0, 1, 1, 1], np.bool_)
"""Of the rows of bags: word 2 has three of these, word 3 two, word 0 only one, word 1 none."""


def bags_of(bags=BAGS, weights=WEIGHTS, rows=RARE.size):
    ptr = np.concatenate(([0], np.cumsum([len(bag) for bag in bags])))
    flat = np.concatenate(weights).astype(np.float32)
    return Bags.of(ptr, np.concatenate(bags).astype(np.int32), flat, rows)


def table_of(rows, seed=1):
    table = kernels.padded(rows, DIM)
    table[:, :DIM] = np.random.default_rng(seed).normal(size=(rows, DIM))
    return table


class Sgd:
    """Two threads' ranges, one after the other."""

    def __init__(self):
        self.lent = 0

    def make_trained(self, n):
        self.lent += 1
        return (kernels.padded(n, DIM),)

    def give_trained(self, arrays):
        self.lent -= len(arrays)

    def in_threads(self, function, rows, *arrays):
        middle = len(rows) // 2
        for part in (slice(0, middle), slice(middle, None)):
            function(rows[part], *(array[part] for array in arrays))


@pytest.mark.parametrize("build", kernels.builds_available())
@pytest.mark.parametrize("weighted", [False, True])
def test_private_rows_begin_as_means_and_teach_each_row_what_they_learnt(build, weighted):
    k = kernels.load(build)
    bags, table = bags_of(), table_of(len(RARE) + 4)
    weights = bags.weights if weighted else None
    words, begins = np.array([2, 0, 3], np.int32), kernels.padded(3, DIM)
    expected = table[:, :DIM].astype(float)
    k.open_private(table, words, bags.ptr, bags.rows, begins, len(RARE), weights)
    for i, word in enumerate(words):
        shares = WEIGHTS[word] if weighted else np.ones(len(BAGS[word]))
        mean = np.average(expected[BAGS[word]], axis=0, weights=shares)
        np.testing.assert_allclose(table[len(RARE) + word, :DIM], mean, atol=1e-5)
        np.testing.assert_array_equal(begins[i], table[len(RARE) + word])
        expected[len(RARE) + word] = mean
    learnt = np.random.default_rng(2).normal(size=(4, DIM)).astype(np.float32)
    table[len(RARE) :, :DIM] += learnt
    k.close_private(table, words, bags.ptr, bags.rows, begins, len(RARE))
    for word in words:
        for row in BAGS[word]:
            expected[row] += learnt[word]
    np.testing.assert_allclose(table[: len(RARE), :DIM], expected[: len(RARE)], atol=1e-5)
    assert not table[:, DIM:].any()


def test_misfits_of_private_rows_are_refused():
    bags, table = bags_of(), table_of(len(RARE) + 4)
    one, begins = np.array([0], np.int32), kernels.padded(1, DIM)
    own = bags.ptr, bags.rows
    with pytest.raises(ValueError, match="a private row for each of 4 words"):
        kernels.open_private(table, one, *own, begins, len(RARE) + 1)
    with pytest.raises(ValueError, match=r"bag_rows must lie in 0\.\.7"):
        kernels.open_private(table, one, *own, begins, len(RARE) - 1)
    with pytest.raises(ValueError, match=r"words must lie in 0\.\.3"):
        kernels.close_private(table, one + 4, *own, begins, len(RARE))
    with pytest.raises(ValueError, match="a row for each of 1 words"):
        kernels.close_private(table, one, *own, begins[:0], len(RARE))
    with pytest.raises(ValueError, match="weights must be as many"):
        kernels.open_private(table, one, *own, begins, len(RARE), np.ones(3, np.float32))


def test_bags_with_private_rows_have_the_means_of_whole_bags():
    private, table = PrivateRows.of(bags_of(), RARE), table_of(len(RARE) + 4)
    words, begins = np.array([2, 3], np.int32), kernels.padded(2, DIM)
    assert np.flatnonzero(np.diff(private.ptr)).tolist() == words.tolist()  # of several rare rows
    kernels.open_private(
        table, words, private.ptr, private.rows, begins, private.row_num, private.weights
    )
    means = np.empty((8, DIM), np.float32)
    bags = private.bags
    kernels.bag_means(table, bags.ptr, bags.rows, means, bags.weights)
    np.testing.assert_allclose(means[4:], means[:4], atol=1e-5)
    sizes = np.diff(bags.ptr).tolist()
    assert sizes == [4, 2, 5, 3, 4, 2, 3, 2]  # a private row in the place of three, and of two
    assert [len(RARE) + 2, len(RARE) + 3] == bags.rows[bags.rows >= len(RARE)].tolist()


def test_rows_of_one_word_each_learn_through_private_rows_what_they_learn_alone():
    """Rare rows are shared by no two words, so no word lacks anything while a run lasts."""
    rng = np.random.default_rng(4)
    words, own = 12, 5  # each with a row that all have, and so many of its own
    bags = [[0, *range(1 + own * w, 1 + own * (w + 1))] for w in range(words)]
    weights = [[1, 2, 1, 1, 3, 1]] * words
    rows = 1 + own * words
    rare = np.arange(rows) > 0
    whole = bags_of(bags, weights, rows)
    tokens = rng.integers(words, size=600).astype(np.int32)
    tokens[::50] = -1
    targets = np.flatnonzero((tokens >= 0) & (rng.random(600) < 0.5)).astype(np.int32)
    windows = Windows(tokens, targets, tokens[targets])
    noise = rng.integers(words, size=64).astype(np.int32)
    trained = []
    for private in (None, PrivateRows.of(whole, rare)):
        inputs, outputs = table_of(rows + words) * np.float32(0.1), kernels.padded(words, DIM)
        aligned = kernels.padded(*inputs.shape)
        aligned[:] = inputs
        used, of, run = windows, whole, None
        if private is not None:
            sgd, table = Sgd(), SimpleNamespace(local=(aligned,))
            used, run = private.run(sgd, table, 3, 1, 4, windows)
            of = run.bags
            run.open()
        kernels.train_words(
            aligned, outputs, DIM, used.tokens, of.ptr, of.rows, noise, np.zeros(0, np.float32),
            window=3, negatives=3, lr_start=0.1, lr_stop=0.1, seed=4,
            targets=(used.targets, used.words), weights=of.weights,
        )  # fmt: skip
        if run is not None:
            assert (used.tokens >= words).sum() > 300
            run.close()
            assert sgd.lent == 0
        trained.append((aligned[:rows, :DIM].copy(), outputs.copy()))
    np.testing.assert_allclose(trained[1][0], trained[0][0], atol=1e-5)
    np.testing.assert_allclose(trained[1][1], trained[0][1], atol=1e-5)
    start = table_of(rows + words)[:rows, :DIM] * np.float32(0.1)
    assert (np.abs(trained[0][0] - start).max(1) > 1e-3).all()


@pytest.mark.parametrize("runs", [1, 2])
def test_only_words_that_come_often_enough_near_targets_are_opened(runs):
    private, table = PrivateRows.of(bags_of(), RARE), table_of(len(RARE) + 4)
    often = PLACES_LEAST * runs
    # Word 3 too seldom near the target; far from it, whatever is there is not trained.
    near = [2] * often + [3] * (often - 1)
    tokens = np.array([*near, -1, 0, *([1] * 2 * often), *([3] * 50)], np.int32)
    windows = Windows(tokens, np.array([2 * often], np.int32), tokens[[2 * often]])
    used, run = private.run(Sgd(), SimpleNamespace(local=(table,)), 2 * often, runs, 4, windows)
    assert used.tokens[: 2 * often + 1].tolist() == [6] * often + near[often:] + [-1, 0]
    assert used.words is windows.words
    before = table.copy()
    run.open()
    changed = np.flatnonzero((table != before).any(1)).tolist()
    assert changed == [len(RARE) + 2]
    run.close()
    np.testing.assert_array_equal(table[: len(RARE)], before[: len(RARE)])


def test_private_rows_are_of_several_workers_cbow_with_plain_steps_of_ngrams():
    grams = {"minn": 3, "maxn": 6}
    of = WordVectorSettings
    assert private_num(of(model="cbow", **grams), 2, 50) == 50
    assert private_num(of(model="cbow", **grams), 1, 50) == 0
    assert private_num(of(model="skipgram", **grams), 2, 50) == 0
    assert private_num(of(model="cbow", minn=0, maxn=0), 2, 50) == 0
    assert private_num(of(model="cbow", optimizer="adagrad", **grams), 2, 50) == 0


def test_turns_of_small_and_of_large_checkouts():
    assert [turns_of_grams(n) for n in (0, 199, 400, 3_200, 31_999)] == [0, 0, 2, 16, 16]
    assert [turns_of_grams(n) for n in (40_000, 128_000, 1_000_000)] == [20, 64, 64]
