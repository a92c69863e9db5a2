"""A server process: shard threads, each with its socket, its loop and its rows.

    listen -> join -> TakeRoute, MakeTables (control plane) ... PULL / PUSH / SCAN (shards) -> Stop

It owns the shard threads and passes the master's orders on to them.  It knows no model.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from snailps import kernels
from snailps.config import ServerSettings, effective_shard_num
from snailps.errors import ClusterError, ProtocolError
from snailps.roles._shard import ShardThread
from snailps.roles.access import load_method
from snailps.roles.node import Node, advertised, cores, open_listener, peak_rss_mb
from snailps.roles.saving import Loading, Saving
from snailps.roles.tables import Table
from snailps.store.route import Route
from snailps.transport import messages
from snailps.transport.session import NONCE_BYTES, Channel, Hello, Role, ServerSession

log = logging.getLogger(__name__)


class Server(Node):
    """One server process.

    Parameters
    ----------
    settings : ServerSettings
    """

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(Role.SERVER, settings)
        self._server_settings = settings
        self._shards: list[ShardThread] = []
        self._ready = threading.Event()
        self._touched: set[int] = set()  # tables that track touches
        self._saving: Saving | Loading | None = None

    def run(self) -> int:
        """Serves until the end; returns the exit code."""
        shard_num, notice = effective_shard_num(self._server_settings, cores())
        if notice:
            log.warning("%s", notice)
        listeners = [open_listener(self.settings) for _ in range(shard_num)]
        endpoints = [advertised(self.settings, listener) for listener in listeners]
        if len(set(endpoints)) < shard_num:
            raise ClusterError(
                f"advertise_addr gives {shard_num} shards one port: leave its port out, "
                "use port_range, or set shard_num: 1"
            )
        try:
            welcome = self.join(endpoints)
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        for index, listener in enumerate(listeners):
            shard = ShardThread(
                listener,
                self._make_session,
                kernels.row_ops(),
                kernels.wire_ops(),
                welcome.frag_num,
                self.settings.request_timeout,
                f"snailps-shard-{index}",
            )
            self._shards.append(shard)
            shard.start()
        self._ready.set()
        self.ended.wait()
        self._stop_saving()
        for shard in self._shards:
            shard.stop()
        self.leave({})
        return self.verdict.code

    def on_message(self, message: messages.Message) -> messages.Message | None:
        """Orders of the master: route, tables, statistics."""
        if isinstance(message, messages.Stop):
            return super().on_message(message)
        if not self._ready.wait(self.settings.request_timeout):
            raise ClusterError(f"{self.name} has no shards yet")
        if isinstance(message, messages.TakeRoute):
            self._take_route(Route.from_dict(message.route))
        elif isinstance(message, messages.MakeTables):
            for item in message.tables:
                if not isinstance(item, list) or len(item) != 2 or type(item[0]) is not int:
                    raise ProtocolError(f"MakeTables: expected [number, table], got {item!r}")
                table = Table.from_dict(item[1])
                for shard in self._shards:
                    method = load_method(table) if table.in_python else None
                    shard.add_table(item[0], *table.store_arguments(), method=method)
                if "touch" in table.track:
                    self._touched.add(item[0])
        elif isinstance(message, messages.Expire):
            return messages.Report({"expired": self._expire(message.tick, message.before)})
        elif isinstance(message, messages.Save | messages.Load):
            self._save_or_load(message)
        elif isinstance(message, messages.StopSaving):
            self._stop_saving()
            for shard in self._shards:
                shard.thaw()
        elif isinstance(message, messages.Freeze):
            return messages.Report({"clocks": [s.freeze(message.clock) for s in self._shards]})
        elif isinstance(message, messages.Ask):
            stats = [shard.stats() for shard in self._shards]
            saved = self._saving.done_bytes if self._saving is not None else 0
            return messages.Report(
                {"shards": stats, "peak_rss_mb": peak_rss_mb(), "saved_bytes": saved}
            )
        elif isinstance(message, messages.SetClock):
            for shard in self._shards:
                shard.set_clock(message.clock, message.early)
        elif isinstance(message, messages.CloseClock):
            return messages.Report({"shards": self._close_clock(message.clock, message.slots)})
        elif isinstance(message, messages.Fence):
            for shard in self._shards:
                shard.fence(message.incarnation)
                if message.clock >= 0:
                    shard.seal(message.clock, message.slot, message.slots, message.incarnation)
        else:
            raise ProtocolError(f"a server does not take {type(message).__name__}")
        return messages.Ok()

    def _save_or_load(self, order: messages.Save | messages.Load) -> None:
        """Begins to write or to read a checkpoint, beside the shards."""
        assert self.welcome is not None
        life, frag_num = self.welcome.job, self.welcome.frag_num
        if self._saving is not None and self._saving.running:
            raise ClusterError(f"{self.name} is still at another checkpoint")
        if isinstance(order, messages.Load):
            self._saving = Loading(
                self._shards, order, life=life, frag_num=frag_num, tell=self.control.note
            )
        else:
            Saving.check_folder(order, life)
            self._saving = Saving(
                self._shards,
                order,
                life=life,
                node=self.welcome.node,
                frag_num=frag_num,
                tell=self.control.note,
            )
        self._saving.start()

    def _stop_saving(self) -> None:
        if self._saving is not None:
            self._saving.stop()

    def _expire(self, tick: int, before: int) -> int:
        """Sets the shards' clock and deletes old rows, fragment by fragment; their number."""
        if not 0 <= before <= tick < 1 << 32:
            raise ProtocolError(
                f"Expire: expected 0 <= before <= tick < 2^32, got {before}, {tick}"
            )
        for shard in self._shards:
            shard.set_tick(tick)
        return sum(
            shard.expire(number, before) for shard in self._shards for number in self._touched
        )

    def _close_clock(self, clock: int, slots: list[Any]) -> list[dict[str, Any]]:
        """Closes a clock with these slots at every shard; what each had sealed."""
        if not all(type(slot) is int for slot in slots):
            raise ProtocolError(f"CloseClock: expected numbers of slots, got {slots!r:.200}")
        return [shard.close_clock(clock, slots) for shard in self._shards]

    def _take_route(self, route: Route) -> None:
        assert self.welcome is not None
        mine = [i for i, shard in enumerate(route.shards) if shard.server == self.welcome.node]
        if len(mine) != len(self._shards):
            raise ProtocolError(
                f"the route has {len(mine)} shards for this server, it runs {len(self._shards)}"
            )
        for shard, index in zip(self._shards, mine, strict=True):
            shard.take_route(route.epoch, route.fragments_of(index))
        self.route_epoch = route.epoch

    def _make_session(self) -> ServerSession:
        assert self.welcome is not None
        hello = Hello(
            Channel.DATA,
            Role.SERVER,
            os.urandom(NONCE_BYTES),
            self.welcome.node,
            self.welcome.incarnation,
            self.welcome.job,
        )
        return ServerSession(hello, admit=self._admit)

    def _admit(self, peer: Hello) -> None:
        assert self.welcome is not None
        if peer.channel != Channel.DATA:
            raise ProtocolError("this is a shard: it has only a data channel", "channel")
        if peer.job != self.welcome.job:
            raise ProtocolError(
                "you belong to another cluster: this port was given to a new one", "job"
            )
