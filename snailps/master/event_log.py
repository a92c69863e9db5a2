"""The run's events, in words for its user: who joined, who was lost, what was done about it.

    parts of the core -> Outbox.happened -> EventLog -> the status; facts of the journal

Holds the newest `EVENTS_MAX` events, for the page and the end panel; the process's log has more,
for operators. `now` is monotonic seconds.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable

from snailps.master.effects import Fact, Outbox, StatusEvent
from snailps.node.status import EVENTS_MAX, EventStatus

log = logging.getLogger("snailps.events")
"""Events with their fields, for logs that programs read."""
log.setLevel(logging.CRITICAL)
_KEPT = {"joined", "lost", "replaced", "left", "moved", "master", "warning"}
"""Kinds that the journal keeps; checkpoints may be very many, and their folder lists them."""


class EventLog:
    def __init__(
        self, out: Outbox, now: float, wall_s: float = 0.0, facts: Iterable[Fact] = ()
    ) -> None:
        # seconds since 1970 at monotonic time 0
        self._out, self._begun, self._wall_s = out, now, wall_s
        self._events: deque[EventStatus] = deque(maxlen=EVENTS_MAX)
        self.counts: Counter[str] = Counter()  # events by kind
        for fact in facts:
            if fact.kind == "event":
                data = fact.data
                at_s = float(data["at"]) - wall_s - now
                self._add(at_s, StatusEvent(data["kind"], str(data["who"]), str(data["text"])))
                self.counts = Counter(data["counts"])  # the journal has the newest events only

    def take(self, happened: Iterable[StatusEvent], now: float) -> None:
        for event in happened:
            bad = event.kind in ("lost", "warning")
            fields = {"event": event.kind, "who": event.who}
            log.log(logging.WARNING if bad else logging.INFO, "%s", event.text, extra=fields)
            self._add(now - self._begun, event)
            if event.kind in _KEPT:
                at = round(self._wall_s + now, 3)
                told = {"at": at, "kind": event.kind, "who": event.who, "text": event.text}
                self._out.note("event", {**told, "counts": dict(self.counts)})

    def _add(self, at_s: float, event: StatusEvent) -> None:
        self.counts[event.kind] += 1
        self._events.append(
            {"at_s": round(at_s, 3), "kind": event.kind, "who": event.who, "text": event.text}
        )

    def listed(self) -> list[EventStatus]:
        return list(self._events)
