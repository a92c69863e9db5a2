"""Owns the master's process: sockets, files, threads and the clock round a `MasterCore`.

    ControlServer, HeartbeatThread, BackgroundTasks, signals, time -> Event -> MasterCore.handle
    -> list of Effect -> messages, journal, threads

Runs the loop: everything in it, and so the whole core, is in one thread. Effects are performed in
sequence, so a fact is with the kernel before a peer learns of it. Must not decide anything.
"""

from __future__ import annotations

import contextlib
import gc
import hmac
import logging
import math
import os
import signal
import socket
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snailps.abi.memory import release_memory
from snailps.api.class_source import define
from snailps.config import MasterSettings, RawConfig, parse_addr
from snailps.config.origins import with_origins
from snailps.config.output import check_output, refuse_sources
from snailps.dataclass import dataclass
from snailps.errors import (
    ClusterError,
    ConfigError,
    SnailError,
    WaitTimeout,
    explain,
)
from snailps.master import effects, events
from snailps.master.background_tasks import BackgroundTasks
from snailps.master.checkpoint_files import CheckpointFiles
from snailps.master.context import Context
from snailps.master.core import MasterCore
from snailps.master.effects import Fact, Outbox
from snailps.master.event_log import LogTail
from snailps.master.job.input import check_driver_files
from snailps.master.job.job import Job
from snailps.master.job.model_reader import ModelReader
from snailps.master.job.record import JobRecord
from snailps.master.job.recovery import Recovered
from snailps.master.job.session import Record, SessionJob
from snailps.master.job.state import JobState, pack
from snailps.master.journal import Journal
from snailps.master.life import COMMAND, Life
from snailps.master.observers import POINT, Observer, Observers, RunHistory
from snailps.master.performer import Performer
from snailps.master.phases import ClusterPhase, JobPhase
from snailps.master.status_report import StatusReport
from snailps.master.takeover import (
    check_results,
    first_fact,
    journal_path,
    named_sources,
    unended,
)
from snailps.node.checks import look_half_way, why_no_nodes, why_not_connected
from snailps.node.driver_files import read_driver_files
from snailps.node.effects import Event, Tick, Work
from snailps.node.limits import STATS_S
from snailps.node.metric_samples import of_master, of_process
from snailps.node.metrics import Sample
from snailps.node.probe_service import ProbeService
from snailps.node.process import raise_descriptors
from snailps.node.signals import ending_signals
from snailps.node.status import EVENT_REPORTED, ProgressStatus, Status
from snailps.node.usage import peak_rss_mb, usage
from snailps.registry import named
from snailps.transport import messages
from snailps.transport._heartbeat import HeartbeatThread
from snailps.transport.control import ControlServer, Listener, Peer, Trust, listen, show
from snailps.transport.control.server import Reply
from snailps.transport.handshake import Hello, Role

if TYPE_CHECKING:
    from snailps.node.metrics_server import MetricsServer

log = logging.getLogger(__name__)

STEP_S = 0.05
"""Most seconds of a turn without a message, and so between two `Tick`s."""
HASTE_S = 0.001
"""The same while calls may be answered in the next turn (`JobController.in_haste`)."""
PREPARE_S = 1.0
"""Seconds that the master looks for its input before it listens: enough to find a wrong path."""
POINTS_S = 1.0
"""Period of points of the history."""
HEARTBEATS_S = 0.25
"""Period of heartbeat checks."""
USAGE_S = 1.0
"""Period of measuring what this process uses."""
RELEASE_S = 5.0
"""After the training has begun, until freed memory is released again: by then workers have the
survey's result, which takes as much memory again while it is sent."""
FOLDER_S = 10.0
"""Seconds to wait for the checkpoint folder to record the end of the run."""
WORKS_END_S = 1.0
"""Seconds that the end of the master waits for work beside its loop, which is then abandoned."""
_PROBES = (messages.Examine, messages.Probe, messages.Examined)


class _Services:
    def __init__(
        self,
        reader: ModelReader,
        journal: Journal,
        *,
        keeps_base: bool,  # the state at which a training begins; a session's job needs none
        accept_source: bool,
        source_key: str,
    ) -> None:
        self.files, self.reader = CheckpointFiles(), reader
        self._journal, self._keeps_base = journal, keeps_base
        self._accept_source, self._source_key = accept_source, source_key

    def load_job(
        self, settings: Mapping[str, str], now: float, source: bytes = b"", key: str = ""
    ) -> Job:
        if source:
            is_own = bool(self._source_key) and hmac.compare_digest(
                key.encode(), self._source_key.encode()
            )
            if not (is_own or self._accept_source):
                raise ConfigError(
                    "this cluster takes no classes of a notebook or script: put the class into a "
                    "file that its workers can import, say mymodel.py, or have its operator set "
                    "accept_source at the master and all workers (docs/security.md)"
                )
            define(source)
        return Job(RawConfig.from_mapping(settings, "the submitted job"), now=now, source=source)

    def more_files(self) -> CheckpointFiles:
        return CheckpointFiles()

    def sync_journal(self) -> None:
        self._journal.sync()

    def keep_base(self, state: JobState) -> None:
        if self._keeps_base and self._journal.path is not None:
            self._journal.keep_base(pack(state))


@dataclass(frozen=True, slots=True)
class Launch:
    """How a master was launched, beside its settings: by hand, or by a launcher of a cluster."""

    life: Life = COMMAND
    nodes_stay: bool = True
    """False: servers and workers end with this process."""
    any_port: bool = False
    """`listen_addr` without a port means any free one, not the port of `master_addr`."""
    source_key: str = ""
    """Admits the source of a class, whatever `accept_source` is."""
    secret: bytes = b""
    """Of the cluster, made by its launcher: used where the settings name none."""


class Master:
    core: MasterCore

    def __init__(
        self,
        settings: MasterSettings,
        raw: RawConfig,  # where the job's settings come from
        launch: Launch,
        also_known: Iterable[type[Any]] = (),  # settings classes whose keys may be in the same file
        *,
        # called with the address
        on_listening: Callable[[str, int], None] = lambda host, port: None,
        # made as the run begins, so that it fails if one cannot look on
        observers: Callable[[], Iterable[Observer]] = tuple,
    ) -> None:
        self._settings, self._raw, self._also_known = settings, raw, also_known
        self._launch = launch
        self.trust = Trust.of(settings, secret=launch.secret)
        self._on_listening, self._observers_of = on_listening, observers
        self._journal = Journal(None)
        self.session = SessionJob(RawConfig([]))  # what it keeps for drivers
        self._signals: deque[int] = deque()
        self._events: deque[Event] = deque()
        self._is_feeding = False
        self._tasks = BackgroundTasks(self._wake)
        self._diagnosis: threading.Timer | None = None
        self._heartbeats_at = self._usage_at = 0.0
        self._release_at = math.inf
        self._phase: JobPhase | None = None
        self._log_tail = LogTail()
        self._observers = Observers(self.status, self._progress)
        self._servers = settings.expected_servers
        self._metrics: MetricsServer | None = None
        self._scrapes: deque[Future[list[Sample]]] = deque()
        self._asks: Mapping[str, Callable[[], dict[str, Any]]] = {
            "log": lambda: {"lines": self._log_tail.lines()},
            "history": lambda: {**self._history.columns()},
            "settings": lambda: {"settings": self._origins()},
        }

    # --- the life of the process ---------------------------------------------------------------

    def run(self) -> int:
        """Run the cluster to its end; returns the exit code. SnailError if the master cannot begin
        (settings, address, input), or the cluster failed."""
        job: Job | None = None
        if not self._launch.life.drivers_work:
            check_driver_files({entry.key: entry.value for entry in self._raw.entries})
            with _beginning():
                job = Job(self._raw, self._also_known, time.monotonic())
        else:
            self.session = SessionJob(self._raw, self._also_known, self._settings.modules)
        address = self._settings.listen_addr or self._settings.master_addr
        raise_descriptors()
        host, port = parse_addr(address, "listen_addr", port_optional=True)
        if port == 0 and not self._launch.any_port:
            port = parse_addr(self._settings.master_addr, "master_addr")[1]
        listener = listen(host, port, self.trust)
        try:
            with _beginning():
                took_over = self._open(listener, job)
        except BaseException:
            self._journal.release()
            listener.close()
            if job is not None:
                job.close()
            raise
        try:
            with _beginning():
                self._begin(listener, job)
            while not self.core.lifecycle.over:
                self._turn()
            if self.core.lifecycle.left:
                self._journal.leave()
            else:
                self._end_run()
        except SnailError:
            # It could not begin, and reports why. An earlier master's journal stays: once the
            # reason is mended the same command takes over.
            if not took_over:
                self._journal.end()
            raise
        finally:
            self._close(job)
        if self.core.lifecycle.failed:
            error = ClusterError(self.verdict)
            error.exit_code = self.core.lifecycle.code
            raise error
        return self.core.lifecycle.code

    def _end_run(self) -> None:
        """Remove the journal: the run is over, and nobody is to take it over."""
        trained = self.job is not None and self.job.pass_ == "train"
        if trained and not self.core.lifecycle.failed:
            self._observers.end()
        # Before the journal goes: without either, the same command would continue a run that ended.
        self._tasks.wait_all(FOLDER_S, "checkpoint")
        self._journal.end()

    @property
    def figures(self) -> dict[str, Any]:
        return self.core.job_controller.present.figures

    def recorded(self) -> dict[str, Any]:
        """Status, history, settings, log lines, metrics and last map of words at the run's end."""
        return {
            "status": self.status(),
            "history": self._history.columns(),
            "settings": self._origins(),
            "lines": self._log_tail.lines(),
            "figures": self.figures,
            "words": self.core.job_controller.looks.last_map,
        }

    @property
    def verdict(self) -> str:
        return self.core.lifecycle.verdict

    @property
    def left(self) -> bool:
        """Whether it has ended alone, so that another master can continue."""
        return self.core.lifecycle.left

    @property
    def job(self) -> Job | None:
        """The job that it runs; None in a session without one."""
        return self.core.job_controller.job

    @property
    def cluster_id(self) -> int:
        """Number of this cluster, once it listens."""
        return self.core.members.cluster_id

    def journal_path(self, job: Job | None) -> Path | None:
        """Folder of the journal of a job, or of what is kept for drivers; None: there is none."""
        if not self._launch.life.outlives_drivers or self._settings.on_node_loss != "recover":
            return None
        return journal_path(self._settings, self._record(job))

    def _record(self, job: Job | None) -> Record:
        """What the journal is of."""
        return self.session if job is None else JobRecord(job)

    def status(self) -> Status:
        return self._report.status(time.monotonic())

    def _progress(self) -> ProgressStatus:
        return self._report.progress(time.monotonic())

    def _origins(self) -> list[list[str]]:
        """Key, value and origin of the settings of the job and of the master."""
        origins = [*(self.job.model.origins if self.job is not None else ()), *self._own_settings]
        return [list(setting) for setting in origins]

    def catch_signals(self) -> None:
        """Hand signals to the core; `interrupts.py` has what they mean."""

        def note(number: int, frame: types.FrameType | None) -> None:
            self._signals.append(number)

        for number in (signal.SIGINT, *ending_signals()):
            signal.signal(number, note)

    def _open(self, listener: Listener, job: Job | None) -> bool:
        """Make the core and everything round it; returns whether it takes over from an earlier
        master."""
        settings, now = self._settings, time.monotonic()
        self._log_tail.open()
        wall_s = time.time() - now
        life, record = self._launch.life, self._record(job)
        self._journal = Journal(self.journal_path(job))
        past: Recovered | None = None
        cluster_id = int.from_bytes(os.urandom(8), "little") | 1
        if self._journal.path is not None:
            check_output(record.output)
            past = unended(self._journal, record, settings.frag_num, life)
            if past is not None:
                cluster_id = past.facts[0].data["cluster_id"]
        if job is not None:
            check_results(job.model.cls, job.settings, takes_over=past is not None)
            refuse_sources([settings.json_log], named_sources(job.settings), "json_log")
        self._reader = ModelReader(settings.request_timeout, self.trust, cluster_id)
        self.core = MasterCore(
            Context(
                settings,
                Outbox(kept=self._journal.path is not None, life=life),
                cluster_id,
                now,
                life,
                self.session,
                self._launch.nodes_stay,
            ),
            _Services(
                self._reader,
                self._journal,
                keeps_base=life.job_goes_on,
                accept_source=settings.accept_source,
                source_key=self._launch.source_key,
            ),
            past,
            peak_rss_mb,
        )
        facts = past.facts if past is not None else []
        self._report = StatusReport(
            self.core,
            self._journal.note,
            wall_s=wall_s,
            facts=facts,
            address=show(listener.getsockname()[:2]),
            place=(socket.gethostname(), os.getpid()),
        )
        points = (fact.data for fact in facts if fact.kind == POINT)
        note = self._journal.note if life.job_goes_on else _not_noted
        self._history = RunHistory(note, wall_s + now, points)
        self._own_settings = with_origins(settings, self._raw)
        if self._journal.path is not None:
            # Before anybody can register: a number given out twice would let pushes of one
            # incarnation pass for those of another.
            numbers = Fact(*self.core.members.numbers.keep())
            if past is not None:
                self._journal.go_on([numbers])
            else:
                first = first_fact(cluster_id, record, settings.frag_num, wall_s + now)
                self._journal.begin([first, numbers])
        if self.core.members.route is not None:
            self._reader.follow(self.core.members.route)
        self._heartbeats = HeartbeatThread(settings.heartbeat_interval)
        self._heartbeats.start()
        read_driver_files(Role.MASTER, self.trust, settings.request_timeout)
        self._server = ControlServer(
            listener,
            role=Role.MASTER,
            trust=self.trust,
            job=cluster_id,
            on_message=self._on_message,
            on_lost=lambda peer, why: self.performer.lost(peer, why),
            on_pulse=self._on_heartbeat_connection,
        )
        self._probe_service = ProbeService("master", False, others=self.core.members.endpoints)
        self.performer = Performer(
            self._server,
            self._feed,
            self._effect_table(),
            status=self.status,
            closed=self._probe_service.forget,
        )
        return past is not None

    def _begin(self, listener: Listener, job: Job | None) -> None:
        settings = self._settings
        self._begin_looking_on()
        workers = settings.expected_node_num - max(1, settings.expected_servers)
        self._feed(events.Started(job, workers))
        if job is not None:
            self._tasks.wait_first(PREPARE_S)
        host, port = listener.getsockname()[:2]
        log.info("master listens on %s", show((host, port)))
        if settings.metrics_addr:
            from snailps.node.metrics_server import serve_metrics  # imports an HTTP server

            self._metrics = serve_metrics(settings.metrics_addr, self._scrape)
        if self._metrics is not None:
            self._report.metrics = self._metrics.address
        self._on_listening(host, port)
        self._feed(events.Listening())
        _spare_collector()

    def _begin_looking_on(self) -> None:
        history = Observer(self._history.on_progress, ("training",), POINTS_S, whole=False)
        for observer in (*self._observers_of(), history):
            self._observers.add(observer)
            if observer.results is not None:
                named("tests_in_training")  # refused now, where this installation lacks it
                self._reader.observer = observer.results

    def _close(self, job: Job | None) -> None:
        if self._metrics is not None:
            self._metrics.close()
        self._journal.close()
        if self._diagnosis is not None:
            self._diagnosis.cancel()
        self._reader.close()
        self._tasks.wait_all(WORKS_END_S)  # a cancelled export removes its incomplete files
        for either in (job, self.core.job_controller.job):
            if either is not None:
                either.close()
        self._server.close()
        self._heartbeats.stop()
        self._observers.close()
        self.trust.close()
        self._log_tail.close()

    # --- the loop ------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Wake the loop: work beside it is done."""
        self._server.wake()

    def _turn(self) -> None:
        """One turn of the loop: messages of peers, finished work, heartbeats, signals, time."""
        server, core = self._server, self.core
        server.step(HASTE_S if core.job_controller.in_haste else STEP_S)
        for ended in self._tasks.ended():
            self._feed(ended)
        now = time.monotonic()
        if now >= self._heartbeats_at:
            self._heartbeats_at = now + HEARTBEATS_S
            closed = frozenset(self._heartbeats.closed())
            self._feed(events.Heartbeats(self._heartbeats.silences(), closed))
        while self._signals:
            self._feed(events.Signal(self._signals.popleft()))
        if self._journal.is_long or self._journal.is_to_be_kept_again(now):
            self._feed(events.JournalGrown())
        if core.out.kept != self._journal.kept:
            kept = self._journal.kept
            self._feed(events.JournalKept() if kept else events.JournalFailed())
        forming = core.phase is ClusterPhase.FORMING
        if now >= self._usage_at:
            self._usage_at = now + USAGE_S
            self._report.take_usage(usage())
        self._feed(Tick())
        if forming and core.phase is ClusterPhase.FORMED:
            _spare_collector()
        if core.job_controller.phase is not self._phase:
            self._phase = core.job_controller.phase
            if self._phase is JobPhase.TRAINING:  # the survey's counts are not needed any more
                release_memory()
                self._release_at = now + RELEASE_S
        if now >= self._release_at:
            self._release_at = math.inf
            release_memory()
        self._probe_service.step()
        while self._scrapes:
            self._answer_scrape(self._scrapes.popleft())
        news = self.job.inspected if self.job is not None else None
        self._observers.step(self._report.note_phase(now), len(core.members.all), news, now)
        server.flush()
        busy_s, cpu_s = time.monotonic() - server.woke_at, time.thread_time() - server.cpu_at
        self._report.times.note(busy_s, cpu_s)

    # --- metrics -------------------------------------------------------------------------------

    def _scrape(self) -> list[Sample]:
        """Metrics for the thread of the metrics server. The loop makes them, as no other thread may
        read the core. WaitTimeout if the loop is busy, or has ended."""
        asked: Future[list[Sample]] = Future()
        self._scrapes.append(asked)
        self._wake()
        try:
            return [*of_process("master", 0), *asked.result(STATS_S)]
        except FutureTimeout:
            raise WaitTimeout(f"the master did not answer within {STATS_S:.0f} s") from None

    def _answer_scrape(self, asked: Future[list[Sample]]) -> None:
        settings = self._settings
        replicated = settings.replication != "none" and settings.on_node_loss == "recover"
        counts, status = self._report.events.counts, self.status()
        present = sum(node["role"] == "server" for node in status["nodes"])
        self._servers = max(self._servers, present)
        samples = of_master(
            status,
            counts,
            replicated=replicated,
            servers=self._servers,
            heartbeat_interval=settings.heartbeat_interval,
        )
        asked.set_result(samples)

    def _feed(self, event: Event) -> None:
        """Hand the core an event, and perform its effects and those of the events that follow.

        Performing an effect may feed an event (a lost connection, a refused order). It waits in
        `_events` until the effects of this one are performed: the core is never entered twice.
        """
        self._events.append(event)
        if self._is_feeding:
            return
        self._is_feeding = True
        try:
            while self._events:
                event = self._events.popleft()
                try:
                    wanted = self.core.handle(event, time.monotonic())
                except BaseException:
                    self.performer.perform(self.core.out.take())  # effects decided before the error
                    raise
                self.performer.perform(wanted)
        finally:
            self._is_feeding = False

    # --- events --------------------------------------------------------------------------------

    def _on_message(self, peer: Peer, message: messages.Message, reply: Reply | None) -> None:
        number = self.performer.number_of(peer)
        if isinstance(message, _PROBES):
            messages.check_speaker(message, self.core.members.role_of(number))
            self._probe_service.handle(peer, message, reply)
            return
        if reply is not None and isinstance(message, messages.Ask) and message.what in self._asks:
            reply(messages.Report(self._asks[message.what]()))
            return
        self.performer.received(peer, message, reply)

    def _on_heartbeat_connection(self, hello: Hello, sock: socket.socket) -> None:
        """Keep a heartbeat connection of a present member; close any other."""
        members = self.core.members
        member = members.all.get(hello.node)
        if member is None or hello.incarnation != member.number or hello.job != members.cluster_id:
            sock.close()
        else:
            self._heartbeats.add(sock, member.number)

    # --- effects -------------------------------------------------------------------------------

    def _effect_table(self) -> Mapping[type[Any], Callable[[Any], None]]:
        return {
            effects.Forget: lambda effect: self._heartbeats.remove(effect.member),
            effects.Journaled: lambda effect: self._journal.note(effect.kind, effect.data),
            effects.Compact: lambda effect: self._journal.compact(effect.snapshot),
            Work: self._tasks.begin,
            effects.Rerouted: lambda effect: self._reader.follow(effect.route),
            effects.CancelExport: lambda effect: self._reader.cancel(),
            effects.LeaveRounds: lambda effect: self._reader.leave_rounds(),
            effects.Diagnose: self._diagnose,
            effects.Say: _say,
            effects.StatusEvent: lambda effect: self._report.events.on_event(
                effect.kind, effect.who, effect.text, time.monotonic()
            ),
        }

    def _diagnose(self, effect: effects.Diagnose) -> None:
        if self._diagnosis is not None:
            self._diagnosis.cancel()
            self._diagnosis = None
        settings = self._settings
        if effect.wait == "nodes":
            look = partial(why_no_nodes, settings, settings.expected_node_num)
            self._diagnosis = look_half_way(effect.limit_s, "nodes", look)
        elif effect.wait == "connections":
            self._diagnosis = look_half_way(
                effect.limit_s,
                "all nodes to connect to every shard",
                partial(why_not_connected, effect.places),
            )


def _say(effect: effects.Say) -> None:
    log.log(effect.level, "%s", effect.text, extra=EVENT_REPORTED if effect.reported else None)


@contextlib.contextmanager
def _beginning() -> Iterator[None]:
    """Turn an error of the model's class while its job begins into one sentence that ends the
    master."""
    try:
        yield
    except SnailError:
        raise
    except (Exception, SystemExit) as error:
        log.error("the job cannot begin", exc_info=error)
        raise ClusterError(f"the job cannot begin: {explain(error)}") from error


def _not_noted(kind: str, data: dict[str, Any]) -> None:
    """Nothing is noted: the history of a session's job ends with its master."""


def _spare_collector() -> None:
    """Exclude all present objects, most of which stay, from garbage collection: a full collection
    in a turn of the loop takes 40 ms with a thousand nodes."""
    gc.freeze()
