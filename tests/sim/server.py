"""A server process: the product's core, shards and store on the simulated network.

    orders, answers of shards, dials, works, time -> Event -> ServerCore.handle -> list of Effect
    bytes of clients and primaries -> ShardThread, turn by turn -> replies, stream to the standby

It owns what `snailps/server/process.py` owns with sockets and threads, and decides nothing.
"""

from __future__ import annotations

import math
import socket
from functools import partial
from typing import ClassVar

from snailps.errors import (
    ConfigError,
    ConnectionLost,
    ProtocolError,
    SnailError,
    WaitTimeout,
    explain,
)
from snailps.node.effects import Answering, Tick, Work, WorkDone
from snailps.node.limits import Limits
from snailps.server import effects, events
from snailps.server.core import ServerCore
from snailps.transport.frame import Kind
from snailps.transport.handshake import Channel, Hello, Role
from tests.sim import invariants
from tests.sim.memory_disk import PowerCut
from tests.sim.model import Counted
from tests.sim.node import Node
from tests.support.turned_shard import NONCE, Pipe, TurnedShard

STAGED_BYTES_MAX = 16 << 20


def method_of(table):
    """The access method of a table: there is one module on these hosts."""
    module = table.access.partition(":")[0]
    if module != Counted.__module__:
        raise ConfigError(f"table {table.name!r}: no module named {module!r}")
    return Counted(table)


class Server(Node):
    """One server.

    Parameters
    ----------
    cluster : Cluster
    name, host : str
    shard_num : int
    """

    def __init__(self, cluster, name, host, shard_num):
        super().__init__(cluster, Role.SERVER, name, host)
        self.settings = cluster.server_settings
        self.endpoints = [(host, 7001 + index) for index in range(shard_num)]
        self.shards = {}
        self.links = {}  # dialled connections, by number
        self.core = None
        self._next_port = 7001 + shard_num
        self._next = 1
        self._replies, self._posts, self._dials = {}, {}, {}
        self._events, self._feeding = [], False
        self._due = None
        self.network.reserve(self, self.endpoints)

    def on_welcome(self, welcome):
        self.core = ServerCore(
            self.settings, welcome, self.cluster.new_server_files(self, welcome),
            endpoints=self.endpoints, own_rss_mb=lambda: 1.0, load_method=method_of,
        )  # fmt: skip

    def epoch_of_route(self):
        return self.core.route_epoch

    def resume_state(self):
        return self.core.resume_state()

    def on_message(self, message, reply):
        if reply is None:
            return
        call = self._number()
        self._replies[call] = reply
        self.cluster.ordered(self, message)
        if self.alive:
            self.feed(events.Ordered(call, message))

    def on_end(self, code, text):
        if self.core is None:
            self.after(0.0, self.leave, code, text)
            return
        self.feed(events.End())
        self._end_when_over(code, text)

    def _end_when_over(self, code, text):
        if not self.core.over:
            self.after(0.05, self._end_when_over, code, text)
            return
        for shard in list(self.shards.values()):
            shard.stop()
        self.leave(code, text)

    # --- the core ---------------------------------------------------------------------------------

    def _number(self):
        self._next += 1
        return self._next

    def feed(self, event):
        """Hands the core an event, and performs its effects and all events that follow."""
        self._events.append(event)
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._events and self.alive:
                for effect in self.core.handle(self._events.pop(0), self.world.now):
                    self._performers[type(effect)](self, effect)
        finally:
            self._feeding = False
        if self.alive:
            self._tick_at(self.core.due)

    def _tick_at(self, when):
        if self._due is not None:
            if self._due[0] == when:
                return
            self.world.cancel(self._due)
            self._due = None
        if when < math.inf:
            self._due = self.world.at(max(when, self.world.now + 1e-4), self._tick, process=self)

    def _tick(self):
        self._due = None
        self.feed(Tick())

    def _answer(self, effect):
        self._replies.pop(effect.call)(effect.answer)

    def _tell(self, effect):
        self.say(f"tells {effect.message!r:.120}")
        self.control.note(effect.message)

    def _start_shard(self, effect):
        if effect.listener is not None:
            address = self.endpoints[effect.listener]
        else:
            address = (self.host, self._next_port)
            self._next_port += 1
        self.shards[effect.shard] = SimShard(self, effect, address)
        self._events.append(WorkDone(effect.shard, address))

    def _stop_shard(self, effect):
        shard = self.shards.pop(effect.shard, None)
        if shard is not None:
            shard.stop()

    def _post(self, effect):
        shard = self.shards.get(effect.shard)
        if shard is None:
            lost = ConnectionLost("the shard has stopped serving")
            self._events.append(WorkDone(effect.post, error=lost))
            return
        self._posts[effect.post] = shard
        shard.soon(self._run_post, effect, shard)

    def _run_post(self, effect, shard):
        if self._posts.pop(effect.post, None) is not None:  # else withdrawn
            shard.post(effect)

    def _withdraw(self, effect):
        if self._posts.pop(effect.post, None) is not None:
            late = WaitTimeout("the shard did not come to it in time")
            self._events.append(WorkDone(effect.post, error=late))

    def _dial(self, effect):
        self._dials[effect.dial] = False
        self.spawn(self._dial_standby(effect))

    def _dial_standby(self, effect):
        try:
            end = yield from self.dial(
                tuple(effect.address), Channel.DATA, effect.limit_s,
                lambda: self._dials[effect.dial],
            )  # fmt: skip
        except SnailError as error:
            self._dials.pop(effect.dial)
            self.feed(WorkDone(effect.dial, error=error))
            return
        self._dials.pop(effect.dial)
        link = self._number()
        self.links[link] = end
        self.feed(WorkDone(effect.dial, link))

    def _give_up(self, effect):
        if effect.dial in self._dials:
            self._dials[effect.dial] = True

    def _close_link(self, effect):
        self.links.pop(effect.link).close()

    def _stream(self, effect):
        shard = self.shards.get(effect.shard)
        if shard is None:
            self.links.pop(effect.link).close()
            told = events.StreamReported(effect.stream, "the shard has stopped serving")
            self._events.append(told)
            return
        shard.soon(shard.lead, effect, self.links.pop(effect.link))

    def _work(self, effect):
        self.after(self.cluster.work_s(disk=True), self._run_work, effect)

    def _run_work(self, effect):
        result = error = None
        try:
            result = effect.run()
        except Exception as failure:
            error = failure
        except PowerCut:
            return
        self.feed(WorkDone(effect.number, result, error))

    _performers: ClassVar = {
        Answering: _answer,
        effects.Note: _tell,
        effects.StartShard: _start_shard,
        effects.StopShard: _stop_shard,
        effects.CloseListeners: lambda self, effect: self.network.release(self.endpoints),
        effects.Post: _post,
        effects.Withdraw: _withdraw,
        effects.Dial: _dial,
        effects.GiveUp: _give_up,
        effects.CloseLink: _close_link,
        effects.Stream: _stream,
        Work: _work,
    }


class SimShard:
    """A shard and its connections, whose bytes travel over the simulated network.

    Attributes
    ----------
    stalled_until : float
        Time until which its thread hangs while the process goes on.
    """

    def __init__(self, server, effect, address):
        self.server, self.world, self.address = server, server.world, address
        self.number, self.handle = effect.number, effect.shard
        limits, us = Limits.of(server.settings.request_timeout), server.welcome
        self.thread = TurnedShard(
            server.cluster.frag_num,
            Hello(Channel.DATA, Role.SERVER, NONCE, us.node, us.incarnation, us.job),
            self._check, limits.parked_s, staged_bytes_max=STAGED_BYTES_MAX,
            standby=effect.standby, silence_limit_s=limits.silence_s,
            stuck_limit_s=limits.stuck_s,
        )  # fmt: skip
        self.shard = self.thread.shard
        self.stopped, self.stalled_until = False, 0.0
        self._ends = {}  # by pipe, which leads to the loop
        self._told = []  # events for the server's core
        self._last, self._due = 0.0, None
        server.on_death.append(self._close)
        server.network.listen(server, address, self._admit)

    def soon(self, do, *args):
        """Calls a function in this shard's thread, after all earlier ones."""
        when = self.world.now + self.server.network.delay() * 0.1
        self._last = when = max(when, self._last, self.stalled_until)
        self.world.at(when, do, *args, process=self.server)

    def stop(self):
        """Stops serving."""
        if self.stopped:
            return
        self.server.network.unlisten(self.server, self.address)
        for end in self._ends.values():
            end.close()
        self._close()
        self._feed()

    def _close(self):
        if not self.stopped:
            self.stopped = True
            for pipe in self._ends:
                pipe.close()
            self._ends.clear()
            self.thread.stop()

    # --- work for its thread ----------------------------------------------------------------------

    def post(self, effect):
        """Performs a post of the server's core in the shard's thread."""

        def done(future):
            error = future.exception()
            result = future.result() if error is None else None
            self._told.append(WorkDone(effect.post, result, error))

        do = partial(effect.do, self.shard)
        self.thread.post(do, at_standby=effect.at_standby).add_done_callback(done)
        self.settle()

    def lead(self, effect, end):
        """Begins a stream to the standby at the other end of a connection."""

        def tell(state, why):
            if not self.stopped:
                trouble = "" if state == "ready" else why or "lost"
                self._told.append(events.StreamReported(effect.stream, trouble))

        def begun(future):
            if (error := future.exception()) is not None:
                self._told.append(events.StreamReported(effect.stream, explain(error)))

        near, far = socket.socketpair()
        self._take(Pipe(far), False, end)
        self.thread.back_up(
            near.detach(), sync=effect.sync, paced=effect.paced, resume=effect.resume, report=tell
        ).add_done_callback(begun)
        self.settle()

    # --- connections ------------------------------------------------------------------------------

    def _check(self, hello):
        if hello.channel != Channel.DATA:
            raise ProtocolError("this is a shard: it has only a data channel", "channel")
        if hello.job != self.server.welcome.job:
            raise ProtocolError("you belong to another cluster", "job")

    def _admit(self, hello):
        pipe, answer = self.thread.connect(hello, self.world.now)
        return answer, partial(self._take, pipe, hello.role != Role.SERVER)

    def _take(self, pipe, asks, end):
        self._ends[pipe] = end
        end.listen(
            lambda data: self.soon(self._receive, pipe, asks, data),
            lambda why: self.soon(self._ended, pipe),
        )

    def _receive(self, pipe, asks, data):
        if pipe not in self._ends:
            return
        if asks and data[5] == Kind.SEAL:
            self.server.cluster.faults.on_event("Seal", self._ends[pipe].other.process)
            if not self.server.alive:
                return
        watched = asks and invariants.is_fenced_push(self, data)
        if watched:
            self.settle()
        before = self.shard.stats(self.world.now) if watched else None
        pipe.send(data)
        self.settle()
        if watched and not self.stopped:
            invariants.push_is_not_taken(self, data, before, self.shard.stats(self.world.now))

    def _ended(self, pipe):
        if self._ends.pop(pipe, None) is not None:
            pipe.close()
            self.settle()

    # --- what follows -----------------------------------------------------------------------------

    def settle(self):
        """Gives the loop turns until it has nothing left to do now, and sends its output."""
        due = -math.inf
        while not self.stopped and due <= self.world.now:
            due = self.thread.settle(self.world.now)
            for pipe, end in list(self._ends.items()):
                moved = pipe.send()
                if data := pipe.receive():
                    end.send(data)
                if pipe.ended:
                    end.close()
                    pipe.close()
                    del self._ends[pipe]
                if moved or data or pipe.ended:
                    due = -math.inf
        self._turn_at(math.inf if self.stopped else due)
        self._feed()

    def _feed(self):
        told, self._told = self._told, []
        for event in told:
            if self.server.alive:
                self.server.feed(event)

    def _turn_at(self, when):
        if self._due is not None:
            if self._due[0] == when:
                return
            self.world.cancel(self._due)
            self._due = None
        if when < math.inf:
            when = max(when, self.world.now + 1e-4, self.stalled_until)
            self._due = self.world.at(when, self._on_due, process=self.server)

    def _on_due(self):
        self._due = None
        self.settle()
