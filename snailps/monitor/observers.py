"""Who looks on at a run in the master's process: each sees a `Status` at its own interval.

    phase, news, time -> Observers.step -> Status, made once where one is due -> each on_status
                                        -> Progress, where that is enough for all that are due

Knows no core. A status is made elsewhere, and only where one is due: that of a thousand processes
takes 20 ms, during which the master answers none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from snailps.dataclass import dataclass
from snailps.node.status import Phase, Progress, Status

PHASES: tuple[Phase, ...] = ("restoring", "survey", "loading", "training", "exporting")
"""Phases in which a job makes progress."""
NODES_PER_S = 1000
"""Processes whose status is made in a second: of large clusters it is made less often."""


def job_number(status: Progress) -> int:
    """Number of the newest job."""
    return status["session"]["jobs"] if status["session"] is not None else 1


@dataclass(slots=True)
class Observer:
    on_status: Callable[[Any], object]  # gets a `Status`
    phases: Container[Phase]
    interval_s: float
    nodes_per_s: float = NODES_PER_S
    close: Callable[[], None] = lambda: None
    whole: bool = True  # False: a `Progress` is enough
    due: float = 0.0
    news: object = None


class Observers:
    def __init__(self, status: Callable[[], Status], progress: Callable[[], Progress]) -> None:
        self._status, self._progress = status, progress
        self._observers: list[Observer] = []

    def add(self, observer: Observer) -> None:
        self._observers.append(observer)

    def step(self, phase: Phase, nodes: int, news: object, now: float) -> None:
        """Show the status where it is due, or where `news` is another object than last time."""
        seen = [one for one in self._observers if phase in one.phases]
        due = [one for one in seen if now >= one.due or news is not one.news]
        for one in due:
            one.due, one.news = now + max(one.interval_s, nodes / one.nodes_per_s), news
        self._show(due)

    def end(self) -> None:
        """Show all the status of the end."""
        self._show(self._observers)

    def _show(self, observers: list[Observer]) -> None:
        if observers:
            whole = any(one.whole for one in observers)
            status = self._status() if whole else self._progress()
            for one in observers:
                one.on_status(status)

    def close(self) -> None:
        for one in self._observers:
            one.close()
