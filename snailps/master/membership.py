"""The members of the cluster, and its first route.

    Register -> Member -> (all here) -> Route -> TakeRoute, acknowledged by all -> formed

Owns the list of members, which the journal has too, and the route; names missing members.  Must not
know jobs (`job/controller.py`).  Connections are numbers, and `now` is monotonic seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from snailps.config.addresses import format_addr
from snailps.errors import ClusterError, ConfigError, ConnectionLost, ProtocolError, SnailError
from snailps.master.context import Context
from snailps.master.effects import Diagnose, Fact, OnAnswer, ReportStatus, Rerouted
from snailps.master.events import Answer, Received
from snailps.master.lifecycle import Lifecycle
from snailps.master.member import NO_PEER, Member, names_of
from snailps.master.phases import Reach, Stay
from snailps.master.replication.placement_record import with_changes
from snailps.master.table_registry import TableRegistry
from snailps.store.route import Route, ShardAddress
from snailps.transport import messages

log = logging.getLogger(__name__)

NOTICE_S = 5.0
LOSSES_PER_NODE = 3
"""Processes that may be lost while the cluster forms, for each node expected."""
SHOWN_MAX = 8
"""Addresses in a message."""
USAGE_AT_ONCE = 50
"""Workers asked at once for their usage: each of a thousand every 20 s."""
LONG_S = 2.0
"""Seconds at a block after which a worker is asked what it waits for, before a status is told."""
ASKED_MAX = 64
"""Workers that are asked for one status: where more are stuck, these say why."""
ANSWER_S = 0.3
"""Seconds that a status waits for their replies."""
NUMBERS_AHEAD = 64
"""Numbers that a master that takes over skips, or they might be given twice."""
READERS_FROM = 1 << 30
"""Incarnations of the master's own readers: node numbers, which are names, stay small."""


class Above(Protocol):
    """What becomes of members that have got the route."""

    def ready(self, member: Member, now: float) -> None:
        """A member took the route."""

    def unready(self, member: Member, text: str, now: float) -> None:
        """A member cannot reach every server."""


class Membership:
    def __init__(
        self,
        context: Context,
        lifecycle: Lifecycle,
        above: Above,
        facts: Sequence[Fact] = (),  # of an earlier master
        sync_journal: Callable[[], None] | None = None,
    ) -> None:
        self._settings, self._session = context.settings, context.session is not None
        self.cluster_id, self.out = context.cluster_id, context.out
        self._lifecycle, self._above = lifecycle, above
        self.peers: dict[int, Member] = {}  # by connection
        self.gone: dict[int, bool] = {}  # numbers that are not to come back; whether they were lost
        self.shards: dict[str, Any] = {}  # places of the shards, as in the journal
        self.route: Route | None = None
        self.all: dict[int, Member] = {}
        self.table_registry = TableRegistry(
            lambda: self.joined("server"),
            self.out,
            lifecycle.fail,
            context.settings.modules,
            sync_journal,
        )
        self._sent_route: tuple[Route, messages.TakeRoute] | None = None
        self._route_unsent = False  # a route is made, and not sent yet
        self._next_number = self._below = 1
        self._next_reader = READERS_FROM
        self._given_before = 0  # numbers below may be of members that another master knew
        self._numbers_kept = self._readers_kept = 0
        self.left: list[Member] = []
        self._asked: set[int] = set()  # workers that have not said yet what they wait for
        self._status_calls: list[int] = []
        self._status_due = 0.0
        self.since = context.begun  # when the present step of forming began
        self._notice_at = self.since + NOTICE_S
        self._formed = False
        self._epoch = 0  # of the newest route that a member may have
        self._lost: list[str] = []  # why members were lost while the cluster formed
        self._usage_at = 0  # the last worker that was asked for its usage
        for fact in facts:
            self._replay(fact)
        self.returning = self.formed_before
        """Members of an earlier master are coming back: losses are handled when the job resumes."""

    @property
    def frag_num(self) -> int:
        return self._settings.frag_num

    def order(self, member: Member, message: messages.Message, on_answer: OnAnswer) -> None:
        self.out.order(member.peer, message, on_answer)

    def send(self, member: Member, message: messages.Message) -> None:
        self.out.send(member.peer, message)

    def role_of(self, peer: int) -> str:
        """Role of a connection's peer; empty before Register."""
        member = self.peers.get(peer)
        return member.role if member is not None else ""

    def disconnect(self, member: Member) -> None:
        """Close a member's connection, once all messages are sent."""
        if member.peer != NO_PEER:
            self.out.close(member.peer)
            self.gone_peer(member.peer)

    def gone_peer(self, peer: int) -> Member | None:
        """A connection is gone; returns its member."""
        member = self.peers.pop(peer, None)
        if member is not None:
            member.disconnected()
        return member

    def nodes(self, role: str = "") -> list[Member]:
        """Members of a role; without one, servers and workers."""
        return [m for m in self.all.values() if m.role == role or not (role or m.role == "driver")]

    def cores_of(self, number: int) -> float:
        """Cores that a member may keep busy; 1 of one that is not known."""
        return self.all[number].cores if number in self.all else 1.0

    def joined(self, role: str) -> list[Member]:
        """Members of a role, without newcomers that still connect."""
        return [member for member in self.nodes(role) if member.reach.joined]

    @property
    def sent_away(self) -> list[Member]:
        """Workers of a failed job that have yet to leave."""
        return [member for member in self.nodes("worker") if member.stay is Stay.SENT_AWAY]

    def endpoints(self) -> list[list[Any]]:
        """Servers' shards, each with a name for it."""
        return [
            [f"server {member.number}", list(endpoint)]
            for member in self.nodes("server")
            for endpoint in member.endpoints
        ]

    @property
    def below(self) -> int:
        """All numbers below are of servers, which push nothing, or will never push again."""
        while self._below < self._next_number and not self._may_push(self._below):
            self._below += 1
        return self._below

    def _may_push(self, number: int) -> bool:
        if number in self.all:
            return self.all[number].role != "server"
        return number < self._given_before and number not in self.gone  # it may yet come back

    def restart_clock(self, now: float) -> None:
        """Count the time limits of forming from now."""
        self.since = now
        self.out.put(Diagnose("nodes", self._settings.master_time_out))

    def new_number(self) -> int:
        """A number for a node and its incarnation, never given twice."""
        self._next_number += 1
        if self._next_number > self._numbers_kept - NUMBERS_AHEAD // 2:
            self.out.note(*self.keep_numbers())
        return self._next_number - 1

    def reserve(self, count: int) -> range:
        """Incarnations for work beside the loop, which no node has."""
        first = self._next_reader
        self._next_reader += count
        if self._next_reader > self._readers_kept - NUMBERS_AHEAD // 2:
            self.out.note(*self.keep_numbers())
        return range(first, self._next_reader)

    def keep_numbers(self) -> tuple[str, dict[str, Any]]:
        """The fact that numbers are given out: a master that takes over begins behind them."""
        self._numbers_kept = self._next_number + NUMBERS_AHEAD
        self._readers_kept = self._next_reader + NUMBERS_AHEAD
        return "numbers", {"until": self._numbers_kept, "readers_until": self._readers_kept}

    # --- another master's members ------------------------------------------------------------

    def _replay(self, fact: Fact) -> None:
        """Take a fact; facts of other subjects are skipped."""
        data = fact.data
        if fact.kind == "numbers":
            self._next_number = self._given_before = int(data["until"])
            self._next_reader = int(data["readers_until"])
        elif fact.kind == "route":
            self.route = Route.from_dict(data["route"])
            self._epoch = self.route.epoch
        elif fact.kind == "member":
            endpoints = [(str(host), int(port)) for host, port in data["endpoints"]]
            self.all[data["number"]] = Member(
                data["number"],
                data["role"],
                data["host"],
                data["pid"],
                NO_PEER,
                endpoints,
                reach=Reach.AWAY,
                late=data["late"],
                since=self.since,
                declared=True,  # it may have
            )
        elif fact.kind == "gone":
            self.gone[data["number"]] = data["lost"]
            if data["number"] in self.all:
                member = self.all.pop(data["number"])
                member.was_removed(data["figures"])
                if member.role != "driver":
                    self.left.append(member)
        elif fact.kind == "shards":
            self.shards = with_changes(self.shards, data)
        elif fact.kind in ("table", "drop"):
            self.table_registry.replay(fact)

    def rejoin(self, event: Received, message: messages.Rejoin, now: float) -> Member:
        """Take back a member of an earlier master of this cluster. SnailError if it does not belong
        here any more; the text is for its own log."""
        if message.job != self.cluster_id:
            raise ClusterError(
                "another run has begun here: the run of this process is over, and its rows and "
                "blocks are not used any more"
            )
        peer = event.peer
        if peer in self.peers:
            raise ProtocolError("Rejoin: this connection is registered already")
        number = message.node
        member = self.all.get(number)
        if message.incarnation != number or (member is not None and member.role != message.role):
            raise ClusterError(
                f"{message.role} {number}, incarnation {message.incarnation}, was never here. "
                "Start it anew"
            )
        if number in self.gone or (member is not None and not member.away):
            raise ClusterError(
                f"{message.role} {number} was given up: its connection was lost, and others do its "
                "work. Start it anew"
            )
        known = member is not None
        if member is None:
            holds = message.epoch if message.role == "server" else message.state.get("started")
            given = number < self._given_before  # the journal is ahead of all that were given
            unknown = message.role == "driver" and not self._session
            if unknown or not given or (self._formed and holds and message.role != "driver"):
                raise ClusterError(f"no {message.role} {number} is known here. Start it anew")
            endpoints = [(host, port) for host, port in message.endpoints]
            member = Member(
                number,
                message.role,
                message.host,
                message.pid,
                peer,
                endpoints,
                message.cores,
                since=now,
                address=event.address,
                reach=Reach.BACK if holds else Reach.REGISTERED,
                late=self.formed_before or self._formed,
                declared=True,
                resume_state=message.state,
            )
            self.all[number] = member
        else:
            member.came_back(peer, event.address, message.cores, message.state, now)
        self.peers[peer] = member
        log.info("%s is back", member.name)
        self._welcome(event, member)
        self._epoch = max(self._epoch, message.epoch)
        if self.route is not None:
            has_it = message.epoch == self.route.epoch and not self._formed
            if not known and (has_it or not member.late):  # the others are noted once they joined
                self._note_member(member)
            if has_it:
                member.route_taken(message.epoch)
            else:
                self._send_route(member, now)
        return member

    @property
    def formed_before(self) -> bool:
        """Whether this cluster was complete under an earlier master."""
        return bool(self.shards)

    def _welcome(self, event: Received, member: Member) -> None:
        assert event.call is not None
        patient = self.out.kept and (member.role != "driver" or self._session)
        welcome = messages.Welcome(
            member.number,
            member.number,
            self.cluster_id,
            self._settings.frag_num,
            self._settings.heartbeat_interval,
            self._settings.heartbeat_timeout,
            self._settings.master_time_out if patient else 0.0,
        )
        self.out.reply(event.call, welcome)

    def _note_member(self, member: Member) -> None:
        """Note a member: a master that takes over waits for it, and knows a session's drivers."""
        if member.role != "driver" or self._session:
            self.out.note(
                "member",
                {
                    "number": member.number,
                    "role": member.role,
                    "host": member.host,
                    "pid": member.pid,
                    "endpoints": member.endpoints,
                    "late": member.late,
                },
            )

    # --- joining ---------------------------------------------------------------------------

    def register(self, event: Received, message: messages.Register, now: float) -> None:
        """Take in a new member, before the start or after it. SnailError if it is refused; the text
        is for its own log."""
        role, peer = message.role, event.peer
        endpoints = [(host, port) for host, port in message.endpoints]
        if peer in self.peers:
            raise ProtocolError("Register: this connection is registered already")
        number = self.new_number()
        member = Member(
            number,
            role,
            message.host,
            message.pid,
            peer,
            endpoints,
            message.cores,
            since=now,
            address=event.address,
            late=self._formed or self.formed_before,
            routed_at=now,
        )
        self.all[number] = self.peers[peer] = member
        log.info("%s registered from %s", member.name, format_addr(*event.address))
        self._welcome(event, member)
        if self.route is not None:
            if not member.late:  # the others were noted when the route was made
                self._note_member(member)
            self._send_route(member, now)

    def remove(self, member: Member, *, lost: bool = False) -> None:
        """Keep the metrics of a member that left or was lost; of a driver that it is gone."""
        if self.all.pop(member.number, None) is None:
            return
        if member.role != "driver":
            member.removed()
            self.left.append(member)
        elif not (self._session and self.out.kept):
            return
        self.gone[member.number] = lost
        gone = {"number": member.number, "lost": lost, "figures": member.figures}
        self.out.note("gone", gone)

    # --- forming ---------------------------------------------------------------------------

    def stood_still(self, seconds: float) -> None:
        self.since += seconds
        for member in self.all.values():
            member.stood_still(seconds)

    def missing(self) -> str:
        """The members that are missing, in words; empty once the cluster is formed."""
        if self._formed:
            return ""
        if self.route is not None:
            away = names_of([m for m in self._slow() if m.away])
            if away:
                return f"{away} to come back"
        lacks = "" if self.formed_before else self._lacks()
        if lacks:
            there = names_of(self.nodes()) or "none"
            return f"{lacks} (here: {there})"
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
        """Nodes, servers and workers that a first route still needs. More than expected do no harm:
        a newcomer of any role may come before the last server or the first worker."""
        wanted, wanted_servers = self._settings.expected_node_num, self._settings.expected_servers
        wanted_servers = max(1, wanted_servers)
        works = wanted == wanted_servers or bool(self.nodes("worker")) or self._session
        return (
            max(0, wanted - len(self.nodes())),
            max(0, wanted_servers - len(self.nodes("server"))),
            0 if works else 1,
        )

    def _slow(self) -> list[Member]:
        """The members whose answer the cluster still needs to be complete."""
        nodes = [m for m in self.nodes() if not (m.has_route or m.missed)]
        # A cluster that was complete before does not wait for newcomers.
        return [m for m in nodes if m.joined] if self.formed_before else nodes

    def check_formed(self, now: float) -> bool:
        """Take the next step of forming if it is time; True once, when all have the route."""
        if not self.formed_before:
            self._withdraw()
            if self._lacks():
                self._wait_for_more(now)
                return False
            if self.route is None:
                self._make_route(now)
                return False
        if self._route_unsent:
            self._route_unsent = False
            self.send_route(now)
            return False
        if not self._slow():
            self._formed = True
            self.out.put(Diagnose())
            here = [member for member in self.nodes() if not member.missed]
            log.info("cluster complete: %s", ", ".join(m.name for m in here))
            return True
        self.check_joining(now)
        return False

    def check_joining(self, now: float) -> None:
        """Give up members that have had the route for too long without reaching every server."""
        limit_s = self._settings.init_timeout
        for member in self.nodes():
            if self.route is None:
                return  # there is none yet, or its server was given up just now
            waits = not (member.has_route or member.away or member.missed)
            if waits and now - member.routed_at > limit_s:
                shards = ", ".join(
                    format_addr(s.host, s.port) for s in self.route.shards[:SHOWN_MAX]
                )
                self._above.unready(
                    member,
                    f"has not connected to every server within {limit_s:.0f} s (init_timeout): "
                    f"{shards}. Is a firewall in the way?",
                    now,
                )

    def lost_while_forming(self, member: Member, why: str, now: float) -> None:
        """Replace a member that is gone before the cluster was complete."""
        self.remove(member)
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
            self.restart_clock(now)
            self._notice_at = self.since  # logged at once

    def _withdraw(self) -> None:
        """Withdraw a first route that names a lost server."""
        if self.route is None or {shard.server for shard in self.route.shards} <= set(self.all):
            return
        log.info("route epoch %d is void: a server of it is gone", self.route.epoch)
        self.route, self._route_unsent = None, False
        for member in self.all.values():
            member.route_withdrawn()

    def _wait_for_more(self, now: float) -> None:
        """Wait for missing members, with a limit; log from time to time which."""
        limit_s = self._settings.master_time_out
        if now - self.since > limit_s:
            lost = f" Lost since: {'; '.join(self._lost[-3:])}." if self._lost else ""
            self._lifecycle.fail(
                f"waited {limit_s:.0f} s (master_time_out) for {self.missing()}.{lost} "
                + self._advice()
            )
        elif now >= self._notice_at:
            self._notice_at = now + NOTICE_S
            left_s = limit_s - (now - self.since)
            log.info("waiting for %s, %.0f s left", self.missing(), left_s)

    def _advice(self) -> str:
        """Advise a user about missing nodes."""
        nodes, servers, _ = self._lacking()
        if nodes:
            return "Were they started, with this master_addr?"
        role = "server" if servers else "worker"
        return f"There are nodes enough: start another {role}, or correct expected_servers"

    def _make_route(self, now: float) -> None:
        shards = [
            ShardAddress(member.number, host, port)
            for member in self.nodes("server")
            for host, port in member.endpoints
        ]
        try:
            self.route = Route.build(self._epoch + 1, shards, self._settings.frag_num)
        except ConfigError as error:
            self._lifecycle.fail(str(error))
            return
        self._epoch = self.route.epoch
        self.since = now
        places = [(shard.server, (shard.host, shard.port)) for shard in shards]
        self.out.put(Diagnose("connections", self._settings.init_timeout, places))
        log.info(
            "route epoch %d: %d shards, %d fragments",
            self.route.epoch, len(shards), self.route.frag_num,
        )  # fmt: skip
        for member in self.all.values():
            self._note_member(member)
        self._note_route()
        self._route_unsent = True  # in the next turn: with a thousand members either takes 25 ms

    def shard_facts(self) -> list[Fact]:
        """Where the shards are, in one fact for all that were noted."""
        return [Fact("shards", self.shards)] if self.shards else []

    def take(self, route: Route) -> None:
        """Take a new route; `send_route` sends it."""
        self.route = route
        self._note_route()

    def _note_route(self) -> None:
        assert self.route is not None
        self.out.note("route", {"route": self.route.to_dict()})
        self.out.put(Rerouted(self.route))

    def send_route(self, now: float) -> None:
        """Send all members the route, servers first."""
        for member in sorted(self.all.values(), key=lambda m: m.role != "server"):
            self._send_route(member, now)

    def _send_route(self, member: Member, now: float) -> None:
        route = self.route
        assert route is not None
        member.route_sent(now)
        if self._sent_route is None or self._sent_route[0] is not route:
            self._sent_route = (route, messages.TakeRoute(route.to_dict()))
        self.order(member, self._sent_route[1], partial(self._took_route, member, route))

    def _took_route(self, member: Member, route: Route, answer: Answer, now: float) -> None:
        if isinstance(answer, ConnectionLost):
            return  # the loss itself is reported
        old = route is not self.route  # before the start a newer one has other servers
        if old and (not self._formed or isinstance(answer, SnailError)):
            return  # it gets, or has got, the newer one
        if isinstance(answer, SnailError):
            if member.number in self.all and member.role != "driver":
                self._above.unready(member, f"cannot use the route: {answer}", now)
            return
        is_new = not member.has_route
        member.route_taken(route.epoch)
        if is_new:
            if member.late:
                self._note_member(member)
            self._above.ready(member, now)

    # --- statistics ---------------------------------------------------------------------------

    def ask_usage(self) -> None:
        """Ask some workers, in turn, for their usage; servers report it with their stats."""
        workers = self.joined("worker")
        workers.sort(key=lambda worker: (worker.number <= self._usage_at, worker.number))
        for member in workers[:USAGE_AT_ONCE]:
            self._usage_at = member.number
            self.order(member, messages.Ask("stats"), partial(self._note_usage, member))

    def _note_usage(self, member: Member, answer: Answer, now: float) -> None:
        # Not its waits: they may be over, as the block may be.
        if isinstance(answer, messages.Report):
            member.reports.take_usage(answer.data)

    def ask_status(self, call: int, now: float) -> None:
        """Answer soon with the status; workers that are long at a block first report why."""
        if not self._status_calls:
            self._status_due = now + ANSWER_S
        self._status_calls.append(call)
        for member in self.nodes("worker"):
            if len(self._asked) >= ASKED_MAX:
                return
            long = member.block_since and now - member.block_since > LONG_S
            at_work = member.work.begun and not (member.finished or member.waits)
            if long and at_work and member.number not in self._asked:
                self._asked.add(member.number)
                self.order(member, messages.Ask("stats"), partial(self._note_waits, member))

    def _note_waits(self, member: Member, answer: Answer, now: float) -> None:
        self._asked.discard(member.number)
        if isinstance(answer, messages.Report):
            member.reports.take_stats(answer.data, now)

    def report_status(self, now: float) -> None:
        """Answer once the workers that were asked have answered, or time is up."""
        if self._status_calls and (not self._asked or now >= self._status_due):
            self.out.put(ReportStatus(self._status_calls))
            self._status_calls = []
            self._asked.clear()


def _counted(count: int, role: str) -> str:
    return f"{count} more {role}{'s' if count > 1 else ''}" if count else ""
