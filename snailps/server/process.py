"""A server process: sockets, shard threads, disks and the clock round a `ServerCore`.

    orders of the master, shards, dials, works, time -> Event -> ServerCore.handle
        -> list of Effect -> Performer -> answers, notes, posts to shard threads, connections

Decides nothing. Owns the sockets, and the control thread, which feeds the core and has the
`Performer` perform its effects in their order.  Must not know models.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from snailps.abi import loops
from snailps.abi.numa import cpus_of_shard, numa_nodes
from snailps.abi.quota import cores
from snailps.api.access_method import load_method
from snailps.config import ServerSettings, effective_shard_num
from snailps.errors import (
    EXIT_FAILED,
    ClusterError,
    ProtocolError,
    WaitTimeout,
    explain,
)
from snailps.node.effects import Event, Tick
from snailps.node.limits import STATS_S, STOP_S, Limits
from snailps.node.metric_samples import of_server
from snailps.node.metrics import Sample
from snailps.node.process import Node, advertised, open_listener, raise_descriptors
from snailps.node.usage import peak_rss_mb
from snailps.server import effects, events
from snailps.server.checkpoint_io import ServerCheckpointFiles
from snailps.server.core import ServerCore
from snailps.server.events import Address
from snailps.server.performer import Performer
from snailps.shard.shard_thread import ShardThread
from snailps.transport import messages
from snailps.transport._awake import awake_s
from snailps.transport.control import AnswerOrFuture, Listener, dial
from snailps.transport.handshake import NONCE_BYTES, Channel, Hello, Role, ServerSession

log = logging.getLogger(__name__)
END_S = 0.5
"""Seconds that the control thread may take to end after a cancelled checkpoint has ended."""


class Server(Node):
    def __init__(self, settings: ServerSettings, secret: bytes = b"") -> None:
        super().__init__(Role.SERVER, settings, secret)
        self._server_settings = settings
        self._numa_nodes = numa_nodes()
        # not taken by a shard yet, by index of the endpoint
        self._listeners: dict[int, Listener] = {}
        self.core: ServerCore | None = None
        self._core_lock = threading.Lock()  # the reader thread calls the core, too
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._control_thread = threading.Thread(
            target=self._serve, name="snailps-server", daemon=True
        )
        self._us: messages.Welcome
        self.performer = Performer(
            self._inbox,
            start=self._start_shard,
            connect=self._connect,
            note=lambda message: self.control.note(message),
            close_listeners=self._close_listeners,
        )

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
            endpoints = self._endpoints_of_listeners()
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

    def _endpoints_of_listeners(self) -> list[Address]:
        return [
            advertised(self._server_settings, listener) for listener in self._listeners.values()
        ]

    def on_welcome(self, welcome: messages.Welcome) -> None:
        """Create the core, before the master's first orders can arrive."""
        self.core = ServerCore(
            self._server_settings,
            welcome,
            ServerCheckpointFiles(welcome.job, welcome.frag_num),
            endpoints=self._endpoints_of_listeners(),
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
        return self.performer.ordered(message)

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
            return self.core.resume_state() if self.core is not None else {"standbys": []}

    def stop_serving(self) -> None:
        """End checkpoints and the control thread, then all shards."""
        if self.core is None:
            return
        self._inbox.put(events.End())
        self._control_thread.join(STOP_S + END_S)
        until = awake_s() + STOP_S
        for shard in list(self.performer.shards.values()):
            shard.stop(0.0)
        for shard in list(self.performer.shards.values()):
            shard.stop(max(0.0, until - awake_s()))

    # --- the control thread ----------------------------------------------------------------------

    def _serve(self) -> None:
        core = self.core
        assert core is not None
        try:
            while not core.over:
                event = self._next_event(core.due)
                with self._core_lock:
                    wanted = core.handle(event, awake_s())
                    self.route_epoch = core.route_epoch
                self.performer.perform(wanted)
        except Exception as error:
            log.exception("%s failed", self.name)
            self.end(EXIT_FAILED, f"{self.name} failed: {explain(error)}")

    def _next_event(self, due: float) -> Event:
        if due == math.inf:
            return self._inbox.get()
        try:
            return self._inbox.get(timeout=max(0.0, due - awake_s()))
        except queue.Empty:
            return Tick()

    # --- sockets ---------------------------------------------------------------------------------

    def _start_shard(self, effect: effects.StartShard) -> tuple[ShardThread, Address]:
        if effect.listener is None:
            listener = open_listener(self._server_settings, self.trust)
        else:
            listener = self._listeners.pop(effect.listener)
        try:
            endpoint = advertised(self._server_settings, listener)
            limits = Limits.of(self.settings.request_timeout)
            shard = ShardThread(
                listener,
                self._make_session,
                loops.row_ops(),
                loops.wire_ops(),
                self._us.frag_num,
                limits.parked_s,
                f"snailps-shard-{effect.number}",
                standby=effect.standby,
                silence_limit_s=limits.silence_s,
                stuck_limit_s=limits.stuck_s,
                cpus=cpus_of_shard(effect.number, self._numa_nodes),
            )
            shard.start()
        except BaseException:
            listener.close()
            raise
        return shard, endpoint

    def _connect(self, effect: effects.Dial, give_up: Callable[[], bool]) -> int:
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
            give_up=give_up,
        )
        sock.setblocking(False)
        return sock.detach()

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
