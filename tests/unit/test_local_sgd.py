"""models.local_sgd: rows pulled ahead of pushes, layouts and pools of arrays, shares of deltas."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cases import examples
from hypothesis import given
from hypothesis import strategies as st

from snailps import JobSettings, kernels
from snailps.api.worker import Block
from snailps.data.vocabulary import Vocabulary
from snailps.models.classifier.model import Classifier, pack_summary
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.local_sgd import (
    ArrayPool,
    Contention,
    LocalSgd,
    RowLayout,
    share_of_delta,
)
from snailps.models.text_model import TextModel
from snailps.models.word_vectors import WordVectors

DIM = 3
ROWS = 12


# --- rows pulled ahead --------------------------------------------------------------------------


@dataclass(eq=False)
class Request:
    """A pull or a push, as the network below sees it."""

    network: Any
    table: str
    keys: np.ndarray
    rows: np.ndarray
    has: frozenset = frozenset()
    pushed: np.ndarray | None = None

    def wait(self):
        if self.pushed is not None:
            self.network.serve_until(self)
        return self.rows


class Network:
    """The slowest there is: a pull is served when it is called, a push when it is waited for.

    To be mixed into a worker.  Keeps the rows of all tables, and says when a push's array is not
    what was pushed although its values are still needed.
    """

    def open(self):
        self.stored = {}
        self.waiting, self.served = [], []

    def table(self, name):
        return self.stored.setdefault(name, np.zeros((ROWS, DIM), np.float32))

    def pull_async(self, table, keys, out=None, *, state=False, ahead=False):
        rows = np.empty((len(keys), DIM), np.float32) if out is None else out
        if not ahead:
            self.serve(len(self.waiting))
        rows[:] = self.table(table)[keys.astype(int)]
        return Request(self, table, keys, rows, has=frozenset(self.served))

    def push_async(self, table, keys, values, *, state=False):
        push = Request(self, table, keys, values, pushed=values.copy())
        self.waiting.append(push)
        return push

    def serve(self, count):
        """Serves the oldest pushes."""
        for push in self.waiting[:count]:
            np.testing.assert_array_equal(push.rows, push.pushed)
            self.table(push.table)[push.keys.astype(int)] += push.pushed
        self.served += self.waiting[:count]
        del self.waiting[:count]

    def serve_until(self, push):
        if push in self.waiting:
            self.serve(self.waiting.index(push) + 1)

    def correct(self, pull, push):
        np.testing.assert_array_equal(push.rows, push.pushed)
        if push in pull.has:
            return 0
        for at, key in enumerate(pull.keys.tolist()):
            pull.rows[at] += push.pushed[push.keys == key].sum(axis=0)
        return int(np.isin(pull.keys, push.keys).sum())


class Adding(Network, TextModel):
    """Adds a number to each row of a block."""

    def setup(self):
        self.open()
        self.sgd = LocalSgd(self, RowLayout.padded(DIM))


TABLES = ("a", "b")
BLOCKS = st.tuples(
    st.sets(st.integers(0, ROWS - 1)),  # its keys; none: nothing to train on
    st.sampled_from(["at once", "while it trains", "at the end"]),  # when the next one prefetches
    st.integers(0, 4),  # pushes that arrive by themselves
)


@examples(40)
@given(st.lists(BLOCKS, min_size=3, max_size=9))
def test_rows_prefetched_ahead_of_any_push_hold_all_own_pushes(blocks):
    model = Adding(JobSettings())
    model.setup()
    keys = [np.array(sorted(block[0]), np.uint64) for block in blocks]
    coming = []  # copies of the next block

    def prefetch(number, when, now):
        if now == when and number < len(keys):
            some = len(keys[number])
            coming.append(model.sgd.pull(dict.fromkeys(TABLES, keys[number])) if some else None)

    expected = np.zeros((ROWS, DIM), np.float32)
    prefetch(0, "", "")
    for number, (_, when, arriving) in enumerate(blocks):
        (copies,) = coming
        coming.clear()
        model.serve(arriving)
        prefetch(number + 1, when, "at once")
        local = model.sgd.load(copies) if copies else {}
        for (rows,) in local.values():
            np.testing.assert_array_equal(rows[:, :DIM], expected[keys[number].astype(int)])
            rows[:, :DIM] += number + 1
        prefetch(number + 1, when, "while it trains")
        if copies:
            expected[keys[number].astype(int)] += number + 1
            model.sgd.push(copies)
        prefetch(number + 1, when, "at the end")
    model.finish()
    for name in TABLES:
        np.testing.assert_array_equal(model.table(name), expected)
    assert not model.waiting


def test_arrays_of_many_blocks_are_those_of_four():
    """Two blocks' deltas on their way, one block at work, one prefetched."""
    model = Adding(JobSettings())
    model.setup()
    keys = np.arange(ROWS, dtype=np.uint64)
    seen = set()
    coming = model.sgd.pull({"a": keys})
    for _ in range(20):
        copies, coming = coming, model.sgd.pull({"a": keys})
        model.sgd.load(copies)
        seen.add(copies.bases["a"].ctypes.data)
        model.sgd.push(copies)
    model.sgd.load(coming)
    model.sgd.push(coming)
    model.finish()
    assert len(seen) <= 4
    assert not model.sgd.packed._taken


class Exchanging(Network, Classifier):
    """A classifier whose lines add 1 to each label row."""

    seen: list

    def _train_lines(self, batch, inputs, outputs, span, rates, seed):
        self.seen.append(outputs[:, :DIM].copy())
        outputs[:, :DIM] += 1
        self.serve(len(self.seen) % 3)
        return 1.0, span[1] - span[0]


def test_label_rows_exchanged_ahead_of_any_push_hold_all_own_pushes():
    words = Vocabulary([b"word", b"</s>"], np.array([9, 9]), 18)
    labels = Vocabulary([b"__label__a", b"__label__b"], np.array([5, 4]), 18)
    model = Exchanging(ClassifierSettings(dim=DIM, consistency="ssp"))
    model.open()
    model.seen = []
    model.workers = 2
    model.summary = pack_summary(words, labels)
    model.setup()
    data = b"__label__a word\n__label__b word\n" * 500
    blocks = [Block(n, "text", 0, len(data), 0, 7, (0.0, 0.5), lambda: data) for n in range(3)]
    for block in blocks:
        block.prepared = model.prepare(block)
        model.train(block)
    model.finish()
    assert len(model.seen) == 3 * (1000 // 64)
    for number, rows in enumerate(model.seen):
        np.testing.assert_array_equal(rows, np.full((2, DIM), number, np.float32))
    np.testing.assert_array_equal(model.table("output")[:2], len(model.seen))
    assert not model.waiting


# --- pools ------------------------------------------------------------------------------------


class Maker:
    """Makes arrays and remembers their lengths."""

    def __init__(self):
        self.made = []

    def __call__(self, n):
        self.made.append(n)
        return np.zeros((n, 2), np.float32)


def test_pool_reuses_an_array_given_back():
    pool = ArrayPool(maker := Maker())
    first = pool.take(80)
    assert first.shape == (80, 2)
    where = first.ctypes.data
    pool.give(first)
    for n in (80, 10, 90, 1):  # 90: an array has an eighth more than was asked for
        again = pool.take(n)
        assert (len(again), again.ctypes.data) == (n, where)
        pool.give(again)
    assert maker.made == [90]


def test_pool_takes_the_smallest_that_fits():
    pool = ArrayPool(Maker())
    lent = {n: pool.take(n) for n in (800, 80, 8000)}
    where = {n: array.ctypes.data for n, array in lent.items()}
    for array in lent.values():
        pool.give(array)
    assert pool.take(85).ctypes.data == where[80]
    assert pool.take(85).ctypes.data == where[800]
    assert pool.take(85).ctypes.data == where[8000]


def test_pool_drops_arrays_that_are_too_small():
    pool = ArrayPool(maker := Maker())
    for n in (8, 80, 800, 8000):
        pool.give(pool.take(n))
    assert maker.made == [9, 90, 900, 9000]
    assert len(pool._free) == 1


def test_pool_of_padded_arrays_gives_rows_that_kernels_take():
    pool = ArrayPool(lambda n: kernels.padded(n, 3))
    rows = pool.take(0)
    assert rows.shape == (0, kernels.PAD)
    pool.give(rows)
    assert pool.take(5).ctypes.data % 64 == 0


def test_pool_has_no_array_taken_twice():
    pool = ArrayPool(Maker())
    lent = [pool.take(10) for _ in range(5)]
    for number, array in enumerate(lent):
        array[:] = number
    assert [array[0, 0] for array in lent] == [0, 1, 2, 3, 4]
    for array in lent:
        pool.give(array)
    assert pool._taken == {}


@pytest.mark.parametrize(
    "layout",
    [
        RowLayout(1, 3, 1),
        RowLayout(16, 2, 16),
        RowLayout.padded(5, 3),
        RowLayout.padded(5, 1),
        RowLayout.padded(5, 2, split=True),
        RowLayout.padded(16, 1, split=True),
    ],
)
def test_layout_loads_rows_and_subtracts_them(layout):
    packed = np.random.default_rng(1).normal(size=(4, layout.width)).astype(np.float32)
    trained = [layout.make(4) for _ in range(layout.arrays)]
    for array in trained:
        array[:] = 9  # left from before
    layout.load(packed, *trained)
    parts = np.concatenate(trained, axis=1).reshape(4, layout.parts, layout.stride)
    np.testing.assert_array_equal(parts[:, :, : layout.dim].reshape(4, -1), packed)
    for array in trained:
        array *= 3
    expected = packed * 3 - packed
    layout.subtract(packed, *trained)
    np.testing.assert_array_equal(packed, expected)


def floats(*values):
    return np.array(values, np.float32)


def test_share_of_delta_is_all_for_rare_rows_and_a_mean_for_hot_ones():
    own = floats(0, 1e-6, 50, 1e6)
    share = share_of_delta(own, 3 * own)
    assert share[:2] == pytest.approx([1, 1], abs=2e-3)
    assert share[2:] == pytest.approx([0.25, 0.25])
    assert share_of_delta(floats(0.7, 20), floats(0, 0)) == pytest.approx([1, 1])


@given(st.floats(1e-2, 5), st.lists(st.floats(0, 5), max_size=7))
def test_share_of_delta_makes_the_sum_what_taking_turns_gives(own, others):
    """On a bowl: each worker goes 1 - exp(-steps) of the way from one start."""
    steps = [own, *others]
    total = sum(steps)
    together = sum(
        float(share_of_delta(floats(mine), floats(total - mine))[0]) * -math.expm1(-mine)
        for mine in steps
    )
    assert together == pytest.approx(-math.expm1(-total), rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("workers", [2, 5])
def test_contention_with_a_matrix_makes_the_sum_what_taking_turns_gives(workers):
    """On a bowl that is steep in some directions and flat in others; a rare row among the rows."""
    rng = np.random.default_rng(5)
    directions = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    curvatures = np.array([8, 1, 0.3, 0.1, 0.01, 0])
    curvature = (directions * curvatures) @ directions.T
    start = rng.normal(size=(3, 6))
    own = floats(0.01, 1, 4)

    def way(steps):
        """What `steps` change of each row: it goes to 0 along each direction at its own pace."""
        left = np.expm1(-np.outer(steps, curvatures))
        return ((start @ directions) * left) @ directions.T

    deltas = way(own).astype(np.float32)
    Contention(own, own * np.float32(workers - 1), curvature.astype(np.float32)).scale(deltas)
    np.testing.assert_allclose(deltas * workers, way(own * workers), rtol=0.05, atol=2e-3)


def test_contention_without_other_workers_leaves_deltas_alone():
    deltas = np.ones((2, 3), np.float32)
    for curvature in (2.0, np.eye(3, dtype=np.float32)):
        Contention(floats(5, 50), floats(0, 0), curvature).scale(deltas)
        np.testing.assert_allclose(deltas, 1, rtol=1e-6)


@pytest.mark.parametrize("dim", [3, 100])  # NumPy raises for some sizes and not for others
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_contention_of_rows_that_diverged_leaves_deltas_alone(dim, value):
    deltas = np.ones((2, dim), np.float32)
    for curvature in (value, np.full((dim, dim), value, np.float32)):
        Contention(floats(5, 50), floats(10, 100), curvature).scale(deltas)
        np.testing.assert_array_equal(deltas, 1)


def test_rows_that_others_move_are_pulled_again_before_training():
    model = Adding(JobSettings())
    model.setup()
    keys = np.array([1, 4, 7], np.uint64)
    copies = model.sgd.pull({"a": keys}, {"a": np.array([0, 2])})
    model.table("a")[:] += 5  # another worker's push
    ((local,),) = model.sgd.load(copies).values()
    np.testing.assert_array_equal(local[:, 0], [5, 0, 5])
    local[:, :DIM] += 1
    model.sgd.push(copies)
    model.finish()
    np.testing.assert_array_equal(model.table("a")[keys.astype(int), 0], 6)


@pytest.mark.parametrize(
    ("model", "total", "workers", "expected"),
    [
        (TextModel, 1 << 20, 1, (1 << 20) // 10),
        (TextModel, 1 << 30, 1, 6 << 20),
        (TextModel, 100 << 20, 8, (100 << 20) // 320),
        (WordVectors, 100 << 20, 8, (100 << 20) // 640),
        (WordVectors, 30 << 20, 8, 64 << 10),
        (WordVectors, 1 << 20, 8, (1 << 20) // 320),
        (WordVectors, 1000, 8, 512),
    ],
)
def test_block_bytes_are_a_share_of_an_epoch_not_too_small(model, total, workers, expected):
    settings = model.Settings(consistency="ssp", staleness=2)  # word vectors do not rotate then
    assert model.block_bytes(settings, total, workers) == expected


@pytest.mark.parametrize(
    ("total", "workers", "expected"),
    [
        (30 << 20, 1, (30 << 20) // 16),
        (100 << 20, 1, 3 << 20),
        (30 << 20, 2, (30 << 20) // 32),
        (100 << 20, 8, (100 << 20) // 128),
        (1000, 8, 512),
        (1 << 40, 8, 3 << 20),
    ],
)
def test_slices_of_word_vectors_are_a_sixteenth_of_an_epoch_by_the_workers(
    total, workers, expected
):
    assert WordVectors.block_bytes(WordVectors.Settings(), total, workers) == expected
