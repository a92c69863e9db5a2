"""Checkpoints in bsp and in rounds: of one clock, and what follows has the same bits."""

import numpy as np
import pytest

from snailps import kernels
from snailps.errors import SnailError
from snailps.store._store import ShardStore

pytestmark = pytest.mark.limit(600)  # several clusters a test


def clocked_store():
    """A store with one table, at clock 0."""
    store = ShardStore(4, kernels.row_ops())
    store.own(range(4))
    store.add_table(1, 2, 0, 0, 0.0, 0, ())
    store.set_clock(0)
    return store


def contribute(store, clock, slot, value, slots=2):
    """Stages a value for key 7, and seals."""
    keys = np.array([7], np.uint64)
    store.stage(1, clock, slot, 10 + slot, keys, np.full((1, 2), value, np.float32))
    return store.seal(clock, slot, slots, 10 + slot)


def row(store):
    return store.pull(1, np.array([7], np.uint64))[0].tolist()


def test_frozen_clock_takes_seals_and_is_applied_when_it_thaws():
    store = clocked_store()
    assert store.freeze() == 0
    contribute(store, 0, 0, 1.0)
    contribute(store, 0, 1, 2.0)
    assert (store.clock_state()["clock"], row(store)) == (0, [0.0, 0.0])
    store.thaw()
    assert (store.clock_state()["clock"], row(store)) == (1, [3.0, 3.0])
    contribute(store, 1, 0, 1.0)
    contribute(store, 1, 1, 1.0)
    assert (store.clock_state()["clock"], row(store)) == (2, [5.0, 5.0])


@pytest.mark.parametrize("whole", ["after", "before"])
def test_clock_frozen_ahead_is_held_when_it_comes(whole):
    """... and comes at once where the present one became whole while that was held."""
    store = clocked_store()
    if whole == "after":
        store.freeze(1)
    else:
        store.freeze()
    for slot in (0, 1):
        contribute(store, 0, slot, 1.0)
    if whole == "before":
        assert store.waits_for() == "the checkpoint that clock 0 is held for"
        assert store.freeze(1) == 0
    assert (store.clock_state()["clock"], row(store)) == (1, [2.0, 2.0])
    for slot in (0, 1):
        contribute(store, 1, slot, 1.0)
    assert (store.clock_state()["clock"], row(store)) == (1, [2.0, 2.0])
    store.thaw()
    assert (store.clock_state()["clock"], row(store)) == (2, [4.0, 4.0])


def test_frozen_clock_that_lacks_a_slot_goes_on_as_ever_when_it_thaws():
    store = clocked_store()
    store.freeze()
    contribute(store, 0, 0, 1.0)
    store.thaw()
    assert store.clock_state()["clock"] == 0
    contribute(store, 0, 1, 1.0)
    assert (store.clock_state()["clock"], row(store)) == (1, [2.0, 2.0])
    store.thaw()  # nothing is held
    assert store.clock_state()["clock"] == 1


@pytest.mark.parametrize("clock", [2, 5])
def test_clock_that_is_far_off_cannot_be_frozen(clock):
    with pytest.raises(SnailError, match=f"clock {clock} cannot be held, this is clock 0"):
        clocked_store().freeze(clock)
