"""A standby in clocks: staged, sealed and closed as at its primary."""

import numpy as np
from replicas import Replicas, assert_equal, dump
from test_replica import DIMS, SCALED, tables


def clocked(cluster, slot, slots, clocks, seed):
    """One of `slots` workers that each fill a slot a clock."""
    rng = np.random.default_rng(seed)
    client = cluster.client(incarnation=seed)
    for clock in range(*clocks):
        client.reach_async(clock).wait()
        for table in (1, 2, 5, 7, 8):
            keys = np.unique(rng.integers(0, 3000, 400)).astype(np.uint64)
            values = rng.normal(size=(len(keys), DIMS[table])).astype(np.float32)
            scaled = 1 / (2 + clock) if table in SCALED else 1
            client.push(table, keys, values, clock=clock, slot=slot, lr_scale=scaled)
        client.seal_async(clock, slot, slots).wait()


def test_standby_made_in_the_middle_of_a_clock_closes_it_as_its_primary():
    """Slots 0 and 2 of 4 are sealed, 1 has some, 3 nothing when the standby is made."""
    with Replicas() as cluster:
        tables(cluster)
        clients = [cluster.client(incarnation=30 + i) for i in range(4)]
        rng = np.random.default_rng(4)

        def push(i):
            keys = np.unique(rng.integers(0, 3000, 700)).astype(np.uint64)
            for table in (1, 5, 7, 8):
                values = rng.normal(size=(len(keys), DIMS[table])).astype(np.float32)
                scaled = 0.5 if table in SCALED else 1
                clients[i].push(table, keys, values, clock=0, slot=i, lr_scale=scaled)

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
        shard.seal(9, 0, 1, 8)
        cluster.settle()
        assert made[0].clock() == shard.clock() == 10
        assert_equal(dump(shard), dump(made[0]))
