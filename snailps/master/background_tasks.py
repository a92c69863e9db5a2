"""Owns the threads of work beside the master's loop: one for each work, or one for a lane.

    Work -> BackgroundTasks.begin -> thread -> BackgroundTasks.ended -> WorkDone

Works of a lane run one after the other, in the sequence in which they were begun. All methods are
for the master's loop; other threads only run a work's `run`, and call `wake`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from snailps.node.background import in_thread
from snailps.node.effects import Work, WorkDone
from snailps.transport._awake import awake_s


class BackgroundTasks:
    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self._wake = wake  # called by any thread when `ended` has a result
        self._running: dict[int, Future[Any]] = {}
        self._lanes: dict[str, deque[Work]] = {}  # by lane with a running work: works that wait
        self._lane_of: dict[int, str] = {}

    def begin(self, work: Work) -> None:
        """Begin a work, or queue it in its lane."""
        if work.lane and work.lane in self._lanes:
            self._lanes[work.lane].append(work)
            return
        if work.lane:
            self._lanes[work.lane] = deque()
            self._lane_of[work.number] = work.lane
        self._run(work.number, work.run)

    def _run(self, number: int, run: Callable[[], Any]) -> None:
        self._running[number] = future = in_thread(f"snailps-work-{number}", run)
        future.add_done_callback(lambda _: self._wake())

    def ended(self) -> list[WorkDone]:
        """Works that have ended since the last call, with result or error."""
        if not self._running:
            return []
        works = []
        for number in [n for n, future in self._running.items() if future.done()]:
            future = self._running.pop(number)
            error = future.exception()
            result = future.result() if error is None else None
            works.append(WorkDone(number, result, error))
            self._next_of(self._lane_of.pop(number, ""))
        return works

    def _next_of(self, lane: str) -> None:
        if not lane:
            return
        if self._lanes[lane]:
            work = self._lanes[lane].popleft()
            self._lane_of[work.number] = lane
            self._run(work.number, work.run)
        else:
            del self._lanes[lane]

    def has(self, lane: str) -> bool:
        return lane in self._lanes

    def wait_first(self, limit_s: float) -> None:
        """Wait up to `limit_s` for one of the running works to end, and raise its error."""
        done, _ = wait(self._running.values(), limit_s, FIRST_COMPLETED)
        for future in done:
            future.result()

    def wait_all(self, limit_s: float, lane: str = "") -> None:
        """Wait up to `limit_s` for all works of a lane, or all that run; ignore their results."""
        until = awake_s() + limit_s
        while self.has(lane) if lane else self._running:
            left_s = until - awake_s()
            if left_s <= 0:
                return
            futures = [f for n, f in self._running.items() if self._lane_of.get(n, "") == lane]
            wait(futures if lane else self._running.values(), left_s, FIRST_COMPLETED)
            self.ended()
