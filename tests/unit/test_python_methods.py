"""Access methods written in Python, in real shards, and in a cluster."""

import numpy as np
import pytest
from shards import Shards, push_frame

from snailps import Table
from snailps.abi.key_hash import fragment_of
from snailps.api.access_method import load_method
from snailps.errors import ConfigError, MisuseError, RemoteError
from snailps.transport.frame import HANDSHAKE_BODY_MAX, Kind
from snailps.transport.handshake import remote_error

KEYS = np.arange(1000, dtype=np.uint64)
MOMENTUM = Table("w", 3, "python_methods:Momentum", lr=0.25)


def pull(client, keys, width, state=False, table=1):
    rows = np.empty((len(keys), width), np.float32)
    return client.pull_async(table, keys, rows, state).wait()


def momentum_after(pushes, start):
    weights, speed = start.astype(np.float32), np.zeros_like(start, dtype=np.float32)
    for values in pushes:
        speed = 0.5 * speed + values
        weights = weights - 0.25 * speed
    return weights, speed


@pytest.mark.parametrize("count", [1, 3])
def test_python_method_does_what_it_says(count):
    with Shards(count) as cluster:
        cluster.declare(MOMENTUM)
        client = cluster.client()
        start = np.repeat(KEYS[:, None], 3, axis=1)
        assert np.array_equal(pull(client, KEYS, 3), 2 * start)
        assert cluster.stats("rows") == 0
        pushes = [np.full((1000, 3), x, np.float32) for x in (4, 8, -2)]
        for values in pushes:
            client.push_async(1, KEYS, values, merge=True).wait()
        weights, speed = momentum_after(pushes, start)
        assert np.array_equal(pull(client, KEYS[::-1].copy(), 3), 2 * weights[::-1])
        both = pull(client, KEYS, 6, state=True)
        assert np.array_equal(both, np.hstack([weights, speed]))
        found = {
            key: row
            for keys, rows in client.scan(1, 3, range(cluster.frag_num))
            for key, row in zip(keys.tolist(), rows.tolist(), strict=True)
        }
        assert found == dict(zip(KEYS.tolist(), (2 * weights).tolist(), strict=True))
        assert client.pull_async(1, KEYS[:0], np.empty((0, 3), np.float32)).wait().shape == (0, 3)
        with pytest.raises(RemoteError, match="takes no differences"):
            client.push_async(1, KEYS, both, state=True).wait()


def test_python_method_rows_of_many_parts_and_few_keys_a_fragment():
    keys = np.random.default_rng(1).permutation(20_000).astype(np.uint64)
    with Shards(1, frag_num=1024) as cluster:
        cluster.declare(MOMENTUM)
        client = cluster.client()
        client.push_async(1, keys, np.repeat(keys[:, None], 3, 1).astype(np.float32)).wait()
        assert np.array_equal(pull(client, keys, 3), np.repeat(keys[:, None] * 1.5, 3, 1))
        assert cluster.stats("rows") == 20_000


def test_python_method_inherits_first_values_and_plain_pulls():
    with Shards(1) as cluster:
        settings = {"init": "normal", "scale": 0.5, "seed": 3}
        cluster.declare(Table("a", 4, "python_methods:Plain", **settings))
        cluster.declare(Table("b", 4, **settings), 2)
        client = cluster.client()
        for _ in range(2):
            assert np.array_equal(pull(client, KEYS, 4), pull(client, KEYS, 4, table=2))
            for table in (1, 2):
                client.push_async(table, KEYS, np.ones((1000, 4), np.float32)).wait()


def test_python_method_gets_a_repeated_key_once_with_the_sum():
    fragment = int(fragment_of(KEYS[7:8], 64)[0])
    values = [[1, 0, 0], [2, 0, 0], [4, 0, 0]]
    with Shards(1) as cluster:
        cluster.declare(MOMENTUM)
        with cluster.raw() as one:  # a client that did not merge them
            frame = push_frame({fragment: [7, 7, 7]}, values)
            assert one.ask(frame).kind == Kind.PUSHED
            assert one.ask(frame).kind == Kind.PUSHED  # a repetition
        client = cluster.client(2)
        assert pull(client, KEYS[7:8], 6, state=True)[0, 3] == 7
        client.push_async(1, np.full(9000, 7, np.uint64), np.ones((9000, 3), np.float32),
                          merge=True).wait()  # fmt: skip
        assert pull(client, KEYS[7:8], 6, state=True)[0, 3] == 9003.5
        assert cluster.stats("repeated") == 1


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (-1, ["python_methods:Faulty", "ValueError: planted failure", "x" * 1000, " its end"]),
        (-2, ["push() must return rows of shape (1, 2), it returned (1, 1)"]),
        (-3, ["could not convert string to float"]),
    ],
)
def test_python_method_that_fails_in_push_tells_the_worker_and_the_server_lives(value, parts):
    with Shards(1) as cluster:
        cluster.declare(Table("w", 2, "python_methods:Faulty"))
        client, other = cluster.client(1), cluster.client(2)
        with pytest.raises(RemoteError) as caught:
            client.push_async(1, KEYS[:1], np.full((1, 2), value, np.float32)).wait()
        assert caught.value.code == "access"
        for part in parts:
            assert part in str(caught.value)
        assert cluster.stats("rows") == 0
        for one in (client, other):
            one.push_async(1, KEYS[:5], np.ones((5, 2), np.float32)).wait()
        assert pull(client, KEYS[:5], 2).tolist() == [[2, 2]] * 5


def test_python_method_traceback_fits_the_frame_and_names_the_line():
    with Shards(1) as cluster:
        cluster.declare(Table("w", 2, "python_methods:Faulty"))
        fragment = int(fragment_of(KEYS[7:8], 64)[0])
        with cluster.raw() as one:
            for value in (-1, -2):
                reply = one.ask(push_frame({fragment: [7]}, [[value, 0]], seq=1))
                assert reply.kind == Kind.ERROR
                assert len(reply.body) <= HANDSHAKE_BODY_MAX
            assert "Traceback (most recent call last)" in str(remote_error(reply))
            assert one.ask(push_frame({fragment: [7]}, [[1, 0]], seq=1)).kind == Kind.PUSHED


def test_python_method_that_fails_in_init_or_pull_tells_the_worker():
    with Shards(1) as cluster:
        cluster.declare(Table("w", 2, "python_methods:Faulty"))
        client = cluster.client()
        with pytest.raises(RemoteError, match="planted failure in init"):
            pull(client, KEYS[10:20], 2)
        with pytest.raises(RemoteError, match="planted failure in init"):
            client.push_async(1, KEYS[13:14], np.ones((1, 2), np.float32)).wait()
        client.push_async(1, KEYS[5:6], np.full((1, 2), 99, np.float32)).wait()
        with pytest.raises(RemoteError, match="SystemExit: planted failure in pull"):
            pull(client, KEYS[:10], 2)
        with pytest.raises(RemoteError, match="planted failure in pull"):
            list(client.scan(1, 2, range(cluster.frag_num)))
        assert pull(client, KEYS[:5], 2).tolist() == [[0, 0]] * 5


@pytest.mark.parametrize(
    ("access", "parts"),
    [
        ("no_such_module_here:Method", ["access: no_such_module_here:Method", "PYTHONPATH"]),
        ("python_methods:Missing", ["no snailps.AccessMethod of that name", "Momentum"]),
        ("__main__:Method", ["notebook cell"]),
    ],
)
def test_python_method_that_cannot_be_found_says_how_to_make_it_so(access, parts):
    with pytest.raises(ConfigError) as caught:
        load_method(Table("w", 2, access))
    for part in parts:
        assert part in str(caught.value)


def test_python_method_declared_wrongly_is_refused():
    with Shards(1) as cluster:
        (thread,) = cluster.threads
        with pytest.raises(MisuseError, match=r"Wide.state_floats must be an integer from 0"):
            cluster.declare(Table("w", 2, "python_methods:Wide"))
        with pytest.raises(MisuseError, match="needs an AccessMethod"):
            thread.add_table(1, *MOMENTUM.store_arguments())
        with pytest.raises(MisuseError, match="needs an AccessMethod"):
            thread.add_table(1, 2, 0, 0, 0.0, 1, (), method=load_method(MOMENTUM))
        cluster.declare(Table("w", 2, "python_methods:Silent"))
        with pytest.raises(RemoteError, match=r"Silent has no push\(\)"):
            cluster.client().push_async(1, KEYS[:1], np.ones((1, 2), np.float32)).wait()
