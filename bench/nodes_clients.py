"""Simulated servers and workers for `nodes.py`: two real connections each, many in a process.

    orders of a master -> answers, as of servers and workers      commands of the bench -> Client

A node registers, takes the route, sends heartbeats, and answers orders: a server makes standbys,
fills them in `copy_s`, promotes and yields them; a worker surveys, takes the summary, leases blocks
and reports them done.  There are no rows.  Large messages are read and discarded.
"""

import heapq
import json
import os
import re
import select
import socket
import time

from snailps.api.tables import Table
from snailps.transport import messages
from snailps.transport.frame import HEADER, HEADER_BYTES, Flag, Frame, Kind, encode_frame, unpack
from snailps.transport.handshake import NONCE_BYTES, Channel, ClientSession, Hello, Role

BEAT = encode_frame(Frame(Kind.HEARTBEAT))
AT_ONCE = 64
"""Connections that a client process opens before it looks at the answers."""
RECV_BYTES = 256 << 10
LARGE = 1 << 20
"""A body beyond that is the summary: counted, not kept."""
STANDBY_PORT = 10_000
"""Standbys at server i listen on this port + i, as they say."""
AGAIN_S = 0.2
"""Between two looks whether a lost master is back."""
_NAME = re.compile(rb'\{"is":"(\w+)"')
_EPOCH = re.compile(rb'"epoch":(\d+)')


def body_of(message):
    """Body of a message."""
    return messages.encode(message)


OK = body_of(messages.Ok())


class Line:
    """One connection: handshake, then frames; large ones are discarded."""

    __slots__ = (
        "_frames", "_hello", "_kept", "_large", "_ready", "_session", "_skip", "on_lost", "sock",
    )  # fmt: skip

    def __init__(self, sock, hello, on_ready, on_frame, on_lost):
        self.sock, self.on_lost = sock, on_lost
        self._frames, self._ready = on_frame, on_ready
        self._session = ClientSession(hello)
        self._kept, self._skip, self._large = b"", 0, None
        self.send(encode_frame(self._session.start()))

    @property
    def ready(self):
        """Whether the handshake is done, and the connection still open."""
        return self._session.ready and self.sock.fileno() >= 0

    def send(self, data):
        """Sends a few bytes, which the socket accepts at once."""
        while data:
            try:
                data = data[self.sock.send(data) :]
            except BlockingIOError:
                select.select([], [self.sock], [], 1.0)

    def say(self, kind, body, request=0):
        """Sends a frame."""
        self.send(encode_frame(Frame(kind, body, request=request), pack=True))

    def read(self, buffer):
        """Handles received frames; False: the peer has closed."""
        try:
            count = self.sock.recv_into(buffer)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not count:
            return False
        start = min(self._skip, count)
        self._skip -= start
        if self._large is not None and not self._skip:
            large, self._large = self._large, None
            self._frames(*large)
        data = self._kept + bytes(buffer[start:count])
        at = 0
        while len(data) - at >= HEADER_BYTES:
            _, _, kind, flags, *_, request, size = HEADER.unpack_from(data, at)
            end = at + HEADER_BYTES + size
            if size > LARGE:
                self._skip = end - len(data)
                self._large = (kind, b"", request)
                data, at = b"", 0
                break
            if end > len(data):
                break
            body = data[at + HEADER_BYTES : end]
            at = end
            if self._session.ready:
                if flags & Flag.PACKED:
                    body = unpack(body, LARGE * 64)
                self._frames(kind, body, request)
            else:
                self._shake(kind, body, data[at - HEADER_BYTES - size : at])
        self._kept = data[at:]
        return True

    def _shake(self, kind, body, data):
        head = HEADER.unpack_from(data)
        frame = Frame(Kind(kind), body, head[4], head[5], head[6], head[7], head[8])
        answer = self._session.receive(frame)
        if answer is not None:
            self.send(encode_frame(answer))
        if self._session.ready:
            self._ready()


class Node:
    """Common part of servers and workers: joining, the route, rejoining."""

    role = Role.WORKER

    def __init__(self, client, index):
        self.client, self.index = client, index
        self.welcome = self.line = self.pulse = None
        self.epoch, self.beats, self.dead, self.number = 0, 0, False, 1
        self.join()

    def join(self):
        """Opens the control connection: registers, or rejoins with its state."""
        us = self.welcome
        hello = Hello(
            Channel.CONTROL, self.role, os.urandom(NONCE_BYTES), us.node if us else 0,
            us.incarnation if us else 0, us.job if us else 0,
        )  # fmt: skip
        self.beats = 0
        self.line = self.client.open(hello, self._register, self._frame, self._lost)

    def _register(self):
        role, host = self.role.name.lower(), f"host{self.index}"
        if self.welcome is None:
            message = messages.Register(role, host, 1, 1, self.endpoints())
        else:
            us = self.welcome
            message = messages.Rejoin(
                us.job, us.node, us.incarnation, role, host, 1, 1, self.endpoints(), self.epoch, "",
                self.resume_state(),
            )  # fmt: skip
        self.call(body_of(message))

    def call(self, body):
        """Calls the master; answers are handled in the order of `number`."""
        self.number += 1
        self.line.say(Kind.CALL, body, self.number)

    def _frame(self, kind, body, request):
        if kind == Kind.ERROR:
            raise RuntimeError(f"{self.role.name} {self.index}: {body!r}")
        found = _NAME.match(body, 4)
        name = found[1].decode() if found else "Summary"
        if name == "Welcome":
            self._welcomed(messages.decode(body))
        elif name == "TakeRoute":
            self.epoch = int(_EPOCH.search(body)[1])
            self.line.say(Kind.ANSWER, OK, request)
            self.client.routed(self, body)
        elif name == "Stop":
            if not self.client.ending:
                raise RuntimeError(f"{self.role.name} {self.index} is told: {body[4:300]!r}")
        else:
            self.take(name, body, request)

    def _welcomed(self, welcome):
        back = self.welcome is not None
        self.welcome = welcome
        self._pulse_to(welcome)
        if back:
            self.client.back += 1
            self.came_back()

    def _pulse_to(self, welcome):
        hello = Hello(
            Channel.PULSE, self.role, os.urandom(NONCE_BYTES), welcome.node, welcome.incarnation,
            welcome.job,
        )  # fmt: skip
        try:
            self.pulse = self.client.open(hello, lambda: None, self._beat, self._pulse_lost)
        except OSError:
            return  # the master is gone again, as the other connection will show

    def _pulse_lost(self):
        """Opens another one, as nodes do; the control connection shows a lost master."""
        self.client.later(1.0, self._beat_again)

    def _beat_again(self):
        if self.line.sock.fileno() >= 0 and self.pulse.sock.fileno() < 0 and not self.dead:
            self._pulse_to(self.welcome)

    def _beat(self, kind, body, request):
        self.beats += 1

    def _lost(self):
        if not self.dead:
            self.client.master_gone(self)

    def kill(self):
        """Ends this node: closes its sockets."""
        self.dead = True
        for line in (self.line, self.pulse):
            self.client.close(line)

    def came_back(self):
        """The master that took over has accepted it."""


class Server(Node):
    """A server whose shards have no rows."""

    role = Role.SERVER

    def __init__(self, client, index):
        self.backs = {}  # shard -> copy, server that it is at, whether that has all
        self.primaries = set()
        self.hosted = set()
        super().__init__(client, index)

    def endpoints(self):
        """Its shards; all have the address of the bench's listener."""
        return [["127.0.0.1", self.client.port]] * self.client.shards

    def resume_state(self):
        """A server's state in `Rejoin`."""
        return {
            "standbys": [
                [shard, copy, "gone" if self.client.is_dead(at) else ""]
                for shard, (copy, at, ready) in self.backs.items()
                if ready
            ]
        }

    def take(self, name, body, request):
        """Answers an order of the master."""
        if name == "Ask":
            answer = self._stats()
        elif name == "HostStandby":
            self.hosted.add(messages.decode(body).shard)
            answer = messages.Report({"endpoint": ["127.0.0.1", STANDBY_PORT + self.index]})
        elif name in ("SetClock", "CloseClock", "Fence", "Expire"):
            answer = messages.Report({"done": messages.decode(body).shards})
        else:
            answer = None
            if name in ("BackUp", "Promote", "Yield", "Alone", "DropShard"):
                self._change(name, messages.decode(body))
        self.line.say(Kind.ANSWER, body_of(answer) if answer else OK, request)

    def _change(self, name, order):
        shard = order.shard
        if name == "BackUp":
            known = self.backs.get(shard)
            if known is None or known[0] != order.copy:
                first = order.port == self.client.port  # the shard's first primary, now its standby
                at = shard // self.client.shards if first else order.port - STANDBY_PORT
                self.backs[shard] = (order.copy, at, False)
                seconds = 0 if order.resume else self.client.copy_s
                self.client.later(seconds, lambda: self._backed(shard, order.copy))
        elif name == "Promote":  # a standby that it is filling remains
            self.hosted.discard(shard)
        elif name == "Yield":
            self.backs.pop(shard, None)
            if order.stay:
                self.hosted.add(shard)
            self.client.later(0, lambda: self._note(messages.Yielded(shard)))
        elif name == "Alone":
            self.backs.pop(shard, None)
        elif name == "DropShard":
            self.hosted.discard(shard)

    def _backed(self, shard, copy):
        known = self.backs.get(shard)
        if self.dead or known is None or known[0] != copy:
            return
        self.backs[shard] = (copy, known[1], True)
        if self.client.is_dead(known[1]):
            self._note(messages.Unbacked(shard, copy, "it is gone"))
        else:
            self._note(messages.Backed(shard, copy))

    def _note(self, message):
        if not self.dead and self.line.ready:
            self.line.say(Kind.NOTE, body_of(message))

    def others_died(self):
        """Servers are lost: reports standbys that cannot be reached."""
        for shard, (copy, at, ready) in list(self.backs.items()):
            if ready and self.client.is_dead(at):
                self._note(messages.Unbacked(shard, copy, "connection closed"))

    def _stats(self):
        shard = self.client.shard_stats
        first = self.index * self.client.shards
        shards = [{**shard, "shard": first + at} for at in range(self.client.shards)]
        standbys = [{**shard, "shard": at} for at in sorted(self.hosted)]
        return messages.Report({"shards": shards, "standbys": standbys, "peak_rss_mb": 100.0})


class Worker(Node):
    """A worker that does not train: `block_s` for a block, or as fast as the master answers."""

    def __init__(self, client, index):
        self.started, self.state, self.block, self.dones = False, "", -1, 0
        self.told = []
        super().__init__(client, index)

    def endpoints(self):
        """It has none."""
        return []

    def resume_state(self):
        """A worker's state in `Rejoin`."""
        held = [["train", self.block]] if self.state in ("train", "done") else []
        state = {"started": self.started, "held": held, "reported": self.told[-4:]}
        return {**state, "not_durable": [], "finished": None}

    def came_back(self):
        """Repeats calls that were not answered."""
        if self.state == "done":
            self._done()
        elif self.state in ("lease", "train"):
            self._lease("train") if self.state == "lease" else None

    def take(self, name, body, request):
        """Continues after an answer or a note."""
        if name == "Start":
            self.started = True
            tables = [Table(name, 100).to_dict() for name in ("words", "buckets", "contexts")]
            self.call(body_of(messages.Declare(tables)))
        elif name == "Declared":
            self.state = "gate"
            if self.client.gate:
                self.survey()
        elif name == "Leased":
            self._leased(messages.decode(body))
        elif name in ("Ok", "Enough"):
            self._settled()
        elif name == "Summary":
            self.client.summaries += 1
            self.state = "summary"
            if self.client.train:
                self._lease("train")
        elif name == "Ask":
            self.line.say(Kind.ANSWER, body_of(messages.Report({"waits": []})), request)

    def survey(self):
        """Begins the survey."""
        self.state = "survey"
        self.call(body_of(messages.Lease("survey")))

    def begin(self):
        """Begins the training."""
        if self.state == "summary":
            self._lease("train")

    def _lease(self, pass_):
        self.state = "lease"
        self.call(body_of(messages.Lease(pass_)))

    def _leased(self, lease):
        self.block = lease.number
        if self.state == "survey":
            if lease.number < 0:
                self.call(body_of(messages.Summarise()))
            else:
                self.call(body_of(messages.Done("survey", lease.number, 1, 0.1, {}, b"part")))
        elif lease.number >= 0:
            self.state = "train"
            self.client.later(0 if self.client.flood else self.client.block_s, self._done)

    def _done(self):
        if self.dead or not self.line.ready:
            self.state = "done"  # repeated when a master is back
            return
        self.state = "done"
        metrics = {"examples": 100.0, "loss": 250.0, "lr": 0.05}
        self.call(body_of(messages.Done("train", self.block, 1000, 1.0, metrics)))

    def _settled(self):
        if self.state == "survey":
            self.call(body_of(messages.Lease("survey")))
            return
        done = {"number": self.block, "units": 1000, "seconds": 1.0, "metrics": {}}
        self.told = [*self.told[-3:], done]
        self.dones += 1
        self.client.dones += 1
        self.number += 1
        self.state = "lease"
        if self.client.hold:  # enough facts: the master is about to be killed
            self.line.say(Kind.NOTE, body_of(messages.Durable([self.block])))
            self.client.later(0.2, self._lease_again)
            return
        note = Frame(Kind.NOTE, body_of(messages.Durable([self.block])))
        call = Frame(Kind.CALL, body_of(messages.Lease("train")), request=self.number)
        self.line.send(encode_frame(note) + encode_frame(call))

    def _lease_again(self):
        if self.state == "lease" and self.line.ready and not self.dead:
            self._lease("train")


class Client:
    """Some nodes, served by one thread; `pipe` connects them with the bench."""

    def __init__(self, address, pipe, dead, options):
        self._address, self._pipe, self._dead = address, pipe, dead
        self.shards, self.port = options["shards"], options["port"]
        self.copy_s, self.block_s = options["copy_s"], options["block_s"]
        self.shard_stats = options["shard_stats"]
        self.gate = self.train = self.flood = self.hold = self.ending = False
        self.summaries = self.dones = self.back = 0
        self.nodes, self._gone = [], []
        self._clean = {}
        self._clean_told = self._joined = True
        self._again_at = self._said_at = 0.0
        self._poll = select.epoll()
        self._poll.register(pipe.fileno(), select.EPOLLIN)
        self._lines = {}
        self._later = []
        self._count = 0
        self._buffer = memoryview(bytearray(RECV_BYTES))

    def open(self, hello, on_ready, on_frame, on_lost):
        """Adds a connection."""
        sock = socket.create_connection(self._address)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = Line(sock, hello, on_ready, on_frame, on_lost)
        self._lines[sock.fileno()] = line
        self._poll.register(sock, select.EPOLLIN)
        return line

    def close(self, line):
        """Ends a connection."""
        if line is not None and line.sock.fileno() >= 0:
            self._lines.pop(line.sock.fileno(), None)
            line.sock.close()

    def later(self, seconds, what):
        """Calls a function after this many seconds."""
        self._count += 1
        heapq.heappush(self._later, (time.monotonic() + seconds, self._count, what))

    def is_dead(self, server):
        """Whether the server of this index was killed."""
        return bool(self._dead[server])

    def master_gone(self, node):
        """A node has lost its master and connects to the next one."""
        if self.ending:
            return
        self.close(node.pulse)
        self._gone.append(node)

    def routed(self, node, body):
        """A node has a route: records whether it names a killed server."""
        if self._clean_told or isinstance(node, Server):
            return
        if node.epoch not in self._clean:
            route = json.loads(body[4:])["route"]
            numbers = self._dead_numbers
            self._clean[node.epoch] = not any(shard[0] in numbers for shard in route["shards"])
        if all(self._clean.get(n.epoch, False) for n in self.nodes if isinstance(n, Worker)):
            self._clean_told = True
            self._tell("clean", time.monotonic())

    def run(self, roles):
        """Joins, and serves until the bench ends it."""
        for at, (index, role) in enumerate(roles):
            self.nodes.append((Server if role == Role.SERVER else Worker)(self, index))
            if at % AT_ONCE == 0:
                self._turn(0)
        self._tell("opened", time.monotonic())
        beat_at = time.monotonic()
        while not self.ending:
            now = time.monotonic()
            wait_s = self._later[0][0] - now if self._later else 0.05
            self._turn(min(0.05, max(0.0, wait_s)))
            now = time.monotonic()
            while self._later and self._later[0][0] <= now:
                heapq.heappop(self._later)[2]()
            if now >= beat_at:
                beat_at = now + 1.0
                self._beat()
            if self._gone and now >= self._again_at:
                self._come_back(now)
            if now >= self._said_at:
                self._said_at = now + 0.1
                self._tell("counts", self.summaries, self.dones, self.back)

    def _beat(self):
        for node in self.nodes:
            if not node.dead and node.pulse is not None and node.pulse.ready:
                try:
                    node.pulse.sock.send(BEAT)
                except OSError:
                    continue

    def _come_back(self, now):
        try:
            socket.create_connection(self._address, 1.0).close()
        except OSError:
            self._again_at = now + AGAIN_S
            return
        for _ in range(min(AT_ONCE, len(self._gone))):
            try:
                self._gone[-1].join()
            except OSError:  # that was still the one that is about to die
                self._again_at = now + AGAIN_S
                return
            self._gone.pop()

    def _turn(self, limit_s):
        for fd, _ in self._poll.poll(limit_s):
            if fd == self._pipe.fileno():
                self._obey(*self._pipe.recv())
            elif (line := self._lines.get(fd)) is not None and not line.read(self._buffer):
                self.close(line)
                line.on_lost()

    def _obey(self, what, *more):
        if what == "gate":
            self.gate = True
            for node in self.nodes:
                if isinstance(node, Worker) and node.state == "gate":
                    node.survey()
        elif what == "train":
            self.train = True
            for node in self.nodes:
                if isinstance(node, Worker):
                    node.begin()
        elif what in ("flood", "hold"):
            setattr(self, what, more[0])
        elif what == "kill":
            indices, self._dead_numbers = set(more[0]), set(more[1])
            self._clean, self._clean_told = {}, False
            for node in self.nodes:
                if isinstance(node, Server) and node.index in indices:
                    node.kill()
            self.nodes = [n for n in self.nodes if not n.dead]
            for node in self.nodes:
                if isinstance(node, Server):
                    node.others_died()
        elif what == "address":
            self._address = more[0]
        elif what == "end":
            self.ending = True

    def _tell(self, *what):
        self._pipe.send(what)


def client_main(address, roles, pipe, dead, options):
    """A process of simulated nodes."""
    try:
        Client(address, pipe, dead, options).run(roles)
    except Exception as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
        raise
