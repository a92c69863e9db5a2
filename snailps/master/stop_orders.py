"""Owns the orders to end that single members get, and whom the master then expects back.

    a member that the cluster goes on without -> send -> Stop
    workers of a failed job -> send_away -> Stop -> they are gone, or expelled -> they join again

The order that ends all members is `lifecycle.py`'s. Must not know why a member is to end
(`departures.py`). `now` is monotonic seconds.
"""

from __future__ import annotations

import logging
from math import inf

from snailps.master.context import Context
from snailps.master.member import Expel, Member
from snailps.master.membership import Membership
from snailps.node.limits import GOODBYE_S, GRACE_S
from snailps.transport import messages

log = logging.getLogger(__name__)

ANEW_S = 60.0
"""Seconds within which the workers of a failed job should have joined again; then a warning."""
LATER_S = GRACE_S / 2
"""Seconds before a worker that failed while joining a running job is restarted: it may well fail
again, and without a pause would do so many times a second."""


class StopOrders:
    def __init__(self, context: Context, members: Membership, expel: Expel) -> None:
        self._out, self._members, self._expel = context.out, members, expel
        self._workers_restart = context.life.workers_restart
        # Workers of a failed job that are still connected then are expelled.
        self._gone_by = inf
        self.coming = 0
        """Workers of a failed job that are to restart and have not joined yet."""
        self._coming_by = 0.0  # when a warning says so
        # Delayed orders: when to send, over which connection, the message. In order of time.
        self._later: list[tuple[float, int, messages.Stop]] = []

    def send(self, member: Member, text: str) -> None:
        self._members.send(member, self._stop(member, text))

    def _stop(self, member: Member, text: str) -> messages.Stop:
        """Where workers restart the member may come back: a worker that restarts, and a driver that
        connects again."""
        again = self._workers_restart and member.role != "server"
        return messages.Stop(True, text, again=again)

    def send_unhurried(self, member: Member, text: str, now: float) -> None:
        """Stop a member that has failed while it joined: one that restarts only after a pause."""
        stop = self._stop(member, text)
        if stop.again:
            # By its connection: as a member it is removed before the order leaves.
            self._later.append((now + LATER_S, member.peer, stop))
        else:
            self._members.send(member, stop)

    def send_away(self, workers: list[Member], text: str, now: float) -> None:
        """Stop the workers of a session's failed job; the next job begins when all are gone.

        Their process must end: user code may hang, or wait for a clock that no one completes.
        """
        if workers:
            self._gone_by = now + GOODBYE_S
        if self._workers_restart and workers:
            self.coming, self._coming_by = self.coming + len(workers), now + ANEW_S
        for member in workers:
            member.sent_away()
            self.send(member, text)

    def joined(self) -> None:
        """Count a worker that joined as one of those expected back: a restarted process cannot be
        recognised, and for the warning any worker is as good."""
        self.coming = max(0, self.coming - 1)

    def stood_still(self, seconds: float) -> None:
        self._gone_by += seconds
        self._coming_by += seconds
        self._later = [(due + seconds, peer, stop) for due, peer, stop in self._later]

    def step(self, now: float) -> None:
        if now >= self._gone_by:
            self._gone_by = inf
            for member in self._members.sent_away:
                self._expel(member, "it did not end with its job", now)
        while self._later and now >= self._later[0][0]:
            _, peer, stop = self._later.pop(0)
            self._out.send(peer, stop)
        if self.coming and now > self._coming_by:
            here = len(self._members.joined("worker"))
            log.warning(
                "%d workers of a failed job did not join again within %.0f s: %d are left. Look "
                "at their logs, and start them again",
                self.coming, ANEW_S, here,
            )  # fmt: skip
            self.coming = 0
