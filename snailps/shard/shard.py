"""One shard: its role, its stream to a standby, orders, and the copies of checkpoints.

    order -> done here -> forwarded -> done at the standby
    back_up(connection) -> all fragments, then all that changes -> standby -> "ready"
    promote, yield -> which shard serves         copy_next, put_section <-> checkpoint files

Called in the thread of `ShardThread`.  No thread, socket or clock here: a `ShardLoop` moves the
bytes, `_primary` and `_standby` know what the stream carries, and the master decides which server
stands by for which.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from snailps.errors import ConnectionLost, MisuseError, ProtocolError, SnailError
from snailps.shard._shard import ShardCore
from snailps.store.checkpoint._sections import FragmentCursor as FragmentCursor
from snailps.store.checkpoint._sections import copy_fragments
from snailps.transport.loop._loop import ShardLoop

CLOCK_LIMIT_S = 3600.0
"""Longest wait of a request for a clock: as long as the slowest slot takes."""
STAGED_BYTES_MAX = 2 << 30
"""Most bytes staged for a clock."""

Report = Callable[[str, str], None]
"""(state, why): ("ready", "") once, ("lost", why) once.  Must not block."""
Order = dict[str, Any]
"""``do``: name of an order, which changes rows or clocks; its arguments.  JSON."""
_CLOCKED = {"close_clock", "seal"}
"""Orders that apply pushes; those that delete rows may come amid a copy of them."""


class Shard(ShardCore):
    """The store, the role and the stream of one shard.

    `clock_limit_s`: longest wait of a request for a clock; `staged_bytes_max`: most bytes staged
    for one; `standby`: follows a primary until it is promoted.
    """

    def __init__(
        self,
        loop: ShardLoop,
        row_ops: object,
        wire_ops: object,
        frag_num: int,
        clock_limit_s: float = CLOCK_LIMIT_S,
        staged_bytes_max: int = STAGED_BYTES_MAX,
        standby: bool = False,
    ) -> None:
        super().__init__(
            loop, row_ops, wire_ops, frag_num, clock_limit_s, staged_bytes_max, standby, self._obey
        )

    def take_route(self, epoch: int, fragments: ArrayLike) -> None:
        """Own these fragments (uint32) from this epoch on; a standby once each is copied to it."""
        if self.role == "standby":
            self.expect(fragments)
        else:
            self.store.own(fragments)
        self.set_epoch(epoch)
        self.loop.wake()

    def fragments(self) -> NDArray[np.uint32]:
        """Owned fragments, uint32, ascending."""
        return self.store.fragments()

    def clock(self) -> int:
        """Present clock: all below are applied."""
        return int(self.store.clock_state()["clock"])

    # --- checkpoints

    def copy_next(
        self, cursor: FragmentCursor, buffer: NDArray[Any]
    ) -> tuple[int, list[tuple[int, int, int, int]]]:
        """Copy what follows the cursor, as much as fits, into a writable uint8 buffer; move it.

        Returns bytes used and the sections of `copy_fragments`; 0 bytes: no more fragments.  The
        shard serves nothing meanwhile.
        """
        return copy_fragments(self.store, cursor, buffer)

    def clear(self, numbers: Sequence[int]) -> None:
        """Delete all rows of these tables: an earlier restore may have left some."""
        self._order({"do": "clear", "tables": list(map(int, numbers))})

    # --- orders: done here, then at the standby

    def set_tick(self, tick: int) -> None:
        """Set the clock (uint32) that pushes leave in rows of tables that track touches."""
        self._order({"do": "set_tick", "tick": int(tick)})

    def expire_one(self, number: int, before_tick: int, fragment: int) -> int:
        """Delete rows of a fragment without a push since `before_tick`; return their number."""
        order = {"do": "expire", "table": number, "before": before_tick, "fragments": [fragment]}
        return int(self._order(order))

    def set_clock(self, clock: int, early: bool = False) -> None:
        """Order `ShardStore.set_clock`."""
        self._order({"do": "set_clock", "clock": clock, "early": bool(early)})

    def close_clock(self, clock: int, slots: Sequence[int]) -> dict[str, Any]:
        """Order `ShardStore.close_clock`; also raises what an access method in Python raised."""
        order = {"do": "close_clock", "clock": clock, "slots": list(map(int, slots))}
        closed: dict[str, Any] = self._order(order)
        return closed

    def seal(self, clock: int, slot: int, slots: int, incarnation: int) -> bool:
        """Seal a slot for an incarnation that has pushed all of it and is gone; errors of
        `close_clock`."""
        order = {"do": "seal", "clock": clock, "slot": slot, "slots": slots}
        return bool(self._order({**order, "incarnation": incarnation}))

    def fence(self, incarnation: int, below: int = 0) -> None:
        """Refuse this incarnation and all `below` from now on, and end their connections."""
        self._order({"do": "fence", "incarnation": incarnation, "below": below})

    def fence_and_seal(
        self, incarnation: int, below: int, clock: int, slot: int, slots: int
    ) -> None:
        """Fence an incarnation; from clock 0 on, also seal its slot."""
        self.fence(incarnation, below)
        if clock >= 0:
            self.seal(clock, slot, slots, incarnation)

    def _order(self, order: Order) -> Any:
        """Do an order and forward it; ConnectionLost: the order is for the successor."""
        if self.role != "primary" or self.yielding:
            raise ConnectionLost(
                f"this shard has yielded to another: {order['do']} is for that one"
            )
        if order["do"] in _CLOCKED:
            self.unpin()
        try:
            result = self._execute(order)
        finally:
            self.loop.wake()
        self._forward(order)
        self.show_clock()
        return result

    def _obey(self, text: bytes) -> None:
        """Do an order of the primary's stream, and forward it to an own standby."""
        order = json.loads(text)
        self._execute(order)
        self._forward(order)

    def _execute(self, order: Order) -> Any:
        """Do an order, as a primary or as its standby; return what the store returns."""
        do, store = order["do"], self.store
        if do == "expire":
            return store.expire(order["table"], order["before"], order["fragments"])
        if do == "set_tick":
            return store.set_tick(order["tick"])
        if do == "clear":
            return store.clear(order["tables"])
        if do == "fence":
            return self.apply_fence(order["incarnation"], order["below"])
        if do == "set_clock":
            return self.apply_clock(order["clock"], order["early"])
        try:
            if do == "close_clock":
                return store.close_clock(order["clock"], order["slots"])
            if do == "seal":
                return store.seal(
                    order["clock"], order["slot"], order["slots"], order["incarnation"]
                )
        except SnailError:
            if self.clock_error is None:
                raise
            raise self.clock_error from None
        raise ProtocolError(f"{do!r} is no order that this version knows", "stream")

    def _forward(self, order: Order) -> None:
        """Append an order to the stream, without fragments that are still to be copied."""
        if not self.stream_begun:
            return
        if order["do"] == "expire":
            order = {**order, "fragments": [f for f in order["fragments"] if self.is_copied(f)]}
        self.append_order(json.dumps(order).encode())

    # --- replication: the primary's side

    def back_up(self, fd: int, sync: bool, paced: bool, resume: bool, report: Report) -> None:
        """Stream everything to a standby over `fd`, connected and authenticated as `Role.SERVER`.

        Replaces the previous standby, as `unback` does.  With `sync` a push, a seal or a batch is
        acknowledged once a ready standby has it; otherwise at once, unless 64 MiB are on the way.
        `paced`: copying gives way to clients.  `resume`: the standby was the primary until it
        yielded to this shard, which is not promoted yet: nothing is copied.  After "lost", until
        `unback` is called, nothing is acknowledged, as the standby may be promoted at any time;
        pulls and pushes continue.  MisuseError: this is neither a primary nor a complete standby;
        `fd` is still the caller's.
        """
        if self.role == "yielded" or (self.role == "standby" and not self.seeded):
            raise MisuseError(
                "only a shard that has everything, and has not yielded, has a standby"
            )
        self.unback()
        self.begin_copy(resume)
        self.loop.open_stream(fd, sync, paced, report)

    def unback(self) -> None:
        """Acknowledge what waited for the standby: there is none (any more)."""
        self.loop.end_stream()

    def begin_yield(self) -> None:
        """Hold whatever changes rows; MisuseError: there is no ready standby."""
        if self.role != "primary" or self.stream_state != "ready":
            raise MisuseError("only a primary with a ready standby can yield")
        self.yielding = True

    def finish_yield(self, stay: bool) -> bool:
        """Stop serving once the standby has everything; whether it has.

        With `stay` the shard stands by for its successor, and keeps its own stream to resume as
        primary if the successor is not promoted.  ConnectionLost: the standby was lost, or this
        shard is promoted.
        """
        if not self.yielding:
            raise ConnectionLost("the shard was told to go on")
        if self.stream_state != "ready":
            raise ConnectionLost("the standby to yield to was lost")
        if not self.stream_idle:
            return False
        if stay:
            self.follow_successor()
            self.loop.await_primary()
        else:
            self.role = "yielded"
        self.loop.close_connections()
        return True

    def end_yield(self) -> None:
        """Retry what waited for the new place of the shard: refused where it has yielded."""
        self.yielding = False
        self.loop.wake()

    # --- replication: the standby's side

    def promote(self, epoch: int) -> None:
        """Make this standby the primary from a route epoch on; refuse older epochs.

        Closes the connection of the previous primary: it can acknowledge nothing that is not here.
        A shard that has yielded becomes the primary again, with its standby if that is there.  A
        primary only takes the epoch.  MisuseError: the previous primary had not sent everything.
        """
        self.yielding = False
        if self.role == "standby" and self.followed and self.stream_state == "lost":
            # Of one that has followed another.  One that has only yielded may still have its
            # standby for all that the master knows: then nothing is acknowledged before `unback`.
            self.unback()
        if self.role == "yielded":
            self.role = "primary"
        if self.role == "standby":
            self.loop.end_following()
            if not self.seeded:
                whole, expected = self.whole
                raise MisuseError(
                    f"only {whole} of {expected} fragments have come from the primary: it "
                    "cannot be replaced by this standby"
                )
            self.serve()
        self.set_epoch(epoch, promoted=True)
        self.loop.wake()

    # --- for people and tests

    def stats(self, now: float) -> dict[str, Any]:
        """Counters of loop, requests and store; `now` in monotonic seconds."""
        return {
            **self.loop.counters(),
            **self.counters(),
            "replica": self._stream_status(now),
        }

    def _stream_status(self, now: float) -> dict[str, Any]:
        """Role and progress of the stream."""
        stream = self.stream_stats(now)
        copied = stream.pop("copied")
        state, seeded = self.stream_state, copied
        if self.role == "standby":
            whole, expected = self.whole
            seeded = whole / max(1, expected)
            if not self.followed:
                state = "none"
            elif not self.loop.hears_primary():
                state = "lost"
            else:
                state = "ready" if self.seeded else "seeding"
        return {
            "role": self.role,
            "state": state,
            **stream,
            "relayed": copied if self.stream_state != "none" else 0.0,
            "seeded": seeded if state != "none" else 0.0,
        }
