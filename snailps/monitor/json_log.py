"""Records of a run for programs: a line of JSON each, see `json_log` in docs/settings.md.

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
"""Records that wait for the disk, or for the reader of a pipe; more are left out, and counted."""
END_S = 5.0
"""How long the end of the master waits for these."""
_LEFT_OUT = ("nodes", "events")
"""Fields of a status that would be long and repeated in each record."""


class JsonLog:
    """Have a thread write records to a file: a full pipe stops no run.

    Raises ConfigError if the file cannot be written.
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
            log.warning("json_log: %s takes no more for now: records are left out", self._path)

    def close(self) -> None:
        """Write what is queued, and log how many records are lost."""
        self.lines.close(END_S)
        if lost := self._records - self._written:
            log.warning("json_log: %d of %d records are not in %s", lost, self._records, self._path)

    def _write_all(self, file: int | None, lines: Iterator[bytes]) -> None:
        """In the thread: the rest of a record torn by an error precedes the next one."""
        if file is None:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND)  # waits for a reader
        left: list[bytes] = []
        has_failed = False
        for line in lines:
            left.append(line)
            try:
                while left:
                    left[0] = left[0][os.write(file, left[0]) :]
                    if not left[0]:
                        del left[0]
                        self._written += 1
            except OSError as error:
                left = [one for one in left if one is not line]
                if not has_failed:
                    log.error("json_log: cannot write %s: %s", self._path, error.strerror)
                has_failed = True
        os.close(file)


def _open(path: str) -> int | None:
    """A file to append to; None for a pipe that has no reader yet."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise ConfigError(
            f"json_log: cannot write {path}: {error.strerror}; name a file in a folder that "
            "is there"
        ) from None
    os.set_blocking(file, True)
    return file
