"""Finding a server: `dial`, `listen`, and how addresses are shown."""

import contextlib
import socket
import threading
from functools import partial

import pytest
from control_master import LIMIT_S, Master
from processes import free_port

from snailps.errors import ConnectionLost, WaitTimeout
from snailps.transport import messages, sockets
from snailps.transport.control import dial, listen, route_host, show
from snailps.transport.control.client import ask
from snailps.transport.frame import Frame, Kind, encode_frame
from snailps.transport.handshake import NONCE_BYTES, Channel, Hello, Role

DRIP_S = 0.02
"""Between two bytes of a peer that is slow: the shortest of its frames takes a second."""


def dialled(address, limit_s=LIMIT_S, **more):
    return dial(address, Channel.CONTROL, Role.WORKER, peer_name="m", limit_s=limit_s, **more)


def test_dial_of_nobody_says_whom_it_cannot_reach():
    address = ("127.0.0.1", free_port())
    with pytest.raises(WaitTimeout, match=r"cannot reach m at 127\.0\.0\.1:\d+ within"):
        dialled(address, 0.1)


def test_dial_gives_up_when_it_is_told_to():
    address = ("127.0.0.1", free_port())
    with pytest.raises(WaitTimeout):
        dialled(address, 600, give_up=lambda: True)


def test_dial_waits_for_a_server_that_comes_late():
    address = ("127.0.0.1", free_port())
    asked, made = [], []

    def give_up():  # asked after each attempt: the server starts after the second
        asked.append(None)
        if len(asked) == 2:
            made.append(Master(listener=listen(*address)))
        return False

    dialled(address, give_up=give_up).close()
    assert len(asked) == 2
    made[0].close()


def test_dial_of_a_server_that_says_nothing_ends_at_the_limit():
    with (
        listen("127.0.0.1", 0) as silent,
        pytest.raises(ConnectionLost, match=r"m at 127.* accepts connections but does not answer"),
    ):
        dialled(silent.getsockname(), 0.15)


def test_dial_tells_of_a_server_that_says_nothing(monkeypatch):
    monkeypatch.setattr(sockets, "HANDSHAKE_LIMIT_S", 0.1)
    monkeypatch.setattr(sockets, "SAY_S", 0.1)
    said = []
    with listen("127.0.0.1", 0) as silent, pytest.raises(ConnectionLost):
        dialled(silent.getsockname(), give_up=lambda: len(said) > 1, on_wait=said.append)
    assert "waiting for m at 127.0.0.1" in said[0]
    assert "does not answer: it hangs, or is not a snailps process), " in said[0]


@contextlib.contextmanager
def dripping(connection, data):
    """Sends a byte now and then, while the block lasts."""
    over = threading.Event()

    def send():
        with contextlib.suppress(OSError), connection() as sock:
            for at in range(len(data)):
                if over.wait(DRIP_S):
                    return
                sock.sendall(data[at : at + 1])

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def accepted(listener):
    listener.settimeout(LIMIT_S)
    return listener.accept()[0]


def test_dial_of_a_server_that_says_a_byte_now_and_then_ends_at_the_limit():
    hello = encode_frame(Hello(Channel.CONTROL, Role.MASTER, bytes(NONCE_BYTES)).to_frame())
    with (
        listen("127.0.0.1", 0) as slow,
        dripping(partial(accepted, slow), hello),
        pytest.raises(ConnectionLost, match="accepts connections but does not answer"),
    ):
        dialled(slow.getsockname(), 0.15)


def test_ask_of_a_master_that_answers_a_byte_now_and_then_ends_at_the_limit():
    ours, theirs = socket.socketpair()
    answer = encode_frame(Frame(Kind.ANSWER, messages.encode(messages.Ok()), request=1))
    with ours, dripping(lambda: theirs, answer), pytest.raises(TimeoutError):
        ask(ours, messages.Drain(1), 0.15)


def test_listen_on_a_port_in_use_says_so():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConnectionLost, match=rf"cannot listen on 127\.0\.0\.1:{port}.*in use"):
            listen("127.0.0.1", port)


def test_listen_again_on_the_port_of_a_server_that_ended():
    made = Master(listener=listen("127.0.0.1", free_port()))  # taken at once
    client = dialled(made.address)
    made.close()
    client.close()
    listen(*made.address).close()


def test_show_puts_brackets_round_ipv6():
    assert show(("::1", 5)) == "[::1]:5"
    assert show(("host", 5)) == "host:5"


def test_route_host_of_loopback_is_loopback():
    assert route_host(("127.0.0.1", 9)) == "127.0.0.1"


def test_dial_that_meets_itself_is_refused_and_tried_again(monkeypatch):
    def meet_itself(address, timeout):
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(timeout)
        sock.connect(sock.getsockname())
        return sock

    monkeypatch.setattr(sockets.socket, "create_connection", meet_itself)
    with pytest.raises(WaitTimeout, match="refused"):
        dialled(("127.0.0.1", 40000), 0.1)
