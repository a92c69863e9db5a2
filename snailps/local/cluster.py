"""A whole cluster on this machine for a Python session: tables, tensors and training.

    local_cluster -> Launcher (processes), Driver (one of the cluster) -> LocalCluster
        -> table, tensor -> pull, push          -> train -> figures

Combines `Launcher` and `Driver`; must not know processes or messages.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from snailps.api.tables import AnyKeys, Rows, Table, Tensor
from snailps.api.worker import Worker, check_class
from snailps.config import (
    ROLE_CLASSES,
    ClusterSettings,
    JobSettings,
    MasterSettings,
    RawConfig,
    Settings,
    settings_of,
)
from snailps.config.fields import format_value
from snailps.errors import ClusterError, ConfigError, SnailError
from snailps.local.driver import Driver
from snailps.local.launcher import Launcher
from snailps.node.status import Status

LOOK_S = 0.05
ENDING_S = 1.0
MARGIN_S = 5.0
"""How much longer than the master we wait for the start: its error names what is missing."""
_ROLES: tuple[type[Settings], ...] = tuple(c for _, c in ROLE_CLASSES if c is not JobSettings)


class LocalTable:
    """A table of a `LocalCluster`: ``pull(keys)``, ``push(keys, values)``."""

    def __init__(self, driver: Driver, table: Table) -> None:
        self._driver, self.declaration = driver, table

    def pull(self, keys: AnyKeys, out: Rows | None = None) -> Rows:
        """Rows of `keys` (any integers from 0), float32 (n, dim), in `out` if given."""
        return self._driver.pull(self.declaration.name, keys, out)

    def push(self, keys: AnyKeys, values: Any) -> None:
        """Pushes `values` (n, dim) to the rows of `keys`; returns once they are applied."""
        wanted, rows = self.declaration.keys(keys), self.declaration.values(values)
        if rows.ndim == 1 and len(wanted) and len(rows) % len(wanted) == 0:
            rows = rows.reshape(len(wanted), -1)
        self._driver.push(self.declaration.name, wanted, rows)


class LocalTensor:
    """A tensor of a `LocalCluster`: ``pull()``, ``push(values)``."""

    def __init__(self, driver: Driver, tensor: Tensor) -> None:
        self._driver, self.declaration = driver, tensor

    def pull(self) -> Rows:
        """All its values, float32, in its shape."""
        tensor = self.declaration
        return tensor.from_rows(self._driver.pull(tensor.name, tensor.keys()))

    def push(self, values: Any) -> None:
        """Pushes `values` of its shape; returns once they are applied."""
        tensor = self.declaration
        rows = tensor.to_rows(values)
        self._driver.push(tensor.name, tensor.keys(), rows)


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

    def wait_for_start(self, limit_s: float) -> None:
        """Waits until every process has joined and is connected to every server.

        Raises
        ------
        ClusterError
            A process could not start, or `limit_s` seconds have passed.
        """
        for status in self._watch(limit_s):
            if self._driver.routed.is_set() and status["phase"] != "forming":
                return
            self._launcher.check()
        raise ClusterError(f"the cluster is not complete after {limit_s:.0f} s")

    def table(self, name: str, dim: int = 1, **options: Any) -> LocalTable:
        """Declares a table; `options` as in `snailps.Table` (access, init, scale, lr, seed)."""
        table = Table(name, dim, **options)
        self._driver.declare(table)
        return LocalTable(self._driver, table)

    def tensor(self, name: str, shape: Sequence[int], **options: Any) -> LocalTensor:
        """Declares a dense array; `options` as in `snailps.Tensor`, the same as of a table."""
        tensor = Tensor(name, tuple(shape), **options)
        self._driver.declare(tensor.table())
        return LocalTensor(self._driver, tensor)

    def status(self) -> Status:
        """The master's current status."""
        return self._driver.status()

    def train(
        self, model: type[Worker] | str, /, *, timeout_s: float | None = None, **settings: Any
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

        Returns
        -------
        dict
            Figures of this job: speed, loss, what `export` added.

        Raises
        ------
        ConfigError
            A setting is wrong, or the class lives in a notebook or script.
        DataError
            The input is missing, empty or unreadable.
        ClusterError
            The job failed; the text says why.  The cluster keeps running, with its tables: workers
            that have ended with the job are replaced before the next one begins.

        Notes
        -----
        Values are Python values, not text of a .conf file: a string may hold commas and quotes, and
        a list gives several.  The class is imported from its file as it is when the job begins:
        edit it and train again, with or without `importlib.reload` here.

        Every job starts with new tables of its own; those that `table` or `tensor` declared before
        belong to the session and are shared by all jobs.  To read a job's result, declare its table
        in the same way before the next job begins.
        """
        if isinstance(model, str):
            path = model
        elif isinstance(model, type) and issubclass(model, Worker):
            path = f"{model.__module__}:{model.__qualname__}"
        else:
            raise ConfigError(
                f"a model is a subclass of snailps.Worker, or its package.module:Class; got "
                f"{model!r:.80}"
            )
        if path.startswith("__main__:"):
            raise ConfigError(
                f"{path} is defined in a script or a notebook cell, where worker processes cannot "
                f"import it: put the class into a file, say mymodel.py, and import it from there"
            )
        if not isinstance(model, str):
            check_class(model, path)
        self._renew_workers()
        self._driver.submit(_texts({"worker_class": path, **settings}))
        for status in self._watch(timeout_s):
            if status["phase"] == "idle":
                if status["message"]:
                    raise ClusterError(status["message"])
                return dict(status["figures"])
        raise ClusterError(
            f"the job is not done after {timeout_s:.0f} s: {status['phase']}, "
            f"{status['progress']:.0%}"
        )

    def _renew_workers(self) -> None:
        """Replaces workers that have ended, and waits until the new ones are ready.

        Raises
        ------
        ClusterError
            They do not join in time.
        """
        nodes = self._driver.status()["nodes"]
        here = {node["id"] for node in nodes}
        dead = self._launcher.ended()
        members = {node["pid"] for node in nodes} - dead
        coming = sum(
            self._launcher.restart(index, "has left the cluster")
            for index, child in enumerate(self._launcher.children)
            if child.role == "worker" and child.process.pid not in members
        )
        if not coming:
            return
        for status in self._watch(self._driver.settings.init_timeout):
            nodes = status["nodes"]
            new = [node for node in nodes if node["role"] == "worker" and node["id"] not in here]
            ready = [node for node in new if node["state"] == "ready"]
            if len(ready) >= coming and not dead & {node["pid"] for node in nodes}:
                return
        raise ClusterError(
            f"{coming - len(new)} of {coming} workers that were started again did not join: see "
            "their log lines"
        )

    def _watch(self, limit_s: float | None) -> Iterator[Status]:
        """The status again and again, until the limit is over.

        Raises
        ------
        ClusterError
            The cluster has ended.
        """
        until = math.inf if limit_s is None else time.monotonic() + limit_s
        while not self._driver.ended.wait(LOOK_S):
            try:
                status = self.status()
            except SnailError:
                if self._driver.ended.wait(ENDING_S):
                    break  # the master has closed the connection behind its verdict
                raise
            yield status
            if time.monotonic() > until:
                return
        raise ClusterError(self._driver.verdict.text or "the cluster has ended")

    def close(self) -> None:
        """Ends the cluster; no process is left."""
        with contextlib.suppress(SnailError):
            self._driver.shut_down()
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
        Receives the lines of the processes; standard error by default.
    **settings
        Of the roles: ``threads=2, shard_num=1, frag_num=64 ...``.

    Yields
    ------
    LocalCluster

    Raises
    ------
    ConfigError
        A setting is wrong.
    ClusterError
        A process could not start.

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
    own = ["master_addr=127.0.0.1:16831", "listen_addr=127.0.0.1:0", "log_level=warning"]
    texts = _texts(settings)
    raw = _role_config(texts)
    master = raw.build(MasterSettings, also_known=_ROLES)
    sink = log if log is not None else sys.stderr

    def write(name: str, line: str) -> None:
        sink.write(f"{name}: {line}\n")

    for notice in raw.notices:
        write("local_cluster", notice)

    launcher = Launcher(
        None,
        [*own, *(f"{key}={text}" for key, text in texts.items())],
        servers=servers,
        workers=workers,
        session=True,
        on_line=write,
    )
    cluster = None
    try:
        launcher.start()
        at = RawConfig.from_mapping({"master_addr": launcher.address}, "local_cluster")
        driver = Driver(raw.merged(at).build(ClusterSettings, also_known=_ROLES))
        driver.join()
        cluster = LocalCluster(launcher, driver)
        cluster.wait_for_start(master.master_time_out + master.init_timeout + MARGIN_S)
        yield cluster
    finally:
        if cluster is not None:
            cluster.close()
        else:
            if launcher.children:
                launcher.interrupt()
            launcher.end(5.0)


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    """Python values as text of settings, which parses back to exactly the same values."""
    return {
        key: format_value(os.fspath(value) if isinstance(value, os.PathLike) else value)
        for key, value in values.items()
    }


def _role_config(texts: Mapping[str, str]) -> RawConfig:
    """Settings of the roles as the processes will see them, checked: environment, then `texts`."""
    names = {name for cls in _ROLES for name in settings_of(cls)}
    around = RawConfig.load(None, environ=os.environ)
    # Other settings in the environment belong to a job.
    raw = RawConfig(entry for entry in around.entries if entry.key in names)
    raw = raw.merged(RawConfig.from_mapping(texts, "local_cluster({key})"))
    for cls in _ROLES:
        raw.build(cls, also_known=_ROLES)
    return raw
