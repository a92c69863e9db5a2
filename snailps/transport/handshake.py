"""The handshake: who a peer is, and the proof that it knows the cluster's secret.  Sans-IO.

    client                                server
      HELLO(role, nonce_c)         ->
                                   <-     HELLO(role, nonce_s, mac_s)
      PROOF(mac_c)                 ->
                                   <-     READY

Each side proves that it knows the shared secret by an HMAC-SHA256 over both HELLOs.  Without a
secret the key is empty: the same code runs, and a side with a secret refuses a side without.
Frames in, frames out; must not know sockets or clocks; callers give the nonces.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import json
import struct
from collections.abc import Callable

from snailps._version import __version__
from snailps.dataclass import dataclass, replace
from snailps.errors import ProtocolError, RemoteError, SnailError
from snailps.transport.frame import HANDSHAKE_BODY_MAX, Frame, Kind

NONCE_BYTES = 16
MAC_BYTES = 32
_HELLO = struct.Struct("<BBHI16s32s")
_NO_MAC = bytes(MAC_BYTES)


class Channel(enum.IntEnum):
    CONTROL = 1
    PULSE = 2
    DATA = 3


class Role(enum.IntEnum):
    MASTER = 1
    SERVER = 2
    WORKER = 3
    DRIVER = 4


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of either side.

    `nonce`: 16 fresh random bytes; `node`, `incarnation`, `job`: assigned by the master, 0 before
    registration; `mac`: 32 bytes, zeros from the client; `agent`: software version, for messages
    only.
    """

    channel: Channel
    role: Role
    nonce: bytes
    node: int = 0
    incarnation: int = 0
    job: int = 0
    mac: bytes = _NO_MAC
    agent: str = __version__

    def to_frame(self) -> Frame:
        fixed = _HELLO.pack(self.channel, self.role, 0, self.node, self.nonce, self.mac)
        return Frame(
            Kind.HELLO,
            fixed + self.agent.encode()[:64],
            job=self.job,
            incarnation=self.incarnation,
        )

    @classmethod
    def from_frame(cls, frame: Frame) -> Hello:
        """Read a HELLO; ProtocolError on a wrong kind, length, channel, role or agent."""
        if frame.kind != Kind.HELLO:
            raise ProtocolError(f"expected HELLO first, got {frame.kind.name}", "handshake")
        if not _HELLO.size <= len(frame.body) <= _HELLO.size + 64:
            raise ProtocolError(
                f"HELLO of {len(frame.body)} bytes, {_HELLO.size} to {_HELLO.size + 64} expected",
                "handshake",
            )
        channel, role, reserved, node, nonce, mac = _HELLO.unpack_from(frame.body)
        agent = frame.body[_HELLO.size :]
        if reserved or not agent.isascii():
            # The MAC is computed over a HELLO as we would write it, so it covers neither of these.
            raise ProtocolError(
                "HELLO with reserved bits set or an agent not in ASCII", "handshake"
            )
        try:
            return cls(
                Channel(channel),
                Role(role),
                nonce,
                node,
                frame.incarnation,
                frame.job,
                mac,
                agent.decode("ascii"),
            )
        except ValueError:
            raise ProtocolError(
                f"HELLO with unknown channel {channel} or role {role}", "handshake"
            ) from None


def _mac(secret: bytes, label: bytes, client: Hello, server: Hello) -> bytes:
    # Both nonces: a MAC of another connection does not fit (replay). A label by direction: a peer
    # cannot return ours as its own (reflection). Channel, role and job: a proof cannot be used for
    # another kind of connection, or in the next run.
    text = label + b"".join(replace(h, mac=_NO_MAC).to_frame().body for h in (client, server))
    text += struct.pack("<QQQQ", client.job, client.incarnation, server.job, server.incarnation)
    return hmac.new(secret, text, hashlib.sha256).digest()


class ClientSession:
    """The connecting side.  `hello` has a fresh nonce; an empty `secret` means none."""

    def __init__(self, hello: Hello, secret: bytes = b"") -> None:
        self.hello = hello
        self.peer: Hello | None = None
        self.ready = False
        self._secret = secret

    def start(self) -> Frame:
        """Return the first frame to send."""
        return self.hello.to_frame()

    def receive(self, frame: Frame) -> Frame | None:
        """Take the server's next frame; return the frame to send, if any.

        RemoteError: the server refused.  ProtocolError: a broken handshake, or another secret.
        """
        if frame.kind == Kind.ERROR:
            raise remote_error(frame)
        if self.peer is None:
            peer = Hello.from_frame(frame)
            expected = _mac(self._secret, b"server", self.hello, peer)
            if not hmac.compare_digest(expected, peer.mac):
                raise ProtocolError(
                    "the peer does not know this cluster's secret: check it on both sides",
                    "secret",
                )
            self.peer = peer
            return Frame(Kind.PROOF, _mac(self._secret, b"client", self.hello, peer))
        if frame.kind != Kind.READY:
            raise ProtocolError(f"expected READY, got {frame.kind.name}", "handshake")
        self.ready = True
        return None


class ServerSession:
    """The accepting side.  `admit(hello)` runs after the proof; it refuses with a ProtocolError."""

    def __init__(
        self, hello: Hello, secret: bytes = b"", admit: Callable[[Hello], None] | None = None
    ) -> None:
        self.hello = hello
        self.peer: Hello | None = None
        self.ready = False
        self._secret = secret
        self._admit = admit

    def receive(self, frame: Frame) -> Frame:
        """Take the client's next frame; return the frame to send.  ProtocolError: refused."""
        if self.ready:
            raise ProtocolError(f"{frame.kind.name} after the handshake", "handshake")
        if self.peer is None:
            peer = Hello.from_frame(frame)
            if peer.mac != _NO_MAC:
                raise ProtocolError("a client's HELLO carries no MAC", "handshake")
            self.peer = peer
            # The server proves itself first: a client sends its proof to no stranger. The price is
            # that whoever connects gets a MAC by which a weak secret could be guessed.
            self.hello = replace(self.hello, channel=self.peer.channel)
            self.hello = replace(
                self.hello, mac=_mac(self._secret, b"server", self.peer, self.hello)
            )
            return self.hello.to_frame()
        if frame.kind != Kind.PROOF:
            raise ProtocolError(f"expected PROOF, got {frame.kind.name}", "handshake")
        if not hmac.compare_digest(
            _mac(self._secret, b"client", self.peer, self.hello), frame.body
        ):
            raise ProtocolError("wrong secret", "secret")
        # Not before the proof: a refusal says what runs here.
        if self._admit is not None:
            self._admit(self.peer)
        self.ready = True
        return Frame(Kind.READY)


def error_frame(error: SnailError, request: int = 0) -> Frame:
    """Make the ERROR frame of an error, its text cut to fit; `request` 0: of the connection."""
    code, text = getattr(error, "code", "error"), str(error)[:HANDSHAKE_BODY_MAX]
    while True:
        # A file name that is not UTF-8 has lone surrogates, which JSON can carry only when escaped.
        words = json.dumps({"code": code, "text": text}, ensure_ascii=False)
        body = words.encode("utf-8", "backslashreplace")
        if len(body) <= HANDSHAKE_BODY_MAX:
            return Frame(Kind.ERROR, body, request=request)
        text = text[: len(text) * 3 // 4]


def remote_error(frame: Frame) -> RemoteError:
    """Read an ERROR frame; one that cannot be read becomes an error with code ``protocol``."""
    try:
        fields = json.loads(frame.body)
        return RemoteError(str(fields["text"]), str(fields["code"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return RemoteError(f"unreadable ERROR of {len(frame.body)} bytes", "protocol")
