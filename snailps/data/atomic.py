"""Atomic files: a file appears complete or not at all.

    chunks of bytes -> WriteBehind -> Unfinished, hidden beside the target -> publish: fsync, rename

A reader never gets a partial model, and an old model survives a failed export.  A file that
replaces another one has its owner, group and mode.  Must not know what is in the file.
"""

from __future__ import annotations

import atexit
import errno
import io
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO

from snailps.data.write_behind import WriteBehind, write_at
from snailps.errors import ModelWriteError

# Collects the small writes of a dictionary or of text lines; larger chunks are not copied here.
_BUFFER_BYTES = 1 << 20
_NAME_LETTERS, _DRAWN_BYTES = 40, 8  # of the name while a file is written
_unfinished: set[NewFile] = set()
"""Files to remove at exit: daemon threads may be writing them."""
_ACL = "system.posix_acl_access"


@atexit.register
def remove_unfinished() -> None:
    for file in list(_unfinished):
        file.remove()


class NewFile:
    """A new file of this process; `close` removes it unless published.  Methods raise OSError."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor, self.bytes = path, descriptor, 0
        self._process, self._is_published = os.getpid(), False
        _unfinished.add(self)

    def write(self, data: bytes | memoryview) -> None:
        self.write_at(data, self.bytes)

    def write_at(self, data: bytes | memoryview, at: int) -> None:
        write_at(self.descriptor, data, at)
        self.bytes = max(self.bytes, at + len(data))

    def grow(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)
        self.bytes = size

    def fileno(self) -> int:
        return self.descriptor

    def publish_as(self, target: Path) -> None:
        """Replace `target`, durably."""
        os.fsync(self.descriptor)
        self.path.replace(target)
        self._is_published = True
        _sync_folder(target.parent)

    def remove(self) -> None:
        """Remove the file unless published; a forked child leaves its parent's file alone."""
        if not self._is_published and os.getpid() == self._process:
            with suppress(OSError):
                self.path.unlink()

    def close(self) -> None:
        """Remove and close the file; may be called again."""
        if self in _unfinished:
            _unfinished.discard(self)
            self.remove()
            os.close(self.descriptor)


class Unfinished(NewFile):
    """A new file, hidden beside its target."""

    def __init__(self, target: Path, part: str = "part", flags: int = os.O_WRONLY) -> None:
        self.target = target
        # Not the process's number: containers repeat it.
        hidden = f".{target.name[:_NAME_LETTERS]}.{secrets.token_hex(_DRAWN_BYTES)}.{part}"
        path = target.with_name(hidden)
        try:
            old = target.stat()
        except OSError:
            old = None
        if old is not None and not stat.S_ISREG(old.st_mode):
            raise OSError(errno.EINVAL, "it is a folder, a device or a pipe, and no file")
        # Before the umask, as of a plain open(), unlike tempfile's 0o600.
        mode = 0o666 if old is None else stat.S_IMODE(old.st_mode) & 0o777
        flags |= os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        super().__init__(path, os.open(path, flags, mode))
        if old is not None:
            _take_owner(self.descriptor, target, old)

    def publish(self) -> None:
        """Replace the target, durably."""
        self.publish_as(self.target)


def unfinished_of(targets: Iterable[Path]) -> Iterator[Path]:
    """Find what killed processes have left of targets."""
    names: dict[Path, set[str]] = {}
    for target in targets:
        names.setdefault(target.parent, set()).add(target.name[:_NAME_LETTERS])
    for folder, here in names.items():
        for path in folder.glob(f".*.{'[0-9a-f]' * 2 * _DRAWN_BYTES}.part"):
            if path.name[1:].rsplit(".", 2)[0] in here:
                yield path


def publish(path: Path, target: Path) -> None:
    """Rename a complete file or folder durably; after an `OSError` `path` is unchanged."""
    for one in [*path.iterdir(), path] if path.is_dir() else [path]:
        descriptor = os.open(one, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    path.replace(target)
    _sync_folder(target.parent)


def _take_owner(descriptor: int, target: Path, old: os.stat_result) -> None:
    """Copy owner, group and access list of another file to a new one, as far as permitted.

    It gives no access to users who had none to the old file.
    """
    new = os.fstat(descriptor)
    if new.st_uid != old.st_uid:
        with suppress(OSError):
            os.fchown(descriptor, old.st_uid, -1)
    try:
        if new.st_gid != old.st_gid:
            os.fchown(descriptor, -1, old.st_gid)
        with suppress(OSError):  # there is none
            found = os.getxattr(target, _ACL)
            os.setxattr(descriptor, _ACL, found)
    except OSError:
        os.fchmod(descriptor, stat.S_IMODE(new.st_mode) & ~0o070)


@contextmanager
def atomic_file(
    path: str | os.PathLike[str], bytes_needed: int | None = None
) -> Iterator[IO[bytes]]:
    """Open `path` for writing so that it appears only when the block ends without an error.

    Follows a symbolic link; compares `bytes_needed` with the free space first.  Yields a buffered,
    seekable file, not readable, that the block owns.  `ModelWriteError` if it cannot be written.
    The temporary file is in the target's folder, as a rename cannot cross file systems, and is
    removed by any error, Ctrl-C included.
    """
    target = Path(os.path.realpath(path))
    try:
        check_target(target, bytes_needed)
        unfinished = Unfinished(target)
    except OSError as error:
        raise write_error(target, error, bytes_needed) from error
    # Translate only this file's errors: an OSError of the producer (a lost connection) passes.
    with (
        closing(unfinished),
        WriteBehind(
            unfinished.path,
            os.dup(unfinished.descriptor),
            lambda error: write_error(target, error, bytes_needed),
        ) as raw,
    ):
        file = io.BufferedWriter(raw, _BUFFER_BYTES)
        yield file
        file.flush()
        raw.sync()
        try:
            unfinished.publish()
        except OSError as error:
            raise write_error(target, error, bytes_needed) from error


def human_bytes(count: int) -> str:
    """Write bytes for people: ``812 B``, ``3.2 MB``, ``1.1 GB`` (powers of ten)."""
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def check_target(target: Path, bytes_needed: int | None = None) -> None:
    """Refuse a target that cannot be written, before a long export begins."""
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
    """Bytes that may still be written into a folder; None if unknown."""
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
    """Make the rename durable; ignores that some file systems refuse this."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
