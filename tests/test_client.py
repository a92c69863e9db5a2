"""The fan-out client against real shards, and against a scripted one that misbehaves."""

import os
import queue
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shards import ADD, JOB, LIMIT_S, UNIFORM, ZEROS, Shards

from snailps.errors import ConnectionLost, MisuseError, ProtocolError, RemoteError, WaitTimeout
from snailps.store.route import fragment_of
from snailps.transport._client import Client, Pending
from snailps.transport.frame import Frame, FrameDecoder, Kind, encode_frame
from snailps.transport.session import Channel, Hello, Role, ServerSession, error_frame

EDGE_KEYS = [0, 1, 2, 3, 2**63, 2**64 - 1, 77, 1234567]


def u64(keys):
    return np.array(list(keys), np.uint64)


def pull(client, keys, dim, table=1):
    return client.pull_async(table, keys, np.full((len(keys), dim), np.nan, np.float32)).wait()


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def shard():
    with Shards(1) as made:
        made.add_table(1, 4, ADD, ZEROS)
        yield made


# --- against a model -----------------------------------------------------------------------------

keys_lists = st.lists(st.sampled_from(EDGE_KEYS) | st.integers(0, 40), max_size=30)
steps = st.lists(st.tuples(st.sampled_from(["push", "pull"]), keys_lists), max_size=12)


@pytest.mark.parametrize("shards", [1, 2, 4])
@pytest.mark.parametrize("dim", [1, 3])
@settings(max_examples=25, deadline=None)
@given(steps=steps, wait=st.booleans())
def test_any_pushes_and_pulls_agree_with_a_dictionary(shards, dim, steps, wait):
    """Without waiting too: requests take effect in the order of the calls."""
    with Shards(shards) as cluster:
        cluster.add_table(1, dim, ADD, ZEROS)
        client = cluster.client()
        model, checks, pushes, number = {}, [], [], 0
        for what, some in steps:
            keys = u64(some)
            if what == "push":
                number += 1
                values = np.arange(1, len(some) * dim + 1, dtype=np.float32).reshape(-1, dim)
                values *= number
                for key, value in zip(some, values, strict=True):
                    model[key] = model.get(key, 0) + value
                pushes.append(client.push_async(1, keys, values))
                if wait:
                    pushes[-1].wait()
            else:
                expected = np.zeros((len(some), dim), np.float32)
                for i, key in enumerate(some):
                    expected[i] = model.get(key, 0)
                rows = np.full((len(some), dim), np.nan, np.float32)
                checks.append((client.pull_async(1, keys, rows), expected))
        for pending, expected in checks:
            assert np.array_equal(pending.wait(), expected)
        client.flush()
        assert scanned(cluster, client, dim) == {
            key: value.tolist() for key, value in model.items()
        }


def scanned(cluster, client, dim, table=1):
    """Everything stored, as {key: row}; fails on a key that comes twice."""
    found = {}
    for index in range(cluster.count):
        fragments = cluster.route.fragments_of(index).tolist()
        for keys, rows in client.scan(table, dim, fragments, index):
            assert set(fragment_of(keys, cluster.frag_num).tolist()) <= set(fragments)
            for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
                assert key not in found
                found[key] = row
    return found


@pytest.mark.parametrize(("shards", "dim", "n"), [(1, 100, 20000), (3, 1, 300000), (4, 7, 50000)])
def test_requests_of_many_parts_come_back_whole(shards, dim, n):
    rng = np.random.default_rng(dim)
    with Shards(shards, frag_num=256) as cluster:
        cluster.add_table(1, dim, ADD, UNIFORM)
        client = cluster.client()
        keys = rng.permutation(n).astype(np.uint64) * np.uint64(7919)
        first = pull(client, keys, dim)
        values = rng.integers(-9, 9, (n, dim)).astype(np.float32)
        client.push_async(1, keys, values).wait()
        assert np.array_equal(pull(client, keys, dim), first + values)
        assert np.array_equal(pull(client, keys[::-3].copy(), dim), (first + values)[::-3])
        counters = client.counters()
        stored = scanned(cluster, client, dim)
    assert counters["rows_pushed"] == n
    assert counters["open"] == 0
    assert len(stored) == n
    assert stored[int(keys[5])] == (first + values)[5].tolist()


def test_rows_of_65536_floats_travel():
    with Shards(2) as cluster:
        cluster.add_table(1, 65_536, ADD, UNIFORM)
        client = cluster.client()
        keys = u64(range(9))
        first = pull(client, keys, 65_536)
        client.push_async(1, keys, first).wait()
        assert np.array_equal(pull(client, keys, 65_536), 2 * first)
        assert len(scanned(cluster, client, 65_536)) == 9


def test_more_parts_than_the_window_are_sent_in_turn(shard):
    client = shard.client()
    ones = np.ones((1, 4), np.float32)
    for i in range(3000):  # 3,000 parts to one shard, 1,024 may be under way
        client.push_async(1, u64([i % 7]), ones)
    client.flush()
    rows = pull(client, u64(range(7)), 4)
    assert rows[:, 0].tolist() == [429.0] * 4 + [428.0] * 3
    assert shard.stats("pushes") == 3000


def test_table_of_a_shard_without_fragments_is_fine():
    """More shards than fragments: one owns nothing."""
    with Shards(3, frag_num=2, routed=False) as cluster:
        for thread, fragments in zip(cluster.threads, ([0], [], [1]), strict=True):
            thread.take_route(1, fragments)
        cluster.add_table(1, 2, ADD, ZEROS)
        made = Client(cluster.connect, ["a", "b", "c"], np.array([0, 2]), 1, JOB, 1, LIMIT_S)
        cluster.clients.append(made)
        made.start()
        keys = np.arange(100, dtype=np.uint64)
        made.push_async(1, keys, np.ones((100, 2), np.float32)).wait()
        assert pull(made, keys, 2).sum() == 200


# --- arrays --------------------------------------------------------------------------------------


def test_no_keys_are_answered_at_once(shard):
    client = shard.client()
    assert client.pull_async(1, u64([]), np.zeros((0, 4), np.float32)).wait().shape == (0, 4)
    client.push_async(1, u64([]), np.zeros((0, 4), np.float32)).wait()
    assert client.counters()["bytes_out"] == 0


def test_rows_may_lie_apart(shard):
    client = shard.client()
    keys = u64(range(10))
    wide = np.arange(100, dtype=np.float32).reshape(10, 10)
    client.push_async(1, keys, wide[:, 3:7]).wait()
    out = np.zeros((20, 6), np.float32)
    client.pull_async(1, keys, out[::2, 1:5]).wait()
    assert np.array_equal(out[::2, 1:5], wide[:, 3:7])
    assert not out[1::2].any()
    assert not out[:, [0, 5]].any()


def test_one_value_for_all_keys_may_be_broadcast(shard):
    client = shard.client()
    same = np.broadcast_to(np.full(4, 2.5, np.float32), (50, 4))
    client.push_async(1, u64(range(50)), same).wait()
    assert np.all(pull(client, u64(range(50)), 4) == 2.5)


def test_columns_of_one_float_have_any_stride():
    with Shards(1) as cluster:
        cluster.add_table(1, 1, ADD, ZEROS)
        client = cluster.client()
        row = np.arange(30, dtype=np.float32)[None, :]
        client.push_async(1, u64(range(30)), row.T).wait()
        table = np.zeros((30, 5), np.float32)
        client.pull_async(1, u64(range(30)), table[:, 2:3]).wait()
        assert np.array_equal(table[:, 2], row[0])
        assert table.sum() == row.sum()


def test_single_row_may_have_any_stride(shard):
    client = shard.client()
    backwards = np.arange(8, dtype=np.float32).reshape(2, 4)[::-1][:1]
    client.push_async(1, u64([5]), backwards).wait()
    out = np.zeros((2, 4), np.float32)
    client.pull_async(1, u64([5]), out[::-1][:1]).wait()
    assert out.tolist() == [[0, 0, 0, 0], [4, 5, 6, 7]]


def test_keys_may_change_as_soon_as_the_call_returns(shard):
    client = shard.client()
    keys = u64(range(1000))
    values = np.repeat(np.arange(1000, dtype=np.float32)[:, None], 4, 1)
    pending = client.push_async(1, keys, values)
    keys[:] = 0
    pending.wait()
    assert np.array_equal(pull(client, u64(range(1000)), 4), values)


def test_keys_that_lie_apart_are_taken(shard):
    client = shard.client()
    client.push_async(1, np.arange(20, dtype=np.uint64)[::2], np.ones((10, 4), np.float32)).wait()
    assert pull(client, u64(range(20)), 4)[:, 0].tolist() == [1.0, 0.0] * 10


@pytest.mark.parametrize(
    ("keys", "rows", "words"),
    [
        ([1, 2], np.zeros((2, 4), np.float32), "keys must be a uint64 array"),
        (np.arange(2), np.zeros((2, 4), np.float32), "keys must be a uint64 array"),
        (np.zeros((2, 1), np.uint64), np.zeros((2, 4), np.float32), "one dimension"),
        (u64([1, 2]).astype(">u8"), np.zeros((2, 4), np.float32), "uint64 array"),
        (u64([1, 2]), [[0.0] * 4] * 2, "float32 array"),
        (u64([1, 2]), np.zeros((2, 4)), "float32 array"),
        (u64([1, 2]), np.zeros(8, np.float32), "two dimensions"),
        (u64([1, 2]), np.zeros((3, 4), np.float32), "2 keys but 3 rows"),
        (u64([1, 2]), np.zeros((2, 0), np.float32), "rows of 0 floats"),
        (u64([1]), np.zeros((1, 65_537), np.float32), "65,537 floats, 1 to 65,536"),
        (u64([]), np.broadcast_to(np.float32(0), (0, 1 << 30)), "1 to 65,536"),
        (u64([1, 2]), np.zeros((4, 2), np.float32).T, "each row must be contiguous"),
        (u64([1, 2]), np.zeros((2, 8), np.float32)[:, ::2], "each row must be contiguous"),
        (u64([1, 2]), np.zeros((2, 4), np.float32)[::-1], "rows must follow each other"),
        (
            u64([1, 2]),
            np.frombuffer(bytes(36), np.uint8)[1:33].view(np.float32).reshape(2, 4),
            "aligned",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(shard, keys, rows, words):
    client = shard.client()
    for call in (client.pull_async, client.push_async):
        with pytest.raises(MisuseError, match=words):
            call(1, keys, rows)
    assert client.counters()["open"] == 0


def test_rows_to_pull_into_must_be_writable_and_apart(shard):
    client = shard.client()
    fixed = np.zeros((2, 4), np.float32)
    fixed.flags.writeable = False
    with pytest.raises(MisuseError, match="writable"):
        client.pull_async(1, u64([1, 2]), fixed)
    client.push_async(1, u64([1, 2]), fixed).wait()
    same = np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (2, 4), (0, 4))
    with pytest.raises(MisuseError, match="without overlap"):
        client.pull_async(1, u64([1, 2]), same)


def test_pending_is_not_made_by_hand():
    with pytest.raises(TypeError):
        Pending()


def test_route_that_names_a_shard_that_is_not_there_is_refused():
    for owner in ([0, 2], [], [[0]]):
        with pytest.raises(MisuseError, match="route"):
            Client(lambda shard: -1, ["a", "b"], np.array(owner, np.uint32), 1, JOB, 1)


# --- what shards refuse --------------------------------------------------------------------------


def test_unknown_table_raises_the_shards_words(shard):
    client = shard.client()
    with pytest.raises(RemoteError, match="no table 9 here") as caught:
        pull(client, u64([1]), 4, table=9)
    assert caught.value.code == "table"
    assert pull(client, u64([1]), 4).tolist() == [[0.0] * 4]


def test_pull_of_another_width_fails_and_harms_nothing(shard):
    client = shard.client()
    client.push_async(1, u64(range(5)), np.ones((5, 4), np.float32)).wait()
    with pytest.raises(RemoteError, match="rows of 4 floats here, the request is for 3"):
        pull(client, u64([1]), 3)
    with pytest.raises(RemoteError, match="rows of 4 floats here, the request is for 3"):
        client.push_async(1, u64([1]), np.ones((1, 3), np.float32)).wait()
    with pytest.raises(MisuseError, match="rows of table 1 have 4 floats, not 3"):
        scanned(shard, client, 3)
    assert pull(client, u64(range(5)), 4).sum() == 20
    assert client.counters()["reconnects"] == 0


def test_shard_that_is_not_there_is_refused(shard):
    client = shard.client()
    with pytest.raises(MisuseError, match="no shard 1"):
        list(client.scan(1, 4, [0], 1))
    with pytest.raises(MisuseError, match="no shard 7"):
        client.cut(7)


def test_flush_waits_for_all_and_raises_the_first_error_of_a_push(shard):
    client = shard.client()
    ones = np.ones((1, 4), np.float32)
    client.pull_async(9, u64([1]), ones.copy())
    client.push_async(8, u64([1]), ones)
    client.push_async(7, u64([1]), ones)
    good = [client.push_async(1, u64([i]), ones) for i in range(100)]
    with pytest.raises(RemoteError, match="no table 8"):
        client.flush()
    assert all(pending.done for pending in good)
    client.flush()  # told once


def test_flush_does_not_repeat_an_error_that_was_told(shard):
    client = shard.client()
    with pytest.raises(RemoteError):
        client.push_async(8, u64([1]), np.ones((1, 4), np.float32)).wait()
    client.flush()


def test_error_of_a_push_that_nobody_waited_for_stays_until_flush(shard):
    client = shard.client()
    client.push_async(8, u64([1]), np.ones((1, 4), np.float32))
    for _ in range(200):
        pull(client, u64([1]), 4)
    with pytest.raises(RemoteError, match="no table 8"):
        client.flush()


# --- several callers -----------------------------------------------------------------------------


def test_two_workers_share_the_rows(shard):
    first, second = shard.client(1), shard.client(2)
    keys = u64(range(100))
    for client in (first, second, first):
        client.push_async(1, keys, np.ones((100, 4), np.float32)).wait()
    assert np.all(pull(second, keys, 4) == 3)
    assert shard.stats("repeated") == 0


def test_threads_of_one_client_lose_nothing():
    with Shards(2) as cluster:
        cluster.add_table(1, 2, ADD, ZEROS)
        client = cluster.client()
        keys = u64(range(50))

        def run():
            for _ in range(100):
                client.push_async(1, keys, np.ones((50, 2), np.float32))
                pull(client, keys[:5], 2)

        threads = [threading.Thread(target=run) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        client.flush()
        assert np.all(pull(client, keys, 2) == 600)
        assert client.counters()["open"] == 0


def test_small_pulls_of_one_client_pass_between_the_parts_of_a_large_one():
    with Shards(1) as cluster:
        cluster.add_table(1, 1024, ADD, UNIFORM)
        greedy, small = cluster.client(1), cluster.client(2)
        rows = np.zeros((20_000, 1024), np.float32)  # 80 MB
        big = greedy.pull_async(1, np.arange(20_000, dtype=np.uint64), rows)
        first = pull(small, u64([3]), 1024)
        for _ in range(20):
            assert np.array_equal(pull(small, u64([3]), 1024), first)
        assert np.array_equal(big.wait()[3], first[0])


# --- lost connections ----------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2])
def test_cut_in_the_middle_of_pushes_keeps_sums_exact(shards):
    with Shards(shards, frag_num=256) as cluster:
        cluster.add_table(1, 8, ADD, ZEROS)
        client = cluster.client()
        keys = np.arange(60_000, dtype=np.uint64)
        ones = np.ones((60_000, 8), np.float32)
        for turn in range(15):
            pushes = [client.push_async(1, keys, ones) for _ in range(2)]
            client.cut(turn % shards)
            rows = pull(client, keys[::100].copy(), 8)
            client.cut((turn + 1) % shards)
            for pending in pushes:
                pending.wait()
            assert np.all(rows == 2 * (turn + 1))
        assert np.all(pull(client, keys, 8) == 30)
        assert client.counters()["reconnects"] > 0


def test_cut_in_the_middle_of_scans_gives_each_row_once():
    with Shards(2) as cluster:
        cluster.add_table(1, 64, ADD, ZEROS)
        client = cluster.client()
        keys = np.arange(20_000, dtype=np.uint64)
        client.push_async(1, keys, np.ones((20_000, 64), np.float32)).wait()
        found = []
        for index in range(2):
            for some, _ in client.scan(1, 64, cluster.route.fragments_of(index).tolist(), index):
                found += some.tolist()
                client.cut(index)
        assert sorted(found) == keys.tolist()


def test_shard_that_cannot_be_reached_again_ends_the_client(shard):
    client = shard.client()
    pull(client, u64([1]), 4)
    shard.refuse = ProtocolError("this port was given to another cluster", "job")
    client.cut(0)
    with pytest.raises(ConnectionLost, match=r"pull of 1 rows.*given to another cluster"):
        pull(client, u64([1]), 4)
    with pytest.raises(ConnectionLost):
        client.push_async(1, u64([1]), np.ones((1, 4), np.float32)).wait()


def test_connect_that_breaks_ends_the_client_with_its_reason(shard):
    def connect(index):
        if broken.is_set():
            raise OSError("no route to host")
        return shard.connect(index)

    broken = threading.Event()
    client = Client(connect, ["the shard"], shard.route.owner, 1, JOB, 1, LIMIT_S)
    shard.clients.append(client)
    client.start()
    broken.set()
    client.cut(0)
    with pytest.raises(ConnectionLost, match=r"cannot reconnect to the shard: .*no route to host"):
        pull(client, u64([1]), 4)


# --- the end -------------------------------------------------------------------------------------


def test_fail_ends_what_waits_and_what_comes(shard):
    client = shard.client(epoch=2)  # its requests park
    waiting = client.pull_async(1, u64([1]), np.zeros((1, 4), np.float32))
    shard.until("parked", lambda n: n == 1)
    assert not waiting.done
    client.fail("the master ended the job: \u4e2d")
    with pytest.raises(ConnectionLost, match="the master ended the job: \u4e2d"):
        waiting.wait()
    assert waiting.done
    client.fail("another reason")
    with pytest.raises(ConnectionLost, match="ended the job"):
        pull(client, u64([1]), 4)
    with pytest.raises(ConnectionLost):
        list(client.scan(1, 4, [0], 0))


def test_close_fails_open_requests_and_twice_is_harmless(shard):
    client = shard.client(epoch=2)
    waiting = [
        client.push_async(1, u64(range(1000)), np.ones((1000, 4), np.float32)) for _ in range(5)
    ]
    shard.until("parked", lambda n: n == 5)
    client.close()
    client.close()
    for pending in waiting:
        with pytest.raises(ConnectionLost, match="the client was closed"):
            pending.wait()
    with pytest.raises(ConnectionLost, match="the client was closed"):
        pull(client, u64([1]), 4)
    with pytest.raises(MisuseError, match="starts once"):
        client.start()
    assert client.counters()["open"] == 0


def test_close_of_a_client_that_never_started_fails_its_requests(shard):
    client = shard.client(start=False)
    waiting = client.pull_async(1, u64([1]), np.zeros((1, 4), np.float32))
    client.close()
    with pytest.raises(ConnectionLost):
        waiting.wait()


def test_requests_made_before_the_start_are_served(shard):
    client = shard.client(start=False)
    waiting = client.pull_async(1, u64([1]), np.full((1, 4), 9, np.float32))
    client.start()
    assert waiting.wait().tolist() == [[0.0] * 4]


def test_close_while_others_call_ends_every_wait():
    with Shards(2) as cluster:
        cluster.add_table(1, 4, ADD, ZEROS)
        for _ in range(10):
            client, started = cluster.client(), threading.Semaphore(0)

            def run(client=client, started=started):
                keys, rows = u64(range(500)), np.ones((500, 4), np.float32)
                try:
                    while True:
                        client.push_async(1, keys, rows)
                        client.pull_async(1, keys, rows.copy()).wait()
                        started.release()
                except ConnectionLost:
                    pass

            threads = [threading.Thread(target=run) for _ in range(3)]
            for thread in threads:
                thread.start()
            for _ in range(6):
                assert started.acquire(timeout=LIMIT_S)
            client.close()
            for thread in threads:
                thread.join(LIMIT_S)
                assert not thread.is_alive()
            assert client.counters()["open"] == 0


def test_start_that_fails_half_way_closes_what_it_opened():
    with Shards(2) as cluster:
        before = open_descriptors()

        def connect(index):
            if index == 1:
                raise WaitTimeout("cannot reach shard 1")
            return cluster.connect(index)

        client = Client(connect, ["a", "b"], cluster.route.owner, 1, JOB, 1)
        with pytest.raises(WaitTimeout, match="shard 1"):
            client.start()
        client.close()
        del client
        cluster.until("connections", lambda n: n == 0)
        assert open_descriptors() == before


def test_connection_that_comes_after_the_end_is_closed(shard):
    let_go, asked = threading.Event(), threading.Event()
    first = []

    def connect(index):
        if first:
            asked.set()
            let_go.wait(LIMIT_S)
        first.append(None)
        return shard.connect(index)

    client = Client(connect, ["a"], shard.route.owner, 1, JOB, 1)
    client.start()
    client.cut(0)
    assert asked.wait(LIMIT_S)
    client.close()
    let_go.set()
    shard.until("accepted", lambda n: n == 2)
    shard.until("connections", lambda n: n == 0)


def test_clients_leave_no_descriptor_behind(shard):
    before = open_descriptors()
    for _ in range(3):
        client = shard.client()
        pull(client, u64(range(10)), 4)
        client.cut(0)
        pull(client, u64(range(10)), 4)
        client.close()
        shard.clients.remove(client)
        del client
    shard.until("connections", lambda n: n == 0)
    assert open_descriptors() == before


# --- correct -------------------------------------------------------------------------------------


def prefetched(cluster, client, pull_keys, push_keys, dim, seed):
    """A pull called before a push: (pull, push, base) with both answered."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-5, 5, (len(push_keys), dim)).astype(np.float32)
    early = client.pull_async(1, u64(pull_keys), np.zeros((len(pull_keys), dim), np.float32))
    push = client.push_async(1, u64(push_keys), values)
    early.wait()
    return early, push


@settings(max_examples=30, deadline=None)
@given(keys_lists, keys_lists, st.booleans(), st.sampled_from([1, 3]))
def test_corrected_pull_equals_a_pull_after_the_push(pull_keys, push_keys, wait, dim):
    with Shards(2) as cluster:
        cluster.add_table(1, dim, ADD, ZEROS)
        client = cluster.client()
        early, push = prefetched(cluster, client, pull_keys, push_keys, dim, 5)
        if wait:
            push.wait()
        base = early.rows.copy()
        corrected = client.correct(early, push, base)
        push.wait()
        late = pull(client, u64(pull_keys), dim)
        assert np.array_equal(early.rows, late)
        assert np.array_equal(base, late)
        pairs = sum(push_keys.count(key) for key in pull_keys)
        assert corrected == pairs


def test_pull_that_has_the_push_already_is_not_corrected(shard):
    client = shard.client()
    keys = u64(range(20))
    push = client.push_async(1, keys, np.ones((20, 4), np.float32))
    late = client.pull_async(1, keys, np.zeros((20, 4), np.float32))
    late.wait()
    assert client.correct(late, push) == 0
    assert np.all(late.rows == 1)


def test_correct_stays_exact_when_the_pull_had_to_be_sent_again():
    """A pull that is repeated after a cut may see the push: the mark tells, row by row."""
    with Shards(2) as cluster:
        cluster.add_table(1, 8, ADD, ZEROS)
        client = cluster.client()
        keys = np.arange(50_000, dtype=np.uint64)
        total = 0
        for turn in range(10):
            rows = np.zeros((50_000, 8), np.float32)
            early = client.pull_async(1, keys, rows)
            push = client.push_async(1, keys, np.full((50_000, 8), turn + 1, np.float32))
            client.cut(turn % 2)
            early.wait()
            client.correct(early, push)
            total += turn + 1
            assert np.all(rows == total)
            push.wait()


def test_correct_of_a_push_with_one_key_many_times_is_quick(shard):
    """Repetitions hang in a chain: they cost no more than distinct keys."""
    client = shard.client()
    n = 300_000
    values = np.ones((n, 4), np.float32)
    early = client.pull_async(1, u64([3, 4]), np.zeros((2, 4), np.float32))
    push = client.push_async(1, np.full(n, 3, np.uint64), values)
    early.wait()
    assert client.correct(early, push) == n
    push.wait()
    assert early.rows[:, 0].tolist() == [n, 0]


def test_correct_refuses_what_does_not_belong_together(shard):
    shard.add_table(2, 4)
    client, other = shard.client(1), shard.client(2)
    keys, rows = u64(range(3)), np.zeros((3, 4), np.float32)
    early = client.pull_async(1, keys, rows)
    early.wait()
    push = client.push_async(1, keys, rows.copy())
    push.wait()
    failed = client.pull_async(9, keys, rows.copy())
    narrow = client.push_async(1, keys, np.zeros((3, 2), np.float32))
    foreign = other.push_async(1, keys, rows.copy())
    elsewhere = client.push_async(2, keys, rows.copy())
    for pending in (failed, narrow):
        with pytest.raises(RemoteError):
            pending.wait()
    for a, b in (
        (push, push), (early, early), (failed, push), (early, narrow), (early, foreign),
        (early, elsewhere),
    ):  # fmt: skip
        with pytest.raises(MisuseError, match="finished pull and a push"):
            client.correct(a, b)
    for base in (rows[:2].copy(), np.zeros((3, 3), np.float32), rows.astype(np.float64)):
        with pytest.raises(MisuseError):
            client.correct(early, push, base)
    assert client.correct(early, push, rows.copy()) == 3


FIRST = 1024  # what a client calls its first part

# --- a scripted shard ----------------------------------------------------------------------------


class Script:
    """A shard whose connections are served by functions of the test, one a connection."""

    def __init__(self, *connections):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.connections, self.socks, self.errors = list(connections), [], queue.Queue()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for sock in self.socks:
            sock.close()
        self.thread.join(LIMIT_S)
        assert self.errors.empty(), self.errors.get()

    def _run(self):
        try:
            for serve in self.connections:
                sock, _ = self.listener.accept()
                self.socks.append(sock)
                sock.settimeout(LIMIT_S)
                wire = Wire(sock)
                session = ServerSession(Hello(Channel.DATA, Role.SERVER, os.urandom(16), job=JOB))
                while not session.ready:
                    wire.send(session.receive(wire.next()))
                serve(wire)
        except OSError:
            pass
        except BaseException as error:
            self.errors.put(error)

    def client(self, shards, timeout_s=LIMIT_S):
        shards.ports = [self.listener.getsockname()[1]]
        return shards.client(timeout_s=timeout_s)


class Wire:
    def __init__(self, sock):
        self.sock, self.decoder, self.frames = sock, FrameDecoder(), []

    def send(self, *frames):
        self.sock.sendall(b"".join(encode_frame(frame) for frame in frames))

    def next(self):
        while not self.frames:
            data = self.sock.recv(1 << 20)
            if not data:
                raise ConnectionError("closed")
            self.frames += self.decoder.feed(data)
        return self.frames.pop(0)


def groups_of(frame):
    return int.from_bytes(frame.body[12:16], "little")


def seq_of(frame):
    return int.from_bytes(frame.body[:8], "little")


def answer(frame, value=0.0, dim=4):
    """The reply to a PULL (rows all `value`) or a PUSH."""
    if frame.kind == Kind.PUSH:
        return Frame(Kind.PUSHED, request=frame.request)
    keys = int.from_bytes(frame.body[8:12], "little")
    body = bytes(8 * groups_of(frame)) + np.full(keys * dim, value, "<f4").tobytes()
    return Frame(Kind.PULLED, body + bytes(-len(body) % 8), request=frame.request)


@pytest.fixture
def one():
    with Shards(1) as made:
        yield made


ROWS = np.ones((1, 4), np.float32)


def test_unanswered_parts_are_sent_again_in_order_before_anything_new(one):
    seen = []

    def first(wire):
        for _ in range(6):
            seen.append(wire.next())
        wire.send(answer(seen[1]), answer(seen[4]))
        again.wait(LIMIT_S)
        wire.sock.close()

    def second(wire):
        for _ in range(5):
            seen.append(wire.next())
        wire.send(*[answer(frame) for frame in seen[6:]])

    again = threading.Event()
    with Script(first, second) as script:
        client = script.client(one)
        pending = [client.push_async(1, u64([i]), ROWS) for i in range(6)]
        pending[1].wait()
        pending[4].wait()
        again.set()
        pending.append(client.push_async(1, u64([6]), ROWS))
        for each in pending:
            each.wait()
    assert [seq_of(frame) for frame in seen] == [1, 2, 3, 4, 5, 6, 1, 3, 4, 6, 7]
    for number in (0, 2, 3, 5):
        assert seen[number] in seen[6:]


def test_replies_in_any_order_and_repeated_ones_find_their_requests(one):
    def serve(wire):
        frames = [wire.next() for _ in range(10)]
        for value, frame in reversed(list(enumerate(frames, 1))):
            reply = answer(frame, value=float(value))
            wire.send(reply, reply, reply)
        wire.send(answer(frames[0], value=99.0), Frame(Kind.PULLED, bytes(24), request=FIRST2345))
        wire.send(answer(wire.next(), value=11.0))
        over.wait(LIMIT_S)

    over = threading.Event()
    with Script(serve) as script:
        client = script.client(one)
        pending = [client.pull_async(1, u64([i]), np.zeros((1, 4), np.float32)) for i in range(10)]
        got = [each.wait()[0, 0] for each in pending]
        assert pull(client, u64([3]), 4)[0, 0] == 11.0
        assert [each.rows[0, 0] for each in pending] == got == list(range(1, 11))
        assert client.counters()["reconnects"] == 0
        over.set()


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(64),
        encode_frame(Frame(Kind.PUSHED))[:4] + b"\x02" + bytes(43),
        encode_frame(Frame(Kind.PUSHED, request=FIRST)),  # of another kind than was asked
        encode_frame(Frame(Kind.SCANNED, bytes(16), request=FIRST)),
        encode_frame(Frame(Kind.PULLED, request=FIRST))[:40] + b"\xff" * 8,  # beyond all limits
        encode_frame(Frame(Kind.PULLED, bytes(24), request=FIRST))[:-1],  # half, then the end
        b"",
    ],
)
def test_reply_that_breaks_the_format_costs_only_the_connection(one, reply):
    def first(wire):
        wire.next()
        wire.sock.sendall(reply)
        wire.sock.close()

    def second(wire):
        wire.send(answer(wire.next(), value=3.0))
        over.wait(LIMIT_S)

    over = threading.Event()
    with Script(first, second) as script:
        client = script.client(one)
        assert pull(client, u64([1]), 4)[0, 0] == 3.0
        assert client.counters()["reconnects"] == 1
        over.set()


def test_shard_that_closes_again_and_again_ends_the_client(one):
    def close(wire):
        wire.sock.close()

    with Script(*[close] * 30) as script:
        client = script.client(one)
        with pytest.raises(ConnectionLost, match="closes the connection again and again"):
            pull(client, u64([1]), 4)
        assert 5 <= client.counters()["reconnects"] <= 20


def test_error_about_the_whole_connection_ends_the_client_with_its_words(one):
    def serve(wire):
        wire.next()
        wire.send(error_frame(ProtocolError("speak version 2", "version")))
        over.wait(LIMIT_S)

    over = threading.Event()
    with Script(serve) as script:
        client = script.client(one)
        with pytest.raises(ConnectionLost, match="pull of 1 rows of table 1: speak version 2"):
            pull(client, u64([1]), 4)
        over.set()


def test_wait_keeps_its_limit_while_other_requests_are_answered(one):
    def serve(wire):
        while True:
            frame = wire.next()
            if frame.table != 2:
                wire.send(answer(frame))

    with Script(serve) as script:
        client = script.client(one)
        slow = client.pull_async(2, u64([1]), np.zeros((1, 4), np.float32))
        over = threading.Event()

        def busy():
            while not over.is_set():
                pull(client, u64([1]), 4)

        threads = [threading.Thread(target=busy) for _ in range(2)]
        for thread in threads:
            thread.start()
        begin = time.monotonic()
        with pytest.raises(WaitTimeout, match=r"pull of 1 rows of table 2 .* shard 0 \(1 parts"):
            slow.wait(0.3)
        assert time.monotonic() - begin >= 0.3
        over.set()
        for thread in threads:
            thread.join(LIMIT_S)
        assert not slow.done


def test_request_that_timed_out_is_still_served(one):
    def serve(wire):
        frame = wire.next()
        late.wait(LIMIT_S)
        wire.send(answer(frame, value=7.0))
        over.wait(LIMIT_S)

    late, over = threading.Event(), threading.Event()
    with Script(serve) as script:
        client = script.client(one, timeout_s=0.01)
        pending = client.pull_async(1, u64([1]), np.zeros((1, 4), np.float32))
        with pytest.raises(WaitTimeout):
            pending.wait()
        late.set()
        assert pending.wait(LIMIT_S)[0, 0] == 7.0
        over.set()


def test_blocked_sending_never_stops_receiving(one):
    """The shard reads nothing more until its replies to what it has read were all taken."""

    def serve(wire):
        pulls = [wire.next() for _ in range(64)]
        for frame in pulls:  # 16 MiB of replies, while 32 MiB of pushes wait to be read
            wire.send(answer(frame, value=1.0, dim=65_536))
        for _ in range(128):
            wire.send(answer(wire.next()))
        over.wait(LIMIT_S)

    over = threading.Event()
    with Script(serve) as script:
        client = script.client(one)
        rows = np.zeros((1, 65_536), np.float32)
        pulls = [client.pull_async(1, u64([i]), rows.copy()) for i in range(64)]
        pushes = [client.push_async(1, u64([i]), rows) for i in range(128)]
        assert all(each.wait().all() for each in pulls)
        for each in pushes:
            each.wait()
        over.set()
