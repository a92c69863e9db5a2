"""How many workers of a job train at the same time.

    settings, files -> Limited.workers_at_once -> Concurrency -> the job -> seats of its schedule

What several workers know of each other's steps is old by as many lines as they train meanwhile: of
a small input that is a large part, and they learn less than one worker does.
"""

from __future__ import annotations

from snailps.dataclass import dataclass
from snailps.errors import MisuseError

ALL = 1 << 30
"""More workers than there are."""
COUNTED_FOR = 64
"""Workers for which an input is counted; from as large a one on all train."""


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most `workers` train at a time, because of `why`: "more learn less from 5,280 triples"."""

    workers: int = ALL
    why: str = ""

    def __post_init__(self) -> None:
        if self.workers <= 0:
            raise MisuseError(f"expected 1 worker at least, got {self}")

    @classmethod
    def by_size(cls, size: int, each: int, unit: str) -> Concurrency:
        """Have a worker train for each so many lines, or bytes, of an epoch; one at least."""
        workers = max(1, size // each)
        if workers >= COUNTED_FOR:
            return cls()
        return cls(workers, f"more learn less from {size:,} {unit}")
