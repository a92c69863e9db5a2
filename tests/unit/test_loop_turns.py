"""What a shard's loop decides by time, with the time given: no thread, no sleep."""

import contextlib
import socket

import numpy as np
import pytest
from blocking_shard import BlockingShard
from shards import ADD, FRAG_NUM, JOB, ZEROS, Raw, keys_of, pull_frame, push_frame
from waiting import until

from snailps import kernels
from snailps.store.route import fragment_of
from snailps.transport.frame import Kind
from snailps.transport.handshake import Channel, Hello, Role, ServerSession, remote_error

PARK_LIMIT_S, SILENCE_LIMIT_S = 30.0, 20.0


class Turned:
    """A shard without a thread: it serves when it is given a turn, at `now`."""

    def __init__(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.now = 1000.0
        self.thread = BlockingShard(
            listener,
            lambda: ServerSession(Hello(Channel.DATA, Role.SERVER, b"s" * 16, job=JOB), b"", None),
            kernels.row_ops(),
            kernels.wire_ops(),
            FRAG_NUM,
            PARK_LIMIT_S,
            "turned",
            silence_limit_s=SILENCE_LIMIT_S,
        )
        self.turn()
        self.thread.take_route(1, np.arange(FRAG_NUM))
        self.thread.add_table(1, 4, ADD, ZEROS, 0.0, 5, (0.0,), 0)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.thread.stop()

    def turn(self, seconds=0.0):
        """Lets time pass, in steps in which timers are looked at."""
        end = self.now + seconds
        while True:
            self.thread.turn(self.now)
            if self.now >= end:
                return
            self.now = min(self.now + 0.5, end)

    def until(self, condition):
        """Turns, at one time, until what is on its way over the loopback has come."""
        until(lambda: condition() or self.turn(), "what is on its way")

    def stat(self, name):
        return self.thread.stats()[name]


class Peer(Raw):
    """A connection that gives the shard turns while it waits for a frame."""

    def __init__(self, shard, shake=True):
        self.shard = shard
        super().__init__(shard.port, shake=shake)

    def next(self):
        self.sock.setblocking(False)
        until(self._has_come, "a frame, or the end")
        return self.frames.pop(0) if self.frames else None

    def _has_come(self):
        """Whether there is a frame, or the connection has ended."""
        if self.frames:
            return True
        self.shard.turn()
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True
        self.frames += self.decoder.feed(data) if data else []
        return not data or bool(self.frames)


@pytest.fixture
def shard():
    with Turned() as made:
        yield made


def test_requests_are_served_in_turns(shard):
    keys = np.arange(4096, dtype=np.uint64)
    key = int(keys[fragment_of(keys, FRAG_NUM) == 5][0])
    with Peer(shard) as peer:
        assert peer.ask(push_frame({5: [key]}, np.ones((1, 4)))).kind == Kind.PUSHED
        pulled = peer.ask(pull_frame({5: [key]}))
        assert pulled.kind == Kind.PULLED
        assert np.frombuffer(pulled.body, "<f4", 4, 8).tolist() == [1.0] * 4


def test_parked_request_is_given_up_at_its_deadline_and_not_before(shard):
    with Peer(shard) as peer:
        peer.send(pull_frame({5: [1]}, request=7, epoch=2))
        shard.until(lambda: shard.stat("parked") == 1)
        shard.turn(PARK_LIMIT_S)
        assert shard.stat("parked") == 1
        shard.turn(1.0)
        assert shard.stat("parked") == 0
        error = peer.next()
        assert error.request == 7
        assert remote_error(error).code == "timeout"
        assert "waited 30.5 s at the shard" in str(remote_error(error))


def test_peer_without_a_handshake_is_closed_after_ten_seconds(shard):
    with Peer(shard, shake=False) as peer:
        shard.until(lambda: shard.stat("connections") == 1)
        shard.turn(10.0)
        assert shard.stat("connections") == 1
        shard.turn(1.0)
        assert shard.stat("connections") == 0
        assert peer.next() is None


def test_refused_peer_that_stays_is_closed_after_two_seconds(shard):
    with Peer(shard, shake=False) as peer:
        peer.sock.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(48))
        assert peer.next().kind == Kind.ERROR
        shard.turn(2.0)
        assert shard.stat("connections") == 1
        shard.turn(1.0)
        assert shard.stat("connections") == 0


def test_standby_that_acknowledges_nothing_is_given_up(shard):
    ours, theirs = socket.socketpair()
    told = []
    with theirs:
        begun = shard.thread.back_up(
            ours.detach(), sync=True, tell=lambda state, why: told.append((state, why))
        )
        shard.turn()
        assert begun.done()
        theirs.setblocking(False)
        assert theirs.recv(1 << 16)
        shard.turn(SILENCE_LIMIT_S)
        assert not told
        shard.turn(1.0)
        assert told == [("lost", "the standby acknowledged nothing for 20 s")]
        assert theirs.recv(1 << 16) == b""


# --- the pace of copying --------------------------------------------------------------------------


class Copied:
    """8 MB at a shard, a worker that asks it something, and a standby that acknowledges nothing."""

    def __init__(self, shard, paced):
        self.shard, self.got = shard, 0
        shard.thread.add_table(2, 4000, ADD, ZEROS, 0.0, 5, (0.0,), 0)
        self.peer = Peer(shard)
        for fragment in range(FRAG_NUM):
            rows = {fragment: keys_of(fragment, 8)}
            frame = push_frame(rows, np.ones((8, 4000)), seq=fragment + 1, table=2)
            assert self.peer.ask(frame).kind == Kind.PUSHED
        shard.turn(2.0)
        self.pull()
        near, self.sock = socket.socketpair()
        self.sock.setblocking(False)
        shard.thread.back_up(near.detach(), sync=True, paced=paced, tell=lambda *_: None)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.peer.__exit__(*failure)
        self.sock.close()

    def pull(self):
        assert self.peer.ask(pull_frame({5: keys_of(5, 1)})).kind == Kind.PULLED

    def is_there(self):
        """Takes what has come; whether that is all."""
        with contextlib.suppress(BlockingIOError):
            while data := self.sock.recv(1 << 20):
                self.got += len(data)
        return self.got >= 8_000_000

    def beside_pulls(self):
        """Bytes that have come while requests never cease."""
        for _ in range(15):
            self.pull()
            self.is_there()
            self.shard.turn(0.9)
        return self.got


def test_copying_goes_piece_by_piece_beside_requests_and_on_without_them(shard):
    """It gets one piece until requests end."""
    with Copied(shard, paced=True) as copied:
        assert 0 < copied.beside_pulls() < 2 << 20
        shard.turn(0.5)
        shard.until(copied.is_there)


def test_copying_that_is_not_paced_goes_on_while_others_ask(shard):
    with Copied(shard, paced=False) as copied:
        shard.until(lambda: copied.pull() or copied.is_there())


def test_rests_end_when_the_shard_is_told(shard):
    with Copied(shard, paced=True) as copied:
        assert 0 < copied.beside_pulls() < 2 << 20
        shard.thread.pace(False)
        shard.until(lambda: copied.pull() or copied.is_there())
