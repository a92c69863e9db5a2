"""Shards driven by calls: primary and standby in one thread, without sockets."""

import numpy as np
import pytest
from shards import ADD, ZEROS, pull_frame, push_frame

from snailps import kernels
from snailps.errors import ConnectionLost, MisuseError
from snailps.shard._driver import ShardDriver
from snailps.shard._shard import ShardCore
from snailps.shard.replication import Replication
from snailps.store.route import fragment_of
from snailps.transport.frame import Frame, FrameDecoder, Kind, encode_frame
from snailps.transport.handshake import remote_error

FRAG_NUM = 8
KEYS = np.arange(40, dtype=np.uint64)
CLIENT = 17  # a connection


class Driven:
    """One shard; its master is the test."""

    def __init__(self, standby=False):
        ops = kernels.row_ops(), kernels.wire_ops()
        self.core = ShardCore(*ops, FRAG_NUM, 60.0, 1 << 20, standby)
        self.door = ShardDriver(self.core)
        self.role = Replication(self.core, self.door)
        self.core.add_table(1, 2, ADD, ZEROS, 0.0, 5, (0.0,), 0, None)
        self.role.take_route(1, range(FRAG_NUM))

    def ask(self, frame):
        """The answer, its frame decoded."""
        answer = self.door.ask(CLIENT, encode_frame(frame))
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
    assert deliver(standby, primary) == 2  # that clocks go on, and the order
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


def test_bytes_that_are_no_frame_are_refused():
    with pytest.raises(ValueError, match="no data frame"):
        Driven().door.ask(CLIENT, bytes(48))
