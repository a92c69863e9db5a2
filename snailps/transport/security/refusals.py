"""Refused and unknown peers: how many there may be, and what is logged about them.

    (address, why) of each -> RefusalLog -> warnings, then one that sums up the others
    descriptor of the newest stranger -> strangers_max -> how many this listener keeps

Owns the counts, and the limits of time and number.  Must not know connections: the listener refuses
and closes.
"""

from __future__ import annotations

import errno
import logging
import resource
from collections.abc import Callable

from snailps.transport._awake import awake_s

log = logging.getLogger(__name__)

LINES_MAX = 10
PERIOD_S = 60.0
WHY_CHARS_MAX = 300
LEFT = "it left in the middle of the handshake; a process with another secret does that"
SOURCES_MAX = 1000
"""Most addresses counted separately in a period."""


class RefusalLog:
    """Logs the refusals of one listener, a limited number in a period; for one thread.  `what` is
    refused, a plural for messages; `number`: of all refusals; `last`: the newest, in words."""

    def __init__(
        self, clock: Callable[[], float] = awake_s, what: str = "attempts to get in"
    ) -> None:
        self._clock, self._what = clock, what
        self._since = clock()
        self._lines = 0
        self._more = 0
        self.last = ""
        self._sources: set[str] = set()
        self.number = 0

    @property
    def unreported(self) -> bool:
        """Whether refusals are counted that were not logged."""
        return self._more > 0

    def note(self, address: str, why: str) -> bool:
        """Count a refusal, and log it; False: there are too many, it is only in the sum."""
        self.sum_up()
        self.number += 1
        text = self.last = f"refused {address}: {why[:WHY_CHARS_MAX]}"
        if self._lines < LINES_MAX:
            self._lines += 1
            log.warning("%s", text)
            return True
        self._more += 1
        if len(self._sources) < SOURCES_MAX:
            self._sources.add(address.rpartition(":")[0])
        return False

    def sum_up(self) -> None:
        """If the period is over, log its sum and begin another.  Call it at intervals while
        `unreported`."""
        now = self._clock()
        if now - self._since < PERIOD_S:
            return
        if self._more:
            more = " or more" if len(self._sources) == SOURCES_MAX else ""
            log.warning(
                "%d more %s were refused within %.0f s, from %d%s addresses; the "
                "last: %s",
                self._more, self._what, now - self._since, len(self._sources), more, self.last,
            )  # fmt: skip
        self._since, self._lines, self._more = now, 0, 0
        self._sources.clear()


HANDSHAKE_LIMIT_S = 10.0
UNKNOWN_MAX = 512
"""Most connections of a listener with an unfinished handshake; for one more the oldest is
closed."""
SHARE = 4
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
ACCEPT_PAUSE_S = 0.5
"""Pause before the next accept when no descriptor is left for a new connection."""


def strangers_max(descriptor: int) -> int:
    """Return how many unauthenticated peers a listener keeps that has just accepted `descriptor`.

    The system gives the lowest free number, so at most ``limit - descriptor`` are free, and
    strangers get a share of them.  If `n` listeners of a process are attacked at once, each keeps
    ``1 / (SHARE + n)`` of the descriptors that peers and files do not use.  A shard's loop computes
    the same in C.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return UNKNOWN_MAX
    return max(1, min(UNKNOWN_MAX, (limit - descriptor) // SHARE))
