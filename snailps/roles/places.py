"""Shards and the servers that they are at: who has what, and who should.

    Places: servers, shards -> best_for a standby, uneven, has_room

What is to be done about it decides `standbys.py`; here nothing happens.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import Any, Literal

from snailps.store.route import ShardAddress

COPIES_MAX = 1
"""Shards that a server copies at a time, out or in: the training goes on beside it, and those that
wait for their turn to move still have a standby."""

State = Literal["asked", "seeding", "ready"]
Step = Literal["", "yielding", "promoting"]


@dataclass(slots=True)
class Server:
    """A server; left alone until `again_at`, after failures of its standbys."""

    number: int
    host: str
    leaving: bool = False
    emptied: bool = False
    failures: int = 0
    again_at: float = 0.0


@dataclass(slots=True)
class Copy:
    """A standby: `number` is never used twice, so that late news of an older one is known."""

    number: int
    server: int
    state: State
    moved_at: float
    host: str = ""
    port: int = 0
    seeded: float = 0.0
    paced: bool = False  # the copying gives way to the training


@dataclass(slots=True)
class Shard:
    """A shard: where it is, where its standby is, what is under way.

    Attributes
    ----------
    goal : int
        The server that is to become its primary; 0: it stays.
    former : ShardAddress or None
        The one that has yielded: it could still take the shard back.
    down_at : float or None
        When its server was lost, until somebody stands in.
    failures : int
        Standbys that failed, one after the other.
    """

    number: int
    address: ShardAddress
    standby: Copy | None = None
    goal: int = 0
    step: Step = ""
    former: ShardAddress | None = None
    down_at: float | None = None
    failures: int = 0

    @property
    def primary(self) -> int:
        """The server that it is at."""
        return self.address.server

    @property
    def backed(self) -> bool:
        """Whether its standby has all of it."""
        return self.standby is not None and self.standby.state == "ready"

    def picture(self) -> dict[str, Any]:
        """It as values for JSON; `of` reads them."""
        copy, former = self.standby, self.former
        return {
            "at": list(astuple(self.address)),
            "step": self.step,
            "former": list(astuple(former)) if former is not None else None,
            "standby": (
                [copy.number, copy.server, copy.state, copy.host, copy.port]
                if copy is not None
                else None
            ),
        }

    @classmethod
    def of(cls, number: int, picture: dict[str, Any]) -> Shard:
        """The shard that `picture` describes."""
        former, copy = picture["former"], picture["standby"]
        return cls(
            number,
            ShardAddress(*picture["at"]),
            Copy(copy[0], copy[1], copy[2], 0.0, copy[3], copy[4]) if copy is not None else None,
            step=picture["step"],
            former=ShardAddress(*former) if former is not None else None,
        )


@dataclass(slots=True)
class Places:
    """All servers by number, all shards in order."""

    servers: dict[int, Server] = field(default_factory=dict)
    shards: list[Shard] = field(default_factory=list)

    @property
    def redundant(self) -> bool:
        """Whether every shard has a standby that has all of it."""
        return all(s.backed for s in self.shards)

    def shards_of(self, server: int) -> list[int]:
        """Shards that a server has as primary or standby, or that are on their way to it."""
        return [s.number for s in self.shards if server in self.holders(s)]

    def holders(self, shard: Shard) -> set[int]:
        """Servers that have a shard, or are about to."""
        found = {shard.primary}
        if shard.standby is not None:
            found.add(shard.standby.server)
        if shard.former is not None:
            found.add(shard.former.server)
        return found

    def load(self, server: int) -> int:
        """Shards that a server has, or is about to have."""
        return len(self.shards_of(server))

    def serves(self, server: int) -> bool:
        """Whether a server is the primary of any shard."""
        return any(s.primary == server for s in self.shards)

    def same_host(self, one: int, other: int) -> bool:
        """Whether two servers would go together."""
        return self.servers[one].host == self.servers[other].host

    def has_room(self, *servers: int) -> bool:
        """Whether these servers may begin another copy."""
        return all(
            sum(
                server in (s.primary, s.standby.server)
                for s in self.shards
                if s.standby is not None and s.standby.state != "ready"
            )
            < COPIES_MAX
            for server in servers
        )

    def best_for(self, shard: Shard, now: float) -> int:
        """The server for a shard's standby: another host if there is one, least to do; 0: none."""
        able = [
            s
            for s in self.servers.values()
            if s.number != shard.primary and not s.leaving and s.again_at <= now
        ]
        if not able:
            return 0
        best = min(
            able,
            key=lambda s: (
                self.same_host(shard.primary, s.number), self.load(s.number), s.number
            ),
        )  # fmt: skip
        return best.number

    def uneven(self, now: float) -> tuple[Shard, int, bool] | None:
        """A shard that a server with less is to have, that server, and whether as its primary."""
        able = [s for s in self.servers.values() if not s.leaving and s.again_at <= now]
        if len(able) < 2:
            return None
        primaries = {s.number: 0 for s in able}
        for shard in self.shards:
            if shard.primary in primaries:
                primaries[shard.primary] += 1
        least = min(primaries, key=lambda n: (primaries[n], self.load(n), n))
        most = max(primaries, key=lambda n: (primaries[n], -n))
        if primaries[most] - primaries[least] >= 2:
            mine = [s for s in self.shards if s.primary == most]
            ready = [s for s in mine if s.standby is not None and s.standby.server == least]
            return (ready or mine)[0], least, True
        least = min(primaries, key=lambda n: (self.load(n), n))
        found: tuple[Shard, int, bool] | None = None
        most_load = self.load(least) + 1
        for shard in self.shards:
            copy = shard.standby
            if copy is None or shard.primary == least or copy.server not in primaries:
                continue
            if self.same_host(shard.primary, least) > self.same_host(shard.primary, copy.server):
                continue
            if self.load(copy.server) > most_load:  # of those who have most: so fewest move
                most_load = self.load(copy.server)
                found = shard, least, False
        return found


def changes_of(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """A picture of all shards, as `Standbys` gives it, with only those that changed: `changed`.

    So what is noted of a cluster that forms grows with its shards, not with their square.
    """
    if len(before.get("shards", ())) != len(after["shards"]):
        return after
    pairs = enumerate(zip(before["shards"], after["shards"], strict=True))
    found = [[at, new] for at, (old, new) in pairs if new != old]
    return {**{name: after[name] for name in after if name != "shards"}, "changed": found}


def with_changes(before: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The picture that `changes_of` was given as `after`, before which was this one."""
    if "shards" in changes:
        return changes
    shards = list(before["shards"])
    for at, picture in changes["changed"]:
        shards[at] = picture
    return {**{name: changes[name] for name in changes if name != "changed"}, "shards": shards}
