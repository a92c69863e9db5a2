"""How a Python session gets a cluster: started on this machine, or joined elsewhere.

    cluster, local_cluster -> Run (processes), Driver (one of the cluster) -> Cluster
    connect(address)       -> Driver                                            -> Cluster
    default_cluster        -> that of the innermost `with`, else one that is kept for this process

Combines `Run` and `Driver`; must not know messages.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import sys
import threading
import time
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
from snailps.local.launcher import Launcher, labelled
from snailps.local.run import LOCAL, Run
from snailps.local.session import Cluster, within
from snailps.local.session_tables import LocalTable, LocalTensor
from snailps.local.setting_texts import setting_texts

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
"""Seconds that the start may take longer than the master waits: its error names what is missing."""
FITS_MAX = 4000
"""Fits on one kept cluster: it has numbers for some 65,000 tables."""
CONNECT_S = 10.0
"""Seconds that `connect` tries to reach a master."""
_ROLES: tuple[type[Settings], ...] = tuple(c for _, c in ROLE_CLASSES if c is not JobSettings)
T = TypeVar("T")


def cluster(
    servers: int = 1, workers: int | None = None, *, log: IO[str] | None = None, **settings: Any
) -> Cluster:
    """A cluster of real processes on this machine, which runs until it is closed.

    In a ``with`` block it is what models are fitted on, and ends with the block; else it ends with
    `close`, with the last reference to it, or with this process, however that ends.

    Parameters
    ----------
    servers, workers : int
        How many of each.  Without `workers`: one, which trains with a thread a core.
    log : text file, optional
        Receives the lines of the processes; standard error by default.
    **settings
        Of the roles: ``threads=2, shard_num=1, frag_num=64 ...``; and of checkpoints of its tables:
        with ``checkpoint_dir="saved", checkpoint_interval=60`` the next one goes on from them.

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
    """Joins a running cluster of other processes or hosts, begun with ``snailps master --session``.

    Or that beside which this process runs, by ``snailps local -- COMMAND``.

    `close`, or the end of a ``with`` block, leaves the cluster as it is: others may use it.

    Parameters
    ----------
    address : str
        Of the master, ``host:port``; by default that in SNAILPS_MASTER_ADDR, which ``snailps local
        -- COMMAND`` sets.
    secret_file, tls : str
        As in the files of its processes (docs/security.md).
    timeout_s : float
        Limit of reaching it, and of waiting until it is complete, seconds.
    **settings
        Others of every process, ``request_timeout=120``, and ``port_range``, ``listen_addr`` and
        ``advertise_addr``: where this process listens while the cluster reads data of its own.

    Raises
    ------
    ConfigError
        A setting is wrong.
    ClusterError
        Nothing listens there, it does not take this process, or it takes no jobs.

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
                f"the cluster at {address} runs the job of its master's file, and takes none from "
                "Python: start its master with `snailps master --session`"
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
    """Settings, of the environment too, of a process that joins the cluster at `address`.

    A `ConfigError` names a wrong one as a parameter of `caller`.
    """
    own = {"master_addr": address, "init_timeout": timeout_s}
    if secret_file:
        own["secret_file"] = secret_file
    if tls:
        own["tls"] = tls
    texts = setting_texts({**settings, **own})
    raw = _around(ListenerSettings)
    return raw.merged(RawConfig.from_mapping(texts, caller + "({key})")).build(ListenerSettings)


# --- the cluster of those who name none -----------------------------------------------------------


class _Kept:
    """The one cluster that this process keeps for fits that name none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cluster: Cluster | None = None
        self._workers = self._given = 0

    def get(self, workers: int | None) -> Cluster:
        """The kept cluster, with `workers` workers if given; started if need be.

        With another number a new one is started; the old one ends when nothing uses it.
        """
        with self._lock:
            made = self._cluster
            if made is not None and workers in (None, self._workers) and _is_alive(made):
                self._given += 1
                if self._given <= FITS_MAX or made.has_own_tables:  # they may be in use
                    return made
            self._given = 1
            made = self._cluster = None  # may end before the new cluster needs memory
            self._workers = workers or 1
            self._cluster = made = cluster(workers=self._workers)
            return made


def _is_alive(made: Cluster) -> bool:
    """Whether a cluster answers, as its end may not have been noticed yet."""
    try:
        return made.is_open and bool(made.status())
    except SnailError:
        return False


_kept = _Kept()
_all: weakref.WeakSet[Cluster] = weakref.WeakSet()
"""Clusters started by this process that may still run."""


def default_cluster(workers: int | None = None) -> Cluster:
    """The cluster that a model is fitted on if none is named.

    It is that of the innermost ``with`` block.  Without one it is started at the first use, kept,
    and ended with this process; its memory serves one fit after the other.  After some thousand
    fits another one takes its place, unless `Cluster.table` has declared tables in it.  The old one
    ends when nothing refers to it.

    Parameters
    ----------
    workers : int, optional
        A number other than the kept cluster's starts another one, without its tables; the cluster
        of a ``with`` block is taken as it is.

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
    """Forget the clusters in a fork: they are its parent's."""
    global _kept, _keeper
    _kept, _keeper = _Kept(), _Keeper()
    _all.clear()


class _Keeper:
    """A thread that starts processes and lives as long as this one: they end with their starter.

    The thread that asks for a cluster may end before it.
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
    """A launcher whose processes end with this one, not with the thread that asked for them."""

    def start(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Like `Launcher.start`; anything that ends the wait, Ctrl-C too, gives the start up."""
        _in_keeper(lambda stop: Launcher.start(self, lambda: stop() or give_up()))

    def restart(self, index: int, why: str, give_up: Callable[[], bool] = lambda: False) -> bool:
        return _in_keeper(
            lambda stop: Launcher.restart(self, index, why, lambda: stop() or give_up())
        )


def _in_keeper(do: Callable[[Callable[[], bool]], T]) -> T:
    """Call `do` in the keeper's thread; `do` gives up when the caller stops waiting.

    Else processes would start after the caller has ended all others.
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
    if servers < 1 or workers < 0:
        raise ConfigError(f"a cluster needs a server: got {servers} servers, {workers} workers")
    texts = setting_texts(settings)
    raw = _role_config(texts, caller)
    master = raw.build(MasterSettings, also_known=_ROLES)

    def write(name: str, line: str) -> None:
        # A JSON line has the name of its process.
        text = line if line.startswith("{") else labelled(name, line)
        (log if log is not None else sys.stderr).write(f"{text}\n")

    for notice in raw.notices:
        write(caller, notice)
    run = Run(
        raw.over_shared({**LOCAL, "log_level": "warning"}, "--set {key}"),
        launcher=KeptLauncher,
        servers=servers,
        workers=workers,
        session=True,
        on_line=write,
    )
    run.launcher.lines.may_hold = log is None
    made = driver = None
    limit_s = master.master_time_out + master.init_timeout + MARGIN_S
    try:
        if not run.start(time.monotonic() + limit_s):
            raise ClusterError(f"the master has not begun to listen within {limit_s:.0f} s")
        at = RawConfig.from_mapping({"master_addr": run.launcher.address}, caller)
        own_settings = raw.merged(at).build(ClusterSettings, also_known=_ROLES)
        driver = Driver(own_settings, run.launcher.secret)
        driver.join()
        made = Cluster(run.launcher, driver)
        _all.add(made)
        made.wait_for_start(limit_s)
    except BaseException:
        if made is not None:
            made.close()
        else:
            run.stop(5.0)
            if driver is not None:
                driver.close()
        raise
    return made


def _around(*classes: type[Settings]) -> RawConfig:
    """The environment's settings of these classes: others in it belong to a job."""
    names = {name for cls in classes for name in settings_of(cls)}
    around = RawConfig.load(None, environ=os.environ)
    return RawConfig(entry for entry in around.entries if entry.key in names)


def _role_config(texts: Mapping[str, str], caller: str) -> RawConfig:
    """Settings of the roles as the processes will read them, checked: environment, then `texts`.

    Settings of checkpoints in the environment are of jobs.
    """
    if "journal_dir" in texts:
        raise ConfigError(
            f"{caller}(journal_dir): a cluster of this process ends with its master, and none goes "
            "on from a journal. Set checkpoint_dir and checkpoint_interval, or start `snailps "
            "master --session` and connect to it"
        )
    raw = _around(*(cls for cls in _ROLES if cls is not CheckpointSettings))
    raw = raw.merged(RawConfig.from_mapping(texts, caller + "({key})"))
    for cls in _ROLES:
        raw.build(cls, also_known=_ROLES)
    return raw
