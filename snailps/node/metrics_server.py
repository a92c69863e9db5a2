"""Serves a process's metrics to Prometheus: ``GET /metrics``, in its own threads.

    GET /metrics -> collect() -> render -> text; without a request nothing is done

At most `ANSWERS_MAX` requests are answered at once, each for at most `LIMIT_S` seconds. The metrics
are public to all that reach the address: numbers, names of processes, no data. The Host is checked,
against pages in a browser that rebind a name to this machine.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any

from snailps.config.addresses import format_addr, parse_addr
from snailps.errors import SnailError
from snailps.node.metrics import CONTENT_TYPE, Sample, render

log = logging.getLogger(__name__)

PATH = "/metrics"
ANSWERS_MAX = 4
LIMIT_S = 10.0
"""Limit of a whole request; Prometheus gives up after as long."""
STILL_S = 3.0
"""Limit of a connection's silence."""
POLL_S = 0.2

Collect = Callable[[], Iterable[Sample]]


class MetricsServer:
    """Serves metrics at `addr`, from the constructor to `close`. Port 0 or none: any free one; a
    taken port is replaced, as processes may share a host and a file. OSError: none can listen."""

    def __init__(self, addr: str, collect: Collect) -> None:
        # `collect` runs in any thread; a `SnailError`: no samples just now
        host, port = parse_addr(addr, "metrics_addr", port_optional=True)
        try:
            self._http = _Http(host, port, collect)
        except OSError:
            if not port:
                raise
            self._http = _Http(host, 0, collect)
            log.warning("metrics_addr: port %d is taken, another one is used", port)
        shown = self._http.server_address[:2]
        self.address = format_addr(str(shown[0]), int(shown[1]))
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(POLL_S,), name="snailps-metrics", daemon=True
        )
        self._thread.start()
        log.info("metrics at http://%s%s", self.address, PATH)

    def close(self) -> None:
        """End the thread and close all connections."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def serve_metrics(addr: str, collect: Collect) -> MetricsServer | None:
    """Serve metrics, if there is an address; where that fails, warn and let the run continue."""
    if not addr:
        return None
    try:
        return MetricsServer(addr, collect)
    except (OSError, SnailError) as error:
        log.warning("no metrics: cannot listen on metrics_addr %s: %s", addr, error)
        return None


class _Http(ThreadingMixIn, HTTPServer):
    """Listens; answers each request in a thread, a few at once."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, host: str, port: int, collect: Collect) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.collect = collect
        self._free = threading.BoundedSemaphore(ANSWERS_MAX)
        self._open: dict[socket.socket, float] = {}
        super().__init__((host, port), _Handler)
        self.is_local = _is_loopback(str(self.server_address[0]))

    def server_bind(self) -> None:
        """Skip the look-up of the host's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a connection, or close it at the limit."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._open[request] = time.monotonic()
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

    def _forget(self, request: socket.socket) -> None:
        if self._open.pop(request, None) is not None:
            self._free.release()

    def service_actions(self) -> None:
        """End connections that exceed their limit."""
        now = time.monotonic()
        for request, since in list(self._open.items()):
            if now - since > LIMIT_S:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a broken connection."""
        log.debug("metrics: a request failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    timeout = STILL_S
    server_version, sys_version = "snailps", ""

    def do_GET(self) -> None:
        if self.server.is_local and not _is_loopback(_host_of(self.headers.get("Host", ""))):
            self._say(403, "this address is of this machine alone: ask for it by 127.0.0.1\n")
        elif self.path.partition("?")[0] != PATH:
            self._say(404, f"the metrics are at {PATH}\n")
        else:
            try:
                body = render(self.server.collect())
            except SnailError as error:
                self._say(503, f"{error}\n")
            else:
                self._answer(200, CONTENT_TYPE, body)

    def _say(self, code: int, text: str) -> None:
        self._answer(code, "text/plain; charset=utf-8", text.encode())

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def _host_of(header: str) -> str:
    """The host of a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _is_loopback(host: str) -> bool:
    if host.lower() in ("localhost", ""):  # HTTP 1.0 needs no Host, and browsers send one
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
