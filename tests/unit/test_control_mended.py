"""A node's control connection that breaks and is mended: calls made again, notes kept, in order."""

import contextlib
import os
import queue
import threading
from concurrent.futures import Future

import pytest
from far_end import LIMIT_S, Far

from snailps.errors import ConnectionLost, RemoteError
from snailps.transport import messages
from snailps.transport.control import client as control_client
from snailps.transport.control.client import ControlClient, ask
from snailps.transport.frame import Frame, FrameDecoder, Kind, encode_frame


@pytest.fixture
def line():
    """A client, its first connection, and the queue of those it is to find next (None: none)."""
    first, found = Far(), queue.Queue()
    told = queue.Queue()
    asked = threading.Event()

    def mend(why):
        asked.set()
        far = found.get(timeout=LIMIT_S)
        return None if far is None else far.near

    client = ControlClient(first.near, lambda message: None, told.put, mend=mend)
    client.start()
    client.told, client.asked = told, asked
    yield client, first, found
    found.put(None)
    client.close()


def test_open_calls_are_made_again_in_order_before_anything_new(line):
    client, first, found = line
    lease = client.call_async(messages.Lease("train"))
    done = client.call_async(messages.Done("train", 3, 1, 0.5, {}))
    answered = client.call_async(messages.Summarise())
    assert [first.next()[1] for _ in range(3)] == [1, 2, 3]
    first.send(Kind.ANSWER, messages.Summary(b"s"), 3)
    assert answered.result(LIMIT_S) == messages.Summary(b"s")
    first.sock.close()
    assert client.asked.wait(LIMIT_S)
    assert client.away
    client.note(messages.Durable([3]))
    later = client.call_async(messages.Fetch(4, "train", "lines"))
    second = Far()
    found.put(second)
    heard = [second.next() for _ in range(4)]
    assert [(kind, number) for kind, number, _ in heard] == [
        (Kind.CALL, 1), (Kind.CALL, 2), (Kind.CALL, 4), (Kind.NOTE, 0),
    ]  # fmt: skip
    assert heard[0][2] == messages.Lease("train")
    assert heard[3][2] == messages.Durable([3])
    for number, future, answer in (
        (2, done, messages.Ok()),
        (1, lease, messages.Leased(-1)),
        (4, later, messages.Content(b"lines")),
    ):
        second.send(Kind.ANSWER, answer, number)
        assert future.result(LIMIT_S) == answer
    assert not client.away
    assert client.told.empty()


def test_peer_that_lives_and_does_not_read_is_lost_and_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(control_client, "SEND_S", 0.05)
    far, told = Far(), queue.Queue()
    client = ControlClient(far.near, lambda message: None, told.put)
    client.start()
    call = client.call_async(messages.Submit({}, blob=os.urandom(8 << 20)))
    client.note(messages.Leaving("SIGTERM"))
    with pytest.raises(ConnectionLost, match="is gone: connection closed"):
        call.result(LIMIT_S)
    assert told.get(timeout=LIMIT_S) == "connection closed"
    client.close()


def test_calls_fail_where_no_other_connection_is_found(line):
    client, first, found = line
    call = client.call_async(messages.Summarise())
    first.next()
    first.sock.close()
    found.put(None)
    with pytest.raises(ConnectionLost):
        call.result(LIMIT_S)
    assert client.told.get(timeout=LIMIT_S)


def test_call_while_the_connection_is_given_up_fails_too(line, monkeypatch):
    client, first, found = line

    def encode_late(frame, *, pack):
        found.put(None)
        assert client.told.get(timeout=LIMIT_S)
        return encode_frame(frame, pack=pack)

    first.sock.close()
    assert client.asked.wait(LIMIT_S)
    monkeypatch.setattr(control_client, "encode_frame", encode_late)
    with pytest.raises(ConnectionLost):
        client.call(messages.Summarise(), LIMIT_S)


@contextlib.contextmanager
def taken_over(obey):
    """A client that is at an order of its first connection, and the second one, with another."""
    first, second, begun = Far(), Far(), threading.Event()
    client = ControlClient(
        first.near, lambda message: begun.set() or obey(message), lambda why: None,
        mend=lambda why: second.near,
    )  # fmt: skip
    client.start()
    first.send(Kind.CALL, messages.Ask("old"), 1)
    assert begun.wait(LIMIT_S)
    first.sock.close()
    second.send(Kind.CALL, messages.Ask("new"), 1)
    yield client, second
    second.sock.close()
    client.close()


def test_answer_to_an_order_of_the_connection_before_is_not_sent():
    go_on = threading.Event()

    def obey(message):
        assert go_on.wait(LIMIT_S)
        return messages.Report({"of": message.what})

    with taken_over(obey) as (client, second):
        call = client.call_async(messages.Summarise())  # it is through: the connection is new
        assert second.next()[2] == messages.Summarise()
        second.send(Kind.ANSWER, messages.Again(), 1)
        call.result(LIMIT_S)
        go_on.set()
        assert second.next() == (Kind.ANSWER, 1, messages.Report({"of": "new"}))


def test_late_answer_to_an_order_of_the_connection_before_is_not_sent():
    late = Future()

    def obey(message):
        return late if message.what == "old" else messages.Report({"of": message.what})

    with taken_over(obey) as (_, second):
        assert second.next() == (Kind.ANSWER, 1, messages.Report({"of": "new"}))
        late.set_result(messages.Report({"of": "old"}))
        second.send(Kind.CALL, messages.Ask("newer"), 2)
        assert second.next() == (Kind.ANSWER, 2, messages.Report({"of": "newer"}))


def test_ask_takes_no_byte_behind_its_answer():
    far = Far()
    far.send(Kind.ANSWER, messages.Again(), 1)
    far.send(Kind.NOTE, messages.CameBack())
    assert ask(far.near, messages.Summarise(), LIMIT_S) == messages.Again()
    frames = FrameDecoder().feed(far.near.recv(1 << 16))
    assert [messages.decode(frame.body) for frame in frames] == [messages.CameBack()]
    assert far.next()[2] == messages.Summarise()


def test_ask_raises_what_the_peer_refused():
    far = Far()
    far.sock.sendall(encode_frame(Frame(Kind.ERROR, b'{"code":"c","text":"no"}', request=1)))
    with pytest.raises(RemoteError, match="no"):
        ask(far.near, messages.Summarise(), LIMIT_S)
