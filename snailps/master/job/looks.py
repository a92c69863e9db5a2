"""Owns what looks at a job's rows while it trains: at tenths of it, after epochs, after rounds.

    hooks of the class -> Look(when, what, strict, keeps) -> tenths | epochs | round, of this job
    each turn          -> step, and `busy` while rows must stay as they are
    the live page      -> map

`model_class.looks_of` has what each hook asks for. The options that take looks are found by name:
`tests_in_training`, and `rounds`. `now` is monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from snailps.errors import EXIT_FAILED
from snailps.master.checkpoints import CheckpointController
from snailps.master.effects import Fact, Outbox
from snailps.master.job.ended_jobs import EndedJobs
from snailps.master.job.job import Job
from snailps.master.job.present import PresentJob
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.master.replication.shard_orders import ShardOrders
from snailps.master.services import Services
from snailps.node.effects import WorkDone
from snailps.registry import named

MAP_S = 3.0
"""Least seconds between two maps, whoever asks: each map connects to every shard."""
MAPPED_SHARDS_MAX = 64
"""Most shards of a cluster that draws maps."""
SHARP_FROM = 0.02
"""Share of the training after which the directions of rows are worth showing."""


class TenthCourse(Protocol):
    """What looks at each tenth of a training: the option `tests_in_training` fills it."""

    running: bool

    def step(self, now: float) -> None: ...

    def resume(self, now: float) -> None: ...


class EpochCourse(Protocol):
    """What tests a job after each epoch: the option `tests_in_training` fills it."""

    @property
    def busy(self) -> bool:
        """Whether rows are being tested, kept or restored."""

    @property
    def holds_rows(self) -> bool:
        """Whether rows are being kept or restored: no shard is to move meanwhile."""

    @property
    def text(self) -> str:
        """What is done beside the training, in words; empty: nothing."""

    def step(self, workers: set[int], now: float, *, rows_change: bool = False) -> None: ...

    def ends(self, now: float) -> bool: ...

    def abandon(self) -> None: ...

    def close(self, *, goes_on: bool) -> None: ...


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


class Course(Protocol):
    """What tests of epochs ask of the training."""

    def end_early(self, job: Job, why: str, now: float) -> None:
        """End the training."""

    def leases_go_on(self, now: float) -> None:
        """Answer workers that wait for the next epoch."""

    def fail_job(self, text: str, code: int = EXIT_FAILED, trace: str = "") -> None:
        """Fail the job."""


class Looks:
    def __init__(
        self,
        out: Outbox,
        services: Services,
        members: Membership,
        shard_orders: ShardOrders,
        checkpoints: CheckpointController,
        present: PresentJob,
        ended_jobs: EndedJobs,
    ) -> None:
        self._out, self._services = out, services
        self._members, self._shard_orders = members, shard_orders
        self._checkpoints, self._present, self._ended_jobs = checkpoints, present, ended_jobs
        self.tenths: TenthCourse | None = None
        self.epochs: EpochCourse | None = None
        self.round: RoundCourse | None = None
        self._mapping, self._map_due = False, 0.0
        self._map: tuple[int, Mapping[str, Any]] = (0, {})  # the newest one, of a job by number

    def begin(self, job: Job, course: Course) -> None:
        """Begin with the training of a job."""
        out, reader, by_input = self._out, self._services.reader, job.model.by_input
        tenths = [look for look in (*by_input.looks, *reader.looks) if "tenth" in look.when]
        if tenths:
            self.tenths = named("tests_in_training").Tenths(job, tenths, out, self._present, reader)
        for look in by_input.at("epoch"):
            name = f"{self._members.cluster_id:016x}-{self._ended_jobs.newest}"  # unlike all others
            self.epochs = named("tests_in_training").EpochTests(
                job, look, name, out, self._present, self._services, self._checkpoints, course
            )
        if (rounds := job.schedule.rounds) is not None:
            self.round = named("rounds").RoundController(
                out,
                job,
                rounds,
                self._members,
                self._shard_orders,
                self._checkpoints.saver,
                self._present,
                reader,
            )

    def resume(self, now: float) -> None:
        """Go on with a training of an earlier master: what it had looked at is not due again."""
        if self.tenths is not None:
            self.tenths.resume(now)

    # --- the loop ------------------------------------------------------------------------------

    def step(self, workers: list[Member], now: float) -> None:
        """Look at the rows, where that is due; a round is stepped by itself (`step_round`)."""
        if self.tenths is not None:
            self.tenths.step(now)
        if self.epochs is not None:
            orders = self._shard_orders
            rows_change = orders.open("fence", "expire") or orders.moving
            numbers = {member.number for member in workers}
            self.epochs.step(numbers, now, rows_change=rows_change)

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
        """Whether rows are looked at that must not change, so that no checkpoint begins now."""
        return self.round_busy or (self.epochs is not None and self.epochs.busy)

    @property
    def running(self) -> bool:
        """Whether rows are looked at, so that the training does not end now."""
        return self.busy or (self.tenths is not None and self.tenths.running)

    @property
    def holds_rows(self) -> bool:
        """Whether rows of the best epoch are kept or restored, so that no shard is to move."""
        return self.epochs is not None and self.epochs.holds_rows

    @property
    def text(self) -> str:
        """What is done beside the training, in words; empty: nothing."""
        return "" if self.epochs is None else self.epochs.text

    def may_end(self, now: float) -> bool:
        """Whether the rows are those to be exported."""
        return self.epochs is None or self.epochs.ends(now)

    def retired(self, now: float) -> None:
        """Blocks of a worker that is gone are to be trained again."""
        if self.round is not None:
            self.round.lost(now)

    def stood_still(self, seconds: float) -> None:
        if self.round is not None:
            self.round.stood_still(seconds)

    # --- the map of the live page ----------------------------------------------------------------

    @property
    def last_map(self) -> Mapping[str, Any]:
        """The newest map of the newest job; empty before its first."""
        number, places = self._map
        return places if number == self._ended_jobs.newest else {}

    def map(self, job: Job, then: Callable[[Mapping[str, Any]], None], now: float) -> None:
        """Place named rows in a map; `then` gets it, or the last map of this job if one is not due
        or the cluster has more than `MAPPED_SHARDS_MAX` shards."""
        shards = len(self._members.route.shards) if self._members.route is not None else 0
        if self._mapping or now < self._map_due or not 0 < shards <= MAPPED_SHARDS_MAX:
            then(self.last_map)
            return
        sharp, number = job.progress(now) >= SHARP_FROM, self._ended_jobs.newest

        def mapped(done: WorkDone, now: float) -> None:
            self._mapping, self._map_due = False, now + MAP_S
            if done.error is None:
                self._map = number, done.result
            then(self.last_map)

        self._mapping = True
        reading = self._present.reading()
        self._out.work(partial(self._services.reader.landmarks, job, reading, sharp=sharp), mapped)

    # --- the end -------------------------------------------------------------------------------

    def close(self, *, failed: bool = False) -> None:
        """Close the rows of the best epoch: a checkpoint from which the job resumes needs them."""
        if self.epochs is None:
            return
        if failed:
            self.epochs.abandon()
        self.epochs.close(goes_on=self._checkpoints.place.can_resume)
        self.epochs = None

    def forget(self) -> None:
        """Ignore what is still under way: the job is over."""
        if self.round is not None:
            self.round.forget()
        self.tenths = self.round = None
