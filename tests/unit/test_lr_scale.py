"""Pushes that scale the step size: exact at shard and standby, refused where it means nothing."""

import dataclasses
import struct

import numpy as np
import pytest
from products import batch
from replicas import Replicas, assert_equal, dump
from shards import (
    ADAGRAD,
    ADAM,
    ADD,
    AVERAGE,
    FTRL,
    MOMENTUM,
    ROWWISE,
    SGD,
    UNIFORM,
    Shards,
    a_table,
    keys_of,
    push_frame,
)
from twins import kernels as twin
from twins.store import state_floats

from snailps.api.tables import Table
from snailps.errors import MisuseError, RemoteError
from snailps.transport.frame import Kind, Option

HYPER = (0.1, 1e-8, 0.9, 0.99, 0.02, 0.1, 1.0, 0.0)
SCALING = [SGD, ADAGRAD, ADAM, MOMENTUM, ROWWISE]
NAMES = {
    ADD: "add", SGD: "sgd", ADAGRAD: "adagrad", ADAM: "adam", FTRL: "ftrl", AVERAGE: "average",
    MOMENTUM: "momentum", ROWWISE: "rowwise_adagrad",
}  # fmt: skip
KEYS = np.arange(300, dtype=np.uint64)


def gradients(seed, n=300, dim=5):
    return np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)


def whole_rows(client, access, dim=5, keys=KEYS):
    rows = np.empty((len(keys), dim + state_floats(access, dim)), np.float32)
    return client.pull(1, keys, rows, True)


@pytest.mark.parametrize("access", SCALING)
def test_pushes_with_a_schedule_step_as_the_reference_does(access):
    with a_table(5, access, UNIFORM, shards=2, hyper=HYPER) as (_, client):
        expected = whole_rows(client, access).astype(np.float64)
        for seed, scale in enumerate([1, 0.5, 0, 0.3]):
            values = gradients(seed)
            client.push_async(1, KEYS, values, lr_scale=scale).wait()
            rates = np.array(HYPER, np.float32)
            rates[0] *= np.float32(scale)
            for row, value in zip(expected, values, strict=True):
                row[:] = twin.apply_row(access, rates, row, value)
        found = whole_rows(client, access)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_scale_of_one_is_a_push_without_and_half_the_step_is_a_table_of_half_the_lr():
    with Shards(1) as cluster:
        half = (HYPER[0] / 2, *HYPER[1:])
        for number, hyper in ((1, HYPER), (2, half)):
            cluster.add_table(number, 5, ADAGRAD, UNIFORM, hyper=hyper)
        client = cluster.client()
        client.push(1, KEYS, gradients(1), lr_scale=0.5)
        client.push(2, KEYS, gradients(1), lr_scale=1.0)
        found = [client.pull(t, KEYS, np.empty((300, 5), np.float32)) for t in (1, 2)]
    assert np.array_equal(*found)


@pytest.mark.needs("server_products")
def test_scaled_batches_step_as_scaled_gradients_of_sgd():
    rng = np.random.default_rng(3)
    ptr, keys, values = batch(rng, 50, 400, 10)
    dz = rng.normal(size=(50, 5)).astype(np.float32)
    with Shards(2) as cluster:
        for number in (1, 2):
            cluster.add_table(number, 5, SGD, UNIFORM, hyper=HYPER)
        client = cluster.client()
        for number, gradient, scale in ((1, dz, 0.25), (2, dz / 4, 1)):
            forward = client.forward_async(number, ptr, keys, values, 5)
            forward.wait()
            client.backward_async(forward, gradient, lr_scale=scale).wait()
        every = np.unique(keys)
        one, two = (client.pull(t, every, np.empty((len(every), 5), np.float32)) for t in (1, 2))
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


@pytest.mark.needs("server_products")
def test_batch_through_a_table_without_a_step_to_scale_is_refused():
    with a_table(1, FTRL, UNIFORM, hyper=HYPER) as (cluster, client):
        forward = client.forward_async(1, np.array([0, 1]), KEYS[:1], None, 1)
        forward.wait()
        with pytest.raises(RemoteError, match="no step size that a batch may scale"):
            client.backward_async(forward, np.ones((1, 1), np.float32), lr_scale=0.5).wait()
        assert cluster.stats("rows") == 0


# --- clocks --------------------------------------------------------------------------------------


def test_clock_takes_one_step_of_the_scale_that_all_its_slots_name():
    with Replicas() as cluster:
        cluster.add_table(1, 5, ROWWISE, UNIFORM, hyper=HYPER)
        made = cluster.back_up()
        clients = [cluster.client(incarnation=10 + slot) for slot in (0, 1)]
        expected = whole_rows(clients[0], ROWWISE).astype(np.float64)
        for clock, scale in enumerate([0.5, 1, 0.125]):
            for slot, client in enumerate(clients):
                client.reach_async(clock).wait()
                client.push(
                    1, KEYS, gradients(9 * clock + slot), clock=clock, slot=slot, lr_scale=scale
                )
                client.seal_async(clock, slot, 2).wait()
            rates = np.array(HYPER, np.float32)
            rates[0] *= np.float32(scale)
            summed = gradients(9 * clock) + gradients(9 * clock + 1)
            for row, value in zip(expected, summed, strict=True):
                row[:] = twin.apply_row(ROWWISE, rates, row, value)
        clients[0].reach_async(3).wait()
        found = whole_rows(clients[0], ROWWISE)
        cluster.settle()
        assert_equal(dump(cluster.threads[0]), dump(made[0]))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_contributions_to_a_clock_with_different_scales_are_refused_and_not_sealed():
    with Shards(1) as cluster:
        cluster.add_table(1, 5, ADAM, UNIFORM, hyper=HYPER)
        one, two = (cluster.client(incarnation=10 + slot) for slot in (0, 1))
        one.push(1, KEYS, gradients(1), clock=0, slot=0, lr_scale=0.5)
        with pytest.raises(RemoteError, match="different numbers: it takes one step"):
            two.push(1, KEYS, gradients(2), clock=0, slot=1)
        with pytest.raises(RemoteError, match="a push to it was refused"):
            two.seal_async(0, 1, 2).wait()


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("access", [ADD, FTRL, AVERAGE])
def test_scale_where_a_push_has_no_step_size_is_refused(access):
    table = Table("t", 5, NAMES[access], lr=0.1)
    values = gradients(1, dim=5 + (access == AVERAGE))
    with pytest.raises(MisuseError, match="no step size that a push may scale"):
        table.check_push(values, lr_scale=0.5)
    assert table.check_push(values, lr_scale=1.0) == (access == FTRL)
    with a_table(5, access, UNIFORM, hyper=HYPER) as (cluster, client):
        with pytest.raises(RemoteError, match="no step size that a push may scale") as caught:
            client.push(1, KEYS, values, lr_scale=0.5)
        assert caught.value.code == "access"
        assert cluster.stats("rows") == 0


@pytest.mark.parametrize("access", SCALING)
def test_scale_of_a_table_with_a_step_size_is_taken(access):
    table = Table("t", 5, NAMES[access], lr=0.1)
    assert table.check_lr_scale(np.float32(0.5)) == 0.5


@pytest.mark.parametrize("scale", [-1, float("nan"), float("inf"), 1e30, "0.5", None])
def test_scale_that_is_no_number_from_0_is_refused_before_it_is_sent(scale):
    with pytest.raises(MisuseError, match="lr_scale: expected a number from 0"):
        Table("t", 5, "sgd", lr=0.1).check_push(gradients(1), lr_scale=scale)


def test_scale_with_differences_of_state_is_refused():
    with pytest.raises(MisuseError, match="goes with gradients"):
        Table("t", 5, "adagrad", lr=0.1).check_push(gradients(1, dim=10), True, lr_scale=0.5)
    with Shards(1) as cluster:
        cluster.add_table(1, 5, ADAGRAD, hyper=HYPER)
        with pytest.raises(MisuseError, match="goes with gradients"):
            cluster.client().push(1, KEYS, gradients(1, dim=10), state=True, lr_scale=0.5)


@pytest.mark.parametrize(
    ("lr_head", "kind"),
    [
        (struct.pack("<fI", 0.5, 1), Kind.ERROR),
        (struct.pack("<fI", -0.5, 0), Kind.ERROR),
        (struct.pack("<fI", float("nan"), 0), Kind.ERROR),
        (struct.pack("<fI", float("inf"), 0), Kind.ERROR),
        (b"", Kind.ERROR),
        (struct.pack("<fI", 0.5, 0), Kind.PUSHED),
    ],
)
def test_scale_in_a_frame_is_checked(lr_head, kind):
    keys = keys_of(3, 2)
    frame = push_frame({3: keys}, np.ones((2, 4), np.float32), options=int(Option.LR_SCALE))
    frame = dataclasses.replace(frame, body=frame.body[:24] + lr_head + frame.body[24:])
    with Shards(1) as cluster:
        cluster.add_table(1, 4, SGD, hyper=HYPER)
        with cluster.raw() as raw:
            reply = raw.ask(frame)
        assert reply.kind == kind, reply
        assert cluster.stats("rows") == (2 if kind == Kind.PUSHED else 0)
