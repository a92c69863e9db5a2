"""Progress of an export, written by the exporting thread and read by the master's loop.

    plan, count, wrote -> ExportProgress -> share, text, seconds left -> status, log
    cancel -> the next piece raises ExportCancelled

Owns the stages and their shares; knows no tables and no files.  The threads share single
attributes, each replaced as a whole by one of them, so no lock is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from snailps.errors import SnailError

Item = TypeVar("Item")
TESTING = "testing"
"""Begins the name of each stage in which the model is tested."""
SHARE_MIN = 0.01
"""Share of the export from which the remaining time is estimated."""


class ExportCancelled(SnailError):
    """The user has interrupted the export."""


class ExportProgress:
    """The progress of an export; `written` lists the files that are complete.

    `clock` gives seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.cancelled = False
        self.written: tuple[str, ...] = ()
        self.plan([])

    def plan(self, weights: Sequence[float]) -> None:
        """Set the relative durations of the stages to come, roughly.

        A stage beyond them starts a plan of its own.
        """
        self._weights, self._begun_s = tuple(weights), self._clock()
        self._stage: tuple[int, str, int, int, str] = (-1, "", 0, 0, "")

    def count(
        self,
        what: str,
        total: int,
        unit: str,
        items: Iterable[Item],
        size: Callable[[Any], int] = len,
    ) -> Iterator[Item]:
        """Yield items, and record the progress of a stage; `ExportCancelled` ends it.

        `what` names the stage for users: ``writing out.npz``.  `total` is the size of all items
        together, in `unit`, such as ``rows``; ``bytes`` are shown as MB.
        """
        self.begin(what, total, unit)
        for item in items:
            self.check()
            yield item
            self.add(size(item))

    def begin(self, what: str, total: int, unit: str) -> None:
        """Start a stage; see `count`."""
        number = self._stage[0] + 1
        if number >= len(self._weights):
            self.plan([1.0])
            number = 0
        self._stage = (number, what, 0, total, unit)

    def add(self, done: int) -> None:
        number, what, before, total, unit = self._stage
        self._stage = (number, what, min(total, before + done), total, unit)

    def wrote(self, path: str) -> None:
        self.written += (path,)

    def cancel(self) -> None:
        """End the export at its next piece."""
        self.cancelled = True

    def check(self) -> None:
        """Raise `ExportCancelled` if the user has interrupted the export."""
        if self.cancelled:
            raise ExportCancelled("the export was interrupted")

    @property
    def share(self) -> float:
        """Progress of the whole export, 0 to 1."""
        number, _, done, total, _ = self._stage
        weights = self._weights
        if number < 0 or not weights or sum(weights) <= 0:
            return 0.0
        of_stage = weights[number] * (done / total if total else 1.0)
        return min(1.0, (sum(weights[:number]) + of_stage) / sum(weights))

    @property
    def eta_s(self) -> float | None:
        """Seconds left; None below `SHARE_MIN`."""
        share = self.share
        if share < SHARE_MIN:
            return None
        return (self._clock() - self._begun_s) * (1 - share) / share

    def line(self) -> str:
        """Describe the progress: ``43%: writing out.npz, 1,024 of 4,096 rows, 7 s left``."""
        eta_s = self.eta_s
        left = "" if eta_s is None else f", {eta_s:.0f} s left"
        return f"{int(100 * self.share)}%: {self.text}{left}"

    def verdict(self) -> str:
        """Describe what an interrupted export has saved."""
        if not self.written:
            return "nothing was saved"
        return f"saved {', '.join(self.written)}, and nothing else"

    @property
    def text(self) -> str:
        """Current stage and its progress: ``writing out.npz, 1,024 of 4,096 rows``."""
        _, what, done, total, unit = self._stage
        if not what:
            return ""
        if unit == "bytes":
            return f"{what}, {done / 1e6:,.0f} of {total / 1e6:,.0f} MB"
        return f"{what}, {done:,} of {total:,} {unit}"
