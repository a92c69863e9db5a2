"""Counts what each server has of the shards, and which shards lack or do what.

    a shard has changed -> update -> shards_of, load, served, has_room; unbacked, going, ...

Kept up to date with every change, so that an event costs what it changes: with a hundred servers a
walk over all shards at each event would take a second of each recovery. Must not decide anything:
`placement.py` updates it, and the plan reads it.
"""

from __future__ import annotations

from collections.abc import Iterable

from snailps.dataclass import dataclass, field
from snailps.master.replication.placed_shard import STILL, PlacedShard

COPIES_MAX = 1
"""Shards that a server copies at a time, out or in; those that wait still have a standby."""


@dataclass(frozen=True, slots=True)
class _Counted:
    """How a shard is counted now: what to take back when it changes."""

    primary: int
    holders: frozenset[int]
    copying: tuple[int, ...]


_NOTHING = _Counted(0, frozenset(), ())


@dataclass(slots=True)
class ShardIndex:
    """Numbers of shards, or of servers, by what is true of them."""

    unbacked: set[int] = field(default_factory=set)  # shards without standby
    unready: set[int] = field(default_factory=set)  # shards whose standby is incomplete
    bare: set[int] = field(default_factory=set)  # shards whose rows one more loss could take
    going: set[int] = field(default_factory=set)  # shards that move, or are to
    changing: set[int] = field(default_factory=set)  # shards with a step
    idle: set[int] = field(default_factory=set)  # servers that may begin a copy
    _servers: set[int] = field(default_factory=set)
    _counted: dict[int, _Counted] = field(default_factory=dict)  # by shard
    # By server, and kept when the server goes: whoever handles its loss asks what it had.
    _held: dict[int, set[int]] = field(default_factory=dict)
    _served: dict[int, set[int]] = field(default_factory=dict)
    _copying: dict[int, int] = field(default_factory=dict)  # copies under way, out and in

    # --- changes -------------------------------------------------------------------------------

    def add_server(self, server: int) -> None:
        self._servers.add(server)
        self._note_room(server)

    def remove_server(self, server: int) -> None:
        self._servers.discard(server)
        self.idle.discard(server)

    def update(self, shard: PlacedShard) -> None:
        """Count a shard anew after any change of it."""
        number, copy, filling = shard.number, shard.standby, shard.filling
        copying = (filling[0], filling[1].server) if filling is not None else ()
        new = _Counted(shard.primary, frozenset(shard.holders), copying)
        old, self._counted[number] = self._counted.get(number, _NOTHING), new
        for server in old.holders - new.holders:
            self._held[server].discard(number)
        for server in new.holders - old.holders:
            self._held.setdefault(server, set()).add(number)
        if old.primary != new.primary:
            self._served.get(old.primary, set()).discard(number)
            self._served.setdefault(new.primary, set()).add(number)
        if old.copying != new.copying:
            self._count_copies(old.copying, -1)
            self._count_copies(new.copying, 1)
        # In a change-over the server that has yielded could take the shard back, and the standby's
        # own standby fills: the rows are in two places, though the shard has no standby.
        has_two = shard.backed or (shard.previous is not None and shard.next is not None)
        for numbers, holds in (
            (self.unbacked, copy is None),
            (self.unready, copy is not None and copy.state != "ready"),
            (self.bare, not has_two),
            (self.going, bool(shard.next or shard.step) or shard.move != STILL),
            (self.changing, bool(shard.step)),
        ):
            (numbers.add if holds else numbers.discard)(number)

    def _count_copies(self, servers: Iterable[int], change: int) -> None:
        for server in servers:
            self._copying[server] = self._copying.get(server, 0) + change
            self._note_room(server)

    def _note_room(self, server: int) -> None:
        room = server in self._servers and self.has_room(server)
        (self.idle.add if room else self.idle.discard)(server)

    # --- what is asked ---------------------------------------------------------------------------

    def shards_of(self, server: int) -> list[int]:
        """Shards that a server has as primary or standby, or that are on their way to it."""
        return sorted(self._held.get(server, ()))

    def load(self, server: int) -> int:
        """Number of shards that a server has, or is about to have."""
        return len(self._held.get(server, ()))

    def served(self, server: int) -> set[int]:
        """Shards that a server is the primary of."""
        return self._served.get(server, set())

    def has_room(self, *servers: int) -> bool:
        """Whether these servers may begin another copy."""
        return all(self._copying.get(server, 0) < COPIES_MAX for server in servers)

    def can_get_standby(self) -> set[int]:
        """Shards without standby whose primary may begin a copy, if any server may take it."""
        if len(self.idle) < 2:  # a copy takes two servers, its source and its target
            return set()
        # By whichever is fewer: after a loss many shards lack a standby and few servers are idle;
        # in normal times it is the reverse.
        if len(self.unbacked) < len(self.idle):
            return {n for n in self.unbacked if self._counted[n].primary in self.idle}
        return set().union(*(self.unbacked & self.served(server) for server in self.idle))
