"""Reports of a training: to callbacks, to a display, and for the history.

    Status of the master -> Monitor.update -> report (a dict) -> callbacks, display
    history of the job -> Monitor.finish -> history of the model: a dict for each epoch

Must not know clusters or models; the clock is an argument.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from snailps.errors import ParameterError
from snailps.node.status import Status

INTERVAL_S = 0.2
"""Callbacks and displays hear of a training so often, at most."""
_SHOWN = {"survey": "reading", "loading": "loading", "training": "training", "exporting": "saving"}
_PASS = re.compile(r"(?:epoch|round) (\d+)(,? at most| of) (\d+)")

Report = dict[str, Any]
"""phase, epoch, epochs (0 before the training), at_most (the training may end before so many, once
the loss stops falling), progress (0 to 1, of the phase), loss, lr, words and words_per_s (or
examples), seconds; while reading also bytes and bytes_per_s."""
Callback = Callable[[Report], object]


class Display:
    """Shows nothing; others show reports."""

    def show(self, report: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        """Leave the screen as it is; nothing is shown after it."""


def callbacks_of(callbacks: Any) -> tuple[Callback, ...]:
    """The callbacks, of which there may be one."""
    if callable(callbacks):
        return (callbacks,)
    try:
        found = tuple(callbacks or ())
    except TypeError:
        found = (callbacks,)
    for callback in found:
        if not callable(callback):
            raise ParameterError(
                f"callbacks: expected functions that take a dict, got {callback!r:.80}"
            )
    return found


class Monitor:
    """Follows one job, after `first` epochs of earlier jobs of the same model.

    A callback that returns False ends the training early.  `history` is complete after `finish`;
    `quiet`: the cluster is to write no lines of its own if the job fails.
    """

    def __init__(
        self,
        callbacks: Iterable[Callback],
        display: Display,
        first: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._callbacks = callbacks_of(callbacks)
        self._display, self._first, self._clock = display, first, clock
        self._epochs, self._may_converge = 0, False
        self._begun: float | None = None
        self._reported_at, self._last = -math.inf, ("", 0.0, 0)
        self.stopped = self.quiet = False
        self.history: list[Report] = []

    def update(self, status: Status) -> bool:
        """Takes the status of the running job; False: it is to end early."""
        phase = _SHOWN.get(status["phase"])
        if phase is None:
            return not self.stopped
        found = _PASS.match(status["pass_"])
        epoch = int(found[1]) if found else self._last[2]
        if found:
            self._epochs, self._may_converge = int(found[3]), found[2] != " of"
        now, state = self._clock(), (phase, status["progress"], epoch)
        soon = now - self._reported_at < INTERVAL_S and state[::2] == self._last[::2]
        if state == self._last or soon:
            return not self.stopped
        self._reported_at, self._last = now, state
        self._report(
            {
                "phase": phase,
                "epoch": self._first + epoch,
                "epochs": self._first + self._epochs,
                "at_most": self._may_converge,
                "progress": status["progress"],
                "loss": status["loss"],
                "lr": status["lr"],
                **self._speed(phase, status),
                "seconds": self._seconds(now),
            }
        )
        return not self.stopped

    def finish(self, figures: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        """Takes figures and history of the job, which is done; makes a last report."""
        # Epochs that were not begun, as the training ended early, have no loss; nor have those of a
        # text so small that none of its words was drawn.
        history = [one for one in history if one["loss"] is not None]
        self.history = [{**one, "epoch": self._first + one["epoch"]} for one in history]
        unit = "words" if "words" in figures else "examples"
        speed = f"{unit}_per_s"
        self._report(
            {
                "phase": "done",
                "epoch": self.history[-1]["epoch"] if history else self._first,
                "epochs": self._first + int(figures.get("epochs", self._epochs)),
                "at_most": False,
                "progress": 1.0,
                "loss": figures.get("train_loss"),
                "lr": None,
                unit: figures.get(unit, 0),
                speed: figures.get(speed),
                "seconds": self._seconds(self._clock()),
            }
        )

    @staticmethod
    def _speed(phase: str, status: Status) -> Report:
        """Units so far, and a second."""
        unit, units, speed = status["unit"], status["units"], status["units_per_s"]
        if phase == "reading":  # which counts bytes
            return {unit: 0, f"{unit}_per_s": 0.0, "bytes": units, "bytes_per_s": speed}
        return {unit: units, f"{unit}_per_s": speed}

    def _seconds(self, now: float) -> float:
        """Since the job was first heard of."""
        self._begun = now if self._begun is None else self._begun
        return now - self._begun

    def close(self) -> None:
        self._display.close()

    def _report(self, report: Report) -> None:
        self._display.show(report)
        for callback in self._callbacks:
            if callback(dict(report)) is False and report["phase"] != "done":
                self.stopped = True
