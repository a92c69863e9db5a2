"""data.name_columns: lines of names, their counts, their numbers."""

import numpy as np
import pytest

from snailps.data.name_columns import NameColumns, NameCounts, Names
from snailps.errors import DataError

TRIPLES = NameColumns(("head", "relation", "tail"))
RATINGS = NameColumns(("user", "item"), valued=True)


@pytest.mark.parametrize(
    "data",
    [
        b"a\tlikes\tb\nb\tis in\tc d\n",
        b"a\tlikes\tb\r\nb\tis in\tc d\r\n",
        b"\na\tlikes\tb\n\nb\tis in\tc d",
    ],
)
def test_read_of_triples_by_tabs_keeps_spaces_in_names(data):
    found = TRIPLES.read(data, "x", 0)
    assert found.names == [[b"a", b"b"], [b"likes", b"is in"], [b"b", b"c d"]]
    assert len(found) == 2
    assert len(found.values) == 0


@pytest.mark.parametrize("data", [b"a,r,b\nc,r,d\n", b"a r b\nc  r d\n", b"a, r ,b\n\n c,r,d\n"])
def test_read_of_triples_by_commas_or_spaces(data):
    names = TRIPLES.read(data, "x", 0).names
    assert [[name.strip() for name in some] for some in names] == [
        [b"a", b"c"], [b"r", b"r"], [b"b", b"d"],
    ]  # fmt: skip


def test_read_of_ratings_takes_values_and_ignores_times_and_a_head():
    data = b"user,item,rating,time\nu1,i1,3.5,9\nu2,i1,4,8\n"
    found = RATINGS.read(data, "x", 0)
    assert found.names == [[b"u1", b"u2"], [b"i1", b"i1"]]
    np.testing.assert_array_equal(found.values, np.float32([3.5, 4]))
    assert len(RATINGS.read(b"u1 i1\nu2 i2\n", "x", 0).values) == 0


@pytest.mark.parametrize(
    ("columns", "data", "start", "message"),
    [
        (TRIPLES, b"a\tb\n", 0, "x, line 1: expected lines of head relation tail.*got 2 columns"),
        (TRIPLES, b"a\tr\tb\na\tb\n", 7, "x, line 2 from byte 7 on: expected lines"),
        (TRIPLES, b"a\tr\tb\na\tr\tb\tc\nd\n", 0, "line 2: expected lines of head"),
        (TRIPLES, b"\r\n\na\tr\tb\n\na\tb\n", 0, "line 5: expected lines of head"),
        (
            RATINGS,
            b"user,item,rating\n",
            99,
            "line 1 from byte 99 on: .*numbers as values; got 'rating'",
        ),
        (RATINGS, b"u,i,1\nu,i,much\n", 0, "line 2: .*numbers as values; got 'much'"),
        (RATINGS, b"user,item,n\n\nu,i,much\n", 0, "line 3: .*numbers as values; got 'much'"),
        (RATINGS, b"u,i,1\n,,\nu,i,1e39\n", 0, "line 2: .*numbers as values; got ''"),
        (RATINGS, b"u,i,1\nu,i,1e39\n", 0, "line 2: .*numbers as values; got '1e39'"),
        (RATINGS, b"u,i,1\nu,i,inf\n", 0, "numbers as values; got 'inf'"),
        (RATINGS, b"u\n", 0, r"expected lines of user item \[value\]"),
    ],
)
def test_read_refuses_other_lines(columns, data, start, message):
    with pytest.raises(DataError, match=message):
        columns.read(data, "x", start)


def test_read_of_nothing_is_empty():
    assert len(TRIPLES.read(b"\n \n", "x", 0)) == 0


def test_numbers_depend_on_counts_alone_and_not_on_parts():
    whole, parts = NameCounts(2), NameCounts(2)
    names = [b"b", b"a", b"b", b"c", b"a", b"b"]
    whole.add(0, names)
    whole.add(1, [b"r"])
    whole.add_values(np.float32([1, 2]))
    for some in (names[4:], names[:4]):
        part = NameCounts(2)
        part.add(0, some)
        parts.merge(part.dump())
    part = NameCounts(2)
    part.add(1, [b"r"])
    part.add_values(np.float32([1, 2]))
    parts.merge(part.dump())
    assert parts.dump() == whole.dump()
    found = Names(whole.dump())
    assert found.names == [[b"b", b"a", b"c"], [b"r"]]
    assert found.counts[0].tolist() == [3, 2, 1]
    assert found.sums.tolist() == [2, 3]
    assert found.numbers(0, [b"c", b"x", b"b"]).tolist() == [2, -1, 0]


def test_names_of_other_bytes_are_refused():
    whole = NameCounts(1)
    whole.add(0, [b"a", b"bc"])
    dumped = whole.dump()
    for cut in (3, 20, len(dumped) - 9, len(dumped) - 1):
        with pytest.raises(DataError, match="no list of names"):
            Names(dumped[:cut])
