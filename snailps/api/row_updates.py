"""How each change of a row reaches other workers: the kinds, one for each update of each model.

**What a worker pushes as a sum is a step of a gradient**: it is in proportion to a rate, so that N
workers push what one would in N times as many steps.  A change that is not (a vector made a unit
vector, a mean that runs along) goes another way, or N workers make it N times.  Models declare
theirs as ``row_updates``; tests/sim/test_alike.py trains each with a rate of nearly 0, which must
push nearly nothing.  docs/consistency.md has the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class RowUpdate(Enum):
    """Who makes a change of a row, so that any number of workers make it once."""

    STEP = "pushed as a sum"
    """A step of a gradient, or of a sum of squared gradients."""
    READ = "made where rows are read"
    """A function of the row alone, a projection: each reader makes it, and no process pushes it."""
    SHARE = "pushed by share"
    """A mean of all workers: each pushes its part of it."""
    OWNER = "made by one owner"
    """By the shard, or by one worker for all."""


STEPPED_BY_SHARDS: Mapping[str, RowUpdate] = {
    "gradient of the loss, divided by the examples of its batch": RowUpdate.STEP,
    "step and state of the optimiser, l1 and l2 of ftrl": RowUpdate.OWNER,
}
