"""Examines one host for `snailps doctor`: checks it, finds other hosts, measures the connections.

    settings -> checks -> findings          master_addr -> Examine -> peers -> Probe -> ways

If no master runs, the doctor on the master's host listens at the master's address, and there the
doctors of other hosts find each other.  Each doctor listens where a server would.  A later doctor
connects to every earlier one, which connects back, so that ports are tried in both directions.  If
a master runs, a doctor checks the connections to it and its servers, without measuring bandwidth,
which would disturb the job.

Trains nothing and writes no result.  For the checkpoints' disk the doctor at the master's address
makes an empty file beside their folder, for which the others look; it removes the file at its end.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from snailps.abi.numa import numa_nodes
from snailps.abi.quota import cores
from snailps.api.tables import Table, Tensor
from snailps.api.worker import Worker
from snailps.config import MasterSettings, ServerSettings, effective_shard_num, parse_addr
from snailps.config.consistency import steps_of
from snailps.dataclass import asdict, dataclass, field
from snailps.errors import ConfigError, ConnectionLost, ProtocolError, RemoteError, SnailError
from snailps.master.checkpoint_files import folder_of
from snailps.master.takeover import check_results, journal_at
from snailps.node import checks
from snailps.node.checks import Finding
from snailps.node.probe_service import PROBE_BYTES, ProbeService, facts_of_host
from snailps.node.process import advertised, open_listener, raise_descriptors
from snailps.node.run_registry import trust_at
from snailps.outward import outward
from snailps.transport import messages
from snailps.transport.control import Address, ControlClient, ControlServer, listen, show, visit
from snailps.transport.handshake import Role
from snailps.transport.security.tls import Tls
from snailps.transport.security.trust import Trust

SKEW_S = 1.0
"""Clocks that differ by more give a warning: logs of several hosts are hard to compare."""
EXPIRES_S = 30 * 86400.0
"""A certificate that is valid for less gives a warning."""
SKEW_BAD_S = 30.0
"""Clocks that differ by more are an error: certificates may seem not valid yet."""
ROUND_TRIPS = 20
SECONDS = 0.4
"""Duration of a measurement of bandwidth, each way."""
OPEN_PROBES = 4
BUSY = 0.5
"""If this process ran, or waited for a core, for more than this share of a measurement, its own
host limited the bandwidth: then a slow connection is a note, else a warning."""
ANSWER_S = 10.0
STEP_S = 0.05
SLOW_BYTES_PER_S = 30e6
"""A quarter of 1 Gbit/s: below it a job waits for the network, even with `wire: float16`."""


@dataclass(slots=True)
class HostConnection:
    """Measurements of the connection to another host: seconds, and bytes/s (0: not measured)."""

    to: str
    address: str
    rtt_s: float
    skew_s: float = 0.0
    up_bytes_per_s: float = 0.0
    down_bytes_per_s: float = 0.0


@dataclass(slots=True)
class Diagnosis:
    """Findings of this host, measurements from here, and findings of the other hosts' doctors."""

    facts: dict[str, Any]
    findings: list[Finding] = field(default_factory=list)
    ways: list[HostConnection] = field(default_factory=list)
    others: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether no host has an error."""
        levels: list[str] = [finding.level for finding in self.findings]
        for findings in self.others.values():
            levels += [finding["level"] for finding in findings]
        return "error" not in levels

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


class Doctor:
    """Examines this host.

    `settings` and `server` come from the same file; `model` is the job's worker class with its
    settings.  `wait_s` limits the wait for doctors of other hosts, which ends early when `hosts`
    are examined (0: unknown number).  `rows` is the expected number per table (0: unknown).
    `clock` gives seconds since 1970.
    """

    def __init__(
        self,
        settings: MasterSettings,
        server: ServerSettings,
        model: tuple[type[Worker], Any] | None = None,
        *,
        wait_s: float = 10.0,
        hosts: int = 0,
        rows: int = 0,
        on_finding: Callable[[Finding], None] = lambda finding: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._server, self._model = settings, server, model
        self._wait_s, self._hosts, self._rows = wait_s, hosts, rows
        self._on_finding, self._clock = on_finding, clock
        self._trust = Trust()
        self._master = parse_addr(settings.master_addr, "master_addr")
        self._until = 0.0
        self.diagnosis = Diagnosis(facts_of_host(clock))
        self._token: Path | None = None
        self.newest_refusal: Callable[[], str] = str  # the newest refusal of the present listener

    def run(self) -> Diagnosis:
        """Run all checks until the other hosts are examined, or `wait_s` is over."""
        raise_descriptors()
        self._until = time.monotonic() + self._wait_s
        try:
            self._look_here()
            errors = {f.check for f in self.diagnosis.findings if f.level == "error"}
            if not errors & _FATAL:
                self.look_around()
        finally:
            self._trust.close()
            if self._token is not None:
                self._token.unlink(missing_ok=True)
        return self.diagnosis

    def add(self, *findings: Finding) -> None:
        for finding in findings:
            self.diagnosis.findings.append(finding)
            self._on_finding(finding)

    @property
    def _is_masters(self) -> bool:
        return checks.is_own(self._master[0])

    # --- this host -----------------------------------------------------------------------------

    def _look_here(self) -> None:
        facts, settings = self.diagnosis.facts, self._settings
        text = f"snailps {facts['version']}, wire format {facts['wire']}, Python {facts['python']}"
        self.add(Finding("ok", "version", text))
        self.add(*checks.check_kernels(), *checks.check_numa(numa_nodes()))
        name = checks.check_name(settings.master_addr, "master_addr")
        self.add(*name)
        if not any(finding.level == "error" for finding in name):
            self.add(*checks.check_interface(settings))
        try:
            self._trust = trust_at(settings.master_addr, settings)
            if self._trust.tls is not None:
                self.check_tls(self._trust.tls)
        except ConfigError as error:
            self.add(Finding("error", "tls" if settings.tls else "secret", str(error)))
        shards = effective_shard_num(self._server, cores())[0]
        self.add(*checks.check_port_range(settings, shards))
        nodes = settings.expected_node_num
        self.add(*checks.check_files(max(2 * nodes, shards * nodes), bool(settings.tls)))
        self.look_at_job()

    def look_at_job(self) -> None:
        servers = max(1, self._settings.expected_servers)
        replicated = self._settings.replication != "none"
        tables = self._tables()
        self.add(*checks.check_memory(tables, self._rows, servers, replicated=replicated))
        if self._model is None:
            return
        job = self._model[1]
        self.add(*checks.check_input(job.input, master=self._is_masters))
        if self._is_masters:
            self._check_results()
        if job.saves_checkpoints or job.checkpoint_dir:
            each = self._rows * sum(checks.row_bytes(tables).values())
            self.add(*checks.check_disk(folder_of(job), each, job.checkpoints_kept))

    def _check_results(self) -> None:
        """Check whether the master could write the result, and would not replace another one."""
        assert self._model is not None
        cls, job = self._model
        findings = checks.check_result(job.output)
        journal = journal_at(self._settings, job.output)
        try:
            check_results(cls, job, takes_over=journal is not None and journal.exists())
        except ConfigError as error:
            findings = [Finding("error", "output", str(error))]
        self.add(*findings)

    def check_tls(self, tls: Tls) -> None:
        """Check whether the members of this cluster would accept this host's certificate."""
        try:
            name, ends = tls.check()
        except ConfigError as error:
            self.add(Finding("error", "tls", str(error)))
            return
        left_s = ends - self._clock()
        day = time.strftime("%Y-%m-%d", time.gmtime(ends))
        text = f"the certificate of {name} is signed by the CA beside it, and valid until {day}"
        level: checks.Level = "ok" if left_s > EXPIRES_S else "warning"
        self.add(Finding(level, "tls", text, "" if level == "ok" else "replace it by then"))

    def _tables(self) -> list[Table]:
        """List the job's tables; empty if they depend on the input, which is not read here."""
        if self._model is None:
            return []
        cls, settings = self._model
        try:
            declared = cls(settings, 1).tables()
            return [table.table() if isinstance(table, Tensor) else table for table in declared]
        except Exception:  # a user's model may need the survey of the input first
            return []

    def _leave_token(self) -> str:
        """Make a file beside the checkpoints, to test whether other hosts see the same disk.

        Returns its name; empty if the job writes no checkpoints, or the file cannot be made.
        """
        job = self._model[1] if self._model is not None else None
        if job is None or not job.saves_checkpoints:
            return ""
        folder = folder_of(job)
        token = folder.parent / f".snailps-doctor-{os.urandom(8).hex()}"
        with contextlib.suppress(OSError):
            token.touch()
            self._token = token
            return token.name
        return ""

    def _check_token(self, token: str) -> None:
        if not token or self._model is None or "/" in token:
            return
        folder = folder_of(self._model[1]).parent
        if (folder / token).exists():
            self.add(Finding("ok", "disk", f"{folder} is the folder that the master's host sees"))
            return
        text = f"{folder} is missing, or not the folder that the master's host sees"
        cure = "checkpoints need one disk that the master and all servers see under one path"
        self.add(Finding("error", "disk", text, cure))

    # --- the others ----------------------------------------------------------------------------

    def look_around(self) -> None:
        if self._wait_s >= 1:
            text = (
                f"looking for the master and doctors of other hosts, {self._wait_s:.0f} s at most"
            )
            cure = "--wait SECONDS and --hosts NUMBER shorten the wait"
            self.add(Finding("note", "reach", text, cure))
        try:
            if self._is_masters:
                with contextlib.suppress(ConnectionLost):
                    self._stand_in()
                    return
            with self._listening(None) as service:
                self._visit(self._master, "the master", service, stay=True)
        except SnailError as error:
            self.add(Finding("error", "port", str(error)))

    def _stand_in(self) -> None:
        """Listen at the master's address in its place; `ConnectionLost` if a master is there."""
        with self._listening(self._own_address()) as service:
            service.token = self._leave_token()
            here = f"no master listens at {self._settings.master_addr} yet"
            self.add(Finding("ok", "port", f"{here}: the port is free for it"))
            self.wait_for_others(service)

    def _own_address(self) -> Address:
        address = self._settings.listen_addr or self._settings.master_addr
        host, port = parse_addr(address, "listen_addr", port_optional=True)
        return host, port or self._master[1]

    @contextlib.contextmanager
    def _listening(self, where: Address | None) -> Any:
        """Run a probe service in a thread; `where` None: where a server would listen."""
        listener = (
            listen(*where, self._trust) if where else open_listener(self._settings, self._trust)
        )
        service = ProbeService("doctor", True, self._clock)
        service.address = advertised(self._settings, listener)
        server = ControlServer(
            listener,
            role=Role.DRIVER,
            trust=self._trust,
            job=0,
            on_message=lambda peer, message, reply: _handle(server, service, peer, message, reply),
            on_lost=lambda peer, why: service.forget(peer),
            on_pulse=lambda hello, sock: sock.close(),
        )
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                server.step(STEP_S)
                service.step()

        self.newest_refusal = lambda: server.refused
        thread = threading.Thread(target=serve, name="snailps-doctor", daemon=True)
        thread.start()
        try:
            yield service
        finally:
            stop.set()
            thread.join()
            server.close()

    def wait_for_others(self, service: ProbeService) -> None:
        """Serve doctors of other hosts until all expected ones are examined, or time is over."""
        wanted = max(0, self._hosts - 1)
        while time.monotonic() < self._until + (ANSWER_S if _unfinished(service) else 0.0):
            done = [v for v in list(service.visitors.values()) if v.findings is not None]
            if (self._hosts and len(done) >= wanted) and not any(v.here for v in done):
                break
            threading.Event().wait(STEP_S)
        for visitor in service.visitors.values():
            name = outward(f"{visitor.facts.get('host', '?')} ({visitor.facts.get('pid', '?')})")
            if visitor.findings is None:
                text = f"{name} connected and did not finish"
                self.add(Finding("warning", "reach", text, "see the output of its own doctor"))
            else:
                self.diagnosis.others[name] = [_finding_of(f) for f in visitor.findings]
        count = len(service.visitors)
        if refused := self.newest_refusal():
            level: checks.Level = "error" if count < wanted else "warning"
            cure = "use the same secret and CA on all hosts; that host's own doctor says more"
            self.add(Finding(level, "handshake", refused, cure))
        if count < wanted or not (count or self._hosts):
            text = f"{count} doctors of other hosts connected within {self._wait_s:.0f} s"
            cure = "connections between hosts are untested: run it on all hosts at the same time"
            self.add(Finding("warning" if self._hosts else "note", "reach", text, cure))

    def _visit(
        self, address: Address, name: str, service: ProbeService, *, stay: bool = False
    ) -> None:
        """Check the connection to a master or another doctor.

        `stay`: remain there until all hosts are examined, so that later doctors find this one.
        """
        left_s = max(1.0, self._until - time.monotonic()) if stay else checks.REACH_S
        try:
            control = visit(address, left_s, self._trust, peer_name=name)
        except SnailError as error:
            self.add(self._no_way(address, name, error))
            return
        with contextlib.closing(control):
            try:
                self._exchange(control, address, name, service, stay=stay)
            except SnailError as error:
                self.add(Finding("error", "reach", f"{name} at {show(address)}: {error}"))

    def _no_way(self, address: Address, name: str, error: SnailError) -> Finding:
        """Find out whether the network failed, or the process at that address refused."""
        reach = checks.check_reach(address, name)
        if reach.level != "ok":
            return reach
        if checks.is_own(address[0]) and not isinstance(error, ProtocolError | RemoteError):
            return checks.port_in_use(address)
        cure = "use the same version, secret and tls everywhere; check which process listens there"
        return Finding("error", "handshake", f"{name} at {show(address)}: {error}", cure)

    def _exchange(
        self,
        control: ControlClient,
        address: Address,
        name: str,
        service: ProbeService,
        *,
        stay: bool,
    ) -> None:
        endpoint, facts = list(service.address), facts_of_host(self._clock)
        answer = control.call(messages.Examine(endpoint, facts), ANSWER_S)
        assert isinstance(answer, messages.Report)
        remote = outward(answer.data)
        if stay and remote["what"] == "doctor":
            name = f"the master's host, {remote['host']}"
        where = show(address)
        self.add(Finding("ok", "reach", f"{name} at {where} is reachable"))
        if remote["back"]:
            cure = (
                f"open TCP port {endpoint[1]} of this host in its firewall (port_range chooses "
                "the ports)"
            )
            self.add(Finding("error", "reach back", remote["back"], cure))
        else:
            back = f"{remote['host']} reaches this host at {show(service.address)}"
            self.add(Finding("ok", "reach back", back))
        self._compare(remote, name)
        self._check_token(str(remote.get("token", "")))
        self.add(*self._measure(control, name, where, remote["what"] == "doctor"))
        for peer_name, (host, port) in remote["peers"]:
            if str(peer_name).startswith("server"):
                self.add(checks.check_reach((host, port), str(peer_name)))
            else:
                self._visit((host, port), str(peer_name), service)
        if stay and remote["what"] == "doctor":
            findings = [asdict(finding) for finding in self.diagnosis.findings]
            control.note(messages.Examined(findings))
            self._stay(control)

    def _stay(self, control: ControlClient) -> None:
        """Stay connected until all hosts are examined, so that later doctors can connect back."""
        while time.monotonic() < self._until:
            try:
                answer = control.call(messages.Probe(0), ANSWER_S)
            except SnailError:
                return  # the master's host has ended
            done = answer.data["examined"] if isinstance(answer, messages.Report) else 0
            if self._hosts and done >= self._hosts - 1:
                return
            threading.Event().wait(STEP_S)

    def _compare(self, remote: dict[str, Any], name: str) -> None:
        """Compare another host's facts with this one's.

        Another version is an error.  Other kernels differ in the last bits of results: a warning if
        the job promises equal bits (`bsp`), else a note.
        """
        local = self.diagnosis.facts
        if remote["version"] != local["version"]:
            text = f"snailps {local['version']} here, {remote['version']} at {name}"
            self.add(Finding("error", "version", text, "install the same version on every host"))
        if remote["kernels"] != local["kernels"]:
            job = self._model[1] if self._model is not None else None
            promises_bits = job is not None and steps_of(job).are_sums
            text = f"kernels {local['kernels']} here, {remote['kernels']} at {name}"
            cure = "set SNAILPS_KERNELS to one that all can run: results differ in the last bits"
            level: checks.Level = "warning" if promises_bits else "note"
            self.add(Finding(level, "kernels", text, cure if promises_bits else ""))

    def _measure(
        self, control: ControlClient, name: str, where: str, moves: bool
    ) -> Sequence[Finding]:
        """Measure round trip and clock difference, and bandwidth if the other side is a doctor."""
        best = (float("inf"), 0.0)
        for _ in range(ROUND_TRIPS):
            begin, sent = time.perf_counter(), self._clock()
            answer = control.call(messages.Probe(0), ANSWER_S)
            took = time.perf_counter() - begin
            if isinstance(answer, messages.Report):
                best = min(best, (took, float(answer.data["time"]) - (sent + took / 2)))
        rtt_s, skew_s = best
        way = HostConnection(name, where, rtt_s, skew_s)
        clock = _clock_finding(skew_s, name)
        text = f"round trip to {name} {rtt_s * 1e3:.2f} ms"
        level: checks.Level = "ok"
        cure = ""
        if moves:
            blob = os.urandom(PROBE_BYTES)
            begin, begin_s = time.perf_counter(), _runnable_s()
            way.up_bytes_per_s = _rate(control, messages.Probe(0, blob))
            way.down_bytes_per_s = _rate(control, messages.Probe(PROBE_BYTES))
            busy = (_runnable_s() - begin_s) / (time.perf_counter() - begin)
            slower = min(way.up_bytes_per_s, way.down_bytes_per_s)
            text += (
                f", at least {way.up_bytes_per_s / 1e6:,.0f} MB/s there and "
                f"{way.down_bytes_per_s / 1e6:,.0f} MB/s back"
            )
            if slower < SLOW_BYTES_PER_S and busy > BUSY:
                text += ", measured while this host was busy"
                level, cure = "note", "try again when it is idle"
            elif slower < SLOW_BYTES_PER_S:
                level = "warning"
                cure = "below a quarter of 1 Gbit/s: if both hosts are idle, it is the network"
        self.diagnosis.ways.append(way)
        return [clock, Finding(level, "way", text, cure)]


_FATAL = {"name", "interface", "secret", "tls"}
"""If one of these checks fails, no other host can be reached: the search for them is skipped."""


def _handle(
    server: ControlServer, service: ProbeService, peer: Any, message: messages.Message, reply: Any
) -> None:
    try:
        is_doctors = service.handle(peer, message, reply)
    except ProtocolError as error:
        if reply is None:
            raise
        reply(error)
        return
    if not is_doctors:
        # A node that dials its master.  It will retry, and then the master may be there.
        server.close_peer(peer)


def _unfinished(service: ProbeService) -> bool:
    return any(v.here and v.findings is None for v in list(service.visitors.values()))


def _finding_of(finding: Any) -> dict[str, str]:
    fields = ("level", "check", "text", "cure")
    return {
        name: outward(str(finding.get(name, ""))) if isinstance(finding, dict) else ""
        for name in fields
    }


def _clock_finding(skew_s: float, name: str) -> Finding:
    text = f"clock {abs(skew_s):.3f} s {'behind' if skew_s > 0 else 'ahead of'} {name}"
    if abs(skew_s) < SKEW_S:
        return Finding("ok", "clock", text)
    level: checks.Level = "warning" if abs(skew_s) < SKEW_BAD_S else "error"
    return Finding(level, "clock", text, "set the clocks by NTP (chrony, systemd-timesyncd)")


def _runnable_s() -> float:
    """Return the seconds for which threads of this process have run or waited for a core."""
    total_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            total_ns += sum(int(field) for field in path.read_text().split()[:2])
    return total_ns / 1e9


def _rate(control: ControlClient, probe: messages.Probe) -> float:
    """Measure bytes per second of probes, with `OPEN_PROBES` of them in flight."""
    size, moved = max(len(probe.blob), probe.size), 0
    begin = time.perf_counter()
    under_way = deque(control.call_async(probe) for _ in range(OPEN_PROBES))
    while under_way:
        control.result(under_way.popleft(), ANSWER_S, "Probe")
        moved += size
        if time.perf_counter() - begin < SECONDS:
            under_way.append(control.call_async(probe))
    return moved / (time.perf_counter() - begin)
