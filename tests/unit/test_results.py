"""Rows that are set before a training, in a client that only adds."""

import numpy as np
import pytest

from snailps.api.results import Results
from snailps.api.tables import Table
from snailps.config import JobSettings

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
    results = Results(JobSettings(), b"", {}, client, {"t": 0}, {"t": table}, [])
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
