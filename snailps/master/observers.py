"""Shows a run's status to observers in the master's process, each at its own interval.

    phase, news, time -> Observers.step -> Status, made once for all that are due -> on_status
                                        -> ProgressStatus, if that is enough for all of them
    ProgressStatus, facts of an earlier master -> RunHistory -> Ask("history"), facts of the journal

Observers come from outside: who starts a master says who looks on.  `RunHistory` is its own.  Must
not know the core, which makes the status.  One is made only when an observer is due: with a
thousand processes it takes 20 ms, during which the master answers nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Protocol

from snailps.api.results import Results
from snailps.dataclass import dataclass
from snailps.node.course import POINTS_MAX, Course
from snailps.node.status import HistoryAnswer, Phase, ProgressStatus, Status, job_number

PHASES: tuple[Phase, ...] = ("restoring", "survey", "loading", "training", "exporting")
"""Phases in which a job makes progress."""
POINT = "point"
"""Kind of the facts that `RunHistory` writes to the journal."""
NODES_PER_S = 1000
"""Bound on the processes described per second: with more of them a status is made less often."""


class ResultsObserver(Protocol):
    """Sees the tables when the master reads them, and the files of the export."""

    def read(self, results: Results) -> None:
        """Look at the tables, which can be read now."""

    def exported(self, files: Sequence[str]) -> None:
        """Look at the files of the export, which are written."""


@dataclass(slots=True)
class Observer:
    on_status: Callable[[Any], object]  # gets a `Status`
    phases: Container[Phase]
    interval_s: float
    nodes_per_s: float = NODES_PER_S
    close: Callable[[], None] = lambda: None
    whole: bool = True  # False: a `ProgressStatus` is enough
    results: ResultsObserver | None = None  # sees tables and files, too
    due: float = 0.0
    news: object = None


class Observers:
    def __init__(
        self, status: Callable[[], Status], progress: Callable[[], ProgressStatus]
    ) -> None:
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


class RunHistory(Course):
    """Curves of the newest job's training, kept by its master and by masters that take over."""

    def __init__(
        self,
        note: Callable[[str, dict[str, Any]], None],  # a fact for the journal
        begun_s: float,  # when this master began, seconds since 1970
        earlier: Iterable[Mapping[str, Any]] = (),  # what it has noted under an earlier master
    ) -> None:
        super().__init__(POINTS_MAX)
        self._note, self._begun_s, self._job = note, begun_s, 0
        for point in earlier:
            self._begin(point["job"])
            # If the clock was set back meanwhile, earlier points lie in the future.  At most 0,
            # they do not keep new points from being due.
            at_s = min(0.0, float(point["at"]) - begun_s)
            self.append((round(at_s, 3), point["units"], point["rate"], point["loss"]))

    def _begin(self, job: int) -> None:
        if job != self._job:
            self._job = job
            self.clear()

    def on_progress(self, status: ProgressStatus) -> None:
        """Add a point if one is due, and write it to the journal; another job starts new curves."""
        job, at_s, units = job_number(status), status["elapsed_s"], status["units"]
        rate, loss = round(status["units_per_s"], 1), status["loss"]
        self._begin(job)
        if self.is_due(at_s):
            self.append((round(at_s, 3), units, rate, loss))
            point = {"at": round(self._begun_s + at_s, 3), "job": job, "units": units}
            self._note(POINT, {**point, "rate": rate, "loss": loss})

    def columns(self) -> HistoryAnswer:
        at_s, units, rates, losses = zip(*self.points, strict=True) if self.points else [()] * 4
        return {
            "at_s": list(at_s), "units": list(units), "units_per_s": list(rates),
            "loss": list(losses),
        }  # fmt: skip
