"""Records of a run for programs: a line of JSON each, see `json_log` in docs/settings.md.

Status -> JsonLog -> file
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from snailps.errors import ConfigError
from snailps.node.status import Status

log = logging.getLogger(__name__)

PHASES = ("restoring", "survey", "loading", "training", "exporting")
"""In others there is nothing to record."""
_LEFT_OUT = ("nodes", "events")
"""Of a status: what would be long, and the same again, in each record."""


class JsonLog:
    """Writes records to a file.

    Parameters
    ----------
    path : str
        Empty: nothing is written.
    interval_s : float
        Between two records.

    Raises
    ------
    ConfigError
        The file cannot be written.
    """

    def __init__(self, path: str, interval_s: float) -> None:
        self._interval_s = interval_s
        self._file: TextIO | None = None
        self._at = 0.0
        self._seen: object = None
        try:
            if path:
                self._file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 - see close
        except OSError as error:
            raise ConfigError(
                f"json_log: cannot write {path}: {error.strerror}; name a file in a folder that "
                "is there"
            ) from None

    def write_if_due(self, news: object, status: Callable[[], Status], now: float) -> None:
        """Writes a record when it is time to, or `news` is another object than the last time."""
        if self._file is not None and (now >= self._at or news is not self._seen):
            self._at, self._seen = now + self._interval_s, news
            self.write(status())

    def write(self, status: Status) -> None:
        """Writes a record, where there is a log."""
        if self._file is None:
            return
        record = {key: value for key, value in status.items() if key not in _LEFT_OUT}
        try:
            self._file.write(json.dumps(_finite({"time": time.time(), **record})) + "\n")
            self._file.flush()
        except OSError as error:
            log.error("json_log: cannot write: %s; no more records", error.strerror)
            self._file = None

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _finite(value: Any) -> Any:
    """The same with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
