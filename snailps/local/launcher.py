"""Owns the child processes of a cluster on this machine: starts, watches, restarts and ends them.

    RawConfig -> Document -> Launcher.start -> master, servers, workers -> lines of standard error

No child outlives this process, however it ends.  Must not send them messages: it knows only their
exit codes and lines.  All children start at once, because imports take most of the time.  Each
reads a `Document`, the settings and the secret, from a pipe; servers and workers get theirs when
the master listens, as it has the master's address.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import IO, Any, Union

from snailps.abi.numa import ANYWHERE, cpus_of_workers, numa_nodes
from snailps.config import Document, RawConfig
from snailps.config.addresses import format_addr, parse_addr
from snailps.dataclass import dataclass, field
from snailps.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_STOPPED,
    EXIT_WRONG,
    ClusterError,
)
from snailps.local.fork import may_fork, start
from snailps.local.fork_server import Forked
from snailps.master.life import COMMAND, Life
from snailps.node.limits import END_S
from snailps.node.phrases import NAME_MARK, OWN_ERROR
from snailps.transport._awake import awake_s

LOOK_S = 0.1
OWN_CODES = (EXIT_OK, EXIT_FAILED, EXIT_WRONG, EXIT_STOPPED, EXIT_INTERRUPTED)
RESTARTS_MAX = 3
"""A process that is killed more often than this is not started again."""
LEAVE_S = 1.0
"""Seconds for a node to end after the master, after SIGTERM, or after its connection closed."""
HELD_MAX = 1000
"""Lines that are kept of a job that shows none, until its end is known."""
LAST_MAX, LAST_CHARS = 3, 500
"""Newest lines that are kept of each process, for its obituary, and characters of each."""
SEND_S = 60.0
"""Limit for a child to read more of its settings, which it does once its modules are imported; then
the start fails with a `ClusterError`."""
READ_S = 5.0
"""Limit for reading the last lines of processes that have ended."""
NO_FILES: Mapping[str, int] = MappingProxyType({})
Process = Union["subprocess.Popen[str]", Forked]


class MasterEnded(ClusterError):
    """The master ended before the cluster had begun; `exit_code` is the master's."""

    def __init__(self, code: int, why: str = "") -> None:
        super().__init__(why or "the master could not start")
        self.exit_code = code


class NodeEnded(ClusterError):
    """A server or worker ended before it joined; `exit_code` is that process's."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.exit_code = code if code > 0 else 1


@dataclass(eq=False, slots=True)
class Child:
    """One process of the cluster.

    `held` are a node's last lines, from its own error on.  They are shown only if the master
    reports nothing, because it usually reports the same.  `failed`: it wrote its own error.
    `silent`: it was asked to end, so its later lines are dropped.  `again`: it replaced a killed
    process.  `raised`: the session has raised its job's failure.  `given_name`: its name at the
    master, known once it has joined.
    """

    role: str
    process: Process
    cpus: frozenset[int] = ANYWHERE
    reader: threading.Thread | None = None
    taker: threading.Thread | None = None
    held: list[str] = field(default_factory=list)
    failed: bool = False
    silent: bool = False
    again: bool = False
    raised: bool = False
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_MAX))
    given_name: str = ""

    @property
    def name(self) -> str:
        """Name in messages: ``server 2`` once the master has numbered it, until then by process."""
        if self.role == "master":
            return "the master"
        return self.given_name or f"{self.role} (process {self.process.pid})"

    def end_reading(self, until: float) -> None:
        """Read the rest of an ended child's pipes, until the monotonic time `until`.

        A limit is needed: a process that the model has started may keep the pipes open.
        """
        process = self.process
        for thread, stream in ((self.reader, process.stderr), (self.taker, process.stdout)):
            if thread is not None:  # the thread closes the stream; closing it here would block
                thread.join(max(0.0, until - awake_s()))
            elif stream is not None:
                stream.close()


class ChildLines:
    """Passes the children's lines to the display, or holds them.  Thread-safe.

    The lines of a job that shows none are held until its end is known: the error of a failed job
    contains the important ones, and lines may arrive after that error.  `may_hold` is false if the
    user has asked for a log.
    """

    def __init__(self, show: Callable[[str, str], None]) -> None:
        self.may_hold = False
        self._show = show
        self._lock = threading.Lock()
        self._held: deque[tuple[str, str]] | None = None

    def take(self, name: str, line: str) -> None:
        with self._lock:
            if self._held is not None:
                self._held.append((name, line))
                return
        self._print(name, line)

    def hold(self) -> None:
        """Hold the newest lines from now on, without the ones held so far."""
        with self._lock:
            self._held = deque(maxlen=HELD_MAX) if self.may_hold else None

    def drop(self) -> None:
        with self._lock:
            self._held = deque(maxlen=0) if self.may_hold else None

    def release(self) -> None:
        """Show the held lines, and all later ones."""
        with self._lock:
            held, self._held = self._held, None
        for name, line in held or ():
            self._print(name, line)

    def _print(self, name: str, line: str) -> None:
        """Show a line, or drop it if the log is closed: the reading thread must go on, because a
        child blocks when its pipe is full."""
        with contextlib.suppress(Exception):
            self._show(name, line)


class Launcher:
    """Starts and ends the processes of a cluster on this machine; used from one thread.

    That thread must live as long as the cluster: the kernel ends a child with the thread that
    started it.

    Its life (`master/life.py`) says whose jobs the master runs. `revives`: a process that a
    signal has killed is started again (a master continues from its journal; a worker or server
    replaces the lost one). `main` is the command ``snailps``: with it, children are forks, as
    long as this process has a single thread; otherwise they are new Python processes. `called`
    is the command line that `snailps jobs` shows to continue. ``on_line(child name, line)``
    gets each line that a child writes to standard error.
    """

    def __init__(
        self,
        raw: RawConfig,
        *,
        servers: int,
        workers: int,
        config: str | None = None,
        life: Life = COMMAND,
        revives: bool = False,
        main: Callable[[], None] | None = None,
        called: str = "",
        on_line: Callable[[str, str], None] = lambda name, line: None,
    ) -> None:
        self._called = called
        self._restarts_max = RESTARTS_MAX if revives and life.outlives_drivers else 0
        self._deaths: dict[int, int] = {}  # by index: signals that ended it
        self._config = config
        self._servers, self._workers, self._life = servers, workers, life
        self.lines = ChildLines(on_line)
        self._main, self.on_line = main, self.lines.take
        self.children: list[Child] = []
        self.address = ""
        self.secret = secrets.token_hex(32).encode()
        size = {"expected_node_num": servers + workers, "expected_servers": servers}
        raw = raw.merged(RawConfig.from_mapping(size, "--set {key}"))
        self._raw, self._document = raw, Document(raw, self.secret)
        self._port: socket.socket | None = None  # see `keep_port`
        self.source_key = ""
        self.output = ""  # the standard output of a master that has ended: its JSON figures
        self._interrupted = False

    def start(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Start all processes, and send nodes the master's address when it listens.

        `give_up` is polled until then; if it returns True, the master is asked to end, the others
        end by themselves, and `address` stays empty.  Raises `MasterEnded` if the master ends
        first.  After a `ClusterError`, `children` has the processes that did start: call `end`.
        """
        nodes = [("server", ANYWHERE)] * self._servers
        nodes += [("worker", cpus) for cpus in cpus_of_workers(self._workers, numa_nodes())]
        if self._main is not None and not may_fork():
            self._main = None
        if self._main is not None:
            gc.freeze()  # a collection in a fork would touch, and so copy, all these pages
        with contextlib.ExitStack() as pipes:
            try:
                ready = self._spawn_master(self.keep_port(), pipes, give_up)
                writers = [self.spawn(role, pipes, cpus=cpus) for role, cpus in nodes]
            except OSError as error:
                raise ClusterError(
                    f"process {len(self.children) + 1} of {len(nodes) + 1} cannot be started: "
                    f"{error.strerror or error}. Check the limits of processes and open files "
                    "(ulimit -u, -n), and free memory"
                ) from error
            for child in self.children:  # threads only after the forks, which need one thread
                self.listen_to(child)
            address = self._hear_address(ready, give_up)
            if address is None:
                return
            self.address, _, self.source_key = address.partition(" ")
            for child, pipe in zip(self.children[1:], writers, strict=True):
                self._send_address(child.role, pipe, give_up)
        if not self.address:
            self.wait(END_S)
            raise MasterEnded(self.poll() or 1)

    def keep_port(self) -> dict[str, str]:
        """Reserve an address for a master that may have to be restarted; as settings of it.

        A socket that is bound and never listens keeps the kernel from giving the port to another
        process while no master listens.
        """
        entry = self._raw.explicit("listen_addr")
        if not self._restarts_max or entry is None or self._raw.explicit("port_range"):
            return {}
        host, port = parse_addr(entry.value, "listen_addr", port_optional=True)
        if port:
            return {}
        with contextlib.suppress(OSError):  # the master itself will report what is wrong
            family, kind, proto, _, where = socket.getaddrinfo(
                host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._port = socket.socket(family, kind, proto)
            self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._port.bind(where)
            return {"listen_addr": format_addr(host, self._port.getsockname()[1])}
        return {}

    def _spawn_master(
        self, own: Mapping[str, str], pipes: contextlib.ExitStack, give_up: Callable[[], bool]
    ) -> IO[bytes]:
        """Start a master; return the pipe to which it will write its address."""
        if self._life.drivers_work:
            # Only processes of this user can connect, so any module is allowed.
            own = {"modules": "*", **own}
        ready, ready_write = managed_pipe(pipes)
        more: dict[str, Any] = {
            "config": self._config, "session": self._life.drivers_work,
            "with_driver": not self._life.outlives_drivers,
            "called": self._called, "as_json": self._prints_figures,
        }  # fmt: skip
        pipe = self.spawn("master", pipes, {"ready_fd": ready_write.fileno()}, **more)
        self.send_settings("master", pipe, own, give_up)
        ready_write.close()
        return ready

    def _hear_address(self, ready: IO[bytes], give_up: Callable[[], bool]) -> str | None:
        """Wait for a master's address; empty if the master has ended, None after giving up."""
        while not _ready(ready.fileno(), LOOK_S):
            if give_up():
                self.interrupt()
                return None
        return ready.readline().decode().strip()

    def _send_address(
        self, role: str, pipe: IO[bytes], give_up: Callable[[], bool] = lambda: False
    ) -> None:
        own = {"master_addr": self.address}
        if role == "worker" and self._life.drivers_work:
            # The master takes source of its driver only.
            own["accept_source"] = "true"
        if self.address:
            self.send_settings(role, pipe, own, give_up)

    def send_settings(
        self, role: str, pipe: IO[bytes], own: Mapping[str, str], give_up: Callable[[], bool]
    ) -> None:
        """Send a child its document.

        A pipe holds 64 KiB until the child reads, so the wait has a limit: `ClusterError` if the
        child takes no byte for `SEND_S` seconds.
        """
        unsent, file = memoryview(self._document.dump(own)), pipe.fileno()
        os.set_blocking(file, False)
        with contextlib.suppress(BrokenPipeError), pipe:  # the child has ended
            until = awake_s() + SEND_S
            while unsent and not give_up():
                if _ready(file, LOOK_S, select.POLLOUT):
                    unsent = unsent[os.write(file, unsent) :]
                    until = awake_s() + SEND_S
                elif awake_s() > until:
                    raise ClusterError(
                        f"the {role} does not read its settings: {len(unsent):,} bytes of them "
                        f"were not taken within {SEND_S:.0f} s. Is the process stopped, or does "
                        "the disk hang from which it starts?"
                    )

    def restart_killed(
        self, indices: Iterable[int], give_up: Callable[[], bool] = lambda: False
    ) -> bool:
        """Restart processes that a signal has ended; return whether all `indices` run now.

        Also nodes that the user's code has ended by `os._exit`, which shows by their exit code.
        Not a single server: its rows are lost, so the job cannot continue.
        """
        all_run = True
        for index in indices:
            dead, deaths = self.children[index], self._deaths.get(index, 0)
            code = dead.process.poll()
            if code is None:
                continue
            is_single = dead.role == "server" and self._servers == 1
            if code in OWN_CODES or (code > 0 and not index) or is_single or not self.address:
                all_run = False
                continue
            self._deaths[index] = deaths + 1
            why = f"has exited with code {code}"
            if code < 0:
                why = f"was ended by {signal_name(-code)}"
            if deaths < self._restarts_max:
                all_run &= self.restart(index, why, give_up)
                continue
            all_run = False
            if deaths == self._restarts_max > 0:
                self.on_line(dead.name, f"{why} again: it is not started again")
        return all_run

    def restart(self, index: int, why: str, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Restart a process that has ended or is to end; return whether it runs now.

        `index` is its place in `children`: 0 is the master, which takes over at its old address.
        `why` is for the log line; `give_up` as in `start`.
        """
        dead = self.children[index]
        if dead.process.poll() is None:
            _wait(dead.process, LEAVE_S)
        if dead.process.poll() is None:
            dead.process.kill()
            dead.process.wait()
        self.on_line(dead.name, f"{why}: restarting it{'' if index else ', to take over'}")
        self._main = None  # this process has threads by now, so it must not fork
        with contextlib.ExitStack() as pipes:
            try:
                if index:
                    pipe = self.spawn(dead.role, pipes, cpus=dead.cpus)
                else:  # `--fresh` applies to the first start only
                    own = {"listen_addr": self.address, "fresh": "false"}
                    pipe = self._spawn_master(own, pipes, give_up)
            except (OSError, ClusterError) as error:  # such as no memory: the others continue
                self.on_line(dead.name, f"cannot be started again: {error}")
                return False
            self.children[index] = self.children.pop()
            self.children[index].again = True
            dead.end_reading(awake_s() + READ_S)
            self.listen_to(self.children[index])
            if index == 0:
                return bool(self._hear_address(pipe, give_up))
            try:
                self._send_address(dead.role, pipe, give_up)
            except ClusterError as error:
                self.on_line(dead.name, str(error))
                self.children[index].process.kill()
                return False
            return True

    def note_raised(self) -> None:
        """Mute the workers of a failed job: the session raises that failure as an exception."""
        for child in self.children:
            child.raised = child.raised or child.role == "worker"

    def kill(self, pids: Iterable[int]) -> None:
        """Kill the servers and workers among `pids`, which did not end when asked to."""
        killed = set(pids)
        for child in self.children[1:]:
            if child.process.pid in killed and child.process.poll() is None:
                child.process.kill()

    def unusual_ends(self, failure: str) -> str:
        """Say how servers and workers ended that wrote no error, such as the one that was lost."""
        ends = []
        for child in self.children[1:]:
            is_lost = f"{child.process.pid}) is lost" in failure
            if is_lost:  # a dying process closes its connection before it has an exit code
                _wait(child.process, LEAVE_S)
            code = child.process.poll()
            if code is not None and code < 0:
                ends.append(f"{child.name} {_ended_by(code)}")
            elif code not in (None, EXIT_OK, EXIT_FAILED, EXIT_STOPPED) or (
                code is not None and is_lost
            ):
                ends.append(f"{child.name} has exited with code {code}")
        return "; ".join(ends)

    def master_end(self, limit_s: float) -> str:
        """Name the signal that ended the master, with its last lines; empty if no signal did."""
        code, master = self._end_of_master(limit_s), self.children[0]
        if code is None or code >= 0:
            return ""
        lines = " | ".join(master.last)
        log = f"the end of its log: {lines}" if lines else "its log does not say why"
        return f"the master (process {master.process.pid}) {_ended_by(code)}; {log}"

    def no_start(self, limit_s: float) -> MasterEnded | None:
        """Make the error of a master that has ended, by its own last lines; None: it runs."""
        code = self._end_of_master(limit_s)
        if code is None:
            return None
        lines = [*self.children[0].last]
        own = [line.removeprefix(OWN_ERROR) for line in lines if line.startswith(OWN_ERROR)]
        why = self.master_end(limit_s) or " | ".join(own or lines)
        return MasterEnded(code or EXIT_FAILED, why and f"the master could not start: {why}")

    def _end_of_master(self, limit_s: float) -> int | None:
        """Wait for the master and its last lines; its exit code, None if it runs."""
        master = self.children[0]
        _wait(master.process, limit_s)
        if (code := master.process.poll()) is not None and master.reader is not None:
            master.reader.join(limit_s)
        return code

    def ended(self) -> set[int]:
        nodes = [child.process for child in self.children[1:]]
        return {process.pid for process in nodes if process.poll() is not None}

    def poll(self) -> int | None:
        """Return the master's exit code; None while it runs, or if it could not be started."""
        return self.children[0].process.poll() if self.children else None

    def check(self) -> None:
        """Raise `NodeEnded` if a server or worker failed before it reached the master."""
        if self._deaths.get(0):
            return  # this master is a restarted one: the cluster had started before
        for child in self.children[1:]:
            code = child.process.poll()
            if not code:
                continue
            self.wait(LEAVE_S)
            if self.poll() is not None:
                return  # the node had reached the master, which has reported the failure
            if child.reader is not None:
                child.reader.join(LEAVE_S)
            what, child.held = " ".join(child.held).removeprefix(OWN_ERROR), []
            if code < 0:
                raise NodeEnded(f"{child.name} {_ended_by(code)}, before the start", code)
            raise NodeEnded(
                f"{child.name} ended before the start, with exit code {code}: "
                f"{what or 'see its lines above'}",
                code,
            )

    def wait(self, limit_s: float) -> None:
        _wait(self.children[0].process, limit_s)

    def interrupt(self) -> None:
        """Ask the master to end the job in order; a second time, at once."""
        self._interrupted = True
        # Before it listens, it may have no handlers yet.  SIGTERM then ends it silently, while
        # SIGINT would print a traceback.
        number = signal.SIGINT if self.address else signal.SIGTERM
        with contextlib.suppress(ProcessLookupError):
            self.children[0].process.send_signal(number)

    def end(self, limit_s: float = END_S) -> None:
        """Wait up to `limit_s` seconds for the master to end, then end all children; idempotent.

        A node that has joined ends with the master.  One that has not would keep dialling, so it
        gets SIGTERM after `LEAVE_S`; after `LEAVE_S` more, all that still run get SIGKILL.
        """
        if self._port is not None:
            self._port.close()
        if not self.children:
            return
        self.wait(limit_s)
        nodes = [child.process for child in self.children[1:]]
        wait_all(nodes, LEAVE_S)
        for child in self.children:
            if child.process.poll() is None:
                child.silent = True
                child.process.terminate()
        wait_all(nodes, LEAVE_S)
        for child in self.children:
            if child.process.poll() is None:
                child.process.kill()
                child.process.wait()
        until = awake_s() + READ_S
        for child in self.children:
            child.end_reading(until)
        self._show_held()

    def spawn(
        self,
        role: str,
        pipes: contextlib.ExitStack,
        files: Mapping[str, int] = NO_FILES,
        cpus: frozenset[int] = ANYWHERE,
        **more: Any,
    ) -> IO[bytes]:
        """Start a child; return the pipe from which it reads its document.

        `more` and `files`, descriptors that stay open in it, are arguments of the role's command.
        Its lines are read after `listen_to`.
        """
        document, document_write = managed_pipe(pipes)
        process = self._begin(role, more, {"document_fd": document.fileno(), **files}, cpus)
        document.close()
        self.children.append(Child(role, process, cpus))
        return document_write

    def _begin(
        self,
        role: str,
        arguments: Mapping[str, Any],
        files: Mapping[str, int],
        cpus: frozenset[int],
    ) -> Process:
        prints = role == "master" and self._prints_figures
        return start(role, arguments, files, main=self._main, cpus=cpus, prints=prints)

    @property
    def _prints_figures(self) -> bool:
        """Whether the master writes the figures of its only job to standard output."""
        return not self._life.outlives_job

    def listen_to(self, child: Child) -> None:
        """Read a child's lines, in threads."""
        process = child.process
        assert process.stderr is not None
        child.reader = threading.Thread(
            target=self._read, args=(child, process.stderr), daemon=True
        )
        child.reader.start()
        if process.stdout is not None:
            child.taker = threading.Thread(target=self._take, args=(process.stdout,), daemon=True)
            child.taker.start()

    def _read(self, child: Child, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._take_line(child, line)

    def _take_line(self, child: Child, line: str) -> None:
        line, named, name = line.rstrip("\n").partition(NAME_MARK)
        if named:
            child.given_name = name
            if not line:
                return
        text = as_text(line)
        child.last.append(text[:LAST_CHARS])
        child.failed = child.failed or text.startswith(OWN_ERROR)
        if child.failed and child.role != "master":
            child.held.append(text)
        elif not child.silent:
            self.on_line(child.name, text)

    def _take(self, stream: IO[str]) -> None:
        """Read the master's output all the time: a full pipe (64 KiB) would block the master."""
        with stream:
            self.output = stream.read()

    def _show_held(self) -> None:
        """Show the first node's error if the master has not reported why the job ended.

        Not after an interrupt, when a joining node may have lost the master.  After a job that
        succeeded, an error of a restarted process is only a remark: it may have joined too late.
        """
        if self.poll() == 0:
            for child in self.children:
                if child.again and child.held and not child.raised:
                    first_line = child.held[0].removeprefix(OWN_ERROR)
                    self.on_line(child.name, f"it was started again and has ended: {first_line}")
                    for line in child.held[1:]:
                        self.on_line(child.name, line)
                    child.held = []
        errors = [child for child in self.children if child.held and not child.raised]
        first = next(iter(errors), None)
        if first is not None and not (self.children[0].failed or self._interrupted):
            for line in first.held:
                self.on_line(first.name, line)
        for child in self.children:
            child.held = []


def labelled(name: str, text: str) -> str:
    return text if text.startswith((f"{name} ", f"{name}:")) else f"{name}: {text}"


def signal_name(number: int) -> str:
    """Name of a signal; real-time ones have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _ended_by(code: int) -> str:
    """Explain a negative exit code."""
    name = signal_name(-code)
    hint = ", perhaps because memory was short" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"


def as_text(line: str) -> str:
    """Return a child's line; if it is a JSON record of the child's own error, the error's text."""
    if line.startswith("{") and '"fatal": true' in line:
        with contextlib.suppress(ValueError, KeyError):
            record = json.loads(line)
            if "exception" not in record:
                return OWN_ERROR + str(record["message"])
    return line


def managed_pipe(stack: contextlib.ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """Make a pipe; both ends are closed with the stack."""
    read, write = os.pipe()
    return stack.enter_context(os.fdopen(read, "rb")), stack.enter_context(os.fdopen(write, "wb"))


def _ready(descriptor: int, limit_s: float, what: int = select.POLLIN) -> bool:
    """Wait until a descriptor can be read, or written, up to `limit_s` seconds.

    By poll, because select takes no descriptor above 1023.
    """
    poller = select.poll()
    poller.register(descriptor, what)
    return bool(poller.poll(1000 * limit_s))


def _wait(process: Process, limit_s: float) -> None:
    """Wait until a process has ended, up to `limit_s` seconds.

    By a pidfd, which reports the end at once; `Popen.wait` with a limit polls every 50 ms.
    """
    if process.poll() is not None:
        return
    until = awake_s() + limit_s
    with contextlib.suppress(OSError):  # no descriptor is free, or the kernel lacks the call
        ended = os.pidfd_open(process.pid)
        try:
            _ready(ended, limit_s)
        finally:
            os.close(ended)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, until - awake_s()))


def wait_all(processes: Sequence[Process], limit_s: float) -> None:
    until = awake_s() + limit_s
    for process in processes:
        _wait(process, max(0.01, until - awake_s()))
