"""Refused and unknown peers: how many there may be, and what is logged about them.

    (address, why) of each -> RefusalLog -> warnings, then one that sums up the others
    descriptor of the newest stranger -> strangers_max -> how many this listener keeps

It owns the counts and the limits of time and number.  It knows no connection: the listener
refuses and closes.
"""

from __future__ import annotations

import errno
import logging
import resource
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

LINES_MAX = 10
PERIOD_S = 60.0
WHY_CHARS_MAX = 300
LEFT = "it left in the middle of the handshake; a process with another secret does that"
SOURCES_MAX = 1000
"""Addresses that are told apart in a period; there may be more."""


class RefusalLog:
    """What one listener has refused.  Used by one thread.

    Parameters
    ----------
    clock : callable
        Monotonic time, seconds.
    what : str
        Is refused, in the plural.

    Attributes
    ----------
    number : int
        All that were refused so far.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, what: str = "attempts to get in"
    ) -> None:
        self._clock, self._what = clock, what
        self._since = clock()
        self._lines = 0
        self._more = 0
        self._last = ""
        self._sources: set[str] = set()
        self.number = 0

    @property
    def unsaid(self) -> bool:
        """Whether there is something to sum up, by and by."""
        return self._more > 0

    def note(self, address: str, why: str) -> bool:
        """Counts a refusal; whether to log it now, or only in the sum."""
        self.sum_up()
        self.number += 1
        text = f"refused {address}: {why[:WHY_CHARS_MAX]}"
        if self._lines < LINES_MAX:
            self._lines += 1
            log.warning("%s", text)
            return True
        self._more += 1
        self._last = text
        if len(self._sources) < SOURCES_MAX:
            self._sources.add(address.rpartition(":")[0])
        return False

    def sum_up(self) -> None:
        """Ends a period that is over; to be called now and then while `unsaid`."""
        now = self._clock()
        if now - self._since < PERIOD_S:
            return
        if self._more:
            more = " or more" if len(self._sources) == SOURCES_MAX else ""
            log.warning(
                "%d more %s were refused within %.0f s, from %d%s addresses; the "
                "last: %s",
                self._more, self._what, now - self._since, len(self._sources), more, self._last,
            )  # fmt: skip
        self._since, self._lines, self._more = now, 0, 0
        self._sources.clear()


HANDSHAKE_LIMIT_S = 10.0
UNKNOWN_MAX = 512
"""Connections of one listener whose handshake is not done; one more, and the oldest has to go."""
SHARE = 4
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
ACCEPT_PAUSE_S = 0.5
"""Until the next try, when there is no descriptor left for a new connection."""


def strangers_max(descriptor: int) -> int:
    """How many strangers a listener keeps that has just accepted one: at least that one.

    Parameters
    ----------
    descriptor : int
        The newest one's.  The system gives the lowest number that is free: so at most
        ``limit - descriptor`` are left, and a listener's strangers take a part of these.

    Notes
    -----
    Several listeners of a process need not know of each other: where `n` of them are attacked at
    once, each keeps ``1 / (SHARE + n)`` of what peers and files have left.  A shard's loop has the
    same in C.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return UNKNOWN_MAX
    return max(1, min(UNKNOWN_MAX, (limit - descriptor) // SHARE))
