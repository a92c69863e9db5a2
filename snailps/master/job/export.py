"""Owns the export of a job at the master: its progress, its cancellation, the counters at its end.

    training done -> Work(export) -> written(figures) -> on_end        signal -> cancel -> verdict
                  -> Ask(stats) to the servers -> counters

The model writes its files, beside the loop. The export ends when these are written and each server
has reported its counters, which the figures of the run sum, or is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

from snailps.api.export_progress import ExportProgress
from snailps.master.broadcast import Broadcast
from snailps.master.effects import CancelExport, Outbox
from snailps.master.membership import Membership
from snailps.master.replication.shard_reports import ShardReports
from snailps.transport import messages

log = logging.getLogger(__name__)

REPORT_S = 10.0
"""Seconds between log lines on the progress of an export."""
CANCEL_S = 5.0
"""Seconds that a cancelled export has to end; then the job ends without waiting for it."""


class Export:
    """Progress of a job's export; `progress` is None before it begins."""

    def __init__(
        self,
        members: Membership,
        shard_reports: ShardReports,
        out: Outbox,
        advice: Callable[[], str],  # what the user should know of checkpoints; may be empty
        on_end: Callable[[dict[str, Any], float], None],  # with the figures of the result
    ) -> None:
        self._members, self._shard_reports, self._out = members, shard_reports, out
        self._advice, self._on_end = advice, on_end
        self.progress: ExportProgress | None = None
        self._reported_at = 0.0
        self._cancelled_at: float | None = None
        self._counters: Broadcast | None = None  # of the servers, while they are asked
        # Figures of the written result, while counters are missing.
        self._figures: dict[str, Any] | None = None

    def begin(self, now: float) -> ExportProgress:
        """Begin the export; its thread keeps the returned progress up to date."""
        self._reported_at = now
        servers, ask = self._members.nodes("server"), messages.Ask("stats")
        counters = Broadcast(self._out, servers, ask, self._take_counters, now, loss="drop")
        self._counters = counters if counters.left else None
        self.progress = ExportProgress()
        return self.progress

    def written(self, figures: dict[str, Any], now: float) -> None:
        """The files are written: end the job, or wait for counters."""
        if self._counters is None:
            self._on_end(figures, now)
            return
        self._figures = figures

    @property
    def unreported(self) -> Collection[int]:
        """Servers whose counters are all that the job still waits for."""
        return self._counters.left if self._counters and self._figures is not None else ()

    def _take_counters(self, counters: Broadcast, now: float) -> None:
        self._counters = None
        try:
            for number, report in counters.answers.items():
                if (member := self._members.all.get(number)) is not None:
                    self._shard_reports.take(member, report, now)
        finally:
            if self._figures is not None:
                self._on_end(self._figures, now)

    def forget(self) -> None:
        """Forget the export of a job that has ended."""
        if self._counters is not None:
            self._counters.forget()
        self._counters = self._figures = None
        self.progress = self._cancelled_at = None

    @property
    def cancelled(self) -> bool:
        """Whether the export was cancelled and has not ended yet."""
        return self._cancelled_at is not None

    def cancel(self, now: float) -> None:
        """Cancel the export. Files that are not complete leave nothing on disk."""
        self._cancelled_at = now
        log.warning("interrupted: ending the export")
        if self.progress is not None:
            self.progress.cancel()
        self._out.put(CancelExport())

    def stood_still(self, seconds: float) -> None:
        if self._cancelled_at is not None:
            self._cancelled_at += seconds

    def step(self, now: float) -> bool:
        """Log the progress; True: the export was cancelled, and did not end in time."""
        if self._cancelled_at is not None and now - self._cancelled_at > CANCEL_S:
            return True
        if self.progress is not None and now - self._reported_at >= REPORT_S:
            self._reported_at = now
            if self.progress.text:
                log.info("exporting %s", self.progress.line())
        return False

    def verdict(self) -> str:
        """What an interrupted export has written, and how to get the rest, in words for users."""
        text, advice = "interrupted while saving the model", self._advice()
        if self.progress is None:
            text += "; nothing was saved"
        else:
            text += f", {self.progress.share:.0%} done; {self.progress.verdict()}"
        return f"{text}. {advice}" if advice else text
