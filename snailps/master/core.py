"""Dispatches events and messages to the parts of the master that own their subject.

    Event, now -> MasterCore.handle -> membership, job, replication, ... -> list of Effect

Makes the parts, each with the neighbours that it uses: `lifecycle.py` (phase, verdict),
`membership.py`, `forming.py`, `heartbeats.py`, `departures.py` (losses), `job/controller.py`,
`replication/`.
Answers what these ask of parts above them.

Neither the core nor any part may have a socket, clock, thread or file: `process.py` feeds events
and performs effects in their sequence. So the same events have the same effects in a test, in the
simulation and in a cluster (docs/design/master-core.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from snailps.api.tables import Table
from snailps.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_WRONG,
    ClusterError,
    ProtocolError,
    SnailError,
    explain,
    frames_of,
)
from snailps.master import events
from snailps.master.context import Context
from snailps.master.departures import Departures
from snailps.master.effects import Broken
from snailps.master.events import Received
from snailps.master.forming import Forming
from snailps.master.heartbeats import HeartbeatMonitor
from snailps.master.interrupts import Interrupts
from snailps.master.job.controller import JobController
from snailps.master.job.ended_jobs import MASTER_DIED
from snailps.master.job.present import JobHooks
from snailps.master.job.recovery import Recovered
from snailps.master.job.run_metrics import run_figures
from snailps.master.job.submissions import Submissions
from snailps.master.lifecycle import Lifecycle
from snailps.master.member import NO_PEER, Member, names_of
from snailps.master.membership import Membership
from snailps.master.phases import AT_WORK, ClusterPhase, JobPhase, Stay
from snailps.master.replication.controller import ReplicationController
from snailps.master.replication.shard_reports import ShardReports
from snailps.master.row_requests import RowRequests
from snailps.master.services import Services
from snailps.master.session_rows import SessionRows
from snailps.master.worker_reports import WorkerReports
from snailps.node.effects import Effect, Event, Tick, WorkDone
from snailps.node.limits import GOODBYE_S
from snailps.node.status import Phase
from snailps.transport import messages

log = logging.getLogger(__name__)

AWAY_S = 5.0
"""Seconds without an event from which the master must have been stopped: one comes every 50 ms."""
STATS_S = 1.0
"""Seconds between two requests for the counters of servers."""
BACK_S = 3.0
"""Seconds that members have to come back to a master that only ends a finished run: they are to
hear that it is over."""
DRIVERS_S = 1.0
"""Seconds that drivers have to hear that the cluster ends."""
_BEFORE = (JobPhase.IDLE, JobPhase.PREPARING, JobPhase.READY)
_BEGUN = (*AT_WORK, JobPhase.EXPORTING)


class MasterCore:
    def __init__(
        self,
        context: Context,
        # work beside the loop, the model's class included; the core only passes it on
        services: Services,
        past: Recovered | None = None,  # state that an earlier master of this cluster left
        own_rss_mb: Callable[[], float] = lambda: 0.0,  # peak resident size of this process, MB
    ) -> None:
        self.context, self.services, self.own_rss_mb = context, services, own_rss_mb
        self.out, self.life = context.out, context.life
        self._stats_at = 0.0
        # Messages that wait until all members are back and the job resumes; or calls that wait
        # until the cluster is formed, or a session's rows are ready. In their sequence.
        self._waiting: list[Received] = []
        self._waited = False  # the calls that are being taken have waited

        facts = past.facts if past is not None else []
        self.lifecycle = lifecycle = Lifecycle(self.out, self._send_stop, context.begun)
        # `departures` and `interrupts` are made later, as they know these two.
        self.members = members = Membership(
            context, self._ready, self._drop, facts, services.sync_journal
        )
        self.forming = Forming(context, members, lifecycle, self._drop)
        self.worker_reports = WorkerReports(context, members)
        self.replication = ReplicationController(
            context,
            members,
            lifecycle,
            self._expel,
            lambda text: self.departures.rows_lost(text),
            lambda text, now: self.interrupts.all_servers_leave(text, now),
        )
        self.shard_reports = ShardReports(members, lifecycle, self.replication)
        self.job_controller = JobController(
            context,
            services,
            members,
            lifecycle,
            self.replication.shard_orders,
            self.shard_reports,
            JobHooks(self.fail_job, self.export_cancelled, self.job_ended),
            self._expel,
            past if self.life.job_goes_on else None,
        )
        for fact in () if self.life.job_goes_on else facts:
            self.job_controller.ended_jobs.replay(fact)
        self.transfers = self.job_controller.checkpoints.transfers
        self.submissions = Submissions(
            context, services, members, lifecycle, self.job_controller, self.fail_job
        )
        self.row_requests = RowRequests(
            context, services, self.submissions, self.job_controller.checkpoints.beside, facts
        )
        self.rows = SessionRows(
            context,
            services,
            self.job_controller,
            self.submissions,
            self.row_requests,
            self.fail_job,
            self._rows_unsaved,
            facts,
        )
        self.interrupts = Interrupts(
            context, lifecycle, self.job_controller, members, self.rows.save_last
        )
        self.departures = Departures(
            context,
            members,
            lifecycle,
            self.forming,
            self.replication,
            self.job_controller,
            self.rows,
            self.submissions,
            self.fail_job,
        )
        over = any(fact.kind == "exported" for fact in facts)
        back_s = BACK_S if over else context.settings.heartbeat_timeout
        self.heartbeats = HeartbeatMonitor(context, members, lifecycle, self.departures, back_s)
        self._handlers = self._event_table()
        self._anyones = self._call_table()
        self._calls = self._member_call_table()
        self._notes = self._note_table()

    # --- events ------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Return the effects of an event, to be performed in their sequence before the next event.

        `now` is monotonic seconds. An error that a peer's message causes is an effect (`Broken`)
        for that peer alone. An error raised here is a defect of the master; the effects decided
        before it are left in `out`.
        """
        away_s, self.lifecycle.now = now - self.lifecycle.now, now
        if away_s > AWAY_S:
            self._stood_still(away_s, now)
        self._handlers[type(event)](event, now)
        return self.out.take()

    def _stood_still(self, seconds: float, now: float) -> None:
        """Extend all limits by the time that this process was stopped, before anything is judged by
        them: the others may have been stopped with it. Heartbeats have a rule of their own
        (`HeartbeatMonitor.step`)."""
        self.forming.stood_still(seconds)
        self.replication.stood_still(seconds)
        self.departures.stood_still(seconds)
        self.job_controller.stood_still(seconds, now)
        self.rows.stood_still(seconds)
        self.transfers.stood_still(seconds)
        self.lifecycle.stood_still(seconds)
        self.submissions.stood_still(seconds)

    def _event_table(self) -> dict[type[Any], Callable[[Any, float], None]]:
        return {
            events.Started: self._started,
            events.Listening: lambda event, now: self.forming.restart_clock(now),
            events.Received: self._received,
            events.Answered: lambda event, now: self.out.answered(event.order, event.answer, now),
            events.Gone: self._gone,
            events.Heartbeats: self.heartbeats.heard,
            WorkDone: self._work_done,
            events.Signal: lambda event, now: self.interrupts.signal(event.number, now),
            events.JournalGrown: self._journal_grown,
            events.JournalFailed: partial(self._journal_kept, False),
            events.JournalKept: partial(self._journal_kept, True),
            Tick: self._tick,
        }

    def _started(self, event: events.Started, now: float) -> None:
        if event.job is not None:
            self.job_controller.opening.prepare(event.job, event.workers)
        self.rows.begin()

    def _received(self, event: Received, now: float) -> None:
        """Handle a message. An error in it breaks its sender only: no peer can end the cluster by
        what it sends."""
        try:
            self._take(event, now)
        except Exception as error:
            self.out.put(Broken(event.peer, error))

    def _gone(self, event: events.Gone, now: float) -> None:
        member = self.members.gone_peer(event.peer)
        if member is not None:
            self.departures.lose(member, event.why, now)

    def _work_done(self, event: WorkDone, now: float) -> None:
        if not self.lifecycle.stopping:
            self._of_job(lambda: self.out.done(event, now), now)
        else:
            self.out.disown(event.work)

    def _journal_grown(self, event: events.JournalGrown, now: float) -> None:
        if not self.lifecycle.stopping:
            self.job_controller.training.compact(now)

    def _journal_kept(self, kept: bool, event: Event, now: float) -> None:
        self.out.kept = kept

    def _tick(self, event: Tick, now: float) -> None:
        self.interrupts.step(now)
        if self.lifecycle.left:
            return
        self.heartbeats.step(now)
        self.submissions.step(now)
        if self.lifecycle.stopping:
            self._check_stopped(now)
        elif self.lifecycle.forming and self.forming.check(now):
            self._formed(now)
        if not self.lifecycle.stopping:
            self._step_job(now)
        if self.members.returning and not self.lifecycle.stopping and self._job_is_where_it_was:
            self._go_on(now)
        if not (self.members.returning or self.lifecycle.forming or self.lifecycle.stopping):
            self.rows.step(now)
            self._take_waiting(now)
        if now >= self._stats_at:
            self._stats_at = now + STATS_S
            self._look_around(now)
        # After everything that may begin to save rows: no shard moves while rows are saved, so a
        # move that began first would delay the checkpoint.
        if not self.lifecycle.stopping and not self.members.returning:
            holds = self.job_controller.holds_rows or self.rows.holds_rows
            self.replication.step(holds, now)
        if not self.lifecycle.stopping:
            self.replication.report(now)
            self.job_controller.handout.report(now)
        self.worker_reports.report_status(now)

    def _formed(self, now: float) -> None:
        self.lifecycle.go(ClusterPhase.FORMED)
        self._report_formed()
        self.replication.formed(now)
        self.job_controller.opening.formed(now)
        self._take_waiting(now)

    def _take_waiting(self, now: float, *, waited: bool = True) -> None:
        """Take the messages that had to wait; some may have to wait again. `waited`: for rows, or
        for the cluster."""
        waiting, self._waiting, self._waited = self._waiting, [], waited
        for event in waiting:
            self._received(event, now)
        self._waited = False

    def _report_formed(self) -> None:
        here = {
            role: sum(not member.missed for member in self.members.nodes(role))
            for role in ("server", "worker")
        }
        counts = [f"{count} {role}{'s' if count != 1 else ''}" for role, count in here.items()]
        if self.members.formed_before:
            text = f"the master was started again; {' and '.join(counts)} came back to it"
            self.out.happened("master", "the master", text)
        else:
            self.out.happened("joined", "", f"the cluster is complete: {' and '.join(counts)}")

    def _look_around(self, now: float) -> None:
        if not self.lifecycle.stopping and self.members.route is not None:
            self.worker_reports.ask_usage()
        if not self.lifecycle.stopping and self.members.route is not None:
            self.shard_reports.ask()
            self.job_controller.training.check_checkpoint(now)
            if not (self.lifecycle.forming or self.members.returning):
                self.rows.check(now)
            if not self.lifecycle.forming:
                self.forming.check_joining(now)

    # --- the job -----------------------------------------------------------------------------

    def _step_job(self, now: float) -> None:
        self.departures.step(now)
        if self.job_controller.phase is JobPhase.STOPPING and not self.members.sent_away:
            self.job_controller.abandoned()
        self._of_job(lambda: self.transfers.step(now), now)
        self._of_job(lambda: self.job_controller.step(now), now)

    def _of_job(self, do: Callable[[], None], now: float) -> None:
        """Run a callback of the job. An error of its own is none of a cluster that outlives it."""
        try:
            do()
        except Exception as error:
            if not self.life.outlives_job:
                raise
            log.exception("the job failed at the master")
            phase = self.job_controller.phase.value
            text = f"{phase} failed at the master: {explain(error)}"
            self.fail_job(text, trace=frames_of(error))

    @property
    def _job_is_where_it_was(self) -> bool:
        """Whether the job of an earlier master is replayed and can resume; where no job goes on,
        whether the cluster is formed."""
        if not self.life.job_goes_on:
            return not self.lifecycle.forming
        job_controller = self.job_controller
        return job_controller.job is not None and job_controller.phase not in _BEFORE

    def _go_on(self, now: float) -> None:
        """End the return of an earlier master's members: resume the job with those that are back.

        In this sequence: cuts of chunks from all workers, then what each holds, then the losses
        (which release leases), then messages that came meanwhile. A loss that was judged before a
        worker had reported its blocks would give these to others.
        """
        self.members.returning = False
        if not self.life.job_goes_on:
            self._go_on_without_job(now)
        here = [m for m in self.members.joined("worker") if m.stay in (Stay.HERE, Stay.LEAVING)]
        for member in here:
            if member.resume_state:  # for all workers, before anything that one of them has done
                self.out.contain(
                    member.peer, partial(self.job_controller.leases.learn_cuts, member)
                )
        for member in here:
            if member.resume_state:
                self._come_back(member, now)
            elif member.has_route:
                self.job_controller.handout.start(member)
        for member in [m for m in self.members.nodes() if m.missed]:
            self.departures.lose(member, member.missed, now)
        self.job_controller.all_back(now)
        self._take_waiting(now, waited=False)

    def _go_on_without_job(self, now: float) -> None:
        """Repeat orders that the lost master may not have given to all servers, and end its job.

        Workers that were at work restart: nobody waits for their results.
        """
        registry = self.members.table_registry
        if registry.drop_strange(now):
            self.job_controller.ended_jobs.forget_tables()
        registry.remake(now)
        for _, last in list(self.members.numbers.gone)[
            -1:
        ]:  # one fence names all others (`Fence.gone`)
            self.replication.shard_orders.fence(last, now)
        self.transfers.stop_all()
        if self.job_controller.ended_jobs.cut_short:
            here = [m for m in self.members.joined("worker") if not m.missed]
            workers = [member for member in here if member.resume_state.get("started")]
            self.departures.send_away(workers, MASTER_DIED, now)

    def _come_back(self, member: Member, now: float) -> None:
        try:
            self.job_controller.handout.came_back(member, now)
        except Exception as error:  # in the state that it reported
            self.out.put(Broken(member.peer, error))

    def job_ended(self, now: float) -> None:
        job_controller = self.job_controller
        if self.life.outlives_job:
            self._collect_figures(now)
            job_controller.remember()
            job_controller.end()
            self.interrupts.forget()
        elif job_controller.present.interrupted:
            job = job_controller.job
            share = job.schedule.progress if job is not None else 0.0
            text = f"interrupted after {share:.0%} of the training"
            if job_controller.present.figures.get("files", True):  # a model need not list them
                text += "; the model so far is saved"
            self.lifecycle.stop(EXIT_INTERRUPTED, text)
        else:
            self.lifecycle.stop(EXIT_OK, "")

    # --- the end -----------------------------------------------------------------------------

    def fail_job(self, text: str, code: int = EXIT_FAILED, trace: str = "") -> None:
        """Fail the job, and the cluster unless it outlives the job.

        Then the job's workers are stopped, as user code may hang or requests wait for a
        clock. The next job begins when the old ones are gone and fenced.
        """
        job_controller = self.job_controller
        forming = self.lifecycle.forming
        if self.members.returning and self.interrupts.may_leave:
            # Nothing of the run is lost: servers have its rows, and the journal the rest.
            self.interrupts.leave(text, code)
            return
        if not self.life.outlives_job or job_controller.job is None or forming:
            self.lifecycle.fail(text, code)
            return
        if self.lifecycle.stopping:
            return
        log.warning("the job has failed: %s", text)
        begun = job_controller.phase in _BEGUN
        workers = [m for m in self.members.nodes("worker") if begun and not m.finished]
        # Before `abandon` refuses their requests: a worker's log should name the failure, and not
        # the refusal that follows from it.
        self.departures.send_away(workers, text, self.lifecycle.now)
        job_controller.abandon(text, self.lifecycle.now, trace, is_wrong=code == EXIT_WRONG)
        self.replication.figures()  # metrics of this job are not the next one's
        self.interrupts.forget()

    def export_cancelled(self, text: str, code: int | None = None) -> None:
        if self.interrupts.may_leave and self.life.job_goes_on:
            self.interrupts.leave(text, code)
        else:
            self.fail_job(text, EXIT_INTERRUPTED if code is None else code)

    def _rows_unsaved(self, text: str) -> None:
        """End a session whose rows cannot be saved: they stay with the servers for another master,
        if one can go on."""
        if self.interrupts.may_leave:
            self.interrupts.leave(text, EXIT_FAILED)
        else:
            self.lifecycle.fail(text)

    def _send_stop(self, broken: bool, text: str) -> None:
        self.job_controller.looks.close()
        stop = messages.Stop(broken, text)
        for member in list(self.members.all.values()):
            member.stopped()
            self.members.send(member, stop)

    def _check_stopped(self, now: float) -> None:
        """End once all members have left, or `GOODBYE_S` after they got the order to end."""
        stopped_at = self.lifecycle.stopped_at
        here = [member for member in self.members.all.values() if member.peer != NO_PEER]
        assert stopped_at is not None
        nodes = [member for member in here if member.role != "driver"]  # a driver may never look
        limit_s = GOODBYE_S if nodes else DRIVERS_S
        if self.lifecycle.over or (here and now - stopped_at < limit_s):
            return
        if nodes:
            log.warning(
                "%s did not end within %.0f s: see whether they still run",
                names_of(nodes), GOODBYE_S,
            )  # fmt: skip
        job = self.job_controller.job
        if job is not None and job.pass_ == "train" and not self.lifecycle.failed:
            self._collect_figures(now)
        self.lifecycle.end()

    def _collect_figures(self, now: float) -> None:
        self.job_controller.present.figures = run_figures(
            self.members, self.replication, self.shard_reports, self.job_controller,
            self.own_rss_mb(), now,
        )  # fmt: skip

    # --- members -----------------------------------------------------------------------------

    def _ready(self, member: Member, now: float) -> None:
        if self.lifecycle.forming:
            return
        if member.role != "driver":
            self.out.happened("joined", member.short_name, f"{member.short_name} joined")
        if member.role == "worker":
            self.departures.joined(member)
            self.job_controller.handout.start(member)
        elif member.role == "server":
            self.replication.joined(member, now)

    def _drop(self, member: Member, why: str, now: float) -> None:
        self.departures.unready(member, why, now)

    def _expel(self, member: Member, why: str, now: float, after: str = "") -> None:
        self.departures.expel(member, why, now, after)

    # --- messages ----------------------------------------------------------------------------

    def _take(self, event: Received, now: float) -> None:
        message = event.message
        messages.check_speaker(message, self.members.role_of(event.peer))
        if self.members.returning and type(message) not in _BEFORE_THE_JOB:
            self._waiting.append(event)
            return
        try:
            if event.call is None:
                self._take_note(event, now)
            else:
                self._take_call(event, event.call, now)
        except ProtocolError:
            raise
        except SnailError as error:
            if event.call is None:
                raise
            self.out.reply(event.call, error)

    def _call_table(self) -> dict[type[Any], Callable[[Received, Any, int, float], None]]:
        """Calls that need no membership."""
        return {
            messages.Register: self._register,
            messages.Rejoin: self._rejoin,
            messages.Ask: self._ask,
            messages.Drain: lambda event, drain, call, now: self.replication.drain(
                drain.server, now, call
            ),
        }

    def _member_call_table(self) -> dict[type[Any], Callable[[Member, Any, int, float], None]]:
        leases = self.job_controller.leases
        return {
            messages.Lease: leases.lease,
            messages.Done: leases.done,
            messages.CheckOut: leases.check_out,
            messages.Fetch: leases.fetch,
            messages.Summarise: self.submissions.summarise,
            messages.Declare: self._declare,
            messages.SaveRows: self.row_requests.save,
            messages.LoadRows: self.row_requests.load,
            messages.Submit: self.submissions.submit,
            messages.Cancel: self._cancel,
            messages.AskJob: self.submissions.report_job,
            messages.Shutdown: self._shutdown,
        }

    def _note_table(self) -> dict[type[Any], Callable[[Member, Any, float], None]]:
        leases = self.job_controller.leases
        return {
            messages.Finished: self.job_controller.finished,
            messages.Durable: leases.durable,
            messages.CheckIn: leases.checked_in,
            messages.Saved: self.transfers.heard,
            messages.Loaded: self.transfers.heard,
            messages.Backed: self._standby_reported,
            messages.Unbacked: self._standby_reported,
            messages.Yielded: self._standby_reported,
            messages.Failed: self.departures.failed,
            messages.Leaving: self._leaving,
            messages.Bye: self.departures.bye,
        }

    def _take_call(self, event: Received, call: int, now: float) -> None:
        message = event.message
        anyones = self._anyones.get(type(message))
        if anyones is not None:
            anyones(event, message, call, now)
            return
        member = self.members.peers.get(event.peer)
        if member is None:
            raise ProtocolError(f"{type(message).__name__} before Register")
        if member.stay in (Stay.GONE, Stay.SENT_AWAY):
            raise ClusterError(f"{member.name} was sent away")
        if self._waits(message, now):
            self._waiting.append(event)
            return
        take = self._calls.get(type(message))
        if take is None:
            raise ProtocolError(f"a master does not take {type(message).__name__}")
        take(member, message, call, now)

    def _waits(self, message: messages.Message, now: float) -> bool:
        """Whether a call waits: until the cluster is formed, or for a session's rows."""
        if isinstance(message, messages.Declare):
            # While the cluster forms servers may still be replaced, and their shards moved.
            return self.lifecycle.forming or not self.rows.is_open
        if not isinstance(message, _NEEDS_ROWS) or self.lifecycle.forming:
            return False
        if isinstance(message, messages.Submit):
            # A checkpoint of the session that is due goes first: with jobs in close succession
            # there may be no other time for it. But one only: if a checkpoint takes longer than its
            # interval, the next one is due when it ends.
            if not self._waited:
                self.rows.check(now)
            return self.rows.busy or self._rows_are_asked_for
        return self.rows.busy or self.submissions.loading or self._rows_are_asked_for

    @property
    def _rows_are_asked_for(self) -> bool:
        """Whether an earlier call waits for the session's rows: drivers that save or load them in
        close succession must not keep a job from beginning."""
        return any(isinstance(event.message, _NEEDS_ROWS) for event in self._waiting)

    def _declare(self, member: Member, message: messages.Declare, call: int, now: float) -> None:
        registry = self.members.table_registry
        names = [Table.from_dict(table).name for table in message.tables]
        ended_jobs = self.job_controller.ended_jobs
        if self.life.outlives_job and member.role == "worker":
            ended_jobs.share(registry.of_session(names))
        registry.declare(member, message, call, now)
        # Tables of the present job that a driver has made the session's: rows stay, so the job must
        # not be repeated on top of what it has pushed.
        if self.life.outlives_job and self.job_controller.job is not None:
            ended_jobs.share(registry.of_session({*names}.intersection(registry.used)))

    def _cancel(self, member: Member, message: messages.Cancel, call: int, now: float) -> None:
        """Cancel a driver's job; one that still waits for the rows never begins."""
        self.submissions.cancel(member, message, call, now)
        for event in [] if message.early else [*self._waiting]:
            if isinstance(event.message, messages.Submit) and event.peer == member.peer:
                self._waiting.remove(event)
                assert event.call is not None
                self.out.reply(event.call, ClusterError("the job was cancelled"))

    def _take_note(self, event: Received, now: float) -> None:
        message = event.message
        member = self.members.peers.get(event.peer)
        if member is None:
            raise ProtocolError(f"{type(message).__name__} before Register")
        if member.stay is Stay.GONE:
            return  # it was stopped, and may not have heard of that yet
        take = self._notes.get(type(message))
        if take is None:
            raise ProtocolError(f"a master does not take {type(message).__name__} as a note")
        take(member, message, now)

    def _register(self, event: Received, message: messages.Register, call: int, now: float) -> None:
        exporting = self.job_controller.phase is JobPhase.EXPORTING
        if self.lifecycle.stopping or (exporting and not self.life.outlives_job):
            raise ClusterError("this cluster is about to end: start a new one")
        self.members.register(event, message, now)

    def _rejoin(self, event: Received, message: messages.Rejoin, call: int, now: float) -> None:
        if self.lifecycle.stopping:
            raise ClusterError(
                "this cluster is about to end: " + (self.lifecycle.verdict or "it is done")
            )
        self.members.rejoin(event, message, now)
        if message.leaving:
            leaving = Received(event.peer, messages.Leaving(message.leaving))
            self._take(leaving, now)

    def _shutdown(self, member: Member, message: messages.Shutdown, call: int, now: float) -> None:
        if not self.life.drivers_work:
            raise ClusterError("this cluster ends with its own job: interrupt its master")
        self.out.reply(call, messages.Ok())
        self.rows.save_last(partial(self.lifecycle.stop, EXIT_OK, "ended by the driver"))

    def _ask(self, event: Received, ask: messages.Ask, call: int, now: float) -> None:
        job = self.job_controller.job
        if ask.what == "tables":
            tables = self.members.table_registry.named()
            self.out.reply(call, messages.Report({"tables": tables}))
        elif ask.what == "job":
            self.out.reply(call, messages.Report(self.submissions.newest()))
        elif ask.what == "map":
            if job is None or self.reported_phase != "training":
                self.out.reply(call, messages.Report({}))
                return
            self.job_controller.looks.map(
                job, lambda places: self.out.reply(call, messages.Report(dict(places))), now
            )
        else:
            self.worker_reports.ask_status(call, now)

    def _standby_reported(
        self,
        member: Member,
        note: messages.Backed | messages.Unbacked | messages.Yielded,
        now: float,
    ) -> None:
        if not self.lifecycle.stopping:  # else standbys are lost because the cluster ends
            self.replication.note(member, note, now)

    def _leaving(self, member: Member, message: messages.Leaving, now: float) -> None:
        log.info("%s: %s", member.name, message.why)
        idle = self.job_controller.job is None
        if message.why in ("SIGINT", "SIGHUP") and not idle:  # the job is to end
            self.interrupts.ask()
        elif not self.lifecycle.stopping:  # else the member has the order to end already
            self.departures.leave(member, now)

    # --- reporting ---------------------------------------------------------------------------

    @property
    def reported_phase(self) -> Phase:
        """The phase that users see."""
        formed = self.phase is ClusterPhase.FORMED
        restores = formed and not (self.submissions.loading or self.rows.is_open)
        return "restoring" if restores else self.submissions.phase

    @property
    def phase(self) -> ClusterPhase:
        return self.lifecycle.phase


_NEEDS_ROWS = (messages.Submit, messages.SaveRows, messages.LoadRows)
"""Calls that wait while a session saves or loads rows."""
_BEFORE_THE_JOB = (messages.Register, messages.Rejoin, messages.Ask)
"""Messages that are handled while members of an earlier master come back; all others wait."""
