"""Two servers in this process, one with standbys of the other's shards; the test is the master."""

import queue

from far_end import Far
from replicas import Relay
from shards import LIMIT_S

from snailps.api.tables import Table
from snailps.config import ServerSettings
from snailps.node.process import advertised, open_listener
from snailps.server.process import Server
from snailps.server.shard_host import ShardHost
from snailps.store.route import Route, ShardAddress
from snailps.transport import messages as m
from snailps.transport.control.client import ControlClient
from snailps.transport.frame import Kind
from snailps.transport.security.trust import OPEN

SHARDS = 8
FRAG_NUM = 64
TABLES = [[1, Table("t", 4).to_dict()]]


class House:
    """A server with its shards, in this process, and the master's end of its connection."""

    def __init__(self, node, settings):
        self.server = Server(settings)
        self.server.welcome = m.Welcome(node, node, 7, FRAG_NUM, 1.0, 10.0)
        self.told = queue.SimpleQueue()
        self.server._listeners = [open_listener(settings, OPEN) for _ in range(SHARDS)]
        self.host = ShardHost(settings, OPEN, self.server.welcome, self.told.put)
        self.server._host = self.host
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

    def __init__(self, **settings):
        own = ServerSettings(**settings)
        self.near, self.far, self.relays = House(1, own), House(2, own), []
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
