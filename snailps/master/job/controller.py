"""The course of a job at the master: start, survey, training, export.

    prepare(job) -> Start to every worker -> leases ... -> summary -> leases ... -> export -> on_end

It owns the phase that a job is in, and work beside the master's loop (merging, exporting, looking),
each in a thread of its own.  What workers ask for is `leases/service.py`'s, checkpoints are
`master/checkpoints.py`'s.  It knows no connection: answers go through the `Reply` that came with a
call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any

from snailps.api.export_progress import ExportProgress
from snailps.errors import ClusterError, SnailError
from snailps.master.checkpoints import CheckpointController
from snailps.master.job.expiry import ExpiryClock
from snailps.master.job.job import Job
from snailps.master.job.model_reader import ModelReader
from snailps.master.job.position import Position, pack
from snailps.master.job.recovery import JobRecovery
from snailps.master.job.round_controller import RoundController
from snailps.master.job.run_metrics import run_figures
from snailps.master.job.worker_wait import WorkerWait
from snailps.master.journal import Fact, Snapshot
from snailps.master.leases import BspLedger, RoundLedger
from snailps.master.leases.ledger import ANYBODY, Ledger
from snailps.master.leases.service import LeaseService
from snailps.master.member import Member, Reply
from snailps.master.membership import Membership
from snailps.node.background import in_thread
from snailps.node.process import EXIT_INTERRUPTED, explain
from snailps.node.status import Phase
from snailps.store.route import Route
from snailps.transport import messages
from snailps.transport.security.trust import OPEN, Trust

log = logging.getLogger(__name__)

TELL_S = 10.0
"""Between two lines of the log on how far an export is."""
CANCEL_S = 5.0
"""How long an export that was cancelled may take to end."""
SIDE_END_S = 1.0
"""How long the end of the master waits for work beside its loop."""


class JobController:
    """The job that a formed cluster is at, if any.

    Parameters
    ----------
    members : Membership
    timeout_s : float
        Limit of one request of the master's own pulls, seconds.
    alone_s : float
        How long a job without any worker waits for one to come, seconds.
    tell : callable
        ``tell(member, message)``: sends a note.
    fail : callable
        ``fail(text, exit_code=1)``: ends the cluster, with a sentence.
    on_end : callable
        Told when the result is written.
    past : sequence of Fact
        What an earlier master of this life has noted: the job goes on from there.
    """

    def __init__(
        self,
        members: Membership,
        timeout_s: float,
        alone_s: float,
        *,
        tell: Callable[[Member, messages.Message], None],
        fail: Callable[..., None],
        on_end: Callable[[], None],
        trust: Trust = OPEN,
        past: Sequence[Fact] = (),
    ) -> None:
        self.leases = LeaseService(members, tell)
        self.recovery = JobRecovery(past, members)
        self._journal = members.journal
        self.round: RoundController | None = None
        self.phase: Phase = "idle"
        self.figures: dict[str, Any] = {}
        self.failed = ""  # why the last job of a session failed
        self.interrupted = False
        self._is_formed = False
        self._starting: dict[Member, None] = {}  # workers that come, and are told the job next
        self._submitter: Reply | None = None
        self._members = members
        self._model_reader = ModelReader(members, timeout_s, trust, lambda: self.figures)
        self._tell, self._fail, self._on_end = tell, fail, on_end
        self._summaries: list[Reply] = []
        self._side: Future[Any] | None = None
        self._then: Callable[[Any], None] = lambda result: None
        self.checkpoints = CheckpointController(members, on_restored=self._restored, fail=fail)
        self.worker_wait = WorkerWait(alone_s, fail, self.checkpoints.advice)
        self._saved_last = False
        self._told_at = self._cancelled_at = 0.0
        self.expiry = ExpiryClock(members)

    @property
    def job(self) -> Job | None:
        """The job that is under way."""
        return self.leases.job

    @job.setter
    def job(self, job: Job | None) -> None:
        self.leases.job = job

    # --- beginning and going on --------------------------------------------------------------

    def prepare(self, job: Job, workers: int, reply: Reply | None = None) -> None:
        """Finds the job's input, beside the loop, then starts it on the formed cluster.

        With `reply` (a submitted job) an error is told there, and the cluster lives on.
        """
        self.job, self.figures, self.failed, self.interrupted = job, {}, "", False
        self._saved_last = False
        self.expiry.begin()
        self._model_reader.begin()
        self.phase, self._submitter = "preparing", reply

        def prepare() -> None:
            job.prepare(workers)
            self.checkpoints.open(job, resumes=not self.recovery.begun)
            if not (job.has_survey or self.checkpoints.resumes or self.recovery.begun):
                self._journal.keep_base(pack(job.base()))

        self._beside(prepare, lambda _: self._prepared(job))

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
        if self.recovery.begun:
            self.recovery.go_on(self, job)
            return
        if not self.recovery.known:
            self._members.table_registry.forget_job()
            self._members.rows.expired = 0
        if not self._members.joined("worker"):
            if not any(member.role == "worker" for member in self._members.left):
                self._fail(
                    "a job needs a worker, and none is here: raise expected_node_num or start "
                    "workers"
                )
            return  # they are gone again: `step` waits for another one
        if self.checkpoints.resumes:
            self.phase = "restoring"
            self.checkpoints.forget_others()
            self.checkpoints.restore()
            return
        if job.has_survey:
            self.begin_survey(job)
        else:
            self._open_book(job)
        self._start_all()

    def begin_survey(self, job: Job) -> None:
        """Opens the book of the survey."""
        self._journal.note("survey", {})
        self.phase = "survey"
        job.begin_pass("survey")

    def _restored(self, position: Position) -> None:
        """The servers have the rows of a checkpoint: the training goes on behind it."""
        job = self.job
        if job is None:
            return

        def go_on() -> None:
            self._open_book(job, position)
            self.expiry.resume([int(tick) for tick in position.figures["ticks"]])
            self._start_all()

        def keep() -> None:
            self._journal.keep_base(pack(position))
            if position.summary is not None:
                job.ready_summary(position.summary)

        self._beside(keep, lambda _: go_on())

    def _open_book(self, job: Job, position: Position | None = None) -> None:
        """Opens the book of the training; where there are clocks, once all shards stand there."""
        here = [m for m in self._members.joined("worker") if not (m.dropped or m.leaving)]
        nodes = [member.number for member in here]
        if job.rounds and not nodes:  # who takes part in them is settled now
            self._fail("every worker has left before the training began")
            return
        restored = self.checkpoints.continued_from
        self._journal.note("train", {"nodes": nodes, "at": time.time(), "restored": restored})
        for member in here:
            member.wait_for("")
            member.waited_s = member.block_since = 0.0
            member.done = member.fetched = 0
        self.begin_training(job, nodes, position)
        if job.clocked:
            self.set_clock(job, position.clock if position is not None else 0)

    def begin_training(self, job: Job, nodes: list[int], position: Position | None) -> None:
        """Opens the book of the training for these workers."""
        job.begin_pass("train", nodes, position)
        self.phase = "training"
        self.checkpoints.training_begins()
        if job.rounds:
            self.round = RoundController(
                job,
                self._members,
                self._model_reader.after_round,
                self._fail,
                is_saving=lambda: self.checkpoints.running,
                note=self._journal.note,
            )

    def set_clock(self, job: Job, clock: int) -> None:
        """Has all shards begin at a clock; before they do, nothing is leased."""
        self._members.rows.set_clock(clock, early=job.rounds > 0)

    def start(self, member: Member) -> None:
        """A worker comes in the middle of a job, if there is one; `tell` tells all of them."""
        self.leases.number_changed()
        self._starting[member] = None

    def tell(self) -> None:
        """Tells workers how many they are, if that has changed, and then those who come the job.

        At the end of a turn of the loop: however many come in it, the others are told once.
        """
        coming, self._starting = self._starting, {}
        self.leases.tell(but=coming)
        workers = len(self._members.joined("worker")) if coming else 0
        for member in list(coming):
            if self._members.all.get(member.number) is member:
                self._start(member, workers)

    def _start_all(self) -> None:
        workers = self._members.joined("worker")
        for member in workers:
            self._start(member, len(workers))

    def _start(self, member: Member, workers: int) -> None:
        """Gives a worker the job."""
        self._starting.pop(member, None)  # it came while the job began, which tells all
        if self.job is None or self.phase not in ("survey", "loading", "training"):
            return
        member.state, member.finished = "starting", False
        member.block_since = 0.0
        if self.phase == "training" and self.job.ledger is not None:
            self._journal.note("join", {"node": member.number})
            self.job.ledger.join(member.number)
        self._tell(member, self.job.start_message(workers))

    def step(self) -> None:
        """Looks whether a pass or work beside the loop has ended, and goes on from there."""
        self._check_side()
        if self.phase == "exporting":
            self._step_export(time.monotonic())
        self.checkpoints.step()
        if self.phase == "ready" and self._is_formed and self.job is not None:
            if self._members.joined("worker"):
                self.worker_wait.over()
                self._begin(self.job)
            else:
                self.worker_wait.step("all blocks", time.monotonic())
        if self.phase not in ("survey", "training") or self._side is not None:
            return
        job = self.job
        assert job is not None
        assert job.ledger is not None
        if job.pass_ == "train" and self._journal.is_long:
            self._journal.compact(self._snapshot(job, job.ledger))
        workers = self._members.joined("worker")
        if not (workers or job.ledger.over):
            self._go_on_alone(job, job.ledger, time.monotonic())
            return
        self.worker_wait.over()
        if job.pass_ == "survey" and job.ledger.over:
            job.end_pass()
            self._beside(lambda: self._end_survey(job), lambda _: self.summarised())
        elif job.pass_ == "train":
            self._step_training(job, job.ledger, workers)

    def _go_on_alone(self, job: Job, ledger: Ledger, now: float) -> None:
        """What can be done without a worker: end, where it is time to; else wait for one."""
        if job.pass_ == "train":
            if self.round is not None:
                self.round.step()
            self._check_limit(job, ledger)
            if isinstance(ledger, BspLedger) and ledger.closed:
                ledger.abandon(ANYBODY)  # nobody is left to complete its clock
        if not (ledger.over or (self.round is not None and self.round.closing)):
            self.worker_wait.step(f"{ledger.size - ledger.finished} blocks", now)

    def _step_training(self, job: Job, ledger: Ledger, workers: list[Member]) -> None:
        if job.diverged:
            self._fail(job.diverged)
            return
        self._model_reader.look(job)
        self.expiry.step(job)
        self.leases.note_waits(job, ledger, workers)
        if self.round is not None:
            self.round.step()
        # Behind the end of a round: where that is the last one, no part of another one is leased.
        self._check_limit(job, ledger)
        if job.clocked or self.leases.busy:
            self.leases.answer()  # the shards may have told that they are ready
        late = any(not (member.finished or member.dropped) for member in workers)
        if self.leases.drop_late(ledger, workers):
            return
        if ledger.over:
            self.leases.answer()
            looking = self._model_reader.looking
            looking |= self.round is not None and self.round.closing
            if late or looking or self.checkpoints.running or self._members.rows.expiring:
                return
            if not self._members.rows.clocks_set or self._members.rows.moving:
                return
            if self.interrupted and self.checkpoints.writes and not self._saved_last:
                self._saved_last = True  # the same command will go on from here
                self.checkpoints.begin(job)
                return
            job.end_pass()
            self._begin_export()

    def _check_limit(self, job: Job, ledger: Ledger) -> None:
        if not (ledger.over or ledger.closed) and (limit := job.limit_reached()):
            log.info("%s reached: finishing the blocks at work, then saving", limit)
            self._end_early(job, limit)

    def _snapshot(self, job: Job, ledger: Ledger) -> Snapshot:
        """What a master has to know that takes over, beside who belongs, and how it began."""
        state, arrays = job.snapshot()
        facts = [Fact("shards", self._members.shards)] if self._members.shards else []
        if self.leases.clocks_noted:
            facts.append(Fact("clocks", {}))
        if job.ended_by:
            facts.append(Fact("early", {"why": job.ended_by, "size": ledger.size}))
        if self.round is not None and self.round.closing and isinstance(ledger, RoundLedger):
            facts.append(Fact("close", {"parts": ledger.parts}))
        return Snapshot({"job": state, "ticks": list(self.expiry.ticks)}, arrays, facts)

    @property
    def can_wait(self) -> bool:
        """Whether the job is where it can wait for a worker: not between two of its phases."""
        between = self.phase not in ("survey", "training") or self._side is not None
        return self.phase in ("preparing", "ready", "exporting") or not between

    @property
    def in_haste(self) -> bool:
        """Whether workers could be answered, or wait for work beside the loop that ends soon."""
        return self.leases.busy or (self.round is not None and self.round.looks)

    @property
    def holds_rows(self) -> bool:
        """Whether rows are read from files or saved: no shard is to move then."""
        return self.checkpoints.running or self.checkpoints.resumes or self.phase == "restoring"

    def reroute(self, route: Route) -> None:
        """Shards are elsewhere: the master's own clients follow."""
        self._model_reader.reroute(route)

    def interrupt(self) -> None:
        """Ends the training early: blocks at work are finished, what was learnt is saved."""
        if self.job is not None and self.job.ledger is not None and not self.interrupted:
            self.interrupted = True
            log.warning("interrupted: finishing the blocks at work, then saving")
            self._end_early(self.job, "interrupt")

    def _end_early(self, job: Job, why: str) -> None:
        job.end_early(why)
        assert job.ledger is not None
        self._journal.note("early", {"why": why, "size": job.ledger.size})
        self.ends_early(interrupted=self.interrupted)
        self.leases.answer()

    def ends_early(self, *, interrupted: bool) -> None:
        """Blocks at work are finished, but not waited for without a limit."""
        self.interrupted = interrupted
        self.leases.hurry()

    def close(self) -> None:
        """Refuses whatever still waits and lets go of threads and unpacked input."""
        self._model_reader.close()
        if self._side is not None:  # it removes what it has not written to the end
            wait({self._side}, SIDE_END_S)
        self.checkpoints.close()
        self.leases.close()
        if self.job is not None:
            self.job.close()

    # --- what workers ask --------------------------------------------------------------------

    def all_back(self) -> None:
        """All that come back are back: tells them what the master before may not have told."""
        job = self.job
        if job is None or job.ledger is None or self.phase != "training":
            return
        self._model_reader.begin(job.progress)
        self.tell()  # who has just come is told the job before anything of it
        workers = self._members.joined("worker")
        if workers and all(member.finished for member in workers) and not job.ledger.over:
            lacking = job.ledger.size - job.ledger.finished
            self._fail(
                f"the journal lacks {lacking} blocks, which the workers have trained and do not "
                "know any more: it was damaged, or its machine died. Start again with --fresh"
            )
        self.leases.all_back(job)

    def came_back(self, member: Member) -> None:
        """A worker that an earlier master knew: takes over what it has leased and has told."""
        if self.job is None or self.job.ledger is None:
            return
        if member.resume_state["started"]:
            self.leases.came_back(member)
        else:
            self.start(member)

    def released(self, member: Member) -> int:
        """A worker has gone: its blocks go to others; returns how many."""
        return self.leases.released(member, self.round.lost if self.round else lambda: None)

    def summarise(self, member: Member, reply: Reply) -> None:
        """A worker waits for the merged survey."""
        job, ledger = self.leases.running()
        if job.summary is not None and job.pass_ == "train":
            reply(job.summary_message())
        elif not ledger.over:  # the survey began anew, with another master
            reply(messages.Again())
        else:
            member.wait_for("the survey to be merged")
            self._summaries.append(reply)

    def _end_survey(self, job: Job) -> None:
        job.end_survey()
        self._journal.keep_base(pack(job.base()))

    def summarised(self) -> None:
        """The survey is merged, and kept: goes on to the training."""
        self._journal.note("summary", {})
        job, _ = self.leases.running()
        assert job.summary is not None
        log.info("survey done, summary of %.1f MB", len(job.summary) / 1e6)
        load = job.cls.loader(job.settings)
        if load is None:
            self._begin_training()
            return
        self.phase = "loading"
        self._beside(lambda: self._model_reader.read(job, load), lambda _: self._begin_training())

    def _begin_training(self) -> None:
        job, _ = self.leases.running()
        assert job.summary is not None
        self._open_book(job)
        self.leases.answer()
        for reply in self._summaries:
            reply(job.summary_message())
        self._summaries.clear()

    # --- beside the loop -----------------------------------------------------------------------

    def _beside(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self._side, self._then = in_thread("snailps-side", work), then

    def _check_side(self) -> None:
        if self._side is None or not self._side.done():
            return
        side, self._side = self._side, None
        if self._cancelled_at and side.exception() is not None:
            self._end_cancelled()
            return
        try:
            result = side.result()
        except SnailError as error:
            if self._submitter is not None:
                self._submitter(error)
                self._submitter = None
                self.end()
            else:
                self._fail(str(error), error.exit_code)
            return
        except Exception as error:
            log.exception("%s failed", self.phase)
            self._fail(f"{self.phase} failed at the master: {explain(error)}")
            return
        self._then(result)

    def _begin_export(self) -> None:
        self.phase = "exporting"
        self._told_at, self._cancelled_at = time.monotonic(), 0.0
        self._model_reader.leave_rounds()
        for member in self._members.nodes():
            member.state = "waiting for the export"
        self._members.ask_stats()
        log.info("training done, exporting")
        job, _ = self.leases.running()
        self._beside(lambda: self._model_reader.export(job), self._exported)

    def _step_export(self, now: float) -> None:
        """Tells how far the export is; ends one that was cancelled and does not heed it."""
        told = self._model_reader.exporting
        if self._cancelled_at and now - self._cancelled_at > CANCEL_S:
            self._end_cancelled()
        elif told is not None and now - self._told_at >= TELL_S:
            self._told_at = now
            if told.text:
                log.info("exporting %s", told.line())

    @property
    def exporting(self) -> ExportProgress | None:
        """How far the export is, where one is under way."""
        return self._model_reader.exporting if self.phase == "exporting" else None

    @property
    def cancelled(self) -> bool:
        """The export was told to end, and has not ended yet."""
        return self._cancelled_at > 0

    def cancel_export(self) -> None:
        """Ends the export: what is not written yet will not be, and leaves nothing behind."""
        self._cancelled_at = time.monotonic()
        log.warning("interrupted: ending the export")
        self._model_reader.cancel()

    def _end_cancelled(self) -> None:
        self._fail(self.export_verdict(), EXIT_INTERRUPTED)

    def export_verdict(self) -> str:
        """What is there of an export that was interrupted, and how to get the rest."""
        told = self._model_reader.exporting
        text = "interrupted while exporting; "
        if told is None:
            text += "nothing was saved"
        else:
            text = f"interrupted while exporting, {told.share:.0%} done; {told.verdict()}"
        advice = self.checkpoints.advice()
        return f"{text}. {advice}" if advice else text

    def _exported(self, figures: dict[str, Any]) -> None:
        self._journal.note("exported", {"figures": figures})
        self.ended(figures)

    def ended(self, figures: dict[str, Any]) -> None:
        """The result is written."""
        self.figures = figures
        for path in figures.get("files", []):
            log.info("wrote %s", path)
        self.checkpoints.ended("" if self.interrupted else "the run ended")
        self._on_end()

    def collect_figures(self) -> None:
        """Adds up what the members told to the figures of the run."""
        job, _ = self.leases.running()
        saved = self.checkpoints.figures()
        self.figures = run_figures(job, self._members, self.figures, saved)

    def abandon(self, text: str) -> None:
        """The job of a session has failed: nothing more is done for it, nor waited for.

        What its workers still ask is refused.  Its rows stay until the next job begins.
        """
        job = self.job
        assert job is not None
        if self._submitter is not None:
            self._submitter(ClusterError(text))
            self._submitter = None
        self._side = None  # its thread may go on for a while, unheard
        self._model_reader.leave_rounds()
        for reply in self._summaries:
            reply(ClusterError("the job has failed"))
        self._summaries.clear()
        self.leases.close()
        self.checkpoints.abandon("the job has failed")
        if job.clocked and self.phase == "training":
            self._members.rows.set_clock(0, early=True)  # forget what it staged
        self.end()
        self.phase, self.figures, self.failed = "stopping", {}, text

    def abandoned(self) -> None:
        """The workers of the job that has failed are gone."""
        self.phase = "idle"

    def end(self) -> None:
        """Goes back to waiting for a job."""
        if self.job is not None:
            self.job.close()
        self.checkpoints.ended("")
        self.job, self.phase, self.interrupted = None, "idle", False
        self.round = None
        self._members.left.clear()
        for member in self._members.nodes():
            member.state = "ready"

    def check_checkpoint(self) -> None:
        """Begins a checkpoint if one is due."""
        if self.phase == "training" and self.job is not None:
            ledger = self.job.ledger
            closing = self.round is not None and self.round.closing
            closing |= self._members.rows.moving
            if ledger is not None and not (ledger.over or ledger.closed or closing):
                self.checkpoints.ticks = tuple(self.expiry.ticks)
                self.checkpoints.check(self.job)
