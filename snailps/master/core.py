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
    ClusterError,
    ProtocolError,
    SnailError,
    explain,
    frames_of,
)
from snailps.master import events
from snailps.master.context import Context
from snailps.master.departure_cases import DepartureCases
from snailps.master.departures import Departures
from snailps.master.effects import Broken
from snailps.master.endings import Endings
from snailps.master.events import Received
from snailps.master.forming import Forming
from snailps.master.heartbeats import HeartbeatMonitor
from snailps.master.interrupts import Interrupts
from snailps.master.job.controller import JobController
from snailps.master.job.present import JobHooks
from snailps.master.job.recovery import Recovered
from snailps.master.job.submissions import Submissions
from snailps.master.lifecycle import Lifecycle
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.master.phases import ClusterPhase, JobPhase, Stay
from snailps.master.replication.controller import ReplicationController
from snailps.master.replication.shard_reports import ShardReports
from snailps.master.resumption import Resumption
from snailps.master.row_requests import RowRequests
from snailps.master.services import Services
from snailps.master.session_rows import SessionRows
from snailps.master.stop_orders import StopOrders
from snailps.master.waiting_messages import BEFORE_THE_JOB, WaitingMessages
from snailps.master.worker_reports import WorkerReports
from snailps.node.effects import Effect, Event, Tick, WorkDone
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


class MasterCore:
    def __init__(
        self,
        context: Context,
        # work beside the loop, the model's class included; the core only passes it on
        services: Services,
        past: Recovered | None = None,  # state that an earlier master of this cluster left
        own_rss_mb: Callable[[], float] = lambda: 0.0,  # peak resident size of this process, MB
    ) -> None:
        self.context, self.out, self.life = context, context.out, context.life
        self._stats_at = 0.0

        def fail_job(text: str, code: int = EXIT_FAILED, trace: str = "") -> None:
            self.endings.fail_job(text, code, trace)

        facts = past.facts if past is not None else []
        # `endings`, `departures` and `interrupts` are made later, as they know these parts.
        self.lifecycle = lifecycle = Lifecycle(
            self.out, lambda broken, text: self.endings.send_stop(broken, text), context.begun
        )
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
            JobHooks(
                fail_job,
                lambda text, code=None: self.endings.export_cancelled(text, code),
                lambda now: self.endings.job_ended(now),
            ),
            self._expel,
            past if self.life.job_goes_on else None,
        )
        for fact in () if self.life.job_goes_on else facts:
            self.job_controller.ended_jobs.replay(fact)
        self.transfers = self.job_controller.checkpoints.transfers
        self.submissions = Submissions(
            context, services, members, lifecycle, self.job_controller, fail_job
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
            fail_job,
            lambda text: self.endings.rows_unsaved(text),
            facts,
        )
        self.interrupts = Interrupts(
            context, lifecycle, self.job_controller, members, self.rows.save_last
        )
        self.stops = StopOrders(context, members, self._expel)
        self.departures = Departures(
            context,
            members,
            lifecycle,
            self.forming,
            self.stops,
            DepartureCases(context, members, lifecycle, self.job_controller),
            self.replication,
            self.job_controller,
            self.rows,
            self.submissions,
            fail_job,
        )
        self.endings = Endings(
            context,
            members,
            lifecycle,
            self.stops,
            self.replication,
            self.shard_reports,
            self.job_controller,
            self.interrupts,
            own_rss_mb,
        )
        self.resumption = Resumption(
            context,
            members,
            lifecycle,
            self.stops,
            self.departures,
            self.replication,
            self.job_controller,
        )
        self.waiting = WaitingMessages(self.out, lifecycle, self.rows, self.submissions)
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
        self.stops.stood_still(seconds)
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
        # First: of several causes of an end the first one counts, and this one is the user's.
        self.interrupts.step(now)
        if self.lifecycle.left:
            return  # the next master may be at work: what is decided now could contradict it
        self.heartbeats.step(now)
        self.submissions.step(now)
        if self.lifecycle.stopping:
            self.endings.step(now)
        elif self.lifecycle.forming and self.forming.check(now):
            self._formed(now)
        if not self.lifecycle.stopping:
            self._step_job(now)
        if self.resumption.is_due:
            self.resumption.go_on(now)
            self.waiting.take_all(self._received, now, rows=False)
        if not (self.members.returning or self.lifecycle.forming or self.lifecycle.stopping):
            self.rows.step(now)
            self.waiting.take_all(self._received, now, rows=True)
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
        self.waiting.take_all(self._received, now, rows=True)

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
            self.shard_reports.ask()
            self.job_controller.training.check_checkpoint(now)
            if not (self.lifecycle.forming or self.members.returning):
                self.rows.check(now)
            if not self.lifecycle.forming:
                self.forming.check_joining(now)

    # --- the job -----------------------------------------------------------------------------

    def _step_job(self, now: float) -> None:
        self.stops.step(now)
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
            self.endings.fail_job(text, trace=frames_of(error))

    # --- members -----------------------------------------------------------------------------

    def _ready(self, member: Member, now: float) -> None:
        if self.lifecycle.forming:
            return
        if member.role != "driver":
            self.out.happened("joined", member.short_name, f"{member.short_name} joined")
        if member.role == "worker":
            self.stops.joined()
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
        if self.members.returning and type(message) not in BEFORE_THE_JOB:
            self.waiting.put(event)
            return
        try:
            if event.call is None:
                self._take_note(event, now)
            else:
                self._take_call(event, event.call, now)
        except ProtocolError:
            raise  # a defect of the peer: `_received` breaks its connection
        except SnailError as error:  # an answer: it has asked for what cannot be
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
            messages.Shutdown: self.interrupts.shut_down,
        }

    def _note_table(self) -> dict[type[Any], Callable[[Member, Any, float], None]]:
        leases = self.job_controller.leases
        return {
            messages.Finished: self.job_controller.finished,
            messages.Durable: leases.durable,
            messages.CheckIn: leases.checked_in,
            messages.Saved: self.transfers.heard,
            messages.Loaded: self.transfers.heard,
            messages.Backed: self.replication.note,
            messages.Unbacked: self.replication.note,
            messages.Yielded: self.replication.note,
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
        if self.waiting.waits(message, now):
            self.waiting.put(event)
            return
        take = self._calls.get(type(message))
        if take is None:
            raise ProtocolError(f"a master does not take {type(message).__name__}")
        take(member, message, call, now)

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
        self.submissions.cancel(member, message, call, now)
        if not message.early:
            self.waiting.cancel_jobs(member)

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
        # A newcomer would find nothing to do, and the end would have to wait for it.
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
        # It was asked to leave while there was no master, so the note about that is lost.
        if message.leaving:
            leaving = Received(event.peer, messages.Leaving(message.leaving))
            self._take(leaving, now)

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
