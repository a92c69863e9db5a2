"""Checks that a result can be written where a setting says, and whose a folder is.

output -> check_output -> its folder, made          files of a result -> refuse_existing
sizes of files -> check_room          sizes of files -> sizes_text

Which files a model writes, the model knows.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from snailps.errors import ConfigError


def check_output(output: str) -> None:
    """Make the folder of the result, to fail before the job, not hours later at the export."""
    if not output:
        return
    folder, name = os.path.split(output)
    if name in ("", ".", ".."):
        example = os.path.join(folder, name, "model")  # noqa: PTH118 (keeps ``./``)
        raise ConfigError(
            f"output: {output}: expected what the names of the result files begin with, got a "
            f"folder; write {example}, for example"
        )
    make_folder(Path(output).absolute().parent, f"output: {output}", "output")


def make_folder(folder: Path, where: str, what: str = "folder", mode: int = 0o777) -> None:
    """Make a folder that can be written to; else `ConfigError`: ``where: ... another what``."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(
            f"{where}: {folder} is a file, and a folder is needed there; choose another {what}"
        )
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"{where}: cannot write in {folder}: {error.strerror}; choose another {what}"
        ) from None


def is_own(folder: Path, uid: int) -> bool:
    """Whether a folder is this user's, not writable by others, and no link."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & 0o022


def refuse_existing(
    files: Sequence[str],
    *,
    unfinished: bool = True,
    option: str = "output",
    how: str = "add --overwrite",
) -> None:
    """Raise `ConfigError` for a result that is there: training it may have taken days.

    `unfinished`: say that an unfinished run would have been continued.  `option` names the files,
    `how` the way to replace them.
    """
    there = [path for path in files if os.path.lexists(path)]
    if not there:
        return
    found = os.lstat(there[0])
    size = found.st_size
    shown = f"{size / 1e6:,.1f} MB" if size >= 50_000 else f"{size:,} bytes"
    written = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.st_mtime))
    more = f", and {len(there) - 1} more of its files" if len(there) > 1 else ""
    none = ", and there is no unfinished run of this job to continue" if unfinished else ""
    raise ConfigError(
        f"{option}: {there[0]} exists ({shown}, written {written}){more}{none}. To replace it, "
        f"{how}; to keep it, name another output"
    )


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Write files and their sizes: ``out/x.bin (107.1 MB) and out/x.vec (9.2 MB)``."""
    *first, last = [f"{path} ({size / 1e6:,.1f} MB)" for path, size in sizes.items()]
    return f"{', '.join(first)} and {last}" if first else last


def check_room(sizes: Mapping[str, int]) -> None:
    """Refuse files that do not fit on their disk, before the training.

    `sizes` maps path to bytes, in order of writing, in one folder.  A file replaces an older one
    once it is complete, so both need room for a while.
    """
    if not sizes:
        return
    held = needed = 0
    for path, size in sizes.items():
        needed = max(needed, held + size)
        with contextlib.suppress(OSError):
            held -= os.lstat(path).st_size
        held += size
    folder = Path(next(iter(sizes))).absolute().parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return  # the export will say what is wrong with it
    if free < needed:
        raise ConfigError(
            f"output: {sizes_text(sizes)} need {needed / 1e6:,.1f} MB, and the disk of {folder} "
            f"has {free / 1e6:,.1f} MB free: make room, or name an output on another disk"
        )


def refuse_folders(files: Sequence[str]) -> None:
    for path in files:
        if Path(path).is_dir():
            raise ConfigError(
                f"output: {path} is a folder, and a file of that name is to be written: name "
                "another output"
            )
