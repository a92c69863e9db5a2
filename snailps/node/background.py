"""Work outside the master's loop: a thread a call, or one that works off what is put.

work -> in_thread -> future of its result
item -> Backlog.put -> thread -> work(items)      never waited for: what has no room is left out
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from typing import Generic, TypeVar

from snailps.errors import ClusterError

NO_THREADS = (
    "This user or container has as many processes and threads as it may have: end some, or raise "
    "its limit (ulimit -u, pids.max), and try again"
)
Result = TypeVar("Result")
Item = TypeVar("Item")


def in_thread(name: str, work: Callable[[], Result]) -> Future[Result]:
    """Run `work` in a thread that does not keep the process alive; the future also has the error of
    a thread that cannot start."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        future.set_exception(ClusterError(f"{name}: {error}. {NO_THREADS}"))
    return future


class Backlog(Generic[Item]):
    """Items that ``work(items)`` works off in a thread, at most `most` of them waiting."""

    def __init__(self, name: str, work: Callable[[Iterator[Item]], None], most: int) -> None:
        self._queue: queue.Queue[Item | None] = queue.Queue(most)
        items: Iterator[Item] = iter(self._queue.get, None)
        self._end = in_thread(name, partial(work, items))

    def put(self, item: Item) -> bool:
        """False if there is no room: the item is left out."""
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            return False
        return True

    def close(self, timeout_s: float) -> None:
        """Lets the thread end after what waits, but not for longer than this."""
        until = time.monotonic() + timeout_s
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return
        wait([self._end], max(0.0, until - time.monotonic()))
