"""What the HTTP servers of a process share: metrics, and the page.

connection -> room for one more? -> a thread that answers, else closed
Host header -> host_of -> name or address
"""

from __future__ import annotations

import logging
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

log = logging.getLogger(__name__)


class BoundedServer(ThreadingHTTPServer):
    """Answers at most `most` connections at a time, each in a thread."""

    block_on_close = False

    def __init__(
        self, host: str, port: int, handler: type[BaseHTTPRequestHandler], most: int
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.room = threading.BoundedSemaphore(most)
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        """Skip the look-up of the host's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.socket.getsockname()[:2]

    def has_room(self) -> bool:
        """Take a place for one more connection; False: it is to be closed."""
        return self.room.acquire(blocking=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.has_room():
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can be started
            self.room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request of %s failed", client_address, exc_info=True)


def host_of(header: str) -> str:
    """The host of a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]
