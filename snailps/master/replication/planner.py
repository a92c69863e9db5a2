"""Which server has which shard and which its standby, and what to do when that changes.

    form, join, leave, lost, answered, backed, unbacked, yielded, tick
        -> ReplicationPlanner -> effects(): Order (to a server), Rerouted, Emptied, Stuck,
           Expelled, RowsLost, lines and events for users

A standby is a shard of its own, in another server, that follows its primary. A lost server's
standbys are promoted. A shard moves by a *shift*: its standby fills a standby of its own, is
promoted, and the previous primary goes; or by a *swap*: primary and standby change places. It has a
standby all the time (docs/design/moving-shards.md); without replication one for the move alone.

Sans-IO: time is an argument, and it knows no connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

from snailps.dataclass import dataclass, field, replace
from snailps.master.effects import Rerouted, StatusEvent
from snailps.master.phases import Step
from snailps.master.replication.effects import Emptied, Expelled, RowsLost, Stuck
from snailps.master.replication.pending_orders import OnAnswer, Order, PendingOrders
from snailps.master.replication.placement import STILL, Copy, Move, Placement, Server, Shard
from snailps.master.replication.placement_record import PlacementRecord
from snailps.master.replication.redundancy import Redundancy
from snailps.node.effects import Effect, EffectQueue
from snailps.node.limits import ORDER_S, SERVE_S, STALL_S, YIELD_S_MAX
from snailps.node.status import EVENT_REPORTED
from snailps.store.route import Route, ShardAddress
from snailps.transport import messages

log = logging.getLogger(__name__)

AGAIN_S = 2.0
"""Pause after a standby failed at a server, times its failures so far, before the next one."""
FAILURES_MAX = 5
"""Standbys of a shard that fail in succession until a drain is given up."""


@dataclass(slots=True)
class ReplicationPlanner:
    """Shards of a formed cluster, their primaries and standbys."""

    replicated: bool  # every shard is to have a standby
    sync: bool  # pushes wait for the standby
    tables: Callable[[], list[Any]] = list  # declarations with numbers, as `HostStandby` takes them
    # seconds that a primary may try to hand over; then it serves on, and the move is tried again
    yield_s: float = YIELD_S_MAX
    route: Route | None = None
    # rows are being restored or saved: nothing is copied or moved; standbys are promoted all the
    # same
    held: bool = False
    # times without standby, and metrics of losses and moves
    redundancy: Redundancy = field(init=False)
    placement: Placement = field(default_factory=Placement)
    _orders: PendingOrders = field(default_factory=PendingOrders)
    _out: EffectQueue = field(default_factory=EffectQueue)
    _next_copy: int = 1
    _epoch: int = 0
    _over: bool = False  # rows are lost: there is nothing left to plan
    # The placement's version at the last plan, and when a server that it left out can be asked.
    _planned: tuple[int, bool] = (-1, False)
    _again_at: float = 0.0
    _even: tuple[int, float] = (-1, 0.0)  # nothing was uneven, until then unless something changes
    _record: PlacementRecord = field(init=False)

    def __post_init__(self) -> None:
        self.placement.copies = 2 if self.replicated else 1
        self.redundancy = Redundancy(self.placement, self._out)
        self._record = PlacementRecord(self.placement)

    # --- what others ask -----------------------------------------------------------------------

    def effects(self) -> list[Effect]:
        """Take the effects since the last call, in order."""
        return self._out.take()

    def primary_of(self, shard: int) -> int:
        """The server that serves a shard; 0 while it changes over."""
        one = self.placement.shards[shard]
        return 0 if one.step else one.primary

    def shards_of(self, server: int) -> list[int]:
        return self.placement.shards_of(server)

    @property
    def count(self) -> int:
        return len(self.placement.shards)

    @property
    def redundant(self) -> bool:
        return self.placement.redundant

    @property
    def moving(self) -> bool:
        return bool(self.placement.changing)

    def status(self) -> list[dict[str, Any]]:
        return self.placement.status()

    def snapshot(self) -> dict[str, Any]:
        """State of the shards for another master, JSON-serialisable."""
        return self._record.snapshot(self._epoch, self._next_copy)

    def changes(self) -> dict[str, Any]:
        """Changes since the last call, for `with_changes`; empty: none. To be kept before the
        effects are performed: another master then knows of every order that a server may have
        got."""
        return self._record.changes(self._epoch, self._next_copy)

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
        Servers repeat what they reported meanwhile: `backed`, `unbacked`. Those that do not return
        (`missed`) are `lost` afterwards. Until then `held` is set and nothing moves: a standby that
        made room for a new one may be the only copy of a shard."""
        self.held = True
        self.route, self._epoch = route, int(snapshot["epoch"])
        self._next_copy = int(snapshot["copy"])
        shards = [Shard.of(at, one) for at, one in enumerate(snapshot["shards"])]
        # The other master may have removed a server, and nothing more.
        struck = {n for s in shards for n in self.placement.holders(s)} - hosts.keys()
        leaving = set(snapshot["leaving"])
        known = [Server(n, host, leaving=n in leaving) for n, host in hosts.items()]
        self.placement.begin([*known, *(Server(n, "") for n in sorted(struck))], shards)
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
            have = [at for at in self.shards_of(number) if (number, at) not in dropped]
            self._order(number, messages.KeepShards(have), now)
        for shard in halfway:
            assert shard.standby is not None
            shard.standby.state = "seeding"  # its primary may know of it, and is to forget it
            self.placement.changed(shard)
            self._without_standby(shard, now)
        for shard in self.placement.shards:
            if shard.standby is None and shard not in halfway:
                # Its primary may not know yet, and would acknowledge nothing.
                self._order(shard.primary, messages.Alone(shard.number), now)
            if shard in promoting:
                self._ask_promote(shard, now)
        for number in sorted(struck):
            self.lost(number, now, f"server {number} is lost")
        self._publish()
        self._plan(now)

    def form(self, route: Route, hosts: dict[int, str], now: float) -> None:
        """The cluster is complete: these servers, these primaries."""
        self.route, self._epoch = route, route.epoch
        servers = [Server(number, host) for number, host in hosts.items()]
        self.placement.begin(servers, [Shard(at, one) for at, one in enumerate(route.shards)])
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
        """A server is lost; its number is not used again."""
        if not self.placement.remove(number):
            return
        self._orders.forget_server(number)
        gone: list[int] = []
        hurt, down = bool(self.placement.shards_of(number)), []
        for at in sorted(self.placement.going):
            shard = self.placement.shards[at]
            # Replacing lost copies comes before moves.
            move = shard.move
            if move.goal == number or (not shard.step and (hurt or move.source == number)):
                self.placement.aim(shard, STILL)
            elif move.target == number:  # a swap under way ends; the copy after it is not made
                self.placement.aim(shard, replace(move, target=0))
        for at in self.placement.shards_of(number):
            shard = self.placement.shards[at]
            if shard.previous is not None and shard.previous.server == number:
                shard.previous = None
            self.placement.changed(shard)
            if self._lost_behind(shard, number, now):
                continue
            if shard.primary == number:
                down.append(shard)
                if not self._stand_in(shard, now):
                    gone.append(shard.number)
            elif shard.standby is not None and shard.standby.server == number:
                self._without_standby(shard, now)
        if gone:
            self._over = True
            self._out.put(RowsLost(number, tuple(gone), why))
            return
        if down:
            self.redundancy.metrics.failovers += 1
            self._publish()  # a standby lets requests wait until it is promoted
            assert self.route is not None
            for shard in down:
                if shard.down_at is not None:
                    self.redundancy.out_of_reach(shard, self.route.epoch, shard.down_at)
                    shard.down_at = None
        if hurt:
            self._hurry(now)
        self._plan(now)

    # --- events: reports of servers --------------------------------------------------------------

    def answered(
        self, order: Order, answer: messages.Message | None, error: str, now: float
    ) -> None:
        """A server has executed an order, or refuses it with a reason."""
        if self._orders.answered(order, answer, error, now):
            self._plan(now)

    def backed(self, server: int, note: messages.Backed, now: float) -> None:
        """The standby of a primary, or of a standby, is complete."""
        shard, copy = self._of_note(server, note)
        if shard is None or copy is None:
            return
        copy.state, copy.seeded = "ready", 1.0
        shard.failures = 0
        self.placement.changed(shard)
        if (there := self.placement.servers.get(copy.server)) is not None:
            there.failures = 0
        log.debug("shard %d: server %d has all of it", shard.number, copy.server)
        if shard.step is Step.SWAPPING and copy is shard.next:
            shard.previous = shard.address
            self._promote(shard, now)
        self._plan(now)

    def unbacked(self, server: int, note: messages.Unbacked, now: float) -> None:
        """A primary cannot reach its standby any more, or a standby its own."""
        shard, copy = self._of_note(server, note)
        if shard is None or copy is None:
            return
        self._give_up(shard, copy, f"server {server} cannot reach it: {note.text}", now)
        self._plan(now)

    def yielded(self, server: int, note: messages.Yielded, now: float) -> None:
        """A primary has handed over all that it acknowledged, or reports why it could not."""
        if not 0 <= note.shard < self.count:
            return
        shard = self.placement.shards[note.shard]
        if shard.primary != server or shard.step not in (Step.YIELDING, Step.SWAPPING):
            return
        self._orders.forget_shard(shard.number, messages.Yield)
        if note.text or shard.standby is None:
            self._stay(shard, note.text, now)
        elif shard.step is Step.SWAPPING:
            self._resume(shard, now)
        elif self.replicated and shard.next is None and not shard.move.goal:
            self._go_on(shard, now)  # the copy that was to become the standby is lost
        else:
            shard.previous = shard.address
            self._promote(shard, now)
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
            copy.seeded, copy.moved_at = share, now

    def followed(self, epoch: int, now: float) -> None:
        """All workers have this route and reach its shards."""
        self.redundancy.followed(epoch, now)

    def stood_still(self, seconds: float) -> None:
        self._orders.stood_still(seconds)
        for shard in self.placement.shards:
            for copy in (shard.standby, shard.next):
                if copy is not None:
                    copy.moved_at += seconds

    def tick(self, now: float) -> None:
        """Handle late servers, and what can be tried again."""
        for server, order in self._orders.late(now).items():
            why = f"it has not answered {type(order.message).__name__} for {ORDER_S:.0f} s"
            self._out.put(Expelled(server, why))
        for number in sorted(self.placement.unready | self.placement.going):
            shard = self.placement.shards[number]
            copy = filling[1] if (filling := shard.filling) is not None else None
            limit_s = self.yield_s if shard.step is Step.SWAPPING else STALL_S
            if copy and copy.state == "seeding" and now - copy.moved_at > limit_s:
                self._give_up(shard, copy, f"nothing was copied for {limit_s:.0f} s", now)
            behind = shard.next if shard.step is Step.PROMOTING else None
            if behind and now - behind.moved_at > SERVE_S:
                why = f"server {shard.primary} did not begin to serve in {SERVE_S:.0f} s"
                self._give_up(shard, behind, why, now)
        if self._planned != (self.placement.version, self.held) or now >= self._again_at:
            self._plan(now)

    # --- what is done ---------------------------------------------------------------------------

    def _stand_in(self, shard: Shard, now: float) -> bool:
        """Let the standby of a lost primary serve; False if there is none."""
        copy = shard.standby
        shard.down_at = now
        if shard.step is Step.PROMOTING and shard.previous is not None:
            self._take_back(shard, now)
            return True
        self._orders.forget_shard(shard.number)
        if copy is None or copy.state != "ready" or copy.server not in self.placement.servers:
            return False
        self._drop_next(shard, now)
        self._promote(shard, now)
        return True

    def _lost_behind(self, shard: Shard, number: int, now: float) -> bool:
        """End a move in which a lost server took part, unless only the promotion is missing. True
        if nothing else is to be done: the server was to be the next standby."""
        copy = shard.next
        if copy is None or number == shard.primary:
            return False
        if copy.server == number or shard.step is not Step.PROMOTING:
            self._drop_next(shard, now)
        return copy.server == number

    def _drop_next(self, shard: Shard, now: float) -> None:
        """Drop a standby's own standby, or the copy that was to be the next standby."""
        copy, shard.next = shard.next, None
        if copy is None:
            return
        self.placement.changed(shard)
        whose = shard.standby.server if shard.standby is not None else shard.primary
        if whose in self.placement.servers and copy.state != "asked":
            self._order(whose, messages.Alone(shard.number), now)
        if copy.server in self.placement.servers and copy.server != shard.primary \
                and (shard.previous is None or copy.server != shard.previous.server):  # fmt: skip
            self._order(copy.server, messages.DropShard(shard.number), now)

    def _stay(self, shard: Shard, why: str, now: float) -> None:
        """A primary cannot yield: it serves on, and the move is tried again later."""
        log.warning("shard %d stays at server %d for now: %s", shard.number, shard.primary, why)
        self.placement.step(shard, "stays")
        self._put_off(shard.move.goal or (shard.next.server if shard.next else 0), now)
        self.placement.aim(shard, replace(shard.move, goal=0))

    def _resume(self, shard: Shard, now: float) -> None:
        """Make the yielded primary the standby of its standby, which is promoted."""
        assert shard.standby is not None
        copy = Copy(self._next_copy, shard.primary, "seeding", now)
        copy.host, copy.port = shard.address.host, shard.address.port
        self._next_copy += 1
        shard.next = copy
        self.placement.changed(shard)
        self._fill(shard, shard.standby.server, copy, now, resume=True)

    def _go_on(self, shard: Shard, now: float) -> None:
        """A primary that has yielded serves again, with the standby that it had."""
        self.placement.aim(shard, replace(shard.move, goal=0))
        self._ask_promote(shard, now)

    def _promote(self, shard: Shard, now: float) -> None:
        copy = shard.standby
        assert copy is not None
        shard.address = ShardAddress(copy.server, copy.host, copy.port)
        shard.standby = None
        if shard.move.goal == copy.server:
            self.placement.aim(shard, replace(shard.move, goal=0))
        self._ask_promote(shard, now)

    def _take_back(self, shard: Shard, now: float) -> None:
        """Return the shard to the server that has yielded: no member knows its successor yet."""
        assert shard.previous is not None
        self._orders.forget_shard(shard.number)
        copy, shard.next = shard.next, None
        if copy is not None and copy.server in self.placement.servers.keys() - {
            shard.previous.server
        }:
            self._order(copy.server, messages.DropShard(shard.number), now)
        shard.address, shard.previous = shard.previous, None
        self.placement.aim(shard, replace(shard.move, goal=0))
        self._order(shard.primary, messages.Alone(shard.number), now)
        self._ask_promote(shard, now)

    def _ask_promote(self, shard: Shard, now: float) -> None:
        self.placement.step(shard, "promoted")
        if shard.next is not None:
            shard.next.moved_at = now  # the promotion waits for it: `tick`
        self._epoch += 1

        def promoted(answer: messages.Message | None, error: str, now: float) -> None:
            if error:
                why = f"it cannot serve shard {shard.number}: {error}"
                self._out.put(Expelled(shard.primary, why))
                return
            previous, shard.previous = shard.previous, None
            swapped = previous is not None and shard.next is not None \
                and shard.next.server == previous.server  # fmt: skip
            if shard.next is not None:
                shard.standby, shard.next = shard.next, None
            if not swapped:
                self.placement.aim(shard, Move(shard.move.goal))
            elif previous is not None:
                # Its own stream still leads to its successor, and would hold its promotion up if
                # that one is lost.
                self._order(previous.server, messages.Alone(shard.number), now)
            self.placement.step(shard, "serves")
            if previous is None:
                log.info("shard %d: server %d serves it now", shard.number, shard.primary)
                self.redundancy.note_resumed(now)
            else:
                log.info(
                    "shard %d has moved from server %d to server %d",
                    shard.number, previous.server, shard.primary,
                )  # fmt: skip
                moved = f"shard {shard.number} moved from server {previous.server} to server"
                text = f"{moved} {shard.primary}"
                self._out.put(StatusEvent("moved", f"server {shard.primary}", text))
                if not swapped:
                    self.redundancy.metrics.moves += 1
                    self._order(previous.server, messages.DropShard(shard.number), now)
            self._publish()

        self._order(shard.primary, messages.Promote(shard.number, self._epoch), now, promoted)

    def _publish(self) -> None:
        """Make the route: a shard that changes over stays where it was until that is done."""
        assert self.route is not None
        shards = tuple(s.previous or s.address for s in self.placement.shards)
        if shards != self.route.shards or self._epoch > self.route.epoch:
            self._epoch = max(self._epoch, self.route.epoch + 1)
            self.route = Route(self._epoch, shards, self.route.owner)
            self._out.put(Rerouted(self.route))

    def _without_standby(self, shard: Shard, now: float) -> None:
        """A shard's standby is lost or given up: never promote it; its primary is alone."""
        copy, shard.standby = shard.standby, None
        self.placement.changed(shard)
        if shard.step in (Step.YIELDING, Step.SWAPPING):
            # It may have yielded by now: in either case it is ordered to serve.
            shard.previous = shard.address
            self._take_back(shard, now)
            return
        if not shard.step:
            self._orders.forget_shard(shard.number)
        # a server that is to serve again waits for it
        if copy is not None and copy.state != "asked":
            self._order(shard.primary, messages.Alone(shard.number), now)

    def _give_up(self, shard: Shard, copy: Copy, why: str, now: float) -> None:
        """Give up a standby that makes no progress; another one is made soon."""
        log.warning(
            "shard %d: its standby at server %d is given up: %s",
            shard.number,
            copy.server,
            why,
            extra=EVENT_REPORTED,
        )
        shard.failures += 1
        self.placement.aim(shard, STILL)
        if copy is shard.next:
            self._drop_next(shard, now)
            if shard.step is Step.SWAPPING and shard.standby is not None:
                self._put_off(shard.standby.server, now)  # so the swap is tried again later
                self._go_on(shard, now)
                return
            self._put_off(copy.server, now)
            if shard.step is Step.PROMOTING:  # it has no standby now
                self._hurry(now)
            return
        self._put_off(copy.server, now)
        self._drop_next(shard, now)
        if copy.server in self.placement.servers:
            self._order(copy.server, messages.DropShard(shard.number), now)
        self._without_standby(shard, now)
        self._hurry(now)

    def _put_off(self, server: int, now: float) -> None:
        there = self.placement.servers.get(server)
        if there is not None:
            there.failures += 1
            self.placement.put_off(server, now + AGAIN_S * min(there.failures, 10))

    def _make(self, shard: Shard, server: int, now: float) -> None:
        """Have a server host a standby, and the primary copy itself there."""
        copy = Copy(self._next_copy, server, "asked", now)
        self._next_copy += 1
        if shard.standby is None:
            shard.standby = copy
        else:
            shard.next = copy
        self.placement.changed(shard)

        def hosted(answer: messages.Message | None, error: str, now: float) -> None:
            if (filling := shard.filling) is None or filling[1] is not copy:
                return
            where = _endpoint(answer)
            if where is None:
                self._give_up(shard, copy, error or "it told no address", now)
                return
            copy.host, copy.port = where
            copy.state, copy.moved_at = "seeding", now
            self.placement.changed(shard)
            # A lost copy is replaced at full speed; a copy for a move gives way to the training.
            # Without replication every copy is for a move.
            copy.paced = not self.replicated or (
                self.redundancy.was_full and not self.redundancy.hurt
            )
            self._fill(shard, filling[0], copy, now)

        host = messages.HostStandby(shard.number, self.tables())
        self._order(server, host, now, hosted)

    def _fill(
        self, shard: Shard, server: int, copy: Copy, now: float, *, resume: bool = False
    ) -> None:
        """Have a server that has a shard copy it."""

        def backing(answer: messages.Message | None, error: str, now: float) -> None:
            if error and copy in (shard.standby, shard.next):
                self._give_up(shard, copy, f"server {server} refuses: {error}", now)

        self._order(server, self._back_up(shard, copy, resume), now, backing)

    def _back_up(self, shard: Shard, copy: Copy, resume: bool = False) -> messages.BackUp:
        return messages.BackUp(
            shard.number, copy.number, copy.host, copy.port, self.sync, copy.paced, resume
        )

    def _hurry(self, now: float) -> None:
        """After a loss all copies, also those under way, run at full speed until it is replaced."""
        self.redundancy.hurt = True
        for number in sorted(self.placement.going):
            shard = self.placement.shards[number]
            if not shard.step and shard.next is not None:
                self._drop_next(shard, now)
        for number in sorted(self.placement.unready):
            shard = self.placement.shards[number]
            copy = shard.standby
            if self.replicated and copy is not None and copy.paced and copy.state == "seeding":
                copy.paced = False
                self._order(shard.primary, self._back_up(shard, copy), now, lambda *_: None)

    def _replace_standby(self, shard: Shard, server: int, now: float) -> None:
        """Give up an incomplete standby for one at another server; 0: for none."""
        copy = shard.standby
        if copy is not None:
            if copy.server in self.placement.servers:
                self._order(copy.server, messages.DropShard(shard.number), now)
            self._without_standby(shard, now)
        if server:
            self._make(shard, server, now)

    def _change_over(self, shard: Shard, now: float) -> None:
        swaps = self.replicated and shard.next is None and shard.move.source != shard.primary
        self.placement.step(shard, "swaps" if swaps else "yields")

        def answered(answer: messages.Message | None, error: str, now: float) -> None:
            if error:
                self._stay(shard, error, now)

        self._order(shard.primary, messages.Yield(shard.number, self.yield_s, swaps), now, answered)

    # --- the plan --------------------------------------------------------------------------------

    def _plan(self, now: float) -> None:
        """Begin what can be begun, one step at a time; every event ends here."""
        if not self.placement.shards or self._over:
            return
        if not self.held:
            for at in self.placement.restless(self.replicated):
                shard = self.placement.shards[at]
                if not shard.step:
                    self._plan_shard(shard, now)
            if not self.placement.unready:
                self._spread(now)
            self._begin_change(now)
        for number in sorted(self.placement.leaving):
            server = self.placement.servers[number]
            if not server.emptied and not self.placement.load(number):
                server.emptied = True
                self._out.put(Emptied(number))
        if self.replicated:
            self.redundancy.look(now)
        self._planned = (self.placement.version, self.held)
        self._again_at = self.placement.again_at(now)

    def _plan_shard(self, shard: Shard, now: float) -> None:
        """Make what one shard lacks: a standby, a move away from a leaving server."""
        leaving, copy = self.placement.leaving, shard.standby
        if shard.primary in leaving and not shard.next:
            stay = len(self.placement.servers) - len(leaving)
            if not stay or shard.failures >= FAILURES_MAX:
                why = "no other server can take its shards"
                if stay:
                    why = f"{FAILURES_MAX} standbys of shard {shard.number} failed, see above"
                self._stick(shard, shard.primary, why)
                return
        if (
            copy is not None
            and copy.server in leaving
            and not shard.next
            and shard.failures >= FAILURES_MAX
        ):  # it never changed places with its primary
            why = f"shard {shard.number} failed to move {FAILURES_MAX} times, see above"
            self._stick(shard, copy.server, why)
            return
        if not self.replicated:
            self._plan_unreplicated(shard, now)
        elif copy is None:
            self._make_somewhere(shard, now)
        elif copy.state == "ready":
            self._plan_move(shard, copy, now)
        elif copy.server in leaving:
            target = self.placement.best_for(shard, now)
            if target and self.placement.has_room(shard.primary, target):
                self._replace_standby(shard, target, now)

    def _stick(self, shard: Shard, server: int, why: str) -> None:
        """Report that a server cannot leave; another request tries again."""
        shard.failures = 0
        self.placement.leave(server, False)
        self._out.put(Stuck(server, why))

    def _plan_unreplicated(self, shard: Shard, now: float) -> None:
        """Make a standby for a move, and for nothing else."""
        leaving, copy = self.placement.leaving, shard.standby
        if shard.move.goal in leaving:
            self.placement.aim(shard, replace(shard.move, goal=0))
        if shard.primary in leaving and not shard.move.goal:
            if copy is None or copy.server in leaving:
                goal = self.placement.best_for(shard, now)
                self.placement.aim(shard, replace(shard.move, goal=goal))
            elif self.placement.servers[copy.server].again_at <= now:
                self.placement.aim(shard, replace(shard.move, goal=copy.server))
        goal = shard.move.goal
        if copy is None:
            if goal and self.placement.has_room(shard.primary, goal):
                self._make(shard, goal, now)
        elif copy.server != goal:
            self._replace_standby(shard, 0, now)

    def _plan_move(self, shard: Shard, copy: Copy, now: float) -> None:
        """The next step of a move of a shard with a standby: a copy that follows the standby, if
        the primary is to go; a swap, if the standby is."""
        leaving = self.placement.leaving
        if shard.next is not None:
            if shard.next.server in leaving and shard.next.state != "ready":
                self._drop_next(shard, now)
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
        receiver = (target or self.placement.best_for(shard, now)) if source else 0
        # no other server can have it
        alone = not receiver and len(self.placement.servers) - len(leaving) == 1
        if receiver and source == copy.server:
            goal = copy.server  # a swap; then it is the primary that goes
        elif alone and source == shard.primary:
            goal = copy.server
        if shard.move != (move := Move(goal, source, target)):
            self.placement.aim(shard, move)
        if receiver and source == shard.primary:
            if self.placement.has_room(copy.server, receiver):
                self._make(shard, receiver, now)
        elif alone and source == copy.server and not self.placement.served(copy.server):
            self._replace_standby(shard, 0, now)

    def _make_somewhere(self, shard: Shard, now: float) -> None:
        """Make the standby that a shard lacks."""
        if self.placement.has_room(shard.primary):
            target = self.placement.best_for(shard, now)
            if target and self.placement.has_room(shard.primary, target):
                self._make(shard, target, now)

    def _begin_change(self, now: float) -> None:
        """Change one shard over at a time: the pause of each is its own."""
        if self.moving:
            return
        for number in sorted(self.placement.going):
            shard = self.placement.shards[number]
            copy, behind = shard.standby, shard.next
            if copy is None or copy.state != "ready":
                continue
            if behind.state == "ready" if behind else shard.move.goal == copy.server:
                then = behind or copy
                if self.placement.servers[then.server].again_at <= now:
                    self._change_over(shard, now)
                    return

    def _spread(self, now: float) -> None:
        """Move shards to less loaded servers, one at a time."""
        if self.placement.going:
            return
        if self.replicated and len(self.placement.servers) > 1 and not self.redundant:
            return
        version, until = self._even
        if version == self.placement.version and now < until:
            return
        found = self.placement.uneven(now)
        if found is None:
            self._even = (self.placement.version, self.placement.again_at(now))
            return
        shard, server, as_primary = found
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

    # --- orders ----------------------------------------------------------------------------------

    def _order(
        self, server: int, message: messages.Message, now: float, on_answer: OnAnswer | None = None
    ) -> None:
        self._out.put(self._orders.give(server, message, now, on_answer))

    def _of_note(
        self, server: int, note: messages.Backed | messages.Unbacked
    ) -> tuple[Shard | None, Copy | None]:
        """The shard and the copy of a note, if it comes from that copy's source."""
        if 0 <= note.shard < self.count:
            shard = self.placement.shards[note.shard]
            whose = shard.standby.server if shard.standby is not None else shard.primary
            for source, copy in ((shard.primary, shard.standby), (whose, shard.next)):
                if copy is not None and source == server and copy.number == note.copy:
                    return shard, copy
        return None, None


def _endpoint(answer: messages.Message | None) -> tuple[str, int] | None:
    """Endpoint of a standby, from its server's answer."""
    where = answer.data.get("endpoint") if isinstance(answer, messages.Report) else None
    if not isinstance(where, list) or len(where) != 2 or type(where[1]) is not int:
        return None
    return str(where[0]), where[1]
