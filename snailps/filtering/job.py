"""A filter as a job: its command, its tasks, which of them are finished, and its manifest.

    Command -> begin -> unfinished tasks -> run -> finish: _manifest.json, _report.html
                                            search before it, if the command asks of copies

A task is an input file, or some row groups of a large one.  Its output is the same bytes whoever
makes it, and however often a run is interrupted.  Must not know who runs tasks: threads of this
process, or workers of a cluster.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from snailps.config.fields import home_expanded
from snailps.config.output import absolute
from snailps.data.examples import ON_BAD_LINE
from snailps.data.file_hashes import FileHashes
from snailps.data.formats.table import Target, class_of
from snailps.data.in_order import in_order
from snailps.dataclass import dataclass, replace
from snailps.errors import ConfigError, DataError
from snailps.files.atomic import atomic_file
from snailps.files.blocks import files_of
from snailps.files.formats import format_of
from snailps.files.unpacking import is_url
from snailps.filtering.expression import (
    BENCHMARKS,
    COPIES,
    Score,
    is_reserved,
    parse,
    parse_added,
)
from snailps.filtering.kept_scores import ENDING, ScoreFolder, ScoreWriter, TaskScores
from snailps.filtering.report import report_page
from snailps.filtering.results import MANIFEST, REPORT, RESERVED, FilterResults
from snailps.filtering.rows import OpenTask, TextRows
from snailps.filtering.scores import ConditionJudge, Decision, ModelScores, RowCounts
from snailps.filtering.tasks import Task, tasks_of, version_now, version_of_model
from snailps.outward import without_secrets
from snailps.vectors.calibration import Calibration, path_beside
from snailps.vectors.fasttext_bin import is_large
from snailps.vectors.label_prediction import LabelModel, threads_of, warn_of_unread
from snailps.vectors.words import to_text

if TYPE_CHECKING:
    from snailps.duplicates.page_index import IndexFolder
    from snailps.filtering.copies import CopySearch, FoundCopies

TASK_BYTES = 256 << 20
"""A larger file with parts (row groups, stripes) becomes several tasks."""
VERSION = 4
"""Of the outputs: raise it when a change makes other bytes of the same command."""
WORKER = "snailps.filtering.worker:Filter"
COPIES_FORMAT = 1
"""Of keys and of the search: raise it when a change finds others in the same texts."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FilterCommand:
    """A filter's command.  Paths are absolute, except `inputs`: workers get tasks instead.

    `models`: path by name; `add`: scores that become columns; `output`: a folder; `scores`: the
    folder of kept scores, or empty; `on_bad_line`: "stop" or "skip", for lines without an object;
    `benchmarks`: files; `scratch`: folder for sets of 3-grams, or empty; `against`: folder of an
    index of kept texts, or empty.
    """

    inputs: tuple[str, ...]
    column: str
    models: dict[str, str]
    keep: str
    add: tuple[str, ...]
    output: str
    scores: str = ""
    on_bad_line: str = "stop"
    benchmarks: tuple[str, ...] = ()
    scratch: str = ""
    against: str = ""

    @property
    def skips_bad(self) -> bool:
        return self.on_bad_line == "skip"

    def judge(self) -> ConditionJudge:
        """Open the models and parse the condition.

        ConfigError: a mistake in the condition, shown with its place.  ModelFileError: a model that
        cannot be read.
        """
        for name in self.models:
            if not name.isidentifier() or is_reserved(name):
                raise ConfigError(
                    f"--model {name}=...: expected a name of letters, digits and _, such as hq, "
                    f"that is not a keyword of Python; got {name!r}"
                )
        models = {
            name: LabelModel(path, mapped=is_large(path)) for name, path in self.models.items()
        }
        labels = {name: [to_text(x) for x in model.labels] for name, model in models.items()}
        try:
            of_labels = {name: model.calibration.thresholds for name, model in models.items()}
            condition = parse(self.keep, labels, of_labels)
        except ConfigError as error:
            raise ConfigError(f"--keep: {error}") from None
        added: dict[str, Score] = {}
        for text in self.add:
            try:
                more = parse_added(text, labels)
            except ConfigError as error:
                raise ConfigError(f"--add: {error}") from None
            if twice := added.keys() & more.keys():
                raise ConfigError(
                    f"--add {text}: an earlier --add makes the column {min(twice)}: choose another "
                    "name, NAME=..."
                )
            added |= more
        scores = (*condition.scores, *added.values())
        computed = {score.model for score in scores if score.is_computed}
        if not self.models and not computed:
            raise ConfigError("no model: name at least one, as in --model hq=quality.bin")
        if (BENCHMARKS in computed) != bool(self.benchmarks):
            raise ConfigError(
                "benchmarks: neither --keep nor --add asks for bench.overlap: ask for it, or leave "
                "them out"
                if self.benchmarks
                else "bench.overlap needs lines to search for: name their files, --benchmarks FILE"
            )
        if self.scratch and COPIES not in computed:
            raise ConfigError(
                "scratch: it is for 3-grams of copies, and nothing asks for dup: leave it out"
            )
        if self.against and COPIES not in computed:
            raise ConfigError(
                "against: neither --keep nor --add asks for dup, so nothing would be compared with "
                "the index: ask for it, as in --keep 'not dup.contained >= .98', or leave it out"
            )
        benchmarks = None
        if self.benchmarks:
            from snailps.filtering.benchmarks import Benchmarks

            benchmarks = Benchmarks(files_of(self.benchmarks))
        return ConditionJudge(condition, models, added, benchmarks)

    def tasks(self) -> list[Task]:
        return tasks_of(files_of(self.inputs), self.column, TASK_BYTES)


class FilterJob:
    """A command and its output folder.

    `key`: the key of the command's `FilterResults`, which a worker of a cluster gets; else empty.
    """

    def __init__(self, command: FilterCommand, key: str = "") -> None:
        self.command = command
        self.scores: ScoreFolder | None = None
        if command.scores:
            self.scores = ScoreFolder(Path(command.scores), command.models, command.column)
        # Before the models are opened: one that is replaced meanwhile is refused at the first
        # batch, so no output has scores of a model that its manifest does not name. A missing file
        # has the version "": one that appears before it is opened counts as replaced.
        self._versions = {
            path: version_of_model(path) if Path(path).exists() else ""
            for path in command.models.values()
        }
        self.judge = command.judge()
        if self.scores is not None:
            self.scores.labels = self.judge.columns
        self.results = FilterResults(Path(command.output), key)
        self.search: CopySearch | None = None
        self.index: IndexFolder | None = None
        self._segments: Sequence[str] = ()
        self._command = ""
        self.phase = ""
        """What `compare` or `run` is doing, for who shows it."""
        self.under_way: Sequence[Task] = ()
        self.says: Callable[[str], object] = log.info
        """Called with what a search foresees to need."""
        self._copies: FoundCopies | None = None
        self.left: list[Task] = []
        self._identity: dict[str, Any] = {}
        self._hashes: FileHashes | None = None

    @cached_property
    def tasks(self) -> list[Task]:
        """Tasks of the whole input."""
        return self.command.tasks()

    def begin(self, *, overwrite: bool = False) -> list[Task]:
        """Lock the output folder until `close`; return the unfinished tasks.

        Checks everything that can be known before a text is scored: places, columns, names.
        `overwrite`: remove the outputs of another command.  ConfigError: the folder holds something
        else, and not `overwrite`.
        """
        if not self.tasks:
            raise ConfigError("no file to filter: the input matches none")
        self._check_places()
        if self.command.skips_bad and not any(format_of(t.path) == "jsonl" for t in self.tasks):
            raise ConfigError(
                "on_bad_line: skip leaves out malformed lines of JSON, and the input has no JSON "
                "lines: leave it out"
            )
        if COPIES in self.judge.computed and (unknown := [t for t in self.tasks if not t.version]):
            raise ConfigError(
                f"{unknown[0].path} has neither an ETag nor a date, and dup reads texts twice: a "
                "change in between would go unnoticed. Download the file"
            )
        remarks: dict[str, str] = {}
        for number, task in enumerate(self.tasks):
            # A schema is read without the rows.  Of JSON lines and text the first file must do.
            if number == 0 or class_of(format_of(task.path)).is_typed:
                with self.source(task) as source:
                    condition = self.judge.condition
                    computed = [str(score) for score in condition.scores if score.is_computed]
                    of_task = source.check(condition.columns, self.judge.column_types(), computed)
                remarks = dict.fromkeys(of_task, task.path) | remarks
        for remark, path in remarks.items():
            log.warning("%s: %s", path, remark)
        self._identity = self.identify()
        if self.command.against:
            self._begin_index(overwrite)
        self.left = self.results.take(self._identity, self.tasks, overwrite=overwrite)
        if self.results.manifest() is None:
            self._hashes = FileHashes(self.command.models.values())
            self.join_search(self.tasks)
        if self.scores is not None:
            self.scores.begin(self.left if self.search is None else self.tasks)
        return self.left

    def join_search(self, tasks: Sequence[Task] | None = None) -> None:
        """Take part in the command's search for copies, if it asks for one; a worker gives no
        tasks."""
        if COPIES not in self.judge.computed:
            return
        from snailps.filtering.copies import CopySearch

        against = Path(self.command.against) if self.command.against else None
        self.search = CopySearch(
            self.results.state, self.results.key, tasks, against,
            None if tasks is None else self._segments,
        )  # fmt: skip
        if self.scores is None:  # for the models to run once, though texts are read twice
            self.scores = ScoreFolder(
                self.results.state / "scores", self.command.models, self.command.column
            )
            self.scores.labels = self.judge.columns

    def _begin_index(self, overwrite: bool) -> None:
        """Lock the index, and say which of its segments count; ConfigError: it has these texts."""
        from snailps.duplicates.page_index import IndexedPages, IndexFolder

        self.index = IndexFolder(Path(self.command.against), "--against")
        self.index.begin()
        command = self._command = self.results.key_of(self._identity)
        if overwrite:
            self._forget_segment(self.index, command)
        self._segments, own = self.index.before(command)
        old = IndexedPages.of(self.index.folder, self._segments)
        here = {(without_secrets(task.path), task.version) for task in self.tasks}
        for segment in old.segments:
            if twice := here.intersection(segment.files()):
                raise ConfigError(
                    f"--against {self.index.folder}: {min(twice)[0]} is in it already, by "
                    f"{segment.path.name}: each text would be a copy of itself. Name another "
                    "index, or delete that file if the run that made it does not count"
                )
        self._identity["against"] = {
            "index": str(self.index.folder), "segments": len(self._segments), "digest": old.digest,
            "own": own,
        }  # fmt: skip

    def _forget_segment(self, index: IndexFolder, command: str) -> None:
        """Remove what the command whose results are overwritten has appended."""
        against = self.results.previous_identity().get("against", {})
        name = str(against.get("own", ""))
        names = index.names()
        if against.get("index") != str(index.folder) or name not in names:
            return
        if name == index.before(command)[1]:  # it makes the same again
            return
        if name != names[-1]:
            raise ConfigError(
                f"--overwrite: the results in {self.results.folder} are in the index as {name}, "
                f"and later runs were compared with them ({names[-1]}): choose another --output"
            )
        (index.folder / name).unlink()

    def source(self, task: Task) -> OpenTask:
        return OpenTask(task, self.command.column, skips_bad=self.command.skips_bad)

    def close(self) -> None:
        if self._hashes is not None:
            self._hashes.close()
        if self.scores is not None:
            self.scores.close()
        if self.index is not None:
            self.index.close()
        self.results.close()

    def _check_places(self) -> None:
        """Refuse an output that is an input, of this run or of the same command run again."""
        folder = self.results.folder.resolve()
        if self.scores is not None:
            self._check_unread("--keep-scores", self.scores.folder, [f"0{ENDING}"])
            if self.scores.folder.resolve().is_relative_to(folder):
                raise ConfigError(
                    f"--keep-scores {self.scores.folder} is inside --output, which holds results "
                    "only: choose a folder beside it"
                )
        written = {folder, *((folder / task.name).parent.resolve() for task in self.tasks)}
        for task in self.tasks:
            parents = () if is_url(task.path) else Path(task.path).resolve().parents
            if not written.isdisjoint(parents):
                raise ConfigError(
                    f"--output {folder} has the input in it ({task.path}): choose another folder"
                )
            if task.name.split("/")[0] in RESERVED:
                raise ConfigError(
                    f"{task.path}: a filter keeps {task.name} for its own file: rename the input"
                )
        self._check_unread("--output", self.results.folder, [task.name for task in self.tasks])
        if self.command.against:
            index = Path(self.command.against)
            self._check_unread("--against", index, ["000001.pages"])
            others = [folder] if self.scores is None else [folder, self.scores.folder.resolve()]
            for other in others:
                if index.resolve().is_relative_to(other) or other.is_relative_to(index.resolve()):
                    raise ConfigError(
                        f"--against {index} and {other} lie in each other: an index has a folder "
                        "of its own, beside the others"
                    )

    def _check_unread(self, option: str, folder: Path, names: Sequence[str]) -> None:
        """Refuse a folder whose files the same command, run again, would read as input."""
        places = {folder.resolve().parts, folder.absolute().parts}
        written = {(*place, *name.split("/")) for place in places for name in names}
        for name in self.command.inputs:
            if is_url(name):
                continue
            path = Path(home_expanded(name))
            if path.is_dir() and folder.resolve().is_relative_to(path.resolve()):
                raise ConfigError(
                    f"{option} {folder} is in the input's folder, {name}: the next run would read "
                    "its files as input: choose a folder outside"
                )
            pattern = path.absolute().parts
            # Only a pattern is compared with each output: a list of n files would cost n x n.
            if pattern in written or (
                not os.path.lexists(path) and any(_matches(parts, pattern) for parts in written)
            ):
                raise ConfigError(
                    f"{option} {folder}: the input {name} matches its files, so the next run would "
                    "read them as input: choose another folder"
                )

    def compare(
        self,
        threads: int,
        note: Callable[[Task, RowCounts | None], None] = lambda task, counts: None,
        cluster: JobRunner | None = None,
    ) -> None:
        """Search for copies, before `run`; nothing is done of what an earlier run has finished.

        Reads the texts twice: for keys, then those whose keys others have.  With a cluster its
        workers read, and compare.
        """
        assert self.search is not None
        unread = self.search.begin()
        if cluster is None:
            self.read_keys(unread, threads, note)
        workers = None
        if cluster is not None:
            path = str(self.search.list_for_workers())
            pairs = settings_for(self) | {"searched": self.search.ranges, "phase": "pairs"}
            if not (self.search.is_done() or self.search.has_all("pairs")):
                cluster.run(WORKER, pairs, input=path)
            overlaps = pairs | {"searched": len(self.tasks), "phase": "overlaps"}
            workers = partial(cluster.run, WORKER, overlaps, input=path)
        if not self.search.is_done():
            self.phase = "comparing"
            self.search.search(
                self.source, self.judge.keeps, threads,
                self.command.scratch or str(self.results.state), self.says, workers,
            )  # fmt: skip

    def read_keys(
        self,
        tasks: Sequence[Task],
        threads: int,
        note: Callable[[Task, RowCounts | None], None] = lambda task, counts: None,
    ) -> None:
        """The first reading of tasks, of a command that searches for copies."""
        assert self.search is not None
        self.phase, self.under_way = "reading", tasks
        self._run(_KeyPass(self, self.search), tasks, threads, note)

    def run(
        self,
        tasks: Sequence[Task],
        threads: int,
        note: Callable[[Task, RowCounts | None], None] = lambda task, counts: None,
    ) -> None:
        """Write the outputs of tasks, one after the other; the threads share the batches of a task.

        Calls `note` with (task, None) when a task begins, and with the counts of each batch.
        """
        self.phase, self.under_way = "writing", tasks
        if self.search is not None and self._copies is None:
            self._copies = self.search.found()
        self._run(_WritingPass(self, self._copies), tasks, threads, note)

    def _run(
        self,
        work: _Pass,
        tasks: Iterable[Task],
        threads: int,
        note: Callable[[Task, RowCounts | None], None],
    ) -> None:
        # Threads decide batches in any order; `in_order` hands them back in the order of the
        # file, so this thread is the only writer, of one output at a time.
        output: _TaskOutput | None = None
        with ExitStack() as stack:

            def batches() -> Iterator[_ScoredBatch]:
                for task in tasks:
                    with ExitStack() as opened:
                        source = opened.enter_context(self.source(task))
                        stored = None
                        if self.scores is not None:
                            stored = opened.enter_context(self.scores.of(task))
                        for batch in source.batches(work.columns):
                            # A mapped model that is overwritten changes while it is read: checked
                            # before each batch, so that no output mixes two models.
                            self.refuse_other_models()
                            scores = stored.next(batch.rows) if stored is not None else {}
                            yield _ScoredBatch(task, source, stored, batch, scores)
                        yield _ScoredBatch(task, source, stored)

            def decide(piece: _ScoredBatch) -> tuple[_ScoredBatch, Decision | None, Any]:
                if piece.batch is None:
                    return piece, None, None
                try:
                    return piece, *work.decide(piece.task, piece.batch, piece.scores)
                except ConfigError as error:
                    raise ConfigError(f"{piece.task.path}: {error}") from None

            for piece, decision, kept in in_order(decide, batches(), threads):
                if output is None:
                    note(piece.task, None)
                    output = stack.enter_context(_TaskOutput(self, work, piece))
                if decision is None:
                    output.finish()
                    stack.pop_all().close()
                    output = None
                else:
                    output.write(kept, decision)
                    note(piece.task, decision.counts)

    def finish(self) -> dict[str, Any]:
        """Write the report, then the manifest, of a job whose tasks are all finished.

        Returns the manifest; of a job that has one already, that one.  The manifest comes last: it
        marks the folder as complete.
        """
        if (manifest := self.results.manifest()) is not None:
            return manifest
        total = RowCounts.none(len(self.judge.condition.clauses))
        for scored in self.search.scored() if self.search is not None else ():
            total.add(replace(RowCounts.none(len(total.refused)), scored=dict(scored)))
        files, seconds = [], 0.0
        for task in self.tasks:
            done = self.results.done(task)
            if done is None:
                raise ConfigError(
                    f"{task.name} is not finished, or was changed since: run the same command again"
                )
            total.add(done.counts)
            seconds += done.seconds
            counts = done.counts
            files.append({
                "output": task.name, "input": without_secrets(task.path),
                "row_groups": task.groups,
                "bytes": (self.results.folder / task.name).stat().st_size,
                "rows": counts.rows, "kept": counts.kept, "without_text": counts.without_text,
                "bad_lines": counts.bad_lines, "refused": counts.refused,
                "seconds": round(done.seconds, 3),
            })  # fmt: skip
        clauses = [clause.text for clause in self.judge.condition.clauses]
        manifest = {
            "identity": self._identity, "models": self._hashed(),
            "keep": self.judge.condition.text,
            "rows": total.rows, "kept": total.kept, "without_text": total.without_text,
            "bad_lines": total.bad_lines,
            "refused": [
                {"clause": clause, "texts": count}
                for clause, count in zip(clauses, total.refused, strict=True)
            ],
            "unread": total.unread, "scored": total.scored,
            "seconds": round(seconds, 3),
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "scores": {name: {"bins": bins} for name, bins in total.bins.items()}
            | {name: {"labels": labels} for name, labels in total.labels.items()},
            "files": files,
        }  # fmt: skip
        if self.judge.benchmarks is not None:
            manifest["benchmarks"] = self.judge.benchmarks.manifest(total.hits)
        if self.search is not None:
            manifest["copies"] = self.search.manifest()
        if self.index is not None:
            manifest["index"] = self._append()
        page = report_page(manifest, total.near, total.texts)
        with atomic_file(self.results.place_of(REPORT)) as file:
            file.write(page.encode("utf-8", "replace"))
        with atomic_file(self.results.place_of(MANIFEST)) as file:
            file.write(json.dumps(manifest, indent=1).encode() + b"\n")
        if total.bad_lines:
            lines = "line was" if total.bad_lines == 1 else "lines were"
            log.warning("%d malformed %s left out: %s", total.bad_lines, lines, total.first_bad)
        for name, words in total.unread.items():
            warn_of_unread(words, f"model {name}")
        return manifest

    def _append(self) -> dict[str, Any]:
        """Append the texts that stay to the index, unless an earlier try has."""
        assert self.index is not None
        assert self.search is not None
        path = self.index.folder / self._identity["against"]["own"]
        if not path.exists():
            self.search.append(path, self._command)
        return {"segment": str(path), "bytes": path.stat().st_size}

    def refuse_other_models(self) -> None:
        """DataError: a model's file is not the one that was opened."""
        for path, version in self._versions.items():
            if version_of_model(path) != version:
                raise _changed(path)

    def _hashed(self) -> dict[str, dict[str, str]]:
        """Path and SHA-256 of each model; DataError: one was changed since it was opened."""
        assert self._hashes is not None
        hashed = {}
        for name, model in self._identity["models"].items():
            path = model["path"]
            hashed[name] = {"path": path, "sha256": self._hashes.of(path)}
            if self.judge.models[name].calibration != Calibration():
                beside = path_beside(path)
                hashed[name]["calibration"] = hashlib.sha256(beside.read_bytes()).hexdigest()
            if version_of_model(path) != model["version"]:
                raise _changed(path)
        return hashed

    def identify(self) -> dict[str, Any]:
        """Everything that the outputs depend on: command, inputs, models, `VERSION`.

        A folder whose identity differs holds another command's results.
        """
        command = self.command
        # Only where it is set: a run that an earlier version began goes on.
        skips: dict[str, Any] = {}
        if command.skips_bad:
            skips["on_bad_line"] = command.on_bad_line
        if self.judge.benchmarks is not None:
            skips["benchmarks"] = self.judge.benchmarks.digest
        if COPIES in self.judge.computed:
            skips["duplicates"] = COPIES_FORMAT
        return skips | {
            "version": VERSION, "column": command.column, "keep": self.judge.condition.text,
            "add": {name: str(score) for name, score in self.judge.added.items()},
            "models": {
                name: {"path": path, "version": self._versions[path]}
                for name, path in command.models.items()
            },
            "inputs": [
                {"path": without_secrets(task.path), "output": task.name, "bytes": task.bytes,
                 "version": task.version} for task in self.tasks
            ],
        }  # fmt: skip


def _changed(path: str) -> DataError:
    return DataError(f"{path} was changed while it was read: run it again")


class _ScoredBatch(NamedTuple):
    """A batch of a task, and the scores that were kept of it.  `batch` None: the task's end."""

    task: Task
    source: OpenTask
    stored: TaskScores | None
    batch: TextRows | None = None
    scores: Mapping[str, ModelScores] = MappingProxyType({})


class _Pass(Protocol):
    """What one reading of the tasks makes of each: decisions, and a file.

    `columns`: the only ones that it reads beside the texts; None: all.
    """

    columns: Sequence[str] | None

    def decide(
        self, task: Task, batch: TextRows, scores: Mapping[str, ModelScores]
    ) -> tuple[Decision, Any]:
        """The decision on a batch, and what `target` writes of it."""

    def path_of(self, task: Task) -> Path: ...

    def target(self, source: OpenTask, file: IO[bytes], opened: ExitStack) -> Target:
        """What writes into the task's file; `opened`: what is left after it, before the file."""

    def save(self, task: Task, counts: RowCounts, seconds: float) -> None:
        """Record that the task's file is there."""


class _KeyPass:
    """The first reading: keys of the rows that pass all clauses but those on copies."""

    def __init__(self, job: FilterJob, search: CopySearch) -> None:
        self._judge, self._search, self.path_of = job.judge, search, search.path_of
        # Stored scores are those of batches, which have to be the last reading's.
        keeps_batches = bool(job.command.models)
        self.columns: Sequence[str] | None = None if keeps_batches else job.judge.condition.columns

    def decide(
        self, task: Task, batch: TextRows, scores: Mapping[str, ModelScores]
    ) -> tuple[Decision, Any]:
        decision = self._judge.decide(batch, task.name, scores)
        return decision, self._search.keys_of(batch, decision.rows)

    def target(self, source: OpenTask, file: IO[bytes], opened: ExitStack) -> Target:
        return self._search.target(file)

    def save(self, task: Task, counts: RowCounts, seconds: float) -> None:
        self._search.save(task, counts.rows, counts.scored)


class _WritingPass:
    """The reading that writes the outputs."""

    columns: Sequence[str] | None = None

    def __init__(self, job: FilterJob, copies: FoundCopies | None) -> None:
        self._judge, self._results, self._copies = job.judge, job.results, copies
        self._index = job.search if job.command.against else None
        self._names_covers = any(score.of_best == "of" for score in job.judge.added.values())

    def decide(
        self, task: Task, batch: TextRows, scores: Mapping[str, ModelScores]
    ) -> tuple[Decision, Any]:
        found, shown = None, dict[str, str]()
        if self._copies is not None:
            found = self._copies.of(task, batch, names_covers=self._names_covers)
            shown = self._copies.shown(task, batch)
        decision = self._judge.decide(batch, task.name, scores, found)
        decision.counts.texts = shown
        if found is not None and not np.array_equal(decision.rows, np.flatnonzero(found["kept"])):
            raise _changed(task.path)  # by whom its version is kept
        selected = batch.selected(decision.rows, decision.added)
        if self._index is None:
            return decision, selected
        return decision, (selected, self._index.sets_of(batch, decision.rows))

    def path_of(self, task: Task) -> Path:
        return self._results.place_of(task.name)

    def target(self, source: OpenTask, file: IO[bytes], opened: ExitStack) -> Target:
        target = source.target(file, self._judge.column_types())
        if self._index is None:
            return target
        sets = opened.enter_context(atomic_file(self._index.sets_path(source.task)))
        return _TargetWithSets(target, sets)

    def save(self, task: Task, counts: RowCounts, seconds: float) -> None:
        self._results.save(task, counts, seconds)


class _TargetWithSets(Target):
    """An output, and beside it the sets of its texts, for an index."""

    def __init__(self, target: Target, file: IO[bytes]) -> None:
        from snailps.filtering.page_sets import KeptSets

        self._target, self._sets = target, KeptSets(file)

    def write(self, kept: Any) -> None:
        rows, sets = kept
        self._target.write(rows)
        self._sets.write(sets)

    def close(self) -> None:
        self._target.close()
        self._sets.finish()

    def abandon(self) -> None:
        self._target.abandon()


class _TaskOutput:
    """A task's file while it is written, and its scores if they are kept.

    The file gets its name in `finish`; left without it, it is removed.
    """

    def __init__(self, job: FilterJob, work: _Pass, piece: _ScoredBatch) -> None:
        self._job, self._work, self._task, self.source = job, work, piece.task, piece.source
        self._scores = ScoreWriter(piece.stored) if piece.stored is not None else None
        self._counts = RowCounts.none(len(job.judge.condition.clauses))
        self._begun = time.monotonic()
        self._opened: ExitStack
        self._target: Target

    def __enter__(self) -> _TaskOutput:
        path = self._work.path_of(self._task)
        with ExitStack() as opened:
            if self._scores is not None:
                opened.enter_context(self._scores)
            file: IO[bytes] = opened.enter_context(atomic_file(path))
            # Last: a target that is dropped by an error would write into a file that is closed.
            self._target = self._work.target(self.source, file, opened)
            self._opened = opened.pop_all()
        return self

    def write(self, kept: Any, decision: Decision) -> None:
        self._target.write(kept)
        if self._scores is not None:
            self._scores.write(decision.scores, decision.counts.scored)
        self._counts.add(decision.counts)

    def finish(self) -> None:
        self._target.close()
        self._counts.bad_lines, self._counts.first_bad = self.source.bad_lines
        if version_now(self._task.path) != self._task.version:
            raise _changed(self._task.path)
        # A worker may outlive its run: the folder can belong to another command by now.
        if not self._job.results.is_current():
            raise ConfigError(
                f"{self._job.results.folder} belongs to another command now: this output is dropped"
            )
        if self._scores is not None:
            self._scores.finish()
        self._opened.close()
        # Last: a task counts as finished only when its output has its name.
        self._work.save(self._task, self._counts, time.monotonic() - self._begun)

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None:
            self._target.abandon()
        self._opened.__exit__(*error)


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a glob pattern matches a path, both split at `/`; `**` is any number of parts."""
    if not pattern or not parts:
        return not parts and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or _matches(parts[1:], pattern)
    return fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


class JobRunner(Protocol):
    """A session of a cluster, as far as a filter needs it."""

    def run(self, model: str, settings: Mapping[str, Any], *, input: str) -> object: ...


def _path(option: str, path: Any) -> str:
    """A path as text; ConfigError for an empty one, which would be the current folder."""
    try:
        text = os.fsdecode(path)
    except TypeError:
        text = ""
    if not text:
        raise ConfigError(f"{option}: expected a path, got {path!r}")
    return text


def _absolute(option: str, path: Any) -> str:
    return str(absolute(home_expanded(_path(option, path))))


def settings_for(job: FilterJob) -> dict[str, str | int]:
    """Settings of the job of `filtering.worker.Filter` that runs the unfinished tasks."""
    command = job.command
    return {
        "column": command.column, "models": json.dumps(command.models),
        "keep": job.judge.condition.text, "add": json.dumps(command.add),
        "folder": command.output, "key": job.results.key, "scores": command.scores, "epochs": 1,
        "on_bad_line": command.on_bad_line, "benchmarks": json.dumps(command.benchmarks),
        "digest": "" if job.judge.benchmarks is None else job.judge.benchmarks.digest,
        "against": command.against,
    }  # fmt: skip


def _check_arguments(models: Any, keep: Any, column: Any, add: Any, cluster: Any) -> None:
    """ConfigError: an argument of `filter` is of another type than documented."""
    paths = models.values() if isinstance(models, Mapping) else [None]
    are_paths = all(isinstance(path, (str, os.PathLike)) for path in paths)
    scores = add if isinstance(add, Sequence) else [None]
    for name, value, is_right, expected in (
        ("models", models, are_paths and all(isinstance(model, str) for model in models),
         "paths by name, as {'hq': 'quality.bin'}"),
        ("keep", keep, isinstance(keep, str), "a condition, as 'hq.p >= .5'"),
        ("column", column, column is None or isinstance(column, str), "a name"),
        ("add", add, all(isinstance(score, str) for score in scores), "scores, as ['hq.p']"),
        ("cluster", cluster, cluster is None or hasattr(cluster, "run"),
         f"a session, such as snailps.connect({cluster!r})"),
    ):  # fmt: skip
        if not is_right:
            raise ConfigError(f"{name}: expected {expected}, got {value!r:.80}")


def filter(
    input: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    output: str | os.PathLike[str],
    keep: str,
    models: Mapping[str, str | os.PathLike[str]] = MappingProxyType({}),
    column: str = "",
    add: Sequence[str] = (),
    keep_scores: str | os.PathLike[str] = "",
    threads: int = 0,
    overwrite: bool = False,
    on_bad_line: str = "stop",
    benchmarks: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    scratch: str | os.PathLike[str] = "",
    against: str | os.PathLike[str] = "",
    cluster: JobRunner | None = None,
    begun: Callable[[FilterJob], object] = lambda job: None,
    note: Callable[[FilterJob, Task, RowCounts | None], None] = lambda job, task, counts: None,
) -> dict[str, Any]:
    """Keep the texts that satisfy a condition, in files of the input's format.

    The condition is about scores of classifiers, columns, copies among the texts, and lines of
    benchmarks in them.

    Parameters
    ----------
    input : path, or sequence of paths
        Files, folders, patterns or URLs: Parquet, Arrow, ORC, JSON lines or text; the last two may
        be packed (.gz, .zst, .bz2, .xz, .lz4).
    output : path of a folder
        Folder for one file per input file (several for a large Parquet or ORC file),
        `_manifest.json` and `_report.html`.
    keep : str
        Which texts to keep: NAME["LABEL"] (probability), NAME.top (best label), NAME.p (its
        probability), dup.contained, dup.near, dup.exact (what a kept text has of it),
        bench.overlap (share in `benchmarks`) and columns, compared with numbers or labels, joined
        by and, or, not, in: ``hq["__label__hq"] >= .5 and lang.top == "__label__en"``,
        ``not dup.contained >= .98``, ``bench.overlap < .1``.
    models : mapping of str to path
        Classifiers (.bin or .ftz), by the names that the condition uses.  Not needed if it uses
        ``dup`` or ``bench`` alone.
    column : str
        Column of the texts.  Required for tables; leave it out for text.
    add : sequence of str
        Scores to add as columns: ``hq["__label__hq"]``, ``lang.top``, ``lang.p``, or ``lang`` for
        both; ``quality=hq["__label__hq"]`` names the column.  Also ``dup.contained``, ``dup.near``,
        ``dup.exact``, ``dup.of``, ``bench.overlap``.
    keep_scores : path of a folder, optional
        Folder that stores the scores of these texts.  Another condition on the same models, texts
        and labels reads them there instead of running the models.
    threads : int, at least 0
        Threads; 0: one per core.  Outputs do not depend on it.
    cluster : Cluster, optional
        Filter with this cluster's workers, one task each at a time.  Input, models and output must
        be in folders that all its hosts share.
    overwrite : bool
        Replace the results of another command in `output`.
    on_bad_line : {"stop", "skip"}
        A line of JSON lines without an object ends the run, or is left out and counted; with
        `skip` a text of another type counts as none.
    benchmarks : path, or sequence of paths
        Files whose lines ``bench.overlap`` searches for: text, JSON lines or tables; each text in a
        row, in any column, is a line of its own.
    scratch : path of a folder, optional
        Folder for 3-grams of texts that are compared (``dup``), 4 bytes per word; empty: in
        `output`, where the workers of a `cluster` always write them.
    against : path of a folder, optional
        Folder of an index of texts that earlier runs have kept: ``dup`` compares with these too,
        and the texts that this run keeps are appended.  An empty or new folder begins an index.
    begun : callable
        Called with the job before the first task; `job.tasks` has all tasks, `job.left` the
        unfinished ones.
    note : callable
        Called with (job, task, None) when a task begins, and with the counts of each batch.  Not
        called with `cluster`: see its status.

    Returns
    -------
    dict
        The content of `_manifest.json`: rows, kept, refused by each clause of the condition, ...

    Raises
    ------
    ConfigError
        A mistake in the condition, or `output` holds something else.
    DataError
        An input that cannot be read, or that was changed during the run.

    Notes
    -----
    An interrupted run continues when it is called again: finished outputs stay.  The bytes of an
    output do not depend on interruptions.

    Examples
    --------
    >>> done = snailps.filter("crawl/*.parquet", column="text", output="kept",
    ...     models={"hq": "quality.bin"}, keep='hq["__label__hq"] >= .5')  # doctest: +SKIP
    >>> done["kept"], done["rows"]  # doctest: +SKIP
    """
    threads = threads_of(threads)
    added = (add,) if isinstance(add, str) else add
    _check_arguments(models, keep, column, added, cluster)
    if not isinstance(input, Iterable) or isinstance(input, str | bytes | os.PathLike):
        input = [input]
    inputs = tuple(_path("input", path) for path in input)
    if isinstance(benchmarks, str | bytes | os.PathLike):
        benchmarks = [benchmarks]
    evals = tuple(
        str(path) if is_url(str(path)) else _absolute("benchmarks", path) for path in benchmarks
    )
    files = {name: _absolute(f"model {name}", path) for name, path in models.items()}
    scores = _absolute("keep_scores", keep_scores) if keep_scores else ""
    if on_bad_line not in ON_BAD_LINE:
        raise ConfigError(f"on_bad_line: expected stop or skip, got {on_bad_line!r}")
    folder = _absolute("output", output)
    command = FilterCommand(
        inputs, column or "", files, keep, tuple(added), folder, scores, on_bad_line, evals,
        _absolute("scratch", scratch) if scratch else "",
        _absolute("against", against) if against else "",
    )  # fmt: skip
    if cluster is not None and command.scratch:
        raise ConfigError(
            "scratch: the workers of a cluster write 3-grams into the output's folder, which all "
            "its hosts share: leave it out"
        )
    job = FilterJob(command)
    try:
        left = job.begin(overwrite=overwrite)
        begun(job)
        if job.search is not None:
            job.compare(threads, lambda task, counts: note(job, task, counts), cluster)
        if cluster is None:
            job.run(left, threads, lambda task, counts: note(job, task, counts))
        elif left:
            path = str(job.results.list_path)
            cluster.run(WORKER, settings_for(job), input=path)
        return job.finish()
    finally:
        job.close()
