"""Curves of a run, with a bounded number of points.

    Status, history of the master -> Series.add, Series.replace -> columns of points

A full series drops every second point and doubles the interval, so that it always covers the whole
run.  No clocks: times are those of the points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from snailps.monitor.picture import plain
from snailps.node.status import Status

POINTS_MAX = 512
ANOTHER_S = 5.0
"""A master that began this much later is another one; answers come sooner than that."""
NAMES = ("at_s", "progress", "units_per_s", "loss", "cpu", "rss_bytes")
"""Columns: seconds since the master began, share of the pass, units/s, loss, cores, bytes."""


class Series:
    def __init__(self, points_max: int = POINTS_MAX) -> None:
        self._points_max = points_max
        self._points: list[tuple[float | None, ...]] = []
        self._gap_s = self._begun_s = 0.0

    def __len__(self) -> int:
        return len(self._points)

    def add(self, status: Status, begun_s: float = 0.0) -> None:
        """Add a status of the training; ignore other phases.

        `begun_s` is the start of its master on any steady clock.  With another master times count
        anew: earlier points move below 0.
        """
        if status["phase"] != "training":
            return
        at_s = float(status["elapsed_s"])
        if not self._points:
            self._begun_s = begun_s
        elif at_s < (self._points[-1][0] or 0.0) or begun_s > self._begun_s + ANOTHER_S:
            moved, self._begun_s = self._begun_s - begun_s, begun_s
            self._points = [((point[0] or 0.0) + moved, *point[1:]) for point in self._points]
            if (self._points[-1][0] or 0.0) >= at_s:  # unknown how long ago
                self._points.clear()
                self._gap_s = 0.0
        if self._points and at_s - (self._points[-1][0] or 0.0) < self._gap_s:
            return
        loss = status["loss"]
        processes: list[Mapping[str, Any]] = [*status["nodes"], status["master"]]
        self._points.append(
            (
                at_s,
                float(status["progress"]),
                float(status["units_per_s"]),
                None if loss is None else float(loss),
                _total(processes, "cpu"),
                _total(processes, "rss_bytes"),
            )
        )
        if len(self._points) > self._points_max:
            self._points = self._points[::2]
            spans = [float(point[0] or 0.0) for point in self._points]
            self._gap_s = 0.9 * (spans[-1] - spans[0]) / (len(spans) - 1)

    def replace(self, history: Mapping[str, Sequence[Any]]) -> None:
        """Prepend the master's own history up to the first point here."""
        times = history.get("at_s") or []
        first = self._points[0][0] if self._points else None
        earlier: list[tuple[float | None, ...]] = []
        for at, at_s in enumerate(times):
            if first is not None and at_s >= first:
                break
            earlier.append((float(at_s), *(_at(history, name, at) for name in NAMES[1:])))
        self._points = [*earlier, *self._points]
        while len(self._points) > self._points_max:
            self._points = self._points[::2]

    def columns(self) -> dict[str, list[float | None]]:
        return {
            name: [plain(point[place]) for point in self._points]
            for place, name in enumerate(NAMES)
        }


def _at(history: Mapping[str, Sequence[Any]], name: str, at: int) -> float | None:
    values = history.get(name)
    return None if values is None or at >= len(values) or values[at] is None else float(values[at])


def _total(nodes: Sequence[Mapping[str, Any]], key: str) -> float | None:
    told = [node.get(key) for node in nodes if node.get("role") != "driver"]
    known = [float(value) for value in told if value is not None]
    # A partial sum would dent the curve: a new process has not reported yet.
    return sum(known) if known and len(known) == len(told) else None
