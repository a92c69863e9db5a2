"""The survey pass of a worker: its blocks are examined, and the results sent to the master.

    Lease -> Block -> Surveyed.survey -> Done        or merged: SurveyPart.add ... take -> Done

Owns which blocks a result covers.  A result counts once: a worker that is lost before its `Done`
leaves all blocks of its part to others.
"""

from __future__ import annotations

import time

from snailps.api.traits import Surveyed, SurveyPart
from snailps.api.worker import Worker
from snailps.transport import messages
from snailps.worker.leases import Leases
from snailps.worker.reports import JobReports
from snailps.worker.user_code import checked_bytes, named


def survey(model: Worker, leases: Leases, reports: JobReports) -> None:
    """Examine blocks until the master has no more, or this worker leaves."""
    assert isinstance(model, Surveyed)
    part = model.survey_part()
    if part is not None:
        _survey_together(part, model, leases, reports)
        return
    while (lease := leases.lease("survey")) is not None:
        begin = time.monotonic()
        block = leases.block(lease, "survey")
        with named(model, "survey", block):
            counted = checked_bytes(model.survey(block))
        done = messages.Done(
            "survey", block.number, len(block.data), time.monotonic() - begin, {}, counted
        )
        reports.report(done)


def _survey_together(part: SurveyPart, model: Worker, leases: Leases, reports: JobReports) -> None:
    """Merge the surveys of blocks into parts, each sent when the master leases no block.

    The master withholds a lease when the bytes held here, given with each request, are worth
    sending, or would not fit beside the parts of other workers.
    """
    numbers: list[int] = []
    units, seconds = 0, 0.0
    while True:
        lease = leases.lease("survey", held=max(1, part.size_bytes) if numbers else 0)
        if lease is not None:
            begin = time.monotonic()
            units += _survey_block(lease, part, model, leases)
            numbers.append(lease.number)
            seconds += time.monotonic() - begin
        elif numbers:
            # No local refers to the part or to a block here: its memory, often the largest thing in
            # this process, is free before the next part is counted.
            reports.report(_part_done(part, model, numbers, units, seconds))
            numbers, units, seconds = [], 0, 0.0
        else:
            return


def _survey_block(lease: messages.Leased, part: SurveyPart, model: Worker, leases: Leases) -> int:
    """Add a block to the part; returns the size of the block in bytes."""
    block = leases.block(lease, "survey")
    with named(model, "survey", block):
        part.add(block)
    return len(block.data)


def _part_done(
    part: SurveyPart, model: Worker, numbers: list[int], units: int, seconds: float
) -> messages.Done:
    with named(model, "survey"):
        counted = checked_bytes(part.take())
    return messages.Done("survey", numbers[-1], units, seconds, {}, counted, numbers[:-1])
