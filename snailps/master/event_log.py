"""Owns a run's events in a user's words, and the last lines of this process's log.

    parts of the core -> StatusEvent -> EventLog.on_event -> the status; facts of the journal
    logging -> LogTail -> Ask("log") -> Report

Keeps the newest `EVENTS_MAX` events, for the page and the end panel; the process's log has more,
for operators.  `now` is in monotonic seconds.  The lines have a fixed format, whatever format the
log itself has.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from snailps.node.status import EVENTS_MAX, EventKind, EventStatus
from snailps.outward import outward

log = logging.getLogger("snailps.events")
"""Logger of events with their fields, for logs that programs read."""
log.setLevel(logging.CRITICAL)
_IN_JOURNAL = {"joined", "lost", "replaced", "left", "moved", "master", "warning"}
"""Kinds that the journal keeps: what happened to processes, and warnings.  Not checkpoints (there
may be thousands, and their folder lists them), nor events of input, result files and restores."""
EVENT = "event"
LINES_MAX = 200
LINE_CHARS_MAX = 2000
"""A longer line, such as a user's error, is cut, because an answer must stay small."""


class EventLog:
    def __init__(
        self,
        note: Callable[[str, dict[str, Any]], None],  # a fact for the journal
        begun: float,
        wall_s: float = 0.0,  # seconds since 1970 at monotonic time 0
        earlier: Iterable[Mapping[str, Any]] = (),  # what it has noted under an earlier master
    ) -> None:
        self._note, self._begun, self._wall_s = note, begun, wall_s
        self._events: deque[EventStatus] = deque(maxlen=EVENTS_MAX)
        self.counts: Counter[str] = Counter()  # events by kind
        for data in earlier:
            at_s = float(data["at"]) - wall_s - begun
            self._add(at_s, data["kind"], str(data["who"]), str(data["text"]))
            self.counts = Counter(data["counts"])  # the journal has the newest events only

    def on_event(self, kind: EventKind, who: str, text: str, now: float) -> None:
        who, text = outward(who), outward(text)
        level = logging.WARNING if kind in ("lost", "warning") else logging.INFO
        log.log(level, "%s", text, extra={"event": kind, "who": who})
        self._add(now - self._begun, kind, who, text)
        if kind in _IN_JOURNAL:
            fact = {"at": round(self._wall_s + now, 3), "kind": kind, "who": who, "text": text}
            self._note(EVENT, {**fact, "counts": dict(self.counts)})

    def _add(self, at_s: float, kind: EventKind, who: str, text: str) -> None:
        self.counts[kind] += 1
        self._events.append({"at_s": round(at_s, 3), "kind": kind, "who": who, "text": text})

    def listed(self) -> list[EventStatus]:
        return list(self._events)


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
