"""Starts processes for tests as forks of one that has imported snailps: imports dominate a start.

    start(words) -> request -> a source, in another process -> fork -> become
    Copy: process id, pipes, exit code <- process descriptor, wait status <- python -m WORDS

From its imports on, a copy does what a new Python does: `runpy` runs the module.  At its end it
joins threads and calls the functions of `atexit`, but does not free each object, which takes a
third of the CPU of a short process.  It has the command line, network and limits of its source.
There are two sources, which hash strings differently, so that processes of one cluster do, too.
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import itertools
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

SOURCES = 2
REQUEST_MAX = 1 << 17
FDS_MAX = 16
READ_AT_START = ("PYTHON", "LD_", "SNAILPS_KERNELS")
"""Variables that are read when Python, or a module of ours, is loaded."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


# --- here ---------------------------------------------------------------------------------------


class Copy:
    """A process forked from a source, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, pid, descriptor, status, out, err):
        self.pid, self.returncode = pid, None
        self.stdout, self.stderr = (os.fdopen(pipe, errors="replace") for pipe in (out, err))
        self._descriptor, self._status = descriptor, status
        self._waits = threading.Lock()  # a status is read once, in whatever thread

    def wait(self, timeout=None):
        """The exit code, -N after signal N, once the process has ended."""
        if self.returncode is None and not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        with self._waits:
            if self.returncode is None:
                status = os.read(self._status, 16)
                assert status, f"the source of process {self.pid} has died"
                self.returncode = os.waitstatus_to_exitcode(int(status))
                os.close(self._status)
                os.close(self._descriptor)
        return self.returncode

    def poll(self):
        """The exit code, None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number):
        """Sends a signal to this process, never to a later one with its number."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Source:
    """A process with all imports done, which waits for requests.

    Parameters
    ----------
    env : dict
        Environment of the copies, as far as Python reads it at its start.
    hash_seed : int
    """

    def __init__(self, env, hash_seed):
        self._lock = threading.Lock()
        self._sock, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "copies", str(far.fileno())],
                cwd=Path(__file__).parent,
                env={**env, "PYTHONHASHSEED": str(hash_seed)},
                stdin=subprocess.DEVNULL,
                pass_fds=(far.fileno(),),
                start_new_session=True,
            )
        atexit.register(self.close)

    def start(self, words, *, cwd, env, pass_fds=()):
        """A copy that does what ``python -m WORDS`` does."""
        request = {"words": words, "cwd": str(cwd), "env": env, "kept": list(pass_fds)}
        status, status_write = os.pipe()
        out, out_write = os.pipe()
        err, err_write = os.pipe()
        try:
            with self._lock:
                data = json.dumps(request).encode()
                passed = [status_write, out_write, err_write, *pass_fds]
                socket.send_fds(self._sock, [data], passed)
                pid, (descriptor,), _, _ = socket.recv_fds(self._sock, 16, 1)
        finally:
            for descriptor_write in (status_write, out_write, err_write):
                os.close(descriptor_write)
        return Copy(int(pid), descriptor, status, out, err)

    def close(self):
        """Ends the source and all copies."""
        self._sock.close()
        self._process.wait()


_sources = []
_turns = itertools.count()


def network():
    """The network of this thread, which a new process would be in."""
    return Path("/proc/thread-self/ns/net").readlink()


_network = network()


def suffices(command, env, usual):
    """Whether a copy can replace the command: only its words differ from a usual start."""
    at_start = [
        {k: v for k, v in one.items() if k.startswith(READ_AT_START)} for one in (env, usual)
    ]
    return (
        command[:2] == [sys.executable, "-m"]
        and at_start[0] == at_start[1]
        and network() == _network
    )


def start(words, *, cwd, env, pass_fds=()):
    """A process that does what ``python -m WORDS`` does, as a `Copy`."""
    sys.audit("copies.start", words)
    if not _sources:
        _sources.extend(Source(env, seed) for seed in range(SOURCES))
    return _sources[next(_turns) % SOURCES].start(words, cwd=cwd, env=env, pass_fds=pass_fds)


# --- there --------------------------------------------------------------------------------------


def serve(sock):
    """Forks copies until the other end is closed; returns, in each of them, its request."""
    children = {}  # process descriptor -> process id, where its wait status is told
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready != sock.fileno():
                poll.unregister(ready)
                os.close(ready)
                pid, told = children.pop(ready)
                status = os.waitpid(pid, 0)[1]
                with contextlib.suppress(BrokenPipeError):
                    os.write(told, str(status).encode())
                os.close(told)
                continue
            data, passed, _, _ = socket.recv_fds(sock, REQUEST_MAX, FDS_MAX)
            if not data:
                sys.exit()
            pid = os.fork()
            if pid == 0:
                return json.loads(data), passed[1:]
            child = os.pidfd_open(pid)
            socket.send_fds(sock, [str(pid).encode()], [child])
            children[child] = pid, passed[0]
            poll.register(child, select.POLLIN)
            for descriptor in passed[1:]:
                os.close(descriptor)


def become(request, passed):
    """Puts this copy into the state of a process that was just started for a request."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    targets = [1, 2, *request["kept"]]
    above = max(targets) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in passed]
    for descriptor, target in zip(moved, targets, strict=True):
        os.dup2(descriptor, target)
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if descriptor not in (0, *targets):
            with contextlib.suppress(OSError):  # that of the listing itself
                os.close(descriptor)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):  # these may be files, others pipes
        was = getattr(sys, name)
        raw = open(descriptor, "wb", closefd=False)  # noqa: SIM115 (for good)
        made = io.TextIOWrapper(raw, was.encoding, was.errors, line_buffering=descriptor == 2)
        setattr(sys, name, made)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.path[0] = str(Path.cwd())
    importlib.invalidate_caches()
    sys.argv[1:] = request["words"][1:]


def warm_up():
    """Does the work that each process would repeat: loads the parser, reads settings classes."""
    from typer.main import get_command

    from snailps.cli.known_classes import known_classes
    from snailps.cli.main import app_for
    from snailps.config import RawConfig, ServerSettings

    command = get_command(app_for())
    context = command.make_context("snailps", ["status"], resilient_parsing=True)
    for role in ("master", "server", "worker"):
        command.commands[role].make_context(role, ["-c", __file__], parent=context)
    raw = RawConfig()
    raw.build(ServerSettings, also_known=known_classes(raw))
    "localhost".encode("idna")


def run(words):
    """Runs a module as ``python -m`` does, to the end of the process."""
    code = 0
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        code = end.code or 0
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def main():
    from snailps.cli.entry import BLAS_THREADS

    for name in BLAS_THREADS:
        os.environ[name] = "1"
    warm_up()
    from snailps.local.fork import may_fork

    gc.freeze()
    assert may_fork()
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        request, passed = serve(sock)
        sock.detach()
    become(request, passed)
    run(request["words"])


if __name__ == "__main__":
    main()
