"""The export of a job at the master: begin, progress, cancel, and where it was interrupted.

    training done -> Work(export) -> figures -> on_exported        signal -> cancel -> verdict

The model writes its files, beside the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from snailps.api.export_progress import ExportProgress
from snailps.master.effects import CancelExport, Outbox

log = logging.getLogger(__name__)

TELL_S = 10.0
"""Seconds between log lines on the progress of an export."""
CANCEL_S = 5.0
"""Seconds that a cancelled export may take to end."""


class Export:
    """Progress of a job's export; `told` is None before it begins."""

    def __init__(self, out: Outbox, advice: Callable[[], str]) -> None:
        # what the user should know of the job's checkpoints; may be empty
        self._out, self._advice = out, advice
        self.told: ExportProgress | None = None
        self._told_at = 0.0
        self._cancelled_at: float | None = None

    def begin(self, now: float) -> ExportProgress:
        """Begin the export; its thread writes its progress into the result."""
        self._told_at, self._cancelled_at = now, None
        self.told = ExportProgress()
        return self.told

    def forget(self) -> None:
        self.told, self._cancelled_at = None, None

    @property
    def cancelled(self) -> bool:
        """It was cancelled and has not ended yet."""
        return self._cancelled_at is not None

    def cancel(self, now: float) -> None:
        """Cancel it; unwritten files leave nothing behind."""
        self._cancelled_at = now
        log.warning("interrupted: ending the export")
        if self.told is not None:
            self.told.cancel()
        self._out.put(CancelExport())

    def step(self, now: float) -> bool:
        """Log its progress; True: it was cancelled, and does not end."""
        if self._cancelled_at is not None and now - self._cancelled_at > CANCEL_S:
            return True
        if self.told is not None and now - self._told_at >= TELL_S:
            self._told_at = now
            if self.told.text:
                log.info("exporting %s", self.told.line())
        return False

    def verdict(self) -> str:
        """What an interrupted export has written, and how to get the rest."""
        text, advice = "interrupted while saving the model", self._advice()
        if self.told is None:
            text += "; nothing was saved"
        else:
            text += f", {self.told.share:.0%} done; {self.told.verdict()}"
        return f"{text}. {advice}" if advice else text
