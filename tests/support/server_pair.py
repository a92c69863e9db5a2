"""Two servers in this process, one with standbys of the other's shards; the test is the master."""

import collections

from far_end import Far
from replicas import Relay
from shards import LIMIT_S

from snailps.api.tables import Table
from snailps.config import ServerSettings
from snailps.node.process import advertised, open_listener
from snailps.server.process import Server
from snailps.store.route import Route, ShardAddress
from snailps.transport import messages as m
from snailps.transport.control.client import ControlClient
from snailps.transport.frame import Kind
from snailps.transport.security.trust import OPEN

SHARDS = 8
FRAG_NUM = 64
TABLES = [[1, Table("t", 4).to_dict()]]


class House:
    """A server with its shards in this process, and the master's end of its connection."""

    def __init__(self, node, settings):
        self.server = Server(settings)
        listeners = [open_listener(settings, OPEN) for _ in range(SHARDS)]
        self.endpoints = [advertised(ServerSettings(), listener) for listener in listeners]
        self.server._listeners = dict(enumerate(listeners))
        self.notes, self.early = collections.deque(), {}
        self.master = Far()
        self.master.sock.settimeout(LIMIT_S)
        self.client = ControlClient(self.master.near, self.server._receive, lambda why: None)
        self.server._control = self.client
        welcome = m.Welcome(node, node, 7, FRAG_NUM, 1.0, 10.0)
        self.server.on_welcome(welcome)
        self.server.welcome = welcome
        self.client.start()

    def give(self, number, order):
        self.master.send(Kind.CALL, order, number)

    def answers(self, count):
        """The next answers, by number."""
        while len(self.early) < count:
            self.hear()
        found, self.early = self.early, {}
        return found

    def note(self):
        """The next note."""
        while not self.notes:
            self.hear()
        return self.notes.popleft()

    def hear(self):
        """Reads the next message, a note or an answer."""
        kind, number, message = self.master.next()
        if kind == Kind.NOTE:
            self.notes.append(message)
        else:
            assert kind == Kind.ANSWER, message
            self.early[number] = message

    def shard(self, number, standby=False):
        """The thread of a shard."""
        host = self.server.core.host
        return self.server.performer.shards[(host.standbys if standby else host.primaries)[number]]

    def close(self):
        self.client.close()
        self.master.sock.close()
        self.server.stop_serving()


class Pair:
    """A server whose shards have standbys at another server, which a test can silence."""

    def __init__(self, **settings):
        own = ServerSettings(**settings)
        self.near, self.far, self.relays = House(1, own), House(2, own), []
        here = self.near.endpoints
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
        told = [self.near.note() for _ in range(SHARDS)]
        assert sorted(note.shard for note in told) == list(range(SHARDS))
        assert all(isinstance(note, m.Backed) for note in told), told

    def silence(self):
        """Silences the other server: no connection reports that it is gone."""
        for relay in self.relays:
            relay.open.clear()

    def close(self):
        for relay in self.relays:
            relay.close()
        self.near.close()
        self.far.close()
