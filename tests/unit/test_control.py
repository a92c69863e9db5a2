"""The control plane over loopback: a server in a thread, clients, and peers that misbehave."""

import errno
import queue
import random
import socket
import threading
import time
import tracemalloc
from concurrent.futures import Future
from functools import partial

import pytest
from control_master import LIMIT_S, Master
from frame_socket import FrameSocket
from waiting import run_all

from snailps.errors import (
    ClusterError,
    ConnectionLost,
    MisuseError,
    ProtocolError,
    RemoteError,
    SnailError,
    WaitTimeout,
)
from snailps.transport import messages
from snailps.transport.control import (
    ControlClient,
    ControlServer,
    dial,
    encoded,
    listen,
)
from snailps.transport.control import server as control_server
from snailps.transport.control.encoded import Encoded
from snailps.transport.frame import HEADER, MAGIC, VERSION, Frame, Kind, encode_frame
from snailps.transport.handshake import Channel, Hello, Role
from snailps.transport.security.refusals import LINES_MAX
from snailps.transport.security.trust import Trust


@pytest.fixture
def master():
    made = Master()
    yield made
    made.close()


def dialled(master, channel=Channel.CONTROL, role=Role.WORKER, **more):
    return dial(master.address, channel, role, peer_name="the master", limit_s=LIMIT_S, **more)


@pytest.fixture
def connect(master):
    """Makes ControlClients of the master; closes them at the end."""
    made = []

    def make(on_message=lambda message: None, on_lost=None, role=Role.WORKER):
        client = ControlClient(
            dialled(master, role=role), on_message, on_lost or (lambda why: None)
        )
        client.start()
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


class Raw(FrameSocket):
    """A connection to a master's control port."""

    def __init__(self, address):
        super().__init__(socket.create_connection(address, LIMIT_S))

    def shake(self, channel=Channel.CONTROL, secret=b""):
        return super().shake(channel, secret, incarnation=2)


@pytest.fixture
def raw(master):
    made = []

    def make():
        made.append(Raw(master.address))
        return made[-1]

    yield make
    for one in made:
        one.close()


def heard(master, one):
    """The server's side of a raw member."""
    one.send(Frame(Kind.NOTE, messages.encode(messages.Leaving("x"))))
    return master.heard.get(timeout=LIMIT_S)[0]


# --- calls and notes -----------------------------------------------------------------------------


def test_call_is_answered_and_note_is_heard(master, connect):
    master.answer = lambda peer, message, reply: reply and reply(messages.Declared([1, 2]))
    client = connect()
    assert client.call(messages.Declare([]), LIMIT_S) == messages.Declared([1, 2])
    client.note(messages.Leaving("SIGTERM"))
    assert master.heard.get(timeout=LIMIT_S)[1] == messages.Declare([])
    peer, message = master.heard.get(timeout=LIMIT_S)
    assert message == messages.Leaving("SIGTERM")
    assert peer.hello.role == Role.WORKER


def test_calls_answered_out_of_order_find_their_callers(master, connect):
    waiting = []
    master.answer = lambda peer, message, reply: waiting.append((message.number, reply))
    client = connect()
    futures = [client.call_async(messages.Fetch(i, "train", "lines")) for i in range(20)]
    master.until(lambda: len(waiting) == 20)
    master.do(lambda: [reply(messages.Content(bytes([n]))) for n, reply in reversed(waiting)])
    got = [client.result(future, LIMIT_S, "Fetch") for future in futures]
    assert got == [messages.Content(bytes([i])) for i in range(20)]


def test_call_that_is_refused_raises_the_masters_words(master, connect):
    master.answer = lambda peer, message, reply: reply(ClusterError("no block left"))
    with pytest.raises(RemoteError, match="no block left"):
        connect().call(messages.Lease("train"), LIMIT_S)


def test_call_refused_with_a_long_unicode_text_is_still_answered(master, connect):
    master.answer = lambda peer, message, reply: reply(ClusterError("\u4e2d" * 5000))
    with pytest.raises(RemoteError, match="\u4e2d" * 1000):
        connect().call(messages.Lease("train"), LIMIT_S)


def test_call_without_an_answer_times_out_and_names_whom_it_waited_for(master, connect):
    master.answer = lambda peer, message, reply: None
    with pytest.raises(WaitTimeout, match="the master has not answered Lease"):
        connect().call(messages.Lease("train"), 0.05)


def test_answer_after_the_timeout_does_no_harm(master, connect):
    waiting = []
    master.answer = lambda peer, message, reply: waiting.append(reply)
    client = connect()
    with pytest.raises(WaitTimeout):
        client.call(messages.Lease("train"), 0.01)
    master.until(lambda: len(waiting) == 1)
    master.answer = lambda peer, message, reply: reply(messages.Ok())
    master.do(lambda: waiting[0](messages.Leased(-1)))
    assert client.call(messages.Drain(1), LIMIT_S) == messages.Ok()


def test_server_calls_and_notes_a_client(master, connect):
    noted = queue.Queue()

    def on_message(message):
        if isinstance(message, messages.Ask):
            return messages.Report({"what": message.what})
        if isinstance(message, messages.TakeRoute):
            raise ProtocolError("no such route", "route")
        noted.put(message)
        return None

    client = connect(on_message)
    peer = master.peer_of(client)
    answers = master.ask(peer, messages.Ask("stats"), messages.TakeRoute({}), messages.Shutdown())
    assert answers.get(timeout=LIMIT_S) == messages.Report({"what": "stats"})
    refused = answers.get(timeout=LIMIT_S)
    assert isinstance(refused, RemoteError)
    assert (str(refused), refused.code) == ("no such route", "route")
    assert answers.get(timeout=LIMIT_S) == messages.Ok()
    assert noted.get(timeout=LIMIT_S) == messages.Shutdown()
    master.do(lambda: master.server.note(peer, messages.Stop(False, "bye")))  # overtakes calls
    assert noted.get(timeout=LIMIT_S) == messages.Stop(False, "bye")


def test_call_that_is_answered_later_blocks_no_call_behind_it(master, connect):
    """What takes long returns a future; the calls behind it are heard and answered meanwhile."""
    futures = {"long": Future(), "refused": Future(), "broken": Future()}
    client = connect(lambda message: futures.get(message.what, messages.Report({"at": "once"})))
    peer = master.peer_of(client)
    answers = {what: master.ask(peer, messages.Ask(what)) for what in [*futures, "now"]}
    assert answers["now"].get(timeout=LIMIT_S) == messages.Report({"at": "once"})
    assert answers["long"].empty()
    futures["refused"].set_exception(ProtocolError("no such thing", "what"))
    refused = answers["refused"].get(timeout=LIMIT_S)
    assert (str(refused), refused.code) == ("no such thing", "what")
    futures["broken"].set_exception(ZeroDivisionError("a bug"))
    assert "ZeroDivisionError" in str(answers["broken"].get(timeout=LIMIT_S))
    futures["long"].set_result(messages.Report({"at": "last"}))
    assert answers["long"].get(timeout=LIMIT_S) == messages.Report({"at": "last"})


def test_call_whose_future_is_given_up_is_refused(master, connect):
    given_up = Future()
    client = connect(lambda message: given_up)
    peer = master.peer_of(client)
    answers = master.ask(peer, messages.Ask("x"))
    given_up.cancel()
    assert isinstance(answers.get(timeout=LIMIT_S), RemoteError)


def leased(number):
    return messages.Leased(number, progress=(0.0, 1.0))


def test_large_bodies_pass_both_ways(master, connect):
    blob = bytes(range(256)) * (12 << 10)  # 3 MiB: many turns of either side
    blobs = []

    def answer(peer, message, reply):
        if isinstance(message, messages.Done):
            blobs.append(message.blob)
            reply(messages.Ok())
        else:
            reply(messages.Summary(blobs[0][::-1]))

    master.answer = answer
    client = connect()
    client.call(messages.Done("survey", 1, 2, 0.5, {}, blob), LIMIT_S)
    assert client.call(messages.Summarise(), LIMIT_S).blob == blob[::-1]


def test_many_clients_are_served_at_once(master, connect):
    def echo(peer, message, reply):
        reply(leased(int(message.pass_)))

    master.answer = echo
    clients = [connect() for _ in range(50)]
    futures = [
        (i, client, client.call_async(messages.Lease(str(i * 1000 + j))))
        for j in range(10)
        for i, client in enumerate(clients)
    ]
    for number, (_, client, future) in enumerate(futures):
        i, j = number % 50, number // 50
        assert client.result(future, LIMIT_S, "Lease").number == i * 1000 + j
    assert master.do(lambda: len(master.server.peers)) == 50


def test_calls_of_many_threads_share_one_client(master, connect):
    master.answer = lambda peer, message, reply: reply(
        messages.Leased(int(message.pass_), progress=(0.0, 1.0))
    )
    client, wrong = connect(), []

    def run(base):
        for i in range(50):
            if client.call(messages.Lease(str(base + i)), LIMIT_S).number != base + i:
                wrong.append(base + i)

    run_all(*(partial(run, one) for one in range(0, 8000, 1000)))
    assert not wrong


def test_call_that_is_too_large_is_our_own_fault_and_leaves_no_trace(master, connect, monkeypatch):
    client = connect()
    monkeypatch.setattr(messages.codec, "JSON_BYTES_MAX", 10)
    with pytest.raises(MisuseError):
        client.call_async(messages.Lease("train"))
    monkeypatch.undo()
    assert client.call(messages.Drain(1), LIMIT_S) == messages.Ok()


# --- lost peers ----------------------------------------------------------------------------------


def test_lost_client_is_told_once_and_its_calls_fail(master, connect):
    over = threading.Event()
    client = connect(lambda message: over.wait(LIMIT_S) and None)
    peer = master.peer_of(client)
    answers = master.ask(peer, messages.Ask("stats"))
    client._sock.shutdown(socket.SHUT_RDWR)
    assert isinstance(answers.get(timeout=LIMIT_S), ConnectionLost)
    assert master.lost.get(timeout=LIMIT_S)[0] is peer
    assert master.do(lambda: len(master.server.peers)) == 0
    master.do(lambda: master.server.call(peer, messages.Ask("stats"), answers.put))
    assert isinstance(answers.get(timeout=LIMIT_S), ConnectionLost)
    master.do(lambda: master.server.note(peer, messages.Stop(False, "")))  # silently nothing
    assert master.lost.empty()
    over.set()


def test_lost_server_fails_open_calls_and_is_told_once(master, connect):
    lost = queue.Queue()
    master.answer = lambda peer, message, reply: None
    client = connect(on_lost=lost.put)
    future = client.call_async(messages.Lease("train"))
    master.heard.get(timeout=LIMIT_S)
    master.close()
    with pytest.raises(ConnectionLost, match="the master is gone"):
        client.result(future, LIMIT_S, "Lease")
    assert lost.get(timeout=LIMIT_S)
    with pytest.raises(ConnectionLost):
        client.call(messages.Lease("train"), LIMIT_S)
    client.note(messages.Leaving("x"))  # silently nothing
    client.close()
    assert lost.empty()


def test_closed_client_is_not_told_that_it_lost_the_server(master, connect):
    lost = queue.Queue()
    master.answer = lambda peer, message, reply: None
    client = connect(on_lost=lost.put)
    future = client.call_async(messages.Lease("train"))
    client.close()
    client.close()
    with pytest.raises(ConnectionLost):
        client.result(future, LIMIT_S, "Lease")
    assert lost.empty()


def test_closed_peer_gets_what_was_sent_before_even_while_it_talks(master, raw):
    """Last words arrive although bytes of the peer were never read: no reset destroys them."""
    one = raw().shake()
    note = Frame(Kind.NOTE, messages.encode(messages.Leaving("x")))
    one.send(note)
    peer, _ = master.heard.get(timeout=LIMIT_S)

    def last_words():
        one.send(*[note] * 2000)  # unread when the peer is closed
        master.server.note(peer, messages.Stop(True, "the end"))
        master.server.close_peer(peer)

    master.do(last_words)
    assert messages.decode(one.next().body) == messages.Stop(True, "the end")
    assert one.next() is None
    assert master.lost.empty()
    assert master.do(lambda: peer in master.server.peers) is False


def test_closed_peer_that_never_closes_is_forgotten_and_what_was_asked_of_it_fails(
    monkeypatch, raw, master
):
    monkeypatch.setattr(control_server, "LINGER_S", 0.05)
    one = raw().shake()
    (peer,) = master.do(lambda: list(master.server.peers))
    answers = master.ask(peer, messages.Ask("stats"))
    assert one.next().kind == Kind.CALL
    master.do(lambda: master.server.close_peer(peer))
    assert isinstance(answers.get(timeout=LIMIT_S), ConnectionLost)
    master.until(lambda: peer.sock.fileno() == -1)
    assert one.next() is None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ZeroDivisionError("a bug"), "ZeroDivisionError"),
        (ClusterError("Start failed: no such class"), "Start failed: no such class"),
    ],
)
def test_failure_in_a_client_callback_ends_it_loudly(master, connect, error, said):
    lost = queue.Queue()

    def broken(message):
        raise error

    client = connect(broken, lost.put)
    peer = master.peer_of(client)
    master.do(lambda: master.server.note(peer, messages.Shutdown()))
    told = lost.get(timeout=LIMIT_S)
    assert told == said if isinstance(error, SnailError) else said in told


# --- peers that misbehave ------------------------------------------------------------------------


def test_handshake_with_a_wrong_secret_is_refused_on_both_sides():
    made = Master(secret=b"right")
    try:
        for secret in (b"wrong", b""):
            with pytest.raises(SnailError, match="secret"):
                dialled(made, trust=Trust(secret))
        one = Raw(made.address)
        one.send(Hello(Channel.CONTROL, Role.WORKER, b"n" * 16).to_frame())
        one.next()
        one.send(Frame(Kind.PROOF, bytes(32)))
        assert "wrong secret" in str(one.refused())
        one.close()
        dialled(made, trust=Trust(b"right")).close()
        assert made.heard.empty()
    finally:
        made.close()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "magic"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "magic"),
        (HEADER.pack(MAGIC, 9, 1, 0, 0, 0, 0, 0, 0, 0), "version"),
        (HEADER.pack(MAGIC, VERSION, 77, 0, 0, 0, 0, 0, 0, 0), "kind"),
        (HEADER.pack(MAGIC, VERSION, 1, 4, 0, 0, 0, 0, 0, 0), "flag"),
        (HEADER.pack(MAGIC, VERSION, 32, 0, 0, 0, 0, 0, 0, 5000), "too-long"),
        (HEADER.pack(MAGIC, VERSION, 32, 0, 0, 0, 0, 0, 1, 0), "handshake"),
        (HEADER.pack(MAGIC, VERSION, 1, 0, 0, 0, 0, 0, 0, 0), "handshake"),
    ],
)
def test_garbage_before_the_handshake_is_refused_and_others_are_served(
    master, raw, connect, data, code
):
    client, one = connect(), raw()
    one.sock.sendall(data)
    assert one.refused().code == code
    assert client.call(messages.Drain(1), LIMIT_S) == messages.Ok()
    assert master.lost.empty()  # no member was lost


def broken_json():
    return Frame(Kind.CALL, b"\x02\x00\x00\x00{]", request=1)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (broken_json(), "message"),
        (Frame(Kind.NOTE, b"\x00"), "message"),
        (Frame(Kind.HELLO), "kind"),
        (Frame(Kind.PULL), "kind"),
        (Frame(Kind.HEARTBEAT), "kind"),
        (Frame(Kind.ERROR, b"{}"), "kind"),
        (Frame(Kind.CALL, messages.encode(messages.Ok())), "request"),
        (HEADER.pack(MAGIC, VERSION, 32, 0, 0, 0, 0, 0, 1, (256 << 20) + 1), "too-long"),
    ],
)
def test_bad_frame_after_the_handshake_loses_that_peer_alone(master, raw, connect, frame, code):
    """A body that is too long before it is sent."""
    client, one = connect(), raw().shake()
    one.sock.sendall(frame if isinstance(frame, bytes) else encode_frame(frame))
    assert one.refused().code == code
    assert master.lost.get(timeout=LIMIT_S)[1].startswith("broke the protocol")
    assert client.call(messages.Drain(1), LIMIT_S) == messages.Ok()


def test_members_who_break_the_protocol_again_and_again_fill_no_log(master, raw, caplog):
    for _ in range(LINES_MAX + 5):
        one = raw().shake()
        one.send(broken_json())
        assert one.refused().code == "message"
    assert len([r for r in caplog.records if "refused 127.0.0.1:" in r.getMessage()]) == LINES_MAX


def test_answer_to_a_call_that_nobody_made_is_ignored(raw, connect, master):
    one = raw().shake()
    one.send(Frame(Kind.ANSWER, messages.encode(messages.Ok()), request=99))
    one.send(Frame(Kind.CALL, messages.encode(messages.Lease("train")), request=1))
    assert one.next().kind == Kind.ANSWER


def test_answer_that_cannot_be_read_fails_its_call(master, raw):
    one = raw().shake()
    peer = heard(master, one)
    answers = master.ask(peer, messages.Ask("stats"))
    asked = one.next()
    one.send(Frame(Kind.ANSWER, b"\x01", request=asked.request))
    assert isinstance(answers.get(timeout=LIMIT_S), ConnectionLost)


def test_answer_of_another_kind_loses_that_peer_and_fails_its_call(master, raw, connect):
    client, one = connect(), raw().shake()
    peer = heard(master, one)
    answers = master.ask(peer, messages.SetClock(1))
    asked = one.next()
    one.send(Frame(Kind.ANSWER, messages.encode(messages.Ok()), request=asked.request))
    assert "SetClock is answered by Report, got Ok" in str(one.refused())
    assert isinstance(answers.get(timeout=LIMIT_S), ConnectionLost)
    assert client.call(messages.Drain(1), LIMIT_S) == messages.Ok()


def test_handler_that_fails_loses_that_peer_alone(master, raw, connect, caplog):
    """A bug here, met by one message: its sender is lost, and the log names it and the reason."""

    def broken(peer, message, reply):
        if isinstance(message, messages.Lease):
            raise ZeroDivisionError("a bug")
        reply(messages.Ok())

    master.answer = broken
    client, one = connect(), raw().shake()
    one.send(Frame(Kind.CALL, messages.encode(messages.Lease("train")), request=1))
    told = one.refused()
    assert (told.code, "ZeroDivisionError" in str(told)) == ("failed", True)
    assert "cannot be handled: ZeroDivisionError" in master.lost.get(timeout=LIMIT_S)[1]
    assert client.call(messages.Drain(1), LIMIT_S) == messages.Ok()
    assert any(record.exc_info for record in caplog.records)


def test_callback_of_an_answer_that_fails_loses_that_peer_alone(master, raw, connect):
    client, one = connect(), raw().shake()
    peer = heard(master, one)
    master.do(lambda: master.server.call(peer, messages.Ask("stats"), {}.__getitem__))
    asked = one.next()
    one.send(Frame(Kind.ANSWER, messages.encode(messages.Report({})), request=asked.request))
    assert "TypeError" in str(one.refused())
    assert client.call(messages.Drain(1), LIMIT_S) == messages.Ok()


@pytest.mark.parametrize("kind", [Kind.NOTE, Kind.CALL])
def test_message_of_a_master_that_cannot_be_read_ends_the_node(master, connect, kind):
    """A worker whose Start it cannot read would wait for it until the job is over."""
    lost = queue.Queue()
    client = connect(on_lost=lost.put)
    peer = master.peer_of(client)
    text = b'{"is":"Slowest","clock":-7,"node":1}'
    frame = Frame(kind, len(text).to_bytes(4, "little") + text, request=kind == Kind.CALL)
    master.do(lambda: master.server.send_frame(peer, frame))
    assert "it broke the protocol: Slowest.clock" in lost.get(timeout=LIMIT_S)


def test_answer_of_a_master_that_is_none_ends_the_node(master, connect):
    lost = queue.Queue()
    client = connect(on_lost=lost.put)
    with pytest.raises(ConnectionLost, match="Lease is answered by Leased, got Ok"):
        client.call(messages.Lease("train"), LIMIT_S)
    assert "it broke the protocol" in lost.get(timeout=LIMIT_S)


def test_half_a_frame_and_then_nothing_blocks_nobody(master, raw, connect):
    one = raw().shake()
    one.sock.sendall(encode_frame(Frame(Kind.CALL, bytes(1000), request=1))[:500])
    assert connect().call(messages.Drain(1), LIMIT_S) == messages.Ok()
    one.close()
    assert master.lost.get(timeout=LIMIT_S)[1]


def test_silent_peer_is_dropped_after_the_handshake_limit():
    now = [0.0]
    made = Master(clock=lambda: now[0])
    try:
        silent, half = Raw(made.address), Raw(made.address)
        half.send(Hello(Channel.CONTROL, Role.WORKER, b"n" * 16).to_frame())
        assert half.next().kind == Kind.HELLO
        made.until(lambda: len(made.server.peers) == 2)
        now[0] = 9.9
        made.do(lambda: None)
        assert made.do(lambda: len(made.server.peers)) == 2
        now[0] = 10.1
        assert silent.next() is None
        assert half.next() is None
        assert made.lost.empty()
        silent.close()
        half.close()
    finally:
        made.close()


def test_peer_that_reads_nothing_is_dropped_at_the_limit(master, raw, monkeypatch):
    monkeypatch.setattr(control_server, "OUT_BYTES_MAX", 8 << 20)
    one = raw().shake()
    peer = heard(master, one)
    noise = Encoded(messages.Content(random.Random(1).randbytes(1 << 20)))

    def flood():
        for count in range(200):  # buffers of the system take some at first
            master.server.note(peer, noise)
            if peer not in master.server.peers:
                return count
        return None

    assert master.do(flood)
    assert master.lost.get(timeout=LIMIT_S) == (peer, "does not read its messages")


def test_peer_that_reads_slowly_is_not_dropped_however_much_waits(master, raw, monkeypatch):
    monkeypatch.setattr(control_server, "OUT_BYTES_MAX", 8 << 20)
    one = raw().shake()
    (peer,) = master.do(lambda: list(master.server.peers))
    noise = Encoded(messages.Content(random.Random(1).randbytes(6 << 20)))

    def say():
        master.server.note(peer, noise)
        return peer.out.size

    waiting = 0
    while waiting <= 12 << 20:
        waiting = master.do(say)
        before = waiting
        while waiting >= before:  # the socket has room again, once it has read some
            one.sock.recv(1 << 16)
            waiting = master.do(lambda: peer.out.size)
    assert master.lost.empty()
    assert master.do(lambda: peer in master.server.peers)


def test_body_for_many_is_packed_once_and_lies_in_memory_once(master, raw, monkeypatch):
    """A vocabulary of 60 MB to a thousand workers was encoded, packed and held for each."""
    packed = []
    compress = encoded.pack_body
    monkeypatch.setattr(
        encoded, "pack_body", lambda kind, body: packed.append(len(body)) or compress(kind, body)
    )
    others = [raw().shake() for _ in range(8)]
    summary = Encoded(messages.Summary(random.Random(1).randbytes(4 << 20)))
    master.until(lambda: len(master.server.peers) == len(others))

    def tell():
        tracemalloc.start()
        for peer in master.server.peers:
            master.server.note(peer, summary)
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return grown

    assert master.do(tell) < 1 << 20
    assert len(packed) == 1
    for one in others:
        assert len(messages.decode(one.next().body).blob) == 4 << 20


def test_a_step_does_only_so_much_and_what_is_left_over_comes_first(master, raw, monkeypatch):
    """A thousand peers that speak at once must not keep the loop from its other work."""
    heard, turns = [], []
    monkeypatch.setattr(control_server, "TURN_S", 0.0)
    others = [raw().shake() for _ in range(5)]
    peers = master.do(lambda: list(master.server.peers))
    master.answer = lambda peer, message, reply: heard.append(peer)

    def steps():
        for one in others:  # all of them are ready, one of them again and again
            one.send(*[Frame(Kind.NOTE, messages.encode(messages.Leaving("x")))])
        for _ in range(len(others)):
            before = len(heard)
            others[0].send(Frame(Kind.NOTE, messages.encode(messages.Leaving("again"))))
            master.server.step(LIMIT_S)
            turns.append(len(set(heard)) - len(set(heard[:before])))
        return turns

    assert master.do(steps) == [1] * len(others)
    assert set(heard) == set(peers)


def test_server_without_descriptors_waits_and_recovers(master, connect, monkeypatch):
    class Exhausted:
        """The listener's socket, whose accept fails a few times."""

        def __init__(self, sock):
            self.sock, self.failures = sock, 2

        def accept(self):
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return self.sock.accept()

        def __getattr__(self, name):
            return getattr(self.sock, name)

    monkeypatch.setattr(control_server, "ACCEPT_PAUSE_S", 0.01)
    poor = Exhausted(master.listener)
    master.do(lambda: setattr(master.server, "_listener", poor))
    assert connect().call(messages.Drain(1), LIMIT_S) == messages.Ok()
    assert poor.failures == 0


# --- channels ------------------------------------------------------------------------------------


def test_heartbeat_connection_is_handed_on(master, raw):
    one = raw().shake(Channel.PULSE)
    hello, sock = master.pulses.get(timeout=LIMIT_S)
    assert (hello.channel, hello.node, hello.incarnation) == (Channel.PULSE, 1, 2)
    one.send(Frame(Kind.HEARTBEAT))
    sock.setblocking(True)
    assert sock.recv(100)[:5] == b"SNPS\x02"
    sock.close()
    assert master.do(lambda: len(master.server.peers)) == 0
    assert master.lost.empty()


def test_data_connection_is_refused_before_it_is_ready(master):
    with pytest.raises(RemoteError, match="no data channel"):
        dialled(master, Channel.DATA)
    assert master.lost.empty()


def test_dial_leaves_what_follows_ready_in_the_socket(master):
    """A heartbeat right behind READY is for the next reader of the socket."""
    beat = encode_frame(Frame(Kind.HEARTBEAT))
    send = master.server.send_frame

    def send_with_beat(peer, frame):
        if frame.kind == Kind.READY:
            peer.out.add(encode_frame(frame) + beat)
        else:
            send(peer, frame)

    master.do(lambda: setattr(master.server, "send_frame", send_with_beat))
    sock = dialled(master)
    got = b""
    while len(got) < len(beat):
        got += sock.recv(100)
    assert got == beat
    sock.close()


def test_wake_ends_the_wait_of_a_step_from_any_thread():
    server = ControlServer(
        listen("127.0.0.1", 0),
        role=Role.MASTER,
        job=7,
        on_message=lambda *_: None,
        on_lost=lambda *_: None,
        on_pulse=lambda *_: None,
    )
    begun = time.monotonic()
    server.wake()
    server.step(LIMIT_S)  # the one before it
    threading.Timer(0.01, server.wake).start()
    server.step(LIMIT_S)  # the one in it
    assert time.monotonic() - begun < LIMIT_S / 2
    server.close()
    server.wake()  # work that ends later
    server.close()
