"""An HTTP server with a thread for each connection, a limited number of them, and a time limit.

    connection -> room, or closed -> thread -> handler -> answer; too slow -> shut down

Must not know what is served.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

log = logging.getLogger(__name__)


class BoundedServer(ThreadingHTTPServer):
    """Listens from the constructor on, with at most `most` connections at a time.

    A connection ends after `limit_s`, unless `has_asked` stops its timer.  The timer begins when
    the connection is accepted, and again with each `will_ask` after `has_asked`.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, host: str, port: int, handler: type[BaseHTTPRequestHandler], most: int, limit_s: float
    ) -> None:
        # A name may have addresses of one family only.  With both, IPv4: scrapers expect that.
        places = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, where = min(places, key=lambda place: place[0] != socket.AF_INET)
        self.address_family = family
        self.request_queue_size = most
        self.room = threading.BoundedSemaphore(most)
        self.limit_s = limit_s
        self._asking: dict[Any, float] = {}
        """Timed connections -> since when; the oldest first."""
        self._lock = threading.Lock()
        super().__init__(where, handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        # HTTPServer's own method asks a name server for the name of this host, which may take long.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.socket.getsockname()[:2]

    def finds_room(self) -> bool:
        return self.room.acquire(blocking=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.finds_room():
            self.shutdown_request(request)
            return
        self.will_ask(request)
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can be started
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def _forget(self, request: Any) -> None:
        self.has_asked(request)
        self.room.release()

    def will_ask(self, request: Any) -> None:
        """Start the timer of a connection, unless it runs."""
        with self._lock:
            self._asking.setdefault(request, time.monotonic())

    def has_asked(self, request: Any) -> bool:
        """Stop the timer of a connection; False: the limit has ended the connection."""
        with self._lock:
            return self._asking.pop(request, None) is not None

    def service_actions(self) -> None:
        """End connections that take too long; the base class calls it at intervals."""
        limit = time.monotonic() - self.limit_s
        with self._lock:
            late = sum(since < limit for since in self._asking.values())
        self.hang_up(late)

    def hang_up(self, count: int) -> int:
        """End up to `count` timed connections, the oldest first; their threads close them."""
        with self._lock:
            oldest = list(self._asking)[:count]
            for request in oldest:
                del self._asking[request]
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)
        return len(oldest)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request of %s failed", client_address, exc_info=True)
