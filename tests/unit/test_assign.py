"""Rows that are assigned: in the place of what is there, once, at the standby too."""

import numpy as np
import pytest
from replicas import Replicas
from shards import ADAGRAD, ADAM, ADD, AVERAGE, FTRL, MOMENTUM, ROWWISE, SGD, UNIFORM, ZEROS, Shards
from test_access_methods import HYPER, gradients, made, pull, u64
from test_replica import assert_equal, dump
from twins.store import state_floats

from snailps import Table
from snailps.errors import NotFinite, RemoteError
from snailps.transport.frame import Option

ALL = [ADD, SGD, ADAGRAD, ADAM, FTRL, MOMENTUM, ROWWISE, AVERAGE]
DIM = 3


def assign(client, keys, rows, state=False, table=1):
    client.push_async(table, keys, np.ascontiguousarray(rows), state, assign=True).wait()


def width_of(access):
    return DIM + state_floats(access, DIM)


@pytest.mark.parametrize("access", ALL)
def test_assigned_rows_are_there_at_the_standby_and_step_on_as_first_ones(access):
    """Weights get the state of a first row that has them: those of a table that draws them."""
    keys, width = u64(range(300)), width_of(access)
    pushed = gradients(300, DIM + (access == AVERAGE), 4)
    with Replicas() as cluster:
        cluster.add_table(1, DIM, access, ZEROS, hyper=HYPER)
        cluster.add_table(2, DIM, access, UNIFORM, hyper=HYPER)
        standby = cluster.back_up()
        client = cluster.client()
        first = client.pull(2, keys, np.empty((300, width), np.float32), True)
        client.push_async(1, keys, pushed).wait()  # what is there goes
        assign(client, keys, first[:, :DIM])
        assert np.array_equal(pull(client, keys, width, state=True), first)
        for table in (1, 2):
            client.push_async(table, keys, pushed).wait()
        stepped = [client.pull(at, keys, np.empty((300, width), np.float32), True) for at in (1, 2)]
        assert np.array_equal(*stepped)
        cluster.settle()
        assert_equal(dump(cluster.threads[0]), dump(standby[0]))


@pytest.mark.parametrize("access", ALL)
def test_rows_are_assigned_with_their_state(access):
    keys, width = u64(range(50)), width_of(access)
    rows = np.abs(gradients(50, width, 1))
    with made(access, DIM) as cluster:
        client = cluster.client()
        assign(client, keys, rows, state=True)
        assert np.array_equal(pull(client, keys, width, state=True), rows)


def test_last_row_of_a_repeated_key_counts():
    with made(ADD, DIM) as cluster:
        client = cluster.client()
        assign(client, u64([5, 9, 5, 9, 5]), np.arange(15, dtype=np.float32).reshape(5, 3))
        assert pull(client, u64([5, 9]), DIM).tolist() == [[12, 13, 14], [9, 10, 11]]


def test_rows_of_a_python_method_are_assigned_by_it():
    with Shards(2) as cluster:
        cluster.declare(Table("w", DIM, "python_methods:Momentum", lr=0.25))
        client, keys = cluster.client(), u64([1, 2, 2])
        client.push_async(1, u64([1]), np.ones((1, DIM), np.float32)).wait()
        assign(client, keys, np.array([[1] * 3, [2] * 3, [3] * 3], np.float32))
        whole = pull(client, u64([1, 2]), 2 * DIM, state=True)
        assert whole.tolist() == [[1] * 3 + [0] * 3, [3] * 3 + [0] * 3]
        assert pull(client, u64([1]), DIM).tolist() == [[2] * 3]  # read as twice its weights
        assign(client, u64([7]), np.array([[1, 2, 3, 4, 5, 6]], np.float32), state=True)
        assert pull(client, u64([7]), 2 * DIM, state=True).tolist() == [[1, 2, 3, 4, 5, 6]]


def test_weights_are_assigned_by_a_python_method_without_state_too():
    with Shards(1) as cluster:
        cluster.declare(Table("w", DIM, "python_methods:Doubled"))
        client, rows = cluster.client(), np.array([[1, 2, 3]], np.float32)
        assign(client, u64([1]), rows)
        assert np.array_equal(pull(client, u64([1]), DIM), rows)
        assign(client, u64([2]), rows, state=True)  # as it is stored
        assert np.array_equal(pull(client, u64([2]), DIM), 2 * rows)
        with pytest.raises(RemoteError, match=r"assign\(\) must return rows of shape \(1, 3\)"):
            assign(client, u64([1]), np.full((1, DIM), 99, np.float32))


def test_assigned_rows_are_made_where_a_table_refuses_rare_ones():
    with Shards(1) as cluster:
        cluster.declare(Table("w", DIM, admit_after=3))
        client = cluster.client()
        client.push_async(1, u64([1]), np.ones((1, DIM), np.float32)).wait()
        assert cluster.stats("rows") == 0
        assign(client, u64([2]), np.ones((1, DIM), np.float32))
        assert cluster.stats("rows") == 1


@pytest.mark.parametrize("more", [Option.CLOCK, Option.LR_SCALE])
def test_what_does_not_go_with_assigning_is_refused(more):
    options = {Option.CLOCK: {"clock": 0}, Option.LR_SCALE: {"lr_scale": 0.5}}[more]
    with made(SGD, DIM) as cluster:
        client = cluster.client()
        rows = np.ones((1, DIM), np.float32)
        with pytest.raises(RemoteError, match="cannot be combined"):
            client.push_async(1, u64([1]), rows, assign=True, **options).wait()
        assert pull(client, u64([1]), DIM).tolist() != rows.tolist()


def test_row_that_is_not_finite_is_not_assigned():
    with made(ADAM, DIM) as cluster:
        client = cluster.client()
        with pytest.raises(NotFinite):
            assign(client, u64([1]), np.full((1, DIM), np.nan, np.float32))
        assert cluster.stats("rows") == 0
