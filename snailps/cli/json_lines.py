"""Owns the format of structured logs (`log_format: json`): a line on standard error is an object.

    log records ──────────────────────────> JsonFormatter ┐
    messages, prints, tracebacks -> JsonLines (a stream) ─┴> standard error, a line at a time

Keys: `time` (ISO 8601, UTC), `level`, `process` (``server 2``), `host`, `pid`, `message`; then
further fields of a record, such as `exception`.  Must not know settings or processes.
"""

from __future__ import annotations

import atexit
import io
import json
import logging
import os
import socket
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, TextIO

from snailps.node.phrases import OWN_ERROR
from snailps.outward import outward, without_secrets

OWN = "snailps: "
EVENTS = "snailps.events"
"""Logger of events: in JSON lines records with fields; text logs have other lines for them."""
_STANDARD = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})
_REQUIRED = ("time", "level", "process", "host", "pid", "message")


class Identity:
    def __init__(self, name: Callable[[], str]) -> None:
        self.name = name
        self._host = socket.gethostname()

    def line(self, level: str, message: str, time_s: float | None = None, **more: Any) -> str:
        """Write one JSON object; `more` cannot replace the usual keys."""
        moment = datetime.fromtimestamp(time.time() if time_s is None else time_s, timezone.utc)
        record = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": level,
            "process": self.name(),
            "host": self._host,
            "pid": os.getpid(),
            "message": message,
        }
        return json.dumps(
            outward({**record, **more, **record}, without_secrets),
            default=lambda value: without_secrets(str(value)),
        )


class JsonFormatter(logging.Formatter):
    """Formats a log record as one JSON object, with its `extra` fields and its exception."""

    def __init__(self, identity: Identity) -> None:
        super().__init__()
        self._identity = identity

    def format(self, record: logging.LogRecord) -> str:
        more = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        more["logger"] = record.name
        if record.exc_info:
            more["exception"] = self.formatException(record.exc_info)
        level = record.levelname.lower()
        return self._identity.line(level, record.getMessage(), record.created, **more)


class JsonLines(io.TextIOBase):
    """A text stream that writes each line as a JSON object.

    Lines that are such objects already, because a child process wrote them, pass unchanged.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, stream: TextIO, identity: Identity) -> None:
        self._stream, self._identity = stream, identity
        self._lock = threading.Lock()
        self._begun = ""

    def write(self, text: str) -> int:
        """Write the lines that `text` completes; an incomplete line waits for its end."""
        if not isinstance(text, str):
            raise TypeError(f"expected text, got {type(text).__name__}")
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
            for line in lines:
                if line.strip():
                    self._stream.write(self._object(line) + "\n")
            if lines:
                self._stream.flush()
        return len(text)

    def flush(self) -> None:
        """Flush the complete lines; an incomplete one stays, as half an object is no JSON."""
        self._stream.flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        """Return False, so that no progress display is drawn between the objects."""
        return False

    def fileno(self) -> int:
        return self._stream.fileno()

    def end(self) -> None:
        """Write the incomplete last line, if there is one."""
        if self._begun:
            self.write("\n")

    def _object(self, line: str) -> str:
        line = line.rstrip()
        if is_object(line):
            return line
        if line.startswith(OWN_ERROR):
            return self._identity.line("error", line.removeprefix(OWN_ERROR), fatal=True)
        return self._identity.line("info", line.removeprefix(OWN))


def is_object(line: str) -> bool:
    """Whether a line is a JSON object with all keys of a log line."""
    if not line.startswith("{"):
        return False
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, dict) and all(key in record for key in _REQUIRED)


_identity: Identity | None = None
"""Identity of this process; None while its logs are text."""
_errors: TextIO


def begin(name: str, *, stdout: bool = False) -> None:
    """Turn this process's standard error, and with `stdout` its standard output, to JSON lines."""
    global _identity, _errors
    if _identity is None:
        _identity, _errors = Identity(lambda: name), sys.stderr
        sys.stderr = _wrapped(sys.stderr, _identity)
        sys.excepthook = _report
        threading.excepthook = _report_of_thread
    if stdout and not isinstance(sys.stdout, JsonLines):
        sys.stdout = _wrapped(sys.stdout, _identity)
    call(lambda: name)


def call(name: Callable[[], str]) -> None:
    """Set this process's name in its lines from now on; its number is known only after joining."""
    if _identity is not None:
        _identity.name = name


def handler() -> logging.Handler | None:
    """Make a handler that writes log records as JSON; None while logs are text."""
    if _identity is None:
        return None
    json_handler = logging.StreamHandler(_errors)
    json_handler.setFormatter(JsonFormatter(_identity))
    logging.getLogger(EVENTS).setLevel(logging.NOTSET)
    return json_handler


def _wrapped(stream: TextIO, identity: Identity) -> Any:
    lines = JsonLines(stream, identity)
    atexit.register(lines.end)
    return lines


def _report(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    """Write an uncaught exception as one object."""
    assert _identity is not None
    text = "".join(traceback.format_exception(kind, error, trace))
    message = f"{kind.__name__}: {error}"
    line = _identity.line("error", message, fatal=True, exception=text)
    _errors.write(line + "\n")
    _errors.flush()


def _report_of_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is not SystemExit:
        _report(args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)
