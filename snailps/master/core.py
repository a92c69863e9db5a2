"""The master's core: what happens goes in, what is to be done comes out.

    Event, now -> MasterCore.handle -> membership, job, replication, ... -> list of Effect

No socket, clock, thread or file here, nor in what it owns: `process.py` feeds events and performs
effects, in order.  So a test, or a simulation, drives a whole master by a few lines.  It owns the
phase of the cluster, the verdict, and what the loss of a member means; who belongs is
`membership.py`'s, who is heard `heartbeats.py`'s, what is done `job/controller.py`'s business.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

from snailps.config import MasterSettings
from snailps.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    ClusterError,
    ProtocolError,
    SnailError,
    explain,
)
from snailps.master import events
from snailps.master.effects import Broken, Effect, Outbox, Record
from snailps.master.events import Event, Received
from snailps.master.heartbeats import HeartbeatMonitor
from snailps.master.job.controller import JobController
from snailps.master.job.job import Job
from snailps.master.job.recovery import Past
from snailps.master.loop_latency import LoopLatency
from snailps.master.member import NOBODY, Member, names_of
from snailps.master.membership import Membership
from snailps.master.phases import ClusterPhase, JobPhase, cluster_step
from snailps.master.replication.controller import ReplicationController
from snailps.master.services import Services
from snailps.master.status_report import StatusReport
from snailps.node.limits import GOODBYE_S
from snailps.node.status import Phase, Status
from snailps.transport import messages

log = logging.getLogger(__name__)

STATS_S = 1.0
BACK_S = 3.0
"""How long members of a run whose result is written are waited for, only to be told."""
_BEFORE = (JobPhase.IDLE, JobPhase.PREPARING, JobPhase.READY)
_BEGUN = (JobPhase.SURVEY, JobPhase.LOADING, JobPhase.TRAINING, JobPhase.EXPORTING)


class MasterCore:
    """One master, as a state machine.

    Parameters
    ----------
    settings : MasterSettings
    services : Services
        What is done beside the loop; the core calls none of it.
    life : int
        Number of this life of the cluster.
    now : float
        Monotonic seconds, the only time there is.
    wall_s : float
        Seconds since 1970 at monotonic time 0.
    load_job : callable
        ``load_job(settings, now)``: the job that a driver submits.
    own_rss_mb : callable
        The largest resident size of this process, MB, for the figures of the run.
    session : bool
        Wait for jobs that a driver submits, instead of running one and ending.
    kept : bool
        There is a journal.
    past : Past, optional
        What an earlier master of this life has left.
    address : str
        Where the master listens.
    """

    def __init__(
        self,
        settings: MasterSettings,
        services: Services,
        *,
        life: int,
        now: float,
        wall_s: float = 0.0,
        load_job: Callable[[Mapping[str, str], float], Job] | None = None,
        own_rss_mb: Callable[[], float] = lambda: 0.0,
        session: bool = False,
        kept: bool = False,
        past: Past | None = None,
        address: str = "",
    ) -> None:
        self._settings, self._session = settings, session
        self._load_job, self._own_rss_mb = load_job, own_rss_mb
        self.phase = ClusterPhase.FORMING
        self.code = EXIT_OK
        self.failed = False
        self.verdict = ""
        """Why the cluster ended; empty for the ordinary end."""
        self._signals = 0
        self._heeded = 0  # of them, by the training or the export
        self._goes_on = settings.on_node_loss == "recover"
        self._asked = False  # by a signal to another process, however often
        self._stop_at: float | None = None
        self._stats_at = 0.0
        self._parked: list[Received] = []  # while members come back: until the job goes on
        self._early: list[Received] = []  # until the cluster is formed
        # Workers of a session's job that has failed, until they are gone; when to wait no longer.
        self._sent_away: set[int] = set()
        self._gone_by = 0.0
        self._now = now

        self.out = Outbox(kept=kept)
        self.times = LoopLatency()
        self.members = Membership(
            settings, life, self.out, self._fail, self._ready, self._unready, now
        )
        self.heartbeats = HeartbeatMonitor(settings, self.members, self._expel)
        facts = past.facts if past is not None else []
        for fact in facts:
            self.members.replay(fact)
        self._returning = self.members.formed_before
        over = any(fact.kind == "exported" for fact in facts)
        self.heartbeats.back_s = BACK_S if over else settings.heartbeat_timeout
        self.job_controller = JobController(
            self.members,
            self.out,
            services,
            # A session's workers are its own: nobody else would start one.
            settings.master_time_out if self._goes_on and not session else 0.0,
            fail=self._fail_job,
            on_end=self._job_ended,
            past=past,
            wall_s=wall_s,
        )
        self.replication = ReplicationController(
            settings,
            self.members,
            self.out,
            expel=self._expel,
            fail=self._fail,
            all_leave=self._all_servers_leave,
            on_rows_lost=self._rows_lost,
        )
        self.members.rows = self.replication.shard_orders
        self.status_report = StatusReport(
            settings,
            self.out,
            self.members,
            self.job_controller,
            self.replication,
            self.heartbeats,
            address=address,
            times=self.times,
            now=now,
        )
        self._handlers = self._event_table()
        self._anyones = self._call_table()
        self._calls = self._member_call_table()
        self._notes = self._note_table()

    # --- events ------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What is to be done because something has happened.

        An error that a peer's message leads to is an effect (`Broken`); one that is raised here is
        a defect, or of the model's class: what was to be done until then is left in `out`.
        """
        self._now = now
        self._handlers[type(event)](event, now)
        return self.out.take()

    def _event_table(self) -> dict[type[Any], Callable[[Any, float], None]]:
        return {
            events.Started: self._started,
            events.Listening: lambda event, now: self.members.restart_clock(now),
            events.Received: self._received,
            events.Answered: lambda event, now: self.out.answered(event.order, event.answer, now),
            events.Gone: self._gone,
            events.Heartbeats: self._heard,
            events.WorkDone: self._work_done,
            events.Signal: self._signalled,
            events.JournalGrown: self._journal_grown,
            events.JournalFailed: self._journal_failed,
            events.Tick: self._tick,
        }

    def _started(self, event: events.Started, now: float) -> None:
        if event.job is not None:
            self.job_controller.prepare(event.job, event.workers)

    def _received(self, event: Received, now: float) -> None:
        """A message: no error in it is the end of anybody but its sender."""
        try:
            self._take(event, now)
        except Exception as error:
            self.out.put(Broken(event.peer, error))

    def _gone(self, event: events.Gone, now: float) -> None:
        member = self.members.gone_peer(event.peer)
        if member is not None:
            self._lose(member, event.why, now)

    def _heard(self, event: events.Heartbeats, now: float) -> None:
        self.heartbeats.heard(event, now, stopping=self._stop_at is not None)

    def _work_done(self, event: events.WorkDone, now: float) -> None:
        if self._stop_at is None:
            self._of_job(lambda: self.out.done(event, now), now)
        else:
            self.out.disown(event.work)

    def _signalled(self, event: events.Signal, now: float) -> None:
        self._signals += 1

    def _journal_grown(self, event: events.JournalGrown, now: float) -> None:
        if self._stop_at is None:
            self.job_controller.compact()

    def _journal_failed(self, event: events.JournalFailed, now: float) -> None:
        self.out.kept = False

    def _tick(self, event: events.Tick, now: float) -> None:
        if self._signals or self._asked:
            self._interrupted(now)
        self.heartbeats.step(now)
        if self._stop_at is not None:
            self._check_stopped(now)
        elif self.phase is ClusterPhase.FORMING and self.members.check_formed(now):
            self._formed(now)
        if self._stop_at is None:
            self._step_job(now)
        if self._returning and self._stop_at is None and self._job_is_where_it_was:
            self._go_on(now)
        if now >= self._stats_at:
            self._stats_at = now + STATS_S
            self._look_around(now)
        # Behind whatever begins to save rows: a shard that is to move waits until that is over.
        if self._stop_at is None and not self._returning:
            self.replication.step(self.job_controller.holds_rows, now)
        if self._stop_at is None:
            self.replication.tell(now)
            self.job_controller.tell(now)
        self.status_report.step(self.told_phase, self.verdict, now)

    def _formed(self, now: float) -> None:
        self._go(ClusterPhase.FORMED)
        self.replication.formed(now)
        self.job_controller.formed(now)
        early, self._early = self._early, []
        for event in early:
            self._received(event, now)

    def _look_around(self, now: float) -> None:
        if self._stop_at is None and self.members.route is not None:
            self.members.ask_stats()
            self.job_controller.check_checkpoint(now)
            if self.phase is not ClusterPhase.FORMING:
                self.members.check_joining(now)

    def _go(self, phase: ClusterPhase) -> None:
        self.phase = cluster_step(self.phase, phase)

    # --- the job -----------------------------------------------------------------------------

    def _step_job(self, now: float) -> None:
        self._sent_away &= self.members.all.keys()
        if now >= self._gone_by:
            for number in list(self._sent_away):
                self._expel(self.members.all[number], "it did not end with its job", now)
        if self.job_controller.phase is JobPhase.STOPPING and not self._sent_away:
            self.job_controller.abandoned()
        self._of_job(lambda: self.job_controller.step(now), now)

    def _of_job(self, do: Callable[[], None], now: float) -> None:
        """Does something in which the model's class is called: a session outlives its errors."""
        try:
            do()
        except Exception as error:
            if not self._session:
                raise
            log.exception("the job failed at the master")
            phase = self.job_controller.phase.value
            self._fail_job(f"{phase} failed at the master: {explain(error)}")

    @property
    def _job_is_where_it_was(self) -> bool:
        """Whether a job that an earlier master had begun can go on."""
        job_controller = self.job_controller
        return job_controller.job is not None and job_controller.phase not in _BEFORE

    def _go_on(self, now: float) -> None:
        """The job is where the master before had it: on with who is back, without who is not."""
        self._returning = False
        for member in self.members.joined("worker"):
            if member.resume_state and not member.missed:
                self._come_back(member, now)
            elif member.acknowledged:
                self.job_controller.start(member)
        for member in [m for m in self.members.nodes() if m.missed]:
            self._lose(member, member.missed, now)
        self.job_controller.all_back(now)
        parked, self._parked = self._parked, []
        for event in parked:
            self._received(event, now)

    def _come_back(self, member: Member, now: float) -> None:
        try:
            self.job_controller.came_back(member, now)
        except Exception as error:  # of what it said of itself
            self.out.put(Broken(member.peer, error))

    def _job_ended(self, now: float) -> None:
        job_controller = self.job_controller
        if self._session:
            self._collect_figures(now)
            job_controller.end()
            self._signals, self._heeded, self._asked = 0, 0, False
        elif job_controller.interrupted:
            job = job_controller.job
            share = job.ledger.progress if job is not None and job.ledger is not None else 0.0
            text = f"interrupted after {share:.0%} of the training; what was learnt is saved"
            self._stop(EXIT_INTERRUPTED, text, now)
        else:
            self._stop(EXIT_OK, "", now)

    def _collect_figures(self, now: float) -> None:
        self.job_controller.collect_figures(self._own_rss_mb(), now)
        self.job_controller.figures |= self.replication.figures()

    # --- the end -----------------------------------------------------------------------------

    def _interrupted(self, now: float) -> None:
        if self._stop_at is not None:
            return
        phase = self.job_controller.phase
        if phase is JobPhase.EXPORTING:
            self._interrupt_export(now)
        elif self._signals > 1 or phase is not JobPhase.TRAINING:
            doing = phase.value if self.phase is not ClusterPhase.FORMING else "forming"
            self._fail(f"interrupted while {doing}; nothing was saved", EXIT_INTERRUPTED)
        else:
            self._heeded = self._signals
            self.job_controller.interrupt(now)

    def _interrupt_export(self, now: float) -> None:
        """The first signal since the export began ends it cleanly, the second at once."""
        if self._signals == self._heeded:
            return  # what ended the training: what was learnt is being saved
        self._heeded = self._signals
        export = self.job_controller.export
        if export.cancelled:
            self._fail(export.verdict(), EXIT_INTERRUPTED)
        else:
            export.cancel(now)

    def _all_servers_leave(self, text: str, now: float) -> None:
        """The rows would go: what was learnt is saved before, if there is anything."""
        if self.job_controller.phase is JobPhase.TRAINING:
            log.warning("%s", text)
            self.job_controller.interrupt(now)
        elif self.job_controller.phase is not JobPhase.EXPORTING:  # else they stay until then
            self._fail(text)

    def _fail(self, text: str, code: int = EXIT_FAILED) -> None:
        if self._stop_at is None:
            self.failed = code != EXIT_INTERRUPTED
            self._stop(code, text, self._now, broken=True)

    def _fail_job(self, text: str, code: int = EXIT_FAILED) -> None:
        """The job cannot go on; that is the end of the cluster, too, unless it is a session's.

        There the workers that are at the job are sent away, with all that they may still hold of
        it: user code that hangs, requests that wait for a clock.  Whoever began the session starts
        others.  The next job begins when they are gone, and fenced.
        """
        job_controller = self.job_controller
        forming = self.phase is ClusterPhase.FORMING
        if not self._session or job_controller.job is None or forming:
            self._fail(text, code)
            return
        if self._stop_at is not None:
            return
        log.warning("the job has failed: %s", text)
        begun = job_controller.phase in _BEGUN
        job_controller.abandon(text, self._now)
        self._gone_by = self._now + GOODBYE_S
        for member in self.members.nodes("worker"):
            if begun and not member.finished:
                self._sent_away.add(member.number)
                member.state = "stopping"
                self.members.tell(member, messages.Stop(True, text))
        self._signals, self._heeded, self._asked = 0, 0, False

    def _stop(self, code: int, text: str, now: float, *, broken: bool = False) -> None:
        if self._stop_at is not None:
            return
        self.code, self.verdict = code, text
        self.out.note("stopped", {"code": code, "text": text})
        self._stop_at = now
        self._go(ClusterPhase.STOPPING)
        stop = messages.Stop(broken, text)
        for member in list(self.members.all.values()):
            if member.state != "gone":
                member.state = "stopping"
            self.members.tell(member, stop)

    def _check_stopped(self, now: float) -> None:
        assert self._stop_at is not None
        here = [member for member in self.members.all.values() if member.peer != NOBODY]
        if here and now - self._stop_at < GOODBYE_S:
            return
        if self.phase is not ClusterPhase.STOPPING:
            return
        if here:
            log.warning("%s did not say goodbye within %.0f s", names_of(here), GOODBYE_S)
        job = self.job_controller.job
        if job is not None and job.pass_ == "train" and not self.failed:
            self._collect_figures(now)
            self.out.put(Record(self.status(now)))
        self._go(ClusterPhase.FAILED if self.failed else ClusterPhase.DONE)

    # --- members come and go -----------------------------------------------------------------

    def _ready(self, member: Member, now: float) -> None:
        if self.phase is ClusterPhase.FORMING:
            return
        if member.role == "worker":
            self.job_controller.start(member)
        elif member.role == "server":
            self.replication.joined(member, now)

    def _unready(self, member: Member, text: str, now: float) -> None:
        """A member does not reach every server: it is dropped, the others go on without it."""
        self.members.tell(member, messages.Stop(True, f"{member.name} {text}"))
        self.members.disconnect(member)
        self._lose(member, text, now)

    def _expel(self, member: Member, why: str, now: float) -> None:
        """Declares a member lost that may still live: it is told so, should it ever hear that."""
        after = "start it again" if self.phase is ClusterPhase.FORMING else "others do its work"
        text = f"the master took it for lost, {why}; {after}"
        self.members.tell(member, messages.Stop(True, text))
        self.members.disconnect(member)
        self._lose(member, why, now)

    def _lose(self, member: Member, why: str, now: float) -> None:
        """A member is gone: in good order after Bye, else by the policy of the cluster."""
        if member.state == "gone":
            return
        self.heartbeats.forget(member.number)
        said_bye, member.state = member.state == "bye", "gone"
        if self._stop_at is not None:
            return
        if self._returning and member.role != "driver" and not member.missed:
            log.warning("%s is missed: %s", member.name, why)
            member.missed, member.away = why, False
            member.state = "missed"
            return
        left = member.leaving and said_bye
        if member.number in self._sent_away:
            self._sent_away.discard(member.number)
            self.members.remove(member, lost=True)
            self.members.rows.fence(member.number, now)
        elif member.role == "driver":
            self.members.remove(member)
            if self._session and not self.members.nodes("driver"):
                self._stop(EXIT_OK, "the driver is gone", now)
        elif self.phase is ClusterPhase.FORMING:
            self._lose_while_forming(member, why, now, left=left)
        elif not member.joined:
            log.warning("%s is gone while it joined: %s. The job goes on", member.name, why)
            self.members.remove(member)
        elif member.role == "worker" and (member.dropped or left):
            self.members.remove(member)
            returned = self.job_controller.released(member, now)
            log.info("%s left, %d blocks returned", member.name, returned)
        elif member.role == "server" and left:
            log.info("%s left", member.name)
            self.job_controller.checkpoints.lost(member, "it left", now)
            self.replication.lost(member, "left", now)
        elif not self._goes_on_without(member):
            self._lose_for_good(member, why, now)
        elif member.role == "worker":
            self._lose_worker(member, why, now)
        else:
            self._lose_server(member, why, now)

    def _lose_for_good(self, member: Member, why: str, now: float) -> None:
        """The job cannot go on without this member."""
        what = "was told to leave and left" if member.leaving else f"is lost: {why}"
        text = (
            f"{member.name} {what}. Its own log may say more; "
            f"on_node_loss is '{self._settings.on_node_loss}'"
        )
        if member.role == "worker" and self._session:
            self.members.remove(member, lost=True)
            self.members.rows.fence(member.number, now)
            log.warning("%s", text)
            if self.job_controller.job is not None:
                self._fail_job(text)
        else:
            self._rows_lost(text)

    def _rows_lost(self, text: str) -> None:
        """Something is gone that the job cannot do without."""
        advice = self.job_controller.checkpoints.advice()
        self._fail(f"{text}. {advice}" if advice else text)

    def _goes_on_without(self, member: Member) -> bool:
        """Whether the job can go on when this member is lost."""
        if not self._goes_on:
            return False
        if member.role == "server":
            return self.job_controller.phase is not JobPhase.RESTORING
        others = any(other is not member for other in self.members.joined("worker"))
        return others or (self.job_controller.can_wait and not self._session)

    def _lose_while_forming(self, member: Member, why: str, now: float, *, left: bool) -> None:
        """Goes on forming: another process is waited for, where one may come."""
        if left or self._is_replaced:
            text = "left as asked" if left else f"is lost: {why}"
            self.members.lost_while_forming(member, text, now)
        else:
            self._fail(f"{member.name} is lost while the cluster forms: {why}. {self._why_alone}")

    @property
    def _is_replaced(self) -> bool:
        """Whether another process may take the place of one that is lost while forming."""
        return self._goes_on and not self._session

    @property
    def _why_alone(self) -> str:
        return "Its own log may say more; " + (
            "on_node_loss is 'stop'"
            if not self._goes_on
            else "the processes of a session are not replaced"
        )

    def _lose_worker(self, member: Member, why: str, now: float) -> None:
        """Goes on without a worker: its blocks go to the others."""
        leases = self.job_controller.leases
        culprit = leases.blame(member)
        self.members.remove(member, lost=True)
        self.members.rows.fence(member.number, now, leases.last_of(member))
        returned = self.job_controller.released(member, now)
        who = "The others go on" if self.members.nodes("worker") else "It was the last worker"
        log.warning("%s is lost: %s. %s, %d blocks go back", member.name, why, who, returned)
        if culprit:
            self._fail_job(culprit)

    def _lose_server(self, member: Member, why: str, now: float) -> None:
        """Goes on without a server: standbys take its place, if there are any."""
        log.warning("%s is lost: %s", member.name, why)
        self.job_controller.checkpoints.lost(member, why, now)
        self.replication.lost(member, why, now)

    # --- messages ----------------------------------------------------------------------------

    def _take(self, event: Received, now: float) -> None:
        message = event.message
        messages.check_speaker(message, self.members.role_of(event.peer))
        if self._returning and type(message) not in _BEFORE_THE_JOB:
            self._parked.append(event)
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
        """Calls that need no member."""
        return {
            messages.Register: self._register,
            messages.Rejoin: self._rejoin,
            messages.Ask: lambda event, ask, call, now: self.status_report.ask(call, now),
            messages.Drain: lambda event, drain, call, now: self.replication.drain(
                drain.server, now, call
            ),
        }

    def _member_call_table(self) -> dict[type[Any], Callable[[Member, Any, int, float], None]]:
        """Calls of members."""
        leases, job_controller = self.job_controller.leases, self.job_controller
        return {
            messages.Lease: leases.lease,
            messages.Done: leases.done,
            messages.Fetch: lambda member, fetch, call, now: leases.fetch(member, fetch, call),
            messages.Summarise: lambda member, _, call, now: job_controller.summarise(
                member, call, now
            ),
            messages.Declare: self.members.table_registry.declare,
            messages.Submit: self._submit,
            messages.Shutdown: self._shutdown,
        }

    def _note_table(self) -> dict[type[Any], Callable[[Member, Any, float], None]]:
        """Notes of members."""
        leases, checkpoints = self.job_controller.leases, self.job_controller.checkpoints
        return {
            messages.Finished: lambda member, note, now: leases.finished(member, note.figures, now),
            messages.Settled: lambda member, note, now: leases.settled(member, note.numbers),
            messages.Saved: checkpoints.heard,
            messages.Loaded: checkpoints.heard,
            messages.Backed: self._standby_told,
            messages.Unbacked: self._standby_told,
            messages.Yielded: self._standby_told,
            messages.Failed: self._member_failed,
            messages.Leaving: self._leaving,
            messages.Bye: self._bye,
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
        if member.state == "gone":
            raise ClusterError(f"{member.name} was sent away")
        if isinstance(message, messages.Declare) and self.phase is ClusterPhase.FORMING:
            self._early.append(event)  # servers may still be replaced, and their shards moved
            return
        take = self._calls.get(type(message))
        if take is None:
            raise ProtocolError(f"a master does not take {type(message).__name__}")
        take(member, message, call, now)

    def _take_note(self, event: Received, now: float) -> None:
        message = event.message
        member = self.members.peers.get(event.peer)
        if member is None:
            raise ProtocolError(f"{type(message).__name__} before Register")
        if member.state == "gone":
            return  # it was sent away, and may not know yet
        take = self._notes.get(type(message))
        if take is None:
            raise ProtocolError(f"a master does not take {type(message).__name__} as a note")
        take(member, message, now)

    def _register(self, event: Received, message: messages.Register, call: int, now: float) -> None:
        exporting = self.job_controller.phase is JobPhase.EXPORTING
        if self._stop_at is not None or exporting:
            raise ClusterError("this cluster is about to end: start a new one")
        self.members.register(event, message, now)

    def _rejoin(self, event: Received, message: messages.Rejoin, call: int, now: float) -> None:
        if self._stop_at is not None:
            raise ClusterError("this cluster is about to end: " + (self.verdict or "it is done"))
        self.members.rejoin(event, message, now)
        if message.leaving:
            leaving = Received(event.peer, messages.Leaving(message.leaving))
            self._take(leaving, now)

    def _shutdown(self, member: Member, message: messages.Shutdown, call: int, now: float) -> None:
        if not self._session:  # a driver that looks on is not whose job this is
            raise ClusterError("this cluster ends with its own job: interrupt its master")
        self.out.reply(call, messages.Ok())
        self._stop(EXIT_OK, "ended by the driver", now)

    def _submit(self, member: Member, message: messages.Submit, call: int, now: float) -> None:
        taken = self.job_controller.job is not None or self._sent_away
        formed = self.phase is ClusterPhase.FORMED
        if not self._session or not formed or taken or self._load_job is None:
            raise ClusterError(f"this cluster takes no job now: it is {self.told_phase}")
        here = self.members.joined("worker")
        if not here:
            raise ClusterError("a job needs a worker, and this cluster has none")
        try:
            job = self._load_job(message.settings, now)
        except SnailError:
            raise
        except Exception as error:  # of the user's class: the cluster waits for a better one
            log.exception("the submitted job cannot begin")
            raise ClusterError(f"the job cannot begin: {explain(error)}") from error
        for worker in here:
            worker.late = False  # of no job that was under way
        self.job_controller.prepare(job, len(here), call)

    def _standby_told(
        self,
        member: Member,
        note: messages.Backed | messages.Unbacked | messages.Yielded,
        now: float,
    ) -> None:
        if self._stop_at is None:  # else they part because all end
            self.replication.note(member, note, now)

    def _member_failed(self, member: Member, message: messages.Failed, now: float) -> None:
        """A member cannot go on: the end of the job, unless it just came or is past its part."""
        text = f"failed: {message.text}"
        if member.number in self._sent_away:  # its job has failed already
            return
        if member.dropped or (member.late and not member.worked and member.role == "worker"):
            log.warning("%s is sent away, the others go on: %s", member.name, text)
            self.members.tell(member, messages.Stop(True, text))
            self.members.remove(member)
            self.members.left.remove(member)
            self.job_controller.released(member, now)
            self.heartbeats.forget(member.number)
            member.state = "gone"
        elif member.role == "worker":
            self._fail_job(f"{member.name} {text}")
        else:
            self._fail(f"{member.name} {text}")

    def _leaving(self, member: Member, message: messages.Leaving, now: float) -> None:
        log.info("%s: %s", member.name, message.why)
        if message.why == "SIGINT":
            self._asked = True
        elif self._stop_at is None:  # else it was told to end already
            self._leave(member, now)

    def _bye(self, member: Member, message: messages.Bye, now: float) -> None:
        member.figures = {**member.figures, **message.figures}
        member.state = "bye"

    def _leave(self, member: Member, now: float) -> None:
        forming = self.phase is ClusterPhase.FORMING
        if member.role == "server" and member.joined and not forming:
            self.replication.drain(member.number, now)
            return
        if member.role == "server" and forming and not self._is_replaced:
            self._fail(
                f"{member.name} was told to leave (SIGTERM) while the cluster forms. "
                f"{self._why_alone}"
            )
            return
        member.leaving = True
        if member.role == "server":  # it has no rows
            self.members.tell(member, messages.Stop(False, "left as asked"))
            return
        if self.job_controller.phase not in _BEGUN[:3]:
            self.members.tell(member, messages.Stop(False, "left as asked"))
        self.job_controller.leases.leaving(member, now)

    # --- telling -----------------------------------------------------------------------------

    def status(self, now: float) -> Status:
        """A picture of the run as it is now."""
        return self.status_report.status(self.told_phase, self.verdict, now)

    @property
    def told_phase(self) -> Phase:
        """The phase as people are told it: of the cluster, or of the job that it is at."""
        formed = self.phase is ClusterPhase.FORMED
        return cast(Phase, (self.job_controller.phase if formed else self.phase).value)

    @property
    def is_over(self) -> bool:
        """Nothing more will happen."""
        return self.phase in (ClusterPhase.DONE, ClusterPhase.FAILED)


_BEFORE_THE_JOB = (messages.Register, messages.Rejoin, messages.Ask)
"""What is heard while members of a master before come back; the rest waits."""
