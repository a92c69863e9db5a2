"""A standby in clocks: staged, sealed, held and closed as at its primary, whoever is promoted."""

import time

import numpy as np
import pytest
from replicas import Relay, Replicas, assert_equal, dump
from shards import ADD, LIMIT_S, ZEROS
from test_replica import DIMS, tables


def clocked(cluster, slot, slots, clocks, seed):
    """One of `slots` workers that each fill a slot a clock."""
    rng = np.random.default_rng(seed)
    client = cluster.client(incarnation=seed)
    for clock in range(*clocks):
        client.reach_async(clock).wait()
        for table in (1, 2, 5):
            keys = np.unique(rng.integers(0, 3000, 400)).astype(np.uint64)
            values = rng.normal(size=(len(keys), DIMS[table])).astype(np.float32)
            client.push(table, keys, values, clock=clock, slot=slot)
        client.seal_async(clock, slot, slots).wait()


def test_standby_made_in_the_middle_of_a_clock_closes_it_as_its_primary():
    """Slots 0 and 2 of 4 are sealed, 1 has some, 3 nothing when the standby is made."""
    with Replicas() as cluster:
        tables(cluster)
        clients = [cluster.client(incarnation=30 + i) for i in range(4)]
        rng = np.random.default_rng(4)

        def push(i):
            keys = np.unique(rng.integers(0, 3000, 700)).astype(np.uint64)
            for table in (1, 5):
                values = rng.normal(size=(len(keys), DIMS[table])).astype(np.float32)
                clients[i].push(table, keys, values, clock=0, slot=i)

        for i in (0, 1, 2):
            push(i)
        for i in (0, 2):
            clients[i].seal_async(0, i, 4).wait()
        made = cluster.back_up()
        assert_equal(dump(cluster.threads[0]), dump(made[0]))
        push(1)
        push(3)
        for i in (1, 3):
            clients[i].seal_async(0, i, 4).wait()
        cluster.settle()
        assert made[0].clock() == 1
        assert_equal(dump(cluster.threads[0]), dump(made[0]))


def test_orders_of_clocks_are_done_at_the_standby():
    with Replicas() as cluster:
        tables(cluster)
        made = cluster.back_up()
        shard, client = cluster.threads[0], cluster.client(incarnation=8)
        shard.set_clock(5, True)
        keys = np.arange(100, dtype=np.uint64)
        for slot in (0, 1):
            client.push(1, keys, np.ones((100, 8), np.float32), clock=5, slot=slot)
        client.seal_async(5, 0, 2).wait()
        shard.close_clock(5, [0])
        shard.set_clock(9)
        client.push(1, keys, np.ones((100, 8), np.float32), clock=9, slot=0)
        shard.freeze()
        shard.seal(9, 0, 1, 8)
        assert shard.clock() == 9
        shard.thaw()
        cluster.settle()
        assert made[0].clock() == shard.clock() == 10
        assert_equal(dump(shard), dump(made[0]))


def fill(cluster, clients, keys=3000):
    """Slots 0 and 1 of clock 0 have a value for every key."""
    for slot, client in enumerate(clients):
        ones = np.full((keys, 8), 1 + slot, np.float32)
        client.push(1, np.arange(keys, dtype=np.uint64), ones, clock=0, slot=slot)


@pytest.mark.parametrize("clock", [0, 1])
def test_clock_is_held_at_the_standby_as_at_its_primary(clock):
    """... that is made while it is, too, and has got a part of the rows when the clock is whole."""
    with Replicas() as cluster:
        tables(cluster)
        shard, clients = cluster.threads[0], [cluster.client(incarnation=8 + i) for i in (0, 1)]
        wide = np.arange(10_000, dtype=np.uint64)
        clients[0].push(6, wide, np.ones((len(wide), 300), np.float32))
        fill(cluster, clients)
        clients[0].seal_async(0, 0, 2).wait()
        shard.freeze(clock)
        made = cluster.standby()
        relay = Relay(made[1], 1 << 12)
        cluster.relays.append(relay)
        stream = cluster.stream_to(relay.port)
        relay.open.clear()
        shard.back_up(stream, sync=True, tell=lambda *words: cluster.told.put(words))
        end = time.monotonic() + LIMIT_S
        while not shard.stats()["replica"]["sent"]:
            assert time.monotonic() < end
        assert shard.stats()["replica"]["seeded"] < 1
        clients[1].seal_async(0, 1, 2).wait()
        if clock == 1:
            for slot in (0, 1):
                clients[slot].seal_async(1, slot, 2)
            cluster.until("slots_sealed", lambda n: n == 2)
        relay.open.set()
        assert cluster.told.get(timeout=LIMIT_S) == ("ready", "")
        cluster.settle()
        assert made[0].clock() == shard.clock() == clock
        shard.thaw()
        cluster.settle()
        assert made[0].clock() == shard.clock() == clock + 1
        assert_equal(dump(shard), dump(made[0]))


def test_clock_that_was_whole_comes_once_the_next_is_held_in_its_place():
    """A shard that was a clock behind another one, and has who waits for that clock."""
    with Replicas() as cluster:
        cluster.add_table(1, 8, ADD, ZEROS)
        shard, clients = cluster.threads[0], [cluster.client(incarnation=8 + i) for i in (0, 1)]
        made = cluster.back_up()
        assert shard.freeze() == 0
        fill(cluster, clients)
        waiting = clients[0].reach_async(1)
        cluster.until("parked", lambda n: n == 1)
        for slot in (0, 1):
            clients[slot].seal_async(0, slot, 2).wait()
        assert shard.freeze(1) == 0
        waiting.wait()
        cluster.settle()
        assert made[0].clock() == shard.clock() == 1
        assert_equal(dump(shard), dump(made[0]))


def test_standby_of_a_shard_that_was_held_lets_its_clock_go_once_it_is_promoted():
    with Replicas() as cluster:
        cluster.add_table(1, 8, ADD, ZEROS)
        clients = [cluster.client(incarnation=8 + i) for i in (0, 1)]
        cluster.threads[0].freeze()
        fill(cluster, clients)
        made = cluster.back_up()
        for slot in (0, 1):
            clients[slot].seal_async(0, slot, 2).wait()
        cluster.settle()
        assert made[0].clock() == 0
        old = cluster.threads[0]
        cluster.promote(made)
        old.stop()
        rows = np.empty((1, 8), np.float32)
        clients[0].pull_async(1, np.array([7], np.uint64), rows, clock=1).wait(LIMIT_S)
        assert rows.tolist() == [[3.0] * 8]


@pytest.mark.parametrize("taken_back", [False, True])
def test_shard_that_yielded_while_it_was_held_is_let_go_where_it_is_served_then(taken_back):
    with Replicas() as cluster:
        cluster.add_table(1, 8, ADD, ZEROS)
        old, clients = cluster.threads[0], [cluster.client(incarnation=8 + i) for i in (0, 1)]
        made = cluster.back_up()
        old.freeze()
        fill(cluster, clients)
        for slot in (0, 1):
            clients[slot].seal_async(0, slot, 2).wait()
        old.yield_(LIMIT_S)
        old.thaw()  # the checkpoint is given up: nothing of it here any more
        assert old.clock() == 0
        if taken_back:
            old.promote(2)
            cluster.reroute(cluster.ports[0])
        else:
            cluster.promote(made)
        cluster.until("clock", lambda clock: clock == 1)
        rows = np.empty((1, 8), np.float32)
        clients[0].pull_async(1, np.array([7], np.uint64), rows, clock=1).wait(LIMIT_S)
        assert rows.tolist() == [[3.0] * 8]
