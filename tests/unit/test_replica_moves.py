"""A shard moves and has its standby: standbys that fill others, swaps, what is taken back."""

import queue
import threading

import numpy as np
import pytest
from products import batch
from replicas import Counting, Relay, Replicas, assert_equal, dump
from shards import ADD, LIMIT_S, ZEROS
from test_replica import TOUCH, held, orders, tables, traffic
from test_replica_clocks import clocked
from waiting import run_all, until

from snailps.errors import ConnectionLost, MisuseError
from snailps.store.checkpoint._sections import FragmentCursor


def fill(cluster, source, target, *, resume=False, ready=True, way=None):
    """A shard's thread copies itself to a standby: (thread, port)."""
    fd = cluster.stream_to(way.port if way else target[1])
    cluster.told = told = queue.SimpleQueue()  # of this stream, and no other
    source.back_up(fd, sync=True, resume=resume, report=lambda *words: told.put(words))
    if ready:
        assert cluster.told.get(timeout=LIMIT_S) == ("ready", "")
    return target


def settle(*threads):
    """Waits until what each has told was acknowledged, first to last."""
    for thread in threads:
        until(lambda now=thread: is_settled(now.stats()["replica"]), "acknowledgements")


def is_settled(figures):
    return figures["sent"] == figures["acknowledged"]


def me(cluster):
    return cluster.threads[0], cluster.ports[0]


@pytest.mark.parametrize("when", ["before", "amid"])
def test_standby_of_a_standby_equals_both_after_mixed_traffic(when):
    with Replicas() as cluster:
        tables(cluster)
        middle = cluster.back_up()
        last = cluster.standby()
        if when == "before":
            fill(cluster, middle[0], last)
        else:
            run_all(lambda: traffic(cluster, 9, lambda n: n == 20))

        def late():
            if when == "amid":
                fill(cluster, middle[0], last)

        run_all(
            lambda: traffic(cluster, 1, lambda n: n == 30),
            lambda: traffic(cluster, 2, lambda n: n == 30),
            lambda: orders(cluster, 3, lambda n: n == 12),
            late,
        )
        settle(cluster.threads[0], middle[0])
        assert_equal(dump(cluster.threads[0]), dump(middle[0]))
        assert_equal(dump(middle[0]), dump(last[0]))


def test_standby_of_a_standby_is_equal_where_its_only_fragment_changes_while_it_is_copied():
    with Replicas(frag_num=1) as cluster:
        tables(cluster)
        run_all(lambda: traffic(cluster, 9, lambda n: n == 30))
        middle, last = cluster.back_up(), cluster.standby()
        way = Relay(last[1], 1 << 16)
        cluster.relays.append(way)
        way.slow()
        fill(cluster, middle[0], last, ready=False, way=way)

        def copied(steps):
            return steps >= 10 and (steps >= 25 or not cluster.told.empty())

        run_all(lambda: traffic(cluster, 1, copied), lambda: orders(cluster, 3, copied))
        way.open.set()
        assert cluster.told.get(timeout=LIMIT_S) == ("ready", "")
        settle(cluster.threads[0], middle[0])
        assert_equal(dump(cluster.threads[0]), dump(last[0]))


@pytest.mark.parametrize("when", ["before", "amid"])
def test_standby_of_a_standby_equals_both_in_clocks(when):
    with Replicas() as cluster:
        tables(cluster)
        middle, last = cluster.back_up(), cluster.standby()
        if when == "before":
            fill(cluster, middle[0], last)

        def late():
            if when == "amid":
                fill(cluster, middle[0], last)

        run_all(*[lambda i=i: clocked(cluster, i, 3, (0, 8), 20 + i) for i in range(3)], late)
        settle(cluster.threads[0], middle[0])
        assert_equal(dump(cluster.threads[0]), dump(middle[0]))
        assert_equal(dump(cluster.threads[0]), dump(last[0]))
        assert last[0].clock() == 8


@pytest.mark.needs("server_products")
def test_standby_of_a_standby_gets_gradients_of_a_batch():
    with Replicas(frag_num=3) as cluster:
        cluster.add_table(6, 400, 2, hyper=(0.05, 1e-8), track=TOUCH)
        middle = cluster.back_up()
        last = fill(cluster, middle[0], cluster.standby())
        client, rng = cluster.client(), np.random.default_rng(5)
        forward = client.forward_async(6, *batch(rng, 200, 100_000, 20), 400)
        forward.wait()
        client.backward_async(forward, rng.normal(size=(200, 400)).astype(np.float32)).wait()
        assert cluster.stats("rows_stepped") > 3000  # several frames, the last of them not whole
        settle(cluster.threads[0], middle[0])
        assert_equal(dump(cluster.threads[0]), dump(middle[0]))
        assert_equal(dump(cluster.threads[0]), dump(last[0]))


@pytest.mark.needs("server_products")
@pytest.mark.parametrize("dim", [1, 60_000])
def test_standby_gets_as_many_gradients_of_a_fragment_as_a_shard_takes(dim):
    with Replicas(frag_num=1) as cluster:
        cluster.add_table(6, dim, ADD, ZEROS)
        standby, client = cluster.back_up(), cluster.client()
        keys = np.arange((4 << 20) // (8 + 4 * dim), dtype=np.uint64)
        ends = np.linspace(0, len(keys), 9).astype(np.int64)
        forward = client.forward_async(6, ends, keys, None, dim)
        forward.wait()
        client.backward_async(forward, np.ones((8, dim), np.float32)).wait()
        settle(cluster.threads[0])
        assert_equal(dump(cluster.threads[0]), dump(standby[0]))


def test_standby_of_a_standby_gets_restored_fragments_again():
    with Replicas() as cluster, Replicas() as other:
        for one in (cluster, other):
            one.add_table(1, 8, ADD, ZEROS, track=TOUCH)
        keys = np.arange(4000, dtype=np.uint64)
        other.client().push(1, keys, np.full((4000, 8), 3, np.float32))
        middle = cluster.back_up()
        last = fill(cluster, middle[0], cluster.standby())
        cluster.client().push(1, keys[:100], np.ones((100, 8), np.float32))
        cursor = FragmentCursor(other.threads[0].fragments())
        buffer = np.empty(1 << 24, np.uint8)
        _, sections = other.threads[0].copy_next(cursor, buffer)
        for _, start, length, _ in sections:
            cluster.threads[0].put_section(buffer[start : start + length].copy(), {1: 1})
        cluster.client(3).push(1, keys[:100], np.ones((100, 8), np.float32))
        settle(cluster.threads[0], middle[0])
        assert_equal(dump(cluster.threads[0]), dump(middle[0]))
        assert_equal(dump(cluster.threads[0]), dump(last[0]))


def test_standby_that_lacks_something_has_no_standby():
    with Replicas() as cluster:
        made, other = cluster.standby(), cluster.standby()
        fd = cluster.stream_to(other[1])
        with pytest.raises(MisuseError, match="has everything"):
            made[0].back_up(fd, sync=True, report=lambda *_: None).result(LIMIT_S)


def test_lost_standby_of_a_standby_holds_up_nothing(cluster):
    middle = cluster.back_up()
    last = fill(cluster, middle[0], cluster.standby())
    assert last[0].stop(LIMIT_S)
    client, keys = cluster.client(), np.arange(10, dtype=np.uint64)
    client.push(1, keys, np.ones((10, 4), np.float32))
    assert cluster.told.get(timeout=LIMIT_S)[0] == "lost"
    assert cluster.threads[0].stop(LIMIT_S)
    cluster.promote(middle)  # it has not been told that it has no standby
    client.push(1, keys, np.ones((10, 4), np.float32))
    assert np.all(client.pull(1, keys, np.zeros((10, 4), np.float32)) == 2)


def test_standby_of_a_standby_that_takes_too_little_is_given_up_and_nobody_waits():
    with Replicas() as cluster:
        cluster.add_table(1, 1000, ADD, ZEROS)
        middle, last = cluster.back_up(), cluster.standby()
        way = Relay(last[1], 1 << 16)
        cluster.relays.append(way)
        fill(cluster, middle[0], last, way=way)
        way.open.clear()
        client, keys = cluster.client(), np.arange(4000, dtype=np.uint64)
        values = np.ones((4000, 1000), np.float32)
        for _ in range(10):  # 160 MB
            client.push(1, keys, values)
        state, why = cluster.told.get(timeout=LIMIT_S)
        assert state == "lost"
        assert "more slowly than they come" in why
        settle(cluster.threads[0])
        assert_equal(dump(cluster.threads[0]), dump(middle[0]))


# --- moves ---------------------------------------------------------------------------------------


def shift(cluster, middle, epoch):
    """The standby fills another and takes the primary's place: it has that one as its standby."""
    old = cluster.threads[0]
    last = fill(cluster, middle[0], cluster.standby())
    old.yield_(LIMIT_S)
    middle[0].post(lambda: middle[0].promote(epoch), at_standby=True).result(LIMIT_S)
    cluster.promote(middle, epoch=epoch)
    return last


def swap(cluster, middle, epoch):
    """Primary and standby change places; the new standby."""
    old = me(cluster)
    old[0].yield_(LIMIT_S, True)
    fill(cluster, middle[0], old, resume=True)
    middle[0].post(lambda: middle[0].promote(epoch), at_standby=True).result(LIMIT_S)
    assert_equal(dump(old[0]), dump(middle[0]))
    cluster.promote(middle, epoch=epoch)
    return old


@pytest.mark.parametrize("steps", ["shift", "swap", "shift swap shift swap", "swap swap shift"])
def test_moves_under_load_lose_nothing_and_leave_a_standby(cluster, steps):
    counting = Counting(cluster)
    standby = cluster.back_up()
    for epoch, step in enumerate(steps.split(), 2):
        counting.more(200)
        standby = {"shift": shift, "swap": swap}[step](cluster, standby, epoch)
    counting.more(200)
    assert cluster.threads[0].stop(LIMIT_S)
    cluster.promote(standby, epoch=10)  # all is at the standby
    counting.more(200)
    found, acknowledged = counting.end()
    assert np.array_equal(found, acknowledged)


@pytest.mark.parametrize("step", [shift, swap])
def test_moves_in_clocks_go_on_with_the_clock(step):
    with Replicas() as cluster:
        tables(cluster)
        standby = cluster.back_up()
        done = []

        def move():
            cluster.until("clock", lambda n: n >= 3)
            done.append(step(cluster, standby, 2))

        run_all(*[lambda i=i: clocked(cluster, i, 3, (0, 8), 20 + i) for i in range(3)], move)
        settle(cluster.threads[0])
        assert_equal(dump(cluster.threads[0]), dump(done[0][0]))
        assert done[0][0].clock() == 8


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("when", ["yielded", "resumed"])
def test_primary_that_stands_by_serves_again_where_its_standby_is_not_promoted_or_lost(
    cluster, when, lost
):
    standby, old = cluster.back_up(), me(cluster)
    client, keys = cluster.client(), np.arange(10, dtype=np.uint64)
    client.push(1, keys, np.ones((10, 4), np.float32))
    old[0].yield_(LIMIT_S, True)
    if when == "resumed":
        fill(cluster, standby[0], old, resume=True)
    if lost:
        assert standby[0].stop(LIMIT_S)
        old[0].unback()
    else:
        standby[0].unback()
    old[0].promote(2)
    cluster.reroute(old[1], epoch=2)
    client.push(1, keys, np.ones((10, 4), np.float32))
    assert np.all(client.pull(1, keys, np.zeros((10, 4), np.float32)) == 2)
    if lost:
        return
    settle(old[0])
    assert old[0].stats()["replica"]["state"] == "ready"
    assert_equal(dump(old[0]), dump(standby[0]))


def test_what_was_not_as_it_is_now_is_not_resumed(cluster):
    standby, old = cluster.back_up(), me(cluster)
    old[0].yield_(LIMIT_S, True)
    standby[0].promote(2)
    standby[0].set_tick(7)
    fill(cluster, standby[0], old, resume=True, ready=False)
    state, why = cluster.told.get(timeout=LIMIT_S)
    assert (state, "RESUME" in why) == ("lost", True)


def test_primary_that_is_told_to_serve_does_not_yield_any_more(cluster):
    cluster.back_up(relay=1 << 16)
    cluster.relays[-1].open.clear()
    client, keys = cluster.client(), np.arange(10, dtype=np.uint64)
    pushed = client.push_async(1, keys, np.ones((10, 4), np.float32))
    cluster.until("pushes", lambda n: n == 1)
    shard, failed = cluster.threads[0], []

    def leave():
        try:
            shard.yield_(LIMIT_S)
        except ConnectionLost as error:
            failed.append(str(error))

    leaving = threading.Thread(target=leave)
    leaving.start()
    until(  # the next push must not overtake the order
        lambda: shard.yielding,
        over=lambda: "" if leaving.is_alive() else f"it has left: {failed}",
    )
    again = client.push_async(1, keys, np.ones((10, 4), np.float32))
    cluster.until("parked", lambda n: n == 1)
    shard.promote(1)
    leaving.join(LIMIT_S)
    assert failed == ["the shard was ordered to go on serving"]
    cluster.relays[-1].open.set()
    pushed.wait()
    again.wait()


@pytest.mark.parametrize("stay", [False, True])
def test_primary_that_serves_again_and_has_lost_its_standby_waits_until_it_is_alone(cluster, stay):
    """The master may still take that one for a standby that has everything."""
    standby, old = cluster.back_up(), me(cluster)
    client, keys = cluster.client(), np.arange(10, dtype=np.uint64)
    old[0].yield_(LIMIT_S, stay)
    assert standby[0].stop(LIMIT_S)
    assert cluster.told.get(timeout=LIMIT_S)[0] == "lost"
    old[0].promote(2)
    cluster.reroute(old[1], epoch=2)
    pushed = client.push_async(1, keys, np.ones((10, 4), np.float32))
    until(lambda: held(old[0]), "a push that waits")
    assert not pushed.done
    old[0].unback()
    pushed.wait()
