"""The fan-out client against real shards: sums, arrays, callers, and pulls corrected later."""

import contextlib
import gc
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shards import ADD, JOB, LIMIT_S, UNIFORM, ZEROS, Shards, a_table, pull, resident_bytes, u64
from test_shard_commands import blocked
from waiting import run_all, until

from snailps.errors import MisuseError, RemoteError, WaitTimeout
from snailps.transport.client import _pending
from snailps.transport.client._client import Client, Pending

EDGE_KEYS = [0, 1, 2, 3, 2**63, 2**64 - 1, 77, 1234567]


# --- against a model -----------------------------------------------------------------------------

keys_lists = st.lists(st.sampled_from(EDGE_KEYS) | st.integers(0, 40), max_size=30)
steps = st.lists(st.tuples(st.sampled_from(["push", "pull"]), keys_lists), max_size=12)


@pytest.mark.parametrize("shards", [1, 2, 4])
@pytest.mark.parametrize("dim", [1, 3])
@settings(max_examples=25, deadline=None)
@given(steps=steps, wait=st.booleans())
def test_any_pushes_and_pulls_agree_with_a_dictionary(shards, dim, steps, wait):
    """Without waiting too: requests take effect in the order of the calls."""
    with a_table(dim, shards=shards) as (cluster, client):
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
    for keys, rows in client.scan(table, dim, range(cluster.frag_num)):
        for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
            assert key not in found
            found[key] = row
    return found


@pytest.mark.parametrize(
    ("shards", "dim", "n"), [(1, 100, 20000), (3, 1, 100000), (4, 7, 50000), (2, 65_536, 9)]
)
def test_requests_of_many_parts_come_back_whole(shards, dim, n):
    rng = np.random.default_rng(dim)
    with a_table(dim, ADD, UNIFORM, shards=shards, frag_num=256) as (cluster, client):
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


def test_more_parts_than_the_window_are_sent_in_turn(shard):
    client = shard.client()
    ones = np.ones((1, 4), np.float32)
    for i in range(3000):  # 3,000 parts to one shard, 1,024 may be under way
        client.push_async(1, u64([i % 7]), ones)
    client.flush()
    rows = pull(client, u64(range(7)), 4)
    assert rows[:, 0].tolist() == [429.0] * 4 + [428.0] * 3
    assert shard.stats("pushes") == 3000


def test_shard_without_fragments_is_asked_for_nothing():
    """One that owns nothing, in the middle."""
    with Shards(3, frag_num=4, routed=False) as cluster:
        for thread, fragments in zip(cluster.threads, ([0, 2], [], [1, 3]), strict=True):
            thread.take_route(1, np.array(fragments, np.uint32))
        cluster.add_table(1, 2, ADD, ZEROS)
        owner = np.array([0, 2, 0, 2])
        made = Client(cluster.connect, ["a", "b", "c"], owner, 1, JOB, 1, LIMIT_S)
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


LAYOUTS = {  # values of ten keys, where they may lie
    "columns of wider rows": np.arange(100, dtype=np.float32).reshape(10, 10)[:, 3:7],
    "every other row": np.arange(80, dtype=np.float32).reshape(20, 4)[::2],
    "one value for all": np.broadcast_to(np.full(4, 2.5, np.float32), (10, 4)),
    "a column of a row": np.arange(10, dtype=np.float32)[None, :].T,
    "a single row, backwards": np.arange(8, dtype=np.float32).reshape(2, 4)[::-1][:1],
}


@pytest.mark.parametrize("values", LAYOUTS.values(), ids=LAYOUTS)
def test_keys_and_rows_may_lie_apart(values):
    n, dim = values.shape
    keys = np.arange(2 * n, dtype=np.uint64)[::2]
    with a_table(dim) as (_, client):
        client.push_async(1, keys, values).wait()
        out = np.zeros((2 * n, dim + 2), np.float32)
        client.pull_async(1, keys, out[::2, 1:-1]).wait()
        assert np.array_equal(out[::2, 1:-1], values)
        assert not out[1::2].any()
        assert not out[:, [0, -1]].any()
        assert not pull(client, keys + np.uint64(1), dim).any()
        one = np.zeros((2, dim), np.float32)
        client.pull_async(1, keys[:1], one[::-1][:1]).wait()
        assert np.array_equal(one, [np.zeros(dim), values[0]])


def test_keys_may_change_as_soon_as_the_call_returns(shard):
    client = shard.client()
    keys = u64(range(1000))
    values = np.repeat(np.arange(1000, dtype=np.float32)[:, None], 4, 1)
    pending = client.push_async(1, keys, values)
    keys[:] = 0
    pending.wait()
    assert np.array_equal(pull(client, u64(range(1000)), 4), values)


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
    with pytest.raises(MisuseError, match=f"no fragment {shard.frag_num}"):
        list(client.scan(1, 4, [0, shard.frag_num]))
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


def test_flush_tells_once_of_a_push_whose_caller_had_given_up(shard):
    client = shard.client(epoch=2, timeout_s=0.05)  # its requests park
    with pytest.raises(WaitTimeout):
        client.push(8, u64([1]), np.ones((1, 4), np.float32))
    shard.take_route(2)
    with pytest.raises(RemoteError, match="no table 8"):
        client.flush(LIMIT_S)
    client.flush(LIMIT_S)


# --- several callers -----------------------------------------------------------------------------


def test_threads_of_one_client_lose_nothing():
    with a_table(2, shards=2) as (_, client):
        keys = u64(range(50))

        def run(_):
            for _ in range(100):
                client.push_async(1, keys, np.ones((50, 2), np.float32))
                pull(client, keys[:5], 2)

        run_all(*(partial(run, one) for one in range(6)))
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
    with a_table(dim, shards=2) as (cluster, client):
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
    with a_table(8, shards=2) as (_, client):
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


@pytest.mark.parametrize("cut", [False, True])
def test_pull_that_went_ahead_is_corrected_by_the_pushes_it_overtook(cut):
    with a_table(64, shards=2, frag_num=256) as (cluster, client):
        keys = np.arange(30_000, dtype=np.uint64)
        ones = np.ones((30_000, 64), np.float32)
        some = keys[5::7].copy()
        for turn in range(1, 9):
            with blocked(cluster.threads[0]), blocked(cluster.threads[1]):
                # More than the sockets take: the last one is still here when the pull comes.
                pushes = [client.push_async(1, keys, ones) for _ in range(4)]
                pull = client.pull_async(1, some, np.empty((len(some), 64), np.float32), ahead=True)
            if cut:
                client.cut(turn % 2)
            rows = pull.wait()
            assert sum(client.correct(pull, push) for push in pushes) > 0
            assert np.all(rows == 4 * turn)
            client.flush()
        rows = client.pull(1, some, np.empty((len(some), 64), np.float32))
        assert np.all(rows == 4 * turn)


# --- requests that are sent together -------------------------------------------------------------


def test_corked_calls_keep_their_order(shard):
    client = shard.client()
    ones = np.ones((1, 4), np.float32)
    client.cork()
    pushes = [client.push_async(1, u64([5]), ones) for _ in range(3)]
    seen = client.pull_async(1, u64([5]), np.empty((1, 4), np.float32))
    pushes.append(client.push_async(1, u64([5]), ones))
    assert (seen.wait() == 3).all()
    client.uncork()
    client.flush()
    assert all(push.done for push in pushes)


def test_uncork_sends_what_no_caller_waits_for(shard):
    client = shard.client()
    client.cork()
    client.cork()
    push = client.push_async(1, u64([6]), np.ones((1, 4), np.float32))
    client.uncork()
    client.uncork()
    assert comes(push)


def comes(pending):
    """Waits, though not with the client, until it is answered."""
    return until(lambda: pending.done, "an answer that nothing waits for")


def test_cork_holds_calls_of_its_own_thread_only(shard):
    client = shard.client()
    client.cork()
    with ThreadPoolExecutor(1) as other:
        push = other.submit(client.push_async, 1, u64([6]), np.ones((1, 4), np.float32)).result()
        assert comes(push)
        with pytest.raises(MisuseError, match="without cork"):
            other.submit(client.uncork).result()
    client.uncork()


def test_wait_for_what_is_there_sends_corked_calls(shard):
    others = event_counters()
    client = shard.client()
    (descriptor,) = event_counters() - others
    rows = client.pull_async(1, u64([5]), np.empty((1, 4), np.float32))
    assert comes(rows)

    def is_sent():
        client.cork()
        client.push_async(1, u64([6]), np.ones((1, 4), np.float32))
        told = count_of(descriptor)
        rows.wait()
        told = count_of(descriptor) - told
        client.uncork()
        return told

    with deaf(descriptor):
        # Once a second the client's thread looks by itself, and may be the first.
        assert any(is_sent() for _ in range(100))


def event_counters():
    """Descriptors of this process by which one thread wakes another."""
    gc.collect()  # what earlier tests left in cycles must not be closed before the next look
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the folder itself goes
            if "eventfd" in str(path.readlink()):
                found.add(int(path.name))
    return found


def count_of(descriptor):
    """What was written to such a descriptor and is not read yet."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("eventfd-count:"))


@contextlib.contextmanager
def deaf(descriptor):
    """What is written to such a descriptor is counted, and wakes no thread."""
    until(lambda: count_of(descriptor) == 0, "the end of what was written before")
    kept, counter = os.dup(descriptor), os.eventfd(0, os.EFD_NONBLOCK)
    os.dup2(counter, descriptor)
    try:
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
        os.close(counter)


def test_uncork_without_cork_is_refused(shard):
    with pytest.raises(MisuseError, match="without cork"):
        shard.client().uncork()


def test_clock_that_is_asked_for_ahead_is_told_once_a_caller_waits_for_it(shard, monkeypatch):
    """A worker that trained a long block seemed to wait for shards."""
    monkeypatch.setattr(_pending, "REPORTED_S", 0.0)
    client = shard.client()
    reach = client.reach_async(9)  # no clock is open: it parks
    shard.until("parked", lambda n: n == 1)
    assert client.waits() == []
    with pytest.raises(WaitTimeout):
        reach.wait(0.01)
    assert [what for what, _, _ in client.waits()] == ["reach of clock 9"]


def test_memory_of_large_requests_goes_back_when_nothing_is_asked_for(shard):
    client = shard.client()
    keys = np.arange(700_000, dtype=np.uint64)
    reach = client.reach_async(9)  # no clock is open: as long as it is asked for, all is kept
    client.pull_async(1, keys, np.empty((len(keys), 4), np.float32)).wait()
    while_kept = resident_bytes()
    given_back = 10 * len(keys)  # of 20 bytes a key
    shard.threads[0].set_clock(9)
    reach.wait()
    until(lambda: while_kept - resident_bytes() >= given_back, "memory that goes back")
