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
"""Phases with records."""
_LEFT_OUT = ("nodes", "events")
"""Fields of a status that would be long and repeated in each record."""


class JsonLog:
    """Writes records to a file, if `path` is not empty; ConfigError if it cannot be written."""

    def __init__(self, path: str, interval_s: float) -> None:
        self._interval_s = interval_s  # between two records
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
        """Write a record when it is due, or when `news` is another object than last time."""
        if self._file is not None and (now >= self._at or news is not self._seen):
            self._at, self._seen = now + self._interval_s, news
            self.write(status())

    def write(self, status: Status) -> None:
        """Write a record, where there is a log."""
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
        if self._file is not None:
            self._file.close()
            self._file = None


def _finite(value: Any) -> Any:
    """The value with None for non-finite numbers."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
