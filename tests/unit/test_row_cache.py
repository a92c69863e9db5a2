"""models.row_cache: rows stay what they would be if every block pulled and pushed them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cases import examples
from hypothesis import given
from hypothesis import strategies as st

from snailps.models.row_cache import RowCache

DIM = 3
IDS = 14
ROW_BYTES = 16 * 4
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
        self.store.rows[self.at] += self.pushed
        self.store.waiting.remove(self)


@dataclass(eq=False)
class Pull:
    """Served when it was called, before all pushes that nobody has waited for."""

    def wait(self):
        pass


class Store:
    """The slowest network there is round a table; notes which keys were pulled."""

    def __init__(self):
        self.rows = np.random.default_rng(0).normal(size=(IDS, DIM)).astype(np.float32)
        self.pulled: list[int] = []
        self.waiting: list[Push] = []

    def pull_async(self, table, keys, out, *, ahead):
        assert ahead
        self.pulled += (keys - FIRST).tolist()
        out[:] = self.rows[keys - FIRST]
        return Pull()

    def push_async(self, table, keys, values):
        self.waiting.append(Push(self, keys - FIRST, values, values.copy()))
        return self.waiting[-1]


def kept_rows(store, bytes_max):
    return RowCache(store, "a", DIM, IDS, lambda function, *arrays: function(*arrays), bytes_max)


def ask(kept, ids):
    ids = np.array(ids, np.int32)
    return kept.ask(ids, ids.astype(np.uint64) + FIRST)


blocks = st.lists(st.lists(st.integers(0, IDS - 1), max_size=8, unique=True), max_size=12)


@examples(60)
@given(blocks, st.integers(1, IDS))
def test_kept_rows_at_every_block_equal_the_store_whatever_room_there_is(blocks, room):
    store = Store()
    kept = kept_rows(store, room * ROW_BYTES)
    expected = store.rows.copy()
    coming = ask(kept, blocks[0]) if blocks else None
    for number, ids in enumerate(blocks):
        lent, coming = coming, ask(kept, blocks[number + 1]) if number + 1 < len(blocks) else None
        rows = kept.lend(lent)
        np.testing.assert_allclose(rows[:, :DIM], expected[ids], atol=1e-5)
        rows[:, :DIM] += number + 1
        expected[ids] += number + 1
        kept.settle(lent)
        # Those of three blocks and what else there is room for; an eighth more where it grew.
        assert len(kept._id_at) <= max(room, 3 * 8 + 3)
    kept.wait()
    np.testing.assert_allclose(store.rows, expected, atol=1e-4)


def test_ask_for_a_row_that_is_kept_pulls_nothing():
    store = Store()
    kept = kept_rows(store, IDS * ROW_BYTES)
    for ids in ([1, 2, 3], [3, 4, 1], [], [2, 4, 5]):
        lent = ask(kept, ids)
        kept.lend(lent)
        kept.settle(lent)
    assert store.pulled == [1, 2, 3, 4, 5]


def test_ask_without_room_forgets_rows_that_three_blocks_do_not_use_and_pulls_them_again():
    store = Store()
    kept = kept_rows(store, 5 * ROW_BYTES)
    for ids in ([0, 1], [2, 3], [2, 4], [2, 5], [0, 2]):
        lent = ask(kept, ids)
        kept.lend(lent)[:, :DIM] += 1
        kept.settle(lent)
    # Room for five: 5 takes the place of 0 or 1, both are forgotten, and 0 is pulled anew.
    assert store.pulled == [0, 1, 2, 3, 4, 5, 0]
    assert len(kept._id_at) == 5


@pytest.mark.parametrize("bytes_max", [0, ROW_BYTES])
def test_ask_for_more_than_fits_grows(bytes_max):
    kept = kept_rows(store := Store(), bytes_max)
    lent = ask(kept, range(8))
    np.testing.assert_array_equal(kept.lend(lent)[:, :DIM], store.rows[:8])
