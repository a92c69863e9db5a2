"""Owns the `ReplicationPlanner` of a cluster: feeds it events, and performs what it decides.

    members, notes of servers, time -> ReplicationPlanner
    -> the journal, then orders to servers, TakeRoute to all, the verdict

Connects `planner.py`, which must not know members, with the members, which must not know shards;
also answers those who asked for a drain. `now` is monotonic seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from snailps.errors import ClusterError, ConnectionLost, SnailError
from snailps.master.context import Context
from snailps.master.effects import OnAnswer, Rerouted, Say, StatusEvent
from snailps.master.events import Answer
from snailps.master.lifecycle import Lifecycle
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.master.phases import Stay
from snailps.master.replication.effects import Emptied, Expelled, RowsLost, Stuck
from snailps.master.replication.pending_orders import PlannerOrder
from snailps.master.replication.planner import ReplicationPlanner
from snailps.master.replication.redundancy import shards_text
from snailps.master.replication.shard_orders import ShardOrders
from snailps.node.limits import Limits
from snailps.transport import messages

log = logging.getLogger(__name__)


class ReplicationController:
    """Keeps every shard served."""

    def __init__(
        self,
        context: Context,
        members: Membership,
        lifecycle: Lifecycle,
        # ``expel(server, why, now)`` declares a server lost that may still run; `lost` follows
        expel: Callable[[Member, str, float], None],
        rows_lost: Callable[[str], None],  # no server has the rows of a shard any more
        all_servers_leave: Callable[[str, float], None],  # all are to leave, with all rows
    ) -> None:
        self._out, self._members, self._lifecycle = context.out, members, lifecycle
        self._expel, self._rows_lost = expel, rows_lost
        self._all_servers_leave = all_servers_leave
        settings = context.settings
        wanted = settings.replication if settings.on_node_loss == "recover" else "none"
        limits = Limits.of(settings.request_timeout)
        self.standbys = ReplicationPlanner(
            replicated=wanted != "none",
            sync=wanted == "sync",
            tables=self._members.table_registry.made,
            yield_s=limits.yield_s,
        )
        self.shard_orders = ShardOrders(
            lambda: self.standbys.count,
            self.standbys.primary_of,
            self._order,
            lifecycle.fail,
            limits.changeover_s,
            self._expel_server,
            self._members.numbers.fenced_with,
        )
        self._drains: dict[int, list[int]] = {}
        self._formed = self._working = False
        self._rerouted = False
        self._performers = self._effect_table()

    # --- membership ----------------------------------------------------------------------------

    def formed(self, now: float) -> None:
        """Every member has the route: plan the standbys, or continue from an earlier master."""
        assert self._members.route is not None
        self._formed = True
        hosts = {member.number: member.host for member in self._members.joined("server")}
        if not self._members.shards:
            self.standbys.form(self._members.route, hosts, now)
            self._work(now)
            return
        missed = [member.number for member in self._members.nodes("server") if member.missed]
        leaving = self._members.shards["leaving"]
        for member in self._members.nodes("server"):
            # A drained server does not know that it is to leave: only the journal does.
            if member.number in leaving and member.stay is Stay.HERE:
                member.asked_to_leave()
        self.standbys.restore(self._members.shards, self._members.route, hosts, now, missed)
        self._work(now)
        # What servers reported to nobody while there was no master.
        for member in self._members.nodes("server"):
            for shard, copy, trouble in member.resume_state.get("standbys", []):
                if trouble:
                    unbacked = messages.Unbacked(int(shard), int(copy), str(trouble))
                    self.note(member, unbacked, now)
                else:
                    self.note(member, messages.Backed(int(shard), int(copy)), now)

    def joined(self, member: Member, now: float) -> None:
        if self._formed:
            self.standbys.join(member.number, member.host, now)
            self._work(now)

    def lost(self, member: Member, why: str, now: float) -> None:
        """A server is lost or has left: promote the standbys of its shards, or end the job."""
        self._members.remove(member)
        self.standbys.lost(member.number, now, f"{member.name} is lost: {why}")
        self._answer_drains(member.number, None)
        self._work(now)

    def drain(self, number: int, now: float, call: int | None = None) -> None:
        """Move the shards of a server that is to leave, and then stop it. `call` is answered when
        it is gone, or cannot leave. ClusterError if there is no such server, or it has nothing to
        move yet."""
        member = self._members.all.get(number)
        if member is None or member.role != "server":
            have = ", ".join(str(m.number) for m in self._members.nodes("server"))
            raise ClusterError(f"there is no server {number} in this cluster; servers: {have}")
        if self._lifecycle.stopping:
            raise ClusterError("this cluster is about to end")
        if not self._formed:
            raise ClusterError("the cluster is not complete yet: there is nothing to move")
        if not member.joined:
            raise ClusterError(f"{member.name} still joins: it has nothing to move")
        if call is not None:
            self._drains.setdefault(number, []).append(call)
        if not member.leaving:
            member.asked_to_leave()
            shards = self.standbys.shards_of(number)
            log.info("%s is to leave: %d shards move to others", member.name, len(shards))
            self.standbys.leave(number, now)
            self._work(now)

    # --- the loop --------------------------------------------------------------------------------

    def stood_still(self, seconds: float) -> None:
        if self._formed:
            self.standbys.stood_still(seconds)
            self.shard_orders.stood_still(seconds)

    def step(self, held: bool, now: float) -> None:
        """Advance the time; `held`: rows are being saved or restored, so no shard is to move."""
        if not self._formed:
            return
        self.standbys.held = held
        self.standbys.tick(now)
        self._work(now)
        if self.standbys.redundancy.resuming:
            self._followed(now)
        self.shard_orders.step(now)

    def report(self, now: float) -> None:
        """Send all members a new route, if there is one. Called once in a turn of the loop: with a
        message to all for each shard, the loss of a server would cost shards times members."""
        if self._rerouted:
            self._rerouted = False
            self._members.send_route(now)

    def heard(self, member: Member, now: float) -> None:
        """Take a server's report on the progress of its copies."""
        for kind, name in (("shards", "seeded"), ("standbys", "relayed")):
            for shard in member.reports.stats.get(kind, []):
                share = float(shard["replica"][name])
                self.standbys.seeded(member.number, int(shard["shard"]), share, now)

    def note(
        self,
        member: Member,
        note: messages.Backed | messages.Unbacked | messages.Yielded,
        now: float,
    ) -> None:
        """Take a server's note on a shard's standby."""
        if self._lifecycle.stopping:  # standbys are lost because the cluster ends
            return
        if isinstance(note, messages.Backed):
            self.standbys.backed(member.number, note, now)
        elif isinstance(note, messages.Unbacked):
            self.standbys.unbacked(member.number, note, now)
        else:
            self.standbys.yielded(member.number, note, now)
        self._work(now)

    def figures(self) -> dict[str, Any]:
        return self.standbys.redundancy.figures()

    def status(self) -> list[dict[str, Any]]:
        """The servers of each shard, for the status; empty before the cluster is formed."""
        return self.standbys.status() if self._formed else []

    # --- how -------------------------------------------------------------------------------------

    def _work(self, now: float) -> None:
        """Perform the planner's decisions and their consequences, until there are no more.

        The journal has each change of the shards before an order that follows from it is sent: a
        master that takes over must know of every order that a server may have received.
        """
        if self._working:
            # Called from within: an order found its server gone, or an effect led to a loss. The
            # loop below takes what that added, after what was decided before it.
            return
        self._working = True
        try:
            while True:
                if changes := self.standbys.changes():
                    self._members.note_shards(changes)
                effects = self.standbys.effects()
                if not effects:
                    return
                for effect in effects:
                    self._performers[type(effect)](effect, now)
        finally:
            self._working = False

    def heirs_text(self, server: int) -> str:
        """What becomes of the shards of a server that is lost now, in words for users."""
        served = [shard for shard in self.status() if shard["primary"] == server]
        if not served:
            return "it served no shard"
        heirs = sorted({shard["standby"] for shard in served} - {0, server})
        count = f"its {len(served)} shards" if len(served) > 1 else "its shard"
        if not heirs:
            return f"no other server has {count}"
        names = " and ".join(f"server {heir}" for heir in heirs)
        rule = "no push is lost" if self.standbys.sync else "its last pushes may be lost"
        return f"{names} take{'s' if len(heirs) == 1 else ''} over {count}, {rule}"

    def _effect_table(self) -> dict[type[Any], Callable[[Any, float], None]]:
        return {
            PlannerOrder: self._give,
            Rerouted: self._reroute,
            Expelled: lambda effect, now: self._expel_server(effect.server, effect.why, now),
            Emptied: self._emptied,
            Stuck: self._stuck,
            RowsLost: self._end_without_rows,
            Say: lambda line, now: self._out.put(line),
            StatusEvent: lambda event, now: self._out.put(event),
        }

    def _give(self, order: PlannerOrder, now: float) -> None:
        self._order(order.server, order.message, partial(self._answered, order), now)

    def _emptied(self, effect: Emptied, now: float) -> None:
        member = self._members.all.get(effect.server)
        if member is not None:
            log.info("%s has no shard left and leaves", member.name)
            text = "left as asked, all shards have moved"
            self._out.send(member.peer, messages.Stop(False, text))

    def _expel_server(self, server: int, why: str, now: float) -> None:
        if (member := self._members.all.get(server)) is not None:
            self._expel(member, why, now)

    def _answered(self, order: PlannerOrder, answer: Answer, now: float) -> None:
        if isinstance(answer, ConnectionLost):
            return  # the loss itself is reported
        refused = isinstance(answer, SnailError)
        self.standbys.answered(
            order,
            None if isinstance(answer, SnailError) else answer,
            str(answer) if refused else "",
            now,
        )
        self._work(now)

    def _order(
        self, server: int, message: messages.Message, on_answer: OnAnswer, now: float
    ) -> None:
        member = self._members.all.get(server)
        if member is None:
            on_answer(ConnectionLost(f"server {server} is gone"), now)
        else:
            self._members.order(member, message, on_answer)

    def _reroute(self, effect: Rerouted, now: float) -> None:
        """Take a new route; `report` sends it."""
        self._members.take(effect.route)
        self._out.say(f"route epoch {effect.route.epoch}")
        self._rerouted = True

    def _followed(self, now: float) -> None:
        """Report the oldest route that a worker still uses: shards of a lost server are in reach
        again when all workers have a later one."""
        workers = [m for m in self._members.all.values() if m.role == "worker" and m.has_route]
        if self._members.route is not None:
            epoch = min([m.epoch for m in workers], default=self._members.route.epoch)
            self.standbys.followed(epoch, now)

    def _stuck(self, effect: Stuck, now: float) -> None:
        """A server cannot leave: it stays, and who asked for that gets the reason. If no server is
        to stay, nothing can be moved anywhere: the cluster ends, and saves its model first."""
        member = self._members.all.get(effect.server)
        if member is None:
            return
        member.stays()
        drains = self._drains.get(effect.server)
        if not drains and all(m is member or m.leaving for m in self._members.nodes("server")):
            self._all_servers_leave(
                f"{member.name} was asked to leave, and its rows would go with it: {effect.why}",
                now,
            )
            return
        text = f"{member.name} cannot leave: {effect.why}"
        log.error("%s", text)
        name = member.short_name
        self._out.happened("warning", name, f"{name} cannot leave: {effect.why}")
        self._answer_drains(effect.server, ClusterError(text))

    def _answer_drains(self, number: int, error: SnailError | None) -> None:
        for call in self._drains.pop(number, []):
            self._out.reply(call, error or messages.Ok())

    def _end_without_rows(self, effect: RowsLost, now: float) -> None:
        self._rows_lost(
            f"{effect.why}. Its own log may say more; "
            + (
                f"no other server has all of {shards_text(effect.shards)}"
                if self.standbys.replicated
                else "replication is 'none', so its rows are gone with it"
            )
        )
