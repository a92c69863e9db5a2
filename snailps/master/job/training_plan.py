"""Decides how a training is cut: which schedule it has, by the class and by `consistency`.

    class, settings, summary -> plan_training -> a plan, or None
    plan, or the plan in a state -> schedule_of -> Schedule

A training that is resumed is cut as it was begun: its plan is in the journal's fact "train", and in
the state of a checkpoint. `plan_training` calls the model's class, and takes no time of note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from snailps.api.range_passes import RangePasses, TrainingPlan
from snailps.api.rotation import OUTPUTS_PER_INPUT, Rotation
from snailps.api.traits import Ranged, Rotated, trait_of
from snailps.errors import ClusterError, ConfigError
from snailps.master.job.job import Job
from snailps.master.job.state import JobState
from snailps.master.leases import (
    SCHEDULES,
    Entries,
    Schedule,
    Training,
)
from snailps.master.leases.schedule import NO_RECORDS
from snailps.registry import named
from snailps.transport.messages.validation import PARTS_MAX

Plan = TrainingPlan | None
"""How a training is cut; None: into blocks, by `consistency`."""


def plan_of(fields: Mapping[str, Any] | None) -> Plan:
    """The plan of a training from the fields of a `Rotation` or of `RangePasses`; None without."""
    if not fields:
        return None
    if "ranges" in fields:
        names: tuple[str, ...] = ("ranges", "passes", "per_epoch", "before")
        return RangePasses(*(int(fields[name]) for name in names))
    names = ("chunks", "most_parts", "checkouts_of_one", "sweeps", "passes")
    numbers = {name: int(fields[name]) for name in names}
    return Rotation(**numbers, is_kept=bool(fields["is_kept"]))


def plan_in(state: JobState) -> Plan:
    """The plan of the training that a state is of."""
    return plan_of(state.figures.get("rotation") or state.figures.get("ranges"))


def plan_training(job: Job, workers: int, state: JobState | None = None) -> Plan:
    """How a training that `workers` begin is cut, if not by `consistency`: into passes over
    ranges, or as a rotation. A plan with limited steps is a ConfigError."""
    s, cls, summary = job.settings, job.model.cls, job.survey.summary or b""
    if state is not None:
        plan = plan_in(state)
        if plan is not None and s.max_steps:
            kind = "by rotation" if isinstance(plan, Rotation) else "in passes over ranges"
            raise ConfigError(
                f"max_steps: the checkpoint is of a training {kind}, whose steps are no "
                "blocks: leave it out, or begin anew with --fresh"
            )
        return plan
    ranges = trait_of(cls, Ranged).range_passes(s, summary)
    if ranges is not None:
        if not isinstance(ranges, RangePasses):
            raise ClusterError(
                f"{cls.__name__}.range_passes: expected RangePasses or None, got {ranges!r:.80}"
            )
        return ranges
    trait = trait_of(cls, Rotated)
    if not trait.rotates(s):
        return None
    wanted = trait.rotation(s, job.input.total_bytes, workers, summary)
    if wanted is None:
        return None
    if not isinstance(wanted, Rotation):
        raise ClusterError(
            f"{cls.__name__}.rotation: expected a Rotation or None, got {wanted!r:.80}"
        )
    # A message has room for so many parts: the model may have chosen more.
    most_parts = min(wanted.most_parts, PARTS_MAX // OUTPUTS_PER_INPUT)
    chunks = min(wanted.chunks, len(job.input.blocks))
    sweeps = max(1, min(wanted.sweeps, PARTS_MAX // (OUTPUTS_PER_INPUT * most_parts)))
    pieces = min(wanted.checkouts_of_one, PARTS_MAX)
    return Rotation(chunks, most_parts, pieces, sweeps, wanted.passes, wanted.is_kept)


def schedule_of(
    job: Job,
    nodes: Sequence[int] = (),
    state: JobState | None = None,
    plan: Plan = None,
    cores_of: Callable[[int], float] = lambda node: 1.0,
) -> Schedule:
    """The schedule of a training that these workers begin, or that a `state` continues.

    ``cores_of(worker)``: cores that it may keep busy.
    """
    s, rounds, blocks = job.settings, job.model.rounds, job.input.blocks
    records = state.records if state is not None else NO_RECORDS
    if state is not None:
        plan = plan or plan_in(state)
    if rounds.number:
        first = state.clock if state is not None else 0
        schedule: Schedule = named("rounds").RoundSchedule(
            rounds.number, nodes, rounds.fraction, s.seed, first
        )
        return schedule
    entries = Entries(blocks, s.epochs, s.max_steps, job.input.order)
    workers = job.model.by_input.concurrency.workers
    rotation = {} if state is None else state.figures.get("rotation", {})
    training = Training(
        s, entries, records, nodes, workers, plan, cores_of, rotation.get("extent")
    )  # fmt: skip
    if plan is None:
        return SCHEDULES[s.consistency](training)
    by_plan: Schedule = named(plan.option).of_training(training)
    return by_plan


def at_work(job: Job, workers: int) -> tuple[int, str]:
    """How many of `workers` train at a time, and why no more do."""
    counted, chunks = job.as_counted(workers), job.schedule.chunks
    if chunks is not None and chunks.rotation.most_parts < counted:
        why = "the input has too few names, or too little text, to be split among more"
        return chunks.rotation.most_parts, why
    micro_batches = (
        f"a step has micro_batches={counted}: {workers} or more use all, and change the result"
    )
    return counted, job.model.by_input.concurrency.why or micro_batches
