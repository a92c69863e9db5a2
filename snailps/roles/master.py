"""The master: forms the cluster, hands out the work, watches over everyone, ends the job.

    forming -> (route acknowledged by all) -> [preparing, survey,] training -> exporting -> stopping

It owns the nodes, the route and the course of the job.  One thread runs it (`run`); what takes
long (finding input, merging, exporting) runs beside it and is asked for its result.  It never sees
a row but in the export, and never a model's mathematics: those are the class methods of `Worker`.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
import types
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from snailps.config import MasterSettings, RawConfig, parse_addr
from snailps.errors import ClusterError, ConfigError, ProtocolError, SnailError
from snailps.roles.backup import write_tables
from snailps.roles.job import Job
from snailps.roles.links import connect_shards
from snailps.roles.node import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    explain,
    peak_rss_mb,
)
from snailps.roles.status import BlockCounts, NodeStatus, Phase, Status
from snailps.roles.tables import Table
from snailps.roles.worker import Results
from snailps.store.route import Route, ShardAddress
from snailps.transport import messages
from snailps.transport._pulse import Pulse
from snailps.transport.control import ControlServer, Peer, listen, show
from snailps.transport.session import Hello, Role

log = logging.getLogger(__name__)

STEP_S = 0.05
GOODBYE_S = 10.0
STATS_S = 2.0
WAIT_NOTICE_S = 5.0
TABLES_MAX = 4096

Reply = Callable[[messages.Message | SnailError], None]


@dataclass(eq=False, slots=True)
class Member:
    """A registered process."""

    number: int
    incarnation: int
    role: str
    host: str
    pid: int
    peer: Peer
    endpoints: list[tuple[str, int]]
    state: str = "registered"
    waits: str = ""
    acknowledged: bool = False
    finished: bool = False
    leaving: bool = False
    rate: float | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"{self.role} {self.number} ({self.host}, process {self.pid})"


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
        on_listening: Callable[[str, int], None] = lambda host, port: None,
        on_status: Callable[[Status], None] = lambda status: None,
    ) -> None:
        self._settings, self._raw, self._also_known = settings, raw, also_known
        self._session = session
        self._on_listening, self._on_status = on_listening, on_status
        self._begun = time.monotonic()
        self._forming_at = self._routed_at = self._begun
        self._life = int.from_bytes(os.urandom(8), "little") | 1
        self._members: dict[int, Member] = {}
        self._next_node = 1
        self._phase: Phase = "forming"
        self._route: Route | None = None
        self._tables: dict[str, tuple[int, Table]] = {}
        self._job: Job | None = None
        self._side: Future[Any] | None = None
        self._side_then: Callable[[Any], None] = lambda result: None
        self._pool = ThreadPoolExecutor(1, "snailps-side")
        self._parked_leases: list[tuple[int, str, Reply]] = []
        self._parked_summaries: list[Reply] = []
        self._failed = False
        self._interrupts = 0
        self._code = EXIT_OK
        self._verdict = ""
        self._stop_at: float | None = None
        self._stats_at = 0.0
        self._stats_left = -1
        self._status_at = 0.0
        self._notice_at = self._begun + WAIT_NOTICE_S
        self._backup: Future[Any] | None = None
        self._backup_pool = ThreadPoolExecutor(1, "snailps-backup")
        self._pushes_saved = 0
        self._log_file: TextIO | None = None
        self._log_at = 0.0
        self._figures: dict[str, Any] = {}

    # --- life ------------------------------------------------------------------------------

    def run(self) -> int:
        """Runs the cluster to its end; returns the exit code.

        Raises
        ------
        SnailError
            The master cannot even begin: its settings, its address, its input.
        """
        if not self._session:
            self._job = Job(self._raw, self._also_known)
        address = self._settings.listen_addr or self._settings.master_addr
        host, port = parse_addr(address, "listen_addr", port_optional=True)
        listener = listen(host, port)
        self._server = ControlServer(
            listener,
            role=Role.MASTER,
            secret=b"",
            job=self._life,
            on_message=self._on_message,
            on_lost=self._on_lost,
            on_pulse=self._on_pulse,
        )
        self._pulse = Pulse(self._settings.heartbeat_interval)
        self._pulse.start()
        try:
            if self._settings.json_log:
                self._open_log(self._settings.json_log)
            if self._job is not None:
                self._prepare()
            bound = listener.getsockname()
            log.info("master listens on %s", show((bound[0], bound[1])))
            self._on_listening(bound[0], bound[1])
            self._forming_at = time.monotonic()
            while self._phase not in ("done", "failed"):
                self._server.step(STEP_S)
                self._tick(time.monotonic())
            self._tell_status()
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._backup_pool.shutdown(wait=False, cancel_futures=True)
            self._server.close()
            self._pulse.stop()
            if self._job is not None:
                self._job.close()
            if self._log_file is not None:
                self._log_file.close()
        if self._failed:
            raise ClusterError(self._verdict)
        return self._code

    @property
    def figures(self) -> dict[str, Any]:
        """Figures of the finished run."""
        return self._figures

    @property
    def verdict(self) -> str:
        """Why the cluster ended; empty for the ordinary end."""
        return self._verdict

    def catch_signals(self) -> None:
        """The first SIGINT or SIGTERM ends the job cleanly, the second at once."""
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: types.FrameType | None) -> None:
        self._interrupts += 1

    def _prepare(self) -> None:
        """Finds the input now, so that a wrong path ends the master before anybody waits."""
        job = self._job
        assert job is not None
        workers = max(1, self._settings.expected_node_num - max(1, self._settings.expected_servers))
        job.prepare(workers)
        log.info(
            "%s: %s files, %.1f MB", job.worker_class, f"{len(job.files):,}", job.total_bytes / 1e6
        )

    def _tick(self, now: float) -> None:
        if self._interrupts:
            self._interrupted()
        self._check_pulses()
        self._check_side()
        if self._phase == "forming":
            self._check_formed(now)
        if self._phase in ("survey", "training"):
            self._check_pass()
        if now >= self._stats_at and self._phase in ("idle", "survey", "training"):
            self._stats_at = now + STATS_S
            self._ask_stats()
            self._check_backup()
        if self._stop_at is not None:
            self._check_stopped(now)
        if now >= self._status_at:
            self._status_at = now + 0.2
            self._tell_status()
        if self._log_file is not None and now >= self._log_at and self._phase == "training":
            self._log_at = now + self._settings.json_log_interval
            self._write_log()

    # --- forming ---------------------------------------------------------------------------

    def _register(self, peer: Peer, message: messages.Register, reply: Reply) -> None:
        role = message.role
        try:
            endpoints = [(str(host), int(port)) for host, port in message.endpoints]
        except (TypeError, ValueError):
            raise ProtocolError("Register: endpoints must be [host, port] pairs") from None
        if role not in ("server", "worker", "driver") or (role == "server") != bool(endpoints):
            raise ProtocolError(f"Register: role {role!r} with {len(endpoints)} endpoints")
        if peer.tag is not None:
            raise ProtocolError("Register: this connection is registered already")
        if self._phase in ("stopping", "exporting", "done", "failed"):
            raise ClusterError(f"the job is {self._phase}: start a new one")
        formed = self._phase != "forming" or self._route is not None
        if role == "server" and formed:
            raise ClusterError(
                "the cluster is complete and running: a server that joins a running job is not "
                "supported yet. Raise expected_node_num and start again"
            )
        number = self._next_node
        self._next_node += 1
        member = Member(number, number, role, message.host, message.pid, peer, endpoints)
        self._members[number] = member
        peer.tag = member
        log.info("%s registered from %s", member.name, show(peer.address))
        reply(
            messages.Welcome(
                number,
                member.incarnation,
                self._life,
                self._settings.frag_num,
                self._settings.heartbeat_interval,
                self._settings.heartbeat_timeout,
            )
        )
        if formed:
            self._send_route(member)

    def _nodes(self, role: str = "") -> list[Member]:
        return [
            m for m in self._members.values() if m.role == role or (not role and m.role != "driver")
        ]

    def _missing(self) -> str:
        """Names who is not there yet, in words."""
        servers, workers = len(self._nodes("server")), len(self._nodes("worker"))
        have = servers + workers
        want = self._settings.expected_node_num
        wanted_servers = max(1, self._settings.expected_servers)
        parts = []
        if have < want:
            parts.append(f"{want - have} of {want} nodes")
        if servers < wanted_servers:
            parts.append(f"at least {wanted_servers - servers} more server(s)")
        there = ", ".join(m.name for m in self._nodes()) or "nobody"
        return f"{' and '.join(parts)} (here: {there})"

    def _check_formed(self, now: float) -> None:
        if self._route is not None:
            waiting = [m for m in self._nodes() if not m.acknowledged]
            if not waiting:
                self._formed()
            elif (
                now - self._forming_at
                > self._settings.master_time_out + self._settings.init_timeout
            ):
                names = ", ".join(m.name for m in waiting)
                self._fail(
                    f"{names} did not acknowledge the route: can it reach every server? "
                    f"Servers: {self._shard_names()}"
                )
            return
        servers = self._nodes("server")
        have, want = len(self._nodes()), self._settings.expected_node_num
        if have >= want and len(servers) >= max(1, self._settings.expected_servers):
            self._broadcast_route()
        elif have >= want:
            self._fail(
                f"all {want} expected nodes are here, but only {len(servers)} of them serve: "
                f"{self._missing()}. Start more servers or correct expected_node_num"
            )
        elif now - self._forming_at > self._settings.master_time_out:
            self._fail(
                f"waited {self._settings.master_time_out:.0f} s (master_time_out), still missing "
                f"{self._missing()}. Were they started, with this master_addr?"
            )
        elif now >= self._notice_at:
            self._notice_at = now + WAIT_NOTICE_S
            left = self._settings.master_time_out - (now - self._forming_at)
            log.info("waiting for %s, %.0f s left", self._missing(), left)

    def _shard_names(self) -> str:
        assert self._route is not None
        return ", ".join(show((s.host, s.port)) for s in self._route.shards)

    def _broadcast_route(self) -> None:
        shards = [
            ShardAddress(member.number, host, port)
            for member in self._nodes("server")
            for host, port in member.endpoints
        ]
        self._routed_at = time.monotonic()
        self._route = Route.build(1, shards, self._settings.frag_num)
        log.info("route epoch 1: %d shards, %d fragments", len(shards), self._route.frag_num)
        for member in list(self._members.values()):
            self._send_route(member)

    def _send_route(self, member: Member) -> None:
        assert self._route is not None
        member.state = "connecting"

        def acknowledged(answer: messages.Message | SnailError) -> None:
            if isinstance(answer, SnailError):
                if member.number in self._members:
                    self._fail(f"{member.name} cannot use the route: {answer}")
                return
            member.acknowledged = True
            member.state = "ready"
            if self._phase in ("survey", "training") and member.role == "worker":
                self._start(member)

        self._server.call(member.peer, messages.TakeRoute(self._route.to_dict()), acknowledged)

    def _formed(self) -> None:
        log.info("cluster complete: %s", ", ".join(m.name for m in self._nodes()))
        self._phase = "idle"
        if self._job is not None:
            self._begin_job()

    # --- the job ---------------------------------------------------------------------------

    def _begin_job(self) -> None:
        assert self._job is not None
        if not self._nodes("worker"):
            self._fail(
                "a job needs a worker, and none is here: raise expected_node_num or start workers"
            )
            return
        self._job.begin_pass("survey" if self._job.surveyor is not None else "train")
        self._phase = "survey" if self._job.surveyor is not None else "training"
        for member in self._nodes("worker"):
            self._start(member)

    def _start(self, member: Member) -> None:
        assert self._job is not None
        member.state, member.finished = "starting", False
        self._server.note(member.peer, self._job.start_message(len(self._nodes("worker"))))

    def _check_pass(self) -> None:
        job = self._job
        assert job is not None
        assert job.ledger is not None
        if self._side is not None:
            return
        workers = self._nodes("worker")
        if job.pass_ == "survey" and job.ledger.over and job.summary is None:
            job.end_pass()
            self._in_side(job.end_survey, lambda _: self._summarised())
        elif job.pass_ == "train" and job.ledger.over:
            self._answer_parked()
            if workers and all(member.finished for member in workers):
                job.end_pass()
                self._export()
        if not workers and self._phase in ("survey", "training"):
            self._fail("every worker has left, and there is work to do: start a worker")

    def _summarised(self) -> None:
        job = self._job
        assert job is not None
        assert job.summary is not None
        log.info(
            "survey done: %s, summary of %.1f MB", f"{job.units:,} bytes", len(job.summary) / 1e6
        )
        job.begin_pass("train")
        self._phase = "training"
        self._answer_parked()
        for reply in self._parked_summaries:
            reply(messages.Summary(job.summary))
        self._parked_summaries.clear()

    def _lease(self, member: Member, pass_: str, reply: Reply) -> None:
        if self._job is None or self._job.ledger is None:
            raise ProtocolError("Lease: there is no job")
        self._parked_leases.append((member.number, pass_, reply))
        self._answer_parked()

    def _answer_parked(self) -> None:
        """Answers what can be answered; the rest waits for blocks that may come back."""
        job = self._job
        if job is None or job.ledger is None:
            return
        waiting, self._parked_leases = self._parked_leases, []
        for number, pass_, reply in waiting:
            member = self._members.get(number)
            if member is None:
                continue
            past = pass_ == "survey" and job.pass_ == "train"
            lease = None
            if pass_ == job.pass_ and not member.leaving and not self._interrupts:
                lease = job.lease(number)
            if lease is not None:
                member.waits = ""
                member.state = "counting" if pass_ == "survey" else "training"
                reply(lease)
            elif past or member.leaving or (pass_ == job.pass_ and job.ledger.over):
                member.waits = ""
                reply(messages.Leased(-1))
            else:
                others = [n for n in job.ledger.holders() if n != number]
                names = ", ".join(f"worker {n}" for n in others) or "its own last block"
                member.waits = f"for {names} to finish the last blocks"
                self._parked_leases.append((number, pass_, reply))

    def _done(self, member: Member, message: messages.Done, reply: Reply) -> None:
        assert self._job is not None
        if not self._job.done(message, member.number):
            raise ClusterError(f"block {message.number} is not leased to {member.name}")
        if message.seconds > 0:
            member.rate = message.units / message.seconds
        reply(messages.Ok())
        self._answer_parked()

    def _export(self) -> None:
        assert self._job is not None
        self._phase = "exporting"
        for member in self._nodes():
            member.state = "waiting for the export"
        self._stats_left = len(self._nodes("server"))
        for member in self._nodes("server"):
            self._server.call(member.peer, messages.Ask("stats"), self._last_stats(member))
        log.info("training done, exporting")
        self._in_side(self._run_export, self._exported)

    def _last_stats(self, member: Member) -> Callable[[messages.Message | SnailError], None]:
        def note(answer: messages.Message | SnailError) -> None:
            if isinstance(answer, messages.Report):
                member.stats = answer.data

        return note

    def _results(self) -> tuple[Results, Callable[[], None]]:
        """The tables, through a client of the master's own."""
        assert self._route is not None
        assert self._job is not None
        self._next_node += 1
        client = connect_shards(
            self._route,
            Role.MASTER,
            node=0,
            incarnation=self._next_node,
            job=self._life,
            timeout_s=self._settings.request_timeout,
        )
        results = Results(
            self._job.settings,
            self._job.summary or b"",
            dict(self._figures),
            client,
            {name: number for name, (number, _) in self._tables.items()},
            {name: table for name, (_, table) in self._tables.items()},
            [self._route.fragments_of(i).tolist() for i in range(len(self._route.shards))],
        )
        return results, client.close

    def _run_export(self) -> dict[str, Any]:
        assert self._job is not None
        if not self._job.settings.output:
            return {}
        begin = time.monotonic()
        results, close = self._results()
        try:
            figures = dict(self._job.cls.export(results))
        finally:
            close()
        return {**figures, "export_s": round(time.monotonic() - begin, 3)}

    def _exported(self, figures: dict[str, Any]) -> None:
        job = self._job
        assert job is not None
        self._figures = figures
        for path in figures.get("files", []):
            log.info("wrote %s", path)
        if self._session:
            self._collect_figures()
            self._phase = "idle"
            for member in self._nodes():
                member.state = "ready"
            self._job = None
            job.close()
        elif self._interrupts:
            share = job.ledger.progress if job.ledger else 0.0
            self._stop(
                EXIT_INTERRUPTED,
                f"interrupted after {share:.0%} of the training; what was learnt is saved",
            )
        else:
            self._stop(EXIT_OK, "")

    def _collect_figures(self) -> None:
        assert self._job is not None
        everyone = [m.figures for m in self._members.values()]
        sums = {
            key: float(sum(f.get(key, 0) for f in everyone))
            for key in ("bytes_in", "bytes_out", "peak_rss_mb")
        }
        sums["peak_rss_mb"] += peak_rss_mb()
        self._figures = {**self._job.figures(sums), **self._figures}
        servers = [m.stats for m in self._members.values() if m.role == "server"]
        shards = [shard for stats in servers for shard in stats.get("shards", [])]
        self._figures["rows"] = sum(shard.get("rows", 0) for shard in shards)
        self._figures["servers"] = len(servers)
        self._figures["workers"] = sum(m.role == "worker" for m in self._members.values())

    # --- beside the loop -------------------------------------------------------------------

    def _in_side(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Runs `work` in the side thread and `then(result)` here."""
        self._side, self._side_then = self._pool.submit(work), then

    def _check_side(self) -> None:
        if self._side is None or not self._side.done():
            return
        side, self._side = self._side, None
        try:
            result = side.result()
        except SnailError as error:
            self._fail(str(error))
            return
        except Exception as error:
            log.exception("the master's side thread failed")
            self._fail(explain(error))
            return
        if self._stop_at is None:
            self._side_then(result)

    def _ask_stats(self) -> None:
        for member in self._nodes("server"):
            self._server.call(member.peer, messages.Ask("stats"), self._last_stats(member))

    def _pushes(self) -> int:
        shards = [s for m in self._nodes("server") for s in m.stats.get("shards", [])]
        return int(sum(shard.get("pushes", 0) for shard in shards))

    def _check_backup(self) -> None:
        """Saves all tables once `param_backup_period` pushes came in since the last time."""
        if self._phase != "training" or self._job is None:
            return
        period = self._job.settings.param_backup_period
        if self._backup is not None and self._backup.done():
            error = self._backup.exception()
            if error is not None:
                log.error("backup failed, training goes on: %s", explain(error))
            self._backup = None
        pushes = self._pushes()
        if period and self._backup is None and pushes - self._pushes_saved >= period:
            self._pushes_saved = pushes
            self._backup = self._backup_pool.submit(self._run_backup, pushes)

    def _run_backup(self, pushes: int) -> None:
        assert self._job is not None
        folder = Path(self._job.settings.param_backup_root)
        folder.mkdir(parents=True, exist_ok=True)
        results, close = self._results()
        try:
            write_tables(folder / f"backup-{pushes:012d}.npz", results)
        finally:
            close()
        log.info("saved all tables after %s pushes to %s", f"{pushes:,}", folder)
        for old in sorted(folder.glob("backup-*.npz"))[:-2]:
            old.unlink()

    # --- the end ---------------------------------------------------------------------------

    def _interrupted(self) -> None:
        if self._stop_at is not None or self._phase in ("done", "failed"):
            return
        if self._interrupts > 1 or self._phase not in ("training", "exporting"):
            self._code = EXIT_INTERRUPTED
            self._fail(f"interrupted while {self._phase}; nothing was saved")
        elif self._phase == "training" and self._job is not None and self._job.ledger is not None:
            if not self._job.ledger.over:
                log.warning("interrupted: finishing the blocks at work, then saving")
            self._job.ledger.close()
            self._answer_parked()

    def _fail(self, text: str) -> None:
        if self._stop_at is not None:
            return
        self._failed = True
        log.debug("failed: %s", text)
        self._stop(EXIT_FAILED, text)

    def _stop(self, code: int, text: str) -> None:
        if self._stop_at is not None:
            return
        self._code, self._verdict = code, text
        self._stop_at = time.monotonic()
        self._phase = "stopping"
        for member in list(self._members.values()):
            member.state = "stopping"
            self._server.note(member.peer, messages.Stop(self._failed, text))
        for _, _, reply in self._parked_leases:
            reply(ClusterError(text or "the job is over"))
        self._parked_leases.clear()

    def _check_stopped(self, now: float) -> None:
        assert self._stop_at is not None
        open_ones = [m for m in self._members.values() if m.peer in self._server.peers]
        if open_ones and now - self._stop_at < GOODBYE_S:
            return
        for member in open_ones:
            log.warning("%s did not say goodbye within %.0f s", member.name, GOODBYE_S)
        if self._job is not None and not self._failed:
            self._collect_figures()
            self._write_log()
        self._phase = "failed" if self._failed else "done"

    def _check_pulses(self) -> None:
        limit_s = self._settings.heartbeat_timeout
        for number, silence_s in self._pulse.silences().items():
            member = self._members.get(number)
            if member is None:
                self._pulse.remove(number)
            elif limit_s < silence_s < float("inf") and self._stop_at is None:
                self._server.close_peer(member.peer)
                self._lose(member, f"silent for {silence_s:.0f} s (heartbeat_timeout)")

    def _on_pulse(self, hello: Hello, sock: Any) -> None:
        member = self._members.get(hello.node)
        if member is None or member.incarnation != hello.incarnation or hello.job != self._life:
            sock.close()
            return
        self._pulse.add(sock, member.number)

    def _on_lost(self, peer: Peer, why: str) -> None:
        if isinstance(peer.tag, Member):
            self._lose(peer.tag, why)

    def _lose(self, member: Member, why: str) -> None:
        """A node is gone: in good order after Bye or Leaving, else by the policy of the cluster."""
        if member.state == "gone":
            return
        self._pulse.remove(member.number)
        said_bye, member.state = member.state == "bye", "gone"
        if self._stop_at is not None:
            return
        if member.role == "driver":
            del self._members[member.number]
            if self._session:
                self._stop(EXIT_OK, "the driver is gone")
            return
        if member.role == "worker" and member.leaving and said_bye:
            del self._members[member.number]
            returned = (
                self._job.ledger.release(member.number) if self._job and self._job.ledger else []
            )
            log.info("%s left, %d blocks returned", member.name, len(returned))
            self._answer_parked()
            return
        what = "left (SIGTERM)" if member.leaving else f"is lost: {why}"
        self._fail(f"{member.name} {what}. Its own log says more; on_node_loss is 'stop'")

    # --- messages --------------------------------------------------------------------------

    def _on_message(self, peer: Peer, message: messages.Message, reply: Reply | None) -> None:
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
            self._register(peer, message, reply)
            return
        if isinstance(message, messages.Ask):
            reply(messages.Report(dict(self.status())))
            return
        member = peer.tag
        if not isinstance(member, Member):
            raise ProtocolError(f"{type(message).__name__} before Register")
        if isinstance(message, messages.Declare):
            self._declare(message, reply)
        elif isinstance(message, messages.Lease):
            self._lease(member, message.pass_, reply)
        elif isinstance(message, messages.Done):
            self._done(member, message, reply)
        elif isinstance(message, messages.Summarise):
            if self._job is not None and self._job.summary is not None:
                reply(messages.Summary(self._job.summary))
            else:
                member.waits = "for the master's merged survey"
                self._parked_summaries.append(reply)
        elif isinstance(message, messages.Fetch):
            if self._job is None:
                raise ProtocolError("Fetch: there is no job")
            member.waits = ""
            member.state = "reading through the master"
            reply(messages.Content(self._job.content(message.number, message.unit)))
        elif isinstance(message, messages.Submit):
            self._submit(message, reply)
        elif isinstance(message, messages.Shutdown):
            reply(messages.Ok())
            self._stop(EXIT_OK, "ended by the driver")
        else:
            raise ProtocolError(f"a master does not take {type(message).__name__}")

    def _on_note(self, peer: Peer, message: messages.Message) -> None:
        member = peer.tag
        if not isinstance(member, Member):
            raise ProtocolError(f"{type(message).__name__} before Register")
        if isinstance(message, messages.Finished):
            member.finished, member.figures, member.state = True, message.figures, "finished"
        elif isinstance(message, messages.Failed):
            self._fail(f"{member.name} failed: {message.text}")
        elif isinstance(message, messages.Leaving):
            log.info("%s: %s", member.name, message.why)
            if message.why == "SIGINT":
                self._interrupts += 1
            else:
                self._leave(member)
        elif isinstance(message, messages.Bye):
            member.figures = {**member.figures, **message.figures}
            member.state = "bye"
        else:
            raise ProtocolError(f"a master does not take {type(message).__name__} as a note")

    def _leave(self, member: Member) -> None:
        member.leaving = True
        if member.role == "server":
            self._fail(
                f"{member.name} was told to leave (SIGTERM), and its rows would go with it: "
                "on_node_loss is 'stop'"
            )
        elif self._phase not in ("survey", "training"):
            self._server.note(member.peer, messages.Stop(False, "left as asked"))
        self._answer_parked()

    def _declare(self, message: messages.Declare, reply: Reply) -> None:
        wanted = [Table.from_dict(item) for item in message.tables]
        fresh: list[tuple[int, Table]] = []
        for table in wanted:
            number, known = self._tables.get(table.name, (0, table))
            if known != table:
                raise ConfigError(
                    f"table {table.name!r} is declared in two ways: {known} and {table}"
                )
            if number == 0:
                number = len(self._tables) + 1
                if number > TABLES_MAX:
                    raise ConfigError(f"more than {TABLES_MAX} tables")
                self._tables[table.name] = (number, table)
            fresh.append((number, table))
        numbers = [number for number, _ in fresh]
        servers = self._nodes("server")
        left = {member.number for member in servers}
        order = messages.MakeTables([[number, table.to_dict()] for number, table in fresh])

        def made(member: Member) -> Callable[[messages.Message | SnailError], None]:
            def note(answer: messages.Message | SnailError) -> None:
                if isinstance(answer, SnailError):
                    reply(ClusterError(f"{member.name} cannot make the tables: {answer}"))
                    return
                left.discard(member.number)
                if not left:
                    reply(messages.Declared(numbers))

            return note

        for member in servers:
            self._server.call(member.peer, order, made(member))

    def _submit(self, message: messages.Submit, reply: Reply) -> None:
        if not self._session or self._phase != "idle" or self._job is not None:
            raise ClusterError(f"this cluster takes no job now: it is {self._phase}")
        raw = RawConfig.from_mapping(message.settings, "the submitted job")
        job = Job(raw)
        job.prepare(len(self._nodes("worker")))
        self._job = job
        self._figures = {}
        self._begin_job()
        reply(messages.Ok())

    # --- telling ---------------------------------------------------------------------------

    def status(self) -> Status:
        """A picture of the run as it is now."""
        job = self._job
        ledger = job.ledger if job is not None else None
        blocks: BlockCounts = {"left": 0, "leased": 0, "done": 0}
        if ledger is not None:
            blocks = {
                "left": ledger.size - ledger.finished - ledger.leased,
                "leased": ledger.leased,
                "done": ledger.finished,
            }
        waiting = ""
        if self._phase == "forming":
            waiting = self._missing() if self._route is None else "nodes to take the route"
        return {
            "phase": self._phase,
            "waiting_for": waiting,
            "progress": ledger.progress if ledger is not None else 0.0,
            "pass_": job.pass_ if job is not None else "",
            "unit": job.cls.counts if job is not None else "examples",
            "units": job.units if job is not None else 0,
            "units_per_s": job.rate() if job is not None and ledger is not None else 0.0,
            "loss": job.loss if job is not None else None,
            "lr": job.lr if job is not None else None,
            "eta_s": None,
            "elapsed_s": time.monotonic() - self._begun,
            "blocks": blocks,
            "nodes": [self._node_status(member) for member in self._members.values()],
            "message": self._verdict,
            "figures": dict(self._figures),
        }

    def _node_status(self, member: Member) -> NodeStatus:
        return {
            "role": member.role,
            "id": member.number,
            "host": member.host,
            "pid": member.pid,
            "state": member.state,
            "waits": member.waits,
            "rate": member.rate,
        }

    def _tell_status(self) -> None:
        self._on_status(self.status())

    def _open_log(self, path: str) -> None:
        try:
            self._log_file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise ConfigError(f"json_log: cannot write {path}: {error.strerror}") from None

    def _write_log(self) -> None:
        if self._log_file is None:
            return
        status = self.status()
        record = {"time": time.time(), **{k: v for k, v in status.items() if k != "nodes"}}
        try:
            self._log_file.write(json.dumps(record) + "\n")
            self._log_file.flush()
        except OSError as error:
            log.error("json_log: cannot write: %s; no more records", error.strerror)
            self._log_file = None
