"""Measures how busy an event loop is: a histogram of the durations of its turns.

    turn: seconds -> LoopLatency -> number of turns, the longest one, the 99.9th percentile

Must not know clocks: durations are arguments.
"""

from __future__ import annotations

import math
from functools import cache

from snailps.node.status import LoopStatus

STEPS = 24
"""Buckets for each doubling: a quantile is at most 3% too large."""
LEAST_S = 1e-6


class LoopLatency:
    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._cpu_counts: dict[int, int] = {}
        self._turns = 0
        self._busy_s = self._longest_s = 0.0

    def note(self, busy_s: float, cpu_s: float) -> None:
        """Record a turn: its duration without waits, and its processor time."""
        for counts, seconds in ((self._counts, busy_s), (self._cpu_counts, cpu_s)):
            bucket = math.ceil(math.log2(max(seconds, LEAST_S) / LEAST_S) * STEPS)
            counts[bucket] = counts.get(bucket, 0) + 1
        self._turns += 1
        self._busy_s += busy_s
        self._longest_s = max(self._longest_s, busy_s)

    def status(self) -> LoopStatus:
        counts = _listed(self._counts)
        return {
            "turns": self._turns,
            "busy_s": self._busy_s,
            "busy_ms_p999": min(quantile_ms(counts, 0.999), self._longest_s * 1e3),
            "busy_ms_max": self._longest_s * 1e3,
            "counts": counts,
            "cpu_counts": _listed(self._cpu_counts),
        }


def _listed(counts: dict[int, int]) -> list[list[float]]:
    return [[_upper_ms(bucket), count] for bucket, count in sorted(counts.items())]


@cache  # a status has some 300 buckets, and there are some hundred of them
def _upper_ms(bucket: int) -> float:
    return float(round(LEAST_S * 1e3 * 2 ** (bucket / STEPS), 6))


def quantile_ms(counts: list[list[float]], share: float) -> float:
    """Return the upper bound, in ms, of the bucket that holds the quantile `share`.

    `counts` as in `LoopStatus`; 0 without turns.
    """
    remaining = math.ceil(share * sum(count for _, count in counts))
    for upper_ms, count in counts:
        remaining -= int(count)
        if remaining <= 0:
            return upper_ms
    return 0.0
