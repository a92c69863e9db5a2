"""The clock of tables that forget rows: when it ticks, and which rows go.

    units trained -> ticks -> Expire, by `ShardOrders` -> servers delete what no push touched

It owns the ticks of a job; it knows no table and no connection.
"""

from __future__ import annotations

from collections.abc import Sequence

from snailps.master.job.job import Job
from snailps.master.membership import Membership

TICKS = 8
"""Steps of the clock in the time after which untouched rows are deleted."""


def oldest_kept(ticks: Sequence[int]) -> int:
    """Least tick that a row's last push may have left, if the row is to be kept.

    A push leaves the tick of the shard's clock, which stood there until the shard had the next
    one, as all had before the one after that was given: that is how late the push may have been.
    However slow the servers were, a row lives `TICKS` from then on.
    """
    until = ticks[-1] - TICKS
    pairs = zip(ticks, ticks[2:], strict=False)
    return max((tick + 1 for tick, over in pairs if over <= until), default=0)


class ExpiryClock:
    """The ticks of one job after the other.

    Parameters
    ----------
    members : Membership
        Their `rows` are given the orders, the journal gets every tick.
    """

    def __init__(self, members: Membership) -> None:
        self._members = members
        self.ticks = [0]

    def begin(self, now: float) -> None:
        """Another job begins: its first rows must not seem to be of the end of the last one."""
        if self.ticks[-1]:
            self._members.rows.expire(0, 0, now)
        self.ticks = [0]

    def resume(self, ticks: list[int], now: float) -> None:
        """Continues with the ticks of an earlier life of the job."""
        self.ticks = ticks
        if ticks[-1]:
            self._expire(now)

    def step(self, job: Job, now: float) -> None:
        """Moves the clock on, and has the servers delete what no push touched for so long."""
        tick = job.metrics.units * TICKS // job.expires if job.expires else 0
        if tick > self.ticks[-1] and not self._members.rows.expiring:
            self._members.out.note("tick", {"tick": tick})
            self.ticks.append(tick)
            self._expire(now)

    def _expire(self, now: float) -> None:
        """Has the servers delete rows, and forgets the ticks that decide nothing any more."""
        oldest = oldest_kept(self.ticks)
        self._members.rows.expire(self.ticks[-1], oldest, now)
        self.ticks = [tick for tick in self.ticks if tick >= oldest - 1]
