"""Owns what all phases of the present job share: the job, its phase, the work that it waits for.

    begin(job) -> go(phase) ... -> over()          beside(run, then): work, then its result, or
                                                   `failed` (`JobController`)

One job at a time, and one work that it waits for. Must not know what a phase does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from snailps.errors import EXIT_FAILED
from snailps.master.effects import Outbox
from snailps.master.job.job import Job
from snailps.master.leases.service import Expel, LeaseService
from snailps.master.phases import JobPhase, job_step
from snailps.node.effects import WorkDone

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
    expel: Expel


class PresentJob:
    def __init__(
        self,
        out: Outbox,
        leases: LeaseService,
        hooks: JobHooks,
        failed: Callable[[BaseException, float], None],  # of work beside the loop
    ) -> None:
        self._out, self._leases, self._failed = out, leases, failed
        self.hooks = hooks
        self.phase = JobPhase.IDLE
        self.number = 0
        self.figures: dict[str, Any] = {}
        """Of the job, or of the last one until the next begins."""
        self.failure = ""
        """Why the last job has failed, where the cluster outlives its jobs."""
        self.interrupted = False
        self._side = 0  # the work that the job waits for; 0: none

    @property
    def job(self) -> Job | None:
        return self._leases.job

    def begin(self, job: Job, number: int) -> None:
        self.number = number
        self._leases.job, self.figures, self.failure, self.interrupted = job, {}, "", False
        self.go(JobPhase.PREPARING)

    def over(self) -> None:
        self.go(JobPhase.IDLE)
        self._leases.job, self.interrupted = None, False

    def go(self, phase: JobPhase) -> None:
        """Enter a phase; an invalid transition is a defect."""
        self.phase = job_step(self.phase, phase)

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
