"""Checkpoints in bsp and in rounds: of one clock, and what follows has the same bits."""

import queue
import threading

import numpy as np
import pytest
from shards import LIMIT_S, Shards

from snailps import kernels
from snailps.config import ServerSettings
from snailps.errors import ClusterError, SnailError
from snailps.server import checkpoint_io
from snailps.server.process import Server
from snailps.store._store import ShardStore
from snailps.transport import messages

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


@pytest.mark.parametrize("stuck", ["put", "close"])
def test_nothing_is_held_for_a_checkpoint_before_the_one_that_was_given_up_has_ended(
    tmp_path, monkeypatch, stuck
):
    """At its end it lets the shards go: the rows of the other one would be of two clocks."""
    writes, writing = threading.Event(), threading.Event()
    write = getattr(checkpoint_io.ShardFileWriter, stuck)

    def late(*args):
        writing.set()
        writes.wait(LIMIT_S)
        return write(*args)

    monkeypatch.setattr(checkpoint_io.ShardFileWriter, stuck, late)
    told = queue.SimpleQueue()
    with Shards(1) as cluster:
        cluster.add_table(1, 8)
        cluster.client().push(1, np.arange(9, dtype=np.uint64), np.ones((9, 8), np.float32))
        server = Server(ServerSettings())
        server.on_welcome(messages.Welcome(1, 1, 1, cluster.frag_num, 1.0, 10.0))
        server._shards = {0: cluster.threads[0]}
        server._core.host.primaries = {0: 0}
        assert server.on_message(messages.Freeze()).result(LIMIT_S).data == {"clocks": [0]}
        server._saving = checkpoint_io.CheckpointSave(
            cluster.threads,
            messages.Save(1, str(tmp_path), 0),
            life=1,
            node=1,
            frag_num=cluster.frag_num,
            tell=told.put,
        )
        server._saving.start()
        assert writing.wait(LIMIT_S)
        server._saving.stop(0.0)
        with pytest.raises(ClusterError, match="still working on another checkpoint"):
            server.on_message(messages.Freeze()).result(LIMIT_S)
        writes.set()
        assert told.get(timeout=LIMIT_S).text == "told to stop"
        server._saving.stop(LIMIT_S)
        assert server.on_message(messages.Freeze()).result(LIMIT_S).data == {"clocks": [0]}
