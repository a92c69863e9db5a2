"""Owns a job's training: opens its schedule, advances it each turn, and decides when it is over.

    open(job) -> begin -> step ... -> the schedule is over, and rows stay as they are -> `over`
                          limit, test, signal -> end_early

`looks.py` has what reads rows meanwhile, `leases/service.py` what workers ask. `now` is monotonic
seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from snailps.dataclass import asdict
from snailps.errors import EXIT_FAILED, DataError, SnailError, explain, frames_of
from snailps.master.checkpoints import CheckpointController
from snailps.master.context import Context
from snailps.master.effects import Compact, Fact, Snapshot
from snailps.master.job.beginning import begin_training
from snailps.master.job.ending import end_pass, lacks_rounds
from snailps.master.job.expiry import ExpiryClock
from snailps.master.job.job import Job
from snailps.master.job.looks import Looks
from snailps.master.job.present import PresentJob
from snailps.master.job.record import JobRecord
from snailps.master.job.state import JobState
from snailps.master.job.training_plan import Plan, at_work, plan_training
from snailps.master.leases.schedule import Schedule
from snailps.master.leases.service import LeaseService
from snailps.master.leases.waits import ANY_WORKER
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.master.phases import JobPhase
from snailps.master.replication.shard_orders import ShardOrders
from snailps.registry import named

log = logging.getLogger(__name__)


class TrainingPhase:
    def __init__(
        self,
        context: Context,
        members: Membership,
        shard_orders: ShardOrders,
        leases: LeaseService,
        checkpoints: CheckpointController,
        present: PresentJob,
        looks: Looks,
        expiry: ExpiryClock,
        over: Callable[[Job, float], None],
    ) -> None:
        self._life, self._out = context.life, context.out
        self._members, self._shard_orders = members, shard_orders
        self._leases, self._checkpoints, self._present = leases, checkpoints, present
        self._looks, self._expiry, self._over = looks, expiry, over
        self._saved_last = False  # an interrupted job has begun its last checkpoint

    # --- the beginning -------------------------------------------------------------------------

    def open(self, job: Job, now: float, state: JobState | None = None) -> None:
        """Open the schedule of the training; with clocks, shards begin at the first one."""
        here = [m for m in self._members.joined("worker") if m.takes_blocks]
        nodes = [member.number for member in here]
        if job.model.rounds.number and not nodes:
            self.fail_job(
                "every worker has left before the training began: look at their logs, and start "
                "others"
            )
            return
        restored = self._checkpoints.place.continued_from
        try:
            plan = plan_training(job, max(1, len(nodes)), state)  # one comes, if none is here
            if plan is not None:
                named(plan.option)  # refused now, where this installation lacks it
        except SnailError as error:
            self.fail_job(str(error), error.exit_code)
            return
        except (Exception, SystemExit) as error:  # of the model's class
            log.error("planning the training failed", exc_info=error)
            text = f"planning the training failed at the master: {explain(error)}"
            self.fail_job(text, trace=frames_of(error))
            return
        fields = None if plan is None else asdict(plan)
        self._out.journal("train", {"nodes": nodes, "restored": restored, "rotation": fields})
        for member in here:
            member.training_begins(now)
        self.begin(job, nodes, state, now, plan)
        limit, why = at_work(job, len(nodes))
        if limit < len(nodes):
            text = f"no more than {limit} of {len(nodes)} workers train at a time, because {why}"
            self._out.happened("warning", "", text)
            self._out.say(text, logging.WARNING, reported=True)
        if job.schedule.clocks is not None:
            self.set_clock(job, state.clock if state is not None else 0, now)
        self._expiry.resume(job, now)  # from the ticks of a state

    def begin(
        self,
        job: Job,
        nodes: list[int],
        state: JobState | None,
        now: float,
        plan: Plan = None,
    ) -> None:
        begin_training(job, now, nodes, state, plan, self._members.cores_of)
        self._leases.over_at, self._saved_last = 0.0, False
        self._present.go(JobPhase.TRAINING)
        saver = self._checkpoints.saver
        saver.wait(now, pushes=saver.pushes)  # without those of earlier jobs of a session
        self._looks.begin(job, self)

    def set_clock(self, job: Job, clock: int, now: float) -> None:
        """Set the clock of all shards. Nothing is leased before they have it: a push to a clock
        that a shard does not expect yet would be dropped with what is staged."""
        self._shard_orders.set_clock(clock, early=job.schedule.rounds is not None, now=now)

    # --- the loop ------------------------------------------------------------------------------

    def step(self, job: Job, workers: list[Member], now: float) -> None:
        """Advance the training. Once its schedule is over, the export begins when nothing changes
        rows or reads them any more: no worker is late, no inspection, round or checkpoint is under
        way, each lost worker is fenced at all shards, and no shard changes over."""
        schedule, looks = job.schedule, self._looks
        # An inspection may report that an earlier round diverged.
        if job.rules.diverged and not looks.inspecting:
            self.fail_job(job.rules.diverged)
            return
        if job.rules.refused:
            self.fail_job(job.rules.refused, DataError.exit_code)
            return
        looks.step(workers, now)
        self._expiry.step(job, now)
        self._leases.note_waits(job, schedule, workers, now)
        looks.step_round(now)
        # After `step_round`, which may end the last round: no entry of another one is leased.
        self._check_limit(job, schedule, now)
        if schedule.clocks is not None or self._leases.busy:
            self._leases.answer(now)  # the shards may have reported that they are ready
        late = self._leases.wait_for_late(schedule, workers, now)
        if schedule.over:
            self._leases.answer(now)
            if not (late or self._rows_are_used):
                self._end(job, now)

    @property
    def _rows_are_used(self) -> bool:
        """Whether rows are read, or may still change."""
        if self._looks.running or self._checkpoints.saver.running:
            return True
        # A lost worker may push until all shards have fenced it, and no server serves a shard
        # that changes over: the export would read a torn model, or wait.
        return self._shard_orders.busy or self._shard_orders.moving

    def _end(self, job: Job, now: float) -> None:
        if self._present.interrupted and self._checkpoints.place.writes and not self._saved_last:
            self._saved_last = True  # the same command resumes from here
            self._checkpoints.saver.begin(JobRecord(job), now)
            return
        if not self._looks.may_end(now):
            return
        end_pass(job, now)
        if refused := job.rules.refused or lacks_rounds(job):
            self.fail_job(refused, DataError.exit_code)
            return
        self._over(job, now)

    def step_without_workers(self, job: Job, now: float) -> None:
        """No worker is left: end the training if it is limited."""
        schedule = job.schedule
        self._looks.step_round(now)
        self._check_limit(job, schedule, now)
        if schedule.closed:
            schedule.abandon(ANY_WORKER)  # no worker is left to complete its clock

    def _check_limit(self, job: Job, schedule: Schedule, now: float) -> None:
        if not (schedule.over or schedule.closed) and (limit := job.limit_reached(now)):
            self.end_early(job, limit, now)
            self._out.say(f"{limit} reached: finishing the leased blocks, then saving the model")

    def check_checkpoint(self, now: float) -> None:
        job = self._present.job
        if self._present.phase is JobPhase.TRAINING and job is not None:
            schedule = job.schedule
            if not (schedule.over or schedule.closed or self._looks.busy):
                self._checkpoints.saver.check(JobRecord(job), now)

    # --- its end -------------------------------------------------------------------------------

    def interrupt(self, now: float) -> None:
        """End the training early: leased blocks are finished, and the model is saved."""
        job = self._present.job
        if job is not None and not self._present.interrupted:
            self._present.interrupted = True
            self.end_early(job, "interrupt", now)
            text = "interrupted: finishing the blocks at work, then saving the model"
            self._out.say(text, logging.WARNING)

    def end_early(self, job: Job, why: str, now: float) -> None:
        job.end_early(why)
        self._out.journal("early", {"why": why, "size": job.schedule.size})
        self.ends_early(interrupted=self._present.interrupted, now=now)
        self._leases.answer(now)

    def ends_early(self, *, interrupted: bool, now: float) -> None:
        """Give leased blocks a limited time to be finished."""
        self._present.interrupted = interrupted
        self._leases.late.progress(now)

    def abandon(self, job: Job, now: float) -> None:
        """The job has failed: shards drop what is staged."""
        if job.schedule.clocks is not None and self._present.phase is JobPhase.TRAINING:
            self._shard_orders.set_clock(0, early=True, now=now)

    # --- what tests of epochs ask ----------------------------------------------------------------

    def leases_go_on(self, now: float) -> None:
        self._leases.answer(now)

    def fail_job(self, text: str, code: int = EXIT_FAILED, trace: str = "") -> None:
        self._present.hooks.fail_job(text, code, trace)

    # --- another master --------------------------------------------------------------------------

    def snapshot(self, now: float) -> Snapshot | None:
        """State of the job for a master that takes over, beside members and base. None where the
        journal is not to be compacted: outside the training, or between its end and the export,
        whose few facts are replayed as they are. Of a job that does not go on there is nothing to
        keep: all other facts stay."""
        if not self._life.job_goes_on:
            facts = [*self._members.shard_facts(), *self._members.driver_facts()]
            return Snapshot({}, {}, facts)
        job = self._present.job
        if self._present.phase is not JobPhase.TRAINING or self._present.waits or job is None:
            return None
        schedule = job.schedule
        state = JobRecord(job).dump(now, exact=True)
        facts = self._members.shard_facts()
        if self._leases.clocks_noted:
            facts.append(Fact("clocks", {}))
        if job.rules.ended_by:
            facts.append(Fact("early", {"why": job.rules.ended_by, "size": schedule.size}))
        if self._looks.round is not None:
            facts += self._looks.round.facts()
        return Snapshot({"job": state.about}, state.arrays, facts)

    def compact(self, now: float) -> None:
        snapshot = self.snapshot(now)
        if snapshot is not None:
            self._out.put(Compact(snapshot))

    def all_back(self, job: Job, report: Callable[[float], None], now: float) -> None:
        """All members are back or given up: repeat what the lost master may not have sent."""
        self._looks.resume(now)
        report(now)  # a new worker gets the job before any message about it
        workers = self._members.joined("worker")
        if workers and all(member.finished for member in workers) and not job.schedule.over:
            lacking = job.schedule.size - job.schedule.finished
            # Nobody would ask for these blocks: the job would wait for ever.
            self.fail_job(
                f"the journal lacks {lacking} blocks that workers have trained and no longer "
                "remember: it was damaged, or its machine died. Start again with --fresh"
            )
        self._looks.retired(now)  # the lost master may have died before it ordered this
        self._leases.all_back(job, now)
