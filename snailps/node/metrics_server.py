"""Serves a process's metrics to Prometheus: ``GET /metrics``, in its own threads.

    GET /metrics -> collect() -> render -> text; without a request nothing is done

At most `ANSWERS_MAX` requests are answered at once, each for at most `LIMIT_S` seconds. The metrics
are public to all that reach the address: numbers, names of processes, no data. The Host is checked,
against pages in a browser that rebind a name to this machine.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler
from typing import Any

from snailps.config.addresses import format_addr, host_of, parse_addr
from snailps.errors import SnailError
from snailps.node.http_server import BoundedServer
from snailps.node.metrics import CONTENT_TYPE, Sample, render
from snailps.transport.security.trust import is_loopback

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


class _Http(BoundedServer):
    """Times whole requests."""

    def __init__(self, host: str, port: int, collect: Collect) -> None:
        self.collect = collect
        super().__init__(host, port, _MetricsHandler, ANSWERS_MAX, LIMIT_S)
        self.is_local = is_loopback(str(self.server_address[0]))


class _MetricsHandler(BaseHTTPRequestHandler):
    server: _Http
    timeout = STILL_S
    server_version, sys_version = "snailps", ""

    def do_GET(self) -> None:
        host = host_of(self.headers.get("Host", ""))  # HTTP 1.0 needs none, and browsers send one
        if self.server.is_local and host and not is_loopback(host):
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
