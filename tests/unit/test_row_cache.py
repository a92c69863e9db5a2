"""models.row_cache: cached rows equal those that every block would pull and push."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cases import examples
from hypothesis import given
from hypothesis import strategies as st

from snailps.models.local_sgd import LocalSgd, RowLayout
from snailps.models.row_cache import IdPlaces, KeyPlaces, RowCache

DIM = 3
IDS = 14
FIRST = np.uint64(100)


@dataclass(eq=False)
class Push:
    """Arrives when it is waited for, and looks whether its array was left alone until then."""

    store: Any
    at: np.ndarray
    values: np.ndarray
    pushed: np.ndarray

    def wait(self):
        np.testing.assert_array_equal(self.values, self.pushed)
        if self in self.store.waiting:
            self.store.waiting.remove(self)
            self.store.rows[self.at] += self.pushed
        return self.values


@dataclass(eq=False)
class Pull:
    """Served when it was called, before all pushes that nobody has waited for."""

    rows: np.ndarray

    def wait(self):
        return self.rows


class Store:
    """A worker on the slowest possible network; records which keys were pulled."""

    threads = 2

    def __init__(self):
        self.rows = np.random.default_rng(0).normal(size=(IDS, DIM)).astype(np.float32)
        self.pulled: list[int] = []
        self.waiting: list[Push] = []

    def pull_async(self, table, keys, out, *, state, ahead):
        assert ahead
        self.pulled += (keys - FIRST).tolist()
        out[:] = self.rows[keys - FIRST]
        return Pull(out)

    def push_async(self, table, keys, values, *, state):
        assert len(set(keys.tolist())) == len(keys)
        self.waiting.append(Push(self, keys - FIRST, values, values.copy()))
        return self.waiting[-1]


def keys_of(ids):
    return np.asarray(ids).astype(np.uint64) + FIRST


class Model:
    """A model with a cache of one table."""

    def __init__(self, room, kind="ids", push_blocks=1):
        self.store = Store()
        self.sgd = LocalSgd(self.store, RowLayout.padded(DIM))
        self.ids = kind == "ids"
        self.places = IdPlaces(IDS, room, keys_of) if self.ids else KeyPlaces(room)
        self.cache = RowCache(self.sgd, "a", self.places, push_blocks=push_blocks)

    def ask(self, ids):
        """The cached rows of a block and the places of its ids; None if there is no room."""
        ids = np.array(ids, np.int32)
        parts = [ids] if self.ids else [keys_of(part) for part in np.array_split(ids, 2)]
        found = [self.cache.find(part) for part in parts]
        cached = self.cache.ask(found)
        return cached and (cached, np.concatenate([one.places for one in found]))

    def train(self, asked, by, expected=None):
        """Adds a number to a block's rows, which must be what is `expected` before."""
        cached, places = asked
        rows = self.cache.ready(cached)
        if expected is not None:
            np.testing.assert_allclose(rows[places, :DIM], expected, atol=1e-5)
        assert not rows[:, DIM:].any()
        rows[places, :DIM] += by
        if cached.closes:
            self.push()

    def push(self):
        if self.cache.changed:
            self.sgd.push_rows({"a": self.cache.changes()})


blocks = st.lists(st.lists(st.integers(0, IDS - 1), max_size=8, unique=True), max_size=12)


@examples(60)
@given(blocks, st.integers(1, IDS), st.sampled_from([("ids", 1), ("ids", 3), ("keys", 4)]))
def test_cached_rows_at_every_block_equal_the_store_whatever_room_there_is(blocks, room, kind):
    model = Model(room if kind[0] == "ids" else IDS, *kind)
    expected = model.store.rows.copy()
    coming = model.ask(blocks[0]) if blocks else None
    for number, ids in enumerate(blocks):
        asked, coming = coming, model.ask(blocks[number + 1]) if number + 1 < len(blocks) else None
        model.train(asked, number + 1, expected[ids])
        expected[ids] += number + 1
        # Those of three rounds and what else there is room for; an eighth more where it grew.
        assert model.places.room <= max(room, 3 * 8 * kind[1] + 3) or kind[0] == "keys"
    model.push()
    model.sgd.close()
    np.testing.assert_allclose(model.store.rows, expected, atol=1e-4)
    assert not model.sgd.packed._taken


@pytest.mark.parametrize("kind", ["ids", "keys"])
def test_ask_for_a_cached_row_pulls_nothing(kind):
    model = Model(IDS, kind)
    for ids in ([1, 2, 3], [3, 4, 1], [], [2, 4, 5]):
        model.train(model.ask(ids), 1)
    assert model.store.pulled == [1, 2, 3, 4, 5]


def test_changes_of_several_blocks_have_each_row_once():
    model = Model(IDS, push_blocks=3)
    before = model.store.rows.copy()
    for ids in ([0, 1], [1, 2], [2, 3]):
        assert not model.store.waiting
        model.train(model.ask(ids), 1)
    (push,) = model.store.waiting
    assert sorted(push.at.tolist()) == [0, 1, 2, 3]
    push.wait()
    changed = (model.store.rows - before)[:4, 0]
    np.testing.assert_allclose(changed, [1, 2, 2, 1], rtol=1e-6)


def test_ask_without_room_evicts_ids_that_three_rounds_did_not_use_and_pulls_them_again():
    model = Model(5)
    for ids in ([0, 1], [2, 3], [2, 4], [2, 5], [0, 2]):
        model.train(model.ask(ids), 1)
    # Room for five: 5 takes the place of 0 or 1, both are evicted, and 0 is pulled again.
    assert model.store.pulled == [0, 1, 2, 3, 4, 5, 0]
    assert model.places.room == 5


def test_ask_for_more_keys_than_there_is_room_for_gives_nothing():
    model = Model(5, "keys")
    assert model.ask(range(5)) is not None
    assert model.ask(range(6)) is None


@pytest.mark.parametrize("room", [0, 1])
def test_ask_for_more_ids_than_there_is_room_for_grows(room):
    model = Model(room)
    model.train(model.ask(range(8)), 1, model.store.rows[:8])
