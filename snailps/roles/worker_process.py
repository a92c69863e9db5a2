"""A worker process: takes a job, leases blocks, drives the model, pushes, reports.

    Start -> load class -> Declare -> [survey pass] -> Summarise -> train pass -> Finished -> Stop

It owns the order of things around a `Worker`; it knows no mathematics.  The next block is leased
and prepared, in a thread of its own, while the current one trains.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from snailps.config import RawConfig, WorkerSettings
from snailps.data.blocks import read_block
from snailps.data.scratch import Scratch
from snailps.errors import (
    ClusterError,
    ConfigError,
    ConnectionLost,
    DataError,
    MisuseError,
    ProtocolError,
    SnailError,
    WaitTimeout,
)
from snailps.roles.links import connect_shards
from snailps.roles.node import EXIT_FAILED, EXIT_OK, End, Node, cores, explain, peak_rss_mb
from snailps.roles.tables import Table, Tensor
from snailps.roles.wires import Wires
from snailps.roles.worker import Block, Worker, load_class
from snailps.store.route import Route
from snailps.transport import messages
from snailps.transport._client import Client
from snailps.transport.session import Role

log = logging.getLogger(__name__)
Item = TypeVar("Item")


class _Ended(Exception):
    """The process is to end; the verdict says why."""


class WorkerProcess(Node):
    """One worker process.

    Parameters
    ----------
    settings : WorkerSettings
    raw : RawConfig
        This process's own file, to be compared with the job that the master sends.
    """

    def __init__(self, settings: WorkerSettings, raw: RawConfig) -> None:
        super().__init__(Role.WORKER, settings)
        self._raw = raw
        self._threads = settings.threads or cores()
        self._inbox: queue.SimpleQueue[messages.Message | End] = queue.SimpleQueue()
        self._client: Client | None = None
        self._route: Route | None = None
        self._wires: Wires | None = None
        self._leaving = False
        self._unreadable: set[str] = set()

    def run(self) -> int:
        """Works until the end; returns the exit code."""
        self.join()
        try:
            while True:
                message = self._inbox.get()
                if isinstance(message, End):
                    break
                assert isinstance(message, messages.Start)
                self._work(message)
                if self._leaving:
                    self.end(EXIT_OK, "left as asked")
        except _Ended:
            pass
        except Exception as error:
            self._give_up(error)
        finally:
            if self._client is not None:
                self._client.close()
            self.leave({})
        return self.verdict.code

    def on_message(self, message: messages.Message) -> messages.Message | None:
        """Orders of the master: route, start, stop."""
        if isinstance(message, messages.TakeRoute):
            self._take_route(Route.from_dict(message.route))
            return messages.Ok()
        if isinstance(message, messages.Start):
            self._inbox.put(message)
            return None
        if isinstance(message, messages.Stop):
            return super().on_message(message)
        raise ProtocolError(f"a worker does not take {type(message).__name__}")

    def on_end(self, end: End) -> None:
        """Wakes whatever waits."""
        if self._client is not None:
            self._client.fail(end.text)
        self._inbox.put(end)

    def on_leave_request(self, why: str) -> None:
        """SIGTERM: finish the current block, give the next one back, then go."""
        if why == "SIGTERM":
            self._leaving = True
        super().on_leave_request(why)

    def _take_route(self, route: Route) -> None:
        assert self.welcome is not None
        self._route = route
        self._client = connect_shards(
            route,
            Role.WORKER,
            node=self.welcome.node,
            incarnation=self.welcome.incarnation,
            job=self.welcome.job,
            timeout_s=self.settings.request_timeout,
            give_up=self.ended.is_set,
        )
        self._wires = Wires(self._client, route)

    # --- one job ---------------------------------------------------------------------------

    def _work(self, start: messages.Start) -> None:
        assert self._client is not None
        before = self._client.counters()
        cls = load_class(start.worker_class, "the master's job")
        raw = RawConfig.from_mapping(start.settings, "the master's job")
        settings = raw.build(cls.Settings)
        conflicts = self._raw.contradictions(settings)
        if conflicts:
            raise ConfigError(
                "this worker's own settings contradict the job that the master sends: "
                + "; ".join(conflicts)
                + ". Set them at the master, or remove them here"
            )
        scratch = Scratch(settings.scratch_dir, settings.scratch_bytes)
        try:
            model = cls(settings, self._threads)
            model.workers = start.workers
            self._declare(model)
            if start.survey:
                self._survey(model, scratch)
                if self._leaving:  # nobody may be left to finish the survey
                    return
                summary = self._ask(messages.Summarise(), None)
                assert isinstance(summary, messages.Summary)
                model.summary = summary.blob
            with _named(model, "setup"):
                model.setup()
            if not self._leaving:
                self._train(model, scratch)
            with _named(model, "finish"):
                model.finish()
            self._client.flush(self.settings.request_timeout)
            self.control.note(
                messages.Finished({"peak_rss_mb": peak_rss_mb(), **self._moved_since(before)})
            )
        finally:
            scratch.close()

    def _moved_since(self, before: Mapping[str, int]) -> dict[str, int]:
        """What the client counted in this job."""
        assert self._client is not None
        return {key: value - before[key] for key, value in self._client.counters().items()}

    def _declare(self, model: Worker) -> None:
        assert self._client is not None
        declared = list(model.tables())
        tensors = {one.name: one for one in declared if isinstance(one, Tensor)}
        tables = [one.table() if isinstance(one, Tensor) else one for one in declared]
        names = [table.name for table in tables]
        if len(set(names)) < len(names):
            raise ConfigError(f"{type(model).__name__}.tables() names a table twice: {names}")
        answer = self._ask(
            messages.Declare([table.to_dict() for table in tables]), self.settings.request_timeout
        )
        assert isinstance(answer, messages.Declared)
        numbered: dict[str, tuple[int, Table]] = {
            table.name: (number, table)
            for number, table in zip(answer.numbers, tables, strict=True)
        }
        assert self._wires is not None
        model._connect(self._client, self._wires, numbered, tensors)

    def _survey(self, model: Worker, scratch: Scratch) -> None:
        while (lease := self._leased("survey")) is not None:
            begin = time.monotonic()
            block = self._block(lease, "survey", model, scratch)
            with _named(model, "survey", block):
                part = model.survey(block)
                if not isinstance(part, bytes):
                    raise TypeError(f"expected bytes, got {part!r:.80}")
            done = messages.Done(
                "survey", block.number, len(block.data), time.monotonic() - begin, {}, part
            )
            self._ask(done, self.settings.request_timeout)

    def _train(self, model: Worker, scratch: Scratch) -> None:
        with ThreadPoolExecutor(1, "snailps-prepare") as helper:
            try:
                self._train_blocks(model, scratch, helper)
            except Exception as error:
                # Said here, not further out: the helper may wait for a lease that the master
                # keeps back until our own block is finished, and leaving `with` waits for it.
                self._give_up(error)
                raise

    def _train_blocks(self, model: Worker, scratch: Scratch, helper: ThreadPoolExecutor) -> None:
        coming = deque([helper.submit(self._next_block, model, scratch)])
        block = self._await(coming.popleft())
        while block is not None:
            while len(coming) < model.prefetch:
                coming.append(helper.submit(self._next_block, model, scratch))
            begin = time.monotonic()
            with _named(model, "train", block):
                metrics = _numbers(model.train(block))
            answer = self._ask(
                messages.Done(
                    "train",
                    block.number,
                    int(metrics.pop("units", metrics.get("examples", 0))),
                    time.monotonic() - begin,
                    metrics,
                ),
                self.settings.request_timeout,
            )
            if isinstance(answer, messages.Enough):
                return  # prefetched blocks are left as they are
            block = self._await(coming.popleft())
            if self._leaving:
                return

    def _next_block(self, model: Worker, scratch: Scratch) -> Block | None:
        lease = self._leased("train")
        if lease is None:
            return None
        block = self._block(lease, "train", model, scratch)
        with _named(model, "prepare", block):
            block.prepared = model.prepare(block)
        return block

    def _leased(self, pass_: str) -> messages.Leased | None:
        if self._leaving:
            return None
        answer = self._ask(messages.Lease(pass_), None)
        assert isinstance(answer, messages.Leased)
        return None if answer.number < 0 else answer

    def _block(self, lease: messages.Leased, pass_: str, model: Worker, scratch: Scratch) -> Block:
        def read() -> bytes:
            try:
                return read_block(
                    lease.path, lease.start, lease.stop, unit=model.unit, scratch=scratch
                )
            except DataError as error:
                if lease.path not in self._unreadable:
                    self._unreadable.add(lease.path)
                    log.warning("%s; asking the master for the bytes", error)
                fetch = messages.Fetch(lease.number, pass_, model.unit)
                content = self._ask(fetch, self.settings.request_timeout)
                assert isinstance(content, messages.Content)
                return content.blob

        before, after = lease.progress
        return Block(
            lease.number,
            lease.path,
            lease.start,
            lease.stop,
            lease.epoch,
            lease.seed,
            (float(before), float(after)),
            read,
        )

    # --- waiting ---------------------------------------------------------------------------

    def _ask(self, message: messages.Message, timeout_s: float | None) -> messages.Message:
        """A call that ends with the process."""
        future = self.control.call_async(message)
        begin = time.monotonic()
        while not self.ended.is_set():
            wait({future}, 0.2)
            if future.done():
                if isinstance(future.exception(), ConnectionLost) and self.ended.wait(1.0):
                    break
                return future.result()
            if timeout_s is not None and time.monotonic() - begin > timeout_s:
                raise WaitTimeout(
                    f"the master has not answered {type(message).__name__} for "
                    f"{timeout_s:g} s: look at its log"
                )
        raise _Ended

    def _await(self, future: Future[Item]) -> Item:
        """The result of the helper's thread."""
        return future.result()

    def _give_up(self, error: Exception) -> None:
        """Tells the master, once, why this worker cannot go on, and ends it."""
        if self.ended.is_set():
            return
        cause = error.__cause__ or error
        trace = ""
        if not isinstance(cause, SnailError):
            trace = "".join(traceback.format_exception(cause))
            log.error("%s\n%s", explain(error), trace)
        self.end(EXIT_FAILED, explain(error))  # first: the master's Stop may be very quick
        self.control.note(messages.Failed(explain(error), trace))


@contextlib.contextmanager
def _named(model: Worker, method: str, block: Block | None = None) -> Iterator[None]:
    """Whatever the user's code raises gets the name of its method and of its block."""
    try:
        yield
    except _Ended:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SnailError) and not isinstance(error, MisuseError):
            raise
        where = (
            f" on block {block.number} ({block.path}, bytes {block.start:,} to {block.stop:,})"
            if block is not None
            else ""
        )
        raise ClusterError(
            f"{type(model).__name__}.{method} failed{where}: {type(error).__name__}: {error}"
        ) from error


def _numbers(result: object) -> dict[str, float]:
    """What `Worker.train` returned, checked."""
    if not isinstance(result, Mapping):
        raise TypeError(f"expected a mapping with 'units', got {result!r:.80}")
    numbers = {str(key): float(value) for key, value in result.items()}
    if not math.isfinite(numbers.get("units", numbers.get("examples", math.nan))):
        raise ValueError(f"expected a number of 'units', got {dict(result)!r:.200}")
    return numbers
