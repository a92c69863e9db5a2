"""models.kept_rows: rows stay what they would be if every block pulled and pushed them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from snailps.models.kept_rows import KeptRows

DIM = 3
IDS = 14
ROW_BYTES = 16 * 4


@dataclass(eq=False)
class Push:
    """A push that looks, when it is waited for, whether its array was left alone."""

    values: np.ndarray
    pushed: np.ndarray

    def wait(self):
        np.testing.assert_array_equal(self.values, self.pushed)
        return self.values


@dataclass(eq=False)
class Pull:
    """A pull, served when it was called: after all pushes called before."""

    rows: np.ndarray

    def wait(self):
        return self.rows


class Store:
    """What a worker sees of a table; notes which keys were pulled."""

    def __init__(self, seed=0):
        self.rows = np.random.default_rng(seed).normal(size=(100 + IDS, DIM)).astype(np.float32)
        self.pulled: list[Any] = []

    def pull_async(self, table, keys):
        self.pulled += keys.tolist()
        return Pull(self.rows[keys.astype(int)])

    def push_async(self, table, keys, values):
        np.add.at(self.rows, keys.astype(int), values)
        return Push(values, values.copy())


def kept_rows(store, bytes_max):
    return KeptRows(store, "a", DIM, IDS, lambda function, *arrays: function(*arrays), bytes_max)


def ask(kept, ids):
    ids = np.array(ids, np.int32)
    return kept.ask(ids, ids.astype(np.uint64) + np.uint64(100))


blocks = st.lists(st.lists(st.integers(0, IDS - 1), max_size=8, unique=True), max_size=12)


@limits(max_examples=300, deadline=None)
@given(blocks, st.integers(1, IDS))
def test_kept_rows_at_every_block_equal_the_store_whatever_room_there_is(blocks, room):
    store = Store()
    kept = kept_rows(store, room * ROW_BYTES)
    coming = ask(kept, blocks[0]) if blocks else None
    for number, ids in enumerate(blocks):
        lent, coming = coming, ask(kept, blocks[number + 1]) if number + 1 < len(blocks) else None
        rows = kept.lend(lent)
        np.testing.assert_allclose(rows[:, :DIM], store.rows[np.array(ids, int) + 100], atol=1e-5)
        rows[:, :DIM] += number + 1
        before = store.rows.copy()
        kept.settle(lent)
        changed = np.flatnonzero((store.rows != before).any(1))
        assert sorted(changed - 100) == sorted(ids)
        # Those of two blocks and what else there is room for; an eighth more where it grew.
        assert np.count_nonzero(kept._id_at >= 0) <= max(room, 2 * 8 + 2)
    kept.wait()


def test_ask_for_a_row_that_is_kept_pulls_nothing():
    store = Store()
    kept = kept_rows(store, IDS * ROW_BYTES)
    for ids in ([1, 2, 3], [3, 4, 1], [], [2, 4, 5]):
        lent = ask(kept, ids)
        kept.lend(lent)
        kept.settle(lent)
    assert [key - 100 for key in store.pulled] == [1, 2, 3, 4, 5]


def test_ask_without_room_forgets_rows_of_neither_block_and_pulls_them_again():
    store = Store()
    kept = kept_rows(store, 4 * ROW_BYTES)
    for ids in ([0, 1], [2, 3], [2, 4], [0, 2]):
        lent = ask(kept, ids)
        kept.lend(lent)[:, :DIM] += 1
        kept.settle(lent)
    # Room for four: 4 takes the place of 0 or 1, both are forgotten, and 0 is pulled anew.
    assert [key - 100 for key in store.pulled] == [0, 1, 2, 3, 4, 0]
    assert len(kept._id_at) == 4


@pytest.mark.parametrize("bytes_max", [0, ROW_BYTES])
def test_ask_for_more_than_fits_grows(bytes_max):
    kept = kept_rows(store := Store(), bytes_max)
    lent = ask(kept, range(8))
    np.testing.assert_array_equal(kept.lend(lent)[:, :DIM], store.rows[100:108])
