"""Owns what each `consistency` promises about the steps of a job.

    settings -> steps_of -> Steps: what a model, a worker and the master may do with blocks and rows

Code asks for a property, never for the name: `JobSettings` declares the names, this table says
what they mean, and `master/leases/` has a schedule that keeps each promise.
"""

from __future__ import annotations

from typing import Any

from snailps.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Steps:
    """Properties of the steps of a job that has no rounds."""

    rows_may_stay: bool = False
    """A worker may keep rows from block to block: it need not see each step of other workers."""
    order_is_free: bool = False
    """A worker may begin a block before the pushes of the previous one are acknowledged, and blocks
    may have any size: no other worker waits for a block, and no clock counts them."""
    are_sums: bool = False
    """A step is the sum of several blocks: rows change once all of them have arrived, and get the
    same bits whichever worker trained which block."""
    refused_assign: str = ""
    """The value of `assign` that contradicts the schedule; empty: none does."""


STEPS = {
    "async": Steps(rows_may_stay=True, order_is_free=True),
    "ssp": Steps(refused_assign="shared"),
    "bsp": Steps(are_sums=True, refused_assign="own"),
}
"""By `consistency`."""


def steps_of(settings: Any) -> Steps:
    """Return the promises of the `consistency` of a job's settings."""
    return STEPS[settings.consistency]
