"""A shard with its thread: what a server process, and tests, give work to from other threads.

    ShardThread -> ShardLoop.post -> in the shard's thread: Shard -> result

It owns the thread and the waiting; what is done to the shard is `shard.py`'s matter.
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
from snailps.shard.replication import Tell
from snailps.shard.shard import CLOCK_LIMIT_S, STAGED_BYTES_MAX, FragmentCursor, Shard
from snailps.transport.handshake import ServerSession
from snailps.transport.loop._loop import ShardLoop

T = TypeVar("T")
RESTORE_BYTES_MAX = 64 << 20
"""A section is put when less than this waits for the connection to the standby."""
RESTORE_LIMIT_S = 60.0
"""How long one section waits for the standby to take those before."""
LOOK_S = 0.001


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

    Attributes
    ----------
    shard : Shard
        To be used in functions that are given to `post` only.

    Notes
    -----
    Methods named as those of `Shard` do the same, and return once the shard's thread has done it;
    orders for rows and clocks once the standby has done it, too, or will not be promoted.
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
        core = ShardCore(row_ops, wire_ops, frag_num, clock_limit_s, staged_bytes_max, standby)
        self._loop = ShardLoop(listener, make_session, park_limit_s, silence_limit_s, stuck_limit_s)
        core.attach_loop(self._loop)
        self.shard = Shard(core, self._loop)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        try:
            self._loop.run()
        finally:
            self.shard.close()

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
        """Has `work()` done in the shard's thread, where `shard` may be used.

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

    def _do(self, work: Callable[[], T], at_standby: bool = False) -> T:
        """Does something and waits for it; in the shard's thread, which cannot wait, at once."""
        return self._loop.submit(work, at_standby=at_standby)

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
        """See `Shard`."""
        self._do(lambda: self.shard.take_route(epoch, fragments))

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
        """See `Shard`."""
        self._do(
            lambda: self.shard.add_table(
                number, dim, access, init, scale, seed, hyper, track, method
            )
        )

    def fragments(self) -> NDArray[np.uint32]:
        """See `Shard`."""
        return self._do(self.shard.fragments)

    def set_tick(self, tick: int) -> None:
        """See `Shard`."""
        self._do(lambda: self.shard.set_tick(tick), at_standby=True)

    def expire_one(self, number: int, before_tick: int, fragment: int) -> int:
        """See `Shard`."""
        return self._do(lambda: self.shard.expire_one(number, before_tick, fragment), True)

    # --- checkpoints

    def copy_next(
        self, cursor: FragmentCursor, buffer: NDArray[Any]
    ) -> tuple[int, list[tuple[int, int, int, int]]]:
        """See `Shard`."""
        return self._do(lambda: self.shard.copy_next(cursor, buffer))

    def put_section(self, section: NDArray[Any], tables: Mapping[int, int], marks: bool) -> int:
        """See `Shard`; also waits until the connection to the standby has taken most of it."""
        rows = self._do(lambda: self.shard.put_section(section, tables, marks))
        self._until(lambda: self.shard.stream_waiting() < RESTORE_BYTES_MAX, RESTORE_LIMIT_S)
        return rows

    # --- clocks

    def set_clock(self, clock: int, early: bool = False) -> None:
        """See `Shard`."""
        self._do(lambda: self.shard.set_clock(clock, early), at_standby=True)

    def clock(self) -> int:
        """See `Shard`."""
        return self._do(self.shard.clock)

    def close_clock(self, clock: int, slots: Sequence[int]) -> dict[str, Any]:
        """See `Shard`."""
        return self._do(lambda: self.shard.close_clock(clock, slots), at_standby=True)

    def seal(self, clock: int, slot: int, slots: int, incarnation: int) -> bool:
        """See `Shard`."""
        return self._do(lambda: self.shard.seal(clock, slot, slots, incarnation), at_standby=True)

    def fence(self, incarnation: int) -> None:
        """See `Shard`."""
        self._do(lambda: self.shard.fence(incarnation), at_standby=True)

    def freeze(self, clock: int = -1) -> int:
        """See `Shard`."""
        # Whatever it holds comes behind it, and a standby that has yet to get it goes on by itself.
        return self._do(lambda: self.shard.freeze(clock))

    def thaw(self) -> None:
        """See `Shard`."""
        self._do(self.shard.thaw)

    # --- replication

    def back_up(
        self, fd: int, *, sync: bool, paced: bool = False, resume: bool = False, tell: Tell
    ) -> Future[None]:
        """Has the shard begin a stream, as `Shard.back_up`.  Does not wait.

        The descriptor is owned from now on, and closed if this fails.

        Returns
        -------
        concurrent.futures.Future
            Done once the stream has begun; with an error of `Shard.back_up`.
        """

        def end(command: Future[None]) -> None:
            if command.cancelled() or command.exception() is not None:
                os.close(fd)

        command = self._loop.post(lambda: self.shard.back_up(fd, sync, paced, resume, tell))
        command.add_done_callback(end)
        return command

    def pace(self, paced: bool) -> None:
        """See `Shard`.  Does not wait."""
        self._loop.post(lambda: self.shard.pace(paced))

    def alone(self) -> None:
        """See `Shard`."""
        self._do(self.shard.alone)

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
        self._do(self.shard.begin_yield)
        try:
            if not self._until(lambda: self.shard.finish_yield(stay), timeout_s):
                raise WaitTimeout(
                    f"the standby did not acknowledge all pushes in {timeout_s:g} s: "
                    "this shard goes on serving"
                )
        finally:
            self._do(self.shard.end_yield)

    def promote(self, epoch: int) -> None:
        """See `Shard`."""
        self._do(lambda: self.shard.promote(epoch))

    # --- for people and tests

    def stats(self) -> dict[str, Any]:
        """Counters of loop, requests and store, as a dict of numbers."""
        return self._do(lambda: self.shard.stats(time.monotonic()))

    def test_faults(self, left_out: Sequence[str] = (), point: str = "", passings: int = 1) -> None:
        """Leaves out what keeps acknowledged pushes safe, or dies at a point.  For tests of
        recovery.

        Parameters
        ----------
        left_out : sequence of str
            "no-hold": replies do not wait for the standby; "no-marks": pushes are applied as often
            as they come; "no-fence": fenced incarnations are served.
        point : str
            Where the process dies as by kill -9: "mid-send", "applied", "acknowledged" (primary),
            "replayed", "promoted" (standby).
        passings : int
            At which passing of that point.
        """
        self._do(lambda: self.shard.core.set_faults(left_out, point, passings))
