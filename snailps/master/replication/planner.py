"""Decides which server has which shard and its standby, and what to do when that changes.

    form, join, leave, lost, answered, backed, unbacked, yielded, tick          an event
        -> the shards concerned: `ShardActions` takes the step that follows from it
        -> `_plan`: each shard that lacks something gets its next step        after every event
    effects() -> PlannerOrder, Rerouted, Emptied, Stuck, Expelled, RowsLost, lines, events

    lost server         promote its standbys, then make the missing ones
    no standby          make one at the best server                              `best_for`
    leaving server      shift or swap each of its shards away, then Emptied or Stuck
    uneven servers      move one shard at a time to the least loaded             `uneven`

A standby is a shard of its own, in another server, that follows its primary. A shard moves by a
*shift*: its standby fills a standby of its own, is promoted, and the previous primary goes; or by a
*swap*: primary and standby change places. It has a standby all the time; without replication one
for the move alone (docs/design/moving-shards.md).

Owns what is wanted of each shard. `placement.py` has what is, `balance.py` which server is best,
`actions.py` how a step is done, `pending_orders.py` what is waited for. Must not know connections
or time: `now` is an argument.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

from snailps.dataclass import replace
from snailps.master.phases import Step
from snailps.master.replication.actions import ShardActions
from snailps.master.replication.balance import Balance
from snailps.master.replication.effects import Emptied, Expelled, RowsLost, Stuck
from snailps.master.replication.pending_orders import PlannerOrder
from snailps.master.replication.placed_shard import STILL, Copy, Move, PlacedShard, Server
from snailps.master.replication.placement import Placement
from snailps.master.replication.placement_record import PlacementRecord
from snailps.master.replication.redundancy import Redundancy
from snailps.node.effects import Effect, EffectQueue
from snailps.node.limits import ORDER_S, SERVE_S, STALL_S, YIELD_S_MAX
from snailps.store.route import Route
from snailps.transport import messages

log = logging.getLogger(__name__)

FAILURES_MAX = 5
"""Standbys of a shard that may fail in succession before a drain is given up."""


class ReplicationPlanner:
    """The plan for the shards of a formed cluster."""

    def __init__(
        self,
        *,
        replicated: bool,  # every shard is to have a standby
        sync: bool,  # pushes wait for the standby
        # declarations with numbers, as `HostStandby` takes them
        tables: Callable[[], list[Any]] = list,
        # seconds that a primary may try to hand over; then it serves on, and the move is repeated
        yield_s: float = YIELD_S_MAX,
    ) -> None:
        self.replicated, self.sync, self._yield_s = replicated, sync, yield_s
        self.held = False
        """Rows are being restored or saved: nothing is copied or moved. Standbys are promoted all
        the same, as a shard without a primary would stop the job."""
        self.placement = Placement()
        self._index = self.placement.index
        self._balance = Balance(self.placement, copies=2 if replicated else 1)
        self._out = EffectQueue()
        self.redundancy = Redundancy(self.placement, self._out)
        """Times without standby, and metrics of losses and moves."""
        self._actions = ShardActions(
            self.placement, self.redundancy, self._out, tables, yield_s,
            replicated=replicated, sync=sync,
        )  # fmt: skip
        self._record = PlacementRecord(self.placement)
        self._over = False  # rows are lost: there is nothing left to plan
        # `tick` plans only where something may have changed: the placement's version, or `held`,
        # at the last plan; and when a server that failed may be asked again.
        self._planned: tuple[int, bool] = (-1, False)
        self._again_at = 0.0
        # Version at which nothing was uneven; that holds until then unless something changes.
        self._even: tuple[int, float] = (-1, 0.0)

    # --- what others ask -----------------------------------------------------------------------

    def effects(self) -> list[Effect]:
        """Take the effects since the last call, in order."""
        return self._out.take()

    def primary_of(self, shard: int) -> int:
        """The server that serves a shard; 0 while it changes over."""
        planned = self.placement.shards[shard]
        return 0 if planned.step else planned.primary

    def shards_of(self, server: int) -> list[int]:
        return self._index.shards_of(server)

    @property
    def route(self) -> Route | None:
        """As published last; None before the cluster is formed."""
        return self._actions.route

    @property
    def count(self) -> int:
        return len(self.placement.shards)

    @property
    def redundant(self) -> bool:
        return self.placement.is_redundant

    @property
    def moving(self) -> bool:
        return bool(self._index.changing)

    def status(self) -> list[dict[str, Any]]:
        """The shards, each with primary and standby; standby 0: none."""
        return [
            {
                "shard": s.number,
                "primary": s.primary,
                "standby": s.standby.server if s.standby else 0,
                "state": s.step.value or (s.standby.state if s.standby else "none"),
                "seeded": s.standby.seeded if s.standby else 0.0,
            }
            for s in self.placement.shards
        ]

    def snapshot(self) -> dict[str, Any]:
        """State of all shards for a master that takes over; values for JSON."""
        return self._record.snapshot(self._actions.epoch, self._actions.next_copy)

    def changes(self) -> dict[str, Any]:
        """Changes since the last call, for `with_changes`; empty: none. The journal must have them
        before the effects are performed: a master that takes over then knows of every order that a
        server may have received."""
        return self._record.changes(self._actions.epoch, self._actions.next_copy)

    # --- events: membership ------------------------------------------------------------------

    def restore(
        self,
        snapshot: dict[str, Any],
        route: Route,
        hosts: dict[int, str],
        now: float,
        missed: Collection[int] = (),
    ) -> None:
        """Continue from another master's snapshot, whose orders may have been executed or not.

        Every order that may be half done is settled first: incomplete standbys are dropped, a shard
        that was yielding serves again, one whose promotion was ordered is promoted. Servers repeat
        what they reported meanwhile: `backed`, `unbacked`. Those that do not return (`missed`) are
        `lost` afterwards. Until then `held` is set and nothing moves: a standby that would make
        room for a new one may be the only copy of a shard.
        """
        self.held = True
        self._actions.route, self._actions.epoch = route, int(snapshot["epoch"])
        self._actions.next_copy = int(snapshot["copy"])
        shards = [PlacedShard.of(number, saved) for number, saved in enumerate(snapshot["shards"])]
        # The other master may have died between noting that a server is gone and acting on it.
        struck = {n for s in shards for n in s.holders} - hosts.keys()
        leaving = set(snapshot["leaving"])
        here = [Server(n, host, leaving=n in leaving) for n, host in hosts.items()]
        self.placement.begin([*here, *(Server(n, "") for n in sorted(struck))], shards)
        self.redundancy.was_full = self.redundant  # and that master has reported it
        gone = {*struck, *missed}
        for shard in self.placement.shards:
            changes_over = shard.step in (Step.YIELDING, Step.SWAPPING)
            if changes_over and shard.backed and shard.primary in gone:
                # The primary is lost: the standby, which has all rows, is promoted.
                self.placement.step(shard, "stays")
        halfway = [
            shard
            for shard in self.placement.shards
            if shard.standby is not None and (shard.step or shard.standby.state != "ready")
        ]
        promoting = [shard for shard in self.placement.shards if shard.step is Step.PROMOTING]
        dropped = {(shard.standby.server, shard.number) for shard in halfway if shard.standby}
        for number in hosts:
            complete = [shard for shard in self.shards_of(number) if (number, shard) not in dropped]
            self._actions.order(number, messages.KeepShards(complete), now)
        for shard in halfway:
            assert shard.standby is not None
            self.placement.seed(shard, shard.standby)  # its primary may know of it: `Alone` follows
            self._actions.standby_gone(shard, now)
        for shard in self.placement.shards:
            if shard.standby is None and shard not in halfway:
                # Its primary may not know that, and would acknowledge nothing.
                self._actions.order(shard.primary, messages.Alone(shard.number), now)
            if shard in promoting:
                self._actions.order_promotion(shard, now)
        for number in sorted(struck):
            self.lost(number, now, f"server {number} is lost")
        self._actions.publish_route()
        self._plan(now)

    def form(self, route: Route, hosts: dict[int, str], now: float) -> None:
        """The cluster is complete: these servers, these primaries."""
        self._actions.route, self._actions.epoch = route, route.epoch
        servers = [Server(number, host) for number, host in hosts.items()]
        self.placement.begin(
            servers, [PlacedShard(number, address) for number, address in enumerate(route.shards)]
        )
        self._plan(now)

    def join(self, number: int, host: str, now: float) -> None:
        """A server has joined, with the route and without a shard."""
        self.placement.add(Server(number, host))
        self.redundancy.joined()
        self._plan(now)

    def leave(self, number: int, now: float) -> None:
        """A server is to leave: its shards move; `Emptied` or `Stuck` follows."""
        self.placement.leave(number, True)
        self._plan(now)

    def lost(self, number: int, now: float, why: str = "") -> None:
        """A server is lost; its number is not used again. Its standbys are promoted at once, and
        copies for moves end: missing standbys come first."""
        if not self.placement.remove(number):
            return
        self._actions.orders.forget_server(number)
        gone: list[int] = []  # shards without another copy
        hurt, down = bool(self._index.shards_of(number)), []
        for moved in sorted(self._index.going):
            shard = self.placement.shards[moved]
            move = shard.move
            if move.goal == number or (not shard.step and (hurt or move.source == number)):
                self.placement.aim(shard, STILL)
            elif move.target == number:  # a swap under way ends; the copy after it is not made
                self.placement.aim(shard, replace(move, target=0))
        for number_held in self._index.shards_of(number):
            shard = self.placement.shards[number_held]
            self.placement.lost(shard, number)
            if self._actions.drop_move_with(shard, number, now):
                continue
            if shard.primary == number:
                down.append(shard)
                if not self._actions.stand_in(shard, now):
                    gone.append(shard.number)
            elif shard.standby is not None and shard.standby.server == number:
                self._actions.standby_gone(shard, now)
        if gone:
            self._over = True
            self._out.put(RowsLost(number, tuple(gone), why))
            return
        if down:
            self.redundancy.metrics.failovers += 1
            # Before the promotions are answered: a standby lets requests wait until it is promoted,
            # so clients connect meanwhile.
            self._actions.publish_route()
            assert self.route is not None
            for shard in down:
                self.redundancy.out_of_reach(shard, self.route.epoch, now)
        if hurt:
            self._actions.hurry(now)
        self._plan(now)

    # --- events: reports of servers --------------------------------------------------------------

    def answered(
        self, order: PlannerOrder, answer: messages.Message | None, error: str, now: float
    ) -> None:
        """A server has executed an order, or refuses it with a reason."""
        if self._actions.orders.answered(order, answer, error, now):
            self._plan(now)

    def backed(self, server: int, note: messages.Backed, now: float) -> None:
        """A copy has all rows of its source: of a primary, or, in a move, of a standby."""
        shard, copy = self._of_note(server, note)
        if shard is None or copy is None:
            return
        self.placement.complete(shard, copy)
        log.debug("shard %d: server %d has all of it", shard.number, copy.server)
        if shard.step is Step.SWAPPING and copy is shard.next:
            self.placement.yielded(shard)
            self._actions.promote(shard, now)
        self._plan(now)

    def unbacked(self, server: int, note: messages.Unbacked, now: float) -> None:
        """A primary cannot reach its standby any more, or a standby its own: the copy is given up,
        as it misses what comes now."""
        shard, copy = self._of_note(server, note)
        if shard is None or copy is None:
            return
        self._actions.give_up(shard, copy, f"server {server} cannot reach it: {note.text}", now)
        self._plan(now)

    def yielded(self, server: int, note: messages.Yielded, now: float) -> None:
        """A primary has handed over all that it acknowledged, or reports why it could not."""
        if not 0 <= note.shard < self.count:
            return
        shard = self.placement.shards[note.shard]
        if shard.primary != server or shard.step not in (Step.YIELDING, Step.SWAPPING):
            return
        self._actions.orders.forget_shard(shard.number, messages.Yield)
        if note.text or shard.standby is None:
            self._actions.stay(shard, note.text, now)
        elif shard.step is Step.SWAPPING:
            self._actions.resume_as_standby(shard, now)
        elif self.replicated and shard.next is None and not shard.move.goal:
            self._actions.serve_again(shard, now)  # the copy that was to become the standby is lost
        else:
            self.placement.yielded(shard)
            self._actions.promote(shard, now)
        self._plan(now)

    def seeded(self, server: int, shard: int, share: float, now: float) -> None:
        """A primary reports the share of a shard that its standby has."""
        if not 0 <= shard < self.count:
            return
        filling = self.placement.shards[shard].filling
        if filling is None or filling[0] != server:
            return
        copy = filling[1]
        if copy.state == "seeding" and share > copy.seeded:
            self.placement.progressed(copy, now, share)

    def followed(self, epoch: int, now: float) -> None:
        """All workers have the route of this epoch, and reach its shards."""
        self.redundancy.followed(epoch, now)

    def stood_still(self, seconds: float) -> None:
        self._actions.orders.stood_still(seconds)
        self.placement.stood_still(seconds)

    def tick(self, now: float) -> None:
        """Give up servers and copies that are late, and plan what can be tried again."""
        for server, order in self._actions.orders.late(now).items():
            why = f"it has not answered {type(order.message).__name__} for {ORDER_S:.0f} s"
            self._out.put(Expelled(server, why))
        for number in sorted(self._index.unready | self._index.going):
            shard = self.placement.shards[number]
            copy = filling[1] if (filling := shard.filling) is not None else None
            limit_s = self._yield_s if shard.step is Step.SWAPPING else STALL_S
            if copy and copy.state == "seeding" and now - copy.moved_at > limit_s:
                self._actions.give_up(shard, copy, f"nothing was copied for {limit_s:.0f} s", now)
            # A new primary serves once its own standby has everything. It is served without that
            # one rather than not at all.
            awaited = shard.next if shard.step is Step.PROMOTING else None
            if awaited and now - awaited.moved_at > SERVE_S:
                why = f"server {shard.primary} did not begin to serve in {SERVE_S:.0f} s"
                self._actions.give_up(shard, awaited, why, now)
        if self._planned != (self.placement.version, self.held) or now >= self._again_at:
            self._plan(now)

    # --- the plan --------------------------------------------------------------------------------

    def _plan(self, now: float) -> None:
        """Begin what can be begun, one step a shard; every event ends here.

        In this order: standbys that are missing, moves away from leaving servers, then (if every
        standby is complete) balance; at last one change-over. A step that cannot begin, because a
        server copies another shard or failed just now, is left to the next event or tick.
        """
        if not self.placement.shards or self._over:
            return
        if not self.held:
            for number in self.placement.restless(self.replicated):
                shard = self.placement.shards[number]
                if not shard.step:
                    self._plan_shard(shard, now)
            if not self._index.unready:
                self._spread(now)
            self._begin_change(now)
        for number in self.placement.take_emptied():
            self._out.put(Emptied(number))
        if self.replicated:
            self.redundancy.check(now)
        self._planned = (self.placement.version, self.held)
        self._again_at = self._balance.again_at(now)

    def _plan_shard(self, shard: PlacedShard, now: float) -> None:
        """Make what one shard lacks: a standby, a move away from a leaving server."""
        leaving, copy = self.placement.leaving, shard.standby
        if shard.primary in leaving and not shard.next:
            staying = len(self.placement.servers) - len(leaving)
            if not staying or shard.failures >= FAILURES_MAX:
                why = "no other server can take its shards"
                if staying:
                    failed = f"{FAILURES_MAX} standbys of shard {shard.number} failed"
                    why = f"{failed}, see the master's log"
                self._stick(shard, shard.primary, why)
                return
        if (
            copy is not None
            and copy.server in leaving
            and not shard.next
            and shard.failures >= FAILURES_MAX
        ):  # it never changed places with its primary
            why = f"shard {shard.number} failed to move {FAILURES_MAX} times, see the master's log"
            self._stick(shard, copy.server, why)
            return
        if not self.replicated:
            self._plan_unreplicated(shard, now)
        elif copy is None:
            self._make_somewhere(shard, now)
        elif copy.state == "ready":
            self._plan_move(shard, copy, now)
        elif copy.server in leaving:
            target = self._balance.best_for(shard, now)
            if target and self._index.has_room(shard.primary, target):
                self._actions.replace_standby(shard, target, now)

    def _stick(self, shard: PlacedShard, server: int, why: str) -> None:
        """Report that a server cannot leave; it stays until it is asked again."""
        self.placement.stuck(shard, server)
        self._out.put(Stuck(server, why))

    def _plan_unreplicated(self, shard: PlacedShard, now: float) -> None:
        """Without replication: make a standby for a move, and drop any that is for none."""
        leaving, copy = self.placement.leaving, shard.standby
        if shard.move.goal in leaving:
            self.placement.aim(shard, replace(shard.move, goal=0))
        if shard.primary in leaving and not shard.move.goal:
            if copy is None or copy.server in leaving:
                goal = self._balance.best_for(shard, now)
                self.placement.aim(shard, replace(shard.move, goal=goal))
            elif self.placement.servers[copy.server].again_at <= now:
                self.placement.aim(shard, replace(shard.move, goal=copy.server))
        goal = shard.move.goal
        if copy is None:
            if goal and self._index.has_room(shard.primary, goal):
                self._actions.make_copy(shard, goal, now)
        elif copy.server != goal:
            self._actions.replace_standby(shard, 0, now)

    def _plan_move(self, shard: PlacedShard, copy: Copy, now: float) -> None:
        """Begin or correct the move of a shard whose standby is complete.

        If the primary is to go, a copy is made that follows the standby (a shift). If the standby
        is to go, they swap, after which it is the primary that goes. What was wanted before is
        dropped where it no longer fits: servers leave and are lost while a move is under way.
        """
        leaving = self.placement.leaving
        if shard.next is not None:
            if shard.next.server in leaving and shard.next.state != "ready":
                self._actions.drop_next(shard, now)
            return
        goal, source, target = shard.move.goal, shard.move.source, shard.move.target
        if target in leaving or goal in leaving:
            goal = target = 0
        if shard.primary in leaving or copy.server in leaving:
            source = shard.primary if shard.primary in leaving else copy.server
        elif source not in (shard.primary, copy.server) or not target:
            source = target = 0
        if goal != (target if source == shard.primary else copy.server):
            goal = 0
        receiver = (target or self._balance.best_for(shard, now)) if source else 0
        # One server remains: its copy becomes the primary, and the shard is left without a standby.
        alone = not receiver and len(self.placement.servers) - len(leaving) == 1
        if receiver and source == copy.server:
            goal = copy.server  # a swap; then it is the primary that goes
        elif alone and source == shard.primary:
            goal = copy.server
        if shard.move != (move := Move(goal, source, target)):
            self.placement.aim(shard, move)
        if receiver and source == shard.primary:
            if self._index.has_room(copy.server, receiver):
                self._actions.make_copy(shard, receiver, now)
        elif alone and source == copy.server and not self._index.served(copy.server):
            self._actions.replace_standby(shard, 0, now)

    def _make_somewhere(self, shard: PlacedShard, now: float) -> None:
        """Make the standby that a shard lacks, if source and target may begin a copy now."""
        if self._index.has_room(shard.primary):
            target = self._balance.best_for(shard, now)
            if target and self._index.has_room(shard.primary, target):
                self._actions.make_copy(shard, target, now)

    def _begin_change(self, now: float) -> None:
        """Change over a shard whose copies are complete; one at a time, so that a pause delays the
        requests to one shard only."""
        if self.moving:
            return
        for number in sorted(self._index.going):
            shard = self.placement.shards[number]
            copy, next_copy = shard.standby, shard.next
            if copy is None or copy.state != "ready":
                continue
            if next_copy.state == "ready" if next_copy else shard.move.goal == copy.server:
                receiver = next_copy or copy
                if self.placement.servers[receiver.server].again_at <= now:
                    self._actions.change_over(shard, now)
                    return

    def _spread(self, now: float) -> None:
        """Move shards to less loaded servers, one at a time, and only while every shard has its
        standby: balance is never worth a second loss."""
        if self._index.going:
            return
        if self.replicated and len(self.placement.servers) > 1 and not self.redundant:
            return
        version, until = self._even
        if version == self.placement.version and now < until:
            return
        move_wanted = self._balance.uneven(now)
        if move_wanted is None:
            self._even = (self.placement.version, self._balance.again_at(now))
            return
        shard, server, as_primary = move_wanted
        if as_primary:
            log.info("shard %d is to move from server %d to server %d, which has fewer",
                     shard.number, shard.primary, server)  # fmt: skip
            is_new = self.replicated and not (shard.standby and shard.standby.server == server)
            move = Move(server, shard.primary, server) if is_new else Move(server)
        else:
            log.info("the standby of shard %d is to move to server %d, which has fewer",
                     shard.number, server)  # fmt: skip
            assert shard.standby is not None
            move = Move(0, shard.standby.server, server)
        self.placement.aim(shard, move)
        self._plan_shard(shard, now)

    def _of_note(
        self, server: int, note: messages.Backed | messages.Unbacked
    ) -> tuple[PlacedShard | None, Copy | None]:
        """The shard and the copy of a note, if it comes from that copy's source; (None, None) for a
        late note about a copy that was given up."""
        if 0 <= note.shard < self.count:
            shard = self.placement.shards[note.shard]
            next_source = shard.standby.server if shard.standby is not None else shard.primary
            for source, copy in ((shard.primary, shard.standby), (next_source, shard.next)):
                if copy is not None and source == server and copy.number == note.copy:
                    return shard, copy
        return None, None
