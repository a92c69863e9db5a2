"""Brings a job back to the state in which an earlier master of this cluster left it.

    facts of the journal -> JobRecovery.go_on -> the same calls of Job and Schedule, in order

Replays the journal through the live code path: there is no second implementation that could
differ. Orders to servers that the lost master may not have given to all are repeated; each is
idempotent. What the journal cannot have, leases and results reported since, workers report when
they come back (`leases/adoption.py`), and nothing is leased before that.

The sequence in `_train` matters: state, facts since, members that are gone, clocks, the round, and
the fences last, so that they are given for everything that was replayed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from snailps.dataclass import dataclass, field
from snailps.errors import ConfigError
from snailps.master.checkpoints import CheckpointController
from snailps.master.effects import Fact
from snailps.master.job.expiry import ExpiryClock
from snailps.master.job.export_phase import ExportPhase
from snailps.master.job.job import Job
from snailps.master.job.looks import Looks
from snailps.master.job.record import JobRecord
from snailps.master.job.state import JobState, decode, unpack
from snailps.master.job.survey_phase import SurveyPhase
from snailps.master.job.training_phase import TrainingPhase
from snailps.master.job.training_plan import plan_of
from snailps.master.leases.adoption import UNDECIDED
from snailps.master.leases.service import LeaseService
from snailps.master.membership import Membership
from snailps.master.replication.shard_orders import ShardOrders
from snailps.node.status import EVENT_REPORTED
from snailps.transport import messages

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """State that an earlier master of this cluster left."""

    facts: list[Fact]
    path: str = ""  # of its journal, for people
    base: bytes = b""  # packed snapshot at the beginning of the training; empty: it had not begun
    # of the newest snapshot among the facts
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class JobRecovery:
    """Replays the facts of an earlier master."""

    def __init__(
        self,
        past: Recovered | None,
        members: Membership,
        shard_orders: ShardOrders,
        leases: LeaseService,
        checkpoints: CheckpointController,
        survey: SurveyPhase,
        training: TrainingPhase,
        looks: Looks,
        expiry: ExpiryClock,
        exporting: ExportPhase,
    ) -> None:
        self._past = past or Recovered([])  # None: this master is the first
        self._facts = self._past.facts
        self._members, self._shard_orders = members, shard_orders
        self._leases, self._checkpoints, self._survey = leases, checkpoints, survey
        self._training, self._looks, self._expiry = training, looks, expiry
        self._exporting = exporting
        self.known = bool(self._facts)
        self.begun = any(fact.kind in ("survey", "train") for fact in self._facts)
        """Whether the job had begun a pass, which is resumed and not begun again."""

    def go_on(self, job: Job, now: float) -> None:
        """Bring a prepared job to its earlier state, once all members are back or given up.
        SnailError if the input has changed or the journal is damaged."""
        self.begun = False
        self._members.table_registry.remake(now)
        self._checkpoints.transfers.stop_all()
        train, exported = self._last("train"), self._last("exported")
        if train:
            self._train(job, train, now)
            self._resume_time(job, "state" if self._last("state") else "train", now)
        else:
            self._survey.begin(job, now)
            self._resume_time(job, "survey", now)
            if any(fact.kind == "summary" for fact in self._facts):
                JobRecord(job).adopt(self._base(job))
                self._survey.summarised(now)
        if exported:
            self._exporting.exported_before(job, exported["figures"], now)
        self._past, self._facts = Recovered([]), []  # they may be many, and are applied
        share, what = job.progress(now), "training" if job.pass_ == "train" else "survey"
        text = "took over from the previous master: %.0f%% of the %s done"
        log.warning(text, 100 * share, what, extra=EVENT_REPORTED)

    def _last(self, kind: str) -> dict[str, Any]:
        """The last fact of a kind; empty: none."""
        return next((fact.data for fact in reversed(self._facts) if fact.kind == kind), {})

    def _resume_time(self, job: Job, begin: str, now: float) -> None:
        """Continue from the seconds of work that were noted last: an outage does not count as
        training, for `max_seconds` as for the figures."""
        spent = job.clock.spent(now)  # of the state
        for fact in self._facts[self._place_of(begin) + 1 :]:
            spent = fact.data if fact.kind == "spent" else spent
        JobRecord(job).continue_from(spent["job_s"], spent["pass_s"], now)

    def _place_of(self, kind: str) -> int:
        """Index of the last fact of a kind; -1: none."""
        return max(
            (index for index, fact in enumerate(self._facts) if fact.kind == kind), default=-1
        )

    def _base(self, job: Job) -> JobState:
        """The state at which the training began."""
        base = unpack(self._past.base)
        if sorted(base.sources) != sorted(job.input.sources):
            raise ConfigError(
                f"{self._past.path}: the input has other files, or files of other lengths, than "
                "the run that is to be taken over. Put them back, or begin anew with --fresh"
            )
        return base

    def _train(self, job: Job, train: dict[str, Any], now: float) -> None:
        base = state = self._base(job)
        later = self._last("state")
        if later:
            state = decode(later["job"], self._past.arrays, base)
        plan = plan_of(train.get("rotation"))
        self._training.begin(job, train["nodes"], state, now, plan)
        self._checkpoints.place.continued_from = train["restored"]
        clocks_set = False
        for fact in self._facts[self._place_of("state" if later else "train") + 1 :]:
            if fact.kind in ("close", "look", "round"):
                assert self._looks.round is not None
                self._looks.round.replay(fact)
            elif fact.kind == "early":
                self._early(job, now=now, **fact.data)
            else:
                clocks_set = clocks_set or fact.kind == "clocks"
                _replay(job, fact, now)
        # The journal may end between the loss of a worker and its "retire".
        for number in self._members.gone_nodes:
            job.schedule.retire(number)
        self._expiry.resume(job, now)
        self._leases.clocks_noted = clocks_set
        # Only if no worker can have leased anything: shards drop what is staged with that order.
        # After a power cut the journal may lack "clocks", but then a worker reports a block.
        if job.schedule.clocks is not None and not (clocks_set or self._has_leased()):
            self._training.set_clock(job, base.clock, now)
        if self._looks.round is not None:
            self._looks.round.repeat(now)
        self._fence(job, now)

    def _has_leased(self) -> bool:
        """Whether a worker has had a block of the training: shards had their clock before that."""
        states = [member.resume_state for member in self._members.nodes("worker")]
        return any(
            state.get("reported")
            or state.get("not_durable")
            or any(pass_ == "train" for pass_, _ in state.get("held", ()))
            for state in states
        )

    def _early(self, job: Job, why: str, size: int, now: float) -> None:
        """Repeat an early end of the training."""
        job.rules.ended_by = why
        job.schedule.close(size)
        self._training.ends_early(interrupted=why == "interrupt", now=now)

    def _fence(self, job: Job, now: float) -> None:
        """Fence lost workers again, and seal what they had pushed completely."""
        slots = job.schedule.slots
        for number, lost in self._members.gone_nodes.items():
            if lost:
                last = None if slots is None else slots.last_of(number)
                self._shard_orders.fence(number, now, last)


def _replay(job: Job, fact: Fact, now: float) -> None:
    """Apply a fact to a job; facts of other subjects are skipped."""
    schedule, data = job.schedule, fact.data
    chunks = schedule.chunks
    if fact.kind == "done":
        done = messages.Done.of_result(data)
        is_new = JobRecord(job).replay(done, data["node"], now)
        if not is_new and chunks is not None and chunks.is_undecided(done.number):
            log.warning(UNDECIDED, done.number)
    elif fact.kind == "chunk" and chunks is not None:
        chunks.decide(data["chunk"], data["parts"], data["sizes"])
    elif fact.kind == "checkouts":
        JobRecord(job).replay_durable(data)
    elif fact.kind == "durable":
        schedule.records.make_durable(data["numbers"], data["node"])
    elif fact.kind == "durable_all":
        schedule.records.make_all_durable(data["node"], data["but"])
    elif fact.kind in ("join", "leave", "retire"):
        getattr(schedule, fact.kind)(data["node"])
    elif fact.kind == "tested":
        job.epoch_tested(data["test"], data["kept"], data["done"])
        schedule.hold(job.tested.epochs + 1)
    elif fact.kind == "tick":
        job.clock.ticks.append(data["tick"])
    elif fact.kind == "loss":
        schedule.count_loss(data["number"])
