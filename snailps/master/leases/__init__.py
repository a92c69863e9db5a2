"""Schedules of leases: the records of blocks, and policies for leasing them.

    BlockRecords      waiting, leased, done, durable: the one record of each block
    QueueSchedule     a block to each worker that asks  (async)
    SurveySchedule    the same, for parts that are merged
    SspSchedule       every n-th entry belongs to one worker; clocks stay close  (ssp)
    BspSchedule       entry -> (clock, slot); a clock is complete when all its slots are done  (bsp)
    RoundSchedule     one entry a drawn worker and round; the master closes a round
    RotationSchedule  blocks of text, then partitions of the rows, which check out other partitions

Each is a `Schedule`, made of parts that others may have, too: `service.py` never asks which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from snailps.config import JobSettings
from snailps.master.leases.bsp import BspSchedule
from snailps.master.leases.entries import Entries
from snailps.master.leases.rotation import RotationSchedule
from snailps.master.leases.rounds import RoundSchedule
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
    "RotationSchedule",
    "RoundSchedule",
    "Schedule",
    "SspSchedule",
    "SurveySchedule",
]


def _shared_or_owned(
    settings: JobSettings, entries: Entries, known: NDArray[Any], nodes: Sequence[int], seats: int
) -> Schedule:
    if settings.assign == "own":
        return SspSchedule(entries, known, nodes=nodes, seats=seats)
    return QueueSchedule(entries, known, seats=seats)


def _close(
    settings: JobSettings, entries: Entries, known: NDArray[Any], nodes: Sequence[int], seats: int
) -> Schedule:
    return SspSchedule(entries, known, nodes=nodes, staleness=settings.staleness, seats=seats)


def _in_steps(
    settings: JobSettings, entries: Entries, known: NDArray[Any], nodes: Sequence[int], seats: int
) -> Schedule:
    return BspSchedule(entries, known, nodes=nodes, micro_batches=settings.micro_batches)


SCHEDULES: dict[
    str, Callable[[JobSettings, Entries, NDArray[Any], Sequence[int], int], Schedule]
] = {
    "async": _shared_or_owned,
    "ssp": _close,
    "bsp": _in_steps,
}
"""Schedules by `consistency`, made of a job's settings, its entries, their records so far, its
workers, and how many of them train at a time (bsp: all)."""
