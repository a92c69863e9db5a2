"""The control plane over sockets: a server for the master, a client for everyone else.

    socket -> FrameDecoder -> session or messages.decode -> callback      (ControlServer, 1 thread)
    call(message) -> CALL frame -> ... -> ANSWER frame -> message         (ControlClient)

It owns connections, call numbers and time limits.  It does not know what messages do.  A *call*
is answered, sooner or later and in any order; a *note* is not.  Heartbeat connections are accepted
here and handed on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field

from snailps.errors import ConnectionLost, ProtocolError, SnailError, WaitTimeout
from snailps.transport import messages
from snailps.transport.frame import (
    CONTROL_BODY_MAX,
    HANDSHAKE_BODY_MAX,
    Frame,
    FrameDecoder,
    Kind,
    encode_frame,
)
from snailps.transport.session import (
    NONCE_BYTES,
    Channel,
    ClientSession,
    Hello,
    Role,
    ServerSession,
    error_frame,
    remote_error,
)

log = logging.getLogger(__name__)

Address = tuple[str, int]
HANDSHAKE_LIMIT_S = 10.0
RECV_BYTES = 256 << 10
OUT_BYTES_MAX = 2 * CONTROL_BODY_MAX
"""A peer that takes none of this much is dropped."""


def listen(host: str, port: int, backlog: int = 1024) -> socket.socket:
    """A listening TCP socket, IPv4 or IPv6, that a restart may bind again at once.

    Raises
    ------
    ConnectionLost
        The address cannot be bound; says why and what to change.
    """
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
    except OSError as error:
        raise ConnectionLost(f"cannot listen on {show((host, port))}: {error.strerror}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise ConnectionLost(
            f"cannot listen on {show((host, port))}: {error.strerror}. "
            "Is another process using it? Choose another address or stop that process"
        ) from None
    return sock


def show(address: Address) -> str:
    """host:port, with brackets round an IPv6 host."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def route_host(address: Address) -> str:
    """The local address of the interface that packets to `address` leave by."""
    for family, _, _, _, where in socket.getaddrinfo(*address, type=socket.SOCK_DGRAM):
        with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            probe.connect(where)  # sends nothing: only asks the routing table
            return str(probe.getsockname()[0])
    raise ConnectionLost(f"no route to {show(address)}")


def dial(
    address: Address,
    channel: Channel,
    role: Role,
    *,
    whom: str,
    limit_s: float,
    node: int = 0,
    incarnation: int = 0,
    job: int = 0,
    secret: bytes = b"",
    give_up: Callable[[], bool] = lambda: False,
    on_wait: Callable[[str], None] = lambda text: None,
) -> socket.socket:
    """Connects and shakes hands, trying again until `limit_s` seconds have passed.

    Parameters
    ----------
    whom : str
        What to call the peer in messages.
    give_up : callable
        Asked between two attempts.
    on_wait : callable
        Told now and then, in words, what is being waited for.

    Raises
    ------
    WaitTimeout
        Nobody answered in time.
    RemoteError, ProtocolError
        Somebody did, and the handshake failed: trying again would not help.
    """
    begin = time.monotonic()
    pause_s, said = 0.05, begin
    while True:
        left = limit_s - (time.monotonic() - begin)
        try:
            sock = socket.create_connection(address, timeout=max(0.1, min(left, 5.0)))
        except OSError as error:
            reason = error.strerror or str(error)
            if left <= 0 or give_up():
                raise WaitTimeout(
                    f"cannot reach {whom} at {show(address)} within {limit_s:.0f} s: {reason}. "
                    "Is it running, is the address right, does a firewall stand between?"
                ) from None
            if time.monotonic() - said > 5.0:
                said = time.monotonic()
                on_wait(f"waiting for {whom} at {show(address)} ({reason}), {left:.0f} s left")
            threading.Event().wait(pause_s)
            pause_s = min(pause_s * 1.5, 1.0)
            continue
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            nonce = os.urandom(NONCE_BYTES)
            session = ClientSession(Hello(channel, role, nonce, node, incarnation, job), secret)
            _shake(sock, session)
        except OSError as error:
            sock.close()
            if left <= 0 or give_up():
                raise ConnectionLost(
                    f"{whom} at {show(address)} closed the connection: {error}"
                ) from None
            threading.Event().wait(pause_s)
            continue
        except SnailError:
            sock.close()
            raise
        return sock


def _shake(sock: socket.socket, session: ClientSession) -> None:
    sock.settimeout(HANDSHAKE_LIMIT_S)
    decoder = FrameDecoder(HANDSHAKE_BODY_MAX)
    sock.sendall(encode_frame(session.start()))
    while not session.ready:
        data = sock.recv(HANDSHAKE_BODY_MAX)
        if not data:
            raise ConnectionResetError("closed during the handshake")
        for frame in decoder.feed(data):
            answer = session.receive(frame)
            if answer is not None:
                sock.sendall(encode_frame(answer))
    sock.settimeout(None)


@dataclass(eq=False, slots=True)
class Peer:
    """One control connection at the master.

    Attributes
    ----------
    hello : Hello or None
        What the peer said of itself; None until the handshake is done.
    tag : object
        For the owner's use.
    """

    sock: socket.socket
    address: Address
    session: ServerSession
    decoder: FrameDecoder
    since: float
    hello: Hello | None = None
    tag: object = None
    closing: bool = False
    out: bytearray = field(default_factory=bytearray)
    calls: dict[int, Callable[[messages.Message | SnailError], None]] = field(default_factory=dict)
    next_call: int = 1


class ControlServer:
    """Accepts control and heartbeat connections; one thread calls `step`.

    Parameters
    ----------
    listener : socket.socket
        Owned from now on.
    role, secret
        Of this side, for the handshake.
    on_message : callable
        ``on_message(peer, message, reply)``; `reply` is None for a note, else a function to be
        called once, now or later, with the answer or a `SnailError`.
    on_lost : callable
        ``on_lost(peer, why)``, once for every peer whose handshake was done.
    on_pulse : callable
        ``on_pulse(hello, sock)``: a heartbeat connection, to be owned by the callee.
    clock : callable
        Monotonic time, seconds.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        role: Role,
        secret: bytes,
        job: int,
        on_message: Callable[
            [Peer, messages.Message, Callable[[messages.Message | SnailError], None] | None], None
        ],
        on_lost: Callable[[Peer, str], None],
        on_pulse: Callable[[Hello, socket.socket], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener = listener
        self._role, self._secret, self._job = role, secret, job
        self._on_message, self._on_lost, self._on_pulse = on_message, on_lost, on_pulse
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._peers: set[Peer] = set()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, None)

    @property
    def peers(self) -> set[Peer]:
        """Every open connection, unfinished handshakes included."""
        return self._peers

    def step(self, timeout_s: float) -> None:
        """Waits up to `timeout_s` for events and handles them."""
        for key, events in self._selector.select(timeout_s):
            if key.data is None:
                self._accept()
                continue
            peer: Peer = key.data
            if events & selectors.EVENT_WRITE and peer in self._peers:
                self._flush(peer)
            if events & selectors.EVENT_READ and peer in self._peers:
                self._read(peer)
        now = self._clock()
        for peer in [p for p in self._peers if p.hello is None]:
            if now - peer.since > HANDSHAKE_LIMIT_S:
                self._drop(peer, "handshake took too long")

    def note(self, peer: Peer, message: messages.Message) -> None:
        """Sends a message that needs no answer."""
        self._send(peer, Frame(Kind.NOTE, messages.encode(message)))

    def call(
        self,
        peer: Peer,
        message: messages.Message,
        on_answer: Callable[[messages.Message | SnailError], None],
    ) -> None:
        """Sends a message; `on_answer` gets the answer, or the error (a lost peer included)."""
        number = peer.next_call
        peer.next_call += 1
        peer.calls[number] = on_answer
        self._send(peer, Frame(Kind.CALL, messages.encode(message), request=number))

    def close_peer(self, peer: Peer) -> None:
        """Closes a connection once what waits to be sent is out, without calling `on_lost`."""
        peer.closing = True
        if not peer.out:
            self._forget(peer)

    def close(self) -> None:
        """Closes everything; `on_lost` is not called."""
        for peer in list(self._peers):
            self._forget(peer)
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._listener)
        self._listener.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = Hello(Channel.CONTROL, self._role, os.urandom(NONCE_BYTES), job=self._job)
        peer = Peer(
            sock,
            (address[0], address[1]),
            ServerSession(hello, self._secret),
            FrameDecoder(HANDSHAKE_BODY_MAX),
            self._clock(),
        )
        self._peers.add(peer)
        self._selector.register(sock, selectors.EVENT_READ, peer)

    def _read(self, peer: Peer) -> None:
        try:
            data = peer.sock.recv(RECV_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(peer, error.strerror or str(error))
            return
        if not data:
            self._drop(peer, "connection closed")
            return
        try:
            for frame in peer.decoder.feed(data):
                if peer.closing or peer not in self._peers:
                    return
                self._take(peer, frame)
        except ProtocolError as error:
            log.warning("%s: %s", show(peer.address), error)
            self._send(peer, error_frame(error))
            self._drop(peer, f"broke the protocol: {error}", flush=True)

    def _take(self, peer: Peer, frame: Frame) -> None:
        if peer.hello is None:
            self._send(peer, peer.session.receive(frame))
            if peer.session.ready:
                self._admit(peer)
            return
        if frame.kind in (Kind.ANSWER, Kind.ERROR) and frame.request:
            on_answer = peer.calls.pop(frame.request, None)
            if on_answer is not None:
                on_answer(
                    messages.decode(frame.body)
                    if frame.kind == Kind.ANSWER
                    else remote_error(frame)
                )
            return
        if frame.kind not in (Kind.CALL, Kind.NOTE):
            raise ProtocolError(f"{frame.kind.name} on a control connection", "kind")
        message = messages.decode(frame.body)
        reply = self._replier(peer, frame.request) if frame.kind == Kind.CALL else None
        self._on_message(peer, message, reply)

    def _admit(self, peer: Peer) -> None:
        assert peer.session.peer is not None
        peer.hello = peer.session.peer
        peer.decoder.body_max = CONTROL_BODY_MAX
        if peer.hello.channel == Channel.PULSE:
            self._flush(peer)
            self._selector.unregister(peer.sock)
            self._peers.discard(peer)
            self._on_pulse(peer.hello, peer.sock)
        elif peer.hello.channel != Channel.CONTROL:
            raise ProtocolError("this is a master: it has no data channel", "channel")

    def _replier(
        self, peer: Peer, request: int
    ) -> Callable[[messages.Message | SnailError], None]:
        def reply(answer: messages.Message | SnailError) -> None:
            if isinstance(answer, SnailError):
                self._send(peer, error_frame(answer, request))
            else:
                self._send(peer, Frame(Kind.ANSWER, messages.encode(answer), request=request))

        return reply

    def _send(self, peer: Peer, frame: Frame) -> None:
        if peer not in self._peers:
            return
        peer.out += encode_frame(frame, pack=True)
        if len(peer.out) > OUT_BYTES_MAX:
            self._drop(peer, "does not read what it is sent")
            return
        self._flush(peer)

    def _flush(self, peer: Peer) -> None:
        while peer.out:
            try:
                sent = peer.sock.send(memoryview(peer.out)[:RECV_BYTES])
            except BlockingIOError:
                break
            except OSError as error:
                self._drop(peer, error.strerror or str(error))
                return
            del peer.out[:sent]
        if peer.closing and not peer.out:
            self._forget(peer)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.out else 0)
        with contextlib.suppress(KeyError):
            self._selector.modify(peer.sock, events, peer)

    def _drop(self, peer: Peer, why: str, *, flush: bool = False) -> None:
        if peer not in self._peers:
            return
        if flush:
            with contextlib.suppress(OSError):
                peer.sock.shutdown(socket.SHUT_WR)
        self._forget(peer)
        calls, peer.calls = peer.calls, {}
        for on_answer in calls.values():
            on_answer(ConnectionLost(why))
        if peer.hello is not None:
            self._on_lost(peer, why)

    def _forget(self, peer: Peer) -> None:
        self._peers.discard(peer)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.sock)
        peer.sock.close()


class ControlClient:
    """A node's connection to its master.  One reader thread; calls from any thread.

    Parameters
    ----------
    sock : socket.socket
        From `dial`; owned from now on.
    on_message : callable
        ``on_message(message) -> Message | None``, in the reader thread: the answer to a call (a
        `SnailError` raised there is sent back), None for a note.
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

    def start(self) -> None:
        """Starts the reader thread."""
        self._thread.start()

    def call_async(self, message: messages.Message) -> Future[messages.Message]:
        """Sends a message; the future gets its answer."""
        future: Future[messages.Message] = Future()
        with self._calls_lock:
            if self._lost is not None:
                future.set_exception(ConnectionLost(f"{self._whom} is gone: {self._lost}"))
                return future
            number = self._next
            self._next += 1
            self._calls[number] = future
        self._send(Frame(Kind.CALL, messages.encode(message), request=number))
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
                f"{self._whom} has not answered {what} for {timeout_s:.0f} s: "
                "look at its log"
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

    def _take(self, frame: Frame) -> None:
        if frame.kind in (Kind.ANSWER, Kind.ERROR):
            with self._calls_lock:
                future = self._calls.pop(frame.request, None)
            if future is None:
                if frame.kind == Kind.ERROR:
                    raise remote_error(frame)
                return
            if frame.kind == Kind.ERROR:
                future.set_exception(remote_error(frame))
            else:
                future.set_result(messages.decode(frame.body))
            return
        if frame.kind not in (Kind.CALL, Kind.NOTE):
            raise ProtocolError(f"{frame.kind.name} on a control connection", "kind")
        try:
            answer = self._on_message(messages.decode(frame.body))
        except SnailError as error:
            if frame.kind == Kind.CALL:
                self._send(error_frame(error, frame.request))
            else:
                log.error("%s", error)
            return
        if frame.kind == Kind.CALL:
            body = messages.encode(answer or messages.Ok())
            self._send(Frame(Kind.ANSWER, body, request=frame.request))

    def _end(self, why: str) -> None:
        with self._calls_lock:
            told, self._lost = self._lost, self._lost or why
            calls, self._calls = self._calls, {}
        for future in calls.values():
            future.set_exception(ConnectionLost(f"{self._whom} is gone: {why}"))
        if told is None:
            self._on_lost(why)
