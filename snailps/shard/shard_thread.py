"""A shard with its thread: what a server process gives work to from other threads.

    ShardThread -> ShardLoop.post -> in the shard's thread: Shard -> result

It owns the thread and waits for nothing that the shard does; what is done to a shard is in
`shard.py`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, TypeVar

from snailps.kernels.numa import keep_thread_on
from snailps.shard._shard import ShardCore
from snailps.shard.replication import Tell
from snailps.shard.shard import CLOCK_LIMIT_S, STAGED_BYTES_MAX, Shard
from snailps.transport.handshake import ServerSession
from snailps.transport.loop._loop import ShardLoop

T = TypeVar("T")


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
    cpus : collection of int
        CPUs that the thread is kept on: the rows, which it makes, lie in their memory.  None:
        anywhere.

    Attributes
    ----------
    shard : Shard
        To be used in functions that are given to `post` only.
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
        cpus: Collection[int] = (),
    ) -> None:
        core = ShardCore(row_ops, wire_ops, frag_num, clock_limit_s, staged_bytes_max, standby)
        self._loop = ShardLoop(listener, make_session, park_limit_s, silence_limit_s, stuck_limit_s)
        core.attach_loop(self._loop)
        self.shard = Shard(core, self._loop)
        self._cpus = cpus
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def _serve(self) -> None:
        keep_thread_on(self._cpus)
        self._run()

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
