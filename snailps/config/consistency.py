"""What each `consistency` promises of the steps of a job.

    settings -> steps_of -> Steps: what a model, a worker and the master may do with blocks and rows

Whoever needs to know asks for the property, never for the name: `JobSettings` declares the names,
this table says what they mean, and `master/leases/` has a schedule that keeps each promise.
"""

from __future__ import annotations

from typing import Any

from snailps.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a job, where it has no rounds."""

    rows_may_stay: bool = False
    """A worker may keep rows from block to block: it need not see certain steps of others."""
    order_is_free: bool = False
    """A worker may begin a block before the pushes of the last one are acknowledged, and blocks may
    be cut at any size: no other worker waits for one, and none is counted."""
    are_sums: bool = False
    """A step is the sum of several blocks: rows change when all have come, the same bits always."""
    refused_assign: str = ""
    """The value of `assign` that contradicts the schedule; empty: none does."""


STEPS = {
    "async": Steps(rows_may_stay=True, order_is_free=True),
    "ssp": Steps(refused_assign="shared"),
    "bsp": Steps(are_sums=True, refused_assign="own"),
}
"""By `consistency`."""


def steps_of(settings: Any) -> Steps:
    """What the `consistency` of a job's settings promises."""
    return STEPS[settings.consistency]
