"""What reaches a model of an input, and what it learns of it, in this process: no cluster.

input, settings -> reached -> Arrived: settings that the master chose, examples of an epoch
                -> learnt -> Learnt: files of the export, losses; by real shards, one worker
an estimator's fit -> of_fit -> Arrived; after `fit_here` fits train here, too
"""

import contextlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

from attach import attach
from shards import Shards

from snailps.api.block import BlockContent
from snailps.api.results import Results
from snailps.api.tables import Tensor
from snailps.api.traits import Cut, trait_of
from snailps.api.wire_choice import WireChoice
from snailps.api.worker import Block
from snailps.config import RawConfig, to_mapping
from snailps.data.examples import ExampleReader
from snailps.data.spool import Spooled
from snailps.estimators import base
from snailps.estimators.jobs import FinishedJob, packed_table
from snailps.files.blocks import HEAD
from snailps.local.setting_texts import setting_texts
from snailps.master.job.beginning import begin_survey, begin_training, end_survey, prepare
from snailps.master.job.ending import end_pass, figures_of
from snailps.master.job.job import Job
from snailps.models import CLASSES
from snailps.models.embeddings.worker import EmbeddingWorker
from snailps.models.sparse.worker import SparseWorker
from snailps.transport import messages

WORD = re.compile(rb"\n|[^ \n]+")
PATHS = {
    "input", "output", "scratch_dir", "column", "label_column", "columns", "format", "labels",
    "keep_state", "learnt",
}  # fmt: skip
"""Settings that say how an input is read, how many bytes it has, and what a file keeps, not what is
learnt of it."""


@dataclass
class Arrived:
    """Settings by name, as texts; the examples of an epoch, sorted, in a form that compares."""

    settings: dict
    summary: bytes
    rows: list


def differences(found, expected):
    """Names of settings, "summary", "rows" that are not as expected, by format; {}: none."""

    def unlike(arrived):
        names = arrived.settings.keys() | expected.settings.keys()
        names = [n for n in names if arrived.settings.get(n) != expected.settings.get(n)]
        parts = [n for n in ("summary", "rows") if getattr(arrived, n) != getattr(expected, n)]
        return sorted(names) + parts

    return {form: what for form, arrived in found.items() if (what := unlike(arrived))}


@dataclass
class Learnt:
    files: dict  # name of an exported file -> its bytes
    losses: list


@contextlib.contextmanager
def _job(model, inputs, folder, settings):
    inputs = [inputs] if isinstance(inputs, (str, Path)) else inputs
    texts = setting_texts({"input": [str(path) for path in inputs], **settings})
    texts |= {"scratch_dir": str(folder / "scratch"), "output": str(folder / "out")}
    raw = RawConfig.from_mapping({"worker_class": CLASSES.get(model, model), **texts}, "the test")
    job = Job(raw)
    try:
        prepare(job, 1)
        if job.survey.exists:
            part = job.model.cls(job.settings, 1).survey_part()
            for block in _blocks(job, "survey"):
                part.add(block)
            job.survey.merge.add(0, part.take())
            end_survey(job)
            end_pass(job, 0.0)
        yield job
    finally:
        job.close()


class MastersContent(BlockContent):
    """The bytes of a block, as the master sends them."""

    def __init__(self, job, number, unit):
        self._job, self._number, self._unit = job, number, unit

    def read(self):
        return self._job.content(self._number, self._unit)

    def head(self):
        return self._job.content(self._number, HEAD)


def _blocks(job, pass_, figures=None):
    """The blocks of a pass as a worker has them, each done when the next one is taken, with what is
    in `figures` by then."""
    if pass_ == "survey":
        begin_survey(job, 0.0)
    else:
        begin_training(job, 0.0, [1])
    unit = trait_of(job.model.cls, Cut).unit
    while lease := job.lease(1, 0.0):
        of = lease.number, lease.piece, lease.epoch, lease.seed, lease.progress
        block = Block(*of, MastersContent(job, lease.number, unit), first=lease.first)
        yield block
        if pass_ == "survey":
            job.schedule.survey.merge([lease.number], 1)
            continue
        reported = figures or {}
        done = messages.Done(
            "train", lease.number, int(reported.get("units", 0)), 0.0, dict(reported)
        )
        assert job.done(done, 1, 0.0)


def reached(model, inputs, folder, /, **settings):
    with _job(model, inputs, folder, settings) as job:
        found, job.settings = job.settings, replace(job.settings, epochs=1)
        rows = [
            row for block in _blocks(job, "train") for row in _rows(job.model.cls, found, block)
        ]
        texts = {name: text for name, text in to_mapping(found).items() if name not in PATHS}
        return Arrived(texts, job.survey.summary or b"", sorted(rows))


def _rows(cls, settings, block):
    """Examples of a block: label, weight and entries; names and value; or a line."""
    if issubclass(cls, SparseWorker):
        columns = settings.text_columns
        reader = ExampleReader(settings.format, columns=columns, label_min=-float("inf"))
        reader.learn_format(block.head(), 0)
        examples = reader.read(block.data, block.path, block.start)
        weights = examples.weights.tolist() or [1.0] * len(examples.labels)
        entries = list(zip(examples.keys.tolist(), examples.values.tolist(), strict=True))
        return [
            (label, weight, tuple(sorted(entries[examples.ptr[at] : examples.ptr[at + 1]])))
            for at, (label, weight) in enumerate(
                zip(examples.labels.tolist(), weights, strict=True)
            )
        ]
    if issubclass(cls, EmbeddingWorker):
        examples = cls(settings).read(block)
        columns = [[bytes(name) for name in column] for column in examples.names]
        return list(
            zip(
                *columns, *([examples.values.tolist()] if len(examples.values) else []), strict=True
            )
        )
    unit = trait_of(cls, Cut).unit
    return block.data.split(b"\n")[:-1] if unit == "line" else WORD.findall(block.data)


def learnt(model, inputs, folder, packed=None, /, **settings):
    """Train and export; `packed` gets the rows of all tables."""
    with _job(model, inputs, folder, settings) as job, Shards() as shards:
        worker, numbered = job.model.cls(job.settings, 1), {}
        declared = [t.table() if isinstance(t, Tensor) else t for t in worker.tables()]
        for number, table in enumerate(declared, 1):
            shards.declare(table, number)
            numbered[table.name] = number, table
        client = shards.client(incarnation=1)
        attach(worker, client, WireChoice(client, shards.route), numbered)
        worker.workers, worker.summary = 1, job.survey.summary or b""
        worker.setup()
        figures = {}
        for block in _blocks(job, "train", figures):
            block.prepared = worker.prepare(block)
            figures |= worker.train(block)
        worker.finish()
        figures = figures_of(job, {}, 0.0)
        numbers = {name: number for name, (number, _) in numbered.items()}
        tables = {table.name: table for table in declared}
        results = Results(
            job.settings,
            job.survey.summary or b"",
            figures,
            client,
            numbers,
            tables,
            shards.frag_num,
        )
        results.scanned = {}
        exported = job.model.cls.export(results)
        if packed is not None:
            packed |= {name: packed_table(results, name) for name in tables}
        files = {Path(path).name: Path(path).read_bytes() for path in exported["files"]}
        return Learnt(files, [loss for loss in figures["loss_by_epoch"] if loss is not None])


class Stop(Exception):
    """The job's input has been seen."""


def of_fit(monkeypatch, folder, estimator, *data, **how):
    """What `reached` says of the job that a fit runs."""
    arrivals = []

    @contextlib.contextmanager
    def seen(worker_class, settings, given, monitor, **_):
        paths = given.path if isinstance(given, Spooled) else given
        arrivals.append(reached(worker_class, paths, folder, **settings))
        raise Stop
        yield

    with monkeypatch.context() as patch:
        patch.setattr(base, "run_job", seen)
        with contextlib.suppress(Stop):
            estimator.fit(*data, **how)
    return arrivals[0]


def fit_here(monkeypatch, folder):
    """Have fits train in this process."""

    @contextlib.contextmanager
    def run(worker_class, settings, given, monitor, **_):
        paths, packed_tables = given.path if isinstance(given, Spooled) else given, {}
        folder_of_job = folder / f"{len(list(folder.iterdir()))}"
        folder_of_job.mkdir()
        done = learnt(worker_class, paths, folder_of_job, packed_tables, **settings)
        monitor.finish({}, [])
        yield FinishedJob(
            {"train_loss": done.losses[-1]},
            sorted((folder_of_job / name) for name in done.files),
            packed_tables,
        )

    monkeypatch.setattr(base, "run_job", run)
