"""Owns the last phase of a job: its export, and what is saved when the export fails.

    begin -> Work(export) -> Export.written -> ended -> `job_ended`
             fails -> the trained rows are saved, or room is waited for -> fail, or export again
             signal -> Export.cancel -> `export_cancelled`

`export.py` has the progress of one try. `now` is monotonic seconds.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, NamedTuple

from snailps.api.plain_values import is_users, named_method
from snailps.errors import SnailError
from snailps.master.checkpoints import CheckpointController
from snailps.master.context import Context
from snailps.master.effects import CancelExport, LeaveRounds
from snailps.master.job.ending import end_pass
from snailps.master.job.export import Export
from snailps.master.job.job import Job
from snailps.master.job.looks import Looks
from snailps.master.job.present import PresentJob
from snailps.master.job.record import JobRecord
from snailps.master.membership import Membership
from snailps.master.phases import JobPhase
from snailps.master.replication.shard_reports import ShardReports
from snailps.master.room_wait import RoomWait
from snailps.master.services import Opened, Services

log = logging.getLogger(__name__)


class Failure(NamedTuple):
    """Arguments of `JobHooks.fail_job`, and whether a disk is full."""

    text: str
    code: int
    trace: str = ""
    is_full: bool = False


class ExportPhase:
    def __init__(
        self,
        context: Context,
        services: Services,
        members: Membership,
        shard_reports: ShardReports,
        checkpoints: CheckpointController,
        present: PresentJob,
        looks: Looks,
    ) -> None:
        self._life, self._out, self._services = context.life, context.out, services
        self._shard_reports, self._checkpoints = shard_reports, checkpoints
        self._present, self._looks, self._hooks = present, looks, present.hooks
        self.export = Export(
            members, shard_reports, self._out, checkpoints.place.advice, self.ended
        )
        self._failure: Failure | None = None  # of the export, while its rows are saved
        self._saved_before = 0  # checkpoints saved before that
        self._room = RoomWait(context.settings.master_time_out)  # of an export on a full disk

    def begin(self, job: Job, now: float) -> None:
        self._present.go(JobPhase.EXPORTING)
        self._out.put(LeaveRounds())
        log.info("training done, exporting")
        self._export(job, now)

    def _export(self, job: Job, now: float) -> None:
        progress = self.export.begin(now)
        by_round = job.round_results.by_round
        reading = self._present.reading({"by_round": by_round} if by_round else {}, settled=True)
        export = partial(self._services.reader.export, job, reading, progress)
        self._present.beside(export, self._exported)

    def _exported(self, figures: dict[str, Any], now: float) -> None:
        self._out.journal("exported", {"figures": figures})
        self.export.written(figures, now)

    def exported_before(self, job: Job, figures: dict[str, Any], now: float) -> None:
        """End a job whose result an earlier master has written."""
        end_pass(job, now)
        self._present.go(JobPhase.EXPORTING)
        self.ended(figures, now)

    def step(self, job: Job, now: float) -> None:
        if self.export.step(now):
            self.end_cancelled()
            return
        if self._failure is not None and not (
            self._present.waits or self._checkpoints.saver.running
        ):
            failure, self._failure = self._failure, None
            self._fail(failure, now)
        elif self._room.is_due(now) and not self.export.cancelled:
            self._export(job, now)

    def stood_still(self, seconds: float) -> None:
        self._room.stood_still(seconds)
        self.export.stood_still(seconds)

    # --- the end -------------------------------------------------------------------------------

    def ended(self, figures: dict[str, Any], now: float) -> None:
        self._present.figures = figures
        job = self._present.job
        if self.export.progress is not None and job is not None and is_users(job.model.cls):
            self._warn_of_tables(job)
        for path in figures.get("files", []):
            self._out.say(f"wrote {path}")
        self._checkpoints.place.ended("" if self._present.interrupted else "the run ended")
        self._looks.close()
        self._hooks.job_ended(now)

    def _warn_of_tables(self, job: Job) -> None:
        """Warn of tables that nothing was pushed to. A forgotten push raises nowhere: the model
        would be written as it began."""
        names = self._shard_reports.never_pushed() if job.metrics.units else []
        if names:
            who, of = named_method(job.model.cls, "train"), "tables" if len(names) > 1 else "table"
            tables = ", ".join(map(repr, names))
            text = f"{who} has pushed nothing to {of} {tables}: no row was made"
            self._out.say(text, logging.WARNING)

    def cancel(self, now: float) -> bool:
        """Cancel the export of a job whose driver gives it up; False: no export is under way."""
        if self._present.phase is not JobPhase.EXPORTING:
            return False
        if not self.export.cancelled:
            self.export.cancel(now)
        return True

    def end_cancelled(self) -> None:
        self._hooks.export_cancelled(self.export.verdict())

    def abandon(self) -> None:
        """The job has failed: end what writes its files."""
        if self.export.progress is not None:  # else its thread would continue to write
            self.export.progress.cancel()
            self._out.put(CancelExport())
        self.export.forget()
        self._out.put(LeaveRounds())

    def forget(self) -> None:
        """The job is over."""
        self._room.over()
        self.export.forget()

    # --- an export that failed -------------------------------------------------------------------

    def failed(self, failure: Failure, now: float) -> None:
        """Save a checkpoint of the trained rows before the job fails: the user may mend the code or
        the disk that failed, and hours of training are not lost. A life that outlives its job keeps
        the rows until the next one, and a checkpoint under way has them."""
        if self._room.waits:
            self._fail(failure, now)
            return
        job = self._present.job
        assert job is not None
        if self._life.outlives_job or self._checkpoints.saver.running:
            self._hooks.fail_job(*failure[:3])
            return
        self._failure, self._saved_before = failure, self._checkpoints.place.saved
        if self._checkpoints.place.writes:
            self._checkpoints.saver.begin(JobRecord(job), now)
            return
        self._present.beside(partial(self._open_folder, job), partial(self._opened_folder, job))

    def _open_folder(self, job: Job) -> Opened | SnailError | None:
        try:
            return self._checkpoints.place.open(
                JobRecord(job), job.settings, resumes=False, anyway=True
            )
        except SnailError as error:  # the folder is another job's, or cannot be written
            return error

    def _opened_folder(self, job: Job, opened: Opened | SnailError | None, now: float) -> None:
        if isinstance(opened, SnailError):
            log.error("the trained rows cannot be saved: %s", opened)
            failure, self._failure = self._failure, None
            assert failure is not None
            self._fail(failure, now)
            return
        self._checkpoints.opened(JobRecord(job), opened, now, resumes=False)
        self._saved_before = self._checkpoints.place.saved
        self._checkpoints.saver.begin(JobRecord(job), now)

    def _fail(self, failure: Failure, now: float) -> None:
        """End the job whose export has failed; its rows are saved, if they could be. Without room
        for either, wait for it: `step` exports again."""
        text = failure.text
        if self._checkpoints.place.saved > self._saved_before:
            text += f". {self._checkpoints.place.advice_to_export()}"
        elif failure.is_full:
            if not self._room.full(text, now):
                self._hooks.export_cancelled(text, failure.code)
            return
        self._hooks.fail_job(text, failure.code, failure.trace)
