"""Control connections: real messages, encoded, framed, decoded and checked, over simulated pipes.

    MasterEnd: calls and notes of a peer -> on_message; orders -> answers
    NodeEnd:   calls -> answers; open ones are made again with another master

Both follow the rules of `ControlServer` and `ControlClient`, which own sockets and threads.
"""

from __future__ import annotations

from functools import partial

from snailps.errors import ClusterError, ConnectionLost, ProtocolError, RemoteError, SnailError
from snailps.transport import messages
from snailps.transport.control.encoded import Encoded
from snailps.transport.frame import (
    Frame,
    FrameDecoder,
    Kind,
    check_control_kind,
    encode_frame,
    encode_header,
)
from snailps.transport.handshake import error_frame, remote_error
from tests.sim.scheduler import Future

NONCE = b"n" * 16


def framed(kind, message, request=0):
    """A message as bytes."""
    if isinstance(message, Encoded):
        head = encode_header(Frame(kind, request=request), message.flags, len(message.body))
        return head + message.body
    return encode_frame(Frame(kind, messages.encode(message), request=request), pack=True)


class MasterEnd:
    """The master's end of a control connection.

    Parameters
    ----------
    end : End
    on_message, on_lost : callable
        ``on_message(peer, message, reply)``, like a `ControlServer`'s; ``on_lost(peer, why)``.
    """

    def __init__(self, end, on_message, on_lost):
        self.tag, self.process = None, end.other.process
        self.address = (self.process.host, 1)
        self._end, self._decoder = end, FrameDecoder()
        self._calls, self._next = {}, 1
        self._on_message, self._on_lost = on_message, on_lost
        self.is_open = True
        end.listen(self._take_all, self._lost)

    def note(self, message):
        """Sends a note."""
        if self.is_open:
            self._end.send(framed(Kind.NOTE, message))

    def call(self, message, on_answer):
        """Sends a call."""
        if not self.is_open:
            on_answer(ConnectionLost("the connection is closed already"))
            return
        number, self._next = self._next, self._next + 1
        self._calls[number] = (messages.Answers.of(message), on_answer)
        self._end.send(framed(Kind.CALL, message, number))

    def _reply(self, request, answer):
        if not self.is_open:
            return
        if isinstance(answer, SnailError):
            self._end.send(encode_frame(error_frame(answer, request), pack=True))
        else:
            self._end.send(framed(Kind.ANSWER, answer, request))

    def close(self):
        """Closes without `on_lost`."""
        self._shut("the connection was closed on this side", told=False)

    def fail(self, error):
        """Ends the connection of a peer whose message cannot be handled, with an error."""
        what = str(error) if isinstance(error, SnailError) else repr(error)
        told = ProtocolError(f"this message cannot be handled here: {what}", "failed")
        if self.is_open:
            self._end.send(encode_frame(error_frame(told), pack=True))
        self._shut(f"a message of it cannot be handled: {what}", told=True)

    def _shut(self, why, *, told):
        if not self.is_open:
            return
        self.is_open = False
        self._end.close()
        calls, self._calls = self._calls, {}
        for _, on_answer in calls.values():
            on_answer(ConnectionLost(why))
        if told:
            self._on_lost(self, why)

    def _lost(self, why):
        self._shut(why, told=True)

    def _take_all(self, data):
        try:
            for frame in self._decoder.feed(data):
                self._take(frame)
                if not self.is_open:
                    return
        except ProtocolError as error:
            self.fail(error)

    def _take(self, frame):
        if frame.kind in (Kind.ANSWER, Kind.ERROR) and frame.request:
            if frame.kind == Kind.ANSWER:
                answer = messages.decode(frame.body)
            else:
                answer = remote_error(frame)
            call = self._calls.get(frame.request)
            if call is not None:
                if isinstance(answer, messages.Message):
                    answer = call[0].checked(answer)
                del self._calls[frame.request]
                call[1](answer)
            return
        check_control_kind(frame)
        reply = partial(self._reply, frame.request) if frame.kind == Kind.CALL else None
        self._on_message(self, messages.decode(frame.body), reply)


class NodeEnd:
    """A node's end of its control connection, over one master after the other.

    Parameters
    ----------
    on_message : callable
        ``on_message(message, reply)``; ``reply(answer)`` where it is a call, else None.
    on_broken : callable
        ``on_broken(why)``: the connection is lost; `mend` or `end` follows.
    """

    def __init__(self, on_message, on_broken):
        self._on_message, self._on_broken = on_message, on_broken
        self._end = None
        self._calls, self._next = {}, 1
        self._held, self._generation = [], 0
        self.away, self.ended = True, False

    def attach(self, end):
        """Takes a connection, the first or another: repeats open calls, then sends held notes."""
        self._end, self.away = end, False
        self._generation += 1
        decoder = FrameDecoder()
        for frame, *_ in list(self._calls.values()):
            end.send(encode_frame(frame, pack=True))
        held, self._held = self._held, []
        for data in held:
            end.send(data)
        generation = self._generation
        end.listen(
            lambda data: self._take_all(decoder, data), lambda why: self._lost(generation, why)
        )

    def call(self, message, heard=lambda answer: None):
        """Calls the master; a future of the answer, which `heard` gets first."""
        future = Future()
        if self.ended:
            future.fail(ConnectionLost("the master is gone"))
            return future
        frame = Frame(Kind.CALL, messages.encode(message), request=self._next)
        self._calls[self._next] = (frame, messages.Answers.of(message), future, heard)
        self._next += 1
        if not self.away:
            self._end.send(encode_frame(frame, pack=True))
        return future

    def note(self, message):
        """Sends a note, or holds it for the next master."""
        data = framed(Kind.NOTE, message)
        if self.away:
            self._held.append(data)
        else:
            self._end.send(data)

    def close(self):
        """Ends it."""
        self.ended = True
        if self._end is not None:
            self._end.close()

    def open_calls(self):
        """The calls that have no answer yet."""
        return [messages.decode(frame.body) for frame, *_ in self._calls.values()]

    def oldest_call(self, kind):
        """Number of the first open call of a kind, or 0."""
        for number, (frame, *_) in self._calls.items():
            if isinstance(messages.decode(frame.body), kind):
                return number
        return 0

    def _lost(self, generation, why):
        if generation == self._generation and not self.ended:
            self.away = True
            self._on_broken(why)

    def end(self, why):
        """Gives the master up: open calls fail."""
        self.ended = True
        calls, self._calls = self._calls, {}
        for *_, future, _ in calls.values():
            future.fail(ConnectionLost(f"the master is gone: {why}"))

    def _take_all(self, decoder, data):
        for frame in decoder.feed(data):
            if self.ended:
                return
            self._take(frame)

    def _take(self, frame):
        if frame.kind in (Kind.ANSWER, Kind.ERROR):
            if frame.kind == Kind.ANSWER:
                answer = messages.decode(frame.body)
            else:
                answer = remote_error(frame)
            call = self._calls.pop(frame.request, None)
            if isinstance(answer, RemoteError):
                if call is None:  # the master ends this: no other one is looked for
                    self._end.close()
                    self.end(str(answer))
                    self._on_broken(str(answer))
                else:
                    call[2].fail(answer)
            elif call is not None:
                call[3](call[1].checked(answer))
                call[2].set(answer)
            return
        check_control_kind(frame)
        message = messages.decode(frame.body)
        if frame.kind != Kind.CALL:
            self._on_message(message, None)
            return
        generation = self._generation

        def reply(answer):
            if generation != self._generation or self.away or self.ended:
                return
            if isinstance(answer, Exception):
                if not isinstance(answer, SnailError):
                    answer = ClusterError(f"failed: {answer!r}")
                self._end.send(encode_frame(error_frame(answer, frame.request), pack=True))
            else:
                self._end.send(framed(Kind.ANSWER, answer or messages.Ok(), frame.request))

        self._on_message(message, reply)
