"""Owns which schedule a job has: the policies for leasing blocks, by the name of `consistency`.

    BlockRecords      waiting, leased, done, durable: the one record of each block
    QueueSchedule     a block to each worker that asks  (async)
    SurveySchedule    the same, for parts that are merged
    SspSchedule       every n-th entry belongs to one worker; clocks stay close  (ssp)
    BspSchedule       entry -> (clock, slot); a clock is complete when all its slots are done  (bsp)

Others are options, found by their names (`registry`):

    rounds            one entry a drawn worker and round; the master closes a round
    ranges            blocks of the input, then ranges of names, pass after pass
    rotation          blocks of text, then partitions of the rows, which check out other partitions

Each is a `Schedule`, made of parts that others may have, too. `service.py` and whoever else asks a
schedule must not know which one it is: they ask for the part that they need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from snailps.api.range_passes import TrainingPlan
from snailps.config import JobSettings
from snailps.master.leases.bsp import BspSchedule
from snailps.master.leases.entries import Entries
from snailps.master.leases.schedule import Schedule
from snailps.master.leases.shared import QueueSchedule, SurveySchedule
from snailps.master.leases.slots import CLOCKS_AHEAD
from snailps.master.leases.ssp import SspSchedule

__all__ = [
    "CLOCKS_AHEAD",
    "SCHEDULES",
    "BspSchedule",
    "Entries",
    "QueueSchedule",
    "Schedule",
    "SspSchedule",
    "SurveySchedule",
    "Training",
]


class Training(NamedTuple):
    """The arguments from which each maker of a schedule takes what its policy needs.

    With a plan, the module `registry.named(plan.option)` has the maker, `of_training`.
    """

    settings: JobSettings
    entries: Entries
    known: NDArray[Any]  # records of an earlier run, to continue from
    nodes: Sequence[int]  # numbers of the workers
    seats: int  # workers that may train at the same time
    plan: TrainingPlan | None = None  # None: by `consistency`
    cores_of: Callable[[int], float] = lambda node: 1.0  # that a worker may keep busy
    extent: Mapping[str, Any] | None = None  # `Chunks.extent` of an earlier run or master


def _shared_or_owned(job: Training) -> Schedule:
    if job.settings.assign == "own":
        return SspSchedule(job.entries, job.known, nodes=job.nodes, seats=job.seats)
    return QueueSchedule(job.entries, job.known, seats=job.seats)


def _close(job: Training) -> Schedule:
    staleness = job.settings.staleness
    return SspSchedule(
        job.entries, job.known, nodes=job.nodes, staleness=staleness, seats=job.seats
    )


def _in_steps(job: Training) -> Schedule:
    """All workers train at the same time, whatever `seats` says: a step has `micro_batches` slots,
    however many workers share them."""
    micro_batches = job.settings.micro_batches
    return BspSchedule(job.entries, job.known, nodes=job.nodes, micro_batches=micro_batches)


SCHEDULES: dict[str, Callable[[Training], Schedule]] = {
    "async": _shared_or_owned,
    "ssp": _close,
    "bsp": _in_steps,
}
"""By `consistency`."""
