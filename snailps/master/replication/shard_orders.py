"""Orders that change rows: each shard does them once, whoever serves it just now.

    give(order) -> a message to every server that serves some of its shards -> done
    a server is lost, a shard has moved -> the same to whoever serves it now

They do no harm when done twice.  A shard does one after the other, in the order in which they were
given.  It knows no connection; `now` is monotonic seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from snailps.errors import ConnectionLost, SnailError
from snailps.master.effects import OnAnswer
from snailps.master.events import Answer
from snailps.master.leases.ledger import Entry
from snailps.transport import messages

log = logging.getLogger(__name__)

Kind = Literal["clock", "fence", "expire"]


@dataclass(eq=False, slots=True)
class _ShardOrder:
    kind: Kind
    what: str
    make: Callable[[list[int]], messages.Message]
    told: Callable[[dict[str, Any]], None]
    left: set[int]
    asked: set[int]
    until: float


class ShardOrders:
    """What shards have yet to do.

    Parameters
    ----------
    count : callable
        Number of shards.
    server_of : callable
        The server that serves a shard, 0 while it changes over.
    call : callable
        ``call(server, message, on_answer, now)``.
    fail : callable
        Ends the cluster, with a sentence.
    limit_s : float
        How long a shard may be served by nobody.

    Attributes
    ----------
    expired : int
        Rows that shards have deleted because no push touched them.
    """

    def __init__(
        self,
        count: Callable[[], int],
        server_of: Callable[[int], int],
        call: Callable[[int, messages.Message, OnAnswer, float], None],
        fail: Callable[[str], None],
        limit_s: float,
    ) -> None:
        self._count, self._server_of = count, server_of
        self._call, self._fail = call, fail
        self._limit_s = limit_s
        self._open: list[_ShardOrder] = []
        self.expired = 0

    # --- what there is to do -------------------------------------------------------------------

    def set_clock(self, clock: int, early: bool, now: float) -> None:
        """Has every shard begin at a clock, with nothing staged; see `clocks_set`.

        `early`: clocks may be closed without some of their slots.
        """
        self.give(
            "clock",
            "set its clock",
            lambda shards: messages.SetClock(clock, early, shards),
            now,
        )

    def close_clock(self, clock: int, slots: list[int], now: float) -> None:
        """Has every shard apply exactly these slots of a clock; see `clocks_set`."""
        self.give(
            "clock",
            f"close clock {clock}",
            lambda shards: messages.CloseClock(clock, slots, shards),
            now,
        )

    @property
    def moving(self) -> bool:
        """Whether a shard changes over: it is in no server's hands just now."""
        return not all(self._server_of(shard) for shard in range(self._count()))

    @property
    def clocks_set(self) -> bool:
        """Whether every shard has done what it was last told of its clock."""
        return not self.open("clock")

    def fence(self, incarnation: int, now: float, last: Entry | None = None) -> None:
        """Has every shard refuse what may still come from a lost worker: others do its work.

        `last` is an entry that it has pushed whole, but sealed at some shards only, perhaps: those
        may have applied its clock, so that nobody could train it again from the same rows.  The
        others seal it in its place; see `clocks_set`.
        """
        if last is None:
            self.give(
                "fence",
                "fence a worker",
                lambda shards: messages.Fence(incarnation, shards=shards),
                now,
            )
            return
        clock, slot, slots = last.clock, last.slot, last.slots
        self.give(
            "clock",
            f"seal slot {slot} of clock {clock}",
            lambda shards: messages.Fence(incarnation, clock, slot, slots, shards),
            now,
        )

    def expire(self, tick: int, before: int, now: float) -> None:
        """Tells every shard that it is `tick`, and to delete rows untouched since `before`."""

        def told(data: dict[str, Any]) -> None:
            self.expired += int(data.get("expired", 0))

        self.give(
            "expire",
            "expire rows",
            lambda shards: messages.Expire(tick, before, shards),
            now,
            told,
        )

    @property
    def expiring(self) -> bool:
        """Whether a shard has not done that yet."""
        return self.open("expire")

    # --- how -----------------------------------------------------------------------------------

    def give(
        self,
        kind: Kind,
        what: str,
        make: Callable[[list[int]], messages.Message],
        now: float,
        told: Callable[[dict[str, Any]], None] = lambda data: None,
    ) -> None:
        """Has all shards do something; `told` gets what each server reports."""
        left, until = set(range(self._count())), now + self._limit_s
        self._open.append(_ShardOrder(kind, what, make, told, left, set(), until))
        self.step(now)

    def open(self, *kinds: Kind) -> bool:
        """Whether anything of these kinds is not done yet."""
        return any(errand.kind in kinds for errand in self._open)

    def step(self, now: float) -> None:
        """Asks whoever serves what has not been asked."""
        self._open = [errand for errand in self._open if errand.left]
        busy: set[int] = set()
        count = self._count()
        for errand in list(self._open):
            if len(busy) >= count:
                break  # all that come behind wait at every shard: a hundred workers may be lost
            by_server: dict[int, list[int]] = {}
            for shard in sorted(errand.left - errand.asked - busy):
                by_server.setdefault(self._server_of(shard), []).append(shard)
            waiting = by_server.pop(0, [])
            if errand.left <= set(waiting) | busy:
                if waiting and now > errand.until:
                    self._fail(
                        f"no server has come to {errand.what} for shard {waiting[0]} in "
                        f"{self._limit_s:.0f} s: it changes over and does not get on"
                    )
            else:
                errand.until = now + self._limit_s
            busy |= errand.left
            for server, shards in by_server.items():
                errand.asked |= set(shards)
                noting = partial(self._answered, errand, server, shards)
                self._call(server, errand.make(shards), noting, now)

    def _answered(
        self, errand: _ShardOrder, server: int, shards: list[int], answer: Answer, now: float
    ) -> None:
        errand.asked -= set(shards)
        if isinstance(answer, ConnectionLost):
            return  # whoever stands in for it is asked
        if isinstance(answer, SnailError):
            errand.left -= set(shards)
            if errand.kind == "clock":
                self._fail(f"server {server} cannot {errand.what}: {answer}")
            else:
                log.error("server %d cannot %s: %s", server, errand.what, answer)
        elif isinstance(answer, messages.Report):
            errand.left -= {int(shard) for shard in answer.data.get("done", [])}
            errand.told(answer.data)
        self._open = [one for one in self._open if one.left]
