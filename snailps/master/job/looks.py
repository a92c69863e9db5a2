"""Owns what looks at a job's rows while it trains: inspections, tests of epochs, rounds.

    the training begins -> begin -> RoundCourse | EpochTests, of this job
    each turn           -> step, and `busy` while rows must stay as they are

Which of them a job has follows from its class. `now` is monotonic seconds.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from snailps.master.checkpoints import CheckpointController
from snailps.master.effects import Fact, Outbox
from snailps.master.job.epoch_tests import Course, EpochTests
from snailps.master.job.inspection import INSPECTIONS, Inspection
from snailps.master.job.job import Job
from snailps.master.job.present import PresentJob
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.master.replication.shard_orders import ShardOrders
from snailps.master.services import Services
from snailps.node.effects import OnDone
from snailps.registry import named
from snailps.transport import messages


class RoundCourse(Protocol):
    """What closes the rounds of a job that has some: the option `rounds` fills it."""

    @property
    def inspecting(self) -> bool:
        """Whether the model inspects the previous round."""

    @property
    def busy(self) -> bool:
        """Whether a round is being applied or inspected."""

    def step(self, now: float) -> None: ...

    def lost(self, now: float) -> None: ...

    def stood_still(self, seconds: float) -> None: ...

    def forget(self) -> None: ...

    def facts(self) -> list[Fact]: ...

    def replay(self, fact: Fact) -> None: ...

    def repeat(self, now: float) -> None: ...


class Looks:
    def __init__(
        self,
        out: Outbox,
        services: Services,
        members: Membership,
        shard_orders: ShardOrders,
        checkpoints: CheckpointController,
        present: PresentJob,
    ) -> None:
        self._out, self._services = out, services
        self._members, self._shard_orders = members, shard_orders
        self._checkpoints, self._present = checkpoints, present
        self.inspection = Inspection(members, out, services.reader)
        self.round: RoundCourse | None = None
        self.epoch_tests: EpochTests | None = None
        """Of a job with a `Validation`."""

    def begin(self, job: Job, course: Course) -> None:
        """Begin with the training of a job."""
        if job.model.by_input.validation is not None and job.schedule.rounds is None:
            name = f"{self._members.cluster_id:016x}-{self._present.number}"  # unlike all others
            self.epoch_tests = EpochTests(
                job, name, self._out, self.inspection, self._services, self._checkpoints, course
            )
        if (rounds := job.schedule.rounds) is not None:
            self.inspection.begin_rounds()
            self.round = named("rounds").RoundController(
                self._out,
                job,
                rounds,
                self._shard_orders,
                self._checkpoints,
                partial(self._inspect, job),
                self._present.hooks.fail_job,
            )

    def resume(self, job: Job, now: float) -> None:
        """Go on with a training of an earlier master: what it had inspected is not due again."""
        self.inspection.begin(int(job.progress(now) * INSPECTIONS))

    def _inspect(self, job: Job, round_: int, parts: int, then: OnDone, now: float) -> None:
        figures = {**self._present.figures, "parts": parts}
        self.inspection.after_round(job, round_, figures, then, now)

    # --- the loop ------------------------------------------------------------------------------

    def step(self, job: Job, workers: list[Member], now: float) -> None:
        """Look at the rows, where that is due; a round is stepped by itself (`step_round`)."""
        self.inspection.step(job, dict(self._present.figures), now)
        if self.epoch_tests is not None:
            orders = self._shard_orders
            rows_change = orders.open("fence", "expire") or orders.moving
            numbers = {member.number for member in workers}
            self.epoch_tests.step(numbers, now, rows_change=rows_change)

    def step_round(self, now: float) -> None:
        if self.round is not None:
            self.round.step(now)

    @property
    def inspecting(self) -> bool:
        """Whether the model looks at the last round: it may report that the training diverged."""
        return self.round is not None and self.round.inspecting

    @property
    def round_busy(self) -> bool:
        return self.round is not None and self.round.busy

    @property
    def busy(self) -> bool:
        """Whether rows are looked at, so that no checkpoint begins now."""
        return self.round_busy or (self.epoch_tests is not None and self.epoch_tests.busy)

    @property
    def holds_rows(self) -> bool:
        """Whether rows of the best epoch are kept or restored, so that no shard is to move."""
        return self.epoch_tests is not None and self.epoch_tests.holds_rows

    def may_end(self, now: float) -> bool:
        """Whether the rows are those to be exported."""
        return self.epoch_tests is None or self.epoch_tests.ends(now)

    def retired(self, now: float) -> None:
        """Blocks of a worker that is gone are to be trained again."""
        if self.round is not None:
            self.round.lost(now)

    def heard(self, member: Member, message: messages.Saved | messages.Loaded, now: float) -> None:
        """A server has saved or loaded rows."""
        if self.epoch_tests is not None:
            self.epoch_tests.heard(member, message, now)

    def server_lost(self, member: Member, why: str, now: float) -> None:
        """A server is gone that may have been saving or loading rows."""
        if self.epoch_tests is not None:
            self.epoch_tests.lost(member, why, now)

    def stood_still(self, seconds: float) -> None:
        if self.round is not None:
            self.round.stood_still(seconds)
        if self.epoch_tests is not None:
            self.epoch_tests.stood_still(seconds)

    # --- the end -------------------------------------------------------------------------------

    def close(self, *, failed: bool = False) -> None:
        """Close the rows of the best epoch: a checkpoint from which the job resumes needs them."""
        if self.epoch_tests is None:
            return
        if failed:
            self.epoch_tests.abandon()
        self.epoch_tests.close(goes_on=self._checkpoints.can_resume)
        self.epoch_tests = None

    def forget(self) -> None:
        """Ignore what is still under way: the job is over."""
        if self.round is not None:
            self.round.forget()
        self.round = None
