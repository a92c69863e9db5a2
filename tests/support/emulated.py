"""A whole training by several workers in one process, one of them running at a time.

    settings -> Job: files, survey, leases -> models on real shards, a thread each -> Results

Job, leases, models, kernels, client and shards are the product's.  Time is made up: a worker's
clock is the examples that it has trained, the one whose clock is earliest runs next, up to its next
stop (after a span, a batch or a checkout), and answers count as arrived a stop after they were
asked for.  So a seed gives the same numbers however busy the machine is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from shards import Shards
from workers_in_order import AtOnce, Steps

from snailps.api.results import Results
from snailps.api.tables import Tensor
from snailps.api.traits import Cut, Surveyed, trait_of
from snailps.api.wire_choice import WireChoice
from snailps.api.worker import Block, Worker
from snailps.config import RawConfig
from snailps.errors import ClusterError, WaitTimeout
from snailps.files.scratch import Scratch
from snailps.master.job.beginning import begin_survey, begin_training, prepare
from snailps.master.job.ending import end_pass
from snailps.master.job.job import Job
from snailps.master.job.training_plan import plan_training
from snailps.master.leases.parts import NO_PART
from snailps.models.block_trainer import BlockTrainer
from snailps.models.kept_rows import KeptRows
from snailps.models.mlp import Mlp
from snailps.models.sparse.net import Net
from snailps.transport import messages
from snailps.worker.checkouts import LeaseCheckouts
from snailps.worker.context import JobContext
from snailps.worker.leases import Leases
from snailps.worker.resume_state import ResumeState
from snailps.worker.user_code import tables_of
from tests.support.attach import attach

SHARDS = 2
BLOCKED_MAX = 5_000
"""Turns in a row without progress of any worker after which the training hangs."""
POLL_S = 0.01
"""Wait for a step of bsp to begin, which shards say from threads of their own."""


class _Late:
    """An answer that is here, and counts as arrived at its worker's next stop."""

    def __init__(self, worker: _Emulated, pending: Any) -> None:
        pending.wait()
        self.pending, self._worker, self._stop = pending, worker, worker.stops

    @property
    def done(self) -> bool:
        return self._worker.stops > self._stop

    @property
    def rows(self) -> Any:
        return self.pending.rows

    def wait(self) -> Any:
        return self.pending.wait()


class _Later:
    """An executor's place: work is done by the thread that asks for its result."""

    def submit(self, function: Callable[..., Any], *args: Any) -> _Work:
        return _Work(function, args)

    def shutdown(self) -> None: ...


class _Work:
    def __init__(self, function: Callable[..., Any], args: Any) -> None:
        self._call: Any = (function, args)
        self._result: Any = None

    def done(self) -> bool:
        return self._call is None

    def result(self) -> Any:
        if self._call is not None:
            (function, args), self._call = self._call, None
            self._result = function(*args)
        return self._result


class _Emulated:
    """A worker: leases, prepares and trains blocks, as `worker/training.py` does."""

    def __init__(self, training: _Training, number: int, model: Worker) -> None:
        self.number, self.model, self.time, self.stops = number, model, 0.0, 0
        self._training, self._job = training, training.job
        self._blocks: deque[Block] = deque()
        self._stand = ResumeState()
        self._stand.start_job()
        self._stand.start_training()
        self._leases = training.leases(
            model, self._stand, SimpleNamespace(ask=self._asked, note=self._noted)
        )
        self.steps: Any = None

    def begin(self) -> None:
        if not self._job.model.clocked:
            self._answer_late()
        self.model.setup()
        self._stop_between()
        self.steps = Steps(lambda steps: self._work())

    # --- stops -----------------------------------------------------------------------------------

    def stop(self, examples: float = 0.0, state: str = "turn") -> None:
        """Let workers with earlier clocks go on; `examples` were trained since the last stop."""
        self.time += examples
        self.stops += state == "turn"
        self.steps.stop(state)
        self._prefetch()

    def _answer_late(self) -> None:
        model, correct = self.model, self.model.correct

        def late(call: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *args, **named: _Late(self, call(*args, **named))

        def corrected(pull: _Late, push: _Late, base: Any = None) -> int:
            return correct(pull.pending, push.pending, base)

        def forwarded(*args: Any, **named: Any) -> Any:
            batch = forward(*args, **named)
            batch.wait()  # before another worker's steps
            return batch

        forward = model.forward
        vars(model).update(
            pull_async=late(model.pull_async), push_async=late(model.push_async),
            backward=late(model.backward), forward=forwarded, correct=corrected,
        )  # fmt: skip

    @property
    def _stops_inside(self) -> bool:
        """Whether a block has stops inside; a range that is solved has none."""
        solves = self._job.schedule.ranges is not None
        return isinstance(self.model, BlockTrainer | Net | Mlp) and not solves

    def _stop_between(self) -> None:
        """Stop between spans, batches or checkouts, and train with this thread alone."""
        model: Any = self.model
        if self._stops_inside and not isinstance(model, Net | Mlp):
            model.sgd.pool.shutdown()
            model.sgd.pool = AtOnce()
            for rows in model.rows:
                if isinstance(rows, KeptRows):
                    rows.times.seconds = lambda: 0.0
            exchange = model.rows[0].exchange

            def stop_and_exchange(examples: int) -> None:
                self.stop(examples)
                exchange(examples)

            vars(model.rows[0])["exchange"] = stop_and_exchange
            if self._training.rotates:
                model.rotating.ahead, model.rotating.behind = _Later(), AtOnce()
        elif isinstance(model, Net):
            forth = model._step

            def stop_and_step(way: Any, batch: Any, edge: tuple[int, int], *args: Any) -> Any:
                self.stop(edge[1] - edge[0])
                return forth(way, batch, edge, *args)

            vars(model)["_step"] = stop_and_step
        elif isinstance(model, Mlp):
            gradients = model._gradients

            def stop_and_compute(x: Any, *args: Any) -> Any:
                self.stop(len(x))
                return gradients(x, *args)

            vars(model)["_gradients"] = stop_and_compute
        elif not self._stops_inside and not isinstance(model, BlockTrainer):
            pull = model.pull

            def pull_and_stop(table: str, keys: Any, *args: Any, **named: Any) -> Any:
                rows = pull(table, keys, *args, **named)
                self.stop(len(keys))  # others pull before this worker pushes what it makes of these
                return rows

            vars(model)["pull"] = pull_and_stop

    # --- blocks ----------------------------------------------------------------------------------

    def _work(self) -> None:
        model, client = self.model, self._training.clients[self.number]
        while (block := self._next()) is not None:
            if block.clock >= 0:
                self._reach(client, block)
            checkouts = block.checkouts if isinstance(block.checkouts, LeaseCheckouts) else None
            if checkouts is not None:
                checkouts.begin()
            with model._at(block):
                metrics = dict(model.train(block))
            if checkouts is not None:
                checkouts.end()
            units = int(metrics.pop("units", metrics.get("examples", 0)))
            if checkouts is None and not self._stops_inside:
                self.stop(units)
            if block.clock >= 0 or checkouts or model.settings.consistency != "async":
                client.flush(60.0)
            whole = checkouts is None or not checkouts.cut
            metrics = {name: float(value) for name, value in metrics.items()}
            done = messages.Done("train", block.number, units, 1e-3, metrics, whole=whole)
            self._stand.reported(done)
            self._job.done(done, self.number, 0.0)
            if self._job.rules.diverged:
                raise ClusterError(self._job.rules.diverged)
            if block.clock >= 0:
                client.seal_async(block.clock, block.slot, block.slots).wait()
        model.finish()
        client.flush(60.0)

    def _reach(self, client: Any, block: Block) -> None:
        reach = client.reach_async(block.clock)
        while True:
            try:
                reach.wait(POLL_S)
                return
            except WaitTimeout:
                self.stop(state="blocked")

    def _next(self) -> Block | None:
        while not self._blocks:
            if not self._lease():
                if self._job.schedule.over:
                    return None
                self.stop(state="blocked")
        block = self._blocks.popleft()
        self._prefetch()
        return block

    def _prefetch(self) -> None:
        while len(self._blocks) < self.model.prefetch and self._lease():
            pass

    def _lease(self) -> bool:
        """Lease and prepare a block, as `worker.leases.Leases.next`; False: there is none now."""
        lease = self._job.lease(self.number, 0.0)
        if lease is None:
            return False
        self._stand.leased("train", lease)
        block = self._leases.block(lease, "train")
        if block.chunk_index >= 0:
            self.model.encode(block)
            self._training.clients[self.number].flush(60.0)
            done = messages.Done("train", block.number, 0, 1e-3, {})
            self._stand.reported(done)
            self._job.done(done, self.number, 0.0)
            return True
        with self.model._at(block, preparing=True):
            block.prepared = self.model.prepare(block)
        self._blocks.append(block)
        return True

    def _asked(self, message: Any, timeout_s: Any, heard: Callable[[Any], None]) -> Any:
        """The answer to a wish for an output partition."""
        assert isinstance(message, messages.CheckOut)
        self.stop()
        while (part := self._job.schedule.checkouts.check_out(message.number, self.number)) is None:
            self.stop(state="blocked")
        answer = messages.CheckedOut(max(part, NO_PART), ends=part < NO_PART)
        heard(answer)
        return answer

    def _noted(self, message: Any) -> None:
        if isinstance(message, messages.CheckIn):
            self.time += message.units
            self._job.checked_in(message, self.number, 0.0)
            if self._job.rules.diverged:
                raise ClusterError(self._job.rules.diverged)


class _Training:
    """A job, its shards, and its workers."""

    def __init__(self, settings: dict[str, Any], workers: int, cluster: Shards) -> None:
        self.cluster, self.workers = cluster, workers
        self.job = Job(RawConfig.from_mapping(settings, "test"))
        prepare(self.job, workers)
        self.scratch = Scratch(
            self.job.settings.scratch_dir,
            self.job.settings.scratch_bytes,
            tables=trait_of(self.job.model.cls, Cut).reading(self.job.settings),
        )
        self.clients = {number: cluster.client(number) for number in range(1, workers + 1)}
        declared = tables_of(self._model(1))
        tables = [one.table() if isinstance(one, Tensor) else one for one in declared]
        self.tables = {table.name: (number, table) for number, table in enumerate(tables, 1)}
        for number, table in self.tables.values():
            cluster.declare(table, number)

    def _model(self, number: int) -> Worker:
        return self.job.model.cls(self.job.settings, 1)

    def leases(self, model: Worker, progress: Any, calls: Any) -> Leases:
        """Leases that make blocks; nothing that they read is asked of a master."""
        nobody: Any = None
        job = JobContext(model, nobody, calls, progress, nobody, nobody, 60.0)
        return Leases(job, nobody, self.scratch)

    def survey(self) -> None:
        """The summary, as one worker makes it."""
        if not self.job.survey.exists:
            return
        job, model = self.job, self._model(1)
        surveyor: Any = trait_of(job.model.cls, Surveyed).surveyor(job.settings)
        part: Any = model.survey_part()
        begin_survey(job, 0.0)
        leases = self.leases(model, None, None)
        while (lease := job.lease(1, 0.0)) is not None:
            block = leases.block(lease, "train")
            if part is None:
                surveyor.add(model.survey(block))
            else:
                part.add(block)
            job.schedule.survey.merge([lease.number], 1)
            job.merged(messages.Done("survey", lease.number, len(block.data), 0.0, {}), 0.0)
        if part is not None:
            surveyor.add(part.take())
        job.survey.adopt(surveyor.result())
        if not job.settings.block_bytes:
            job.input.fit(job.survey.summary)

    def load(self) -> None:
        """Set the rows of a model that the job continues."""
        if loader := trait_of(self.job.model.cls, Surveyed).loader(self.job.settings):
            loader(self.results())

    def train(self) -> None:
        job, nodes = self.job, list(self.clients)
        plan = plan_training(job, self.workers)
        self.rotates = plan is not None
        begin_training(job, 0.0, nodes, plan=plan)
        counted = job.as_counted(self.workers)
        workers = []
        for number, client in self.clients.items():
            model = self._model(number)
            choice = WireChoice(client, self.cluster.route, exact=job.model.clocked)
            attach(model, client, choice, self.tables, job.model.clocked)
            model.workers, model.summary = counted, job.survey.summary or b""
            workers.append(_Emulated(self, number, model))
        for worker in workers:
            worker.begin()
        self._run(workers)

    def _run(self, workers: list[_Emulated]) -> None:
        blocked = 0
        while live := [worker for worker in workers if worker.steps.state != "done"]:
            worker = min(live, key=lambda one: (one.time, one.number))
            worker.steps.advance()
            if worker.steps.state != "blocked":
                blocked = 0
                continue
            blocked += 1
            assert blocked < BLOCKED_MAX, "all workers wait"
            going = [one.time for one in live if one.steps.state != "blocked"]
            worker.time = max(worker.time, min(going, default=worker.time)) + 1e-6

    def results(self) -> Results:
        return Results(
            self.job.settings,
            self.job.survey.summary or b"",
            {},
            self.clients[1],
            {name: number for name, (number, _) in self.tables.items()},
            {name: table for name, (_, table) in self.tables.items()},
            self.cluster.frag_num,
        )


@contextmanager
def trained(settings: dict[str, Any], workers: int) -> Iterator[tuple[type[Worker], Results]]:
    """The class and the finished model of a job's settings, while its shards are there."""
    with Shards(SHARDS) as cluster:
        training = _Training(settings, workers, cluster)
        try:
            training.survey()
            training.load()
            training.train()
            end_pass(training.job, 0.0)  # counts go into the settings
            yield training.job.model.cls, training.results()
        finally:
            training.scratch.close()
            training.job.close()
