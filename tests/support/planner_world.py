"""Servers that obey a `ReplicationPlanner`, driven and checked by its tests without a cluster.

`World` executes the orders as servers would, one at a time, in the order that a test wants.  It
keeps a count of pushes for each copy of a shard, so that a lost acknowledged push shows.
"""

import dataclasses
import json

from snailps.master.effects import Rerouted, Say, StatusEvent
from snailps.master.replication.effects import Emptied, Expelled, RowsLost, Stuck
from snailps.master.replication.pending_orders import PlannerOrder
from snailps.master.replication.placement import Placement
from snailps.master.replication.placement_record import with_changes
from snailps.master.replication.planner import ReplicationPlanner
from snailps.master.replication.shard_index import COPIES_MAX
from snailps.node.limits import SERVE_S
from snailps.store.route import Route, ShardAddress
from snailps.transport import messages as m


class World:
    """Servers 1 to n with `shards` shards each, obeying a `ReplicationPlanner`.

    `copies[server][shard]` is a dict: `role`; `n`, the pushes that it has applied (-1: it has no
    rows yet); `to`, the server that it streams to (0: none).
    """

    def __init__(self, servers=2, shards=1, *, replicated=True, hosts=None, obey=True,
                 counted=True):  # fmt: skip
        self.now, self.counted = 0.0, counted
        self.plan = ReplicationPlanner(replicated=replicated, sync=True, tables=list)
        self.hosts = hosts or {n: f"host{n}" for n in range(1, servers + 1)}
        addresses = [
            ShardAddress(n, "h", 1000 * n + at) for n in sorted(self.hosts) for at in range(shards)
        ]
        self.ports = {address.port: address.server for address in addresses}
        self.alive, self.hosts_known = set(self.hosts), set(self.hosts)
        self.copies = {n: {} for n in self.hosts}
        self.acknowledged = [0] * len(addresses)
        for at, address in enumerate(addresses):
            self.copies[address.server][at] = {"role": "primary", "n": 0, "to": 0}
        self.orders, self.notes, self.told, self.routes, self.lines = [], [], [], [], []
        self.given = {}  # order -> when
        self.paces = []  # of each copy that was begun
        self.kept, self.noted = {}, 0  # what the journal says of the shards; bytes of all facts
        self.plan.form(Route.build(1, addresses, max(64, len(addresses))), self.hosts, self.now)
        self.take()
        if obey:
            self.settle()

    # --- what the plan says ------------------------------------------------------------------

    def take(self):
        """Takes the effects of the plan, after they are in the journal."""
        if changes := self.plan.changes():
            said = json.dumps(changes)
            self.noted += len(said)
            self.kept = with_changes(self.kept, json.loads(said))
        if self.counted:
            assert self.kept == self.plan.snapshot()
            assert_counted(self.plan.placement)
        for effect in self.plan.effects():
            if isinstance(effect, PlannerOrder):
                told = effect.server, effect.message
                assert effect.server in self.plan.placement.servers, (
                    f"told to one who is gone: {told}"
                )
                self.orders.append(effect)
                self.given[effect] = self.now
            elif isinstance(effect, Rerouted):
                self.routes.append(effect.route)
            elif isinstance(effect, Say | StatusEvent):
                self.lines.append(effect)
            else:
                self.told.append(effect)
                if isinstance(effect, Expelled):
                    self.kill(effect.server)

    def settle(self, steps=500):
        """Executes all orders and delivers all notes, in order."""
        while (self.orders or self.notes) and steps:
            steps -= 1
            if self.orders:
                self.obey(0)
            else:
                self.deliver(0)
        assert steps, "orders without end"

    def until(self, kind):
        """Executes orders up to one of this kind, which stays open; that order."""
        for _ in range(500):
            at = next((i for i, o in enumerate(self.orders) if isinstance(o.message, kind)), None)
            if at is not None:
                return self.orders[at]
            if self.orders:
                self.obey(0)
            elif self.notes:
                self.deliver(0)
            else:
                raise AssertionError(f"no {kind.__name__} came")
        raise AssertionError("orders without end")

    def obey(self, at, *, fail=""):
        """Has a server execute its order, or refuse it."""
        order = self.orders.pop(at)
        if order.server not in self.alive:
            return
        answer = None if fail else self.do(order.server, order.message)
        self.plan.answered(order, answer, fail, self.now)
        self.take()

    def obey_next(self, server):
        """Has a server execute its oldest order."""
        self.obey(next(i for i, o in enumerate(self.orders) if o.server == server))

    def hurry(self):
        """Executes overdue orders, before the plan takes their servers for hung."""
        limit_s = SERVE_S - 3.0  # more than two steps of the tests
        while late := [o for o in self.orders if self.now > self.given[o] + limit_s]:
            self.obey_next(late[0].server)

    def deliver(self, at):
        """Delivers a note to the plan."""
        server, note = self.notes.pop(at)
        if server in self.alive:
            names = {m.Backed: "backed", m.Unbacked: "unbacked", m.Yielded: "yielded"}
            getattr(self.plan, names[type(note)])(server, note, self.now)
            self.take()

    # --- what servers do -----------------------------------------------------------------------

    def do(self, server, message):
        shards = self.copies[server]
        if isinstance(message, m.HostStandby):
            assert message.shard not in shards, "two copies of a shard in one server"
            shards[message.shard] = {"role": "standby", "n": -1, "to": 0}
            port = 50_000 + len(self.ports)
            self.ports[port] = server
            return m.Report({"endpoint": ["h", port]})
        if isinstance(message, m.KeepShards):
            for shard in set(shards) - set(message.shards):
                self.do(server, m.DropShard(shard))
            for mine in shards.values():
                if mine["role"] == "standby":
                    mine["to"] = 0
            return m.Ok()
        mine = shards.get(message.shard)
        if isinstance(message, m.DropShard):
            assert mine is None or mine["role"] != "primary", "the only primary is dropped"
            shards.pop(message.shard, None)
        elif isinstance(message, m.BackUp):
            assert mine["role"] != "yielded"
            assert mine["n"] >= 0, "filled from one that is not full"
            if not message.resume:
                self.paces.append(message.paced)
            to = self.ports[message.port]
            there = self.copies[to].get(message.shard, {})
            if there.get("role") == "standby":
                mine["to"], mine["copy"] = to, message.copy
                assert not message.resume or there["n"] == mine["n"]
                there["n"] = mine["n"]
                self.notes.append((server, m.Backed(message.shard, message.copy)))
            else:
                self.notes.append((server, m.Unbacked(message.shard, message.copy, "refused")))
        elif isinstance(message, m.Alone):
            if mine is not None:
                mine["to"] = 0
        elif isinstance(message, m.Yield):
            if mine["to"] in self.alive:
                mine["role"] = "standby" if message.stay else "yielded"
                self.notes.append((server, m.Yielded(message.shard, "")))
            else:
                self.notes.append((server, m.Yielded(message.shard, "its standby is gone")))
        elif isinstance(message, m.Promote):
            assert mine["n"] >= self.acknowledged[message.shard], "acknowledged pushes are lost"
            mine["role"] = "primary"
        return m.Ok()

    # --- what happens ----------------------------------------------------------------------------

    def push(self, shard):
        """Pushes by the newest route; True if acknowledged."""
        route = self.routes[-1] if self.routes else None
        address = (route or self.plan.route).shards[shard]
        mine = self.copies[address.server].get(shard)
        if address.server not in self.alive or mine is None or mine["role"] != "primary":
            return False
        if mine["to"] and self.copies[mine["to"]].get(shard, {}).get("role") != "standby":
            return False  # held
        while mine is not None and mine["role"] != "yielded":
            mine["n"] += 1
            mine = self.copies[mine["to"]].get(shard) if mine["to"] else None
            if mine is not None and mine["role"] == "primary":
                break  # a former primary's stream to its successor
        self.acknowledged[shard] += 1
        return True

    def kill(self, server):
        self.alive.discard(server)
        self.hosts_known.discard(server)
        self.copies[server] = {}
        self.plan.lost(server, self.now, "killed")
        self.take()

    def replace_master(self, chance, lost=0, come=0):
        """Replaces the master; some orders of the former one have arrived, and some are lost.

        While there was none, one server was lost and another one came; or the other master still
        struck it off, and did no more.
        """
        for server in sorted(self.alive):
            sent = [order for order in self.orders if order.server == server]
            for order in sent[: chance.randint(0, len(sent))]:
                self.do(server, order.message)
        self.orders, self.notes = [], []
        if lost:
            self.alive.discard(lost)
            self.copies[lost] = {}
            if chance.random() < 0.5:  # the last thing that the other master noted
                self.hosts_known.discard(lost)
        if come:
            self.alive.add(come)
            self.hosts_known.add(come)
            self.copies[come] = {}
        route, tally = (self.routes or [self.plan.route])[-1], self.plan.redundancy.metrics
        self.plan = ReplicationPlanner(replicated=self.plan.replicated, sync=True, tables=list)
        hosts = {n: f"host{n}" for n in self.hosts_known}
        missed = self.hosts_known - self.alive
        self.plan.restore(self.kept, route, hosts, self.now, missed)
        self.plan.redundancy.metrics = tally
        self.take()
        for server in sorted(self.alive):
            for shard, mine in self.copies[server].items():
                if mine["role"] != "yielded" and mine["to"]:
                    there = self.copies[mine["to"]].get(shard, {}).get("role") == "standby"
                    copy = mine["copy"]
                    note = m.Backed(shard, copy) if there else m.Unbacked(shard, copy, "broken")
                    self.notes.append((server, note))
        for server in self.hosts_known - self.alive:
            self.kill(server)
        self.plan.held = False

    def join(self, number, host=None):
        self.alive.add(number)
        self.hosts_known.add(number)
        self.copies[number] = {}
        self.plan.join(number, host or f"host{number}", self.now)
        self.take()

    def drain(self, server):
        self.plan.leave(server, self.now)
        self.take()

    def wait(self, seconds):
        self.now += seconds
        self.plan.tick(self.now)
        self.take()

    def passes(self, chance):
        """Lets some time pass, with random ordinary events, or whatever is due."""
        self.now += chance.random()
        self.hurry()
        choice = chance.random()
        if choice < 0.55 and self.orders:
            self.obey_next(chance.choice(self.orders).server)
        elif choice < 0.75 and self.notes:
            server = chance.choice(self.notes)[0]
            self.deliver(next(i for i, (s, _) in enumerate(self.notes) if s == server))
        elif choice < 0.85:
            self.push(chance.randrange(self.plan.count))
        elif choice < 0.9:
            self.wait(1.0)
        else:
            return choice
        return 0.0

    def end_emptied(self):
        for server in emptied(self):
            if server in self.alive:
                self.kill(server)

    def rest(self):
        """Lets everything that is under way end, or be tried again."""
        for _ in range(20):
            self.settle()
            self.end_emptied()
            self.wait(100.0)
        self.settle()

    def roles(self):
        """shard -> (primary, standby), by the plan."""
        return {s["shard"]: (s["primary"], s["standby"]) for s in self.plan.status()}

    def check(self):
        """Checks a world at rest: one primary a shard, by the route; a standby if possible."""
        assert not self.plan.moving
        assert not self.plan.placement.index.going
        for shard in self.plan.placement.shards:
            assert shard.holders <= self.alive
        route = self.plan.route
        if self.routes:
            assert self.routes[-1] is route
            epochs = [r.epoch for r in self.routes]
            assert epochs == sorted(set(epochs))
        for shard, address in enumerate(route.shards):
            have = {n: c[shard]["role"] for n, c in self.copies.items() if shard in c}
            assert have.pop(address.server) == "primary"
            assert set(have.values()) <= {"standby"}
            assert len(have) <= 1
            assert self.push(shard)
        stay = [s for s in self.plan.placement.servers.values() if not s.leaving]
        if self.plan.replicated and len(stay) > 1:
            assert self.plan.redundant


def assert_counted(places):
    """Checks that incremental counts agree with a count of all shards."""
    anew = Placement()
    anew.begin([dataclasses.replace(s) for s in places.servers.values()], list(places.shards))
    assert places.leaving == anew.leaving
    index = places.index
    for name in ("unbacked", "unready", "bare", "going", "changing", "idle", "_counted"):
        assert getattr(index, name) == getattr(anew.index, name), name
    for shard in places.shards:
        assert shard.holders == {n for n, held in index._held.items() if shard.number in held}
    assert {n for n, s in places.servers.items() if s.leaving} == places.leaving
    for number in places.servers:
        assert index.load(number) == anew.index.load(number)
        assert index.served(number) == anew.index.served(number)
        under_way = [
            f for s in places.shards if (f := s.filling) and number in (f[0], f[1].server)
        ]  # fmt: skip
        assert index.has_room(number) == (len(under_way) < COPIES_MAX)


def stuck(world):
    return [t.server for t in world.told if isinstance(t, Stuck)]


def emptied(world):
    return [t.server for t in world.told if isinstance(t, Emptied)]


def rows_lost(world):
    return [t.shards for t in world.told if isinstance(t, RowsLost)]
