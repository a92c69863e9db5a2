"""The proxy: bytes pass unchanged, and each kind of trouble is what it says."""

import contextlib
import os
import socket
import threading
import time

import pytest
from waiting import LIMIT_S, until

from faults.proxy import Proxy, Weather
from snailps.transport.frame import Frame, FrameDecoder, Kind, encode_frame
from snailps.transport.handshake import NONCE_BYTES, Channel, Hello, Role


@pytest.fixture
def echo():
    """Address of a server that returns what it gets, and ends a connection when that has ended."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(sock):
            with sock, contextlib.suppress(OSError):
                while data := sock.recv(1 << 16):
                    sock.sendall(data)

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def link(echo):
    with Proxy() as proxy:
        yield proxy.link(echo)


def connect(link, role=None):
    sock = socket.create_connection(link.address, timeout=LIMIT_S)
    if role is not None:
        hello = encode_frame(Hello(Channel.DATA, role, bytes(NONCE_BYTES), node=3).to_frame())
        sock.sendall(hello)
        assert take(sock, len(hello)) == hello
    return sock


def take(sock, count):
    """That many bytes, or what came before the end."""
    found = b""
    while len(found) < count and (data := sock.recv(count - len(found))):
        found += data
    return found


def both_ways(sock, data):
    """Sends while receiving; what came back."""
    sender = threading.Thread(target=sock.sendall, args=(data,))
    sender.start()
    try:
        return take(sock, len(data))
    finally:
        sender.join(LIMIT_S)


def is_silent(sock, seconds=0.2):
    sock.settimeout(seconds)
    try:
        return not sock.recv(1)
    except TimeoutError:
        return True
    finally:
        sock.settimeout(LIMIT_S)


def test_proxy_passes_bytes_unchanged_and_in_order(link):
    data = os.urandom(3_000_000)
    with connect(link) as first, connect(link) as second:
        assert both_ways(first, data) == data
        assert both_ways(second, b"after") == b"after"


def test_proxy_passes_the_end_of_a_connection(link):
    with connect(link) as sock:
        sock.sendall(b"last words")
        sock.shutdown(socket.SHUT_WR)
        assert take(sock, 100) == b"last words"


def test_proxy_without_a_target_resets(link):
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))  # no process listens there, and none can
        link.target = kept.getsockname()
        with pytest.raises(ConnectionResetError), connect(link) as sock:
            sock.recv(1)


def test_delay_holds_back_each_way(link):
    link.set(Weather(delay_s=0.15))
    with connect(link) as sock:
        begin = time.monotonic()
        assert both_ways(sock, b"x" * 200_000) == b"x" * 200_000
        assert time.monotonic() - begin >= 0.3


def test_slow_link_passes_so_many_bytes_a_second(link):
    link.set(Weather(bytes_per_s=1_000_000))
    with connect(link) as sock:
        begin = time.monotonic()
        assert both_ways(sock, b"x" * 300_000) == b"x" * 300_000
        assert time.monotonic() - begin >= 0.25


def test_silence_keeps_what_was_sent_until_it_is_healed(link):
    with connect(link) as sock:
        assert both_ways(sock, b"before") == b"before"
        link.proxy.partition([link])
        sock.sendall(b"meanwhile")
        assert is_silent(sock)
        with connect(link) as late:
            late.sendall(b"late")
            assert is_silent(late)
            link.proxy.heal()
            assert take(sock, 9) == b"meanwhile"
            assert take(late, 4) == b"late"


def test_answers_that_are_held_back_come_when_that_is_over_and_never_after_a_cut(link):
    push = encode_frame(Frame(Kind.PUSHED, request=1))
    with connect(link, Role.WORKER) as worker, connect(link, Role.SERVER) as server:
        link.set(Weather(mute=True, clients=lambda hello: hello.role == Role.WORKER))
        worker.sendall(push)
        until(lambda: link.held() == [Kind.PUSHED], "the answer that is held back")
        assert both_ways(server, push) == push
        assert link.held(lambda hello: hello.role == Role.SERVER) == []
        assert is_silent(worker)
        link.set(Weather())
        assert take(worker, len(push)) == push
        link.set(Weather(mute=True))
        worker.sendall(push)
        until(link.held, "the answer that is held back")
        link.cut()
        with pytest.raises(ConnectionResetError):
            worker.recv(1)


def test_cut_resets_connections_and_leaves_new_ones(link):
    with connect(link) as sock:
        assert both_ways(sock, b"before") == b"before"
        assert link.cut() == 1
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    with connect(link) as sock:
        assert both_ways(sock, b"after") == b"after"


def test_faults_are_meant_for_those_that_said_so(link):
    with connect(link, Role.WORKER) as worker, connect(link, Role.SERVER) as server:
        link.set(Weather(silent=True, clients=lambda hello: hello.role == Role.WORKER))
        worker.sendall(b"x")
        assert is_silent(worker)
        assert both_ways(server, b"y") == b"y"
        link.set(Weather())
        assert take(worker, 1) == b"x"
        assert link.cut(lambda hello: hello.role == Role.SERVER) == 1
        assert both_ways(worker, b"z") == b"z"


def test_cut_after_some_bytes_passes_exactly_those():
    with socket.create_server(("127.0.0.1", 0)) as listener, Proxy() as proxy:
        link = proxy.link(listener.getsockname())
        with socket.create_connection(link.address, timeout=LIMIT_S) as sock:
            target, _ = listener.accept()
            target.settimeout(LIMIT_S)
            sock.sendall(encode_frame(Hello(Channel.DATA, Role.WORKER, bytes(16)).to_frame()))
            decoder = FrameDecoder()
            while not list(decoder.feed(target.recv(1))):
                pass
            link.cut_after(60)
            sock.sendall(encode_frame(Frame(Kind.PUSH, bytes(1000), request=1)))
            with target:
                assert len(take(target, 2000)) == 60
            assert not take(sock, 1)
