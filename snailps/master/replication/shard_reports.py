"""Owns which report of a shard counts: servers report their primaries and their standbys.

    Ask(stats) to each server -> Report -> ShardReports -> sums, the status, progress of copies

The reports themselves are in `Member.reports`. They are a second old: no decision about rows may
rest on them, only figures, and when a checkpoint is due.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from snailps.master.events import Answer
from snailps.master.lifecycle import Lifecycle
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.master.replication.controller import ReplicationController
from snailps.transport import messages


class ShardReports:
    def __init__(
        self, members: Membership, lifecycle: Lifecycle, replication: ReplicationController
    ) -> None:
        self._members, self._lifecycle, self._replication = members, lifecycle, replication

    def ask(self) -> None:
        """Ask every server for its counters; `Member.reports` gets them."""
        for member in self._members.nodes("server"):
            self._members.order(member, messages.Ask("stats"), partial(self.take, member))

    def take(self, member: Member, answer: Answer, now: float) -> None:
        if self._lifecycle.stopping:
            return  # a server that stops reports no shards any more: the report before counts
        if isinstance(answer, messages.Report):
            member.reports.take_stats(answer.data, now)
            self._replication.heard(member, now)

    def latest(self) -> Iterator[tuple[Member, dict[str, Any]]]:
        """Yield the last report of each shard: by its primary, else by another server.

        A server that has just been promoted has not reported as the primary yet; until then the
        report of a standby counts, unless that was incomplete and had a part of the rows only.
        """
        primary = {shard["shard"]: shard["primary"] for shard in self._replication.status()}
        reports: dict[int, tuple[bool, Member, dict[str, Any]]] = {}
        for kind in ("shards", "standbys"):
            for member in self._members.nodes("server"):
                for shard in member.reports.stats.get(kind, []):
                    number = shard["shard"]
                    of_primary = kind == "shards" and primary.get(number) == member.number
                    state = shard.get("replica", {}).get("state") if kind == "standbys" else ""
                    is_whole = state not in ("none", "seeding")
                    if number in primary and is_whole and (of_primary or number not in reports):
                        reports[number] = of_primary, member, shard
        for _, member, shard in reports.values():
            yield member, shard

    def sum(self, counter: str) -> int:
        """Sum of a counter over all shards."""
        return int(sum(shard.get(counter, 0) for _, shard in self.latest()))

    def never_pushed(self) -> list[str]:
        """Tables of the job of which no shard has or had a row; empty if not all have reported."""
        route, tables_of_job = self._members.route, self._members.table_registry.of_job
        reports = [shard.get("tables", {}) for _, shard in self.latest()]
        if route is None or len(reports) < len(route.shards):
            return []
        pushed = {
            int(number)
            for tables in reports
            for number, counts in tables.items()
            if any(counts.get(name, 0) for name in ("rows", "made", "refused"))
        }
        return [name for name, number in tables_of_job.items() if number not in pushed]
