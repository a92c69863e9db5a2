"""What a server answers to orders for its shards, and when: all have obeyed, standbys included."""

import queue

import pytest
from far_end import Far
from replicas import Relay
from shards import LIMIT_S

from snailps.config import ServerSettings
from snailps.roles.hosting import ShardHost
from snailps.roles.node import advertised, open_listener
from snailps.roles.server import Server
from snailps.roles.tables import Table
from snailps.store.route import Route, ShardAddress
from snailps.transport import messages as m
from snailps.transport.control_client import ControlClient
from snailps.transport.frame import Kind
from snailps.transport.trust import OPEN

SHARDS = 8
FRAG_NUM = 64
TABLES = [[1, Table("t", 4).to_dict()]]


class House:
    """A server with its shards, in this process, and the master's end of its connection."""

    def __init__(self, node):
        self.server = Server(ServerSettings())
        self.server.welcome = m.Welcome(node, node, 7, FRAG_NUM, 1.0, 10.0)
        self.server._welcomed.set()
        self.told = queue.SimpleQueue()
        self.server._listeners = [open_listener(ServerSettings(), OPEN) for _ in range(SHARDS)]
        self.host = ShardHost(ServerSettings(), OPEN, self.server.welcome, self.told.put)
        self.server._host = self.host
        self.server._ready.set()
        self.master = Far()
        self.master.sock.settimeout(LIMIT_S)
        self.client = ControlClient(self.master.near, self.server._receive, lambda why: None)
        self.client.start()

    def give(self, number, order):
        self.master.send(Kind.CALL, order, number)

    def answers(self, count):
        """The next answers, by number."""
        found = [self.master.next() for _ in range(count)]
        assert all(kind == Kind.ANSWER for kind, _, _ in found), found
        return {number: message for _, number, message in found}

    def close(self):
        self.client.close()
        self.master.sock.close()
        self.host.stop()
        self.server._saver.shutdown()


class Pair:
    """A server whose shards have their standbys at another one, which can fall silent."""

    def __init__(self):
        self.near, self.far, self.relays = House(1), House(2), []
        here = [advertised(ServerSettings(), one) for one in self.near.server._listeners]
        self.route = Route.build(1, [ShardAddress(1, *address) for address in here], FRAG_NUM)
        for house in (self.near, self.far):
            house.give(1, m.TakeRoute(self.route.to_dict()))
            house.give(2, m.MakeTables(TABLES))
            house.answers(2)
        for shard in range(SHARDS):
            self.far.give(10 + shard, m.HostStandby(shard, TABLES))
        hosted = self.far.answers(SHARDS)
        for shard in range(SHARDS):
            self.relays.append(Relay(hosted[10 + shard].data["endpoint"][1]))
            order = m.BackUp(shard, 1, "127.0.0.1", self.relays[shard].port, True, False)
            self.near.give(10 + shard, order)
        self.near.answers(SHARDS)
        told = [self.near.told.get(timeout=LIMIT_S) for _ in range(SHARDS)]
        assert sorted(note.shard for note in told) == list(range(SHARDS))
        assert all(isinstance(note, m.Backed) for note in told), told

    def silence(self):
        """The other machine is gone, and no connection says so."""
        for relay in self.relays:
            relay.open.clear()

    def close(self):
        for relay in self.relays:
            relay.close()
        self.near.close()
        self.far.close()


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.close()


ORDERS = [
    m.Fence(77, shards=list(range(SHARDS))),
    m.Expire(5, 2, list(range(SHARDS))),
    m.SetClock(3, True, list(range(SHARDS))),
    m.CloseClock(0, [], list(range(SHARDS))),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_shard_that_waits_for_a_silent_standby_hears_that_it_is_alone(pair, order):
    """What ends the wait is heard and answered at once, beside the order that waits."""
    pair.silence()
    pair.near.give(100, order)
    *others, last = range(SHARDS)
    for shard in others:
        pair.near.give(200 + shard, m.Alone(shard))
    assert sorted(pair.near.answers(len(others))) == [200 + shard for shard in others]
    pair.near.give(200 + last, m.Alone(last))
    assert pair.near.answers(2)[100].data["done"] == list(range(SHARDS))


def test_shards_whose_standby_answers_wait_for_no_other_shard(pair):
    pair.relays[0].open.clear()
    pair.near.give(100, m.Fence(77, shards=[0]))
    pair.near.give(101, m.Fence(77, shards=list(range(1, SHARDS))))
    assert pair.near.answers(1)[101].data["done"] == list(range(1, SHARDS))
    pair.relays[0].open.set()
    assert pair.near.answers(1)[100].data["done"] == [0]


def test_order_is_not_done_by_a_shard_that_is_lost_before_its_standby_has_it(pair):
    """The master gives it again, to the server that stands in."""
    pair.silence()
    pair.near.give(100, m.Fence(77, shards=[0, 1]))
    pair.near.give(101, m.Alone(1))
    assert 101 in pair.near.answers(1)
    assert pair.near.host.primaries[0].stop()
    assert pair.near.answers(1)[100].data["done"] == [1]


def test_order_of_a_shard_whose_standby_is_out_of_reach_waits_for_the_master(pair):
    """It may be promoted without the order, as long as the master has not given it up."""
    assert pair.far.host.standbys[0].stop()
    note = pair.near.told.get(timeout=LIMIT_S)
    assert isinstance(note, m.Unbacked)
    pair.near.give(100, m.SetClock(4, False, [0]))
    pair.near.give(101, m.Ask("stats"))
    assert 101 in pair.near.answers(1)
    pair.near.give(102, m.Alone(0))
    assert sorted(pair.near.answers(2)) == [100, 102]


def test_shard_that_hangs_holds_up_no_order_for_another(pair):
    go_on = queue.SimpleQueue()
    pair.near.host.primaries[0].post(lambda: go_on.get(timeout=LIMIT_S))
    pair.near.give(100, m.Alone(0))
    pair.near.give(101, m.Fence(77, shards=list(range(1, SHARDS))))
    assert pair.near.answers(1)[101].data["done"] == list(range(1, SHARDS))
    go_on.put(None)
    assert 100 in pair.near.answers(1)


def test_promoted_shard_gets_the_order_that_its_primary_took_with_it(pair):
    """End to end: given again after the loss, the fence holds at the shard that stands in."""
    pair.silence()
    pair.near.give(100, m.Fence(77, shards=[0]))
    assert pair.near.host.primaries[0].stop()
    assert pair.near.answers(1)[100].data["done"] == []
    pair.relays[0].open.set()
    pair.far.give(100, m.Promote(0, 2))
    pair.far.give(101, m.Fence(77, shards=[0]))
    assert pair.far.answers(2)[101].data["done"] == [0]
