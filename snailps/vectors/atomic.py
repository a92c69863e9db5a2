"""Atomic files: a file appears complete or not at all.

    chunks of bytes -> WriteBehind -> hidden file beside the target -> fsync -> rename over it

A reader never gets a partial model, and an old model survives a failed export.  Must not know what
is in the file.
"""

from __future__ import annotations

import atexit
import errno
import io
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from snailps.errors import ModelWriteError
from snailps.vectors.write_behind import WriteBehind

# Large enough that the small writes of a dictionary or of text lines cost no call each; matrix
# chunks above it are not copied here.
_BUFFER_BYTES = 1 << 20
_serial = itertools.count()
_unfinished: set[Path] = set()
"""Temporary files to remove at exit: daemon threads may be writing them."""


@atexit.register
def _remove_unfinished() -> None:
    for path in list(_unfinished):
        with suppress(OSError):
            path.unlink()


@contextmanager
def atomic_file(
    path: str | os.PathLike[str], bytes_needed: int | None = None
) -> Iterator[IO[bytes]]:
    """Open `path` for writing so that it appears only when the block ends without an error.

    Parameters
    ----------
    path : path
        The file to write.  Its folder must exist.  A symbolic link is followed.
    bytes_needed : int, optional
        Size of the finished file, if known.  It is compared with the free space before the first
        byte is written.

    Yields
    ------
    binary file
        Buffered, seekable, not readable.  It belongs to this block and is closed by it.

    Raises
    ------
    ModelWriteError
        The folder is missing or not writable, the disk is full, or a file size limit was hit.

    Notes
    -----
    The temporary file sits in the target's folder (a rename cannot cross file systems) and is
    removed whatever ends the block, Ctrl-C included.
    """
    target = Path(os.path.realpath(path))
    _check_target(target, bytes_needed)
    temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}.{next(_serial)}.part")
    try:
        # 0o666 less the umask: what a plain open() would give, unlike tempfile's 0o600.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise write_error(target, error, bytes_needed) from error
    _unfinished.add(temporary)
    # Only errors of this file are translated: an OSError that the producer of the data raises (a
    # lost connection, say) passes through unchanged.
    raw = WriteBehind(temporary, descriptor, lambda error: write_error(target, error, bytes_needed))
    try:
        with raw:
            file = io.BufferedWriter(raw, _BUFFER_BYTES)
            yield file
            file.flush()
            raw.sync()
        try:
            temporary.replace(target)
        except OSError as error:
            raise write_error(target, error, bytes_needed) from error
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    finally:
        _unfinished.discard(temporary)
    _sync_folder(target.parent)


def human_bytes(count: int) -> str:
    """`count` bytes for people: ``812 B``, ``3.2 MB``, ``1.1 GB`` (powers of ten)."""
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def _check_target(target: Path, bytes_needed: int | None) -> None:
    """Refuse a target that cannot be written, before an export of many minutes begins."""
    folder = target.parent
    if not folder.is_dir():
        raise ModelWriteError(
            f"{target}: cannot be written, because the folder {folder} does not exist; "
            "create it or choose another output path"
        )
    if target.is_dir():
        raise ModelWriteError(
            f"{target}: cannot be written, because it is a folder; add a file name to the path"
        )
    if target.exists() and not target.is_file():
        raise ModelWriteError(
            f"{target}: cannot be written, because it is a device or a pipe; "
            "give the path of a regular file"
        )
    if bytes_needed is None:
        return
    free = free_bytes(folder)
    if free is not None and free < bytes_needed:
        raise ModelWriteError(
            f"{target}: cannot be written, because it needs {human_bytes(bytes_needed)} and "
            f"{folder} has {human_bytes(free)} free; make room or choose another disk"
        )


def free_bytes(folder: Path) -> int | None:
    """Bytes that may still be written into a folder; None if that cannot be told."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def write_error(target: Path, error: OSError, bytes_needed: int | None) -> ModelWriteError:
    """The error for a failed write, of `target` or of scratch space beside it."""
    needs = "" if bytes_needed is None else f" (the file needs {human_bytes(bytes_needed)})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = free_bytes(target.parent)
        left = "" if free is None else f", {human_bytes(free)} left"
        cause = f"the disk or quota of {target.parent} is full{left}{needs}"
        cure = "make room or choose another disk"
    elif error.errno == errno.EFBIG:
        cause = f"it grew beyond the file size limit of this process or file system{needs}"
        cure = "raise the limit (ulimit -f) or choose another disk"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        cause = f"{target.parent} is not writable by this user ({error.strerror})"
        cure = "change its permissions or choose another folder"
    else:
        cause = f"{error.strerror or error}{needs}"
        cure = "correct that or choose another path"
    return ModelWriteError(
        f"{target}: cannot be written, because {cause}; {cure}. Nothing was left behind"
    )


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable; some file systems refuse this, which is ignored."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
