"""Losses and speeds of a job by epoch, from the statuses reported during the job.

    Status, Status, ... -> History.add    figures of the run -> History.of -> a dict an epoch

An epoch is a share of the progress; its end is interpolated between two statuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from snailps.node.status import Status

POINTS_MAX = 1 << 14
"""More points are thinned: a training may last for days."""


class History:
    def __init__(self) -> None:
        self._shares: list[float] = []
        self._seconds: list[float] = []
        self._units: list[float] = []
        self._gap = 0.0  # of the progress, between two points

    def add(self, status: Status) -> None:
        """Add a status; only those of the training count."""
        if status["phase"] != "training":
            return
        if self._shares and status["progress"] <= self._shares[-1] + self._gap:
            return
        self._shares.append(status["progress"])
        self._seconds.append(status["elapsed_s"])
        self._units.append(status["units"])
        if len(self._shares) > POINTS_MAX:
            for points in (self._shares, self._seconds, self._units):
                del points[1::2]
            self._gap = 0.9 * (self._shares[-1] - self._shares[0]) / (len(self._shares) - 1)

    def of(self, figures: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The epochs, or rounds, of the finished job."""
        if "by_round" in figures:
            return [{"epoch": one.get("round"), **one} for one in figures["by_round"]]
        losses = figures.get("loss_by_epoch") or []
        unit = "words" if "words" in figures else "examples"
        rates = self._rates(len(losses), figures, unit)
        return [
            {"epoch": epoch, "loss": loss, f"{unit}_per_s": rate}
            for epoch, (loss, rate) in enumerate(zip(losses, rates, strict=True), 1)
        ]

    def _rates(self, epochs: int, figures: Mapping[str, Any], unit: str) -> list[float | None]:
        """Units a second of each epoch; the job's mean for epochs too short to be seen."""
        whole = figures.get(f"{unit}_per_s")
        if epochs <= 1 or len(self._shares) < epochs:
            return [whole] * epochs
        train_s, units = figures.get("train_s") or 0.0, figures.get(unit) or 0
        begin = self._seconds[0]
        shares = [0.0, *self._shares, 1.0]
        seconds = [begin, *self._seconds, max(begin + train_s, self._seconds[-1])]
        units_ = [0.0, *self._units, max(float(units), self._units[-1])]
        ends = np.linspace(0.0, 1.0, epochs + 1)
        at, done = np.interp(ends, shares, seconds), np.interp(ends, shares, units_)
        took = np.diff(at)
        return [
            round(float(n / s), 1) if s > 0 else whole
            for n, s in zip(np.diff(done), took, strict=True)
        ]
