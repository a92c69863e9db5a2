"""A server process: sockets, shard threads, disks and the clock round a `ServerCore`.

    orders of the master, shards, dials, works, time -> Event -> ServerCore.handle
        -> list of Effect -> answers, notes, posts to shard threads, connections

Decides nothing. Its control thread feeds the core and performs effects in their order; none of them
waits.  Must not know models.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import Any

from snailps import kernels
from snailps.api.access_method import load_method
from snailps.config import ServerSettings, effective_shard_num
from snailps.errors import (
    EXIT_FAILED,
    ClusterError,
    ConnectionLost,
    ProtocolError,
    SnailError,
    WaitTimeout,
    explain,
)
from snailps.kernels import cores
from snailps.kernels.numa import cpus_of_shard, numa_nodes
from snailps.node.background import in_thread
from snailps.node.effects import Answering, Event, Tick, Work, WorkDone
from snailps.node.limits import STATS_S, STOP_S, Limits
from snailps.node.metric_samples import of_server
from snailps.node.metrics import Sample
from snailps.node.process import Node, advertised, open_listener, raise_descriptors
from snailps.node.usage import peak_rss_mb
from snailps.server import effects, events
from snailps.server.checkpoint_io import CheckpointFiles
from snailps.server.core import ServerCore
from snailps.shard.shard_thread import ShardThread
from snailps.transport import messages
from snailps.transport.control import AnswerOrFuture, Listener, dial
from snailps.transport.handshake import NONCE_BYTES, Channel, Hello, Role, ServerSession

log = logging.getLogger(__name__)
GONE = "the shard has stopped serving"
END_S = 0.5
"""Seconds that the control thread may take to end beyond what a cancelled checkpoint may."""


class Server(Node):
    def __init__(self, settings: ServerSettings, secret: bytes = b"") -> None:
        super().__init__(Role.SERVER, settings, secret)
        self._server_settings = settings
        self._numa_nodes = numa_nodes()
        # not taken by a shard yet, by index of the endpoint
        self._listeners: dict[int, Listener] = {}
        self._core: ServerCore | None = None
        self._core_lock = threading.Lock()  # the reader thread calls the core, too
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._control_thread = threading.Thread(
            target=self._serve, name="snailps-server", daemon=True
        )
        self._us: messages.Welcome
        self._calls: dict[int, Future[messages.Message]] = {}
        self._calls_lock = threading.Lock()
        self._last_call = 0
        self._shards: dict[int, ShardThread] = {}
        self._not_started: dict[int, SnailError] = {}  # why
        self._posts: dict[int, Future[Any]] = {}  # posts that a shard has not answered
        self._given_up: set[int] = set()  # dials
        self._performers = self._effect_table()

    # --- the life of the process -----------------------------------------------------------------

    def run(self) -> int:
        """Serve until the end; returns the exit code."""
        raise_descriptors()
        shard_num, notice = effective_shard_num(self._server_settings, cores())
        if notice:
            log.warning("%s", notice)
        try:
            for index in range(shard_num):
                self._listeners[index] = open_listener(self._server_settings, self.trust)
            endpoints = [advertised(self._server_settings, one) for one in self._listeners.values()]
            if len(set(endpoints)) < shard_num:
                raise ClusterError(
                    f"advertise_addr gives {shard_num} shards one port: leave its port out, "
                    "use port_range, or set shard_num: 1"
                )
            self.join(endpoints)
            self.ended.wait()
            self.stop_serving()
        finally:
            self._close_listeners()
        self.leave({})
        return self.verdict.code

    def on_welcome(self, welcome: messages.Welcome) -> None:
        """Create the core, before the master's first orders can arrive."""
        self._core = ServerCore(
            self._server_settings,
            welcome,
            CheckpointFiles(welcome.job, welcome.frag_num),
            endpoints=[advertised(self._server_settings, one) for one in self._listeners.values()],
            own_rss_mb=peak_rss_mb,
            own_stats=self.own_stats,
            load_method=load_method,
        )
        self._us = welcome
        self._control_thread.start()

    def on_message(self, message: messages.Message) -> AnswerOrFuture:
        """Pass an order of the master to the core; the future has its answer."""
        if isinstance(message, messages.Stop):
            return super().on_message(message)
        future: Future[messages.Message] = Future()
        with self._calls_lock:
            self._last_call += 1
            call = self._last_call
        self._calls[call] = future
        self._inbox.put(events.Ordered(call, message))
        return future

    def metric_samples(self) -> list[Sample]:
        """Metrics of this process and of its shards; WaitTimeout if a shard does not answer."""
        asked = self.on_message(messages.Ask("stats"))
        assert isinstance(asked, Future)
        try:
            report = asked.result(STATS_S)
        except FutureTimeout:
            raise WaitTimeout(f"the shards did not answer within {STATS_S:.0f} s") from None
        assert isinstance(report, messages.Report)
        return [*super().metric_samples(), *of_server(report.data)]

    def resume_state(self) -> dict[str, Any]:
        with self._core_lock:
            return self._core.resume_state() if self._core is not None else {"standbys": []}

    def stop_serving(self) -> None:
        """End checkpoints and the control thread, then all shards."""
        if self._core is None:
            return
        self._inbox.put(events.End())
        self._control_thread.join(STOP_S + END_S)
        until = time.monotonic() + STOP_S
        for shard in list(self._shards.values()):
            shard.stop(0.0)
        for shard in list(self._shards.values()):
            shard.stop(max(0.0, until - time.monotonic()))

    # --- the control thread ----------------------------------------------------------------------

    def _serve(self) -> None:
        core = self._core
        assert core is not None
        try:
            while not core.over:
                event = self._next_event(core.due)
                with self._core_lock:
                    wanted = core.handle(event, time.monotonic())
                    self.route_epoch = core.route_epoch
                for effect in wanted:
                    self._performers[type(effect)](effect)
        except Exception as error:
            log.exception("%s failed", self.name)
            self.end(EXIT_FAILED, f"{self.name} failed: {explain(error)}")

    def _next_event(self, due: float) -> Event:
        if due == math.inf:
            return self._inbox.get()
        try:
            return self._inbox.get(timeout=max(0.0, due - time.monotonic()))
        except queue.Empty:
            return Tick()

    def _effect_table(self) -> Mapping[type[Any], Callable[[Any], None]]:
        return {
            Answering: self._answer,
            effects.Note: lambda effect: self.control.note(effect.message),
            effects.StartShard: self._start_shard,
            effects.StopShard: self._stop_shard,
            effects.CloseListeners: lambda effect: self._close_listeners(),
            effects.Post: self._post,
            effects.Withdraw: self._withdraw,
            effects.Dial: self._dial_standby,
            effects.GiveUp: lambda effect: self._given_up.add(effect.dial),
            effects.CloseLink: lambda effect: os.close(effect.link),
            effects.Stream: self._stream,
            Work: self._work,
        }

    # --- effects ---------------------------------------------------------------------------------

    def _answer(self, effect: Answering) -> None:
        future = self._calls.pop(effect.call)
        if isinstance(effect.answer, SnailError):
            future.set_exception(effect.answer)
        else:
            future.set_result(effect.answer)

    def _start_shard(self, effect: effects.StartShard) -> None:
        listener: Listener | None = None
        try:
            if effect.listener is None:
                listener = open_listener(self._server_settings, self.trust)
            else:
                listener = self._listeners.pop(effect.listener)
            endpoint = advertised(self._server_settings, listener)
            shard = self._make_shard(listener, effect)
            shard.start()
        except Exception as error:
            if listener is not None:
                listener.close()
            if not isinstance(error, SnailError):
                log.exception("shard %d cannot be started", effect.number)
                error = ClusterError(f"shard {effect.number} cannot be started: {explain(error)}")
            self._not_started[effect.shard] = error
            self._inbox.put(WorkDone(effect.shard, error=error))
        else:
            self._shards[effect.shard] = shard
            self._inbox.put(WorkDone(effect.shard, endpoint))

    def _make_shard(self, listener: Listener, effect: effects.StartShard) -> ShardThread:
        limits = Limits.of(self.settings.request_timeout)
        return ShardThread(
            listener,
            self._make_session,
            kernels.row_ops(),
            kernels.wire_ops(),
            self._us.frag_num,
            limits.parked_s,
            f"snailps-shard-{effect.number}",
            standby=effect.standby,
            silence_limit_s=limits.silence_s,
            stuck_limit_s=limits.stuck_s,
            cpus=cpus_of_shard(effect.number, self._numa_nodes),
        )

    def _stop_shard(self, effect: effects.StopShard) -> None:
        shard = self._shards.pop(effect.shard, None)
        if shard is not None:  # frees its memory, which takes a while
            in_thread("snailps-hosting", shard.stop).add_done_callback(_say_why)

    def _post(self, effect: effects.Post) -> None:
        shard = self._shards.get(effect.shard)
        if shard is None:
            error = self._not_started.get(effect.shard) or ConnectionLost(GONE)
            self._inbox.put(WorkDone(effect.post, error=error))
            return
        future = shard.post(partial(effect.do, shard.shard), at_standby=effect.at_standby)
        self._posts[effect.post] = future
        future.add_done_callback(partial(self._done, effect.post))

    def _done(self, number: int, future: Future[Any]) -> None:
        self._posts.pop(number, None)
        if future.cancelled():
            error: BaseException | None = WaitTimeout("the shard did not begin this in time")
        else:
            error = future.exception()
        result = future.result() if error is None else None
        self._inbox.put(WorkDone(number, result, error))

    def _withdraw(self, effect: effects.Withdraw) -> None:
        future = self._posts.get(effect.post)
        if future is not None:
            future.cancel()

    def _dial_standby(self, effect: effects.Dial) -> None:
        def connect() -> None:
            try:
                sock = dial(
                    effect.address,
                    Channel.DATA,
                    Role.SERVER,
                    peer_name=f"the standby of shard {effect.number}",
                    limit_s=effect.limit_s,
                    node=self._us.node,
                    incarnation=self._us.incarnation,
                    job=self._us.job,
                    trust=self.trust,
                    give_up=lambda: effect.dial in self._given_up,
                )
                sock.setblocking(False)
                done = WorkDone(effect.dial, sock.detach())
            except Exception as error:
                if not isinstance(error, SnailError):
                    log.exception("cannot connect to the standby of shard %d", effect.number)
                    error = ClusterError(explain(error))
                done = WorkDone(effect.dial, error=error)
            self._given_up.discard(effect.dial)
            self._inbox.put(done)

        def begun(future: Future[None]) -> None:  # it could not be, if it has an error
            if (error := future.exception()) is not None:
                self._inbox.put(WorkDone(effect.dial, error=error))

        in_thread("snailps-hosting", connect).add_done_callback(begun)

    def _stream(self, effect: effects.Stream) -> None:
        def report(state: str, why: str) -> None:
            trouble = "" if state == "ready" else why or state
            self._inbox.put(events.StreamReported(effect.stream, trouble))

        def begun(future: Future[None]) -> None:
            if (error := future.exception()) is not None:
                report("lost", explain(error))

        shard = self._shards.get(effect.shard)
        if shard is None:
            os.close(effect.link)
            report("lost", GONE)
            return
        shard.back_up(
            effect.link, sync=effect.sync, paced=effect.paced, resume=effect.resume, report=report
        ).add_done_callback(begun)

    def _work(self, effect: Work) -> None:
        future = in_thread(f"snailps-work-{effect.number}", effect.run)
        future.add_done_callback(partial(self._done, effect.number))

    def _close_listeners(self) -> None:
        while self._listeners:
            self._listeners.popitem()[1].close()

    def _make_session(self) -> ServerSession:
        us = self._us
        hello = Hello(
            Channel.DATA, Role.SERVER, os.urandom(NONCE_BYTES), us.node, us.incarnation, us.job
        )
        return ServerSession(hello, self.trust.secret, self._admit)

    def _admit(self, peer: Hello) -> None:
        if peer.channel != Channel.DATA:
            raise ProtocolError("this is a shard: it has only a data channel", "channel")
        if peer.job != self._us.job:
            raise ProtocolError(
                "you belong to another cluster: this port was given to a new one", "job"
            )


def _say_why(future: Future[Any]) -> None:
    """Log the error of what nothing waits for."""
    if (error := future.exception()) is not None:
        log.error("a shard could not be stopped, and keeps its memory: %s", explain(error))
