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
from typing import IO, Any, Protocol

from snailps.config.fields import home_expanded
from snailps.data.atomic import atomic_file
from snailps.data.blocks import files_of
from snailps.data.file_hashes import FileHashes
from snailps.data.in_order import in_order
from snailps.data.unpacking import is_url
from snailps.dataclass import dataclass
from snailps.errors import ConfigError, DataError
from snailps.filtering.expression import Score, is_reserved, parse, parse_added
from snailps.filtering.formats import (
    Batch,
    Source,
    Target,
    Task,
    is_parquet,
    open_source,
    tasks_of,
    version_now,
)
from snailps.filtering.report import report_page
from snailps.filtering.results import MANIFEST, REPORT, RESERVED, Results
from snailps.filtering.scores import Counts, Decision, Judge
from snailps.vectors.label_prediction import LabelModel, threads_of, warn_of_unread
from snailps.vectors.words import to_text

TASK_BYTES = 256 << 20
VERSION = 3
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Command:
    """Command of a filter, with absolute paths but for `inputs`, which workers do not ask for.

    `models`: path by name; `add`: scores that become columns; `output`: a folder.
    """

    inputs: tuple[str, ...]
    column: str
    models: dict[str, str]
    keep: str
    add: tuple[str, ...]
    output: str

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
        models = {name: LabelModel(path) for name, path in self.models.items()}
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
        self.judge = command.judge()
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
            if number == 0 or is_parquet(task.path):
                with open_source(task, self.command.column) as source:
                    found = source.check(self.judge.condition.columns, self.judge.column_types())
                remarks = dict.fromkeys(found, task.path) | remarks
        for remark, path in remarks.items():
            log.warning("%s: %s", path, remark)
        self._identity = self._identify()
        self.left = self.results.take(self._identity, self.tasks, overwrite=overwrite)
        if self.results.manifest() is None:
            self._hashes = FileHashes(self.command.models.values())
        return self.left

    def close(self) -> None:
        if self._hashes is not None:
            self._hashes.close()
        self.results.close()

    def _check_places(self) -> None:
        """No output is an input, nor would be one of the same command again."""
        folder = self.results.folder.resolve()
        for name in self.command.inputs:
            path = Path(home_expanded(name))
            is_folder = not is_url(name) and path.is_dir()
            if is_folder and folder.is_relative_to(path.resolve()):
                raise ConfigError(
                    f"--output {folder} is in the input's folder, {name}: the next run would read "
                    "it, too"
                )
        written = {folder, *((folder / task.name).parent.resolve() for task in self.tasks)}
        for task in self.tasks:
            parents = () if is_url(task.path) else Path(task.path).resolve().parents
            if not written.isdisjoint(parents):
                raise ConfigError(f"--output {folder} has the input in it ({task.path})")
            if task.name.split("/")[0] in RESERVED:
                raise ConfigError(f"{task.path}: a filter keeps {task.name} for itself: rename it")
        for name in self.command.inputs:
            pattern = Path(home_expanded(name)).absolute().parts
            if not is_url(name) and any(
                _matches((place / task.name).absolute().parts, pattern)
                for place in (folder, self.results.folder)
                for task in self.tasks
            ):
                raise ConfigError(
                    f"--output {folder}: the next run would read it, too, by the input {name}"
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

            def batches() -> Iterator[tuple[Task, Source, Batch | None]]:
                for task in tasks:
                    with open_source(task, self.command.column) as source:
                        for batch in source.batches():
                            yield task, source, batch
                        yield task, source, None

            def decide(
                item: tuple[Task, Source, Batch | None],
            ) -> tuple[Task, Source, Decision | None, Any]:
                task, source, batch = item
                if batch is None:
                    return task, source, None, None
                try:
                    decision = self.judge.decide(batch, task.name)
                except ConfigError as error:
                    raise ConfigError(f"{task.path}: {error}") from None
                return task, source, decision, batch.kept(decision.rows, decision.added)

            for task, source, decision, kept in in_order(decide, batches(), threads):
                if writing is None:
                    note(task, None)
                    writing = stack.enter_context(_Output(self, task, source))
                if decision is None:
                    writing.finish()
                    stack.pop_all().close()
                    writing = None
                else:
                    writing.write(kept, decision.counts)
                    note(task, decision.counts)

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
                "output": task.name, "input": task.path, "row_groups": task.groups,
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
            "unread": total.unread,
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
                {"path": task.path, "output": task.name, "bytes": task.bytes,
                 "version": task.version} for task in self.tasks
            ],
        }  # fmt: skip


class _Output:
    """The output of a task while it is written."""

    def __init__(self, job: FilterJob, task: Task, source: Source) -> None:
        self._job, self._task, self._source = job, task, source
        self._counts = Counts.none(len(job.judge.condition.clauses))
        self._opened, self._begun = ExitStack(), time.monotonic()
        self._target: Target

    def __enter__(self) -> _Output:
        path = self._job.results.place_of(self._task.name)
        file: IO[bytes] = self._opened.enter_context(atomic_file(path))
        self._target = self._source.target(file, self._job.judge.column_types())
        return self

    def write(self, kept: Any, counts: Counts) -> None:
        self._target.write(kept)
        self._counts.add(counts)

    def finish(self) -> None:
        self._target.close()
        if version_now(self._task.path) != self._task.version:
            raise DataError(f"{self._task.path} was changed while it was read: run it again")
        if not self._job.results.is_current():
            raise ConfigError(f"{self._job.results.folder} is another command's now")
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
        "folder": command.output, "key": job.results.key, "epochs": 1,
    }  # fmt: skip


def filter(
    input: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    output: str | os.PathLike[str],
    models: Mapping[str, str | os.PathLike[str]],
    keep: str,
    column: str = "",
    add: Sequence[str] = (),
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
        Parquet, JSON lines and text, the latter two packed or not; folders, patterns and URLs.
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
    job = FilterJob(Command(inputs, column, files, keep, added, _absolute(output)))
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
