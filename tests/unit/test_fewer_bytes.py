"""Fewer bytes on the data plane: narrow rows, narrow keys."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probes import probes_of
from shards import ADD, JOB, ZEROS, Shards, a_table, keys_of, pull_frame, u64

from snailps.abi import loops
from snailps.api.tables import Table
from snailps.errors import MisuseError
from snailps.transport.frame import Frame, Kind, Option
from snailps.transport.handshake import remote_error

NARROW = ["float16", "int8"]


def as_wire(name, rows):
    """Rows as they are after a journey."""
    wire = loops.WIRE_TYPES[name]
    build = probes_of()
    return build.widen_rows(wire, build.narrow_rows(wire, rows), rows.shape[1])


def pull(client, keys, dim, wire="float32", table=1):
    rows = np.full((len(keys), dim), np.nan, np.float32)
    return client.pull_async(table, keys, rows, wire=loops.WIRE_TYPES[wire]).wait()


def push(client, keys, values, wire="float32", feedback=True, **options):
    number = loops.WIRE_TYPES[wire]
    client.push_async(1, keys, values, wire=number, feedback=feedback, **options).wait()


@pytest.fixture
def cluster():
    with Shards(2) as made:
        made.add_table(1, 5, ADD, ZEROS)
        yield made


# --- narrow rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("n", [1, 3, 50, 40_000])
def test_narrow_rows_are_rounded_once_whichever_way_they_go(cluster, name, n):
    client, keys = cluster.client(), np.random.default_rng(1).permutation(n).astype(np.uint64)
    rows = np.random.default_rng(n).normal(size=(n, 5)).astype(np.float32)
    push(client, keys, rows)
    assert np.array_equal(pull(client, keys, 5, name), as_wire(name, rows))
    assert np.array_equal(pull(client, keys, 5), rows)
    others = keys + np.uint64(n)
    push(client, others, rows, name)
    assert np.array_equal(pull(client, others, 5), as_wire(name, rows))


def test_narrow_rows_of_other_strides_find_their_places(cluster):
    client = cluster.client()
    wide = np.arange(400, dtype=np.float32).reshape(40, 10)
    keys = np.arange(40, dtype=np.uint64)
    push(client, keys, wide[:, 2:7], "float16")
    out = np.zeros((40, 9), np.float32)
    client.pull_async(1, keys, out[:, 1:6], wire=1).wait()
    assert np.array_equal(out[:, 1:6], wide[:, 2:7])
    assert not out[:, 0].any()
    assert not out[:, 6:].any()


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize(
    ("keys", "values", "found"),
    [
        # 2048 + 1 alone is 2048
        ([7, 7, 8, 7], [[1, 2048], [2, 1], [3, 0], [4, 1]], [[7, 2050], [3, 0]]),
        # each fits, and two of them do not: they arrive whole
        ([7, 8, 7], [[40_000] * 2] * 3, [[80_000] * 2, [40_000] * 2]),
        # their sum does, and stays narrow: 20,003 is rounded to 16
        ([7, 7, 7], [[40_001, 2], [40_001, 2], [-59_999, 2]], [[20_000, 6], [0, 0]]),
    ],
)
def test_repeated_keys_of_a_narrow_merged_push_are_summed_before_rounding(
    keys, values, found, feedback
):
    with a_table(2) as (_, client):
        values = np.array(values, np.float32)
        push(client, u64(keys), values, "float16", merge=True, feedback=feedback)
        assert pull(client, u64([7, 8]), 2).tolist() == found


@pytest.mark.parametrize("cut", [False, True])
def test_feedback_sends_later_what_rounding_took(cut):
    with Shards(1) as one:
        one.add_table(1, 2, ADD, ZEROS)
        with_it, without = one.client(1), one.client(2)
        values = np.tile(np.array([1.0, 0.003], np.float32), (300, 1))  # 0.003 of a scale of 1/127
        every = np.arange(600, dtype=np.uint64)
        for turn in range(100):
            pushed = with_it.push_async(1, every[:300], values, wire=3)
            if cut and turn % 7 == 3:
                with_it.cut(0)
            pushed.wait()
            push(without, every[300:], values, "int8", feedback=False)
        sums = pull(with_it, every, 2)
        assert np.abs(sums[:300] - [100, 0.3]).max() < 1 / 127
        assert np.abs(sums[300:, 0] - 100).max() < 0.01
        assert not sums[300:, 1].any()


def test_feedback_of_more_keys_than_an_index_begins_with_is_kept_by_key():
    with a_table(2) as (_, client):
        keys = np.random.default_rng(3).integers(0, 2**63, 5000).astype(np.uint64)
        values = np.ones((5000, 2), np.float32)
        values[:, 1] = np.linspace(0, 0.0035, 5000)
        for _ in range(4):
            order = np.random.default_rng(4).permutation(5000)
            push(client, keys[order], values[order], "int8")
        assert np.abs(pull(client, keys, 2) - 4 * values).max() < 1 / 127


RESIDUE = 8 + 32  # bytes: two floats, and their place in the index


def pushes_thirds(client, table, n=300):
    """What float16 rounds, of so many keys with two floats."""
    third = np.full((n, 2), 1 / 3, np.float32)
    client.push_async(table, np.arange(n, dtype=np.uint64), third, wire=1).wait()


def test_feedback_of_many_tables_is_within_one_limit_and_the_present_ones_is_kept():
    with Shards(1) as one:
        client = one.client()
        client.residue_bytes_max = 2 * 300 * RESIDUE
        for table in range(1, 9):
            one.add_table(table, 2, ADD, ZEROS)
            pushes_thirds(client, table)
            pushes_thirds(client, table)
            assert client.residue_bytes == min(table, 2) * 300 * RESIDUE
        keys = np.arange(300, dtype=np.uint64)
        assert np.abs(pull(client, keys, 2, table=8) - 2 / 3).max() < 1e-4
        pushes_thirds(client, 8, n=1000)  # more than the limit: it begins anew
        assert 0 < client.residue_bytes <= 2 * 300 * RESIDUE


def test_feedback_of_a_job_that_has_ended_is_freed():
    with a_table(2) as (_, client):
        pushes_thirds(client, 1)
        assert client.residue_bytes == 300 * RESIDUE
        client.drop_residues()
        pull(client, u64([1]), 2)  # what is served next begins with that
        assert client.residue_bytes == 0
        pushes_thirds(client, 1)
        assert client.residue_bytes == 300 * RESIDUE


def test_narrow_rows_through_a_python_method_are_rounded_too():
    with Shards(1) as one:
        one.declare(Table("t", 3, access="python_methods:Momentum", lr=1.0))
        client = one.client()
        values = np.array([[0.1, 0.2, 0.3], [1, 2, 3]], np.float32)
        keys = u64([1, 2])
        first = pull(client, keys, 3)
        push(client, keys, values, "int8")
        rows = first - 2 * as_wire("int8", values)  # it reads as twice its weights
        assert np.array_equal(pull(client, keys, 3), rows)
        assert np.array_equal(
            pull(client, keys[::-1].copy(), 3, "int8"), as_wire("int8", rows[::-1].copy())
        )


def test_narrow_rows_that_make_no_sense_are_refused(cluster):
    client = cluster.client()
    rows = np.zeros((1, 5), np.float32)
    for options in ({"wire": 4}, {"wire": 2}, {"wire": -1}, {"wire": 1, "state": True}):
        with pytest.raises(MisuseError, match="wire type"):
            client.pull_async(1, u64([1]), rows, **options)


# --- keys ----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    base=st.sampled_from([0, 1, 2**32 - 9, 2**40, 2**63, 2**64 - 2**34]),
    spread=st.sampled_from([1, 200, 2**8, 2**16, 2**24 + 1, 2**32, 2**34]),
    n=st.integers(1, 300),
    seed=st.integers(0, 2**32 - 1),
)
def test_keys_of_any_spread_arrive_as_they_are(keyed, base, spread, n, seed):
    client = keyed
    draws = np.random.default_rng(seed).integers(0, spread, n, dtype=np.uint64)
    keys = np.unique(np.uint64(base) + draws)
    before = pull(client, keys, 1)
    push(client, keys, np.ones((len(keys), 1), np.float32))
    assert np.array_equal(pull(client, keys[::-1].copy(), 1), before[::-1] + 1)


@pytest.fixture(scope="module")
def keyed():
    with Shards(1, frag_num=4) as made:
        made.add_table(1, 1, ADD, ZEROS)
        yield made.client()


def test_first_and_last_key_in_one_part_are_whole():
    with a_table(1, frag_num=1) as (_, client):
        keys = u64([2**64 - 1, 0, 5, 2**64 - 2, 7])
        push(client, keys, np.arange(1, 6, dtype=np.float32)[:, None])
        assert pull(client, np.sort(keys), 1)[:, 0].tolist() == [2, 3, 5, 4, 1]


RESERVED = [1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 6, 1 << 15]


@pytest.mark.parametrize("options", [*RESERVED, Option.STATE | 1 << 8])
def test_reserved_options_and_those_that_do_not_go_together_are_refused(cluster, options):
    with cluster.raw() as one:
        (fragment,) = cluster.route.fragments_of(0)[:1]
        reply = one.ask(pull_frame({fragment: keys_of(fragment, 3)}, dim=5, options=options))
        assert remote_error(reply).code == "option"


@pytest.mark.parametrize("width", range(1, 8))
def test_narrow_keys_that_do_not_fill_the_body_are_refused(cluster, width):
    with cluster.raw() as one:
        (fragment,) = cluster.route.fragments_of(0)[:1]
        keys = keys_of(fragment, 400)
        frame = pull_frame({fragment: keys}, dim=5, options=width << 12)
        assert remote_error(one.ask(frame)).code in ("fragment", "length")
        body = frame.body[:32] + struct.pack("<Q", min(keys))
        body += b"".join((key - min(keys)).to_bytes(width, "little") for key in keys if width > 1)
        if width > 1:
            body += bytes(-len(body) % 8)
            narrow = Frame(Kind.PULL, body, 1, 1, JOB, 1, 9)
            assert one.ask(narrow).kind == Kind.PULLED
            cut = Frame(Kind.PULL, body[:-8], 1, 1, JOB, 1, 9)
            assert remote_error(one.ask(cut)).code == "length"
