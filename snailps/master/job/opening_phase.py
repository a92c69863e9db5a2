"""Owns a job from its first step until its first pass: input, forming, rows of a checkpoint.

    prepare -> Work: input and checkpoints are found -> ready, the driver has its number
    ready, the cluster formed, a worker here -> [rows of a checkpoint ->] survey | training

A job of an earlier master is resumed instead (`recovery.py`). `now` is monotonic seconds.
"""

from __future__ import annotations

import logging
from functools import partial

from snailps.config import to_mapping
from snailps.errors import SnailError
from snailps.master.checkpoints import CheckpointController
from snailps.master.context import Context
from snailps.master.job.beginning import check_files, prepare
from snailps.master.job.ended_jobs import EndedJobs
from snailps.master.job.expiry import ExpiryClock
from snailps.master.job.handout import Handout
from snailps.master.job.job import Job
from snailps.master.job.present import PresentJob
from snailps.master.job.record import JobRecord
from snailps.master.job.recovery import JobRecovery
from snailps.master.job.state import JobState
from snailps.master.job.survey_phase import SurveyPhase
from snailps.master.membership import Membership
from snailps.master.phases import JobPhase
from snailps.master.services import Opened, Services
from snailps.transport import messages

log = logging.getLogger(__name__)


class OpeningPhase:
    def __init__(
        self,
        context: Context,
        services: Services,
        members: Membership,
        checkpoints: CheckpointController,
        recovery: JobRecovery,
        present: PresentJob,
        handout: Handout,
        survey: SurveyPhase,
        expiry: ExpiryClock,
        ended_jobs: EndedJobs,
    ) -> None:
        self._life, self._out, self._services = context.life, context.out, services
        self._members, self._checkpoints, self.recovery = members, checkpoints, recovery
        self._present, self._handout = present, handout
        self._survey, self._expiry, self._ended_jobs = survey, expiry, ended_jobs
        self.is_formed = False
        self._submitter: int | None = None  # call of the driver, until the job is prepared

    def prepare(self, job: Job, workers: int, call: int | None = None) -> None:
        """Find the job's input beside the loop, then start the job on the formed cluster. With
        `call`, of a submitted job, an error goes to the driver, and the cluster stays."""
        self._ended_jobs.newest += 1
        if self._life.outlives_job:
            self._ended_jobs.note(to_mapping(job.settings))
        self._present.begin(job)
        self._submitter = call
        self._present.beside(partial(self._find, job, workers), partial(self._prepared, job))

    def _find(self, job: Job, workers: int) -> Opened | None:
        """Find the input and the checkpoints, beside the loop."""
        prepare(job, workers)
        if self._present.job is not job:  # given up: the next job may have opened the folder
            job.close()
            return None
        begins, record = not self.recovery.begun, JobRecord(job)
        opened = self._checkpoints.place.open(record, job.settings, resumes=begins, needed=begins)
        restores = opened is not None and bool(opened.candidates)
        if not (job.survey.exists or restores or self.recovery.begun):
            self._services.keep_base(record.base())
        return opened

    def _prepared(self, job: Job, opened: Opened | None, now: float) -> None:
        files, megabytes = len(job.input.sources), job.input.total_bytes / 1e6
        end = "" if files == 1 else "s"
        log.info("%s: %d file%s, %.1f MB", job.model.path, files, end, megabytes)
        if measured := ", ".join(job.model.by_input.measured):
            self._out.happened("input", "", f"by the input: {measured}")
            log.info("by the input: %s", measured)
        self._checkpoints.opened(JobRecord(job), opened, now, resumes=not self.recovery.begun)
        self.answer_submitter(messages.Submitted(self._ended_jobs.newest))
        self._present.go(JobPhase.READY)
        if self.is_formed:
            self.begin(job, now)

    def answer_submitter(self, answer: messages.Message | SnailError) -> bool:
        """Answer the driver whose job is being prepared; False: no driver waits."""
        waits = self._submitter is not None
        if self._submitter is not None:
            self._out.reply(self._submitter, answer)
            self._submitter = None
        return waits

    # --- begin -----------------------------------------------------------------------------------

    def formed(self, now: float) -> None:
        """Begin a prepared job: the cluster is complete."""
        self.is_formed = True
        if self._present.job is not None and self._present.phase is JobPhase.READY:
            self.begin(self._present.job, now)

    def begin(self, job: Job, now: float) -> None:
        if self.recovery.begun:
            self.recovery.go_on(job, now)
            return
        if not self.recovery.known:
            self._forget_last(now)
        if not self._members.joined("worker"):
            if not any(member.role == "worker" for member in self._members.left):
                self._present.hooks.fail_job(
                    "a job needs a worker, and the cluster has none: raise expected_node_num, or "
                    "start workers"
                )
            return  # the workers have left again: `JobController` waits for another one
        if self._checkpoints.place.resumes:
            self._present.go(JobPhase.RESTORING)
            self._checkpoints.transfers.stop_all()
            self._checkpoints.restorer.restore(now)
            return
        self._begin_pass(job, now)

    def _begin_pass(self, job: Job, now: float, state: JobState | None = None) -> None:
        self._survey.begin_first(job, now, state)
        self._handout.start_all()

    def _forget_last(self, now: float) -> None:
        """Drop what the last job of this cluster has left at the servers."""
        # A worker without which that job has ended may still push to its tables.
        late = any(member.dropped for member in self._members.nodes("worker"))
        self._members.table_registry.forget_job(now, in_use=late)
        self._ended_jobs.forget_tables()
        self._expiry.begin(now)

    # --- rows of a checkpoint --------------------------------------------------------------------

    def saved(self) -> None:
        """The same job would go on from a checkpoint."""
        job = self._present.job
        if self._life.outlives_job and job is not None and not job.settings.fresh:
            self._ended_jobs.saved(self._members.table_registry.used)

    def restored(self, state: JobState, now: float) -> None:
        """Resume the training: the servers have the rows of a checkpoint."""
        self.saved()
        job = self._present.job
        if job is not None:
            self._present.beside(partial(self._keep, job, state), partial(self._kept, job, state))

    def _keep(self, job: Job, state: JobState) -> None:
        """Keep the state from which a master that takes over begins; beside the loop."""
        JobRecord(job).check_state(state)
        check_files(job, state.summary)
        self._services.keep_base(state)
        if state.summary is not None:
            job.survey.encode(state.summary)

    def _kept(self, job: Job, state: JobState, _: None, now: float) -> None:
        self._begin_pass(job, now, state)
