"""Shards driven by calls: primary and standby in one thread, without sockets."""

import struct

import numpy as np
import pytest
from python_methods import Strict
from shards import ADD, JOB, PYTHON, ZEROS, pull_frame, push_frame

from snailps import kernels
from snailps.api.tables import Table
from snailps.errors import ConnectionLost, MisuseError, ProtocolError
from snailps.shard._driver import ShardDriver
from snailps.shard._shard import ShardCore
from snailps.shard.replication import Replication
from snailps.store.route import fragment_of
from snailps.transport.frame import Frame, FrameDecoder, Kind, encode_frame
from snailps.transport.handshake import remote_error

FRAG_NUM = 8
KEYS = np.arange(40, dtype=np.uint64)
CLIENT = 17  # a connection
PARK_LIMIT_S, SILENCE_LIMIT_S, STUCK_LIMIT_S = 20.0, 10.0, 8.0


class Driven:
    """One shard; its master is the test."""

    def __init__(self, standby=False, tables=True):
        ops = kernels.row_ops(), kernels.wire_ops()
        self.core = ShardCore(*ops, FRAG_NUM, 60.0, 1 << 20, standby)
        self.door = ShardDriver(self.core, PARK_LIMIT_S, SILENCE_LIMIT_S, STUCK_LIMIT_S)
        self.role = Replication(self.core, self.door)
        if tables:
            self.add_table()
        self.role.take_route(1, range(FRAG_NUM))

    def add_table(self):
        self.core.add_table(1, 2, ADD, ZEROS, 0.0, 5, (0.0,), 0, (0, 0, 0, 0), True, None)

    def ask(self, frame, connection=CLIENT, now=0.0):
        """The answer, its frame decoded."""
        answer = self.door.ask(connection, encode_frame(frame), now)
        return answer if answer.frame is None else decoded(answer.frame)

    def rows(self):
        reply = self.ask(pull_frame(grouped(), dim=2))
        return np.frombuffer(reply.body, np.float32)[2 * FRAG_NUM :].reshape(-1, 2)


def decoded(data):
    (frame,) = FrameDecoder().feed(data)
    return frame


def grouped():
    owner = fragment_of(KEYS, FRAG_NUM)
    return {f: KEYS[owner == f].tolist() for f in range(FRAG_NUM)}


def push(seq, value=1.0):
    return push_frame(grouped(), np.full((len(KEYS), 2), value, np.float32), seq)


def deliver(primary, standby, at_most=10**6):
    """Carries the stream, frame by frame; how many."""
    done = 0
    while done < at_most and (frames := primary.door.take_stream()):
        for frame in frames:
            answer = standby.door.replay(frame)
            assert answer.frame is not None, answer.reason
            primary.door.acknowledge(answer.frame)
            done += 1
    return done


@pytest.fixture
def pair():
    """A primary with some rows, and its standby, which has them; what was told of the stream."""
    primary, standby, told = Driven(), Driven(standby=True), []
    assert primary.ask(push(1)).kind == Kind.PUSHED
    primary.role.back_up(-1, True, False, False, lambda *words: told.append(words))
    assert deliver(primary, standby) > FRAG_NUM
    assert told == [("ready", "")]
    return primary, standby, told


def test_push_is_held_until_the_standby_has_it(pair):
    primary, standby, _ = pair
    assert primary.ask(push(2)).frame is None
    assert primary.door.released() == []
    deliver(primary, standby)
    ((connection, frame),) = primary.door.released()
    assert (connection, decoded(frame).kind) == (CLIENT, Kind.PUSHED)


def test_promoted_standby_has_what_was_acknowledged_and_knows_the_push(pair):
    primary, standby, _ = pair
    primary.ask(push(2))
    deliver(primary, standby)
    assert standby.ask(pull_frame(grouped(), dim=2)).reason.startswith(
        "this shard, which stands by"
    )
    standby.role.promote(2)
    frame = push(2)
    assert standby.ask(Frame(**{**fields(frame), "epoch": 1})).kind == Kind.ERROR  # an older route
    standby.role.take_route(2, range(FRAG_NUM))
    again = Frame(**{**fields(frame), "epoch": 2})
    assert standby.ask(again).kind == Kind.PUSHED  # and not applied twice
    reply = standby.ask(pull_frame(grouped(), dim=2, epoch=2))
    assert set(np.frombuffer(reply.body, np.float32)[2 * FRAG_NUM :].tolist()) == {2.0}


def fields(frame):
    return {name: getattr(frame, name) for name in Frame.__slots__}


def test_lost_standby_that_may_be_promoted_keeps_replies_held_until_alone(pair):
    primary, _, told = pair
    primary.ask(push(2))
    primary.door.lose_stream("cut")
    assert told[-1] == ("lost", "cut")
    assert primary.door.released() == []
    primary.role.alone()
    assert len(primary.door.released()) == 1


def test_yield_waits_for_the_standby_and_changes_places(pair):
    primary, standby, _ = pair
    primary.ask(push(2))
    primary.role.begin_yield()
    assert "new place" in primary.ask(push(3)).reason
    assert not primary.role.finish_yield(stay=True)
    deliver(primary, standby)
    assert primary.role.finish_yield(stay=True)
    primary.role.end_yield()
    with pytest.raises(ConnectionLost, match="yielded"):
        primary.role.order({"do": "set_tick", "tick": 1})
    standby.role.back_up(-1, True, False, True, lambda *words: None)
    assert deliver(standby, primary) == 2  # RESUME and SEEDED: it has everything
    standby.role.promote(2)
    standby.role.order({"do": "fence", "incarnation": 99})
    assert deliver(standby, primary) == 1
    assert (standby.core.stream_state, standby.core.stream_idle) == ("ready", True)


def test_standby_without_everything_is_not_promoted():
    standby = Driven(standby=True)
    with pytest.raises(MisuseError, match=f"only 0 of {FRAG_NUM} fragments"):
        standby.role.promote(2)


def test_fenced_incarnation_is_refused_at_the_standby_too(pair):
    primary, standby, _ = pair
    primary.role.order({"do": "fence", "incarnation": 1})
    deliver(primary, standby)
    standby.role.promote(1)
    for shard in (primary, standby):
        assert remote_error(shard.ask(push(2))).code == "fenced"


def marks_of(shard):
    return shard.core.store.stats()["marks"]


def test_fence_drops_the_marks_of_its_incarnation_at_both_and_of_no_other(pair):
    primary, standby, _ = pair
    others = Frame(**{**fields(push(2)), "incarnation": 5})
    primary.ask(push(2))
    primary.ask(others)
    deliver(primary, standby)
    assert (marks_of(primary), marks_of(standby)) == (2 * FRAG_NUM, 2 * FRAG_NUM)
    primary.role.order({"do": "fence", "incarnation": 1})
    deliver(primary, standby)
    assert (marks_of(primary), marks_of(standby)) == (FRAG_NUM, FRAG_NUM)
    standby.role.promote(1)
    assert remote_error(standby.ask(push(2))).code == "fenced"
    assert standby.ask(others).kind == Kind.PUSHED
    assert set(standby.core.store.pull(1, KEYS).ravel().tolist()) == {3.0}  # each push once


def test_standby_that_is_made_behind_a_fence_has_it_and_no_marks_of_it():
    primary, standby = Driven(), Driven(standby=True)
    primary.ask(push(2))
    primary.role.order({"do": "fence", "incarnation": 1})
    assert marks_of(primary) == 0
    primary.role.back_up(-1, True, False, False, lambda *words: None)
    deliver(primary, standby)
    assert marks_of(standby) == 0
    standby.role.promote(2)
    again = Frame(**{**fields(push(2)), "epoch": 2})
    assert remote_error(standby.ask(again)).code == "fenced"


def test_bytes_that_are_no_frame_are_refused():
    with pytest.raises(ValueError, match="no data frame"):
        Driven().door.ask(CLIENT, bytes(48))


# --- what waits, and time ------------------------------------------------------------------------


def sent(shard, now):
    """What goes out at a time: (connection, kind, request)."""
    found = [(one.connection, decoded(one.frame)) for one in shard.door.turn(now)]
    return [(connection, frame.kind, frame.request) for connection, frame in found]


def test_parked_request_is_answered_when_the_shard_wakes():
    shard = Driven(standby=True)
    assert shard.ask(pull_frame(grouped(), request=5, dim=2, epoch=2)).frame is None
    assert shard.door.counters()["parked"] == 1
    assert sent(shard, 1.0) == []
    primary = Driven()
    primary.role.back_up(-1, True, False, False, lambda *words: None)
    deliver(primary, shard)
    shard.role.promote(2)
    assert shard.door.due == -np.inf
    assert sent(shard, 1.0) == [(CLIENT, Kind.PULLED, 5)]


def test_nothing_overtakes_a_parked_push_of_its_connection(pair):
    primary, standby, _ = pair
    primary.role.begin_yield()
    assert "new place" in primary.ask(push(2)).reason
    behind = primary.ask(pull_frame(grouped(), request=2, dim=2))
    assert behind.reason.startswith("an earlier push")
    assert primary.ask(pull_frame(grouped(), request=3, dim=2), connection=18).kind == Kind.PULLED
    primary.role.end_yield()
    assert sent(primary, 0.0) == [(CLIENT, Kind.PULLED, 2)]
    deliver(primary, standby)
    assert sent(primary, 0.0) == [(CLIENT, Kind.PUSHED, 1)]


def test_connection_that_ends_takes_its_requests_with_it(pair):
    primary, standby, _ = pair
    primary.ask(push(2))
    primary.role.begin_yield()
    primary.ask(push(3))
    primary.door.close(CLIENT)
    primary.role.end_yield()
    deliver(primary, standby)
    assert sent(primary, 0.0) == []
    assert primary.door.counters()["parked"] == 0


def test_frames_that_are_missing_end_the_stream():
    primary, standby = Driven(), Driven(standby=True)
    primary.role.back_up(-1, True, False, False, lambda *words: None)
    first, _, third, *_ = primary.door.take_stream()
    assert standby.door.replay(first).frame is not None
    answer = standby.door.replay(third)
    assert answer.last
    assert "frames of the stream are missing" in str(remote_error(decoded(answer.frame)))
    assert not standby.door.following()


def test_standby_takes_one_stream_in_its_life():
    standby = Driven(standby=True)
    standby.door.accept_stream(3)
    with pytest.raises(ProtocolError, match="one stream in its life"):
        standby.door.accept_stream(4)
    standby.door.close(3)  # it had said nothing
    standby.door.accept_stream(4)
    assert standby.door.following()


def fill(primary, standby):
    """The stream up to the first frame that waits at the standby; what it waits for."""
    for frame in primary.door.take_stream():
        answer = standby.door.replay(frame, now=0.0, connection=9)
        if answer.frame is None:
            return answer.reason
        primary.door.acknowledge(answer.frame)
    return None


def test_stream_that_waits_goes_on_or_ends_after_its_limit():
    for limit_s in (1.0, STUCK_LIMIT_S + 1):
        primary, standby = Driven(), Driven(standby=True, tables=False)
        primary.ask(push(1))
        primary.role.back_up(-1, True, False, False, lambda *words: None)
        while (reason := fill(primary, standby)) is None:
            pass
        assert "table" in reason
        if limit_s < STUCK_LIMIT_S:
            standby.add_table()
        (first, *others) = standby.door.turn(limit_s)
        assert first.connection == 9
        kind = decoded(first.frame).kind
        if limit_s < STUCK_LIMIT_S:
            assert kind == Kind.REPLICATED
        else:
            assert (kind, first.last, others) == (Kind.ERROR, True, [])
            assert standby.door.replay(b"", connection=9).reason == "a stream that is over"


def test_order_counts_once_the_standby_has_it(pair):
    primary, standby, _ = pair
    done = []

    def note(*result):
        done.append(result)

    primary.door.post(lambda: primary.role.order({"do": "set_tick", "tick": 3}), note, True)
    primary.door.post(lambda: 5, note)
    assert done == [(5, None)]
    deliver(primary, standby)
    assert done[1:] == [(None, None)]
    primary.door.post(lambda: primary.role.order({"do": "set_tick", "tick": 4}), note, True)
    primary.door.lose_stream("cut")
    assert len(done) == 2
    primary.door.post(primary.role.alone, note)
    assert done[2:] == [(None, None)] * 2


def test_stopped_shard_does_nothing_more(pair):
    primary, _, _ = pair
    done = []
    primary.door.link = 33
    order = {"do": "set_tick", "tick": 3}
    primary.door.post(lambda: primary.role.order(order), lambda *r: done.append(r), True)
    primary.door.stop()
    primary.door.post(lambda: 5, lambda *r: done.append(r))
    assert [type(error) for _, error in done] == [ConnectionLost, ConnectionLost]
    assert (primary.door.closed, primary.door.cut_links) == (True, [33])


def test_clock_that_ends_while_fragments_are_copied_is_applied_to_those_that_are_there():
    """A method in Python may refuse the first value of a row that has yet to come."""
    dim = 1000  # 1.6 MB: not all of it is copied at once
    keys = np.arange(400, dtype=np.uint64)
    owner = fragment_of(keys, FRAG_NUM)
    primary, standby, told = Driven(tables=False), Driven(True, tables=False), []
    for one in (primary, standby):
        method = Strict(Table("t", dim, access="add"))
        one.core.add_table(1, dim, PYTHON, ZEROS, 0.0, 5, (0.0,), 0, (0, 0, 0, 0), True, method)
        one.core.store.limit_staged(1 << 30)

    def push_all(value, seq, clock=b""):
        for fragment in range(FRAG_NUM):
            mine = keys[owner == fragment]
            for some in np.array_split(mine, 1 + len(mine) // 100):
                values = np.full((len(some), dim), value, np.float32)
                frame = push_frame({fragment: some.tolist()}, values, seq, options=32 * bool(clock))
                body = frame.body[:24] + clock + frame.body[24:]
                primary.ask(Frame(frame.kind, body, 1, 1, JOB, 1, seq))
                seq += 1
        return seq

    seq = push_all(200.0, 1)
    primary.role.back_up(-1, True, True, False, lambda *words: told.append(words))
    deliver(primary, standby, 1)
    assert standby.core.whole[0] < FRAG_NUM
    push_all(1.0, seq, struct.pack("<QII", 0, 0, 0))
    primary.ask(Frame(Kind.SEAL, struct.pack("<QII", 0, 0, 1), 0, 1, JOB, 1, seq))
    deliver(primary, standby)
    assert told == [("ready", "")]
    assert standby.core.store.clock_stats()["clock"] == 1
    assert np.array_equal(standby.core.store.pull(1, keys), np.full((400, dim), 201.0))
