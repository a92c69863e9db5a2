"""A worker process: its connections, the master's orders, and the parts of a job round its model.

    Start -> load class -> Declare -> [survey] -> Summarise -> Training.run -> Finished -> Stop

    Training ------> Leases ------> Reports ------> MasterCalls      Orders: what the master asks
    (blocks, steps)  (a block of    (Done, Durable) (ask, give_up)   ResumeState: what it has done
                      each lease)

Each part is given the others that it uses, and none has a socket: they are made for one job here.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from snailps.abi.memory import release_memory
from snailps.abi.quota import capacity, cores
from snailps.api.class_source import define
from snailps.api.tables import Table, Tensor
from snailps.api.traits import (
    Adopted,
    Cut,
    InRounds,
    is_clocked,
    trait_of,
)
from snailps.api.wire_choice import WireChoice
from snailps.api.worker import Worker, load_class
from snailps.config import CHECKPOINT_SETTINGS, RawConfig, WorkerSettings
from snailps.errors import (
    EXIT_OK,
    FAILURES,
    ConfigError,
    ProtocolError,
    own_lines,
)
from snailps.files.scratch import Scratch
from snailps.node.checks import look_half_way, why_not_connected
from snailps.node.driver_files import read_driver_files
from snailps.node.limits import GRACE_S, Limits
from snailps.node.metric_samples import BlockTally, of_worker
from snailps.node.metrics import Sample
from snailps.node.process import Node, ProcessEnd, raise_descriptors
from snailps.node.shard_connections import RouteFollower, ShardConnections
from snailps.node.usage import peak_rss_mb, rss_bytes
from snailps.store.route import Route
from snailps.transport import messages
from snailps.transport.client._client import Client
from snailps.transport.control import AnswerOrFuture
from snailps.transport.handshake import Role
from snailps.worker import blas_threads
from snailps.worker.calls import MasterCalls
from snailps.worker.context import JobContext
from snailps.worker.leases import Leases
from snailps.worker.orders import Orders
from snailps.worker.reports import JobReports
from snailps.worker.resume_state import ResumeState
from snailps.worker.survey import survey
from snailps.worker.training import TrainPass
from snailps.worker.user_code import (
    Ended,
    made,
    named,
    tables_of,
)

log = logging.getLogger(__name__)
STOP_S = GRACE_S - 1.0
"""Seconds that a failed worker waits for `Stop`, which says whether it is to start again."""
COLLECT_S = 1.0
"""Seconds after a job in which a next message is awaited before its garbage is collected (30 ms):
most processes end, or get another job, at once."""
COLLECT_BYTES = 256 << 20
"""A process of at least this size collects at once: the master's export needs the memory."""

_LAST = -1
"""Number that stands for what the model pushes in `finish`, after all blocks."""

Inbox: TypeAlias = "queue.SimpleQueue[messages.Message | ProcessEnd]"


def next_message(inbox: Inbox) -> messages.Message | ProcessEnd:
    """Wait for the message after a job, and collect the job's garbage meanwhile.

    A little garbage is not worth collecting if the process ends at once: then nothing is done.
    """
    message = None
    if rss_bytes() < COLLECT_BYTES:
        with contextlib.suppress(queue.Empty):
            message = inbox.get(timeout=COLLECT_S)
    if not isinstance(message, ProcessEnd):
        release_memory()  # the master exports, or has another job
    return message or inbox.get()


def spare_collector() -> None:
    """Exclude from garbage collection what lives as long as the process: its modules, its node.

    Collections that walk over it took a fifth of the time of small batches, and 20 ms of each job.
    Before a job's model is made, everything lives as long: modules of sources are never replaced.
    """
    gc.freeze()


class WorkerProcess(Node):
    """A worker: joins the cluster, and works on one job after another until it is stopped."""

    def __init__(self, settings: WorkerSettings, raw: RawConfig, secret: bytes = b"") -> None:
        super().__init__(Role.WORKER, settings, secret)
        self._raw = raw  # must not contradict the settings of a job that the master sends
        self._threads = settings.threads or cores()
        self._inbox: Inbox = queue.SimpleQueue()
        self._client: Client | None = None
        self._follower = RouteFollower(self._connect, self._use)
        self._route: Route | None = None
        self._wire_choice: WireChoice | None = None
        self._orders = Orders()
        self._calls: MasterCalls  # once joined
        self._model: Worker | None = None
        self._tally = BlockTally()
        self._progress = ResumeState()
        self._main = threading.get_ident()  # of the thread that trains

    def capacity(self) -> float:
        return capacity(self._threads)

    def run(self) -> int:
        """Join, work until the process is stopped, and leave; returns the exit code."""
        raise_descriptors()
        self._main = threading.get_ident()
        limit_s = self.settings.request_timeout
        read_driver_files(Role.WORKER, self.trust, limit_s, self.ended.is_set)
        self.join()
        self._calls = MasterCalls(self.control, self.ended, self.end)
        try:
            message = self._inbox.get()
            while not isinstance(message, ProcessEnd):
                assert isinstance(message, messages.Start)
                self._work(message)
                if self._orders.leaving:
                    self.end(EXIT_OK, "left as asked")
                message = next_message(self._inbox)
        except Ended:
            pass
        except Exception as error:
            self._calls.give_up(error)
        finally:
            self._follower.close()
            if self.ended.is_set() and self.verdict.code in FAILURES:
                self.hear_stop(STOP_S)
            self.leave({})
        return self.verdict.code

    def on_message(self, message: messages.Message) -> AnswerOrFuture:
        """Handle an order of the master, in the thread that reads its connection.

        It must not wait: later orders, `Stop` among them, are read by the same thread.
        """
        if isinstance(message, messages.TakeRoute):
            return self._follower.take(Route.from_dict(message.route))
        if isinstance(message, messages.Start):
            self._follower.in_use = True
            self._progress.start_job()
            self._orders.begin(message.workers)
            self._inbox.put(message)
            return None
        if isinstance(message, messages.Workers):
            self._orders.workers = message.workers
            self._orders.workers_changed.set()
            return None
        if isinstance(message, messages.CameBack):
            self._orders.came_back.set()
            return None
        if isinstance(message, messages.Slowest):
            if self._model is not None:
                self._model.slowest = message.clock
            return None
        if isinstance(message, messages.Ask):
            lines = own_lines(self._main)
            return messages.Report({**self._of_client(), **self.own_stats(), "at": lines})
        if isinstance(message, messages.Stop):
            return super().on_message(message)
        raise ProtocolError(f"a worker does not take {type(message).__name__}")

    def _of_client(self) -> dict[str, Any]:
        """What the client waits for, and how far the pushes of blocks have come."""
        if (client := self._client) is None:
            return {"waits": []}
        counters = client.counters()
        return {
            "waits": client.waits(),
            "moved_bytes": counters["bytes_in"] + counters["bytes_out"],
            "half_pushed": self._progress.is_half_pushed(counters["parts_pushed"]),
        }

    def on_end(self, end: ProcessEnd) -> None:
        if self._client is not None:
            self._client.fail(end.text)
        self._inbox.put(end)

    def on_leave_request(self, why: str) -> None:
        """SIGTERM: finish the current block, return the next one, then leave."""
        if why == "SIGTERM":
            self._orders.leaving = True
        super().on_leave_request(why)

    def resume_state(self) -> dict[str, Any]:
        return self._progress.to_dict()

    def _connect(self, route: Route, superseded: Callable[[], bool]) -> ShardConnections:
        us = self.welcome
        assert us is not None
        shards = [(shard.server, (shard.host, shard.port)) for shard in route.shards]
        limit_s = Limits.of(self.settings.request_timeout).connect_s(self.settings.init_timeout)
        look = look_half_way(limit_s, "every shard", lambda: why_not_connected(shards))
        try:
            return ShardConnections(
                route,
                Role.WORKER,
                node=us.node,
                incarnation=us.incarnation,
                job=us.job,
                timeout_s=self.settings.request_timeout,
                init_timeout=self.settings.init_timeout,
                trust=self.trust,
                give_up=self.ended.is_set,
                superseded=superseded,
            )
        finally:
            look.cancel()

    def _use(self, links: ShardConnections) -> None:
        """Use another client, or the same one with another route, from now on."""
        if links.client is not self._client:
            self._client = links.client
            self._wire_choice = WireChoice(
                links.client, links.route, sealed=self.trust.tls is not None
            )
            if self.ending:  # since `_connect` began: nobody else fails this client
                links.client.fail(self.verdict.text)
        self._route, self.route_epoch = links.route, links.route.epoch
        if (model := self._model) is not None:
            model.route_epoch = self.route_epoch

    # --- one job ---------------------------------------------------------------------------

    def _work(self, start: messages.Start) -> None:
        """Work on one job, from `Start` to `Finished`."""
        assert self._client is not None
        before = self._client.counters()
        if start.blob:
            if not self.settings.accept_source:
                raise ConfigError(
                    "the job has the source of its class, and this worker executes none: set "
                    "accept_source here as at the master (docs/security.md)"
                )
            define(start.blob)
        cls = load_class(start.worker_class, "the master's job")
        spare_collector()
        raw = RawConfig.from_mapping(start.settings, "the master's job")
        settings = raw.build(cls.Settings)
        # The master leaves the ending of a result file out of `output`, which no worker reads.  Nor
        # does it read settings of checkpoints, which may be those of a session here, not of a job.
        completed = {*trait_of(cls, Adopted).completed, "output", *CHECKPOINT_SETTINGS}
        conflicts = self._raw.contradictions(settings, completed)
        if conflicts:
            raise ConfigError(
                "this worker's own settings contradict the job that the master sends: "
                + "; ".join(conflicts)
                + ". Set them at the master, or remove them here"
            )
        tables = trait_of(cls, Cut).reading(settings)
        scratch = Scratch(settings.scratch_dir, settings.scratch_bytes, tables=tables)
        clocked = is_clocked(cls, settings)
        one_thread = clocked and not trait_of(cls, InRounds).rounds(settings)
        if clocked:  # sums must not depend on how many threads this host has
            blas_threads.set_threads(1)
        self._orders.came_back.clear()
        self._tally.waited_s = self._tally.work_s = 0.0
        try:
            model = self._model = made(cls, settings, 1 if one_thread else self._threads)
            model.workers, model.route_epoch = self._orders.workers, self.route_epoch
            client, limit_s = self._client, self.settings.request_timeout
            calls = self._calls
            job = JobContext(
                model, client, calls, self._progress, self._orders, self._tally, limit_s
            )
            reports = JobReports(job)
            leases = Leases(job, reports, scratch)
            training = TrainPass(job, reports, leases)
            self._declare(model, clocked)
            if start.survey:
                summary = self._surveyed(model, leases, reports)
                if summary is None:
                    return
                model.summary = summary
                del summary  # the model may drop its own
            model.workers = self._orders.workers
            with named(model, "setup"):
                model.setup()
            begin_cpu_s = time.process_time()
            if not self._orders.leaving:
                training.run()
            reports.start_block(_LAST)
            with named(model, "finish"):
                model.finish()
            client.flush(limit_s)
            figures = {
                "peak_rss_mb": peak_rss_mb(),
                "waited_s": self._tally.waited_s,
                "work_s": self._tally.work_s,
                "cpu_s": time.process_time() - begin_cpu_s,
                **{key: value - before[key] for key, value in client.counters().items()},
            }
            self._progress.finish(figures)
            self.control.note(messages.Finished(figures))
        finally:
            self._model = None
            self._client.drop_residues()  # of narrow rows; the next job has other tables
            scratch.close()

    def _surveyed(self, model: Worker, leases: Leases, reports: JobReports) -> bytes | None:
        """Take part in the survey until it has a summary; None: this worker leaves."""
        answer: messages.Message = messages.Again()
        while isinstance(answer, messages.Again):
            survey(model, leases, reports)
            if self._orders.leaving:  # there may be no other worker to end the survey
                return None
            answer = self._calls.ask(messages.Summarise(), None)
        assert isinstance(answer, messages.Summary)
        return answer.blob

    def _declare(self, model: Worker, clocked: bool) -> None:
        """Declare the model's tables at the master, and connect the model to them."""
        assert self._client is not None
        tables = [t.table() if isinstance(t, Tensor) else t for t in tables_of(model)]
        names = [table.name for table in tables]
        if len(set(names)) < len(names):
            raise ConfigError(f"{type(model).__name__}.tables() names a table twice: {names}")
        answer = self._calls.ask(
            messages.Declare([table.to_dict() for table in tables]), self.settings.request_timeout
        )
        assert isinstance(answer, messages.Declared)
        numbered: dict[str, tuple[int, Table]] = {
            table.name: (number, table)
            for number, table in zip(answer.numbers, tables, strict=True)
        }
        assert self._wire_choice is not None
        assert self._route is not None
        wire_choice = (
            WireChoice(self._client, self._route, exact=True) if clocked else self._wire_choice
        )
        model._connect(self._client, wire_choice, numbered, clocked)

    def metric_samples(self) -> list[Sample]:
        """Metrics of this process, of its client and of what it has trained."""
        samples, client = super().metric_samples(), self._client
        if client is not None:
            samples += of_worker(self.name, client.counters(), client.waits(), self._tally.waited_s)
        return samples + self._tally.samples()
