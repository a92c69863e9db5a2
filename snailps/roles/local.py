"""A whole cluster on this machine: real processes, started, watched and ended from one place.

    Launcher: master, servers, workers as child processes      (snailps local, snailps train)
    local_cluster: the same for a Python session, with tables to pull from and push to

It owns the children: none of them outlives it, whatever happens to it.  It knows no more of them
than any node would: it joins the master as a *driver* and asks for its status.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from snailps.config import ClusterSettings, RawConfig
from snailps.errors import ClusterError, ConfigError, MisuseError, SnailError
from snailps.roles.links import connect_shards
from snailps.roles.node import EXIT_OK, End, Node
from snailps.roles.status import Status
from snailps.roles.tables import Table
from snailps.roles.worker import Keys, Rows, Worker
from snailps.store.route import Route
from snailps.transport import messages
from snailps.transport._client import Client, Pending
from snailps.transport.session import Role

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
START_LIMIT_S = 60.0
END_LIMIT_S = 15.0


def _die_with_parent() -> None:
    """In a child, before exec: SIGKILL when the parent dies; a session of its own, so that Ctrl-C
    reaches only the parent, which ends the job in order."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()


@dataclass(eq=False, slots=True)
class Child:
    """One process of the cluster."""

    name: str
    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    reader: threading.Thread | None = None


class Launcher:
    """Starts and ends the processes of a cluster on this machine.

    Parameters
    ----------
    config : path, optional
        A ``.conf`` file that all of them read.
    overrides : sequence of str
        ``key=value`` settings for all of them.
    servers, workers : int
        How many.
    session : bool
        The master waits for submitted jobs.
    on_line : callable
        Given each line that a child writes to standard error: ``on_line(child name, line)``.

    Notes
    -----
    Must be used from one thread, which must live as long as the cluster (a child is tied to the
    thread that started it).
    """

    def __init__(
        self,
        config: str | None,
        overrides: Sequence[str],
        *,
        servers: int,
        workers: int,
        session: bool = False,
        on_line: Callable[[str, str], None] = lambda name, line: None,
    ) -> None:
        self._config = config
        self._overrides = list(overrides)
        self._servers, self._workers, self._session = servers, workers, session
        self._on_line = on_line
        self.children: list[Child] = []
        self.address = ""

    def start(self) -> None:
        """Starts everything and waits until the master listens.

        Raises
        ------
        ClusterError
            The master ended before it listened; its own words are already written.
        """
        ready_read, ready_write = os.pipe()
        try:
            master = self._spawn(
                "master",
                [
                    f"expected_node_num={self._servers + self._workers}",
                    f"expected_servers={self._servers}",
                ],
                [
                    "--ready-fd",
                    str(ready_write),
                    "--session" if self._session else "--json",
                ],
                pass_fds=(ready_write,),
            )
        finally:
            os.close(ready_write)
        with os.fdopen(ready_read) as ready:
            self.address = ready.readline().strip()
        if not self.address:
            master.process.wait(START_LIMIT_S)
            raise MasterEnded(master.process.returncode)
        for number in range(self._servers):
            self._spawn(f"server {number + 1}", [f"master_addr={self.address}"])
        for number in range(self._workers):
            self._spawn(f"worker {number + 1}", [f"master_addr={self.address}"])

    def poll(self) -> int | None:
        """Exit code of the master, None while it runs."""
        return self.children[0].process.poll()

    def check(self) -> None:
        """Looks whether a server or worker could not even start.

        Raises
        ------
        ClusterError
            One has failed, which the master cannot know if it never came to register.
        """
        for child in self.children[1:]:
            code = child.process.poll()
            if code:
                raise ClusterError(
                    f"{child.name} ended before the start, with exit code {code}; "
                    "what it said stands above"
                )

    def wait(self, limit_s: float) -> None:
        """Waits until the master ends, up to `limit_s` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.children[0].process.wait(limit_s)

    def interrupt(self) -> None:
        """Asks the master to end the job in order; a second time, at once."""
        with contextlib.suppress(ProcessLookupError):
            self.children[0].process.send_signal(signal.SIGINT)

    def end(self, limit_s: float = END_LIMIT_S) -> None:
        """Waits for every child to end by itself, then ends those that have not."""
        until = time.monotonic() + limit_s
        for child in self.children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.1, until - time.monotonic()))
        for child in self.children:
            if child.process.poll() is None:
                child.process.kill()
                child.process.wait()
            if child.reader is not None:
                child.reader.join(5.0)
            if child.process.stderr is not None:
                child.process.stderr.close()

    def output(self) -> str:
        """What the master wrote to standard output: its JSON figures, if it was asked for them."""
        stdout = self.children[0].process.stdout
        return stdout.read() if stdout is not None else ""

    def _spawn(
        self,
        name: str,
        overrides: Sequence[str],
        options: Sequence[str] = (),
        pass_fds: tuple[int, ...] = (),
    ) -> Child:
        role = name.split()[0]
        command = [sys.executable, "-m", "snailps", role]
        if self._config is not None:
            command += ["-c", self._config]
        for pair in [*self._overrides, *overrides]:
            command += ["--set", pair]
        process = subprocess.Popen(
            [*command, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if role == "master" else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            preexec_fn=_die_with_parent,
            pass_fds=pass_fds,
        )
        child = Child(name, process)
        assert process.stderr is not None
        child.reader = threading.Thread(
            target=self._read, args=(child, process.stderr), daemon=True
        )
        child.reader.start()
        self.children.append(child)
        return child

    def _read(self, child: Child, stream: IO[str]) -> None:
        for line in stream:
            self._on_line(child.name, line.rstrip("\n"))


class MasterEnded(ClusterError):
    """The master ended before it listened; `exit_code` is its own."""

    def __init__(self, code: int) -> None:
        super().__init__("the master could not start")
        self.exit_code = code


class Driver(Node):
    """A process that joins a running cluster to watch it, and to pull and push.

    Parameters
    ----------
    settings : ClusterSettings
    """

    def __init__(self, settings: ClusterSettings) -> None:
        super().__init__(Role.DRIVER, settings)
        self._client: Client | None = None
        self._tables: dict[str, tuple[int, Table]] = {}
        self.routed = threading.Event()

    def on_message(self, message: messages.Message) -> messages.Message | None:
        """Takes the route; everything else as any node."""
        if isinstance(message, messages.TakeRoute):
            assert self.welcome is not None
            self._client = connect_shards(
                Route.from_dict(message.route),
                Role.DRIVER,
                node=self.welcome.node,
                incarnation=self.welcome.incarnation,
                job=self.welcome.job,
                timeout_s=self.settings.request_timeout,
                give_up=self.ended.is_set,
            )
            self.routed.set()
            return messages.Ok()
        return super().on_message(message)

    def on_end(self, end: End) -> None:
        """Wakes whatever waits."""
        if self._client is not None:
            self._client.fail(end.text or "the cluster has ended")
        self.routed.set()

    def status(self) -> Status:
        """The master's picture of the run."""
        answer = self.control.call(messages.Ask("status"), self.settings.request_timeout)
        assert isinstance(answer, messages.Report)
        return answer.data  # type: ignore[return-value]

    def declare(self, table: Table) -> None:
        """Makes a table known on all servers; declaring it again equally is fine."""
        answer = self.control.call(
            messages.Declare([table.to_dict()]), self.settings.request_timeout
        )
        assert isinstance(answer, messages.Declared)
        self._tables[table.name] = (answer.numbers[0], table)

    def pull(self, table: str, keys: Keys) -> Rows:
        """Rows of `keys`, float32 (n, dim)."""
        number, declared = self._find(table)
        rows = np.empty((len(keys), declared.dim), np.float32)
        self.client.pull_async(number, keys, rows).wait()
        return rows

    def push_async(self, table: str, keys: Keys, values: Rows) -> Pending:
        """Starts a push; ``.wait()`` for its end."""
        return self.client.push_async(self._find(table)[0], keys, values)

    @property
    def client(self) -> Client:
        """The fan-out client, once the route is there."""
        if self._client is None:
            raise MisuseError("the cluster is not complete yet: there is no route")
        return self._client

    def close(self) -> None:
        """Leaves the cluster."""
        if self._client is not None:
            self._client.close()
        self.end(EXIT_OK, "closed")
        self.leave({})

    def _find(self, table: str) -> tuple[int, Table]:
        try:
            return self._tables[table]
        except KeyError:
            raise MisuseError(f"no table {table!r}: make it with cluster.table()") from None


class LocalTable:
    """A table of a `LocalCluster`: ``pull(keys)``, ``push(keys, values)``."""

    def __init__(self, driver: Driver, table: Table) -> None:
        self._driver, self.declaration = driver, table

    def pull(self, keys: Sequence[int] | Keys) -> Rows:
        """Rows of `keys` (any integers from 0), float32 (n, dim)."""
        return self._driver.pull(self.declaration.name, _as_keys(keys))

    def push(self, keys: Sequence[int] | Keys, values: Any) -> None:
        """Pushes `values` (n, dim) to the rows of `keys`; returns once they are applied."""
        rows = np.ascontiguousarray(values, np.float32)
        if rows.ndim == 1:
            rows = rows.reshape(len(keys), -1)
        if rows.shape[1:] != (self.declaration.dim,):
            raise MisuseError(
                f"table {self.declaration.name!r} has rows of {self.declaration.dim} values, "
                f"got shape {rows.shape}"
            )
        self._driver.push_async(self.declaration.name, _as_keys(keys), rows).wait()


def _as_keys(keys: Sequence[int] | Keys) -> Keys:
    return np.ascontiguousarray(keys, np.uint64)


class LocalCluster:
    """A running cluster of real processes on this machine; made by `local_cluster`.

    Attributes
    ----------
    address : str
        Of the master: further processes may join.
    """

    def __init__(self, launcher: Launcher, driver: Driver) -> None:
        self._launcher, self._driver = launcher, driver
        self.address = launcher.address

    def wait_for_start(self, limit_s: float = START_LIMIT_S) -> None:
        """Waits until every process is there and can reach every server.

        Raises
        ------
        ClusterError
            A process could not start, or `limit_s` seconds have passed.
        """
        until = time.monotonic() + limit_s
        while not self._driver.ended.wait(0.05):
            if self._driver.routed.is_set() and self.status()["phase"] != "forming":
                return
            self._launcher.check()
            if time.monotonic() > until:
                raise ClusterError(f"the cluster is not complete after {limit_s:.0f} s")
        raise ClusterError(self._driver.verdict.text or "the cluster has ended")

    def table(self, name: str, dim: int = 1, **options: Any) -> LocalTable:
        """Declares a table; `options` as in `snailps.Table` (access, init, scale, lr, seed)."""
        table = Table(name, dim, **options)
        self._driver.declare(table)
        return LocalTable(self._driver, table)

    def status(self) -> Status:
        """What is going on now."""
        return self._driver.status()

    def train(
        self, model: type[Worker] | str, *, timeout_s: float | None = None, **settings: Any
    ) -> dict[str, Any]:
        """Trains a model on the cluster's workers and returns the run's figures.

        Parameters
        ----------
        model : class or str
            A `Worker` subclass that the worker processes can import, or its
            ``package.module:Class``.
        timeout_s : float, optional
            Limit, seconds.
        **settings
            Of the model and of every job: ``input=..., output=..., epochs=...``.

        Raises
        ------
        ConfigError
            A setting is wrong, or the class lives in a notebook or script.
        ClusterError
            The job failed; the text says why.
        """
        path = model if isinstance(model, str) else f"{model.__module__}:{model.__qualname__}"
        if path.startswith("__main__:"):
            raise ConfigError(
                f"{path} is defined in a script or a notebook cell, where worker processes cannot "
                f"import it: put the class into a file, say mymodel.py, and import it from there"
            )
        values = {"worker_class": path, **settings}
        raw = RawConfig.from_mapping(values, "train(--{key})".replace("--", ""))
        texts = {entry.key: entry.value for entry in raw.entries}
        self._driver.control.call(messages.Submit(texts), None)
        begin = time.monotonic()
        while True:
            if self._driver.ended.wait(0.1):
                raise ClusterError(self._driver.verdict.text or "the cluster has ended")
            status = self._driver.status()
            if status["phase"] == "idle":
                return dict(status["figures"])
            if timeout_s is not None and time.monotonic() - begin > timeout_s:
                raise ClusterError(
                    f"the job is not done after {timeout_s:.0f} s: {status['phase']}, "
                    f"{status['progress']:.0%}"
                )

    def close(self) -> None:
        """Ends the cluster; no process is left."""
        with contextlib.suppress(SnailError):
            self._driver.control.call(messages.Shutdown(), 5.0)
        self._driver.close()
        self._launcher.end()


@contextlib.contextmanager
def local_cluster(
    servers: int = 1, workers: int = 1, *, log: IO[str] | None = None, **settings: Any
) -> Iterator[LocalCluster]:
    """A cluster of real processes on this machine, for as long as the ``with`` block lasts.

    Parameters
    ----------
    servers, workers : int
        How many of each; no workers are needed for tables alone.
    log : text file, optional
        Where lines of the processes go; standard error by default.
    **settings
        Of the roles: ``threads=2, shard_num=1, frag_num=64 ...``.

    Yields
    ------
    LocalCluster

    Examples
    --------
    >>> with snailps.local_cluster(servers=2, workers=2) as cluster:
    ...     table = cluster.table("w", dim=2)
    ...     table.push([7], [[1.0, 2.0]])
    ...     print(table.pull([7, 8]))
    [[1. 2.]
     [0. 0.]]
    """
    if servers < 1 or workers < 0:
        raise ConfigError(f"a cluster needs a server: got {servers} servers, {workers} workers")
    sink = log if log is not None else sys.stderr

    def write(name: str, line: str) -> None:
        sink.write(f"{name}: {line}\n")

    launcher = Launcher(
        None,
        [
            "master_addr=127.0.0.1:16831",
            "listen_addr=127.0.0.1:0",
            "log_level=warning",
            *(f"{key}={value}" for key, value in settings.items()),
        ],
        servers=servers,
        workers=workers,
        session=True,
        on_line=write,
    )
    cluster = None
    try:
        launcher.start()
        driver = Driver(
            RawConfig.from_mapping({"master_addr": launcher.address}, "local_cluster").build(
                ClusterSettings
            )
        )
        driver.join()
        cluster = LocalCluster(launcher, driver)
        cluster.wait_for_start()
        yield cluster
    finally:
        if cluster is not None:
            cluster.close()
        else:
            if launcher.children:
                launcher.interrupt()
            launcher.end(5.0)
