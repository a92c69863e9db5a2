"""How long each wait may last, so that along a chain of waits they fall from the outside in.

    request_timeout -> Limits.of -> request > reach > parked > silence > stuck, yielding, one try
    init_timeout > Limits.connect_s: a first connect to all shards
    a server's orders: STALL > ORDER > SERVE, DIAL           the end: END > GOODBYE > GRACE > 2 STOP

A caller must wait longer than what it calls waits in turn: then the inner wait ends first, its
cause is dealt with or named, and the outer one is served.  Of two equal limits either may end
first, and the outer one has the poorer words.  So the limits that bound each other stand here.
"""

from __future__ import annotations

from dataclasses import dataclass

STALL_S = 60.0
"""A standby that gets no further with its copy for so long is given up, and made anew."""
ORDER_S = 30.0
"""A server that has not obeyed for so long is taken for lost: it hangs, though its heart beats."""
SERVE_S = 15.0
"""How long a standby that is promoted may wait for its own; then it does without, and lives."""
DIAL_S = 15.0
"""How long a primary tries to reach its standby; who listens there waits 10 s for a handshake."""

END_S = 15.0
"""How long the processes of one machine may take to end before a launcher ends them by force."""
GOODBYE_S = 10.0
"""How long the master waits at the end for all others to say goodbye."""
GRACE_S = 8.0
"""How long a process may take to end after a failure before it is ended by force."""
STOP_S = 3.0
"""How long a server waits for a checkpoint to be dropped, and as long for all its shards."""

YIELD_S_MAX = 5.0
TRY_S_MAX = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one request and of all that it may have to wait for, seconds; see `of`.

    Attributes
    ----------
    request_s : float
        A pull, a push or a control request, at the process that asks.
    reach_s : float
        A shard may be out of a client's reach; then its route should have changed.
    parked_s : float
        A request waits at a shard; it is told for what.
    silence_s : float
        A standby acknowledges nothing to its primary; the master is told, and nothing waits for it
        any more.
    stuck_s : float
        A standby waits for what its primary's stream needs; the primary is told what that is.
    yield_s : float
        A primary tries to hand over, while pushes are parked; then it goes on.
    try_s : float
        One try to reach a shard again: its address may be another one by then.
    changeover_s : float
        No server serves a shard; longer than a server may take that is told to.
    """

    request_s: float
    reach_s: float
    parked_s: float
    silence_s: float
    stuck_s: float
    yield_s: float
    try_s: float
    changeover_s: float

    def connect_s(self, init_timeout: float) -> float:
        """How long a process tries to reach a shard of its first route: it says which one lacks.

        The master waits for it, and others for the start, for `init_timeout`.
        """
        return min(self.reach_s, 0.9 * init_timeout)

    @classmethod
    def of(cls, request_timeout: float) -> Limits:
        """The limits that follow from `request_timeout`, which all processes should agree on."""
        silence_s = min(0.5 * request_timeout, 0.5 * STALL_S)
        return cls(
            request_s=request_timeout,
            reach_s=0.9 * request_timeout,
            parked_s=0.8 * request_timeout,
            silence_s=silence_s,
            stuck_s=0.8 * silence_s,
            yield_s=min(0.25 * request_timeout, YIELD_S_MAX),
            try_s=min(0.1 * request_timeout, TRY_S_MAX),
            changeover_s=max(request_timeout, 2 * ORDER_S),
        )
