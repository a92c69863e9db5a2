"""Owns where the shards are: the servers, the copies of each shard, and the move that is wanted.

    Placement: servers, shards -> best_for a standby, uneven, has_room, restless

Alone writes a `PlacedShard`, a `Copy` and a `Server`: a method changes fields and records that in
one step. Must not decide what is done about it: `planner.py` does. Whatever an event asks is an
index here, so that an event costs what it changes and not a walk over all shards.
"""

from __future__ import annotations

from math import inf
from typing import Any, Literal

from snailps.dataclass import dataclass, field
from snailps.master.phases import STEPS, Step, after
from snailps.store.route import ShardAddress

COPIES_MAX = 1
"""Shards that a server copies at a time, out or in; those that wait still have a standby."""
AGAIN_S = 2.0
"""Pause after a standby failed at a server, times its failures so far, before the next one."""
AGAIN_MAX = 10
"""Failures by which the pause grows at most."""

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
    emptied: bool = False  # it was to leave, and the controller has had `Emptied`
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


@dataclass(frozen=True, slots=True)
class _Counted:
    """How a shard is counted in the indices."""

    primary: int
    holders: frozenset[int]
    copying: tuple[int, ...]


_NOTHING = _Counted(0, frozenset(), ())


@dataclass(slots=True)
class Placement:
    """All servers by number, all shards in order, and indices for what every event asks.

    An index that lags behind would have the plan copy twice, or not at all; a change that the
    journal lacks would cost rows at a takeover. With a hundred servers a walk over all shards at
    each event would take a second of each recovery.
    """

    servers: dict[int, Server] = field(default_factory=dict)
    shards: list[PlacedShard] = field(default_factory=list)
    copies: int = 2  # copies of each shard, itself included
    version: int = (
        0  # grows with every change: what was found for a version need not be found again
    )
    unbacked: set[int] = field(default_factory=set)  # shards without standby
    unready: set[int] = field(default_factory=set)  # shards whose standby is incomplete
    bare: set[int] = field(default_factory=set)  # the union of both
    going: set[int] = field(default_factory=set)  # shards that move, or are to
    changing: set[int] = field(default_factory=set)  # shards with a step
    leaving: set[int] = field(default_factory=set)  # servers that are to leave
    _counted: list[_Counted] = field(default_factory=list)
    _held: dict[int, set[int]] = field(default_factory=dict)
    _served: dict[int, set[int]] = field(default_factory=dict)
    _copying: dict[int, int] = field(default_factory=dict)  # copies under way, out and in
    _idle: set[int] = field(default_factory=set)  # servers that may begin a copy
    _news: set[int] = field(default_factory=set)  # shards that changed since `take_news`

    # --- servers -------------------------------------------------------------------------------

    def begin(self, servers: list[Server], shards: list[PlacedShard]) -> None:
        self.shards, self._counted = shards, [_NOTHING] * len(shards)
        for server in servers:
            self.add(server)
        for shard in shards:
            self._record(shard)

    def add(self, server: Server) -> None:
        self.servers[server.number] = server
        if server.leaving:
            self.leaving.add(server.number)
        self._note_room(server.number)
        self.version += 1

    def remove(self, number: int) -> bool:
        """Remove a server; False if it was not there. Its shards are the caller's to mend."""
        if self.servers.pop(number, None) is None:
            return False
        self.leaving.discard(number)
        self._idle.discard(number)
        self.version += 1
        return True

    def leave(self, number: int, leaving: bool) -> None:
        self.servers[number].leaving = leaving
        (self.leaving.add if leaving else self.leaving.discard)(number)
        self.version += 1

    def put_off(self, number: int, now: float) -> None:
        """Give a server, if it is still here, no copy for a while, longer after each failure: a
        full or broken machine would otherwise fail the same copy in a loop."""
        if (server := self.servers.get(number)) is not None:
            server.failures += 1
            server.again_at = now + AGAIN_S * min(server.failures, AGAIN_MAX)
            self.version += 1

    def take_emptied(self) -> list[int]:
        """Servers that are to leave and have no shard any more; each is returned once."""
        emptied = [
            number
            for number in sorted(self.leaving)
            if not (self.servers[number].emptied or self.load(number))
        ]
        for number in emptied:
            self.servers[number].emptied = True
        return emptied

    # --- a shard and its primary ---------------------------------------------------------------

    def step(self, shard: PlacedShard, event: str) -> None:
        """A shard takes a step of a change-over; `phases.STEPS` has those that are allowed."""
        shard.step = after(STEPS, shard.step, event)
        self._record(shard)

    def aim(self, shard: PlacedShard, move: Move) -> None:
        """Set the move that is wanted of a shard; `STILL`: none."""
        shard.move = move
        self._record(shard)

    def yielded(self, shard: PlacedShard) -> None:
        """The primary may have yielded: it can take the shard back."""
        shard.previous = shard.address
        self._record(shard)

    def take_back(self, shard: PlacedShard) -> None:
        """Make the server that has yielded the primary again."""
        assert shard.previous is not None
        shard.address, shard.previous = shard.previous, None
        self._record(shard)

    def promote(self, shard: PlacedShard) -> None:
        """Make the standby the primary, which has no standby until `settle`."""
        copy = shard.standby
        assert copy is not None
        shard.address, shard.standby = ShardAddress(copy.server, copy.host, copy.port), None
        self._record(shard)

    def settle(self, shard: PlacedShard) -> None:
        """The primary serves: nothing can be taken back, and the next standby is the standby."""
        shard.previous = None
        if shard.next is not None:
            shard.standby, shard.next = shard.next, None
        self._record(shard)

    def lost(self, shard: PlacedShard, server: int) -> None:
        """A server that had a part in a shard is lost: it can take nothing back any more."""
        if shard.previous is not None and shard.previous.server == server:
            shard.previous = None
        self._record(shard)

    def stuck(self, shard: PlacedShard, server: int) -> None:
        """A server stays that was to leave, as this shard cannot: its failures count anew."""
        shard.failures = 0
        self.leave(server, False)

    # --- copies --------------------------------------------------------------------------------

    def add_copy(self, shard: PlacedShard, copy: Copy) -> None:
        """A shard gets a standby; where it has one, the standby gets its own."""
        if shard.standby is None:
            shard.standby = copy
        else:
            shard.next = copy
        self._record(shard)

    def drop_standby(self, shard: PlacedShard) -> Copy | None:
        copy, shard.standby = shard.standby, None
        self._record(shard)
        return copy

    def drop_next(self, shard: PlacedShard) -> Copy | None:
        copy, shard.next = shard.next, None
        if copy is not None:
            self._record(shard)
        return copy

    def hosted(
        self, shard: PlacedShard, copy: Copy, host: str, port: int, now: float, *, paced: bool
    ) -> None:
        """A copy has an address: its source may fill it."""
        copy.host, copy.port, copy.moved_at, copy.paced = host, port, now, paced
        self.seed(shard, copy)

    def seed(self, shard: PlacedShard, copy: Copy) -> None:
        copy.state = "seeding"
        self._record(shard)

    def complete(self, shard: PlacedShard, copy: Copy) -> None:
        """A copy has all rows: no failure counts any more, of the shard and of its server."""
        copy.state, copy.seeded = "ready", 1.0
        shard.failures = 0
        if (server := self.servers.get(copy.server)) is not None:
            server.failures = 0
        self._record(shard)

    # Neither the journal nor an index has what follows: a takeover begins it anew.

    def failed(self, shard: PlacedShard) -> None:
        """A standby of a shard failed."""
        shard.failures += 1

    def progressed(self, copy: Copy, now: float, share: float | None = None) -> None:
        """A copy has this share of the rows; without one it is waited for from now."""
        copy.moved_at = now
        if share is not None:
            copy.seeded = share

    def hasten(self, copy: Copy) -> None:
        """The copying does not give way any more."""
        copy.paced = False

    def stood_still(self, seconds: float) -> None:
        for shard in self.shards:
            for copy in (shard.standby, shard.next):
                if copy is not None:
                    copy.moved_at += seconds

    # --- indices -------------------------------------------------------------------------------

    def take_news(self) -> list[int]:
        """Shards that changed since the last call, for the journal."""
        news, self._news = sorted(self._news), set()
        return news

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    def _record(self, shard: PlacedShard) -> None:
        """Update the indices after a change of a shard, and have the journal get it."""
        number, copy = shard.number, shard.standby
        ready = shard.backed or (shard.previous is not None and shard.next is not None)
        filling = shard.filling
        copying = (filling[0], filling[1].server) if filling is not None else ()
        new = _Counted(shard.primary, frozenset(self.holders(shard)), copying)
        old, self._counted[number] = self._counted[number], new
        for server in old.holders - new.holders:
            self._held[server].discard(number)
        for server in new.holders - old.holders:
            self._held.setdefault(server, set()).add(number)
        if old.primary != new.primary:
            self._served.get(old.primary, set()).discard(number)
            self._served.setdefault(new.primary, set()).add(number)
        if old.copying != new.copying:
            for step, servers in ((-1, old.copying), (1, new.copying)):
                for server in servers:
                    self._copying[server] = self._copying.get(server, 0) + step
            for server in (*old.copying, *new.copying):
                self._note_room(server)
        for numbers, holds in (
            (self.unbacked, copy is None),
            (self.unready, copy is not None and copy.state != "ready"),
            (self.bare, not ready),
            (self.going, bool(shard.next or shard.step) or shard.move != STILL),
            (self.changing, bool(shard.step)),
        ):
            (numbers.add if holds else numbers.discard)(number)
        self._news.add(number)
        self.version += 1

    def _note_room(self, server: int) -> None:
        room = server in self.servers and self._copying.get(server, 0) < COPIES_MAX
        (self._idle.add if room else self._idle.discard)(server)

    # --- what is asked ---------------------------------------------------------------------------

    @property
    def redundant(self) -> bool:
        """Whether every shard has a complete standby."""
        return not self.bare

    def shards_of(self, server: int) -> list[int]:
        """Shards that a server has as primary or standby, or that are on their way to it."""
        return sorted(self._held.get(server, ()))

    def status(self) -> list[dict[str, Any]]:
        """The shards for the status; standby 0: none."""
        return [
            {
                "shard": s.number,
                "primary": s.primary,
                "standby": s.standby.server if s.standby else 0,
                "state": s.step.value or (s.standby.state if s.standby else "none"),
                "seeded": s.standby.seeded if s.standby else 0.0,
            }
            for s in self.shards
        ]

    def holders(self, shard: PlacedShard) -> set[int]:
        """Servers that have a copy of a shard, or are about to: none of them gets another one."""
        servers = {shard.primary}
        if shard.standby is not None:
            servers.add(shard.standby.server)
        if shard.next is not None:
            servers.add(shard.next.server)
        if shard.previous is not None:
            servers.add(shard.previous.server)
        return servers

    def load(self, server: int) -> int:
        """Number of shards that a server has, or is about to have."""
        return len(self._held.get(server, ()))

    def served(self, server: int) -> set[int]:
        """Shards that a server is the primary of."""
        return self._served.get(server, set())

    def same_host(self, server: int, other: int) -> bool:
        """Whether two servers would fail together."""
        return self.servers[server].host == self.servers[other].host

    def has_room(self, *servers: int) -> bool:
        """Whether these servers may begin another copy."""
        return all(self._copying.get(server, 0) < COPIES_MAX for server in servers)

    def restless(self, replicated: bool) -> list[int]:
        """Shards with possible work, ascending: the plan examines no others."""
        restless = set(self.going)
        for server in self.leaving:
            restless |= self._held.get(server, set())
        if not replicated:
            restless.update(s.number for s in self.shards if s.standby is not None)
        elif len(self._idle) > 1:  # a copy takes two servers, its source and its target
            # By whichever is fewer: after a loss many shards lack a standby and few servers are
            # idle; in normal times it is the reverse.
            fewer = min(self._idle, self.unbacked, key=len)
            if fewer is self.unbacked:
                restless.update(n for n in fewer if self.shards[n].primary in self._idle)
            else:
                for server in fewer:
                    restless |= self.unbacked & self._served.get(server, set())
        return sorted(restless)

    def again_at(self, now: float) -> float:
        """When the first server that was put off may get a copy again; infinity: none was."""
        return min((s.again_at for s in self.servers.values() if s.again_at > now), default=inf)

    def best_for(self, shard: PlacedShard, now: float) -> int:
        """The best server for another copy of a shard; 0: none.

        On another host than the source if possible, then least loaded; of equals the next number
        after the source, so that servers that all have one shard get one copy each. The source is a
        complete standby, else the primary. A server that may not begin a copy now is waited for
        only where every other candidate has its fair share already.
        """
        holders = self.holders(shard)
        able = [
            s
            for s in self.servers.values()
            if s.number not in holders and not s.leaving and s.again_at <= now
        ]
        if not able:
            return 0
        source = shard.standby.server if shard.standby and shard.backed else shard.primary
        host = self.servers[source].host
        able = [s for s in able if s.host != host] or able
        best = min(able, key=lambda s: (self.load(s.number), s.number <= source, s.number))
        if best.number in self._idle:
            return best.number
        staying = max(1, len(self.servers) - len(self.leaving))
        share = -(-self.copies * len(self.shards) // staying)
        idle = [
            (self.load(s.number), s.number <= source, s.number)
            for s in able
            if s.number in self._idle
        ]
        load, _, number = min(idle, default=(share, False, 0))
        return number if load < share else best.number

    def uneven(self, now: float) -> tuple[PlacedShard, int, bool] | None:
        """A move that makes the servers more even: the shard, the server that is to have it, and
        whether as its primary; None: they are even.

        Primaries come first, as they do the work. Only a difference of two is worth a move: with
        one the shard could move back and forth.
        """
        able = [s for s in self.servers.values() if not s.leaving and s.again_at <= now]
        if len(able) < 2:
            return None
        primaries = {s.number: len(self.served(s.number)) for s in able}
        least = min(primaries, key=lambda n: (primaries[n], self.load(n), n))
        most = max(primaries, key=lambda n: (primaries[n], -n))
        if primaries[most] - primaries[least] >= 2:
            served = [self.shards[number] for number in sorted(self.served(most))]
            # A shard whose standby is there already only changes places with it: nothing is copied.
            swaps = [s for s in served if s.standby is not None and s.standby.server == least]
            return (swaps or served)[0], least, True
        least = min(primaries, key=lambda n: (self.load(n), n))
        best: tuple[PlacedShard, int, bool] | None = None
        most_load = self.load(least) + 1
        for shard in self.shards:
            copy = shard.standby
            if copy is None or shard.primary == least or copy.server not in primaries:
                continue
            if self.load(copy.server) <= most_load:  # among the most loaded: so fewest move
                continue
            if self.same_host(shard.primary, least) > self.same_host(shard.primary, copy.server):
                continue
            most_load = self.load(copy.server)
            best = shard, least, False
        return best
