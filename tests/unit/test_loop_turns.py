"""What a shard and its loop decide by time and order, with both given: no thread, no sleep."""

import random
import socket
import struct

import numpy as np
import pytest
from blocking_shard import BlockingShard
from python_methods import Strict
from replicas import assert_equal, dump
from shards import ADD, JOB, LIMIT_S, PYTHON, ZEROS, keys_of, pull_frame, push_frame
from stores import sections_of
from turned_shard import NONCE, Pipe, TurnedShard

from snailps.abi.key_hash import fragment_of
from snailps.api.tables import Table
from snailps.errors import RemoteError
from snailps.transport.frame import Frame, FrameDecoder, Kind, encode_frame
from snailps.transport.handshake import Channel, Hello, Role, remote_error

FRAG_NUM = 8
KEYS = np.arange(40, dtype=np.uint64)
PARK_LIMIT_S, SILENCE_LIMIT_S, STUCK_LIMIT_S = 30.0, 20.0, 8.0


class Turned(TurnedShard, BlockingShard):
    """A shard that is told how much time passes; its methods are done between turns."""

    def __init__(self, standby=False, tables=True):
        self.now = 1000.0
        super().__init__(
            FRAG_NUM, Hello(Channel.DATA, Role.SERVER, NONCE, job=JOB),
            park_limit_s=PARK_LIMIT_S, standby=standby, silence_limit_s=SILENCE_LIMIT_S,
            stuck_limit_s=STUCK_LIMIT_S,
        )  # fmt: skip
        self.take_route(1, np.arange(FRAG_NUM))
        if tables:
            self.add_table(1, 2, ADD, ZEROS, 0.0, 5, (0.0,))
        self.pass_time()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        assert self.stop(LIMIT_S)

    def pass_time(self, seconds=0.0):
        """Lets time pass, in steps in which timers are looked at."""
        end = self.now + seconds
        while self.settle(self.now) and self.now < end:
            self.now = min(self.now + 0.5, end)

    def stat(self, name):
        return self.stats()[name]

    def hears_primary(self):
        return self._loop.hears_primary()


class Peer:
    """A connection of a worker, or of a primary."""

    def __init__(self, shard, role=Role.WORKER, pipe=None):
        self.shard, self.decoder = shard, FrameDecoder()
        hello = Hello(Channel.DATA, role, NONCE, 1, 1, JOB)
        self.pipe = pipe or shard.connect(hello, shard.now)[0]

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.pipe.close()

    def send(self, *frames):
        self.pipe.send(b"".join(map(encode_frame, frames)))

    def frames(self):
        """What has come by now."""
        self.shard.pass_time()
        while self.pipe.send():
            self.shard.pass_time()
        return list(self.decoder.feed(self.pipe.receive()))

    def ask(self, frame):
        self.send(frame)
        (answer,) = self.frames()
        return answer


@pytest.fixture
def shard():
    with Turned() as made:
        yield made


@pytest.fixture
def peer(shard):
    with Peer(shard) as made:
        yield made


def silent(shard):
    """A connection that has not said anything."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(shard.address)
    shard.pass_time()
    return Peer(shard, pipe=Pipe(sock))


def grouped(keys=KEYS):
    owner = fragment_of(keys, FRAG_NUM)
    return {f: keys[owner == f].tolist() for f in range(FRAG_NUM)}


def push(seq, **changed):
    return push_frame(grouped(), np.ones((len(KEYS), 2)), seq, request=seq, **changed)


def test_requests_are_served_in_turns(peer):
    assert peer.ask(push(1)).kind == Kind.PUSHED
    pulled = peer.ask(pull_frame(grouped(), dim=2))
    assert set(np.frombuffer(pulled.body, "<f4")[2 * FRAG_NUM :].tolist()) == {1.0}


def test_shard_with_nothing_to_do_needs_no_turns(shard, peer):
    assert shard.settle(shard.now) == np.inf
    peer.send(pull_frame(grouped(), dim=2, epoch=2))
    assert shard.settle(shard.now) == pytest.approx(shard.now + 0.1)


def test_parked_request_is_given_up_at_its_deadline_and_not_before(shard, peer):
    peer.send(pull_frame(grouped(), request=7, epoch=2))
    assert peer.frames() == []
    shard.pass_time(PARK_LIMIT_S)
    assert shard.stat("parked") == 1
    shard.pass_time(1.0)
    assert shard.stat("parked") == 0
    (error,) = peer.frames()
    assert error.request == 7
    assert remote_error(error).code == "timeout"
    assert "waited 30.5 s at the shard" in str(remote_error(error))


def test_peer_without_a_handshake_is_closed_after_ten_seconds(shard):
    with silent(shard) as peer:
        shard.pass_time(10.0)
        assert shard.stat("connections") == 1
        shard.pass_time(1.0)
        assert shard.stat("connections") == 0
        assert (peer.frames(), peer.pipe.ended) == ([], True)


def test_refused_peer_that_stays_is_closed_after_two_seconds(shard):
    with silent(shard) as peer:
        peer.pipe.send(b"GET / HTTP/1.1\r\n\r\n" + bytes(48))
        assert [frame.kind for frame in peer.frames()] == [Kind.ERROR]
        shard.pass_time(2.0)
        assert shard.stat("connections") == 1
        shard.pass_time(1.0)
        assert shard.stat("connections") == 0


# --- streams --------------------------------------------------------------------------------------


class Stream:
    """A stream of a primary that the test carries, in frames; `told` of its state."""

    def __init__(self, primary, standby=None, paced=False):
        near, far = socket.socketpair()
        self.told = []
        self.source = Peer(primary, pipe=Pipe(far))
        primary.back_up(
            near.detach(), sync=True, paced=paced, report=lambda *words: self.told.append(words)
        )
        self.target = Peer(standby, Role.SERVER) if standby else None

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        for end in filter(None, (self.source, self.target)):
            end.pipe.close()

    def deliver(self):
        """Carries both ways until nothing comes."""
        while frames := self.source.frames():
            self.target.send(*frames)
            self.answer()

    def answer(self):
        """Carries back what the standby says; its frames."""
        frames = self.target.frames()
        self.source.send(*frames)
        self.source.shard.pass_time()
        return frames


PINNED_BYTES = 16 << 20


@pytest.mark.needs("retention")
@pytest.mark.parametrize("meanwhile", ["nothing", "expire", "clock", "lost"])
def test_rows_that_must_not_change_are_copied_in_pieces_and_pushes_wait(shard, peer, meanwhile):
    """Of a table that limits its rows: what a push makes there depends on all that are there."""
    table = Table("limited", 32, rows_max=1 << 21, track="touch")
    keys = np.arange(1_400_000, dtype=np.uint64)
    keys = keys[fragment_of(keys, FRAG_NUM) == 3]
    with Turned(standby=True) as standby:
        for one in (shard, standby):
            one.add_table(2, *table.store_arguments())
        shard.shard.store.push(2, 7, 1, keys, np.ones((len(keys), 32), np.float32))
        shard.set_tick(4)
        shard.shard.store.push(2, 7, 2, keys[-2000:-1000], np.ones((1000, 32), np.float32))
        assert len(keys) * 32 * 4 > 1.3 * PINNED_BYTES
        with Stream(shard, standby) as stream:
            shard.pass_time()
            assert PINNED_BYTES * 0.9 < shard.stream_waiting() < PINNED_BYTES + (2 << 20)
            peer.send(push(1))
            assert peer.frames() == []
            assert shard.stat("parked") == 1
            with Peer(shard) as reader:
                assert reader.ask(pull_frame(grouped(), dim=2, request=9)).request == 9
            if meanwhile == "lost":
                stream.source.pipe.close()
                assert [frame.kind for frame in peer.frames()] == [Kind.PUSHED]
                return
            if meanwhile == "clock":  # an order cannot wait: the rest is copied before it
                assert shard.seal(0, 0, 1, 7)
                assert shard.stream_waiting() > len(keys) * 32 * 4
            if meanwhile == "expire":
                shard.set_tick(5)
                assert shard.expire_one(2, 3, 3) == len(keys) - 1000
                assert shard.stream_waiting() < PINNED_BYTES + (2 << 20)
            answers = []
            while not (answers and stream.told):
                stream.deliver()  # up to where a frame has not come whole
                answers += peer.frames()
            assert [frame.kind for frame in answers] == [Kind.PUSHED]
            assert stream.told == [("ready", "")]
            assert_equal(dump(shard), dump(standby))


@pytest.mark.needs("retention")
@pytest.mark.parametrize("copied", ["nothing", "some", "all"])
def test_restored_sections_go_to_the_standby_as_they_lie(shard, copied):
    """Each once, and after what an earlier attempt left is gone; beside the copying, too."""
    tables = {1: Table("plain", 2), 2: Table("limited", 12, rows_max=1 << 20)}
    keys = np.arange(30_000, dtype=np.uint64)
    with Turned() as saved, Turned(standby=True) as standby:
        for one in (saved, shard, standby):
            one.add_table(2, *tables[2].store_arguments())
        for number, table in tables.items():
            rows = np.arange(len(keys) * table.dim, dtype=np.float32).reshape(-1, table.dim)
            saved.shard.store.push(number, 7, number, keys, rows)
            shard.shard.store.push(number, 9, number, keys[::-1], rows)
        sections = sections_of(saved.shard.store, 1 << 14)
        assert len(sections) > 5 * FRAG_NUM
        with Stream(shard, standby) as stream:
            if copied == "some":
                shard.pass_time()
                assert 0.1 < shard.stats()["replica"]["seeded"] < 0.9
            while copied == "all" and not stream.told:
                stream.deliver()
            before = shard.stream_waiting()
            shard.clear([1, 2])
            for section in sections:
                shard.put_section(section, {1: 1, 2: 2})
            assert shard.stream_waiting() - before < 1.1 * sum(map(len, sections))
            while not stream.told or not shard.shard.stream_idle:
                stream.deliver()
            assert_equal(dump(shard), dump(standby))
        for number in tables:
            found = shard.shard.store.pull(number, keys, state=True)
            assert np.array_equal(found, saved.shard.store.pull(number, keys, state=True))


def test_standby_that_acknowledges_nothing_is_given_up(shard):
    with Stream(shard) as stream:
        assert stream.source.frames()
        shard.pass_time(SILENCE_LIMIT_S)
        assert not stream.told
        shard.pass_time(1.0)
        assert stream.told == [("lost", "the standby acknowledged nothing for 20 s")]
        assert (stream.source.frames(), stream.source.pipe.ended) == ([], True)


def test_lost_standby_that_may_be_promoted_keeps_replies_held_until_alone(shard, peer):
    with Turned(standby=True) as standby, Stream(shard, standby) as stream:
        stream.deliver()
        assert stream.told == [("ready", "")]
        peer.send(push(1))
        assert peer.frames() == []
        stream.source.pipe.close()
        assert peer.frames() == []
        assert stream.told[1:] == [("lost", "the connection to the standby was closed")]
        shard.unback()
        assert [frame.kind for frame in peer.frames()] == [Kind.PUSHED]


def test_fence_drops_the_marks_of_its_incarnation_at_both_and_of_no_other(shard, peer):
    others = push(2, incarnation=5)
    with Turned(standby=True) as standby, Stream(shard, standby) as stream:
        peer.send(push(1), others)
        peer.frames()
        stream.deliver()
        assert (shard.stat("marks"), standby.stat("marks")) == (2 * FRAG_NUM, 2 * FRAG_NUM)
        shard.fence(1)
        stream.deliver()
        assert (shard.stat("marks"), standby.stat("marks")) == (FRAG_NUM, FRAG_NUM)
        standby.promote(1)
        with Peer(standby) as client:
            assert client.ask(others).kind == Kind.PUSHED
            assert remote_error(client.ask(push(1))).code == "fenced"
        rows = standby.shard.store.pull(1, KEYS)
        assert set(rows.ravel().tolist()) == {2.0}  # each push once


def test_standby_that_is_made_behind_a_fence_has_it_and_no_marks_of_it(shard, peer):
    peer.ask(push(1))
    shard.fence(1)
    assert shard.stat("marks") == 0
    with Turned(standby=True) as standby, Stream(shard, standby) as stream:
        stream.deliver()
        assert standby.stat("marks") == 0
        standby.promote(2)
        with Peer(standby) as client:
            assert remote_error(client.ask(push(1, epoch=2))).code == "fenced"


def test_span_of_a_fence_drops_the_marks_of_all_in_it_and_of_no_other(shard, peer):
    """More of them than a fragment has places, and fewer."""
    for incarnation in range(1, 30):
        peer.send(push(incarnation, incarnation=incarnation))
    peer.frames()
    shard.fence(3, [(2, 4)])
    assert shard.stat("marks") == 26 * FRAG_NUM
    shard.fence(3, [(2, 28)])
    assert shard.stat("marks") == 2 * FRAG_NUM
    assert shard.shard.fenced == [(2, 28)]


def test_fences_of_processes_that_came_in_turn_are_one_span(shard):
    """Their order does not matter, and their number neither."""
    numbers = list(range(2, 3002))
    random.Random(3).shuffle(numbers)
    for incarnation in numbers:
        shard.fence(incarnation)
    assert shard.shard.fenced == [(2, 3001)]


@pytest.mark.parametrize("made", ["before", "behind"])
def test_fence_shuts_out_spans_of_numbers_here_and_at_a_standby(shard, made):
    """However many came and went: they are a span for each gap, not a set."""
    for incarnation in (*range(2, 30), 35, 38, 36, 37):
        shard.fence(incarnation)
    assert shard.shard.fenced == [(2, 29), (35, 38)]

    def fence():
        shard.fence(41, [(33, 39), (1, 1)])
        shard.fence(3)  # an older order comes again

    if made == "behind":
        fence()
    with Turned(standby=True) as standby, Stream(shard, standby) as stream:
        stream.deliver()
        if made == "before":
            fence()
            stream.deliver()
        assert shard.shard.fenced == standby.shard.fenced == [(1, 29), (33, 39), (41, 41)]
        standby.promote(2)
        for incarnation in (1, 29, 33, 39, 41):
            with Peer(standby) as client:
                error = remote_error(client.ask(push(1, incarnation=incarnation, epoch=2)))
                assert error.code == "fenced"
        for incarnation in (30, 32, 40, 42):
            with Peer(standby) as client:
                client_push = push(1, incarnation=incarnation, epoch=2)
                assert client.ask(client_push).kind == Kind.PUSHED


def test_frames_that_are_missing_end_the_stream(shard):
    with Turned(standby=True) as standby, Stream(shard, standby) as stream:
        first, _, third, *_ = stream.source.frames()
        stream.target.send(first, third)
        error = stream.answer()[-1]
        assert "frames of the stream are missing" in str(remote_error(error))
        assert stream.told == [("lost", f"the standby reports: {remote_error(error)}")]
        stream.target.pipe.close()
        standby.pass_time()
        assert not standby.hears_primary()


def test_standby_takes_one_stream_in_its_life_unless_that_said_nothing():
    with Turned(standby=True) as standby:
        with Peer(standby, Role.SERVER), pytest.raises(RemoteError, match="takes one stream"):
            Peer(standby, Role.SERVER)
        standby.pass_time()
        with Peer(standby, Role.SERVER):
            assert standby.hears_primary()


@pytest.mark.parametrize("comes", [True, False])
def test_stream_that_waits_goes_on_or_ends_after_its_limit(shard, peer, comes):
    peer.ask(push(1))
    with Turned(standby=True, tables=False) as standby, Stream(shard, standby) as stream:
        stream.deliver()
        if comes:
            standby.add_table(1, 2, ADD, ZEROS, 0.0, 5, (0.0,))
            standby.pass_time(1.0)
            stream.answer()
            stream.deliver()
            assert stream.told == [("ready", "")]
        else:
            standby.pass_time(STUCK_LIMIT_S)
            assert stream.answer() == []
            standby.pass_time(1.0)
            (error,) = stream.answer()
            assert "table" in str(remote_error(error))


def test_clock_that_ends_while_fragments_are_copied_is_applied_to_those_that_are_there():
    """A method in Python may refuse the first value of a row that has yet to come."""
    dim = 1000  # 1.6 MB: not all of it is copied at once
    keys = np.arange(400, dtype=np.uint64)
    with (
        Turned(tables=False) as primary, Turned(True, tables=False) as standby,
        Peer(primary) as peer,
    ):  # fmt: skip
        for one in (primary, standby):
            method = Strict(Table("t", dim, access="add"))
            one.add_table(1, dim, PYTHON, ZEROS, 0.0, 5, (0.0,), method=method)

        def push_all(value, seq, clock=b""):
            for fragment, mine in grouped(keys).items():
                for some in np.array_split(mine, 1 + len(mine) // 100):
                    values = np.full((len(some), dim), value, np.float32)
                    frame = push_frame(
                        {fragment: some.tolist()}, values, seq, options=32 * bool(clock)
                    )
                    body = frame.body[:24] + clock + frame.body[24:]
                    peer.ask(Frame(frame.kind, body, 1, 1, JOB, 1, seq))
                    seq += 1
            return seq

        seq = push_all(200.0, 1)
        with Stream(primary, standby, paced=True) as stream:
            stream.target.send(*stream.source.frames())
            stream.target.frames()
            assert standby.shard.whole[0] < FRAG_NUM
            push_all(1.0, seq, struct.pack("<QII", 0, 0, 0))
            peer.send(Frame(Kind.SEAL, struct.pack("<QII", 0, 0, 1), 0, 1, JOB, 1, seq))
            stream.answer()
            primary.pass_time(2.0)
            stream.deliver()
            assert stream.told == [("ready", "")]
            assert standby.stat("clock") == 1
            assert np.array_equal(standby.shard.store.pull(1, keys), np.full((400, dim), 201.0))


# --- the pace of copying --------------------------------------------------------------------------


class Copied(Stream):
    """8 MB at a shard, a worker that asks it something, and a standby that acknowledges nothing."""

    def __init__(self, shard, paced):
        self.shard, self.got = shard, 0
        shard.add_table(2, 4000, ADD, ZEROS, 0.0, 5, (0.0,))
        self.peer = Peer(shard)
        for i in range(64):
            fragment, keys = i % FRAG_NUM, keys_of(i % FRAG_NUM, 64, FRAG_NUM)
            rows = {fragment: keys[i // FRAG_NUM :: FRAG_NUM]}
            frame = push_frame(rows, np.ones((8, 4000)), seq=i + 1, table=2)
            assert self.peer.ask(frame).kind == Kind.PUSHED
        shard.pass_time(2.0)
        self.pull()
        super().__init__(shard, paced=paced)

    def __exit__(self, *failure):
        super().__exit__()
        self.peer.pipe.close()

    def pull(self):
        assert self.peer.ask(pull_frame({5: keys_of(5, 1, FRAG_NUM)}, dim=2)).kind == Kind.PULLED

    def is_there(self):
        """Takes what has come; whether that is all."""
        while data := self.source.pipe.receive():
            self.got += len(data)
        return self.got >= 8_000_000

    def beside_pulls(self):
        """Bytes that have come while requests never cease."""
        for _ in range(15):
            self.pull()
            self.is_there()
            self.shard.pass_time(0.9)
        return self.got

    def go_on(self, asked):
        """All comes, with requests in between or none."""
        for _ in range(10_000):
            if asked:
                self.pull()
            self.shard.pass_time()
            if self.is_there():
                return
        pytest.fail(f"{self.got:,} bytes have come, and no more")


def test_copying_goes_piece_by_piece_beside_requests_and_on_without_them(shard):
    """It gets one piece until requests end."""
    with Copied(shard, paced=True) as copied:
        assert 0 < copied.beside_pulls() < 2 << 20
        shard.pass_time(0.5)
        copied.go_on(asked=False)


def test_copying_that_is_not_paced_goes_on_while_others_ask(shard):
    with Copied(shard, paced=False) as copied:
        copied.go_on(asked=True)


def test_rests_end_when_the_shard_is_told(shard):
    with Copied(shard, paced=True) as copied:
        assert 0 < copied.beside_pulls() < 2 << 20
        shard.pace(False)
        copied.go_on(asked=True)
