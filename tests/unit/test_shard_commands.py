"""Commands for a shard's thread: each runs once or never, and what it was given is never lost."""

import contextlib
import gc
import os
import queue
import socket
import threading

import numpy as np
import pytest
from replicas import Replicas
from shards import LIMIT_S, Shards
from waiting import happens

from snailps.errors import ConnectionLost, MisuseError, RemoteError, WaitTimeout
from snailps.transport.loop import _loop

FENCED = 5000
"""More than were once remembered."""


@contextlib.contextmanager
def blocked(thread):
    """A shard whose thread is at something else; what is posted waits."""
    begun, go_on = threading.Event(), queue.SimpleQueue()

    def work():
        begun.set()
        go_on.get(timeout=LIMIT_S)

    thread.post(work)
    assert begun.wait(LIMIT_S)
    try:
        yield
    finally:
        go_on.put(None)


def loop_of(name):
    """The loop that a thread runs."""
    (thread,) = [one for one in threading.enumerate() if one.name == name]
    return thread._target.__self__._loop


def pair():
    """A connection: the descriptor of one end, and the other end."""
    near, far = socket.socketpair()
    far.settimeout(LIMIT_S)
    return near.detach(), far


def test_command_that_timed_out_does_not_run_later():
    with Shards(1) as shards:
        (thread,), done = shards.threads, []
        with (
            blocked(thread),
            pytest.raises(WaitTimeout, match="did not answer within"),
        ):
            loop_of("shard-0").submit(lambda: done.append("late"), 0.01)
        thread.post(lambda: done.append("next")).result(LIMIT_S)
        assert done == ["next"]


def test_command_that_runs_when_its_time_is_over_is_waited_for(monkeypatch):
    """A caller is told what came of it, or that it was withdrawn: never the one for the other."""
    begun, withdrawn = threading.Event(), threading.Event()

    class Late(_loop._Command):
        """Its time begins when it runs, and it runs until its time is over."""

        def result(self, timeout=None):
            happens(begun)
            return super().result(timeout)

        def cancel(self):
            withdrawn.set()
            return super().cancel()

    def work():
        begun.set()
        happens(withdrawn)
        return "done"

    with Shards(1):
        monkeypatch.setattr(_loop, "_Command", Late)
        assert loop_of("shard-0").submit(work, 0.0) == "done"


def test_command_that_is_withdrawn_gives_back_its_descriptor():
    with Shards(1) as shards:
        (thread,), (fd, far) = shards.threads, pair()
        with far:
            with blocked(thread):
                command = thread.back_up(fd, sync=True, report=print)
                far.setblocking(False)
                with pytest.raises(BlockingIOError):
                    far.recv(1)
                assert command.cancel()
                assert far.recv(1) == b""
            with open(os.devnull) as other:  # may get the same number: it is not the command's
                thread.clock()
                os.fstat(other.fileno())


def test_command_that_fails_gives_back_its_descriptor():
    with Replicas() as cluster:
        (standby, _), (fd, far) = cluster.standby(), pair()
        with far:
            with pytest.raises(MisuseError, match="only a shard that has everything"):
                standby.back_up(fd, sync=True, report=print).result(LIMIT_S)
            assert far.recv(1) == b""


def test_commands_of_a_shard_that_stops_fail_and_give_back_their_descriptors():
    with Shards(1) as shards:
        (thread,), (fd, far) = shards.threads, pair()
        with far:
            with blocked(thread):
                thread.stop(0.0)
                command = thread.back_up(fd, sync=True, report=print)
            with pytest.raises(ConnectionLost, match="stopped serving"):
                command.result(LIMIT_S)
            assert far.recv(1) == b""


def test_requests_are_served_between_commands(shard):
    """However many there are."""
    (thread,), client = shard.threads, shard.client()
    keys, rows = np.arange(10, dtype=np.uint64), np.zeros((10, 4), np.float32)
    client.pull(1, keys, rows)
    served = threading.Event()

    def once_more():
        if not served.is_set():
            thread.post(once_more)

    with blocked(thread):
        for _ in range(50):
            thread.post(once_more)
    client.pull(1, keys, rows)
    served.set()


def test_order_does_not_hold_up_what_is_posted_behind_it():
    with Replicas() as cluster:
        cluster.back_up(relay=1 << 16)
        cluster.relays[-1].open.clear()
        (thread,) = cluster.threads
        order = thread.post(lambda: thread.set_clock(3), at_standby=True)
        assert thread.clock() == 3
        assert not order.done()
        thread.post(thread.unback).result(LIMIT_S)
        order.result(LIMIT_S)


def refused(cluster, incarnations, epoch=1):
    keys, ones = np.arange(10, dtype=np.uint64), np.ones((10, 4), np.float32)
    for incarnation in incarnations:
        with pytest.raises(RemoteError, match="given up"):
            cluster.client(incarnation, epoch=epoch).push(1, keys, ones)


def fence_many(thread):
    def work():
        for incarnation in range(1, FENCED + 1):
            thread.fence(incarnation)

    thread.post(work, at_standby=True).result(LIMIT_S)


def test_fences_are_never_forgotten(shard):
    fence_many(shard.threads[0])
    refused(shard, [1, 2, FENCED // 2, FENCED])
    keys, ones = np.arange(10, dtype=np.uint64), np.ones((10, 4), np.float32)
    shard.client(FENCED + 1).push(1, keys, ones)


@pytest.mark.parametrize("when", ["before", "after"])
def test_all_fences_hold_at_a_promoted_standby(cluster, when):
    """Those that there were when it was made, and those that came later; and at its own standby."""
    if when == "before":
        fence_many(cluster.threads[0])
        made = cluster.back_up()
    else:
        made = cluster.back_up()
        fence_many(cluster.threads[0])
    cluster.promote(made)
    refused(cluster, [1, FENCED], epoch=2)
    assert cluster.told.get(timeout=LIMIT_S)[0] == "lost"  # the former primary's stream
    again = cluster.back_up()
    cluster.promote(again, epoch=3)
    refused(cluster, [1, FENCED], epoch=3)


def test_stopped_shard_leaves_no_cycle_that_keeps_its_rows():
    """A server drops shards of gigabytes while it serves others: none waits for the collector."""

    def cores():
        return sum(type(one).__name__ == "Shard" for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = cores()
        with Shards(1) as shards:
            assert cores() == before + 1
        shards.threads.clear()
        assert cores() == before
    finally:
        gc.enable()
