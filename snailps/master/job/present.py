"""Owns what all phases of the present job share: the job, its phase, the work that it waits for.

    begin(job) -> go(phase) ... -> over()          beside(run, then): work, then its result, or
    reading() -> what reading its rows needs       `failed` (`JobController`)

One job at a time, and one work that it waits for. Must not know what a phase does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from snailps.errors import EXIT_FAILED
from snailps.master.effects import Outbox
from snailps.master.job.job import Job
from snailps.master.leases.service import LeaseService
from snailps.master.membership import Membership
from snailps.master.phases import JobPhase, job_step
from snailps.master.services import ModelAccess
from snailps.node.effects import WorkDone

NUMBERS = 3
"""Incarnations for one reading of the tables: an export connects up to three times."""
Then = Callable[[Any, float], None]
"""Callback of work beside the loop: gets its result, and the time."""


class FailJob(Protocol):
    """Fail the job, and the cluster unless it outlives the job."""

    def __call__(self, text: str, code: int = EXIT_FAILED, trace: str = "") -> None: ...


class JobHooks(NamedTuple):
    """What a job has the cluster do."""

    fail_job: FailJob
    # the export was ended before the result was complete: leave, or fail with this code
    export_cancelled: Callable[..., None]
    job_ended: Callable[[float], None]  # the result is written


class PresentJob:
    def __init__(
        self,
        out: Outbox,
        members: Membership,
        leases: LeaseService,
        hooks: JobHooks,
        failed: Callable[[BaseException, float], None],  # of work beside the loop
    ) -> None:
        self._out, self._members, self._leases, self._failed = out, members, leases, failed
        self.hooks = hooks
        self.phase = JobPhase.IDLE
        self.figures: dict[str, Any] = {}
        """Of the job, or of the last one until the next begins."""
        self.failure = ""
        """Why the last job has failed, where the cluster outlives its jobs."""
        self.interrupted = False
        self._side = 0  # the work that the job waits for; 0: none

    @property
    def job(self) -> Job | None:
        return self._leases.job

    def begin(self, job: Job) -> None:
        self._leases.job, self.figures, self.failure, self.interrupted = job, {}, "", False
        self.go(JobPhase.PREPARING)

    def over(self) -> None:
        self.go(JobPhase.IDLE)
        self._leases.job, self.interrupted = None, False

    def go(self, phase: JobPhase) -> None:
        """Enter a phase; an invalid transition is a defect."""
        self.phase = job_step(self.phase, phase)

    def reading(
        self, more: Mapping[str, Any] | None = None, *, settled: bool = False
    ) -> ModelAccess:
        """What a reading of the tables that begins now needs; `more` figures for the model's class.
        `settled`: it waits until what is done is applied."""
        job = self._leases.job
        slots = job.schedule.slots if settled and job is not None else None
        return ModelAccess(
            iter(self._members.numbers.reserve(NUMBERS)),
            dict(self._members.table_registry.tables),
            {**self.figures, **(more or {})},
            0 if slots is None else slots.open,
        )

    # --- beside the loop -----------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether the job waits for work beside the loop."""
        return bool(self._side)

    def beside(self, run: Callable[[], Any], then: Then) -> None:
        """Run work that the job waits for; `then` gets its result."""
        self._side = self._out.work(run, partial(self._done, then))

    def _done(self, then: Then, done: WorkDone, now: float) -> None:
        self._side = 0
        if done.error is None:
            then(done.result, now)
        else:
            self._failed(done.error, now)

    def disown(self) -> None:
        """Ignore the result of the work: its thread may still run for a while."""
        self._out.disown(self._side)
        self._side = 0
