"""Heartbeats over socket pairs: what is sent, what counts as heard, and what happens at the end."""

import contextlib
import ctypes
import select
import socket
import struct
import time
from functools import partial
from pathlib import Path

import pytest
from waiting import LIMIT_S, run_all, until

from snailps.errors import MisuseError
from snailps.transport._heartbeat import HeartbeatThread
from snailps.transport.frame import Frame, Kind, encode_frame

BEAT = encode_frame(Frame(Kind.HEARTBEAT))


@pytest.fixture
def pulse():
    made = HeartbeatThread(0.01)
    yield made
    made.stop()


@pytest.fixture
def peer(pulse):
    """The far end of peer 5, which is beaten."""
    near, far = socket.socketpair()
    pulse.add(near, 5)
    pulse.start()
    yield far
    far.close()


def open_descriptors():
    """By name; one that an earlier test left behind may be closed at any time."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that this list was read from
            found.add(path.readlink())
    return found


def receive(sock, n):
    """Exactly n bytes."""
    sock.settimeout(LIMIT_S)
    data = b""
    while len(data) < n:
        data += sock.recv(n - len(data))
    return data


def test_beats_are_frames_and_come_again_and_again(peer):
    assert receive(peer, 3 * len(BEAT)) == 3 * BEAT


def test_any_byte_of_a_peer_counts_as_a_sign_of_life(pulse, peer):
    sent = time.monotonic()
    peer.sendall(b"x")
    until(lambda: pulse.silences()[5] < time.monotonic() - sent)  # not since it was added


def test_silence_grows_while_a_peer_says_nothing(pulse, peer):
    until(lambda: pulse.silences()[5] > 0.1)
    assert pulse.silences()[5] < LIMIT_S


def test_closed_peer_is_silent_since_it_was_last_heard(pulse, peer):
    assert pulse.closed() == set()
    peer.close()
    until(lambda: pulse.closed() == {5})
    until(lambda: 0.05 < pulse.silences()[5] < LIMIT_S)


def test_peer_that_comes_again_takes_the_place_of_its_closed_socket(pulse, peer):
    before = open_descriptors()
    peer.close()
    until(lambda: pulse.closed() == {5})
    for _ in range(3):
        ours, again = socket.socketpair()
        pulse.add(ours, 5)
        assert pulse.closed() == set()
        receive(again, len(BEAT))
        again.close()
        until(lambda: pulse.closed() == {5})
    assert len(open_descriptors() - before) == 1  # of the last one


def test_peer_that_comes_while_others_beat_is_beaten_too(pulse):
    first, first_end = socket.socketpair()
    pulse.add(first, 1)
    pulse.start()
    receive(first_end, len(BEAT))
    second, second_end = socket.socketpair()
    pulse.add(second, 2)
    assert receive(second_end, len(BEAT)) == BEAT
    assert set(pulse.silences()) == {1, 2}
    first_end.close()
    second_end.close()


def test_removed_peer_is_closed_and_forgotten(pulse):
    ends = []
    for number in range(40):  # more than the first room for peers
        ours, theirs = socket.socketpair()
        pulse.add(ours, number)
        ends.append(theirs)
    pulse.start()
    for number in range(0, 40, 2):
        pulse.remove(number)
    assert set(pulse.silences()) == set(range(1, 40, 2))
    for number, end in enumerate(ends):
        end.settimeout(LIMIT_S)
        if number % 2 == 0:
            while end.recv(4096):
                pass  # beats sent before it was removed, then the end
        else:
            receive(end, len(BEAT))
        end.close()


def test_of_two_sockets_of_one_peer_the_liveliest_counts(pulse):
    old, old_end = socket.socketpair()
    new, new_end = socket.socketpair()
    pulse.add(new, 5)
    pulse.add(old, 5)
    pulse.start()
    old_end.close()
    until(lambda: select.select([new_end], [], [], 0)[0])  # a turn has passed
    until(lambda: new_end.send(b"x") and pulse.silences()[5] < 1.0)
    pulse.remove(5)
    assert pulse.silences() == {}
    new_end.close()


def test_peer_that_floods_does_not_silence_the_others(pulse):
    flooded, flood_end = socket.socketpair()
    quiet, quiet_end = socket.socketpair()
    pulse.add(flooded, 1)
    pulse.add(quiet, 2)
    pulse.start()
    flood_end.setblocking(False)
    for _ in range(5):
        try:
            while True:
                flood_end.send(bytes(1 << 16))
        except BlockingIOError:
            pass
        assert receive(quiet_end, len(BEAT)) == BEAT
    flood_end.close()
    quiet_end.close()


def test_peer_that_reads_nothing_does_not_block_the_others(pulse):
    stalled, stalled_end = socket.socketpair()
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    stalled.setblocking(False)
    try:
        while True:
            stalled.send(bytes(4096))
    except BlockingIOError:
        pass
    good, good_end = socket.socketpair()
    pulse.add(stalled, 1)
    pulse.add(good, 2)
    pulse.start()
    assert receive(good_end, 5 * len(BEAT)) == 5 * BEAT
    stalled_end.close()
    good_end.close()


def test_beats_go_on_while_python_holds_the_gil(peer):
    """One long call into C that never gives up the GIL: the beats of that time are there."""
    receive(peer, len(BEAT))
    peer.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        peer.recv(1 << 20)  # those of before
    waits = struct.pack("ihh", peer.fileno(), select.POLLIN, 0)
    assert ctypes.PyDLL(None).poll(waits, 1, int(LIMIT_S * 1000)) == 1  # with the GIL
    assert len(peer.recv(1 << 20)) >= len(BEAT)


def test_silences_and_changes_from_many_threads_do_not_lock_up(pulse):
    pulse.start()
    wrong = []

    def run(base):
        for i in range(100):
            ours, theirs = socket.socketpair()
            pulse.add(ours, base + i)
            if base + i not in pulse.silences():
                wrong.append(base + i)
            pulse.remove(base + i)
            theirs.close()

    run_all(*(partial(run, one) for one in range(0, 6000, 1000)))
    assert not wrong
    assert pulse.silences() == {}


def test_stop_closes_every_socket_and_twice_is_harmless(pulse):
    before = open_descriptors()
    ends = []
    for number in range(3):
        ours, theirs = socket.socketpair()
        pulse.add(ours, number)
        ends.append(theirs)
    pulse.start()
    ends[0].close()
    until(lambda: pulse.closed() == {0})
    pulse.stop()
    pulse.stop()
    for end in ends[1:]:
        end.settimeout(LIMIT_S)
        while end.recv(4096):
            pass
        end.close()
    assert open_descriptors() <= before
    assert pulse.silences() == {}


def test_add_after_stop_leaves_the_socket_to_the_caller(pulse):
    pulse.stop()
    ours, theirs = socket.socketpair()
    with pytest.raises(MisuseError, match="stopped"):
        pulse.add(ours, 1)
    ours.close()
    theirs.close()


def test_pulse_that_never_started_closes_what_it_was_given():
    before = open_descriptors()
    made = HeartbeatThread(1.0)
    ours, theirs = socket.socketpair()
    made.add(ours, 1)
    made.stop()
    assert theirs.recv(1) == b""
    theirs.close()
    assert open_descriptors() <= before
