"""A node's end of the control plane: calls to the master, and the master's own calls and notes.

    call(message) -> CALL frame -> ... -> ANSWER frame -> message
    CALL or NOTE of the master -> messages.decode -> callback -> ANSWER

Owns one connection at a time and the numbers of its calls.  When the connection breaks and `mend`
finds another, open calls are repeated there with their numbers: a call is answered or fails, also
across a takeover.  Must not know what messages do.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait

from snailps.config.addresses import Address
from snailps.dataclass import dataclass
from snailps.errors import ConnectionLost, ProtocolError, RemoteError, SnailError, WaitTimeout
from snailps.transport import messages
from snailps.transport._awake import awake_s
from snailps.transport.frame import (
    CONTROL_BODY_MAX,
    Frame,
    FrameDecoder,
    Kind,
    check_control_kind,
    encode_frame,
)
from snailps.transport.handshake import Channel, Role, error_frame, remote_error
from snailps.transport.security.trust import Trust
from snailps.transport.sockets import dial, receive

log = logging.getLogger(__name__)

RECV_BYTES = 256 << 10
SEND_S = 60.0
"""A peer that takes no byte for so many seconds counts as lost."""
_TIMEVAL = struct.Struct("ll")

AnswerOrFuture = messages.Message | Future[messages.Message] | None
"""Result of a handler: the answer to a call, a future of the answer, or None for `Ok`."""


@dataclass(frozen=True, slots=True)
class _Call:
    """An unanswered call."""

    frame: Frame
    answers: messages.Answers
    future: Future[messages.Message]
    heard: Callable[[messages.Message], None]


@dataclass(frozen=True, slots=True)
class _MasterCall:
    """A call of the master; `done`: the finished future of its handler, to be sent as the
    answer."""

    generation: int
    frame: Frame
    message: messages.Message
    done: Future[messages.Message] | None = None


def ask(sock: socket.socket, message: messages.Message, limit_s: float) -> messages.Message:
    """Make one call on a connection that has no reader yet; reads no byte after the answer.

    RemoteError: refused.  ProtocolError: something other than an answer came.  OSError: the
    connection broke, or no answer came within `limit_s`.
    """
    until = awake_s() + limit_s
    sock.settimeout(limit_s)
    decoder = FrameDecoder(CONTROL_BODY_MAX)
    sock.sendall(encode_frame(Frame(Kind.CALL, messages.encode(message), request=1), pack=True))
    while True:
        data = receive(sock, decoder.missing_bytes, until)
        if not data:
            raise ConnectionResetError("connection closed")
        for frame in decoder.feed(data):
            if frame.kind == Kind.ERROR:
                raise remote_error(frame)
            if frame.kind != Kind.ANSWER:
                raise ProtocolError(f"{frame.kind.name} before the answer", "kind")
            answer = messages.Answers.of(message).checked(messages.decode(frame.body))
            sock.settimeout(None)
            return answer


def _bounded(sock: socket.socket) -> socket.socket:
    """Limit each send: a peer that is alive and does not read must not block all senders for
    ever."""
    limit = _TIMEVAL.pack(*divmod(int(SEND_S * 1e6), 1_000_000))
    with contextlib.suppress(OSError):  # closed already: the reader will notice
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    return sock


class ControlClient:
    """A node's connection to its master.  One reader thread; any thread may call.

    Sends wait for each other; a peer that takes no byte for `SEND_S` is lost.

    `on_message(message)` returns the answer to a call, None (`Ok`, or a note), or a future of the
    answer; a SnailError is sent back.  Notes are handled in the reader thread, calls in a thread of
    their own, in order, so that a Stop is heard while a call is handled; a handler that takes long
    returns a future.  `on_lost(why)` is called once, unless `close` came first.

    `mend(why)`, called in the reader thread, returns another connection or None.  Open calls are
    repeated on it, in order, then come the notes of the meantime, then anything new.  A note sent
    just before the break may be lost: what a master must not miss is a call, or part of the state
    that a node reports when it rejoins.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[messages.Message], AnswerOrFuture],
        on_lost: Callable[[str], None],
        *,
        peer_name: str = "the master",
        mend: Callable[[str], socket.socket | None] = lambda why: None,
    ) -> None:
        self._sock = _bounded(sock)
        self._mend = mend
        self.away = False  # the connection broke, and `mend` looks for another
        self._generation = 0  # number of the connection: an answer goes to the one that asked
        self._held: list[Frame] = []  # notes that wait for a connection
        self._on_message, self._on_lost = on_message, on_lost
        self._peer_name = peer_name
        self._send_lock = threading.Lock()
        self._calls_lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._next = 1
        self._lost: str | None = None
        self._thread = threading.Thread(target=self._read, name="snailps-control", daemon=True)
        self._orders: queue.SimpleQueue[_MasterCall | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Start the reader thread, and the one that handles the master's calls in order."""
        self._thread.start()
        threading.Thread(target=self._obey, name="snailps-orders", daemon=True).start()

    def call_async(
        self,
        message: messages.Message,
        heard: Callable[[messages.Message], None] = lambda answer: None,
    ) -> Future[messages.Message]:
        """Send a call.

        `heard` gets the answer in the reader thread before the future does: whatever `mend` reports
        to another master then includes it.
        """
        future: Future[messages.Message] = Future()
        body = messages.encode(message)
        with self._send_lock:
            frame = Frame(Kind.CALL, body, request=self._next)
            data = encode_frame(frame, pack=True)
            # Checked and added in one step: `_end` fails every call that is open at that moment.
            with self._calls_lock:
                if self._lost is not None:
                    future.set_exception(ConnectionLost(f"{self._peer_name} is gone: {self._lost}"))
                    return future
                self._next += 1
                self._calls[frame.request] = _Call(
                    frame, messages.Answers.of(message), future, heard
                )
            if not self.away:
                self._write(data)
        return future

    def call(self, message: messages.Message, timeout_s: float | None = 60.0) -> messages.Message:
        """Send a call and wait for its answer; `timeout_s` None: as long as the master lives.

        RemoteError: refused.  ConnectionLost: the master is gone.  WaitTimeout: no answer in time.
        """
        return self.result(self.call_async(message), timeout_s, type(message).__name__)

    def result(
        self, future: Future[messages.Message], timeout_s: float | None, what: str
    ) -> messages.Message:
        """Wait for the answer of `call_async`; errors of `call`."""
        until = math.inf if timeout_s is None else awake_s() + timeout_s
        while not future.done() and (left_s := until - awake_s()) > 0:
            wait({future}, None if timeout_s is None else left_s)
        if not future.done():
            raise WaitTimeout(
                f"{self._peer_name} has not answered {what} for {timeout_s:.0f} s: look at its log"
            )
        return future.result()

    def note(self, message: messages.Message) -> None:
        """Send a message without an answer; nothing happens if the master is gone."""
        frame = Frame(Kind.NOTE, messages.encode(message))
        with self._send_lock:
            if self.away:
                self._held.append(frame)
            else:
                self._write(encode_frame(frame, pack=True))

    def close(self) -> None:
        """Close the connection without `on_lost`."""
        with self._calls_lock:
            if self._lost is None:
                self._lost = "closed"
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join(5.0)
        self._sock.close()

    def _write(self, data: bytes) -> None:
        """Send bytes; the caller holds `_send_lock`.  The reader notices a lost connection."""
        with contextlib.suppress(OSError):
            try:
                self._sock.sendall(data)
            except BlockingIOError:
                self._sock.shutdown(socket.SHUT_RDWR)

    def _answer(self, generation: int, frame: Frame) -> None:
        """Send an answer, if its call came by the present connection: another master repeats its
        own."""
        data = encode_frame(frame, pack=True)
        with self._send_lock:
            if generation == self._generation and not self.away:
                self._write(data)

    def _frames(self) -> Iterator[Frame]:
        decoder = FrameDecoder(CONTROL_BODY_MAX)
        while True:
            data = self._sock.recv(RECV_BYTES)
            if not data:
                raise ConnectionResetError("connection closed")
            yield from decoder.feed(data)

    def _read(self) -> None:
        while True:
            try:
                for frame in self._frames():
                    self._take(frame)
            except OSError as error:
                why = error.strerror or str(error)
                if self._lost is None and self._mended(why):
                    continue
                self._end(why)
            except ProtocolError as error:
                self._end(f"it broke the protocol: {error}")
            except SnailError as error:
                self._end(str(error))
            except Exception as error:
                # A bug on this side.  Without a reader the node would wait for ever.
                log.exception("cannot handle a message of %s", self._peer_name)
                self._end(f"this side failed: {error!r}")
            return

    def _mended(self, why: str) -> bool:
        """Get another connection from `mend`, and repeat open calls on it; False: there is none."""
        with self._send_lock:
            self.away = True
        try:
            sock = self._mend(why)
        except Exception:
            log.exception("cannot find another connection to %s", self._peer_name)
            return False
        if sock is None:
            return False
        with self._send_lock:
            old, self._sock = self._sock, _bounded(sock)
            old.close()
            if self._lost is not None:  # `close` ran meanwhile, and has closed only the old socket
                sock.close()
                return False
            self._generation += 1
            with self._calls_lock:
                open_calls = [call.frame for _, call in sorted(self._calls.items())]
            for frame in [*open_calls, *self._held]:
                self._write(encode_frame(frame, pack=True))
            self._held.clear()
            self.away = False
        return True

    def _take(self, frame: Frame) -> None:
        if frame.kind in (Kind.ANSWER, Kind.ERROR):
            # Decoded first: if that fails, the call is still open and fails with the connection.
            answer = (
                messages.decode(frame.body) if frame.kind == Kind.ANSWER else remote_error(frame)
            )
            with self._calls_lock:
                call = self._calls.get(frame.request)
            if call is not None and isinstance(answer, messages.Message):
                answer = call.answers.checked(answer)
            with self._calls_lock:
                self._calls.pop(frame.request, None)
            if isinstance(answer, RemoteError):
                if call is None:
                    raise answer
                call.future.set_exception(answer)
            elif call is not None:
                call.heard(answer)
                call.future.set_result(answer)
            return
        check_control_kind(frame)
        message = messages.decode(frame.body)
        if frame.kind == Kind.CALL:
            # In another thread: it may take long, and a Stop must be heard meanwhile.
            self._orders.put(_MasterCall(self._generation, frame, message))
        else:
            self._handle(self._generation, frame, message)

    def _obey(self) -> None:
        while (order := self._orders.get()) is not None:
            if order.done is None:
                self._handle(order.generation, order.frame, order.message)
            else:
                self._settle(order.generation, order.frame, order.done)

    def _handle(self, generation: int, frame: Frame, message: messages.Message) -> None:
        """Have a message handled; a call is answered when its result is there."""
        try:
            result = self._on_message(message)
            if isinstance(result, Future):
                # Answered by the orders' thread: the one that completes the future may hold locks.
                result.add_done_callback(
                    lambda done: self._orders.put(_MasterCall(generation, frame, message, done))
                )
            else:
                self._reply(generation, frame, result)
        except Exception as error:
            if frame.kind != Kind.CALL:
                raise  # ends the connection: nobody would learn that a note was not obeyed
            self._refuse(generation, frame, error)

    def _settle(self, generation: int, frame: Frame, done: Future[messages.Message]) -> None:
        """Answer a call whose future is done."""
        try:
            self._reply(generation, frame, done.result())
        except (Exception, CancelledError) as error:
            self._refuse(generation, frame, error)

    def _reply(self, generation: int, frame: Frame, answer: messages.Message | None) -> None:
        if frame.kind == Kind.CALL:
            body = messages.encode(answer or messages.Ok())
            self._answer(generation, Frame(Kind.ANSWER, body, request=frame.request))

    def _refuse(self, generation: int, frame: Frame, error: BaseException) -> None:
        """Report why a message failed: to the master if it waits for an answer, else in the log."""
        if not isinstance(error, SnailError):
            # A bug on this side: the master must not wait for ever.
            log.error("cannot handle a message of %s", self._peer_name, exc_info=error)
            error = RemoteError(f"failed: {error!r}")
        elif frame.kind != Kind.CALL:
            log.error("%s", error)
        if frame.kind == Kind.CALL:
            self._answer(generation, error_frame(error, frame.request))

    def _end(self, why: str) -> None:
        with self._calls_lock:
            lost, self._lost = self._lost, self._lost or why
            calls, self._calls = self._calls, {}
        self._orders.put(None)
        for call in calls.values():
            call.future.set_exception(ConnectionLost(f"{self._peer_name} is gone: {why}"))
        if lost is None:
            self._on_lost(why)


def visit(
    address: Address, limit_s: float, trust: Trust, *, peer_name: str = "the master"
) -> ControlClient:
    """Connect as a process that only calls, and is no member; SnailError after `limit_s`."""
    sock = dial(
        address, Channel.CONTROL, Role.DRIVER, peer_name=peer_name, limit_s=limit_s, trust=trust
    )
    client = ControlClient(sock, lambda message: None, lambda why: None)
    client.start()
    return client
