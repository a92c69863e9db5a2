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
"""What became of a stream: ("ready", "") once, ("lost", why) once.  Must not wait."""


class Carrier(Protocol):
    """What moves a shard's frames: a `ShardLoop`, or a `ShardDriver` in tests."""

    def open_stream(self, fd: int, sync: bool, paced: bool, tell: Tell) -> None:
        """Begins a stream to the standby at the other end of a connection."""

    def end_stream(self) -> None:
        """Forgets the stream: what waits for it is answered."""

    def end_following(self) -> None:
        """Takes what has come of a primary's stream, and closes its connection."""

    def following(self) -> bool:
        """Whether the primary whose standby this is can be heard."""

    def await_primary(self) -> None:
        """Another primary may begin a stream to this shard."""

    def close_connections(self) -> None:
        """Closes all connections, once what fits of their answers is sent."""

    def wake(self) -> None:
        """Has parked requests tried again."""

    def counters(self) -> dict[str, int]:
        """Counts of frames, bytes, connections and parked requests since the start."""


class Replication:
    """Roles, streams and orders of one shard; to be called in its thread.

    Parameters
    ----------
    core : ShardCore
    carrier : Carrier
    """

    def __init__(self, core: ShardCore, carrier: Carrier) -> None:
        self._core, self._carrier = core, carrier
        self._orders = Orders(core)
        core.obey = self.obey

    def close(self) -> None:
        """Lets go of the shard, which then takes no order of a stream."""
        self._core.obey = None

    def take_route(self, epoch: int, fragments: ArrayLike) -> None:
        """Owns these fragments from this epoch on; a standby owns one once it is copied there."""
        if self._core.role == "standby":
            self._core.expect(fragments)
        else:
            self._core.store.own(fragments)
        self._core.epoch = epoch
        self._carrier.wake()

    # --- orders

    def order(self, order: Order) -> Any:
        """Does an order here and forwards it; what the store returned.

        Raises
        ------
        ConnectionLost
            The shard serves no more: the order is for its successor.
        """
        if self._core.role != "primary" or self._core.yielding:
            raise ConnectionLost(
                f"this shard has yielded to another: {order['do']} is for that one"
            )
        return self._carry_out(order)

    def obey(self, text: bytes) -> None:
        """Does an order that came in the primary's stream, and forwards it in turn."""
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
        """Streams everything to a standby; parameters and errors are those of
        `Shard.back_up`.
        """
        core = self._core
        if core.role == "yielded" or (core.role == "standby" and not core.seeded):
            raise MisuseError(
                "only a shard that has everything, and has not yielded, has a standby"
            )
        self._carrier.end_stream()
        core.begin_copy(resume)
        self._carrier.open_stream(fd, sync, paced, tell)

    def pace(self, paced: bool) -> None:
        """The copying that goes on gives way to clients' requests, or does so no more."""
        self._core.pace(paced)
        self._carrier.wake()

    def alone(self) -> None:
        """Has no standby (any more): what waited for it is acknowledged."""
        self._carrier.end_stream()

    def begin_yield(self) -> None:
        """What changes rows waits from now on.

        Raises
        ------
        MisuseError
            There is no ready standby.
        """
        if self._core.role != "primary" or self._core.stream_state != "ready":
            raise MisuseError("only a primary with a ready standby can yield")
        self._core.yielding = True

    def finish_yield(self, stay: bool) -> bool:
        """Serves no more, once the standby has everything; whether it has.

        With `stay` the shard stands by for its successor.  Its own stream stays: should that one
        not be promoted, it goes on as it was.

        Raises
        ------
        ConnectionLost
            The standby was lost meanwhile, or this shard is promoted.
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
        """What waited for the shard's new place is tried again: refused where it has yielded."""
        self._core.yielding = False
        self._carrier.wake()

    # --- the standby's side

    def promote(self, epoch: int) -> None:
        """Makes this standby the primary; the errors are those of `Shard.promote`."""
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
        """What the shard is and how far its stream has come; `now` is of the monotonic clock."""
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
