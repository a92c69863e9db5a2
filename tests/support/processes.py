"""Real processes for tests: a cluster of masters, servers and workers, bounded and cleaned up.

    Cluster(folder, settings) -> .conf files -> start(role) -> Process: lines, wait, kill

The processes are forks of one with all imports done (copies.py), or new Pythons on request. Nothing
here sleeps: a test waits for a line on standard error, for the end of a process, or at a `Gate` in
a worker's `train`.  No process outlives its test, and `Cluster.close` fails if one that should have
ended by itself had to be killed.
"""

import contextlib
import ctypes
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import copies
from waiting import LIMIT_S, InVain, until, watch

import snailps
from snailps.cli.masters import ask


def _ports(handed_out="/proc/sys/net/ipv4/ip_local_port_range"):
    """Ports that Linux does not hand out by itself, or any, if it hands out nearly all."""
    low, high = map(int, Path(handed_out).read_text().split())
    below, above = range(10_000, min(low, 32_000)), range(high + 1, 65_536)
    return next((ports for ports in (below, above) if len(ports) >= 1000), range(10_000, 32_000))


PORTS = _ports()
USUAL_PORT = 16831  # of a master, where commands look if they are given no address
SNAILPS = [sys.executable, "-m", "snailps"]
SUPPORT = Path(__file__).resolve().parent
TESTS = SUPPORT.parent
PACKAGE = Path(snailps.__file__).resolve().parent.parent

_AT_WORK = ("starting", "counting", "training")  # what the status says of workers with the job
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def environment(**variables):
    """The environment of child processes, which find the package and the models of tests."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("SNAILPS_")}
    inherited["PYTHONPATH"] = os.pathsep.join([str(PACKAGE), str(SUPPORT), str(TESTS)])
    return {**inherited, **variables}


_claims = []


def free_port(host="127.0.0.1"):
    """A port for this test run alone, in which no process listens.

    The system hands out no such ports; among test runs an abstract Unix socket, which lives as
    long as this process, says whose it is.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in random.sample(PORTS, len(PORTS)):
        if port == USUAL_PORT:
            continue
        claim = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError), socket.socket(family) as sock:
            claim.bind(f"\0snailps-tests-port-{port}")
            _claims.append(claim)
            sock.bind((host, port))
            return port
    raise AssertionError(f"no port of {PORTS} is free")


def is_listening(address):
    """Whether a process answers at (host, port)."""
    try:
        with socket.create_connection(address, timeout=LIMIT_S):
            return True
    except OSError:
        return False


def _tie_to_parent():
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()


class Process:
    """A child process, its lines of standard error, and its standard output.

    Parameters
    ----------
    name : str
        Its name in messages.
    command : list of str
    copied : bool
        Whether it may be a fork (see copies.py).
    """

    def __init__(self, name, command, *, cwd, env=None, pass_fds=(), copied=False):
        self.name = name
        self.lines = []
        self._output = []
        env = env or environment()
        if copied and copies.suffices(command, env, environment()):
            self.popen = copies.start(command[2:], cwd=cwd, env=env, pass_fds=pass_fds)
        else:
            self.popen = subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                preexec_fn=_tie_to_parent,
                pass_fds=pass_fds,
            )
        self._readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in [(self.popen.stderr, self.lines), (self.popen.stdout, self._output)]
        ]
        for reader in self._readers:
            reader.start()
        _made.add(self)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.close()

    @property
    def pid(self):
        return self.popen.pid

    @property
    def runs(self):
        return self.popen.poll() is None

    @property
    def is_open(self):
        """Whether more output may come: its last lines are read after its end."""
        return any(reader.is_alive() for reader in self._readers)

    @property
    def stderr(self):
        return "\n".join(self.lines)

    @property
    def stdout(self):
        return "".join(f"{line}\n" for line in self._output)

    @property
    def errors(self):
        """The lines with the reason for which the command failed."""
        return [line for line in self.lines if line.startswith("snailps: error: ")]

    def wait(self, limit_s=LIMIT_S):
        """Waits for the end of the process and of its output; the exit code."""
        try:
            code = self.popen.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} has not ended after {limit_s:g} s; it wrote:\n{self.stderr}"
            ) from None
        for reader in self._readers:
            reader.join(LIMIT_S)
        assert not self.is_open, (
            f"{self.name} has ended with {code}, and after {LIMIT_S:g} s others still hold what it"
            f" wrote to, maybe processes {session_members(self.pid)}; it wrote:\n{self.stderr}"
        )
        return code

    def wait_line(self, pattern, *, behind=None):
        """Waits for the first line of standard error, after a given one, that matches `pattern`."""
        seen = 0 if behind is None else self.lines.index(behind) + 1

        def found():
            nonlocal seen
            while seen < len(self.lines):
                seen += 1
                if re.search(pattern, self.lines[seen - 1]):
                    return True
            return False

        until(
            found,
            lambda: f"{self.name} should write {pattern!r}, it wrote:\n{self.stderr}\n",
            over=lambda: "" if self.is_open else "it has ended",
        )
        return self.lines[seen - 1]

    def until(self, found, what="it"):
        """Waits until `found` returns something true, or raises once this process has ended."""
        return until(found, what, over=self._why_ended)

    def _why_ended(self):
        if self.runs or self.is_open:
            return ""
        return f"{self.name} has ended with {self.popen.poll()}: {self.stderr}"

    def send(self, number):
        """Sends a signal; after SIGSTOP it waits until no thread runs."""
        self.popen.send_signal(number)
        if number == signal.SIGSTOP:
            until(lambda: not self._runs(), f"{self.name} to stop")

    def _runs(self):
        """Whether a thread is not stopped yet."""
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has just ended
                if (task / "stat").read_text().rpartition(")")[2].split()[0] not in "TtZX":
                    return True
        return False

    def close(self):
        """Kills the processes that still run in its session; True if there were any."""
        running = self.popen.poll() is None
        if running:
            self.popen.kill()
        self.popen.wait()
        orphans = session_members(self.pid)
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for reader in self._readers:
            reader.join(LIMIT_S)
        self.popen.stdout.close()
        self.popen.stderr.close()
        return running or bool(orphans)

    def _read(self, stream, lines):
        for line in stream:
            lines.append(line.rstrip("\n"))


def session_members(session):
    """Ids of the processes that belong to a session and still run."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                members.append(int(stat.parent.name))
    return members


def children_of(pid, role=""):
    """Ids of the living children of a process and of theirs, all or those of a role."""
    children = []
    for child in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for number in child.read_text().split():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    words = Path(f"/proc/{number}/cmdline").read_text().split("\0")
                    if not role or role in words:
                        children.append(int(number))
                children += children_of(number, role)
    return children


class Gate:
    """A place where a worker stops until the test opens it: a named pipe.

    A model stops there by `cluster_models.wait_at`, which writes the id of its process beside it.
    """

    def __init__(self, folder, number, kind="block"):
        self.path = Path(folder) / f"{kind}-{number}"
        self.path.parent.mkdir(exist_ok=True)
        os.mkfifo(self.path)
        self._file = None

    def meet(self, limit_s=LIMIT_S):
        """Waits until a worker stands at the gate."""
        self.meet_one([self], limit_s)

    @staticmethod
    def meet_one(gates, limit_s=LIMIT_S):
        """Waits until a worker stands at one of these gates; that gate."""
        names = ", ".join(gate.path.name for gate in gates)
        return until(
            lambda: next((gate for gate in gates if gate._met()), None),
            f"a worker at {names}",
            limit_s=limit_s,
        )

    def _met(self):
        with contextlib.suppress(OSError):  # no reader, or it is gone
            file = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
            if self._file is not None:
                os.close(self._file)
            self._file = file
            return True
        return False

    @property
    def pid(self):
        """Id of the process that stopped here last, or 0."""
        with contextlib.suppress(FileNotFoundError, ValueError):  # it writes at this moment
            return int(Path(f"{self.path}.pid").read_text())
        return 0

    def who(self, processes):
        """Waits until one of these processes is the last that stopped here; that process."""
        return until(
            lambda: next((process for process in processes if process.pid == self.pid), None),
            f"one of {[process.name for process in processes]} at {self.path.name}",
        )

    def open(self):
        """Opens the gate for good: the worker goes on, and no other one stops here."""
        if self._file is None:
            with contextlib.suppress(FileNotFoundError):  # opened before
                self._file = os.open(self.path, os.O_RDWR)
        self.path.unlink(missing_ok=True)
        if self._file is not None:
            os.close(self._file)
            self._file = None


open_clusters = []  # clusters that the test is in
_made = weakref.WeakSet()  # processes


@watch
def _all_have_ended():
    started = [process for cluster in open_clusters for process in cluster.processes]
    if not started or any(process.runs or process.is_open for process in [*started, *_made]):
        return ""
    return "all processes have ended: " + ", ".join(
        f"{one.name} with {one.popen.poll()}{one.lines[-1:] or ''}" for one in started
    )


class Cluster:
    """Processes of one cluster, started one by one.

    Parameters
    ----------
    folder : Path
        Holds the .conf files; the processes run in it.
    settings : dict
        Settings of all processes: ``common.conf``.
    job : dict
        Settings of the master: ``job.conf``, which ``master.conf`` imports.
    host : str
        Host at which the master listens.
    copied : bool
        If False, each process is a new Python, which takes half a second more.
    cores : int
        Cores that its processes see; 0: the cores of this machine.
    program : list of str
        Program of the processes, such as a `with_time.Clock`'s; not together with `cores`.
    """

    def __init__(
        self, folder, settings=None, job=None, *, host="127.0.0.1", servers=1, workers=1,
        copied=True, cores=0, program=SNAILPS,
    ):  # fmt: skip
        self.folder, self._copied = folder, copied
        self._program = [sys.executable, "-m", "with_cores", str(cores)] if cores else program
        self.processes = []
        self.host, self.port = host, 0
        self.servers, self.workers = servers, workers
        common = {"shard_num": 1, "threads": 1, "init_timeout": LIMIT_S, **(settings or {})}
        if host != "127.0.0.1":  # a network of the test's own
            common.setdefault("insecure", "true")
        for limit in ("heartbeat_timeout", "request_timeout"):  # what ends, ends without them
            common.setdefault(limit, 10 * LIMIT_S)
        size = {"expected_node_num": servers + workers, "expected_servers": servers}
        self.write("common.conf", common)
        self.write("job.conf", job or {}, "common.conf")
        self.write("master.conf", {**size, "master_time_out": LIMIT_S}, "job.conf")
        self.write("server.conf", {}, "common.conf")
        self.write("worker.conf", {}, "common.conf")

    def write(self, name, settings, imports=None):
        """Writes a .conf file."""
        lines = [f"import {imports}"] if imports else []
        lines += [f"{key}: {value}" for key, value in settings.items()]
        (self.folder / name).write_text("\n".join(lines) + "\n")

    def __enter__(self):
        open_clusters.append(self)
        return self

    def __exit__(self, kind, error, trace):
        open_clusters.remove(self)
        if kind is not None:
            for process in self.processes:
                print(f"--- {process.name} ({process.pid}), code {process.popen.poll()}")
                print(process.stderr)
        self.close(check=kind is None)

    @property
    def address(self):
        """host:port of the master."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def master(self, *sets, port=None, options=("--json",), pass_fds=(), **more):
        """Starts the master, on a free port unless `port` is given; waits until it listens."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        read, write = os.pipe()
        try:
            process = self.start(
                "master",
                f"listen_addr={host}:{port or 0}",
                *sets,
                options=[*options, "--ready-fd", str(write)],
                pass_fds=(write, *pass_fds),
                told=False,
                **more,
            )
        finally:
            os.close(write)
        with os.fdopen(read) as ready:
            told = ready.readline().strip()
        if told:
            self.port = int(told.rpartition(":")[2])
        else:
            process.wait()
        return process

    def start(
        self, role, *sets, cwd=None, options=(), pass_fds=(), told=True, env=None, program=None
    ):
        """Starts a process of a role; servers and workers get the master's address."""
        command = [*(program or self._program), role, "-c", str(self.folder / f"{role}.conf")]
        pairs = [f"master_addr={self.address}", *sets] if told else sets
        for pair in pairs:
            command += ["--set", pair]
        number = sum(process.name.startswith(role) for process in self.processes) + 1
        process = Process(
            f"{role} {number}",
            [*command, *options],
            cwd=cwd or self.folder,
            env=env,
            pass_fds=pass_fds,
            copied=self._copied,
        )
        self.processes.append(process)
        return process

    def run(self, *sets):
        """Starts all processes and waits for their end; (exit codes, master)."""
        master = self.master(*sets)
        self.nodes()
        return self.codes(), master

    def nodes(self):
        """Starts all servers and workers; (servers, workers)."""
        servers = [self.start("server") for _ in range(self.servers)]
        workers = [self.start("worker") for _ in range(self.workers)]
        return servers, workers

    def started_at(self, gate, *sets):
        """Starts all, waits until a worker stands at a gate; (master, servers, workers)."""
        master = self.master(*sets)
        servers, workers = self.nodes()
        gate.meet()
        return master, servers, workers

    def name_of(self, process):
        """The master's name for a process, such as "worker 3"; waits until it has registered."""
        line = self.processes[0].wait_line(rf"process {process.pid}\) registered")
        return re.search(r"(server|worker) \d+", line)[0]

    def await_joined(self, worker):
        """Waits until a worker takes part in the job: it is counted, and everybody knows.

        It registers earlier, and may then still have to connect to servers.
        """
        nodes = []

        def joined():
            nodes[:] = ask(self.address, LIMIT_S)["nodes"]
            return any(n["pid"] == worker.pid and n["state"] in _AT_WORK for n in nodes)

        until(joined, lambda: f"process {worker.pid} at work, among {nodes}")

    def codes(self):
        """Waits for the end of all processes; their exit codes, in order of their start."""
        return [process.wait() for process in self.processes]

    def close(self, *, check=True):
        """Ends the remaining processes; fails if one of them does not end by itself."""
        why = ""
        if check:
            try:
                until(lambda: not any(p.runs for p in self.processes), "the end of all processes")
            except InVain as error:
                why = str(error)
        survivors = [process.name for process in self.processes if process.close()]
        assert not (check and survivors), (
            f"still running at the end of the test: {survivors}; {why}"
        )


def run_snailps(*words, code=0, env=None, **options):
    """Runs `snailps WORDS` to its end and checks its exit code (None: any); its output."""
    done = subprocess.run(
        [*SNAILPS, *map(str, words)], env=env or environment(), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=LIMIT_S, **options,
    )  # fmt: skip
    assert code is None or done.returncode == code, done.stderr
    return done


def run_well(folder, *given, sets=(), **options):
    """Runs a job until every process exits with 0; the master."""
    with Cluster(folder, *given, **options) as cluster:
        codes, master = cluster.run(*sets)
        assert codes == [0] * len(codes), master.stderr
        assert "Traceback" not in "".join(process.stderr for process in cluster.processes)
    return master


def members_of(cluster):
    """The processes of a cluster of this machine, the master first."""
    return cluster._launcher.children


def driver_of(cluster):
    """The end of a session at this process, which has its route and its secret."""
    return cluster._driver
