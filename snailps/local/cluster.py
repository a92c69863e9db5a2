"""Gives a Python session its cluster: started on this machine, or joined elsewhere.

    cluster, local_cluster -> Run (processes), Driver (one of the cluster) -> Cluster
    connect(address)       -> Driver                                            -> Cluster
    default_cluster        -> the one of the innermost `with`, else one kept for this process

Combines `ClusterProcesses` and `Driver`; must not know messages.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import IO, Any, TypeVar

from snailps.config import (
    ROLE_CLASSES,
    CheckpointSettings,
    ClusterSettings,
    JobSettings,
    ListenerSettings,
    MasterSettings,
    RawConfig,
    Settings,
    settings_of,
)
from snailps.config.output import absolute, make_folder
from snailps.errors import (
    ClusterError,
    ConfigError,
    ConnectionLost,
    ProtocolError,
    RemoteError,
    SnailError,
    WaitTimeout,
)
from snailps.local.driver import Driver
from snailps.local.fork_server import Forked, ForkServer
from snailps.local.launcher import LEAVE_S, Launcher, NodeEnded, labelled
from snailps.local.run import LOCAL, SERVERS_MAX, WORKERS_MAX, ClusterProcesses
from snailps.local.session import Cluster, within
from snailps.local.session_tables import LocalTable, LocalTensor
from snailps.local.setting_texts import setting_texts
from snailps.master.life import SESSION
from snailps.node.limits import END_S
from snailps.transport._awake import awake_s

__all__ = [
    "Cluster",
    "LocalCluster",
    "LocalTable",
    "LocalTensor",
    "cluster",
    "connect",
    "default_cluster",
    "local_cluster",
]

LocalCluster = Cluster
MARGIN_S = 5.0
"""Seconds that the start may last beyond the master's own limit: the master's error comes first,
because it names what is missing."""
FITS_MAX = 4000
"""Fits on one kept cluster: a cluster can number some 65,000 tables."""
CONNECT_S = 10.0
"""Seconds for which `connect` tries to reach a master."""
_ROLES: tuple[type[Settings], ...] = tuple(c for _, c in ROLE_CLASSES if c is not JobSettings)
T = TypeVar("T")


def cluster(
    servers: int = 1, workers: int | None = None, *, log: IO[str] | None = None, **settings: Any
) -> Cluster:
    """Start a cluster of real processes on this machine, which runs until it is closed.

    In a ``with`` block, models are fitted on it, and it ends with the block.  Else it ends with
    `close`, with the last reference to it, or with this process, however that ends.

    Parameters
    ----------
    servers, workers : int
        Number of servers and workers.  By default one worker, which trains with a thread per core.
    log : text file, optional
        Receives the lines of the processes; standard error by default.
    **settings
        Settings of the roles: ``threads=2, shard_num=1, frag_num=64 ...``; and of checkpoints of
        its tables: with ``checkpoint_dir="saved", checkpoint_interval=60`` the next cluster
        continues from them.

    Raises
    ------
    ConfigError
        A setting is wrong.
    ClusterError
        A process could not start.

    Examples
    --------
    >>> with snailps.cluster(workers=2) as cluster:  # doctest: +SKIP
    ...     model = snailps.FastText(dim=50).fit(sentences)
    """
    return _start(servers, 1 if workers is None else workers, log, settings, "cluster")


@contextlib.contextmanager
def local_cluster(
    servers: int = 1, workers: int = 1, *, log: IO[str] | None = None, **settings: Any
) -> Iterator[Cluster]:
    """Run a cluster of real processes on this machine for the duration of the ``with`` block.

    Parameters
    ----------
    servers, workers : int
        Number of servers and workers; tables alone need no workers.
    log : text file, optional
        Receives the lines of the processes; standard error by default.
    **settings
        Settings of the roles: ``threads=2, shard_num=1, frag_num=64 ...``.

    Yields
    ------
    Cluster

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
    with _start(servers, workers, log, settings, "local_cluster") as made:
        yield made


def connect(
    address: str = "", *, secret_file: str = "", tls: str = "", timeout_s: float = CONNECT_S,
    **settings: Any,
) -> Cluster:  # fmt: skip
    """Join a running cluster of other processes or hosts.

    The cluster was started with ``snailps master --session``, or is the one beside which this
    process runs (``snailps local -- COMMAND``).  `close`, or the end of a ``with`` block, leaves
    the cluster running: others may use it.

    Parameters
    ----------
    address : str
        ``host:port`` of the master; by default the value of SNAILPS_MASTER_ADDR, which ``snailps
        local -- COMMAND`` sets.
    secret_file, tls : str
        The same as in the .conf files of the cluster's processes (docs/security.md).
    timeout_s : float
        Limit in seconds for reaching the master, and for waiting until the cluster is complete.
    **settings
        Other settings of every process, such as ``request_timeout=120``; and ``port_range``,
        ``listen_addr`` and ``advertise_addr``: where this process listens while the cluster reads
        data from it.

    Raises
    ------
    ConfigError
        A setting is wrong.
    ClusterError
        No master answers, it refuses this process, or it takes no jobs from Python.

    Examples
    --------
    >>> with snailps.connect("node1:16831", secret_file="secret") as cluster:  # doctest: +SKIP
    ...     cluster.train("mymodel:MyModel", input="/shared/data.txt")
    """
    address = address or os.environ.get("SNAILPS_MASTER_ADDR", "")
    if not address:
        raise ConfigError(
            "connect(address): expected host:port of a master, or SNAILPS_MASTER_ADDR in the "
            "environment, as `snailps local -- COMMAND` sets it"
        )
    driver = Driver(
        driver_settings(
            address, "connect", secret_file=secret_file, tls=tls, timeout_s=timeout_s, **settings
        )
    )
    try:
        driver.join()
    except (WaitTimeout, ConnectionLost, ProtocolError, RemoteError) as error:
        driver.close()
        raise ClusterError(f"no session at {address}: {error}") from None
    except BaseException:
        driver.close()
        raise
    made = Cluster(None, driver, address)
    try:
        if made.status()["session"] is None:
            raise ClusterError(
                f"the cluster at {address} runs the job of its master's .conf file and takes no "
                "jobs from Python: start its master with `snailps master --session`"
            )
        made.wait_for_start(timeout_s)
    except BaseException:
        made.close()
        raise
    return made


def driver_settings(
    address: str, caller: str, *, secret_file: str, tls: str, timeout_s: float = CONNECT_S,
    **settings: Any,
) -> ListenerSettings:  # fmt: skip
    """Build the settings of a process that joins the cluster at `address`; reads the environment.

    A `ConfigError` names a wrong one as a parameter of `caller`.
    """
    parameters = {"master_addr": address, "init_timeout": timeout_s}
    for name, instead in (("master_addr", "address"), ("init_timeout", "timeout_s")):
        if name in settings:
            raise ConfigError(f"{caller}({name}): {instead} sets it here: leave {name} out")
    if secret_file:
        parameters["secret_file"] = secret_file
    if tls:
        parameters["tls"] = tls
    texts = setting_texts({**settings, **parameters})
    raw = _around(ListenerSettings)
    return raw.merged(RawConfig.from_mapping(texts, caller + "({key})")).build(ListenerSettings)


# --- the cluster of fits that name none -----------------------------------------------------------


class _Kept:
    """The cluster that this process keeps for fits that name none.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cluster: Cluster | None = None
        self._workers = self._fits = 0

    def get(self, workers: int | None) -> Cluster:
        """Return the kept cluster, with `workers` workers if given; start it if there is none.

        For another number of workers a new cluster is started; the old one ends when nothing
        refers to it.
        """
        with self._lock:
            made = self._cluster
            if made is not None and workers in (None, self._workers) and made.answers:
                self._fits += 1
                if self._fits <= FITS_MAX or made.has_own_tables:  # the user may be using them
                    return made
            self._fits = 1
            made = self._cluster = None  # so that the old cluster frees its memory first
            self._workers = workers or 1
            self._cluster = made = cluster(workers=self._workers)
            return made


_kept = _Kept()
_all: weakref.WeakSet[Cluster] = weakref.WeakSet()
"""Clusters started by this process that may still run."""


def default_cluster(workers: int | None = None) -> Cluster:
    """Return the cluster that a model is fitted on if none is named.

    That is the cluster of the innermost ``with`` block.  Outside of any, a cluster is started at
    the first use, kept for further fits, which reuse its memory, and ended with this process.
    After some thousand fits a new one takes its place, unless `Cluster.table` has declared tables
    in it; the old one ends when nothing refers to it.

    Parameters
    ----------
    workers : int, optional
        If the kept cluster has another number of workers, a new one is started, without the
        tables of the old one.  The cluster of a ``with`` block is used as it is.

    Examples
    --------
    >>> with snailps.local_cluster() as mine:
    ...     print(snailps.default_cluster() is mine)
    True
    """
    return within() or _kept.get(workers)


def _end_all() -> None:
    """End the clusters that were not closed, when Python ends."""
    for made in list(_all):
        with contextlib.suppress(Exception):
            made.close()


def _forget_all() -> None:
    """Forget the clusters in a forked child: they belong to its parent."""
    global _kept, _keeper
    _kept, _keeper = _Kept(), _Keeper()
    _all.clear()


class _Keeper:
    """A thread that starts child processes, and lives as long as this process.

    The kernel ends a child when the *thread* that started it ends (`PR_SET_PDEATHSIG`), and the
    thread that asks for a cluster may end before the cluster does.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def call(self, do: Callable[[], T]) -> T:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="snailps-keep", daemon=True)
                self._thread.start()
        done: Future[T] = Future()
        self._asked.put((do, done))
        return done.result()

    def _run(self) -> None:
        while True:
            do, done = self._asked.get()
            try:
                done.set_result(do())
            except BaseException as error:
                done.set_exception(error)
            del do, done


_keeper = _Keeper()
atexit.register(_end_all)
os.register_at_fork(after_in_child=_forget_all)


class KeptLauncher(Launcher):
    """A launcher whose processes end with this one, not with the thread that asked for them.

    They are forks of a fork server: this process has threads, so it must not fork itself.
    """

    _forks: ForkServer | None = None

    def start(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Like `Launcher.start`; anything that ends the wait, Ctrl-C too, gives the start up."""
        _in_keeper(lambda stop: Launcher.start(self, lambda: stop() or give_up()))

    def restart(self, index: int, why: str, give_up: Callable[[], bool] = lambda: False) -> bool:
        return _in_keeper(
            lambda stop: Launcher.restart(self, index, why, lambda: stop() or give_up())
        )

    def _begin(
        self,
        role: str,
        arguments: Mapping[str, Any],
        files: Mapping[str, int],
        cpus: frozenset[int],
    ) -> Forked:
        if self._forks is None:
            self._forks = ForkServer()
        return self._forks.start(role, arguments, files, cpus)

    def end(self, limit_s: float = END_S) -> None:
        super().end(limit_s)
        if self._forks is not None:
            self._forks.close()


def _in_keeper(do: Callable[[Callable[[], bool]], T]) -> T:
    """Call `do` in the keeper's thread; it gives up when the caller stops waiting.

    Otherwise processes would still start after the caller has ended all others.
    """
    stopped = threading.Event()
    try:
        return _keeper.call(lambda: do(stopped.is_set))
    except BaseException:
        stopped.set()
        _keeper.call(lambda: None)  # waits for `do`
        raise


def _start(
    servers: int, workers: int, log: IO[str] | None, settings: Mapping[str, Any], caller: str
) -> Cluster:
    """Start the processes of a cluster, and join it."""
    if type(servers) is not int or type(workers) is not int or servers < 1 or workers < 0:
        raise ConfigError(
            f"{caller}: a cluster needs a server, and whole numbers: got {servers!r:.40} servers, "
            f"{workers!r:.40} workers"
        )
    if servers > SERVERS_MAX or workers > WORKERS_MAX:
        raise ConfigError(
            f"{caller}: expected at most {SERVERS_MAX} servers and {WORKERS_MAX} workers on one "
            f"machine, got {servers:,} and {workers:,}"
        )
    texts = setting_texts(settings)
    raw = _role_config(texts, caller)
    master = raw.build(MasterSettings, also_known=_ROLES)

    def write(name: str, line: str) -> None:
        # A JSON line already has the name of its process.
        text = line if line.startswith("{") else labelled(name, line)
        (log if log is not None else sys.stderr).write(f"{text}\n")

    for notice in raw.notices:
        write(caller, notice)
    run = ClusterProcesses(
        raw.over_shared({**LOCAL, "log_level": "warning"}, "--set {key}"),
        launcher=KeptLauncher,
        servers=servers,
        workers=workers,
        life=SESSION,
        on_line=write,
    )
    run.launcher.lines.may_hold = log is None
    made = driver = None
    limit_s = master.master_time_out + master.init_timeout + MARGIN_S
    try:
        if not run.start(awake_s() + limit_s):
            raise ClusterError(
                f"the master has not begun to listen within {limit_s:.0f} s (master_time_out and "
                "init_timeout): is the machine overloaded?"
            )
        where = RawConfig.from_mapping({"master_addr": run.launcher.address}, caller)
        driver_raw = raw.merged(where).build(ClusterSettings, also_known=_ROLES)
        driver = Driver(driver_raw, run.launcher.secret)
        driver.join(give_up=lambda: run.launcher.poll() is not None)
        made = Cluster(run.launcher, driver)
        _all.add(made)
        made.wait_for_start(limit_s)
    except BaseException as error:
        # The master listens before it reads its checkpoints, so it may end at any step above.
        is_of_node = not isinstance(error, SnailError) or isinstance(error, NodeEnded)
        ended = None if driver is None or is_of_node else run.launcher.no_start(LEAVE_S)
        if made is not None:
            made.close()
        else:
            run.stop(5.0)
            if driver is not None:
                driver.close()
        if ended is not None:
            raise ended from None
        raise
    return made


def _around(*classes: type[Settings]) -> RawConfig:
    """Read the environment's settings of these classes; the other ones in it belong to a job."""
    names = {name for cls in classes for name in settings_of(cls)}
    environment = RawConfig.load(None, environ=os.environ)
    return RawConfig(entry for entry in environment.entries if entry.key in names)


def _role_config(texts: Mapping[str, str], caller: str) -> RawConfig:
    """Check the roles' settings as the processes will read them: environment, then `texts`.

    Settings of checkpoints in the environment are ignored: they are meant for jobs.
    """
    if "journal_dir" in texts:
        raise ConfigError(
            f"{caller}(journal_dir): a cluster that this process starts ends with its master, so "
            "no master would continue from a journal. Set checkpoint_dir and checkpoint_interval, "
            "or start `snailps master --session` and connect to it"
        )
    raw = _around(*(cls for cls in _ROLES if cls is not CheckpointSettings))
    raw = raw.merged(RawConfig.from_mapping(texts, caller + "({key})"))
    for cls in _ROLES:
        raw.build(cls, also_known=_ROLES)
    if folder := raw.build(CheckpointSettings, also_known=_ROLES).checkpoint_dir:
        make_folder(absolute(folder), f"{caller}(checkpoint_dir)", "checkpoint_dir")
    return raw
