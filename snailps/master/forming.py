"""Forms the cluster: waits for its members, makes the first route, and waits until all have it.

    all here -> a first route -> TakeRoute, acknowledged by all -> complete
    one is lost meanwhile -> the route is void, if it names it; another process is waited for

Names who is missing, and ends the cluster where no process comes. Under another master the route
is there: the members that an earlier one knew are waited for. Must not know jobs. `now` is
monotonic seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from snailps.config.addresses import format_addr
from snailps.errors import ConfigError
from snailps.master.context import Context
from snailps.master.effects import Diagnose
from snailps.master.lifecycle import Lifecycle
from snailps.master.member import Member, names_of
from snailps.master.membership import Membership
from snailps.store.route import Route, ShardAddress

log = logging.getLogger(__name__)

NOTICE_S = 5.0
"""Seconds between log lines that name what is missing."""
LOSSES_PER_NODE = 3
"""Processes that may be lost while the cluster forms, for each node expected; then it fails."""
SHOWN_MAX = 8
"""Most addresses in a message."""


class Forming:
    def __init__(
        self,
        context: Context,
        members: Membership,
        lifecycle: Lifecycle,
        # ``drop(member, why, now)``: it cannot reach every server
        drop: Callable[[Member, str, float], None],
    ) -> None:
        self._settings, self._life, self._out = context.settings, context.life, context.out
        self._members, self._lifecycle, self._drop = members, lifecycle, drop
        self.since = context.begun  # when the present step began
        self._notice_at = self.since + NOTICE_S
        self._route_unsent = False  # a route is made, and not sent yet
        self._lost: list[str] = []  # why members were lost

    def stood_still(self, seconds: float) -> None:
        self.since += seconds
        for member in self._members.all.values():
            member.stood_still(seconds)

    def restart_clock(self, now: float) -> None:
        """Count the time limits of forming from now."""
        self.since = now
        self._out.put(Diagnose("nodes", self._settings.master_time_out))

    def missing(self) -> str:
        """The members that are missing, in words for users; empty once the cluster is formed."""
        if self._members.formed:
            return ""
        if self._members.route is not None:
            away = names_of([m for m in self._slow() if m.away])
            if away:
                return f"{away} to come back"
        lacks = "" if self._members.formed_before else self._lacks()
        if lacks:
            here = names_of(self._members.nodes()) or "none"
            return f"{lacks} (here: {here})"
        return f"{names_of(self._slow())} to connect to every server"

    def _lacks(self) -> str:
        """Nodes that a first route still needs, in words."""
        nodes, servers, workers = self._lacking()
        if servers + workers >= nodes:
            roles = [_counted(servers, "server"), _counted(workers, "worker")]
            return " and ".join(text for text in roles if text)
        text = f"{nodes} more of {self._settings.expected_node_num} nodes"
        if servers or workers:
            role = "server" if servers else "worker"
            of_them = f"{servers} of them {role}s" if servers > 1 else f"1 of them a {role}"
            text += f", at least {of_them}"
        return text

    def _lacking(self) -> tuple[int, int, int]:
        """How many nodes, servers and workers a first route still needs. More than expected do no
        harm: a newcomer of any role may come before the last server or the first worker."""
        wanted, wanted_servers = self._settings.expected_node_num, self._settings.expected_servers
        wanted_servers = max(1, wanted_servers)
        needed = wanted != wanted_servers and not self._life.forms_without_worker
        return (
            max(0, wanted - len(self._members.nodes())),
            max(0, wanted_servers - len(self._members.nodes("server"))),
            int(needed and not self._members.nodes("worker")),
        )

    def _slow(self) -> list[Member]:
        """The members whose acknowledgement of the route the cluster still needs."""
        nodes = [m for m in self._members.nodes() if not (m.has_route or m.missed)]
        # A cluster that was complete before does not wait for newcomers.
        return [m for m in nodes if m.joined] if self._members.formed_before else nodes

    def check(self, now: float) -> bool:
        """Take the next step of forming if it is possible; True once, when all have the route."""
        if not self._members.formed_before:
            self._withdraw()
            if self._lacks():
                self._wait_for_more(now)
                return False
            if self._members.route is None:
                self._make_route(now)
                return False
        if self._route_unsent:
            self._route_unsent = False
            self._members.send_route(now)
            return False
        if not self._slow():
            self._members.complete()
            self._out.put(Diagnose())
            here = [member for member in self._members.nodes() if not member.missed]
            log.info("cluster complete: %s", ", ".join(m.name for m in here))
            return True
        self.check_joining(now)
        return False

    def check_joining(self, now: float) -> None:
        """Drop members that have had the route for `init_timeout` and do not reach every server."""
        limit_s = self._settings.init_timeout
        for member in self._members.nodes():
            if self._members.route is None:
                return  # none is made yet, or `drop` below has withdrawn it with its server
            waits = not (member.has_route or member.away or member.missed)
            if waits and now - member.routed_at > limit_s:
                shards = ", ".join(
                    format_addr(s.host, s.port) for s in self._members.route.shards[:SHOWN_MAX]
                )
                self._drop(
                    member,
                    f"has not connected to every server within {limit_s:.0f} s (init_timeout): "
                    f"{shards}. Is a firewall in the way?",
                    now,
                )

    def lost(self, member: Member, why: str, now: float) -> None:
        """Replace a member that is gone before the cluster was complete."""
        self._members.remove(member)
        self._lost.append(f"{member.name} {why}")
        losses_max = LOSSES_PER_NODE * self._settings.expected_node_num
        if len(self._lost) > losses_max:
            self._lifecycle.fail(
                f"{len(self._lost)} processes were lost while the cluster formed, the last one: "
                f"{self._lost[-1]}. Look at their logs"
            )
            return
        log.warning("%s: the cluster is not complete yet and goes on forming", self._lost[-1])
        self._withdraw()
        if self._lacks():
            # Whoever starts another process has the whole time for it.
            self.restart_clock(now)
            self._notice_at = self.since  # logged at once

    def _withdraw(self) -> None:
        """Withdraw a first route that names a lost server. Its epoch is never used again: members
        may have it."""
        route = self._members.route
        if route is None or {shard.server for shard in route.shards} <= set(self._members.all):
            return
        log.info("route epoch %d is void: a server of it is gone", route.epoch)
        self._members.withdraw_route()
        self._route_unsent = False

    def _wait_for_more(self, now: float) -> None:
        """Wait for missing members, up to `master_time_out`; log from time to time who is
        missing."""
        limit_s = self._settings.master_time_out
        if now - self.since > limit_s:
            lost = f" Lost meanwhile: {'; '.join(self._lost[-3:])}." if self._lost else ""
            self._lifecycle.fail(
                f"waited {limit_s:.0f} s (master_time_out) for {self.missing()}.{lost} "
                + self._advice()
            )
        elif now >= self._notice_at:
            self._notice_at = now + NOTICE_S
            left_s = limit_s - (now - self.since)
            log.info("waiting for %s, %.0f s left", self.missing(), left_s)

    def _advice(self) -> str:
        """What a user can do about missing nodes."""
        nodes, servers, _ = self._lacking()
        if nodes:
            return "Were they started, with this master_addr?"
        role = "server" if servers else "worker"
        return f"There are enough nodes: start another {role}, or correct expected_servers"

    def _make_route(self, now: float) -> None:
        shards = [
            ShardAddress(member.number, host, port)
            for member in self._members.nodes("server")
            for host, port in member.endpoints
        ]
        try:
            # Above any epoch that a member may have: a void route must not pass for this one.
            route = Route.build(self._members.epoch + 1, shards, self._settings.frag_num)
        except ConfigError as error:
            self._lifecycle.fail(str(error))
            return
        self.since = now
        places = [(shard.server, (shard.host, shard.port)) for shard in shards]
        self._out.put(Diagnose("connections", self._settings.init_timeout, places))
        log.info(
            "route epoch %d: %d shards, %d fragments",
            route.epoch, len(shards), route.frag_num,
        )  # fmt: skip
        # Members first: a master that takes over has to know all who may have the route. Before the
        # route they hold nothing, and need not be waited for.
        for member in self._members.all.values():
            self._members.note_member(member)
        self._members.take(route)
        # Sent in the next turn: with a thousand members making and sending take 25 ms each.
        self._route_unsent = True


def _counted(count: int, role: str) -> str:
    return f"{count} more {role}{'s' if count > 1 else ''}" if count else ""
