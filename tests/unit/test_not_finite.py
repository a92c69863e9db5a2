"""Values that are not finite: refused by client and shard, and nothing of them is applied."""

import numpy as np
import pytest
from probes import probes_of
from replicas import Replicas, assert_equal, dump
from shards import (
    ADAGRAD,
    ADD,
    SGD,
    ZEROS,
    Shards,
    error_of,
    keys_of,
    push_frame,
    u64,
)

from snailps import Table, kernels
from snailps.api.results import Results
from snailps.api.tables import Tensor, as_rows
from snailps.config import JobSettings
from snailps.errors import ConfigError, NotFinite, RemoteError
from snailps.local.table_export import export_tables
from snailps.transport.frame import Kind

INF, NAN = float("inf"), float("nan")
BAD = [NAN, -NAN, INF, -INF]
WIRES = kernels.WIRE_TYPES
TAKES_ANY = Table("any", 4, finite=False)


@pytest.fixture
def cluster():
    with Shards(2) as made:
        made.add_table(1, 4, ADD, ZEROS)
        made.declare(TAKES_ANY, 2)
        yield made


@pytest.fixture
def client(cluster):
    made = cluster.client()
    made.know_tables({1: ("w", True), 2: ("any", False)})
    return made


def pull(client, keys, dim=4, table=1):
    return client.pull(table, u64(keys), np.empty((len(keys), dim), np.float32))


def values(n, bad=None, place=0, dim=4):
    rows = np.ones((n, dim), np.float32)
    if bad is not None:
        rows.reshape(-1)[place] = bad
    return rows


# --- the client ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
@pytest.mark.parametrize("bad", BAD, ids=["nan", "-nan", "inf", "-inf"])
def test_push_of_many_parts_with_one_bad_value_applies_nothing(cluster, client, wire, bad):
    keys = np.arange(20_000, dtype=np.uint64)[::-1] + 7
    told = "nan" if np.isnan(bad) else str(bad)
    expected = (
        rf"^table 'w': expected finite values to push, got {told} for row 7, column 3: nothing"
    )
    with pytest.raises(NotFinite, match=expected):
        client.push(1, keys, values(20_000, bad, 79_999), wire=wire)
    with pytest.raises(NotFinite, match=expected):
        client.push_async(1, keys, values(20_000, bad, 79_999), wire=wire, clock=0, slot=0)
    assert cluster.stats("rows") == cluster.stats("pushes") == 0
    client.push(1, keys, values(20_000), wire=wire)
    assert np.allclose(pull(client, [7, 8]), 1)
    client.flush()


def test_push_of_a_table_that_is_not_known_is_refused_by_its_number(cluster):
    with pytest.raises(NotFinite, match=r"^table 1: .* for row 3, column 2"):
        cluster.client().push(1, u64([9, 3]), values(2, NAN, 6))


def test_push_of_rows_with_gaps_looks_at_the_rows_alone(client):
    wide = np.full((5, 9), NAN, np.float32)
    wide[:, :4] = 1
    client.push(1, u64(range(5)), wide[:, :4])
    wide[4, 3] = INF
    with pytest.raises(NotFinite, match="got inf for row 4, column 3"):
        client.push(1, u64(range(5)), wide[:, :4])
    assert (pull(client, range(5)) == 1).all()


def test_push_of_states_that_are_not_finite_is_refused():
    with Shards(1) as cluster:
        cluster.add_table(1, 2, ADAGRAD, ZEROS, lr=0.1)
        with pytest.raises(NotFinite, match="row 5, column 3"):
            cluster.client().push(1, u64([5]), values(1, INF, 3), state=True)
        assert cluster.stats("rows") == 0


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
def test_push_to_a_table_that_takes_any_applies_each_value_as_it_is(client, wire):
    rows = np.array([[1, INF, 3, 1e30], [NAN, 2, -INF, 4]], np.float32)
    client.push(2, u64([1, 2]), rows, wire=wire)
    np.testing.assert_array_equal(pull(client, [1, 2], table=2), rows)


@pytest.mark.parametrize("feedback", [True, False])
def test_push_beyond_float16_arrives_whole(client, feedback):
    rows = np.array([[65504, 3e38, -1e6, 1 / 3], [1, 2, 3, 4]], np.float32)
    client.push(1, u64([1, 2]), rows, wire=WIRES["float16"], feedback=feedback)
    np.testing.assert_array_equal(pull(client, [1, 2]), rows)


# --- the shard -----------------------------------------------------------------------------------

FRAGMENT = 20
KEYS = keys_of(FRAGMENT, 2)


def as_wire(name, rows):
    """A PUSH as a client without this check sends it, its values in a wire type."""
    packed = probes_of().narrow_rows(WIRES[name], rows)
    plain = push_frame({FRAGMENT: KEYS}, rows, options=WIRES[name] << 8)
    body = plain.body[: 24 + 8 + 8 * len(KEYS)] + packed.tobytes()
    return push_frame(
        {FRAGMENT: KEYS}, rows, body=body + bytes(-len(body) % 8), options=WIRES[name] << 8
    )


@pytest.fixture
def shard():
    with Shards(1) as made:
        made.add_table(1, 4, ADD, ZEROS)
        yield made


def rows_of(shard, incarnation=99):
    return pull(shard.client(incarnation), KEYS)


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_part_with_a_bad_value_is_refused_after_decoding(shard, name, bad):
    with shard.raw() as one:
        error = error_of(one.ask(as_wire(name, values(2, bad, 6))))
        assert error.code == "not-finite"
        column = 0 if name == "int8" else 2  # of int8 the row's scale is bad
        assert f"for row {KEYS[1]}, column {column}: this part" in str(error)
        assert shard.stats("rows") == 0
        assert one.ask(as_wire(name, values(2))).kind == Kind.PUSHED  # its number is still free
    assert np.allclose(rows_of(shard), 1)


def test_part_that_was_refused_is_refused_again_behind_later_ones(shard):
    bad = push_frame({FRAGMENT: KEYS}, values(2, NAN), seq=5)
    with shard.raw() as one:
        assert error_of(one.ask(bad)).code == "not-finite"
        assert one.ask(push_frame({FRAGMENT: KEYS}, values(2), seq=6)).kind == Kind.PUSHED
        assert (
            error_of(one.ask(bad)).code == "not-finite"
        )  # and never taken for one that was applied
    assert (rows_of(shard) == 1).all()
    assert shard.stats("repeated") == 0


def test_refusal_of_a_shard_is_the_same_error_at_the_caller(cluster, client):
    client.know_tables({1: ("w", False)})  # as a client that does not look
    pushed = client.push_async(1, u64([3]), values(1, INF, 1))
    with pytest.raises(
        NotFinite, match=r"^table 'w': expected finite values, got inf for row 3, column 1"
    ):
        pushed.wait()
    with pytest.raises(NotFinite):
        client.push(1, u64([3]), values(1, INF, 1))
    assert cluster.stats("rows") == 0


def test_python_method_gets_and_makes_finite_values_only_unless_declared_otherwise():
    with Shards(1) as cluster:
        cluster.declare(Table("w", 2, "python_methods:Inverse"), 1)
        cluster.declare(Table("v", 2, "python_methods:Inverse", finite=False), 2)
        client = cluster.client()
        client.know_tables({1: ("w", False), 2: ("v", False)})
        with pytest.raises(NotFinite, match="row 1, column 0"):
            client.push(1, u64([1]), values(1, NAN, dim=2))
        client.push(1, u64([1]), values(1, dim=2))
        with pytest.raises(
            RemoteError, match=r"push\(\) made inf in column 1 of a row from finite"
        ):
            client.push(1, u64([3, 1]), values(2, 0, 1, dim=2))
        assert pull(client, [1, 3], 2).tolist() == [[1, 1], [0, 0]]
        client.push(2, u64([1]), values(1, 0, dim=2))
        assert pull(client, [1], 2, table=2).tolist() == [[INF, 1]]


# --- standbys ------------------------------------------------------------------------------------


def test_standby_gets_nothing_of_what_was_refused():
    with Replicas(1) as cluster:
        cluster.add_table(1, 4, SGD, ZEROS, lr=0.5)
        made = cluster.back_up()
        client = cluster.client()
        client.know_tables({1: ("w", False)})
        keys = np.arange(5000, dtype=np.uint64)
        client.push(1, keys, values(5000))
        with pytest.raises(NotFinite):
            client.push(1, keys, values(5000, NAN, 9999))
        client.push(1, keys, values(5000))
        cluster.settle()
        assert_equal(dump(made[0]), dump(cluster.threads[0]))
        before = pull(client, keys)
        cluster.promote(made)
        np.testing.assert_array_equal(pull(client, keys), before)
        with pytest.raises(NotFinite):
            client.push(1, keys, values(5000, NAN, 9999))


def test_standby_has_the_slots_of_its_primary_without_what_was_refused():
    with Replicas(1) as cluster:
        cluster.add_table(1, 4, ADD, ZEROS)
        made = cluster.back_up()
        doomed, other = cluster.client(1), cluster.client(2)
        doomed.know_tables({1: ("w", False)})
        keys = np.arange(5000, dtype=np.uint64)
        doomed.push(1, keys, values(5000), clock=0, slot=0)
        with pytest.raises(NotFinite):
            doomed.push(1, keys[:1], values(1, NAN), clock=0, slot=0)
        with pytest.raises(RemoteError, match="slot 0 of clock 0 cannot be sealed"):
            doomed.seal_async(0, 0, 1).wait()
        cluster.settle()
        assert_equal(dump(made[0]), dump(cluster.threads[0]))
        assert made[0].stats()["staged_bytes"] == cluster.threads[0].stats()["staged_bytes"] > 0
        cluster.promote(made)
        other.push(1, keys, values(5000), clock=0, slot=0)
        other.seal_async(0, 0, 1).wait()
        assert (other.pull(1, keys, np.empty((5000, 4), np.float32), clock=1) == 1).all()


# --- products ------------------------------------------------------------------------------------


def test_gradient_of_a_batch_that_is_not_finite_steps_no_row(client):
    batch = np.array([0, 2, 3]), u64([1, 2, 3]), np.ones(3, np.float32)
    z = client.forward_async(1, *batch, 4)
    z.wait()
    with pytest.raises(NotFinite, match=r"^table 'w': .*gradient, got nan for example 1, column 2"):
        client.backward_async(z, values(2, NAN, 6))
    client.backward_async(z, values(2)).wait()  # the batch can still go back
    assert (pull(client, [1, 2, 3]) == 1).all()


def test_batch_with_a_value_that_is_not_finite_goes_forward_only_to_be_read(client):
    batch = np.array([0, 2, 3]), u64([1, 2, 3]), np.array([1, INF, 1], np.float32)
    with pytest.raises(NotFinite, match=r"^table 'w': .*got inf for row 2"):
        client.forward_async(1, *batch, 4)
    client.forward_async(1, *batch, 4, keep=False).wait()


# --- declarations and exports --------------------------------------------------------------------


def test_table_of_an_earlier_checkpoint_takes_finite_values_only():
    told = TAKES_ANY.to_dict()
    assert Table.from_dict(told) == TAKES_ANY
    del told["finite"]
    assert Table.from_dict(told).finite
    with pytest.raises(ConfigError, match="finite: expected True or False, got 1"):
        Table("t", 2, finite=1)
    assert not Tensor("t", (3,), finite=False).table().finite


@pytest.mark.parametrize("dtype", [np.float64, np.longdouble])
def test_values_beyond_float32_are_refused_with_their_place(dtype):
    given = np.ones((3, 2), dtype)
    given[1, 1] = -1e39
    with pytest.raises(NotFinite, match=r"^table 't': values: .*got -1e\+39 at place \[1, 1\]"):
        Table("t", 2).values(given)
    given[1, 1] = -INF  # left to who pushes it
    assert as_rows(given)[1, 1] == -INF


class Stored:
    """A client of one table whose rows are as they are given."""

    def __init__(self, rows):
        self.keys, self.rows = np.arange(len(rows), dtype=np.uint64) + 40, rows

    def scan(self, number, dim, fragments, ended):
        yield self.keys, self.rows[:, :dim]

    def pull(self, number, keys, rows, state=False):
        rows[:] = self.rows[np.searchsorted(self.keys, keys)]
        return rows


@pytest.mark.parametrize("state", [False, True])
def test_export_of_rows_that_overflowed_names_table_and_key(tmp_path, state):
    table = Table("w", 3, "adagrad", lr=0.1)
    rows = values(5, INF, 6 * 2 + (5 if state else 1), dim=6)
    results = Results(JobSettings(), b"", {}, Stored(rows), {"w": 1}, {"w": table}, 1)

    class Source:
        tables = results.tables

        def pieces(self, name, state, progress):
            return results.packed(name) if state else results.scan(name)

    expected = rf"^table 'w': expected finite rows, got inf in row 42, column {5 if state else 1}"
    with pytest.raises(NotFinite, match=expected):
        export_tables(Source(), str(tmp_path / "out"), state=state)
    assert not list(tmp_path.iterdir())
    results.tables = {"w": Table("w", 3, "adagrad", lr=0.1, finite=False)}
    Source.tables = results.tables
    export_tables(Source(), str(tmp_path / "out"), state=state)


def test_pull_for_an_export_of_rows_that_overflowed_is_refused():
    results = Results(
        JobSettings(),
        b"",
        {},
        Stored(values(5, NAN, 2 * 4 + 3)),
        {"w": 1},
        {"w": Table("w", 4)},
        0,
    )
    assert results.pull("w", [40, 41]).shape == (2, 4)
    with pytest.raises(NotFinite, match="got nan in row 42, column 3"):
        results.pull("w", [40, 42])
