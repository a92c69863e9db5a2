"""Makes the phases of a job, steps the one that it is in, and ends it.

    prepare(job) -> Start to every worker -> leases ... -> summary -> leases ... -> export -> on_end

    phase       entered when                            each turn          owned by
    preparing   a job is given, or submitted            -                  opening_phase.py
    ready       input and checkpoints are found         begins, or waits   opening_phase.py
    restoring   there is a checkpoint                   -                  checkpoints.py
    survey      the class has a survey                  looks for its end  survey_phase.py
    loading     merged; the loader fills tables         -                  survey_phase.py
    training    the schedule is opened                  limits, end        training_phase.py
    exporting   its last block is done, rows are still  progress, retries  export_phase.py
    stopping    it has failed; its workers end          -                  departures.py
    idle        the files are written, or all are gone  -

`phases.JOB` has the transitions. All phases share `present.py`. Long work, and all of the model's
class, runs beside the loop, one at a time; the job waits for it, and `_failed` handles its error.
Must not know how calls of workers are answered (`leases/service.py`) or checkpoints made
(`master/checkpoints.py`). `now` is monotonic seconds.
"""

from __future__ import annotations

import logging

from snailps.config import to_mapping
from snailps.errors import (
    EXIT_FAILED,
    ClusterError,
    JobInputError,
    NotFinite,
    SnailError,
    explain,
    frames_of,
    is_full,
    with_frames,
)
from snailps.master.checkpoint_place import Hooks
from snailps.master.checkpoints import CheckpointController
from snailps.master.context import Context
from snailps.master.job.ended_jobs import EndedJob, EndedJobs
from snailps.master.job.expiry import ExpiryClock
from snailps.master.job.export_phase import ExportPhase, Failure
from snailps.master.job.handout import Handout
from snailps.master.job.job import Job
from snailps.master.job.looks import Looks
from snailps.master.job.opening_phase import OpeningPhase
from snailps.master.job.present import JobHooks, PresentJob
from snailps.master.job.recovery import JobRecovery, Recovered
from snailps.master.job.survey_phase import SurveyPhase
from snailps.master.job.training_phase import TrainingPhase
from snailps.master.job.worker_wait import WorkerWait
from snailps.master.leases.service import LeaseService
from snailps.master.lifecycle import Lifecycle
from snailps.master.member import Expel, Member
from snailps.master.membership import Membership
from snailps.master.phases import JobPhase
from snailps.master.replication.shard_orders import ShardOrders
from snailps.master.replication.shard_reports import ShardReports
from snailps.master.services import Services
from snailps.node.effects import ignored
from snailps.transport import messages

log = logging.getLogger(__name__)

SPENT_S = 5.0
"""Seconds between two notes of the time worked, and so the most of it that a takeover loses."""


class JobController:
    def __init__(
        self,
        context: Context,
        services: Services,
        members: Membership,
        lifecycle: Lifecycle,
        shard_orders: ShardOrders,
        shard_reports: ShardReports,
        hooks: JobHooks,
        expel: Expel,
        past: Recovered | None = None,  # notes of an earlier master: the job resumes from there
    ) -> None:
        self._out, self._members = context.out, members
        out, fail_job = context.out, hooks.fail_job
        self.ended_jobs = EndedJobs(out)
        self.leases = leases = LeaseService(
            context, members, lifecycle, shard_orders, self.ended_jobs, expel,
            lambda now: self.looks.retired(now),
        )  # fmt: skip
        self.present = present = PresentJob(out, members, leases, hooks, self._failed)
        self.checkpoints = checkpoints = CheckpointController(
            out, members, shard_orders, shard_reports, services.files,
            Hooks(
                restored=lambda state, rows, now: self.opening.restored(state, now),
                not_restored=lambda error: fail_job(str(error)),
                saved=lambda completed, now: self.opening.saved(),
            ),
        )  # fmt: skip
        self.looks = looks = Looks(
            out, services, members, shard_orders, checkpoints, present, self.ended_jobs
        )
        self.exporting = ExportPhase(
            context, services, members, shard_reports, checkpoints, present, looks
        )
        self.expiry = ExpiryClock(out, shard_orders)
        self.training = TrainingPhase(
            context, members, shard_orders, leases, checkpoints, present, looks, self.expiry,
            self.exporting.begin,
        )  # fmt: skip
        self.handout = Handout(out, members, leases, present)
        self.survey = SurveyPhase(out, services, leases, present, self.training)
        self.worker_wait = WorkerWait(context, checkpoints.place.advice, fail_job)
        recovery = JobRecovery(
            past, members, shard_orders, leases, checkpoints, self.survey, self.training, looks,
            self.expiry, self.exporting,
        )  # fmt: skip
        self.opening = OpeningPhase(
            context, services, members, checkpoints, recovery, present, self.handout, self.survey,
            self.expiry, self.ended_jobs,
        )  # fmt: skip
        self._spent_at = 0.0  # when the seconds of work are noted next

    @property
    def job(self) -> Job | None:
        return self.present.job

    @property
    def phase(self) -> JobPhase:
        return self.present.phase

    # --- the loop ------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        """Advance the job: begin what follows a pass that has ended, look for limits and waits."""
        if self.job is not None and self.phase is JobPhase.EXPORTING:
            self.exporting.step(self.job, now)
            return
        if self.job is not None and self.phase is JobPhase.READY and self.opening.is_formed:
            if self._members.joined("worker"):
                self.worker_wait.over()
                self.opening.begin(self.job, now)
            else:
                self.worker_wait.step("all blocks", now)
        # Not "else": a job that begins takes its first step in the same turn.
        passes = self.phase in (JobPhase.SURVEY, JobPhase.TRAINING)
        if self.job is not None and passes and not self.present.waits:
            self._step_pass(self.job, now)

    def _step_pass(self, job: Job, now: float) -> None:
        if now >= self._spent_at:
            self._spent_at = now + SPENT_S
            self._out.journal("spent", job.clock.spent(now))
        workers = self._members.joined("worker")
        if not (workers or job.schedule.over):
            self._step_without_workers(job, now)
            return
        self.worker_wait.over()
        if job.pass_ == "survey":
            self.survey.step(job, now)
        else:
            self.training.step(job, workers, now)

    def _step_without_workers(self, job: Job, now: float) -> None:
        """No worker is left: end the training if it is over or limited, else wait for a worker."""
        schedule = job.schedule
        if job.pass_ == "train":
            self.training.step_without_workers(job, now)
        if not (schedule.over or self.looks.round_busy):
            self.worker_wait.step(f"{schedule.size - schedule.finished} blocks", now)

    def stood_still(self, seconds: float, now: float) -> None:
        self.leases.late.stood_still(seconds, now)
        self.worker_wait.stood_still(seconds)
        self.exporting.stood_still(seconds)
        self.looks.stood_still(seconds)

    @property
    def can_wait(self) -> bool:
        """Whether there is a job that can wait for a worker. Rounds cannot before they begin: how
        many there are is fixed by the workers at that time."""
        before = self.phase in (JobPhase.RESTORING, JobPhase.SURVEY, JobPhase.LOADING)
        needs_workers = before and self.job is not None and self.job.model.rounds.number
        return self.phase not in (JobPhase.IDLE, JobPhase.STOPPING) and not needs_workers

    @property
    def in_haste(self) -> bool:
        """Whether the loop is not to sleep: calls may be answered now, or workers wait for work
        beside the loop that ends soon."""
        return self.leases.busy or self.looks.inspecting

    @property
    def holds_rows(self) -> bool:
        """Whether rows are being saved or restored: no shard is to move meanwhile."""
        restores = self.checkpoints.place.resumes or self.phase is JobPhase.RESTORING
        return self.checkpoints.saver.holds_rows or restores or self.looks.holds_rows

    # --- members -------------------------------------------------------------------------------

    def all_back(self, now: float) -> None:
        """All members are back or given up: repeat what the lost master may not have sent."""
        if self.job is not None and self.phase is JobPhase.TRAINING:
            self.training.all_back(self.job, self.handout.report, now)

    def finished(self, member: Member, message: messages.Finished, now: float) -> None:
        """A worker has ended its part of the job. In a session it may be the part of an earlier job
        that ended without the worker: then it gets the present one."""
        if member.dropped:
            is_earlier = member.caught_up() != self.ended_jobs.newest
            if is_earlier:
                self.handout.start(member)
            if is_earlier or self.job is None:
                return
        self.leases.finished(member, message, now)

    # --- errors --------------------------------------------------------------------------------

    def _failed(self, error: BaseException, now: float) -> None:
        """Work beside the loop has failed: what that means depends on the phase."""
        if self.exporting.export.cancelled:
            self.exporting.end_cancelled()
            return
        if not isinstance(error, SnailError):
            log.error("%s failed", self.phase.value, exc_info=error)
            text = f"{self.phase.value} failed at the master: {explain(error)}"
            failure = Failure(text, EXIT_FAILED, frames_of(error), is_full(error))
        elif isinstance(error, ClusterError) and error.__cause__ is not None:  # of a user's method
            log.error("%s", error, exc_info=error.__cause__)
            trace = frames_of(error.__cause__)
            failure = Failure(str(error), error.exit_code, trace, is_full(error))
        elif self.opening.answer_submitter(error):
            self.end()
            return
        else:
            failure = Failure(str(error), error.exit_code, "", is_full(error))
        if self.phase is JobPhase.EXPORTING and not isinstance(error, NotFinite):
            self.exporting.failed(failure, now)
        else:
            self.present.hooks.fail_job(*failure[:3])

    def abandon(self, text: str, now: float, trace: str = "", *, is_wrong: bool = False) -> None:
        """Give up a job that has failed, and all that it waits for. Calls of its workers are
        refused. Its rows stay until the next job begins: the driver may want to look at them."""
        job = self.job
        assert job is not None
        failed = EndedJob(to_mapping(job.settings), {}, text, trace, is_wrong=is_wrong)
        self.ended_jobs.keep(failed)
        kind = JobInputError if is_wrong else ClusterError
        self.opening.answer_submitter(kind(with_frames(text, trace)))
        self.present.disown()
        self.exporting.abandon()
        self.survey.refuse()
        self.leases.close()
        self.checkpoints.abandon("the job has failed")
        self.looks.close(failed=True)
        self.training.abandon(job, now)
        self.end()
        self.present.go(JobPhase.STOPPING)
        self.present.figures, self.present.failure = {}, text

    # --- the end -------------------------------------------------------------------------------

    def remember(self) -> None:
        """Keep figures, tables and summary of a job that has ended for its driver."""
        if (job := self.job) is not None:
            summary = None if job.survey.summary is None else job.survey.message()
            tables, figures = dict(self._members.table_registry.tables), self.present.figures
            ended = EndedJob(to_mapping(job.settings), figures, tables=tables, summary=summary)
            self.ended_jobs.keep(ended)

    def end(self) -> None:
        """Return to waiting for a job."""
        self.checkpoints.place.forget()
        self.exporting.forget()
        if self.job is not None:
            self._out.work(self.job.close, ignored)
        self.looks.forget()
        self.present.over()
        self._members.left.clear()
        for member in self._members.nodes():
            member.job_over()

    def abandoned(self) -> None:
        """Wait for the next job: the workers of the failed one are gone."""
        self.present.go(JobPhase.IDLE)
