"""Begins a job and its passes: finds the input, has the class choose by it, opens schedules.

    settings.input -> prepare -> files, choices of the class, blocks
    begin_survey -> parts -> end_survey -> summary, blocks by it
    plan, nodes [, state] -> begin_training -> the schedule, and the progress of the state

`prepare`, `end_survey` and `check_files` call the model's class and may take long: beside the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from snailps.api.concurrency import Concurrency
from snailps.api.passes import Passes
from snailps.api.traits import Adopted, Cut, Limited, Reported, trait_of
from snailps.config import settings_of, to_mapping
from snailps.config.output import check_output, check_room, sizes_text
from snailps.dataclass import replace
from snailps.errors import ConfigError
from snailps.master.job.job import Job
from snailps.master.job.model_class import ask, check_returned, looks_of
from snailps.master.job.record import JobRecord
from snailps.master.job.settings import plain_settings
from snailps.master.job.state import JobState
from snailps.master.job.survey import JobSurvey
from snailps.master.job.training_plan import Plan, schedule_of
from snailps.master.leases import SurveySchedule
from snailps.registry import named


def prepare(job: Job, workers: int) -> None:
    """Find the input and cut it into blocks; may take long (unpacking). ConfigError also where
    nothing can be written to the output."""
    check_output(job.settings.output)
    if not job.model.rounds.number:  # else each worker finds its own data
        if not job.settings.input:
            raise ConfigError("input is not set: name files, folders or globs to train on")
        job.input.find()
        _measure(job)
        _choose(job)
    _choose_looks(job)
    if not job.model.rounds.number:
        at_work = job.as_counted(max(1, workers))
        job.input.cut(job.settings, max(1, workers), at_work)


def _measure(job: Job) -> None:
    """Have the model complete its settings by the files of the input."""
    model, before = job.model, job.settings
    measured = plain_settings(trait_of(model.cls, Adopted).measure(before, job.input.found))
    if measured is before:
        return
    texts, described = to_mapping(before), settings_of(model.cls.Settings)
    in_words = tuple(
        f"{name} {text}"
        for name, text in to_mapping(measured).items()
        if texts[name] != text and not described[name].hidden
    )
    job.settings = measured
    asked = ask(model.cls, model.path, model.source, model.raw, measured)
    job.model = replace(asked, by_input=replace(model.by_input, measured=in_words))
    job.survey = JobSurvey(model.cls, measured, clocked=asked.clocked)


def _choose(job: Job) -> None:
    """Have the model choose the number of epochs, if the user did not, and of workers."""
    model, files = job.model, job.input.found
    by_input = model.by_input
    if not job.settings.epochs:
        passes = trait_of(model.cls, Cut).passes(job.settings, files)
        check_returned(model.cls, passes, Passes, "passes")
        job.settings = replace(job.settings, epochs=int(passes.most))
        by_input = replace(by_input, passes=passes)
    s = job.settings
    # For the model's file. Of a continued model only if its file says what it had learnt: a part
    # would be taken for all.
    if s.learnt or not getattr(s, "continue_from", ""):
        job.settings = s = replace(s, learnt=s.learnt + files.total_bytes)
    if not model.clocked:  # the slots of a step are as many for one worker
        concurrency = trait_of(model.cls, Limited).workers_at_once(s, files)
        check_returned(model.cls, concurrency, Concurrency, "workers_at_once")
        by_input = replace(by_input, concurrency=concurrency)
    job.model = replace(model, by_input=by_input)


def _choose_looks(job: Job) -> None:
    model = job.model
    by_input = replace(model.by_input, looks=looks_of(model, job.settings))
    if by_input.at("tenth") or by_input.at("epoch"):
        named("tests_in_training")  # refused now, where this installation lacks it
    for look in by_input.at("epoch"):
        job.tested.stop_after, job.tested.better = look.keeps, look.better
    job.model = replace(model, by_input=by_input)


def begin_survey(job: Job, now: float) -> None:
    job.begin_pass("survey", SurveySchedule(job.input.blocks), now)


def end_survey(job: Job) -> None:
    """Make the summary, and the blocks of the training; may take seconds."""
    summary = job.survey.end(job.schedule.size)
    if not job.settings.block_bytes:
        job.input.fit(summary)


def check_files(job: Job, summary: bytes | None) -> str:
    """What will be written after this survey, in words; empty: unknown. ConfigError if the disk has
    no room for it."""
    if not job.settings.output:
        return ""
    sizes = trait_of(job.model.cls, Reported).file_sizes(job.settings, summary or b"")
    check_room(sizes)
    return sizes_text(sizes) if sizes else ""


def begin_training(
    job: Job,
    now: float,
    nodes: Sequence[int] = (),
    state: JobState | None = None,
    plan: Plan = None,
    cores_of: Callable[[int], float] = lambda node: 1.0,
) -> None:
    """Open the training. A `state` (of a checkpoint or a lost master) resumes it. `plan` is what
    `plan_training` returned, to this master or to the lost one."""
    record = JobRecord(job)
    if state is not None:
        record.load_input(state)
    schedule = schedule_of(job, nodes, state, plan, cores_of)
    job.begin_pass("train", schedule, now, is_new=state is None)
    if state is not None:
        record.load(state, now)
