"""Access methods through a client and a shard: state with the row, rounds, what is summed first."""

from itertools import product

import numpy as np
import pytest
from probes import probes_of
from shards import ADAGRAD, ADAM, ADD, AVERAGE, FTRL, MOMENTUM, SGD, UNIFORM, ZEROS, Shards, a_table
from twins import kernels as twin
from twins.store import state_floats

from snailps.api.results import Results
from snailps.api.tables import Table
from snailps.config import JobSettings
from snailps.errors import MisuseError, RemoteError

HYPER = (0.1, 1e-8, 0.9, 0.99, 0.02, 0.1, 1.0, 0.0)
RATES = np.array(HYPER, np.float32)


def u64(values):
    return np.array(values, np.uint64)


def pull(client, keys, width, state=False):
    rows = np.empty((len(keys), width), np.float32)
    return client.pull_async(1, keys, rows, state).wait()


def made(access, dim=3, init=UNIFORM, count=2):
    cluster = Shards(count)
    cluster.add_table(1, dim, access, init, hyper=HYPER)
    return cluster


def gradients(n, dim, seed):
    return np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)


# --- state with the row --------------------------------------------------------------------------


@pytest.mark.parametrize("access", [ADD, SGD, ADAGRAD, ADAM, FTRL, MOMENTUM])
def test_pull_with_state_gives_what_pushes_left(access):
    dim, keys = 3, np.arange(2000, dtype=np.uint64)
    width = dim + state_floats(access, dim)
    with made(access) as cluster:
        client = cluster.client()
        expected = pull(client, keys, width, state=True).astype(np.float64)
        assert np.array_equal(expected[:, :dim].astype(np.float32), pull(client, keys, dim))
        for seed in range(3):
            values = gradients(2000, dim, seed)
            client.push_async(1, keys, values).wait()
            for row, value in zip(expected, values, strict=True):
                row[:] = twin.apply_row(access, RATES, row, value)
        rows = pull(client, keys[::-1].copy(), width, state=True)[::-1]
        np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(pull(client, keys, dim), rows[:, :dim])


@pytest.mark.parametrize("access", [SGD, ADAGRAD, FTRL])
def test_optimiser_at_the_worker_leaves_what_it_would_have_left_at_the_shard(access):
    """One worker alone: steps on its own copy, then one difference of weights and state."""
    dim, keys = 5, np.arange(500, dtype=np.uint64)
    width = dim + state_floats(access, dim)
    with made(access, dim) as here, made(access, dim) as there:
        local, remote = here.client(), there.client()
        for block in range(3):
            base = pull(local, keys, width, state=True)
            rows = base.copy()
            for step in range(4):
                values = gradients(500, dim, 10 * block + step)
                for row, value in zip(rows, values, strict=True):
                    probes_of().apply_row(access, RATES, row, value)
                remote.push_async(1, keys, values).wait()
            local.push_async(1, keys, rows - base, state=True).wait()
        found, expected = (pull(client, keys, width, state=True) for client in (local, remote))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_differences_of_two_workers_add_up_and_ftrl_weighs_anew():
    with made(FTRL, 2, ZEROS, 1) as cluster:
        a, b = cluster.client(1), cluster.client(2)
        keys = u64([7])
        for client, z, n in ((a, [3, 0.01], [1, 1]), (b, [2, 0.005], [8, 3])):
            client.push_async(1, keys, np.array([[99, 99, *z, *n]], np.float32), state=True).wait()
        row = pull(a, keys, 6, state=True)[0]
    assert row[2:].tolist() == pytest.approx([5, 0.015, 9, 4])
    # lr 0.1, beta 1: -(5 - l1) / ((1 + 3) / 0.1); |0.015| is below l1
    assert row[0] == pytest.approx(-4.98 / 40)
    assert row[1] == 0


@pytest.mark.parametrize(("access", "name"), [(ADAM, "adam"), (MOMENTUM, "momentum")])
def test_rows_with_moments_are_set_exactly_and_step_on(access, name):
    keys, table = u64(range(20)), Table(name, 3, access=name, lr=0.1)
    width = table.dim + table.state_floats
    with made(access) as cluster:
        cluster.add_table(2, 3, access, UNIFORM, hyper=HYPER)
        client = cluster.client()
        for seed in range(3):
            client.push_async(1, keys, gradients(20, 3, seed)).wait()
        client.push_async(2, keys[:5], gradients(5, 3, 9)).wait()
        results = Results(JobSettings(), b"", {}, client, {name: 2}, {name: table}, 1)
        results.put_packed(name, [(keys, pull(client, keys, width, state=True))])
        for number in (1, 2):
            client.push_async(number, keys, gradients(20, 3, 4)).wait()
        found = [client.pull(at, keys, np.empty((20, width), np.float32), True) for at in (1, 2)]
        assert np.array_equal(*found)


def test_push_of_state_to_averages_is_refused_and_changes_nothing():
    with made(AVERAGE) as cluster:
        client = cluster.client()
        rows = pull(client, u64([1]), 7, state=True)
        with pytest.raises(RemoteError, match=r"no differences of rows.*weighted") as caught:
            client.push_async(1, u64([1]), rows, state=True).wait()
        assert caught.value.code == "state"
        assert cluster.stats("rows") == 0


def test_state_of_the_widest_rows_travels():
    with a_table(65_536, ADAM, UNIFORM, hyper=HYPER) as (_, client):
        keys = u64(range(3))
        client.push_async(1, keys, np.ones((3, 65_536), np.float32)).wait()
        rows = pull(client, keys, 3 * 65_536 + 1, state=True)
        assert rows[:, -1].tolist() == [1.0] * 3
        assert np.array_equal(rows[:, :65_536], pull(client, keys, 65_536))
        with pytest.raises(MisuseError, match="1 to 196,609"):
            pull(client, keys, 3 * 65_536 + 2, state=True)


def test_prefetched_row_with_state_lacks_no_own_difference():
    with made(ADAGRAD, 2, ZEROS, 1) as cluster:
        client = cluster.client()
        keys, delta = u64([3, 4]), np.ones((2, 4), np.float32)
        early = client.pull_async(1, keys, np.empty((2, 4), np.float32), True)
        push = client.push_async(1, keys, delta, state=True)
        early.wait()
        assert client.correct(early, push) == 2
        assert np.array_equal(early.rows, delta)
        push.wait()
        weights = client.pull_async(1, keys, np.empty((2, 2), np.float32))
        weights.wait()
        with pytest.raises(MisuseError, match="same table"):
            client.correct(weights, push)


# --- repeated keys -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("access", "dim", "distinct"),
    [
        *product([ADAGRAD, ADAM, FTRL, MOMENTUM], [1, 40], [3000]),
        (ADAGRAD, 3, 1),
        (ADAGRAD, 3, 30_000),
    ],
)
def test_merged_push_applies_the_sum_of_a_repeated_key_once(access, dim, distinct):
    """So many that repetitions lie in different parts of the push, and keys of one in others."""
    rng = np.random.default_rng(1)
    drawn = rng.integers(0, distinct, 30_000 - distinct)
    keys = rng.permutation(np.append(drawn, np.arange(distinct))).astype(np.uint64)
    wide = rng.integers(-8, 9, (len(keys), dim + 2)).astype(np.float32)  # sums are exact
    values, sums = wide[:, 1:-1], np.zeros((distinct, dim), np.float32)
    np.add.at(sums, keys.astype(int), values)
    every = np.arange(distinct, dtype=np.uint64)
    width = dim + state_floats(access, dim)
    with made(access, dim) as merged, made(access, dim) as summed:
        a, b = merged.client(), summed.client()
        a.push_async(1, keys, values, merge=True).wait()
        a.push_async(1, every[:0], values[:0], merge=True).wait()
        b.push_async(1, every, sums).wait()
        assert a.counters()["rows_pushed"] == distinct
        found, expected = (pull(client, every, width, state=True) for client in (a, b))
    np.testing.assert_array_equal(found, expected)


def test_merged_push_is_nothing_to_correct_with():
    with made(ADAGRAD) as cluster:
        client = cluster.client()
        rows = np.ones((2, 3), np.float32)
        early = client.pull_async(1, u64([3, 3]), rows.copy())
        push = client.push_async(1, u64([3, 3]), rows, merge=True)
        early.wait()
        push.wait()
        with pytest.raises(MisuseError, match="finished pull and a push"):
            client.correct(early, push)


# --- rounds of averages --------------------------------------------------------------------------


def close_round(client, clock, *pushes, last=True):
    """Weighted values, then the weight, of one slot each; without `last`: what seals the last."""
    for slot, (keys, values) in enumerate(pushes):
        client.push_async(1, u64(keys), np.array(values, np.float32), clock=clock, slot=slot)
    client.flush()
    for slot in range(len(pushes) - 1):
        client.seal_async(clock, slot, len(pushes)).wait()
    seal = lambda: client.seal_async(clock, len(pushes) - 1, len(pushes)).wait()  # noqa: E731
    return seal() if last else seal


def test_average_of_a_round_is_the_weighted_mean_and_reads_as_before_until_closed():
    with Shards(1) as cluster:
        cluster.add_table(1, 2, AVERAGE, UNIFORM)
        a, b = cluster.client(1), cluster.client(2)
        keys = u64([1, 2, 3])
        first = pull(a, keys, 2)
        # Weighted values, then the weight: 3 x (1, 2), 1 x (5, 6), 2 x (10, 20).
        wait = close_round(a, 0, ([1, 2], [[3, 6, 3], [20, 40, 2]]), ([1], [[5, 6, 1]]), last=False)
        assert np.array_equal(pull(b, keys, 2), first)
        wait()
        assert pull(a, keys, 2).tolist() == [[2, 3], [10, 20], first[2].tolist()]
        close_round(a, 1, ([1], [[7, 7, 1]]))  # the sums were cleared
        assert pull(a, keys, 2).tolist() == [[7, 7], [10, 20], first[2].tolist()]


def test_average_of_equal_values_is_that_value():
    """What a multiplication with a rounded reciprocal would miss."""
    values = np.linspace(0.1, 3, 1000, dtype=np.float32)[:, None]
    with a_table(1, AVERAGE) as (_, client):
        keys = np.arange(1000, dtype=np.uint64)
        close_round(client, 0, *[(keys, np.hstack([values, np.ones_like(values)]))] * 4)
        assert np.array_equal(pull(client, keys, 1), values)


def test_average_pushed_with_no_weight_keeps_its_value():
    with a_table(1, AVERAGE, UNIFORM) as (_, client):
        first = pull(client, u64([4]), 1)
        close_round(client, 0, ([4], [[3, 0]]))
        close_round(client, 1, ([4], [[0, 0]]))
        assert np.array_equal(pull(client, u64([4]), 1), first)
        assert pull(client, u64([4]), 3, state=True)[0, 1:].tolist() == [0, 0]


# --- what is kept beside a row -------------------------------------------------------------------


def test_rows_without_a_push_since_a_tick_are_forgotten():
    with a_table(2, shards=2, track=1) as (cluster, client):
        keys = np.arange(1000, dtype=np.uint64)
        for tick, some in ((5, keys), (9, keys[:300])):
            for thread in cluster.threads:
                thread.set_tick(tick)
            client.push_async(1, some, np.ones((len(some), 2), np.float32)).wait()
        assert cluster.expire(1, 5) == 0
        assert cluster.expire(1, 9) == 700
        assert cluster.stats("rows") == 300
        assert pull(client, keys, 2)[:, 0].tolist() == [2.0] * 300 + [0.0] * 700
