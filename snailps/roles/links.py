"""How a process gets its fan-out client: a connection to every shard of a route.

    Welcome + Route -> Links -> Client (started)      new Route -> Links.follow -> the same Client

Used by workers, drivers and the master's export; knows no model and no message but these.
"""

from __future__ import annotations

from collections.abc import Callable

from snailps import kernels
from snailps.store.route import Route
from snailps.transport._client import Client
from snailps.transport.control import dial, show
from snailps.transport.session import Channel, Role
from snailps.transport.trust import OPEN, Trust

TRY_S = 1.0
"""How long one try to reach a shard again may take; then its address may be another one."""


class Links:
    """A started client for every shard of a route, which follows when shards move.

    Parameters
    ----------
    timeout_s : float
        Limit of one request, and of the time that a shard may be out of reach, seconds.
    give_up : callable
        Asked while a shard cannot be reached.

    Attributes
    ----------
    client : Client
    route : Route
        The newest one.

    Raises
    ------
    SnailError
        A shard cannot be reached; names it.
    """

    def __init__(
        self,
        route: Route,
        role: Role,
        *,
        node: int,
        incarnation: int,
        job: int,
        timeout_s: float,
        trust: Trust = OPEN,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self.route = route
        self._started = False

        def connect(index: int) -> int:
            shard = self.route.shards[index]
            sock = dial(
                (shard.host, shard.port),
                Channel.DATA,
                role,
                whom=_name(self.route, index),
                limit_s=min(timeout_s, TRY_S) if self._started else timeout_s,
                node=node,
                incarnation=incarnation,
                job=job,
                trust=trust,
                give_up=lambda: give_up() or self.route.shards[index] != shard,
            )
            sock.setblocking(False)
            return sock.detach()

        self.client = Client(
            connect, _names(route), route.owner, route.epoch, job, incarnation, timeout_s,
            kernels.wire_ops(), failover_s=timeout_s,
        )  # fmt: skip
        try:
            self.client.start()
        except BaseException:
            self.client.close()
            raise
        self._started = True

    def follow(self, route: Route) -> None:
        """Takes a newer route: shards that have moved are reached at their new address."""
        before, epoch = self.route.shards, self.route.epoch
        if route.epoch <= epoch:
            return
        self.route = route
        self.client.reroute(route.epoch, _names(route))
        for index, shard in enumerate(route.shards):
            if shard != before[index]:
                self.client.cut(index)

    def close(self) -> None:
        """Closes the client."""
        self.client.close()


def _names(route: Route) -> list[str]:
    return [_name(route, index) for index in range(len(route.shards))]


def _name(route: Route, index: int) -> str:
    shard = route.shards[index]
    return f"server {shard.server} at {show((shard.host, shard.port))}"
