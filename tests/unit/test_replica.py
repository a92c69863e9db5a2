"""A standby is what its primary is, whatever comes and whenever it is made."""

import ctypes
import socket
import time

import numpy as np
import pytest
from products import batch
from replicas import Counting, Relay, Replicas, assert_equal, dump
from shards import ADAM, ADD, AVERAGE, FTRL, LIMIT_S, ROWWISE, ZEROS, resident_bytes
from waiting import run_all, until
from without import is_there, where_there

from snailps.abi import loops
from snailps.api.tables import Table
from snailps.errors import RemoteError, SnailError

TOUCH = 1
WIRES = [loops.WIRE_TYPES[name] for name in ("float32", "float16", "int8")]
MOMENTUM = Table("p", 6, access="python_methods:Momentum", lr=0.5)
LIMITS = where_there("retention", admit_after=3, admit_bytes=1 << 13, rows_max=1500)
RARE = Table("q", 5, "adagrad", lr=0.1, track="touch", **LIMITS)


def tables(cluster):
    cluster.add_table(1, 8, ADD, track=TOUCH)
    cluster.add_table(2, 20, ADAM, hyper=(0.01, 1e-8, 0.9, 0.999), track=TOUCH)
    cluster.add_table(3, 4, FTRL, hyper=(0.1, 1.0, 0.1, 0.1))
    cluster.add_table(4, 5, AVERAGE)
    cluster.declare(MOMENTUM, 5)
    cluster.add_table(6, 300, 2, hyper=(0.05, 1e-8))  # adagrad, wide
    cluster.add_table(7, 7, ROWWISE, hyper=(0.05, 1e-8))
    cluster.declare(RARE, 8)


DIMS = {1: 8, 2: 20, 3: 4, 4: 6, 5: 6, 6: 300, 7: 7, 8: 5}
SCALED = (2, 6, 7, 8)  # whose step size a push may scale


def traffic(cluster, seed, until, clocks=False):
    """Pushes at random, through everything that changes how they travel."""
    rng = np.random.default_rng(seed)
    client = cluster.client(incarnation=seed)
    lists = [rng.choice(5000, 300, replace=False).astype(np.uint64) for _ in range(4)]
    steps = 0
    while not until(steps):
        steps += 1
        table = int(rng.integers(1, 9))
        keys = lists[rng.integers(4)] if rng.random() < 0.4 else np.unique(
            rng.integers(0, 20_000, rng.integers(1, 2000))).astype(np.uint64)  # fmt: skip
        values = rng.normal(size=(len(keys), DIMS[table])).astype(np.float32)
        if table == 4:
            values[:, -1] = rng.random(len(keys))
        what = rng.random()
        lr_scale = 1 - steps % 3 / 4 if table in SCALED else 1
        if table == 6 and what < 0.4 and is_there("server_products"):
            some = batch(rng, 40, 3000, 20)
            forward = client.forward_async(6, *some, 300)
            forward.wait()
            gradient = rng.normal(size=(40, 300)).astype(np.float32)
            client.backward_async(forward, gradient, lr_scale=lr_scale).wait()
        elif table == 1 and what < 0.2:
            pull = np.zeros((len(keys), 8), np.float32)
            client.pull(1, keys, pull)
        else:
            client.push_async(table, keys, values, wire=WIRES[rng.integers(3)], lr_scale=lr_scale)
        if rng.random() < 0.05:
            client.cut(0)
    client.flush()
    return steps


def orders(cluster, seed, until):
    """What a master has primaries do."""
    rng = np.random.default_rng(seed)
    steps = 0
    while not until(steps):
        steps += 1
        shard = cluster.threads[0]
        what = rng.integers(3)
        if what == 0:
            shard.set_tick(steps)
        elif what == 1:
            for fragment in shard.fragments()[steps % 8 :: 8].tolist():
                shard.expire_one(1, max(0, steps - 2), fragment)
        else:
            shard.fence(10_000 + steps)
        time.sleep(0.005)


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("when", ["before", "amid"])
def test_standby_equals_its_primary_after_mixed_traffic(sync, when):
    with Replicas() as cluster:
        tables(cluster)
        if when == "before":
            made = cluster.back_up(sync=sync)
        else:
            run_all(lambda: traffic(cluster, 9, lambda n: n == 25))
            made = cluster.standby()

        def late():
            if when == "amid":
                cluster.back_up(sync=sync, standby=made)

        run_all(
            lambda: traffic(cluster, 1, lambda n: n == 40),
            lambda: traffic(cluster, 2, lambda n: n == 40),
            lambda: orders(cluster, 3, lambda n: n == 15),
            late,
        )
        replica = cluster.settle()
        assert (replica["state"], replica["seeded"], replica["held"]) == ("ready", 1.0, 0)
        assert_equal(dump(cluster.threads[0]), dump(made[0]))
        followed = made[0].stats()["replica"]
        assert (followed["role"], followed["state"]) == ("standby", "ready")


def test_standby_behind_a_narrow_way_is_equal():
    """The socket takes odd pieces now and then, and much waits for it."""
    with Replicas() as cluster:
        tables(cluster)
        made = cluster.back_up(sync=False, relay=4093)
        run_all(*[lambda i=i: traffic(cluster, i, lambda n: n == 25) for i in (11, 12)])
        cluster.settle()
        assert_equal(dump(cluster.threads[0]), dump(made[0]))


@pytest.mark.parametrize("frag_num", [1, 3])
def test_fragment_that_changes_while_its_pieces_are_copied_is_equal(frag_num):
    """Rows come, go and change before, behind and where the copying is."""
    with Replicas(frag_num=frag_num) as cluster:
        tables(cluster)
        run_all(lambda: traffic(cluster, 9, lambda n: n == 40))
        made = cluster.standby()
        cluster.back_up(standby=made, ready=False, relay=1 << 16, slow=True)

        def copied(steps):
            return steps >= 15 and (steps >= 25 or not cluster.told.empty())

        run_all(
            lambda: traffic(cluster, 1, copied),
            lambda: traffic(cluster, 2, copied),
            lambda: orders(cluster, 3, copied),
        )
        cluster.relays[0].open.set()
        assert cluster.told.get(timeout=LIMIT_S) == ("ready", "")
        cluster.settle()
        assert_equal(dump(cluster.threads[0]), dump(made[0]))


def test_access_method_in_python_meets_no_row_that_has_yet_to_be_copied():
    """It might refuse what it makes of the row's first value, and the standby would be lost."""
    with Replicas(frag_num=1) as cluster:
        cluster.add_table(1, 1000, ADD, ZEROS)
        cluster.declare(Table("s", 4, access="python_methods:Strict"), 2)
        client, keys = cluster.client(), np.arange(5_000, dtype=np.uint64)
        client.push(1, keys, np.ones((len(keys), 1000), np.float32))
        client.push(2, keys[:100], np.full((100, 4), 101, np.float32))
        made = cluster.standby()
        cluster.relays.append(Relay(made[1], 1 << 14))
        relay = cluster.relays[0]
        fd, shard = cluster.stream_to(relay.port), cluster.threads[0]
        relay.open.clear()
        shard.back_up(fd, sync=True, report=lambda *words: cluster.told.put(words))
        until(lambda: shard.stats()["replica"]["lag_bytes"], "bytes that are copied")
        client.push(2, keys[:100], np.ones((100, 4), np.float32))
        relay.open.set()
        assert cluster.told.get(timeout=LIMIT_S) == ("ready", "")
        cluster.settle()
        assert_equal(dump(shard), dump(made[0]))


def test_large_fragment_is_copied_in_pieces():
    """The standby here takes nothing: of 40 MB no more is copied than a piece and a socket hold."""
    with Replicas(frag_num=1) as cluster:
        cluster.add_table(1, 1000, ADD, ZEROS)
        keys = np.arange(10_000, dtype=np.uint64)
        cluster.client().push(1, keys, np.ones((len(keys), 1000), np.float32))
        near, far = socket.socketpair()
        with far:
            shard = cluster.threads[0]
            shard.back_up(near.detach(), sync=True, report=lambda *_: None).result(LIMIT_S)
            told = until(lambda: shard.stats()["replica"]["lag_bytes"], "bytes that are copied")
            assert told < 4 << 20
            shard.unback()


# --- who may do what -----------------------------------------------------------------------------


def test_standby_waits_for_tables_and_route_that_the_master_sends_later():
    with Replicas() as cluster:
        tables(cluster)
        keys = np.arange(100, dtype=np.uint64)
        cluster.client(5).push(1, keys, np.ones((100, 8), np.float32))
        made = cluster.standby(tables=False, route=False)
        cluster.back_up(standby=made, ready=False)
        cluster.until("frames_in", lambda n: n > 0)
        made[0].take_route(1, cluster.route.fragments_of(0))
        cluster.declare_at(made[0])
        assert cluster.told.get(timeout=LIMIT_S) == ("ready", "")
        cluster.settle()
        assert_equal(dump(cluster.threads[0]), dump(made[0]))


def test_standby_refuses_a_second_stream_and_other_fragments():
    with Replicas(2) as cluster:
        cluster.add_table(1, 4, ADD, ZEROS)
        made = cluster.back_up(0)
        with pytest.raises(RemoteError, match="follows a primary already"):
            cluster.stream_to(made[1])
        wrong = cluster.standby(1)
        cluster.back_up(0, standby=wrong, ready=False)
        state, why = cluster.told.get(timeout=LIMIT_S)
        assert state == "lost"
        assert "fragment" in why


# --- replies that wait ---------------------------------------------------------------------------


def hung(cluster, sync=True):
    """A standby that is ready and then hears nothing; and what lets it hear again."""
    made = cluster.back_up(sync=sync, relay=1 << 16)
    cluster.relays[-1].open.clear()
    return made, cluster.relays[-1].open


def held(thread):
    """Replies of a shard that wait for its standby."""
    return thread.stats()["replica"]["held"]


def clock_of_one_slot(cluster, clock):
    """Ends a clock whose one slot adds 1 to table 1; the seal, which was not waited for."""
    client, keys = cluster.client(incarnation=60 + clock), np.arange(10, dtype=np.uint64)
    client.push_async(1, keys, np.ones((10, 4), np.float32), clock=clock, slot=0)
    return client.seal_async(clock, 0, 1)


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("by", ["seal", "order"])
def test_clock_is_seen_once_the_standby_has_it(cluster, by, sync):
    """Who sees it pushes to it: a promoted standby must know that it has come."""
    made, go_on = hung(cluster, sync=sync)
    client, keys = cluster.client(), np.arange(10, dtype=np.uint64)
    if by == "seal":
        clock_of_one_slot(cluster, 0)
    else:
        thread = cluster.threads[0]
        thread.post(lambda: thread.set_clock(1), at_standby=True)
    pulled = client.pull_async(1, keys, np.zeros((10, 4), np.float32), clock=1)
    reached = client.reach_async(1)
    cluster.until("clock", lambda n: n == 1)  # the seal may come behind them
    cluster.until("parked", lambda n: n == 2)
    assert "standby" in cluster.threads[0].stats()["waits_for"]
    assert cluster.stats("parked") == 2
    assert not pulled.done
    go_on.set()
    assert np.all(pulled.wait() == (by == "seal"))
    reached.wait()
    assert made[0].clock() == 1


@pytest.mark.parametrize("sync", [True, False])
def test_clock_that_only_a_lost_primary_knew_is_pushed_to_by_nobody(cluster, sync):
    """A worker that waits for it gets it of the promoted standby, when that has the seal again."""
    made, _ = hung(cluster, sync=sync)
    client, keys = cluster.client(), np.arange(10, dtype=np.uint64)
    sealed = clock_of_one_slot(cluster, 0)
    pulled = client.pull_async(1, keys, np.zeros((10, 4), np.float32), clock=1)
    cluster.until("clock", lambda n: n == 1)
    cluster.until("parked", lambda n: n == 1)
    assert cluster.threads[0].stop(LIMIT_S)
    assert made[0].clock() == 0  # soon the seal comes again
    cluster.promote(made)
    assert np.all(pulled.wait() == 1)
    client.push(1, keys, np.ones((10, 4), np.float32), clock=1, slot=0)
    sealed.wait()


def test_clock_is_seen_without_a_standby_that_was_given_up(cluster):
    made = cluster.back_up()
    assert made[0].stop(LIMIT_S)
    assert cluster.told.get(timeout=LIMIT_S)[0] == "lost"
    clock_of_one_slot(cluster, 0)
    reached = cluster.client().reach_async(1)
    cluster.until("clock", lambda n: n == 1)
    cluster.until("parked", lambda n: n == 1)
    cluster.threads[0].unback()
    reached.wait()
    cluster.back_up()
    clock_of_one_slot(cluster, 1).wait()
    cluster.client().reach_async(2).wait()


def test_order_that_moves_no_clock_hides_none(cluster):
    _, go_on = hung(cluster)
    cluster.threads[0].post(lambda: cluster.threads[0].set_tick(3), at_standby=True)
    cluster.client().reach_async(0).wait()
    assert not cluster.threads[0].stats()["replica"]["held"]
    go_on.set()


@pytest.mark.parametrize("sync", [True, False])
def test_order_is_done_when_the_standby_has_it(cluster, sync):
    made, go_on = hung(cluster, sync=sync)
    thread = cluster.threads[0]
    given = thread.post(lambda: thread.shard.fence(77), at_standby=True)
    assert thread.clock() == 0  # does not wait behind it
    assert not given.done()
    go_on.set()
    given.result(LIMIT_S)
    cluster.promote(made)
    client, keys = cluster.client(77, epoch=2), np.arange(10, dtype=np.uint64)
    with pytest.raises(RemoteError, match="given up"):
        client.push(1, keys, np.ones((10, 4), np.float32))


def test_repetition_of_a_push_that_waits_waits_too(cluster):
    _, go_on = hung(cluster)
    client, keys = cluster.client(), np.arange(10, dtype=np.uint64)
    pushed = client.push_async(1, keys, np.ones((10, 4), np.float32))
    cluster.until("pushes", lambda n: n == 1)
    assert held(cluster.threads[0]) > 0
    client.cut(0)
    cluster.until("repeated", lambda n: n > 0)
    assert held(cluster.threads[0]) > 0
    assert not pushed.done
    go_on.set()
    pushed.wait()
    assert np.all(client.pull(1, keys, np.zeros((10, 4), np.float32)) == 1)


def test_memory_of_a_backlog_goes_back_once_the_standby_has_it():
    with Replicas() as cluster:
        cluster.add_table(1, 16_000, ADD, ZEROS)
        _, go_on = hung(cluster)
        client, keys = cluster.client(), np.arange(64, dtype=np.uint64)
        values = np.ones((64, 16_000), np.float32)
        pushes = [client.push_async(1, keys, values) for _ in range(16)]  # 4 MiB each
        cluster.until("pushes", lambda n: n >= 64 * len(pushes))
        while_kept = resident_bytes()
        go_on.set()
        for push in pushes:
            push.wait()
        cluster.settle()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", int)  # what the C library keeps, freed

        def given_back():
            trim(0)
            return while_kept - resident_bytes()

        # Of 60 MiB; some is in use at the standby, and huge pages may hide some.
        until(lambda: given_back() >= 28 << 20, "memory that goes back")


def test_async_backlog_is_bounded_by_replies_that_wait():
    with Replicas() as cluster:
        cluster.add_table(1, 16_000, ADD, ZEROS)
        _, go_on = hung(cluster, sync=False)
        client, keys = cluster.client(), np.arange(64, dtype=np.uint64)
        values = np.ones((64, 16_000), np.float32)
        pushes = [client.push_async(1, keys, values) for _ in range(15)]  # 4 MiB each
        for push in pushes:
            push.wait()
        pushes = [client.push_async(1, keys, values) for _ in range(4)]
        until(lambda: held(cluster.threads[0]), "a reply that waits")
        assert not pushes[-1].done
        go_on.set()
        for push in pushes:
            push.wait()
        cluster.settle()
        assert np.all(client.pull(1, keys, np.zeros_like(values)) == 19)


# --- who serves ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [True, False])
def test_yield_under_load_loses_nothing(cluster, sync):
    counting = Counting(cluster)
    for epoch in (2, 3, 4):
        counting.more()
        made = cluster.back_up(sync=sync)
        counting.more()
        old = cluster.threads[0]
        old.yield_(LIMIT_S)
        assert old.stats()["replica"]["role"] == "yielded"
        with pytest.raises(SnailError, match="yielded"):
            old.set_tick(1)
        cluster.promote(made, epoch=epoch)
    counting.more()
    found, acknowledged = counting.end()
    assert np.array_equal(found, acknowledged)


def test_promoted_standby_refuses_its_old_primary_and_old_epochs(cluster):
    """The old primary was only slow: nothing that it gets is acknowledged any more."""
    made = cluster.back_up()
    keys = np.arange(10, dtype=np.uint64)
    client = cluster.client(1)
    client.push(1, keys, np.ones((10, 4), np.float32))
    old = cluster.threads[0]
    made[0].promote(2)
    assert cluster.told.get(timeout=LIMIT_S)[0] == "lost"
    pushed = client.push_async(1, keys, np.ones((10, 4), np.float32))  # still to the old one
    until(lambda: held(old), "a push that waits")
    assert old.stats()["replica"]["state"] == "lost"
    assert not pushed.done
    with pytest.raises(RemoteError, match="follows a primary already, or did"):
        cluster.stream_to(made[1])
    cluster.promote(made)
    client.cut(0)
    pushed.wait()
    assert np.all(client.pull(1, keys, np.zeros((10, 4), np.float32)) == 2)
    until(lambda: not held(old), "the end of what waits for a client that has gone")


def test_primary_takes_no_stream():
    with Replicas(2) as cluster:
        cluster.back_up(0, standby=(cluster.threads[1], cluster.ports[1]), ready=False)
        state, why = cluster.told.get(timeout=LIMIT_S)
        assert (state, "no standby" in why) == ("lost", True)


# --- what keeps it so ----------------------------------------------------------------------------


def test_fence_holds_at_the_promoted_standby(cluster):
    keys, ones = np.arange(10, dtype=np.uint64), np.ones((10, 4), np.float32)
    cluster.threads[0].fence(6)
    made = cluster.back_up()
    cluster.threads[0].fence(7)
    cluster.settle()
    cluster.promote(made)
    for incarnation in (6, 7):
        with pytest.raises(RemoteError, match="given up"):
            cluster.client(incarnation, epoch=2).push(1, keys, ones)


def test_standby_passes_over_a_table_that_it_has_dropped_already(cluster):
    """Each shard drops a session's earlier tables by itself, when its server is told."""
    client, keys = cluster.client(), np.arange(10, dtype=np.uint64)
    cluster.add_table(3, 4)
    ones = np.ones((10, 4), np.float32)
    client.push(3, keys, ones)
    new = cluster.standby(0)
    new[0].drop_tables([3])  # before the copy begins
    made = cluster.back_up(standby=new)
    for _ in range(2):
        client.push(3, keys, ones)
        client.push(1, keys, ones)
    cluster.threads[0].drop_tables([3])
    client.push(1, keys, ones)
    assert set(made[0].stats()["tables"]) == set(cluster.threads[0].stats()["tables"])
    cluster.promote(made)
    assert (client.pull(1, keys, np.zeros((10, 4), np.float32)) == 3).all()
