"""A shard and the thread that owns it; other threads of the server post calls to it.

    ShardThread -> ShardLoop.post -> in the shard's thread: Shard -> result

Owns the thread, and never waits for the shard.  Must not know what a call does: that is `shard.py`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, TypeVar

from snailps.abi.numa import keep_thread_on
from snailps.shard.shard import CLOCK_LIMIT_S, STAGED_BYTES_MAX, Report, Shard
from snailps.transport.handshake import ServerSession
from snailps.transport.loop._loop import ShardLoop

T = TypeVar("T")


class ShardThread:
    """One shard, its loop, and the thread that owns both.

    The loop owns `listener`.  `park_limit_s`: how long a request may wait here; `clock_limit_s`:
    for a clock.  `silence_limit_s`: a standby that acknowledges nothing for so long counts as lost.
    `stuck_limit_s`: how long this shard, as a standby, waits for a table or route that the stream
    needs.  The thread is kept on `cpus` (empty: anywhere), so that rows lie in their memory.  Only
    functions passed to `post` may touch `shard`.
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
        self._loop = ShardLoop(listener, make_session, park_limit_s, silence_limit_s, stuck_limit_s)
        self.shard = Shard(
            self._loop, row_ops, wire_ops, frag_num, clock_limit_s, staged_bytes_max, standby
        )
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
        self._thread.start()

    def turn(self, now: float) -> float:
        """Run `ShardLoop.turn`, for simulations, instead of `start`."""
        return self._loop.turn(now)

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Stop serving and close every connection; return whether the thread has ended in time."""
        self._loop.stop()
        if self._thread.ident is None:  # never started: closes the listener
            self._run()
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- work for its thread

    def post(self, work: Callable[[], T], at_standby: bool = False) -> Future[T]:
        """Run ``work()`` in the shard's thread, after earlier posts; the future has its result.

        With `at_standby` the future is done once the standby has executed it, too, or cannot be
        promoted; later posts do not wait for that.  ConnectionLost: the shard does not serve any
        more.
        """
        return self._loop.post(work, at_standby)

    def back_up(
        self, fd: int, *, sync: bool, paced: bool = False, resume: bool = False, report: Report
    ) -> Future[None]:
        """Post `Shard.back_up`; the future is done when the stream has begun.  Takes over `fd`, and
        closes it on errors."""

        def end(command: Future[None]) -> None:
            if command.cancelled() or command.exception() is not None:
                os.close(fd)

        command = self._loop.post(lambda: self.shard.back_up(fd, sync, paced, resume, report))
        command.add_done_callback(end)
        return command
