"""Owns a submitted job before it begins, and its tie to its driver: loading, cancelling, loss.

    Submit -> Work(load_job) -> OpeningPhase.prepare, or its error to the driver
    AskJob, Summarise -> what a job has left, from `EndedJobs` or the present job
    Cancel, a lost driver -> loading is given up, the job fails, or ends early

Loading runs the user's module beside the loop, with a limit: an import may hang, and cannot be
ended. Must not know what a job does once it has begun (`controller.py`). `now` is monotonic
seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from snailps.config import to_mapping
from snailps.dataclass import dataclass, replace
from snailps.errors import ClusterError, SnailError, explain, frames_of, with_frames
from snailps.master.context import Context
from snailps.master.job.controller import JobController
from snailps.master.job.input import address_of, check_driver_files
from snailps.master.job.job import Job
from snailps.master.lifecycle import Lifecycle
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.master.phases import ClusterPhase, JobPhase
from snailps.master.services import Services
from snailps.node.effects import WorkDone
from snailps.node.status import Phase
from snailps.outward import outward, without_secrets
from snailps.transport import messages

log = logging.getLogger(__name__)

LOAD_S = 300.0
"""Seconds that loading the class of a submitted job may take (torch, from a slow disk)."""


@dataclass(frozen=True, slots=True)
class _Loading:
    """A submitted job whose class is being loaded, and the deadline."""

    work: int
    call: int
    worker_class: str
    until: float


class Submissions:
    def __init__(
        self,
        context: Context,
        services: Services,
        members: Membership,
        lifecycle: Lifecycle,
        job_controller: JobController,
        fail_job: Callable[[str], None],
    ) -> None:
        self._life, self._out, self._services = context.life, context.out, services
        self._members, self._lifecycle = members, lifecycle
        self._job_controller, self._fail_job = job_controller, fail_job
        self._ended_jobs = job_controller.ended_jobs
        self._loading: _Loading | None = None
        self._submitter = 0  # the driver of the newest submitted job
        self._data_at = ""  # the driver's address, where the job reads data of the driver

    @property
    def loading(self) -> bool:
        """Whether the class of a job is being loaded."""
        return self._loading is not None

    @property
    def idle(self) -> bool:
        """Whether no job is at work, nor the class of one being loaded."""
        return self._job_controller.phase is JobPhase.IDLE and not self.loading

    @property
    def phase(self) -> Phase:
        """The phase of the cluster, or of its job."""
        if self._lifecycle.phase is not ClusterPhase.FORMED:
            return cast(Phase, self._lifecycle.phase.value)
        return "preparing" if self.loading else self._job_controller.phase.value

    # --- loading ---------------------------------------------------------------------------------

    def submit(self, member: Member, message: messages.Submit, call: int, now: float) -> None:
        self._check()
        check_driver_files(message.settings, message.files)
        load = partial(self._services.load_job, message.settings, now)
        if message.blob:
            load = partial(load, source=message.blob, key=message.key)
        work = self._out.work(load, partial(self._loaded, call))
        worker_class = message.settings.get("worker_class", "")
        self._loading = _Loading(work, call, worker_class, now + LOAD_S)
        self._submitter = member.number
        self._data_at = address_of(message.files[0]) if message.files else ""

    def _check(self) -> None:
        if not self._life.drivers_work:
            raise ClusterError(
                "this cluster runs the job of its master's .conf file and takes no job from a "
                "driver: start its master with `snailps master --session`"
            )
        formed = self._lifecycle.phase is ClusterPhase.FORMED
        taken = self._job_controller.job is not None or bool(self._members.sent_away)
        if not formed or taken or self.loading:
            raise ClusterError(
                f"this cluster takes no job now: its phase is {self.phase}. Submit the job again "
                "when `snailps status` shows idle"
            )
        if not self._members.joined("worker"):
            raise ClusterError(
                "a job needs a worker, and this cluster has none: start one (snailps worker)"
            )

    def _loaded(self, call: int, done: WorkDone, now: float) -> None:
        """The class is loaded: begin the job, or send its driver the error."""
        self._loading = None
        try:
            if isinstance(done.error, SnailError):
                raise done.error
            if done.error is not None:  # of the user's class: the cluster waits for a better one
                log.error("the submitted job cannot begin", exc_info=done.error)
                text = f"the job cannot begin: {explain(done.error)}"
                raise ClusterError(with_frames(text, frames_of(done.error)))
            self._check()  # workers may have left meanwhile
        except SnailError as error:
            self._out.reply(call, error)
            return
        workers = self._members.joined("worker")
        for worker in workers:
            worker.job_submitted()
        self._job_controller.opening.prepare(done.result, len(workers), call)

    def stood_still(self, seconds: float) -> None:
        if (loading := self._loading) is not None:
            self._loading = replace(loading, until=loading.until + seconds)

    def step(self, now: float) -> None:
        if self._loading is not None and now > self._loading.until:
            self._give_up_loading(
                f"the class {self._loading.worker_class} was not loaded within {LOAD_S:.0f} s: "
                "does its module wait for something when it is imported?"
            )

    def _give_up_loading(self, why: str) -> None:
        """Stop waiting for the class. The import may still run in its thread; its result is
        ignored."""
        loading, self._loading = self._loading, None
        if loading is not None:
            self._out.disown(loading.work)
            self._out.reply(loading.call, ClusterError(why))

    # --- its driver ------------------------------------------------------------------------------

    def cancel(self, member: Member, message: messages.Cancel, call: int, now: float) -> None:
        """A driver cancels its job, or with `early` ends the training and saves the model. Another
        driver's job stays."""
        self._out.reply(call, messages.Ok())
        if self._submitter != member.number:
            return
        if self.loading:
            if not message.early:
                self._give_up_loading("the job was cancelled")
            return
        if self._job_controller.job is None:
            return
        if message.early:
            if self._job_controller.phase is JobPhase.TRAINING:
                self._job_controller.training.interrupt(now)
        elif not self._job_controller.exporting.cancel(now):
            self._fail_job("the job was cancelled")

    def summarise(self, member: Member, message: messages.Summarise, call: int, now: float) -> None:
        """Send a worker the summary of the survey. A driver gets the summary of an ended job or of
        the present one, empty before all is merged."""
        if member.role != "driver":
            self._job_controller.survey.summarise(member, call, now)
            return
        nothing = messages.Summary(b"")
        if (present := self._at_work(message.job)) is not None:
            merged = present.survey.summary is not None and present.pass_ == "train"
            self._out.reply(call, present.survey.message() if merged else nothing)
        else:
            self._out.reply(call, self._ended_jobs[message.job].summary or nothing)

    def report_job(self, member: Member, message: messages.AskJob, call: int, now: float) -> None:
        """Answer a driver that asks what a job has left; for the present job, at its end."""
        if self._at_work(message.job) is not None:
            self._ended_jobs.wait(call)
        else:
            self._out.reply(call, self._ended_jobs[message.job].report())

    def newest(self) -> dict[str, Any]:
        """Number and settings of the present job, or of the last one while its tables are there;
        without settings if there is none."""
        number = self._ended_jobs.newest
        settings: Mapping[str, str] = {}
        if (present := self._at_work(number)) is not None:
            settings = to_mapping(present.settings)
        elif number in self._ended_jobs and self._ended_jobs[number].tables is not None:
            settings = self._ended_jobs[number].settings
        return {"job": number, "settings": outward(settings, without_secrets)}

    def _at_work(self, number: int) -> Job | None:
        """The present job, if that is its number."""
        newest = self._ended_jobs.newest
        is_newest = number == newest and newest not in self._ended_jobs
        return self._job_controller.job if is_newest else None

    def driver_gone(self, driver: Member) -> None:
        """Cancel the job of a lost driver if it reads the driver's data, or has no output: then
        nobody could use the result. Any other job continues."""
        if self._submitter != driver.number:
            return
        if self.loading:
            self._give_up_loading("its driver is gone")
            return
        job = self._job_controller.job
        if job is None:
            return
        if self._data_at and self._job_controller.phase is not JobPhase.EXPORTING:
            why = f"the Python process that has the data ({self._data_at}) has ended"
        elif not job.settings.output:
            why = "its driver is gone, and the job has no output"
        else:
            return
        if not self._job_controller.exporting.cancel(self._lifecycle.now):
            self._fail_job(why)
