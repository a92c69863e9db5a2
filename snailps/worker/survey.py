"""The survey pass of a worker: what its blocks say of the input, for the master's summary.

Lease -> Block -> Surveyed.survey -> Done        or, merged: SurveyPart.add ... take -> Done
"""

from __future__ import annotations

import time

from snailps.api.traits import Surveyed, SurveyPart
from snailps.api.worker import Worker
from snailps.transport import messages
from snailps.worker.leases import Leases
from snailps.worker.reports import Reports
from snailps.worker.user_code import checked_bytes, named


def survey(model: Worker, leases: Leases, reports: Reports) -> None:
    assert isinstance(model, Surveyed)
    part = model.survey_part()
    if part is not None:
        _survey_together(part, model, leases, reports)
        return
    while (lease := leases.lease("survey")) is not None:
        begin = time.monotonic()
        block = leases.block(lease, "survey")
        with named(model, "survey", block):
            found = checked_bytes(model.survey(block))
        done = messages.Done(
            "survey", block.number, len(block.data), time.monotonic() - begin, {}, found
        )
        reports.done(done)


def _survey_together(part: SurveyPart, model: Worker, leases: Leases, reports: Reports) -> None:
    """Merge the surveys of blocks into one part, which the master orders when it has room."""
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
            # No name here keeps the bytes, or a block's, while the next part is counted.
            reports.done(_part_done(part, model, numbers, units, seconds))
            numbers, units, seconds = [], 0, 0.0
        else:
            return


def _survey_block(lease: messages.Leased, part: SurveyPart, model: Worker, leases: Leases) -> int:
    """Add a block to the part; returns its bytes."""
    block = leases.block(lease, "survey")
    with named(model, "survey", block):
        part.add(block)
    return len(block.data)


def _part_done(
    part: SurveyPart, model: Worker, numbers: list[int], units: int, seconds: float
) -> messages.Done:
    with named(model, "survey"):
        found = checked_bytes(part.take())
    return messages.Done("survey", numbers[-1], units, seconds, {}, found, numbers[:-1])
