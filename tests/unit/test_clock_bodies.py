"""Clocks as bytes: what a shard refuses of PUSH, PULL, SEAL and REACH, and what it then does."""

import struct

import numpy as np
import pytest
from cases import seeds
from shards import ADD, AVERAGE, JOB, ZEROS, Raw, Shards, error_of, pull_frame, push_frame

from snailps.transport.frame import SLOTS_MAX, Frame, Kind, Option

HEAD, CLOCK = struct.Struct("<QIIII"), struct.Struct("<QII")
SCAN = struct.Struct("<QIIII")
HUGE = 2**32 - 1
TOP = 2**64 - 1


@pytest.fixture
def shard():
    with Shards(1, staged_bytes_max=1 << 20) as made:
        made.add_table(1, 4, ADD, ZEROS)
        yield made


def clocked(frame, clock=0, slot=0, slots=0):
    """A PUSH or PULL with a clock behind the head of its body."""
    head = list(HEAD.unpack_from(frame.body))
    head[4] |= Option.CLOCK
    body = HEAD.pack(*head) + CLOCK.pack(clock, slot, slots) + frame.body[HEAD.size :]
    return with_body(frame, body)


def with_body(frame, body):
    return Frame(frame.kind, body, frame.table, frame.epoch, JOB, frame.incarnation, frame.request)


def push(groups=None, value=1.0, seq=1, clock=0, slot=0, slots=0, **changed):
    groups = {20: [11]} if groups is None else groups
    n = sum(map(len, groups.values()))
    return clocked(push_frame(groups, np.full((n, 4), value), seq, **changed), clock, slot, slots)


def pull(clock=0, slot=0, slots=0, **changed):
    return clocked(pull_frame({20: [11]}, **changed), clock, slot, slots)


def seal(clock=0, slot=0, slots=1, request=2, incarnation=1, body=None):
    body = CLOCK.pack(clock, slot, slots) if body is None else body
    return Frame(Kind.SEAL, body, 0, 1, JOB, incarnation, request)


def reach(clock=0, slot=0, slots=0, body=None):
    body = CLOCK.pack(clock, slot, slots) if body is None else body
    return Frame(Kind.REACH, body, 0, 1, JOB, 1, 3)


def row_of(shard, key=11):
    rows = np.empty((1, 4), np.float32)
    return shard.client(99).pull(1, np.array([key], np.uint64), rows)[0, 0]


BAD = {
    "push without a number": (push(seq=0), "seq"),
    "push without an incarnation": (push(incarnation=0), "seq"),
    "push to a clock to come": (push(clock=1), "clock"),
    "push to a clock far away": (push(clock=TOP), "clock"),
    "push to a slot too high": (push(slot=SLOTS_MAX), "clock"),
    "push to a slot far away": (push(slot=HUGE), "clock"),
    "push with a number of slots": (push(slots=2), "clock"),
    "push that ends in its clock": (with_body(push(), push().body[:32]), "length"),
    "push that ends in its head": (with_body(push(), push().body[:24]), "length"),
    "push one word short": (with_body(push(), push().body[:-8]), "length"),
    "push one word long": (with_body(push(), push().body + bytes(8)), "length"),
    "push of another key's fragment": (push({21: [11]}), "fragment"),
    "push of no table": (push(table=9), "table"),
    "pull with a slot": (pull(slot=1), "clock"),
    "pull with slots": (pull(slots=1), "clock"),
    "pull that ends in its clock": (with_body(pull(), pull().body[:32]), "length"),
    "seal that is short": (seal(body=bytes(8)), "length"),
    "seal without a body": (seal(body=b""), "length"),
    "seal that is long": (seal(body=bytes(24)), "length"),
    "seal of no slots": (seal(slots=0), "clock"),
    "seal of a slot too high": (seal(slot=1), "clock"),
    "seal of too many slots": (seal(slots=SLOTS_MAX + 1), "clock"),
    "seal of slots far away": (seal(slot=HUGE - 1, slots=HUGE), "clock"),
    "seal of a clock to come": (seal(clock=1), "clock"),
    "seal of a clock far away": (seal(clock=TOP), "clock"),
    "seal without an incarnation": (seal(incarnation=0), "clock"),
    "reach that is short": (reach(body=bytes(8)), "length"),
    "reach that is long": (reach(body=bytes(32)), "length"),
    "reach with a slot": (reach(slot=1), "clock"),
    "reach with slots": (reach(slots=1), "clock"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_request_is_refused_and_the_connection_goes_on(shard, name):
    frame, code = BAD[name]
    with shard.raw() as one:
        assert error_of(one.ask(frame)).code == code
        assert one.ask(push()).kind == Kind.PUSHED
        assert one.ask(seal()) == Frame(Kind.SEALED, request=2)
        assert one.ask(reach(1)) == Frame(Kind.REACHED, request=3)
    assert row_of(shard) == 1
    assert shard.stats("clock") == 1
    assert shard.stats("staged_bytes") == 0


def test_differences_of_a_state_that_does_not_add_up_are_refused(shard):
    shard.add_table(2, 4, AVERAGE, ZEROS)
    frame = push_frame({20: [11]}, np.ones((1, 9)), table=2, options=int(Option.STATE))
    with shard.raw() as one:
        assert error_of(one.ask(clocked(frame))).code == "state"


def test_value_of_an_average_has_its_weight(shard):
    shard.add_table(2, 4, AVERAGE, ZEROS)
    with shard.raw() as one:
        assert error_of(one.ask(push(table=2))).code == "dim"
        whole = push_frame({20: [11]}, np.ones((1, 5)), table=2)
        assert one.ask(clocked(whole)).kind == Kind.PUSHED


def test_clocked_requests_of_a_backward_or_scan_do_not_exist(shard):
    with shard.raw() as one:
        frame = Frame(Kind.SCAN, SCAN.pack(0, 20, 21, 1, 0) + CLOCK.pack(0, 0, 0), 1, 1, JOB, 1)
        assert error_of(one.ask(frame)).code == "length"


def test_repeated_parts_are_known_again_before_and_behind_the_seal(shard):
    with shard.raw() as one:
        for _ in range(2):
            assert one.ask(push(seq=5)).kind == Kind.PUSHED
        assert one.ask(push(seq=6, value=10)).kind == Kind.PUSHED
        assert one.ask(push(seq=4, value=99)).kind == Kind.PUSHED  # lower: had it, says the mark
        assert one.ask(seal(slots=2)).kind == Kind.SEALED
        assert one.ask(push(seq=6, value=10)).kind == Kind.PUSHED
        assert one.ask(seal(slots=2)).kind == Kind.SEALED
        assert error_of(one.ask(push(seq=7))).code == "clock"
        assert one.ask(seal(slot=1, slots=2)).kind == Kind.SEALED
        assert one.ask(push(seq=6, value=10)).kind == Kind.PUSHED
        assert one.ask(push(seq=7, value=10)).kind == Kind.PUSHED  # the clock is over: dropped
    assert row_of(shard) == 11
    assert shard.stats("repeated") == 4


def test_part_of_which_a_fragment_has_some_already_is_staged_for_the_others(shard):
    with shard.raw() as one:
        one.ask(push({20: [11]}, seq=5))
        one.ask(push({20: [11], 24: [5]}, seq=5))
        one.ask(seal())
    assert (row_of(shard, 11), row_of(shard, 5)) == (1, 1)


def test_unclocked_pushes_are_applied_at_once_beside_staged_ones(shard):
    with shard.raw() as one:
        one.ask(push(seq=1, value=10))
        one.ask(push_frame({20: [11]}, np.ones((1, 4)), 2))
        assert row_of(shard) == 1
        one.ask(seal())
    assert row_of(shard) == 11


def test_request_of_a_clock_to_come_waits_however_damaged_the_rest_is(shard):
    """The error is sent when the clock has come; until then other requests are served."""
    bad = pull(clock=1)
    with shard.raw() as one:
        one.send(with_body(bad, bad.body[:-8]), reach(1))
        shard.until("parked", lambda n: n == 2)
        one.send(push(request=4), seal(request=5))
        answers = {frame.request: frame for frame in (one.next() for _ in range(4))}
    assert answers[1].kind == Kind.ERROR
    assert [answers[n].kind for n in (3, 4, 5)] == [Kind.REACHED, Kind.PUSHED, Kind.SEALED]


def test_connection_that_ends_takes_what_waits_with_it(shard):
    with shard.raw() as one:
        one.send(*[pull(clock=9) for _ in range(50)])
        shard.until("parked", lambda n: n == 50)
    shard.until("parked", lambda n: n == 0)


# --- noise ---------------------------------------------------------------------------------------

GOOD = [push({20: [11], 24: [5]}, seq=3), pull(), seal(slots=2), reach()]


@pytest.mark.parametrize("which", range(len(GOOD)))
def test_every_truncation_is_refused_or_waits_and_harms_nobody(shard, which):
    frame = GOOD[which]
    with shard.raw() as one:
        for size in range(0, len(frame.body), 8):
            answer = one.ask(with_body(frame, frame.body[:size]))
            assert answer.kind == Kind.ERROR, size
        assert one.ask(frame).kind != Kind.ERROR
    assert shard.stats("rows") == 0


@pytest.mark.parametrize("seed", seeds(1))
def test_random_bytes_in_a_body_harm_nobody(shard, seed):
    """Damaged bodies of all kinds, then a clock that is closed as it should be."""
    rng = np.random.default_rng(seed)
    for turn in range(300):
        frame = GOOD[turn % len(GOOD)]
        body = bytearray(frame.body)
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(0, len(body)))
            body[at] = int(rng.integers(0, 256)) if rng.integers(0, 2) else int(rng.integers(0, 3))
        with Raw(shard.ports[0]) as one:
            one.send(with_body(frame, bytes(body)))
            one.send(Frame(Kind.SCAN, SCAN.pack(0, 20, 21, 1, 0), 1, 1, JOB, 1, 77))
            answers = [one.next()]
            if answers[0].request != 77:
                answers.append(one.next())
            assert answers[-1].kind == Kind.SCANNED
    assert shard.stats("staged_bytes") <= 1 << 20
    clock = shard.stats("clock") + 10
    shard.threads[0].set_clock(clock)
    assert shard.stats("staged_bytes") == 0
    before = row_of(shard)
    with Raw(shard.ports[0], incarnation=50) as one:
        assert one.ask(push(clock=clock, incarnation=50)).kind == Kind.PUSHED
        assert one.ask(seal(clock, incarnation=50)).kind == Kind.SEALED
    assert row_of(shard) == pytest.approx(before + 1) or not np.isfinite(before)


def test_contribution_that_is_not_finite_never_is_half_a_slot(shard):
    with shard.raw() as one:
        assert one.ask(push(seq=1)).kind == Kind.PUSHED
        error = error_of(one.ask(push(value=np.nan, seq=2)))
        assert error.code == "not-finite"
        assert "got nan for row 11, column 0" in str(error)
        assert "cannot be sealed: a push to it was refused" in str(error_of(one.ask(seal())))
    assert shard.stats("clock") == 0
    with Raw(
        shard.ports[0], incarnation=2
    ) as other:  # who trains the block again, and gets other values
        assert other.ask(push(seq=1, incarnation=2)).kind == Kind.PUSHED
        assert other.ask(seal(incarnation=2)).kind == Kind.SEALED
    assert row_of(shard) == 1


def test_contribution_that_is_not_finite_and_late_leaves_the_present_slot(shard):
    with shard.raw() as one:
        assert one.ask(push(seq=1)).kind == Kind.PUSHED
        assert one.ask(seal()).kind == Kind.SEALED
        assert error_of(one.ask(push(value=np.inf, seq=2))).code == "not-finite"
        assert one.ask(seal(clock=1)).kind == Kind.SEALED
    assert row_of(shard) == 1
