"""Copies on this host of input that cannot be cut as it is, and files of one process: bounded.

    path -> Scratch.local -> the path itself, or the one copy on this host of its content:
                             unpacked (.gz, .bz2, .xz, .zst), fetched (URLs), read (tables)
    Scratch.new_file -> ScratchFile: written and used by this process, removed when it ends

A user's processes on a host share a folder.  A copy is named by its origin's real path, size and
time, or a URL's version, and by what is made of a table; it is written once, under its own lock,
and published when complete.  A process that uses a copy holds a shared lock on it, which the kernel
releases at its end: `clean` removes exactly the copies without a lock.  A file without a name once
it is locked was removed meanwhile.  `unpacking` unpacks, `table_files` reads tables.  No blocks.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from snailps.data.atomic import publish
from snailps.data.driver_files import DriverCopy, DriverReader, is_driver_file
from snailps.data.reading import Reading
from snailps.data.unpacking import is_packed, is_url, open_content, pieces_of, version_of
from snailps.errors import DataError, WaitTimeout

LOCK_POLL_S = 0.05
LOOK_BYTES = 64 << 20
"""Growth of a process's own file after which the limit is compared again."""
# Only files with such names are counted or removed.
_OWN_NAME = re.compile(r"[0-9a-f]{32}\.(copy|lock|part|spool)")


def default_folder() -> Path:
    temporary, uid = Path(tempfile.gettempdir()), os.getuid()
    usual = temporary / f"snailps-{uid}"
    try:
        if _is_ours(usual.lstat()):
            return usual
    except OSError:
        return usual
    # Others cannot make a folder of this user, so an existing one is safe.
    if not (found := _own_folders(temporary, f"snailps-{uid}-")):
        with suppress(OSError):
            tempfile.mkdtemp(prefix=f"snailps-{uid}-", dir=temporary)
        found = _own_folders(temporary, f"snailps-{uid}-")
    return min(found, default=usual)


def _own_folders(parent: Path, prefix: str) -> list[Path]:
    with suppress(OSError):
        return [
            Path(entry.path)
            for entry in os.scandir(parent)
            if entry.name.startswith(prefix) and _is_ours(entry.stat(follow_symlinks=False))
        ]
    return []


def _is_ours(found: os.stat_result) -> bool:
    """Whether it is a folder in which this user alone can write."""
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def open_input(path: str) -> BinaryIO:
    """Open the content of an input file for a look at some bytes, without scratch."""
    if is_driver_file(path):
        return cast(BinaryIO, DriverReader(path))
    return open_content(path)


class ScratchFile:
    """A file of this process in the scratch folder; made by `Scratch.new_file`.

    `close` or the end of a context removes it; if the process is killed, the next `clean` does.
    """

    def __init__(self, path: Path, descriptor: int, reserve: Callable[[Path, int], None]) -> None:
        self.path, self.bytes = path, 0
        self._descriptor, self._reserve = descriptor, reserve
        self._owner, self._is_kept = os.getpid(), False

    def write(self, data: bytes) -> None:
        """Append; DataError over the limit of the folder or the disk."""
        self._reserve(self.path, self.bytes + len(data))
        view = memoryview(data)
        try:
            while view:
                done = os.write(self._descriptor, view)
                self.bytes += done
                view = view[done:]
        except OSError as error:
            raise DataError(
                f"cannot write to {self.path.parent} "
                f"({shutil.disk_usage(self.path.parent).free:,} bytes free): {error.strerror}. "
                "Make room, or choose another scratch folder"
            ) from error

    def grow(self, size: int) -> None:
        """Extend without content, counted as if written."""
        self._reserve(self.path, size)
        os.ftruncate(self._descriptor, size)
        self.bytes = size

    def fileno(self) -> int:
        return self._descriptor

    def publish(self, copy: Path) -> int:
        """Keep the file as a copy after `close`; return a descriptor with the lock on the copy."""
        try:
            publish(self.path, copy)
            return os.dup(self._descriptor)
        except OSError as error:
            raise DataError(f"cannot write {copy}: {error.strerror}") from error

    def keep(self) -> ScratchFile:
        """Let the file outlive its context; `close` removes it."""
        self._is_kept = True
        return self

    def __enter__(self) -> ScratchFile:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_kept:
            self.close()

    def close(self) -> None:
        """Remove the file; may be called again; does nothing in a forked child."""
        if self._descriptor < 0 or os.getpid() != self._owner:
            return
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1


class Scratch:
    """Copies of packed files, URLs and tables, at most `bytes_max` of them a host and user.

    `folder` belongs to this user, is made for the first copy (mode 0700), and is `default_folder()`
    if empty.  `bytes_max` limits other jobs' copies, too; 0: half of the disk's space without them.
    `wait_s` limits the wait for another process that makes the same copy.  Without `tables` tables
    are files as any other.  Threads may share one object; it uses its copies until `close`.
    """

    def __init__(
        self,
        folder: str,
        bytes_max: int,
        *,
        wait_s: float = 1800.0,
        tables: Reading | None = None,
    ) -> None:
        self.folder = Path(folder) if folder else default_folder()
        self.bytes_max = bytes_max
        self.wait_s = wait_s
        self.tables = tables
        self._held: dict[str, tuple[Path, int, str]] = {}  # origin -> copy, lock on it, version
        self._expected: dict[str, str] = {}
        self._plain: set[str] = set()
        self._copies: dict[str, DriverCopy] = {}
        self._mutex = threading.Lock()
        self._closing = threading.Event()  # set while `close` waits for the mutex

    def local(self, path: str, start: int = 0, stop: int | None = None) -> Path:
        """The file to read instead of `path`: itself, or a copy on this host of its content.

        It is unchanged while this object is open, even if the origin changes.  `start` and `stop`
        are of a Python process's file: only these bytes need be there.  DataError if it cannot be
        read or does not fit, or is not the expected version; WaitTimeout after `wait_s` for another
        process's copy.
        """
        if path in self._plain:  # a block may be over many files
            return Path(path)
        if is_driver_file(path):
            copy = self._copy_of(path)
            copy.fetch(start, copy.size if stop is None else stop)
            return copy.path
        tables = self.tables if self.tables is not None and self.tables.takes(path) else None
        if not (tables is not None or is_packed(path) or is_url(path)):
            self._plain.add(path)
            return Path(path)
        with self._mutex:
            if path not in self._held:
                self._held[path] = self._find_or_make(path, tables)
            found, _, version = self._held[path]
            self._compare(path, version)
            return found

    def version(self, path: str) -> str:
        """Version of an origin that has its copy here; empty: there is no copy."""
        with self._mutex:
            return self._held[path][2] if path in self._held else ""

    def expect(self, path: str, version: str) -> None:
        """Refuse other versions of an origin than `version`, which another host has."""
        if version:
            self._expected[path] = version

    def _compare(self, path: str, version: str) -> None:
        if self._expected.get(path, version) != version:
            raise DataError(
                f"{path} is not the version of which the job was made: it has changed since, or "
                "hosts see different files. Do not change the input during a job"
            )

    @property
    def reads_text(self) -> bool:
        return self.tables is not None and self.tables.reads_text

    @property
    def reads_columns(self) -> bool:
        return self.tables is not None and self.tables.reads_columns

    def open(self, path: str) -> BinaryIO:
        """Open the content of an input file; of a driver's file, fetch only what is read."""
        if is_driver_file(path):
            return cast(BinaryIO, DriverReader(self._copy_of(path)))
        return self.local(path).open("rb")

    def _copy_of(self, path: str) -> DriverCopy:
        with self._mutex:
            if path not in self._copies:
                self._copies[path] = DriverCopy(path, lambda: self.new_file("a copy of the data"))
            return self._copies[path]

    def new_file(self, purpose: str) -> ScratchFile:
        """An empty file of this process alone, which counts towards the limit.

        `purpose` is for messages: ``writing a list of 12 strings``.
        """
        self._make_folder()
        self._remove_unused(suffix=".spool")
        path, descriptor = self._new_locked()
        allowed = -1

        def reserve(path: Path, size: int) -> None:
            nonlocal allowed
            if size <= allowed:
                return
            limit = self._limit()
            allowed = limit - self._used(but=path)
            if size > allowed:
                self._remove_unused()
                allowed = limit - self._used(but=path)
            if size > allowed:
                raise DataError(
                    f"{self.folder}: {purpose} needs more than {size:,} bytes, "
                    f"{self._left(allowed, limit)}"
                )
            # Other files may grow: compare again after `LOOK_BYTES`.
            allowed = min(allowed, size + LOOK_BYTES)

        return ScratchFile(path, descriptor, reserve)

    def _new_locked(self) -> tuple[Path, int]:
        """An empty file, and a descriptor with a shared lock on it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            path = self.folder / f"{secrets.token_hex(16)}.spool"
            try:
                descriptor = os.open(path, flags, 0o600)
            except OSError as error:
                raise DataError(f"cannot write to {self.folder}: {error.strerror}") from error
            if _is_held(descriptor, path):
                return path, descriptor

    def close(self) -> None:
        """Release all copies; they stay for the next job, or until `clean`.

        A thread that is unpacking, or waiting for that, gives up within a step: `DataError`.
        """
        self._closing.set()
        with self._mutex:
            self._closing.clear()
            for _, lock, _ in self._held.values():
                os.close(lock)
            self._held.clear()
            for copy in self._copies.values():
                copy.close()
            self._copies.clear()

    def clean(self) -> int:
        """Remove the copies that no living process uses; return the bytes freed."""
        if not self.folder.exists():
            return 0
        self._make_folder()
        return self._remove_unused()

    def _find_or_make(self, path: str, tables: Reading | None) -> tuple[Path, int, str]:
        found = _version_of(path)
        name, version = found
        if version:
            self._compare(path, version)
        elif is_url(path):  # its version is unknown
            name += f"\0{secrets.token_hex(16)}"
        purpose = f"{'unpacking' if tables is None else 'reading'} {path}"
        if tables is not None:
            name += f"\0{tables.identity}"
        digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
        copy = self.folder / f"{digest}.copy"
        self._make_folder()
        lock = _hold(copy)
        if lock is None:
            with self._locked(copy.with_suffix(".lock"), purpose):
                lock = _hold(copy)
                if lock is None:
                    lock = self._make(path, tables, copy, found)
        return copy, lock, version or str(os.fstat(lock).st_size)

    def _make(
        self, path: str, tables: Reading | None, copy: Path, expected: tuple[str, str]
    ) -> int:
        """Write a copy, whose writer's lock is held; return a descriptor with the users' lock."""
        with ExitStack() as stack:

            def make(purpose: str) -> ScratchFile:
                return stack.enter_context(self.new_file(purpose))

            if tables is None:
                file = make("its content")
                self._unpack(path, file)
            else:
                from snailps.data.table_files import write_table

                file, parts = make(f"reading {path}"), lambda part: make(f"reading {path} ({part})")
                write_table(tables, path, file, parts, self._check_open)
            if _version_of(path) != expected:
                raise DataError(f"{path} was changed while it was read here. Run the job again")
            return file.publish(copy)

    def _unpack(self, path: str, file: ScratchFile) -> None:
        for piece in pieces_of(path):
            self._check_open()
            try:
                file.write(piece)
            except DataError as error:
                raise DataError(
                    f"cannot unpack {path}: {error}, or unpack the file yourself and name the "
                    "result"
                ) from error

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise DataError("unpacking was broken off: the job has ended")

    def _limit(self) -> int:
        return self.bytes_max or (shutil.disk_usage(self.folder).free + self._used()) // 2

    def _left(self, allowed: int, limit: int) -> str:
        """Bytes that may be used, where the limit comes from, and what raises it."""
        cause, more = "scratch_bytes", "Raise that"
        if not self.bytes_max:
            cause, more = "half of what its disk has free", "Make room"
        return (
            f"{max(allowed, 0):,} of the {limit:,} bytes of scratch are left ({cause}) beside "
            f"what is in use. {more}, choose another scratch_dir"
        )

    def _own_files(self) -> Iterator[tuple[Path, int]]:
        for entry in sorted(os.scandir(self.folder), key=lambda entry: entry.name):
            with suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                regular = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()
                if regular and _OWN_NAME.fullmatch(entry.name):
                    yield Path(entry.path), found.st_size

    def _used(self, but: Path | None = None) -> int:
        return sum(
            size for path, size in self._own_files() if path != but and path.suffix != ".lock"
        )

    def _remove_unused(self, suffix: str = "") -> int:
        freed = 0
        for path, size in self._own_files():
            if not path.name.endswith(suffix):
                continue
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, path)
                if _has_name(descriptor):  # else the name may be another file's by now
                    path.unlink()
                    freed += size
            except (BlockingIOError, FileNotFoundError):
                pass
            finally:
                os.close(descriptor)
        return freed

    def _make_folder(self) -> None:
        """Make a folder of this user: in a shared one, others could swap the copies."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = os.lstat(self.folder)
        except OSError as error:
            raise DataError(f"cannot make the scratch folder {self.folder}: {error}") from error
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise DataError(
                f"expected {self.folder} to be a folder of this user (uid {os.getuid()}), got one "
                f"of uid {found.st_uid} or no folder. Choose another scratch folder"
            )

    @contextmanager
    def _locked(self, path: Path, purpose: str) -> Iterator[None]:
        """Hold the lock of a copy being made; the holder writes its name there."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        deadline = time.monotonic() + self.wait_s
        while True:
            try:
                descriptor = os.open(path, flags, 0o600)
            except OSError as error:
                raise DataError(f"cannot write to {self.folder}: {error.strerror}") from error
            try:
                self._wait_for(descriptor, path, purpose, deadline)
                if not _has_name(descriptor):
                    continue
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, os.fsencode(f"process {os.getpid()}, {purpose}"), 0)
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return
            finally:
                os.close(descriptor)

    def _wait_for(self, descriptor: int, path: Path, purpose: str, deadline: float) -> None:
        # flock itself has no time limit.
        while True:
            self._check_open()
            try:
                _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, path)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = os.pread(descriptor, 4096, 0).decode(errors="replace")
                    raise WaitTimeout(
                        f"{purpose} waited {self.wait_s:g} s for a copy in {self.folder}, which is "
                        f"held by {holder or 'an unknown process'}. Let it finish, or end it"
                    ) from None
                time.sleep(LOCK_POLL_S)


_whole: dict[str, Scratch] = {}


def whole_file(path: str, folder: str = "", bytes_max: int = 0) -> str:
    """The file to read instead of `path`: itself, or a complete copy of a driver's file.

    The copy stays until `release_whole` or a copy of another file: a model is opened several times
    before it is put into tables.
    """
    if not is_driver_file(path):
        return path
    for other in set(_whole) - {path}:
        release_whole(other)
    return str(_whole.setdefault(path, Scratch(folder, bytes_max)).local(path))


def release_whole(path: str) -> None:
    if (scratch := _whole.pop(path, None)) is not None:
        scratch.close()


def _version_of(path: str) -> tuple[str, str]:
    """Version of a file or URL as a name on this host, and as text for all hosts.

    The latter is empty for a file, whose time differs between hosts, and for a URL whose server
    reports none.
    """
    if is_url(path):
        version = version_of(path)
        return f"{path}\0{version}", version
    try:
        real = Path(path).resolve(strict=True)
        found = real.stat()
    except OSError as error:
        raise DataError(f"cannot open {path}: {error.strerror or error}") from error
    return f"{real}\0{found.st_size}\0{found.st_mtime_ns}", ""


def _hold(copy: Path) -> int | None:
    try:
        descriptor = os.open(copy, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    return descriptor if _is_held(descriptor, copy) else None


def _is_held(descriptor: int, path: Path) -> bool:
    """Take a shared lock; False, and closed, if the file was removed before."""
    try:
        _lock(descriptor, fcntl.LOCK_SH, path)
    except DataError:
        os.close(descriptor)
        raise
    if not _has_name(descriptor):
        os.close(descriptor)
        return False
    return True


def _lock(descriptor: int, how: int, path: Path) -> None:
    """Lock a file; BlockingIOError if taken (`how` without waiting), DataError without locks."""
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        raise
    except OSError as error:
        raise DataError(
            f"cannot lock files in {path.parent}: {error.strerror}. Choose another scratch folder, "
            "on a disk of this machine"
        ) from error


def _has_name(descriptor: int) -> bool:
    """Whether a locked file was not removed before it was locked."""
    return os.fstat(descriptor).st_nlink > 0
