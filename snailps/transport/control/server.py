"""The master's end of the control plane: accepts connections, hands messages over, sends answers.

    socket -> FrameDecoder -> session or messages.decode -> callback -> reply -> socket

Owns connections, call numbers and time limits.  Must not know what messages do.  A *call* is
answered once, at any time and in any order; a *note* is not answered.  Heartbeat connections are
accepted here and handed on.

One thread calls `ControlServer.step`, and only `wake` is for others.  Nothing blocks on a peer: a
peer that does not read is dropped, since the master must hear all the others.  A step works for
about `TURN_S`; events that are left come first in the next step.  Frames are sent at the end of a
step, several to a peer at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from snailps.config.addresses import Address
from snailps.dataclass import dataclass, field
from snailps.errors import ConnectionLost, ProtocolError, SnailError
from snailps.transport import messages
from snailps.transport._awake import awake_s
from snailps.transport.control.encoded import Encoded
from snailps.transport.control.send_queue import SendQueue
from snailps.transport.frame import (
    CONTROL_BODY_MAX,
    HANDSHAKE_BODY_MAX,
    Frame,
    FrameDecoder,
    Kind,
    check_control_kind,
    encode_frame,
)
from snailps.transport.handshake import (
    NONCE_BYTES,
    Channel,
    Hello,
    Role,
    ServerSession,
    error_frame,
    remote_error,
)
from snailps.transport.security.refusals import (
    ACCEPT_PAUSE_S,
    HANDSHAKE_LIMIT_S,
    LEFT,
    NO_DESCRIPTORS,
    UNKNOWN_MAX,
    WHY_CHARS_MAX,
    RefusalLog,
    strangers_max,
)
from snailps.transport.security.trust import OPEN, Trust
from snailps.transport.sockets import Listener, set_options, show

log = logging.getLogger(__name__)

LINGER_S = 2.0
"""How long a refused peer may take to read why: closing at once may reset the connection."""
RECV_BYTES = 256 << 10
OUT_BYTES_MAX = 2 * CONTROL_BODY_MAX
"""A peer with so many bytes unread is dropped, unless its socket takes some of them."""
TURN_S = 0.01
"""Processor time of a step for handling, and again for sending."""
FLUSH_BYTES = 1 << 20
"""Bytes sent to a peer at a time, about."""
ACCEPTS = 32
"""Connections accepted at a time."""


Reply = Callable[[messages.Message | Encoded | SnailError], None]
"""Answer a call, once."""


@dataclass(frozen=True, slots=True)
class _CallToNode:
    """An unanswered call of the master."""

    answers: messages.Answers
    on_answer: Callable[[messages.Message | SnailError], None]


@dataclass(eq=False, slots=True)
class Peer:
    """A control connection at the master; `hello`: None until the handshake is done; `tag`: the
    owner's."""

    sock: socket.socket
    address: Address
    session: ServerSession
    decoder: FrameDecoder
    since: float
    hello: Hello | None = None
    tag: object = None
    ended: bool = False
    out: SendQueue = field(default_factory=SendQueue)
    writing: bool = False  # the selector watches for room to send
    calls: dict[int, _CallToNode] = field(default_factory=dict)
    next_call: int = 1


class ControlServer:
    """Accepts control and heartbeat connections; one thread calls `step`.

    Owns `listener`.  `on_message(peer, message, reply)`: `reply` is None for a note; for a call the
    callee calls it once, now or later, with the answer or a `SnailError`.  `on_lost(peer, why)` is
    called once for each peer whose handshake was done.  `on_pulse(hello, sock)` takes a heartbeat
    connection, which the callee then owns.
    """

    def __init__(
        self,
        listener: Listener,
        *,
        role: Role,
        trust: Trust = OPEN,
        job: int,
        on_message: Callable[[Peer, messages.Message, Reply | None], None],
        on_lost: Callable[[Peer, str], None],
        on_pulse: Callable[[Hello, socket.socket], None],
        clock: Callable[[], float] = awake_s,
    ) -> None:
        self._listener = listener
        self._role, self._trust, self._job = role, trust, job
        self._on_message, self._on_lost, self._on_pulse = on_message, on_lost, on_pulse
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self.peers: set[Peer] = set()  # open connections, unfinished handshakes included
        self._unknown: dict[Peer, None] = {}  # oldest first: handshake not done
        self._attempts = RefusalLog(clock)
        self._broken = RefusalLog(clock, "messages of members")
        self._unhandled = RefusalLog(clock, "messages that could not be handled")
        self._lingering: dict[Peer, float] = {}
        self._accept_at: float | None = None
        self._encoded: tuple[messages.Message, Encoded] | None = None
        self._ready: deque[tuple[selectors.SelectorKey, int]] = deque()
        self._due: dict[Peer, None] = {}  # peers with something to send, in order
        self.woke_at = time.monotonic()
        """When the present step began to work, monotonic seconds."""
        self.cpu_at = 0.0
        """The thread's processor time at that moment, seconds."""
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, None)
        self._wake_lock = threading.Lock()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake_fd, selectors.EVENT_READ, self)

    @property
    def refused(self) -> str:
        """The last refused connection, in words; empty: none was refused."""
        return self._attempts.last

    def step(self, timeout_s: float) -> None:
        """Flush, wait up to `timeout_s` for events, and handle them for about `TURN_S`.

        Answers go out with the next `flush`, or step.
        """
        self.flush()
        if not self._ready:
            self._ready.extend(self._selector.select(0 if self._due else timeout_s))
        self.woke_at, self.cpu_at = time.monotonic(), time.thread_time()
        until = self.cpu_at + TURN_S
        while self._ready:
            key, events = self._ready.popleft()
            self._handle(key, events)
            if time.thread_time() >= until:
                break
        now = self._clock()
        for peer in list(self._unknown):
            if now - peer.since <= HANDSHAKE_LIMIT_S:
                break
            if peer in self.peers:
                self._refuse(peer, f"no handshake within {HANDSHAKE_LIMIT_S:.0f} s")
        for refused in (self._attempts, self._broken, self._unhandled):
            if refused.unreported:
                refused.sum_up()
        for peer in [p for p, until in self._lingering.items() if now > until]:
            self._forget(peer)
        if self._accept_at is not None and now >= self._accept_at:
            self._accept_at = None
            self._selector.register(self._listener, selectors.EVENT_READ, None)

    def wake(self) -> None:
        """End the wait of this step or the next; from any thread."""
        with self._wake_lock:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def _handle(self, key: selectors.SelectorKey, events: int) -> None:
        if key.data is self:
            os.eventfd_read(self._wake_fd)
            return
        if key.data is None:
            for count in range(ACCEPTS):
                # With many unfinished handshakes accept one at a time: finishing those comes first,
                # else they would have to make room for these.
                if (count and len(self._unknown) >= UNKNOWN_MAX // 2) or not self._accept():
                    break
            return
        peer: Peer = key.data
        if peer in self._lingering:
            self._drain(peer)
        if events & selectors.EVENT_WRITE and peer in self.peers:
            self._flush(peer)
        if events & selectors.EVENT_READ and peer in self.peers:
            self._read(peer)

    def flush(self) -> None:
        """Send queued frames for about `TURN_S`; what is left goes in the next step."""
        until = time.thread_time() + TURN_S if self._due else 0.0
        while self._due:
            peer = next(iter(self._due))
            del self._due[peer]
            if peer in self.peers:
                self._flush(peer)
            if time.thread_time() >= until:
                return

    def note(self, peer: Peer, message: messages.Message | Encoded) -> None:
        self._say(peer, Kind.NOTE, message)

    def call(
        self,
        peer: Peer,
        message: messages.Message,
        on_answer: Callable[[messages.Message | SnailError], None],
    ) -> None:
        """Send a call; `on_answer` gets the answer, or an error, also if the peer is lost first."""
        if peer not in self.peers:
            on_answer(ConnectionLost("the connection is closed already"))
            return
        encoded = self._encode(message)  # first: if that fails, no call must stay open
        number = peer.next_call
        peer.next_call += 1
        peer.calls[number] = _CallToNode(messages.Answers.of(message), on_answer)
        self._say(peer, Kind.CALL, encoded, number)

    def close_peer(self, peer: Peer) -> None:
        """Send queued frames, then close, without `on_lost`; nothing more is read.

        Open calls to the peer fail with ConnectionLost.
        """
        if peer in self.peers:
            calls, peer.calls = peer.calls, {}
            self._linger(peer)
            for call in calls.values():
                call.on_answer(ConnectionLost("the connection was closed on this side"))

    def close(self) -> None:
        """Close everything without `on_lost`; idempotent."""
        for peer in [*self.peers, *self._lingering]:
            self._forget(peer)
        self._listener.close()
        self._selector.close()
        with self._wake_lock:
            if self._wake_fd >= 0:
                os.close(self._wake_fd)
            self._wake_fd = -1

    def _accept(self) -> bool:
        """Accept the next connection; False: none is waiting, or none can be accepted now."""
        try:
            sock, address = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return False
        except OSError as error:
            if self._unknown and error.errno in NO_DESCRIPTORS:
                self._make_room()  # the next step tries again
                return False
            self._attempts.note("a connection", f"cannot accept it yet: {error.strerror or error}")
            self._selector.unregister(self._listener)
            self._accept_at = self._clock() + ACCEPT_PAUSE_S
            return False
        sock.setblocking(False)
        set_options(sock)
        hello = Hello(Channel.CONTROL, self._role, os.urandom(NONCE_BYTES), job=self._job)
        peer = Peer(
            sock,
            (address[0], address[1]),
            ServerSession(hello, self._trust.secret, _refuse_data),
            FrameDecoder(HANDSHAKE_BODY_MAX),
            self._clock(),
        )
        self.peers.add(peer)
        self._unknown[peer] = None
        self._selector.register(sock, selectors.EVENT_READ, peer)
        while len(self._unknown) > strangers_max(sock.fileno()):
            self._make_room()
        return True

    def _make_room(self) -> None:
        self._refuse(next(iter(self._unknown)), "made room for newer connections")

    def _read(self, peer: Peer) -> None:
        try:
            data = peer.sock.recv(RECV_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(peer, error.strerror or str(error))
            return
        if not data:
            if peer.hello is None and (peer.session.peer is not None or peer.decoder.pending_bytes):
                self._refuse(peer, LEFT)
            else:
                self._drop(peer, "connection closed")
            return
        self.contain(peer, lambda: self._take_all(peer, data))

    def contain(self, peer: Peer, work: Callable[[], None]) -> None:
        """Run what a peer's frames ask for; an error ends that peer's connection, and nothing else.

        Without it one bad message would end the master.  Errors of `on_lost` do end the process:
        they come from the master's own state, and not from the peer.
        """
        try:
            work()
            return
        except ProtocolError as error:
            refused = self._attempts if peer.hello is None else self._broken
            refused.note(show(peer.address), str(error))
            answer, why = error, f"broke the protocol: {error}"
        except Exception as error:
            what = str(error) if isinstance(error, SnailError) else repr(error)
            why = f"a message of it cannot be handled: {what[:WHY_CHARS_MAX]}"
            answer = ProtocolError(f"this message cannot be handled here: {what}", "failed")
            if self._unhandled.note(show(peer.address), why):
                log.error("cannot handle a message of %s:", show(peer.address), exc_info=True)
        self.send_frame(peer, error_frame(answer))
        self._drop(peer, why, linger=True)

    def _take_all(self, peer: Peer, data: bytes) -> None:
        for frame in peer.decoder.feed(data):
            self._take(peer, frame)
            if peer not in self.peers:
                return

    def _take(self, peer: Peer, frame: Frame) -> None:
        if peer.hello is None:
            self.send_frame(peer, peer.session.receive(frame))
            self._flush(peer)  # at once: a heartbeat connection is handed on next
            if peer.session.ready and peer in self.peers:
                self._admit(peer)
            return
        if frame.kind in (Kind.ANSWER, Kind.ERROR) and frame.request:
            # Decode first: if that fails, the call is still open, and fails with the connection.
            answer = (
                messages.decode(frame.body) if frame.kind == Kind.ANSWER else remote_error(frame)
            )
            call = peer.calls.get(frame.request)
            if call is not None:
                if isinstance(answer, messages.Message):
                    answer = call.answers.checked(answer)
                del peer.calls[frame.request]
                call.on_answer(answer)
            return
        check_control_kind(frame)
        message = messages.decode(frame.body)
        reply = self._replier(peer, frame.request) if frame.kind == Kind.CALL else None
        self._on_message(peer, message, reply)

    def _admit(self, peer: Peer) -> None:
        assert peer.session.peer is not None
        peer.hello = peer.session.peer
        self._unknown.pop(peer, None)
        peer.decoder.body_max = CONTROL_BODY_MAX
        if peer.hello.channel == Channel.PULSE:
            self._selector.unregister(peer.sock)
            self.peers.discard(peer)
            try:
                self._on_pulse(peer.hello, peer.sock)
            except Exception:
                log.exception("cannot take a heartbeat connection of %s", show(peer.address))
                peer.sock.close()

    def _replier(self, peer: Peer, request: int) -> Reply:
        def reply(answer: messages.Message | Encoded | SnailError) -> None:
            if isinstance(answer, SnailError):
                self.send_frame(peer, error_frame(answer, request))
            else:
                self._say(peer, Kind.ANSWER, answer, request)

        return reply

    def _say(
        self, peer: Peer, kind: Kind, message: messages.Message | Encoded, request: int = 0
    ) -> None:
        if peer in self.peers:
            peer.out.add_message(kind, self._encode(message), request)
            self._added(peer)

    def _encode(self, message: messages.Message | Encoded) -> Encoded:
        """Encode a message, once if it goes to many peers in a row (route, Start)."""
        if isinstance(message, Encoded):
            return message
        if self._encoded is None or self._encoded[0] is not message:
            self._encoded = (message, Encoded(message))
        return self._encoded[1]

    def send_frame(self, peer: Peer, frame: Frame) -> None:
        if peer in self.peers:
            peer.out.add(encode_frame(frame, pack=True))
            self._added(peer)

    def _added(self, peer: Peer) -> None:
        self._due[peer] = None
        if peer.out.untaken > OUT_BYTES_MAX:
            self._flush(peer)
            if peer.out.untaken > OUT_BYTES_MAX:
                self._drop(peer, "does not read its messages")

    def _flush(self, peer: Peer) -> None:
        try:
            self._send_some(peer)
        except OSError as error:
            self._drop(peer, error.strerror or str(error))

    def _send_some(self, peer: Peer) -> None:
        floor = max(peer.out.size - FLUSH_BYTES, 0)
        while peer.out.size > floor and peer.out.send(peer.sock):
            pass
        if peer.writing != bool(peer.out):
            peer.writing = not peer.writing
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.writing else 0)
            self._selector.modify(peer.sock, events, peer)

    def _linger(self, peer: Peer) -> None:
        """Send queued frames, then wait up to `LINGER_S` for the peer to close."""
        self.peers.discard(peer)
        self._lingering[peer] = self._clock() + LINGER_S
        self._drain(peer)

    def _drain(self, peer: Peer) -> None:
        try:
            self._send_some(peer)
            if not peer.out and not peer.ended:
                peer.ended = True
                peer.sock.shutdown(socket.SHUT_WR)
            if peer.sock.recv(RECV_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._forget(peer)

    def _drop(self, peer: Peer, why: str, *, linger: bool = False) -> None:
        if peer not in self.peers:
            return
        if linger:
            self._linger(peer)
        else:
            self._forget(peer)
        calls, peer.calls = peer.calls, {}
        for call in calls.values():
            call.on_answer(ConnectionLost(why))
        if peer.hello is not None:
            self._on_lost(peer, why)

    def _refuse(self, peer: Peer, why: str) -> None:
        """End the connection of a peer that has not proved its identity."""
        self._attempts.note(show(peer.address), why)
        self._forget(peer)

    def _forget(self, peer: Peer) -> None:
        self.peers.discard(peer)
        self._unknown.pop(peer, None)
        self._lingering.pop(peer, None)
        self._due.pop(peer, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.sock)
        peer.sock.close()


def _refuse_data(hello: Hello) -> None:
    if hello.channel == Channel.DATA:
        raise ProtocolError("this is a master: it has no data channel", "channel")
