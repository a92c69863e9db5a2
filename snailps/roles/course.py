"""The course of a job at the master: start, leases, survey, training, export.

    prepare(job) -> Start to every worker -> Lease / Done ... -> summary -> ... -> export -> on_end

It owns what is under way: calls of workers that wait for an answer, and work beside the master's
loop (merging, exporting, looking), each in a thread of its own; checkpoints are the work of
`checkpointing.py`.  It knows no connection: answers go through the `Reply` that came with a call.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any

from snailps.errors import ClusterError, ProtocolError, SnailError
from snailps.roles.checkpointing import Checkpointing
from snailps.roles.clocks import Dealt, Rounds, Stepped
from snailps.roles.job import Job
from snailps.roles.journal import Fact
from snailps.roles.ledger import ANYBODY, LOSSES_MAX, Entry, Ledger
from snailps.roles.member import Member, Reply
from snailps.roles.members import NOTICE_S, Members
from snailps.roles.node import explain, peak_rss_mb
from snailps.roles.past import Past
from snailps.roles.position import Position, pack
from snailps.roles.readings import Readings
from snailps.roles.rounds import RoundCourse
from snailps.roles.side import in_thread
from snailps.roles.status import Phase
from snailps.store.route import Route
from snailps.transport import messages
from snailps.transport.trust import OPEN, Trust

log = logging.getLogger(__name__)

TICKS = 8
"""Steps of the clock in the time after which untouched rows are deleted."""
DROP_S = 20.0
"""How long a block may take once the training is to end early; after that nobody waits for it."""
NAMES_S = 0.2
"""Between two looks at who waits for whom."""


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
        members: Members,
        timeout_s: float,
        alone_s: float,
        *,
        tell: Callable[[Member, messages.Message], None],
        fail: Callable[..., None],
        on_end: Callable[[], None],
        trust: Trust = OPEN,
        past: Sequence[Fact] = (),
    ) -> None:
        self.job: Job | None = None
        self.past = Past(past, members)
        self._journal = members.journal
        self._clocks_noted = False
        self.round: RoundCourse | None = None
        self.phase: Phase = "idle"
        self.figures: dict[str, Any] = {}
        self.interrupted = False
        self._is_formed = False
        self._submitter: Reply | None = None
        self._members = members
        self._readings = Readings(members, timeout_s, trust, lambda: self.figures)
        self._alone_s, self._notice_at = alone_s, 0.0
        self.lacks, self.lacks_since = "", 0.0
        """Whom the whole job waits for, in words, and since when; empty as a rule."""
        self._tell, self._fail, self._on_end = tell, fail, on_end
        self._leases: list[tuple[Member, str, Reply]] = []
        self._summaries: list[Reply] = []
        self._side: Future[Any] | None = None
        self._then: Callable[[Any], None] = lambda result: None
        self.checkpoints = Checkpointing(members, on_restored=self._restored, fail=fail)
        self._saved_last = False
        self._ticks = [0]
        self._drop_at = self._name_at = 0.0

    # --- beginning and going on --------------------------------------------------------------

    def prepare(self, job: Job, workers: int, reply: Reply | None = None) -> None:
        """Finds the job's input, beside the loop, then starts it on the formed cluster.

        With `reply` (a submitted job) an error is told there, and the cluster lives on.
        """
        self.job, self.figures, self.interrupted = job, {}, False
        self._ticks, self._saved_last = [0], False
        self._readings.begin()
        self.phase, self._submitter = "preparing", reply

        def prepare() -> None:
            job.prepare(workers)
            self.checkpoints.open(job, resumes=not self.past.begun)
            if not (job.has_survey or self.checkpoints.resumes or self.past.begun):
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
        if self.past.begun:
            self.past.go_on(self, job)
            return
        if not self.past.known:
            self._members.catalogue.forget_job()
            self._members.rows.expired = 0
        if not self._members.nodes("worker"):
            self._fail(
                "a job needs a worker, and none is here: raise expected_node_num or start workers"
            )
            return
        if self.checkpoints.resumes:
            self.phase = "restoring"
            self.checkpoints.forget_others()
            self.checkpoints.restore()
            return
        if job.has_survey:
            self.begin_survey(job)
        else:
            self._open_book(job)
        for member in self._members.nodes("worker"):
            self._start(member)

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
            self.resume_clock([int(tick) for tick in position.figures["ticks"]])
            for member in self._members.nodes("worker"):
                self._start(member)

        self._beside(lambda: self._journal.keep_base(pack(position)), lambda _: go_on())

    def _open_book(self, job: Job, position: Position | None = None) -> None:
        """Opens the book of the training; where there are clocks, once all shards stand there."""
        here = [m for m in self._members.nodes("worker") if not (m.dropped or m.leaving)]
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
            self.round = RoundCourse(
                job,
                self._members,
                self._readings.after_round,
                self._fail,
                is_saving=lambda: self.checkpoints.running,
                note=self._journal.note,
            )

    def set_clock(self, job: Job, clock: int) -> None:
        """Has all shards begin at a clock; before they do, nothing is leased."""
        self._members.rows.set_clock(clock, early=job.rounds > 0)

    def start(self, member: Member) -> None:
        """A worker comes in the middle of a job, if there is one: the others are told first."""
        self._tell_workers(member)
        self._start(member)

    def _start(self, member: Member) -> None:
        """Gives a worker the job."""
        if self.job is None or self.phase not in ("survey", "loading", "training"):
            return
        member.state, member.finished = "starting", False
        member.block_since = 0.0
        if self.phase == "training" and self.job.ledger is not None:
            self._journal.note("join", {"node": member.number})
            self.job.ledger.join(member.number)
        self._tell(member, self.job.start_message(len(self._members.nodes("worker"))))

    def step(self) -> None:
        """Looks whether a pass or work beside the loop has ended, and goes on from there."""
        self._check_side()
        self.checkpoints.step()
        if self.phase not in ("survey", "training") or self._side is not None:
            return
        job = self.job
        assert job is not None
        assert job.ledger is not None
        workers = self._members.nodes("worker")
        if not (workers or job.ledger.over):
            self._go_on_alone(job, job.ledger, time.monotonic())
            return
        self.lacks, self.lacks_since = "", 0.0
        if job.pass_ == "survey" and job.ledger.over:
            job.end_pass()
            self._beside(lambda: self._end_survey(job), lambda _: self.summarised())
        elif job.pass_ == "train":
            self._step_training(job, job.ledger, workers)

    def _go_on_alone(self, job: Job, ledger: Ledger, now: float) -> None:
        """What can be done without a worker: end, where it is time to; else wait for one."""
        if job.pass_ == "train":
            self._check_limit(job, ledger)
            if self.round is not None:
                self.round.step()
            if isinstance(ledger, Stepped) and ledger.closed:
                ledger.abandon(ANYBODY)  # nobody is left to complete its clock
        if not (ledger.over or (self.round is not None and self.round.closing)):
            self._wait_for_a_worker(ledger, now)

    def _wait_for_a_worker(self, ledger: Ledger, now: float) -> None:
        """The last worker is lost or has left: another one may come, and goes on."""
        blocks = ledger.size - ledger.finished
        if not self.lacks_since:
            self.lacks_since, self._notice_at = now, now
        left_s = self._alone_s - (now - self.lacks_since)
        if left_s <= 0:
            within = f", none came within {self._alone_s:.0f} s (master_time_out)"
            text = (
                f"every worker has left before the work was done: {blocks} blocks left"
                f"{within if self._alone_s else ''}. {self.checkpoints.advice()}"
            )
            self._fail(text.rstrip(". "))
        elif now >= self._notice_at:
            self._notice_at = now + NOTICE_S
            hint = " (snailps worker -c FILE starts another)" if self.lacks else ""
            self.lacks = "a worker: the last one is gone"
            log.warning(
                "waiting for %s%s, %.0f s left; %d blocks to do", self.lacks, hint, left_s, blocks
            )

    def _step_training(self, job: Job, ledger: Ledger, workers: list[Member]) -> None:
        if job.diverged:
            self._fail(job.diverged)
            return
        self._check_limit(job, ledger)
        self._readings.look(job)
        self._move_clock(job)
        self._note_waits(job, ledger, workers)
        if self.round is not None:
            self.round.step()
        if job.clocked:
            self.answer()  # the shards may have told that they are ready
        late = [member for member in workers if not (member.finished or member.dropped)]
        if late and ledger.closed and time.monotonic() >= self._drop_at:
            for member in late:
                if isinstance(ledger, Stepped):
                    ledger.abandon(member.number)
                else:
                    ledger.release(member.number)
                member.dropped = True
                log.warning("%s is not waited for: %.0f s at its block", member.name, DROP_S)
        elif ledger.over:
            self.answer()
            looking = self._readings.looking
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

    @property
    def can_wait(self) -> bool:
        """Whether the job is where it can wait for a worker: not between two of its phases."""
        between = self.phase not in ("survey", "training") or self._side is not None
        return self.phase == "exporting" or not between

    @property
    def in_haste(self) -> bool:
        """Whether work beside the loop is about to end that all workers wait for."""
        return self.round is not None and self.round.looks

    @property
    def holds_rows(self) -> bool:
        """Whether rows are read from files or saved: no shard is to move then."""
        return self.checkpoints.running or self.checkpoints.resumes or self.phase == "restoring"

    def reroute(self, route: Route) -> None:
        """Shards are elsewhere: the master's own clients follow."""
        self._readings.reroute(route)

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
        self.answer()

    def ends_early(self, *, interrupted: bool) -> None:
        """Blocks at work are finished, but not waited for longer than `DROP_S`."""
        self.interrupted = interrupted
        self._drop_at = time.monotonic() + DROP_S

    def close(self) -> None:
        """Refuses whatever still waits and lets go of threads and unpacked input."""
        self._readings.close()
        self.checkpoints.close()
        for _, _, reply in self._leases:
            reply(ClusterError("the job is over"))
        self._leases.clear()
        if self.job is not None:
            self.job.close()

    # --- what workers ask --------------------------------------------------------------------

    def lease(self, member: Member, message: messages.Lease, reply: Reply) -> None:
        """A worker wants a block; answered now or when it is known that there is none."""
        if member.dropped:
            reply(messages.Leased(-1))
            return
        job = self._running()
        if message.back:
            wanted = message.pass_ == job.pass_ and not member.leaving
            lease = job.lease(member.number, back=True) if wanted else None
            reply(lease or messages.Leased(-1))
            return
        self._leases.append((member, message.pass_, reply))
        self.answer()

    def done(self, member: Member, message: messages.Done, reply: Reply) -> None:
        """A worker finished a block."""
        if member.dropped:
            reply(messages.Enough())
            return
        job = self._running()
        assert job.ledger is not None
        slowest = self._slowest(job)
        void = isinstance(job.ledger, Rounds) and job.ledger.is_void(message.number)
        if job.done(message, member.number):
            self._note_done(message, member)
        elif not void and not member.standing:  # who came back may say it a second time
            raise ClusterError(f"block {message.number} is not leased to {member.name}")
        if isinstance(job.ledger, Stepped):  # up to three clocks are left, each of many blocks
            self._drop_at = time.monotonic() + DROP_S
        member.done, member.block_since = member.done + 1, time.monotonic()
        if message.seconds > 0 and message.pass_ == "train":
            member.rate = message.units / message.seconds
        reply(messages.Enough() if job.ledger.drops else messages.Ok())
        self.answer()
        self._tell_slowest(job, slowest)

    def _note_done(self, message: messages.Done, member: Member) -> None:
        if message.pass_ == "train":
            fields = ("number", "units", "seconds", "metrics")
            said = {name: getattr(message, name) for name in fields}
            self._journal.note("done", {"node": member.number, **said})

    def came_back(self, member: Member) -> None:
        """A worker that an earlier master knew: takes over what it has leased and has told."""
        job, standing = self.job, member.standing
        if job is None or job.ledger is None:
            return
        if not standing["started"]:
            self.start(member)
            return
        node = member.number
        member.worked, member.state = True, "training" if job.pass_ == "train" else "counting"
        if job.pass_ == "train":
            for fields in standing["told"]:
                done = messages.Done("train", **fields)
                if job.replay(done, node):
                    self._note_done(done, member)
            job.outcomes.settle_all(node, standing["unsettled"])
            self._journal.note("settled_all", {"node": node, "but": standing["unsettled"]})
        if standing["finished"] is not None:
            member.finished, member.figures, member.state = True, standing["finished"], "finished"
            return
        for pass_, number in standing["held"]:
            if pass_ == job.pass_:
                job.ledger.claim(number, node)

    def all_back(self) -> None:
        """All that come back are back: tells them what the master before may not have told."""
        job = self.job
        if job is None or job.ledger is None or self.phase != "training":
            return
        self._readings.begin(job.progress)
        workers = self._members.nodes("worker")
        if workers and all(member.finished for member in workers) and not job.ledger.over:
            lacking = job.ledger.size - job.ledger.finished
            self._fail(
                f"the journal lacks {lacking} blocks, which the workers have trained and do not "
                "know any more: it was damaged, or its machine died. Start again with --fresh"
            )
        self.answer()
        if job.clocked:
            self.tell_workers(messages.CameBack())
        self._tell_slowest(job, (-1, -1))

    def resume_clock(self, ticks: list[int]) -> None:
        """The clock of the tables that forget rows stands here."""
        self._ticks = ticks
        if ticks[-1]:
            self._members.rows.expire(ticks[-1], oldest_kept(ticks))

    def _slowest(self, job: Job) -> tuple[int, int]:
        return job.ledger.slowest() if isinstance(job.ledger, Dealt) else (0, 0)

    def _tell_slowest(self, job: Job, before: tuple[int, int]) -> None:
        """Tells every worker where the slowest one is, if that has changed."""
        now = self._slowest(job)
        if now != before and job.settings.consistency == "ssp":
            for member in self._members.nodes("worker"):
                if not member.finished:
                    self._tell(member, messages.Slowest(*now))

    def _tell_workers(self, changed: Member) -> None:
        """Tells workers how many they are, now that one has come or gone; not where clocks are."""
        if self.job is None or self.job.clocked:
            return
        workers = self._members.nodes("worker")
        for member in workers:
            if member is not changed:
                self._tell(member, messages.Workers(len(workers)))

    def settled(self, member: Member, numbers: list[Any]) -> None:
        """A worker's pushes of these blocks are all acknowledged."""
        if self.job is not None:
            self._journal.note("settled", {"node": member.number, "numbers": numbers})
            self.job.outcomes.settle((int(number) for number in numbers), member.number)

    def finished(self, member: Member, figures: dict[str, float]) -> None:
        """A worker has ended its part of the job."""
        if self.job is not None and not member.dropped:
            self._journal.note("settled_all", {"node": member.number, "but": []})
            self.job.outcomes.settle_all(member.number)
        if member.dropped:  # of this job or, in a session, of one that ended without it
            member.dropped = False
            return
        member.finished, member.figures, member.state = True, figures, "finished"
        if self.job is not None and self.job.ledger is not None and self.job.ledger.drops:
            self.job.ledger.release(member.number)  # the block that it had prefetched
            self.answer()

    def summarise(self, member: Member, reply: Reply) -> None:
        """A worker waits for the merged survey."""
        job = self._running()
        assert job.ledger is not None
        if job.summary is not None and job.pass_ == "train":
            reply(messages.Summary(job.summary))
        elif not job.ledger.over:  # the survey began anew, with another master
            reply(messages.Again())
        else:
            member.wait_for("the survey to be merged")
            self._summaries.append(reply)

    def fetch(self, member: Member, message: messages.Fetch, reply: Reply) -> None:
        """A worker cannot open its block's path and wants the bytes."""
        job = self._running()
        assert job.ledger is not None
        reply(messages.Content(job.content(message.number, message.unit)))
        member.fetched += 1
        member.lacks = job.ledger.entry(message.number).block.path

    def leaving(self, member: Member) -> None:
        """A worker finishes its block and goes; nobody waits for more of it."""
        if self.job is not None and self.job.ledger is not None:
            self._journal.note("leave", {"node": member.number})
            self.job.ledger.leave(member.number)
        self.answer()

    def released(self, member: Member) -> int:
        """A worker has gone: its blocks go to others; returns how many."""
        job = self.job
        if job is None or job.ledger is None:
            return 0
        self._tell_workers(member)
        slowest = self._slowest(job)
        self._journal.note("retire", {"node": member.number})
        numbers = job.ledger.retire(member.number)
        if self.round is not None and numbers:
            self.round.lost()
        self.answer()
        self._tell_slowest(job, slowest)
        if numbers and job.clocked:
            self.tell_workers(messages.CameBack())
        return len(numbers)

    def tell_workers(self, message: messages.Message) -> None:
        """Sends a note to every worker."""
        for member in self._members.nodes("worker"):
            self._tell(member, message)

    def last_of(self, member: Member) -> Entry | None:
        """What a lost worker may have sealed at some shards only."""
        ledger = None if self.job is None else self.job.ledger
        return ledger.last_of(member.number) if isinstance(ledger, Stepped) else None

    def blame(self, member: Member) -> str:
        """The block that a lost worker was at, in words, if it has cost too many workers."""
        job = self.job
        if job is None or job.ledger is None:
            return ""
        before = job.ledger.losses
        number = job.ledger.blame(member.number)
        for entry in job.ledger.losses.items() - before.items():
            self._journal.note("loss", {"number": entry[0]})
        if number < 0:
            return ""
        block = job.ledger.entry(number).block
        where = f" ({block.path}, bytes {block.start:,} to {block.stop:,})" if block.path else ""
        return f"block {number}{where} has cost {LOSSES_MAX} workers: look at what is in it"

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
            ready = not (job.clocked and pass_ == "train") or self._members.rows.clocks_set
            wanted = current and ready and not member.leaving
            lease = job.lease(member.number) if wanted else None
            if lease is not None:
                if job.clocked and not self._clocks_noted:
                    self._clocks_noted = True
                    self._journal.note("clocks", {})
                if member.waits or not member.block_since:
                    member.block_since = time.monotonic()
                member.wait_for("")
                member.worked = True
                member.state = "counting" if pass_ == "survey" else "training"
                reply(lease)
            elif not current or member.leaving or job.ledger.over or job.ledger.drops:
                member.wait_for("")
                reply(messages.Leased(-1))
            else:
                if not member.waits:
                    self._name_wait(job.ledger, member)
                self._leases.append((member, pass_, reply))

    def _name_wait(self, ledger: Ledger, member: Member) -> None:
        """Says for whom a worker waits that gets no block, unless it still has one."""
        if member.number not in ledger.holders():
            member.wait_for(str(ledger.wait_of(member.number)))

    def _note_waits(self, job: Job, ledger: Ledger, workers: list[Member]) -> None:
        """Says for whom workers wait that get no block, or are held up by a clock, and logs it.

        Costs entries leased x workers, so less often where these are many.
        """
        now = time.monotonic()
        if now < self._name_at:
            return
        self._name_at = now + max(NAMES_S, len(workers) / 500)
        asking = {member.number for member, _, _ in self._leases}
        for member, _, _ in self._leases:
            if member.waits:
                self._name_wait(ledger, member)
        for member in workers:
            if job.clocked and not job.rounds:
                held_up = ledger.held_up(member.number)
                if held_up is not None:
                    member.wait_for(str(held_up))
                elif member.number not in asking:
                    member.wait_for("")
            member.log_wait()

    def _running(self) -> Job:
        if self.job is None or self.job.ledger is None:
            raise ProtocolError("there is no job")
        return self.job

    def _end_survey(self, job: Job) -> None:
        job.end_survey()
        self._journal.keep_base(pack(job.base()))

    def summarised(self) -> None:
        """The survey is merged, and kept: goes on to the training."""
        self._journal.note("summary", {})
        job = self._running()
        assert job.summary is not None
        log.info("survey done, summary of %.1f MB", len(job.summary) / 1e6)
        load = job.cls.loader(job.settings)
        if load is None:
            self._begin_training()
            return
        self.phase = "loading"
        self._beside(lambda: self._readings.read(job, load), lambda _: self._begin_training())

    def _begin_training(self) -> None:
        job = self._running()
        assert job.summary is not None
        self._open_book(job)
        self.answer()
        for reply in self._summaries:
            reply(messages.Summary(job.summary))
        self._summaries.clear()

    # --- beside the loop -----------------------------------------------------------------------

    def _beside(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self._side, self._then = in_thread("snailps-side", work), then

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
                self._fail(str(error), error.exit_code)
            return
        except Exception as error:
            log.exception("%s failed", self.phase)
            self._fail(f"{self.phase} failed at the master: {explain(error)}")
            return
        self._then(result)

    def _begin_export(self) -> None:
        self.phase = "exporting"
        self._readings.leave_rounds()
        for member in self._members.nodes():
            member.state = "waiting for the export"
        self._members.ask_stats()
        log.info("training done, exporting")
        job = self._running()
        self._beside(lambda: self._readings.export(job), self._exported)

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
        expired = self._members.rows.expired
        self.figures = {
            **job.figures(sums),
            **self.figures,
            "rows": self._members.shard_sum("rows"),
            **({"expired": expired} if expired else {}),
            **self.checkpoints.figures(),
            "servers": len(self._members.nodes("server")),
            "workers": sum(member.role == "worker" for member in everyone),
            **self._waited(job, everyone),
        }

    def _waited(self, job: Job, everyone: list[Member]) -> dict[str, Any]:
        """Seconds that each worker waited for others, in modes in which they do."""
        if not job.clocked and job.settings.consistency != "ssp":
            return {}
        workers = [member for member in everyone if member.role == "worker"]
        return {
            "waited_s": {
                f"worker {m.number}": round(max(m.waited_s, m.figures.get("waited_s", 0.0)), 2)
                for m in workers
            }
        }

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
                self.checkpoints.ticks = tuple(self._ticks)
                self.checkpoints.check(self.job)

    def _move_clock(self, job: Job) -> None:
        """Moves the servers' clock on, and has them delete what no push touched for so long."""
        period = job.cls.expires(job.settings)
        tick = job.units * TICKS // period if period else 0
        if tick > self._ticks[-1] and not self._members.rows.expiring:
            self._journal.note("tick", {"tick": tick})
            self._ticks.append(tick)
            self._members.rows.expire(tick, oldest_kept(self._ticks))
