"""One shard: its role, its stream to a standby, orders, and copies for checkpoints.

    order -> executed here -> forwarded -> executed at the standby
    back_up(connection) -> all fragments, then all changes -> standby -> "ready"
    promote, yield -> which shard serves         copy_next, put_section <-> checkpoint files

Owns what a role allows: which orders are executed, when a standby may be promoted, when a primary
may stop serving.  All methods run in the shard's thread.  Must not know threads, sockets or clocks:
a `ShardLoop` moves the bytes, `_primary` and `_standby` know what the stream carries, and the
master decides which server has the standby of which shard.
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
"""How long a request may wait for a clock: a clock takes as long as its slowest slot."""
STAGED_BYTES_MAX = 2 << 30
"""Most bytes staged for a clock."""

Report = Callable[[str, str], None]
"""Called with ("ready", "") and ("lost", why), each at most once.  Must not block."""
Order = dict[str, Any]
"""``do``: name of an order, which changes rows or clocks; and its arguments.  JSON."""
_CLOCKED = {"close_clock", "seal"}
"""Orders that apply contributions, so pinned rows must be copied first; deletions may come amid a
copy."""


class Shard(ShardCore):
    """The store, the role and the stream of one shard.

    `clock_limit_s`: how long a request may wait for a clock; `staged_bytes_max`: most bytes staged
    for a clock; `standby`: the shard follows a primary until it is promoted.
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
        """Own these fragments (uint32) from this epoch on; a standby owns each once its copy
        begins."""
        if self.role == "standby":
            self.expect(fragments)
        else:
            self.store.own(fragments)
        self.set_epoch(epoch)
        self.loop.wake()

    def fragments(self) -> NDArray[np.uint32]:
        """Return the owned fragments, uint32, ascending."""
        return self.store.fragments()

    def clock(self) -> int:
        """Return the present clock: all lower clocks are applied."""
        return int(self.store.clock_state()["clock"])

    # --- checkpoints

    def copy_next(
        self, cursor: FragmentCursor, buffer: NDArray[Any]
    ) -> tuple[int, list[tuple[int, int, int, int]]]:
        """Copy rows from the cursor on into a writable uint8 buffer, and advance the cursor.

        Returns the bytes used, 0 at the end, and the sections of `copy_fragments`.  The shard
        serves nothing meanwhile.
        """
        return copy_fragments(self.store, cursor, buffer)

    def clear(self, numbers: Sequence[int]) -> None:
        """Delete all rows of these tables: an earlier restore may have left some."""
        self._order({"do": "clear", "tables": list(map(int, numbers))})

    # --- orders: executed here, then at the standby

    def set_tick(self, tick: int) -> None:
        """Set the tick (uint32) that pushes note in rows of tables that track touches."""
        self._order({"do": "set_tick", "tick": int(tick)})

    def expire_one(self, number: int, before_tick: int, fragment: int) -> int:
        """Delete rows of a fragment without a push since `before_tick`; return their number."""
        order = {"do": "expire", "table": number, "before": before_tick, "fragments": [fragment]}
        return int(self._order(order))

    def set_clock(self, clock: int, early: bool = False) -> None:
        """Order `ShardStore.set_clock`."""
        self._order({"do": "set_clock", "clock": clock, "early": bool(early)})

    def close_clock(self, clock: int, slots: Sequence[int]) -> dict[str, Any]:
        """Order `ShardStore.close_clock`; also raises the error of an access method in Python."""
        order = {"do": "close_clock", "clock": clock, "slots": list(map(int, slots))}
        closed: dict[str, Any] = self._order(order)
        return closed

    def seal(self, clock: int, slot: int, slots: int, incarnation: int) -> bool:
        """Seal a slot for a lost incarnation that had pushed all of it; errors of `close_clock`."""
        order = {"do": "seal", "clock": clock, "slot": slot, "slots": slots}
        return bool(self._order({**order, "incarnation": incarnation}))

    def fence(self, incarnation: int, gone: Sequence[tuple[int, int]] = ()) -> None:
        """Refuse this incarnation, and all of these spans, from now on; their connections end."""
        self._order({"do": "fence", "incarnation": incarnation, "gone": list(gone)})

    def fence_and_seal(
        self, incarnation: int, gone: Sequence[tuple[int, int]], clock: int, slot: int, slots: int
    ) -> None:
        """Fence an incarnation; from clock 0 on, also seal its slot."""
        self.fence(incarnation, gone)  # first: nothing of it may come after its seal
        if clock >= 0:
            self.seal(clock, slot, slots, incarnation)

    def _order(self, order: Order) -> Any:
        """Execute an order and forward it; ConnectionLost: another shard serves, and has to get
        it."""
        if self.role != "primary" or self.yielding:
            raise ConnectionLost(
                f"this shard has yielded to another: {order['do']} is for that one"
            )
        if order["do"] in _CLOCKED:
            self.unpin()
        try:
            result = self._execute(order)
        finally:
            self.loop.wake()  # also after an error: requests that wait for this clock get it
        # After it was executed: what this shard refuses its standby must not do.
        self._forward(order)
        self.show_clock()
        return result

    def _obey(self, text: bytes) -> None:
        """Execute an order of the primary's stream, and forward it to this standby's own
        standby."""
        order = json.loads(text)
        self._execute(order)
        self._forward(order)

    def _execute(self, order: Order) -> Any:
        """Execute an order, as primary or standby alike; return the store's result."""
        do, store = order["do"], self.store
        if do == "expire":
            return store.expire(order["table"], order["before"], order["fragments"])
        if do == "set_tick":
            return store.set_tick(order["tick"])
        if do == "clear":
            return store.clear(order["tables"])
        if do == "fence":
            return self.apply_fence(order["incarnation"], order["gone"])
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
        """Append an order to the stream, without fragments whose copy has not begun."""
        if not self.stream_begun:
            return
        if order["do"] == "expire":
            order = {**order, "fragments": [f for f in order["fragments"] if self.is_copied(f)]}
        self.append_order(json.dumps(order).encode())

    # --- replication: the primary's side

    def back_up(self, fd: int, sync: bool, paced: bool, resume: bool, report: Report) -> None:
        """Stream everything to a standby over `fd`, connected and authenticated as `Role.SERVER`.

        Ends the stream to the previous standby, like `unback`.  With `sync` a push, a seal or a
        batch is acknowledged once a ready standby has it; otherwise at once, unless more than 64
        MiB are unacknowledged.  `paced`: copying gives way to clients.  `resume`: the standby was
        the primary until it yielded to this shard, which is not promoted yet, so nothing is copied.

        After "lost" a ready standby may be promoted at any time: with `sync` nothing is
        acknowledged until `unback` is called; pulls and pushes are executed.  MisuseError: this is
        neither a primary nor a complete standby; the caller still owns `fd`.
        """
        if self.role == "yielded" or (self.role == "standby" and not self.seeded):
            raise MisuseError(
                "only a shard that has everything, and has not yielded, has a standby"
            )
        self.unback()
        self.begin_copy(resume)
        self.loop.open_stream(fd, sync, paced, report)

    def unback(self) -> None:
        """End the stream, and acknowledge what waited for the standby: none will be promoted."""
        self.loop.end_stream()

    def begin_yield(self) -> None:
        """Park requests that change rows; MisuseError: there is no ready standby."""
        if self.role != "primary" or self.stream_state != "ready":
            raise MisuseError("only a primary with a ready standby can yield")
        self.yielding = True

    def finish_yield(self, stay: bool) -> bool:
        """Stop serving once the standby has everything; False: it lacks frames, call again.

        With `stay` the shard becomes the standby of its successor, and keeps its own stream, to be
        primary again if the successor is not promoted.  ConnectionLost: the standby was lost, or
        this shard was promoted again.
        """
        if not self.yielding:
            raise ConnectionLost("the shard was ordered to go on serving")
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
        """Retry requests that waited for the hand-over; a shard that has yielded refuses them."""
        self.yielding = False
        self.loop.wake()

    # --- replication: the standby's side

    def promote(self, epoch: int) -> None:
        """Make this standby the primary from a route epoch on; refuse older epochs.

        Closes the connection of the previous primary first: from then on that one cannot
        acknowledge a push that is not here.  A shard that has yielded becomes primary again, with
        its standby if it still has one.  A primary only takes the epoch.  MisuseError: the previous
        primary had not sent everything.
        """
        self.yielding = False
        if self.role == "standby" and self.followed and self.stream_state == "lost":
            # Only for a shard that has followed another one.  A shard that only yielded may still
            # have its standby as far as the master knows: then nothing is acknowledged before
            # `unback`.
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
        """Return counters of loop, requests and store; `now` in monotonic seconds."""
        return {
            **self.loop.counters(),
            **self.counters(),
            "replica": self._stream_status(now),
        }

    def _stream_status(self, now: float) -> dict[str, Any]:
        """Return role, state and progress of the stream."""
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
