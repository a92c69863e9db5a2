"""Owns the phase of a job at the master: start, survey, training, export.

    prepare(job) -> Start to every worker -> leases ... -> summary -> leases ... -> export -> on_end

    phase changes               by                          `phases.JOB` has the transitions
    preparing > ready           work beside the loop: the input is found
    ready > survey | training   the cluster is formed and has a worker
            > restoring         there is a checkpoint: servers take their rows first
    survey > training           all parts are merged; the loader may fill tables in between
    training > exporting        all blocks are done, or the training ends early
    exporting > idle            the files are written

Long work, and all of the model's class, runs beside the loop (`_beside`), one at a time; the job
waits for it, and `_side_done` handles its error. Must not know how calls of workers are answered
(`leases/service.py`) or checkpoints made (`master/checkpoints.py`). `now` is monotonic seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from snailps.api.export_progress import ExportProgress
from snailps.api.plain_values import is_users, named_method
from snailps.api.range_passes import TrainingPlan
from snailps.config import to_mapping
from snailps.dataclass import asdict
from snailps.errors import (
    EXIT_FAILED,
    ClusterError,
    DataError,
    JobInputError,
    NotFinite,
    SnailError,
    explain,
    frames_of,
    is_full,
    with_frames,
)
from snailps.master.checkpoints import CheckpointController, Hooks
from snailps.master.context import Context
from snailps.master.effects import CancelExport, Compact, Fact, LeaveRounds, Snapshot
from snailps.master.job.ended_jobs import EndedJob, EndedJobs
from snailps.master.job.epoch_tests import EpochTests
from snailps.master.job.expiry import ExpiryClock
from snailps.master.job.export import Export
from snailps.master.job.inspection import INSPECTIONS, Inspection
from snailps.master.job.job import Job
from snailps.master.job.recovery import JobRecovery, Recovered, RoundCourse
from snailps.master.job.state import JobState
from snailps.master.job.worker_wait import WorkerWait
from snailps.master.leases.schedule import Schedule
from snailps.master.leases.service import LeaseService
from snailps.master.leases.waits import ANY_WORKER
from snailps.master.lifecycle import Lifecycle
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.master.phases import AT_WORK, JobPhase, job_step
from snailps.master.replication.shard_orders import ShardOrders
from snailps.master.replication.shard_reports import ShardReports
from snailps.master.room_wait import RoomWait
from snailps.master.services import Completed, Opened, Services
from snailps.node.effects import OnDone, WorkDone
from snailps.outward import outward, without_secrets
from snailps.registry import named
from snailps.transport import messages

log = logging.getLogger(__name__)

SPENT_S = 5.0
"""Seconds between two notes of the time worked, and so the most of it that a takeover loses."""
Then = Callable[[Any, float], None]
"""Callback of work beside the loop: gets its result, and the time."""


class Above(Protocol):
    """What a job asks of the parts above it."""

    def fail_job(self, text: str, code: int = EXIT_FAILED, trace: str = "") -> None:
        """Fail the job of a session, else the cluster."""

    def export_cancelled(self, text: str, code: int | None = None) -> None:
        """The export was ended before the result was complete: leave, or fail with this code."""

    def job_ended(self, now: float) -> None:
        """The result is written."""

    def expel(self, member: Member, why: str, now: float, after: str = "") -> None:
        """Declare a member lost that may still run; `after`: what follows on that, in words."""


class _Failure(NamedTuple):
    """Arguments of `Above.fail_job`."""

    text: str
    code: int
    trace: str = ""
    is_full: bool = False  # for want of room on a disk


class JobController:
    def __init__(
        self,
        context: Context,
        services: Services,
        members: Membership,
        lifecycle: Lifecycle,
        shard_orders: ShardOrders,
        shard_reports: ShardReports,
        above: Above,
        past: Recovered | None = None,  # notes of an earlier master: the job resumes from there
    ) -> None:
        self._life, self._services = context.life, services
        self._out, self._members = context.out, members
        self._shard_orders, self._shard_reports = shard_orders, shard_reports
        self._above, out = above, context.out
        self.ended_jobs = EndedJobs(out)
        self.leases = LeaseService(
            context, members, lifecycle, shard_orders, self.ended_jobs, above.expel, self._retired
        )
        self.recovery = JobRecovery(past, members, shard_orders)
        self.round: RoundCourse | None = None
        self.epoch_tests: EpochTests | None = None  # of a job with a `Validation`
        self.phase = JobPhase.IDLE
        self.figures: dict[str, Any] = {}
        self.failed = ""  # why the last job of a session failed
        self.interrupted = False
        self._is_formed = False
        self._starting: dict[Member, None] = {}  # workers that joined, and get the job in `report`
        self._submitter: int | None = None  # call of the driver, until the job is prepared
        self._summaries: list[int] = []  # calls of workers that wait for the summary
        self._side = 0  # the work beside the loop that the job waits for; 0: none
        self.inspection = Inspection(members, out, services.reader)
        self.expiry = ExpiryClock(out, shard_orders)
        self.checkpoints = CheckpointController(
            out, members, shard_orders, shard_reports, services.files,
            Hooks(self._restored, lambda error: above.fail_job(str(error)), self._saved),
        )  # fmt: skip
        advice = self.checkpoints.advice
        self.export = Export(members, shard_reports, out, advice, self.ended)
        self.worker_wait = WorkerWait(context, advice, above.fail_job)
        self.loading = ExportProgress()  # of reading first rows from a file
        self._saved_last = False  # an interrupted job has begun its last checkpoint
        self._failure: _Failure | None = None  # of an export, while its rows are saved
        self._room = RoomWait(context.settings.master_time_out)  # of an export on a full disk
        self._saved_before = 0  # checkpoints saved before that
        self._spent_at = 0.0  # when the seconds of work are noted next

    @property
    def job(self) -> Job | None:
        return self.leases.job

    @job.setter
    def job(self, job: Job | None) -> None:
        self.leases.job = job

    def _go(self, phase: JobPhase) -> None:
        self.phase = job_step(self.phase, phase)

    # --- beginning and resuming ------------------------------------------------------------------

    def prepare(self, job: Job, workers: int, call: int | None = None) -> None:
        """Find the job's input beside the loop, then start the job on the formed cluster. With
        `call`, of a submitted job, an error goes to the driver, and the cluster stays."""
        self.job, self.figures, self.interrupted = job, {}, False
        self.failed = ""
        self.ended_jobs.newest += 1
        if self._life.outlives_job:
            self.ended_jobs.note(to_mapping(job.settings))
        self._saved_last = False
        self.inspection.begin()
        self._go(JobPhase.PREPARING)
        self._submitter = call
        self._beside(partial(self._find, job, workers), partial(self._prepared, job))

    def _find(self, job: Job, workers: int) -> Opened | None:
        """Find the input and the checkpoints, beside the loop."""
        job.prepare(workers)
        if self.job is not job:  # given up meanwhile: the next job may have opened the folder
            job.close()
            return None
        begins = not self.recovery.begun
        opened = self.checkpoints.open(job, job.settings, resumes=begins, needed=begins)
        restores = opened is not None and bool(opened.candidates)
        if not (job.has_survey or restores or self.recovery.begun):
            self._services.keep_base(job.base())
        return opened

    def formed(self, now: float) -> None:
        """Begin a prepared job: the cluster is complete."""
        self._is_formed = True
        if self.job is not None and self.phase is JobPhase.READY:
            self._begin(self.job, now)

    def _prepared(self, job: Job, opened: Opened | None, now: float) -> None:
        name, files, megabytes = job.describe()
        log.info("%s: %d file%s, %.1f MB", name, files, "" if files == 1 else "s", megabytes)
        if job.measured:
            self._out.happened("input", "", f"by the input: {', '.join(job.measured)}")
            log.info("by the input: %s", ", ".join(job.measured))
        self.checkpoints.opened(job, opened, now, resumes=not self.recovery.begun)
        self._answer_submitter(messages.Submitted(self.ended_jobs.newest))
        self._go(JobPhase.READY)
        if self._is_formed:
            self._begin(job, now)

    def _answer_submitter(self, answer: messages.Message | SnailError) -> None:
        if self._submitter is not None:
            self._out.reply(self._submitter, answer)
            self._submitter = None

    def _begin(self, job: Job, now: float) -> None:
        if self.recovery.begun:
            self.recovery.go_on(self, job, now)
            return
        if not self.recovery.known:
            # A worker without which the last job has ended may still push to its tables.
            late = any(member.dropped for member in self._members.nodes("worker"))
            self._members.table_registry.forget_job(now, in_use=late)
            self.ended_jobs.forget_tables()
            self._shard_orders.expired = 0
            self.expiry.begin(now)
        if not self._members.joined("worker"):
            if not any(member.role == "worker" for member in self._members.left):
                self._above.fail_job(
                    "a job needs a worker, and the cluster has none: raise expected_node_num, or "
                    "start workers"
                )
            return  # the workers have left again: `step` waits for another one
        if self.checkpoints.resumes:
            self._go(JobPhase.RESTORING)
            self.checkpoints.forget_others()
            self.checkpoints.restore(now)
            return
        if job.has_survey:
            self.begin_survey(job, now)
        else:
            self._open_book(job, now)
        self._start_all()

    def begin_survey(self, job: Job, now: float) -> None:
        self._out.note("survey", {})
        self._go(JobPhase.SURVEY)
        job.begin_pass("survey", now)

    def _saved(self, completed: Completed | None, now: float) -> None:
        """The same job would go on from a checkpoint."""
        if self._life.outlives_job and self.job is not None and not self.job.settings.fresh:
            self.ended_jobs.saved(self._members.table_registry.used)

    def _restored(self, state: JobState, rows: int, now: float) -> None:
        """Resume the training: the servers have the rows of a checkpoint."""
        self._saved(None, now)
        job = self.job
        if job is not None:
            self._beside(partial(self._keep, job, state), partial(self._kept, job, state))

    def _keep(self, job: Job, state: JobState) -> None:
        """Keep the state from which a master that takes over begins; beside the loop."""
        job.check_state(state)
        job.check_room(state.summary)
        self._services.keep_base(state)
        if state.summary is not None:
            job.ready_summary(state.summary)

    def _kept(self, job: Job, state: JobState, _: None, now: float) -> None:
        self._open_book(job, now, state)
        self.expiry.resume(job, now)
        self._start_all()

    def _open_book(self, job: Job, now: float, state: JobState | None = None) -> None:
        """Open the schedule of the training; with clocks, shards begin at the first one."""
        here = [m for m in self._members.joined("worker") if m.takes_blocks]
        nodes = [member.number for member in here]
        if job.needs_workers and not nodes:
            self._above.fail_job(
                "every worker has left before the training began: look at their logs, and start "
                "others"
            )
            return
        restored = self.checkpoints.continued_from
        try:
            plan = job.plan_training(max(1, len(nodes)), state)  # one comes, if none is here
        except SnailError as error:
            self._above.fail_job(str(error), error.exit_code)
            return
        except (Exception, SystemExit) as error:  # of the model's class
            log.error("planning the training failed", exc_info=error)
            text = f"planning the training failed at the master: {explain(error)}"
            self._above.fail_job(text, trace=frames_of(error))
            return
        fields = None if plan is None else asdict(plan)
        self._out.note("train", {"nodes": nodes, "restored": restored, "rotation": fields})
        for member in here:
            member.training_begins(now)
        self.begin_training(job, nodes, state, now, plan)
        at_work, why = job.at_work(len(nodes))
        if at_work < len(nodes):
            text = f"no more than {at_work} of {len(nodes)} workers train at a time, because {why}"
            self._out.happened("warning", "", text)
            self._out.say(text, logging.WARNING, reported=True)
        if job.schedule.clocks is not None:
            self.set_clock(job, state.clock if state is not None else 0, now)

    def begin_training(
        self,
        job: Job,
        nodes: list[int],
        state: JobState | None,
        now: float,
        plan: TrainingPlan | None = None,
    ) -> None:
        job.begin_pass("train", now, nodes, state, plan, self._members.cores_of)
        self.leases.over_at = 0.0
        self._go(JobPhase.TRAINING)
        self.checkpoints.training_begins(now)
        if job.validation is not None and job.schedule.rounds is None:
            name = f"{self._members.cluster_id:016x}-{self.ended_jobs.newest}"
            self.epoch_tests = EpochTests(
                job, name, self._out, self.inspection, self._services, self.checkpoints, self
            )
        if (rounds := job.schedule.rounds) is not None:
            self.inspection.begin_rounds()
            self.round = named("rounds").RoundController(
                self._out,
                job,
                rounds,
                self._shard_orders,
                self.checkpoints,
                partial(self._inspect, job),
                self._above.fail_job,
            )

    def _inspect(self, job: Job, round_: int, parts: int, then: OnDone, now: float) -> None:
        self.inspection.after_round(job, round_, {**self.figures, "parts": parts}, then, now)

    def set_clock(self, job: Job, clock: int, now: float) -> None:
        """Set the clock of all shards. Nothing is leased before they have it: a push to a clock
        that a shard does not expect yet would be dropped with what is staged."""
        self._shard_orders.set_clock(clock, early=job.schedule.rounds is not None, now=now)

    def start(self, member: Member) -> None:
        """Give a worker that joined the job, at the next `report`."""
        self.leases.number_changed()
        self._starting[member] = None

    def report(self, now: float) -> None:
        """Report a changed number of workers to all, and the job to new ones. Called at the end of
        a turn of the loop: however many workers join in it, the others get one message."""
        coming, self._starting = self._starting, {}
        self.leases.report(but=coming)
        workers = len(self._members.joined("worker")) if coming else 0
        for member in list(coming):
            if self._members.all.get(member.number) is member:
                self._start(member, workers)

    def _start_all(self) -> None:
        workers = self._members.joined("worker")
        for member in workers:
            self._start(member, len(workers))

    def _start(self, member: Member, workers: int) -> None:
        self._starting.pop(member, None)  # it joined while the job began: `_start_all` is enough
        if self.job is None or self.phase not in AT_WORK or member.dropped:
            return
        member.job_given()
        if self.phase is JobPhase.TRAINING:
            self._out.note("join", {"node": member.number})
            self.job.schedule.join(member.number)
        self._out.send(member.peer, self.job.start_message(workers))

    # --- the loop ------------------------------------------------------------------------------

    def leases_go_on(self, now: float) -> None:
        self.leases.answer(now)

    def fail_job(self, text: str, code: int = EXIT_FAILED, trace: str = "") -> None:
        self._above.fail_job(text, code, trace)

    def heard(self, member: Member, message: messages.Saved | messages.Loaded, now: float) -> None:
        """A server has saved or loaded rows."""
        self.checkpoints.heard(member, message, now)
        if self.epoch_tests is not None:
            self.epoch_tests.heard(member, message, now)

    def server_lost(self, member: Member, why: str, now: float) -> None:
        """A server is gone that may have been saving or loading rows."""
        self.checkpoints.lost(member, why, now)
        if self.epoch_tests is not None:
            self.epoch_tests.lost(member, why, now)

    def stood_still(self, seconds: float, now: float) -> None:
        self.leases.late.stood_still(seconds, now)
        self.checkpoints.stood_still(seconds)
        self.worker_wait.stood_still(seconds)
        self._room.stood_still(seconds)
        self.export.stood_still(seconds)
        if self.round is not None:
            self.round.stood_still(seconds)
        if self.epoch_tests is not None:
            self.epoch_tests.stood_still(seconds)

    def step(self, now: float) -> None:
        """Advance the job: begin what follows a pass that has ended, look for limits and waits."""
        if self.phase is JobPhase.EXPORTING and self.export.step(now):
            self._end_cancelled()
        self.checkpoints.step(now)
        if self._failure is not None and not (self._side or self.checkpoints.running):
            failure, self._failure = self._failure, None
            self._fail_export(failure, now)
            return
        if self.job is not None and self._room.is_due(now) and not self.export.cancelled:
            self._export(self.job, now)
        if self.phase is JobPhase.READY and self._is_formed and self.job is not None:
            if self._members.joined("worker"):
                self.worker_wait.over()
                self._begin(self.job, now)
            else:
                self.worker_wait.step("all blocks", now)
        if self.phase not in (JobPhase.SURVEY, JobPhase.TRAINING) or self._side:
            return
        job = self.job
        assert job is not None
        if now >= self._spent_at:
            self._spent_at = now + SPENT_S
            self._out.note("spent", job.spent(now))
        workers = self._members.joined("worker")
        if not (workers or job.schedule.over):
            self._go_on_without(job, job.schedule, now)
            return
        self.worker_wait.over()
        if job.pass_ == "survey" and job.schedule.over:
            job.end_pass(now)
            self._beside(partial(self._end_survey, job), self._summarised)
        elif job.pass_ == "train":
            self.step_training(job, job.schedule, workers, now)

    def _go_on_without(self, job: Job, schedule: Schedule, now: float) -> None:
        """No worker is left: end the training if it is over or limited, else wait for a worker."""
        if job.pass_ == "train":
            if self.round is not None:
                self.round.step(now)
            self._check_limit(job, schedule, now)
            if schedule.closed:
                schedule.abandon(ANY_WORKER)  # no worker is left to complete its clock
        if not (schedule.over or (self.round is not None and self.round.busy)):
            self.worker_wait.step(f"{schedule.size - schedule.finished} blocks", now)

    def step_training(
        self, job: Job, schedule: Schedule, workers: list[Member], now: float
    ) -> None:
        """Advance the training. Once its schedule is over, the export begins when nothing changes
        rows or reads them any more: no worker is late, no inspection, round or checkpoint is under
        way, each lost worker is fenced at all shards, and no shard changes over."""
        inspecting = self.round is not None and self.round.inspecting
        # An inspection may report that an earlier round diverged.
        if job.diverged and not inspecting:
            self._above.fail_job(job.diverged)
            return
        if job.refused:
            self._above.fail_job(job.refused, DataError.exit_code)
            return
        self.inspection.step(job, dict(self.figures), now)
        if self.epoch_tests is not None:
            orders = self._shard_orders
            rows_change = orders.open("fence", "expire") or orders.moving
            numbers = {member.number for member in workers}
            self.epoch_tests.step(numbers, now, rows_change=rows_change)
        self.expiry.step(job, now)
        self.leases.note_waits(job, schedule, workers, now)
        if self.round is not None:
            self.round.step(now)
        # After `round.step`, which may end the last round: no entry of another one is leased.
        self._check_limit(job, schedule, now)
        if schedule.clocks is not None or self.leases.busy:
            self.leases.answer(now)  # the shards may have reported that they are ready
        late = self.leases.wait_for_late(schedule, workers, now)
        if schedule.over:
            self.leases.answer(now)
            inspecting = self.inspection.running or (self.round is not None and self.round.busy)
            testing = self.epoch_tests is not None and self.epoch_tests.busy
            if late or inspecting or testing or self.checkpoints.running:
                return
            # A lost worker may push until all shards have fenced it, and no server serves a shard
            # that changes over: the export would read a torn model, or wait.
            if self._shard_orders.busy or self._shard_orders.moving:
                return
            if self.interrupted and self.checkpoints.writes and not self._saved_last:
                self._saved_last = True  # the same command resumes from here
                self.checkpoints.begin(job, now)
                return
            if self.epoch_tests is not None and not self.epoch_tests.ends(now):
                return
            job.end_pass(now)
            if refused := job.refused or job.lacks_rounds():
                self._above.fail_job(refused, DataError.exit_code)
                return
            self._begin_export(job, now)

    def _check_limit(self, job: Job, schedule: Schedule, now: float) -> None:
        if not (schedule.over or schedule.closed) and (limit := job.limit_reached(now)):
            self.end_early(job, limit, now)
            self._out.say(f"{limit} reached: finishing the leased blocks, then saving the model")

    def snapshot(self, now: float) -> Snapshot | None:
        """State of the job for a master that takes over, beside members and base. None where the
        journal is not to be compacted: outside the training, or between its end and the export,
        whose few facts are replayed as they are. Of a job that does not go on there is nothing to
        keep: all other facts stay."""
        if not self._life.job_goes_on:
            facts = [*self._members.shard_facts(), *self._members.driver_facts()]
            return Snapshot({}, {}, facts)
        job = self.job
        if self.phase is not JobPhase.TRAINING or self._side or job is None:
            return None
        schedule = job.schedule
        state = job.dump(now, exact=True)
        facts = self._members.shard_facts()
        if self.leases.clocks_noted:
            facts.append(Fact("clocks", {}))
        if job.ended_by:
            facts.append(Fact("early", {"why": job.ended_by, "size": schedule.size}))
        if self.round is not None:
            facts += self.round.facts()
        return Snapshot({"job": state.about}, state.arrays, facts)

    def compact(self, now: float) -> None:
        snapshot = self.snapshot(now)
        if snapshot is not None:
            self._out.put(Compact(snapshot))

    @property
    def can_wait(self) -> bool:
        """Whether there is a job that can wait for a worker. Rounds cannot before they begin: how
        many there are is fixed by the workers at that time."""
        before = self.phase in (JobPhase.RESTORING, JobPhase.SURVEY, JobPhase.LOADING)
        needs_workers = before and self.job is not None and self.job.needs_workers
        return self.phase not in (JobPhase.IDLE, JobPhase.STOPPING) and not needs_workers

    @property
    def in_haste(self) -> bool:
        """Whether the loop is not to sleep: calls may be answered now, or workers wait for work
        beside the loop that ends soon."""
        return self.leases.busy or (self.round is not None and self.round.inspecting)

    @property
    def holds_rows(self) -> bool:
        """Whether rows are being saved or restored: no shard is to move meanwhile."""
        restores = self.checkpoints.resumes or self.phase is JobPhase.RESTORING
        keeps = self.epoch_tests is not None and self.epoch_tests.holds_rows
        return self.checkpoints.holds_rows or restores or keeps

    def interrupt(self, now: float) -> None:
        """End the training early: leased blocks are finished, and the model is saved."""
        if self.job is not None and not self.interrupted:
            self.interrupted = True
            self.end_early(self.job, "interrupt", now)
            text = "interrupted: finishing the blocks at work, then saving the model"
            self._out.say(text, logging.WARNING)

    def end_early(self, job: Job, why: str, now: float) -> None:
        job.end_early(why)
        self._out.note("early", {"why": why, "size": job.schedule.size})
        self.ends_early(interrupted=self.interrupted, now=now)
        self.leases.answer(now)

    def ends_early(self, *, interrupted: bool, now: float) -> None:
        """Give leased blocks a limited time to be finished."""
        self.interrupted = interrupted
        self.leases.late.progress(now)

    # --- what workers ask --------------------------------------------------------------------

    def all_back(self, now: float) -> None:
        """All members are back or given up: repeat what the lost master may not have sent."""
        job = self.job
        if job is None or self.phase is not JobPhase.TRAINING:
            return
        self.inspection.begin(int(job.progress(now) * INSPECTIONS))
        self.report(now)  # a new worker gets the job before any message about it
        workers = self._members.joined("worker")
        if workers and all(member.finished for member in workers) and not job.schedule.over:
            lacking = job.schedule.size - job.schedule.finished
            # Nobody would ask for these blocks: the job would wait for ever.
            self._above.fail_job(
                f"the journal lacks {lacking} blocks that workers have trained and no longer "
                "remember: it was damaged, or its machine died. Start again with --fresh"
            )
        if self.round is not None:
            self.round.lost(now)  # the lost master may have died before it ordered this
        self.leases.all_back(job, now)

    def came_back(self, member: Member, now: float) -> None:
        """Adopt what a worker of an earlier master has leased and reported."""
        if self.job is None or not self.job.pass_:
            return
        if member.resume_state["started"]:
            self.leases.came_back(member, now)
        else:
            self.start(member)

    def finished(self, member: Member, message: messages.Finished, now: float) -> None:
        """A worker has ended its part of the job. In a session it may be the part of an earlier job
        that ended without the worker: then it gets the present one."""
        if member.dropped:
            is_earlier = member.caught_up() != self.ended_jobs.newest
            if is_earlier:
                self.start(member)
            if is_earlier or self.job is None:
                return
        self.leases.finished(member, message, now)

    def _retired(self, now: float) -> None:
        """Blocks of a worker that is gone are to be trained again."""
        if self.round is not None:
            self.round.lost(now)

    def summarise(self, member: Member, message: messages.Summarise, call: int, now: float) -> None:
        """Send a worker the summary of the survey once all is merged.  A driver gets the summary of
        an ended job or of the present one, empty before all is merged."""
        if member.role == "driver":
            nothing = messages.Summary(b"")
            if (present := self._at_work(message.job)) is not None:
                merged = present.summary is not None and present.pass_ == "train"
                self._out.reply(call, present.summary_message() if merged else nothing)
            else:
                self._out.reply(call, self.ended_jobs[message.job].summary or nothing)
            return
        job, schedule = self.leases.running()
        if job.summary is not None and job.pass_ == "train":
            self._out.reply(call, job.summary_message())
        elif not schedule.over:  # another master has begun the survey again
            self._out.reply(call, messages.Again())
        else:
            member.wait_for("the survey to be merged", now)
            self._summaries.append(call)

    def _end_survey(self, job: Job) -> str:
        """Make the summary, beside the loop; returns what the job will write, in words."""
        job.end_survey()
        files = job.check_room(job.summary)
        self._services.keep_base(job.base())
        return files

    def _summarised(self, files: str, now: float) -> None:
        if files:
            self._out.happened("files", "", f"will write {files}")
            log.info("will write %s", files)
        self.summarised(now)

    def summarised(self, now: float) -> None:
        """The survey is merged, and the journal's base has it: load first rows, or train."""
        self._out.note("summary", {})
        job, _ = self.leases.running()
        assert job.summary is not None
        self._out.say(f"survey done, summary of {len(job.summary) / 1e6:.1f} MB")
        if job.loader is None:
            self._begin_training(None, now)
            return
        self._go(JobPhase.LOADING)
        reading = self.inspection.reading(dict(self.figures))
        self.loading = ExportProgress()
        read = partial(self._services.reader.load, job, job.loader, reading, self.loading)
        self._beside(read, self._begin_training)

    def _begin_training(self, _: object, now: float) -> None:
        job, _ = self.leases.running()
        assert job.summary is not None
        self._open_book(job, now)
        self.leases.answer(now)
        for call in self._summaries:
            self._out.reply(call, job.summary_message())
        self._summaries.clear()

    # --- beside the loop -----------------------------------------------------------------------

    def _beside(self, run: Callable[[], Any], then: Then) -> None:
        """Run work that the job waits for; `then` gets its result."""
        self._side = self._out.work(run, partial(self._side_done, then))

    def _side_done(self, then: Then, done: WorkDone, now: float) -> None:
        self._side = 0
        error = done.error
        if error is None:
            then(done.result, now)
            return
        if self.export.cancelled:
            self._end_cancelled()
            return
        if not isinstance(error, SnailError):
            log.error("%s failed", self.phase.value, exc_info=error)
            text = f"{self.phase.value} failed at the master: {explain(error)}"
            failure = _Failure(text, EXIT_FAILED, frames_of(error))
        elif isinstance(error, ClusterError) and error.__cause__ is not None:  # of a user's method
            log.error("%s", error, exc_info=error.__cause__)
            failure = _Failure(str(error), error.exit_code, frames_of(error.__cause__))
        elif self._submitter is not None:
            self._answer_submitter(error)
            self.end()
            return
        else:
            failure = _Failure(str(error), error.exit_code)
        if self.phase is JobPhase.EXPORTING and not isinstance(error, NotFinite):
            failure = failure._replace(is_full=is_full(error))
            if self._room.waits:
                self._fail_export(failure, now)
            else:
                self._keep_rows(failure, now)
        else:
            self._above.fail_job(*failure[:3])

    # --- an export that failed -------------------------------------------------------------------

    def _keep_rows(self, failure: _Failure, now: float) -> None:
        """Save a checkpoint of the trained rows before the job fails: the user may mend the code or
        the disk that failed, and hours of training are not lost. A life that outlives its job keeps
        the rows until the next one, and a checkpoint under way has them."""
        job = self.job
        assert job is not None
        if self._life.outlives_job or self.checkpoints.running:
            self._above.fail_job(*failure[:3])
            return
        self._failure, self._saved_before = failure, self.checkpoints.saved
        if self.checkpoints.writes:
            self.checkpoints.begin(job, now)
            return
        self._beside(partial(self._open_folder, job), partial(self._opened_folder, job))

    def _open_folder(self, job: Job) -> Opened | SnailError | None:
        try:
            return self.checkpoints.open(job, job.settings, resumes=False, anyway=True)
        except SnailError as error:  # the folder is another job's, or cannot be written
            return error

    def _opened_folder(self, job: Job, opened: Opened | SnailError | None, now: float) -> None:
        if isinstance(opened, SnailError):
            log.error("the trained rows cannot be saved: %s", opened)
            failure, self._failure = self._failure, None
            assert failure is not None
            self._fail_export(failure, now)
            return
        self.checkpoints.opened(job, opened, now, resumes=False)
        self._saved_before = self.checkpoints.saved
        self.checkpoints.begin(job, now)

    def _fail_export(self, failure: _Failure, now: float) -> None:
        """End the job whose export has failed; its rows are saved, if they could be. Without room
        for either, wait for it: `step` exports again."""
        text = failure.text
        if self.checkpoints.saved > self._saved_before:
            text += f". {self.checkpoints.advice_to_export()}"
        elif failure.is_full:
            if not self._room.full(text, now):
                self._above.export_cancelled(text, failure.code)
            return
        self._above.fail_job(text, failure.code, failure.trace)

    # --- the end -------------------------------------------------------------------------------

    def _begin_export(self, job: Job, now: float) -> None:
        self._go(JobPhase.EXPORTING)
        self._out.put(LeaveRounds())
        log.info("training done, exporting")
        self._export(job, now)

    def _export(self, job: Job, now: float) -> None:
        progress = self.export.begin(now)
        figures = {**self.figures, **({"by_round": job.by_round} if job.round_figures else {})}
        export = partial(
            self._services.reader.export, job, self.inspection.reading(figures), progress
        )
        self._beside(export, self._exported)

    def _exported(self, figures: dict[str, Any], now: float) -> None:
        self._out.note("exported", {"figures": figures})
        self.export.written(figures, now)

    def _end_cancelled(self) -> None:
        self._above.export_cancelled(self.export.verdict())

    def exported_before(self, job: Job, figures: dict[str, Any], now: float) -> None:
        """End a job whose result an earlier master has written."""
        job.end_pass(now)
        self._go(JobPhase.EXPORTING)
        self.ended(figures, now)

    def ended(self, figures: dict[str, Any], now: float) -> None:
        self.figures = figures
        job = self.job
        if self.export.progress is not None and job is not None and is_users(job.cls):
            self._warn_of_tables(job)
        for path in figures.get("files", []):
            self._out.say(f"wrote {path}")
        self.checkpoints.ended("" if self.interrupted else "the run ended")
        self._close_tests()
        self._above.job_ended(now)

    def _close_tests(self) -> None:
        """Close the rows of the best epoch: a checkpoint from which the job resumes needs them."""
        if self.epoch_tests is not None:
            self.epoch_tests.close(goes_on=self.checkpoints.can_resume)
            self.epoch_tests = None

    def cluster_ends(self) -> None:
        """Release what a job has on disk that no other run looks for; its members end."""
        self._close_tests()

    def _warn_of_tables(self, job: Job) -> None:
        """Warn of tables that nothing was pushed to. A forgotten push raises nowhere: the model
        would be written as it began."""
        names = self._shard_reports.never_pushed() if job.metrics.units else []
        if names:
            who, of = named_method(job.cls, "train"), "tables" if len(names) > 1 else "table"
            tables = ", ".join(map(repr, names))
            text = f"{who} has pushed nothing to {of} {tables}: no row was made"
            self._out.say(text, logging.WARNING)

    def remember(self) -> None:
        """Keep figures, tables and summary of a session's job for its driver."""
        if (job := self.job) is not None:
            summary = None if job.summary is None else job.summary_message()
            tables = dict(self._members.table_registry.tables)
            ended = EndedJob(to_mapping(job.settings), self.figures, tables=tables, summary=summary)
            self.ended_jobs.keep(ended)

    def report_job(self, member: Member, message: messages.AskJob, call: int, now: float) -> None:
        """Answer a driver that asks what a job has left; for the present job, at its end."""
        if self._at_work(message.job) is not None:
            self.ended_jobs.wait(call)
        else:
            self._out.reply(call, self.ended_jobs[message.job].report())

    def _at_work(self, number: int) -> Job | None:
        """The present job, if that is its number."""
        newest = self.ended_jobs.newest
        return self.job if number == newest and newest not in self.ended_jobs else None

    def newest(self) -> dict[str, Any]:
        """Number and settings of the present job, or of the last one while its tables are there;
        without settings if there is none."""
        number = self.ended_jobs.newest
        settings: Mapping[str, str] = {}
        if (present := self._at_work(number)) is not None:
            settings = to_mapping(present.settings)
        elif number in self.ended_jobs and self.ended_jobs[number].tables is not None:
            settings = self.ended_jobs[number].settings
        return {"job": number, "settings": outward(settings, without_secrets)}

    def cancel(self, now: float) -> bool:
        """Cancel the export of a job whose driver gives it up; False: no export is under way."""
        if self.phase is not JobPhase.EXPORTING:
            return False
        if not self.export.cancelled:
            self.export.cancel(now)
        return True

    def abandon(self, text: str, now: float, trace: str = "", *, is_wrong: bool = False) -> None:
        """Give up the failed job of a session, and all that it waits for. Calls of its workers are
        refused. Its rows stay until the next job begins: the driver may want to look at them."""
        job = self.job
        assert job is not None
        failed = EndedJob(to_mapping(job.settings), {}, text, trace, is_wrong=is_wrong)
        self.ended_jobs.keep(failed)
        kind = JobInputError if is_wrong else ClusterError
        self._answer_submitter(kind(with_frames(text, trace)))
        self._out.disown(self._side)  # its thread may still run for a while; the result is ignored
        self._side = 0
        if self.export.progress is not None:  # else its thread would continue to write
            self.export.progress.cancel()
            self._out.put(CancelExport())
        self.export.forget()
        self._out.put(LeaveRounds())
        for call in self._summaries:
            self._out.reply(call, ClusterError("the job has failed"))
        self._summaries.clear()
        self.leases.close()
        self.checkpoints.abandon("the job has failed")
        if self.epoch_tests is not None:
            self.epoch_tests.abandon()
        self._close_tests()
        if job.schedule.clocks is not None and self.phase is JobPhase.TRAINING:
            self._shard_orders.set_clock(0, early=True, now=now)  # shards drop what is staged
        self.end()
        self._go(JobPhase.STOPPING)
        self.figures, self.failed = {}, text

    def abandoned(self) -> None:
        """Wait for the next job: the workers of the failed one are gone."""
        self._go(JobPhase.IDLE)

    def end(self) -> None:
        """Return to waiting for a job."""
        self._room.over()
        self.checkpoints.forget()
        self.export.forget()
        if self.job is not None:
            self._out.work(self.job.close, _ignored)
        if self.round is not None:
            self.round.forget()
        self._go(JobPhase.IDLE)
        self.job, self.round, self.interrupted = None, None, False
        self._members.left.clear()
        for member in self._members.nodes():
            member.job_over()

    def check_checkpoint(self, now: float) -> None:
        if self.phase is JobPhase.TRAINING and self.job is not None:
            schedule = self.job.schedule
            busy = self.round is not None and self.round.busy
            busy |= self.epoch_tests is not None and self.epoch_tests.busy
            if not (schedule.over or schedule.closed or busy):
                self.checkpoints.check(self.job, now)


def _ignored(done: WorkDone, now: float) -> None:
    """Nothing waits for this."""
