"""One shard without a thread: what a server, a checkpoint and a move do to it.

    order -> Shard -> ShardCore, Replication -> what the store returned

Called in the shard's thread: `ShardThread` has one beside a `ShardLoop`, simulations beside a
`ShardDriver`.  No thread, socket or clock here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from snailps.api.access_method import AccessMethod
from snailps.shard._shard import ShardCore
from snailps.shard.replication import Carrier, Replication, Tell
from snailps.store.checkpoint._sections import copy_fragments, put_section

CLOCK_LIMIT_S = 3600.0
"""Longest wait of a request for a clock: as long as the slowest slot takes."""
STAGED_BYTES_MAX = 2 << 30
"""Most bytes staged for a clock."""


class FragmentCursor:
    """How far fragments (uint32 array) are copied; moved in the shard's thread."""

    def __init__(self, fragments: NDArray[np.uint32]) -> None:
        self.fragments = fragments
        self.at = 0


class Shard:
    """The store, the role and the stream of one shard."""

    def __init__(self, core: ShardCore, carrier: Carrier) -> None:
        self.core, self._carrier = core, carrier
        self._replication = Replication(core, carrier)

    def close(self) -> None:
        """Release the core: no cycle is left, so the rows are freed with the last reference."""
        self._replication.close()

    # --- route and tables

    def take_route(self, epoch: int, fragments: ArrayLike) -> None:
        """Own these fragments (uint32) from this epoch on; a standby once each is copied to it."""
        self._replication.take_route(epoch, fragments)

    def add_table(
        self,
        number: int,
        dim: int,
        access: int,
        init: int,
        scale: float,
        seed: int,
        hyper: Sequence[float],
        track: int = 0,
        retention: tuple[int, int, int, int] = (0, 0, 0, 0),
        finite: bool = True,
        method: AccessMethod | None = None,
    ) -> None:
        """Add a table; `method`: an access method in Python, an instance for this shard alone.

        MisuseError: rows wider than a part of a pull or push, or a method too many or missing.
        """
        self.core.add_table(
            number, dim, access, init, scale, seed, hyper, track, retention, finite, method
        )

    def drop_tables(self, numbers: Sequence[int]) -> None:
        """Drop tables that are here, with their rows; primary and standbys each by itself."""
        self.core.drop_tables(numbers)

    def fragments(self) -> NDArray[np.uint32]:
        """Owned fragments, uint32, ascending."""
        return self.core.store.fragments()

    def set_tick(self, tick: int) -> None:
        """Set the clock (uint32) that pushes leave in rows of tables that track touches."""
        self._replication.order({"do": "set_tick", "tick": int(tick)})

    def expire_one(self, number: int, before_tick: int, fragment: int) -> int:
        """Delete rows of a fragment without a push since `before_tick`; return their number."""
        order = {"do": "expire", "table": number, "before": before_tick, "fragments": [fragment]}
        return int(self._replication.order(order))

    # --- checkpoints

    def copy_next(
        self, cursor: FragmentCursor, buffer: NDArray[Any]
    ) -> tuple[int, list[tuple[int, int, int, int]]]:
        """Copy the next fragments, as many as fit, into a writable uint8 buffer; move the cursor.

        Returns bytes used and the sections of `copy_fragments`; 0 bytes: no more fragments; no
        sections: the bytes that the next fragment needs.  The shard serves nothing meanwhile.
        """
        store = self.core.store
        stop, used, sections = copy_fragments(store, cursor.fragments, cursor.at, buffer)
        cursor.at = stop
        return used, sections

    def put_section(self, section: NDArray[Any], tables: Mapping[int, int], marks: bool) -> int:
        """As `put_section` of `store.checkpoint._sections`."""
        rows = put_section(self.core.store, section, tables, marks)
        self.core.copy_again(int(section[4:8].view("<u4")[0]))
        return rows

    def stream_waiting(self) -> int:
        """Bytes that the connection to the standby has not taken."""
        return self.core.stream_waiting

    # --- clocks

    def set_clock(self, clock: int, early: bool = False) -> None:
        """As `ShardStore.set_clock`."""
        self._replication.order({"do": "set_clock", "clock": clock, "early": bool(early)})

    def clock(self) -> int:
        """Present clock: all below are applied."""
        return int(self.core.store.clock_state()["clock"])

    def close_clock(self, clock: int, slots: Sequence[int]) -> dict[str, Any]:
        """As `ShardStore.close_clock`; also raises what an access method in Python raised."""
        order = {"do": "close_clock", "clock": clock, "slots": list(map(int, slots))}
        closed: dict[str, Any] = self._replication.order(order)
        return closed

    def seal(self, clock: int, slot: int, slots: int, incarnation: int) -> bool:
        """Seal a slot for an incarnation that has pushed all of it and is gone; errors of
        `close_clock`."""
        order = {"do": "seal", "clock": clock, "slot": slot, "slots": slots}
        return bool(self._replication.order({**order, "incarnation": incarnation}))

    def fence(self, incarnation: int) -> None:
        """Refuse this incarnation from now on, and end its connections."""
        self._replication.order({"do": "fence", "incarnation": incarnation})

    def fence_and_seal(self, incarnation: int, clock: int, slot: int, slots: int) -> None:
        """Fence an incarnation; from clock 0 on, also seal its slot."""
        self.fence(incarnation)
        if clock >= 0:
            self.seal(clock, slot, slots, incarnation)

    # --- replication

    def back_up(self, link: int, sync: bool, paced: bool, resume: bool, tell: Tell) -> None:
        """Stream everything to a standby over `link`, connected and authenticated as `Role.SERVER`.

        Replaces the previous standby, as `alone` does.  With `sync` a push, a seal or a batch is
        acknowledged once a ready standby has it; otherwise at once, unless 64 MiB are on the way.
        `paced`: copying gives way to clients.  `resume`: the standby was the primary until it
        yielded to this shard, which is not promoted yet: nothing is copied.  After "lost", until
        `alone` is called, nothing is acknowledged, as the standby may be promoted at any time;
        pulls and pushes continue.  MisuseError: this is neither a primary nor a complete standby;
        the link is still the caller's.
        """
        self._replication.back_up(link, sync, paced, resume, tell)

    def pace(self, paced: bool) -> None:
        """Whether copying gives way to clients' requests."""
        self._replication.pace(paced)

    def alone(self) -> None:
        """Acknowledge what waited for the standby: there is none (any more)."""
        self._replication.alone()

    def begin_yield(self) -> None:
        self._replication.begin_yield()

    def finish_yield(self, stay: bool) -> bool:
        return self._replication.finish_yield(stay)

    def end_yield(self) -> None:
        self._replication.end_yield()

    def promote(self, epoch: int) -> None:
        """Make this standby the primary from a route epoch on; refuse older epochs.

        Closes the connection of the previous primary: it can acknowledge nothing that is not here.
        A shard that has yielded becomes the primary again, with its standby if that is there.  A
        primary only takes the epoch.  MisuseError: the previous primary had not sent everything.
        """
        self._replication.promote(epoch)

    # --- for people and tests

    def stats(self, now: float) -> dict[str, Any]:
        """Counters of carrier, requests and store; `now` in monotonic seconds."""
        return {
            **self._carrier.counters(),
            **self.core.stats(),
            "replica": self._replication.status(now),
        }
