"""The course of a job at the master: start, leases, survey, training, backups, export.

    prepare(job) -> Start to every worker -> Lease / Done ... -> summary -> ... -> export -> on_end

It owns what is under way: calls of workers that wait for an answer, and work beside the master's
loop (merging, exporting, backing up), each in a thread of its own.  It knows no connection: answers
go through the `Reply` that came with a call.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TypeVar

from snailps.errors import ClusterError, ProtocolError, SnailError
from snailps.roles.backup import write_tables
from snailps.roles.job import Job
from snailps.roles.ledger import Ledger
from snailps.roles.links import connect_shards
from snailps.roles.members import Member, Members, Reply
from snailps.roles.node import explain, peak_rss_mb
from snailps.roles.status import Phase
from snailps.roles.worker import Results
from snailps.transport import messages
from snailps.transport._client import Client
from snailps.transport.session import Role

log = logging.getLogger(__name__)

BACKUPS_KEPT = 2
TICKS = 8
"""Steps of the clock in the time after which untouched rows are deleted."""
DROP_S = 20.0
"""How long a block may take once the training is to end early; after that nobody waits for it."""
LOOKS = 10
"""How often the model's inspector looks during the training."""
Result = TypeVar("Result")


def _in_thread(name: str, work: Callable[[], Result]) -> Future[Result]:
    """Runs `work` in a thread that does not keep the process alive."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _judge_and_export(job: Job, results: Results) -> dict[str, Any]:
    figures = dict(job.cls.judge(results))
    if job.settings.output:
        figures |= job.cls.export(results)
    return figures


def oldest_kept(ticks: Sequence[int]) -> int:
    """Least tick that a row's last push may have left, if the row is to be kept.

    A push leaves the tick of the clock, which stood there until the next tick: that is how late
    the push may have been.  However slow the servers were, a row lives `TICKS` from then on.
    """
    until = ticks[-1] - TICKS
    return max(
        (tick + 1 for tick, following in itertools.pairwise(ticks) if following <= until), default=0
    )


class Course:
    """The job that a formed cluster is at, if any.

    Parameters
    ----------
    members : Members
    timeout_s : float
        Limit of one request of the master's own pulls, seconds.
    tell : callable
        ``tell(member, message)``: sends a note.
    fail : callable
        Ends the cluster, with a sentence.
    on_end : callable
        Told when the result is written.
    """

    def __init__(
        self,
        members: Members,
        timeout_s: float,
        *,
        tell: Callable[[Member, messages.Message], None],
        fail: Callable[[str], None],
        on_end: Callable[[], None],
    ) -> None:
        self.job: Job | None = None
        self.phase: Phase = "idle"
        self.figures: dict[str, Any] = {}
        self.interrupted = False
        self._is_formed = False
        self._submitter: Reply | None = None
        self._members, self._timeout_s = members, timeout_s
        self._tell, self._fail, self._on_end = tell, fail, on_end
        self._leases: list[tuple[Member, str, Reply]] = []
        self._summaries: list[Reply] = []
        self._side: Future[Any] | None = None
        self._then: Callable[[Any], None] = lambda result: None
        self._backup: Future[None] | None = None
        self._backups: list[Path] = []
        self._pushes_saved = 0
        self._look: Future[None] | None = None
        self._looks = 0
        self._ticks = [0]
        self._drop_at = 0.0
        self._clients: set[Client] = set()
        self._closed = threading.Event()

    # --- beginning and going on --------------------------------------------------------------

    def prepare(self, job: Job, workers: int, reply: Reply | None = None) -> None:
        """Finds the job's input, beside the loop, then starts it on the formed cluster.

        With `reply` (a submitted job) an error is told there, and the cluster lives on.
        """
        self.job, self.figures, self.interrupted = job, {}, False
        self._looks, self._ticks = 0, [0]
        self.phase, self._submitter = "preparing", reply
        self._beside(lambda: job.prepare(workers), lambda _: self._prepared(job))

    def wait_prepared(self, limit_s: float) -> None:
        """Waits a moment for `prepare`, so that a wrong path is told before anybody joins."""
        if self._side is not None:
            wait({self._side}, limit_s)
            if self._side.done() and self._side.exception() is not None:
                self._side.result()

    def formed(self) -> None:
        """The cluster is complete: a prepared job can begin."""
        self._is_formed = True
        if self.job is not None and self.phase == "ready":
            self._begin(self.job)

    def _prepared(self, job: Job) -> None:
        log.info("%s: %d files, %.1f MB", *job.describe())
        if self._submitter is not None:
            self._submitter(messages.Ok())
            self._submitter = None
        self.phase = "ready"
        if self._is_formed:
            self._begin(job)

    def _begin(self, job: Job) -> None:
        self._members.forget_job_tables()
        if not self._members.nodes("worker"):
            self._fail(
                "a job needs a worker, and none is here: raise expected_node_num or start workers"
            )
            return
        if job.has_survey:
            self.phase = "survey"
            job.begin_pass("survey")
        else:
            self.phase = "training"
            job.begin_pass("train")
        for member in self._members.nodes("worker"):
            self.start(member)

    def start(self, member: Member) -> None:
        """Gives a worker the job, at its beginning or in the middle."""
        if self.job is None or self.phase not in ("survey", "loading", "training"):
            return
        member.state, member.finished = "starting", False
        self._tell(member, self.job.start_message(len(self._members.nodes("worker"))))

    def step(self) -> None:
        """Looks whether a pass or work beside the loop has ended, and goes on from there."""
        self._check_side()
        if self.phase not in ("survey", "training") or self._side is not None:
            return
        job = self.job
        assert job is not None
        assert job.ledger is not None
        workers = self._members.nodes("worker")
        if not workers:
            self._fail("every worker has left before the work was done")
        elif job.pass_ == "survey" and job.ledger.over:
            job.end_pass()
            self._beside(job.end_survey, lambda _: self._summarised())
        elif job.pass_ == "train":
            self._step_training(job, job.ledger, workers)

    def _step_training(self, job: Job, ledger: Ledger, workers: list[Member]) -> None:
        if not (ledger.over or ledger.closed) and (limit := job.limit_reached()):
            log.info("%s reached: finishing the blocks at work, then saving", limit)
            self._end_early(job, limit)
        self._check_look(job)
        self._move_clock(job)
        late = [member for member in workers if not (member.finished or member.dropped)]
        if late and ledger.closed and time.monotonic() >= self._drop_at:
            for member in late:
                ledger.release(member.number)
                member.dropped = True
                log.warning("%s is not waited for: %.0f s at its block", member.name, DROP_S)
        elif ledger.over:
            self.answer()
            beside = [work for work in (self._backup, self._look) if work is not None]
            beside_over = all(work.done() for work in beside) and not self._members.expiring
            if not late and beside_over:
                job.end_pass()
                self._begin_export()

    def interrupt(self) -> None:
        """Ends the training early: blocks at work are finished, what was learnt is saved."""
        if self.job is not None and self.job.ledger is not None and not self.interrupted:
            self.interrupted = True
            log.warning("interrupted: finishing the blocks at work, then saving")
            self._end_early(self.job, "interrupt")

    def _end_early(self, job: Job, why: str) -> None:
        job.end_early(why)
        self._drop_at = time.monotonic() + DROP_S
        self.answer()

    def close(self) -> None:
        """Refuses whatever still waits and lets go of threads and unpacked input."""
        self._closed.set()
        for _, _, reply in self._leases:
            reply(ClusterError("the job is over"))
        self._leases.clear()
        for client in list(self._clients):
            client.fail("the cluster has ended")
        if self.job is not None:
            self.job.close()

    # --- what workers ask --------------------------------------------------------------------

    def lease(self, member: Member, pass_: str, reply: Reply) -> None:
        """A worker wants a block; answered now or when it is known that there is none."""
        if member.dropped:
            reply(messages.Leased(-1))
            return
        self._running()
        self._leases.append((member, pass_, reply))
        self.answer()

    def done(self, member: Member, message: messages.Done, reply: Reply) -> None:
        """A worker finished a block."""
        if member.dropped:
            reply(messages.Enough())
            return
        job = self._running()
        if not job.done(message, member.number):
            raise ClusterError(f"block {message.number} is not leased to {member.name}")
        if message.seconds > 0 and message.pass_ == "train":
            member.rate = message.units / message.seconds
        closed = job.ledger is not None and job.ledger.closed
        reply(messages.Enough() if closed else messages.Ok())
        self.answer()

    def finished(self, member: Member, figures: dict[str, float]) -> None:
        """A worker has ended its part of the job."""
        if member.dropped:  # of this job or, in a session, of one that ended without it
            member.dropped = False
            return
        member.finished, member.figures, member.state = True, figures, "finished"
        if self.job is not None and self.job.ledger is not None and self.job.ledger.closed:
            self.job.ledger.release(member.number)  # the block that it had prefetched
            self.answer()

    def summarise(self, member: Member, reply: Reply) -> None:
        """A worker waits for the merged survey."""
        job = self._running()
        if job.summary is not None and job.pass_ == "train":
            reply(messages.Summary(job.summary))
        else:
            member.waits = "the survey to be merged"
            self._summaries.append(reply)

    def fetch(self, member: Member, message: messages.Fetch, reply: Reply) -> None:
        """A worker cannot open its block's path and wants the bytes."""
        member.state = "reading through the master"
        reply(messages.Content(self._running().content(message.number, message.unit)))

    def released(self, member: Member) -> int:
        """A worker left: its blocks go to others; returns how many."""
        if self.job is None or self.job.ledger is None:
            return 0
        numbers = self.job.ledger.release(member.number)
        self.answer()
        return len(numbers)

    def answer(self) -> None:
        """Answers what can be answered; the rest waits for blocks that may come back."""
        job = self.job
        if job is None or job.ledger is None:
            return
        waiting, self._leases = self._leases, []
        for member, pass_, reply in waiting:
            if member.number not in self._members.all:
                continue
            current = pass_ == job.pass_
            lease = job.lease(member.number) if current and not member.leaving else None
            if lease is not None:
                member.waits, member.worked = "", True
                member.state = "counting" if pass_ == "survey" else "training"
                reply(lease)
            elif not current or member.leaving or job.ledger.over or job.ledger.closed:
                member.waits = ""
                reply(messages.Leased(-1))
            else:
                others = [n for n in job.ledger.holders() if n != member.number]
                names = ", ".join(f"worker {n}" for n in others) or "its own last block"
                member.waits = f"{names} to finish"
                self._leases.append((member, pass_, reply))

    def _running(self) -> Job:
        if self.job is None or self.job.ledger is None:
            raise ProtocolError("there is no job")
        return self.job

    def _summarised(self) -> None:
        job = self._running()
        assert job.summary is not None
        log.info("survey done, summary of %.1f MB", len(job.summary) / 1e6)
        load = job.cls.loader(job.settings)
        if load is None:
            self._begin_training()
            return
        self.phase = "loading"
        self._beside(lambda: self._with_tables(job, load), lambda _: self._begin_training())

    def _begin_training(self) -> None:
        job = self._running()
        assert job.summary is not None
        job.begin_pass("train")
        self.phase = "training"
        self.answer()
        for reply in self._summaries:
            reply(messages.Summary(job.summary))
        self._summaries.clear()
        for member in self._members.nodes("worker"):
            member.waits = ""

    # --- beside the loop -----------------------------------------------------------------------

    def _beside(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self._side, self._then = _in_thread("snailps-side", work), then

    def _check_side(self) -> None:
        if self._side is None or not self._side.done():
            return
        side, self._side = self._side, None
        try:
            result = side.result()
        except SnailError as error:
            if self._submitter is not None:
                self._submitter(error)
                self._submitter = None
                self.end()
            else:
                self._fail(str(error))
            return
        except Exception as error:
            log.exception("%s failed", self.phase)
            self._fail(f"{self.phase} failed at the master: {explain(error)}")
            return
        self._then(result)

    def _begin_export(self) -> None:
        self.phase = "exporting"
        for member in self._members.nodes():
            member.state = "waiting for the export"
        self._members.ask_stats()
        log.info("training done, exporting")
        self._beside(self._export, self._exported)

    def _export(self) -> dict[str, Any]:
        job = self._running()
        begin = time.monotonic()
        self._inspect(job)
        figures: dict[str, Any] = {"validation": job.validation} if job.validation else {}
        figures |= self._with_tables(job, lambda results: _judge_and_export(job, results))
        if job.settings.output:
            figures["export_s"] = round(time.monotonic() - begin, 3)
        return figures

    def _exported(self, figures: dict[str, Any]) -> None:
        self.figures = figures
        for path in figures.get("files", []):
            log.info("wrote %s", path)
        self._on_end()

    def collect_figures(self) -> None:
        """Adds up what the members told to the figures of the run."""
        job = self._running()
        everyone = [*self._members.all.values(), *self._members.left]
        told = [member.figures for member in everyone]
        sums = {
            key: float(sum(figures.get(key, 0) for figures in told))
            for key in ("bytes_in", "bytes_out", "peak_rss_mb")
        }
        sums["peak_rss_mb"] += peak_rss_mb()
        sums["peak_rss_mb"] += sum(
            float(member.stats.get("peak_rss_mb", 0.0))
            for member in everyone
            if "peak_rss_mb" not in member.figures
        )
        expired = sum(member.expired for member in self._members.nodes("server"))
        self.figures = {
            **job.figures(sums),
            **self.figures,
            "rows": self._members.shard_sum("rows"),
            **({"expired": expired} if expired else {}),
            "servers": len(self._members.nodes("server")),
            "workers": sum(member.role == "worker" for member in everyone),
        }

    def end(self) -> None:
        """Goes back to waiting for a job."""
        if self.job is not None:
            self.job.close()
        self.job, self.phase, self.interrupted = None, "idle", False
        self._members.left.clear()
        for member in self._members.nodes():
            member.state = "ready"

    def check_backup(self) -> None:
        """Saves all tables once `param_backup_period` pushes came in since the last time."""
        if self.phase != "training" or self.job is None:
            return
        if self._backup is not None and self._backup.done():
            error = self._backup.exception()
            if error is not None:
                log.error("backup failed, training goes on: %s", explain(error))
            self._backup = None
        period = self.job.settings.param_backup_period
        pushes = self._members.shard_sum("pushes")
        if period and self._backup is None and pushes - self._pushes_saved >= period:
            self._pushes_saved = pushes
            job = self.job
            self._backup = _in_thread("snailps-backup", lambda: self._save(job, pushes))

    def _check_look(self, job: Job) -> None:
        """Has the model's inspector look, once each tenth of the training."""
        looks = int(job.progress * LOOKS)
        if looks > self._looks and (self._look is None or self._look.done()):
            self._looks = looks
            self._look = _in_thread("snailps-look", lambda: self._inspect(job))

    def _move_clock(self, job: Job) -> None:
        """Moves the servers' clock on, and has them delete what no push touched for so long."""
        period = job.cls.expires(job.settings)
        tick = job.units * TICKS // period if period else 0
        if tick > self._ticks[-1] and not self._members.expiring:
            self._ticks.append(tick)
            self._members.expire(tick, oldest_kept(self._ticks))

    def _inspect(self, job: Job) -> None:
        look = job.cls.inspector(job.settings)
        if look is None:
            return
        try:
            found = self._with_tables(job, look)
        except Exception as error:  # a look is no reason to lose the model
            log.error("cannot look at the model, the job goes on: %s", explain(error))
            return
        job.validation = {name: list(figures) for name, figures in found.items()}

    def _save(self, job: Job, pushes: int) -> None:
        folder = Path(job.settings.param_backup_root)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"backup-{self._members.life:016x}-{pushes:012d}.npz"
        self._with_tables(job, lambda results: write_tables(path, results))
        log.info("saved all tables after %s pushes to %s", f"{pushes:,}", path)
        self._backups.append(path)  # only what this run wrote is ever removed
        for old in self._backups[:-BACKUPS_KEPT]:
            old.unlink(missing_ok=True)
        del self._backups[:-BACKUPS_KEPT]

    def _with_tables(self, job: Job, work: Callable[[Results], Result]) -> Result:
        """Calls `work` on the tables of the job; takes as long as that does."""
        results, close = self._results(job)
        try:
            return work(results)
        finally:
            close()

    def _results(self, job: Job) -> tuple[Results, Callable[[], None]]:
        """The tables through a client of the master's own, and how to close it."""
        route = self._members.route
        assert route is not None
        client = connect_shards(
            route,
            Role.MASTER,
            node=0,
            incarnation=self._members.new_number(),
            job=self._members.life,
            timeout_s=self._timeout_s,
            give_up=self._closed.is_set,
        )
        self._clients.add(client)
        if self._closed.is_set():
            client.fail("the cluster has ended")

        def close() -> None:
            self._clients.discard(client)
            client.close()

        tables = dict(self._members.tables)
        results = Results(
            job.settings,
            job.summary or b"",
            dict(self.figures),
            client,
            {name: number for name, (number, _) in tables.items()},
            {name: table for name, (_, table) in tables.items()},
            [route.fragments_of(shard).tolist() for shard in range(len(route.shards))],
        )
        return results, close
