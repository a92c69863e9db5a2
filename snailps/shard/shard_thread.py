"""A shard with its thread: what a server process, and tests, give work to from other threads.

    ShardThread -> ShardLoop.post -> in the shard's thread: ShardCore, Replication -> result

It owns the thread and the waiting; what a request means is `_requests`, what a role means
`replication.py`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from snailps.api.access_method import AccessMethod
from snailps.errors import WaitTimeout
from snailps.shard._shard import ShardCore
from snailps.shard.replication import Replication, Tell
from snailps.store.checkpoint._sections import copy_fragments, put_section
from snailps.transport.handshake import ServerSession
from snailps.transport.loop._loop import ShardLoop

T = TypeVar("T")
CLOCK_LIMIT_S = 3600.0
"""A clock lasts as long as its slowest slot."""
STAGED_BYTES_MAX = 2 << 30
RESTORE_BYTES_MAX = 64 << 20
"""A section is put when less than this waits for the connection to the standby."""
RESTORE_LIMIT_S = 60.0
"""How long one section waits for the standby to take those before."""
LOOK_S = 0.001


class FragmentCursor:
    """How far fragments (uint32 array) have been copied; the shard's thread moves it."""

    def __init__(self, fragments: NDArray[np.uint32]) -> None:
        self.fragments = fragments
        self.at = 0


class ShardThread:
    """One shard: its store, its loop, and the thread that owns both.

    Parameters
    ----------
    listener : socket.socket
        Listening socket; owned by the loop from now on.
    make_session : callable
        Gives a `ServerSession` for each connection.
    row_ops, wire_ops : PyCapsule
        Row operations and wire types of the kernel build in use.
    frag_num : int
        Fragments of the cluster.
    park_limit_s : float
        How long a request may wait here, seconds.
    name : str
        Name of the thread.
    clock_limit_s : float
        How long a request may wait here for a clock, seconds: others have to train first.
    staged_bytes_max : int
        How much may be staged here for a clock, bytes.
    standby : bool
        Follows a primary until it is promoted; requests of clients wait meanwhile.
    silence_limit_s : float
        How long a standby of this shard may acknowledge nothing, seconds; then it counts as lost.
    stuck_limit_s : float
        How long this shard, as a standby, waits for what its primary's stream needs, seconds.
    """

    def __init__(
        self,
        listener: Any,
        make_session: Callable[[], ServerSession],
        row_ops: object,
        wire_ops: object,
        frag_num: int,
        park_limit_s: float,
        name: str,
        clock_limit_s: float = CLOCK_LIMIT_S,
        staged_bytes_max: int = STAGED_BYTES_MAX,
        standby: bool = False,
        silence_limit_s: float = 30.0,
        stuck_limit_s: float = 24.0,
    ) -> None:
        self._core = ShardCore(
            row_ops, wire_ops, frag_num, clock_limit_s, staged_bytes_max, standby
        )
        self._loop = ShardLoop(listener, make_session, park_limit_s, silence_limit_s, stuck_limit_s)
        self._core.attach_loop(self._loop)
        self._replication = Replication(self._core, self._loop)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        try:
            self._loop.run()
        finally:
            self._replication.close()  # no cycle is left: the rows' memory goes with the last name

    def start(self) -> None:
        """Starts serving."""
        self._thread.start()

    def turn(self, now: float) -> bool:
        """Serves what has come so far as of a time given, in this thread, instead of `start`.

        See `ShardLoop.turn`.  Orders given between turns, from this thread, are obeyed at once.
        """
        return self._loop.turn(now)

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Stops serving and closes every connection; True once the thread has ended."""
        self._loop.stop()
        if self._thread.ident is None:  # never started: closes the listener
            self._run()
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- work for its thread

    def post(self, work: Callable[[], T], at_standby: bool = False) -> Future[T]:
        """Has `work()` done in the shard's thread, where this shard's methods may be called.

        Does not wait.  What is posted is done in its order; nothing waits behind an order that
        waits for the standby, so that what ends that wait is heard.

        Parameters
        ----------
        work : callable
        at_standby : bool
            It gives orders: they count as done once the standby has them, or will not be promoted.

        Returns
        -------
        concurrent.futures.Future
            What `work` returned or raised; `ConnectionLost` where the shard serves no more.
        """
        return self._loop.post(work, at_standby)

    def _order(self, do: str, wait: bool = True, **arguments: Any) -> Any:
        """Does an order; returns, if it is to `wait`, once the standby has it, or will not be
        promoted. In the shard's thread, which cannot wait, that is up to `post`."""
        order = {"do": do, **arguments}
        return self._loop.submit(lambda: self._replication.order(order), at_standby=wait)

    def _until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Waits until a condition, looked at in the shard's thread, holds; whether it does."""
        until = time.monotonic() + limit_s
        while not self._loop.submit(condition):
            if time.monotonic() > until or threading.get_ident() == self._thread.ident:
                return False
            time.sleep(LOOK_S)
        return True

    # --- route and tables

    def take_route(self, epoch: int, fragments: ArrayLike) -> None:
        """Owns these fragments (uint32 array) from this epoch on.  Waits for the shard's thread.

        A standby owns a fragment once its primary has copied it there.
        """
        self._loop.submit(lambda: self._replication.take_route(epoch, fragments))

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
        method: AccessMethod | None = None,
    ) -> None:
        """Makes a table known to this shard.  Waits for the shard's thread.

        Parameters
        ----------
        number, dim, access, init, scale, seed, hyper, track
            As `ShardStore.add_table` takes them.
        method : AccessMethod, optional
            What an access method in Python calls, in the shard's thread: an instance for this shard
            alone.

        Raises
        ------
        MisuseError
            Rows wider than one part of a pull or push can carry, or a method too many or missing.
        """
        self._loop.submit(
            lambda: self._core.add_table(
                number, dim, access, init, scale, seed, hyper, track, method
            )
        )

    def fragments(self) -> NDArray[np.uint32]:
        """The fragments that this shard owns, uint32, ascending."""
        return self._loop.submit(self._core.store.fragments)

    def set_tick(self, tick: int) -> None:
        """Sets the clock (uint32) that pushes leave in rows of tables that track touches."""
        self._order("set_tick", tick=int(tick))

    def expire_one(self, number: int, before_tick: int, fragment: int) -> int:
        """Deletes rows of a fragment that no push has touched since `before_tick`; their number."""
        return int(self._order("expire", table=number, before=before_tick, fragments=[fragment]))

    # --- checkpoints

    def copy_next(
        self, cursor: FragmentCursor, buffer: NDArray[Any]
    ) -> tuple[int, list[tuple[int, int, int, int]]]:
        """Copies the fragments that come next, as many as fit, into a buffer.

        Parameters
        ----------
        cursor : FragmentCursor
            Moved behind them by the shard's thread, so that several may ask at a time.
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
        Waits for the shard's thread, which serves nothing else while it copies: 2 to 4 ms for
        16 MiB.
        """

        def copy() -> tuple[int, list[tuple[int, int, int, int]]]:
            store = self._core.store
            stop, used, sections = copy_fragments(store, cursor.fragments, cursor.at, buffer)
            cursor.at = stop
            return used, sections

        return self._loop.submit(copy)

    def put_section(self, section: NDArray[Any], tables: Mapping[int, int], marks: bool) -> int:
        """Gives a fragment the rows of a section, as `put_section` of
        `store.checkpoint._sections`.
        """

        def put() -> int:
            rows = put_section(self._core.store, section, tables, marks)
            self._core.copy_again(int(section[4:8].view("<u4")[0]))
            return rows

        rows = self._loop.submit(put)
        self._until(lambda: self._core.stream_waiting < RESTORE_BYTES_MAX, RESTORE_LIMIT_S)
        return rows

    # --- clocks

    def set_clock(self, clock: int, early: bool = False) -> None:
        """Begins at `clock`: forgets what is staged and sealed.  Parameters: `ShardStore`."""
        self._order("set_clock", clock=clock, early=bool(early))

    def clock(self) -> int:
        """The present clock: all below are applied."""
        return int(self._loop.submit(lambda: self._core.store.clock_state()["clock"]))

    def close_clock(self, clock: int, slots: Sequence[int]) -> dict[str, Any]:
        """Applies exactly these slots of `clock`, which must be sealed, and drops the others.

        Returns and raises what `ShardStore.close_clock` does, or raises what an access method in
        Python did.
        """
        closed: dict[str, Any] = self._order(
            "close_clock", clock=clock, slots=list(map(int, slots))
        )
        return closed

    def seal(self, clock: int, slot: int, slots: int, incarnation: int) -> bool:
        """Seals a slot in the place of an incarnation that has pushed all of it and is gone.

        Returns and raises what `ShardStore.seal` does, or raises what an access method in Python
        did.
        """
        return bool(
            self._order("seal", clock=clock, slot=slot, slots=slots, incarnation=incarnation)
        )

    def fence(self, incarnation: int) -> None:
        """Refuses whatever comes from this incarnation from now on, and ends its connections."""
        self._order("fence", incarnation=incarnation)

    def freeze(self, clock: int = -1) -> int:
        """Keeps the rows as they are when a clock begins, the standby's, too; the clock that it
        was.

        Returns and raises what `ShardStore.freeze` does.  A standby that is promoted goes on.
        """
        # Whatever it holds comes behind it, and a standby that has yet to get it goes on by itself.
        return int(self._order("freeze", wait=False, clock=clock))

    def thaw(self) -> None:
        """Lets clocks go on; where the shard has yielded, they do so at its new place."""
        self._loop.submit(self._replication.thaw)

    # --- replication

    def back_up(
        self, fd: int, *, sync: bool, paced: bool = False, resume: bool = False, tell: Tell
    ) -> Future[None]:
        """Streams everything to a standby, over a socket that is connected to it and has shaken
        hands as `Role.SERVER`.

        Forgets the standby that there was, as `alone` does.  Does not wait.

        Parameters
        ----------
        fd : int
            Descriptor of the socket; owned from now on, and closed if this fails.
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

        Returns
        -------
        concurrent.futures.Future
            Done once the stream has begun; `MisuseError` where this is neither a primary nor a
            standby that has everything.

        Notes
        -----
        A standby that was lost after "ready" may be promoted at any time: until `alone` says that
        it will not, nothing is acknowledged, while pulls and pushes go on.
        """

        def end(command: Future[None]) -> None:
            if command.cancelled() or command.exception() is not None:
                os.close(fd)

        command = self._loop.post(lambda: self._replication.back_up(fd, sync, paced, resume, tell))
        command.add_done_callback(end)
        return command

    def pace(self, paced: bool) -> None:
        """The copying that goes on gives way to clients' requests, or does so no more.  Does not
        wait.
        """
        self._loop.post(lambda: self._replication.pace(paced))

    def alone(self) -> None:
        """Has no standby (any more): what waited for it is acknowledged."""
        self._loop.submit(self._replication.alone)

    def yield_(self, timeout_s: float, stay: bool = False) -> None:
        """Hands everything over to the standby and serves no more; to `stay` it stands by from then
        on.

        What changes rows waits meanwhile, and is done at the standby: connections are closed,
        clients send again what was not acknowledged.

        Raises
        ------
        MisuseError
            There is no ready standby.
        WaitTimeout
            It did not acknowledge everything in time; this shard goes on serving.
        ConnectionLost
            It was lost meanwhile, or this shard is promoted; it goes on serving.
        """
        self._loop.submit(self._replication.begin_yield)
        try:
            if not self._until(lambda: self._replication.finish_yield(stay), timeout_s):
                raise WaitTimeout(
                    f"the standby did not acknowledge all pushes in {timeout_s:g} s: "
                    "this shard goes on serving"
                )
        finally:
            self._loop.submit(self._replication.end_yield)

    def promote(self, epoch: int) -> None:
        """Makes this standby the primary, from a route epoch on; older ones are refused.

        One that has yielded is the primary again, with its standby if that is there: its successor
        was not promoted, or is gone before anybody asked it.

        Its former primary's connection is closed, so that nothing can be acknowledged there that is
        not here.  Without effect on a primary but for the epoch.

        Raises
        ------
        MisuseError
            The former primary had not told everything.
        """
        self._loop.submit(lambda: self._replication.promote(epoch))

    # --- for people and tests

    def stats(self) -> dict[str, Any]:
        """Counters of loop, requests and store, as a dict of numbers."""

        def count() -> dict[str, Any]:
            return {
                **self._loop.counters(),
                **self._core.stats(),
                "replica": self._replication.status(time.monotonic()),
            }

        return self._loop.submit(count)

    def test_faults(self, left_out: Sequence[str] = (), point: str = "", passings: int = 1) -> None:
        """Leaves out what keeps acknowledged pushes safe, or dies at a point.  For tests of
        recovery.

        Parameters
        ----------
        left_out : sequence of str
            "no-hold": replies do not wait for the standby; "no-marks": pushes are applied as often
            as they come; "no-fence": who was given up is served.
        point : str
            Where the process dies as by kill -9: "mid-send", "applied", "acknowledged" (primary),
            "replayed", "promoted" (standby).
        passings : int
            At which passing of that point.
        """
        self._loop.submit(lambda: self._core.set_faults(left_out, point, passings))
