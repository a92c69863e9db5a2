"""A shard's part in replication: its role, its stream, and orders, which are done at both.

    back_up(connection) -> all fragments, then all that changes -> standby -> "ready"
    order -> done here -> forwarded -> done there          promote, yield -> which shard serves

It owns the order of these things.  No sockets, threads or clocks: a `Carrier` moves the bytes, and
all runs in the shard's thread.  What the stream carries is `_primary` and `_standby`; which server
stands by for which, the master decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

from numpy.typing import ArrayLike

from snailps.errors import ConnectionLost, MisuseError
from snailps.shard._shard import ShardCore
from snailps.shard.orders import Order, Orders

Tell = Callable[[str, str], None]
"""(state, why): ("ready", "") once, ("lost", why) once.  Must not block."""


class Carrier(Protocol):
    """Moves the frames of a shard: a `ShardLoop`, or a `ShardDriver` in tests."""

    def open_stream(self, fd: int, sync: bool, paced: bool, tell: Tell) -> None:
        """Begin a stream to the standby at the other end of a connection."""

    def end_stream(self) -> None:
        """Forget the stream: answer what waits for it."""

    def end_following(self) -> None:
        """Take what is received of the primary's stream, and close its connection."""

    def following(self) -> bool:
        """Whether the primary of this standby can be heard."""

    def await_primary(self) -> None:
        """Let another primary begin a stream to this shard."""

    def close_connections(self) -> None:
        """Close all connections, once what fits of their answers is sent."""

    def wake(self) -> None:
        """Retry parked requests."""

    def counters(self) -> dict[str, int]:
        """Counts of frames, bytes, connections and parked requests since the start."""


class Replication:
    """Roles, streams and orders of one shard; called in the shard's thread."""

    def __init__(self, core: ShardCore, carrier: Carrier) -> None:
        self._core, self._carrier = core, carrier
        self._orders = Orders(core)
        core.obey = self.obey

    def close(self) -> None:
        """Detach from the core, which then takes no order of a stream."""
        self._core.obey = None

    def take_route(self, epoch: int, fragments: ArrayLike) -> None:
        """Own these fragments from this epoch on; a standby owns a fragment once it is copied."""
        if self._core.role == "standby":
            self._core.expect(fragments)
        else:
            self._core.store.own(fragments)
        self._core.epoch = epoch
        self._carrier.wake()

    # --- orders

    def order(self, order: Order) -> Any:
        """Do an order and forward it; ConnectionLost: the order is for the successor."""
        if self._core.role != "primary" or self._core.yielding:
            raise ConnectionLost(
                f"this shard has yielded to another: {order['do']} is for that one"
            )
        return self._carry_out(order)

    def obey(self, text: bytes) -> None:
        """Do an order of the primary's stream, and forward it to an own standby."""
        order = json.loads(text)
        self._orders.execute(order)
        if self._core.stream_begun:
            self._core.append_order(self._orders.copied(order))

    def _carry_out(self, order: Order) -> Any:
        try:
            result = self._orders.execute(order)
        finally:
            self._carrier.wake()
        if self._core.stream_begun:
            self._core.append_order(self._orders.copied(order))
        self._core.show_clock()
        return result

    # --- the primary's side

    def back_up(self, fd: int, sync: bool, paced: bool, resume: bool, tell: Tell) -> None:
        """As `Shard.back_up`."""
        core = self._core
        if core.role == "yielded" or (core.role == "standby" and not core.seeded):
            raise MisuseError(
                "only a shard that has everything, and has not yielded, has a standby"
            )
        self._carrier.end_stream()
        core.begin_copy(resume)
        self._carrier.open_stream(fd, sync, paced, tell)

    def pace(self, paced: bool) -> None:
        """As `Shard.pace`."""
        self._core.pace(paced)
        self._carrier.wake()

    def alone(self) -> None:
        """Acknowledge what waited for the standby: there is none (any more)."""
        self._carrier.end_stream()

    def begin_yield(self) -> None:
        """Hold whatever changes rows; MisuseError: there is no ready standby."""
        if self._core.role != "primary" or self._core.stream_state != "ready":
            raise MisuseError("only a primary with a ready standby can yield")
        self._core.yielding = True

    def finish_yield(self, stay: bool) -> bool:
        """Stop serving once the standby has everything; whether it has.

        With `stay` the shard stands by for its successor, and keeps its own stream to resume as
        primary if the successor is not promoted.  ConnectionLost: the standby was lost, or this
        shard is promoted.
        """
        if not self._core.yielding:
            raise ConnectionLost("the shard was told to go on")
        if self._core.stream_state != "ready":
            raise ConnectionLost("the standby to yield to was lost")
        if not self._core.stream_idle:
            return False
        if stay:
            self._core.follow_successor()
            self._carrier.await_primary()
        else:
            self._core.role = "yielded"
        self._carrier.close_connections()
        return True

    def end_yield(self) -> None:
        """Retry what waited for the new place of the shard: refused where it has yielded."""
        self._core.yielding = False
        self._carrier.wake()

    # --- the standby's side

    def promote(self, epoch: int) -> None:
        """As `Shard.promote`."""
        core = self._core
        core.yielding = False
        if core.role == "standby" and core.followed and core.stream_state == "lost":
            # Of one that has followed another.  One that has only yielded may still have its
            # standby for all that the master knows: then nothing is acknowledged before `alone`.
            self._carrier.end_stream()
        if core.role == "yielded":
            core.role = "primary"
        if core.role == "standby":
            self._carrier.end_following()
            if not core.seeded:
                whole, expected = core.whole
                raise MisuseError(
                    f"only {whole} of {expected} fragments have come from the primary: it "
                    "cannot be replaced by this standby"
                )
            core.serve()
        core.epoch = core.epoch_min = epoch
        self._carrier.wake()

    # --- for people

    def status(self, now: float) -> dict[str, Any]:
        """Role, epoch and progress of the stream; `now` in monotonic seconds."""
        core, stream = self._core, self._core.stream_stats(now)
        copied = stream.pop("copied")
        state, seeded = core.stream_state, copied
        if core.role == "standby":
            whole, expected = core.whole
            seeded = whole / max(1, expected)
            if not core.followed:
                state = "none"
            elif not self._carrier.following():
                state = "lost"
            else:
                state = "ready" if core.seeded else "seeding"
        return {
            "role": core.role,
            "state": state,
            **stream,
            "relayed": copied if core.stream_state != "none" else 0.0,
            "seeded": seeded if state != "none" else 0.0,
        }
