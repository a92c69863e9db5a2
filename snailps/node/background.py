"""Work beside a loop that must not wait: a thread for a call, or a thread with a queue of items.

work -> in_thread -> future of its result
item -> Backlog.put -> thread -> work(items)      `put` never waits: a full queue drops the item
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from typing import Generic, TypeVar

from snailps.errors import ClusterError
from snailps.transport._awake import awake_s

NO_THREADS = (
    "This user or container has as many processes and threads as it may have: end some, or raise "
    "its limit (ulimit -u, pids.max), and try again"
)
Result = TypeVar("Result")
Item = TypeVar("Item")


def in_thread(name: str, work: Callable[[], Result]) -> Future[Result]:
    """Run `work` in a thread that does not keep the process alive.  If no thread can be started,
    the future has that error."""
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
    """A queue of at most `most` items, which ``work(items)`` handles in a thread."""

    def __init__(self, name: str, work: Callable[[Iterator[Item]], None], most: int) -> None:
        self._queue: queue.Queue[Item | None] = queue.Queue(most)
        items: Iterator[Item] = iter(self._queue.get, None)
        self._end = in_thread(name, partial(work, items))

    def put(self, item: Item) -> bool:
        """Add an item; False: there is no room, and the item is dropped.  Never waits."""
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            return False
        return True

    def close(self, timeout_s: float) -> None:
        """Have the thread end after the queued items; wait at most `timeout_s`."""
        until = awake_s() + timeout_s
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return
        wait([self._end], max(0.0, until - awake_s()))
