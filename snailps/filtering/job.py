"""A filter as a job: its command, its tasks, what is finished of it, and its end.

    Command -> begin -> tasks that are left -> run -> finish: _manifest.json, _report.html

A task is a file of the input, or some groups of its rows.  Its output is the same bytes wherever it
is made.  Who runs tasks, threads here or workers of a cluster, is not known.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple, Protocol

from snailps.config.fields import home_expanded
from snailps.data.atomic import atomic_file
from snailps.data.blocks import files_of
from snailps.data.file_hashes import FileHashes
from snailps.data.formats import format_of
from snailps.data.formats.table import Target, class_of
from snailps.data.in_order import in_order
from snailps.data.unpacking import is_url
from snailps.dataclass import dataclass
from snailps.errors import ConfigError, DataError
from snailps.filtering.expression import Score, is_reserved, parse, parse_added
from snailps.filtering.kept_scores import ENDING, ScoreFolder, ScoreWriter, TaskScores
from snailps.filtering.report import report_page
from snailps.filtering.results import MANIFEST, REPORT, RESERVED, Results
from snailps.filtering.rows import Batch, Source
from snailps.filtering.scores import Counts, Decision, Judge, ModelScores
from snailps.filtering.tasks import Task, tasks_of, version_now
from snailps.outward import without_secrets
from snailps.vectors.fasttext_bin import is_large
from snailps.vectors.label_prediction import LabelModel, threads_of, warn_of_unread
from snailps.vectors.words import to_text

TASK_BYTES = 256 << 20
VERSION = 3
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Command:
    """Command of a filter, with absolute paths but for `inputs`, which workers do not ask for.

    `models`: path by name; `add`: scores that become columns; `output`: a folder; `scores`: one of
    scores that are kept, or none.
    """

    inputs: tuple[str, ...]
    column: str
    models: dict[str, str]
    keep: str
    add: tuple[str, ...]
    output: str
    scores: str = ""

    def judge(self) -> Judge:
        """Open the models and parse the condition; ConfigError and ModelFileError say where."""
        if not self.models:
            raise ConfigError("no model: name one or more, as in --model hq=quality.bin")
        for name in self.models:
            if not name.isidentifier() or is_reserved(name):
                raise ConfigError(
                    f"--model {name}=...: expected a name such as hq, of letters, digits and _, "
                    f"that is no word of Python's grammar; got {name!r}"
                )
        models = {
            name: LabelModel(path, mapped=is_large(path)) for name, path in self.models.items()
        }
        labels = {name: [to_text(x) for x in model.labels] for name, model in models.items()}
        try:
            condition = parse(self.keep, labels)
        except ConfigError as error:
            raise ConfigError(f"--keep: {error}") from None
        added: dict[str, Score] = {}
        for text in self.add:
            try:
                more = parse_added(text, labels)
            except ConfigError as error:
                raise ConfigError(f"--add: {error}") from None
            if twice := added.keys() & more.keys():
                raise ConfigError(f"--add {text}: there is a column {min(twice)} before")
            added |= more
        return Judge(condition, models, added)

    def tasks(self) -> list[Task]:
        return tasks_of(files_of(self.inputs), self.column, TASK_BYTES)


class FilterJob:
    """A command at its output folder; `key` is that of `Results`, for a worker of a cluster."""

    def __init__(self, command: Command, key: str = "") -> None:
        self.command = command
        self.scores: ScoreFolder | None = None
        if command.scores:
            self.scores = ScoreFolder(Path(command.scores), command.models, command.column)
        self.judge = command.judge()
        self._versions = {path: version_now(path) for path in command.models.values()}
        if self.scores is not None:
            self.scores.labels = self.judge.columns
        self.results = Results(Path(command.output), key)
        self.left: list[Task] = []
        self._identity: dict[str, Any] = {}
        self._hashes: FileHashes | None = None

    @cached_property
    def tasks(self) -> list[Task]:
        """Tasks of the whole input."""
        return self.command.tasks()

    def begin(self, *, overwrite: bool = False) -> list[Task]:
        """Tasks that are left, with the folder locked until `close`.

        ConfigError: the folder has something else; `overwrite`: what another command left is
        removed.
        """
        if not self.tasks:
            raise ConfigError("no file to filter")
        self._check_places()
        remarks: dict[str, str] = {}
        for number, task in enumerate(self.tasks):
            if number == 0 or class_of(format_of(task.path)).is_typed:
                with Source(task, self.command.column) as source:
                    found = source.check(self.judge.condition.columns, self.judge.column_types())
                remarks = dict.fromkeys(found, task.path) | remarks
        for remark, path in remarks.items():
            log.warning("%s: %s", path, remark)
        self._identity = self._identify()
        self.left = self.results.take(self._identity, self.tasks, overwrite=overwrite)
        if self.scores is not None:
            self.scores.begin(self.left)
        if self.results.manifest() is None:
            self._hashes = FileHashes(self.command.models.values())
        return self.left

    def close(self) -> None:
        if self._hashes is not None:
            self._hashes.close()
        if self.scores is not None:
            self.scores.close()
        self.results.close()

    def _check_places(self) -> None:
        """No output is an input, nor would be one of the same command again."""
        folder = self.results.folder.resolve()
        if self.scores is not None:
            self._check_unread("--keep-scores", self.scores.folder, [f"0{ENDING}"])
            if self.scores.folder.resolve().is_relative_to(folder):
                raise ConfigError(
                    f"--keep-scores {self.scores.folder} is in the --output, which has results "
                    "only: choose a folder beside it"
                )
        written = {folder, *((folder / task.name).parent.resolve() for task in self.tasks)}
        for task in self.tasks:
            parents = () if is_url(task.path) else Path(task.path).resolve().parents
            if not written.isdisjoint(parents):
                raise ConfigError(f"--output {folder} has the input in it ({task.path})")
            if task.name.split("/")[0] in RESERVED:
                raise ConfigError(f"{task.path}: a filter keeps {task.name} for itself: rename it")
        self._check_unread("--output", self.results.folder, [task.name for task in self.tasks])

    def _check_unread(self, option: str, folder: Path, names: Sequence[str]) -> None:
        """Refuse a folder of which the same command would read files that are written there."""
        for name in self.command.inputs:
            if is_url(name):
                continue
            path = Path(home_expanded(name))
            if path.is_dir() and folder.resolve().is_relative_to(path.resolve()):
                raise ConfigError(
                    f"{option} {folder} is in the input's folder, {name}: the next run would read "
                    "it, too"
                )
            pattern = path.absolute().parts
            if any(
                _matches((place / written).absolute().parts, pattern)
                for place in (folder.resolve(), folder)
                for written in names
            ):
                raise ConfigError(
                    f"{option} {folder}: the next run would read it, too, by the input {name}"
                )

    def run(
        self,
        tasks: Iterable[Task],
        threads: int,
        note: Callable[[Task, Counts | None], None] = lambda task, counts: None,
    ) -> None:
        """Make the outputs of tasks, in their order, with all threads at the batches.

        `note` is told each task, None, when it is begun, and the counts of each batch behind it.
        """
        writing: _Output | None = None
        with ExitStack() as stack:

            def batches() -> Iterator[_Piece]:
                for task in tasks:
                    with ExitStack() as opened:
                        source = opened.enter_context(Source(task, self.command.column))
                        known = None
                        if self.scores is not None:
                            known = opened.enter_context(self.scores.of(task))
                        for batch in source.batches():
                            self.refuse_other_models()
                            scores = known.next(batch.rows) if known is not None else {}
                            yield _Piece(task, source, known, batch, scores)
                        yield _Piece(task, source, known)

            def decide(piece: _Piece) -> tuple[_Piece, Decision | None, Any]:
                if piece.batch is None:
                    return piece, None, None
                try:
                    decision = self.judge.decide(piece.batch, piece.task.name, piece.scores)
                except ConfigError as error:
                    raise ConfigError(f"{piece.task.path}: {error}") from None
                return piece, decision, piece.batch.kept(decision.rows, decision.added)

            for piece, decision, kept in in_order(decide, batches(), threads):
                if writing is None:
                    note(piece.task, None)
                    writing = stack.enter_context(_Output(self, piece))
                if decision is None:
                    writing.finish()
                    stack.pop_all().close()
                    writing = None
                else:
                    writing.write(kept, decision)
                    note(piece.task, decision.counts)

    def finish(self) -> dict[str, Any]:
        """Write manifest and report of a job whose tasks are all finished; the manifest."""
        if (manifest := self.results.manifest()) is not None:
            return manifest
        total = Counts.none(len(self.judge.condition.clauses))
        files, seconds = [], 0.0
        for task in self.tasks:
            done = self.results.done(task)
            if done is None:
                raise ConfigError(f"{task.name} is not finished")
            total.add(done.counts)
            seconds += done.seconds
            counts = done.counts
            files.append({
                "output": task.name, "input": without_secrets(task.path),
                "row_groups": task.groups,
                "bytes": (self.results.folder / task.name).stat().st_size,
                "rows": counts.rows, "kept": counts.kept, "without_text": counts.without_text,
                "refused": counts.refused, "seconds": round(done.seconds, 3),
            })  # fmt: skip
        clauses = [clause.text for clause in self.judge.condition.clauses]
        manifest = {
            "identity": self._identity, "models": self._hashed(),
            "keep": self.judge.condition.text,
            "rows": total.rows, "kept": total.kept, "without_text": total.without_text,
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
        page = report_page(manifest, total.near)
        with atomic_file(self.results.place_of(REPORT)) as file:
            file.write(page.encode("utf-8", "replace"))
        with atomic_file(self.results.place_of(MANIFEST)) as file:
            file.write(json.dumps(manifest, indent=1).encode() + b"\n")
        for name, words in total.unread.items():
            warn_of_unread(words, f"model {name}")
        return manifest

    def refuse_other_models(self) -> None:
        """DataError: a model is another file than at the beginning; a large one is mapped."""
        for path, version in self._versions.items():
            if version_now(path) != version:
                raise DataError(f"{path} was changed while it was read: run it again")

    def _hashed(self) -> dict[str, dict[str, str]]:
        """Path and SHA-256 of each model; DataError: one is another file than at the beginning."""
        assert self._hashes is not None
        found = {}
        for name, model in self._identity["models"].items():
            path = model["path"]
            found[name] = {"path": path, "sha256": self._hashes.of(path)}
            if version_now(path) != model["version"]:
                raise DataError(f"{path} was changed while it was read: run it again")
        return found

    def _identify(self) -> dict[str, Any]:
        """Return what outputs depend on: the command, files and models."""
        command = self.command
        return {
            "version": VERSION, "column": command.column, "keep": self.judge.condition.text,
            "add": {name: str(score) for name, score in self.judge.added.items()},
            "models": {
                name: {"path": path, "version": version_now(path)}
                for name, path in command.models.items()
            },
            "inputs": [
                {"path": without_secrets(task.path), "output": task.name, "bytes": task.bytes,
                 "version": task.version} for task in self.tasks
            ],
        }  # fmt: skip


class _Piece(NamedTuple):
    """A batch of a task, with what is known of its scores; None: the task's end."""

    task: Task
    source: Source
    known: TaskScores | None
    batch: Batch | None = None
    scores: Mapping[str, ModelScores] = MappingProxyType({})


class _Output:
    """The output of a task, and the scores that are kept of it, while they are written."""

    def __init__(self, job: FilterJob, piece: _Piece) -> None:
        self._job, self._task, self._source = job, piece.task, piece.source
        self._scores = ScoreWriter(piece.known) if piece.known is not None else None
        self._counts = Counts.none(len(job.judge.condition.clauses))
        self._opened, self._begun = ExitStack(), time.monotonic()
        self._target: Target

    def __enter__(self) -> _Output:
        path = self._job.results.place_of(self._task.name)
        file: IO[bytes] = self._opened.enter_context(atomic_file(path))
        self._target = self._source.target(file, self._job.judge.column_types())
        if self._scores is not None:
            self._opened.enter_context(self._scores)
        return self

    def write(self, kept: Any, decision: Decision) -> None:
        self._target.write(kept)
        if self._scores is not None:
            self._scores.write(decision.scores, decision.counts.scored)
        self._counts.add(decision.counts)

    def finish(self) -> None:
        self._target.close()
        if version_now(self._task.path) != self._task.version:
            raise DataError(f"{self._task.path} was changed while it was read: run it again")
        if not self._job.results.is_current():
            raise ConfigError(f"{self._job.results.folder} is another command's now")
        if self._scores is not None:
            self._scores.finish()
        self._opened.close()
        self._job.results.save(self._task, self._counts, time.monotonic() - self._begun)

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None:
            self._target.abandon()
        self._opened.__exit__(*error)


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a glob pattern matches a path, both by their parts; `**` is any number of them."""
    if not pattern or not parts:
        return not parts and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or _matches(parts[1:], pattern)
    return fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


class Runs(Protocol):
    """A cluster's session."""

    def run(self, model: str, settings: Mapping[str, Any], *, input: str) -> object: ...


def _absolute(path: str | os.PathLike[str]) -> str:
    return str(Path(home_expanded(os.fspath(path))).absolute())


def settings_for(job: FilterJob) -> dict[str, str | int]:
    """Settings of a job of `filtering.worker.Filter` that makes the tasks that are left."""
    command = job.command
    return {
        "column": command.column, "models": json.dumps(command.models),
        "keep": job.judge.condition.text, "add": json.dumps(command.add),
        "folder": command.output, "key": job.results.key, "scores": command.scores, "epochs": 1,
    }  # fmt: skip


def filter(
    input: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    output: str | os.PathLike[str],
    models: Mapping[str, str | os.PathLike[str]],
    keep: str,
    column: str = "",
    add: Sequence[str] = (),
    keep_scores: str | os.PathLike[str] = "",
    threads: int = 0,
    overwrite: bool = False,
    cluster: Runs | None = None,
    begun: Callable[[FilterJob], object] = lambda job: None,
    note: Callable[[FilterJob, Task, Counts | None], None] = lambda job, task, counts: None,
) -> dict[str, Any]:
    """Keep the texts of files that classifiers say to keep, in files of the same format.

    Parameters
    ----------
    input : path, or sequence of paths
        Parquet, Arrow, ORC, JSON lines and text, the latter two packed or not; folders, patterns
        and URLs.
    output : path
        A folder: a file for each of the input (several for a large Parquet file), `_manifest.json`
        and `_report.html`.
    models : mapping of str to path
        Names of the condition, and their classifiers.
    keep : str
        A condition: ``hq["__label__hq"] >= .5 and lang.top == "__label__en"``.
    column : str
        Of tables, that of the texts.
    add : sequence of str
        Scores that become columns: ``hq["__label__hq"]``, ``lang.top``, ``lang.p``, or ``lang`` for
        these two; ``quality=hq["__label__hq"]`` gives a column another name.
    keep_scores : path, optional
        A folder of the scores that models gave these texts, which is made and added to: another
        condition on the same models, texts and labels asks no model again.
    threads : int
        0: one a core.  Outputs do not depend on it.
    cluster : Cluster, optional
        Its workers filter, each a task at a time; input, models and output are in folders that all
        its hosts have.
    overwrite : bool
        Replace what another command left in `output`.
    begun : callable
        Is given the job before its first task: its `tasks`, and those that are `left`.
    note : callable
        Is told each task, None, when it is begun, and the counts of each batch of it; not with a
        `cluster`, whose status tells.

    Returns
    -------
    dict
        What `_manifest.json` has: rows, kept, refused by each clause of the condition, ...

    Raises
    ------
    ConfigError
        A mistake in the condition, or an output folder that has something else.
    DataError
        An input that cannot be read.

    Notes
    -----
    A run that was ended goes on: finished outputs stay, and are the same bytes in any case.

    Examples
    --------
    >>> done = snailps.filter("crawl/*.parquet", column="text", output="kept",
    ...     models={"hq": "quality.bin"}, keep='hq["__label__hq"] >= .5')  # doctest: +SKIP
    >>> done["kept"], done["rows"]  # doctest: +SKIP
    """
    threads = threads_of(threads)
    if not isinstance(models, Mapping) or not isinstance(keep, str):
        raise ConfigError(
            "models, keep: expected paths by name, as {'hq': 'quality.bin'}, and a condition"
        )
    paths = [input] if isinstance(input, (str, os.PathLike)) else input
    inputs = tuple(os.fspath(path) for path in paths)
    files = {name: _absolute(path) for name, path in models.items()}
    added = (add,) if isinstance(add, str) else tuple(add)
    scores = _absolute(keep_scores) if keep_scores else ""
    job = FilterJob(Command(inputs, column, files, keep, added, _absolute(output), scores))
    try:
        left = job.begin(overwrite=overwrite)
        begun(job)
        if cluster is None:
            job.run(left, threads, lambda task, counts: note(job, task, counts))
        elif left:
            path = str(job.results.list_path)
            cluster.run("snailps.filtering.worker:Filter", settings_for(job), input=path)
        return job.finish()
    finally:
        job.close()
