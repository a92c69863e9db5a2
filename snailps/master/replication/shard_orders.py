"""Owns the orders that change rows, until every shard has carried them out: clocks, fences, expiry.

    give(order) -> a message to every server that serves some of its shards -> done
    a server is lost, a shard has moved -> the same to the server that has it now

They are for shards, not servers: an order whose server is lost goes to the server that serves the
shard next. It may therefore come twice; orders are idempotent. A shard gets them in the sequence in
which they were given: an order waits while an earlier one is open at the same shard. An order that
a server refuses is never counted as done: others rely on it, so that server is lost, or the cluster
ends. Must not know connections; `now` is monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from snailps.dataclass import dataclass
from snailps.errors import ConnectionLost, SnailError
from snailps.master.effects import OnAnswer
from snailps.master.events import Answer
from snailps.transport import messages
from snailps.transport.messages.terms import Step

Kind = Literal["clock", "fence", "expire"]


@dataclass(eq=False, slots=True)
class _ShardOrder:
    kind: Kind
    what: str  # completes "cannot ..." in an error
    make: Callable[[list[int]], messages.Message]  # the message for these shards
    heard: Callable[[dict[str, Any]], None]
    left: set[int]  # shards that have not carried it out
    asked: set[int]  # of these, those whose server has the message and has not answered
    until: float  # when a shard must have a server again


class ShardOrders:
    """Open orders of shards."""

    def __init__(
        self,
        count: Callable[[], int],  # number of shards
        server_of: Callable[[int], int],  # the server that serves a shard, 0 while it changes over
        # ``call(server, message, on_answer, now)``
        call: Callable[[int, messages.Message, OnAnswer, float], None],
        fail: Callable[[str], None],  # ends the cluster
        limit_s: float,  # seconds that a shard may be without a server
        # ``expel(server, why, now)`` declares a server lost that refuses an order: its standbys
        # carry it out. None: the cluster ends
        expel: Callable[[int, str, float], None] | None = None,
        # ``gone(incarnation)``: it, and others that push no more, as spans of numbers
        gone: Callable[[int], list[tuple[int, int]]] = lambda incarnation: [],
    ) -> None:
        self._count, self._server_of = count, server_of
        self._call, self._fail = call, fail
        self._limit_s, self._expel, self._gone = limit_s, expel, gone
        self._open: list[_ShardOrder] = []
        self.expired = 0  # rows deleted because no push touched them

    # --- what there is to do -------------------------------------------------------------------

    def set_clock(self, clock: int, early: bool, now: float) -> None:
        """Have every shard begin at a clock, and drop what is staged; see `clocks_set`. `early`:
        the master may close clocks of which some slots are missing."""
        self.give(
            "clock",
            "set its clock",
            lambda shards: messages.SetClock(clock, early, shards),
            now,
        )

    def close_clock(self, clock: int, slots: list[int], now: float) -> None:
        """Have every shard apply exactly these slots of a clock; see `clocks_set`."""
        self.give(
            "clock",
            f"close clock {clock}",
            lambda shards: messages.CloseClock(clock, slots, shards),
            now,
        )

    @property
    def moving(self) -> bool:
        """Whether a shard changes over: no server has it just now."""
        return not all(self._server_of(shard) for shard in range(self._count()))

    @property
    def clocks_set(self) -> bool:
        """Whether every shard has carried out its last clock order."""
        return not self.open("clock")

    def fence(self, incarnation: int, now: float, last: Step | None = None) -> None:
        """Have every shard refuse pushes of a lost process from now on: others do its work, and it
        may only be slow.

        `last` is a step that a lost worker had pushed completely, but perhaps sealed at some shards
        only. These may have applied its clock, so no worker could train the step again from the
        same rows: the other shards seal it in the worker's place; see `clocks_set`.
        """
        gone = [list(span) for span in self._gone(incarnation)]
        if last is None:
            self.give(
                "fence",
                "fence a worker",
                lambda shards: messages.Fence(incarnation, shards=shards, gone=gone),
                now,
            )
            return
        clock, slot, slots = last.clock, last.slot, last.slots
        self.give(
            "clock",
            f"seal slot {slot} of clock {clock}",
            lambda shards: messages.Fence(incarnation, clock, slot, slots, shards, gone),
            now,
        )

    def expire(self, tick: int, before: int, now: float) -> None:
        """Set every shard's tick, and delete rows untouched since `before`."""

        def heard(data: dict[str, Any]) -> None:
            self.expired += int(data.get("expired", 0))

        self.give(
            "expire",
            "expire rows",
            lambda shards: messages.Expire(tick, before, shards),
            now,
            heard,
        )

    @property
    def expiring(self) -> bool:
        """Whether a shard has yet to execute `expire`."""
        return self.open("expire")

    # --- how -----------------------------------------------------------------------------------

    def give(
        self,
        kind: Kind,
        what: str,
        make: Callable[[list[int]], messages.Message],
        now: float,
        heard: Callable[[dict[str, Any]], None] = lambda data: None,
    ) -> None:
        """Give all shards an order; `heard` gets what each server reports."""
        shards, until = set(range(self._count())), now + self._limit_s
        self._open.append(_ShardOrder(kind, what, make, heard, shards, set(), until))
        self.step(now)

    @property
    def busy(self) -> bool:
        """Whether any order is open."""
        return bool(self._open)

    def open(self, *kinds: Kind) -> bool:
        """Whether an order of these kinds is open."""
        return any(order.kind in kinds for order in self._open)

    def stood_still(self, seconds: float) -> None:
        """Extend limits: the master was stopped, and the servers perhaps with it."""
        for order in self._open:
            order.until += seconds

    def step(self, now: float) -> None:
        """Send orders to the servers of shards that lack them, and whose earlier orders are done.

        The cluster ends if all shards that an order still needs are without a server for too long.
        """
        self._open = [order for order in self._open if order.left]
        busy: set[int] = set()  # shards with an earlier order open
        count = self._count()
        for order in list(self._open):
            if len(busy) >= count:
                break  # later orders wait at every shard; a hundred workers may be lost at once
            by_server: dict[int, list[int]] = {}
            for shard in sorted(order.left - order.asked - busy):
                by_server.setdefault(self._server_of(shard), []).append(shard)
            waiting = by_server.pop(0, [])
            if order.left <= set(waiting) | busy:
                if waiting and now > order.until:
                    self._fail(
                        f"no server could {order.what} for shard {waiting[0]} in "
                        f"{self._limit_s:.0f} s: the shard changes over, and its new server does "
                        "not serve it. See that server's log"
                    )
            else:
                order.until = now + self._limit_s
            busy |= order.left
            for server, shards in by_server.items():
                order.asked |= set(shards)
                noting = partial(self._answered, order, server, shards)
                self._call(server, order.make(shards), noting, now)

    def _answered(
        self, order: _ShardOrder, server: int, shards: list[int], answer: Answer, now: float
    ) -> None:
        order.asked -= set(shards)
        if isinstance(answer, ConnectionLost):
            return  # `step` asks the server that serves these shards next
        if isinstance(answer, SnailError):
            # The order stays open: others rely on it, and a shard that lacks it is not in the state
            # that they assume. A standby carries out a fence or an expiry that its primary had no
            # memory for; a clock fails for a reason that is the same at the standby.
            why = f"cannot {order.what}: {answer}"
            if order.kind == "clock" or self._expel is None:
                self._fail(f"server {server} {why}")
            else:
                self._expel(server, f"it {why}", now)
        elif isinstance(answer, messages.Report):
            order.left -= {int(shard) for shard in answer.data.get("done", [])}
            order.heard(answer.data)
        self._open = [order for order in self._open if order.left]
