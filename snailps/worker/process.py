"""A worker process: takes a job, leases blocks, drives the model, pushes, reports.

    Start -> load class -> Declare -> [survey pass] -> Summarise -> train pass -> Finished -> Stop

Owns the sequence of calls of a `Worker`; must not know its mathematics. Another thread leases and
prepares the next block while the current one trains; in a rotation it encodes blocks, too.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from snailps.api.block import BlockContent
from snailps.api.class_source import define
from snailps.api.parts import (
    Adopted,
    Cut,
    Gathered,
    InRounds,
    Reported,
    Rotated,
    Surveyed,
    SurveyPart,
    part_of,
)
from snailps.api.rotation import Checkouts, NoCheckouts
from snailps.api.tables import Table, Tensor
from snailps.api.wire_choice import WireChoice
from snailps.api.worker import Block, Worker, load_class
from snailps.config import RawConfig, WorkerSettings
from snailps.config.consistency import steps_of
from snailps.data.scratch import Scratch
from snailps.data.table_copies import TableCopies
from snailps.errors import (
    EXIT_FAILED,
    EXIT_OK,
    ConfigError,
    ConnectionLost,
    DataError,
    ProtocolError,
    SnailError,
    WaitTimeout,
    explain,
    frames_of,
    own_lines,
    trace_of,
)
from snailps.kernels import capacity, cores
from snailps.node.checks import look_half_way, why_not_connected
from snailps.node.driver_files import read_driver_files
from snailps.node.limits import GRACE_S, Limits
from snailps.node.metric_samples import BlockTally, of_worker
from snailps.node.metrics import Sample
from snailps.node.process import End, Node, raise_descriptors
from snailps.node.shard_connections import RouteFollower, ShardConnections
from snailps.node.usage import peak_rss_mb, release_memory, rss_bytes
from snailps.store.route import Route
from snailps.transport import messages
from snailps.transport.client._client import Client, Pending
from snailps.transport.control import AnswerOrFuture
from snailps.transport.handshake import Role
from snailps.transport.messages.terms import ChunkBlock, Partition
from snailps.worker import blas_threads
from snailps.worker.checkouts import LeaseCheckouts
from snailps.worker.content import LeasedContent
from snailps.worker.prefetch import BlockPrefetcher
from snailps.worker.resume_state import ResumeState
from snailps.worker.user_code import (
    Ended,
    checked_bytes,
    made,
    named,
    numbers_of,
    tables_of,
    unpushed,
)

log = logging.getLogger(__name__)
STOP_S = GRACE_S - 1.0
"""Seconds that a failed worker waits for the master to decide whether it begins anew."""
COLLECT_S = 1.0
"""Seconds without a message behind a job in which its garbage stays: 30 ms of the processor."""
COLLECT_BYTES = 256 << 20
"""A process of this size collects at once: the master's export needs memory."""
TURN_S = 0.1
"""Period in which a worker that waits for its step looks for other work."""
SHORT_S = 0.1
"""A block that trained in less is reported while the next one trains, if its pushes come later."""

_LAST = -1
"""Stands for a block: what the model pushes when it has trained all of them."""

_Report = tuple[messages.Done, "Future[messages.Message]"]
"""Report of a trained block, and the future of its answer."""


class WorkerProcess(Node):
    def __init__(self, settings: WorkerSettings, raw: RawConfig, secret: bytes = b"") -> None:
        super().__init__(Role.WORKER, settings, secret)
        # compared with the settings of the job that the master sends
        self._raw = raw
        self._threads = settings.threads or cores()
        self._inbox: queue.SimpleQueue[messages.Message | End] = queue.SimpleQueue()
        self._client: Client | None = None
        self._follower = RouteFollower(self._connect, self._use)
        self._route: Route | None = None
        self._wire_choice: WireChoice | None = None
        self._leaving = False
        self._came_back = threading.Event()
        self._model: Worker | None = None
        self._workers = 1
        self._workers_changed = threading.Event()
        self._waited_s = 0.0
        self._unreadable: set[str] = set()
        self._tally = BlockTally()
        self._stand = ResumeState()
        self._report: _Report | None = None  # of the last block, if it was not waited for
        self._encoding = threading.Lock()
        self._main = threading.get_ident()  # of the thread that trains

    def capacity(self) -> float:
        return capacity(self._threads)

    def run(self) -> int:
        """Work until the end; returns the exit code."""
        raise_descriptors()
        self._main = threading.get_ident()
        limit_s = self.settings.request_timeout
        read_driver_files(Role.WORKER, self.trust, limit_s, self.ended.is_set)
        self.join()
        try:
            message = self._inbox.get()
            while not isinstance(message, End):
                assert isinstance(message, messages.Start)
                self._work(message)
                if self._leaving:
                    self.end(EXIT_OK, "left as asked")
                message = self._next_message()
        except Ended:
            pass
        except Exception as error:
            self._give_up(error)
        finally:
            self._follower.close()
            if self.ended.is_set() and self.verdict.code == EXIT_FAILED:
                self.hear_stop(STOP_S)
            self.leave({})
        return self.verdict.code

    def _next_message(self) -> messages.Message | End:
        """What comes behind a job. Its garbage is collected, if little not where this ends."""
        message = None
        if rss_bytes() < COLLECT_BYTES:
            with contextlib.suppress(queue.Empty):
                message = self._inbox.get(timeout=COLLECT_S)
        if not isinstance(message, End):
            gc.unfreeze()
            release_memory()  # the master exports, or has another job
        return message or self._inbox.get()

    def on_message(self, message: messages.Message) -> AnswerOrFuture:
        """Handle orders of the master: route, start, stop."""
        if isinstance(message, messages.TakeRoute):
            return self._follower.take(Route.from_dict(message.route))
        if isinstance(message, messages.Start):
            self._follower.in_use = True
            self._stand.start()
            self._workers = message.workers
            self._workers_changed.clear()
            self._inbox.put(message)
            return None
        if isinstance(message, messages.Workers):
            self._workers = message.workers
            self._workers_changed.set()
            return None
        if isinstance(message, messages.CameBack):
            self._came_back.set()
            return None
        if isinstance(message, messages.Slowest):
            if self._model is not None:
                self._model.slowest = message.clock
            return None
        if isinstance(message, messages.Ask):
            at = own_lines(self._main)
            return messages.Report({**self._of_client(), **self.own_stats(), "at": at})
        if isinstance(message, messages.Stop):
            return super().on_message(message)
        raise ProtocolError(f"a worker does not take {type(message).__name__}")

    def _of_client(self) -> dict[str, Any]:
        """What it waits for, and how far the pushes of its blocks have come."""
        if (client := self._client) is None:
            return {"waits": []}
        counters = client.counters()
        return {
            "waits": client.waits(),
            "moved_bytes": counters["bytes_in"] + counters["bytes_out"],
            "half_pushed": self._stand.is_half_pushed(counters["parts_pushed"]),
        }

    def on_end(self, end: End) -> None:
        if self._client is not None:
            self._client.fail(end.text)
        self._inbox.put(end)

    def on_leave_request(self, why: str) -> None:
        """SIGTERM: finish the current block, return the next one, then leave."""
        if why == "SIGTERM":
            self._leaving = True
        super().on_leave_request(why)

    def resume_state(self) -> dict[str, Any]:
        return self._stand.to_dict()

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
        """Take another client, or another route."""
        if links.client is not self._client:
            self._client = links.client
            self._wire_choice = WireChoice(
                links.client, links.route, sealed=self.trust.tls is not None
            )
            if self.ending:  # meanwhile
                links.client.fail(self.verdict.text)
        self._route, self.route_epoch = links.route, links.route.epoch
        if (model := self._model) is not None:
            model.route_epoch = self.route_epoch

    # --- one job ---------------------------------------------------------------------------

    def _work(self, start: messages.Start) -> None:
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
        raw = RawConfig.from_mapping(start.settings, "the master's job")
        settings = raw.build(cls.Settings)
        conflicts = self._raw.contradictions(settings, part_of(cls, Adopted).completed)
        if conflicts:
            raise ConfigError(
                "this worker's own settings contradict the job that the master sends: "
                + "; ".join(conflicts)
                + ". Set them at the master, or remove them here"
            )
        tables = TableCopies(part_of(cls, Cut).reading(settings))
        scratch = Scratch(settings.scratch_dir, settings.scratch_bytes, tables=tables)
        clocked = cls.clocked(settings)
        one_thread = clocked and not part_of(cls, InRounds).rounds(settings)
        if clocked:
            blas_threads.set_threads(1)
        self._came_back.clear()
        self._waited_s = 0.0
        try:
            model = self._model = made(cls, settings, 1 if one_thread else self._threads)
            model.workers = self._workers
            model.route_epoch = self.route_epoch
            self._declare(model, clocked)
            if start.survey:
                answer: messages.Message = messages.Again()
                while isinstance(answer, messages.Again):
                    self._survey(model, scratch)
                    if self._leaving:  # possibly no worker is left to finish the survey
                        return
                    answer = self._ask(messages.Summarise(), None)
                assert isinstance(answer, messages.Summary)
                model.summary = answer.blob
            model.workers = self._workers
            with named(model, "setup"):
                model.setup()
            if not self._leaving:
                self._train(model, scratch)
            self._stand.begins(_LAST, self._client.counters()["parts_pushed"])
            with named(model, "finish"):
                model.finish()
            self._client.flush(self.settings.request_timeout)
            figures = {
                "peak_rss_mb": peak_rss_mb(),
                "waited_s": self._waited_s,
                **{key: value - before[key] for key, value in self._client.counters().items()},
            }
            self._stand.finish(figures)
            self.control.note(messages.Finished(figures))
        finally:
            self._model = None
            self._client.drop_residues()  # the next job has tables of its own
            scratch.close()

    def _declare(self, model: Worker, clocked: bool) -> None:
        assert self._client is not None
        tables = [one.table() if isinstance(one, Tensor) else one for one in tables_of(model)]
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
        assert self._wire_choice is not None
        assert self._route is not None
        wire_choice = (
            WireChoice(self._client, self._route, exact=True) if clocked else self._wire_choice
        )
        model._connect(self._client, wire_choice, numbered, clocked)

    def _survey(self, model: Worker, scratch: Scratch) -> None:
        assert isinstance(model, Surveyed)
        part = model.survey_part()
        if part is not None:
            self._survey_together(part, model, scratch)
            return
        while (lease := self._leased("survey")) is not None:
            begin = time.monotonic()
            block = self._block(lease, "survey", model, scratch)
            with named(model, "survey", block):
                found = checked_bytes(model.survey(block))
            done = messages.Done(
                "survey", block.number, len(block.data), time.monotonic() - begin, {}, found
            )
            self._done(done)

    def _survey_together(self, part: SurveyPart, model: Worker, scratch: Scratch) -> None:
        """Merge the surveys of blocks into one part, which the master orders when it has room."""
        numbers: list[int] = []
        units, seconds = 0, 0.0
        while True:
            lease = self._leased("survey", held=max(1, part.size_bytes) if numbers else 0)
            if lease is not None:
                begin = time.monotonic()
                units += self._survey_block(lease, part, model, scratch)
                numbers.append(lease.number)
                seconds += time.monotonic() - begin
            elif numbers:
                # No name here keeps the bytes, or a block's, while the next part is counted.
                self._done(self._part_done(part, model, numbers, units, seconds))
                numbers, units, seconds = [], 0, 0.0
            else:
                return

    def _survey_block(
        self, lease: messages.Leased, part: SurveyPart, model: Worker, scratch: Scratch
    ) -> int:
        """Add a block to the part; returns its bytes."""
        block = self._block(lease, "survey", model, scratch)
        with named(model, "survey", block):
            part.add(block)
        return len(block.data)

    def _part_done(
        self, part: SurveyPart, model: Worker, numbers: list[int], units: int, seconds: float
    ) -> messages.Done:
        with named(model, "survey"):
            found = checked_bytes(part.take())
        return messages.Done("survey", numbers[-1], units, seconds, {}, found, numbers[:-1])

    def _train(self, model: Worker, scratch: Scratch) -> None:
        # What is here by now stays to the end: collections that walked over it took a fifth of the
        # time of small batches. Present garbage would stay, too.
        gc.collect()
        gc.freeze()  # until `_next_message`
        with ThreadPoolExecutor(1, "snailps-prepare") as helper:
            try:
                self._train_blocks(model, scratch, helper)
            except Exception as error:
                # Reported here, not by the caller: leaving `with` waits for the helper, which
                # may wait for a lease that the master withholds until our block is finished.
                self._give_up(error)
                raise

    def _train_blocks(self, model: Worker, scratch: Scratch, helper: ThreadPoolExecutor) -> None:
        self._stand.train()

        def ask(back: bool = False) -> Future[Block | None]:
            return helper.submit(self._next_block, model, scratch, back)

        prefetcher = BlockPrefetcher(ask)
        try:
            while True:
                block = prefetcher.next(model.prefetch)
                if block is not None and block.clock >= 0:
                    block = self._in_turn(block, prefetcher)
                if block is None or self._leaving:
                    break
                if self._train_block(model, block):
                    break  # prefetched blocks are left as they are
            self._last_answer()
        finally:
            self._report = None
            prefetcher.drop()

    def _train_block(self, model: Worker, block: Block) -> bool:
        """Train on a block and report it; True if no further block is wanted."""
        begin = time.monotonic()
        # Also where one has come for another: the number alone would not tell.
        if self._workers_changed.is_set():
            self._workers_changed.clear()
            model.workers = self._workers
            if isinstance(model, Gathered):
                with named(model, "workers_changed"):
                    model.workers_changed()
        checkouts = block.checkouts if isinstance(block.checkouts, LeaseCheckouts) else None
        if checkouts is not None:
            checkouts.begin()
        assert self._client is not None
        self._stand.begins(block.number, self._client.counters()["parts_pushed"])
        with named(model, "train", block), model._at(block):
            metrics = numbers_of(model.train(block))
        if checkouts is not None:
            checkouts.end()
        in_round = block.index >= 0
        free = block.clock < 0 and checkouts is None and steps_of(model.settings).order_is_free
        if not free:
            with named(model, "train", block):
                self._client.flush(self.settings.request_timeout)
        if in_round:
            self._seal(block)
        seconds = time.monotonic() - begin
        done = messages.Done(
            "train",
            block.number,
            int(metrics.pop("units", metrics.get("examples", 0))),
            seconds,
            metrics,
            whole=checkouts is None or not checkouts.cut,
        )
        enough = self._last_answer()
        self._report = self._reported(done)
        if free and unpushed(model) and seconds < SHORT_S:
            self._note_durable(block.number)
            return enough
        enough |= self._last_answer()
        if checkouts is None:
            self._note_durable(block.number)
        else:
            self._note_flushed(block.number)
        if enough:
            return True
        if block.clock >= 0 and not in_round:
            # The last seal of a clock applies it, at one shard after the other. A worker that dies
            # in between has reported its block before, so the master seals in its place. A round is
            # applied by the master, which must know which parts are sealed everywhere.
            self._seal(block)
        return False

    def _note_durable(self, number: int) -> None:
        """Report blocks whose pushes are all acknowledged, so that a checkpoint includes them."""
        assert self._client is not None
        assert self._model is not None
        durable = self._stand.trained(number, self._client, unpushed(self._model))
        if durable:
            self.control.note(messages.Settled(durable))

    def _note_flushed(self, number: int) -> None:
        """Report a block or a partition as durable: its pushes were acknowledged before `Done`."""
        self._stand.durable(number)
        self.control.note(messages.Settled([number]))

    def _seal(self, block: Block) -> None:
        """Report to all shards that a block is completely pushed."""
        assert self._client is not None
        self._client.seal_async(block.clock, block.slot, block.slots).wait()

    def _in_turn(self, block: Block, prefetcher: BlockPrefetcher) -> Block | None:
        """Wait until the step of a block has begun; returns the block, or another one of an earlier
        step. An earlier block is returned when a worker is lost, and no step can end without it.
        None: this worker leaves."""
        begin = time.monotonic()
        reach = self._reach(block)
        asked = False
        try:
            while not self._leaving:
                with contextlib.suppress(WaitTimeout):
                    reach.wait(TURN_S)
                    return block
                if self.ended.is_set():
                    raise Ended
                # A block may have been returned while we trained; the master reports later ones.
                if not asked or self._came_back.is_set():
                    asked = True
                    self._came_back.clear()
                    prefetcher.ask_back()
                earlier = prefetcher.earlier(block)
                if earlier is not None:  # this one is put back, and its step still comes
                    block, asked = earlier, False
                    reach = self._reach(block)
            reach.abandon()
            return None
        finally:
            self._waited_s += time.monotonic() - begin

    def _reach(self, block: Block) -> Pending:
        """Ask every shard to report when the step of a block has begun; cached."""
        assert self._client is not None
        if block._reach is None:
            block._reach = self._client.reach_async(block.clock)
        return block._reach

    def _next_block(self, model: Worker, scratch: Scratch, back: bool) -> Block | None:
        while True:
            lease = self._leased("train", back)
            if lease is None:
                return None
            block = self._block(lease, "train", model, scratch)
            if not isinstance(block.terms, ChunkBlock):
                break
            try:
                enough = self._encode(model, block)
            except Exception as error:
                # Now, not when the main thread asks for the block: the others wait for it.
                self._give_up(error)
                raise
            if enough:
                return None
        with named(model, "prepare", block), model._at(block, preparing=True):
            block.prepared = model.prepare(block)
        if block.clock >= 0:
            # Waits at the shards beside the pull: nothing is asked once the step before is sealed.
            self._reach(block)
        return block

    def _encode(self, model: Worker, block: Block) -> bool:
        """Encode a block and report it; True if no further block is wanted."""
        assert isinstance(model, Rotated)
        begin = time.monotonic()
        # Blocks that servers have lost are encoded by the threads that read them.
        with self._encoding, named(model, "encode", block):
            metrics = numbers_of({**model.encode(block), "units": 0})
        metrics = {name: metrics[name] for name in metrics.keys() & {"bad_lines"}}
        assert self._client is not None
        self._client.flush(self.settings.request_timeout)
        seconds = time.monotonic() - begin
        answer = self._done(messages.Done("train", block.number, 0, seconds, metrics))
        self._note_flushed(block.number)
        return isinstance(answer, messages.Enough)

    def _encode_again(self, model: Worker, scratch: Scratch, number: int, index: int) -> bool:
        """Encode a block of the chunk of a partition once more; False: another worker has it."""
        lease = self._leased("train", again=[number, index])
        if lease is None:
            return False
        block = self._block(lease, "train", model, scratch)
        block.again = True
        self._encode(model, block)
        return True

    def _leased(
        self, pass_: str, back: bool = False, held: int = 0, again: Sequence[int] = ()
    ) -> messages.Leased | None:
        if self._leaving and not again:  # what it has leased it finishes
            return None

        def heard(answer: messages.Message) -> None:
            if isinstance(answer, messages.Leased) and answer.number >= 0:
                self._stand.got(pass_, answer)

        answer = self._ask(messages.Lease(pass_, back, held, list(again)), None, heard)
        assert isinstance(answer, messages.Leased)
        return None if answer.number < 0 else answer

    def _done(self, done: messages.Done) -> messages.Message:
        """Report a finished block to the master; returns the answer."""
        return self._answer(self._reported(done))

    def _reported(self, done: messages.Done) -> _Report:
        return done, self.control.call_async(done, lambda answer: self._stand.reported(done))

    def _answer(self, report: _Report) -> messages.Message:
        done, future = report
        answer = self._result(future, done, self.settings.request_timeout)
        counts = part_of(type(self._model), Reported).counts if self._model is not None else ""
        self._tally.done(done.pass_, 1 + len(done.numbers), done.units, done.seconds, counts)
        return answer

    def _last_answer(self) -> bool:
        """Wait for the answer to the last report, if one is open; whether no block is wanted."""
        report, self._report = self._report, None
        return report is not None and isinstance(self._answer(report), messages.Enough)

    def metric_samples(self) -> list[Sample]:
        """Metrics of this process, of its client and of what it has trained."""
        found, client = super().metric_samples(), self._client
        if client is not None:
            found += of_worker(self.name, client.counters(), client.waits(), self._waited_s)
        return found + self._tally.samples()

    def _block(self, lease: messages.Leased, pass_: str, model: Worker, scratch: Scratch) -> Block:
        content = BlockContent()
        if lease.piece.path:
            fetch = partial(self._fetched, lease, pass_)
            unit = part_of(type(model), Cut).unit
            content = LeasedContent(lease.piece, lease.layout, unit, scratch, fetch)
        checkouts: Checkouts = NoCheckouts()
        if isinstance(lease.terms, Partition):
            encode_again = partial(self._encode_again, model, scratch)
            note = self.control.note
            checkouts = LeaseCheckouts(lease.number, self._ask, note, self._stand, encode_again)
        before, after = lease.progress
        return Block(
            lease.number,
            lease.piece,
            lease.epoch,
            lease.seed,
            (float(before), float(after)),
            content,
            lease.terms,
            lease.first,
            checkouts,
        )

    def _fetched(
        self, lease: messages.Leased, pass_: str, error: DataError, unit: str, text: int
    ) -> bytes:
        """Ask the master for bytes of a block that cannot be read here."""
        if lease.piece.path not in self._unreadable:
            self._unreadable.add(lease.piece.path)
            log.warning("%s; asking the master for the bytes", error)
        fetch = messages.Fetch(lease.number, pass_, unit, text)
        content = self._ask(fetch, self.settings.request_timeout)
        assert isinstance(content, messages.Content)
        return content.blob

    # --- waiting ---------------------------------------------------------------------------

    def _ask(
        self,
        message: messages.Message,
        timeout_s: float | None,
        heard: Callable[[messages.Message], None] = lambda answer: None,
    ) -> messages.Message:
        """A call that stops when the process ends; time without a master does not count."""
        return self._result(self.control.call_async(message, heard), message, timeout_s)

    def _result(
        self,
        future: Future[messages.Message],
        message: messages.Message,
        timeout_s: float | None,
    ) -> messages.Message:
        """The answer to a call, as `_ask` waits for it."""
        begin = time.monotonic()
        while not self.ended.is_set():
            if not future.done():
                wait({future}, 0.2)
            if future.done():
                if isinstance(future.exception(), ConnectionLost) and self.ended.wait(1.0):
                    break
                return future.result()
            if self.control.away:
                begin = time.monotonic()
            if timeout_s is not None and time.monotonic() - begin > timeout_s:
                raise WaitTimeout(
                    f"the master has not answered {type(message).__name__} for "
                    f"{timeout_s:g} s: look at its log"
                )
        raise Ended

    def _give_up(self, error: Exception) -> None:
        """Report to the master, once, why this worker failed, and end it."""
        if self.ended.is_set():
            return
        cause = error.__cause__ or error
        if not isinstance(cause, SnailError):
            log.error("%s\n%s", explain(error), trace_of(cause))
            log.debug("with the lines of snailps", exc_info=cause)
        self.end(EXIT_FAILED, explain(error))  # first: the master's Stop may be very quick
        self.control.note(messages.Failed(explain(error), frames_of(cause)))
