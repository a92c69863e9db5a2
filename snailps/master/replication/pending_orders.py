"""Owns the orders to servers that have no answer yet, and the callbacks of their answers.

    give -> PlannerOrder -> answered: callback; late: servers that do not answer in time

`actions.py` gives orders, the controller sends them. An order that no longer matters is forgotten
(`forget_server`, `forget_shard`): a late answer to it must not take a step of what came after.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from snailps.dataclass import dataclass, field
from snailps.node.effects import Effect
from snailps.node.limits import ORDER_S
from snailps.transport import messages

log = logging.getLogger(__name__)

OnAnswer = Callable[[messages.Message | None, str, float], None]
"""Gets the answer or None, the error or "", and the time."""


@dataclass(eq=False, slots=True)
class PlannerOrder(Effect):
    """An order to a server; its answer goes to `ReplicationPlanner.answered`, with the order."""

    server: int
    message: messages.Message
    until: float  # when the server has had it for too long
    on_answer: OnAnswer


@dataclass(slots=True)
class PendingOrders:
    """All orders without an answer."""

    _open: dict[PlannerOrder, None] = field(default_factory=dict)  # as they were given

    def give(
        self, server: int, message: messages.Message, now: float, on_answer: OnAnswer | None = None
    ) -> PlannerOrder:
        """Make an order; without `on_answer` a refusal is only logged."""

        def noted(answer: messages.Message | None, error: str, now: float) -> None:
            if error:
                log.warning("server %d refuses %s: %s", server, type(message).__name__, error)

        order = PlannerOrder(server, message, now + ORDER_S, on_answer or noted)
        self._open[order] = None
        return order

    def answered(
        self, order: PlannerOrder, answer: messages.Message | None, error: str, now: float
    ) -> bool:
        """Call the callback of an order; False if the order was forgotten."""
        if order not in self._open:
            return False
        del self._open[order]
        order.on_answer(answer, error, now)
        return True

    def late(self, now: float) -> dict[int, PlannerOrder]:
        """An order that a server has had for too long, by server."""
        late: dict[int, PlannerOrder] = {}
        for order in self._open:  # given in the sequence of their limits
            if now < order.until:
                break
            late[order.server] = order
        return late

    def stood_still(self, seconds: float) -> None:
        """Extend limits: the master was stopped, and the servers perhaps with it."""
        for order in self._open:
            order.until += seconds

    def forget_server(self, number: int) -> None:
        """Forget the orders of a lost server, which will answer nothing any more."""
        self._open = {order: None for order in self._open if order.server != number}

    def forget_shard(self, shard: int, *kinds: type[messages.Message]) -> None:
        """Forget open orders on making and moving a shard."""
        kinds = kinds or (messages.HostStandby, messages.BackUp, messages.Yield, messages.Promote)
        for order in list(self._open):
            message = order.message
            if isinstance(message, kinds) and getattr(message, "shard", -1) == shard:
                del self._open[order]
