"""How many workers of a job train at the same time.

    settings, files -> Limited.workers_at_once -> Concurrency -> the job -> seats of its schedule

What several workers know of each other's steps is old by as many lines as they train meanwhile: of
a small input that is a large part, and they learn less than one worker does.
"""

from __future__ import annotations

from collections.abc import Callable

from snailps.dataclass import dataclass
from snailps.errors import MisuseError

ALL = 1 << 30
"""More workers than there are."""
COUNTED_FOR = 64
"""Workers for which lines are counted; from as many lines on all train."""


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most `workers` train at a time, because of `why`: "more learn less from 5,280 triples"."""

    workers: int = ALL
    why: str = ""

    def __post_init__(self) -> None:
        if self.workers <= 0:
            raise MisuseError(f"expected 1 worker at least, got {self}")

    @classmethod
    def by_lines(cls, count: Callable[[int], int], each: int, unit: str = "lines") -> Concurrency:
        """Have a worker train for each so many lines of an epoch, one at least.

        `count` is `InputFiles.lines`.
        """
        most = COUNTED_FOR * each
        lines = count(most)
        if lines >= most:
            return cls()
        workers = max(1, lines // each)
        return cls(workers, f"more learn less from {lines:,} {unit}")
