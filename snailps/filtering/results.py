"""A filter's output folder: whose results it holds, which tasks are finished, what may be removed.

    identity of a command, tasks -> Results.take -> unfinished tasks; save and done of each -> close

Owns the folder.  An output is complete or absent.  A subfolder .snailps holds the command and a
record of each finished task until the manifest has them all; it is locked while a run is at work.
A record counts only for the command that made it (`key`).  Files of another command are removed
only with `overwrite`, and never outside the folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from snailps.errors import ConfigError
from snailps.files.atomic import atomic_file, unfinished_of
from snailps.filtering.scores import Near, RowCounts
from snailps.filtering.tasks import Task, task_line

KEPT = ".snailps"
MANIFEST, REPORT = "_manifest.json", "_report.html"
RESERVED = (KEPT, MANIFEST, REPORT)
_COMMAND, _LIST, _LOCK, _TASKS = "command.json", "tasks.txt", "lock", "tasks"
_OF_COMMAND = (_TASKS, "copies", "scores")
"""Folders of what one command has found out so far."""


class FinishedTask(NamedTuple):
    """The record of a finished task."""

    task: Task
    counts: RowCounts
    seconds: float


class FilterResults:
    """The output folder; `key` is a hash of the identity of the command that uses it."""

    def __init__(self, folder: Path, key: str = "") -> None:
        self.folder, self.key = folder, key
        self._lock = -1
        self._is_current = False
        self._looked_at: tuple[tuple[int, int] | None, ...] = (None, None)

    def take(
        self, identity: Mapping[str, Any], tasks: Sequence[Task], *, overwrite: bool
    ) -> list[Task]:
        """Lock the folder for a command; return the unfinished tasks, none if a manifest is there.

        Outputs of finished tasks stay.  ConfigError: another run is at work in the folder; or it
        holds something else, or outputs that were changed, and not `overwrite`.
        """
        self.key = self.key_of(identity)
        with _folder_errors(self.folder):
            state = self.folder / KEPT
            has_state = self.folder.is_dir() and (state.exists() or self.manifest() is not None)
            if (
                self.folder.is_dir()
                and not has_state
                and any(self.folder.iterdir())
                and not overwrite
            ):
                raise ConfigError(
                    f"{self.folder} is not empty: choose another --output, or add --overwrite"
                )
            self._take_lock(state)
            previous = self._previous_identity()
            if previous is not None and previous != identity:
                if not overwrite and self._has_results():
                    raise ConfigError(
                        f"{self.folder} has the results of another command: choose another "
                        f"--output, or add --overwrite{_differences(previous, identity)}"
                    )
                self._remove()
            unversioned = [task for task in tasks if not task.version]
            if (manifest := self.manifest()) is not None:
                changed = self._changed(manifest)
                if changed is None and unversioned and not overwrite:
                    raise ConfigError(
                        f"{unversioned[0].path} has neither an ETag nor a date, so it is not known "
                        f"whether it has changed since {self.folder} was made: add --overwrite to "
                        "make all of it again"
                    )
                if changed is None and not unversioned:
                    return []
                if not overwrite:
                    raise ConfigError(
                        f"{changed} is not what this command has made: it is missing, or was "
                        "changed. Add --overwrite to make all of it again"
                    )
                self._remove()
            (state / _TASKS).mkdir(exist_ok=True)
            _write_json(state / _COMMAND, {"identity": identity})
            for task in unversioned:  # its content may have changed: filter it again
                self._state_of(task).unlink(missing_ok=True)
            unfinished = [task for task in tasks if self.done(task) is None]
            # Safe under the lock: no other run writes here.
            self._remove_unfinished(task.name for task in tasks)
            with atomic_file(self.list_path) as file:
                file.writelines(task_line(task) for task in unfinished)
            return unfinished

    @staticmethod
    def key_of(identity: Mapping[str, Any]) -> str:
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    def previous_identity(self) -> Mapping[str, Any]:
        """The identity of the command whose results the folder holds; empty: unknown."""
        return self._previous_identity() or {}

    def close(self) -> None:
        """Unlock the folder; if it has a manifest, remove everything but the results first."""
        if self._lock < 0:
            return
        if (manifest := self.manifest()) is not None:
            self._remove_unfinished(_outputs_of(manifest["identity"]))
            shutil.rmtree(self.folder / KEPT, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1

    @property
    def state(self) -> Path:
        """The folder that `close` removes once there is a manifest."""
        return self.folder / KEPT

    @property
    def list_path(self) -> Path:
        """The unfinished tasks at `take`, one per line: the input of a cluster's workers."""
        return self.folder / KEPT / _LIST

    def manifest(self) -> dict[str, Any] | None:
        """The manifest of a finished run; None: there is none, or not one that a filter wrote."""
        manifest = _read_json(self.folder / MANIFEST) or {}
        is_dict = isinstance(manifest.get("identity"), dict)
        return manifest if is_dict and isinstance(manifest.get("files"), list) else None

    # --- tasks ------------------------------------------------------------------------------

    def place_of(self, name: str) -> Path:
        """The path of an output; makes its folder.

        Removes a symbolic link in its place: following it would write outside the folder.
        """
        path = self.folder / name
        with _folder_errors(self.folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink():
                path.unlink()
        return path

    def save(self, task: Task, counts: RowCounts, seconds: float) -> None:
        """Record that a task is finished.  Call it when the output has its name."""
        size = (self.folder / task.name).stat().st_size
        _write_json(self._state_of(task), {
            "key": self.key, "task": task, "bytes": size, "seconds": seconds,
            "counts": dataclasses.asdict(counts),
        })  # fmt: skip

    def done(self, task: Task) -> FinishedTask | None:
        """The record of a finished task; None: unfinished.

        A record of another command, a damaged one, or one whose output is gone or has another size
        does not count: the task runs again.
        """
        record = _read_json(self._state_of(task))
        if record is None or record.get("key") != self.key:
            return None
        with contextlib.suppress(OSError, AttributeError, LookupError, TypeError, ValueError):
            if (self.folder / task.name).stat().st_size == record["bytes"]:
                return FinishedTask(task, _counts_of(record["counts"]), record["seconds"])
        return None

    def is_current(self) -> bool:
        """Whether the folder still belongs to this command: a worker may outlive its run."""
        # An identity lists all inputs, and this is asked for each of them: read what is new only.
        files = tuple(map(_version, (self.folder / MANIFEST, self.folder / KEPT / _COMMAND)))
        if files != self._looked_at:
            identity = self._previous_identity()
            self._is_current = identity is not None and self.key == self.key_of(identity)
            self._looked_at = files
        return self._is_current

    def _state_of(self, task: Task) -> Path:
        name = hashlib.sha256(os.fsencode(task.name)).hexdigest()[:32]
        return self.folder / KEPT / _TASKS / f"{name}.json"

    # --- the folder -------------------------------------------------------------------------

    def _take_lock(self, state: Path) -> None:
        path = state / _LOCK
        while True:
            state.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
                self._lock = -1
                raise ConfigError(
                    f"another snailps filter is at work in {self.folder}: wait for it, or choose "
                    "another --output"
                ) from None
            # A run that ended meanwhile has removed the file: the next run would lock another one.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._lock), path.stat()):
                    return
            os.close(self._lock)

    def _previous_identity(self) -> dict[str, Any] | None:
        """The identity of the command whose results the folder holds; None: unknown."""
        record = self.manifest() or _read_json(self.folder / KEPT / _COMMAND) or {}
        identity = record.get("identity")
        return identity if isinstance(identity, dict) else None

    def _has_results(self) -> bool:
        return self.manifest() is not None or any((self.folder / KEPT / _TASKS).glob("*.json"))

    def _changed(self, manifest: Mapping[str, Any]) -> Path | None:
        """The first file that a finished run has made, and that is missing or has another size."""
        files = [
            (self.folder / str(entry["output"]), entry["bytes"]) for entry in manifest["files"]
        ]
        if index := manifest.get("index"):
            files.append((Path(index["segment"]), index["bytes"]))
        for path, size in files:
            if not path.is_file() or path.stat().st_size != size:
                return path
        return None

    def _remove_unfinished(self, names: Iterable[str]) -> None:
        """Remove the hidden, unfinished files that killed processes left beside outputs."""
        for part in unfinished_of(self.folder / name for name in (*names, MANIFEST, REPORT)):
            part.unlink(missing_ok=True)

    def _remove(self) -> None:
        """Remove another command's outputs; nothing outside the folder, though links lead there."""
        home = self.folder.resolve()
        identity = self._previous_identity() or {}
        for name in _outputs_of(identity):
            path = self.folder / name
            if path.parent.resolve().is_relative_to(home) and not path.is_dir():
                path.unlink(missing_ok=True)
        for name in (MANIFEST, REPORT):
            (self.folder / name).unlink(missing_ok=True)
        for name in _OF_COMMAND:
            shutil.rmtree(self.folder / KEPT / name, ignore_errors=True)


def _differences(previous: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """For the message: a line for each part that differs between two commands."""
    lines = []
    for name in current:
        old, new = previous.get(name), current[name]
        if old == new:
            continue
        if name in ("inputs", "models"):
            old_files, new_files = _by_name(old), _by_name(new)
            names = [*old_files, *(key for key in new_files if key not in old_files)]
            changed = [key for key in names if old_files.get(key) != new_files.get(key)]
            more = f", and {len(changed) - 3:,} more" if len(changed) > 3 else ""
            words = ", ".join(
                f"{key} ({_how(old_files.get(key), new_files.get(key))})" for key in changed[:3]
            )
            lines.append(f"{name}: {words or 'another order'}{more}")
        else:
            lines.append(f"{name}: {_shown(old)} there, {_shown(new)} here")
    return "".join(f"\n  {line}" for line in lines)


def _by_name(files: Any) -> dict[str, Any]:
    """Models by their names, inputs by the names of their outputs."""
    if isinstance(files, dict):
        return files
    entries = files if isinstance(files, list) else []
    return {str(entry.get("output")): entry for entry in entries if isinstance(entry, dict)}


def _how(old: Any, new: Any) -> str:
    """How a file of the previous command differs from the current one."""
    if old is None or new is None:
        return "not there before" if old is None else "not here now"
    paths = [entry.get("path") if isinstance(entry, dict) else None for entry in (old, new)]
    return "it was changed since" if paths[0] == paths[1] else f"{paths[0]} there, {paths[1]} here"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        value = ", ".join(
            name if name == score else f"{name}={score}" for name, score in value.items()
        )
    return f"{value}" or "none"


def _outputs_of(identity: Mapping[str, Any]) -> Iterator[str]:
    """Names of the outputs of a command.

    They are read from a file, and lead to removals: names that leave the folder are skipped.
    """
    inputs = identity.get("inputs")
    for entry in inputs if isinstance(inputs, list) else ():
        name = entry.get("output") if isinstance(entry, dict) else None
        if isinstance(name, str) and "\0" not in name and not {"", ".."} & {*name.split("/")}:
            yield name


@contextlib.contextmanager
def _folder_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"--output {folder}: {error.strerror or error}") from error


def _counts_of(fields: dict[str, Any]) -> RowCounts:
    """`RowCounts` from JSON."""
    near = {
        bound: tuple([Near(**example) for example in side] for side in sides)
        for bound, sides in fields["near"].items()
    }
    return RowCounts(**{**fields, "near": near})


def _version(path: Path) -> tuple[int, int] | None:
    """Of a file that is replaced whole; None: it is not there."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns
    return None


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with atomic_file(path) as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")


def _read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None: no such file, or something else in it."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
