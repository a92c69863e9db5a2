"""The last lines of this process's log, for `Ask("log")`.

    logging -> LogTail -> Ask("log") -> Report

Lines have one format, independent of the log's own.
"""

from __future__ import annotations

import logging
import time
from collections import deque

from snailps.outward import outward

LINES_MAX = 200
LINE_CHARS_MAX = 2000
"""A longer line, of a user's error, is cut: an answer must stay small."""


class LogTail(logging.Handler):
    """Keeps the newest lines of the package's log, from `open` to `close`."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self._log = logging.getLogger("snailps")
        self._level = self._log.level

    def open(self) -> None:
        """Start from INFO on, also where the log itself begins at warnings."""
        self._level = self._log.level
        if self._level > logging.INFO and not self._log.propagate:
            for handler in self._log.handlers:
                handler.setLevel(max(handler.level, self._level))
            self._log.setLevel(logging.INFO)
        self._log.addHandler(self)

    def close(self) -> None:
        """Stop; the lines stay."""
        self._log.removeHandler(self)
        self._log.setLevel(self._level)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        at = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(record.created))
        line = f"{at} {record.levelname.lower()} {outward(record.getMessage())}"
        self._lines.append(line[:LINE_CHARS_MAX])

    def lines(self) -> list[str]:
        return list(self._lines)
