"""TLS for plain sockets: one thread that encrypts for any number of connections.

    peer <- TLS over TCP -> TlsRelay <- socket pair -> plain sockets of loop, client, heartbeats

Owns the encrypted sockets, and the limits of unfinished handshakes.  Must not know frames.  A
connection takes no memory here while nothing waits: all share one buffer.

The thread needs the GIL between two records of 16 KiB.  So heartbeats over TLS need it, too: code
that holds the GIL for longer than `heartbeat_timeout` makes its process look dead.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from snailps.config.addresses import Address
from snailps.transport._awake import awake_s
from snailps.transport.security.refusals import (
    ACCEPT_PAUSE_S,
    HANDSHAKE_LIMIT_S,
    NO_DESCRIPTORS,
    RefusalLog,
    strangers_max,
)
from snailps.transport.security.tls_link import CLOSED, NO_TLS, TlsLink, words

log = logging.getLogger(__name__)
T = TypeVar("T")

FLUSH_S = 2.0
"""How long the end waits for bytes on their way to peers."""
BUFFER_BYTES = 256 << 10
LOOK_S = 1.0
LINGER_S = 2.0
"""How long a refused peer may take to read why: closing at once may reset the connection."""
_WAKE = 0
_LISTENER = 1
_FIRST = 2


class TlsRelay:
    """A thread between encrypted sockets and plain ones.

    `accept` returns connections of `listener`, which the relay owns; peers without TLS get
    `farewell`. Any thread may call `adopt`, `accept` and `close`; everything else runs in the
    relay's thread.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        listener: socket.socket | None = None,
        farewell: bytes = b"",
    ) -> None:
        self._context, self._listener, self._farewell = context, listener, farewell
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._accepted: deque[tuple[socket.socket, Address]] = deque()
        self._accepted_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
        self._adopted: deque[tuple[ssl.SSLSocket, socket.socket, Address]] = deque()
        self._attempts = RefusalLog()
        self._links: dict[int, TlsLink] = {}
        self._unknown: dict[int, TlsLink] = {}  # oldest first
        self._more: set[int] = set()  # links with work left for which no event comes
        self._numbers = itertools.count(_FIRST, 2)
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._closing_at: float | None = None
        self._look_at = 0.0
        self._accept_at: float | None = None
        self._failed = False
        self._lock = threading.Lock()
        self._closed = False
        self._epoll.register(self._wake, select.EPOLLIN)
        self._tokens: dict[int, int] = {self._wake: _WAKE}
        if listener is not None:
            listener.setblocking(False)
            self._tokens[listener.fileno()] = _LISTENER
            self._epoll.register(listener, select.EPOLLIN)
        self._thread = threading.Thread(target=self.run, name="snailps-relay", daemon=True)
        self._thread.start()

    # --- from any thread ----------------------------------------------------------------------

    def adopt(self, far: ssl.SSLSocket, address: Address) -> socket.socket:
        """Take over an encrypted socket, and return the plain end.  ConnectionResetError: the relay
        has ended."""
        local, remote = socket.socketpair()
        far.setblocking(False)
        with self._lock:
            if self._closed:
                raise ConnectionResetError("this process is about to end")
            self._adopted.append((far, local, address))
            os.eventfd_write(self._wake, 1)
        return remote

    def fileno(self) -> int:
        """Return a descriptor that is readable while `accept` has a connection."""
        return self._accepted_fd

    def accept(self) -> tuple[socket.socket, Address]:
        """Return the plain end of a new authenticated connection; BlockingIOError: there is
        none."""
        os.eventfd_read(self._accepted_fd)
        return self._accepted.popleft()

    def setblocking(self, flag: bool) -> None:
        """Do nothing: `accept` never blocks."""

    def getsockname(self) -> Any:
        assert self._listener is not None
        return self._listener.getsockname()

    def close(self) -> None:
        """End when everything is sent, after `FLUSH_S` at most.  Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._closing_at = awake_s()
            os.eventfd_write(self._wake, 1)
        self._thread.join(2 * FLUSH_S)

    # --- the thread ---------------------------------------------------------------------------

    def run(self) -> None:
        try:
            while not self._is_over():
                self._turn()
        except Exception:
            log.exception("the relay for TLS has failed")
        finally:
            with self._lock:
                self._closed = True
            left = [sock for link in self._links.values() for sock in (link.far, link.near)]
            left += [sock for far, local, _ in self._adopted for sock in (far, local)]
            left += [sock for sock, _ in self._accepted]
            for sock in [*left, self._listener]:
                if sock is not None:
                    sock.close()
            self._epoll.close()
            os.close(self._wake)
            os.close(self._accepted_fd)
            self._accepted_fd = -1

    def _is_over(self) -> bool:
        """Whether `close` was called and nothing is left to be sent."""
        if self._closing_at is None:
            return False
        if awake_s() - self._closing_at > FLUSH_S:
            return True
        return not self._adopted and not any(
            link.up or not link.near_ended for link in self._links.values()
        )

    def _turn(self) -> None:
        wait_s = 0.0 if self._more else 0.1 if self._closing_at else LOOK_S / 4
        # Look up all tokens first: a descriptor closed in this turn may belong to another socket
        # before the turn ends.
        batch = [(self._tokens.get(fd), events) for fd, events in self._epoll.poll(wait_s)]
        for token, events in batch:
            if token == _WAKE:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif token == _LISTENER:
                self._welcome()
            elif token is not None and (link := self._links.get(token & ~1)) is not None:
                self._more.discard(link.number)
                if token & 1 and events & (select.EPOLLHUP | select.EPOLLERR):
                    link.gone = True
                near = bool(token & 1)
                broken = not near and bool(events & select.EPOLLERR)
                self._serve(link, broken, far=not near, near=near)
        while self._adopted:
            far, local, address = self._adopted.popleft()
            self._serve(self._new(far, address), local=local)
        for number in [*self._more]:
            self._more.discard(number)
            self._serve(self._links[number])
        self._look()

    def _look(self) -> None:
        """Apply time limits."""
        now = awake_s()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S / 4
        for link in [*self._unknown.values()]:
            if link.refused and now - link.since > LINGER_S:
                self._drop(link)
            elif not link.refused and now - link.since > HANDSHAKE_LIMIT_S:
                self._note(link, f"no TLS handshake within {HANDSHAKE_LIMIT_S:.0f} s")
                self._drop(link)
        if self._attempts.unreported:
            self._attempts.sum_up()
        if self._accept_at is not None and now >= self._accept_at:
            assert self._listener is not None
            self._accept_at = None
            self._epoll.register(self._listener, select.EPOLLIN)
        if self._closing_at is not None:
            for link in [*self._unknown.values()]:
                self._drop(link)

    def _new(self, far: ssl.SSLSocket, address: Address) -> TlsLink:
        link = TlsLink(next(self._numbers), far, address, awake_s())
        self._links[link.number] = link
        return link

    def _welcome(self) -> None:
        """Accept a connection and begin its handshake."""
        assert self._listener is not None
        try:
            sock, address = self._with_room(self._listener.accept)
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            self._attempts.note("a connection", f"cannot accept it yet: {error.strerror or error}")
            self._epoll.unregister(self._listener)
            self._accept_at = awake_s() + ACCEPT_PAUSE_S
            return
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        try:
            far = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except OSError:  # it has gone again
            sock.close()
            return
        link = self._new(far, (address[0], address[1]))
        self._unknown[link.number] = link
        while len(self._unknown) > strangers_max(far.fileno()):
            self._make_room()
        self._serve(link)

    def _make_room(self) -> None:
        """Close the oldest connection with an unfinished handshake."""
        oldest = next(iter(self._unknown.values()))
        if not oldest.refused:
            self._note(oldest, "made room for newer connections")
        self._drop(oldest)

    def _with_room(self, function: Callable[[], T]) -> T:
        """Call `function`; without free descriptors, close unfinished handshakes first."""
        while True:
            try:
                return function()
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS or not self._unknown:
                    raise
                self._make_room()

    def _shake(self, link: TlsLink) -> None:
        try:
            link.far.do_handshake()
        except ssl.SSLWantReadError:
            link.wants_write = False
            return
        except ssl.SSLWantWriteError:
            link.wants_write = True
            return
        except (*CLOSED, ConnectionError):
            self._drop(link)  # a check whether the port is open
            return
        except OSError as error:
            self._note(link, f"no TLS handshake: {words(error)}")
            link.refused, link.wants_write, link.since = True, False, awake_s()
            with contextlib.suppress(OSError):
                if words(error) == NO_TLS:
                    socket.socket.send(link.far, self._farewell, socket.MSG_NOSIGNAL)
                socket.socket.shutdown(link.far, socket.SHUT_WR)
            return
        self._unknown.pop(link.number, None)
        link.wants_write = False
        local, remote = self._with_room(socket.socketpair)
        self._pair(link, local)
        self._accepted.append((remote, link.address))
        os.eventfd_write(self._accepted_fd, 1)

    def _pair(self, link: TlsLink, local: socket.socket) -> None:
        local.setblocking(False)
        link.near = local
        self._tokens[local.fileno()] = link.number + 1
        self._epoll.register(local, 0)

    def _note(self, link: TlsLink, why: str) -> None:
        self._attempts.note(f"{link.address[0]}:{link.address[1]}", why)

    def _serve(
        self,
        link: TlsLink,
        broken: bool = False,
        *,
        far: bool = True,
        near: bool = True,
        local: socket.socket | None = None,
    ) -> None:
        """Serve a connection for a turn; an error ends this connection only.

        `broken`: its encrypted socket reports an error; `far`, `near`: which of its sockets may
        have bytes; `local`: the plain socket, when the connection is taken over.
        """
        try:
            if local is not None:
                self._pair(link, local)
            self._move(link, broken, far, near)
        except Exception as error:
            self._note(link, f"the relay for TLS has failed: {error!r}")
            if not self._failed:
                self._failed = True  # a peer may be able to do it again and again
                log.exception("the relay for TLS has failed for one connection")
            self._drop(link)

    def _move(self, link: TlsLink, broken: bool, far: bool, near: bool) -> None:
        try:
            if link.refused:
                broken = broken or not link.drain(self._buffer)
            elif link.near is None:
                self._shake(link)
            if link.near is not None and link.pump(self._buffer, far, near):
                self._more.add(link.number)
        except OSError as error:
            log.debug("%s: %s", link.address, error)
            broken = True
        if link.number not in self._links:
            return
        if broken and link.near is not None:
            link.last_words(self._buffer)
        heard = link.gone or (link.far_ended and not link.down)
        if broken or (heard and link.near_ended and not link.up):
            self._drop(link)
            return
        self._watch(link)

    def _watch(self, link: TlsLink) -> None:
        """Have epoll watch for what the connection waits for."""
        wanted = select.EPOLLIN if not link.far_ended and not link.down else 0
        if link.up or link.wants_write:
            wanted |= select.EPOLLOUT
        if wanted != link.far_mask:
            # A socket from which nothing is wanted is not watched: epoll would report its end again
            # and again.
            if link.far_mask == 0:
                self._tokens[link.far.fileno()] = link.number
                self._epoll.register(link.far, wanted)
            elif wanted == 0:
                self._tokens.pop(link.far.fileno(), None)
                self._epoll.unregister(link.far)
            else:
                self._epoll.modify(link.far, wanted)
            link.far_mask = wanted
        if link.near is None:
            return
        if link.gone:
            if self._tokens.pop(link.near.fileno(), None) is not None:
                self._epoll.unregister(link.near)
            return
        wanted = select.EPOLLIN if not link.near_ended and not link.up else 0
        if link.down:
            wanted |= select.EPOLLOUT
        if wanted != link.near_mask:
            self._epoll.modify(link.near, wanted)
            link.near_mask = wanted

    def _drop(self, link: TlsLink) -> None:
        self._links.pop(link.number, None)
        self._unknown.pop(link.number, None)
        self._more.discard(link.number)
        for sock in (link.far, link.near):
            if sock is not None:
                self._tokens.pop(sock.fileno(), None)
                sock.close()  # also takes it out of epoll
