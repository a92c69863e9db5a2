"""What the master itself does with the tables of a job: looks at the model, and the export.

    inspect, after_round, export -> ShardConnections -> Results -> the model's class -> figures

Each reading is for a thread beside the master's loop.  It owns the connections that this takes,
and one for all rounds.  When to look, and what comes of the figures, is the course's matter.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from snailps.api.export_progress import ExportProgress
from snailps.api.results import Results
from snailps.api.worker import Worker
from snailps.errors import ClusterError
from snailps.master.job.job import Job
from snailps.master.leases import BspLedger
from snailps.master.membership import Membership
from snailps.node.background import in_thread
from snailps.node.process import explain
from snailps.node.shard_connections import ShardConnections, connect
from snailps.store.route import Route
from snailps.transport.handshake import Role
from snailps.transport.security.trust import Trust

log = logging.getLogger(__name__)

LOOKS = 10
"""How often the model's inspector looks during the training."""
Result = TypeVar("Result")


class ModelReader:
    """The master's own reading of the tables.

    Parameters
    ----------
    members : Membership
    timeout_s : float
        Limit of one request, seconds.
    trust : Trust
        What the servers are asked for.
    figures : callable
        The figures of the run so far, which the model's class may see.
    """

    def __init__(
        self,
        members: Membership,
        timeout_s: float,
        trust: Trust,
        figures: Callable[[], dict[str, Any]],
    ) -> None:
        self._members, self._timeout_s, self._trust = members, timeout_s, trust
        self._figures = figures
        self._of_rounds: tuple[Results, Callable[[], None]] | None = None
        self._look: Future[None] | None = None
        self._looks = 0
        self._links: set[ShardConnections] = set()
        self._closed = threading.Event()
        self.exporting: ExportProgress | None = None

    @property
    def looking(self) -> bool:
        """The model's inspector is at work."""
        return self._look is not None and not self._look.done()

    def begin(self, progress: float = 0.0) -> None:
        """A job begins, or goes on where this much of it is done."""
        self._looks = int(progress * LOOKS)
        self.exporting = None

    def look(self, job: Job) -> None:
        """Has the model's inspector look, once each tenth of the training."""
        looks = int(job.progress * LOOKS)
        if looks > self._looks and not self.looking:
            self._looks = looks
            self._look = in_thread("snailps-look", lambda: self._inspect(job))

    def after_round(self, job: Job, round_: int) -> Future[Mapping[str, Any]]:
        """Has the model look at itself after a round."""
        if job.cls.after_round.__func__ is Worker.after_round.__func__:  # type: ignore[attr-defined]
            nothing: Future[Mapping[str, Any]] = Future()
            nothing.set_result({})
            return nothing
        told = {"train_s": round(job.elapsed_s, 3), "workers": len(self._members.nodes("worker"))}

        def look() -> Mapping[str, Any]:
            if self._of_rounds is None:  # for all rounds: workers wait while it connects
                self._of_rounds = self._results(job)
            results, _ = self._of_rounds
            results.figures = {**self._figures(), **told}
            return job.cls.after_round(results, round_)

        return in_thread("snailps-round", look)

    def leave_rounds(self) -> None:
        """No round is looked at any more."""
        tables, self._of_rounds = self._of_rounds, None
        if tables is not None:
            tables[1]()

    def export(self, job: Job) -> dict[str, Any]:
        """Judges the model and writes it; the figures of that.  Takes as long as it does."""
        begin = time.monotonic()
        told = self.exporting = ExportProgress()
        if isinstance(job.ledger, BspLedger):
            self._reach(job.ledger.open_clock)
        self._inspect(job)
        figures: dict[str, Any] = {"validation": job.validation} if job.validation else {}
        told.check()
        figures |= self.read(job, lambda results: _judge_and_export(job, results), told)
        if job.settings.output:
            figures["export_s"] = round(time.monotonic() - begin, 3)
        return figures

    def cancel(self) -> None:
        """Ends the export that is under way, whatever it waits for."""
        if self.exporting is not None:
            self.exporting.cancel()
        for links in list(self._links):
            links.client.fail("the export was interrupted")

    def read(
        self, job: Job, work: Callable[[Results], Result], told: ExportProgress | None = None
    ) -> Result:
        """Calls `work` on the tables of the job; takes as long as that does."""
        results, close = self._results(job, told)
        try:
            results.exporting.check()  # it may have been cancelled while this connected
            return work(results)
        finally:
            close()

    def reroute(self, route: Route) -> None:
        """Shards are elsewhere: the clients follow."""
        for links in list(self._links):
            links.follow(route)

    def close(self) -> None:
        """Fails whatever is being read."""
        self._closed.set()
        for links in list(self._links):
            links.client.fail("the cluster has ended")

    def _inspect(self, job: Job) -> None:
        look = job.cls.inspector(job.settings)
        if look is None:
            return
        try:
            found = self.read(job, look)
        except Exception as error:  # a look is no reason to lose the model
            log.error("cannot look at the model, the job goes on: %s", explain(error))
            return
        job.validation = {name: list(figures) for name, figures in found.items()}

    def _reach(self, clock: int) -> None:
        """Waits until all clocks below are applied.

        Seals of a clock that was held are acknowledged before it is: if that failed and no worker
        has asked for the next one, nobody knows yet.
        """
        links, close = self._connect()
        try:
            links.client.reach_async(clock).wait(self._timeout_s)
        finally:
            close()

    def _gives_up(self) -> bool:
        told = self.exporting
        return self._closed.is_set() or (told is not None and told.cancelled)

    def _connect(self) -> tuple[ShardConnections, Callable[[], None]]:
        """Connections of the master's own to all shards, and how to close them."""

        def newest() -> Route:
            route = self._members.route
            assert route is not None
            return route

        def make(route: Route, superseded: Callable[[], bool]) -> ShardConnections:
            return ShardConnections(
                route,
                Role.MASTER,
                node=0,
                incarnation=self._members.new_number(),
                job=self._members.life,
                timeout_s=self._timeout_s,
                trust=self._trust,
                give_up=self._gives_up,
                superseded=superseded,
            )

        links = connect(newest, make)
        self._links.add(links)
        if self._members.route is not None:  # it may have changed while we connected
            links.follow(self._members.route)
        if self._closed.is_set():
            links.client.fail("the cluster has ended")

        def close() -> None:
            self._links.discard(links)
            links.close()

        return links, close

    def _results(
        self, job: Job, told: ExportProgress | None = None
    ) -> tuple[Results, Callable[[], None]]:
        """The tables through a client of the master's own, and how to close it."""
        links, close = self._connect()
        route = links.route
        tables = dict(self._members.table_registry.tables)
        results = Results(
            job.settings,
            job.summary or b"",
            dict(self._figures()),
            links.client,
            {name: number for name, (number, _) in tables.items()},
            {name: table for name, (_, table) in tables.items()},
            [route.fragments_of(shard).tolist() for shard in range(len(route.shards))],
            told,
        )
        return results, close


def _judge_and_export(job: Job, results: Results) -> dict[str, Any]:
    figures = dict(job.cls.judge(results))
    for name, value in figures.get("test", {}).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ClusterError(
                f"the finished model's {name} on the test data is {value}: the training has "
                "diverged, and nothing is written. Lower lr"
            )
    if job.settings.output:
        figures |= job.cls.export(results)
    return figures
