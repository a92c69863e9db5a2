"""The course of a training: units, speed and loss at points in time, however long it takes.

    status of the job, once a second -> RunHistory -> at most POINTS_MAX points -> Ask("history")
    points that were added -> facts of the journal -> RunHistory of a master that takes over

When it is full, every second point is dropped and the period doubles: the points stay evenly spread
over the training, and their memory and share of the journal are bounded.
"""

from __future__ import annotations

from collections.abc import Iterable

from snailps.master.effects import Fact
from snailps.node.status import History

POINTS_MAX = 512
FIRST_S = 1.0
"""Seconds between the first points of a training."""
POINT = "point"


class RunHistory:
    def __init__(self) -> None:
        self._job = 0
        self._clear()

    def _clear(self) -> None:
        self._points: list[tuple[float, int, float, float | None]] = []
        self._period_s, self._due = FIRST_S, 0.0

    def note(
        self,
        job: int,
        at_s: float,
        units: int,
        rate: float,
        loss: float | None,
        *,
        last: bool = False,
    ) -> bool:
        """Add a point if due; whether it was. Another `job` clears; a `last` point is kept."""
        if job != self._job:
            self._job = job
            self._clear()
        if not self._points:
            self._due = at_s
        if at_s < self._due and not last:
            return False
        # From when it was due: late calls must not stretch the distance.
        self._due = max(self._due + self._period_s, at_s + self._period_s / 2)
        self._points.append((round(at_s, 3), units, round(rate, 1), loss))
        if len(self._points) > POINTS_MAX:
            # The newest one stays: it is the end of the curve.
            self._points = [*self._points[:-1:2], self._points[-1]]
            self._period_s *= 2
        return True

    def restore(self, facts: Iterable[Fact], begun_s: float) -> None:
        """Take the points of an earlier master, at times below 0; this one began at `begun_s`."""
        for fact in facts:
            if fact.kind == POINT:
                # The clock may have been set back since: later points must not wait for it.
                at_s, point = min(0.0, float(fact.data["at"]) - begun_s), fact.data
                self.note(
                    point["job"], at_s, point["units"], point["rate"], point["loss"], last=True
                )

    def told(self) -> History:
        return {
            "at_s": [point[0] for point in self._points],
            "units": [point[1] for point in self._points],
            "units_per_s": [point[2] for point in self._points],
            "loss": [point[3] for point in self._points],
        }
