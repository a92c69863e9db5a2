"""Scores that models gave texts, kept in files: the same texts are filtered again without asking.

    task -> ScoreFolder.of -> TaskScores: scores of each batch that are known
    scores of each batch, more of them known -> ScoreWriter -> the files, replaced at once

A file has what one model said of the texts of one task, in their order, and which input, model and
program that was: with any other it is not used, and is replaced. A row that no condition has asked
about has no score in it, and a later one adds to it. Must not know conditions.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import lz4.frame
import numpy as np

from snailps._version import __version__
from snailps.data.atomic import Unfinished, unfinished_of, write_error
from snailps.errors import ConfigError
from snailps.filtering.scores import ModelScores
from snailps.filtering.tasks import Task, version_now
from snailps.outward import without_secrets

ENDING = ".scores"
FORMAT = 1
HEADER_BYTES_MAX = 1 << 20
_HEAD = struct.Struct("<IIQ")
"""Of a batch: its rows, those with scores, and the words of these that were not read."""
_DAMAGED = (EOFError, OSError, RuntimeError, ValueError, LookupError, struct.error)
log = logging.getLogger(__name__)


class ScoreFolder:
    """The files of some models; any number of threads may ask for different tasks.

    `models`: path by name; `labels`: numbers of the labels that are asked for, by name; `column`
    of the texts.  Make it before the models are opened: it notes their versions as they are now.
    """

    def __init__(self, folder: Path, models: Mapping[str, str], column: str) -> None:
        self.folder = folder
        self.labels: dict[str, list[int]] = {}
        self._column, self._lock = column, -1
        self._models = {
            name: {"path": path, "version": version_now(path)} for name, path in models.items()
        }
        self._remarks: set[str] = set()

    def begin(self, tasks: Iterable[Task]) -> None:
        """Make the folder, and remove what killed runs left, unless another one is at work."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(
                self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise ConfigError(f"--keep-scores {self.folder}: {error.strerror or error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            paths = (self.path_of(task, name) for task in tasks for name in self._models)
            for part in unfinished_of(paths):
                part.unlink(missing_ok=True)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def path_of(self, task: Task, name: str) -> Path:
        """The file of a model's scores of a task."""
        path = without_secrets(task.path)
        of = [path, task.groups, self._column, self._models[name]["path"]]
        if path != task.path:  # others may be equal to it
            of.append(task.name)
        number = hashlib.sha256(json.dumps(of).encode()).hexdigest()[:24]
        return self.folder / f"{number}{ENDING}"

    def of(self, task: Task) -> TaskScores:
        """Scores of a task that are known; close it."""
        return TaskScores(self, task)

    def header(self, task: Task, name: str) -> dict[str, Any]:
        """Scores are used for the same input, model and program only."""
        return {
            "format": FORMAT, "program": __version__, "model": self._models[name],
            "input": {"path": without_secrets(task.path), "version": task.version,
                      "groups": task.groups, "column": self._column},
        }  # fmt: skip

    def is_same(self, name: str) -> bool:
        """Whether a model is still what it was; one that is overwritten changes as it is read."""
        model = self._models[name]
        return version_now(model["path"]) == model["version"]

    def remark(self, text: str) -> None:
        """Warn of scores that are not used, once a model and reason."""
        if text not in self._remarks:
            self._remarks.add(text)
            log.warning("--keep-scores %s: %s", self.folder, text)


class TaskScores:
    """What is known of the texts of a task, batch by batch.

    `labels`: the labels to ask of each model, so that the file keeps what it had.
    """

    def __init__(self, folder: ScoreFolder, task: Task) -> None:
        self.folder, self.task = folder, task
        self.labels = {name: list(labels) for name, labels in folder.labels.items()}
        self._files: dict[str, Any] = {}
        if not task.version:
            folder.remark(f"{task.path} has neither an ETag nor a date: its scores are not kept")
            return
        for name in self.labels:
            self._open(name)

    def __enter__(self) -> TaskScores:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._files):
            self._drop(name)

    def next(self, rows: int) -> dict[str, ModelScores]:
        """Scores of the next rows by each model."""
        return {name: self._next(name, rows) for name in self.labels}

    def _open(self, name: str) -> None:
        path, wanted = self.folder.path_of(self.task, name), self.labels[name]
        if not path.is_file():
            return
        try:
            file = self._files[name] = lz4.frame.open(path, "rb")
            header = json.loads(file.readline(HEADER_BYTES_MAX))
            there = [int(label) for label in header.pop("labels")]
        except _DAMAGED:
            self._drop(name, f"{path.name} is damaged")
            return
        expected = json.loads(json.dumps(self.folder.header(self.task, name)))
        if header != expected:
            differs = " and ".join(key for key in expected if header.get(key) != expected[key])
            self._drop(name, f"what is kept is of another {differs} than now")
        elif not {*wanted} <= {*there}:
            self.labels[name] = sorted({*there, *wanted})
            self._drop(name, "a label that the condition needs was not kept")
        else:
            self.labels[name] = there

    def _next(self, name: str, rows: int) -> ModelScores:
        scores = ModelScores.none(rows, self.labels[name])
        file = self._files.get(name)
        if file is None:
            return scores
        try:
            head = file.read(_HEAD.size)
            if not head:  # of a task that had an end earlier: it is a damage that nothing has noted
                raise EOFError
            count, asked, scores.unread = _HEAD.unpack(head)
            if count != rows or asked > rows:
                raise ValueError
            bits = np.frombuffer(_exactly(file, (rows + 7) // 8), np.uint8)
            scores.asked[:] = np.unpackbits(bits, count=rows).astype(bool)
            for array in (scores.best, scores.of_best, *scores.of_labels.values()):
                array[scores.asked] = np.frombuffer(
                    _exactly(file, asked * array.itemsize), array.dtype
                )
        except _DAMAGED:
            self._drop(name, f"{self.folder.path_of(self.task, name).name} is damaged")
            return ModelScores.none(rows, self.labels[name])
        return scores

    def _drop(self, name: str, why: str = "") -> None:
        if (file := self._files.pop(name, None)) is not None:
            file.close()
        if why:
            self.folder.remark(f"{why}: model {name} scores these texts again")


class ScoreWriter:
    """Writes the scores of a task's batches; a context manager, without whose `finish` no file is
    there, or the one before."""

    def __init__(self, known: TaskScores) -> None:
        self._known = known
        self._files: dict[str, tuple[Unfinished, Any]] = {}
        self._more: set[str] = set()

    def __enter__(self) -> ScoreWriter:
        for name, labels in self._known.labels.items() if self._known.task.version else ():
            path = self._known.folder.path_of(self._known.task, name)
            try:
                file = Unfinished(path)
            except OSError as error:
                raise write_error(path, error, None) from error
            packer = lz4.frame.LZ4FrameCompressor(block_checksum=True, content_checksum=True)
            self._files[name] = file, packer
            header = self._known.folder.header(self._known.task, name) | {"labels": labels}
            self._write(name, packer.begin(), json.dumps(header).encode() + b"\n")
        return self

    def __exit__(self, *_: object) -> None:
        for file, _ in self._files.values():
            file.close()

    def write(self, scores: Mapping[str, ModelScores], scored: Mapping[str, int]) -> None:
        """Write the scores of a batch; `scored`: how many of each model are new."""
        self._more |= {name for name, count in scored.items() if count}
        for name in self._files:
            one = scores[name]
            arrays = (one.best, one.of_best, *one.of_labels.values())
            head = _HEAD.pack(len(one.asked), int(one.asked.sum()), one.unread)
            parts = [head, np.packbits(one.asked).tobytes()]
            self._write(name, b"", b"".join(parts + [at[one.asked].tobytes() for at in arrays]))

    def finish(self) -> None:
        """Give the files that have more than before their names."""
        for name, (file, packer) in self._files.items():
            path = self._known.folder.path_of(self._known.task, name)
            if (name in self._more or not path.is_file()) and self._known.folder.is_same(name):
                self._write(name, packer.flush(), b"")
                try:
                    file.publish()
                except OSError as error:
                    raise write_error(path, error, None) from error

    def _write(self, name: str, raw: bytes, data: bytes) -> None:
        file, packer = self._files[name]
        try:
            file.write(raw + (packer.compress(data) if data else b""))
        except OSError as error:
            raise write_error(file.target, error, None) from error


def _exactly(file: Any, size: int) -> bytes:
    found = cast(bytes, file.read(size))
    if len(found) < size:
        raise EOFError
    return found
