"""The master: one thread that forms the cluster, follows the job, and ends both.

    messages -> Membership (who) or JobController (what) -> answers
    heartbeats, lost connections -> the end

It owns the loop, the time limits and the verdict.  Who belongs is `membership.py`'s, who is heard
`heartbeats.py`'s, what is done `job/controller.py`'s and `job.py`'s business; it never sees a row.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import time
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from snailps.config import MasterSettings, RawConfig, parse_addr
from snailps.errors import ClusterError, ProtocolError, SnailError
from snailps.master.heartbeats import HeartbeatMonitor
from snailps.master.job.controller import JobController
from snailps.master.job.job import Job
from snailps.master.job.recovery import journal_path, life_of, unended
from snailps.master.job.settings import check_output
from snailps.master.journal import Fact, Journal
from snailps.master.loop_latency import LoopLatency
from snailps.master.member import Member, Reply, names_of
from snailps.master.membership import Membership
from snailps.master.replication.controller import ReplicationController
from snailps.master.status_report import StatusReport
from snailps.node.limits import GOODBYE_S
from snailps.node.probe_service import ProbeService
from snailps.node.process import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, explain, raise_descriptors
from snailps.node.status import Phase, Status
from snailps.transport import messages
from snailps.transport.control import ControlServer, Listener, Peer, Trust, listen, show
from snailps.transport.handshake import Role

log = logging.getLogger(__name__)

STEP_S = 0.05
HASTE_S = 0.001
PREPARE_S = 1.0
"""How long the master looks for its input before it listens: enough to find a wrong path."""
STATUS_S = 0.2
NODES_PER_S = 1000
"""Of large clusters fewer pictures are drawn: so many nodes a second."""
STATS_S = 1.0
BACK_S = 3.0
"""How long members of a run whose result is written are waited for, only to be told."""
_BEFORE = ("idle", "preparing", "ready")


class Master:
    """One master process.

    Parameters
    ----------
    settings : MasterSettings
    raw : RawConfig
        Where the job's settings come from.
    also_known : tuple of settings classes
        Whose keys may stand in the same file.
    session : bool
        Wait for jobs that a driver submits, instead of running the file's own and ending.
    any_port : bool
        A `listen_addr` without a port means any free one, not that of `master_addr`.
    on_listening : callable
        Told the address once it listens.
    on_status : callable
        Given a `Status` a few times a second.
    """

    def __init__(
        self,
        settings: MasterSettings,
        raw: RawConfig,
        also_known: tuple[type[Any], ...] = (),
        *,
        session: bool = False,
        any_port: bool = False,
        on_listening: Callable[[str, int], None] = lambda host, port: None,
        on_status: Callable[[Status], None] | None = None,
    ) -> None:
        self._settings, self._raw, self._also_known = settings, raw, also_known
        self._trust = Trust.of(settings)
        self._session, self._any_port = session, any_port
        self._on_listening, self._on_status = on_listening, on_status
        self._phase: Phase = "forming"
        self._signals = 0
        self._heeded = 0  # of them, by the training or the export
        self._times = LoopLatency()
        self._goes_on = settings.on_node_loss == "recover"
        self._asked = False  # by a signal to another process, however often
        self._failed = False
        self._code = EXIT_OK
        self._stop_at: float | None = None
        self._status_at = self._stats_at = 0.0
        # While members of another master's come back: what they say waits until the job goes on.
        self._returning = self._took_over = False
        self._parked: list[tuple[Peer, messages.Message, Reply | None]] = []
        self._early: list[tuple[Peer, messages.Message, Reply | None]] = []  # until it is formed
        # Workers of a session's job that has failed, until they are gone; when to wait no longer.
        self._sent_away: set[int] = set()
        self._gone_by = 0.0
        self.verdict = ""
        """Why the cluster ended; empty for the ordinary end."""

    def run(self) -> int:
        """Runs the cluster to its end; returns the exit code.

        Raises
        ------
        SnailError
            The master cannot even begin (settings, address, input), or the cluster failed.
        """
        job = None
        if not self._session:
            job = Job(self._raw, self._also_known)
        address = self._settings.listen_addr or self._settings.master_addr
        raise_descriptors()
        host, port = parse_addr(address, "listen_addr", port_optional=True)
        if port == 0 and not self._any_port:
            port = parse_addr(self._settings.master_addr, "master_addr")[1]
        listener = listen(host, port, self._trust)
        try:
            self._open(listener, job)
        except BaseException:
            listener.close()
            if job is not None:
                job.close()
            raise
        try:
            if self._settings.json_log:
                self._status_report.open_log(self._settings.json_log)
            if job is not None:
                servers = max(1, self._settings.expected_servers)
                self._job_controller.prepare(job, self._settings.expected_node_num - servers)
                self._job_controller.wait_prepared(PREPARE_S)
            host, port = listener.getsockname()[:2]
            log.info("master listens on %s", show((host, port)))
            self._on_listening(host, port)
            self._members.restart_clock()
            _spare_collector()
            while self._phase not in ("done", "failed"):
                self._server.step(HASTE_S if self._job_controller.in_haste else STEP_S)
                self._tick(time.monotonic())
                self._server.flush()
                server = self._server
                self._times.note(
                    time.monotonic() - server.woke_at, time.thread_time() - server.cpu_at
                )
            if self._on_status is not None:
                self._on_status(self.status())
            self._journal.end()
        except SnailError:
            if not self._took_over:  # it could not begin, and says why
                self._journal.end()
            raise
        finally:
            self._journal.close()
            self._members.close()
            self._job_controller.close()
            if job is not None:
                job.close()
            self._server.close()
            self._heartbeats.close()
            self._status_report.close()
            self._trust.close()
        if self._failed:
            error = ClusterError(self.verdict)
            error.exit_code = self._code
            raise error
        return self._code

    @property
    def figures(self) -> dict[str, Any]:
        """Figures of the finished run."""
        return self._job_controller.figures

    def catch_signals(self) -> None:
        """The first SIGINT or SIGTERM ends the job cleanly, the second at once."""

        def note(number: int, frame: types.FrameType | None) -> None:
            self._signals += 1

        signal.signal(signal.SIGINT, note)
        signal.signal(signal.SIGTERM, note)

    def _open(self, listener: Listener, job: Job | None) -> None:
        life = int.from_bytes(os.urandom(8), "little") | 1
        keeps = job is not None and self._settings.on_node_loss == "recover"
        self._journal = Journal(journal_path(self._settings, job) if keeps and job else None)
        past: list[Fact] = []
        if job is not None and self._journal.path is not None:
            check_output(job.settings)
            past = unended(self._journal, job, self._settings.frag_num)
            if past:
                life = past[0].data["life"]
        self._server = ControlServer(
            listener,
            role=Role.MASTER,
            trust=self._trust,
            job=life,
            on_message=self._on_message,
            on_lost=self._on_lost,
            on_pulse=lambda hello, sock: self._heartbeats.add(hello, sock),
        )
        self._members = Membership(
            self._settings,
            life,
            self._server,
            self._fail,
            self._ready,
            self._unready,
            self._journal,
        )
        self._heartbeats = HeartbeatMonitor(self._settings, self._members, self._expel)
        for fact in past:
            self._members.replay(fact)
        self._took_over = bool(past)
        self._returning = self._members.formed_before
        over = any(fact.kind == "exported" for fact in past)
        self._heartbeats.back_s = BACK_S if over else self._settings.heartbeat_timeout
        if job is not None and self._journal.path is not None:
            numbers = Fact(*self._members.keep_numbers())
            if past:
                self._journal.go_on([numbers])
            else:
                self._journal.begin([life_of(life, job, self._settings.frag_num), numbers])
        self._job_controller = JobController(
            self._members,
            self._settings.request_timeout,
            # A session's workers are its own: nobody else would start one.
            self._settings.master_time_out if self._goes_on and not self._session else 0.0,
            tell=lambda member, message: self._server.note(member.peer, message),
            fail=self._fail_job,
            on_end=self._job_ended,
            trust=self._trust,
            past=past,
        )
        self._replication = ReplicationController(
            self._settings,
            self._members,
            tell=lambda member, message: self._server.note(member.peer, message),
            expel=self._expel,
            fail=self._fail,
            all_leave=self._all_servers_leave,
            on_route=self._job_controller.reroute,
            on_rows_lost=self._rows_lost,
        )
        self._members.rows = self._replication.shard_orders
        self._probe_service = ProbeService("master", False, others=self._members.endpoints)
        self._status_report = StatusReport(
            self._settings,
            self._members,
            self._job_controller,
            self._replication,
            silences=self._heartbeats.silences,
            address=show(listener.getsockname()[:2]),
            times=self._times,
        )

    # --- the loop ----------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        if self._signals or self._asked:
            self._interrupted()
        self._heartbeats.step(time.monotonic(), stopping=self._stop_at is not None)
        if self._stop_at is not None:
            self._check_stopped(now)
        elif self._phase == "forming" and self._members.check_formed(now):
            self._phase = "idle"
            self._replication.formed()
            self._job_controller.formed()
            early, self._early = self._early, []
            self._take(early)
            _spare_collector()
        if self._stop_at is None:
            self._step_job(now)
        if (
            self._returning
            and self._job_controller.job is not None
            and self._job_controller.phase not in _BEFORE
        ):
            self._go_on()
        if now >= self._stats_at:
            self._stats_at = now + STATS_S
            if self._stop_at is None and self._members.route is not None:
                self._members.ask_stats()
                self._job_controller.check_checkpoint()
                if self._phase != "forming":
                    self._members.check_joining(now)
        # Behind whatever begins to save rows: a shard that is to move waits until that is over.
        if self._stop_at is None and not self._returning:
            self._replication.step(held=self._job_controller.holds_rows)
        if self._stop_at is None:
            self._replication.tell()
            self._job_controller.tell()
        self._status_report.step(self._told_phase, self.verdict)
        self._probe_service.step()
        if self._on_status is not None and now >= self._status_at:
            self._status_at = now + max(STATUS_S, len(self._members.all) / NODES_PER_S)
            self._on_status(self.status())
        if self._job_controller.phase in (
            "restoring",
            "survey",
            "loading",
            "training",
            "exporting",
        ):
            self._status_report.log_if_due(self._told_phase, self.verdict)

    def _step_job(self, now: float) -> None:
        self._sent_away &= self._members.all.keys()
        if now >= self._gone_by:
            for number in list(self._sent_away):
                self._expel(self._members.all[number], "it did not end with its job")
        if self._job_controller.phase == "stopping" and not self._sent_away:
            self._job_controller.abandoned()
        try:
            self._job_controller.step()
        except Exception as error:  # of the model's class, called here
            if not self._session:
                raise
            log.exception("the job failed at the master")
            self._fail_job(f"{self._job_controller.phase} failed at the master: {explain(error)}")

    def _ready(self, member: Member) -> None:
        if self._phase == "forming":
            return
        if member.role == "worker":
            self._job_controller.start(member)
        elif member.role == "server":
            self._replication.joined(member)

    def _unready(self, member: Member, text: str) -> None:
        """A member does not reach every server: it is dropped, the others go on without it."""
        self._server.note(member.peer, messages.Stop(True, f"{member.name} {text}"))
        self._server.close_peer(member.peer)
        self._lose(member, text)

    def _trouble(self, member: Member, text: str) -> None:
        """A member cannot go on: the end of the job, unless it just came or is past its part."""
        if member.number in self._sent_away:  # its job has failed already
            return
        if member.dropped or (member.late and not member.worked and member.role == "worker"):
            log.warning("%s is sent away, the others go on: %s", member.name, text)
            self._server.note(member.peer, messages.Stop(True, text))
            self._members.remove(member)
            self._members.left.remove(member)
            self._job_controller.released(member)
            self._heartbeats.forget(member.number)
            member.state = "gone"
        else:
            (self._fail_job if member.role == "worker" else self._fail)(f"{member.name} {text}")

    def _go_on(self) -> None:
        """The job is where the master before had it: on with who is back, without who is not."""
        self._returning = False
        if self._stop_at is not None:
            return
        for member in self._members.joined("worker"):
            if member.resume_state and not member.missed:
                self._server.fence(member.peer, partial(self._job_controller.came_back, member))
            elif member.acknowledged:
                self._job_controller.start(member)
        for member in [m for m in self._members.nodes() if m.missed]:
            self._lose(member, member.missed)
        self._job_controller.all_back()
        parked, self._parked = self._parked, []
        self._take(parked)

    def _take(self, waiting: list[tuple[Peer, messages.Message, Reply | None]]) -> None:
        """Handles what has waited, of those that are still there."""
        for peer, message, reply in waiting:
            if peer in self._server.peers:
                self._server.fence(peer, partial(self._on_message, peer, message, reply))

    def _job_ended(self) -> None:
        if self._session:
            self._collect_figures()
            self._job_controller.end()
            self._signals, self._heeded, self._asked = 0, 0, False
        elif self._job_controller.interrupted:
            job = self._job_controller.job
            share = job.ledger.progress if job is not None and job.ledger is not None else 0.0
            self._stop(
                EXIT_INTERRUPTED,
                f"interrupted after {share:.0%} of the training; what was learnt is saved",
            )
        else:
            self._stop(EXIT_OK, "")

    def _collect_figures(self) -> None:
        self._job_controller.collect_figures()
        self._job_controller.figures |= self._replication.figures()

    # --- the end -----------------------------------------------------------------------------

    def _interrupted(self) -> None:
        if self._stop_at is not None:
            return
        if self._job_controller.phase == "exporting":
            self._interrupt_export()
        elif self._signals > 1 or self._job_controller.phase != "training":
            doing = self._job_controller.phase if self._phase != "forming" else "forming"
            self._fail(f"interrupted while {doing}; nothing was saved", EXIT_INTERRUPTED)
        else:
            self._heeded = self._signals
            self._job_controller.interrupt()

    def _interrupt_export(self) -> None:
        """The first signal since the export began ends it cleanly, the second at once."""
        if self._signals == self._heeded:
            return  # what ended the training: what was learnt is being saved
        self._heeded = self._signals
        if self._job_controller.cancelled:
            self._fail(self._job_controller.export_verdict(), EXIT_INTERRUPTED)
        else:
            self._job_controller.cancel_export()

    def _all_servers_leave(self, text: str) -> None:
        """The rows would go: what was learnt is saved before, if there is anything."""
        if self._job_controller.phase == "training":
            log.warning("%s", text)
            self._job_controller.interrupt()
        elif self._job_controller.phase != "exporting":  # else they stay until that is done
            self._fail(text)

    def _fail(self, text: str, code: int = EXIT_FAILED) -> None:
        if self._stop_at is None:
            self._failed = code != EXIT_INTERRUPTED
            self._stop(code, text, broken=True)

    def _fail_job(self, text: str, code: int = EXIT_FAILED) -> None:
        """The job cannot go on; that is the end of the cluster, too, unless it is a session's.

        There the workers that are at the job are sent away, with all that they may still hold of
        it: user code that hangs, requests that wait for a clock.  Whoever began the session starts
        others.  The next job begins when they are gone, and fenced.
        """
        if not self._session or self._job_controller.job is None or self._phase == "forming":
            self._fail(text, code)
            return
        if self._stop_at is not None:
            return
        log.warning("the job has failed: %s", text)
        begun = self._job_controller.phase in ("survey", "loading", "training", "exporting")
        self._job_controller.abandon(text)
        self._gone_by = time.monotonic() + GOODBYE_S
        for member in self._members.nodes("worker"):
            if begun and not member.finished:
                self._sent_away.add(member.number)
                member.state = "stopping"
                self._server.note(member.peer, messages.Stop(True, text))
        self._signals, self._heeded, self._asked = 0, 0, False

    def _stop(self, code: int, text: str, *, broken: bool = False) -> None:
        if self._stop_at is not None:
            return
        self._code, self.verdict = code, text
        self._journal.note("stopped", {"code": code, "text": text})
        self._stop_at = time.monotonic()
        self._phase = "stopping"
        for member in list(self._members.all.values()):
            if member.state != "gone":
                member.state = "stopping"
            self._server.note(member.peer, messages.Stop(broken, text))

    def _check_stopped(self, now: float) -> None:
        assert self._stop_at is not None
        here = [m for m in self._members.all.values() if m.peer in self._server.peers]
        if here and now - self._stop_at < GOODBYE_S:
            return
        if here:
            log.warning("%s did not say goodbye within %.0f s", names_of(here), GOODBYE_S)
        if (
            self._job_controller.job is not None
            and self._job_controller.job.pass_ == "train"
            and not self._failed
        ):
            self._collect_figures()
            self._status_report.log_now(self._told_phase, self.verdict)
        self._phase = "failed" if self._failed else "done"

    def _expel(self, member: Member, why: str) -> None:
        """Takes a member for lost that may still live: it is told so, should it ever hear that."""
        after = "start it again" if self._phase == "forming" else "others do its work"
        text = f"the master took it for lost, {why}; {after}"
        self._server.note(member.peer, messages.Stop(True, text))
        self._server.close_peer(member.peer)
        self._lose(member, why)

    def _on_lost(self, peer: Peer, why: str) -> None:
        self._probe_service.forget(peer)
        if isinstance(peer.tag, Member):
            self._lose(peer.tag, why)

    def _lose(self, member: Member, why: str) -> None:
        """A member is gone: in good order after Bye, else by the policy of the cluster."""
        if member.state == "gone":
            return
        self._heartbeats.forget(member.number)
        said_bye, member.state = member.state == "bye", "gone"
        if self._stop_at is not None:
            return
        if self._returning and member.role != "driver" and not member.missed:
            log.warning("%s is missed: %s", member.name, why)
            member.missed, member.away = why, False
            member.state = "missed"
            return
        if member.number in self._sent_away:
            self._sent_away.discard(member.number)
            self._members.remove(member, lost=True)
            self._members.rows.fence(member.number)
        elif member.role == "driver":
            self._members.remove(member)
            if self._session and not self._members.nodes("driver"):
                self._stop(EXIT_OK, "the driver is gone")
        elif self._phase == "forming":
            self._lose_while_forming(member, why, left=member.leaving and said_bye)
        elif not member.joined:
            log.warning("%s is gone while it joined: %s. The job goes on", member.name, why)
            self._members.remove(member)
        elif member.role == "worker" and (member.dropped or (member.leaving and said_bye)):
            self._members.remove(member)
            returned = self._job_controller.released(member)
            log.info("%s left, %d blocks returned", member.name, returned)
        elif member.role == "server" and member.leaving and said_bye:
            log.info("%s left", member.name)
            self._job_controller.checkpoints.lost(member, "it left")
            self._replication.lost(member, "left")
        elif self._goes_on_without(member):
            if member.role == "worker":
                self._lose_worker(member, why)
            else:
                self._lose_server(member, why)
        else:
            what = "was told to leave and left" if member.leaving else f"is lost: {why}"
            text = (
                f"{member.name} {what}. Its own log may say more; "
                f"on_node_loss is '{self._settings.on_node_loss}'"
            )
            if member.role == "worker" and self._session:
                self._members.remove(member, lost=True)
                self._members.rows.fence(member.number)
                log.warning("%s", text)
                if self._job_controller.job is not None:
                    self._fail_job(text)
            else:
                self._rows_lost(text)

    def _rows_lost(self, text: str) -> None:
        """Something is gone that the job cannot do without."""
        advice = self._job_controller.checkpoints.advice()
        self._fail(f"{text}. {advice}" if advice else text)

    def _goes_on_without(self, member: Member) -> bool:
        """Whether the job can go on when this member is lost."""
        if not self._goes_on:
            return False
        if member.role == "server":
            return self._job_controller.phase != "restoring"
        others = any(other is not member for other in self._members.joined("worker"))
        return others or (self._job_controller.can_wait and not self._session)

    def _lose_while_forming(self, member: Member, why: str, *, left: bool) -> None:
        """Goes on forming: another process is waited for, where one may come."""
        if left or self._is_replaced:
            self._members.lost_while_forming(member, "left as asked" if left else f"is lost: {why}")
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

    def _lose_worker(self, member: Member, why: str) -> None:
        """Goes on without a worker: its blocks go to the others."""
        culprit = self._job_controller.leases.blame(member)
        self._members.remove(member, lost=True)
        self._members.rows.fence(member.number, self._job_controller.leases.last_of(member))
        returned = self._job_controller.released(member)
        who = "The others go on" if self._members.nodes("worker") else "It was the last worker"
        log.warning("%s is lost: %s. %s, %d blocks go back", member.name, why, who, returned)
        if culprit:
            self._fail_job(culprit)

    def _lose_server(self, member: Member, why: str) -> None:
        """Goes on without a server: standbys take its place, if there are any."""
        log.warning("%s is lost: %s", member.name, why)
        self._job_controller.checkpoints.lost(member, why)
        self._replication.lost(member, why)

    # --- messages ----------------------------------------------------------------------------

    def _on_message(self, peer: Peer, message: messages.Message, reply: Reply | None) -> None:
        member = peer.tag if isinstance(peer.tag, Member) else None
        messages.check_speaker(message, member.role if member is not None else "")
        if self._probe_service.handle(peer, message, reply):
            return
        own = (messages.Register, messages.Rejoin, messages.Ask)
        if self._returning and not isinstance(message, own):
            self._parked.append((peer, message, reply))
            return
        try:
            if reply is not None:
                self._on_call(peer, message, reply)
            else:
                self._on_note(peer, message)
        except ProtocolError:
            raise
        except SnailError as error:
            if reply is None:
                raise
            reply(error)

    def _on_call(self, peer: Peer, message: messages.Message, reply: Reply) -> None:
        if isinstance(message, messages.Register):
            if self._stop_at is not None or self._job_controller.phase == "exporting":
                raise ClusterError("this cluster is about to end: start a new one")
            self._members.register(peer, message, reply)
            return
        if isinstance(message, messages.Ask):
            self._status_report.ask(reply)
            return
        if isinstance(message, messages.Drain):
            self._replication.drain(message.server, reply)
            return
        if isinstance(message, messages.Rejoin):
            self._rejoin(peer, message, reply)
            return
        member = peer.tag
        if not isinstance(member, Member):
            raise ProtocolError(f"{type(message).__name__} before Register")
        if member.state == "gone":
            raise ClusterError(f"{member.name} was sent away")
        if isinstance(message, messages.Lease):
            self._job_controller.leases.lease(member, message, reply)
        elif isinstance(message, messages.Done):
            self._job_controller.leases.done(member, message, reply)
        elif isinstance(message, messages.Summarise):
            self._job_controller.summarise(member, reply)
        elif isinstance(message, messages.Fetch):
            self._job_controller.leases.fetch(member, message, reply)
        elif isinstance(message, messages.Declare):
            if self._phase == "forming":  # servers may still be replaced, and their shards moved
                self._early.append((peer, message, reply))
            else:
                self._members.table_registry.declare(member, message, reply)
        elif isinstance(message, messages.Submit):
            self._submit(message, reply)
        elif isinstance(message, messages.Shutdown):
            if not self._session:  # a driver that looks on is not whose job this is
                raise ClusterError("this cluster ends with its own job: interrupt its master")
            reply(messages.Ok())
            self._stop(EXIT_OK, "ended by the driver")
        else:
            raise ProtocolError(f"a master does not take {type(message).__name__}")

    def _rejoin(self, peer: Peer, message: messages.Rejoin, reply: Reply) -> None:
        if self._stop_at is not None:
            raise ClusterError("this cluster is about to end: " + (self.verdict or "it is done"))
        self._members.rejoin(peer, message, reply)
        if message.leaving:
            self._on_message(peer, messages.Leaving(message.leaving), None)

    def _on_note(self, peer: Peer, message: messages.Message) -> None:
        member = peer.tag
        if not isinstance(member, Member):
            raise ProtocolError(f"{type(message).__name__} before Register")
        if member.state == "gone":
            return  # it was sent away, and may not know yet
        if isinstance(message, messages.Finished):
            self._job_controller.leases.finished(member, message.figures)
        elif isinstance(message, messages.Settled):
            self._job_controller.leases.settled(member, message.numbers)
        elif isinstance(message, messages.Saved | messages.Loaded):
            self._job_controller.checkpoints.heard(member, message)
        elif isinstance(message, messages.Backed | messages.Unbacked | messages.Yielded):
            if self._stop_at is None:  # else they part because all end
                self._replication.note(member, message)
        elif isinstance(message, messages.Failed):
            self._trouble(member, f"failed: {message.text}")
        elif isinstance(message, messages.Leaving):
            log.info("%s: %s", member.name, message.why)
            if message.why == "SIGINT":
                self._asked = True
            else:
                self._leave(member)
        elif isinstance(message, messages.Bye):
            member.figures = {**member.figures, **message.figures}
            member.state = "bye"
        else:
            raise ProtocolError(f"a master does not take {type(message).__name__} as a note")

    def _leave(self, member: Member) -> None:
        if member.role == "server" and member.joined and self._phase != "forming":
            self._replication.drain(member.number)
            return
        if member.role == "server" and self._phase == "forming" and not self._is_replaced:
            self._fail(
                f"{member.name} was told to leave (SIGTERM) while the cluster forms. "
                f"{self._why_alone}"
            )
            return
        member.leaving = True
        if member.role == "server":  # it has no rows
            self._server.note(member.peer, messages.Stop(False, "left as asked"))
            return
        if self._job_controller.phase not in ("survey", "loading", "training"):
            self._server.note(member.peer, messages.Stop(False, "left as asked"))
        self._job_controller.leases.leaving(member)

    def _submit(self, message: messages.Submit, reply: Reply) -> None:
        taken = self._job_controller.job is not None or self._sent_away
        if not self._session or self._phase != "idle" or taken:
            raise ClusterError(f"this cluster takes no job now: it is {self._told_phase}")
        workers = len(self._members.joined("worker"))
        if not workers:
            raise ClusterError("a job needs a worker, and this cluster has none")
        try:
            job = Job(RawConfig.from_mapping(message.settings, "the submitted job"))
        except SnailError:
            raise
        except Exception as error:  # of the user's class: the cluster waits for a better one
            log.exception("the submitted job cannot begin")
            raise ClusterError(f"the job cannot begin: {explain(error)}") from error
        for member in self._members.joined("worker"):
            member.late = False  # of no job that was under way
        self._job_controller.prepare(job, workers, reply)

    # --- telling -----------------------------------------------------------------------------

    def status(self) -> Status:
        """A picture of the run as it is now."""
        return self._status_report.status(self._told_phase, self.verdict)

    @property
    def _told_phase(self) -> Phase:
        return self._phase if self._phase != "idle" else self._job_controller.phase


def _spare_collector() -> None:
    """Has the garbage collector look no more at what is here by now, most of which stays.

    A full collection walks over modules, members and connections: 40 ms at a thousand nodes, in
    the middle of a turn of the loop.
    """
    gc.freeze()
