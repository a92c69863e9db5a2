"""Owns a job's survey, from its begin until the training begins: its summary, and first rows.

    begin -> leases ... -> all parts merged -> Work(end_survey) -> summarised
          -> [Work(load) of first rows] -> training

Calls of workers wait for the summary here. `now` is monotonic seconds.
"""

from __future__ import annotations

import logging
from functools import partial

from snailps.api.export_progress import ExportProgress
from snailps.errors import ClusterError
from snailps.master.effects import Outbox
from snailps.master.job.beginning import begin_survey, check_files, end_survey
from snailps.master.job.ending import end_pass
from snailps.master.job.job import Job
from snailps.master.job.present import PresentJob
from snailps.master.job.record import JobRecord
from snailps.master.job.state import JobState
from snailps.master.job.training_phase import TrainingPhase
from snailps.master.leases.service import LeaseService
from snailps.master.member import Member
from snailps.master.phases import JobPhase
from snailps.master.services import Services
from snailps.transport import messages

log = logging.getLogger(__name__)


class SurveyPhase:
    def __init__(
        self,
        out: Outbox,
        services: Services,
        leases: LeaseService,
        present: PresentJob,
        training: TrainingPhase,
    ) -> None:
        self._out, self._services, self._leases = out, services, leases
        self._present, self._training = present, training
        self._calls: list[int] = []  # of workers that wait for the summary
        self.loading = ExportProgress()
        """Of reading first rows from a file."""

    def begin_first(self, job: Job, now: float, state: JobState | None = None) -> None:
        """Begin the first pass of a job: the survey, where its class has one and no checkpoint's
        `state` has the summary, else the training."""
        if job.survey.exists and state is None:
            self.begin(job, now)
        else:
            self._training.open(job, now, state)

    def begin(self, job: Job, now: float) -> None:
        self._out.journal("survey", {})
        self._present.go(JobPhase.SURVEY)
        begin_survey(job, now)

    def step(self, job: Job, now: float) -> None:
        if job.schedule.over:
            end_pass(job, now)
            self._present.beside(partial(self._end_survey, job), self._ended)

    def _end_survey(self, job: Job) -> str:
        """Make the summary, beside the loop; returns what the job will write, in words."""
        end_survey(job)
        files = check_files(job, job.survey.summary)
        self._services.keep_base(JobRecord(job).base())
        return files

    def _ended(self, files: str, now: float) -> None:
        if files:
            self._out.happened("files", "", f"will write {files}")
            log.info("will write %s", files)
        self.summarised(now)

    def summarised(self, now: float) -> None:
        """The survey is merged, and the journal's base has it: load first rows, or train."""
        self._out.journal("summary", {})
        job, _ = self._leases.running()
        assert job.survey.summary is not None
        self._out.say(f"survey done, summary of {len(job.survey.summary) / 1e6:.1f} MB")
        if job.model.loader is None:
            self._train(None, now)
            return
        self._present.go(JobPhase.LOADING)
        reading = self._present.reading()
        self.loading = ExportProgress()
        read = partial(self._services.reader.load, job, job.model.loader, reading, self.loading)
        self._present.beside(read, self._train)

    def _train(self, _: object, now: float) -> None:
        job, _ = self._leases.running()
        assert job.survey.summary is not None
        self._training.open(job, now)
        self._leases.answer(now)
        for call in self._calls:
            self._out.reply(call, job.survey.message())
        self._calls.clear()

    # --- what workers ask ------------------------------------------------------------------------

    def summarise(self, member: Member, call: int, now: float) -> None:
        """Send a worker the summary once all is merged."""
        job, schedule = self._leases.running()
        if job.survey.summary is not None and job.pass_ == "train":
            self._out.reply(call, job.survey.message())
        elif not schedule.over:  # another master has begun the survey again
            self._out.reply(call, messages.Again())
        else:
            member.wait_for("the survey to be merged", now)
            self._calls.append(call)

    def refuse(self) -> None:
        """Answer the workers that wait: the job has failed."""
        for call in self._calls:
            self._out.reply(call, ClusterError("the job has failed"))
        self._calls.clear()
