"""Serves the page over HTTP: files of this package, and JSON; read only.

    GET /                 page.html            GET /api/runs           the runs that can be shown
    GET /page.css, .js    as they are          GET /api/run?run=&after= a run's newest picture

Addresses on the page are relative, so that a proxy may serve it below any path.

Owns the listening socket, a bounded number of threads, and the headers.  `Watcher` makes pictures,
`Access` decides who may read.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from snailps.errors import ClusterError
from snailps.monitor.access import Access, check_token
from snailps.monitor.picture import packed, plain
from snailps.monitor.static_files import SCRIPTS, static
from snailps.monitor.watcher import Ending, ShownRun, Watcher
from snailps.node.http_server import BoundedServer

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 32
"""Connections at a time.  A new one replaces the connection that has been idle longest."""
WATCHERS_MAX = 16
"""Runs watched at a time.  A new one replaces the run that nobody has looked at for longest."""
HOLD_S = 8.0
"""How long a request may wait for a newer picture."""
SILENT_S = 15.0
"""A connection without a complete request for this long is closed."""
MAKE_ROOM_S = 1.0
"""How long a new connection waits for an idle one to be closed."""
FORGET_S = 60.0
"""A run that nobody has looked at for this long is no longer watched."""
_KINDS = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_NOTHING = HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"There is nothing here.\n"


class PageServer:
    """Serves the page of one or more runs.

    `port` 0 takes any free port; each request needs the `token`.  `runs()` lists the runs that can
    be shown, newest first, and is called from several threads; `ending(run)` says how a run ended,
    None while that is not known.
    """

    def __init__(
        self,
        host: str,
        port: int,
        runs: Callable[[], list[ShownRun]],
        *,
        token: str,
        ending: Callable[[ShownRun], Ending | None] = lambda run: None,
    ) -> None:
        check_token(token)
        self._runs, self._ending = runs, ending
        self._watchers: dict[str, Watcher] = {}
        self._lock = threading.Lock()
        try:
            self.server = _HttpServer(host, port, self)
        except OSError as error:
            raise ClusterError(
                f"the page cannot listen on {host}:{port}: {error.strerror}; name another port "
                "with --listen, or port 0 for any free one"
            ) from None
        self.access = Access(host, self.server.server_address[1], token)
        self._thread = threading.Thread(
            target=self.server.serve_forever, args=(0.05,), name="snailps-page", daemon=True
        )

    @property
    def port(self) -> int:
        return self.access.port

    @property
    def url(self) -> str:
        """The address to open in a browser, with the token."""
        host = self.access.host
        if host in ("0.0.0.0", "::", ""):
            host = socket.gethostname()
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self.port}/?token={self.access.token}"

    def start(self) -> None:
        self._thread.start()

    def close(self, why: str = "", grace_s: float = 0.0) -> None:
        """Stop serving; with `why`, give open pages `grace_s` seconds to fetch that reason."""
        with self._lock:
            watchers = list(self._watchers.values())
        looked_at = [watcher for watcher in watchers if watcher.idle_s() < FORGET_S]
        if why and looked_at:
            for watcher in looked_at:
                watcher.end(why)
            threading.Event().wait(grace_s)
        self.server.shutdown()
        self.server.server_close()
        for watcher in watchers:
            watcher.close(0.2)

    def watch(self, run: ShownRun) -> Watcher:
        """Return the watcher of a run; a new one if there is none, or for another address."""
        with self._lock:
            earlier = self._watchers.get(run.name)
            if earlier is not None and earlier.run.address == run.address:
                return earlier
            self._forget()
            watcher = self._watchers[run.name] = Watcher(run, ending=self._ending)
            watcher.start()
        if earlier is not None:
            earlier.close(0.0)
        return watcher

    def _forget(self) -> None:
        """Close watchers that nobody looks at, and make room for one more."""
        by_age = sorted(self._watchers, key=lambda name: -self._watchers[name].idle_s())
        surplus = max(0, len(by_age) - WATCHERS_MAX + 1)
        for rank, name in enumerate(by_age):
            if rank < surplus or self._watchers[name].idle_s() > FORGET_S:
                self._watchers.pop(name).close(0.0)

    # --- answers, in the threads of requests ---------------------------------------------------

    def answer(self, path: str, query: Mapping[str, str]) -> tuple[int, str, bytes]:
        # A proxy may serve the page below a path of its own, with or without removing that path.
        folder, _, name = path.rpartition("/")
        name = name or "page.html"
        if folder.endswith("/api"):
            return self._answer_api(name, query)
        if name in ("page.html", "page.css", "icon.svg", *SCRIPTS):
            kind = _KINDS[name.rpartition(".")[2]]
            return HTTPStatus.OK, f"{kind}; charset=utf-8", static(name)
        return _NOTHING

    def _answer_api(self, name: str, query: Mapping[str, str]) -> tuple[int, str, bytes]:
        if name == "runs":
            return _json(plain({"runs": [_listed(run) for run in self._runs()]}))
        return self._picture(query) if name == "run" else _NOTHING

    def _picture(self, query: Mapping[str, str]) -> tuple[int, str, bytes]:
        wanted = query.get("run", "")
        with self._lock:
            watcher = self._watchers.get(wanted)
        if watcher is None:
            runs = self._runs()
            run = next((run for run in runs if run.name == wanted), None)
            if run is None and not wanted and runs:
                run = runs[0]
            if run is None:
                text = "no such run" if wanted else "no run"
                return _json({"state": "none", "why": text})
            watcher = self.watch(run)
        after = query.get("after", "")[:18]
        body = watcher.picture(int(after) if after.isdecimal() else 0, HOLD_S)
        return HTTPStatus.OK, "application/json", body


def _listed(run: ShownRun) -> dict[str, Any]:
    return {
        "name": run.name,
        "title": run.title,
        "address": run.address,
        "output": run.output,
    }


def _json(value: Any) -> tuple[int, str, bytes]:
    return HTTPStatus.OK, "application/json", packed(value)


class _HttpServer(BoundedServer):
    """An HTTP server that limits the time of a request, but not of its answer."""

    def __init__(self, host: str, port: int, page: PageServer) -> None:
        self.page = page
        super().__init__(host, port, _Handler, CONNECTIONS_MAX, SILENT_S)

    def finds_room(self) -> bool:
        """Make room for a connection: if there is none, close the one that was idle longest."""
        if super().finds_room():
            return True
        return self.hang_up(1) > 0 and self.room.acquire(timeout=MAKE_ROOM_S)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "snailps"
    sys_version = ""
    timeout = SILENT_S
    server: _HttpServer

    def handle_one_request(self) -> None:
        self.server.will_ask(self.connection)
        super().handle_one_request()

    def parse_request(self) -> bool:
        is_right = super().parse_request()
        if self.server.has_asked(self.connection):
            return is_right
        self.close_connection = True
        return False

    def do_GET(self) -> None:
        self._respond(with_body=True)

    def do_HEAD(self) -> None:
        self._respond(with_body=False)

    def _respond(self, *, with_body: bool) -> None:
        page = self.server.page
        try:
            parts = urlsplit(self.path)
        except ValueError:
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        token = query.pop("token", "")
        refused = page.access.judge(self.headers, token)  # type: ignore[arg-type]
        if refused is not None:
            code, text = refused
            self._send(code, "text/plain; charset=utf-8", f"{text}\n".encode(), with_body)
        elif token and parts.path.endswith("/"):
            # Redirect to an address without the token: browsers keep addresses in their history.
            self.send_response(HTTPStatus.SEE_OTHER)
            run = f"?{urlencode({'run': query['run']})}" if "run" in query else ""
            self.send_header("Location", f"./{run}")
            self.send_header("Set-Cookie", page.access.cookie())
            self._end(0)
        else:
            try:
                code, kind, body = page.answer(parts.path, query)
            except Exception:
                log.exception("cannot answer %s", parts.path)
                code, kind = 500, "text/plain; charset=utf-8"
                body = b"The page failed to answer; its log has the reason.\n"
            self._send(code, kind, body, with_body)

    def _send(self, code: int, kind: str, body: bytes, with_body: bool) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self._end(len(body))
        if with_body:
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

    def _end(self, size: int) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer requests that the base class refuses, without repeating any of their text."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self._send(code, "text/plain; charset=utf-8", b"This page is only read.\n", True)

    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)
