"""A node with a client of the shards: it follows the route, and waits for master and shards.

    TakeRoute -> connect to every shard -> Ok        yield from self.ask(call), self.wait(request)

Scripted workers and drivers derive from it.  It follows the rules of `RouteFollower`.
"""

from __future__ import annotations

import numpy as np

from snailps.errors import ConnectionLost, SnailError, WaitTimeout
from snailps.node.limits import Limits
from snailps.store.route import Route
from snailps.transport import messages
from tests.sim.client import Client
from tests.sim.node import Node
from tests.sim.scheduler import first_of

CLOCK_LIMIT_S = 3600.0


class RoutedNode(Node):
    """A node with a client.

    Attributes
    ----------
    awaits_clocks : bool
        Whether its pulls wait for a clock, for which there is no shorter limit.
    """

    awaits_clocks = False

    def __init__(self, cluster, role, name, host):
        super().__init__(cluster, role, name, host)
        self.client = None
        self._newest = None
        self._waiting_routes = []
        self._connecting = self._in_use = False

    def on_message(self, message, reply):
        if isinstance(message, messages.TakeRoute):
            self._take_route(Route.from_dict(message.route), reply)

    def on_end(self, code, text):
        if self.client is not None:
            self.client.failed = text
        super().on_end(code, text)

    @property
    def _limit_s(self):
        return self.settings.request_timeout

    # --- routes -----------------------------------------------------------------------------------

    def _take_route(self, route, reply):
        if self._newest is None or route.epoch > self._newest.epoch:
            self._newest = route
        client = self.client
        if client is not None and (
            self._in_use or np.array_equal(client.route.owner, self._newest.owner)
        ):
            client.follow(self._newest)
            self.route_epoch = self._newest.epoch
            reply(messages.Ok())
            return
        self._waiting_routes.append(reply)
        if not self._connecting:
            self._connecting = True
            self.spawn(self._connect())

    def _connect(self):
        """Connects to the shards of the newest route; begins anew if a newer one moves a shard."""
        if self.client is not None:
            self.client.close()
            self.client = None
        limit_s = Limits.of(self.settings.request_timeout).connect_s(self.settings.init_timeout)
        error = None
        while not self.ending:
            route, error = self._newest, None
            client = Client(
                self, route, incarnation=self.welcome.incarnation, cluster_id=self.welcome.job,
                on_failed=self._client_failed, keys_max=self.cluster.keys_max,
            )  # fmt: skip
            try:
                yield from client.start(limit_s, lambda route=route: self._newest is not route)
            except SnailError as failure:
                client.close()
                error = failure
                if self._newest is not route:
                    continue
                break
            if not np.array_equal(self._newest.owner, route.owner):
                client.close()
                continue
            client.follow(self._newest)
            self.client = client
            self.route_epoch = self._newest.epoch
            break
        self._connecting = False
        if error is not None:
            self._newest = None
        waiting, self._waiting_routes = self._waiting_routes, []
        for reply in waiting:
            reply(messages.Ok() if error is None else error)

    def _client_failed(self, text):
        self.say(f"its client cannot go on: {text}")

    # --- waiting ----------------------------------------------------------------------------------

    def wait(self, request):
        """Waits for a request of the client (a generator); WaitTimeout after its limit."""
        long = self.awaits_clocks and request.kind.name in ("REACH", "PULL")
        limit = self.sleep(CLOCK_LIMIT_S if long else self._limit_s)
        yield first_of(request, limit)
        if not request.done:
            raise WaitTimeout(f"{request.what}: no answer: {'; '.join(self.client.waits())[:300]}")
        if request.error is not None:
            raise request.error

    def flush(self):
        for push in self.client.flush():
            yield from self.wait(push)

    def ask(self, message, limit_s, heard=lambda answer: None):
        """Calls the master (a generator); time without a master does not count for the limit."""
        answer = self.control.call(message, heard)
        begin = self.world.now
        while not answer.done:
            yield first_of(answer, self.sleep(5.0))
            if answer.done:
                break
            if self.control.away:
                begin = self.world.now
            if limit_s is not None and self.world.now - begin > limit_s:
                raise WaitTimeout(f"the master has not answered {type(message).__name__}")
        if answer.error is not None:
            if isinstance(answer.error, ConnectionLost):
                yield 1.0
            raise answer.error
        return answer.value
