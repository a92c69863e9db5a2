"""Forks a session's processes from one process that has imported their modules once.

    ForkServer.start -> request, descriptors -> serve -> fork -> process id -> Forked
    Forked.poll, wait <- exit code, in a pipe <- serve       Forked.kill -> request -> serve

A session must not fork itself: it has threads, whose locks a fork would inherit (`may_fork`).  The
server has one thread.  It knows no secret: it passes on the pipe from which a child reads that.
When this process or the server ends, however that is, the kernel ends the server's children.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any

from snailps.abi.numa import ANYWHERE
from snailps.local.fork import may_fork, start

REQUEST_MAX = 1 << 16
FILES_MAX = 8
CLOSE_S = 1.0
"""Seconds for the server to end after its socket has closed, before it is killed."""
ROOM = "." * 200
"""An argument of the server: a fork shows its own command line in its place, which is shorter."""


class Forked:
    """A process that the fork server has forked, with those methods of `Popen` that are used."""

    stdout: IO[str] | None = None

    def __init__(self, server: ForkServer, pid: int, errors: int, ended: int) -> None:
        self._server, self.pid = server, pid
        self.stderr: IO[str] | None = os.fdopen(errors, encoding="utf-8", errors="replace")
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self._ended = ended  # stays open with this object: several threads may wait for it
        # Not at exit: a thread that renews workers may still wait for it.
        weakref.finalize(self, os.close, ended).atexit = False

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and _is_ready(self._ended, 0.0):
                # Empty: the server was lost, and the kernel has killed its children.
                self.returncode = int(os.read(self._ended, 16) or -signal.SIGKILL)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        _is_ready(self._ended, timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            self._server.send_signal(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The server's process, which ends with the thread that makes it.

    `start` is called from one thread, everything else from any.
    """

    def __init__(self) -> None:
        self._socket, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with remote:
            files = {"socket_fd": remote.fileno()}
            arguments = {"models": imported_models(), "room": ROOM}
            self.process = start("fork_server", arguments, files, errors=None)

    def start(
        self, role: str, arguments: Mapping[str, Any], files: Mapping[str, int],
        cpus: frozenset[int] = ANYWHERE,
    ) -> Forked:  # fmt: skip
        """Start a process, as `fork.start` does; an `OSError` if that is not possible."""
        errors, errors_write = os.pipe()
        ended, ended_write = os.pipe()
        request = {"role": role, "arguments": arguments, "files": [*files], "cpus": [*cpus]}
        sent, answer = [json.dumps(request).encode()], b""
        try:
            with contextlib.suppress(ConnectionError):  # the server has ended
                socket.send_fds(self._socket, sent, [errors_write, ended_write, *files.values()])
                answer = self._socket.recv(REQUEST_MAX)
            if not answer:
                code = self.process.wait()
                raise OSError(f"the process that forks them has ended with exit code {code}")
            pid, error = json.loads(answer)
            if error:
                raise OSError(error, os.strerror(error))
        except BaseException:
            os.close(errors)
            os.close(ended)
            raise
        finally:
            os.close(errors_write)
            os.close(ended_write)
        return Forked(self, pid, errors, ended)

    def send_signal(self, pid: int, number: int) -> None:
        """Let the server signal its child: it alone knows that the number is not another's yet."""
        with contextlib.suppress(OSError):  # the server has ended, and so have its children
            self._socket.send(json.dumps({"pid": pid, "signal": number}).encode())

    def close(self) -> None:
        """End the server, with all children that still run; idempotent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # a fork of this process may have it open, too
        self._socket.close()
        try:
            self.process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def imported_models() -> list[str]:
    """Modules of snailps' models in this process: a job's master and worker will need them too."""
    return sorted(name for name in list(sys.modules) if name.startswith("snailps.models."))


def serve(requests: socket.socket, main: Callable[[], None]) -> None:
    """Fork and signal children as asked, and report their ends, until the socket closes."""
    children: dict[int, tuple[subprocess.Popen[str], int]] = {}
    woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    gc.freeze()  # a collection in a fork would touch, and so copy, all these pages
    while True:
        is_asked = requests.fileno() in _ready((requests.fileno(), woken))
        with contextlib.suppress(BlockingIOError):
            os.read(woken, REQUEST_MAX)
        for pid, (child, ended) in list(children.items()):
            if (code := child.poll()) is not None:
                with contextlib.suppress(BrokenPipeError):  # nobody waits for it
                    os.write(ended, str(code).encode())
                os.close(ended)
                del children[pid]
        if not is_asked:
            continue
        data, files, _, _ = socket.recv_fds(requests, REQUEST_MAX, FILES_MAX)
        if not data:
            return
        request = json.loads(data)
        if "signal" in request:
            if request["pid"] in children:
                children[request["pid"]][0].send_signal(request["signal"])
            continue
        errors, ended, *kept = files
        try:
            child = start(
                request["role"],
                request["arguments"],
                dict(zip(request["files"], kept, strict=True)),
                main=main if may_fork() else None,  # BLAS has threads if the environment says so
                cpus=frozenset(request["cpus"]),
                errors=errors,
            )
        except OSError as error:
            os.close(ended)
            requests.send(json.dumps([0, error.errno]).encode())
        else:
            children[child.pid] = child, ended
            requests.send(json.dumps([child.pid, 0]).encode())
        for descriptor in (errors, *kept):
            os.close(descriptor)


def _ready(descriptors: Iterable[int], limit_s: float | None = None) -> set[int]:
    """Wait until descriptors can be read or are closed; return them."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    limit = None if limit_s is None else 1000 * limit_s
    return {descriptor for descriptor, _ in poller.poll(limit)}


def _is_ready(descriptor: int, limit_s: float | None) -> bool:
    return bool(_ready([descriptor], limit_s))
