"""A process's fan-out client, connected to every shard of a route, which follows when shards move.

    Welcome + Route -> ShardConnections -> Client (started)
    new Route -> ShardConnections.follow -> the same Client
    TakeRoute -> RouteFollower, with a thread for the first connect -> ShardConnections -> answer

Owns which route the client uses, and when a client is replaced.  For workers, drivers and the
master's export.  Must not know models or other messages.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from snailps.abi import loops
from snailps.errors import ConnectionLost, SnailError
from snailps.node.limits import Limits
from snailps.store.route import Route, ShardAddress
from snailps.transport import messages
from snailps.transport.client._client import Client
from snailps.transport.control import dial, show
from snailps.transport.handshake import Channel, Role
from snailps.transport.security.trust import OPEN, Trust


class ShardConnections:
    """A started client for every shard of a route, which follows when shards move. SnailError: a
    shard cannot be reached; the text names it."""

    def __init__(
        self,
        route: Route,
        role: Role,
        *,
        node: int,
        incarnation: int,
        job: int,
        # limit of one request (`request_timeout`); the inner limits are derived from it
        timeout_s: float,
        init_timeout: float = math.inf,  # limit of the first connect to all shards
        trust: Trust = OPEN,
        # called while a shard cannot be reached; True ends the attempt
        give_up: Callable[[], bool] = lambda: False,
        # also called until all are connected; True: there is a newer route to connect to
        superseded: Callable[[], bool] = lambda: False,
    ) -> None:
        self.route = route
        self._started = False
        limits = Limits.of(timeout_s)

        def gives_up(index: int, shard: ShardAddress) -> bool:
            moved = self.route.shards[index] != shard
            return moved or give_up() or (not self._started and superseded())

        def connect(index: int) -> int:
            shard = self.route.shards[index]
            sock = dial(
                (shard.host, shard.port),
                Channel.DATA,
                role,
                peer_name=_name(self.route, index),
                limit_s=limits.try_s if self._started else limits.connect_s(init_timeout),
                node=node,
                incarnation=incarnation,
                job=job,
                trust=trust,
                give_up=lambda: gives_up(index, shard),
            )
            sock.setblocking(False)
            return sock.detach()

        self.client = Client(
            connect, _names(route), route.owner, route.epoch, job, incarnation, timeout_s,
            loops.wire_ops(), failover_s=limits.reach_s,
        )  # fmt: skip
        try:
            self.client.start()
        except BaseException:
            self.client.close()
            raise
        self._started = True

    def follow(self, route: Route) -> None:
        """Take a newer route, and break connections to shards that have moved: the client makes
        them again, to the new addresses, and repeats what is unanswered."""
        before, epoch = self.route.shards, self.route.epoch
        if route.epoch <= epoch:
            return
        self.route = route
        self.client.reroute(route.epoch, _names(route))
        for index, shard in enumerate(route.shards):
            if shard != before[index]:
                self.client.cut(index)

    def close(self) -> None:
        self.client.close()


MakeLinks = Callable[[Route, Callable[[], bool]], ShardConnections]
"""``make(route, superseded)``: connects to every shard of a route."""


def connect(newest: Callable[[], Route], make: MakeLinks) -> ShardConnections:
    """Connect to the newest route. A newer route ends an attempt: otherwise a server that has died
    would be tried until the limit."""
    while True:
        route = newest()

        def superseded(route: Route = route) -> bool:
            return newest() is not route

        try:
            links = make(route, superseded)
        except SnailError:
            if superseded():
                continue
            raise
        now = newest()
        if np.array_equal(now.owner, route.owner):
            links.follow(now)
            return links
        links.close()  # the cluster was formed anew, with other shards


class RouteFollower:
    """Keeps a process connected as routes change; takes each route without blocking. The first
    connect takes as long as the slowest server, so it has a thread of its own. If a route has the
    same shards at other addresses, the client follows it, also while it is in use. If a newly
    formed cluster has other shards, another client is connected."""

    def __init__(self, make: MakeLinks, on_route: Callable[[ShardConnections], None]) -> None:
        # `on_route` is called with the links at each new route, before the master gets the answer
        self._make, self._on_route = make, on_route
        self._lock = threading.Lock()
        self._newest: Route | None = None
        self._waiting: list[Future[messages.Message]] = []
        self._connecting = self._closed = False
        self.links: ShardConnections | None = None  # once connected
        # set while requests are made, or are about to be: the client must not be replaced
        self.in_use = False

    def take(self, route: Route) -> Future[messages.Message]:
        """Take a route; the future completes when every shard of it, or of a newer route, is
        connected."""
        answer: Future[messages.Message] = Future()
        with self._lock:
            if self._newest is None or route.epoch > self._newest.epoch:
                self._newest = route
            links = self.links
            if links is not None and (
                self.in_use or np.array_equal(links.route.owner, self._newest.owner)
            ):
                links.follow(self._newest)
                self._on_route(links)
                answer.set_result(messages.Ok())
                return answer
            self._waiting.append(answer)
            if self._connecting:
                return answer
            self._connecting, self.links = True, None
        threading.Thread(
            target=self._connect, args=(links,), name="snailps-connect", daemon=True
        ).start()
        return answer

    def close(self) -> None:
        """Close the client; a client that is being connected is closed when it is."""
        with self._lock:
            self._closed = True
            links = self.links
        if links is not None:
            links.close()

    def _connect(self, previous: ShardConnections | None) -> None:
        if previous is not None:
            previous.close()
        while not self._try():
            pass

    def _try(self) -> bool:
        """Connect and complete the futures; False: there is a newer route, connect to that."""
        tried: Route | None = None
        links: ShardConnections | None = None
        error: Exception | None = None

        def make(route: Route, superseded: Callable[[], bool]) -> ShardConnections:
            nonlocal tried
            tried = route
            return self._make(route, superseded)

        try:
            links = connect(self._route, make)
        except Exception as failure:
            error = failure
        with self._lock:
            newest = self._route()
            fits = links is not None and np.array_equal(newest.owner, links.route.owner)
            again = not self._closed and (newest is not tried if links is None else not fits)
            if links is not None and fits and not self._closed:
                links.follow(newest)
                self.links = links
                self._on_route(links)
            if not again:
                self._connecting = False
                self._newest = newest if error is None else None  # so it may be tried again
                waiting, self._waiting = self._waiting, []
            connected = self.links is not None
        if links is not None and not (fits and connected):
            links.close()
        if again:
            return False
        for answer in waiting:
            if connected:
                answer.set_result(messages.Ok())
            else:
                answer.set_exception(error or ConnectionLost("this process has ended"))
        return True

    def _route(self) -> Route:
        assert self._newest is not None
        return self._newest


def _names(route: Route) -> list[str]:
    return [_name(route, index) for index in range(len(route.shards))]


def _name(route: Route, index: int) -> str:
    shard = route.shards[index]
    return f"server {shard.server} at {show((shard.host, shard.port))}"
