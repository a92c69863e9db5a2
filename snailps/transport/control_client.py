"""A node's end of the control plane: calls to the master, and the master's own calls and notes.

    call(message) -> CALL frame -> ... -> ANSWER frame -> message
    CALL or NOTE of the master -> messages.decode -> callback -> ANSWER

It owns one connection and the numbers of its calls.  It does not know what messages do.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

from snailps.errors import (
    ConnectionLost,
    MisuseError,
    RemoteError,
    SnailError,
    WaitTimeout,
)
from snailps.transport import messages
from snailps.transport.frame import (
    CONTROL_BODY_MAX,
    Frame,
    FrameDecoder,
    Kind,
    check_control_kind,
    encode_frame,
)
from snailps.transport.session import error_frame, remote_error

log = logging.getLogger(__name__)

RECV_BYTES = 256 << 10


class ControlClient:
    """A node's connection to its master.  One reader thread; calls from any thread.

    Parameters
    ----------
    sock : socket.socket
        From `dial`; owned from now on.
    on_message : callable
        ``on_message(message) -> Message | None``: the answer to a call (a `SnailError` raised there
        is sent back), None for a note.  Notes come in the reader thread, calls in one of their own.
    on_lost : callable
        ``on_lost(why)``, once, unless `close` was called first.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[messages.Message], messages.Message | None],
        on_lost: Callable[[str], None],
        *,
        whom: str = "the master",
    ) -> None:
        self._sock = sock
        self._on_message, self._on_lost = on_message, on_lost
        self._whom = whom
        self._send_lock = threading.Lock()
        self._calls_lock = threading.Lock()
        self._calls: dict[int, Future[messages.Message]] = {}
        self._next = 1
        self._lost: str | None = None
        self._thread = threading.Thread(target=self._read, name="snailps-control", daemon=True)
        self._orders: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Starts the reader thread, and the one that works through the master's calls in order."""
        self._thread.start()
        threading.Thread(target=self._obey, name="snailps-orders", daemon=True).start()

    def call_async(self, message: messages.Message) -> Future[messages.Message]:
        """Sends a message; the future gets its answer."""
        future: Future[messages.Message] = Future()
        body = messages.encode(message)
        with self._calls_lock:
            if self._lost is not None:
                future.set_exception(ConnectionLost(f"{self._whom} is gone: {self._lost}"))
                return future
            number = self._next
            self._next += 1
            self._calls[number] = future
        try:
            self._send(Frame(Kind.CALL, body, request=number))
        except MisuseError:
            with self._calls_lock:
                self._calls.pop(number, None)
            raise
        return future

    def call(self, message: messages.Message, timeout_s: float | None = 60.0) -> messages.Message:
        """Sends a message and waits for its answer.

        Raises
        ------
        RemoteError
            The master refused.
        ConnectionLost
            The master is gone.
        WaitTimeout
            No answer within `timeout_s` seconds; None waits as long as the master lives.
        """
        return self.result(self.call_async(message), timeout_s, type(message).__name__)

    def result(
        self, future: Future[messages.Message], timeout_s: float | None, what: str
    ) -> messages.Message:
        """Waits for the answer of `call_async`; raises as `call` does."""
        try:
            return future.result(timeout_s)
        except FutureTimeout:
            raise WaitTimeout(
                f"{self._whom} has not answered {what} for {timeout_s:.0f} s: look at its log"
            ) from None

    def note(self, message: messages.Message) -> None:
        """Sends a message that needs no answer; silently nothing if the master is gone."""
        self._send(Frame(Kind.NOTE, messages.encode(message)))

    def close(self) -> None:
        """Closes the connection; `on_lost` is not called."""
        with self._calls_lock:
            if self._lost is None:
                self._lost = "closed"
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join(5.0)
        self._sock.close()

    def _send(self, frame: Frame) -> None:
        data = encode_frame(frame, pack=True)
        with self._send_lock, contextlib.suppress(OSError):
            self._sock.sendall(data)  # a lost connection is noticed, and told, by the reader

    def _frames(self) -> Iterator[Frame]:
        decoder = FrameDecoder(CONTROL_BODY_MAX)
        while True:
            data = self._sock.recv(RECV_BYTES)
            if not data:
                raise ConnectionResetError("connection closed")
            yield from decoder.feed(data)

    def _read(self) -> None:
        try:
            for frame in self._frames():
                self._take(frame)
        except OSError as error:
            self._end(error.strerror or str(error))
        except SnailError as error:
            self._end(str(error))
        except Exception as error:
            # A bug on this side: without its reader the node would wait for ever.
            log.exception("cannot handle a message of %s", self._whom)
            self._end(f"this side failed: {error!r}")

    def _take(self, frame: Frame) -> None:
        if frame.kind in (Kind.ANSWER, Kind.ERROR):
            # Decoded first: if it cannot be, the call is still open and is told of the loss.
            answer = (
                messages.decode(frame.body) if frame.kind == Kind.ANSWER else remote_error(frame)
            )
            with self._calls_lock:
                future = self._calls.pop(frame.request, None)
            if isinstance(answer, RemoteError):
                if future is None:
                    raise answer
                future.set_exception(answer)
            elif future is not None:
                future.set_result(answer)
            return
        check_control_kind(frame)
        if frame.kind == Kind.CALL:
            self._orders.put(frame)  # may take long, and a Stop must be heard meanwhile
        else:
            self._handle(frame)

    def _obey(self) -> None:
        while (frame := self._orders.get()) is not None:
            try:
                self._handle(frame)
            except Exception as error:
                # A bug on this side: the caller must not wait for ever.
                log.exception("cannot handle a call of %s", self._whom)
                self._send(error_frame(RemoteError(f"failed: {error!r}"), frame.request))

    def _handle(self, frame: Frame) -> None:
        try:
            own = self._on_message(messages.decode(frame.body))
        except SnailError as error:
            if frame.kind == Kind.CALL:
                self._send(error_frame(error, frame.request))
            else:
                log.error("%s", error)
            return
        if frame.kind == Kind.CALL:
            body = messages.encode(own or messages.Ok())
            self._send(Frame(Kind.ANSWER, body, request=frame.request))

    def _end(self, why: str) -> None:
        with self._calls_lock:
            told, self._lost = self._lost, self._lost or why
            calls, self._calls = self._calls, {}
        self._orders.put(None)
        for future in calls.values():
            future.set_exception(ConnectionLost(f"{self._whom} is gone: {why}"))
        if told is None:
            self._on_lost(why)
