"""Owns the connections of a process that joins a cluster without taking part in its job: a driver.

    Driver.join -> status, declare, submit          Driver.pull / push_async -> Client -> shards

Must not start processes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from functools import partial
from typing import Any

from snailps.api.model_tables import ModelTables
from snailps.api.tables import Table
from snailps.api.wire_choice import WireChoice
from snailps.config import ClusterSettings, ListenerSettings
from snailps.errors import (
    EXIT_OK,
    CheckpointError,
    ClusterError,
    ConfigError,
    DataError,
    MisuseError,
    RemoteError,
)
from snailps.files.driver_files import driver_path
from snailps.node.process import WATCH_S, Node, ProcessEnd, advertised, open_listener
from snailps.node.shard_connections import RouteFollower, ShardConnections
from snailps.node.status import Status
from snailps.store.route import Route
from snailps.transport import messages
from snailps.transport._awake import awake_s
from snailps.transport.client._client import Client
from snailps.transport.control import Address, AnswerOrFuture, show
from snailps.transport.control.files import FileServer
from snailps.transport.handshake import Role

SHUT_DOWN_S = 5.0
_OWN = {
    "config": ConfigError, "data": DataError, "cluster": ClusterError,
    "checkpoint": CheckpointError,
}  # fmt: skip
"""Code of the master's refusal -> the error that is raised here instead of `RemoteError`."""


class Driver(ModelTables, Node):
    """A member of a cluster that reads its status, submits jobs, pulls and pushes.

    With `ListenerSettings` it can also serve files to the workers of its job.
    """

    def __init__(self, settings: ClusterSettings, secret: bytes = b"") -> None:
        ModelTables.__init__(self)
        Node.__init__(self, Role.DRIVER, settings, secret)
        self._follower = RouteFollower(self._reach, self._use)
        self._files: FileServer | None = None
        self._address: Address = ("", 0)  # of the files
        self._served: dict[str, str] = {}  # path in the cluster -> number
        self.routed = threading.Event()
        self._process = os.getpid()

    def on_message(self, message: messages.Message) -> AnswerOrFuture:
        """Take the route; other messages as any node."""
        if isinstance(message, messages.TakeRoute):
            return self._follower.take(Route.from_dict(message.route))
        return super().on_message(message)

    def _reach(self, route: Route, superseded: Callable[[], bool]) -> ShardConnections:
        us = self.welcome
        assert us is not None
        return ShardConnections(
            route,
            Role.DRIVER,
            node=us.node,
            incarnation=us.incarnation,
            job=us.job,
            timeout_s=self.settings.request_timeout,
            trust=self.trust,
            give_up=self.ended.is_set,
            superseded=superseded,
        )

    def _use(self, links: ShardConnections) -> None:
        """Replace the client or the route."""
        if links.client is not self._client:
            sealed = self.trust.tls is not None
            self._wire_choice = WireChoice(links.client, links.route, sealed=sealed)
            self._client = links.client
            self._know_tables(links.client)
            if self.ending:  # the driver has ended while these links were being made
                links.client.fail(self.verdict.text or "the cluster has ended")
        self.route_epoch = links.route.epoch
        self.routed.set()

    def on_end(self, end: ProcessEnd) -> None:
        if self._client is not None:
            self._client.fail(end.text or "the cluster has ended")
        self.routed.set()

    @property
    def is_own(self) -> bool:
        """Whether this process made the driver: a fork inherits the sockets, but no threads."""
        return os.getpid() == self._process

    def check_process(self) -> None:
        """Raise a `ClusterError` in a fork: two processes would mix their frames in one socket."""
        if not self.is_own:
            raise ClusterError(
                f"this cluster belongs to process {self._process}, of which this one is a fork: "
                "start a cluster, or connect to one, in this process"
            )

    def status(self) -> Status:
        answer = self._ask(messages.Ask("status"), self.settings.request_timeout)
        assert isinstance(answer, messages.Report)
        return answer.data  # type: ignore[return-value]

    def declare(self, table: Table) -> None:
        """Declare a table on all servers; only an identical declaration may be repeated."""
        answer = self._ask(messages.Declare([table.to_dict()]), self.settings.request_timeout)
        assert isinstance(answer, messages.Declared)
        self._tables[table.name] = (answer.numbers[0], table)
        if self._client is not None:
            self._know_tables(self._client)

    def has_declared(self, table: Table) -> bool:
        return self._tables.get(table.name, (0, None))[1] == table

    def _know_tables(self, client: Client) -> None:
        client.know_tables({n: (name, table.finite) for name, (n, table) in self._tables.items()})

    def all_tables(self) -> dict[str, tuple[int, Table]]:
        """Number and declaration of every table of the cluster: its job's, and of all drivers."""
        answer = self._ask(messages.Ask("tables"), self.settings.request_timeout)
        assert isinstance(answer, messages.Report)
        found = [(int(number), Table.from_dict(item)) for number, item in answer.data["tables"]]
        return {table.name: (number, table) for number, table in found}

    @property
    def has_tables(self) -> bool:
        return bool(self._tables)

    def job(self, number: int) -> dict[str, Any]:
        """Settings, figures, failure, trace and tables of a job that has ended."""
        answer = self._ask(messages.AskJob(number), self.settings.request_timeout)
        assert isinstance(answer, messages.Report)
        return answer.data

    def newest_job(self) -> tuple[int, dict[str, str]]:
        """Number and settings of the job that runs, or ran last; no settings if there is none."""
        answer = self._ask(messages.Ask("job"), self.settings.request_timeout)
        assert isinstance(answer, messages.Report)
        return int(answer.data["job"]), dict(answer.data["settings"])

    def when_ended(self, number: int, do: Callable[[], object]) -> None:
        """Call `do`, in another thread, once a running job has ended.

        Or never: a master that takes over may not know this request.
        """
        self.check_process()

        def heard(answer: messages.Message) -> None:
            if isinstance(answer, messages.Report):
                do()

        self.control.call_async(messages.AskJob(number), heard)

    def summary(self, number: int) -> bytes:
        """The merged survey of a job; empty if it had none, has not merged it yet, or the next job
        has begun."""
        answer = self._ask(messages.Summarise(number), self.settings.request_timeout)
        assert isinstance(answer, messages.Summary)
        return answer.blob

    @property
    def route(self) -> Route:
        """The newest route; waits for the first one."""
        assert self._follower.links is not None
        return self._follower.links.route

    def cancel(self, *, early: bool = False) -> None:
        """Cancel the job that this process has submitted, or end its training `early`.

        Does not wait for a master that is away: it gets the call when it is back.
        """
        self.check_process()
        answer = self.control.call_async(messages.Cancel(early))
        until = awake_s() + self.settings.request_timeout
        while not (answer.done() or self.control.away) and awake_s() < until:
            wait({answer}, WATCH_S)
        if answer.done():
            _raised(answer.result)

    def serve(self, path: str) -> str:
        """Serve a file of this process; the path by which the cluster's processes read it."""
        if self._files is None or not self._files.is_alive:
            if not isinstance(self.settings, ListenerSettings):
                raise MisuseError("this process has no settings that say where to listen")
            listener = open_listener(self.settings, self.trust)
            self._address = advertised(self.settings, listener)
            self._files = FileServer(listener, self.trust)
        number, size = self._files.add(path)
        path = driver_path(show(self._address), number, size)
        self._served[path] = number
        return path

    def withdraw(self, path: str) -> None:
        """Stop serving a file; idempotent."""
        number = self._served.pop(path, "")
        if self._files is not None:
            self._files.remove(number)

    def submit(
        self,
        settings: Mapping[str, str],
        source: bytes = b"",
        key: str = "",
        limit_s: float | None = None,
    ) -> int:
        """Submit a job with all served files; its number, once it has begun.

        `source`: the source of its class, if it has no module; `key`: admits that source at a
        master that this process started.  A refusal is raised as the error that it names,
        `WaitTimeout` after `limit_s` seconds.
        """
        files = list(self._served)
        answer = self._ask(messages.Submit(dict(settings), files, key, source), limit_s)
        assert isinstance(answer, messages.Submitted)
        return answer.job

    def save(self, folder: str) -> tuple[str, int]:
        """Have the servers save all tables in a new checkpoint; its path, and its rows."""
        return self._path_and_rows(messages.SaveRows(folder))

    def load(self, folder: str) -> tuple[str, int]:
        """Have the servers take the rows of the newest checkpoint of a folder.

        Returns its path, and its rows, like `save`.
        """
        return self._path_and_rows(messages.LoadRows(folder))

    def _path_and_rows(self, message: messages.Message) -> tuple[str, int]:
        answer = self._ask(message, None)  # the master has limits of its own
        assert isinstance(answer, messages.Report)
        return answer.data["path"], answer.data["rows"]

    @property
    def client(self) -> Client:
        """The fan-out client."""
        return self._check_connected()

    def _check_connected(self) -> Client:
        if os.getpid() != self._process:  # checked here, before each pull: saves a call
            self.check_process()
        if self._client is None:
            raise MisuseError("the cluster is not complete yet: there is no route")
        self._follower.in_use = True
        return self._client

    def shut_down(self) -> None:
        self._ask(messages.Shutdown(), SHUT_DOWN_S)

    def close(self) -> None:
        self._follower.close()
        if self._files is not None:
            self._files.close()
        self.end(EXIT_OK, "closed")
        self.leave({})

    def _ask(self, message: messages.Message, timeout_s: float | None) -> messages.Message:
        self.check_process()
        return _raised(partial(self.control.call, message, timeout_s))

    def _find(self, table: str) -> tuple[int, Table]:
        self._check_connected()
        try:
            return self._tables[table]
        except KeyError:
            raise MisuseError(f"no table {table!r}: make it with cluster.table()") from None


def _raised(get: Callable[[], messages.Message]) -> messages.Message:
    """Get the answer of a call; a refusal is raised as the error that its code names."""
    try:
        return get()
    except RemoteError as error:
        if error.code in _OWN:
            raise _OWN[error.code](str(error)) from None
        raise
