"""One shard without a thread: what a server, a checkpoint and a move do to it.

    order -> Shard -> ShardCore, Replication -> what the store returned

To be called in the shard's thread.  `ShardThread` has one beside a `ShardLoop`, simulations have
one beside a `ShardDriver`.  No thread, socket or clock here.
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
"""How long a request may wait for a clock: as long as the slowest slot takes."""
STAGED_BYTES_MAX = 2 << 30
"""How much may be staged for a clock."""


class FragmentCursor:
    """How far fragments (uint32 array) have been copied; the shard's thread moves it."""

    def __init__(self, fragments: NDArray[np.uint32]) -> None:
        self.fragments = fragments
        self.at = 0


class Shard:
    """One shard: its store, its role and its stream.

    Parameters
    ----------
    core : ShardCore
    carrier : Carrier
        Moves the bytes: a `ShardLoop` or a `ShardDriver`.
    """

    def __init__(self, core: ShardCore, carrier: Carrier) -> None:
        self.core, self._carrier = core, carrier
        self._replication = Replication(core, carrier)

    def close(self) -> None:
        """Lets go of the core: no cycle is left, the rows' memory goes with the last name."""
        self._replication.close()

    # --- route and tables

    def take_route(self, epoch: int, fragments: ArrayLike) -> None:
        """Owns these fragments (uint32 array) from this epoch on.

        A standby owns a fragment once its primary has copied it there.
        """
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
        """Makes a table known to this shard.

        Parameters
        ----------
        number, dim, access, init, scale, seed, hyper, track, retention, finite
            As `ShardStore.add_table` takes them.
        method : AccessMethod, optional
            What an access method in Python calls: an instance for this shard alone.

        Raises
        ------
        MisuseError
            Rows wider than one part of a pull or push can carry, or a method too many or missing.
        """
        self.core.add_table(
            number, dim, access, init, scale, seed, hyper, track, retention, finite, method
        )

    def drop_tables(self, numbers: Sequence[int]) -> None:
        """Drops tables with their rows; those that are not here are passed over.

        At a primary and at its standbys each by itself: nothing of the tables is read any more.
        """
        self.core.drop_tables(numbers)

    def fragments(self) -> NDArray[np.uint32]:
        """The fragments that this shard owns, uint32, ascending."""
        return self.core.store.fragments()

    def set_tick(self, tick: int) -> None:
        """Sets the clock (uint32) that pushes leave in rows of tables that track touches."""
        self._replication.order({"do": "set_tick", "tick": int(tick)})

    def expire_one(self, number: int, before_tick: int, fragment: int) -> int:
        """Deletes rows of a fragment that no push has touched since `before_tick`; their number."""
        order = {"do": "expire", "table": number, "before": before_tick, "fragments": [fragment]}
        return int(self._replication.order(order))

    # --- checkpoints

    def copy_next(
        self, cursor: FragmentCursor, buffer: NDArray[Any]
    ) -> tuple[int, list[tuple[int, int, int, int]]]:
        """Copies the fragments that come next, as many as fit, into a buffer.

        Parameters
        ----------
        cursor : FragmentCursor
            Moved behind them.
        buffer : numpy.ndarray
            uint8, writable.

        Returns
        -------
        used : int
            Bytes of the buffer; 0: there are no more; without sections: the bytes that it needs.
        sections : list of tuple
            As `copy_fragments` of `store.checkpoint._sections` gives them.

        Notes
        -----
        The shard serves nothing else while it copies: 2 to 4 ms for 16 MiB.
        """
        store = self.core.store
        stop, used, sections = copy_fragments(store, cursor.fragments, cursor.at, buffer)
        cursor.at = stop
        return used, sections

    def put_section(self, section: NDArray[Any], tables: Mapping[int, int], marks: bool) -> int:
        """Gives a fragment the rows of a section, as `put_section` of
        `store.checkpoint._sections`.
        """
        rows = put_section(self.core.store, section, tables, marks)
        self.core.copy_again(int(section[4:8].view("<u4")[0]))
        return rows

    def stream_waiting(self) -> int:
        """Bytes that the connection to the standby has not taken."""
        return self.core.stream_waiting

    # --- clocks

    def set_clock(self, clock: int, early: bool = False) -> None:
        """Begins at `clock`: forgets what is staged and sealed.  Parameters: `ShardStore`."""
        self._replication.order({"do": "set_clock", "clock": clock, "early": bool(early)})

    def clock(self) -> int:
        """The present clock: all below are applied."""
        return int(self.core.store.clock_state()["clock"])

    def close_clock(self, clock: int, slots: Sequence[int]) -> dict[str, Any]:
        """Applies exactly these slots of `clock`, which must be sealed, and drops the others.

        Returns and raises what `ShardStore.close_clock` does, or raises what an access method in
        Python did.
        """
        order = {"do": "close_clock", "clock": clock, "slots": list(map(int, slots))}
        closed: dict[str, Any] = self._replication.order(order)
        return closed

    def seal(self, clock: int, slot: int, slots: int, incarnation: int) -> bool:
        """Seals a slot in the place of an incarnation that has pushed all of it and is gone.

        Returns and raises what `ShardStore.seal` does, or raises what an access method in Python
        did.
        """
        order = {"do": "seal", "clock": clock, "slot": slot, "slots": slots}
        return bool(self._replication.order({**order, "incarnation": incarnation}))

    def fence(self, incarnation: int) -> None:
        """Refuses whatever comes from this incarnation from now on, and ends its connections."""
        self._replication.order({"do": "fence", "incarnation": incarnation})

    def fence_and_seal(self, incarnation: int, clock: int, slot: int, slots: int) -> None:
        """Fences an incarnation; from clock 0 on, also seals its slot in its place."""
        self.fence(incarnation)
        if clock >= 0:
            self.seal(clock, slot, slots, incarnation)

    # --- replication

    def back_up(self, link: int, sync: bool, paced: bool, resume: bool, tell: Tell) -> None:
        """Streams everything to a standby, over a link that is connected to it and has shaken
        hands as `Role.SERVER`.

        Forgets the standby that there was, as `alone` does.

        Parameters
        ----------
        link : int
            Descriptor of a socket, or what the carrier takes for one.
        sync : bool
            Once the standby has all, a push, a seal or a batch is acknowledged when it has them,
            too. Otherwise at once, unless 64 MiB are on the way.
        paced : bool
            The copying gives way to clients' requests, and takes several times as long beside them.
        resume : bool
            The standby was the primary until it yielded to this shard, which has yet to be
            promoted: it has everything, and nothing is copied.
        tell : callable
            ``tell(state, why)``: "ready" once, when the standby has everything; "lost" once, when
            it cannot be reached (any more).  Called in the shard's thread: must not wait.

        Raises
        ------
        MisuseError
            This is neither a primary nor a standby that has everything; the link is still the
            caller's.

        Notes
        -----
        A standby that was lost after "ready" may be promoted at any time: until `alone` says that
        it will not, nothing is acknowledged, while pulls and pushes go on.
        """
        self._replication.back_up(link, sync, paced, resume, tell)

    def pace(self, paced: bool) -> None:
        """The copying that goes on gives way to clients' requests, or does so no more."""
        self._replication.pace(paced)

    def alone(self) -> None:
        """Has no standby (any more): what waited for it is acknowledged."""
        self._replication.alone()

    def begin_yield(self) -> None:
        """What changes rows waits from now on; `Replication.begin_yield`."""
        self._replication.begin_yield()

    def finish_yield(self, stay: bool) -> bool:
        """Serves no more, once the standby has everything; `Replication.finish_yield`."""
        return self._replication.finish_yield(stay)

    def end_yield(self) -> None:
        """What waited for the shard's new place is tried again; `Replication.end_yield`."""
        self._replication.end_yield()

    def promote(self, epoch: int) -> None:
        """Makes this standby the primary, from a route epoch on; older ones are refused.

        One that has yielded is the primary again, with its standby if that is there: its successor
        was not promoted, or is gone before it was asked.

        Its former primary's connection is closed, so that nothing can be acknowledged there that is
        not here.  Without effect on a primary but for the epoch.

        Raises
        ------
        MisuseError
            The former primary had not told everything.
        """
        self._replication.promote(epoch)

    # --- for people and tests

    def stats(self, now: float) -> dict[str, Any]:
        """Counters of carrier, requests and store; `now` is monotonic seconds."""
        return {
            **self._carrier.counters(),
            **self.core.stats(),
            "replica": self._replication.status(now),
        }
