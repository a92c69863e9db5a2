"""The course of a run: a bounded number of points, the first one and evenly spaced ones since."""

from __future__ import annotations

from typing import Any

POINTS_MAX = 512
"""Points of a run's curves, at the master and in the page."""


class Course:
    """Tuples, each of which begins with a position that is meant to grow: seconds, progress.

    When there are more than `points_max`, 2 at least, every second one is dropped, and later points
    have to lie about as far apart as those that are left.
    """

    def __init__(self, points_max: int) -> None:
        self._points_max = points_max
        self.points: list[tuple[Any, ...]] = []
        self._gap = 0.0

    def clear(self) -> None:
        self.points.clear()
        self._gap = 0.0

    def is_due(self, position: float) -> bool:
        """Whether a point there would be far enough from the last one."""
        if not self.points:
            return True
        apart: float = position - self.points[-1][0]
        return apart > 0 and apart >= self._gap

    def append(self, point: tuple[Any, ...]) -> None:
        """Add a point, due or not."""
        self.points.append(point)
        self.thin()

    def thin(self) -> None:
        """Drop points, if there are too many."""
        while len(self.points) > self._points_max:
            self.points = self.points[::2]
            self._gap = 0.9 * (self.points[-1][0] - self.points[0][0]) / (len(self.points) - 1)
