"""Owns the curves of a page, with a bounded number of points.

    Status, the master's own history (`RunHistory`) -> Series -> columns of the page

Must not know clocks: each point brings its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from snailps.monitor.picture import plain
from snailps.node.course import POINTS_MAX, Course
from snailps.node.status import Status

NAMES = ("at_s", "progress", "units_per_s", "loss", "cpu", "rss_bytes")
"""Columns: seconds since the master began, share of the pass, units/s, loss, cores, bytes."""


class Series(Course):
    """Curves of a page, from statuses of one master after the other."""

    def __init__(self, points_max: int = POINTS_MAX) -> None:
        super().__init__(points_max)
        self._begun_s = 0.0
        self._master: tuple[str, int] | None = None

    def add(self, status: Status, begun_s: float = 0.0) -> None:
        """Add a point from a status of the training; from other phases only note the master.

        `begun_s` is when its master started, on any steady clock (an upper bound, as answers come
        late).  Another master counts its time from its own start: earlier points move below 0.
        """
        at_s = float(status["elapsed_s"])
        before, self._master = self._master, (status["master"]["host"], status["master"]["pid"])
        if not self.points:
            self._begun_s = begun_s
        elif before == self._master and at_s >= self.points[-1][0]:
            self._begun_s = min(self._begun_s, begun_s)
        else:
            moved, self._begun_s = self._begun_s - begun_s, begun_s
            self.points = [(point[0] + moved, *point[1:]) for point in self.points]
            if self.points[-1][0] >= at_s:  # the gap between the two masters is unknown
                self.clear()
        if status["phase"] != "training" or not self.is_due(at_s):
            return
        loss = status["loss"]
        processes: list[Mapping[str, Any]] = [*status["nodes"], status["master"]]
        self.append(
            (
                at_s,
                float(status["progress"]),
                float(status["units_per_s"]),
                None if loss is None else float(loss),
                _total(processes, "cpu"),
                _total(processes, "rss_bytes"),
            )
        )

    def replace(self, history: Mapping[str, Sequence[Any]]) -> None:
        """Prepend the master's own history, up to the first point of this object."""
        times = history.get("at_s") or []
        first = self.points[0][0] if self.points else None
        earlier: list[tuple[float | None, ...]] = []
        for index, at_s in enumerate(times):
            if first is not None and at_s >= first:
                break
            earlier.append((float(at_s), *(_value(history, name, index) for name in NAMES[1:])))
        self.points = [*earlier, *self.points]
        self.thin()

    def columns(self) -> dict[str, list[float | None]]:
        return {
            name: [plain(point[place], name) for point in self.points]
            for place, name in enumerate(NAMES)
        }


def _value(history: Mapping[str, Sequence[Any]], name: str, index: int) -> float | None:
    values = history.get(name)
    if values is None or index >= len(values) or values[index] is None:
        return None
    return float(values[index])


def _total(nodes: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Sum a figure over all processes; None until each of them has reported it.

    A sum without a process that has just joined would dent the curve.
    """
    values = [node.get(key) for node in nodes if node.get("role") != "driver"]
    reported = [float(value) for value in values if value is not None]
    return sum(reported) if reported and len(reported) == len(values) else None
