"""What strangers, who have not proved that they belong here, may take of a process.

    descriptor of the newest stranger -> strangers_max -> how many this listener keeps

It owns the bounds of time and number.  It knows no connection; who is closed says the listener.
"""

from __future__ import annotations

import errno
import resource

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
