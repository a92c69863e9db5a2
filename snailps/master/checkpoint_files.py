"""Owns the checkpoint folder of a job on disk: opens, begins, completes and prunes.

    open -> candidates, newest first      begin -> part -> complete -> manifest, rename, prune

Every method blocks on the disk and runs as a `Work`. Must not decide when a checkpoint is made or
what belongs to it: `checkpoints.py` does. Servers write the rows into the folder.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from snailps.config import CheckpointSettings, JobSettings
from snailps.config.output import absolute
from snailps.dataclass import replace
from snailps.errors import CheckpointError, SnailError, no_room
from snailps.master.job.session import SESSION
from snailps.master.job.state import JobState, pack, unpack
from snailps.master.services import Begun, Candidate, Completed, Opened
from snailps.node.status import CheckpointStatus
from snailps.store.checkpoint.disk import OS_DISK, Disk, write_file
from snailps.store.checkpoint.folder import (
    BEGUN,
    CheckpointFolder,
    found_at,
    read_course,
    write_course,
)
from snailps.store.checkpoint.lock import LOCK, FolderTaken
from snailps.store.checkpoint.manifest import BEST_ROWS, Manifest
from snailps.store.checkpoint.shard_file import FileEntry

log = logging.getLogger(__name__)

TEMPORARY = "snailps-best-"
"""Beginning of the name of a folder of best rows that no output or checkpoint is beside."""
CHECKPOINTS = "checkpoints"
"""Folder of checkpoints of a job without output."""


class CheckpointFiles:
    """The checkpoint folder of the present job."""

    def __init__(self, disk: Disk = OS_DISK) -> None:
        self._disk = disk
        self._folder: CheckpointFolder | None = None
        self._leading: Path | None = None  # folder whose checkpoints name best rows in this one
        self._taken = 0  # number of folders opened so far
        self._guard = threading.Lock()

    def open(
        self,
        settings: CheckpointSettings,
        *,
        resumes: bool,
        anyway: bool = False,
        of_session: bool = False,
    ) -> Opened | None:
        """Open and lock a job's folder; None if the job has no checkpoints. CheckpointError if it
        `resumes`, and there are some and all are damaged: to train from the start must be the
        user's decision."""
        self.release(self._taken, "")
        if not (settings.saves_checkpoints or settings.checkpoint_dir or anyway):
            return None
        path = folder_of(settings)
        folder = CheckpointFolder(path, self._disk)
        folder.take()
        with self._guard:
            self._folder, self._taken = folder, self._taken + 1
        if settings.fresh and resumes:
            refuse_to_give_up(folder, of_session)
            folder.set_passed("begun anew with --fresh")
        candidates, bad = [], []
        for checkpoint in folder.candidates():
            if checkpoint.state == "good":
                assert checkpoint.manifest is not None
                candidates.append(
                    self._candidate(checkpoint.number, str(checkpoint.path), checkpoint.manifest)
                )
            else:
                log.warning(
                    "checkpoint %d is %s: %s", checkpoint.number, checkpoint.state, checkpoint.why
                )
                bad.append(checkpoint)
        if resumes and not candidates and any(checkpoint.state == "damaged" for checkpoint in bad):
            raise CheckpointError(
                f"{path}: no checkpoint here can be used, and {bad[0].number} is {bad[0].state}: "
                f"{bad[0].why}. Mend it, or begin anew with --fresh"
            )
        return Opened(self._taken, str(path), candidates)

    def path_of(self, settings: CheckpointSettings) -> str:
        return str(folder_of(settings))

    def find(self, folder: str) -> Opened:
        """The good checkpoints of a folder, newest first; or the one checkpoint whose folder it is.

        Not locked, as nothing is written. DataError: there is no checkpoint; CheckpointError: none
        is good.
        """
        everything = found_at(Path(folder), self._disk)
        good = [checkpoint for checkpoint in reversed(everything) if checkpoint.state == "good"]
        if not good:
            last = everything[-1]
            raise CheckpointError(
                f"{folder}: no good checkpoint: {last.number} is {last.state}: {last.why}. Choose "
                "another folder"
            )
        return Opened(0, folder, [
            self._candidate(checkpoint.number, str(checkpoint.path), checkpoint.manifest)
            for checkpoint in good if checkpoint.manifest is not None
        ])  # fmt: skip

    def _candidate(self, number: int, path: str, manifest: Manifest) -> Candidate:
        """A candidate with the sources of its job. Its state, of up to hundreds of MB, is dropped
        before the next candidate's is read."""
        candidate = Candidate(number, path, manifest, [])
        return replace(candidate, sources=self.read_state(candidate).sources)

    def read_state(self, candidate: Candidate) -> JobState:
        return unpack(read_course(Path(candidate.path), candidate.manifest, self._disk))

    def clear(self) -> None:
        assert self._folder is not None
        self._folder.clear()

    def begin(self, above: int, cluster_id: int, needed_bytes: int) -> Begun:
        """Begin a checkpoint with a number above `above`. CheckpointError if the disk has no room
        for `needed_bytes`: better now than when servers have written half of it."""
        folder = self._folder
        assert folder is not None
        saved_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._check_room(folder.path, needed_bytes)
        number = max(folder.next_number(), above + 1)
        part = folder.begin(number)
        try:
            write_file(self._disk, part / BEGUN, f"{cluster_id:016x}\n".encode())
        except BaseException:
            self._disk.remove_tree(part)
            raise
        return Begun(number, str(part), saved_at)

    def complete(
        self,
        begun: Begun,
        files: Sequence[dict[str, Any]],
        state: JobState,
        *,
        cluster_id: int,
        frag_num: int,
        tables: tuple[dict[str, Any], ...],
        about: dict[str, Any],
        kept: int,
    ) -> Completed:
        """Give a checkpoint its name, as all of its files are on disk, and remove the oldest ones
        but `kept`, and best rows to which a checkpoint of their job leads back. Raises, and gives
        it no name, if a file or the manifest cannot be written."""
        folder, part, number = self._folder, Path(begun.part), begun.number
        if folder is None or folder.path != part.parent:
            raise CheckpointError(f"checkpoint {number}: its job is over")
        entries = tuple(FileEntry.from_dict(item, f"checkpoint {number}") for item in files)
        course = write_course(part, pack(state), self._disk)
        self._disk.remove(part / BEGUN)
        manifest = Manifest(
            number, cluster_id, begun.saved_at, frag_num, tables, entries, about, course
        )  # fmt: skip
        path = folder.complete(part, manifest)
        with contextlib.suppress(SnailError, OSError):
            folder.prune(kept, self._led_to())
        return Completed(str(path), manifest.rows, manifest.total_bytes)

    def _led_to(self) -> set[Path]:
        """Paths of the best rows that checkpoints name from which the job may continue."""
        if self._leading is None:
            return set()
        folder = CheckpointFolder(self._leading, self._disk)
        manifests = [checkpoint.manifest for checkpoint in folder.candidates()]
        named = [manifest.job.get(BEST_ROWS) for manifest in manifests if manifest is not None]
        return {Path(path) for path in named if path}

    def drop(self, begun: Begun) -> None:
        """Remove a failed checkpoint; a server that still writes to it finds its files gone."""
        self._disk.remove_tree(Path(begun.part))

    def release(self, taken: int, why: str) -> None:
        with self._guard:
            if taken != self._taken:
                return  # the next job has opened its folder already
            folder, self._folder = self._folder, None
        if folder is not None:
            if why:
                with contextlib.suppress(SnailError, OSError):
                    folder.set_passed(why)
            folder.release()

    def open_best(self, settings: JobSettings, name: str) -> Opened:
        folder = folder_of_best(settings, name)
        if folder.name.startswith(TEMPORARY):
            self._remove_left(folder.parent)
        self._leading = folder_of(settings)
        settings = replace(settings, checkpoint_dir=str(folder), fresh=False)
        opened = self.open(settings, resumes=False, anyway=True)
        assert opened is not None
        return opened

    def discard_best(self, taken: int, settings: JobSettings, name: str) -> None:
        self.release(taken, "")
        self._disk.remove_tree(folder_of_best(settings, name))

    def _remove_left(self, parent: Path) -> None:
        """Remove best rows that killed sessions have left: nobody else would.

        The lock of a folder is free once its master is gone. A folder without rows is not touched:
        its master may be about to lock it.
        """
        with contextlib.suppress(OSError):
            for name in self._disk.names(parent):
                path = parent / name
                with contextlib.suppress(OSError, FolderTaken):
                    if name.startswith(TEMPORARY) and set(self._disk.names(path)) - {LOCK}:
                        lock = self._disk.lock(path)
                        self._disk.remove_tree(path)
                        self._disk.unlock(lock)

    def _check_room(self, path: Path, needed: int) -> None:
        try:
            free = self._disk.free_bytes(path)
        except OSError:
            return
        if free < needed:
            raise CheckpointError(
                f"{path}: the disk is full: a checkpoint needs {needed / 1e6:,.1f} MB, "
                f"{free / 1e6:,.1f} MB are free. Make room, or keep fewer (checkpoints_kept)"
            ) from no_room()


def refuse_to_give_up(folder: CheckpointFolder, of_session: bool) -> None:
    """CheckpointError if a job that begins anew would hide, and then remove, the rows of a session,
    or a session those of a job: `--fresh` gives up what is one's own."""
    for checkpoint in folder.candidates():
        manifest = checkpoint.manifest
        if manifest is not None and (manifest.job.get("worker_class") == SESSION) != of_session:
            other, here = ("a job", "this session") if of_session else ("a session", "this job")
            raise CheckpointError(
                f"{checkpoint.path}: is a checkpoint of {other}, which --fresh of {here} would "
                "give up: choose another checkpoint_dir, or remove the folder"
            )


def folder_of(settings: CheckpointSettings) -> Path:
    output = getattr(settings, "output", "")  # a session has none
    default = f"{output}.checkpoints" if output else CHECKPOINTS
    return absolute(settings.checkpoint_dir or default)


def newest_of(settings: CheckpointSettings) -> CheckpointStatus | None:
    """The good checkpoint from which a job with these settings would go on; reads its folder."""
    if settings.fresh or not (settings.saves_checkpoints or settings.checkpoint_dir):
        return None
    folder = CheckpointFolder(folder_of(settings))
    for checkpoint in folder.candidates():
        if checkpoint.manifest is not None:
            share = float(checkpoint.manifest.job["progress"])
            return {
                "number": checkpoint.number,
                "progress": share,
                "age_s": None,
                "path": str(folder.path),
                "writing": False,
            }
    return None


def folder_of_best(settings: JobSettings, name: str) -> Path:
    """The folder of the rows of a job's best epoch."""
    prefix = settings.checkpoint_dir or settings.output
    if not (prefix or settings.saves_checkpoints):
        return Path(settings.scratch_dir or tempfile.gettempdir(), f"{TEMPORARY}{name}")
    prefix = prefix or CHECKPOINTS
    return Path(f"{prefix}.best").absolute()
