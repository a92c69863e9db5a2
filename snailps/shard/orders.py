"""Orders that change rows or clocks: done at a shard, then at its standby.

    {"do": ..., arguments} -> Orders.execute -> store -> what it returned
                           -> Orders.copied -> JSON for the stream, as far as it concerns what is
                           copied

It owns what orders there are.  Which of them may be given when is decided in `replication.py`.
"""

from __future__ import annotations

import json
from typing import Any

from snailps.errors import ProtocolError, SnailError
from snailps.shard._shard import ShardCore

Order = dict[str, Any]
"""``do``: name of the order; its arguments.  JSON."""


class Orders:
    def __init__(self, core: ShardCore) -> None:
        self._core, self._store = core, core.store

    def execute(self, order: Order) -> Any:
        """Do an order, as a primary or as its standby; return what the store returns."""
        do, store = order["do"], self._store
        if do == "expire":
            return store.expire(order["table"], order["before"], order["fragments"])
        if do == "set_tick":
            return store.set_tick(order["tick"])
        if do == "fence":
            return self._core.fence(order["incarnation"])
        if do == "set_clock":
            return self._core.set_clock(order["clock"], order["early"])
        try:
            if do == "close_clock":
                return store.close_clock(order["clock"], order["slots"])
            if do == "seal":
                return store.seal(
                    order["clock"], order["slot"], order["slots"], order["incarnation"]
                )
        except SnailError:
            if self._core.clock_error is None:
                raise
            raise self._core.clock_error from None
        raise ProtocolError(f"{do!r} is no order that this version knows", "stream")

    def copied(self, order: Order) -> bytes:
        """The order for the standby, as JSON, without fragments that are still to be copied."""
        if order["do"] == "expire":
            copied = [f for f in order["fragments"] if self._core.is_copied(f)]
            order = {**order, "fragments": copied}
        return json.dumps(order).encode()
