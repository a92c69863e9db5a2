"""The export of a job at the master: begin, progress, cancel, and where it was interrupted.

    training done -> Work(export) -> figures -> on_exported        signal -> cancel -> verdict

What is written is the model's affair; it is done beside the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from snailps.api.export_progress import ExportProgress
from snailps.master.effects import CancelExport, Outbox

log = logging.getLogger(__name__)

TELL_S = 10.0
"""Between two lines of the log on how far an export is."""
CANCEL_S = 5.0
"""How long an export that was cancelled may take to end."""


class Export:
    """How far the export of a job is; `told` is None before it has begun.

    Parameters
    ----------
    out : Outbox
    advice : callable
        What the user should know of the job's checkpoints, in words; may be empty.
    """

    def __init__(self, out: Outbox, advice: Callable[[], str]) -> None:
        self._out, self._advice = out, advice
        self.told: ExportProgress | None = None
        self._told_at = 0.0
        self._cancelled_at: float | None = None

    def begin(self, now: float) -> ExportProgress:
        """Begins the export; its thread writes its progress into the result."""
        self._told_at, self._cancelled_at = now, None
        self.told = ExportProgress()
        return self.told

    def forget(self) -> None:
        """Another job begins."""
        self.told, self._cancelled_at = None, None

    @property
    def cancelled(self) -> bool:
        """It was told to end, and has not ended yet."""
        return self._cancelled_at is not None

    def cancel(self, now: float) -> None:
        """Ends it: what is not written yet will not be, and leaves nothing behind."""
        self._cancelled_at = now
        log.warning("interrupted: ending the export")
        if self.told is not None:
            self.told.cancel()
        self._out.put(CancelExport())

    def step(self, now: float) -> bool:
        """Logs its progress; True: it was cancelled, and does not end."""
        if self._cancelled_at is not None and now - self._cancelled_at > CANCEL_S:
            return True
        if self.told is not None and now - self._told_at >= TELL_S:
            self._told_at = now
            if self.told.text:
                log.info("exporting %s", self.told.line())
        return False

    def verdict(self) -> str:
        """What is there of an export that was interrupted, and how to get the rest."""
        text = "interrupted while saving the model; "
        if self.told is None:
            text += "nothing was saved"
        else:
            share = f"{self.told.share:.0%} done"
            text = f"interrupted while saving the model, {share}; {self.told.verdict()}"
        advice = self._advice()
        return f"{text}. {advice}" if advice else text
