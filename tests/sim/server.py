"""A server: the real core, shards and store; effects are performed on the simulated network.

    orders, answers of shards, dials, works, time -> Event -> ServerCore.handle -> list of Effect
    frames of clients and primaries -> ShardDriver -> replies, stream to the standby

It does what `snailps/server/process.py`, `ShardThread` and `ShardLoop` do with sockets and threads.
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

from snailps import kernels
from snailps.errors import (
    ConnectionLost,
    ProtocolError,
    SnailError,
    WaitTimeout,
    explain,
)
from snailps.node.limits import Limits
from snailps.server import effects, events
from snailps.server.core import ServerCore
from snailps.shard._driver import ShardDriver
from snailps.shard._shard import ShardCore
from snailps.shard.shard import Shard
from snailps.transport.frame import Kind
from snailps.transport.handshake import Channel, Hello, Role
from tests.sim import invariants
from tests.sim.memory_disk import PowerCut
from tests.sim.model import Counted
from tests.sim.node import Node

CLOCK_LIMIT_S = 3600.0
STAGED_BYTES_MAX = 16 << 20


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
            endpoints=self.endpoints, own_rss_mb=lambda: 1.0, load_method=Counted,
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
        """Hands the core an event, and does what it wants, with all that comes of that."""
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
        self.feed(events.Tick())

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
        self._events.append(events.ShardStarted(effect.shard, address))

    def _stop_shard(self, effect):
        shard = self.shards.pop(effect.shard, None)
        if shard is not None:
            shard.stop()

    def _post(self, effect):
        shard = self.shards.get(effect.shard)
        if shard is None:
            lost = ConnectionLost("the shard has stopped serving")
            self._events.append(events.Answered(effect.post, error=lost))
            return
        self._posts[effect.post] = shard
        shard.soon(self._run_post, effect, shard)

    def _run_post(self, effect, shard):
        if self._posts.pop(effect.post, None) is None:
            return  # withdrawn

        def done(result, error):
            self.feed(events.Answered(effect.post, result, error))

        if shard.stopped:
            done(None, ConnectionLost("the shard has stopped serving"))
            return
        shard.driver.post(partial(effect.do, shard.shard), done, effect.at_standby)
        shard.settle()

    def _withdraw(self, effect):
        if self._posts.pop(effect.post, None) is not None:
            late = WaitTimeout("the shard did not come to it in time")
            self._events.append(events.Answered(effect.post, error=late))

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
            self.feed(events.DialFailed(effect.dial, error))
            return
        self._dials.pop(effect.dial)
        link = self._number()
        self.links[link] = end
        self.feed(events.Dialled(effect.dial, link))

    def _give_up(self, effect):
        if effect.dial in self._dials:
            self._dials[effect.dial] = True

    def _close_link(self, effect):
        self.links.pop(effect.link).close()

    def _stream(self, effect):
        shard = self.shards.get(effect.shard)
        if shard is None:
            self.links.pop(effect.link).close()
            told = events.StreamTold(effect.stream, "the shard has stopped serving")
            self._events.append(told)
            return
        shard.soon(self._begin_stream, effect, shard)

    def _begin_stream(self, effect, shard):
        def tell(state, why):
            trouble = "" if state == "ready" else why or "lost"
            self.feed(events.StreamTold(effect.stream, trouble))

        if shard.stopped:
            self.links.pop(effect.link).close()
            tell("lost", "the shard has stopped serving")
            return
        end = self.links[effect.link]
        try:
            shard.shard.back_up(effect.link, effect.sync, effect.paced, effect.resume, tell)
        except SnailError as error:
            self.links.pop(effect.link).close()
            tell("lost", explain(error))
            return
        shard.leads(effect.link, end)
        shard.settle()

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
        self.feed(events.WorkDone(effect.number, result, error))

    _performers: ClassVar = {
        effects.Answering: _answer,
        effects.Tell: _tell,
        effects.StartShard: _start_shard,
        effects.StopShard: _stop_shard,
        effects.CloseListeners: lambda self, effect: self.network.release(self.endpoints),
        effects.Post: _post,
        effects.Withdraw: _withdraw,
        effects.Dial: _dial,
        effects.GiveUp: _give_up,
        effects.CloseLink: _close_link,
        effects.Stream: _stream,
        effects.Work: _work,
    }


class SimShard:
    """A shard with its connections.

    Attributes
    ----------
    stalled_until : float
        Its thread hangs until then, while the process goes on.
    """

    def __init__(self, server, effect, address):
        self.server, self.world, self.address = server, server.world, address
        self.number, self.handle = effect.number, effect.shard
        limits = Limits.of(server.settings.request_timeout)
        core = ShardCore(
            kernels.row_ops(), kernels.wire_ops(), server.cluster.frag_num, CLOCK_LIMIT_S,
            STAGED_BYTES_MAX, effect.standby,
        )  # fmt: skip
        self.driver = ShardDriver(core, limits.parked_s, limits.silence_s, limits.stuck_s)
        self.shard = Shard(core, self.driver)
        self.stopped, self.stalled_until = False, 0.0
        self._ends = {}  # connections that were accepted, by number
        self._stream_of = {}  # of them, those of primaries
        self._next, self._last, self._due = 1, 0.0, None
        self._settling = False
        server.network.listen(server, address, self._admit)

    def soon(self, do, *args):
        """Does something in this shard's thread, behind all that was given before."""
        when = self.world.now + self.server.network.delay() * 0.1
        self._last = when = max(when, self._last, self.stalled_until)
        self.world.at(when, do, *args, process=self.server)

    def stop(self):
        """Serves no more."""
        if self.stopped:
            return
        self.stopped = True
        self.server.network.unlisten(self.server, self.address)
        ends, self._ends = self._ends, {}
        for end in ends.values():
            end.close()
        if self.driver.link in self.server.links:
            self.server.links.pop(self.driver.link).close()
        self.driver.stop()
        self.shard.close()

    # --- connections ------------------------------------------------------------------------------

    def _admit(self, hello):
        welcome = self.server.welcome
        if hello.channel != Channel.DATA:
            raise ProtocolError("this is a shard: it has only a data channel", "channel")
        if hello.job != welcome.job:
            raise ProtocolError("you belong to another cluster", "job")
        connection = self._next
        self._next += 1
        if hello.role == Role.SERVER:
            self.driver.accept_stream(connection)
        answer = Hello(Channel.DATA, Role.SERVER, b"n" * 16, welcome.node, welcome.incarnation,
                       welcome.job)  # fmt: skip
        return answer, partial(self._take, connection, hello.role == Role.SERVER)

    def _take(self, connection, is_stream, end):
        self._ends[connection] = end
        do = self._replay if is_stream else self._ask
        end.listen(
            lambda data: self.soon(do, connection, data),
            lambda why: self.soon(self._closed, connection),
        )

    def _ask(self, connection, data):
        if connection in self._ends and not self.stopped:
            if data[5] == Kind.SEAL:
                self.server.cluster.faults.on_event("Seal", self._ends[connection].other.process)
                if not self.server.alive:
                    return
            answer = self.driver.ask(connection, data, self.world.now)
            invariants.watch_answer(self, data, answer)
            self._say(connection, answer)
            self.settle()

    def _replay(self, connection, data):
        if connection in self._ends and not self.stopped:
            self._say(connection, self.driver.replay(data, self.world.now, connection))
            self.settle()

    def _say(self, connection, answer):
        end = self._ends.get(connection)
        if end is None or answer.frame is None:
            return
        end.send(answer.frame)
        if answer.last:
            self._close(connection)

    def _closed(self, connection):
        if self._ends.pop(connection, None) is not None and not self.stopped:
            self.driver.close(connection)
            self.settle()

    def _close(self, connection):
        end = self._ends.pop(connection, None)
        if end is not None:
            end.close()
            self.driver.close(connection)

    # --- the stream to the standby ----------------------------------------------------------------

    def leads(self, link, end):
        """A stream has begun over a dialled connection."""
        end.listen(
            lambda data: self.soon(self._acknowledged, link, data),
            lambda why: self.soon(self._lost, link, why),
        )

    def _acknowledged(self, link, data):
        if self.driver.link == link and not self.stopped:
            self.driver.acknowledge(data, self.world.now)
            self.settle()

    def _lost(self, link, why):
        self.server.links.pop(link, None)
        if self.driver.link == link and not self.stopped:
            self.driver.lose_stream(why)
            self.settle()

    # --- what follows -----------------------------------------------------------------------------

    def settle(self):
        """Sends what may go, until nothing more comes of it."""
        if self._settling:
            return
        self._settling = True
        driver, server = self.driver, self.server
        try:
            for _ in range(1000):
                if self.stopped or not server.alive:
                    return
                moved = False
                end = server.links.get(driver.link)
                if end is not None:
                    for frame in driver.take_stream(self.world.now):
                        end.send(frame)
                        moved = True
                for sent in driver.turn(self.world.now):
                    moved = True
                    end = self._ends.get(sent.connection)
                    if end is not None:
                        end.send(sent.frame)
                        if sent.last:
                            self._close(sent.connection)
                moved = moved or driver.due <= self.world.now
                if driver.closed:
                    driver.closed = False
                    driver.hung_up = [*driver.hung_up, *self._ends]
                hung_up, driver.hung_up = driver.hung_up, []
                for connection in hung_up:
                    self._close(connection)
                cut, driver.cut_links = driver.cut_links, []
                for link in cut:
                    if link in server.links:
                        server.links.pop(link).close()
                if not (moved or hung_up or cut):
                    break
            else:
                raise AssertionError(f"{server.name}: shard {self.number} comes to no rest")
        finally:
            self._settling = False
        self._turn_at(driver.due)

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
        if not self.stopped:
            self.settle()
