"""How long each wait may last: in a chain of waits, limits decrease from caller to callee.

    request_timeout -> Limits.of -> request > reach > parked > silence > stuck, yielding, one try
    init_timeout > Limits.connect_s: a first connect to all shards
    a server's orders: STALL > ORDER > SERVE, DIAL           the end: END > GOODBYE > GRACE > 2 STOP

So the inner wait ends first: its cause is handled, or named in the answer to the outer one. Of two
equal limits either may end first, and the outer wait has the less precise message. Owns all limits
that depend on each other; the others stand where they are used.
"""

from __future__ import annotations

from snailps.dataclass import dataclass

STALL_S = 60.0
"""A standby whose copy makes no progress for this long is given up and replaced."""
ORDER_S = 30.0
"""A server that has not executed an order for this long is declared lost, despite heartbeats."""
SERVE_S = 15.0
"""How long a promotion waits for the next standby; then the shard serves without it."""
DIAL_S = 15.0
"""How long a primary tries to reach its standby; the listener waits 10 s for a handshake."""

END_S = 15.0
"""Time that the processes of one machine may take to end before a launcher kills them."""
GOODBYE_S = 10.0
"""Time that the master waits at the end for the `Bye` of all others."""
STATS_S = 5.0
"""Time that a reader of metrics waits for the counters of shards, or for the master's loop."""
GRACE_S = 8.0
"""Time that a process may take to end after a failure before it is killed."""
STOP_S = 3.0
"""Time that a server waits for a cancelled checkpoint, and as long again for all its shards."""

YIELD_S_MAX = 5.0
TRY_S_MAX = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the waits inside one request, in seconds; `of` derives them."""

    reach_s: float  # a client cannot reach a shard; by then its route should have changed
    parked_s: float  # a request is parked at a shard; the refusal names what it waited for
    # a standby acknowledges nothing; then the primary reports it as lost
    silence_s: float
    stuck_s: float  # a standby cannot apply its primary's stream; then it reports what is missing
    yield_s: float  # a primary tries to hand over, while pushes are parked; then it serves on
    try_s: float  # one attempt to reconnect to a shard: its address may have changed by then
    # no server serves a shard; longer than a server may take to execute that order
    changeover_s: float

    def connect_s(self, init_timeout: float) -> float:
        """How long to try to reach a shard of the first route; the error names the shard. Shorter
        than `init_timeout`, for which the master waits for this process, and others for the
        start."""
        return min(self.reach_s, 0.9 * init_timeout)

    @classmethod
    def of(cls, request_timeout: float) -> Limits:
        """The limits derived from `request_timeout`, which should be equal in all processes."""
        # Before the master judges the standby by itself (`STALL_S`), and with time left to act on
        # it while requests are parked.
        silence_s = min(0.5 * request_timeout, 0.5 * STALL_S)
        return cls(
            # What is left above each is for its answer to arrive: the caller's own limit would have
            # ended the request a moment before, in words that do not name the cause.
            reach_s=0.9 * request_timeout,
            parked_s=0.8 * request_timeout,
            silence_s=silence_s,
            stuck_s=0.8 * silence_s,
            # Pushes are parked for as long, and have to be served afterwards.
            yield_s=min(0.25 * request_timeout, YIELD_S_MAX),
            try_s=min(0.1 * request_timeout, TRY_S_MAX),
            # The promotion is an order, and a yield that came to nothing may precede it.
            changeover_s=max(request_timeout, 2 * ORDER_S),
        )
