"""Declares a server, a shard, and the copies of it, as the master places them. Values.

`placement.py` alone writes them.
"""

from __future__ import annotations

from typing import Any, Literal

from snailps.dataclass import dataclass
from snailps.master.phases import Step
from snailps.store.route import ShardAddress

State = Literal["asked", "seeding", "ready"]


@dataclass(frozen=True, slots=True)
class Move:
    """A move of a shard that is wanted; server numbers, 0: none.

    A shift has `source`, the primary, and `target`.  A swap has `goal`, the standby; where the
    standby itself is to go, it is the `source`, and a shift to `target` follows.  Without
    replication there is the `goal` alone.
    """

    goal: int = 0  # the server that is to become the primary; 0: the primary stays
    source: int = 0  # the server that is to give its copy up
    target: int = 0  # the server that is to get it; 0: any


STILL = Move()


@dataclass(slots=True)
class Server:
    """A server that has, or may get, copies of shards."""

    number: int
    host: str
    leaving: bool = False  # it gets no copy, and its shards move away
    # It was to leave, and the controller has had `Emptied`. Never reset: the server ends by that,
    # and as long as it is leaving no shard goes to it.
    emptied: bool = False
    failures: int = 0  # standbys that failed there in succession
    again_at: float = 0.0  # it gets no copy before that time


@dataclass(slots=True)
class Copy:
    """A standby, from the order to host it on.

    `state`: "asked" until its server has answered with an address, "seeding" while its source
    copies rows, "ready" when it has all of them and follows. Only a ready copy is ever promoted.
    """

    number: int  # never used twice, so late notes about an older copy are ignored
    server: int
    state: State
    moved_at: float  # when it made progress last, monotonic seconds
    host: str = ""
    port: int = 0
    seeded: float = 0.0  # share of the rows that it has, 0 to 1
    paced: bool = False  # the copying gives way to the training


@dataclass(slots=True)
class PlacedShard:
    """A shard: its servers, and what is under way."""

    number: int
    address: ShardAddress
    standby: Copy | None = None
    next: Copy | None = None  # the standby's own standby, promoted with it
    move: Move = STILL
    step: Step = Step.SERVING
    # the address that has yielded: it could still take the shard back
    previous: ShardAddress | None = None
    failures: int = 0  # standbys that failed in succession

    @property
    def primary(self) -> int:
        return self.address.server

    @property
    def backed(self) -> bool:
        """Whether its standby is complete."""
        return self.standby is not None and self.standby.state == "ready"

    @property
    def holders(self) -> set[int]:
        """Servers that have a copy, or are about to: none of them gets another one."""
        servers = {self.address.server}
        for copy in (self.standby, self.next):
            if copy is not None:
                servers.add(copy.server)
        if self.previous is not None:  # it has the rows until the new primary serves
            servers.add(self.previous.server)
        return servers

    @property
    def filling(self) -> tuple[int, Copy] | None:
        """A copy that is being made, and its source server."""
        if self.standby is not None and self.standby.state != "ready":
            return self.primary, self.standby
        if self.next is not None and self.next.state != "ready":
            return self.standby.server if self.standby else self.primary, self.next
        return None

    def snapshot(self) -> dict[str, Any]:
        """Values for JSON; `of` reads them."""
        copy, previous, next_copy = self.standby, self.previous, self.next
        return {
            "at": _listed(self.address),
            "step": self.step.value,
            "former": _listed(previous) if previous is not None else None,
            "standby": (
                [copy.number, copy.server, copy.state, copy.host, copy.port]
                if copy is not None
                else None
            ),
            **({"following": next_copy.server} if next_copy is not None else {}),
        }

    @classmethod
    def of(cls, number: int, snapshot: dict[str, Any]) -> PlacedShard:
        """Inverse of `snapshot`."""
        previous, copy = snapshot["former"], snapshot["standby"]
        return cls(
            number,
            ShardAddress(*snapshot["at"]),
            Copy(copy[0], copy[1], copy[2], 0.0, copy[3], copy[4]) if copy is not None else None,
            step=Step(snapshot["step"]),
            previous=ShardAddress(*previous) if previous is not None else None,
        )


def _listed(address: ShardAddress) -> list[Any]:
    """The arguments of an address; `dataclasses.astuple` takes ten times as long."""
    return [address.server, address.host, address.port]
