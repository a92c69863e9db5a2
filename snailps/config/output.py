"""Checks before a job that its result can be written: folder, existing files, free space.

output -> check_output -> its folder, made          files of a result -> refuse_existing
files of a result, files that are read -> refuse_sources          both -> refuse_results
sizes of files -> check_room          sizes of files -> sizes_text

Must not know which files a model writes: the model says so.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from snailps.errors import ConfigError

Path_ = str | os.PathLike[str]


def check_output(output: str) -> None:
    """Make the folder of the result, so that a wrong path fails now and not after the training."""
    if not output:
        return
    folder, name = os.path.split(output)
    if name in ("", ".", ".."):
        example = os.path.join(folder, name, "model")  # noqa: PTH118 (keeps ``./``)
        raise ConfigError(
            f"output: {output}: expected a prefix of the result files' paths, got a folder; write "
            f"{example}, for example"
        )
    make_folder(absolute(output).parent, f"output: {output}", "output")


def absolute(path: str | os.PathLike[str]) -> Path:
    """An absolute path; ConfigError: it is relative to a current folder that was removed."""
    try:
        return Path(path).absolute()
    except FileNotFoundError:
        raise ConfigError(
            f"{path} is named from the current folder, which was removed: name it from / on, or go "
            "to another folder"
        ) from None


def make_folder(folder: Path, where: str, what: str = "folder", mode: int = 0o777) -> None:
    """Make a folder and check that files can be made in it.

    A `ConfigError` begins with `where`, and advises to choose another `what`.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(
                f"{where}: {folder} is a file, and a folder is needed there; choose another {what}"
            )
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"{where}: cannot write in {folder}: {error.strerror}; choose another {what}"
        ) from None


def is_own(folder: Path, uid: int) -> bool:
    """Whether a folder belongs to user `uid`, only that user can write to it, and it is no link."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid and not status.st_mode & 0o022


def refuse_existing(
    files: Sequence[str],
    *,
    unfinished: bool = True,
    option: str = "output",
    how: str = "add --overwrite",
    keep: str = "name another output",
) -> None:
    """Raise `ConfigError` if a result file exists: its training may have taken days.

    `unfinished`: also say that there is no unfinished run, which would have been continued.
    `option` is the option that names the files, `how` the way to replace them, `keep`
    the way to keep them.
    """
    there = [path for path in files if os.path.lexists(path)]
    if not there:
        return
    status = os.lstat(there[0])
    size = status.st_size
    shown = f"{size / 1e6:,.1f} MB" if size >= 50_000 else f"{size:,} bytes"
    written = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.st_mtime))
    more = f", and {len(there) - 1} more of its files" if len(there) > 1 else ""
    none = ", and there is no unfinished run of this job to continue" if unfinished else ""
    raise ConfigError(
        f"{option}: {there[0]} exists ({shown}, written {written}){more}{none}. To replace it, "
        f"{how}; to keep it, {keep}"
    )


def refuse_sources(
    files: Iterable[Path_], sources: Iterable[Path_], option: str = "output"
) -> None:
    """Raise `ConfigError` if a file to write is one that is read, through a link too.

    ``--overwrite`` means an earlier result, and not the data.  `option` names the files.
    """
    written = {status: path for path in files if (status := _identity(path)) is not None}
    for source in sources if written else ():
        status = _identity(source)
        if status is not None and status in written:
            raise ConfigError(
                f"{option}: {written[status]} is read here, too ({source}), and would be replaced: "
                "name another output"
            )


def refuse_results(
    files: Sequence[Path_], sources: Iterable[Path_], *, overwrite: bool, option: str = "--output"
) -> None:
    """Raise `ConfigError` if a command would replace what it reads, or results of an earlier one.

    `overwrite` permits the latter.
    """
    refuse_sources(files, sources, option)
    if not overwrite:
        refuse_existing([os.fspath(path) for path in files], unfinished=False, option=option)


def _identity(path: Path_) -> tuple[int, int] | None:
    """Device and number of a regular file; None: there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 (a source may be a URL, or a name that is too long)
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Write files and their sizes: ``out/x.bin (107.1 MB) and out/x.vec (9.2 MB)``."""
    *first, last = [f"{path} ({size / 1e6:,.1f} MB)" for path, size in sizes.items()]
    return f"{', '.join(first)} and {last}" if first else last


def check_room(sizes: Mapping[str, int]) -> None:
    """Refuse result files that would not fit on their disk, before the training.

    `sizes` maps path to bytes, in order of writing; all files are in one folder.  A file replaces
    an older one only when it is complete, so for a while both need room.
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
        return  # the folder cannot be examined; the export will report the reason
    if free < needed:
        raise ConfigError(
            f"output: {sizes_text(sizes)} need {needed / 1e6:,.1f} MB, and the disk of {folder} "
            f"has {free / 1e6:,.1f} MB free: make room, or name an output on another disk"
        )


def refuse_folders(files: Sequence[str]) -> None:
    for path in files:
        if Path(path).is_dir():
            raise ConfigError(
                f"output: {path} is a folder, and a result file needs that name: choose another "
                "output"
            )
