"""Owns how long a result waits for room on its disk, and says so to users.

    a model or a last checkpoint cannot be written -> full: try again? -> is_due ... -> over

Must not know what is written. `now` is monotonic seconds.
"""

from __future__ import annotations

import logging
from math import inf

log = logging.getLogger(__name__)

AGAIN_S = 5.0
"""Seconds between two tries."""
NOTICE_S = 60.0
"""Seconds between two log lines."""


class RoomWait:
    """The wait for room, of `master_time_out` at most."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self.over()

    def over(self) -> None:
        """Stop waiting: it is written, or given up."""
        self._until = self._again_at = inf
        self._notice_at = 0.0

    @property
    def waits(self) -> bool:
        return self._until < inf

    def full(self, why: str, now: float) -> bool:
        """Whether to wait and try again, after a failure for the reason `why`."""
        self._until = min(self._until, now + self._limit_s)
        left_s = self._until - now
        if left_s <= 0:
            return False
        if now >= self._notice_at:
            self._notice_at = now + NOTICE_S
            log.warning(
                "%s. It is tried again every %.0f s, for %.0f s (master_time_out): make room",
                why.rstrip("."), AGAIN_S, left_s,
            )  # fmt: skip
        self._again_at = now + min(AGAIN_S, left_s)
        return True

    def is_due(self, now: float) -> bool:
        """Whether to try again now; true once."""
        is_due = now >= self._again_at
        if is_due:
            self._again_at = inf
        return is_due

    def stood_still(self, seconds: float) -> None:
        self._until += seconds
