"""Limits how many workers of a job train at the same time.

    settings, files -> Limited.workers_at_once -> Concurrency -> the job -> seats of its schedule

Between two exchanges a worker does not see the steps of the others.  In a small input it trains a
large part of all lines in that time, so that several workers learn less than one.
"""

from __future__ import annotations

from snailps.dataclass import dataclass
from snailps.errors import MisuseError

ALL = 1 << 30
"""No limit."""
LACKING_MOST = 0.5
"""Most steps of other workers, added up, that a gradient may lack.  In units of a step: the rate of
sgd, over 1 - beta1 with momentum.  With more, quality falls (docs/lab/consistency.md)."""
COUNTED_FOR = 64
"""An input with work for this many workers has no limit, and need not be counted to its end."""


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most `workers` train at a time; the others wait until one leaves.

    `why` is the reason, for users: "more learn less from 5,280 triples".
    """

    workers: int = ALL
    why: str = ""

    def __post_init__(self) -> None:
        if self.workers <= 0:
            raise MisuseError(f"expected 1 worker at least, got {self}")

    @classmethod
    def by_size(cls, size: int, each: int, unit: str) -> Concurrency:
        """Allow one worker for every `each` units of an epoch of `size`, and at least one."""
        workers = max(1, size // each)
        if workers >= COUNTED_FOR:
            return cls()
        return cls(workers, f"more learn less from {size:,} {unit}")

    @classmethod
    def by_step(cls, step: float, why: str) -> Concurrency:
        """Allow as many workers as gradients of all but one, of `step` each, add up to little."""
        return cls(1 + int(LACKING_MOST / max(step, 1e-6) + 1e-3), why)
