"""TLS: the certificates of this process, and the encrypted side of its connections.

    folder -> Tls -> listening socket -> TlsRelay       connected socket -> encrypted -> plain end

A member has a certificate of the cluster's own CA; both sides show theirs.  The names in it are for
people: no host name is checked.  Owns the relay of the connections that this process makes.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import ssl
import stat
import threading
from pathlib import Path
from typing import Any

from snailps.config.addresses import Address
from snailps.errors import ConfigError, ProtocolError
from snailps.transport.frame import encode_frame
from snailps.transport.handshake import error_frame
from snailps.transport.security.tls_link import CLOSED, words
from snailps.transport.security.tls_relay import TlsRelay

CA, CERTIFICATE, KEY = "ca.pem", "node.pem", "node.key"
CA_KEY = "ca.key"
HANDSHAKE_STEPS = 4
"""Turns of both sides after which a handshake in memory is done."""


class Tls:
    """Certificate, key and CA of this process, from a folder made by ``snailps tls init``.

    ConfigError: a file is missing, the files do not belong together, or other users can read the
    key or change the CA.
    """

    def __init__(self, folder: str) -> None:
        paths = [Path(folder, name) for name in (CA, CERTIFICATE, KEY)]
        for path in paths:
            if not path.is_file():
                raise ConfigError(f"tls: {path} does not exist; {_where_else(Path(folder))}")
        mode = paths[0].stat().st_mode
        if mode & (stat.S_IWOTH | stat.S_IWGRP):
            raise ConfigError(
                f"tls: {paths[0]} can be changed by others (mode {stat.S_IMODE(mode):04o}), who "
                f"would decide whom this process trusts: chmod 644 {shlex.quote(str(paths[0]))}"
            )
        mode = paths[2].stat().st_mode
        if mode & (stat.S_IRWXO | stat.S_IWGRP):
            raise ConfigError(
                f"tls: {paths[2]} can be read or changed by others (mode "
                f"{stat.S_IMODE(mode):04o}): chmod 600 {shlex.quote(str(paths[2]))}"
            )
        self._certificate = paths[1]
        self._server = _context(ssl.PROTOCOL_TLS_SERVER, paths)
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT, paths)
        self._lock = threading.Lock()
        self._relay: TlsRelay | None = None
        self._checked: tuple[str, float] | None = None

    def listening(self, listener: socket.socket) -> TlsRelay:
        """Make a relay to accept from instead of `listener`, which the relay then owns."""
        refusal = ProtocolError("this port speaks TLS only: set tls (docs/security.md)", "tls")
        return TlsRelay(self._server, listener, encode_frame(error_frame(refusal)))

    def encrypted(self, sock: socket.socket, limit_s: float) -> ssl.SSLSocket:
        """Encrypt a connected socket: both sides check certificates.  ssl.SSLError: the peer has no
        TLS, or another CA."""
        sock.settimeout(limit_s)
        return self._client.wrap_socket(sock)

    @staticmethod
    def refusal(error: OSError) -> str:
        """Say why a handshake of TLS failed; empty if the peer has only closed, or it is no TLS."""
        is_refusal = isinstance(error, ssl.SSLError) and not isinstance(error, CLOSED)
        return words(error) if is_refusal else ""

    def plain(self, sock: ssl.SSLSocket, address: Address) -> socket.socket:
        """Have an encrypted connection relayed, and return its plain end."""
        with self._lock:
            if self._relay is None:
                self._relay = TlsRelay(self._client)
            return self._relay.adopt(sock, address)

    def check(self) -> tuple[str, float]:
        """Return the name in this process's certificate, and its end, seconds since 1970.

        ConfigError: no peer would accept it: it is of another CA, not valid now, or not valid for
        both sides of a connection.
        """
        if self._checked is not None:
            return self._checked
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self._client.wrap_bio(back, there)
        server = self._server.wrap_bio(there, back, server_side=True)
        try:
            for _ in range(HANDSHAKE_STEPS):
                for side in (client, server):
                    with contextlib.suppress(ssl.SSLWantReadError):
                        side.do_handshake()
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", "") or error.reason or str(error)
            raise ConfigError(
                f"tls: no member of this cluster will accept {self._certificate}: {why}. Make "
                f"another one with the cluster's CA ('snailps tls init'), and check the clock"
            ) from None
        certificate: dict[str, Any] = client.getpeercert() or {}
        names = {key: value for part in certificate.get("subject", ()) for key, value in part}
        ends = float(ssl.cert_time_to_seconds(certificate["notAfter"]))
        self._checked = names.get("commonName", "?"), ends
        return self._checked

    def close(self) -> None:
        """End the relay, after sending what is queued."""
        with self._lock:
            relay = self._relay
        if relay is not None:
            relay.close()


def _where_else(folder: Path) -> str:
    """Say what to name instead of a folder that has no node's files."""
    nodes = sorted(path.parent for path in folder.glob(f"*/{CERTIFICATE}"))
    if nodes or (folder / CA_KEY).exists():
        node = nodes[0] if nodes else folder / "node1"
        return f"name the folder of a node, e.g. {node}"
    return f"'snailps tls init' makes {CA}, {CERTIFICATE} and {KEY}"


def _context(protocol: ssl._SSLMethod, paths: list[Path]) -> ssl.SSLContext:
    ca, certificate, key = (os.fspath(path) for path in paths)
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
    try:
        context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls: {ca} has no certificate of a CA: {error}") from None
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"tls: {certificate} and {key} are not a certificate and its key: {error}"
        ) from None
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # sessions are never resumed
    return context


def _no_password() -> str:
    raise ValueError("the key needs a password, and a process of a cluster cannot ask for one")
