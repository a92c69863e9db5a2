"""A server's decisions: which effects an order of the master has, and how it is answered.

    orders, answers of shards, dials, works, time -> Event -> ServerCore.handle
    -> list of Effect -> performer.py performs them, in order

Owns `ShardHost` for the shards and `CheckpointControl` for checkpoints. Must not know sockets,
threads, clocks or files, nor may its parts. An order is answered once all shards concerned have
executed it; the next order does not wait for that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from snailps.api.access_method import AccessMethod
from snailps.api.tables import Table
from snailps.config import ServerSettings
from snailps.errors import ClusterError, ProtocolError, SnailError, explain
from snailps.node.effects import Effect, Event, Tick, WorkDone
from snailps.server import events
from snailps.server.checkpoints import CheckpointControl
from snailps.server.effects import Do, Outbox
from snailps.server.events import Address
from snailps.server.services import ServerFiles
from snailps.server.shard_host import ShardHost
from snailps.shard.shard import Shard
from snailps.transport import messages

log = logging.getLogger(__name__)


class ServerCore:
    def __init__(
        self,
        settings: ServerSettings,
        welcome: messages.Welcome,
        files: ServerFiles,
        *,
        endpoints: Sequence[Address],  # as registered: one for each shard that it may begin with
        own_rss_mb: Callable[[], float],  # peak resident size of this process so far, MB
        # the access method of a table in Python, a new one each call
        load_method: Callable[[Table], AccessMethod],
        # this process's part of its reports: usage, address of its metrics
        own_stats: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._own_stats = own_stats
        self._own_rss_mb = own_rss_mb
        self._out = Outbox()
        self.host = ShardHost(settings, welcome, endpoints, load_method, self._out)
        self.checkpoints = CheckpointControl(self.host, welcome, files, self._out)
        self.over = False  # no checkpoint is under way any more: the shards may be stopped
        host = self.host
        self._orders: Mapping[type[Any], Callable[[int, Any, float], None]] = {
            messages.TakeRoute: host.take_route,
            messages.MakeTables: host.make_tables,
            messages.DropTables: host.drop_tables,
            messages.HostStandby: host.host_standby,
            messages.BackUp: host.back_up,
            messages.Alone: host.unback,
            messages.Promote: host.promote,
            messages.Yield: host.yield_,
            messages.DropShard: host.drop,
            messages.KeepShards: host.keep,
            messages.Ask: self._ask,
            messages.Expire: self._expire,
            messages.SetClock: self._set_clock,
            messages.CloseClock: self._close_clock,
            messages.Fence: self._fence,
            messages.Save: self.checkpoints.order,
            messages.Load: self.checkpoints.order,
            messages.StopSaving: self.checkpoints.order,
        }
        self._events: Mapping[type[Any], Callable[[Any, float], None]] = {
            events.Ordered: self._obey,
            events.StreamReported: lambda event, now: host.stream_reported(event),
            WorkDone: self._out.done,
            Tick: lambda event, now: None,
            events.End: lambda event, now: self.checkpoints.stop(self._ended, now),
        }

    @property
    def due(self) -> float:
        """When the next `Tick` must come; inf: time alone changes nothing."""
        return min(self.host.due, self.checkpoints.due)

    @property
    def route_epoch(self) -> int:
        """Epoch of the last route; 0: none."""
        return self.host.route_epoch

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Return the effects of an event, to be performed in their order; it raises only for a
        bug."""
        self._events[type(event)](event, now)
        self.host.tick(now)
        self.checkpoints.tick(now)
        return self._out.take()

    def resume_state(self) -> dict[str, Any]:
        """The state of this server's standbys, for a master that takes over."""
        return {"standbys": self.host.resume_state()}

    def _ended(self, now: float) -> None:
        self.over = True

    # --- orders ----------------------------------------------------------------------------------

    def _obey(self, event: events.Ordered, now: float) -> None:
        order = event.message
        name = type(order).__name__
        try:
            obey = self._orders.get(type(order))
            if obey is None:
                raise ProtocolError(f"a server does not take {name}")
            if not isinstance(order, messages.TakeRoute | messages.Ask):
                self.host.formed()
            obey(event.call, order, now)
        except SnailError as error:
            self._out.reply(event.call, error)
        except Exception as error:
            log.exception("%s failed", name)
            self._out.reply(event.call, ClusterError(f"{name} failed: {explain(error)}"))

    def _ask(self, call: int, order: messages.Ask, now: float) -> None:
        own = {
            "peak_rss_mb": self._own_rss_mb(),
            "saved_bytes": self.checkpoints.done_bytes,
            **self._own_stats(),
        }
        self.host.stats(call, own, now)

    # Orders that change rows. A shard is done once its standby has executed the order, too, or
    # cannot be promoted. The answer names the shards that are done; the master orders the others
    # again.

    def _expire(self, call: int, order: messages.Expire, now: float) -> None:
        """Set the shards' ticks and delete old rows; the answer has their number. By fragment, so
        that a shard serves requests in between."""

        def each(number: int) -> list[Do]:
            return [
                partial(Shard.set_tick, tick=order.tick),
                *[
                    partial(
                        Shard.expire_one, number=table, before_tick=order.before, fragment=fragment
                    )
                    for table in sorted(self.host.touched)
                    for fragment in self.host.fragments_of(number)
                ],
            ]

        def answer(by_shard: dict[int, list[Any]]) -> messages.Message:
            expired = sum(sum(counts) for _, *counts in by_shard.values())
            return messages.Report({"done": list(by_shard), "expired": expired})

        self.host.post_each(call, order.shards, each, answer, now)

    def _set_clock(self, call: int, order: messages.SetClock, now: float) -> None:
        do = partial(Shard.set_clock, clock=order.clock, early=order.early)
        self.host.post_each(call, order.shards, lambda _: [do], _done, now)

    def _close_clock(self, call: int, order: messages.CloseClock, now: float) -> None:
        do = partial(Shard.close_clock, clock=order.clock, slots=order.slots)

        def answer(by_shard: dict[int, list[Any]]) -> messages.Message:
            states = [state for (state,) in by_shard.values()]
            return messages.Report({"done": list(by_shard), "shards": states})

        self.host.post_each(call, order.shards, lambda _: [do], answer, now)

    def _fence(self, call: int, order: messages.Fence, now: float) -> None:
        do = partial(
            Shard.fence_and_seal,
            incarnation=order.incarnation,
            gone=order.gone,
            clock=order.clock,
            slot=order.slot,
            slots=order.slots,
        )
        self.host.post_each(call, order.shards, lambda _: [do], _done, now)


def _done(by_shard: dict[int, list[Any]]) -> messages.Message:
    return messages.Report({"done": list(by_shard)})
