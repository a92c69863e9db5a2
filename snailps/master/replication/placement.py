"""Owns where the shards are: the servers, the copies of each shard, and the move that is wanted.

    events of servers and copies -> Placement: servers, shards -> index -> what the plan reads
                                                               -> news  -> the journal

Alone writes a `PlacedShard`, a `Copy` and a `Server`: a method changes fields and records that in
one step. Must not decide what is done about it: `planner.py` does, by `balance.py`.
"""

from __future__ import annotations

from snailps.dataclass import dataclass, field
from snailps.master.phases import STEPS, after
from snailps.master.replication.placed_shard import Copy, Move, PlacedShard, Server
from snailps.master.replication.shard_index import ShardIndex
from snailps.store.route import ShardAddress

AGAIN_S = 2.0
"""Pause after a standby failed at a server, times its failures so far, before the next one."""
AGAIN_MAX = 10
"""Failures by which the pause grows at most."""


@dataclass(slots=True)
class Placement:
    """All servers by number, all shards in order."""

    servers: dict[int, Server] = field(default_factory=dict)
    shards: list[PlacedShard] = field(default_factory=list)
    leaving: set[int] = field(default_factory=set)  # servers that are to leave
    index: ShardIndex = field(default_factory=ShardIndex)
    # Grows with every change: what was found for a version need not be found again.
    version: int = 0
    _news: set[int] = field(default_factory=set)  # shards that changed since `take_news`

    # --- servers -------------------------------------------------------------------------------

    def begin(self, servers: list[Server], shards: list[PlacedShard]) -> None:
        self.shards = shards
        for server in servers:
            self.add(server)
        for shard in shards:
            self._record(shard)

    def add(self, server: Server) -> None:
        self.servers[server.number] = server
        if server.leaving:
            self.leaving.add(server.number)
        self.index.add_server(server.number)
        self.version += 1

    def remove(self, number: int) -> bool:
        """Remove a server; False if it was not there. Its shards are the caller's to mend."""
        if self.servers.pop(number, None) is None:
            return False
        self.leaving.discard(number)
        self.index.remove_server(number)
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
            if not (self.servers[number].emptied or self.index.load(number))
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

    # --- for the plan, and the journal ---------------------------------------------------------

    @property
    def is_redundant(self) -> bool:
        """Whether every shard has a complete standby."""
        return not self.index.bare

    def restless(self, replicated: bool) -> list[int]:
        """Shards with possible work, ascending: the plan examines no others."""
        restless = set(self.index.going)
        for server in self.leaving:
            restless.update(self.index.shards_of(server))
        if replicated:
            restless |= self.index.can_get_standby()
        else:
            restless.update(s.number for s in self.shards if s.standby is not None)
        return sorted(restless)

    def take_news(self) -> list[int]:
        """Shards that changed since the last call, for the journal."""
        news, self._news = sorted(self._news), set()
        return news

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    def _record(self, shard: PlacedShard) -> None:
        """Every change of a shard ends here: with a stale index the plan would copy twice, or not
        at all, and a change that the journal lacks would cost rows at a takeover."""
        self.index.update(shard)
        self._news.add(shard.number)
        self.version += 1
