"""Progress of a training: reports to callbacks and a display, and the history of the model.

    Status of the master -> Monitor.update -> report (a dict) -> callbacks, display
    history of the job -> Monitor.finish -> history of the model: a dict for each epoch

Must not know clusters or models; tests pass their own clock.
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
"""Shortest time between two reports of the same phase and epoch."""
_SHOWN = {"survey": "reading", "loading": "loading", "training": "training", "exporting": "saving"}
_PASS = re.compile(r"(?:epoch|round) (\d+)(,? at most| of) (\d+)")

Report = dict[str, Any]
"""phase, epoch, epochs (0 before the training), at_most (whether the training may end before
`epochs`, once the loss stops falling), progress (0 to 1, of the phase), loss, lr, words and
words_per_s (or examples), seconds since the first report; while reading also bytes and
bytes_per_s."""
Callback = Callable[[Report], object]


class Display:
    """Shows nothing; subclasses show reports."""

    def show(self, report: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        """Show nothing any more; the screen stays as it is."""


def callbacks_of(callbacks: Any) -> tuple[Callback, ...]:
    """Return the callbacks as a tuple; a single function is allowed."""
    if callable(callbacks):
        return (callbacks,)
    try:
        functions = tuple(callbacks or ())
    except TypeError:
        functions = (callbacks,)
    for callback in functions:
        if not callable(callback):
            raise ParameterError(
                f"callbacks: expected functions that take a dict, got {callback!r:.80}"
            )
    return functions


class Monitor:
    """Follows one job; epochs are counted from `first`, those that earlier jobs have trained.

    `history` is complete after `finish`.  `stopped`: a callback returned False, so `update`
    asks for an early end.  `quiet`: the cluster must not print lines of its own if the job fails.
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
        """Report the status of the running job; return False if the job should end early."""
        phase = _SHOWN.get(status["phase"])
        if phase is None:
            return not self.stopped
        match = _PASS.match(status["pass_"])
        epoch = int(match[1]) if match else self._last[2]
        if match:
            self._epochs, self._may_converge = int(match[3]), match[2] != " of"
        now, state = self._clock(), (phase, status["progress"], epoch)
        # A new phase or epoch is always reported; progress within one at most every INTERVAL_S.
        is_soon = now - self._reported_at < INTERVAL_S and state[::2] == self._last[::2]
        if state == self._last or is_soon:
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
        """Build the history of a finished job and make the last report."""
        # Epochs without a loss are left out: they did not begin, because the training ended early,
        # or the text is so small that subsampling dropped all its words.
        history = [epoch for epoch in history if epoch["loss"] is not None]
        self.history = [{**epoch, "epoch": self._first + epoch["epoch"]} for epoch in history]
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
        """Return the units trained so far, and per second."""
        unit, units, speed = status["unit"], status["units"], status["units_per_s"]
        if phase == "reading":  # the survey's units are bytes
            return {unit: 0, f"{unit}_per_s": 0.0, "bytes": units, "bytes_per_s": speed}
        return {unit: units, f"{unit}_per_s": speed}

    def _seconds(self, now: float) -> float:
        """Return the seconds since the first report."""
        self._begun = now if self._begun is None else self._begun
        return now - self._begun

    def close(self) -> None:
        self._display.close()

    def _report(self, report: Report) -> None:
        self._display.show(report)
        for callback in self._callbacks:
            if callback(dict(report)) is False and report["phase"] != "done":
                self.stopped = True
