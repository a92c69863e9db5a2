"""Orders to servers that are not answered yet, and the callbacks of their answers.

    give -> Order -> answered: callback; late: servers that are waited for too long

`planner.py` decides on orders, the controller sends them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from snailps.dataclass import dataclass, field
from snailps.master.replication.effects import Order
from snailps.node.limits import ORDER_S
from snailps.transport import messages

log = logging.getLogger(__name__)

OnAnswer = Callable[[messages.Message | None, str, float], None]
"""Gets the answer or None, the error or "", and the time."""


@dataclass(slots=True)
class _Open:
    order: Order
    until: float
    on_answer: OnAnswer


@dataclass(slots=True)
class PendingOrders:
    """All orders without an answer."""

    _open: dict[int, _Open] = field(default_factory=dict)
    _next: int = 1

    def give(
        self, server: int, message: messages.Message, now: float, on_answer: OnAnswer | None = None
    ) -> Order:
        """Make an order; without `on_answer` a refusal is only logged."""

        def noted(answer: messages.Message | None, error: str, now: float) -> None:
            if error:
                log.warning("server %d: %s: %s", server, type(message).__name__, error)

        order = Order(self._next, server, message)
        self._next += 1
        self._open[order.number] = _Open(order, now + ORDER_S, on_answer or noted)
        return order

    def answered(
        self, order: Order, answer: messages.Message | None, error: str, now: float
    ) -> bool:
        """Call the callback of an order; False if the order does not matter any more."""
        one = self._open.pop(order.number, None)
        if one is not None:
            one.on_answer(answer, error, now)
        return one is not None

    def late(self, now: float) -> dict[int, Order]:
        """Find an order that a server has had for too long, by server."""
        found: dict[int, Order] = {}
        for one in self._open.values():  # in the order in which they were given, and end
            if now < one.until:
                break
            found[one.order.server] = one.order
        return found

    def stood_still(self, seconds: float) -> None:
        """Extend limits: the master was stopped, and the servers perhaps with it."""
        for one in self._open.values():
            one.until += seconds

    def forget_server(self, number: int) -> None:
        """A server will answer nothing any more."""
        self._open = {k: o for k, o in self._open.items() if o.order.server != number}

    def forget_shard(self, shard: int, *kinds: type[messages.Message]) -> None:
        """Forget open orders on making and moving a shard."""
        kinds = kinds or (messages.HostStandby, messages.BackUp, messages.Yield, messages.Promote)
        for key, one in list(self._open.items()):
            message = one.order.message
            if isinstance(message, kinds) and getattr(message, "shard", -1) == shard:
                del self._open[key]
