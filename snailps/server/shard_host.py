"""The shards of a server process: primaries, standbys, and the changes between the two.

    TakeRoute, HostStandby, BackUp, Promote, Yield, DropShard -> ShardHost -> ShardThread
    orders to shards -> future, done when all shards are; the next order does not wait for it
    slow work (dialling, copying, yielding) -> Backed, Unbacked, Yielded, from other threads

Owns the shard threads and their sockets by shard number; the master decides why a shard moves.
Nothing here blocks on a shard: each executes its orders in sequence, and one that hangs or waits
for its standby delays neither the others nor the order that ends its wait.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from snailps import kernels
from snailps.api.access_method import load_method
from snailps.api.tables import Table
from snailps.config import ServerSettings
from snailps.errors import ClusterError, ConnectionLost, ProtocolError, SnailError, explain
from snailps.node.limits import DIAL_S, STOP_S, Limits
from snailps.node.process import advertised, open_listener
from snailps.server.futures import gather, settled, then
from snailps.shard.shard_thread import ShardThread
from snailps.store.route import Route
from snailps.transport import messages
from snailps.transport.control import Address, Listener, Trust, dial, show
from snailps.transport.handshake import NONCE_BYTES, Channel, Hello, Role, ServerSession

log = logging.getLogger(__name__)
T = TypeVar("T")


class ShardHost:
    """The shards of one server.

    Parameters
    ----------
    settings : ServerSettings
    trust : Trust
    welcome : messages.Welcome
    tell : callable
        Sends the master a note, from any thread.
    """

    def __init__(
        self,
        settings: ServerSettings,
        trust: Trust,
        welcome: messages.Welcome,
        tell: Callable[[messages.Message], None],
    ) -> None:
        self._settings, self._trust = settings, trust
        self._welcome, self._tell = welcome, tell
        self.primaries: dict[int, ShardThread] = {}
        self.standbys: dict[int, ShardThread] = {}
        self._yielding: dict[int, ShardThread] = {}
        self._begun: dict[Address, ShardThread] = {}  # by endpoint, while the cluster forms
        self._route: Route | None = None
        self._copies: dict[int, messages.BackUp] = {}  # shard -> its current replication order
        self._told: dict[int, list[Any]] = {}  # shard -> [shard, copy, last reported trouble]
        self._lock = threading.Lock()  # guards both: other threads use them

    # --- orders of the master, in sequence ------------------------------------------------------

    def take_route(self, route: Route, listeners: list[Listener]) -> Future[list[None]]:
        """Takes the fragments and the epoch of a route, and starts shards while the cluster forms.

        A shard of the route that is not running is started on the first of `listeners`.  Until the
        cluster is complete a server may be lost and a new route made: a shard then keeps its
        endpoint and may get another number.
        """
        mine = [
            (number, (address.host, address.port))
            for number, address in enumerate(route.shards)
            if address.server == self._welcome.node
        ]
        if self._route is None or self._begun or listeners:
            for number, place in mine:
                if place not in self._begun:
                    if not listeners:
                        raise ProtocolError(
                            "the route has more shards for this server than it runs"
                        )
                    self._begun[place] = self._start(number, listeners.pop(0))
            self.primaries = {number: self._begun[place] for number, place in mine}
        taken = [self._own(shard, number, route) for number, shard in self.primaries.items()]
        self._route = route
        return gather(taken)

    def formed(self) -> None:
        """The cluster is complete: from now on shards change only by orders of the master."""
        self._begun.clear()

    def host_standby(self, number: int, tables: list[tuple[int, Table]]) -> Future[Address]:
        """Creates a standby of a shard; returns its endpoint."""
        if self._route is None or number in self.primaries or number in self.standbys:
            raise ClusterError(f"shard {number} is here already, or there is no route yet")
        listener = open_listener(self._settings, self._trust)
        endpoint = advertised(self._settings, listener)
        if self._settings.advertise_addr and endpoint in [
            (address.host, address.port) for address in self._route.shards
        ]:
            listener.close()
            raise ClusterError(
                "advertise_addr gives all shards one port: leave its port out, or use port_range"
            )
        shard = self._start(number, listener, standby=True)
        self.standbys[number] = shard
        ready = [self._own(shard, number, self._route), *self._make_tables([shard], tables)]
        return then(gather(ready), lambda _: endpoint)

    def make_tables(self, tables: list[tuple[int, Table]]) -> Future[list[None]]:
        """Creates tables in every shard here."""
        shards = [*self.primaries.values(), *self.standbys.values()]
        return gather(self._make_tables(shards, tables))

    def back_up(self, order: messages.BackUp) -> None:
        """Starts to copy a shard to its standby; `Backed` or `Unbacked` follows.

        The shard is a primary, or a complete standby.
        """
        shard = self.standbys.get(order.shard) or self._served(order.shard)
        with self._lock:
            former = self._copies.get(order.shard)
            again = former is not None and order == replace(former, paced=order.paced)
            self._copies[order.shard] = order
            if again:
                shard.pace(order.paced)
        if not again:
            self._beside(lambda: self._back_up(shard, order))

    def alone(self, number: int) -> Future[list[None]]:
        """A shard has no standby."""
        with self._lock:
            self._copies.pop(number, None)
            self._told.pop(number, None)
        shard = self.primaries.get(number) or self.standbys.get(number)
        return gather([shard.post(shard.alone)] if shard is not None else [])

    def promote(self, number: int, epoch: int) -> Future[None]:
        """Makes a standby serve, or makes a shard that yielded or is yielding serve again."""
        with self._lock:
            shard = self.standbys.pop(number, None) or self._yielding.pop(number, None)
            if shard is not None:
                self.primaries[number] = shard
        serves = self._served(number)
        return serves.post(lambda: serves.promote(epoch), at_standby=True)

    def yield_(self, number: int, limit_s: float, stay: bool) -> None:
        """A shard hands over to its standby and, with `stay`, becomes one; `Yielded` follows."""
        shard = self._served(number)
        self._yielding[number] = shard

        def leave() -> None:
            try:
                shard.yield_(limit_s, stay)
                trouble = ""
            except Exception as error:
                trouble = explain(error)
            with self._lock:
                if self._yielding.get(number) is not shard:
                    return  # promoted again: a late note would be taken for the next attempt's
                if trouble or stay:
                    del self._yielding[number]
                if stay and not trouble:
                    self.standbys[number] = self.primaries.pop(number)
            self._tell(messages.Yielded(number, trouble))

        self._beside(leave)

    def drop(self, number: int) -> None:
        """Stops and removes a standby, or a shard that has yielded."""
        shard = self.standbys.pop(number, None) or self._yielding.pop(number, None)
        if shard is None:
            return
        if self.primaries.get(number) is shard:
            del self.primaries[number]
        self._beside(shard.stop)  # frees its memory, which takes a while

    def keep(self, numbers: list[Any]) -> None:
        """Removes all standbys and yielded shards but these, and the standbys of standbys."""
        for number in {*self.standbys, *self._yielding} - set(numbers):
            self.drop(number)
        for number in list(self.standbys):
            self.alone(number)

    def each(
        self, numbers: list[Any], give: Callable[[int, ShardThread], Future[T]]
    ) -> Future[dict[int, T]]:
        """Gives an order to those of these shards that serve here; their results by number.

        A shard that stops before it and its standby have executed the order is left out.
        """
        asked = {n: give(n, self.primaries[n]) for n in numbers if n in self.primaries}

        def served(_: object) -> dict[int, T]:
            return {
                n: future.result()
                for n, future in asked.items()
                if not isinstance(future.exception(), ConnectionLost)
            }

        return then(settled(list(asked.values())), served)

    def fragments_of(self, number: int) -> list[int]:
        """The fragments of a shard."""
        assert self._route is not None
        return [int(fragment) for fragment in self._route.fragments_of(number)]

    def stats(self) -> Future[dict[str, Any]]:
        """Counters of the shards."""

        def of(shards: dict[int, ShardThread]) -> Future[list[dict[str, Any]]]:
            asked = [(n, shard.post(shard.stats)) for n, shard in sorted(shards.items())]
            return then(
                settled([future for _, future in asked]),
                lambda _: [
                    {**future.result(), "shard": n}
                    for n, future in asked
                    if not isinstance(future.exception(), ConnectionLost)  # dropped meanwhile
                ],
            )

        both = gather([of(self.primaries), of(self.standbys)])
        return then(both, lambda found: {"shards": found[0], "standbys": found[1]})

    def stop(self) -> None:
        """Stops all shards."""
        until = time.monotonic() + STOP_S
        shards = {*self.primaries.values(), *self.standbys.values(), *self._yielding.values()}
        for shard in shards:
            shard.stop(0.0)
        for shard in shards:
            shard.stop(max(0.0, until - time.monotonic()))

    # --- how -------------------------------------------------------------------------------------

    def _start(self, number: int, listener: Listener, *, standby: bool = False) -> ShardThread:
        limits = Limits.of(self._settings.request_timeout)
        shard = ShardThread(
            listener,
            self._make_session,
            kernels.row_ops(),
            kernels.wire_ops(),
            self._welcome.frag_num,
            limits.parked_s,
            f"snailps-shard-{number}",
            standby=standby,
            silence_limit_s=limits.silence_s,
            stuck_limit_s=limits.stuck_s,
        )
        shard.start()
        return shard

    def _own(self, shard: ShardThread, number: int, route: Route) -> Future[None]:
        return shard.post(lambda: shard.take_route(route.epoch, route.fragments_of(number)))

    def _make_tables(
        self, shards: Sequence[ShardThread], tables: list[tuple[int, Table]]
    ) -> list[Future[None]]:
        def add(shard: ShardThread, number: int, table: Table) -> Future[None]:
            method = load_method(table) if table.in_python else None
            return shard.post(
                lambda: shard.add_table(number, *table.store_arguments(), method=method)
            )

        return [add(shard, number, table) for shard in shards for number, table in tables]

    def _served(self, number: int) -> ShardThread:
        shard = self.primaries.get(number)
        if shard is None:
            raise ClusterError(f"shard {number} is not served by server {self._welcome.node}")
        return shard

    def _back_up(self, shard: ShardThread, order: messages.BackUp) -> None:
        """Dials the standby and hands the connection to the shard.  Runs in its own thread."""
        where = show((order.host, order.port))
        try:
            sock = dial(
                (order.host, order.port),
                Channel.DATA,
                Role.SERVER,
                whom=f"the standby of shard {order.shard}",
                limit_s=DIAL_S,
                node=self._welcome.node,
                incarnation=self._welcome.incarnation,
                job=self._welcome.job,
                trust=self._trust,
                give_up=lambda: self._copy_of(order.shard) != order.copy,
            )
        except SnailError as error:
            self._note(order.shard, order.copy, str(error) or "lost")
            return

        def tell(state: str, why: str) -> None:
            self._note(order.shard, order.copy, "" if state == "ready" else why or state)

        with self._lock:
            if self._copy_of(order.shard) != order.copy:
                sock.close()  # given up meanwhile
                return
            log.debug("shard %d copies itself to %s", order.shard, where)
            sock.setblocking(False)
            paced = self._copies[order.shard].paced  # it may have changed meanwhile
            begun = shard.back_up(
                sock.detach(), sync=order.sync, paced=paced, resume=order.resume, tell=tell
            )

        def refused(begun: Future[None]) -> None:
            if (error := begun.exception()) is not None:
                self._note(order.shard, order.copy, explain(error))

        begun.add_done_callback(refused)

    def _copy_of(self, shard: int) -> int:
        """Number of the copy that a shard streams to; 0: none."""
        order = self._copies.get(shard)
        return order.copy if order else 0

    def _note(self, shard: int, copy: int, trouble: str) -> None:
        """Reports a standby's state to the master, and keeps it for a master that takes over."""
        self._told[shard] = [shard, copy, trouble]
        if trouble:
            self._tell(messages.Unbacked(shard, copy, trouble))
        else:
            self._tell(messages.Backed(shard, copy))

    def resume_state(self) -> list[list[Any]]:
        """[shard, copy, trouble] of each standby; trouble is empty if there is none."""
        with self._lock:
            return [item for shard, item in self._told.items() if shard in self._copies]

    def _beside(self, work: Callable[[], object]) -> None:
        threading.Thread(target=work, name="snailps-hosting", daemon=True).start()

    def _make_session(self) -> ServerSession:
        hello = Hello(
            Channel.DATA,
            Role.SERVER,
            os.urandom(NONCE_BYTES),
            self._welcome.node,
            self._welcome.incarnation,
            self._welcome.job,
        )
        return ServerSession(hello, self._trust.secret, self._admit)

    def _admit(self, peer: Hello) -> None:
        if peer.channel != Channel.DATA:
            raise ProtocolError("this is a shard: it has only a data channel", "channel")
        if peer.job != self._welcome.job:
            raise ProtocolError(
                "you belong to another cluster: this port was given to a new one", "job"
            )
