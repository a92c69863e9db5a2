"""What a checkpoint and a journal hold of a job beside its rows: made, taken back, replayed.

    job -> dump, base -> JobState -> load_input, load -> a job that continues
    facts of the journal -> replay, replay_durable

docs/design/job-state.md has the keys, and which file has which. Each part dumps and loads what it
owns; the keys stand here alone. Other masters and later versions read them: never rename one.
`base`, `load_input` and what runs before the training may take long; `dump(exact=True)` runs in the
master's loop. `now` is monotonic seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.tables import Table, Tensor
from snailps.api.traits import Adopted, trait_of
from snailps.config import CHECKPOINT_SETTINGS, JobSettings, to_mapping
from snailps.dataclass import replace
from snailps.errors import CheckpointError, ConfigError, explain
from snailps.master.job.job import Job
from snailps.master.job.metrics import PassMetrics
from snailps.master.job.state import JobState
from snailps.master.job.training_plan import plan_in
from snailps.master.leases import CLOCKS_AHEAD, Schedule
from snailps.master.leases.schedule import NO_RECORDS
from snailps.outward import without_secrets
from snailps.transport import messages

MAY_DIFFER = {*CHECKPOINT_SETTINGS, "scratch_dir", "scratch_bytes", "learnt", "learnt_batch"}
"""Settings that make no other job of it: of the master alone, or, `learnt` and `learnt_batch`, from
the input and the continued file, which are compared by themselves."""


class JobRecord:
    """The record of one job; it has no state of its own, so it is made where it is needed."""

    goes_on = "training goes on"

    def __init__(self, job: Job) -> None:
        self.job = job

    # --- which job it is; a session answers the same (`session.py`) ------------------------------

    @property
    def settings(self) -> JobSettings:
        return self.job.settings

    @property
    def schedule(self) -> Schedule:
        return self.job.schedule

    @property
    def output(self) -> str:
        """Prefix of the paths of its result."""
        return self.job.settings.output

    @property
    def unit(self) -> str:
        return self.job.model.counts

    @property
    def sources(self) -> list[tuple[str, int]]:
        """Name for others, and length, of each input file."""
        return self.job.input.sources

    @property
    def completed(self) -> Collection[str]:
        """Settings that the class completes from files: they may differ from a checkpoint's."""
        return trait_of(self.job.model.cls, Adopted).completed

    def plain_settings(self) -> Mapping[str, str]:
        return to_mapping(self.job.settings)

    def describe_share(self, share: float) -> str:
        """Progress of the training, in words for a log line."""
        return f"{share:.0%} of the training"

    def identity(self, may_differ: Collection[str]) -> dict[str, str]:
        """The class and settings that must not change if the job continues.

        Without passwords and signatures of addresses: these may change, and others read files that
        contain this.
        """
        settings = to_mapping(self.job.rules.settings_before or self.job.settings)
        present = {n: without_secrets(text) for n, text in settings.items() if n not in may_differ}
        return {"worker_class": self.job.model.path, **present}

    def check_methods(
        self, tables: Iterable[Table], where: str, known: Iterable[Table] = ()
    ) -> None:
        """Refuse tables of a file with classes that neither the model nor `known` tables declare.
        Servers import what a table names, and the file may be a stranger's."""
        wanted, cls = [table for table in tables if table.in_python], self.job.model.cls
        if not wanted:
            return
        try:
            declared = [
                entry.table() if isinstance(entry, Tensor) else entry
                for entry in cls(self.job.settings, 1).tables()
                if isinstance(entry, (Table, Tensor))
            ]
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"{where} has tables of access methods in Python, and {cls.__name__}.tables() "
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

    # --- its state -------------------------------------------------------------------------------

    def check_state(self, state: JobState) -> None:
        """Refuse a checkpoint's state that lacks what this version continues from. CheckpointError:
        it is of another version, such as one between two releases."""
        figures = state.figures
        try:
            plan_in(state)
            _ = [float(figures[name]) for name in ("survey_s", "train_s", "wall_s")], figures["lr"]
            if "rotation" in figures:
                PassMetrics().resume(figures["rotation"]["metrics"])
            if "tested" in figures:
                replace(self.job.tested).load(figures["tested"])
        except (LookupError, TypeError, ValueError) as error:
            raise CheckpointError(
                "the checkpoint was written by another version of snailps, such as 0.2.0, and this "
                f"one cannot continue from it ({error!r:.80}): continue with that version, or "
                "begin anew with --fresh"
            ) from None

    def dump(self, now: float, *, clock: int = -1, exact: bool = False) -> JobState:
        """State of the training, for a checkpoint or, with `exact`, for a master that takes over.

        `clock`: in bsp, the clock at whose beginning the checkpoint saves rows. `exact`: without
        the input; the arrays are valid until the next call, and only changes are copied, so that it
        may run in the master's loop.
        """
        job, schedule, metrics = self.job, self.job.schedule, self.job.metrics
        figures: dict[str, Any] = {
            "lr": metrics.lr,
            "survey_s": job.clock.seconds.get("survey", 0.0),
            "train_s": job.clock.elapsed_s(now),
            "wall_s": now - job.clock.begun,
            "ticks": list(job.clock.ticks),
            **({"counts": metrics.counts} if metrics.counts else {}),
            **({"tested": job.tested.dump()} if job.tested.tests else {}),
        }
        chunks, slots, rounds = schedule.chunks, schedule.slots, schedule.rounds
        if chunks is not None:
            figures["rotation"] = chunks.plan()
        if schedule.ranges is not None:
            figures["ranges"] = dataclasses.asdict(schedule.ranges)
        if rounds is not None:
            figures |= job.round_results.dump()
        if job.input.order is not None:
            figures["order"] = job.input.order
        round_ = 0 if rounds is None else rounds.round
        about = {"clock": max(0, clock, round_), "figures": figures}
        if exact:
            values = schedule.snapshot()
            arrays = {n: value for n, value in values.items() if isinstance(value, np.ndarray)}
            about["exact"] = {
                "schedule": {n: value for n, value in values.items() if n not in arrays},
                "metrics": metrics.snapshot(exact=True),
                **job.rules.dump(),
            }
            return JobState(about, {"outcomes": schedule.known(), **arrays})
        if chunks is not None:
            bad_lines = metrics.bad_lines - chunks.bad_lines
            figures["rotation"]["metrics"] = {**metrics.snapshot(), "bad_lines": bad_lines}
        if slots is not None and clock >= 0:
            return self._with_input(about, slots.durable(clock))
        return self._with_input(about, schedule.durable())

    def base(self) -> JobState:
        """The state at the beginning of the training; beside the loop."""
        clock, order = self.job.clock, self.job.input.order
        figures = {"lr": None, "survey_s": clock.seconds.get("survey", 0.0), "train_s": 0.0}
        figures |= {"wall_s": 0.0, "order": order}
        return self._with_input({"clock": 0, "figures": figures}, NO_RECORDS)

    def _with_input(self, about: dict[str, Any], records: NDArray[Any]) -> JobState:
        input_, cuts = self.job.input.dump()
        summary = self.job.survey.summary
        input_["has_summary"] = summary is not None
        packed = np.frombuffer(summary or b"", np.uint8)
        arrays = {"cuts": cuts, "outcomes": records, "summary": packed}
        return JobState({**input_, **about}, arrays, self.job.input.blocks)

    def load_input(self, state: JobState) -> None:
        """Take blocks and summary from a state: no survey is left to do."""
        self.job.input.load(state)
        self.job.survey.adopt(state.summary)
        self.job.clock.seconds["survey"] = state.figures["survey_s"]

    def load(self, state: JobState, now: float) -> None:
        """Take the progress of a state, from whose records the schedule was made.

        The sequence matters: the schedule before the rules, whose limit cuts it, and these before
        results are counted, which may reach another.
        """
        job, figures, exact = self.job, state.figures, state.about.get("exact")
        schedule, metrics, rules = job.schedule, job.metrics, job.rules
        job.clock.ticks = [int(tick) for tick in figures.get("ticks", [0])]
        self.continue_from(figures["wall_s"], figures["train_s"], now)
        if "tested" in figures and job.model.by_input.at("epoch"):
            job.tested.load(figures["tested"])
            begun = job.clock.pass_begun
            tests = tuple((begun + test["at_s"], test) for test in job.tested.tests)
            job.inspected = dataclasses.replace(job.inspected, tests=tests)
        if exact is not None:
            schedule.resume({**exact["schedule"], **state.arrays})
        if schedule.rounds is not None and "rounds" in figures:
            job.round_results.load(figures, metrics)
            job.begin_round()
        if exact is not None:
            metrics.resume(exact["metrics"])
            rules.load(exact)
            if rules.has_reached and schedule.limits is not None:
                schedule.limits.limit(rules.reached_in)
            return
        metrics.lr, metrics.counts = figures["lr"], dict(figures.get("counts", {}))
        if "rotation" in figures:
            metrics.resume(figures["rotation"]["metrics"])
            return
        numbers, records = schedule.records.done(), schedule.records
        # The last ones one by one: one of them may have reached the target, which ends the training
        # a fixed number of clocks later.
        last = (CLOCKS_AHEAD + 1) * job.settings.micro_batches
        first = numbers[: max(0, len(numbers) - last)]
        if len(first):
            epochs = np.array(list(map(schedule.plan.epoch_of, first.tolist())), np.int64)
            metrics.count_all(epochs, records.known()[first])
        for number in numbers[len(first) :].tolist():
            job.count(number, records.result(number))

    # --- what the journal has since --------------------------------------------------------------

    def adopt(self, state: JobState) -> None:
        """Adopt the survey of an earlier master."""
        self.load_input(state)
        self.job.schedule.close()

    def replay(self, message: messages.Done, node: int, now: float) -> bool:
        """Take a result that the journal has, or that a worker repeats; False if the block was done
        already."""
        return self.job.schedule.claim(message.number, node) and self.job.done(message, node, now)

    def replay_durable(self, fact: Mapping[str, Any]) -> None:
        """Replay a fact that `Job.make_durable` returned to an earlier master."""
        number, node, schedule = int(fact["number"]), int(fact["node"]), self.job.schedule
        if schedule.chunks is not None and schedule.chunks.adopt_durable(number, fact["parts"]):
            self.job.metrics.adopt_durable(number, schedule.plan.epoch_of(number), node, fact)

    def continue_from(self, job_s: float, pass_s: float, now: float) -> None:
        """Continue from seconds of work under earlier masters: no outage is among them."""
        self.job.clock.resume(job_s, pass_s, now)
        self.job.metrics.forget_rate(now)
