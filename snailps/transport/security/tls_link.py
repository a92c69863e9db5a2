"""One relayed connection: its encrypted socket, its plain socket, and the bytes between them.

    peer -> far, TLS -> near, plain                    near -> far -> peer

Owns the bytes on their way, and the meaning of TLS errors.  Must not know threads or listeners: no
socket blocks, and the caller decides when to try again.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Any

from snailps.config.addresses import Address

RECORD_BYTES = 1 << 14
"""Bytes of a full TLS record. Mostly another record follows a full one, and none a shorter one."""
LAST_BYTES = 1 << 20
"""Most bytes that are delivered after a connection broke."""
CLOSED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""Raised by a handshake when the peer closes the connection without a reason."""


class TlsLink:
    """One connection: the encrypted socket, our end of the pair, and bytes on the way."""

    __slots__ = (
        "address", "down", "far", "far_ended", "far_mask", "gone", "near", "near_ended",
        "near_mask", "number", "records", "refused", "since", "up", "wants_write",
    )  # fmt: skip

    def __init__(self, number: int, far: ssl.SSLSocket, address: Address, now: float) -> None:
        self.number, self.far, self.address, self.since = number, far, address, now
        # A fifth of the relay's time was SSLSocket's checks around these two calls.
        self.records: Any = getattr(far, "_sslobj", None) or far
        self.near: socket.socket | None = None  # once the handshake is done
        self.up = self.down = b""
        self.near_ended = self.far_ended = False
        self.gone = False  # the other end of the plain pair is closed
        self.refused = False  # the peer gets the reason, and its input is discarded
        self.wants_write = False
        self.near_mask = self.far_mask = 0

    def pump(self, buffer: memoryview, far: bool, near: bool) -> bool:
        """Serve the ready sockets; True: more bytes can be moved without another epoll event.

        It does not try to read once more than it must: finding nothing costs an exception, and
        epoll reports further bytes.
        """
        self.wants_write = False
        if far or self.down:
            self._pump_down(buffer)
        if near or self.up:
            self._pump_up(buffer)
        if not self.down and not self.far_ended and self.far.pending():
            return True
        return self.gone and not self.near_ended and not self.up

    def last_words(self, buffer: memoryview) -> None:
        """Deliver the bytes that arrived before the connection broke, as far as the plain socket
        takes them.

        They may say why: a peer that sends an ERROR and closes with unread input resets the
        connection.
        """
        moved, got = 0, 1
        with contextlib.suppress(OSError):
            while got and moved < LAST_BYTES and not self.down and not self.far_ended:
                got = self._pump_down(buffer)
                moved += got

    def _pump_down(self, buffer: memoryview) -> int:
        """Pump bytes from the peer to the plain socket; return how many were read."""
        assert self.near is not None
        data: memoryview | bytes = self.down
        got = 0
        if not data and not self.far_ended:
            while got < len(buffer):
                try:
                    n = self.records.read(len(buffer) - got, buffer[got:])
                except ssl.SSLEOFError:  # closed without a close_notify
                    n = 0
                except ssl.SSLWantReadError:
                    break
                except ssl.SSLWantWriteError:
                    self.wants_write = True
                    break
                except OSError:
                    if got == 0:
                        raise
                    n = 0  # the bytes before it are still delivered
                if n == 0:
                    self.far_ended = True
                    break
                got += n
                if n < RECORD_BYTES:
                    break
            data = buffer[:got]
        sent = 0
        if data:
            try:
                while sent < len(data):
                    sent += self.near.send(data[sent:], socket.MSG_NOSIGNAL)
            except BlockingIOError:
                pass
            except (BrokenPipeError, ConnectionResetError):
                self.far_ended = True  # it is not read any more
                sent = len(data)
            self.down = bytes(data[sent:])
        if self.far_ended and not self.down:
            with contextlib.suppress(OSError):
                self.near.shutdown(socket.SHUT_WR)
        return got

    def _pump_up(self, buffer: memoryview) -> None:
        assert self.near is not None
        data: memoryview | bytes = self.up
        if not data and not self.near_ended:
            try:
                got = self.near.recv_into(buffer)
            except BlockingIOError:
                return
            except ConnectionResetError:
                got = 0
            if got == 0:
                self.near_ended = True
            data = buffer[:got]
        sent = 0
        if data:
            many = len(data) > RECORD_BYTES
            if many:  # without a cork the peer would be woken for each record
                self.far.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
            try:
                while sent < len(data):
                    sent += self.records.write(data[sent:])
            except ssl.SSLWantWriteError:
                self.wants_write = True
            except ssl.SSLWantReadError:
                pass
            finally:
                if many:
                    self.far.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
            self.up = bytes(data[sent:])
        if self.near_ended and not self.up:
            # Without a close_notify: frames have lengths, so a truncated one is noticed anyway.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self.far, socket.SHUT_WR)

    def drain(self, buffer: memoryview) -> bool:
        """Discard further input of a refused peer; False: it has closed the connection."""
        try:
            return socket.socket.recv_into(self.far, buffer) > 0
        except BlockingIOError:
            return True


def words(error: OSError) -> str:
    """An error of TLS in words."""
    text = str(error).upper().replace(" ", "_")
    for key, meaning in _MEANINGS.items():
        if key in text:
            return meaning
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    return error.strerror or str(error) or type(error).__name__


NO_TLS = "it does not use TLS: is tls set on both sides?"
_MEANINGS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has no certificate",
    "CERTIFICATE_REQUIRED": "it asks for a certificate",
    "ALERT_UNKNOWN_CA": "its folder tls holds another CA than this one's",
    "ALERT_BAD_CERTIFICATE": "it does not accept this certificate",
    "ALERT_CERTIFICATE_EXPIRED": "it says that this certificate has expired",
    "ALERT_DECRYPT_ERROR": "it does not accept this certificate",
    "SELF-SIGNED_CERTIFICATE": "its certificate is of another CA",
    "SELF_SIGNED_CERTIFICATE": "its certificate is of another CA",
    "UNABLE_TO_GET_LOCAL_ISSUER": "its certificate is of another CA",
    "SIGNATURE_FAILURE": "its certificate is of another CA",
    "CERTIFICATE_HAS_EXPIRED": "its certificate has expired",
    "NOT_YET_VALID": "its certificate is not valid yet: are the clocks right?",
    "WRONG_VERSION_NUMBER": NO_TLS,
    "RECORD_LAYER_FAILURE": NO_TLS,
    "HTTP_REQUEST": "it speaks HTTP",
}
