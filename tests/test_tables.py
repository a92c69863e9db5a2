"""Declarations of tables: what is refused, and that they travel unchanged."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snailps import Table
from snailps.errors import ConfigError
from snailps.roles.tables import DIM_MAX

numbers = st.floats(0, 1e20, allow_subnormal=False)
tables = st.builds(
    Table,
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,30}", fullmatch=True),
    st.integers(1, DIM_MAX),
    access=st.sampled_from(["add", "sgd", "adagrad"]),
    init=st.sampled_from(["zeros", "uniform", "normal"]),
    scale=numbers,
    lr=st.floats(1e-6, 1e6),
    eps=numbers,
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
        ({"access": "adam"}, "access"),
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
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 1.0}, "seed"),
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
    assert table.store_arguments() == (3, 2, 1, 0.5, 9, (0.1, 1e-8, 0.0, 0.0))
