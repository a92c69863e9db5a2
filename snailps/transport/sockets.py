"""TCP sockets: listening, connecting with retries and handshake, addresses in messages.

    (host, port) -> listen -> listening socket       (host, port) -> dial -> authenticated socket

Owns how a connection is made and how long that may take.  Must not know messages; `Trust` decides
which peers are admitted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable
from typing import Any, Protocol

from snailps.config.addresses import Address, format_addr
from snailps.errors import ConfigError, ConnectionLost, ProtocolError, SnailError, WaitTimeout
from snailps.transport._awake import awake_s
from snailps.transport.frame import HANDSHAKE_BODY_MAX, FrameDecoder, encode_frame
from snailps.transport.handshake import NONCE_BYTES, Channel, ClientSession, Hello, Role
from snailps.transport.security.refusals import HANDSHAKE_LIMIT_S
from snailps.transport.security.trust import OPEN, VARIABLE, Trust

SAY_S = 5.0
"""Seconds between calls of `on_wait`."""


class Listener(Protocol):
    """Accepts connections: a listening socket, or a TLS relay in front of one."""

    def fileno(self) -> int: ...
    def accept(self) -> tuple[socket.socket, Any]: ...
    def getsockname(self) -> Any: ...
    def setblocking(self, flag: bool, /) -> None: ...
    def close(self) -> None: ...


def listen(host: str, port: int, trust: Trust = OPEN, backlog: int = 1024) -> Listener:
    """Listen on a TCP address, IPv4 or IPv6, which a restart may bind again at once.

    With TLS the result is a relay.  ConnectionLost: cannot bind.  ConfigError: there is no secret,
    and other machines could connect.
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
        trust.check_listening(*sock.getsockname()[:2])
        sock.listen(backlog)
    except ConfigError:
        sock.close()
        raise
    except OSError as error:
        sock.close()
        raise ConnectionLost(
            f"cannot listen on {show((host, port))}: {error.strerror}. "
            + (
                "It is not an address of this machine: correct listen_addr"
                if error.errno == errno.EADDRNOTAVAIL
                else "Is another process using it? Choose another address or stop that process"
            )
        ) from None
    return trust.tls.listening(sock) if trust.tls else sock


def is_there(address: Address, limit_s: float = 1.0) -> bool:
    """Whether a process may listen at an address; False only if its machine refuses the
    connection."""
    try:
        socket.create_connection(address, timeout=limit_s).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return True


def show(address: Address) -> str:
    """host:port, with brackets round an IPv6 host."""
    return format_addr(*address[:2])


def peer_of(descriptor: int) -> str:
    """Return the peer's address of a connected socket, which the caller still owns."""
    sock = socket.socket(fileno=descriptor)
    try:
        return show(sock.getpeername())
    except OSError:
        return "a peer that has disconnected"
    finally:
        sock.detach()


def route_host(address: Address) -> str:
    """Return the local address from which this machine reaches `address`.

    ConnectionLost: the name does not resolve, or there is no route.
    """
    try:
        targets = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise ConnectionLost(
            f"cannot find {show(address)}: {error.strerror}. Is the name right?"
        ) from None
    for family, _, _, _, where in targets:
        with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            probe.connect(where)  # sends nothing: only asks the routing table
            return str(probe.getsockname()[0])
    raise ConnectionLost(f"no route to {show(address)}")


def dial(
    address: Address,
    channel: Channel,
    role: Role,
    *,
    peer_name: str,
    limit_s: float,
    node: int = 0,
    incarnation: int = 0,
    job: int = 0,
    trust: Trust = OPEN,
    give_up: Callable[[], bool] = lambda: False,
    on_wait: Callable[[str], None] = lambda text: None,
) -> socket.socket:
    """Connect and do the handshake, with retries until `limit_s` seconds have passed.

    `peer_name` is for messages.  `give_up` is called between attempts, and ends them if true.
    `on_wait` gets every few seconds a text that says what is waited for.  WaitTimeout: no
    connection in time.  ConnectionLost: the peer accepts connections and does not answer.
    RemoteError, ProtocolError: it refused, or the handshake failed, and another attempt would not
    help.
    """
    begin = awake_s()
    peer = f"{peer_name} at {show(address)}"
    pause_s, shown_at = 0.05, begin

    def wait(reason: str) -> None:
        nonlocal pause_s, shown_at
        if awake_s() - shown_at > SAY_S:
            shown_at = awake_s()
            left_s = max(0.0, limit_s - (shown_at - begin))
            on_wait(f"waiting for {peer} ({reason}), {left_s:.0f} s left")
        threading.Event().wait(pause_s)
        pause_s = min(pause_s * 1.5, 1.0)

    while True:
        left = limit_s - (awake_s() - begin)
        try:
            sock = _connected(address, max(0.1, min(left, 5.0)))
        except OSError as error:
            reason = error.strerror or str(error)
            if left <= 0 or give_up():
                raise WaitTimeout(
                    f"cannot reach {peer} within {limit_s:.0f} s: {reason}. "
                    "Check that it runs, its address, and firewalls"
                ) from None
            wait(reason)
            continue
        try:
            set_options(sock)
            limit = max(0.1, min(left, HANDSHAKE_LIMIT_S))
            if trust.tls:
                sock = far = trust.tls.encrypted(sock, limit)
            hello = Hello(channel, role, os.urandom(NONCE_BYTES), node, incarnation, job)
            session = ClientSession(hello, trust.secret)
            _shake(sock, session, limit)
            if trust.tls:
                sock = trust.tls.plain(far, address)
        except OSError as error:
            sock.close()
            if trust.tls and (why := trust.tls.refusal(error)):
                raise ProtocolError(f"{peer}: no TLS handshake: {why}", "tls") from None
            how = f"closed the connection: {error}"
            if isinstance(error, TimeoutError):
                how = (
                    "accepts connections but does not answer: it hangs, or is not a snailps process"
                )
            if left <= 0 or give_up():
                raise ConnectionLost(f"{peer} {how}") from None
            wait(f"it {how}")
            continue
        except SnailError as error:
            sock.close()
            code = getattr(error, "code", "")
            if code == "tls":
                raise ProtocolError(f"{peer}: {error}", code) from None
            if code == "secret":
                raise ProtocolError(
                    f"{peer} has another secret than this process, or none: "
                    "is its secret_file the same here?"
                    if trust.secret
                    else f"{peer} asks for a secret, and this process has none: "
                    f"set secret_file or the variable {VARIABLE}",
                    "secret",
                ) from None
            raise
        return sock


def _connected(address: Address, limit_s: float) -> socket.socket:
    """Connect, and refuse a connection of the socket to itself.

    TCP makes such a connection when nothing listens at a local port and the kernel happens to
    choose that port for the connecting end.  It would keep the port from the process that is to
    listen there.
    """
    sock = socket.create_connection(address, timeout=limit_s)
    try:
        if sock.getsockname() == sock.getpeername():
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    except BaseException:
        sock.close()
        raise
    return sock


def set_options(sock: socket.socket) -> None:
    """Set TCP_NODELAY, and keep-alive: a peer whose machine is gone is noticed after two
    minutes."""
    if sock.family == socket.AF_UNIX:  # our end of a TLS relay's socket pair
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def receive(sock: socket.socket, count: int, until: float) -> bytes:
    """Receive up to `count` bytes, until a time in monotonic seconds; TimeoutError then."""
    left_s = until - awake_s()
    if left_s <= 0:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    sock.settimeout(left_s)
    return sock.recv(count)


def _shake(sock: socket.socket, session: ClientSession, limit_s: float) -> None:
    until = awake_s() + limit_s
    sock.settimeout(limit_s)
    decoder = FrameDecoder(HANDSHAKE_BODY_MAX)
    sock.sendall(encode_frame(session.start()))
    while not session.ready:
        # Only the bytes of this frame: bytes after READY (a heartbeat) are for the socket's next
        # owner.
        data = receive(sock, decoder.missing_bytes, until)
        if not data:
            raise ConnectionResetError("closed during the handshake")
        for frame in decoder.feed(data):
            answer = session.receive(frame)
            if answer is not None:
                sock.sendall(encode_frame(answer))
    sock.settimeout(None)
