"""The folder of a job's checkpoints: which exist, which are good, how they are added and removed.

    begin -> checkpoint-000012.part/ <- files of shards ... -> manifest, last -> checkpoint-000012/
    found -> every checkpoint with its state: good, unfinished or damaged, and why
    prune -> only the newest stay

Owns names, order and safety on disk: a folder without ``.part`` is complete, because it gets that
name after everything in it was synced.  Whoever dies at any moment, the newest such folder is a
checkpoint to continue from.  The content of files belongs to `shard_file` and `manifest`.  Must not
know a clock.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from snailps.dataclass import dataclass
from snailps.errors import CheckpointError, DataError
from snailps.store.checkpoint._crc32c import crc32c
from snailps.store.checkpoint.disk import OS_DISK, Disk, read_file, sync_folder, write_file
from snailps.store.checkpoint.lock import LOCK, FolderTaken
from snailps.store.checkpoint.manifest import NAME, Manifest
from snailps.store.checkpoint.shard_file import FileEntry, ShardFile, write_error

BEGUN = "begun"
"""File that the master puts into a new checkpoint's folder: a server that does not see it writes to
another disk."""

_NAME = re.compile(r"checkpoint-(\d{6,})(\.part|\.old)?")
PASSED = "passed.json"
"""File with the number up to which checkpoints belong to runs that are over."""
COURSE = "course.npz"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk: good, unfinished (its writer ended too early) or damaged, and why."""

    number: int
    path: Path
    state: Literal["good", "unfinished", "damaged"]
    why: str = ""
    manifest: Manifest | None = None


def open_checkpoint(path: Path, disk: Disk = OS_DISK) -> tuple[Manifest, list[ShardFile]]:
    """Open a checkpoint; `CheckpointError` if a manifest, length, header or index is wrong.

    It reads some KB for each shard; rows are compared with their checksums when they are read.
    """
    try:
        data = read_file(disk, path / NAME)
    except OSError as error:
        raise CheckpointError(
            f"{path / NAME}: cannot be read ({error.strerror}): not a finished checkpoint"
        ) from None
    manifest = Manifest.from_bytes(data, str(path / NAME))
    about = manifest.cluster_id, manifest.number, manifest.frag_num, disk, manifest.format_
    files = [ShardFile(path, entry, *about) for entry in manifest.files]
    held = np.concatenate([np.unique(file.index["fragment"]) for file in files])
    if len(np.unique(held)) != manifest.frag_num:
        raise CheckpointError(f"{path}: its files do not hold every fragment once")
    read_course(path, manifest, disk)
    return manifest, files


def read_course(path: Path, manifest: Manifest, disk: Disk = OS_DISK) -> bytes:
    file = path / manifest.course.name
    try:
        data = read_file(disk, file)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from None
    if len(data) != manifest.course.bytes or crc32c(data) != manifest.course.index_crc32c:
        raise CheckpointError(f"{file}: it is damaged: its length or checksum is wrong")
    return data


def verify(path: Path) -> Manifest:
    """Read a whole checkpoint and compare it with its checksums; `CheckpointError` names damage."""
    manifest, files = open_checkpoint(path)
    everything = np.ones(manifest.frag_num, np.bool_)
    for file in files:
        for _ in file.sections(everything):
            pass
    return manifest


def refuse_no_folder(path: Path) -> None:
    if not path.is_dir():
        what = "a file, and checkpoints are folders" if path.exists() else "no such folder"
        raise DataError(f"{path}: {what}; check the path")


def found_at(path: Path, disk: Disk = OS_DISK) -> list[Checkpoint]:
    """Return the checkpoints of a folder, or the one whose folder `path` is; DataError: none."""
    try:
        names = disk.names(path)
    except OSError:
        refuse_no_folder(path)
        names = []  # `found` says why it cannot be read
    path = path.absolute()
    # What is in a folder decides: users give a folder of checkpoints any name, also one like
    # checkpoint-20261130, and copy a checkpoint under another name.
    named = _NAME.fullmatch(path.name)
    if NAME in names or (named is not None and not _holds_checkpoints(names)):
        number = int(named[1]) if named is not None else None
        return [CheckpointFolder(path.parent, disk).look(number, path)]
    checkpoints = CheckpointFolder(path, disk).found()
    if not checkpoints:
        raise DataError(
            f"{path}: no checkpoints here (folders checkpoint-000001, ...); check the path"
        )
    return checkpoints


def _holds_checkpoints(names: Iterable[str]) -> bool:
    return any(_NAME.fullmatch(name) for name in names)


class CheckpointFolder:
    """The checkpoints of one job; their folder need not exist."""

    def __init__(self, path: Path, disk: Disk = OS_DISK) -> None:
        self.path, self._disk = path, disk
        self._lock = -1
        self._made = False  # by this process
        self._cleared = 0  # highest number that `clear` removed: servers may still report on it

    def found(self) -> list[Checkpoint]:
        """Return all checkpoints in the folder, oldest first; reads no rows."""
        checkpoints = [
            self.look(number, path) for number, path in self._named() if path.suffix != ".old"
        ]
        return [
            checkpoint
            for checkpoint in checkpoints
            if checkpoint.state == "good" or not self._is_of_user(checkpoint.path)
        ]

    def _is_of_user(self, path: Path) -> bool:
        """Whether a folder with the name of a checkpoint is a user's own, with checkpoints in it:
        it is never removed from here."""
        try:
            return _holds_checkpoints(self._disk.names(path))
        except OSError:
            return False

    def candidates(self) -> Iterator[Checkpoint]:
        """Yield checkpoints that the job may continue from, newest first, good or not."""
        passed = self.passed()
        for checkpoint in reversed(self.found()):
            if checkpoint.number > passed:
                yield checkpoint

    def next_number(self) -> int:
        """Return a number that no checkpoint here ever had, so that late reports match none."""
        numbers = [number for number, _ in self._named()]
        return max([self.passed(), self._cleared, *numbers]) + 1

    def passed(self) -> int:
        """Return the number up to which checkpoints belong to runs that ended or were given up; 0:
        none."""
        try:
            plain = json.loads(read_file(self._disk, self.path / PASSED))
            through = int(plain["through"])
            # Without a checksum a changed digit would hide good checkpoints, or revive old ones.
            if plain["crc32c"] != _sum_of(through, str(plain["why"])):
                raise ValueError("its checksum is wrong")
            return through
        except FileNotFoundError:
            return 0
        except NotADirectoryError:
            self._refuse_file()
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{self.path / PASSED}: cannot be understood ({error!r:.99}): remove it if the job "
                "is to go on from the newest checkpoint here"
            ) from None

    def set_passed(self, why: str) -> None:
        """Note that no job continues from the checkpoints here: the run ended, or begins anew."""
        number = self.next_number() - 1
        if number > self.passed():
            plain = {"through": number, "why": why, "crc32c": _sum_of(number, why)}
            text = json.dumps(plain) + "\n"
            part = self.path / f"{PASSED}.part"
            write_or_refuse(self._disk, part, text.encode())
            try:
                self._disk.rename(part, self.path / PASSED)
                sync_folder(self._disk, self.path)
            except OSError as error:
                raise write_error(self.path / PASSED, error) from error

    def take(self) -> None:
        """Make the folder, and lock it for this process; CheckpointError: another master has it."""
        if self._lock >= 0:
            return
        self._refuse_file()
        with contextlib.suppress(OSError):
            if NAME in self._disk.names(self.path):
                raise CheckpointError(
                    f"{self.path}: is a checkpoint itself, and checkpoints are kept in a folder of "
                    "their own: choose another folder"
                )
        try:
            self._made = not self.path.exists()
            self._lock = self._disk.lock(self.path)
        except OSError as error:
            raise write_error(self.path / LOCK, error) from error
        except FolderTaken as taken:
            if taken.is_own:
                raise CheckpointError(
                    f"{self.path}: this master itself, and not another master ({taken}), keeps "
                    "checkpoints here, of its session or of a job: choose another folder"
                ) from None
            raise CheckpointError(
                f"{self.path}: another master keeps its checkpoints here ({taken}): "
                "choose another checkpoint_dir, or wait for its end"
            ) from None

    def _refuse_file(self) -> None:
        for path in (self.path, *self.path.parents):
            if path.is_file():
                raise CheckpointError(
                    f"{self.path}: expected a folder for checkpoints, which is made if there is "
                    f"none, got a file ({path}): choose another path, or move the file away"
                )

    def clear(self) -> None:
        """Remove checkpoints that are unfinished or half removed."""
        for number, path in self._named():
            if path.suffix in (".part", ".old") and not self._is_of_user(path):
                self._cleared = max(self._cleared, number)
                self._disk.remove_tree(path)

    def release(self) -> None:
        """Unlock the folder, and remove it if this process made it and it is empty.  Idempotent."""
        if self._lock >= 0:
            if self._made:
                with contextlib.suppress(OSError):
                    self._remove_unused()
            self._disk.unlock(self._lock)
            self._lock = -1

    def _remove_unused(self) -> None:
        if self._disk.names(self.path) == [LOCK]:
            self._disk.remove(self.path / LOCK)
            self.path.rmdir()

    def begin(self, number: int) -> Path:
        """Make the folder of a new checkpoint, named ``.part`` until it is complete."""
        part = self.path / f"checkpoint-{number:06d}.part"
        try:
            self._disk.make_folder(part)
        except OSError as error:
            raise write_error(part, error) from error
        return part

    def complete(self, part: Path, manifest: Manifest) -> Path:
        """Write the manifest, then give the folder its final name; return it.

        The order matters: everything in the folder is synced before the name says that it is
        complete. `CheckpointError`: its files do not hold every fragment, or cannot be written.
        """
        held = sum(file.fragments for file in manifest.files)
        if held != manifest.frag_num:
            raise CheckpointError(
                f"{part}: its files hold {held:,} of {manifest.frag_num:,} fragments: a shard was "
                "not served, or by two servers"
            )
        write_or_refuse(self._disk, part / NAME, manifest.to_bytes())
        path = part.with_suffix("")
        try:
            sync_folder(self._disk, part)
            self._disk.rename(part, path)
            sync_folder(self._disk, self.path)
        except OSError as error:
            raise write_error(path, error) from error
        return path

    def prune(self, kept: int, spared: Collection[Path] = ()) -> list[int]:
        """Remove checkpoints older than the newest `kept` good ones; return their numbers.

        Those whose paths are `spared` stay.
        """
        checkpoints = self.found()
        good = [checkpoint.number for checkpoint in checkpoints if checkpoint.state == "good"]
        if len(good) < kept:
            return []
        too_old = [
            checkpoint
            for checkpoint in checkpoints
            if checkpoint.number < good[-kept] and checkpoint.path not in spared
        ]
        for checkpoint in too_old:
            # Renamed first: a checkpoint that is half removed must not look complete.
            old = checkpoint.path.with_suffix(".old")
            with contextlib.suppress(OSError):
                self._disk.rename(checkpoint.path, old)
                self._disk.remove_tree(old)
        return [checkpoint.number for checkpoint in too_old]

    def _named(self) -> list[tuple[int, Path]]:
        try:
            names = sorted(self._disk.names(self.path))
        except FileNotFoundError:
            return []
        except OSError as error:
            self._refuse_file()
            raise CheckpointError(f"{self.path}: cannot be read: {error.strerror}") from None
        matches = [(name, _NAME.fullmatch(name)) for name in names]
        return sorted((int(match[1]), self.path / name) for name, match in matches if match)

    def look(self, number: int | None, path: Path) -> Checkpoint:
        """Return the state of a checkpoint; `number`: by its name, None if it has another one."""
        if path.suffix == ".part":
            why = "it was never finished: its writer ended too early"
            return Checkpoint(number or 0, path, "unfinished", why)
        try:
            manifest, _ = open_checkpoint(path, self._disk)
        except CheckpointError as error:
            return Checkpoint(number or 0, path, "damaged", str(error))
        if number is None:
            number = manifest.number
        elif manifest.number != number:
            why = f"its manifest says that it is checkpoint {manifest.number}"
            return Checkpoint(number, path, "damaged", why)
        return Checkpoint(number, path, "good", "", manifest)


def write_course(part: Path, data: bytes, disk: Disk = OS_DISK) -> FileEntry:
    """Write the job's own state, with which it continues, into a checkpoint's folder."""
    write_or_refuse(disk, part / COURSE, data)
    return FileEntry(COURSE, len(data), 0, 0, 0, 0, crc32c(data))


def _sum_of(through: int, why: str) -> str:
    return f"{crc32c(json.dumps([through, why]).encode()):08x}"


def write_or_refuse(disk: Disk, path: Path, data: bytes) -> None:
    try:
        write_file(disk, path, data)
    except OSError as error:
        raise write_error(path, error) from error
