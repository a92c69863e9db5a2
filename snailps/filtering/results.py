"""A filter's output folder: whose results it has, which tasks are finished, and what is removed.

    identity of a command, tasks -> Results.take -> tasks that are left; save, done of each -> close

A task's output is complete or absent.  Beside outputs a folder .snailps has the command, and what
came of each finished task, until the manifest has them all; it is locked while a run goes on.
What came of a task counts for the command that has made it alone.
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

from snailps.data.atomic import atomic_file, unfinished_of
from snailps.errors import ConfigError
from snailps.filtering.scores import Counts, Near
from snailps.filtering.tasks import Task

KEPT = ".snailps"
MANIFEST, REPORT = "_manifest.json", "_report.html"
RESERVED = (KEPT, MANIFEST, REPORT)
_COMMAND, _LIST, _LOCK, _TASKS = "command.json", "tasks.txt", "lock", "tasks"


class Done(NamedTuple):
    """Result of a task."""

    task: Task
    counts: Counts
    seconds: float


class Results:
    """The folder; `key` names the command whose results these are."""

    def __init__(self, folder: Path, key: str = "") -> None:
        self.folder, self.key = folder, key
        self._lock = -1

    def take(
        self, identity: Mapping[str, Any], tasks: Sequence[Task], *, overwrite: bool
    ) -> list[Task]:
        """Lock the folder for a command; tasks that are left, none if all of it is there.

        ConfigError: it has something else and not `overwrite`, or another run is at work in it.
        """
        self.key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        with _folder_errors(self.folder):
            state = self.folder / KEPT
            is_known = self.folder.is_dir() and (state.exists() or self.manifest() is not None)
            if (
                self.folder.is_dir()
                and not is_known
                and any(self.folder.iterdir())
                and not overwrite
            ):
                raise ConfigError(
                    f"{self.folder} is not empty: choose another --output, or add --overwrite"
                )
            state.mkdir(parents=True, exist_ok=True)
            self._take_lock(state)
            there = self._identity_there()
            if there is not None and there != identity:
                if not overwrite and self._has_results():
                    raise ConfigError(
                        f"{self.folder} has the results of another command: choose another "
                        f"--output, or add --overwrite{_differences(there, identity)}"
                    )
                self._remove()
            unknown = [task for task in tasks if not task.version]
            if (manifest := self.manifest()) is not None:
                changed = self._changed(manifest)
                if changed is None and unknown and not overwrite:
                    raise ConfigError(
                        f"{unknown[0].path} has neither an ETag nor a date: whether it is still "
                        f"what {self.folder} was made of is not known. Add --overwrite, and all of "
                        "it is made again"
                    )
                if changed is None and not unknown:
                    return []
                if not overwrite:
                    raise ConfigError(
                        f"{changed} is not what this command has made: it is missing, or was "
                        "changed. Add --overwrite, and all of it is made again"
                    )
                self._remove()
            (state / _TASKS).mkdir(exist_ok=True)
            _write_json(state / _COMMAND, {"identity": identity})
            for task in unknown:  # it may be another one now
                self._state_of(task).unlink(missing_ok=True)
            left = [task for task in tasks if self.done(task) is None]
            self._remove_unfinished(task.name for task in tasks)
            with atomic_file(self.list_path) as file:
                file.writelines(json.dumps(task).encode() + b"\n" for task in left)
            return left

    def close(self) -> None:
        """Unlock the folder; behind the manifest, nothing but results stays."""
        if self._lock < 0:
            return
        if (manifest := self.manifest()) is not None:
            self._remove_unfinished(_outputs_of(manifest["identity"]))
            shutil.rmtree(self.folder / KEPT, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1

    @property
    def list_path(self) -> Path:
        """Tasks that were left when it was taken, a line each, for workers of a cluster."""
        return self.folder / KEPT / _LIST

    def manifest(self) -> dict[str, Any] | None:
        """Read the manifest of a finished run; None: there is none that a filter has written."""
        found = _read_json(self.folder / MANIFEST) or {}
        is_whole = isinstance(found.get("identity"), dict) and isinstance(found.get("files"), list)
        return found if is_whole else None

    # --- tasks ------------------------------------------------------------------------------

    def place_of(self, name: str) -> Path:
        """Where an output belongs; its folder is made, a link in its place is removed."""
        path = self.folder / name
        with _folder_errors(self.folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink():
                path.unlink()
        return path

    def save(self, task: Task, counts: Counts, seconds: float) -> None:
        """A task is finished: its output is there."""
        size = (self.folder / task.name).stat().st_size
        _write_json(self._state_of(task), {
            "key": self.key, "task": task, "bytes": size, "seconds": seconds,
            "counts": dataclasses.asdict(counts),
        })  # fmt: skip

    def done(self, task: Task) -> Done | None:
        """Return the result of a task of this command; None: it is not finished."""
        found = _read_json(self._state_of(task))
        if found is None or found.get("key") != self.key:
            return None
        with contextlib.suppress(OSError, AttributeError, LookupError, TypeError, ValueError):
            if (self.folder / task.name).stat().st_size == found["bytes"]:
                return Done(task, _counts_of(found["counts"]), found["seconds"])
        return None

    def is_current(self) -> bool:
        """Whether the folder is still this command's, as a worker may outlive its run."""
        there = json.dumps(self._identity_there()).encode()
        return self.key == hashlib.sha256(there).hexdigest()

    def _state_of(self, task: Task) -> Path:
        name = hashlib.sha256(os.fsencode(task.name)).hexdigest()[:32]
        return self.folder / KEPT / _TASKS / f"{name}.json"

    # --- the folder -------------------------------------------------------------------------

    def _take_lock(self, state: Path) -> None:
        self._lock = os.open(state / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = -1
            raise ConfigError(
                f"another snailps filter is at work in {self.folder}: wait for it, or choose "
                "another --output"
            ) from None

    def _identity_there(self) -> dict[str, Any] | None:
        found = self.manifest() or _read_json(self.folder / KEPT / _COMMAND) or {}
        identity = found.get("identity")
        return identity if isinstance(identity, dict) else None

    def _has_results(self) -> bool:
        return self.manifest() is not None or any((self.folder / KEPT / _TASKS).glob("*.json"))

    def _changed(self, manifest: Mapping[str, Any]) -> Path | None:
        """The first output of a finished run that is not as the run has left it."""
        for one in manifest["files"]:
            path = self.folder / str(one["output"])
            if not path.is_file() or path.stat().st_size != one["bytes"]:
                return path
        return None

    def _remove_unfinished(self, names: Iterable[str]) -> None:
        """Remove what killed processes have left of outputs."""
        for part in unfinished_of(self.folder / name for name in (*names, MANIFEST, REPORT)):
            part.unlink(missing_ok=True)

    def _remove(self) -> None:
        """Remove what another command has left, and nothing outside of this folder."""
        home = self.folder.resolve()
        identity = self._identity_there() or {}
        for name in _outputs_of(identity):
            path = self.folder / name
            if path.parent.resolve().is_relative_to(home) and not path.is_dir():
                path.unlink(missing_ok=True)
        for name in (MANIFEST, REPORT):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder / KEPT / _TASKS, ignore_errors=True)


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Lines of what differs between the command that a folder has, and this one."""
    lines = []
    for name in here:
        old, new = there.get(name), here[name]
        if old == new:
            continue
        if name in ("inputs", "models"):
            ways = [_by_name(side) for side in (old, new)]
            names = [*ways[0], *(key for key in ways[1] if key not in ways[0])]
            changed = [key for key in names if ways[0].get(key) != ways[1].get(key)]
            more = f", and {len(changed) - 3:,} more" if len(changed) > 3 else ""
            words = ", ".join(
                f"{key} ({_how(ways[0].get(key), ways[1].get(key))})" for key in changed[:3]
            )
            lines.append(f"{name}: {words or 'another order'}{more}")
        else:
            lines.append(f"{name}: {_shown(old)} there, {_shown(new)} here")
    return "".join(f"\n  {line}" for line in lines)


def _by_name(files: Any) -> dict[str, Any]:
    """Files of a command by the names that they are told apart by."""
    if isinstance(files, dict):
        return files
    there = files if isinstance(files, list) else []
    return {str(one.get("output")): one for one in there if isinstance(one, dict)}


def _how(old: Any, new: Any) -> str:
    if old is None or new is None:
        return "not there before" if old is None else "not here now"
    paths = [one.get("path") if isinstance(one, dict) else None for one in (old, new)]
    return "it was changed since" if paths[0] == paths[1] else f"{paths[0]} there, {paths[1]} here"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        value = ", ".join(
            name if name == score else f"{name}={score}" for name, score in value.items()
        )
    return f"{value}" or "none"


def _outputs_of(identity: Mapping[str, Any]) -> Iterator[str]:
    inputs = identity.get("inputs")
    for one in inputs if isinstance(inputs, list) else ():
        name = one.get("output") if isinstance(one, dict) else None
        if isinstance(name, str) and "\0" not in name and not {"", ".."} & {*name.split("/")}:
            yield name


@contextlib.contextmanager
def _folder_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"--output {folder}: {error.strerror or error}") from error


def _counts_of(found: dict[str, Any]) -> Counts:
    near = {
        name: ([Near(**one) for one in kept], [Near(**one) for one in refused])
        for name, (kept, refused) in found["near"].items()
    }
    return Counts(**{**found, "near": near})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with atomic_file(path) as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
