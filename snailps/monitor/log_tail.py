"""Keeps the last lines of this process's log, for `Ask("log")`.

    logging -> LogTail -> Ask("log") -> Report

The lines have a fixed format, whatever format the log itself has.
"""

from __future__ import annotations

import logging
import time
from collections import deque

from snailps.outward import outward

LINES_MAX = 200
LINE_CHARS_MAX = 2000
"""A longer line, such as a user's error, is cut, because an answer must stay small."""


class LogTail(logging.Handler):
    """Keeps the newest lines of the package's log, from `open` to `close`."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self._log = logging.getLogger("snailps")
        self._level = self._log.level

    def open(self) -> None:
        """Start keeping lines from level INFO on, even if the log itself begins at warnings.

        Then the other handlers get the log's level as their own, and show no more than before.
        """
        self._level = self._log.level
        if self._level > logging.INFO and not self._log.propagate:
            for handler in self._log.handlers:
                handler.setLevel(max(handler.level, self._level))
            self._log.setLevel(logging.INFO)
        self._log.addHandler(self)

    def close(self) -> None:
        """Stop keeping lines; the lines kept so far can still be read."""
        self._log.removeHandler(self)
        self._log.setLevel(self._level)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        moment = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(record.created))
        line = f"{moment} {record.levelname.lower()} {outward(record.getMessage())}"
        self._lines.append(line[:LINE_CHARS_MAX])

    def lines(self) -> list[str]:
        return list(self._lines)
