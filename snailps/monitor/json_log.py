"""Writes records of a run for programs, one line of JSON each (`json_log` in docs/settings.md).

Status -> JsonLog -> lines that wait -> thread -> file
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Iterator
from functools import partial

from snailps.errors import ConfigError
from snailps.node.background import Backlog
from snailps.node.status import Status, json_text

log = logging.getLogger(__name__)

LINES_MAX = 100
"""Records that may wait for the disk, or a pipe's reader; more are dropped, and counted."""
END_S = 5.0
"""Seconds that the end of the master waits for these records to be written."""
_LEFT_OUT = ("nodes", "events")
"""Fields of a status that are long, and would repeat in each record."""


class JsonLog:
    """Writes records to a file in a thread of its own, so that a full pipe cannot stop the run.

    Raises `ConfigError` if the file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._records = self._written = 0
        self._is_behind = False
        write = partial(self._write_all, _open(path))
        self.lines: Backlog[bytes] = Backlog("snailps-json-log", write, LINES_MAX)

    def on_status(self, status: Status) -> None:
        record = {key: value for key, value in status.items() if key not in _LEFT_OUT}
        line = json_text({"time": time.time(), **record}) + "\n"
        self._records += 1
        if not self.lines.put(line.encode()) and not self._is_behind:
            self._is_behind = True
            log.warning("json_log: writing %s is too slow: records are dropped", self._path)

    def close(self) -> None:
        """Write the queued records, and log how many were lost in all."""
        self.lines.close(END_S)
        if lost := self._records - self._written:
            log.warning("json_log: %d of %d records are not in %s", lost, self._records, self._path)

    def _write_all(self, file: int | None, lines: Iterator[bytes]) -> None:
        """Write lines in the thread.  After an error in the middle of a record its remainder is
        written before the next record, so that no line is torn."""
        if file is None:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND)  # waits for a reader
        unwritten: list[bytes] = []
        has_failed = False
        for line in lines:
            unwritten.append(line)
            try:
                while unwritten:
                    unwritten[0] = unwritten[0][os.write(file, unwritten[0]) :]
                    if not unwritten[0]:
                        del unwritten[0]
                        self._written += 1
            except OSError as error:
                unwritten = [piece for piece in unwritten if piece is not line]
                if not has_failed:
                    log.error("json_log: cannot write %s: %s", self._path, error.strerror)
                has_failed = True
        os.close(file)


def _open(path: str) -> int | None:
    """Open a file for appending; None for a pipe that has no reader yet."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise ConfigError(
            f"json_log: cannot write {path}: {error.strerror}; name a file in a folder that exists"
        ) from None
    os.set_blocking(file, True)
    return file
