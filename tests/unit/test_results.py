"""Rows that are set before a training, in a client that only adds."""

import numpy as np
import pytest

from snailps.api.results import JOINED_BYTES, Results, joined
from snailps.api.tables import Table
from snailps.config import JobSettings
from snailps.errors import MisuseError

DIM = 3


class Done:
    def __init__(self, rows=None):
        self.rows = rows

    def wait(self):
        return self.rows


class Adding:
    """A client whose pushes are added up at once; `rows` float32 (n, DIM), by key."""

    def __init__(self, rows):
        self.rows, self.pushed = np.array(rows, np.float32), 0

    def pull_async(self, number, keys, into):
        into[:] = self.rows[keys]
        return Done(into)

    def push_async(self, number, keys, values, state, last):
        assert values.flags.aligned  # as the client asks for
        assert values.strides[-1] == 4 or not len(keys)
        self.rows[keys] += values[:, :DIM]
        self.pushed += len(keys)
        return Done()


def put(rows, wanted, access="add"):
    client = Adding(rows)
    table = Table("t", DIM, access=access, lr=0.1)
    results = Results(JobSettings(), b"", {}, client, {"t": 0}, {"t": table}, 1)
    keys = np.arange(len(wanted), dtype=np.uint64)
    kept = wanted.copy()
    results.put("t", keys, wanted)
    assert (wanted == kept).all()  # the caller's rows stay as they are
    return client


@pytest.mark.parametrize("access", ["add", "adagrad"])
@pytest.mark.parametrize("old", [0.0, 0.1])
@pytest.mark.parametrize("same", ["none", "first number", "some rows", "all"])
def test_put_sets_rows_exactly_and_pushes_none_that_is_right(access, old, same):
    rng = np.random.default_rng(1)
    rows = np.full((50, DIM), old, np.float32)
    wanted = rng.standard_normal((50, DIM)).astype(np.float32)
    if same == "first number":
        wanted[:, 0] = old
    elif same != "none":
        wanted[: 50 if same == "all" else 20] = old
    client = put(rows, wanted, access)
    assert (client.rows == wanted).all()
    other = int((wanted != rows).any(axis=1).sum())
    assert client.pushed == other * (2 if old else 1)


def unaligned(rows):
    raw = np.empty(rows.nbytes + 1, np.uint8)
    raw[1:] = rows.reshape(-1).view(np.uint8)
    return raw[1:].view(np.float32).reshape(rows.shape)


@pytest.mark.parametrize(
    "form", [np.asfortranarray, lambda rows: rows.repeat(2, 1)[:, ::2], unaligned]
)
def test_put_takes_rows_that_are_strided_or_not_aligned(form):
    rows = np.zeros((50, DIM), np.float32)
    wanted = np.random.default_rng(1).standard_normal((50, DIM)).astype(np.float32)
    assert (put(rows, form(wanted)).rows == wanted).all()


class Packing:
    """A client of rows with their state, which pushes are added to; `rows` float32 (n, width)."""

    def __init__(self, rows):
        self.rows = np.array(rows, np.float32)

    def pull(self, number, keys, into, state):
        assert state
        into[:] = self.rows[keys.astype(int)]
        return into

    def push_async(self, number, keys, values, state, assign):
        assert (state, assign) == (True, True)
        self.rows[keys.astype(int)] = values
        return self

    def wait(self):
        """It is done."""

    def scan(self, number, dim, fragments, ended):
        yield np.arange(len(self.rows), dtype=np.uint64), self.rows[:, :dim]


@pytest.mark.parametrize("old", [0.0, 0.1])
def test_rows_with_state_are_read_and_set_exactly(old):
    table = Table("t", DIM, access="ftrl", lr=0.1)
    client = Packing(np.full((20, 3 * DIM), old))
    results = Results(JobSettings(), b"", {}, client, {"t": 0}, {"t": table}, 1)
    wanted = np.random.default_rng(1).standard_normal((20, 3 * DIM)).astype(np.float32)
    keys = np.arange(20, dtype=np.uint64)
    results.put_packed("t", [(keys[:7], wanted[:7]), (keys[7:], wanted[7:])])
    assert (client.rows == wanted).all()
    ((found_keys, rows),) = results.packed("t")
    assert (found_keys == keys).all()
    assert (rows == wanted).all()
    results.scanned = {}
    assert [len(some) for some, _ in results.scan("t")] == [20]
    client.scan = None  # keys that are known are not read again
    ((found_keys, rows),) = results.packed("t")
    assert (found_keys == keys).all()
    assert (rows == wanted).all()
    with pytest.raises(MisuseError, match="rows of 9 values"):
        results.put_packed("t", [(keys, wanted[:, :3])])


def test_small_pieces_of_a_scan_are_joined_and_large_ones_are_passed_on():
    sizes = [1, 0, 7, JOINED_BYTES // 12, 3, JOINED_BYTES // 12 - 4, 2, JOINED_BYTES]
    keys = np.split(np.arange(sum(sizes), dtype=np.uint64), np.cumsum(sizes)[:-1])
    pieces = [(some, some[:, None].astype(np.float32)) for some in keys]
    found = list(joined(iter(pieces)))
    assert [len(some) for some, _ in found] == [8, sizes[3], sizes[4] + sizes[5], 2, JOINED_BYTES]
    assert found[1] == pieces[3]
    for some, rows in found:
        assert (rows[:, 0] == some).all()
    assert (np.concatenate([some for some, _ in found]) == np.arange(sum(sizes))).all()
    assert list(joined([])) == []
