"""A shard with its thread: a server process gives it work from other threads.

    ShardThread -> ShardLoop.post -> in the shard's thread: Shard -> result

It owns the thread and never waits for the shard; what is done to a shard is in `shard.py`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, TypeVar

from snailps.kernels.numa import keep_thread_on
from snailps.shard.shard import CLOCK_LIMIT_S, STAGED_BYTES_MAX, Report, Shard
from snailps.transport.handshake import ServerSession
from snailps.transport.loop._loop import ShardLoop

T = TypeVar("T")


class ShardThread:
    """One shard, its loop, and the thread that owns both.

    `listener` is owned by the loop.  `park_limit_s` and `clock_limit_s` bound waits of requests
    here, the second those for a clock.  `silence_limit_s`: a standby that acknowledges nothing for
    so long counts as lost; `stuck_limit_s`: how long this shard, as a standby, waits for what the
    stream needs.  The thread is kept on `cpus` (None: anywhere), so rows lie in their memory.
    `shard` is for functions given to `post` only.
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
        """Run `ShardLoop.turn`, instead of `start`; orders between turns are done at once."""
        return self._loop.turn(now)

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Stop serving and close every connection; True once the thread has ended."""
        self._loop.stop()
        if self._thread.ident is None:  # never started: closes the listener
            self._run()
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- work for its thread

    def post(self, work: Callable[[], T], at_standby: bool = False) -> Future[T]:
        """Run ``work()`` in the shard's thread, in the order of posting; the future has its result.

        With `at_standby` the order is done once the standby has it or will not be promoted; later
        orders do not wait for that.  ConnectionLost: the shard serves no more.
        """
        return self._loop.post(work, at_standby)

    def back_up(
        self, fd: int, *, sync: bool, paced: bool = False, resume: bool = False, report: Report
    ) -> Future[None]:
        """Post `Shard.back_up`; the future is done once the stream has begun.  Owns `fd`, closed on
        errors."""

        def end(command: Future[None]) -> None:
            if command.cancelled() or command.exception() is not None:
                os.close(fd)

        command = self._loop.post(lambda: self.shard.back_up(fd, sync, paced, resume, report))
        command.add_done_callback(end)
        return command
