"""models.copied_rows: rows pulled ahead of pushes, pushed apart, or pulled again."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cases import examples
from hypothesis import given
from hypothesis import strategies as st

from snailps import JobSettings
from snailps.data.vocabulary import Vocabulary
from snailps.models.classifier import model as classifier
from snailps.models.classifier.model import Classifier, pack_summary
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.copied_rows import CopiedRows
from snailps.models.local_sgd import LocalSgd, RowLayout
from snailps.models.text_model import TextModel
from tests.support.blocks import held_block

DIM = 3
ROWS = 12


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


TABLES = ("a", "b")


class Adding(Network, TextModel):
    """Adds a number to each row of a block."""

    def setup(self):
        self.open()
        self.sgd = LocalSgd(self, RowLayout.padded(DIM))
        self.rows = tuple(CopiedRows(self.sgd, name) for name in TABLES)

    def ask(self, keys):
        """The same keys of each table."""
        return [rows.ask([rows.find(keys)]) for rows in self.rows]

    def ready(self, asked):
        for rows, of_table in zip(self.rows, asked, strict=True):
            (trained,) = rows.ready(of_table)
            yield trained

    def close(self, asked):
        for rows, of_table in zip(self.rows, asked, strict=True):
            assert rows.close(of_table)


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
            coming.append(model.ask(keys[number]) if len(keys[number]) else None)

    expected = np.zeros((ROWS, DIM), np.float32)
    prefetch(0, "", "")
    for number, (_, when, arriving) in enumerate(blocks):
        (copies,) = coming
        coming.clear()
        model.serve(arriving)
        prefetch(number + 1, when, "at once")
        for rows in model.ready(copies) if copies else ():
            np.testing.assert_array_equal(rows[:, :DIM], expected[keys[number].astype(int)])
            rows[:, :DIM] += number + 1
        prefetch(number + 1, when, "while it trains")
        if copies:
            expected[keys[number].astype(int)] += number + 1
            model.close(copies)
        prefetch(number + 1, when, "at the end")
    model.finish()
    for name in TABLES:
        np.testing.assert_array_equal(model.table(name), expected)
    assert not model.waiting


@pytest.mark.parametrize("returned", [1, 2, 5])
def test_block_prepared_before_others_that_are_trained_first_holds_their_pushes(returned):
    """With `ssp` a worker trains returned blocks at once, and then the one that it prepared."""
    model = Adding(JobSettings())
    model.setup()
    keys = np.arange(ROWS, dtype=np.uint64)
    at_work = model.ask(keys)
    prepared = model.ask(keys)
    for number in range(1 + returned):
        for rows in model.ready(at_work):
            np.testing.assert_array_equal(rows[:, :DIM], number)
            rows[:, :DIM] += 1
        model.close(at_work)
        at_work = model.ask(keys) if number < returned else prepared
    for rows in model.ready(prepared):
        np.testing.assert_array_equal(rows[:, :DIM], 1 + returned)
    model.close(prepared)
    model.finish()
    assert not model.sgd.packed.taken


def test_block_that_is_dropped_holds_no_array():
    model = Adding(JobSettings())
    model.setup()
    model.rows = model.rows[:1]
    keys = np.arange(ROWS, dtype=np.uint64)
    dropped = model.ask(keys)
    for _ in range(3):
        asked = model.ask(keys)
        list(model.ready(asked))
        model.close(asked)
    pushes = model.rows[0]._pushes
    assert len(pushes) == 3
    del dropped
    asked = model.ask(keys)
    list(model.ready(asked))
    model.close(asked)
    assert len(pushes) <= 2
    model.finish()


def test_arrays_of_many_blocks_are_those_of_four():
    """Two blocks' deltas on their way, one block at work, one prefetched."""
    model = Adding(JobSettings())
    model.setup()
    keys = np.arange(ROWS, dtype=np.uint64)
    seen = set()
    model.rows = model.rows[:1]
    coming = model.ask(keys)
    for _ in range(20):
        copies, coming = coming, model.ask(keys)
        list(model.ready(copies))
        seen.add(copies[0].base.ctypes.data)
        model.close(copies)
    list(model.ready(coming))
    model.close(coming)
    model.finish()
    assert len(seen) <= 4
    assert not model.sgd.packed.taken
    assert not model.sgd._trained.taken


class Exchanging(Network, Classifier):
    """A classifier whose lines add 1 to each label row."""

    seen: list

    def _train_lines(self, batch, inputs, outputs, span, rates, seed):
        self.seen.append(outputs[:, :DIM].copy())
        outputs[:, :DIM] += 1
        self.serve(len(self.seen) % 3)
        return 1.0, span[1] - span[0]


def exchanged(names, data, blocks=1, **settings):
    """A model of these labels that has trained some blocks of `data`."""
    words = Vocabulary([b"word", b"</s>"], np.array([9, 9]), 18)
    model = Exchanging(ClassifierSettings(dim=DIM, consistency="ssp", **settings))
    model.open()
    model.seen, model.workers = [], 2
    model.summary = pack_summary(words, Vocabulary(names, np.full(len(names), 1), len(names)))
    model.setup()
    for number in range(blocks):
        block = held_block(data, number)
        block.prepared = model.prepare(block)
        model.train(block)
    return model


def test_label_rows_exchanged_ahead_of_any_push_hold_all_own_pushes():
    data = b"__label__a word\n__label__b word\n" * 500
    model = exchanged([b"__label__a", b"__label__b"], data, blocks=3)
    model.finish()
    assert len(model.seen) == 3 * (1000 // 64 + 1)
    for number, rows in enumerate(model.seen):
        np.testing.assert_array_equal(rows, np.full((2, DIM), number, np.float32))
    np.testing.assert_array_equal(model.table("output")[:2], len(model.seen))
    assert not model.waiting


@pytest.mark.parametrize(("loss", "pulls"), [("ova", 9), ("ns", 3)])
def test_sampled_label_rows_are_exchanged_when_most_were_touched(monkeypatch, loss, pulls):
    monkeypatch.setattr(classifier, "EXCHANGE_LINES", 1)
    names = [b"__label__%d" % number for number in range(9)]
    data = b"".join(b"%s word\n" % name for name in names)
    assert len(exchanged(names, data, loss=loss, negatives=2).seen) == pulls


def test_rows_that_others_move_are_pulled_again_before_training():
    model = Adding(JobSettings())
    model.setup()
    keys = np.array([1, 4, 7], np.uint64)
    of_a, _ = model.rows
    copies = of_a.ask([of_a.find(keys)], moving=np.array([0, 2]))
    model.table("a")[:] += 5  # another worker's push
    (local,) = of_a.ready(copies)
    np.testing.assert_array_equal(local[:, 0], [5, 0, 5])
    local[:, :DIM] += 1
    of_a.close(copies)
    model.finish()
    np.testing.assert_array_equal(model.table("a")[keys.astype(int), 0], 6)
