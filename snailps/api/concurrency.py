"""How many workers of a job train at the same time, and why no more.

    settings, files -> Limited.workers_at_once -> Concurrency -> the job -> seats of its schedule

What workers know of each other's steps is as old as the lines they train between two exchanges.  In
a small input these lines are a large part of it, and several workers learn less than one.
"""

from __future__ import annotations

from snailps.dataclass import dataclass
from snailps.errors import MisuseError

ALL = 1 << 30
"""No limit."""
COUNTED_FOR = 64
"""An input with work for this many workers has no limit, and need not be counted to its end."""


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most `workers` train at a time; `why` says so to users: "more learn less from 5,280
    triples".  The others wait for a worker that leaves.
    """

    workers: int = ALL
    why: str = ""

    def __post_init__(self) -> None:
        if self.workers <= 0:
            raise MisuseError(f"expected 1 worker at least, got {self}")

    @classmethod
    def by_size(cls, size: int, each: int, unit: str) -> Concurrency:
        """Let a worker train for `each` lines, or bytes, of an epoch of `size`; at least one."""
        workers = max(1, size // each)
        if workers >= COUNTED_FOR:
            return cls()
        return cls(workers, f"more learn less from {size:,} {unit}")
