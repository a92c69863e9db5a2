"""Moves where servers hang, refuse and answer late, copies take their time and streams break.

`Rough` is a `World` whose servers answer behind their own notes, as on one connection, and hold
pushes and promotions back while the standby that counts does not acknowledge.
"""

import random

import pytest
from planner_world import World, emptied, rows_lost, stuck

from snailps.master.replication.effects import Expelled
from snailps.master.replication.planner import FAILURES_MAX
from snailps.node.limits import ORDER_S, SERVE_S
from snailps.transport import messages as m

SILENCE_S = 10.0
"""A hung server's heartbeats are missed for so long before it is taken for lost."""


class Rough(World):
    """A note may be an answer: (order, answer, error).

    Of a copy, `full`: its standby has everything; `broken`: that one is out of reach; `followed`:
    a stream has begun to it.
    """

    def __init__(self, *args, cannot_yield=lambda: False, **named):
        self.filling, self.waiting, self.hung = [], [], {}
        self.cannot_yield = cannot_yield
        super().__init__(*args, **named)

    # --- what travels --------------------------------------------------------------------------

    def obey(self, at, *, fail=""):
        order = self.orders[at]
        if order.server in self.hung:
            return
        del self.orders[at]
        if order.server not in self.alive:
            return
        answer = None if fail else self.do(order.server, order.message)
        if isinstance(order.message, m.Promote) and self.holds(order.server, order.message.shard):
            self.waiting.append(order)
        else:
            self.notes.append((order.server, (order, answer, fail)))

    def deliver(self, at):
        server, note = self.notes[at]
        if server in self.hung:
            return
        if not isinstance(note, tuple):
            super().deliver(at)
            return
        del self.notes[at]
        if server in self.alive:
            self.plan.answered(*note, self.now)
            self.take()

    def deliver_next(self, server):
        self.deliver(next(i for i, (s, _) in enumerate(self.notes) if s == server))

    def hurry(self):
        able = self.alive - self.hung.keys()
        self.orders = [o for o in self.orders if o.server in self.alive]
        self.notes = [n for n in self.notes if n[0] in self.alive]
        late = {n for n, given in self.given.items() if self.now > given + SERVE_S - 3.0}
        while order := next((o for o in self.orders if o in late & able_of(o, able)), None):
            self.obey_next(order.server)
        while True:
            told = [s for s, n in self.notes if isinstance(n, tuple) and n[0] in late]
            if not (told := [s for s in told if s in able]):
                break
            self.deliver_next(told[0])
        for order in self.waiting[:]:
            if not self.holds(order.server, order.message.shard):
                self.answer_late(order)

    def answer_late(self, order):
        self.waiting.remove(order)
        self.notes.append((order.server, (order, m.Ok(), "")))

    def settle(self, steps=3000):
        while (self.orders or self.notes or self.filling) and steps:
            steps -= 1
            if self.notes:
                self.deliver(0)
            elif self.orders:
                self.obey(0)
            else:
                self.finish(0)
        assert steps, "orders without end"

    def until(self, kind):
        while True:
            try:
                return super().until(kind)
            except AssertionError:
                if not self.filling:
                    raise
                self.finish(0)

    # --- what servers do -----------------------------------------------------------------------

    def holds(self, server, shard):
        """Whether what this server has is not at the standby that counts, and will not be."""
        mine = self.copies[server].get(shard)
        if mine is None or not mine["to"] or not mine.get("full"):
            return False
        there = self.copies[mine["to"]].get(shard, {})
        return mine["to"] in self.hung or mine["broken"] or there.get("role") != "standby"

    def do(self, server, message):
        shard = getattr(message, "shard", -1)
        mine = self.copies[server].get(shard)
        if isinstance(message, m.BackUp):
            self.back_up(server, mine, message)
            return m.Ok()
        if isinstance(message, m.Yield):
            full = mine["role"] == "primary" and mine.get("full") and not self.holds(server, shard)
            trouble = "" if full and not self.cannot_yield() else "it could not"
            if not trouble:
                mine["role"] = "standby" if message.stay else "yielded"
                mine["followed"] = False
            self.notes.append((server, m.Yielded(shard, trouble)))
            return m.Ok()
        if isinstance(message, m.Promote):
            assert mine["n"] >= self.acknowledged[shard], "acknowledged pushes are lost"
            former, mine["role"] = mine["role"], "primary"
            if former == "standby":
                if mine.get("followed") and mine.get("broken"):
                    mine.update(to=0, broken=False)
                self.cut(server, shard)
            return m.Ok()
        if isinstance(message, m.DropShard):
            self.cut(server, shard)
        if isinstance(message, m.Alone) and mine is not None:
            mine.update(to=0, broken=False)
            for order in [
                o for o in self.waiting if (o.server, o.message.shard) == (server, shard)
            ]:
                self.answer_late(order)
        return super().do(server, message)

    def back_up(self, server, mine, message):
        if mine.get("copy") == message.copy:
            return  # the pace
        to = self.ports[message.port]
        there = self.copies[to].get(message.shard, {})
        if mine["role"] == "yielded" or mine["n"] < 0 or there.get("role") != "standby":
            self.notes.append((server, m.Unbacked(message.shard, message.copy, "refused")))
            return
        assert not message.resume or there["n"] == mine["n"]
        mine.update(to=to, copy=message.copy, full=False, broken=False)
        there["followed"] = True
        self.filling.append((server, message.shard, message.copy))

    def finish(self, at, fail=False):
        """A copy is complete, or its connection breaks."""
        server, shard, copy = self.filling[at]
        mine = self.copies[server].get(shard)
        if server in self.hung or (mine is not None and mine["to"] in self.hung):
            return
        del self.filling[at]
        if mine is None or mine.get("copy") != copy or not mine["to"]:
            return
        there = self.copies[mine["to"]].get(shard, {})
        if fail or there.get("role") != "standby":
            mine["to"] = 0
            self.notes.append((server, m.Unbacked(shard, copy, "broken")))
            return
        there["n"], mine["full"] = mine["n"], True
        self.notes.append((server, m.Backed(shard, copy)))

    def cut(self, to, shard):
        """Streams to this copy are over."""
        for server in self.alive:
            mine = self.copies[server].get(shard)
            if server != to and mine is not None and mine["to"] == to:
                self.snap(server, shard)

    def snap(self, server, shard):
        """A stream breaks that was complete."""
        mine = self.copies[server].get(shard)
        if mine is not None and mine["to"] and mine.get("full") and not mine["broken"]:
            mine["broken"] = True
            self.notes.append((server, m.Unbacked(shard, mine["copy"], "reset")))

    # --- what happens ----------------------------------------------------------------------------

    def hang(self, server):
        self.hung[server] = self.now + SILENCE_S

    def pass_by(self, seconds):
        """Time passes; servers that have been silent for too long are lost."""
        self.now += seconds
        for server in [s for s, until in self.hung.items() if self.now > until]:
            if server in self.alive:
                self.kill(server)
            del self.hung[server]

    def kill(self, server):
        for shard in list(self.copies[server]):
            self.cut(server, shard)
        super().kill(server)
        assert not rows_lost(self)
        self.waiting = [o for o in self.waiting if o.server != server]

    def push(self, shard):
        route = self.routes[-1] if self.routes else self.plan.route
        server = route.shards[shard].server
        mine = self.copies[server].get(shard)
        if server in self.hung or mine is None or mine["role"] != "primary":
            return False
        if self.holds(server, shard):
            return False
        while True:
            mine["n"] += 1
            if not mine["to"] or not mine.get("full") or self.holds(server, shard):
                break
            server = mine["to"]
            mine = self.copies[server][shard]
        self.acknowledged[shard] += 1
        return True

    def replace_master(self, chance, lost=0, come=0):
        for server in sorted(self.alive):
            sent = [order for order in self.orders if order.server == server]
            for order in sent[: chance.randint(0, len(sent))]:
                self.do(server, order.message)
        self.orders, self.notes, self.waiting = [], [], []
        super().replace_master(chance, lost, come)
        self.notes = [n for n in self.notes if isinstance(n[1], tuple)]
        for server in sorted(self.alive):
            for shard, mine in self.copies[server].items():
                if mine["to"] and mine.get("full"):
                    kind = (m.Unbacked, "broken") if mine["broken"] else (m.Backed,)
                    self.notes.append((server, kind[0](shard, mine["copy"], *kind[1:])))

    def rest(self):
        """All that is under way ends."""
        self.pass_by(SILENCE_S + 1)
        for _ in range(30):
            self.settle()
            for server in emptied(self):
                if server in self.alive:
                    self.kill(server)
            self.settle()
            self.wait(100.0)
        self.settle()

    def check(self):
        assert not [t for t in self.told if isinstance(t, Expelled)]
        assert not self.waiting
        super().check()


def able_of(order, able):
    return {order} if order.server in able else set()


def walk(seed, steps=400):
    """Any order of events; a loss only where the plan says, and may know, that it can be borne."""
    chance = random.Random(seed)
    replicated = chance.random() < 0.85
    trouble, loss = chance.choice([0.0, 0.02, 0.1]), chance.choice([0.01, 0.04])
    eager = chance.random() < 0.5
    world = Rough(chance.randint(2, 4), chance.randint(1, 3), obey=False, replicated=replicated,
                  cannot_yield=lambda: chance.random() < 3 * trouble)  # fmt: skip
    number = max(world.alive)
    for _ in range(steps):
        world.pass_by(chance.random())
        world.hurry()
        choice = chance.random()
        grown = len(world.alive) >= 6
        if choice < 0.4 and world.orders:
            server = chance.choice(world.orders).server
            at = next(i for i, o in enumerate(world.orders) if o.server == server)
            may_refuse = isinstance(world.orders[at].message, (m.HostStandby, m.BackUp, m.Yield))
            world.obey(at, fail="no" if may_refuse and chance.random() < trouble else "")
        elif choice < 0.65 and world.notes:
            world.deliver_next(chance.choice(world.notes)[0])
        elif choice < 0.75 and world.filling:
            world.finish(chance.randrange(len(world.filling)), chance.random() < 2 * trouble)
        elif choice < 0.82:
            world.push(chance.randrange(world.plan.count))
        elif choice < 0.87:
            world.wait(1.0)
        elif choice < 0.89 and chance.random() < 5 * trouble:
            world.snap(chance.choice(sorted(world.alive)), chance.randrange(world.plan.count))
        elif choice < 0.89 + loss * (1 + eager * world.plan.moving) and len(world.alive) > 1:
            victim = chance.choice(sorted(world.alive))
            if may_be_lost(world, victim):
                (world.hang if chance.random() < 0.4 else world.kill)(victim)
        elif choice < 0.96 and not grown:
            number += 1
            world.join(number)
        elif choice < 0.97 and not world.hung:
            world.drain(chance.choice(sorted(world.alive)))
        elif choice < 0.98 and not world.hung:
            come = number + 1 if not grown and chance.random() < 0.5 else 0
            number = max(number, come)
            world.replace_master(chance, 0, come)
        for server in emptied(world):
            if server in world.alive:
                world.kill(server)
    world.cannot_yield = lambda: False
    world.rest()
    world.check()


def may_be_lost(world, victim):
    if world.hung or any(isinstance(note, m.Unbacked) for _, note in world.notes):
        return False
    if world.plan.replicated:
        return world.plan.redundant
    shards = world.plan.placement.shards
    return not any(victim in (s.primary, s.previous and s.previous.server) for s in shards)


@pytest.mark.parametrize("seed", [*range(60), 1021, 1311])
def test_any_order_of_troubles_loses_no_acknowledged_push_and_ends(seed):
    walk(seed)


# --- one by one ----------------------------------------------------------------------------------


def yielded(world, stay):
    """The first order to yield of this kind, obeyed: the others before it, too."""
    while (order := world.until(m.Yield)).message.stay != stay:
        world.obey(world.orders.index(order))
    world.obey(world.orders.index(order))
    return order


def draining_standby(servers=3):
    """A server leaves, and the first swap has begun: the world, the shard's primary, its number."""
    world = Rough(servers)
    world.drain(2)
    order = yielded(world, True)
    return world, order.server, order.message.shard


def refuse_to_resume(world, shard):
    while (order := world.until(m.BackUp)).message.shard != shard or not order.message.resume:
        world.obey(world.orders.index(order))
    world.obey(world.orders.index(order), fail="no")


def test_primary_that_refuses_to_yield_serves_on_and_the_move_is_tried_again():
    world = Rough(3)
    world.drain(1)
    world.obey(world.orders.index(world.until(m.Yield)), fail="it is not served here")
    world.settle()
    assert not world.plan.moving
    world.rest()
    assert emptied(world) == [1]
    world.check()


def test_primary_that_serves_again_does_not_wait_for_a_standby_that_is_lost():
    world, server, shard = draining_standby()
    refuse_to_resume(world, shard)
    assert world.until(m.Promote).server == server
    world.hang(2)  # what the promotion makes it tell is never acknowledged
    world.obey_next(server)
    assert [order.message.shard for order in world.waiting] == [shard]
    world.pass_by(SILENCE_S + 1)
    world.rest()
    assert world.push(shard)
    world.check()


def test_swap_that_is_refused_is_tried_again_only_after_a_while_and_not_for_ever():
    world, _, shard = draining_standby()
    for _ in range(FAILURES_MAX):
        refuse_to_resume(world, shard)
        world.settle()
        assert not world.plan.moving
        if stuck(world):
            break
        world.wait(60.0)
    assert stuck(world) == [2]
    world.check()
    world.drain(2)  # asked again
    world.rest()
    assert emptied(world) == [2]
    world.check()


def test_promotion_does_without_a_standby_that_acknowledges_nothing():
    """Before a server that only waits for it is expelled."""
    world = Rough(3)
    world.drain(1)
    order = yielded(world, False)
    server = world.roles()[order.message.shard][1]
    slow = world.plan.placement.shards[order.message.shard].next.server
    assert world.until(m.Promote).server == server
    world.hung[slow] = ORDER_S + 1  # its heart beats
    world.obey_next(server)
    assert len(world.waiting) == 1
    world.wait(SERVE_S + 1)
    world.obey_next(server)
    assert not world.waiting
    world.hung.clear()
    world.rest()
    world.check()


def test_server_that_has_left_ends_no_move_of_others():
    """Without replication what was copied for a move would be copied again."""
    world = Rough(3, 2, replicated=False)
    world.drain(1)
    world.settle()
    world.join(4)
    world.until(m.BackUp)
    world.kill(1)
    assert not [o for o in world.orders if isinstance(o.message, m.DropShard)]
    world.rest()
    world.check()
