"""Reads a job's tables for the master: for looks in its training, and for the export.

    look, landmarks, load, export -> ShardConnections -> Results -> the model's class

Each reading is a `Work`, in a thread beside the master's loop, and calls the model's class. Owns
the connections that it takes; rounds share one. Must not decide when to read: the job's controller
does, and uses the result.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.api.export_progress import ExportProgress
from snailps.api.plain_values import is_users, plain_figures
from snailps.api.results import Results
from snailps.api.traits import Reported, trait_of
from snailps.api.worker import Worker
from snailps.dataclass import replace
from snailps.errors import ClusterError, DataError, NotFinite, SnailError, explain
from snailps.master.job.job import Job
from snailps.master.job.model_class import Look
from snailps.master.observers import ResultsObserver
from snailps.master.services import ModelAccess
from snailps.node.shard_connections import ShardConnections, connect
from snailps.store.route import Route
from snailps.transport.handshake import Role
from snailps.transport.security.trust import Trust

log = logging.getLogger(__name__)

Result = TypeVar("Result")

LANDMARKS = 150
"""Most words of a map: more would overlap."""
MAP_SEED = 20_240_917
MAP_EDGE = 0.97
"""Share of the coordinates that lie inside the map; outliers are moved to its edge."""


class ModelReader:
    """Readings of the tables through a client of the master's own; `timeout_s` bounds each
    request."""

    def __init__(self, timeout_s: float, trust: Trust, cluster_id: int) -> None:
        self._timeout_s, self._trust, self._cluster_id = timeout_s, trust, cluster_id
        self._route: Route | None = None
        self._staying: tuple[Job, Results, Callable[[], None]] | None = None
        self._links: set[ShardConnections] = set()
        self._closed = threading.Event()
        self._progress: ExportProgress | None = None
        self._places: NDArray[np.float32] | None = None  # of the last map
        self.observer: ResultsObserver | None = None

    # --- of the loop -----------------------------------------------------------------------------

    def follow(self, route: Route) -> None:
        self._route = route
        for links in list(self._links):
            links.follow(route)

    def cancel(self) -> None:
        """Interrupt the export under way, whatever it waits for."""
        for links in list(self._links):
            links.client.fail("the export was interrupted")

    def leave_rounds(self) -> None:
        tables, self._staying = self._staying, None
        if tables is not None:
            tables[-1]()

    def close(self) -> None:
        """Fail whatever is being read."""
        self._closed.set()
        for links in list(self._links):
            links.client.fail("the cluster has ended")

    # --- beside the loop -------------------------------------------------------------------------

    @property
    def looks(self) -> tuple[Look, ...]:
        observer = self.observer
        if observer is None:
            return ()

        def observed(results: Results, number: int) -> Mapping[str, Any]:
            observer.read(results)
            return {}

        return (Look(("tenth", "end"), observed),)

    def look(
        self,
        job: Job,
        looks: Sequence[Look],
        number: int,
        reading: ModelAccess,
        *,
        stays: bool = False,
    ) -> list[Mapping[str, Any]]:
        seen: list[Mapping[str, Any]] = []

        def all_of(results: Results) -> None:
            for look in looks:
                seen.append(look.what(results, number))

        try:
            if reading.clock:
                self._reach(reading)
            self.load(job, all_of, reading, stays=stays)
        except Exception as error:
            if any(look.strict for look in looks):
                raise
            log.error("the inspection of the model failed, the job goes on: %s", explain(error))
        return seen

    def landmarks(self, job: Job, reading: ModelAccess, *, sharp: bool) -> Mapping[str, Any]:
        trait = trait_of(job.model.cls, Reported)
        named_rows = self.load(job, lambda results: trait.landmarks(results, LANDMARKS), reading)
        if named_rows is None or len(named_rows[0]) < 3:
            return {}
        names, rows = named_rows
        places = plane(rows, sharp=sharp)
        before = self._places
        if before is not None and before.shape == places.shape:
            places = turned(places, before)
        self._places = places
        return {
            "words": [str(name) for name in names],
            "xs": np.round(places[:, 0], 3).tolist(),
            "ys": np.round(places[:, 1], 3).tolist(),
            "sharp": sharp,
        }

    def export(self, job: Job, reading: ModelAccess, progress: ExportProgress) -> dict[str, Any]:
        self._progress = progress
        try:
            if reading.clock:
                self._reach(reading)
            if looks := [*job.model.by_input.at("end"), *self.looks]:
                job.looked(self.look(job, looks, 0, replace(reading, clock=0)))
            figures = job.inspected.figures
            progress.check()
            judge = partial(_judge_and_export, job)
            figures |= self.load(job, judge, reading, progress)
        finally:
            self._progress = None  # if it was cancelled, later readings are not
        if self.observer is not None:
            self._show_exported(self.observer, figures.get("files", []))
        return figures

    def _show_exported(self, observer: ResultsObserver, files: Sequence[str]) -> None:
        try:
            observer.exported(files)
        except Exception as error:  # the result is written
            log.warning("tensorboard: no vectors of %s: %s", files, explain(error))

    def load(
        self,
        job: Job,
        work: Callable[[Results], Result],
        reading: ModelAccess,
        progress: ExportProgress | None = None,
        *,
        stays: bool = False,
    ) -> Result:
        if stays:
            return work(self._stay(job, reading))
        results, close = self._results(job, reading, progress)
        try:
            results.exporting.check()  # it may have been cancelled while this connected
            return work(results)
        finally:
            close()

    def _stay(self, job: Job, reading: ModelAccess) -> Results:
        """The tables through a connection that stays: workers wait while another one is made."""
        if self._staying is not None and self._staying[0] is not job:
            self.leave_rounds()  # of a job that failed while this connected
        if self._staying is None:
            self._staying = job, *self._results(job, reading)
        _, results, _ = self._staying
        results.figures = reading.figures
        return results

    def _reach(self, reading: ModelAccess) -> None:
        """Wait until all clocks below the reading's are applied. A block is reported before its
        slot is sealed, and the master seals in place of a worker that dies in between."""
        links, close = self._connect(reading)
        try:
            links.client.reach_async(reading.clock).wait(self._timeout_s)
        finally:
            close()

    def gives_up(self) -> bool:
        progress = self._progress
        return self._closed.is_set() or (progress is not None and progress.cancelled)

    def _connect(self, reading: ModelAccess) -> tuple[ShardConnections, Callable[[], None]]:
        """Connections of the master to all shards, and a function that closes them."""
        incarnation = next(reading.numbers)  # one for all tries: only the last one is used

        def newest() -> Route:
            assert self._route is not None
            return self._route

        def make(route: Route, superseded: Callable[[], bool]) -> ShardConnections:
            return ShardConnections(
                route,
                Role.MASTER,
                node=0,
                incarnation=incarnation,
                job=self._cluster_id,
                timeout_s=self._timeout_s,
                trust=self._trust,
                give_up=self.gives_up,
                superseded=superseded,
            )

        links = connect(newest, make)
        self._links.add(links)
        links.follow(newest())  # it may have changed while we connected
        if self._closed.is_set():
            links.client.fail("the cluster has ended")

        def close() -> None:
            self._links.discard(links)
            links.close()

        return links, close

    def _results(
        self, job: Job, reading: ModelAccess, progress: ExportProgress | None = None
    ) -> tuple[Results, Callable[[], None]]:
        """The tables through a client of the master, and a function that closes it."""
        links, close = self._connect(reading)
        tables = reading.tables
        links.client.know_tables({n: (name, table.finite) for name, (n, table) in tables.items()})
        results = Results(
            job.settings,
            job.survey.summary or b"",
            dict(reading.figures),
            links.client,
            {name: number for name, (number, _) in tables.items()},
            {name: table for name, (_, table) in tables.items()},
            links.route.frag_num,
            progress,
        )
        results.memo = job.memo
        return results, close


def _judge_and_export(job: Job, results: Results) -> dict[str, Any]:
    wrong: ClusterError | None = None
    cls = job.model.cls
    begin = time.monotonic()
    try:
        judged = _called(cls, "judge", results)
        try:
            figures = plain_figures(cls, "judge", judged)
        except ClusterError as error:  # reported after the export: no model is lost for its figures
            figures, wrong = {}, error
    except DataError as error:  # a damaged test file: found only now, when all of it is read
        if not job.settings.output:
            raise
        log.warning("not tested: %s", error)
        figures = {"not_tested": str(error)}
    if is_users(cls) and (names := [name for name in figures if _is_shown(figures[name])]):
        figures.setdefault("judged", names)  # a user's own figure of that name keeps its value
    test = figures.get("test")
    for name, value in test.items() if isinstance(test, dict) else ():
        if isinstance(value, float) and not math.isfinite(value):
            raise NotFinite(
                f"the finished model's {name} on the test data is {value}: the training has "
                "diverged, and nothing is written. Lower lr"
            )
    tested = time.monotonic()
    if "test" in figures or "judged" in figures:
        figures["test_s"] = round(tested - begin, 3)
    if job.settings.output:
        figures |= plain_figures(cls, "export", _called(cls, "export", results))
        figures["export_s"] = round(time.monotonic() - tested, 3)
    if wrong is not None:
        if job.settings.output:
            raise ClusterError(f"{wrong}. The model is written to {job.settings.output}") from None
        raise wrong
    return figures


def _is_shown(value: object) -> bool:
    """Whether the report at the end of a run can show a figure of a user's `judge`."""
    return isinstance(value, (int, float, str))


def _called(cls: type[Worker], method: str, results: Results) -> object:
    """The result of a user's class method. An error of it becomes a ClusterError with the name of
    the method."""
    try:
        return getattr(cls, method)(results)
    except SnailError:
        raise
    except Exception as error:
        raise ClusterError(
            f"{cls.__name__}.{method} failed at the master: {explain(error)}"
        ) from error


def plane(rows: NDArray[np.float32], *, sharp: bool) -> NDArray[np.float32]:
    """Project rows (n, dim) to a plane: float32 (n, 2), from -1 to 1.

    `sharp` uses principal components; else two fixed random directions, which suit untrained rows:
    their principal components would be noise.
    """
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = (rows / np.maximum(lengths, 1e-12)).astype(np.float64)
    units -= units.mean(axis=0)
    if sharp and min(units.shape) >= 2:
        directions = np.linalg.svd(units, full_matrices=False)[2][:2].T
    else:
        drawn = np.random.default_rng(MAP_SEED).standard_normal((units.shape[1], 2))
        directions = np.linalg.qr(drawn)[0] if units.shape[1] >= 2 else np.ones((1, 2))
    points = units @ directions
    size = np.quantile(np.abs(points), MAP_EDGE) if points.size else 0.0
    clipped: NDArray[np.float64] = np.clip(points / max(size, 1e-12), -1.0, 1.0)
    return clipped.astype(np.float32)


def turned(places: NDArray[np.float32], like: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rotate or mirror points towards others (orthogonal Procrustes, Schoenemann, 1966)."""
    left, _, right = np.linalg.svd(places.astype(np.float64).T @ like.astype(np.float64))
    clipped: NDArray[np.float64] = np.clip(places @ (left @ right), -1.0, 1.0)
    return clipped.astype(np.float32)
