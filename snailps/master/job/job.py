"""Owns a job at the master: the model's class, its input, its passes, its progress.

    settings -> Job.load -> prepare (files -> blocks) -> Schedule of "survey" -> summary
    -> Schedule of "train" -> metrics -> export

`leases/service.py` asks it for leases and passes results on; `metrics.py` has the sums. Must not
know connections, or the phase of the job (`controller.py`). What the model's class says by its
settings is asked once, in the constructor; methods that compute run beside the loop (`prepare`,
`end_survey`, `content`). `now` is monotonic seconds.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.abi.key_hash import seed_of
from snailps.api.concurrency import Concurrency
from snailps.api.counting import Counted
from snailps.api.passes import Passes
from snailps.api.plain_values import Number, named_method, plain_figures, plain_number
from snailps.api.range_passes import RangePasses, TrainingPlan
from snailps.api.results import Results
from snailps.api.rotation import OUTPUTS_PER_INPUT, Rotation
from snailps.api.tables import Table, Tensor
from snailps.api.traits import (
    Adopted,
    Cut,
    InRounds,
    Limited,
    Ranged,
    Reported,
    Rotated,
    Surveyed,
    is_clocked,
    trait_of,
)
from snailps.api.validation import Validation
from snailps.api.worker import Worker, load_class
from snailps.config import JobSettings, RawConfig, settings_of, to_mapping
from snailps.config.origins import with_origins
from snailps.config.output import check_output, check_room, sizes_text
from snailps.errors import CheckpointError, ClusterError, ConfigError, ProtocolError, explain
from snailps.files.blocks import HEAD
from snailps.master.job.epoch_figures import EpochFigures
from snailps.master.job.input import JobInput
from snailps.master.job.loss_watch import LossWatch
from snailps.master.job.metrics import PassMetrics
from snailps.master.job.settings import job_settings, plain_settings
from snailps.master.job.state import JobState
from snailps.master.job.survey import SurveyMerge
from snailps.master.leases import (
    CLOCKS_AHEAD,
    SCHEDULES,
    Entries,
    RangeSchedule,
    RotationSchedule,
    Schedule,
    SurveySchedule,
    Training,
)
from snailps.master.leases.entries import Entry
from snailps.master.leases.records import BlockResult
from snailps.master.leases.schedule import NO_RECORDS
from snailps.master.leases.shared import no_schedule
from snailps.outward import without_secrets
from snailps.registry import named
from snailps.transport import messages
from snailps.transport.control.encoded import Encoded
from snailps.transport.messages.terms import Partition
from snailps.transport.messages.validation import PARTS_MAX

log = logging.getLogger(__name__)


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
    """What the master has found in the model's tables; replaced as a whole.

    `validation`: the last result of the model's inspector.  `tests`: when its tester had made
    figures, monotonic seconds, and these, with the ``progress`` of the training then.
    """

    validation: Mapping[str, list[tuple[str, float]]] = dataclasses.field(default_factory=dict)
    tests: tuple[tuple[float, Mapping[str, float]], ...] = ()

    @property
    def figures(self) -> dict[str, Any]:
        """For the figures of the run, what there is."""
        tests = [dict(test) for _, test in self.tests]
        figures = {"validation": dict(self.validation), "tests": tests}
        return {name: value for name, value in figures.items() if value}


def plan_of(fields: Mapping[str, Any] | None) -> TrainingPlan | None:
    """The plan of a training from the fields of a `Rotation` or of `RangePasses`; None without."""
    if not fields:
        return None
    if "ranges" in fields:
        names: tuple[str, ...] = ("ranges", "passes", "per_epoch", "before")
        return RangePasses(*(int(fields[name]) for name in names))
    names = ("chunks", "most_parts", "checkouts_of_one", "sweeps", "passes")
    numbers = {name: int(fields[name]) for name in names}
    return Rotation(**numbers, is_kept=bool(fields["is_kept"]))


BY_HEART = 0.5
"""Part of the first epoch's loss, most of whose lines were new, below which few lines may have been
learnt by heart."""


def _plan_in(state: JobState) -> TrainingPlan | None:
    """The plan of the training that a state is of."""
    return plan_of(state.figures.get("rotation") or state.figures.get("ranges"))


class Job:
    def __init__(
        self,
        raw: RawConfig,  # where the settings come from
        also_known: Iterable[type[Any]] = (),  # settings classes whose keys may be in the same file
        now: float = 0.0,
    ) -> None:
        entry = raw.explicit("worker_class", JobSettings)
        if entry is None or not entry.value:
            raise ConfigError(
                "worker_class is not set: nothing to train. Write "
                "'worker_class: package.module:Class' into the master's file "
                "(config/fasttext.conf shows a whole job)"
            )
        self.cls: type[Worker] = load_class(entry.value, entry.origin)
        self.settings = job_settings(self.cls, raw, also_known)
        self._raw, self.origins = raw, with_origins(self.settings, raw)
        self.measured: list[str] = []
        """Settings that the model chose by its input, in words."""
        self.refused = ""
        """Why the training must end, by what its workers have counted; empty: it may continue."""
        self._is_counted = False  # counts were judged after the first epoch
        self._counted: Mapping[str, Any] = {}  # figures that the model makes of counts
        self.diverged = ""
        """Why the training cannot continue; empty while it can."""
        self._losses: LossWatch | None = None  # of the training, once there is a loss
        self.worker_class = entry.value
        self.source = b""
        """Source of the class, if no process can import it."""
        # Asked here, once: in the loop the core calls nothing of the model's class that computes.
        in_rounds = trait_of(self.cls, InRounds)
        self.name = self._asked(self.cls, "model_name", str)
        self.clocked = is_clocked(self.cls, self.settings)
        self.rounds = self._asked(in_rounds, "rounds", int)
        if self.rounds:
            named("rounds")  # refused now, where this installation lacks it
        self.needs_workers = self.rounds > 0
        """The indices of rounds are the workers at the begin of the training: it needs some."""
        self.fraction = self._asked(in_rounds, "fraction", float)
        self.deadline_s = self._asked(in_rounds, "deadline", float)
        self.expires = self._asked(trait_of(self.cls, Limited), "expires", int)
        """Units after which rows that no push touched are deleted; 0: never."""
        self.ticks = [0]
        """Ticks of the clock of such rows (`expiry.py`)."""
        self.concurrency = Concurrency()
        self.counts = trait_of(self.cls, Reported).counts
        after_round = in_rounds.after_round.__func__  # type: ignore[attr-defined]
        self.inspects_rounds = after_round is not InRounds.after_round.__func__  # type: ignore[attr-defined]
        self._ask_for_survey()
        self.round_figures: list[dict[str, Any]] = []
        self.summary: bytes | None = None
        self.pass_ = ""
        self.schedule: Schedule = no_schedule()
        self._is_new = False  # the training continues no earlier one
        self._leased: set[int] = set()  # leased parts of the first chunk; -1: anything else
        self._at_round: tuple[int, list[list[float]]] = (0, [])  # units, losses as the round began
        self._start: messages.Start | None = None
        self._summary_message: tuple[bytes, Encoded] | None = None
        self.input = JobInput(self.cls, self.settings)
        self._begun = now
        self._pass_begun = self._begun
        self.metrics = PassMetrics()
        self.ended_by = ""
        self._is_judged = settings_of(self.cls.Settings)["epochs"].auto
        """The loss decides the number of epochs by default; it is reported also if that is set."""
        self._least_epochs = self.settings.epochs
        """Epochs after which the training may end once the loss stops falling."""
        self._relative = False  # the loss has stopped falling by its own scale, not the first one's
        self._by_heart = False  # the model chose more epochs than few lines may bear
        self._is_whole = False  # the model chose a number of epochs, all of which are trained
        self.inspected = Inspected()
        self.validation: Validation | None = None
        self.tested = EpochFigures()
        self.memo: dict[str, Any] = {}  # what the model's class methods keep
        self._reached_in, self._reached = -1, ""
        self._seconds: dict[str, float] = {}

    def _asked(self, part: type[Any], method: str, kind: Callable[[Any], Number]) -> Number:
        """Ask the model's class, or a part of it, for a plain number or text, by its settings."""
        return plain_number(self.cls, method, getattr(part, method)(self.settings), kind)

    def prepare(self, workers: int) -> None:
        """Find the input and cut it into blocks; may take long (unpacking). ConfigError also where
        nothing can be written to the output."""
        check_output(self.settings.output)
        if self.rounds:  # each worker finds its own data
            return
        if not self.settings.input:
            raise ConfigError("input is not set: name files, folders or globs to train on")
        self.input.find()
        self._measure()
        if not self.settings.epochs:
            passes = trait_of(self.cls, Cut).passes(self.settings, self.input.found)
            self._check_returned(passes, Passes, "passes")
            self.settings = dataclasses.replace(self.settings, epochs=int(passes.most))
            self._least_epochs, self._relative = int(passes.least), passes.relative
            self._is_whole, self._by_heart = passes.least == passes.most, passes.by_heart
        self._add_learnt()
        if not self.clocked:  # the slots of a step are as many for one worker
            limited = trait_of(self.cls, Limited)
            self.concurrency = limited.workers_at_once(self.settings, self.input.found)
            self._check_returned(self.concurrency, Concurrency, "workers_at_once")
        self._ask_for_validation()
        self.input.cut(self.settings, max(1, workers), self.as_counted(max(1, workers)))

    def _add_learnt(self) -> None:
        """Count the input as learnt, for the model's file; of a continued model only if its file
        says what it had learnt: a part would be taken for all."""
        s = self.settings
        if s.learnt or not getattr(s, "continue_from", ""):
            learnt = s.learnt + self.input.found.total_bytes
            self.settings = dataclasses.replace(s, learnt=learnt)

    def _ask_for_validation(self) -> None:
        """Ask how the model is tested after each epoch."""
        validation = trait_of(self.cls, Reported).validation(self.settings)
        if validation is not None:
            self._check_returned(validation, Validation, "validation")
            self.validation = validation
            self.tested = EpochFigures(validation.stop_after, validation.better)

    @property
    def tester(self) -> Callable[[Results], Mapping[str, float]] | None:
        """What tests the model beside the training: nothing if it is tested after each epoch."""
        if self.validation is not None:
            return None
        return trait_of(self.cls, Reported).tester(self.settings)

    def epoch_tested(self, test: dict[str, Any], kept: str, done: float) -> None:
        """Take the figures of an epoch; its rows, if it is the best one, are `kept` at a path."""
        self.tested.add(test, kept, done)
        tests = (*self.inspected.tests, (self._pass_begun + test["at_s"], test))
        self.inspected = dataclasses.replace(self.inspected, tests=tests)

    def _check_returned(self, value: object, kind: type, method: str) -> None:
        if not isinstance(value, kind):
            expected = f"{kind.__module__}.{kind.__name__}"
            raise ConfigError(
                f"{self.cls.__name__}.{method} returned {value!r:.100}: expected a {expected}"
            )

    def _ask_for_survey(self) -> None:
        """Ask the class, by the present settings, what fills rows and what merges the survey."""
        trait = trait_of(self.cls, Surveyed)
        self.loader = trait.loader(self.settings)
        surveyor = trait.surveyor(self.settings)
        self.has_survey = surveyor is not None
        # Where workers merge blocks, their order does not matter: see `SurveyPart`.
        in_order = self.clocked and trait.survey_part is Surveyed.survey_part
        self.survey = None if surveyor is None else SurveyMerge(surveyor, in_order=in_order)

    def _measure(self) -> None:
        """Have the model complete its settings by the files of the input."""
        trait = trait_of(self.cls, Adopted)
        measured = plain_settings(trait.measure(self.settings, self.input.found))
        if measured is self.settings:
            return
        before, described = to_mapping(self.settings), settings_of(self.cls.Settings)
        self.measured = [
            f"{name} {text}"
            for name, text in to_mapping(measured).items()
            if before[name] != text and not described[name].hidden
        ]
        self.settings, self.origins = measured, with_origins(measured, self._raw)
        self._ask_for_survey()

    def check_methods(
        self, tables: Iterable[Table], where: str, known: Iterable[Table] = ()
    ) -> None:
        """Refuse tables of a file with classes that neither the model nor `known` tables declare.
        Servers import what a table names, and the file may be a stranger's."""
        wanted = [table for table in tables if table.in_python]
        if not wanted:
            return
        try:
            declared = [
                entry.table() if isinstance(entry, Tensor) else entry
                for entry in self.cls(self.settings, 1).tables()
                if isinstance(entry, (Table, Tensor))
            ]
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"{where} has tables of access methods in Python, and {self.cls.__name__}.tables() "
                f"fails: {explain(error)}"
            ) from error
        admitted = {table.access for table in [*declared, *known]}
        for table in wanted:
            if table.access not in admitted:
                raise ConfigError(
                    f"{where}: table {table.name!r} has the access method {table.access}, which "
                    "this job does not declare: a file imports no module by itself. Begin anew "
                    "with --fresh, or declare it"
                )

    def identity(self, may_differ: Collection[str]) -> dict[str, str]:
        """The class and settings that must not change if the job continues.

        Without passwords and signatures of addresses: these may change, and others read files that
        contain this.
        """
        settings = to_mapping(self.settings)
        present = {n: without_secrets(text) for n, text in settings.items() if n not in may_differ}
        return {"worker_class": self.worker_class, **present}

    goes_on = "training goes on"

    @property
    def output(self) -> str:
        """Prefix of the paths of its result."""
        return self.settings.output

    def describe_share(self, share: float) -> str:
        """Progress of the training, in words for a log line."""
        return f"{share:.0%} of the training"

    def plain_settings(self) -> Mapping[str, str]:
        """Its settings as strings."""
        return to_mapping(self.settings)

    def describe(self) -> tuple[str, int, float]:
        """Class, number of files, megabytes: for a log line."""
        return self.worker_class, len(self.input.sources), self.input.total_bytes / 1e6

    def as_counted(self, workers: int) -> int:
        """Workers as models count them: micro-batches in bsp, the workers of a round in rounds,
        else how many train at a time."""
        if self.clocked and not self.rounds:
            return self.settings.micro_batches
        rounds = self.schedule.rounds
        at_work = workers if rounds is None else rounds.width
        return min(at_work, self.concurrency.workers)

    def at_work(self, workers: int) -> tuple[int, str]:
        """How many of `workers` train at a time, and why no more do."""
        counted, chunks = self.as_counted(workers), self.schedule.chunks
        if chunks is not None and chunks.rotation.most_parts < counted:
            why = "the input has too few names, or too little text, to be split among more"
            return chunks.rotation.most_parts, why
        micro_batches = (
            f"a step has micro_batches={counted}: {workers} or more use all, and change the result"
        )
        return counted, self.concurrency.why or micro_batches

    def start_message(self, workers: int) -> messages.Start:
        """The Start message, cached for a number of workers."""
        counted = self.as_counted(workers)
        if self._start is None or self._start.workers != counted:
            settings = dict(to_mapping(self.settings))
            self._start = messages.Start(
                1, self.worker_class, settings, counted, self.has_survey, self.source
            )
        return self._start

    # --- passes ----------------------------------------------------------------------------

    def begin_pass(
        self,
        name: str,
        now: float,
        nodes: Sequence[int] = (),
        state: JobState | None = None,
        plan: TrainingPlan | None = None,
        cores_of: Callable[[int], float] = lambda node: 1.0,
    ) -> None:
        """Open the schedule of "survey" or "train". A `state` (of a checkpoint or a lost master)
        resumes the training. `plan` is what `plan_training` returned, to this master or to the
        lost one. ``cores_of(worker)``: cores that it may keep busy."""
        self.pass_ = name
        train = name == "train"
        self._is_new, self._leased = train and state is None, set()
        if state is not None:
            self._load_input(state)
            plan = plan or _plan_in(state)
        if train:
            self.schedule = self._new_schedule(nodes, state, plan, cores_of)
        else:
            self.schedule = SurveySchedule(self.input.blocks)
        self._pass_begun = now
        self.metrics = PassMetrics()
        if state is not None:
            self._load(state, now)

    def check_state(self, state: JobState) -> None:
        """Refuse a checkpoint's state that lacks what this version continues from. CheckpointError:
        it is of another version, such as one between two releases."""
        figures = state.figures
        try:
            _plan_in(state)
            _ = [float(figures[name]) for name in ("survey_s", "train_s", "wall_s")], figures["lr"]
            if "rotation" in figures:
                PassMetrics().resume(figures["rotation"]["metrics"])
            if "tested" in figures:
                EpochFigures().load(figures["tested"])
        except (LookupError, TypeError, ValueError) as error:
            raise CheckpointError(
                "the checkpoint was written by another version of snailps, such as 0.2.0, and this "
                f"one cannot continue from it ({error!r:.80}): continue with that version, or "
                "begin anew with --fresh"
            ) from None

    def plan_training(self, workers: int, state: JobState | None = None) -> TrainingPlan | None:
        """How a training that `workers` begin is cut, if not by `consistency`: into passes over
        ranges, or as a rotation. Calls the model's class. A resumed training is cut as before. A
        plan with limited steps is a ConfigError."""
        s = self.settings
        if state is not None:
            known = _plan_in(state)
            if known is not None and s.max_steps:
                kind = "by rotation" if isinstance(known, Rotation) else "in passes over ranges"
                raise ConfigError(
                    f"max_steps: the checkpoint is of a training {kind}, whose steps are no "
                    "blocks: leave it out, or begin anew with --fresh"
                )
            return known
        ranges = trait_of(self.cls, Ranged).range_passes(s, self.summary or b"")
        if ranges is not None:
            if not isinstance(ranges, RangePasses):
                raise ClusterError(
                    f"{self.cls.__name__}.range_passes: expected RangePasses or None, "
                    f"got {ranges!r:.80}"
                )
            return ranges
        trait = trait_of(self.cls, Rotated)
        if not trait.rotates(s):
            return None
        wanted = trait.rotation(s, self.input.total_bytes, workers, self.summary or b"")
        if wanted is None:
            return None
        if not isinstance(wanted, Rotation):
            raise ClusterError(
                f"{self.cls.__name__}.rotation: expected a Rotation or None, got {wanted!r:.80}"
            )
        most_parts = min(wanted.most_parts, PARTS_MAX // OUTPUTS_PER_INPUT)
        chunks = min(wanted.chunks, len(self.input.blocks))
        sweeps = max(1, min(wanted.sweeps, PARTS_MAX // (OUTPUTS_PER_INPUT * most_parts)))
        pieces = min(wanted.checkouts_of_one, PARTS_MAX)
        return Rotation(chunks, most_parts, pieces, sweeps, wanted.passes, wanted.is_kept)

    def _new_schedule(
        self,
        nodes: Sequence[int],
        state: JobState | None,
        plan: TrainingPlan | None,
        cores_of: Callable[[int], float],
    ) -> Schedule:
        s = self.settings
        records = state.records if state is not None else NO_RECORDS
        if self.rounds:
            first = state.clock if state is not None else 0
            schedule: Schedule = named("rounds").RoundSchedule(
                self.rounds, nodes, self.fraction, s.seed, first
            )
            return schedule
        if isinstance(plan, RangePasses):
            return RangeSchedule(self.input.blocks, plan, records)
        if plan is not None:
            rotation = {} if state is None else state.figures.get("rotation", {})
            return RotationSchedule(
                Entries(self.input.blocks, s.epochs * plan.passes),
                plan,
                records,
                nodes=nodes,
                cores_of=cores_of,
                extent=rotation.get("extent"),
            )
        entries = Entries(self.input.blocks, s.epochs, s.max_steps, self.input.order)
        training = Training(s, entries, records, nodes, self.concurrency.workers)
        return SCHEDULES[s.consistency](training)

    def end_pass(self, now: float) -> None:
        """End a pass. After a training that ended early, figures count exactly what the model has:
        results whose pushes the servers may lack, as their workers are gone, are withdrawn."""
        self._seconds[self.pass_] = now - self._pass_begun
        self._finish_counts()
        if self.pass_ != "train" or self.rounds:
            return
        if not self.schedule.closed:
            if lacking := len(self.schedule.unpushed()):
                log.warning(
                    "the model may lack a part of what %d blocks taught: their workers are gone, "
                    "and not all of their pushes are acknowledged",
                    lacking,
                )
            return
        taken = self.schedule.withdraw()
        for number, result in taken.items():
            self.metrics.withdraw(self.schedule.plan.epoch_of(number), result)
        if taken:
            log.warning(
                "%d of the blocks that were reported do not count: their workers are gone, and not "
                "all of their pushes are acknowledged",
                len(taken),
            )
        if not self.metrics.units:
            cause = f" before the training ended ({self.ended_by})" if self.ended_by else ""
            log.warning(
                "nothing was trained: no block was finished%s, and the model is as it began", cause
            )

    def lacks_rounds(self) -> str:
        """Why a limit has left no round in the model; empty where one is, or users wanted none."""
        rounds = self.schedule.rounds
        if rounds is None or rounds.round or self.ended_by != "max_seconds":
            return ""
        return (
            f"max_seconds: {self.settings.max_seconds:g} s end before the first round does, so "
            "there is no model: give more, or make rounds shorter"
        )

    def _judge_counts(self) -> Counted:
        """Have the model judge what its workers have counted; plain values."""
        counts = self.metrics.counts
        try:
            if counts:
                trait = trait_of(self.cls, Reported)
                counted = trait.counted(self.settings, counts, self.metrics.units)
                figures = plain_figures(self.cls, "counted", counted.figures)
                refused = plain_number(self.cls, "counted", counted.refused, str)
                return Counted(plain_settings(counted.settings), figures, refused)
        except Exception as error:  # of the model's class, in the master's loop
            log.error("%s.counted failed", self.cls.__name__, exc_info=error)
        return Counted(self.settings)

    def _finish_counts(self) -> None:
        counted = self._judge_counts()
        self.settings, self._counted = counted.settings, counted.figures
        self.refused = self.refused or counted.refused

    # --- state -----------------------------------------------------------------------------

    def dump(self, now: float, *, clock: int = -1, exact: bool = False) -> JobState:
        """State of the training, for a checkpoint or, with `exact`, for a master that takes over.

        `clock`: in bsp, the clock at whose beginning the checkpoint saves rows. `exact`: without
        the input; the arrays are valid until the next call, and only changes are copied, so that it
        may run in the master's loop.
        """
        schedule = self.schedule
        figures: dict[str, Any] = {
            "lr": self.metrics.lr,
            "survey_s": self._seconds.get("survey", 0.0),
            "train_s": self.elapsed_s(now),
            "wall_s": now - self._begun,
            "ticks": list(self.ticks),
            **({"counts": self.metrics.counts} if self.metrics.counts else {}),
            **({"tested": self.tested.dump()} if self.tested.tests else {}),
        }
        chunks, slots, rounds = schedule.chunks, schedule.slots, schedule.rounds
        if chunks is not None:
            figures["rotation"] = chunks.plan()
        if schedule.ranges is not None:
            figures["ranges"] = dataclasses.asdict(schedule.ranges)
        if rounds is not None:
            figures["rounds"] = list(self.round_figures)
            figures["units"], figures["losses"] = self._at_round
        if self.input.order is not None:
            figures["order"] = self.input.order
        round_ = 0 if rounds is None else rounds.round
        about = {"clock": max(0, clock, round_), "figures": figures}
        if exact:
            values = schedule.snapshot()
            arrays = {n: value for n, value in values.items() if isinstance(value, np.ndarray)}
            about["exact"] = {
                "schedule": {n: value for n, value in values.items() if n not in arrays},
                "metrics": self.metrics.snapshot(exact=True),
                "diverged": self.diverged,
                "reached": [self._reached_in, self._reached],
            }
            return JobState(about, {"outcomes": schedule.known(), **arrays})
        if chunks is not None:
            bad_lines = self.metrics.bad_lines - chunks.bad_lines
            figures["rotation"]["metrics"] = {**self.metrics.snapshot(), "bad_lines": bad_lines}
        if slots is not None and clock >= 0:
            return self._with_input(about, slots.durable(clock))
        return self._with_input(about, schedule.durable())

    def base(self) -> JobState:
        """The state at the beginning of the training; beside the loop."""
        figures = {"lr": None, "survey_s": self._seconds.get("survey", 0.0), "train_s": 0.0}
        figures |= {"wall_s": 0.0, "order": self.input.order}
        return self._with_input({"clock": 0, "figures": figures}, NO_RECORDS)

    def _with_input(self, about: dict[str, Any], records: NDArray[Any]) -> JobState:
        input_, cuts = self.input.dump()
        input_["has_summary"] = self.summary is not None
        summary = np.frombuffer(self.summary or b"", np.uint8)
        arrays = {"cuts": cuts, "outcomes": records, "summary": summary}
        return JobState({**input_, **about}, arrays, self.input.blocks)

    def _load_input(self, state: JobState) -> None:
        """Take blocks and summary from a state: no survey is left to do."""
        self.input.load(state)
        self.summary, self.survey = state.summary, None
        self._seconds["survey"] = state.figures["survey_s"]

    def _load(self, state: JobState, now: float) -> None:
        """Take the progress of a state; the schedule has its records."""
        figures, exact = state.figures, state.about.get("exact")
        self.ticks = [int(tick) for tick in figures.get("ticks", [0])]
        self._pass_begun = now - figures["train_s"]
        self._begun = now - figures["wall_s"]
        if "tested" in figures and self.validation is not None:
            self.tested.load(figures["tested"])
            tests = tuple((self._pass_begun + test["at_s"], test) for test in self.tested.tests)
            self.inspected = dataclasses.replace(self.inspected, tests=tests)
        if exact is not None:
            self.schedule.resume({**exact["schedule"], **state.arrays})
        if self.schedule.rounds is not None and "rounds" in figures:
            self.round_figures, self.metrics.units = list(figures["rounds"]), int(figures["units"])
            self.metrics.losses = [list(sums) for sums in figures["losses"]]
            self.begin_round()
        if exact is not None:
            self.metrics.resume(exact["metrics"])
            self.diverged = str(exact["diverged"])
            self._reached_in, self._reached = exact["reached"]
            if self.has_reached and (limits := self.schedule.limits) is not None:
                limits.limit(self._reached_in)
            return
        self.metrics.forget_rate(now)
        self.metrics.lr, self.metrics.counts = figures["lr"], dict(figures.get("counts", {}))
        if "rotation" in figures:
            self.metrics.resume(figures["rotation"]["metrics"])
            return
        numbers, records = self.schedule.records.done(), self.schedule.records
        # The last ones one by one: one of them may have reached the target, which ends the training
        # a fixed number of clocks later.
        last = (CLOCKS_AHEAD + 1) * self.settings.micro_batches
        first = numbers[: max(0, len(numbers) - last)]
        if len(first):
            epochs = np.array(list(map(self.schedule.plan.epoch_of, first.tolist())), np.int64)
            self.metrics.count_all(epochs, records.known()[first])
        for number in numbers[len(first) :].tolist():
            self._count(number, records.result(number))

    def adopt(self, state: JobState) -> None:
        """Adopt the survey of an earlier master."""
        self._load_input(state)
        self.schedule.close()

    def replay(self, message: messages.Done, node: int, now: float) -> bool:
        """Take a result that the journal has, or that a worker repeats; False if the block was done
        already."""
        return self.schedule.claim(message.number, node) and self.done(message, node, now)

    def spent(self, now: float) -> dict[str, float]:
        """Seconds of work so far, of the job and of its pass: arguments of `began`."""
        return {"job_s": round(now - self._begun, 3), "pass_s": round(self.elapsed_s(now), 3)}

    def began(self, job_s: float, pass_s: float, now: float) -> None:
        """Add seconds of work under earlier masters."""
        self._begun, self._pass_begun = now - job_s, now - pass_s
        self.metrics.forget_rate(now)

    def begin_round(self) -> None:
        """Keep the metrics of now for checkpoints during the round."""
        assert self.schedule.rounds is not None
        losses = self.metrics.losses[: self.schedule.rounds.round]
        self._at_round = (self.metrics.units, [list(sums) for sums in losses])

    def limit_reached(self, now: float) -> str:
        """Name of the setting that ends the training now; empty while none does."""
        settings = self.settings
        if settings.max_seconds and self.elapsed_s(now) >= settings.max_seconds:
            return "max_seconds"
        schedule = self.schedule
        if self.has_reached or schedule.limits is not None or schedule.rounds is not None:
            return self._reached
        return self._enough(self.schedule.epoch)

    @property
    def has_reached(self) -> bool:
        """An entry, clock or round has ended the training: `target_loss` is reached, or it
        converged."""
        return self._reached_in >= 0

    def _enough(self, epochs: int) -> str:
        """`ended_by`, if the loss after `epochs` whole epochs ends the training."""
        if self.metrics.is_low(self.settings.target_loss, self.schedule.plan.results_per_epoch):
            return "target_loss"
        may_end = self._least_epochs <= epochs < self.settings.epochs
        if may_end and self.metrics.is_flat(epochs, relative=self._relative):
            return "converged"
        return ""

    def end_early(self, why: str) -> None:
        """Lease no more blocks; `why` becomes `ended_by` in the metrics."""
        self.ended_by = why
        self.schedule.close()

    def progress(self, now: float) -> float:
        """Share of the pass, 0 to 1: of its bytes, or of `max_seconds` where that is more."""
        limit_s = self.settings.max_seconds if self.pass_ == "train" else 0.0
        spent = min(1.0, self.elapsed_s(now) / limit_s) if limit_s else 0.0
        return max(self.schedule.progress, spent)

    @property
    def epochs_done(self) -> float:
        """Epochs that are trained so far."""
        return self.schedule.progress * self.schedule.part * self.settings.epochs

    @property
    def total_units(self) -> int | None:
        """About how many units the training has; None before its first block is done."""
        share = self.schedule.progress if self.pass_ == "train" else 0.0
        return round(self.metrics.units / share) if share and self.metrics.units else None

    def elapsed_s(self, now: float) -> float:
        return now - self._pass_begun

    def _progress_of(self, entry: Entry, now: float) -> tuple[float, ...]:
        """Share of the training before and after a block that is leased now.

        With `max_seconds` shares of time count where they are larger. A worker leases a block when
        it begins the one before, so the block begins one mean duration from now, and ends another
        one later. Not with clocks, where learning rates must be reproducible.
        """
        limit_s = self.settings.max_seconds
        if not limit_s or self.pass_ != "train" or self.schedule.clocks is not None:
            return entry.progress
        elapsed_s = self.elapsed_s(now)
        return tuple(
            min(1.0, max(share, (elapsed_s + blocks * self.metrics.block_s) / limit_s))
            for blocks, share in enumerate(entry.progress, 1)
        )

    def pass_text(self) -> str:
        """Progress of the training in words; empty outside it."""
        if self.pass_ != "train" or self.schedule.over:
            return ""
        if (rounds := self.schedule.rounds) is not None:
            return rounds.stage()
        epochs = self.settings.epochs  # a bound, where the loss may end the training
        may_end = self._least_epochs < epochs or self.tested.stop_after
        of = ", at most" if may_end else " of"
        return f"epoch {min(self.schedule.epoch + 1, epochs)}{of} {epochs}"

    def end_survey(self) -> None:
        """Make the summary, and the blocks of the training; may take seconds."""
        assert self.survey is not None
        self.summary = summary = self.survey.result(self.schedule.size)
        self.survey = None  # it may be larger than all else here
        self.ready_summary(summary)
        if not self.settings.block_bytes:
            self.input.fit(summary)

    def check_room(self, summary: bytes | None) -> str:
        """What will be written after this survey, in words; empty: unknown. Beside the loop, as the
        model reads the summary. ConfigError if the disk has no room for it."""
        if not self.settings.output:
            return ""
        sizes = trait_of(self.cls, Reported).file_sizes(self.settings, summary or b"")
        check_room(sizes)
        return sizes_text(sizes) if sizes else ""

    def ready_summary(self, summary: bytes) -> None:
        """Encode the summary message once; takes long, beside the loop."""
        self._summary_message = (summary, Encoded(messages.Summary(summary)))

    def summary_message(self) -> Encoded:
        assert self.summary is not None
        if self._summary_message is None or self._summary_message[0] is not self.summary:
            self.ready_summary(self.summary)
        assert self._summary_message is not None
        return self._summary_message[1]

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
        first = self._is_new and part not in self._leased
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
            self._count(number, schedule.records.result(number))  # without units
            return True
        had_checkouts = number in self.metrics.unfinished  # whose results this one replaces
        if whole:
            units = self.metrics.end_checkouts(number, node)
        else:
            units = self.metrics.cut(number, schedule.plan.epoch_of(number), node, result)
        self.metrics.came(max(0, result.units - units), now)
        self.metrics.took(message.seconds)
        self._check_loss(message)
        if not whole:
            return True
        slots = schedule.slots
        for counted, of_it in [(number, result)] if slots is None else slots.in_order():
            self._count(counted, of_it, recent=not had_checkouts)
        self.metrics.add_counts(message.metrics)
        if not self._is_counted and self.epochs_done >= 1:
            self._is_counted, self.refused = True, self._judge_counts().refused
        return True

    def checked_in(self, message: messages.CheckIn, node: int, now: float) -> bool:
        """Check in an output partition, and count it; False if the worker does not hold it."""
        number, schedule, checkouts = message.number, self.schedule, self.schedule.checkouts
        units, seconds = message.units, message.seconds
        if checkouts is None or not checkouts.check_in(number, node, message.part, units, seconds):
            return False
        self.metrics.came(message.units, now)
        self._check_loss(message)
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

    def replay_durable(self, fact: Mapping[str, Any]) -> None:
        """Replay a fact that `make_durable` returned to an earlier master."""
        number, node = int(fact["number"]), int(fact["node"])
        chunks = self.schedule.chunks
        if chunks is not None and chunks.adopt_durable(number, fact["parts"]):
            self.metrics.adopt_durable(number, self.schedule.plan.epoch_of(number), node, fact)

    def withdraw_checkouts(self) -> None:
        """Withdraw results of partitions neither leased nor done, except durable ones."""
        for number in self.metrics.unfinished:
            if not self.schedule.records.holder(number):
                self.metrics.lose_checkouts(number)

    def _check_loss(self, message: messages.Done | messages.CheckIn) -> None:
        """Set `diverged` where a loss is not finite, or far beyond the first ones."""
        examples = message.metrics.get("examples", 0.0)
        if examples > 0 and "loss" in message.metrics and not self.diverged:
            loss = message.metrics["loss"] / examples
            where = f"{named_method(self.cls, 'train')}, block {message.number}"
            self.diverged = self._watch.check(where, loss, self._counted_workers)

    @property
    def _watch(self) -> LossWatch:
        if self._losses is None:
            bound = trait_of(self.cls, Limited).loss_bound
            self._losses = LossWatch(bound, self._constant_loss(), self.settings)
        return self._losses

    def _constant_loss(self) -> float:
        """Mean loss of a model that does not look at its examples; 0: unknown."""
        return self._asked(trait_of(self.cls, Reported), "constant_loss", float)

    @property
    def _counted_workers(self) -> int:
        """Workers of the job, as their models count them."""
        return 1 if self._start is None else self._start.workers

    def _count(self, number: int, result: BlockResult, *, recent: bool = True) -> None:
        self.metrics.count(self.schedule.plan.epoch_of(number), result, recent=recent)
        schedule, limits = self.schedule, self.schedule.limits
        place = None if limits is None else limits.ended(number)
        if self.has_reached or limits is None or place is None:
            return
        whole = (number + 1) // len(self.input.blocks)  # epochs; also of a schedule that is resumed
        self._reached = self._enough(min(schedule.epoch, whole))
        if self._reached:
            self._reached_in = place
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

    def round_done(self, round_: int, figures: Mapping[str, Any]) -> None:
        """Take metrics of `InRounds.after_round`; ClusterError if the loss is not finite."""
        self.round_figures.append(dict(figures))
        loss = figures.get("loss")
        if loss is None:
            return
        if diverged := self._watch.check(f"round {round_ + 1}", loss):
            raise ClusterError(diverged)
        if self.settings.target_loss and loss <= self.settings.target_loss:
            self._reached_in, self._reached = round_, "target_loss"

    # --- figures ---------------------------------------------------------------------------

    @property
    def by_round(self) -> list[dict[str, Any]]:
        """What `InRounds.after_round` returned for each round so far, with its number, from 1."""
        return [{**each, "round": n} for n, each in enumerate(self.round_figures, 1)]

    def rate(self, now: float) -> float:
        """Units per second over the last few seconds."""
        return self.metrics.rate(self._pass_begun, now)

    def figures(self, nodes: Mapping[str, float], now: float) -> dict[str, Any]:
        """Metrics of the run; `nodes`: sums of ``peak_rss_mb``, ``bytes_in``, ``bytes_out``."""
        kind = self.counts
        seconds = self._seconds.get("train", 0.0)
        losses, units = self.metrics.loss_by_epoch(), self.metrics.units
        epochs = math.ceil(self.epochs_done - 1e-9)  # that were begun
        by_schedule, passes = self.schedule.figures(), self.schedule.ranges
        if passes is not None:  # parts of an epoch do not compare: ranges are cut by frequency
            losses = losses[: int(self.epochs_done + 1e-9)]
        if (rounds := self.schedule.rounds) is not None:  # rounds that were applied
            losses, units = losses[: rounds.round], self._at_round[0]
            by_schedule["by_round"] = self.by_round
        else:
            losses += [None] * (epochs - len(losses))
        losses_known = [loss for loss in losses if loss is not None]
        moved = nodes.get("bytes_in", 0.0) + nodes.get("bytes_out", 0.0)
        bad = {"bad_lines": self.metrics.bad_lines} if self.metrics.bad_lines else {}
        ended_by = self.ended_by or self._end()
        constant = self._constant_loss()
        is_poor = len(losses_known) > 1 and 0 < 1.001 * constant < losses_known[-1]
        judges = self._is_judged and not self._is_whole and passes is None  # its passes solve
        judges = judges and self.validation is None  # whose figures say whether more would help
        is_reported = ended_by == "epochs" and judges
        falls = self.metrics.falling(constant) if is_reported else 0.0
        by_heart = self._by_heart and self.validation is None and len(losses_known) > 1
        by_heart = by_heart and losses_known[-1] < BY_HEART * losses_known[0]
        return {
            **bad,
            **({"by_heart": True} if by_heart else {}),
            **({"loss_falls": round(falls, 4)} if falls else {}),
            **({"constant_loss": constant} if is_poor else {}),
            **self._counted,
            **self.tested.figures,
            "ended_by": ended_by,
            f"{kind}_per_s": round(units / seconds, 1) if seconds else None,
            kind: units,
            "train_s": round(seconds, 3),
            "survey_s": round(self._seconds.get("survey", 0.0), 3),
            "wall_s": round(now - self._begun, 3),
            "train_loss": losses_known[-1] if losses_known else None,
            "loss_by_epoch": losses,
            "progress": round(self.schedule.progress, 6),
            "epochs": epochs,
            "blocks": self.schedule.finished,
            "blocks_per_epoch": len(self.input.blocks),
            f"block_{kind}_max": self.metrics.block_units,
            f"bytes_per_{kind[:-1]}": round(moved / units, 2) if units else None,
            "peak_rss_mb": round(nodes.get("peak_rss_mb", 0.0), 1),
            **by_schedule,
        }

    def _end(self) -> str:
        """`ended_by` of a training that was not ended early."""
        whole = self.settings.epochs * len(self.input.blocks)
        early = self.schedule.ranges is None and self.schedule.size < whole
        if early:
            return self._reached or "max_steps"
        return "epochs" if self.schedule.rounds is None else "rounds"

    def close(self) -> None:
        """Remove unpacked input; idempotent."""
        self.input.close()
