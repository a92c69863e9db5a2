"""FORWARD and BACKWARD as bytes (`snailps.shard._product_requests`): what a shard refuses, with
which code, and what it then does."""

import struct

import numpy as np
import pytest
from shards import ADD, JOB, PYTHON, SGD, ZEROS, Raw, Shards, error_of
from twins.frame import EXAMPLE_ENTRIES_MAX, ProductOption

from snailps.transport.frame import Frame, Kind

HEAD = struct.Struct("<QQIIIIIIff")
FIELDS = ("seq", "batch", "examples", "first", "count", "entries", "floats", "options", "scale")
KEEP, QUIET, ONES, _ = (int(option) for option in ProductOption)


@pytest.fixture
def shard():
    with Shards(1) as made:
        made.add_table(1, 2, ADD, ZEROS)
        yield made


def forward(counts=(2, 1), keys=(11, 5, 11), values=(2.0, 1.0, 0.5), request=1, table=1, **changed):
    """A FORWARD of a whole batch, good but for what is changed of its head."""
    head = {
        "seq": 0, "batch": 1, "examples": len(counts), "first": 0, "count": len(counts),
        "entries": len(keys), "floats": 2, "options": KEEP, "scale": 0.0, **changed,
    }  # fmt: skip
    body = HEAD.pack(*(head[name] for name in FIELDS), 0)
    body += np.array(counts, "<u4").tobytes()
    body += bytes(-len(body) % 8) + np.array(keys, "<u8").tobytes()
    body += np.array(values, "<f4").tobytes()
    body += bytes(-len(body) % 8)
    return Frame(Kind.FORWARD, body, table, 1, JOB, 1, request)


def backward(rows=((1.0, 1.0), (2.0, 0.0)), request=2, incarnation=1, **changed):
    """A BACKWARD of a whole batch."""
    head = {
        "seq": 1, "batch": 1, "examples": len(rows), "first": 0, "count": len(rows), "entries": 0,
        "floats": 2, "options": 0, "scale": 1.0, **changed,
    }  # fmt: skip
    body = HEAD.pack(*(head[name] for name in FIELDS), 1) + np.array(rows, "<f4").tobytes()
    body += bytes(-len(body) % 8)
    return Frame(Kind.BACKWARD, body, 1, 1, JOB, incarnation, request)


def cut(frame, size):
    return Frame(frame.kind, frame.body[:size], 1, 1, JOB, 1, frame.request)


def corrupt(frame, at, data):
    body = frame.body[:at] + data + frame.body[at + len(data) :]
    return Frame(frame.kind, body, frame.table, 1, JOB, 1, frame.request)


def rows_of(shard, keys=(5, 11)):
    client = shard.client(99)
    return client.pull(1, np.array(keys, np.uint64), np.empty((len(keys), 2), np.float32)).tolist()


HUGE = 2**32 - 1
WIDE = 7 << 12  # seven bytes a key
BAD = {
    "no table": (forward(table=9), "table"),
    "empty body": (cut(forward(), 0), "length"),
    "short head": (cut(forward(), 40), "length"),
    "head alone": (cut(forward(), 48), "length"),
    "one word short": (cut(forward(), 88), "length"),
    "one word long": (forward(values=(2.0, 1.0, 0.5, 0.0, 0.0)), "length"),
    "narrow rows": (forward(floats=1), "dim"),
    "wide rows": (forward(floats=HUGE), "dim"),
    "no batch": (forward(batch=0), "seq"),
    "no examples here": (forward(count=0), "length"),
    "more examples here than in all": (forward(examples=1), "length"),
    "examples beyond the last": (forward(first=1), "length"),
    "first beyond counting": (forward(first=HUGE), "length"),
    "count beyond counting": (forward(count=HUGE, examples=HUGE), "too-long"),
    "entries beyond counting": (forward(entries=HUGE), "too-long"),
    "more entries than there are": (forward(entries=4), "length"),
    "fewer entries than there are": (forward(entries=2), "length"),
    "an example has more than all": (forward(counts=(3, 1)), "length"),
    "an example has more than can be": (forward(counts=(HUGE, 1)), "length"),
    "counts that wrap round": (forward(counts=(HUGE, 4)), "length"),
    "narrow keys that are none": (forward(options=KEEP | WIDE), "length"),
    "wire type 2, which is none": (forward(options=2 << 8), "option"),
    "wire type 2 of a gradient": (backward(options=2 << 8), "option"),
    "unknown option": (forward(options=1 << 4), "option"),
    "unknown high option": (forward(options=1 << 31), "option"),
    "quiet without keep": (forward(options=QUIET), "option"),
    "values where all are 1": (forward(options=KEEP | ONES), "length"),
    "batch too large to keep": (forward(examples=HUGE), "too-long"),
    "backward of incarnation 0": (backward(incarnation=0), "seq"),
    "backward without a number": (backward(seq=0), "seq"),
    "backward of no batch": (backward(batch=0), "seq"),
    "backward with keys": (backward(options=1 << 12), "option"),
    "backward to be kept": (backward(options=KEEP), "option"),
    "backward with entries": (backward(entries=1), "length"),
    "backward, a row short": (backward(count=1), "length"),
    "backward, a row long": (cut(backward(), 56), "length"),
    "backward of wide rows": (backward(floats=HUGE), "dim"),
    "backward whose scale is 0": (backward(scale=0.0), "option"),
    "backward whose scale is infinite": (backward(scale=np.inf), "option"),
    "backward whose scale is no number": (backward(scale=np.nan), "option"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_part_is_refused_and_the_connection_goes_on(shard, name):
    frame, code = BAD[name]
    with shard.raw() as one:
        if frame.kind == Kind.BACKWARD:
            assert one.ask(forward()).kind == Kind.PRODUCT
        reply = one.ask(frame)
        error = error_of(reply)
        assert (error.code, reply.request) == (code, frame.request)
        assert str(error)
        if frame.kind == Kind.FORWARD:
            assert one.ask(forward(request=3)).kind == Kind.PRODUCT
        assert one.ask(backward()).kind == Kind.STEPPED
    assert rows_of(shard) == [[1.0, 1.0], [3.0, 2.0]]


@pytest.mark.parametrize("by", [np.inf, np.nan, 1e31, -1.0])
def test_backward_whose_step_is_scaled_beyond_bounds_is_refused(by):
    with Shards(1) as shard:
        shard.add_table(1, 2, SGD, ZEROS, hyper=(1.0,))
        with shard.raw() as one:
            assert one.ask(forward()).kind == Kind.PRODUCT
            frame = corrupt(backward(), 44, struct.pack("<f", by))
            assert error_of(one.ask(frame)).code == "access"
        assert rows_of(shard) == [[0.0, 0.0], [0.0, 0.0]]


def test_batch_whose_values_or_gradient_are_not_finite_is_refused_to_its_end(shard):
    with shard.raw() as one:
        error = error_of(one.ask(forward(values=(2.0, np.nan, 0.5))))
        assert error.code == "not-finite"
        assert "got nan for a value of row 5" in str(error)
        assert error_of(one.ask(backward())).code == "batch-refused"
        assert one.ask(forward(batch=2)).kind == Kind.PRODUCT
        bad = backward(((1.0, -np.inf),), batch=2, examples=2, count=1)
        error = error_of(one.ask(bad))
        assert error.code == "not-finite"
        assert "got -inf for example 0, column 1" in str(error)
        last = backward(((1.0, 1.0),), batch=2, examples=2, count=1, first=1)
        assert error_of(one.ask(last)).code == "batch-refused"
        assert shard.stats("rows") == 0
        assert one.ask(forward()).kind == Kind.PRODUCT  # nor does the connection end
        assert one.ask(backward()).kind == Kind.STEPPED
    assert rows_of(shard) == [[1.0, 1.0], [3.0, 2.0]]


ONE_ROW = ((1.0, 1.0),)
UNKNOWN = {
    "nothing went forward": ([], backward()),
    "another batch went forward": ([forward(batch=9)], backward()),
    "its place is another's": ([forward(), forward(batch=9)], backward()),
    "it went forward without keep": ([forward(options=0)], backward()),
    "it went back already": ([forward(), backward()], backward(seq=2)),
    "it had another size": ([forward(examples=3)], backward()),
    "only its beginning went forward": (
        [forward(counts=(2,), keys=(11, 5), values=(1.0, 1.0), examples=2)],
        backward(),
    ),
    "its second part came first": ([], forward(first=2, examples=4)),
    "a part is missing": ([forward(examples=9)], forward(first=3, examples=9)),
    "a part came twice": ([forward(examples=4), forward(first=2, examples=4)],
                          forward(first=2, examples=4)),
    "back from its middle": ([forward()], backward(ONE_ROW, examples=2, first=1)),
    "back twice the same": (
        [forward(), backward(ONE_ROW, examples=2)],
        backward(ONE_ROW, examples=2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(UNKNOWN))
def test_part_of_an_unknown_batch_is_refused_and_the_connection_ends(shard, name):
    before, frame = UNKNOWN[name]
    with shard.raw() as one:
        for earlier in before:
            assert one.ask(earlier).kind in (Kind.PRODUCT, Kind.STEPPED)
        known = rows_of(shard)
        one.send(frame, backward(request=7))
        assert error_of(one.next()).code == "batch"
        assert one.next() is None  # what came behind it is not looked at
    assert rows_of(shard) == known
    with shard.raw() as other:
        assert other.ask(forward()).kind == Kind.PRODUCT


def test_kept_batches_end_with_their_connection(shard):
    with shard.raw() as one:
        assert one.ask(forward()).kind == Kind.PRODUCT
    with shard.raw() as one:
        assert error_of(one.ask(backward())).code == "batch"


def test_batch_is_applied_once_however_often_it_comes(shard):
    """The whole batch again, on new connections, under the same number."""
    for _ in range(3):
        with shard.raw() as one:
            assert one.ask(forward()).kind == Kind.PRODUCT
            assert one.ask(backward(seq=4)).kind == Kind.STEPPED
    assert rows_of(shard) == [[1.0, 1.0], [3.0, 2.0]]
    assert shard.stats("rows_stepped") == 2
    assert shard.stats("repeated") == 4


def test_gradient_is_that_of_the_whole_batch_times_scale(shard):
    """A row whose examples lie in two parts moves once, with the last part."""
    with shard.raw() as one:
        half = {"examples": 2, "counts": (1,), "keys": (11,), "values": (1.0,)}
        assert one.ask(forward(**half)).kind == Kind.PRODUCT
        quiet = one.ask(forward(**half, first=1, options=KEEP | QUIET))
        assert (quiet.kind, quiet.body) == (Kind.PRODUCT, b"")
        assert one.ask(backward(ONE_ROW, examples=2, scale=0.5)).kind == Kind.STEPPED
        assert rows_of(shard, [11]) == [[0.0, 0.0]]
        last = backward(ONE_ROW, examples=2, first=1, scale=0.5, seq=2)
        assert one.ask(last).kind == Kind.STEPPED
    assert rows_of(shard, [11]) == [[1.0, 1.0]]


def test_narrow_keys_and_ones_are_the_same_batch(shard):
    """Five keys of one byte beyond 250, no values."""
    body = HEAD.pack(0, 1, 1, 0, 1, 5, 2, KEEP | ONES | 1 << 12, 0.0, 0)
    body += struct.pack("<IIQ", 5, 0, 250) + bytes([0, 1, 2, 3, 250, 0, 0, 0])
    with shard.raw() as one:
        assert one.ask(Frame(Kind.FORWARD, body, 1, 1, JOB, 1, 1)).kind == Kind.PRODUCT
        assert one.ask(backward(ONE_ROW)).kind == Kind.STEPPED
    assert rows_of(shard, [250, 251, 252, 253, 500]) == [[1.0, 1.0]] * 5


def test_part_with_the_most_entries_is_taken(shard):
    many = np.arange(EXAMPLE_ENTRIES_MAX, dtype=np.uint64)
    client = shard.client()
    client.push(1, many, np.ones((len(many), 2), np.float32))
    z = client.forward_async(1, np.array([0, len(many)]), many << np.uint64(0), None, 2).wait()
    assert z.tolist() == [[EXAMPLE_ENTRIES_MAX] * 2]
    wide = many << np.uint64(40)  # whole keys, and values
    values = np.full(len(many), 0.5, np.float32)
    client.forward_async(1, np.array([0, len(many)]), wide, values, 2).wait()


def test_keys_of_another_shard_are_refused():
    with Shards(2) as shards:
        shards.add_table(1, 2, ADD, ZEROS)
        with Raw(shards.ports[0]) as one:
            error = error_of(one.ask(forward(counts=(64,), keys=range(64), values=[1.0] * 64)))
    assert error.code == "stale-route"
    assert "epoch 1" in str(error)


def test_newer_epoch_waits_and_keeps_its_order(shard):
    """Forward and backward of a route that has yet to come, then both are served in order."""
    newer = [Frame(f.kind, f.body, 1, 2, JOB, 1, f.request) for f in (forward(), backward())]
    with shard.raw() as one:
        one.send(*newer)
        shard.until("parked", lambda n: n == 2)
        shard.take_route(2)
        assert [one.next().kind, one.next().kind] == [Kind.PRODUCT, Kind.STEPPED]
    assert rows_of(shard) == [[1.0, 1.0], [3.0, 2.0]]


def test_every_truncation_of_a_part_is_refused(shard):
    """Multiples of 8, as others do not reach the shard's tables."""
    for whole in (forward(), backward()):
        for size in range(0, len(whole.body), 8):
            with shard.raw() as one:
                assert one.ask(forward()).kind == Kind.PRODUCT
                assert error_of(one.ask(cut(whole, size))).code == "length"
    assert rows_of(shard) == [[0.0, 0.0]] * 2


def test_random_bytes_in_a_part_harm_nobody(shard):
    """Whatever they say, the shard answers or ends the connection, and goes on."""
    rng = np.random.default_rng(3)
    for _ in range(300):
        whole = (forward(), backward())[rng.integers(2)]
        at = int(rng.integers(len(whole.body)))
        with shard.raw() as one:
            assert one.ask(forward()).kind == Kind.PRODUCT
            one.send(
                corrupt(
                    whole,
                    at,
                    rng.bytes(min(int(rng.integers(1, 9)), 96 - at))[: len(whole.body) - at],
                )
            )
            assert one.next() is not None
    with shard.raw() as one:
        assert one.ask(forward()).kind == Kind.PRODUCT


def test_table_in_python_is_refused_in_words():
    with Shards(1) as cluster:
        from snailps.api.tables import Table

        table = Table("t", 2, "python_methods:Plain")
        assert table.store_arguments()[1] == PYTHON
        cluster.declare(table)
        with cluster.raw() as one:
            error = error_of(one.ask(forward()))
    assert error.code == "access"
    assert "pull its rows instead" in str(error)
