"""Strangers at a live shard and a live master: dropped soon, while all others are served."""

import contextlib
import os
import random
import resource
import socket
import struct
from pathlib import Path

import pytest
from live import SECRET, Live, served
from processes import LIMIT_S

from snailps.transport.control import dial
from snailps.transport.frame import HEADER, MAGIC, VERSION, Frame, FrameDecoder, Kind, encode_frame
from snailps.transport.handshake import Channel, ClientSession, Hello, Role, remote_error
from snailps.transport.security.refusals import (
    LINES_MAX,
    UNKNOWN_MAX,
)
from snailps.transport.security.trust import Trust

DOORS = ["master", "shard"]


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    made = Live(tmp_path_factory.mktemp("live"))
    yield made
    made.close()


def knock(live, door, data=b""):
    sock = socket.create_connection(live.addresses[door], timeout=LIMIT_S)
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # dropped at the first words
        sock.sendall(data)
    return sock


def left(sock):
    """What the other side still says before it closes the connection; bounded by the time limit."""
    said = b""
    with contextlib.suppress(ConnectionResetError), sock:
        while data := sock.recv(1 << 16):
            said += data
    return said


def refusal(said):
    """Code of the ERROR that is the last frame of what was said."""
    frames = list(FrameDecoder().feed(said))
    assert frames[-1].kind == Kind.ERROR
    return remote_error(frames[-1]).code


def hello(live, door):
    channel = Channel.DATA if door == "shard" else Channel.CONTROL
    return Hello(channel, Role.WORKER, os.urandom(16), 1, 1, live.job)


def header(kind, body_bytes, flags=0):
    return HEADER.pack(MAGIC, VERSION, kind, flags, 0, 0, 0, 0, 0, body_bytes)


BOMB = struct.pack("<I", 4096) + b"\x1f\x00\x01\x00" + b"\xff" * 4000
HUGE_BOMB = struct.pack("<I", (1 << 32) - 1) + b"\xff" * 200
RANDOM = random.Random(8)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "magic"),
        (RANDOM.randbytes(100_000), "magic"),
        (b"\x16\x03\x01\x02\x00\x01" + bytes(200), "magic"),
        (header(Kind.HELLO, 1 << 40), "too-long"),
        (header(Kind.PULL, 1 << 20), None),
        (header(Kind.CALL, 256 << 20), "too-long"),
        (header(Kind.HELLO, len(BOMB), 1) + BOMB, None),
        (header(Kind.HELLO, len(HUGE_BOMB), 1) + HUGE_BOMB, None),
        (header(99, 0), "kind"),
        (encode_frame(Frame(Kind.PROOF, bytes(32))), "handshake"),
        (encode_frame(Frame(Kind.HELLO, b"\x03")), "handshake"),
        (encode_frame(Frame(Kind.HELLO, bytes(4096))), "handshake"),
        (encode_frame(Frame(Kind.HEARTBEAT)) * 1000, "handshake"),
    ],
)
def test_stranger_who_talks_nonsense_is_told_and_dropped_at_once(live, door, data, code):
    with served(live):
        said = left(knock(live, door, data))
    # Where a peer went on sending, its words may be destroyed with the connection.
    assert not said or refusal(said) == code or code is None


@pytest.mark.parametrize("door", DOORS)
def test_stranger_with_a_wrong_secret_is_refused(live, door):
    with served(live):
        sock = knock(live, door, encode_frame(hello(live, door).to_frame()))
        answer = b""
        while len(answer) < HEADER.size + 56:
            answer += sock.recv(1 << 16)
        sock.sendall(encode_frame(Frame(Kind.PROOF, bytes(32))))
        assert refusal(left(sock)) == "secret"


@pytest.mark.parametrize("door", DOORS)
def test_stranger_who_replays_an_honest_handshake_is_refused(live, door):
    """A listener in the network has recorded every byte of it."""
    session = ClientSession(hello(live, door), SECRET.encode())
    decoder, sent = FrameDecoder(), [encode_frame(session.start())]
    with knock(live, door, sent[0]) as sock:
        while not session.ready:
            for frame in decoder.feed(sock.recv(1 << 16)):
                answer = session.receive(frame)
                if answer is not None:
                    sent.append(encode_frame(answer))
                    sock.sendall(sent[-1])
    with served(live):
        assert refusal(left(knock(live, door, b"".join(sent)))) == "secret"


@pytest.mark.long
def test_strangers_who_say_nothing_or_half_are_dropped_within_the_time_limit(live):
    """All of them at once, so that the test takes one time limit."""
    strangers = []
    with served(live):
        for door in DOORS:
            whole = encode_frame(hello(live, door).to_frame())
            for data in (b"", whole[:1], whole[:47], whole[:-1], whole):
                strangers.append(knock(live, door, data))
        for stranger in strangers:
            left(stranger)


@pytest.mark.parametrize("door", DOORS)
def test_more_strangers_than_a_listener_keeps_push_out_the_oldest_of_them(live, door):
    before = live.descriptors()
    with served(live), contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(knock(live, door)) for _ in range(UNKNOWN_MAX + 88)]
        for stranger in strangers[:80]:
            left(stranger)
        live.serve()
        assert live.descriptors() - before <= UNKNOWN_MAX + 20


def test_master_and_server_raise_their_limit_and_make_room_where_that_is_reached(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
    try:
        live = Live(tmp_path, copied=False)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        for door, process in live.processes.items():
            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
            # Descriptors are numbers below the limit: what is open at the moment keeps its own.
            opened = max(int(fd.name) for fd in Path(f"/proc/{process.pid}/fd").iterdir())
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (opened + 10, hard))
            with contextlib.ExitStack() as stack:
                for _ in range(60):
                    stack.enter_context(knock(live, door))
                channel = hello(live, door).channel
                trust = Trust(SECRET.encode())
                args = (live.addresses[door], channel, Role.WORKER)
                dial(*args, peer_name=door, limit_s=LIMIT_S, job=live.job, trust=trust).close()
                # Strangers take a part of what is left: the process' own files find room.
                assert left_of(process) > 4
                process.wait_line(r"refused 127\.0\.0\.1:\d+: made room for newer connections")
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (hard, hard))
    finally:
        live.close()


def left_of(process):
    """Descriptors that a process may still open."""
    used = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
    return resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0] - used


def test_log_of_a_flood_is_short(live):
    before = len(live.refusals())
    with served(live):
        for _ in range(200):
            for door in DOORS:
                left(knock(live, door, b"no snail"))
    # Of each listener LINES_MAX a period, and a line that sums up; periods may have changed.
    assert len(live.refusals()) - before <= 2 * 2 * (LINES_MAX + 1)
    for process in live.processes.values():
        process.wait_line(r"refused 127\.0\.0\.1:")
