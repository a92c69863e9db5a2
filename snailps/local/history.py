"""Computes loss and speed of each epoch of a job from the statuses reported meanwhile.

    Status, Status, ... -> History.add    figures of the run -> History.of -> one dict per epoch

An epoch is a share of the progress; its end is interpolated between two statuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from snailps.node.course import Course
from snailps.node.status import Status

POINTS_MAX = 1 << 14
"""With more points, every second one is dropped: a training may last for days."""


class History:
    def __init__(self) -> None:
        self._course = Course(POINTS_MAX)  # progress, seconds, units

    def add(self, status: Status) -> None:
        """Add a status; only statuses of the phase "training" count."""
        if status["phase"] == "training" and self._course.is_due(status["progress"]):
            self._course.append((status["progress"], status["elapsed_s"], status["units"]))

    def of(self, figures: Mapping[str, Any]) -> list[dict[str, Any]]:
        """List the epochs, or rounds, of the finished job."""
        if "by_round" in figures:
            return [{"epoch": entry.get("round"), **entry} for entry in figures["by_round"]]
        losses = figures.get("loss_by_epoch") or []
        unit = "words" if "words" in figures else "examples"
        rates = self._rates(len(losses), figures, unit)
        return [
            {"epoch": epoch, "loss": loss, f"{unit}_per_s": rate}
            for epoch, (loss, rate) in enumerate(zip(losses, rates, strict=True), 1)
        ]

    def _rates(self, epochs: int, figures: Mapping[str, Any], unit: str) -> list[float | None]:
        """Units per second of each epoch; the job's mean for epochs shorter than a status."""
        whole = figures.get(f"{unit}_per_s")
        points = self._course.points
        if epochs <= 1 or len(points) < epochs:
            return [whole] * epochs
        train_s, units = figures.get("train_s") or 0.0, figures.get(unit) or 0
        shares, seconds, units_ = map(list, zip(*points, strict=True))
        begin = seconds[0]
        shares = [0.0, *shares, 1.0]
        seconds = [begin, *seconds, max(begin + train_s, seconds[-1])]
        units_ = [0.0, *units_, max(float(units), units_[-1])]
        ends = np.linspace(0.0, 1.0, epochs + 1)
        end_s, done = np.interp(ends, shares, seconds), np.interp(ends, shares, units_)
        took = np.diff(end_s)
        return [
            round(float(n / s), 1) if s > 0 else whole
            for n, s in zip(np.diff(done), took, strict=True)
        ]
