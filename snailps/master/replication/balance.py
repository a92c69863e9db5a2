"""Chooses the server for a copy, and the move that makes servers more even.

    Placement -> best_for(shard): a server        uneven: a shard, and the server that is to have it

Must not change anything: the planner orders what follows.
"""

from __future__ import annotations

from math import inf

from snailps.master.replication.placed_shard import PlacedShard, Server
from snailps.master.replication.placement import Placement


class Balance:
    def __init__(self, placement: Placement, copies: int) -> None:
        self._placement, self._index = placement, placement.index
        self._copies = copies  # of each shard, itself included

    def again_at(self, now: float) -> float:
        """When the first server that was put off may get a copy again; infinity: none was."""
        servers = self._placement.servers.values()
        return min((s.again_at for s in servers if s.again_at > now), default=inf)

    def _able(self, now: float) -> list[Server]:
        """Servers that may get a copy now, or as soon as they have room."""
        servers = self._placement.servers.values()
        return [s for s in servers if not s.leaving and s.again_at <= now]

    def best_for(self, shard: PlacedShard, now: float) -> int:
        """The best server for another copy of a shard; 0: none, or the best one is waited for."""
        holders = shard.holders
        able = [s for s in self._able(now) if s.number not in holders]
        if not able:
            return 0
        # The source of the copy. On another host if possible: one machine that fails would take
        # both.
        source = shard.standby.server if shard.standby and shard.backed else shard.primary
        host = self._placement.servers[source].host
        able = [s for s in able if s.host != host] or able

        def rank(server: Server) -> tuple[int, bool, int]:
            # Of equals the next number after the source: if all took the lowest one, servers that
            # all have one shard would send their copies to a single server.
            return self._index.load(server.number), server.number <= source, server.number

        best = min(able, key=rank)
        if best.number in self._index.idle:
            return best.number
        # The best one copies already. Another one is taken at once while it has less than its fair
        # share: a shard without a standby is worse than a copy that moves again later. With its
        # share it would only have to move, so the best one is waited for.
        staying = max(1, len(self._placement.servers) - len(self._placement.leaving))
        share = -(-self._copies * len(self._placement.shards) // staying)
        idle = [rank(server) for server in able if server.number in self._index.idle]
        load, _, number = min(idle, default=(share, False, 0))
        return number if load < share else best.number

    def uneven(self, now: float) -> tuple[PlacedShard, int, bool] | None:
        """A move that makes the servers more even: the shard, the server that is to have it, and
        whether as its primary; None: they are even."""
        able = self._able(now)
        if len(able) < 2:
            return None
        # Primaries come first, as they do the work.
        primaries = {s.number: len(self._index.served(s.number)) for s in able}
        least = min(primaries, key=lambda n: (primaries[n], self._index.load(n), n))
        most = max(primaries, key=lambda n: (primaries[n], -n))
        # Only a difference of two is worth a move: with one the shard could move back and forth.
        if primaries[most] - primaries[least] >= 2:
            served = [self._placement.shards[n] for n in sorted(self._index.served(most))]
            # A shard whose standby is there already only changes places with it: nothing is copied.
            swaps = [s for s in served if s.standby is not None and s.standby.server == least]
            return (swaps or served)[0], least, True
        return self._uneven_standby(set(primaries))

    def _uneven_standby(self, able: set[int]) -> tuple[PlacedShard, int, bool] | None:
        """The standby of the most loaded server that is to move to the least loaded one."""
        least = min(able, key=lambda n: (self._index.load(n), n))
        best: tuple[PlacedShard, int, bool] | None = None
        most_load = self._index.load(least) + 1
        for shard in self._placement.shards:
            copy = shard.standby
            if copy is None or shard.primary == least or copy.server not in able:
                continue
            if self._index.load(copy.server) <= most_load:
                continue
            # Never to the primary's host from another one, for the sake of balance.
            if self._same_host(shard.primary, least) > self._same_host(shard.primary, copy.server):
                continue
            most_load = self._index.load(copy.server)
            best = shard, least, False
        return best

    def _same_host(self, server: int, other: int) -> bool:
        """Whether two servers would fail together."""
        servers = self._placement.servers
        return servers[server].host == servers[other].host
