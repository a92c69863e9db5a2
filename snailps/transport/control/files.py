"""Files of one process for the others of its cluster: a server, and the reading client.

    FileServer: add(path) -> number      ReadFile -> os.pread -> Content
    RemoteFile: read(start, stop) -> ReadFile -> Content -> bytes

The server limits the bytes under way to all peers; further requests wait.  Must not know what the
bytes mean.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections import deque
from collections.abc import Callable

from snailps.config.addresses import Address
from snailps.errors import (
    ConnectionLost,
    DataError,
    ProtocolError,
    RemoteError,
    SnailError,
    WaitTimeout,
)
from snailps.transport import messages
from snailps.transport.control.client import ask
from snailps.transport.control.server import ControlServer, Peer, Reply
from snailps.transport.handshake import Channel, Role
from snailps.transport.security.trust import OPEN, Trust
from snailps.transport.sockets import Listener, dial, is_there, show

log = logging.getLogger(__name__)

CLOSE_S = 5.0
"""How long the end waits for a read of a disk under way."""
READ_BYTES_MAX = 4 << 20
"""Most bytes of one request."""
UNDER_WAY_BYTES_MAX = 256 << 20
"""Most bytes that wait to be sent, to all peers together."""
STEP_S = 0.1
REACH_S = 10.0
"""How long to try to reach a process, unless its machine refuses the connection."""


class FileServer:
    """Serve files to peers with the secret, in a thread of its own; owns `listener`."""

    def __init__(self, listener: Listener, trust: Trust = OPEN) -> None:
        self._files: dict[str, tuple[int, int]] = {}  # number -> descriptor, bytes
        self.address: Address = listener.getsockname()[:2]
        self._read = -1
        """Descriptor of the file that is being read; -1 after that file was removed."""
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Peer, messages.ReadFile, Reply]] = deque()
        self._closing = threading.Event()
        self._server = ControlServer(
            listener,
            role=Role.DRIVER,
            trust=trust,
            job=0,
            on_message=self._on_message,
            on_lost=lambda peer, why: None,
            on_pulse=lambda hello, sock: sock.close(),
        )
        self._thread = threading.Thread(target=self._serve, name="snailps-files", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the server serves; a bug may have ended it."""
        return self._thread.is_alive()

    def add(self, path: str) -> tuple[str, int]:
        """Serve a file, also after its name is removed; return (number, bytes).  DataError: it
        cannot be opened."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DataError(f"cannot open {path}: {error.strerror}") from error
        number, size = secrets.token_hex(8), os.fstat(descriptor).st_size
        with self._lock:
            self._files[number] = descriptor, size
        return number, size

    def remove(self, number: str) -> None:
        """Stop serving a file; idempotent."""
        with self._lock:
            descriptor, _ = self._files.pop(number, (-1, 0))
            if descriptor == self._read:
                self._read = -1  # the thread that reads closes it
            elif descriptor >= 0:
                os.close(descriptor)

    def close(self) -> None:
        """End the thread, connections and files; does not wait for a hanging read of a disk."""
        self._closing.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.warning("a read of served data has not ended within %.0f s", CLOSE_S)
        for number in list(self._files):
            self.remove(number)

    def _serve(self) -> None:
        try:
            while not self._closing.is_set():
                self._server.step(STEP_S)
                while self._waiting and self.under_way() < UNDER_WAY_BYTES_MAX:
                    peer, message, reply = self._waiting.popleft()
                    if peer in self._server.peers:
                        reply(self._answer(message))
        except Exception:
            log.exception("this process no longer serves its data")
        finally:
            self._server.close()

    def under_way(self) -> int:
        return sum(peer.out.size for peer in self._server.peers)

    def _on_message(self, peer: Peer, message: messages.Message, reply: Reply | None) -> None:
        if not isinstance(message, messages.ReadFile) or reply is None:
            raise ProtocolError(f"this process serves files, and no {type(message).__name__}")
        if peer.hello is None or peer.hello.role not in (Role.WORKER, Role.MASTER):
            raise ProtocolError("ReadFile is for workers and masters to say")
        if peer.out.size or any(waiting is peer for waiting, _, _ in self._waiting):
            raise ProtocolError("ReadFile before the answer to the last one was read")
        if message.stop - message.start > READ_BYTES_MAX:
            raise ProtocolError(f"ReadFile of more than {READ_BYTES_MAX:,} bytes")
        self._waiting.append((peer, message, reply))

    def _answer(self, message: messages.ReadFile) -> messages.Message | SnailError:
        with self._lock:
            descriptor, size = self._files.get(message.file, (-1, 0))
            if descriptor < 0:
                return DataError(
                    "the Python process that had the data serves it no longer: its fit or run has "
                    "ended there"
                )
            if not message.start <= message.stop <= size:
                return DataError(f"expected bytes of 0 to {size:,}, got {message.stop:,}")
            self._read = descriptor  # `remove` does not wait for the disk
        try:
            data = os.pread(descriptor, message.stop - message.start, message.start)
        except OSError as error:
            return DataError(f"cannot read the data: {error.strerror}")
        finally:
            with self._lock:
                if self._read != descriptor:  # it was removed meanwhile
                    os.close(descriptor)
                self._read = -1
        if len(data) < message.stop - message.start:
            return DataError("the file with the data became shorter")
        return messages.Content(data)


class RemoteFile:
    """A file of a `FileServer`: one connection, made for the first read, shared by threads.

    `limit_s` bounds one read; `give_up()`: True once this process ends.
    """

    def __init__(
        self,
        address: Address,
        number: str,
        *,
        role: Role,
        trust: Trust = OPEN,
        limit_s: float = 60.0,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._address, self._number = address, number
        self._role, self._trust = role, trust
        self._limit_s, self._give_up = limit_s, give_up
        self._sock: socket.socket | None = None
        self._was_reached = False
        self._lock = threading.Lock()

    def read(self, start: int, stop: int) -> bytes:
        """Bytes from `start` to before `stop`.

        DataError: the process is gone, unreachable, or has no such file.  ProtocolError: another
        secret, or no certificate.
        """
        message = messages.ReadFile(self._number, start, stop)
        with self._lock:
            had = self._sock is not None
            try:
                return self._asked(message)
            except ConnectionLost:
                if not had:
                    raise self._gone() from None
            try:  # a connection may break for reasons of the network
                return self._asked(message)
            except ConnectionLost:
                raise self._gone() from None

    def close(self) -> None:
        """Close the connection; a read opens another one."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def _asked(self, message: messages.ReadFile) -> bytes:
        sock = self._sock = self._sock or self._dialled()
        try:
            answer = ask(sock, message, self._limit_s)
            self._was_reached = True
        except RemoteError as error:
            self.close()
            raise DataError(str(error)) from None
        except TimeoutError:
            self.close()
            raise DataError(
                f"the Python process that has the data ({show(self._address)}) has not answered "
                f"for {self._limit_s:g} s: is it stopped or very busy?"
            ) from None
        except OSError as error:
            self.close()
            raise ConnectionLost(str(error)) from None
        assert isinstance(answer, messages.Content)
        return answer.blob

    def _dialled(self) -> socket.socket:
        def is_over() -> bool:  # asked after an attempt that failed
            return self._give_up() or not is_there(self._address)

        try:
            return dial(
                self._address,
                Channel.CONTROL,
                self._role,
                peer_name="the Python process that has the data",
                limit_s=min(REACH_S, self._limit_s),
                trust=self._trust,
                give_up=is_over,
            )
        except (WaitTimeout, ConnectionLost) as error:
            if not is_there(self._address):
                raise self._gone() from None
            if self._was_reached:
                raise DataError(f"{error}. All processes of the cluster read from it") from None
            raise self._unreachable() from None

    def _gone(self) -> DataError:
        if not self._was_reached:
            return self._unreachable()
        return DataError(f"the Python process that has the data ({show(self._address)}) has ended")

    def _unreachable(self) -> DataError:
        """The file server never answered: its address may differ as seen from this host."""
        return DataError(
            f"the Python process that has the data cannot be reached at {show(self._address)}: it "
            "has ended, or a firewall, NAT or a container is in between. Say where it listens: "
            "snailps.connect(..., advertise_addr=, listen_addr=, port_range=)"
        )
