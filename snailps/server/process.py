"""A server process: shard threads, each with its socket, its loop and its rows.

    listen -> join -> TakeRoute, MakeTables (control plane) ... PULL / PUSH / SCAN (shards) -> Stop

Passes the master's orders to the shards, which `shard_host.py` owns, and answers each order once
all shards concerned have executed it; the next order does not wait for that.  Must not know models.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from snailps.api.tables import Table
from snailps.config import ServerSettings, effective_shard_num
from snailps.errors import ClusterError, ProtocolError
from snailps.kernels import cores
from snailps.node.process import Node, advertised, open_listener, peak_rss_mb, raise_descriptors
from snailps.server.checkpoint_io import CheckpointLoad, CheckpointSave
from snailps.server.futures import gather, then
from snailps.server.shard_host import ShardHost
from snailps.shard.shard_thread import ShardThread
from snailps.store.route import Route
from snailps.transport import messages
from snailps.transport.control import AnswerOrFuture, Listener
from snailps.transport.handshake import Role

log = logging.getLogger(__name__)
T = TypeVar("T")


class Server(Node):
    """One server process.

    Parameters
    ----------
    settings : ServerSettings
    """

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(Role.SERVER, settings)
        self._server_settings = settings
        self._listeners: list[Listener] = []
        self._host: ShardHost | None = None
        self._touched: set[int] = set()  # tables that track touches
        self._saving: CheckpointSave | CheckpointLoad | None = None
        # Orders for checkpoints, executed in order: they wait for disks and for shards.
        self._saver = ThreadPoolExecutor(1, thread_name_prefix="snailps-saver")

    def run(self) -> int:
        """Serves until the end; returns the exit code."""
        raise_descriptors()
        shard_num, notice = effective_shard_num(self._server_settings, cores())
        if notice:
            log.warning("%s", notice)
        self._listeners = [open_listener(self.settings, self.trust) for _ in range(shard_num)]
        endpoints = [advertised(self.settings, listener) for listener in self._listeners]
        try:
            if len(set(endpoints)) < shard_num:
                raise ClusterError(
                    f"advertise_addr gives {shard_num} shards one port: leave its port out, "
                    "use port_range, or set shard_num: 1"
                )
            self.join(endpoints)
            self.wait_until_ended()
            self._stop_saving()
            if self._host is not None:
                self._host.stop()
        finally:
            self._saver.shutdown(wait=False, cancel_futures=True)
            self._close_listeners()
        self.leave({})
        return self.verdict.code

    def on_welcome(self, welcome: messages.Welcome) -> None:
        """Creates the shard host, before the master's first orders can arrive."""
        self._host = ShardHost(self._server_settings, self.trust, welcome, tell=self.control.note)

    def on_message(self, message: messages.Message) -> AnswerOrFuture:
        """Orders of the master: route, tables, shards, statistics."""
        if isinstance(message, messages.Stop):
            return super().on_message(message)
        assert self._host is not None
        if not isinstance(message, messages.TakeRoute | messages.Ask):
            self._close_listeners()  # a server that joins a running job starts without shards
            self._host.formed()
        if isinstance(message, messages.TakeRoute):
            route = Route.from_dict(message.route)
            taken = self._host.take_route(route, self._listeners)
            self.route_epoch = route.epoch
            return then(taken, _ok)
        if isinstance(message, messages.MakeTables):
            return then(self._host.make_tables(self._tables_of(message.tables)), _ok)
        if isinstance(message, messages.HostStandby):
            hosted = self._host.host_standby(message.shard, self._tables_of(message.tables))
            return then(hosted, lambda endpoint: messages.Report({"endpoint": list(endpoint)}))
        if isinstance(message, messages.Alone):
            return then(self._host.alone(message.shard), _ok)
        if isinstance(message, messages.Promote):
            return then(self._host.promote(message.shard, message.epoch), _ok)
        if isinstance(message, messages.Ask):
            saved = self._saving.done_bytes if self._saving is not None else 0
            own = {"peak_rss_mb": peak_rss_mb(), "saved_bytes": saved}
            return then(self._host.stats(), lambda stats: messages.Report({**stats, **own}))
        if isinstance(
            message, messages.Save | messages.Load | messages.StopSaving | messages.Freeze
        ):
            return self._saver.submit(self._save_or_load, message)
        if isinstance(message, messages.BackUp):
            self._host.back_up(message)
        elif isinstance(message, messages.Yield):
            self._host.yield_(message.shard, message.limit_s, message.stay)
        elif isinstance(message, messages.DropShard):
            self._host.drop(message.shard)
        elif isinstance(message, messages.KeepShards):
            self._host.keep(message.shards)
        else:
            return then(self._change(self._host, message), messages.Report)
        return messages.Ok()

    def resume_state(self) -> dict[str, Any]:
        """The state of this server's standbys."""
        return {"standbys": self._host.resume_state() if self._host is not None else []}

    def _change(self, host: ShardHost, message: messages.Message) -> Future[dict[str, Any]]:
        """Executes an order that changes rows; reports the shards that are done, and results.

        A shard is done once its standby has executed the order too, or will not be promoted.
        """
        if isinstance(message, messages.Expire):
            tick, before = message.tick, message.before
            expired = host.each(
                message.shards, lambda n, s: self._expire(s, host.fragments_of(n), tick, before)
            )
            return then(
                expired, lambda found: {"done": list(found), "expired": sum(found.values())}
            )
        if isinstance(message, messages.SetClock):
            clock, early = message.clock, message.early
            begun = host.each(
                message.shards, lambda _, s: _both(s, lambda: s.set_clock(clock, early))
            )
            return then(begun, lambda found: {"done": list(found)})
        if isinstance(message, messages.CloseClock):
            clock, slots = message.clock, message.slots
            closed = host.each(
                message.shards, lambda _, s: _both(s, lambda: s.close_clock(clock, slots))
            )
            return then(closed, lambda found: {"done": list(found), "shards": list(found.values())})
        if isinstance(message, messages.Fence):
            fence = message
            fenced = host.each(fence.shards, lambda _, s: _both(s, lambda: _fence(s, fence)))
            return then(fenced, lambda found: {"done": list(found)})
        raise ProtocolError(f"a server does not take {type(message).__name__}")

    def _primaries(self) -> list[ShardThread]:
        assert self._host is not None
        # An atomic copy: the saver thread calls this too.
        return [shard for _, shard in sorted(self._host.primaries.copy().items())]

    def _tables_of(self, items: list[Any]) -> list[tuple[int, Table]]:
        found = []
        for number, declared in items:
            table = Table.from_dict(declared)
            found.append((number, table))
            if "touch" in table.track:
                self._touched.add(number)
        return found

    def _save_or_load(
        self, order: messages.Save | messages.Load | messages.StopSaving | messages.Freeze
    ) -> messages.Message:
        """Starts to write or read a checkpoint, or cancels that.  Runs in the saver thread."""
        if isinstance(order, messages.StopSaving):
            self._stop_saving()
            for shard in self._primaries():
                shard.thaw()
            return messages.Ok()
        self._check_free()  # a cancelled save thaws the shards at its end
        if isinstance(order, messages.Freeze):
            return messages.Report(
                {"clocks": [shard.freeze(order.clock) for shard in self._primaries()]}
            )
        assert self.welcome is not None
        life, frag_num = self.welcome.job, self.welcome.frag_num
        shards = self._primaries()
        if isinstance(order, messages.Load):
            self._saving = CheckpointLoad(
                shards, order, life=life, frag_num=frag_num, tell=self.control.note
            )
        else:
            CheckpointSave.check_folder(order, life)
            self._saving = CheckpointSave(
                shards,
                order,
                life=life,
                node=self.welcome.node,
                frag_num=frag_num,
                tell=self.control.note,
            )
        self._saving.start()
        return messages.Ok()

    def _check_free(self) -> None:
        if self._saving is not None and self._saving.running:
            raise ClusterError(f"{self.name} is still working on another checkpoint")

    def _stop_saving(self) -> None:
        if self._saving is not None:
            self._saving.stop()

    def _expire(
        self, shard: ShardThread, fragments: list[int], tick: int, before: int
    ) -> Future[int]:
        """Sets a shard's clock and deletes old rows, fragment by fragment; their number."""

        def delete(table: int, fragment: int) -> Future[int]:
            return _both(shard, lambda: shard.expire_one(table, before, fragment))

        ticked = then(_both(shard, lambda: shard.set_tick(tick)), lambda _: 0)
        deleted = [delete(table, f) for table in sorted(self._touched) for f in fragments]
        return then(gather([ticked, *deleted]), sum)

    def _close_listeners(self) -> None:
        while self._listeners:
            self._listeners.pop().close()


def _ok(_: object) -> messages.Message:
    return messages.Ok()


def _both(shard: ShardThread, work: Callable[[], T]) -> Future[T]:
    """Executes an order at a shard and at its standby."""
    return shard.post(work, at_standby=True)


def _fence(shard: ShardThread, fence: messages.Fence) -> None:
    shard.fence(fence.incarnation)
    if fence.clock >= 0:
        shard.seal(fence.clock, fence.slot, fence.slots, fence.incarnation)
