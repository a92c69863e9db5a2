"""Decides when the clock of tables that forget rows ticks, and which rows are deleted.

    units trained -> ticks -> Expire, by `ShardOrders` -> servers delete what no push touched

Must not know tables or connections.
"""

from __future__ import annotations

from collections.abc import Sequence

from snailps.master.effects import Outbox
from snailps.master.job.job import Job
from snailps.master.replication.shard_orders import ShardOrders

TICKS = 8
"""Ticks in the time after which untouched rows are deleted: its resolution."""


def oldest_kept(ticks: Sequence[int]) -> int:
    """The least tick of rows that stay.

    A push leaves the tick of its shard's clock in the row. That clock may lag by one tick: all
    shards have a tick before the next one is ordered. Counted with that lag, a row lives for at
    least `TICKS` after its last push, however slow the servers were.
    """
    until = ticks[-1] - TICKS
    pairs = zip(ticks, ticks[2:], strict=False)
    return max((tick + 1 for tick, over in pairs if over <= until), default=0)


class ExpiryClock:
    def __init__(self, out: Outbox, shard_orders: ShardOrders) -> None:
        self._out, self._shard_orders = out, shard_orders  # the journal gets every tick
        self._tick = 0  # of the shards

    def begin(self, now: float) -> None:
        """Begin a job: set the clock of shards back, or its first rows would seem to be of the end
        of the last job."""
        self._shard_orders.expired = 0
        if self._tick:
            self._shard_orders.expire(0, 0, now)
        self._tick = 0

    def resume(self, job: Job, now: float) -> None:
        if job.clock.ticks[-1]:
            self._expire(job, now)

    def step(self, job: Job, now: float) -> None:
        """Advance the clock, and have servers delete rows that no push touched in time."""
        tick = job.metrics.units * TICKS // job.model.expires if job.model.expires else 0
        if tick > job.clock.ticks[-1] and not self._shard_orders.expiring:
            self._out.journal("tick", {"tick": tick})
            job.clock.ticks.append(tick)
            self._expire(job, now)

    def _expire(self, job: Job, now: float) -> None:
        """Order the deletion, and drop ticks that decide nothing any more."""
        self._tick, oldest = job.clock.ticks[-1], oldest_kept(job.clock.ticks)
        self._shard_orders.expire(self._tick, oldest, now)
        job.clock.ticks = [tick for tick in job.clock.ticks if tick >= oldest - 1]
