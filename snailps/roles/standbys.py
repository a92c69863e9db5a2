"""Which server has which shard, which has its standby, and what to do when that changes.

    form, join, leave, lost, answered, backed, unbacked, yielded, tick -> Standbys -> effects():
        Order (to a server), Rerouted, Emptied, Stuck, Expelled, RowsLost

A standby is a shard of its own, in another server, that follows its primary.  A lost server's
standbys are promoted.  A shard moves by having a standby made where it is wanted and changing over
to it: so a drained server, one that joins and one that replaces a lost one are all served alike.
Sans-IO: events come in, what to do comes out, time is an argument.  It knows no connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from snailps.roles.limits import ORDER_S, STALL_S, YIELD_S_MAX
from snailps.roles.orders import OnAnswer, Orders
from snailps.roles.places import Copy, Places, Server, Shard
from snailps.roles.redundancy import Redundancy
from snailps.roles.standby_effects import (
    Effect,
    Emptied,
    Expelled,
    Order,
    Rerouted,
    RowsLost,
    Stuck,
)
from snailps.store.route import Route, ShardAddress
from snailps.transport import messages

log = logging.getLogger(__name__)

AGAIN_S = 2.0
"""How long a server is left alone that could not keep a standby, times its failures so far."""
FAILURES_MAX = 5
"""So many standbys of a shard have to fail, one after the other, until a drain is given up."""


@dataclass(slots=True)
class Standbys:
    """Shards of a formed cluster, their primaries and standbys.

    Attributes
    ----------
    replicated, sync : bool
        Every shard is to have a standby; pushes wait for it.
    route : Route or None
        The present one.
    tables : callable
        Declarations with numbers, as `HostStandby` takes them.
    yield_s : float
        How long a primary may try to hand over; then it goes on, and the move is tried again.
    held : bool
        Nothing is copied nor moved just now: rows are being read from files, or saved.  Lost
        servers are stood in for all the same.
    redundancy : Redundancy
        How long shards were without standby; figures of that, and of losses and moves.
    """

    replicated: bool
    sync: bool
    tables: Callable[[], list[Any]] = list
    yield_s: float = YIELD_S_MAX
    route: Route | None = None
    held: bool = False
    redundancy: Redundancy = field(init=False)
    _places: Places = field(default_factory=Places)
    _orders: Orders = field(default_factory=Orders)
    _effects: list[Effect] = field(default_factory=list)
    _next_copy: int = 1
    _epoch: int = 0
    _over: bool = False  # rows are lost: there is nothing left to plan
    # What the last plan was made of, and when one of the servers that it left out can be asked.
    _planned: tuple[int, bool] = (-1, False)
    _again_at: float = 0.0
    _even: tuple[int, float] = (-1, 0.0)  # nothing was uneven, until then unless something changes
    _told: tuple[int, int, list[int]] | None = None  # of what `changes` told last

    def __post_init__(self) -> None:
        self._places.copies = 2 if self.replicated else 1
        self.redundancy = Redundancy(self._places)

    # --- what others ask -----------------------------------------------------------------------

    def effects(self) -> list[Effect]:
        """What is to be done now, in order; each is told once."""
        found, self._effects = self._effects, []
        return found

    def primary_of(self, shard: int) -> int:
        """The server that serves a shard; 0 while it changes over."""
        one = self._places.shards[shard]
        return 0 if one.step else one.primary

    def shards_of(self, server: int) -> list[int]:
        """Shards that a server has as primary or standby, or that are on their way to it."""
        return self._places.shards_of(server)

    @property
    def count(self) -> int:
        """Number of shards."""
        return len(self._places.shards)

    @property
    def redundant(self) -> bool:
        """Whether every shard has a standby that has all of it."""
        return self._places.redundant

    @property
    def moving(self) -> bool:
        """Whether a shard is changing over."""
        return bool(self._places.changing)

    def status(self) -> list[dict[str, Any]]:
        """The shards as a picture; standby 0: none."""
        return [
            {
                "shard": s.number,
                "primary": s.primary,
                "standby": s.standby.server if s.standby else 0,
                "state": s.step or (s.standby.state if s.standby else "none"),
                "seeded": s.standby.seeded if s.standby else 0.0,
            }
            for s in self._places.shards
        ]

    def picture(self) -> dict[str, Any]:
        """All that a master has to know who goes on where this one has come to, for JSON."""
        return {
            "epoch": self._epoch,
            "copy": self._next_copy,
            "leaving": sorted(self._places.leaving),
            "shards": [shard.picture() for shard in self._places.shards],
        }

    def changes(self) -> dict[str, Any]:
        """What has changed since this was called last, for `places.with_changes`; or nothing.

        At first all of `picture`.  To be kept before the effects are carried out: what was said of
        a shard is then known to whoever has to say the next thing.
        """
        told = (self._epoch, self._next_copy, sorted(self._places.leaving))
        if told == self._told and not self._places.news:
            return {}
        first, self._told = self._told is None, told
        numbers, self._places.news = sorted(self._places.news), set()
        if first:
            return self.picture()
        changed = [[number, self._places.shards[number].picture()] for number in numbers]
        return {"epoch": told[0], "copy": told[1], "leaving": told[2], "changed": changed}

    # --- events: who is there ------------------------------------------------------------------

    def restore(
        self, picture: dict[str, Any], route: Route, hosts: dict[int, str], now: float
    ) -> None:
        """Goes on where another master had come to; its orders may have been obeyed or not.

        What servers told meanwhile they have to tell again: `backed`, `unbacked`.  Those that do
        not come back are `lost` afterwards, and until then, when `held` is set anew, nothing moves:
        a standby that made room for a new one may be all that is left of a shard.
        """
        self.held = True
        self.route, self._epoch = route, int(picture["epoch"])
        self._next_copy = int(picture["copy"])
        shards = [Shard.of(at, one) for at, one in enumerate(picture["shards"])]
        # The other master may have struck a server off, and have come no further.
        struck = {n for s in shards for n in self._places.holders(s)} - hosts.keys()
        leaving = set(picture["leaving"])
        known = [Server(n, host, leaving=n in leaving) for n, host in hosts.items()]
        self._places.begin([*known, *(Server(n, "") for n in sorted(struck))], shards)
        self.redundancy.was_full = self.redundant  # and said by that master
        halfway = [
            shard
            for shard in self._places.shards
            if shard.standby is not None and (shard.step or shard.standby.state != "ready")
        ]
        dropped = {(shard.standby.server, shard.number) for shard in halfway if shard.standby}
        for number in hosts:
            have = [at for at in self.shards_of(number) if (number, at) not in dropped]
            self._order(number, messages.KeepShards(have), now)
        for shard in halfway:
            assert shard.standby is not None
            shard.standby.state = "seeding"  # its primary may know of it, and is to forget it
            self._places.changed(shard)
            self._without_standby(shard, now)
        for shard in self._places.shards:
            if shard.step == "promoting" and shard not in halfway:
                self._ask_promote(shard, now)
            elif shard.standby is None and shard not in halfway:
                # Its primary may not know yet, and would acknowledge nothing.
                self._order(shard.primary, messages.Alone(shard.number), now)
        for number in sorted(struck):
            self.lost(number, now, f"server {number} is lost")
        self._publish()
        self._plan(now)

    def form(self, route: Route, hosts: dict[int, str], now: float) -> None:
        """The cluster is complete: these servers, these primaries."""
        self.route, self._epoch = route, route.epoch
        servers = [Server(number, host) for number, host in hosts.items()]
        self._places.begin(servers, [Shard(at, one) for at, one in enumerate(route.shards)])
        self._plan(now)

    def join(self, number: int, host: str, now: float) -> None:
        """A server has come, with the route and without a shard."""
        self._places.add(Server(number, host))
        self.redundancy.joined()
        self._plan(now)

    def leave(self, number: int, now: float) -> None:
        """A server is to leave: its shards move; `Emptied` or `Stuck` follows."""
        self._places.leave(number, True)
        self._plan(now)

    def lost(self, number: int, now: float, why: str = "") -> None:
        """A server is gone, and will not come back under this number."""
        if not self._places.remove(number):
            return
        self._orders.forget_server(number)
        gone: list[int] = []
        hurt, down = False, []
        for at in sorted({*self._places.shards_of(number), *self._places.going}):
            shard = self._places.shards[at]
            if shard.former is not None and shard.former.server == number:
                shard.former = None
            if shard.goal == number:
                shard.goal = 0
            hurt |= number in self._places.holders(shard)
            self._places.changed(shard)
            if shard.primary == number:
                down.append(shard)
                if not self._stand_in(shard, now):
                    gone.append(shard.number)
            elif shard.standby is not None and shard.standby.server == number:
                self._without_standby(shard, now)
        if gone:
            self._over = True
            self._effects.append(RowsLost(number, tuple(gone), why))
            return
        if down:
            self.redundancy.tally.failovers += 1
            self._publish()  # a standby lets requests wait until it is promoted
            assert self.route is not None
            for shard in down:
                if shard.down_at is not None:
                    self.redundancy.out_of_reach(shard, self.route.epoch, shard.down_at)
                    shard.down_at = None
        if hurt:
            self._hurry(now)
        self._plan(now)

    # --- events: what servers tell --------------------------------------------------------------

    def answered(
        self, order: Order, answer: messages.Message | None, error: str, now: float
    ) -> None:
        """A server has done what it was told, or says why it cannot."""
        if self._orders.answered(order, answer, error, now):
            self._plan(now)

    def backed(self, server: int, note: messages.Backed, now: float) -> None:
        """A primary's standby has all of it."""
        shard = self._of_note(server, note.shard)
        if shard is None or shard.standby is None or shard.standby.number != note.copy:
            return
        shard.standby.state, shard.standby.seeded = "ready", 1.0
        shard.failures = 0
        self._places.changed(shard)
        if (there := self._places.servers.get(shard.standby.server)) is not None:
            there.failures = 0
        log.debug("shard %d: server %d has all of it", shard.number, shard.standby.server)
        self._plan(now)

    def unbacked(self, server: int, note: messages.Unbacked, now: float) -> None:
        """A primary cannot reach its standby any more."""
        shard = self._of_note(server, note.shard)
        if shard is None or shard.standby is None or shard.standby.number != note.copy:
            return
        self._give_up(shard, f"server {server} cannot reach it: {note.text}", now)
        self._plan(now)

    def yielded(self, server: int, note: messages.Yielded, now: float) -> None:
        """A primary has handed over all that it acknowledged, or says why it could not."""
        shard = self._of_note(server, note.shard)
        if shard is None or shard.step != "yielding":
            return
        self._orders.forget_shard(shard.number, messages.Yield)
        if note.text or shard.standby is None:
            log.warning("shard %d stays at server %d for now: %s", shard.number, server, note.text)
            shard.step = ""
            self._put_off(shard.goal, now)
            shard.goal = 0
            self._places.changed(shard)
        else:
            shard.former = shard.address
            self._promote(shard, now)
        self._plan(now)

    def seeded(self, server: int, shard: int, share: float, now: float) -> None:
        """How much of a shard its standby has, as its primary counts."""
        one = self._of_note(server, shard)
        copy = one.standby if one is not None else None
        if copy is not None and copy.state == "seeding" and share > copy.seeded:
            copy.seeded, copy.moved_at = share, now

    def followed(self, epoch: int, now: float) -> None:
        """Everybody who pulls has this route and reaches its shards."""
        self.redundancy.followed(epoch, now)

    def tick(self, now: float) -> None:
        """Time passes: who has not obeyed for too long, what can be tried again."""
        for server, order in self._orders.late(now).items():
            why = f"it has not answered {type(order.message).__name__} for {ORDER_S:.0f} s"
            self._effects.append(Expelled(server, why))
        for number in sorted(self._places.unready):
            shard = self._places.shards[number]
            copy = shard.standby
            if copy and copy.state == "seeding" and now - copy.moved_at > STALL_S:
                self._give_up(shard, f"nothing was copied for {STALL_S:.0f} s", now)
        if self._planned != (self._places.version, self.held) or now >= self._again_at:
            self._plan(now)

    # --- what is done ---------------------------------------------------------------------------

    def _stand_in(self, shard: Shard, now: float) -> bool:
        """A shard's primary is lost: its standby serves from now on; False if there is none."""
        copy = shard.standby
        shard.down_at = now
        if shard.step == "promoting" and shard.former is not None:
            self._take_back(shard, now)
            return True
        self._orders.forget_shard(shard.number)
        if copy is None or copy.state != "ready" or copy.server not in self._places.servers:
            return False
        self._promote(shard, now)
        return True

    def _promote(self, shard: Shard, now: float) -> None:
        """The standby becomes the primary."""
        copy = shard.standby
        assert copy is not None
        shard.address = ShardAddress(copy.server, copy.host, copy.port)
        shard.standby, shard.goal = None, 0
        self._ask_promote(shard, now)

    def _take_back(self, shard: Shard, now: float) -> None:
        """The one that has yielded serves on: nobody has been told yet of its successor."""
        assert shard.former is not None
        self._orders.forget_shard(shard.number)
        shard.address, shard.former, shard.goal = shard.former, None, 0
        self._order(shard.primary, messages.Alone(shard.number), now)
        self._ask_promote(shard, now)

    def _ask_promote(self, shard: Shard, now: float) -> None:
        shard.step = "promoting"
        self._places.changed(shard)
        self._epoch += 1

        def promoted(answer: messages.Message | None, error: str, now: float) -> None:
            if error:
                why = f"it cannot serve shard {shard.number}: {error}"
                self._effects.append(Expelled(shard.primary, why))
                return
            shard.step, former, shard.former = "", shard.former, None
            self._places.changed(shard)
            if former is None:
                log.info("shard %d: server %d serves it now", shard.number, shard.primary)
                self.redundancy.note_resumed(now)
            else:
                self.redundancy.tally.moves += 1
                log.info(
                    "shard %d has moved from server %d to server %d",
                    shard.number, former.server, shard.primary,
                )  # fmt: skip
                self._order(former.server, messages.DropShard(shard.number), now)
            self._publish()

        self._order(shard.primary, messages.Promote(shard.number, self._epoch), now, promoted)

    def _publish(self) -> None:
        """Makes the route of what is: a shard that changes over is where it was until it has."""
        assert self.route is not None
        shards = tuple(s.former or s.address for s in self._places.shards)
        if shards != self.route.shards or self._epoch > self.route.epoch:
            self._epoch = max(self._epoch, self.route.epoch + 1)
            self.route = Route(self._epoch, shards, self.route.owner)
            self._effects.append(Rerouted())

    def _without_standby(self, shard: Shard, now: float) -> None:
        """A shard's standby is gone, or given up: it is never promoted, its primary is alone."""
        copy, shard.standby = shard.standby, None
        self._places.changed(shard)
        if shard.step == "yielding":
            # It may have yielded by now: it is told to serve again, whatever it had come to.
            shard.former = shard.address
            self._take_back(shard, now)
        elif not shard.step:
            self._orders.forget_shard(shard.number)
            if copy is not None and copy.state != "asked":
                self._order(shard.primary, messages.Alone(shard.number), now)

    def _give_up(self, shard: Shard, why: str, now: float) -> None:
        """Makes do without a standby that does not get on; another one is made soon."""
        copy = shard.standby
        assert copy is not None
        log.warning(
            "shard %d: its standby at server %d is given up: %s", shard.number, copy.server, why
        )
        shard.failures += 1
        shard.goal = 0
        self._put_off(copy.server, now)
        if copy.server in self._places.servers:
            self._order(copy.server, messages.DropShard(shard.number), now)
        self._without_standby(shard, now)
        self._hurry(now)

    def _put_off(self, server: int, now: float) -> None:
        there = self._places.servers.get(server)
        if there is not None:
            there.failures += 1
            self._places.put_off(server, now + AGAIN_S * min(there.failures, 10))

    def _make(self, shard: Shard, server: int, now: float) -> None:
        """Has a server host a standby, and the primary copy itself there."""
        copy = shard.standby = Copy(self._next_copy, server, "asked", now)
        self._next_copy += 1
        self._places.changed(shard)

        def hosted(answer: messages.Message | None, error: str, now: float) -> None:
            if shard.standby is not copy:
                return
            where = _endpoint(answer)
            if where is None:
                self._give_up(shard, error or "it told no address", now)
                return
            copy.host, copy.port = where
            copy.state, copy.moved_at = "seeding", now
            self._places.changed(shard)
            # What was lost is made good at full speed; what only moves gives way to the training,
            # and without replication all that is copied moves.
            copy.paced = not self.replicated or (
                self.redundancy.was_full and not self.redundancy.hurt
            )
            self._order(shard.primary, self._back_up(shard, copy), now, backing)

        def backing(answer: messages.Message | None, error: str, now: float) -> None:
            if shard.standby is copy and error:
                self._give_up(shard, f"server {shard.primary} refuses: {error}", now)

        host = messages.HostStandby(shard.number, self.tables())
        self._order(server, host, now, hosted)

    def _back_up(self, shard: Shard, copy: Copy) -> messages.BackUp:
        return messages.BackUp(
            shard.number, copy.number, copy.host, copy.port, self.sync, copy.paced
        )

    def _hurry(self, now: float) -> None:
        """Something was lost: until it is made good, no copy rests, nor one that is under way."""
        self.redundancy.hurt = True
        for number in sorted(self._places.unready):
            shard = self._places.shards[number]
            copy = shard.standby
            if self.replicated and copy is not None and copy.paced and copy.state == "seeding":
                copy.paced = False
                self._order(shard.primary, self._back_up(shard, copy), now, lambda *_: None)

    def _move_standby(self, shard: Shard, server: int, now: float) -> None:
        """Gives up a standby in good order, for one at another server; 0: for none."""
        copy = shard.standby
        if copy is not None:
            if copy.server in self._places.servers:
                self._order(copy.server, messages.DropShard(shard.number), now)
            self._without_standby(shard, now)
        if server:
            self._make(shard, server, now)

    def _change_over(self, shard: Shard, now: float) -> None:
        shard.step = "yielding"
        self._places.changed(shard)
        self._order(shard.primary, messages.Yield(shard.number, self.yield_s), now)

    # --- the plan --------------------------------------------------------------------------------

    def _plan(self, now: float) -> None:
        """Begins what can be begun, one step at a time; every event ends here."""
        if not self._places.shards or self._over:
            return
        if not self.held:
            for at in self._places.restless(self.replicated):
                shard = self._places.shards[at]
                if not shard.step:
                    self._plan_shard(shard, now)
            if not self._places.unready:
                self._spread(now)
            self._begin_change(now)
        for number in sorted(self._places.leaving):
            server = self._places.servers[number]
            if not server.emptied and not self._places.load(number):
                server.emptied = True
                self._effects.append(Emptied(number))
        if self.replicated:
            self.redundancy.look(now)
        self._planned = (self._places.version, self.held)
        self._again_at = self._places.again_at(now)

    def _plan_shard(self, shard: Shard, now: float) -> None:
        """What one shard lacks: a way out of a server that leaves, a standby."""
        leaving, copy = self._places.leaving, shard.standby
        if shard.goal in leaving:
            self._aim(shard, 0)
        stay = len(self._places.servers) - len(leaving)
        if shard.primary in leaving and not shard.goal:
            if not stay or shard.failures >= FAILURES_MAX:
                why = "no other server can take its shards"
                if stay:
                    why = f"{FAILURES_MAX} standbys of shard {shard.number} failed, see above"
                self._places.leave(shard.primary, False)
                self._effects.append(Stuck(shard.primary, why))
                return
            if copy is None or copy.server in leaving:
                self._aim(shard, self._places.best_for(shard, now))
            elif self._places.servers[copy.server].again_at <= now:
                self._aim(shard, copy.server)
        if copy is None:
            if not self._places.has_room(shard.primary):
                return
            target = shard.goal or (self._places.best_for(shard, now) if self.replicated else 0)
            if target and self._places.has_room(shard.primary, target):
                self._make(shard, target, now)
        elif shard.goal:
            if copy.server != shard.goal and self._places.has_room(shard.primary, shard.goal):
                self._move_standby(shard, shard.goal, now)
        elif copy.server in leaving:
            target = self._places.best_for(shard, now)
            if target and self._places.has_room(shard.primary, target):
                self._move_standby(shard, target, now)
            elif (
                stay == 1 and shard.primary not in leaving and not self._places.served(copy.server)
            ):
                self._move_standby(shard, 0, now)  # nobody else can have it
        elif not self.replicated:
            self._move_standby(shard, 0, now)

    def _aim(self, shard: Shard, server: int) -> None:
        """A server is to become a shard's primary; 0: it stays."""
        shard.goal = server
        self._places.changed(shard)

    def _begin_change(self, now: float) -> None:
        """Changes one shard over at a time: the pause of each is its own."""
        if self.moving:
            return
        for number in sorted(self._places.going):
            shard = self._places.shards[number]
            copy = shard.standby
            if shard.goal and copy and copy.server == shard.goal and copy.state == "ready":
                self._change_over(shard, now)
                return

    def _spread(self, now: float) -> None:
        """Gives a server that has less a shard of one that has more, one at a time."""
        if self._places.going:
            return
        if self.replicated and len(self._places.servers) > 1 and not self.redundant:
            return
        version, until = self._even
        if version == self._places.version and now < until:
            return
        found = self._places.uneven(now)
        if found is None:
            self._even = (self._places.version, self._places.again_at(now))
            return
        shard, server, as_primary = found
        if as_primary:
            log.info("shard %d is to move from server %d to server %d, which has fewer",
                     shard.number, shard.primary, server)  # fmt: skip
            self._aim(shard, server)
            self._plan_shard(shard, now)
        else:
            log.info("the standby of shard %d is to move to server %d, which has fewer",
                     shard.number, server)  # fmt: skip
            self._move_standby(shard, server, now)

    # --- orders ----------------------------------------------------------------------------------

    def _order(
        self, server: int, message: messages.Message, now: float, on_answer: OnAnswer | None = None
    ) -> None:
        self._effects.append(self._orders.give(server, message, now, on_answer))

    def _of_note(self, server: int, shard: int) -> Shard | None:
        """The shard that a note is about, if it comes from its primary."""
        if (
            not 0 <= shard < len(self._places.shards)
            or self._places.shards[shard].primary != server
        ):
            return None
        return self._places.shards[shard]


def _endpoint(answer: messages.Message | None) -> tuple[str, int] | None:
    """Where a standby listens, as its server says."""
    where = answer.data.get("endpoint") if isinstance(answer, messages.Report) else None
    if not isinstance(where, list) or len(where) != 2 or type(where[1]) is not int:
        return None
    return str(where[0]), where[1]
