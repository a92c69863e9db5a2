"""How a process gets its fan-out client: a connection to every shard of a route.

    Welcome + Route -> connect_shards -> Client (started)

Used by workers, drivers and the master's export; knows no model and no message but these.
"""

from __future__ import annotations

from collections.abc import Callable

from snailps import kernels
from snailps.store.route import Route
from snailps.transport._client import Client
from snailps.transport.control import dial, show
from snailps.transport.session import Channel, Role


def connect_shards(
    route: Route,
    role: Role,
    *,
    node: int,
    incarnation: int,
    job: int,
    timeout_s: float,
    give_up: Callable[[], bool] = lambda: False,
) -> Client:
    """A started client for every shard of a route.

    Parameters
    ----------
    timeout_s : float
        Limit of one request and of one (re)connection, seconds.
    give_up : callable
        Asked while a shard cannot be reached.

    Raises
    ------
    SnailError
        A shard cannot be reached; names it.
    """
    names = [f"server {shard.server} at {show((shard.host, shard.port))}" for shard in route.shards]

    def connect(index: int) -> int:
        shard = route.shards[index]
        sock = dial(
            (shard.host, shard.port),
            Channel.DATA,
            role,
            whom=names[index],
            limit_s=timeout_s,
            node=node,
            incarnation=incarnation,
            job=job,
            give_up=give_up,
        )
        sock.setblocking(False)
        return sock.detach()

    client = Client(
        connect, names, route.owner, route.epoch, job, incarnation, timeout_s, kernels.wire_ops()
    )
    try:
        client.start()
    except BaseException:
        client.close()
        raise
    return client
