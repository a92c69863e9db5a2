"""Owns a job at the master while it runs: its passes, their schedule, results and limits.

    beginning.py -> begin_pass -> lease, done ... -> ending.py
                                    +-> metrics, rules that end it -> controller.py

`leases/service.py` asks it for leases and passes results on; `metrics.py` has the sums,
`stop_rules.py` the reasons to end, `model_class.py` what the class answers, `record.py` what
checkpoints and journals keep. Must not know connections, or the phase of the job
(`controller.py`). `content` runs beside the loop. `now` is monotonic seconds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from snailps.abi.key_hash import seed_of
from snailps.api.plain_values import named_method
from snailps.config import RawConfig, to_mapping
from snailps.dataclass import dataclass, field
from snailps.errors import ClusterError, ProtocolError
from snailps.files.blocks import HEAD
from snailps.master.job.epoch_figures import EpochFigures
from snailps.master.job.input import JobInput
from snailps.master.job.metrics import PassMetrics, RoundResults
from snailps.master.job.model_class import ask, load
from snailps.master.job.settings import job_settings
from snailps.master.job.stop_rules import StopRules, enough
from snailps.master.job.survey import JobSurvey
from snailps.master.leases import Schedule
from snailps.master.leases.entries import Entry
from snailps.master.leases.records import BlockResult
from snailps.master.leases.shared import no_schedule
from snailps.transport import messages
from snailps.transport.messages.terms import Partition


def _result(message: messages.Done | messages.CheckIn) -> BlockResult:
    metrics = message.metrics
    return BlockResult(
        message.units,
        metrics.get("loss", math.nan),
        metrics.get("examples", 0.0),
        int(metrics.get("bad_lines", 0)),
        metrics.get("lr", math.nan),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Inspected:
    """What looks have seen in the model's tables; replaced as a whole.

    `validation`: names with their neighbours, as seen last.  `tests`: when there were figures,
    monotonic seconds, and these, with the ``progress`` of the training then.
    """

    validation: Mapping[str, list[tuple[str, float]]] = dataclasses.field(default_factory=dict)
    tests: tuple[tuple[float, Mapping[str, float]], ...] = ()

    @property
    def figures(self) -> dict[str, Any]:
        """For the figures of the run, what there is."""
        tests = [dict(test) for _, test in self.tests]
        figures = {"validation": dict(self.validation), "tests": tests}
        return {name: value for name, value in figures.items() if value}


@dataclass(slots=True)
class JobClock:
    """The time of a job: it stands while no master works, so the beginnings are moved then."""

    begun: float  # the job
    pass_begun: float
    seconds: dict[str, float] = field(default_factory=dict)  # of passes that have ended
    # Of the clock of rows that expire, by units trained (`expiry.py`): never empty.
    ticks: list[int] = field(default_factory=lambda: [0])

    def elapsed_s(self, now: float) -> float:
        """Seconds of the pass."""
        return now - self.pass_begun

    def spent(self, now: float) -> dict[str, float]:
        """Seconds of work so far, of the job and of its pass: arguments of `resume`."""
        return {"job_s": round(now - self.begun, 3), "pass_s": round(self.elapsed_s(now), 3)}

    def resume(self, job_s: float, pass_s: float, now: float) -> None:
        """Add seconds of work under earlier masters."""
        self.begun, self.pass_begun = now - job_s, now - pass_s


class Job:
    def __init__(
        self,
        raw: RawConfig,  # where the settings come from
        also_known: Iterable[type[Any]] = (),  # settings classes whose keys may be in the same file
        now: float = 0.0,
        source: bytes = b"",  # of the class, if no process can import it
    ) -> None:
        cls, path = load(raw)
        # The three change until the training begins (`beginning.py`), and the settings once more
        # by what its workers have counted: always read them here.
        self.settings = job_settings(cls, raw, also_known)
        self.model = ask(cls, path, source, raw, self.settings)
        self.survey = JobSurvey(cls, self.settings, clocked=self.model.clocked)
        self.input = JobInput(cls, self.settings)
        self.clock = JobClock(now, now)
        # Of the present pass; "", and a schedule without blocks, before the first.
        self.pass_ = ""
        self.schedule: Schedule = no_schedule()
        self.metrics = PassMetrics()
        # Of the training, also while it is surveyed.
        self.rules = StopRules()
        self.round_results = RoundResults()
        self.tested = EpochFigures()
        self.inspected = Inspected()
        self.memo: dict[str, Any] = {}  # what the model's class methods keep
        # Leased parts of the first chunk, -1: anything else. The first lease of each says so to its
        # worker. None: the training continues an earlier one, and no lease is the first.
        self._leased: set[int] | None = None
        self._start: messages.Start | None = None  # as sent last: a thousand workers get the same

    def close(self) -> None:
        """Remove unpacked input; idempotent."""
        self.input.close()

    def as_counted(self, workers: int) -> int:
        """Workers as models count them: micro-batches in bsp, the workers of a round in rounds,
        else how many train at a time."""
        if self.model.clocked and not self.model.rounds.number:
            return self.settings.micro_batches
        rounds = self.schedule.rounds
        at_work = workers if rounds is None else rounds.width
        return min(at_work, self.model.by_input.concurrency.workers)

    def start_message(self, workers: int) -> messages.Start:
        """The Start message, cached for a number of workers."""
        counted = self.as_counted(workers)
        if self._start is None or self._start.workers != counted:
            model, settings = self.model, dict(to_mapping(self.settings))
            self._start = messages.Start(
                1, model.path, settings, counted, self.survey.exists, model.source
            )
        return self._start

    # --- passes ----------------------------------------------------------------------------

    def begin_pass(self, name: str, schedule: Schedule, now: float, *, is_new: bool = True) -> None:
        """Begin "survey" or "train"; not `is_new`: the training continues an earlier one."""
        self.pass_, self.schedule = name, schedule
        self._leased = set() if is_new and name == "train" else None
        self.clock.pass_begun = now
        self.metrics = PassMetrics()

    def begin_round(self) -> None:
        """Keep the metrics of now for checkpoints during the round."""
        assert self.schedule.rounds is not None
        self.round_results.begin(self.metrics, self.schedule.rounds.round)

    def round_done(self, round_: int, figures: Mapping[str, Any]) -> None:
        """Take metrics of `InRounds.after_round`; ClusterError if the loss is not finite."""
        self.round_results.figures.append(dict(figures))
        loss = figures.get("loss")
        if loss is None:
            return
        if diverged := self._check_loss(f"round {round_ + 1}", loss):
            raise ClusterError(diverged)
        if self.settings.target_loss and loss <= self.settings.target_loss:
            self.rules.reach("target_loss", round_)

    def looked(
        self, seen: Iterable[Mapping[str, Any]], now: float = 0.0, progress: float | None = None
    ) -> None:
        """Take what looks have seen: neighbours, and figures at a `progress` of the training."""
        everything = [entry for figures in seen for entry in figures.items()]
        near = {name: value for name, value in everything if isinstance(value, list)}
        if near:
            self.inspected = dataclasses.replace(self.inspected, validation=near)
        figures = {name: value for name, value in everything if not isinstance(value, list)}
        if figures and progress is not None:
            tests = (*self.inspected.tests, (now, {"progress": progress, **figures}))
            self.inspected = dataclasses.replace(self.inspected, tests=tests)

    def epoch_tested(self, test: dict[str, Any], kept: str, done: float) -> None:
        """Take the figures of an epoch; its rows, if it is the best one, are `kept` at a path."""
        self.tested.add(test, kept, done)
        tests = (*self.inspected.tests, (self.clock.pass_begun + test["at_s"], test))
        self.inspected = dataclasses.replace(self.inspected, tests=tests)

    def limit_reached(self, now: float) -> str:
        """Name of the setting that ends the training now; empty while none does."""
        settings = self.settings
        if settings.max_seconds and self.clock.elapsed_s(now) >= settings.max_seconds:
            return "max_seconds"
        schedule = self.schedule
        if self.rules.has_reached or schedule.limits is not None or schedule.rounds is not None:
            return self.rules.reached
        return self._enough(self.schedule.epoch)

    def _enough(self, epochs: int) -> str:
        """`ended_by`, if the loss after so many whole epochs ends the training."""
        passes, blocks = self.model.by_input.passes, self.schedule.plan.results_per_epoch
        return enough(self.settings, passes, self.metrics, epochs, blocks)

    def end_early(self, why: str) -> None:
        """Lease no more blocks; `why` becomes `ended_by` in the figures."""
        self.rules.ended_by = why
        self.schedule.close()

    def progress(self, now: float) -> float:
        """Share of the pass, 0 to 1: of its bytes, or of `max_seconds` where that is more."""
        limit_s = self.settings.max_seconds if self.pass_ == "train" else 0.0
        spent = min(1.0, self.clock.elapsed_s(now) / limit_s) if limit_s else 0.0
        return max(self.schedule.progress, spent)

    @property
    def epochs_done(self) -> float:
        """Epochs that are trained so far."""
        return self.schedule.progress * self.schedule.part * self.settings.epochs

    # --- leases and results ----------------------------------------------------------------

    def lease(self, node: int, now: float, back: bool = False) -> messages.Leased | None:
        """The next block for a node; None: there is none at present. With `back` only a returned
        one, of a clock that others may wait for."""
        schedule = self.schedule
        if not back:
            entry = schedule.take(node)
        else:
            entry = None if schedule.slots is None else schedule.slots.take_back(node)
        return None if entry is None else self._leased_message(entry, now)

    def lease_again(self, number: int, index: int, node: int, now: float) -> messages.Leased | None:
        """A block of the chunk of a worker's partition, which is to be encoded once more; None if
        another worker has it. LookupError: there is none."""
        chunks = self.schedule.chunks
        if chunks is None:
            raise LookupError(f"entry {number} is no partition")
        before = chunks.bad_lines
        entry = chunks.encode_again(number, index, node)
        self.metrics.bad_lines -= before - chunks.bad_lines
        return None if entry is None else self._leased_message(entry, now)

    def _leased_message(self, entry: Entry, now: float) -> messages.Leased:
        terms = entry.terms
        part = terms.part if isinstance(terms, Partition) and terms.chunk == 0 else -1
        first = self._leased is not None and part not in self._leased
        if self._leased is not None:
            self._leased.add(part)
        return messages.Leased(
            entry.number,
            entry.piece,
            entry.epoch,
            seed_of(self.settings.seed, entry.number),
            self._progress_of(entry, now),
            terms,
            first,
            self.input.layout(entry.piece),
        )

    def _progress_of(self, entry: Entry, now: float) -> tuple[float, ...]:
        """Share of the training before and after a block that is leased now.

        With `max_seconds` shares of time count where they are larger. A worker leases a block when
        it begins the one before, so the block begins one mean duration from now, and ends another
        one later. Not with clocks, where learning rates must be reproducible.
        """
        limit_s = self.settings.max_seconds
        if not limit_s or self.pass_ != "train" or self.schedule.clocks is not None:
            return entry.progress
        elapsed_s = self.clock.elapsed_s(now)
        return tuple(
            min(1.0, max(share, (elapsed_s + blocks * self.metrics.block_s) / limit_s))
            for blocks, share in enumerate(entry.progress, 1)
        )

    def check_fetch(self, number: int, unit: str) -> None:
        """Refuse a request for bytes that are of no block: ProtocolError."""
        schedule = self.schedule
        exists = schedule.plan.has(number) and unit in ("line", "word", HEAD)
        if not exists or not schedule.plan.entry(number).piece.path:
            raise ProtocolError(f"Fetch of block {number}, unit {unit!r}: no such block")

    def content(self, number: int, unit: str, text: int = 0) -> bytes:
        """Bytes of a leased block, or of one of its texts, for a worker that cannot read it."""
        self.check_fetch(number, unit)
        return self.input.read(self.schedule.plan.entry(number).piece, unit, text)

    def done(self, message: messages.Done, node: int, now: float) -> bool:
        """Take the result of a block of the training; False if the block is not this worker's."""
        if message.pass_ != self.pass_:
            return False
        number, result, schedule = message.number, _result(message), self.schedule
        checkouts, chunks = schedule.checkouts, schedule.chunks
        if whole := checkouts is None or message.whole:
            was_leased = schedule.done(number, node, result)
        else:
            was_leased = checkouts.cut(number, node)
        if not was_leased:
            return False
        if chunks is not None and chunks.numbers.encodes(number):
            self.count(number, schedule.records.result(number))  # without units
            return True
        had_checkouts = number in self.metrics.unfinished  # whose results this one replaces
        if whole:
            units = self.metrics.end_checkouts(number, node)
        else:
            units = self.metrics.cut(number, schedule.plan.epoch_of(number), node, result)
        self.metrics.came(max(0, result.units - units), now)
        self.metrics.took(message.seconds)
        self._check_block(message)
        if not whole:
            return True
        slots = schedule.slots
        for counted, of_it in [(number, result)] if slots is None else slots.in_order():
            self.count(counted, of_it, recent=not had_checkouts)
        self.metrics.add_counts(message.metrics)
        if not self.rules.is_judged and self.epochs_done >= 1:
            self.rules.judge(self.model, self.settings, self.metrics)
        return True

    def checked_in(self, message: messages.CheckIn, node: int, now: float) -> bool:
        """Check in an output partition, and count it; False if the worker does not hold it."""
        number, schedule, checkouts = message.number, self.schedule, self.schedule.checkouts
        units, seconds = message.units, message.seconds
        if checkouts is None or not checkouts.check_in(number, node, message.part, units, seconds):
            return False
        self.metrics.came(message.units, now)
        self._check_block(message)
        self.metrics.count_checkout(number, schedule.plan.epoch_of(number), _result(message), node)
        return True

    def make_durable(self, number: int, node: int) -> dict[str, Any] | None:
        """Mark what a lease has checked in durable; a fact for the journal if any is new."""
        checkouts = self.schedule.checkouts
        parts = [] if checkouts is None else checkouts.make_durable(number, node)
        if not parts:
            return None
        figures = self.metrics.make_durable(number)
        return {"number": number, "node": node, "parts": parts, **figures}

    def withdraw_checkouts(self) -> None:
        """Withdraw results of partitions neither leased nor done, except durable ones."""
        for number in self.metrics.unfinished:
            if not self.schedule.records.holder(number):
                self.metrics.lose_checkouts(number)

    def _check_block(self, message: messages.Done | messages.CheckIn) -> None:
        """Note where a loss is not finite, or far beyond the first ones."""
        examples = message.metrics.get("examples", 0.0)
        if examples > 0 and "loss" in message.metrics and not self.rules.diverged:
            where = f"{named_method(self.model.cls, 'train')}, block {message.number}"
            loss = message.metrics["loss"] / examples
            self.rules.diverged = self._check_loss(where, loss)

    def _check_loss(self, where: str, loss: float) -> str:
        # Workers as their models count them: so they are in the learning rate.
        workers = 1 if self._start is None else self._start.workers
        return self.rules.check_loss(self.model, self.settings, where, loss, workers)

    def count(self, number: int, result: BlockResult, *, recent: bool = True) -> None:
        self.metrics.count(self.schedule.plan.epoch_of(number), result, recent=recent)
        schedule, limits = self.schedule, self.schedule.limits
        place = None if limits is None else limits.ended(number)
        if self.rules.has_reached or limits is None or place is None:
            return
        whole = (number + 1) // len(self.input.blocks)  # epochs; also of a schedule that is resumed
        if reached := self._enough(min(schedule.epoch, whole)):
            self.rules.reach(reached, place)
            # Now, and not when `limit_reached` is asked next: waiting workers are answered before
            # that, and would get entries beyond the limit.
            limits.limit(place)

    def counted(self, node: int, now: float) -> int:
        """A worker has surveyed its leases into its part; returns how many blocks are new."""
        assert self.schedule.survey is not None
        numbers = self.schedule.survey.count(node)
        for number in numbers:
            piece = self.schedule.plan.entry(number).piece
            self.metrics.came(piece.stop - piece.start, now)
        return len(numbers)

    def merged(self, message: messages.Done, now: float) -> None:
        """A part of the survey is merged: its blocks are done."""
        parts = self.schedule.survey
        assert parts is not None
        for number in message.numbers:
            parts.merged(number, BlockResult())
        parts.merged(message.number, BlockResult(message.units))
        if not message.numbers:
            self.metrics.came(message.units, now)
        self.metrics.add(message.units)
