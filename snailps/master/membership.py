"""Owns the list of members, and the route that they get.

    Register -> Member -> TakeRoute, acknowledged -> it has joined
    Rejoin -> the same Member, under another master -> its route, if it lacks it

`forming.py` makes the first route, `replication/` the others. The journal has every member and
route before any peer learns of it, so that a master that takes over knows everyone who may hold
rows or blocks. Must not know jobs (`job/controller.py`). Connections are numbers; `now` is
monotonic seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from snailps.config.addresses import format_addr
from snailps.errors import ClusterError, ConnectionLost, ProtocolError, SnailError
from snailps.master.context import Context
from snailps.master.effects import Fact, OnAnswer, Rerouted
from snailps.master.events import Answer, Received
from snailps.master.member import NO_PEER, Member
from snailps.master.number_spans import NodeNumbers
from snailps.master.phases import Reach, Stay
from snailps.master.replication.placement_record import with_changes
from snailps.master.table_registry import TableRegistry
from snailps.store.route import Route
from snailps.transport import messages

log = logging.getLogger(__name__)


class Membership:
    def __init__(
        self,
        context: Context,
        on_ready: Callable[[Member, float], None],  # a member has taken the route
        # ``drop(member, why, now)``: it cannot reach every server
        drop: Callable[[Member, str, float], None],
        facts: Sequence[Fact] = (),  # of an earlier master
        sync_journal: Callable[[], None] | None = None,
    ) -> None:
        self._settings, self._life = context.settings, context.life
        self.cluster_id, self.out, self._begun = context.cluster_id, context.out, context.begun
        self._on_ready, self._drop = on_ready, drop
        self.peers: dict[int, Member] = {}  # by connection
        self.numbers = NodeNumbers(context.out)
        self.gone_nodes: dict[int, bool] = {}  # servers and workers -> whether they were lost
        self.shards: dict[str, Any] = {}  # places of the shards, as in the journal
        self.route: Route | None = None
        self.all: dict[int, Member] = {}
        self.table_registry = TableRegistry(
            lambda: self.joined("server"),
            self.out,
            context.settings.modules,
            sync_journal,
        )
        # The message of the present route: it is large, and the same for all.
        self._sent_route: tuple[Route, messages.TakeRoute] | None = None
        self.left: list[Member] = []  # members that are gone, for their figures
        self.formed = False  # all have, or had, the first route
        self.epoch = 0  # of the newest route that a member may have
        for fact in facts:
            self._replay(fact)
        self.returning = self.formed_before
        """Members of an earlier master are coming back. Until the job resumes losses are only
        noted, and messages about the job wait."""

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
        """Close a member's connection once everything queued for it is sent."""
        if member.peer != NO_PEER:
            self.out.close(member.peer)
            self.gone_peer(member.peer)

    def gone_peer(self, peer: int) -> Member | None:
        """Forget a connection that is gone; returns its member."""
        member = self.peers.pop(peer, None)
        if member is not None:
            member.disconnected()
        return member

    def nodes(self, role: str = "") -> list[Member]:
        """Members of a role; without one, servers and workers."""
        return [m for m in self.all.values() if m.role == role or not (role or m.role == "driver")]

    def cores_of(self, number: int) -> float:
        """Cores that a member may keep busy; 1 if the member is unknown."""
        return self.all[number].cores if number in self.all else 1.0

    def joined(self, role: str) -> list[Member]:
        """Members of a role, without newcomers that still connect: no decision waits for these."""
        return [member for member in self.nodes(role) if member.reach.joined]

    @property
    def sent_away(self) -> list[Member]:
        """Workers of a failed job that have not left yet."""
        return [member for member in self.nodes("worker") if member.stay is Stay.SENT_AWAY]

    def endpoints(self) -> list[list[Any]]:
        """The address of each shard, with the name of its server."""
        return [
            [f"server {member.number}", list(endpoint)]
            for member in self.nodes("server")
            for endpoint in member.endpoints
        ]

    # --- another master's members ------------------------------------------------------------

    def _replay(self, fact: Fact) -> None:
        """Take a fact; facts of other subjects are skipped."""
        data = fact.data
        if fact.kind == "numbers":
            self.numbers.replay(int(data["until"]), int(data["readers_until"]))
        elif fact.kind == "route":
            self.route = Route.from_dict(data["route"])
            self.epoch = self.route.epoch
        elif fact.kind in ("member", "driver"):
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
                since=self._begun,
                declared=True,  # unknown, so it must be fenced when it is lost
            )
        elif fact.kind == "gone":
            number = data["number"]
            self.numbers.went(number)
            member = self.all.pop(number, None)
            if member is not None:
                member.was_removed(data["figures"])
            if member is not None and member.role != "driver":
                self.left.append(member)
            if member is None or member.role != "driver":
                self.gone_nodes[number] = data["lost"]
        elif fact.kind == "drivers_gone":
            for first, last in data["spans"]:
                self.numbers.went(first, last)
            for number in [number for number in self.all if number in self.numbers.gone]:
                del self.all[number]
        elif fact.kind == "shards":
            self.shards = with_changes(self.shards, data)
        elif fact.kind in ("table", "drop"):
            self.table_registry.replay(fact)

    def rejoin(self, event: Received, message: messages.Rejoin, now: float) -> Member:
        """Take back a member of an earlier master of this cluster. SnailError if it no longer
        belongs here: its work is given to others, or its run is over. Its own log gets the text.

        A member that the journal lacks, as after a power cut, is taken back too if its number was
        given out and it cannot hold anything that others have by now.
        """
        if message.job != self.cluster_id:
            raise ClusterError(
                "another run has begun here. The run of this process is over, and its rows and "
                "blocks are no longer used"
            )
        peer = event.peer
        if peer in self.peers:
            raise ProtocolError("Rejoin: this connection is registered already")
        number = message.node
        member = self.all.get(number)
        if message.incarnation != number or (member is not None and member.role != message.role):
            raise ClusterError(
                f"{message.role} {number}, incarnation {message.incarnation}, was never a member "
                "of this cluster. Start it anew"
            )
        # Not away: it has lost its connection to this very master, which has not noticed yet.
        if number in self.numbers.gone or (member is not None and not member.away):
            error = ClusterError(
                f"{message.role} {number} was given up: its connection was lost, and others do its "
                "work. Start it anew"
            )
            error.code = messages.GIVEN_UP
            raise error
        in_journal = member is not None
        if member is None:
            holds = message.epoch if message.role == "server" else message.state.get("started")
            refused = message.role == "driver" and not self._life.drivers_work
            was_given = self.numbers.were_given(number)
            if refused or not was_given or (self.formed and holds and message.role != "driver"):
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
                late=self.formed_before or self.formed,
                declared=True,
                resume_state=message.state,
            )
            self.all[number] = member
        else:
            member.came_back(peer, event.address, message.cores, message.state, now)
        self.peers[peer] = member
        log.info("%s is back", member.name)
        self._welcome(event, member)
        self.epoch = max(self.epoch, message.epoch)
        if self.route is not None:
            has_it = message.epoch == self.route.epoch and not self.formed
            # A late member without the route is noted once it has joined.
            if not in_journal and (has_it or not member.late):
                self.note_member(member)
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
        # Without a journal no master comes after this one; who only watches has nothing to keep.
        patient = self.out.kept and (member.role != "driver" or self._life.drivers_work)
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

    def note_member(self, member: Member) -> None:
        """Note a member, for which a master that takes over will wait. A driver that only
        watches holds nothing."""
        if member.role != "driver" or self._life.drivers_work:
            kind = "driver" if member.role == "driver" else "member"
            self.out.journal(kind, self._noted(member))

    @staticmethod
    def _noted(member: Member) -> dict[str, Any]:
        return {
            "number": member.number,
            "role": member.role,
            "host": member.host,
            "pid": member.pid,
            "endpoints": member.endpoints,
            "late": member.late,
        }

    # --- joining ---------------------------------------------------------------------------

    def register(self, event: Received, message: messages.Register, now: float) -> None:
        """Take in a new member, while the cluster forms or later. SnailError if it is refused; its
        own log gets the text."""
        role, peer = message.role, event.peer
        endpoints = [(host, port) for host, port in message.endpoints]
        if peer in self.peers:
            raise ProtocolError("Register: this connection is registered already")
        number = self.numbers.give()  # never used before: it is the incarnation of its pushes, too
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
            late=self.formed or self.formed_before,
            routed_at=now,
        )
        self.all[number] = self.peers[peer] = member
        log.info("%s registered from %s", member.name, format_addr(*event.address))
        self._welcome(event, member)
        if self.route is not None:
            # Members before it were noted when the route was made; a late one is noted once it has
            # the route.
            if not member.late:
                self.note_member(member)
            self._send_route(member, now)

    def remove(self, member: Member, *, lost: bool = False) -> None:
        """Remove a member that left or was lost; its number must not come back. The figures of a
        server or worker stay."""
        if self.all.pop(member.number, None) is None:
            return
        self.numbers.went(member.number)
        if member.role != "driver":
            member.removed()
            self.left.append(member)
            self.gone_nodes[member.number] = lost
            gone = {"number": member.number, "lost": lost, "figures": member.figures}
            self.out.journal("gone", gone)
        elif self._life.drivers_work:
            self.out.journal("drivers_gone", {"spans": [[member.number, member.number]]})

    # --- the journal -----------------------------------------------------------------------

    def driver_facts(self) -> list[Fact]:
        """The drivers of a session, in facts that replace all that were noted: a session may
        outlive any number of them."""
        gone = Fact("drivers_gone", {"spans": [list(span) for span in self.numbers.gone]})
        drivers = [member for member in self.all.values() if member.role == "driver"]
        return [gone, *(Fact("driver", self._noted(member)) for member in drivers)]

    def note_shards(self, changes: dict[str, Any]) -> None:
        """Note where the shards are now: all, or what changed."""
        self.shards = with_changes(self.shards, changes)
        self.out.journal("shards", changes)

    def shard_facts(self) -> list[Fact]:
        """Where the shards are, in one fact that replaces all that were noted."""
        return [Fact("shards", self.shards)] if self.shards else []

    # --- the route -------------------------------------------------------------------------

    def take(self, route: Route) -> None:
        """Take a new route; `send_route` sends it."""
        self.route, self.epoch = route, max(self.epoch, route.epoch)
        self.out.journal("route", {"route": route.to_dict()})
        self.out.put(Rerouted(route))

    def withdraw_route(self) -> None:
        """Withdraw the first route. Its epoch is never used again: members may have it."""
        self.route = None
        for member in self.all.values():
            member.route_withdrawn()

    def complete(self) -> None:
        """All have the first route, or the one of an earlier master."""
        self.formed = True

    def send_route(self, now: float) -> None:
        """Send all members the route, servers first: their shards know it when others connect."""
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
        # A newer route is on its way to the member. While the cluster forms it has other servers,
        # so having reached the old ones means nothing.
        old = route is not self.route
        if old and (not self.formed or isinstance(answer, SnailError)):
            return
        if isinstance(answer, SnailError):
            if member.number in self.all and member.role != "driver":
                self._drop(member, f"cannot use the route: {answer}", now)
            return
        is_new = not member.has_route
        member.route_taken(route.epoch)
        if is_new:
            if member.late:
                self.note_member(member)
            self._on_ready(member, now)
