"""Declarations of tables: what is refused, and that they travel unchanged."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from master_parts import TestOutbox

from snailps import Table, Tensor
from snailps.abi import loops
from snailps.api.tables import DIM_MAX, INIT_SCALE, as_keys, as_rows
from snailps.errors import ClusterError, ConfigError, MisuseError, SnailError
from snailps.master.member import Member
from snailps.master.table_registry import TableRegistry
from snailps.store._store import ShardStore
from snailps.transport import messages

numbers = st.floats(0, 1e20, allow_subnormal=False)
tables = st.builds(
    Table,
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,30}", fullmatch=True),
    st.integers(1, DIM_MAX - 1),
    access=st.sampled_from(
        ["add", "sgd", "adagrad", "adam", "ftrl", "average", "momentum", "rowwise_adagrad", "a.b:C"]
    ),
    init=st.sampled_from(["zeros", "uniform", "normal"]),
    scale=numbers,
    lr=st.floats(1e-6, 1e6),
    eps=st.floats(1e-20, 1e20),
    l1=numbers,
    l2=numbers,
    beta=st.floats(1e-20, 1e20),
    beta1=st.floats(0, 0.999),
    beta2=st.floats(0, 0.999),
    track=st.sampled_from(["", "touch"]),
    seed=st.integers(0, 2**64 - 1),
)


@given(tables)
def test_table_as_json_and_back_is_equal(table):
    assert Table.from_dict(json.loads(json.dumps(table.to_dict()))) == table


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"name": ""}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"name": "é/../"}, "name"),
        ({"name": 5}, "name"),
        ({"dim": 0}, "dim"),
        ({"dim": DIM_MAX + 1}, "dim"),
        ({"dim": 2.0}, "dim"),
        ({"dim": True}, "dim"),
        ({"access": "lamb"}, "access"),
        ({"access": ["add"]}, "access"),
        ({"init": "ones"}, "init"),
        ({"init": {}}, "init"),
        ({"scale": -1.0}, "scale"),
        ({"scale": float("nan")}, "scale"),
        ({"lr": float("inf")}, "lr"),
        ({"lr": "0.1"}, "lr"),
        ({"eps": -1}, "eps"),
        ({"access": "sgd"}, "lr"),
        ({"access": "adagrad", "lr": 0}, "lr"),
        ({"access": "adam"}, "lr"),
        ({"access": "ftrl"}, "lr"),
        ({"access": "momentum"}, "lr"),
        ({"access": "adam", "lr": 0.1, "eps": 0}, "eps"),
        ({"access": "adagrad", "lr": 0.1, "eps": 0}, "eps"),
        ({"access": "ftrl", "lr": 0.1, "beta": 0}, "beta"),
        ({"access": "average", "dim": DIM_MAX}, "dim"),
        ({"beta1": 1}, "beta1"),
        ({"beta2": 0.99999999}, "beta2"),
        ({"beta2": -0.1}, "beta2"),
        ({"l1": -1}, "l1"),
        ({"l2": "much"}, "l2"),
        ({"admit_after": 101}, "admit_after"),
        ({"admit_after": 2, "access": "average"}, "admit_after"),
        ({"admit_after": 2, "access": "a.b:C"}, "admit_after"),
        ({"admit_bytes": 1.5}, "admit_bytes"),
        ({"rows_max": -1}, "rows_max"),
        ({"rows_max": True}, "rows_max"),
        ({"rows_max": 9, "access": "average"}, "rows_max"),
        ({"track": "all"}, "track"),
        ({"track": ["touch"]}, "track"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 1.0}, "seed"),
        ({"track": "touch+version"}, "track"),  # of a checkpoint of before 0.1.0
    ],
)
def test_table_with_wrong_field_is_refused_by_name(wrong, word):
    with pytest.raises(ConfigError, match=rf"^table .*: {word}: expected .*, got "):
        Table(**{"name": "t", "dim": 2, **wrong})
    with pytest.raises(ConfigError, match=word):
        Table.from_dict({**Table("t", 2).to_dict(), **wrong})


@pytest.mark.parametrize("data", [None, [], {}, {"name": "t", "dim": 2}])
def test_table_from_what_is_no_declaration_is_refused(data):
    with pytest.raises(ConfigError, match="expected the fields"):
        Table.from_dict(data)


def test_table_for_the_store_has_its_numbers():
    table = Table("t", 3, access="adagrad", init="uniform", scale=0.5, lr=0.1, seed=9)
    hyper = (0.1, 1e-8, 0.9, 0.999, 0.0, 0.0, 1.0)
    assert table.store_arguments() == (3, 2, 1, 0.5, 9, hyper, 0, (0, 64 << 20, 0, 0), True)
    table = Table(
        "t",
        3,
        "ftrl",
        lr=0.1,
        l1=2,
        l2=3,
        beta=4,
        track="touch",
        admit_after=2,
        rows_max=99,
        finite=False,
    )
    hyper = (0.1, 1e-8, 0.9, 0.999, 2.0, 3.0, 4.0)
    assert table.store_arguments() == (3, 4, 0, 0.0, 0, hyper, 1, (2, 64 << 20, 99, 0), False)
    assert Table("t", 3, "some.where:Method").store_arguments()[1] == 14


@pytest.mark.parametrize(
    "access",
    ["add", "sgd", "adagrad", "adam", "ftrl", "average", "momentum", "rowwise_adagrad"],
)
@pytest.mark.parametrize("dim", [1, 7])
def test_table_state_is_as_wide_as_the_store_makes_it(access, dim):
    table = Table("t", dim, access, lr=0.1)
    store = ShardStore(1, loops.row_ops())
    store.own([0])
    store.add_table(1, *table.store_arguments())
    keys = np.zeros(1, np.uint64)
    whole = store.pull(1, keys, state=True)
    assert whole.shape == (1, dim + table.state_floats)
    values = np.zeros((1, dim + (access == "average")), np.float32)
    table.check_push(values)
    store.push(1, 1, 1, keys, values)
    moments = access in ("adam", "momentum")  # set before a training, pushed by no worker
    for refuses, refused, push in (
        (moments, MisuseError, lambda: table.check_push(whole, state=True)),
        (False, SnailError, lambda: store.push(1, 1, 2, keys, whole, state=True)),
    ):
        if refuses or access == "average":
            with pytest.raises(refused):
                push()
        else:
            push()


@pytest.mark.parametrize("init", ["uniform", "normal", "factors"])
def test_table_with_random_init_and_no_scale_begins_with_rows_that_can_learn(init):
    table = Table("t", 64, init=init)
    assert table.scale == INIT_SCALE
    assert Table("t", 64, init=init, scale=0).scale == 0  # asked for
    assert Tensor("w", (8, 8), init=init).table().scale == INIT_SCALE
    assert Table.from_dict(table.to_dict()) == table
    store = ShardStore(1, loops.row_ops())
    store.own([0])
    store.add_table(1, *table.store_arguments())
    rows = store.pull(1, np.arange(50, dtype=np.uint64))[:, 1:]
    expected = INIT_SCALE / 3**0.5 if init == "uniform" else INIT_SCALE
    assert rows.std() == pytest.approx(expected, rel=0.1)
    assert Table("t", 64).scale == 0


@pytest.mark.parametrize(
    "keys",
    [
        [0, 7, 2**63],
        (1, 2),
        [],
        range(3),
        [np.int64(3), np.uint8(4)],
        [2**64 - 1, 0],
        np.arange(3),
        np.arange(3, dtype=np.int8),
        np.arange(6, dtype=np.uint32)[::2],
        np.arange(3, dtype=">u8"),
        np.array([2**64 - 1], np.uint64),
        np.array([1, 2], object),
    ],
    ids=repr,
)
def test_keys_that_are_integers_become_what_they_are(keys):
    made = as_keys(keys)
    assert made.dtype == np.uint64
    assert made.ndim == 1
    assert made.tolist() == [int(key) for key in keys]


def test_keys_that_are_uint64_are_not_copied():
    keys = np.arange(5, dtype=np.uint64)
    assert as_keys(keys) is keys
    for view in (np.ma.array(keys), keys.view(np.memmap)):
        assert np.shares_memory(Table("w", 2).keys(view), keys)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (np.array([1.0, 2.0]), "float64"),
        (np.array([], np.float32), "float32"),
        ([0.5], "float64"),
        ([1, 2.0], "float64"),
        ([True, False], "bool"),
        (["1"], "<U1"),
        (["7", 7], "<U"),
        ([None], "object"),
        (None, "object"),
        (5, r"int64.*shape \(\)"),
        (np.zeros((2, 2), np.uint64), r"uint64.*shape \(2, 2\)"),
        ([[1, 2]], r"int64.*shape \(1, 2\)"),
        ([[1], [1, 2]], "of unequal length"),
        (np.array([3, -1, -7]), r"int64.*-1 at place 1"),
        ([4, -2], "-2 at place 1"),
        ([1 << 64], r"18446744073709551616 at place 0"),
        ([0, -(1 << 70)], "at place 1"),
        (np.ma.array(np.arange(3, dtype=np.uint64), mask=[0, 1, 0]), "a masked one that hides 1"),
        (np.ma.array([4, 5], mask=[1, 1]), "a masked one that hides 2"),
    ],
    ids=repr,
)
def test_keys_that_are_no_integers_from_0_are_refused_with_their_dtype(keys, words):
    with pytest.raises(MisuseError, match=rf"^table 't': keys: expected .* got .*{words}"):
        as_keys(keys, "table 't'")


def test_values_to_push_become_float32_or_are_refused_with_their_dtype():
    rows = np.ones((2, 3), np.float32)
    assert as_rows(rows, "t") is rows
    for numbers in (rows.astype(np.float64), rows.tolist(), rows.astype(np.int16)):
        made = as_rows(numbers, "t")
        assert made.dtype == np.float32
        assert (made == rows).all()
    for wrong, word in ((rows + 1j, "complex64"), ([["a"]], "<U1"), ([[1], [1, 2]], "unequal")):
        with pytest.raises(MisuseError, match=rf"table 't': values: expected numbers.*{word}"):
            as_rows(wrong, "table 't'")
    hides = np.ma.array(rows, mask=rows == 1)
    with pytest.raises(
        MisuseError, match=r"table 't': values: expected .* masked one that hides 6"
    ):
        Table("t", 3).values(hides)
    with pytest.raises(
        MisuseError, match=r"table 't': expected an array float32 \(n, 3\), got a l"
    ):
        Table("t", 3).check_width([[1.0, 2.0, 3.0]], 3)


def test_declaration_that_is_refused_in_part_leaves_no_table():
    """A table that no server was told to make would fail each reader of all tables."""
    out, answers = TestOutbox(), []
    orders = out.orders
    server = Member(1, "server", "h", 1, 1, [])
    table_registry = TableRegistry(lambda: [server], out)
    one, other = Table("one", 4), Table("one", 5)
    driver = Member(2, "driver", "h", 1, 2, [])
    declare = messages.Declare([Table("new", 4).to_dict(), one.to_dict(), other.to_dict()])
    with pytest.raises(ConfigError, match="two ways"):
        table_registry.declare(driver, declare, answers.append, 0.0)
    assert (table_registry.tables, table_registry.made(), orders) == ({}, [], [])
    table_registry.declare(driver, messages.Declare([one.to_dict()]), answers.append, 0.0)
    orders.pop()[2](messages.Ok(), 0.0)
    assert answers.pop() == messages.Declared([1])
    again = messages.Declare([one.to_dict(), Table("new", 4).to_dict()])
    table_registry.declare(driver, again, answers.append, 0.0)
    orders.pop()[2](ClusterError("no memory"), 0.0)
    assert orders.pop()[1] == messages.DropTables([2])
    assert set(table_registry.tables) == {"one"}  # which the server has
