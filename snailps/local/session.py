"""Owns a running cluster as a Python object: its tables and tensors, jobs and their results.

    Driver [, Launcher] -> Cluster -> table, tensor -> session_tables.py
                                   -> run(model) -> JobResult -> figures, history, results()

One class for a cluster on this machine (`local_cluster`, `cluster`), whose processes are children,
and for one on other hosts (`connect`).  Must not know messages.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from snailps.api.class_source import encode, is_local_class, module_name, source_of
from snailps.api.export_progress import ExportProgress
from snailps.api.results import Results
from snailps.api.tables import Keys, Rows, Table, Tensor
from snailps.api.worker import Worker, check_class, load_class
from snailps.config import JobSettings, RawConfig, settings_of
from snailps.config.output import absolute
from snailps.data.spool import Spooled
from snailps.dataclass import dataclass, replace
from snailps.errors import (
    EXIT_OK,
    ClusterError,
    ConfigError,
    JobInputError,
    SnailError,
    WaitTimeout,
    with_frames,
)
from snailps.local.driver import Driver
from snailps.local.history import History
from snailps.local.launcher import Launcher
from snailps.local.session_tables import ClusterSource, LocalTable, LocalTensor
from snailps.local.setting_texts import setting_texts
from snailps.local.table_export import Format, export_tables
from snailps.node.status import Status
from snailps.transport._awake import awake_s

LOOK_FIRST_S, LOOK_S = 0.002, 0.05
"""Seconds between two reads of the status: at first short, because small jobs end soon."""
LOOK_JOB_S = 0.2
"""The same while a job trains, whose end is reported: a read takes both processes 2 ms."""
HANG_S = 1.0
"""Seconds for a local worker to leave the previous job, before it is killed and replaced."""
ENDING_S = 1.0
RENEW_S = 70.0
"""Seconds to wait for workers that restart: longer than the master waits for them."""
AGAIN = "the master was lost during the job and has been started again: the job is repeated"
C = TypeVar("C", bound="Cluster")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobResult:
    """A finished job.

    Attributes
    ----------
    figures : dict
        Speed, loss, and the figures of the model's `judge` and `export`.
    history : list of dict
        For each epoch or round: ``epoch``, ``loss`` and ``words_per_s`` or ``examples_per_s``,
        if they are known.
    """

    figures: dict[str, Any]
    history: list[dict[str, Any]]
    _cluster: Cluster
    _number: int
    _model: type[Worker] | str
    _texts: Mapping[str, str]

    def __repr__(self) -> str:
        loss = self.figures.get("train_loss")
        with_loss = "" if loss is None else f", loss {loss:.4g}"
        return (
            f"<result of {self._texts['worker_class']}: "
            f"{self.figures.get('wall_s', 0.0):g} s{with_loss}>"
        )

    @cached_property
    def settings(self) -> JobSettings:
        """Settings with which the job ran, including values from model files that they name.

        If the model was given by name, its class is imported when this is first read.
        """
        model = self._model
        cls = model if isinstance(model, type) else load_class(model, "the job")
        return RawConfig.from_mapping(self._texts, "the job that has run").build(cls.Settings)

    @contextlib.contextmanager
    def results(self, **changes: Any) -> Iterator[Results]:
        """Open the job's tables in this process, in the form that a model's `export` reads.

        Parameters
        ----------
        **changes
            Settings to change for it: ``output="here"``.

        Raises
        ------
        ClusterError
            The tables are gone: another job has begun, or the cluster has ended.

        Examples
        --------
        >>> with job.results(output="vectors") as results:  # doctest: +SKIP
        ...     WordVectors.export(results)
        """
        yield self._cluster._results(self, changes)


class Cluster:
    """A running cluster; made by `snailps.cluster`, `snailps.connect` or `local_cluster`.

    Usable as a context manager, which closes it.

    Attributes
    ----------
    address : str
        Address of the master, at which further processes may join.

    Examples
    --------
    >>> with snailps.local_cluster() as cluster:
    ...     table = cluster.table("counts", dim=1)
    ...     table.push([3, 4], [[1.0], [2.0]])
    ...     table.push([4], [[5.0]])
    ...     print(table.pull([4]))
    [[7.]]
    """

    def __init__(self, launcher: Launcher | None, driver: Driver, address: str = "") -> None:
        self._launcher, self._driver = launcher, driver
        self.address = launcher.address if launcher is not None else address
        self._turn = threading.RLock()  # one job at a time
        self._closed = False
        self._starting = threading.Lock()  # held while a process is being replaced
        self._sizes = ""
        self._finalizer = weakref.finalize(self, _end_unused, launcher, driver)
        self._finalizer.atexit = False  # `_end_all` closes them

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._sizes or "not asked yet"
        return f"<snailps cluster at {self.address}: {state}>"

    def __enter__(self: C) -> C:
        _within.append((threading.get_ident(), self))
        return self

    def __exit__(self, *_: object) -> None:
        entry = next((block for block in reversed(_within) if block[1] is self), None)
        if entry is not None:
            _within.remove(entry)
        self.close()

    @property
    def is_local(self) -> bool:
        """Whether the cluster's processes are children of this one, on this machine."""
        return self._launcher is not None

    @property
    def is_open(self) -> bool:
        """Whether the cluster can be used: not closed, not ended, and not made before a fork."""
        return self._driver.is_own and not (self._closed or self._driver.ended.is_set())

    def wait_for_start(self, limit_s: float) -> None:
        for status in self._watch(_until(limit_s)):
            if self._launcher is not None and status["phase"] in ("stopping", "done", "failed"):
                continue  # no job was there yet: the master ends, and says why then
            if self._driver.routed.is_set() and status["phase"] not in ("forming", "restoring"):
                return
            if self._launcher is not None:
                self._launcher.check()
        lacking = f": waiting for {status['waiting_for']}" if status["waiting_for"] else ""
        raise ClusterError(f"the cluster is not complete after {limit_s:.0f} s{lacking}")

    def table(self, name: str, dim: int = 1, **options: Any) -> LocalTable:
        """Declare a table; `options` as in `snailps.Table` (access, init, scale, lr, seed)."""
        table = Table(name, dim, **options)
        self._check_open()
        self._driver.declare(table)
        return LocalTable(self, self._driver, table)

    def tensor(self, name: str, shape: Sequence[int], **options: Any) -> LocalTensor:
        """Declare a dense array; `options` as in `snailps.Tensor`, the same as for a table."""
        tensor = Tensor(name, tuple(shape), **options)
        self._check_open()
        self._driver.declare(tensor.table())
        return LocalTensor(self, self._driver, tensor)

    def tables(self) -> dict[str, Table]:
        """Return all tables by name: of the last job, of all drivers, and loaded ones."""
        self._check_open()
        return {name: table for name, (_, table) in self._driver.all_tables().items()}

    def export(
        self,
        output: str | os.PathLike[str],
        format: Format = "safetensors",
        *,
        tables: Sequence[str] | None = None,
        state: bool = False,
        overwrite: bool = False,
        progress: ExportProgress | None = None,
    ) -> list[str]:
        """Write keys and rows of tables to files, keys ascending; this process writes them.

        Parameters
        ----------
        output : path
            Prefix of the paths.
        format : str
            ``safetensors`` or ``npz``: one file, ``TABLE.keys`` uint64 (n,), ``TABLE.rows`` (n,
            dim) of `Table.dtype`.  ``parquet``, with pyarrow: ``OUTPUT.TABLE.parquet``, ``key`` and
            ``row``.
        tables : sequence of str, optional
            Names; by default all tables of the cluster, of its last job and of other drivers too.
        state : bool
            Also write the optimizers' state, as ``TABLE.state`` or the column ``state``.
        overwrite : bool
            Replace files that exist.
        progress : ExportProgress, optional

        Returns
        -------
        list of str
            Paths of the files.

        Raises
        ------
        ConfigError
            There is no such table or format, a file exists, or pyarrow is not installed.
        ModelWriteError
            The folder is missing or not writable, or the disk is full.  No partial file is left.

        Notes
        -----
        Rows stream through buffers of some 100 MB and a scratch file in the output's folder.  Rows
        are read one after the other, so while others push the file mixes several moments.  Use a
        checkpoint for a single moment (`snailps checkpoint export --format`).
        """
        self._check_open()
        source = ClusterSource(self._driver, state=state, is_local=self.is_local)
        return export_tables(
            source, os.fspath(output), format,
            tables=tables, state=state, overwrite=overwrite, progress=progress,
        )  # fmt: skip

    def save(self, folder: str | os.PathLike[str]) -> str:
        """Save all tables, with the state of their optimizers, as a checkpoint.

        `load` restores it, in a cluster with any number of servers; ``snailps checkpoint`` lists,
        verifies and exports it.

        Parameters
        ----------
        folder : path
            A folder on a disk that the master and all servers share.  The checkpoint becomes its
            subfolder ``checkpoint-000001`` or a higher number; the newest `checkpoints_kept` (2)
            are kept.

        Returns
        -------
        str
            The path of the checkpoint.

        Raises
        ------
        ClusterError
            A job is running, which is changing the rows.
        CheckpointError
            It could not be written; earlier checkpoints are unchanged.

        Notes
        -----
        Rows are copied while others may push: each row is from some moment of the call.  Save
        between two steps if all rows must be from the same one.

        Examples
        --------
        >>> with snailps.local_cluster() as cluster:
        ...     cluster.table("w", dim=2).push([7], [[1.0, 2.0]])
        ...     path = cluster.save("saved")
        >>> with snailps.local_cluster(servers=2) as cluster:
        ...     cluster.load("saved")
        ...     print(cluster.table("w", dim=2).pull([7]))
        1
        [[1. 2.]]
        """
        self._check_open()
        path = os.path.abspath(absolute(folder))  # noqa: PTH100 (as it was typed)
        return self._driver.save(path)[0]

    def load(self, folder: str | os.PathLike[str]) -> int:
        """Replace the cluster's tables by the tables of a checkpoint.

        Parameters
        ----------
        folder : path
            A folder in which `save`, a session with `checkpoint_interval` or a job has written
            checkpoints: the newest good one is taken.  Or the folder of one checkpoint.

        Returns
        -------
        int
            Number of rows in all tables.

        Raises
        ------
        DataError
            There is no checkpoint.
        ConfigError
            A table is declared differently here, or the cluster has another `frag_num`.
        CheckpointError
            No checkpoint is good.  If servers had begun to read, their rows of its tables are gone.

        Notes
        -----
        Tables that are not in the checkpoint are unchanged.  Loaded ones belong to the session: no
        job drops them, and a job that declares the same tables continues to train them.  To use
        them, declare them as before, by `table` or a module: rows and optimizers' state are then
        there.  Pushes of others during the call may be lost.
        """
        self._check_open()
        path = os.path.abspath(absolute(folder))  # noqa: PTH100 (as it was typed)
        return self._driver.load(path)[1]

    def stored(self, table: str) -> Iterator[tuple[Keys, Rows]]:
        """Iterate over the stored rows of a table with the optimizer's state, in pieces of 1 MiB.

        Parameters
        ----------
        table : str
            A table that this process has declared.

        Yields
        ------
        keys : numpy.ndarray
            uint64 (n,), in no order.
        rows : numpy.ndarray
            (n, dim + state_floats) of `Table.dtype`, in the form that `assign` takes.
        """
        self._check_open()
        source = ClusterSource(self._driver, state=True, is_local=self.is_local)
        yield from source.stored(table)

    def has_rows(self, table: str) -> bool:
        """Whether the cluster has a row of a table of any driver or of its last job."""
        self._check_open()
        source = ClusterSource(self._driver)
        return table in source.tables and any(
            len(keys) for keys, _ in source.pieces(table, False, ExportProgress())
        )

    @contextlib.contextmanager
    def corked(self) -> Iterator[None]:
        """Send this thread's asynchronous pulls and pushes together, as `Worker.corked` does."""
        self._check_open()
        client = self._driver.client
        client.cork()
        try:
            yield
        finally:
            client.uncork()

    def counters(self) -> dict[str, Any]:
        """Counters of this process's client: bytes, rows pulled and pushed, open requests."""
        self._check_open()
        return self._driver.client.counters()

    @property
    def answers(self) -> bool:
        """Whether the master answers: that it has ended may not have been noticed yet."""
        if not self.is_open:
            return False
        try:
            self._driver.newest_job()
        except SnailError:
            return False
        return True

    def status(self) -> Status:
        """The master's current status."""
        self._check_open()
        status = self._driver.status()
        roles = [node["role"] for node in status["nodes"]]
        counted = [(roles.count(role), role) for role in ("server", "worker")]
        self._sizes = ", ".join(f"{n} {role}{'' if n == 1 else 's'}" for n, role in counted)
        return status

    def train(
        self, model: type[Worker] | str, /, *, timeout_s: float | None = None, **settings: Any
    ) -> dict[str, Any]:
        """Train a model on the cluster's workers and return the figures of the job.

        Parameters
        ----------
        model : class or str
            A `Worker` subclass, or its ``package.module:Class``.  If a notebook or script defines
            it, its source is sent to the workers, with the definitions that it uses.
        timeout_s : float, optional
            Limit in seconds, after which the job is cancelled.
        **settings
            Settings of the model and of every job: ``input=..., output=..., epochs=...``.

        Returns
        -------
        dict
            Figures of this job: speed, loss, and the figures of `export`.

        Raises
        ------
        ConfigError
            A setting is wrong, or the class cannot be sent.
        DataError
            The input is missing, empty or unreadable; also what a process of the cluster finds
            wrong in it, or in a setting, in the midst of the job, which is a `ClusterError`, too.
        ClusterError
            The job failed; the text says why, with the lines of your own code.  The cluster goes on
            running with its tables; workers that have ended with the job are replaced before the
            next one begins.

        Notes
        -----
        Settings are Python values, not text of a .conf file: a string may hold commas and quotes,
        and a list gives several values.  The workers import the class from its file when the job
        begins: edit it and train again, without `importlib.reload` here.

        Every job starts with new tables of its own; those that `table` or `tensor` declared before
        belong to the session and are shared by all jobs.  To read a job's result, declare its table
        in the same way before the next job begins, or use `run`.
        """
        return self._run(model, settings, (), None, timeout_s).figures

    def run(
        self,
        model: type[Worker] | str,
        settings: Mapping[str, Any] | None = None,
        *,
        input: Any = None,
        files: Sequence[Spooled | str] = (),
        on_status: Callable[[Status], object] | None = None,
        timeout_s: float | None = None,
        quiet: bool = False,
    ) -> JobResult:
        """Train a model as `train` does; its tables can be read until the next job begins.

        Parameters
        ----------
        model : class or str
        settings : mapping
            Settings of the model and of every job.
        input : path, list of paths or spooled data
            The setting of that name.
        files : sequence of spooled data, or paths
            Further files of this process that settings name by their paths.
        on_status : callable
            Called with the `Status` a few times per second.  If it returns False, the training ends
            early, as after its last epoch; an exception in it cancels the job.
        timeout_s : float, optional
            Limit in seconds, after which the job is cancelled.
        quiet : bool
            Hold the lines of the cluster's own processes until the job has ended; show them then if
            it succeeded, and drop them if it failed, because the error has them.  No effect with a
            `log`.

        Returns
        -------
        JobResult

        Raises
        ------
        SnailError
            The same as `train`.  An interrupted wait, by Ctrl-C for example, cancels the job.
        """
        values = dict(settings or {})
        if input is not None:
            values["input"] = input
        return self._run(model, values, files, on_status, timeout_s, quiet)

    def _run(
        self,
        model: type[Worker] | str,
        values: Mapping[str, Any],
        files: Sequence[Spooled | str],
        on_status: Callable[[Status], object] | None,
        timeout_s: float | None,
        quiet: bool = False,
    ) -> JobResult:
        self._check_open()
        path, source = _path_of(model)
        begun, until = awake_s(), _until(timeout_s)
        with (
            self.in_turn(until),
            self._hushed(quiet) as hold,
            self._placed(values, files) as placed,
        ):
            texts = setting_texts({"worker_class": path, **placed})
            again = True
            while again:
                self._renew_workers(until)
                hold()
                try:
                    number = self._submit(texts, source, begun, until)
                    history = self._wait(number, on_status, begun, until)
                except BaseException:
                    with contextlib.suppress(SnailError):  # the cluster itself may have ended
                        self._driver.cancel()
                    self._renew_beside()
                    raise
                job = self._driver.job(number)
                again = job.get("again", False)
                if again:
                    log.warning("%s", AGAIN)
            if failure := job["failure"]:
                if self._launcher is not None:
                    self._launcher.note_raised()
                    if ends := self._launcher.unusual_ends(failure):
                        failure += f" ({ends})"
                self._renew_beside()
                kind = JobInputError if job.get("is_wrong", False) else ClusterError
                raise kind(with_frames(failure, job["trace"]))
        figures = job["figures"]
        return JobResult(figures, history.of(figures), self, number, model, job["settings"])

    @contextlib.contextmanager
    def _hushed(self, quiet: bool) -> Iterator[Callable[[], None]]:
        """If `quiet`, hold the processes' lines; yield a function that starts holding anew.

        Held lines are shown if the block succeeds.  If it fails they are dropped, and so are later
        lines until the next job, because lines about the failure may come after it.
        """
        if self._launcher is None:
            yield lambda: None
            return
        lines = self._launcher.lines
        if not quiet:
            lines.release()
            yield lambda: None
            return
        lines.drop()
        try:
            yield lines.hold
        except BaseException:
            lines.drop()
            raise
        lines.release()

    @contextlib.contextmanager
    def in_turn(self, until: float = math.inf) -> Iterator[None]:
        """Reserve the cluster: no job of another thread begins during the block.

        Waits for earlier jobs until the monotonic time `until`.
        """
        left_s = min(max(0.0, until - awake_s()), threading.TIMEOUT_MAX)
        if not self._turn.acquire(timeout=left_s):
            raise ClusterError(
                "another thread's job has not ended within the time limit, so this job has not "
                "begun: wait for the other one, or raise timeout_s"
            )
        try:
            yield
        finally:
            self._turn.release()

    def _submit(self, texts: Mapping[str, str], source: bytes, begun: float, until: float) -> int:
        """Submit the job; return its number."""
        key = self._launcher.source_key if self._launcher is not None else ""
        limit_s = None if until == math.inf else max(0.0, until - awake_s())
        try:
            return self._driver.submit(texts, source, key, limit_s)
        except WaitTimeout:
            raise ClusterError(
                f"the job is not done after {awake_s() - begun:.0f} s (timeout_s): the "
                "master is still importing its class, or looking for its input; the job was "
                "cancelled"
            ) from None

    def _wait(
        self,
        number: int,
        on_status: Callable[[Status], object] | None,
        begun: float,
        until: float,
    ) -> History:
        """Wait for the end of the job; return its history."""
        history, ending, ended = History(), False, threading.Event()
        self._driver.when_ended(number, ended.set)
        for status in self._watch(until, ended):
            session = status["session"]
            assert session is not None
            leaving = status["phase"] == "stopping" and session["jobs"] == number
            if session["job"] != number and not leaving:
                return history
            history.add(status)
            if on_status is None or on_status(status) is not False:
                continue
            if status["phase"] == "training" and not ending:
                ending = True
                self._driver.cancel(early=True)
        raise ClusterError(
            f"the job is not done after {awake_s() - begun:.0f} s (timeout_s): "
            f"{status['phase']}, {status['progress']:.0%}; it was cancelled"
        )

    @contextlib.contextmanager
    def _placed(
        self, values: Mapping[str, Any], files: Sequence[Spooled | str]
    ) -> Iterator[dict[str, Any]]:
        """Yield the settings with paths at which the cluster can read this process's data.

        For a cluster on other hosts, this process serves the data during the block.
        """
        served: dict[str, str] = {}

        def place(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [place(item) for item in value]
            if isinstance(value, Spooled):
                path = value.path
            elif isinstance(value, (str, os.PathLike)) and str(value) in named:
                path = str(value)
            else:
                return value
            if self.is_local:
                return path
            if path not in served:
                served[path] = self._driver.serve(path)
            return served[path]

        named = {file if isinstance(file, str) else file.path for file in files}
        try:
            yield {name: place(value) for name, value in values.items()}
        finally:
            for path in served.values():
                self._driver.withdraw(path)

    def _results(self, of: JobResult, changes: Mapping[str, Any]) -> Results:
        self._check_open()
        declared = settings_of(type(of.settings))
        if unknown := sorted(changes.keys() - declared.keys()):
            raise ConfigError(f"results: {unknown[0]} is no setting of {of._texts['worker_class']}")
        job = self._driver.job(of._number)
        if job["tables"] is None:
            raise ClusterError(
                "the tables of this job are gone: another job has begun, or another master has "
                "taken over that may not import their access method ('modules'). Read the results "
                "of a job before the next one"
            )
        tables = {item["name"]: (number, Table.from_dict(item)) for number, item in job["tables"]}
        return Results(
            replace(of.settings, **changes),
            self._driver.summary(of._number),
            dict(of.figures),
            self._driver.client,
            {name: number for name, (number, _) in tables.items()},
            {name: table for name, (_, table) in tables.items()},
            self._driver.route.frag_num,
        )

    def _renew_beside(self) -> None:
        """Replace the workers of a failed job in a thread, while the caller handles the failure.

        A Python process takes half a second to start and to join.  The next job waits until it is
        done.
        """
        if self._launcher is None:
            return

        def renew() -> None:
            with contextlib.suppress(SnailError), self.in_turn():  # the next job reports it
                if self.is_open:
                    self._renew_workers(_until(RENEW_S))

        threading.Thread(target=renew, name="snailps-renew", daemon=True).start()

    def _renew_workers(self, until: float) -> None:
        """Replace workers that have ended, and wait until the new ones are ready.

        Workers on other hosts restart by themselves; this only waits for them.
        """
        if self._launcher is None:
            self._wait_until_idle(until)
            return
        begun = awake_s()
        for status in self._watch(until):  # the master expels workers that do not leave
            if status["phase"] != "stopping":
                break
            if awake_s() - begun > HANG_S:
                self._launcher.kill(
                    node["pid"] for node in status["nodes"] if node["state"] == "stopping"
                )
        else:
            raise ClusterError(
                "workers of the previous job have not ended within the time limit: try again, or "
                "raise timeout_s"
            )
        nodes = status["nodes"]
        here = {node["id"] for node in nodes}
        dead = self._launcher.ended()
        members = {node["pid"] for node in nodes} - dead
        with self._starting:
            coming = sum(
                self._launcher.restart(index, "has left the cluster")
                for index, child in enumerate(self._launcher.children)
                if child.role == "worker" and child.process.pid not in members and self.is_open
            )
        if not coming:
            return
        for status in self._watch(min(until, _until(self._driver.settings.init_timeout))):
            nodes = status["nodes"]
            new = [node for node in nodes if node["role"] == "worker" and node["id"] not in here]
            ready = [node for node in new if node["state"] == "ready"]
            if len(ready) >= coming and not dead & {node["pid"] for node in nodes}:
                return
        raise ClusterError(
            f"{coming - len(new)} of {coming} workers that were started again did not join: see "
            "their log lines"
        )

    def _wait_until_idle(self, until: float) -> None:
        """Wait until all workers of a failed job have restarted, and all members are back with a
        master that takes over; an error if no worker is ready then."""
        begun = awake_s()
        for status in self._watch(until):
            workers = [node for node in status["nodes"] if node["role"] == "worker"]
            coming = status["session"]["coming"] if status["session"] else 0
            is_ready = any(node["state"] == "ready" for node in workers)
            if status["phase"] == "idle" and is_ready and not coming:
                return
            if status["phase"] not in ("idle", "stopping", "forming", "restoring"):
                raise ClusterError(
                    f"the cluster runs another job ({status['phase']}, {status['progress']:.0%}): "
                    "wait until status()['phase'] is 'idle'"
                )
            limit_s = RENEW_S if coming else self._driver.settings.init_timeout
            if awake_s() - begun > limit_s:
                break
        if coming:
            raise ClusterError(
                f"{coming} workers of a failed job are restarting and have not joined yet: wait "
                "until status()['session']['coming'] is 0"
            )
        states = ", ".join(f"worker {node['id']} is {node['state']}" for node in workers)
        raise ClusterError(
            "the cluster has no worker that is ready: start `snailps worker` on its hosts"
            + (f" ({states})" if states else "")
        )

    def _watch(self, until: float, news: threading.Event | None = None) -> Iterator[Status]:
        """Yield the status at intervals, at least once, until `until`.

        With `news`, at once when it comes, and seldom before.
        """
        wait_s = 0.0 if news is None else LOOK_S
        while True:
            (news or self._driver.ended).wait(wait_s)
            if self._driver.ended.is_set():
                break
            heard = news is not None and news.is_set()  # before the status is read: it has the news
            try:
                status = self.status()
            except SnailError:
                if self._driver.ended.wait(ENDING_S):
                    break  # the master closes the connection after it has sent its verdict
                raise
            yield status
            if heard:
                news = None  # it comes only once
            if awake_s() > until:
                return
            wait_s = LOOK_JOB_S if news is not None else min(LOOK_S, 1.5 * wait_s or LOOK_FIRST_S)
        raise self._why_ended()

    def _why_ended(self) -> ClusterError:
        """Make the error of a cluster that has ended: the cause, what is lost, what to do."""
        text = self._driver.verdict.text or "the cluster was shut down"
        if self._launcher is not None and self._driver.verdict.code != EXIT_OK:
            text = self._launcher.master_end(ENDING_S) or text
            if ends := self._launcher.unusual_ends(text):
                text += f" ({ends})"
        what = "This cluster has ended, with its tables and what it was training: start or connect "
        what += "to another one"
        if self._driver.begins_anew:
            what = "The cluster goes on, with its tables: connect to it again"
        return ClusterError(f"{text.rstrip('.')}. {what}")

    def _check_open(self) -> None:
        self._driver.check_process()
        if self._closed:
            raise ClusterError("this cluster is closed: start or connect to another one")
        if self._driver.ended.is_set():
            raise self._why_ended()

    def close(self) -> None:
        """End a cluster that this process has started; leave one that it has joined.

        Returns when all child processes have ended.  Idempotent; does nothing in a forked child.
        """
        if self._closed or not self._driver.is_own:
            return
        self._closed = True
        with self._starting:  # wait for a process that is being started, so that it ends, too
            pass
        self._finalizer.detach()
        end_processes(self._launcher, self._driver)

    @property
    def has_own_tables(self) -> bool:
        """Whether `table` or `tensor` has declared tables here, which no job replaces."""
        return self._driver.has_tables

    def shut_down(self) -> None:
        """End the cluster for all its users, also on other hosts."""
        self._check_open()
        self._driver.shut_down()
        self.close()


_within: list[tuple[int, Cluster]] = []
"""(thread, cluster) of each ``with`` block that this process is in, the innermost last."""
os.register_at_fork(after_in_child=_within.clear)


def within() -> Cluster | None:
    """Return the cluster of this thread's innermost ``with`` block, else of the main thread's."""
    for thread in (threading.get_ident(), threading.main_thread().ident):
        for owner, made in reversed(_within):
            if owner == thread and made._driver.is_own:
                made._check_open()
                return made
    return None


def end_processes(launcher: Launcher | None, driver: Driver) -> None:
    """End the child processes, and leave the cluster."""
    if not driver.is_own:
        return
    try:
        if launcher is not None:
            with contextlib.suppress(SnailError):
                driver.shut_down()
                driver.ended.wait()  # a session with checkpoints saves its tables before it ends
        driver.close()
    finally:  # also after an interrupt: `close` runs only once, and no child may stay
        if launcher is not None:
            launcher.end()


def _end_unused(launcher: Launcher | None, driver: Driver) -> None:
    """End a cluster that nothing refers to any more, for example when a notebook's cell reran."""
    if driver.is_own:  # in a thread of its own: the thread that dropped it may hold any lock
        threading.Thread(target=end_processes, args=(launcher, driver), daemon=True).start()


def _until(limit_s: float | None) -> float:
    return math.inf if limit_s is None else awake_s() + limit_s


def _path_of(model: type[Worker] | str) -> tuple[str, bytes]:
    """Return ``package.module:Class`` of a model, and its source if no module can be imported."""
    if isinstance(model, str):
        return model, b""
    if not (isinstance(model, type) and issubclass(model, Worker)):
        raise ConfigError(
            f"a model is a subclass of snailps.Worker, or its package.module:Class; got "
            f"{model!r:.80}"
        )
    check_class(model, f"{model.__module__}:{model.__qualname__}")
    if not is_local_class(model):
        return f"{model.__module__}:{model.__qualname__}", b""
    source = encode(source_of(model))
    return f"{module_name(source)}:{model.__qualname__}", source
