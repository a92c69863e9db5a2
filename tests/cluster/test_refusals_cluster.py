"""Strangers at a live shard and a live master: dropped soon, while all others are served."""

import contextlib
import os
import resource
import socket
from pathlib import Path

import pytest
from live import SECRET, Live, served
from processes import LIMIT_S

from snailps.transport.control import dial
from snailps.transport.frame import encode_frame
from snailps.transport.handshake import Channel, Hello, Role
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


def hello(live, door):
    channel = Channel.DATA if door == "shard" else Channel.CONTROL
    return Hello(channel, Role.WORKER, os.urandom(16), 1, 1, live.job)


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
