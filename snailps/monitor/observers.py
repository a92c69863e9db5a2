"""Shows a run's status to observers in the master's process, each at its own interval.

    phase, news, time -> Observers.step -> Status, made once for all that are due -> on_status
                                        -> Progress, if that is enough for all of them

Must not know the core, which makes the status.  One is made only when an observer is due: with a
thousand processes it takes 20 ms, during which the master answers nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from snailps.dataclass import dataclass
from snailps.node.status import Phase, Progress, Status

PHASES: tuple[Phase, ...] = ("restoring", "survey", "loading", "training", "exporting")
"""Phases in which a job makes progress."""
NODES_PER_S = 1000
"""Bound on the processes described per second: with more of them a status is made less often."""


def job_number(status: Progress) -> int:
    """Return the number of the newest job."""
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
        """Show the status to observers that are due, or have not seen `news` (compared by `is`)."""
        watching = [observer for observer in self._observers if phase in observer.phases]
        due = [o for o in watching if now >= o.due or news is not o.news]
        for observer in due:
            pause_s = max(observer.interval_s, nodes / observer.nodes_per_s)
            observer.due, observer.news = now + pause_s, news
        self._show(due)

    def end(self) -> None:
        """Show the final status to all observers."""
        self._show(self._observers)

    def _show(self, observers: list[Observer]) -> None:
        if observers:
            whole = any(observer.whole for observer in observers)
            status = self._status() if whole else self._progress()
            for observer in observers:
                observer.on_status(status)

    def close(self) -> None:
        for observer in self._observers:
            observer.close()
