"""A cache of scores in files, so that another condition on the same texts need not run the models.

    task -> ScoreFolder.of -> TaskScores: the stored scores of each batch
    the scores of each batch, with newly computed ones -> ScoreWriter -> the files, replaced whole

Owns the files: one for each model and task, with the scores in the order of the rows and a header
that names input, model and program.  A file whose header does not match is ignored and replaced, so
a stale score is never used.  A row that no condition has asked about has no score; a later run adds
it.  Damaged files cost a warning and a new computation, never a run.  Must not know conditions.
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
from snailps.errors import ConfigError
from snailps.files.atomic import Unfinished, unfinished_of, write_error
from snailps.filtering.scores import ModelScores
from snailps.filtering.tasks import Task, version_of_model
from snailps.outward import without_secrets

ENDING = ".scores"
FORMAT = 1
HEADER_BYTES_MAX = 1 << 20
"""A longer first line is not read: the file is damaged."""
_HEAD = struct.Struct("<IIQ")
"""Before each batch: its rows, how many have scores, and words that the model did not read."""
_DAMAGED = (AttributeError, EOFError, LookupError, OSError, RuntimeError, TypeError, ValueError,
            struct.error)  # fmt: skip
"""What lz4, JSON and struct raise on a file that was cut off or overwritten."""
log = logging.getLogger(__name__)


class ScoreFolder:
    """The files of a command's models.  Threads and processes may share a folder.

    `models`: path by name; `column`: of the texts; `labels`: by model name, the numbers of the
    labels to store, set once the models are open.  Make it before the models are opened: it notes
    their versions, so that a model replaced in between is not taken for the one that gave a score.
    """

    def __init__(self, folder: Path, models: Mapping[str, str], column: str) -> None:
        self.folder = folder
        self.labels: dict[str, list[int]] = {}
        self._column, self._lock = column, -1
        self._models = {
            name: {"path": path, "version": version_of_model(path)} for name, path in models.items()
        }
        self._remarks: set[str] = set()

    def begin(self, tasks: Iterable[Task]) -> None:
        """Make the folder; remove unfinished files of killed runs.

        Each run holds a shared lock until `close`.  Only a run that gets the exclusive lock first,
        hence is alone, may remove files: another's unfinished ones look the same.
        """
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
        """The file of a model's scores of a task; its name is a hash of what it is about."""
        path = without_secrets(task.path)
        parts = [path, task.groups, self._column, self._models[name]["path"]]
        if path != task.path:  # URLs that differ in their secrets alone are different inputs
            parts.append(task.name)
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
        return self.folder / f"{digest}{ENDING}"

    def of(self, task: Task) -> TaskScores:
        """Open the stored scores of a task, a context manager."""
        return TaskScores(self, task)

    def header(self, task: Task, name: str) -> dict[str, Any]:
        """The header of a file whose scores may be used: same input, model and program."""
        return {
            "format": FORMAT, "program": __version__, "model": self._models[name],
            "input": {"path": without_secrets(task.path), "version": task.version,
                      "groups": task.groups, "column": self._column},
        }  # fmt: skip

    def is_same(self, name: str) -> bool:
        """Whether a model's file is unchanged.

        A mapped model that is overwritten in place gives scores of a mixture: these are not stored.
        """
        model = self._models[name]
        return version_of_model(model["path"]) == model["version"]

    def remark(self, text: str) -> None:
        """Warn that stored scores are not used; the same text once, not once a task."""
        if text not in self._remarks:
            self._remarks.add(text)
            log.warning("--keep-scores %s: %s", self.folder, text)


class TaskScores:
    """Stored scores of a task, read batch by batch in the order of its rows.

    `labels`: by model, the labels to compute: the command's, and all that the file has, so
    that rewriting it loses none.
    """

    def __init__(self, folder: ScoreFolder, task: Task) -> None:
        self.folder, self.task = folder, task
        self.labels = {name: list(labels) for name, labels in folder.labels.items()}
        self._files: dict[str, Any] = {}
        if not task.version:
            # Its content may change unnoticed, so a stored score could be another text's.
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
        """The stored scores of the next `rows` rows, by model; call it for each batch in order."""
        return {name: self._next(name, rows) for name in self.labels}

    def _open(self, name: str) -> None:
        path, wanted = self.folder.path_of(self.task, name), self.labels[name]
        if not path.is_file():
            return
        try:
            file = self._files[name] = lz4.frame.open(path, "rb")
            header = json.loads(file.readline(HEADER_BYTES_MAX))
            stored = [int(label) for label in header.pop("labels")]
        except _DAMAGED:
            self._drop(name, f"{path.name} is damaged")
            return
        expected = json.loads(json.dumps(self.folder.header(self.task, name)))
        if header != expected:
            differs = " and ".join(key for key in expected if header.get(key) != expected[key])
            self._drop(name, f"the stored scores are of another {differs}")
        elif not {*wanted} <= {*stored}:
            self.labels[name] = sorted({*stored, *wanted})
            self._drop(name, "a label that the condition needs was not stored")
        else:
            self.labels[name] = stored

    def _next(self, name: str, rows: int) -> ModelScores:
        scores = ModelScores.none(rows, self.labels[name])
        file = self._files.get(name)
        if file is None:
            return scores
        try:
            head = file.read(_HEAD.size)
            if not head:  # fewer batches than the task has: lz4 sees a complete file
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
    """Writes the scores of a task's batches; a context manager.

    The new files replace the old ones in `finish`; left without it, the old ones stay.
    """

    def __init__(self, stored: TaskScores) -> None:
        self._stored = stored
        self._files: dict[str, tuple[Unfinished, Any]] = {}
        self._has_new: set[str] = set()

    def __enter__(self) -> ScoreWriter:
        try:
            for name, labels in self._stored.labels.items() if self._stored.task.version else ():
                self._begin(name, labels)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self, name: str, labels: list[int]) -> None:
        path = self._stored.folder.path_of(self._stored.task, name)
        try:
            file = Unfinished(path)
        except OSError as error:
            raise write_error(path, error, None) from error
        packer = lz4.frame.LZ4FrameCompressor(block_checksum=True, content_checksum=True)
        self._files[name] = file, packer
        header = self._stored.folder.header(self._stored.task, name) | {"labels": labels}
        self._write(name, packer.begin(), json.dumps(header).encode() + b"\n")

    def __exit__(self, *_: object) -> None:
        for file, _ in self._files.values():
            file.close()

    def write(self, scores: Mapping[str, ModelScores], scored: Mapping[str, int]) -> None:
        """Write the scores of a batch; `scored`: by model, how many of them are new."""
        self._has_new |= {name for name, count in scored.items() if count}
        for name in self._files:
            by_model = scores[name]
            asked = by_model.asked
            arrays = (by_model.best, by_model.of_best, *by_model.of_labels.values())
            head = _HEAD.pack(len(asked), int(asked.sum()), by_model.unread)
            parts = [head, np.packbits(asked).tobytes()]
            self._write(name, b"", b"".join(parts + [array[asked].tobytes() for array in arrays]))

    def finish(self) -> None:
        """Replace the files that have new scores; the others would be the same bytes again."""
        folder = self._stored.folder
        for name, (file, packer) in self._files.items():
            path = folder.path_of(self._stored.task, name)
            if (name in self._has_new or not path.is_file()) and folder.is_same(name):
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
    """The next `size` bytes; EOFError: the file has fewer."""
    data = cast(bytes, file.read(size))
    if len(data) < size:
        raise EOFError
    return data
