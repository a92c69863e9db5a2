"""Carries out one step of a shard's life: make a copy, change over, promote, take back, give up.

    ReplicationPlanner: which shard, which step -> ShardActions
        -> the shard in its `Placement` is changed, and `PlannerOrder`s to servers follow
        -> the callback of an answer takes the next step

    standby made    asked > seeding > ready                 make_copy, then `Backed`
    shift           yields > promoted > serves              change_over, promote
    swap            swaps > [the primary follows] > promoted > serves
    it goes wrong   stay, serve_again, take_back, give_up: each leaves the shard with a primary that
                    has every acknowledged push

Owns the orders that have no answer yet, the numbers of copies and the epoch of the route. Must not
know why a step is wanted, or which server is best: `planner.py` decides that, and plans anew after
each event. What holds at each moment is in docs/design/moving-shards.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from snailps.dataclass import replace
from snailps.master.effects import Rerouted, StatusEvent
from snailps.master.phases import Step
from snailps.master.replication.effects import Expelled
from snailps.master.replication.pending_orders import OnAnswer, PendingOrders
from snailps.master.replication.placed_shard import STILL, Copy, Move, PlacedShard
from snailps.master.replication.placement import Placement
from snailps.master.replication.redundancy import Redundancy
from snailps.node.effects import EffectQueue
from snailps.node.status import EVENT_REPORTED
from snailps.store.route import Route
from snailps.transport import messages

log = logging.getLogger(__name__)


class ShardActions:
    def __init__(
        self,
        placement: Placement,
        redundancy: Redundancy,
        out: EffectQueue,
        tables: Callable[[], list[Any]],  # declarations with numbers, as `HostStandby` takes them
        yield_s: float,  # seconds that a primary may try to hand over
        *,
        replicated: bool,  # every shard is to have a standby
        sync: bool,  # pushes wait for the standby
    ) -> None:
        self.placement, self.redundancy, self._out = placement, redundancy, out
        self._tables, self._yield_s = tables, yield_s
        self._replicated, self._sync = replicated, sync
        self.orders = PendingOrders()
        self.route: Route | None = None  # as published last
        self.epoch = 0  # of the newest route or promotion; the next one is above it
        self.next_copy = 1  # number of the next copy: none is used twice

    def order(
        self, server: int, message: messages.Message, now: float, on_answer: OnAnswer | None = None
    ) -> None:
        """Give a server an order; without `on_answer` a refusal is only logged."""
        self._out.put(self.orders.give(server, message, now, on_answer))

    # --- a primary is gone, or hands over -------------------------------------------------------

    def stand_in(self, shard: PlacedShard, now: float) -> bool:
        """Have the standby of a lost primary serve; False if there is none that is complete."""
        copy = shard.standby
        if shard.step is Step.PROMOTING and shard.previous is not None:
            # The new primary is lost before the route named it: the one that yielded has all rows.
            self.take_back(shard, now)
            return True
        # Orders for the primary that is lost are answered by nobody.
        self.orders.forget_shard(shard.number)
        if copy is None or copy.state != "ready" or copy.server not in self.placement.servers:
            return False
        self.drop_next(shard, now)
        self.promote(shard, now)
        return True

    def drop_move_with(self, shard: PlacedShard, number: int, now: float) -> bool:
        """End a move in which a lost server took part; True if that is all that is to be done,
        because the server was only to be the next standby.

        A promotion under way is not broken off: its copies are complete, and the shard serves
        sooner if it ends.
        """
        copy = shard.next
        if copy is None or number == shard.primary:
            return False
        if copy.server == number or shard.step is not Step.PROMOTING:
            self.drop_next(shard, now)
        return copy.server == number

    def drop_next(self, shard: PlacedShard, now: float) -> None:
        """Drop a standby's own standby, or the copy that was to be the next standby."""
        copy = self.placement.drop_next(shard)
        if copy is None:
            return
        source = shard.standby.server if shard.standby is not None else shard.primary
        if source in self.placement.servers and copy.state != "asked":
            # Else it would hold acknowledgements back for a copy that is never complete.
            self.order(source, messages.Alone(shard.number), now)
        # In a swap the copy is the primary itself, or was until now: its rows are not dropped.
        if copy.server in self.placement.servers and copy.server != shard.primary \
                and (shard.previous is None or copy.server != shard.previous.server):  # fmt: skip
            self.order(copy.server, messages.DropShard(shard.number), now)

    def stay(self, shard: PlacedShard, why: str, now: float) -> None:
        """A primary cannot yield: it serves on, and the move is tried again after a pause."""
        log.warning("shard %d stays at server %d for now: %s", shard.number, shard.primary, why)
        self.placement.step(shard, "stays")
        self.placement.put_off(shard.move.goal or (shard.next.server if shard.next else 0), now)
        self.placement.aim(shard, replace(shard.move, goal=0))

    def resume_as_standby(self, shard: PlacedShard, now: float) -> None:
        """In a swap: make the primary that has yielded the standby of its standby.

        It has all rows, so the stream begins with RESUME and copies none. `Backed` follows, and
        then the promotion.
        """
        assert shard.standby is not None
        host, port = shard.address.host, shard.address.port
        copy = Copy(self.next_copy, shard.primary, "seeding", now, host, port)
        self.next_copy += 1
        self.placement.add_copy(shard, copy)
        self._fill(shard, shard.standby.server, copy, now, resume=True)

    def serve_again(self, shard: PlacedShard, now: float) -> None:
        """Have a primary that has yielded serve again, with the standby that it had."""
        self.placement.aim(shard, replace(shard.move, goal=0))
        self.order_promotion(shard, now)

    def promote(self, shard: PlacedShard, now: float) -> None:
        """Make the standby, which is complete, the primary."""
        copy = shard.standby
        assert copy is not None
        self.placement.promote(shard)
        if shard.move.goal == copy.server:
            self.placement.aim(shard, replace(shard.move, goal=0))
        self.order_promotion(shard, now)

    def take_back(self, shard: PlacedShard, now: float) -> None:
        """Return the shard to the server that has yielded: no member knows its successor yet, as
        the route is published after the promotion is answered."""
        assert shard.previous is not None
        self.orders.forget_shard(shard.number)
        copy = self.placement.drop_next(shard)
        if copy is not None and copy.server in self.placement.servers.keys() - {
            shard.previous.server
        }:
            self.order(copy.server, messages.DropShard(shard.number), now)
        self.placement.take_back(shard)
        self.placement.aim(shard, replace(shard.move, goal=0))
        self.order(shard.primary, messages.Alone(shard.number), now)
        self.order_promotion(shard, now)

    def order_promotion(self, shard: PlacedShard, now: float) -> None:
        """Order the shard's primary to serve, and publish the route once it does.

        The order may be repeated, by this master or the next: `epoch` tells the server which of
        two promotions is the newer one.
        """
        self.placement.step(shard, "promoted")
        if shard.next is not None:
            # The new primary answers when this copy has acknowledged everything; the planner's
            # `tick` gives the copy up where that takes too long.
            self.placement.progressed(shard.next, now)
        self.epoch += 1

        def promoted(answer: messages.Message | None, error: str, now: float) -> None:
            if error:
                # Nobody else serves the shard now. Expelled, the server counts as lost, and the
                # planner finds the shard another primary, or reports that its rows are lost.
                why = f"it cannot serve shard {shard.number}: {error}"
                self._out.put(Expelled(shard.primary, why))
                return
            previous = shard.previous
            swapped = previous is not None and shard.next is not None \
                and shard.next.server == previous.server  # fmt: skip
            self.placement.settle(shard)
            if not swapped:
                self.placement.aim(shard, Move(shard.move.goal))
            elif previous is not None:
                # Its old stream still leads to its successor. If that one is lost, the promotion of
                # this server would wait for an answer on that stream.
                self.order(previous.server, messages.Alone(shard.number), now)
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
                    self.order(previous.server, messages.DropShard(shard.number), now)
            self.publish_route()

        self.order(shard.primary, messages.Promote(shard.number, self.epoch), now, promoted)

    def publish_route(self) -> None:
        """Publish the route if it differs. A shard that changes over stays at its previous address
        until its new primary serves: until then the previous one can take it back. A shard whose
        primary is lost has no previous address (`stand_in`): the route names the standby before
        that has been promoted, as a standby lets requests wait."""
        assert self.route is not None
        shards = tuple(s.previous or s.address for s in self.placement.shards)
        if shards != self.route.shards or self.epoch > self.route.epoch:
            self.epoch = max(self.epoch, self.route.epoch + 1)
            self.route = Route(self.epoch, shards, self.route.owner)
            self._out.put(Rerouted(self.route))

    # --- copies ---------------------------------------------------------------------------------

    def standby_gone(self, shard: PlacedShard, now: float) -> None:
        """A shard's standby is lost or given up, and is never promoted: its primary may acknowledge
        pushes alone (`Alone`)."""
        copy = self.placement.drop_standby(shard)
        if shard.step in (Step.YIELDING, Step.SWAPPING):
            # Whether the primary has yielded by now is unknown: the order to serve fits both.
            self.placement.yielded(shard)
            self.take_back(shard, now)
            return
        if not shard.step:
            self.orders.forget_shard(shard.number)
        # Until this order the primary acknowledges nothing: the standby could still be promoted.
        if copy is not None and copy.state != "asked":
            self.order(shard.primary, messages.Alone(shard.number), now)

    def give_up(self, shard: PlacedShard, copy: Copy, why: str, now: float) -> None:
        """Give up a standby that makes no progress; the plan makes another one after a pause."""
        log.warning(
            "shard %d: its standby at server %d is given up: %s",
            shard.number,
            copy.server,
            why,
            extra=EVENT_REPORTED,
        )
        self.placement.failed(shard)
        self.placement.aim(shard, STILL)
        if copy is shard.next:
            self.drop_next(shard, now)
            if shard.step is Step.SWAPPING and shard.standby is not None:
                # The swap is tried again after that.
                self.placement.put_off(shard.standby.server, now)
                self.serve_again(shard, now)
                return
            self.placement.put_off(copy.server, now)
            if shard.step is Step.PROMOTING:  # the shard is left without a standby
                self.hurry(now)
            return
        self.placement.put_off(copy.server, now)
        self.drop_next(shard, now)
        if copy.server in self.placement.servers:
            self.order(copy.server, messages.DropShard(shard.number), now)
        self.standby_gone(shard, now)
        self.hurry(now)

    def make_copy(self, shard: PlacedShard, server: int, now: float) -> None:
        """Have a server host a standby, and the primary copy itself there. Where the shard has a
        standby, the copy is the standby's own: the next one (`PlacedShard.next`)."""
        copy = Copy(self.next_copy, server, "asked", now)
        self.next_copy += 1
        self.placement.add_copy(shard, copy)

        def hosted(answer: messages.Message | None, error: str, now: float) -> None:
            if (filling := shard.filling) is None or filling[1] is not copy:
                return  # given up meanwhile; its server has an order to drop it
            where = _endpoint(answer)
            if where is None:
                self.give_up(shard, copy, error or "it reported no address", now)
                return
            # A lost copy is replaced at full speed; a copy for a move gives way to the training.
            # Without replication every copy is for a move.
            paced = not self._replicated or (self.redundancy.was_full and not self.redundancy.hurt)
            self.placement.hosted(shard, copy, *where, now, paced=paced)
            self._fill(shard, filling[0], copy, now)

        host = messages.HostStandby(shard.number, self._tables())
        self.order(server, host, now, hosted)

    def _fill(
        self, shard: PlacedShard, server: int, copy: Copy, now: float, *, resume: bool = False
    ) -> None:
        """Have `server`, which has the shard, copy it; `resume`: the copy has all rows already."""

        def backing(answer: messages.Message | None, error: str, now: float) -> None:
            if error and copy in (shard.standby, shard.next):
                self.give_up(shard, copy, f"server {server} refuses: {error}", now)

        self.order(server, self._back_up(shard, copy, resume), now, backing)

    def _back_up(self, shard: PlacedShard, copy: Copy, resume: bool = False) -> messages.BackUp:
        return messages.BackUp(
            shard.number, copy.number, copy.host, copy.port, self._sync, copy.paced, resume
        )

    def hurry(self, now: float) -> None:
        """After a loss: run all copies at full speed until every shard has its standby, and drop
        copies for moves, which would take disk and network from them."""
        self.redundancy.hurt = True
        for number in sorted(self.placement.index.going):
            shard = self.placement.shards[number]
            if not shard.step and shard.next is not None:
                self.drop_next(shard, now)
        for number in sorted(self.placement.index.unready):
            shard = self.placement.shards[number]
            copy = shard.standby
            if self._replicated and copy is not None and copy.paced and copy.state == "seeding":
                self.placement.hasten(copy)
                self.order(shard.primary, self._back_up(shard, copy), now, lambda *_: None)

    def replace_standby(self, shard: PlacedShard, server: int, now: float) -> None:
        """Give up an incomplete standby for one at another server; 0: for none."""
        copy = shard.standby
        if copy is not None:
            if copy.server in self.placement.servers:
                self.order(copy.server, messages.DropShard(shard.number), now)
            self.standby_gone(shard, now)
        if server:
            self.make_copy(shard, server, now)

    def change_over(self, shard: PlacedShard, now: float) -> None:
        # No copy follows the standby, and not the primary is to go: the two change places.
        swaps = self._replicated and shard.next is None and shard.move.source != shard.primary
        self.placement.step(shard, "swaps" if swaps else "yields")

        def answered(answer: messages.Message | None, error: str, now: float) -> None:
            if error:
                self.stay(shard, error, now)

        self.order(shard.primary, messages.Yield(shard.number, self._yield_s, swaps), now, answered)


def _endpoint(answer: messages.Message | None) -> tuple[str, int] | None:
    """Endpoint of a standby, from its server's answer."""
    where = answer.data.get("endpoint") if isinstance(answer, messages.Report) else None
    if not isinstance(where, list) or len(where) != 2 or type(where[1]) is not int:
        return None
    return str(where[0]), where[1]
