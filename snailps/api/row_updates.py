"""Kinds of changes to rows: each says how any number of workers make a change once.

**Only a step of a gradient may be pushed as a sum**: it is in proportion to a rate, so N workers
push what one would in N times as many steps.  Any other change (a vector scaled to length one, a
running mean) takes another way, or N workers would make it N times.  Models declare their changes
as ``row_updates``; tests/sim/test_alike.py trains each model with a rate of nearly 0, which must
push nearly nothing.  docs/consistency.md has the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class RowUpdate(Enum):
    """Who makes a change to a row."""

    STEP = "pushed as a sum"
    """A step of a gradient, or of a sum of squared gradients."""
    READ = "made where rows are read"
    """A function of the row alone, like a projection: each reader computes it, nobody pushes it."""
    SHARE = "pushed by share"
    """A mean over all workers: each pushes its part."""
    OWNER = "made by one owner"
    """Made by the shard, or by one worker for all."""


STEPPED_BY_SHARDS: Mapping[str, RowUpdate] = {
    "gradient of the loss, divided by the examples of its batch": RowUpdate.STEP,
    "step and state of the optimizer, l1 and l2 of ftrl": RowUpdate.OWNER,
}
