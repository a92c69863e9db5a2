"""Atomic files: a file appears complete or not at all.

    chunks of bytes -> WriteBehind -> Unfinished, hidden beside the target -> publish: fsync, rename

A reader never sees a partial file, and an old file survives a failed export.  A file that replaces
another one gets its owner, group and mode.  Must not know what is in the file.
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

from snailps.config.output import absolute
from snailps.errors import FULL, ModelWriteError, no_room
from snailps.files.write_behind import WriteBehind, write_at

_BUFFER_BYTES = 1 << 20
"""Collects small writes, such as text lines; larger chunks pass without a copy."""
_NAME_LETTERS, _DRAWN_BYTES = 40, 8
"""Lengths of the two parts of a hidden name: characters of the target's name, random bytes."""
_unfinished: set[NewFile] = set()
"""Files to remove at exit: a daemon thread that writes one gets no chance to."""
_ACL = "system.posix_acl_access"


@atexit.register
def remove_unfinished() -> None:
    for file in list(_unfinished):
        file.remove()


class NewFile:
    """A new file of this process; `close` removes it unless it was published.

    Methods raise OSError.  `bytes` is its length so far.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor, self.bytes = path, descriptor, 0
        self._process, self._is_published = os.getpid(), False
        _unfinished.add(self)

    def write(self, data: bytes | memoryview) -> None:
        """Append."""
        self.write_at(data, self.bytes)

    def write_at(self, data: bytes | memoryview, offset: int) -> None:
        """Write at an offset."""
        write_at(self.descriptor, data, offset)
        self.bytes = max(self.bytes, offset + len(data))

    def grow(self, size: int) -> None:
        """Set the length; new bytes are 0."""
        os.ftruncate(self.descriptor, size)
        self.bytes = size

    def fileno(self) -> int:
        return self.descriptor

    def publish_as(self, target: Path) -> None:
        """Replace `target` by this file, durably."""
        # Content before name: after a power failure a name must not stand for missing bytes.
        os.fsync(self.descriptor)
        self.path.replace(target)
        self._is_published = True
        _sync_folder(target.parent)

    def remove(self) -> None:
        """Remove the file unless it was published.

        A forked child has a copy of this object, and must not remove its parent's file at its exit.
        """
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
        # Random, not the process id: processes in two containers may have the same.
        hidden = f".{target.name[:_NAME_LETTERS]}.{secrets.token_hex(_DRAWN_BYTES)}.{part}"
        path = target.with_name(hidden)
        try:
            old = target.stat()
        except OSError:
            old = None
        if old is not None and not stat.S_ISREG(old.st_mode):
            raise OSError(errno.EINVAL, "it is a folder, a device or a pipe, and no file")
        # As open() would make it, so that the umask decides; tempfile would make it 0o600.
        mode = 0o666 if old is None else stat.S_IMODE(old.st_mode) & 0o777
        flags |= os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        super().__init__(path, os.open(path, flags, mode))
        if old is not None:
            _take_owner(self.descriptor, target, old)

    def publish(self) -> None:
        """Replace the target, durably."""
        self.publish_as(self.target)


def unfinished_of(targets: Iterable[Path]) -> Iterator[Path]:
    """The unfinished files of these targets, which killed processes left.

    A living process's unfinished file looks the same: call this only while nobody else writes them.
    """
    by_folder: dict[Path, set[str]] = {}
    for target in targets:
        by_folder.setdefault(target.parent, set()).add(target.name[:_NAME_LETTERS])
    for folder, names in by_folder.items():
        for path in folder.glob(f".*.{'[0-9a-f]' * 2 * _DRAWN_BYTES}.part"):
            if path.name[1:].rsplit(".", 2)[0] in names:
                yield path


def publish(path: Path, target: Path) -> None:
    """Rename a complete file or folder durably; after an `OSError` `path` is unchanged."""
    for member in [*path.iterdir(), path] if path.is_dir() else [path]:
        descriptor = os.open(member, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    path.replace(target)
    _sync_folder(target.parent)


def _take_owner(descriptor: int, target: Path, old: os.stat_result) -> None:
    """Copy owner, group and access list of the old file to the new one, as far as permitted.

    Where the group cannot be copied the new file's group gets no access: nobody may read the new
    file who could not read the old one.
    """
    new = os.fstat(descriptor)
    if new.st_uid != old.st_uid:
        with suppress(OSError):
            os.fchown(descriptor, old.st_uid, -1)
    try:
        if new.st_gid != old.st_gid:
            os.fchown(descriptor, -1, old.st_gid)
        with suppress(OSError):  # most files have no access list
            access_list = os.getxattr(target, _ACL)
            os.setxattr(descriptor, _ACL, access_list)
    except OSError:
        os.fchmod(descriptor, stat.S_IMODE(new.st_mode) & ~0o070)


@contextmanager
def atomic_file(
    path: str | os.PathLike[str], bytes_needed: int | None = None
) -> Iterator[IO[bytes]]:
    """Open `path` for writing so that it appears only when the `with` block ends without an error.

    Follows a symbolic link; compares `bytes_needed` with the free space first.  Yields a buffered,
    seekable file that cannot be read.  The unfinished file is in the target's folder, because a
    rename cannot cross file systems, and is removed after any error, Ctrl-C included.
    ModelWriteError: it cannot be written.  ConfigError: the current folder was removed.
    """
    target = Path(os.path.realpath(absolute(path)))
    try:
        check_target(target, bytes_needed)
        unfinished = Unfinished(target)
    except OSError as error:
        raise write_error(target, error, bytes_needed) from error
    # Only this file's errors are translated: an OSError of the caller's own (a lost connection)
    # must not be reported as a full disk.
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
    """A number of bytes for people: ``812 B``, ``3.2 MB``, ``1.1 GB`` (powers of ten)."""
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def check_target(target: Path, bytes_needed: int | None = None) -> None:
    """ModelWriteError: a target that cannot be written.  Called before a long export begins."""
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
        ) from no_room()


def free_bytes(folder: Path) -> int | None:
    """Bytes that this user may still write into a folder; None: unknown."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def write_error(target: Path, error: OSError, bytes_needed: int | None) -> ModelWriteError:
    """The error of a failed write, with cause and cure; of `target`, or scratch space beside it."""
    needs = "" if bytes_needed is None else f" (the file needs {human_bytes(bytes_needed)})"
    if error.errno in FULL:
        free = free_bytes(target.parent)
        room = "" if free is None else f", {human_bytes(free)} left"
        cause = f"the disk or quota of {target.parent} is full{room}{needs}"
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
    """Make a rename in a folder durable; some file systems refuse this, and it is ignored."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
