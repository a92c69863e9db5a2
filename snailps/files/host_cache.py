"""A bounded folder of one user's files on this host: shared by key, or of one process.

    key, fill -> HostCache.find -> the one file of the key: filled once, kept while it is in use
    purpose   -> HostCache.new_file -> ScratchFile: written and used by this process, then removed

Owns the locks, which are the whole protocol between processes:

- Whoever uses a file holds a shared lock on it.  The kernel releases it when the process ends,
  however it ends.  A file that can be locked exclusively is unused, and may be removed: where room
  is needed, by `clean`, and after a process that was killed.
- Whoever fills a file of a key holds an exclusive lock on a `.lock` file, which names the process
  for those that wait.  The file gets its name when it is complete: a partial one is never found.
- Between opening and locking a file another process may remove it.  A file without a name once it
  is locked is gone: look again.

Must not know what is in a file, or what a key means.
"""

from __future__ import annotations

import errno
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
from functools import partial
from pathlib import Path

from snailps.config.output import is_own
from snailps.errors import DataError, WaitTimeout
from snailps.files.atomic import NewFile

LOCK_POLL_S = 0.05
"""Interval at which a wait for another process's lock looks again: flock has no time limit."""
LOOK_BYTES = 64 << 20
"""Growth of a file after which the limit is checked again: other processes' files grow too."""
# Only files with such names are counted or removed: the user may have chosen a folder of others.
_OWN_NAME = re.compile(r"[0-9a-f]{32}\.(copy|lock|part|spool)")


class ScratchFile(NewFile):
    """A file of this process in the folder; made by `HostCache.new_file`.

    `close`, or the end of a `with` block, removes it.  If the process is killed, the next process
    that makes a file or calls `clean` does.
    """

    def __init__(self, path: Path, descriptor: int, room: Callable[[int], int]) -> None:
        super().__init__(path, descriptor)
        self._room, self._bytes_max, self._is_kept = room, -1, False

    def write_at(self, data: bytes | memoryview, offset: int) -> None:
        """Write at an offset; DataError: beyond the limit of the folder, or the disk is full."""
        with self._reserved(offset + len(data)):
            super().write_at(data, offset)

    def grow(self, size: int) -> None:
        """Extend the file by zeros, which count like written bytes."""
        with self._reserved(size):
            super().grow(size)

    @contextmanager
    def _reserved(self, size: int) -> Iterator[None]:
        if size > self._bytes_max:
            self._bytes_max = self._room(size)
        try:
            yield
        except OSError as error:
            raise DataError(
                f"cannot write to {self.path.parent} "
                f"({shutil.disk_usage(self.path.parent).free:,} bytes free): {error.strerror}. "
                "Make room, or choose another scratch folder"
            ) from error

    def keep(self) -> ScratchFile:
        """Let the file outlive its `with` block; `close` removes it."""
        self._is_kept = True
        return self

    def __enter__(self) -> ScratchFile:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_kept:
            self.close()


Make = Callable[[str], ScratchFile]
"""Makes an empty file for a purpose, which is for messages: ``writing a list of 12 strings``."""


class HostCache:
    """A folder of at most `bytes_max` bytes for a user on a host.

    `folder` is made for the first file, with mode 0700, and has to belong to this user; empty:
    `default_folder()`.  `bytes_max` covers all processes' files; 0: half of the disk space that is
    free without them.  `wait_s` limits the wait for another process that fills the same file.  The
    object uses its files until `close`; threads may share it.
    """

    def __init__(self, folder: str, bytes_max: int, *, wait_s: float = 1800.0) -> None:
        self.folder = Path(folder) if folder else default_folder()
        self.bytes_max = bytes_max
        self.wait_s = wait_s
        self._in_use = ExitStack()
        self._mutex = threading.RLock()
        # Set while `close` waits for the mutex, so that a thread that fills a file gives up.
        self._closing = threading.Event()

    def find(self, key: str, purpose: str, fill: Callable[[Make], ScratchFile]) -> Path:
        """The file of a key, in use until `close`; if there is none, `fill` makes it.

        `purpose` is shown to processes that wait: ``unpacking x.gz``.  WaitTimeout: another process
        has been filling it for `wait_s`.
        """
        path = self.folder / f"{hashlib.sha256(os.fsencode(key)).hexdigest()[:32]}.copy"
        with self._mutex:
            self._make_folder()
            descriptor = _locked(path, fcntl.LOCK_SH)
            if descriptor is None:
                with self._filling(path.with_suffix(".lock"), purpose):
                    # Look again: another process may have filled it while this one waited.
                    descriptor = _locked(path, fcntl.LOCK_SH)
                    if descriptor is None:
                        descriptor = self._filled(path, fill)
            self._in_use.callback(os.close, descriptor)
        return path

    def new_file(self, purpose: str) -> ScratchFile:
        """An empty file for this process alone, which counts towards the limit; see `Make`.

        Removes what killed processes left first: nobody else would.
        """
        self._make_folder()
        self._remove_unused(suffix=".spool")
        flags, descriptor = os.O_RDWR | os.O_CREAT | os.O_EXCL, None
        while descriptor is None:
            path = self.folder / f"{secrets.token_hex(16)}.spool"
            descriptor = _locked(path, fcntl.LOCK_SH, flags)
        return ScratchFile(path, descriptor, partial(self._room, path, purpose))

    def check_open(self) -> None:
        """DataError once `close` was called: whoever fills a file calls this at each step."""
        if self._closing.is_set():
            raise DataError("unpacking was broken off: the job has ended")

    def close(self) -> None:
        """Release all files.  They stay for the next job, until room is needed or `clean`.

        A thread that fills a file, or waits for one, gets DataError within a step.
        """
        self._closing.set()
        with self._mutex:
            self._closing.clear()
            self._in_use.close()

    def clean(self) -> int:
        """Remove the files that no living process uses; the number of bytes freed."""
        if not self.folder.exists():
            return 0
        self._make_folder()
        return self._remove_unused()

    def _filled(self, path: Path, fill: Callable[[Make], ScratchFile]) -> int:
        """Fill a file and give it its name; a descriptor that holds the lock of its users.

        `dup` shares the lock that the new file has had from the start, so there is no moment in
        which another process could remove it.
        """
        with ExitStack() as stack:
            file = fill(lambda purpose: stack.enter_context(self.new_file(purpose)))
            try:
                file.publish_as(path)
                return os.dup(file.fileno())
            except OSError as error:
                raise DataError(f"cannot write {path}: {error.strerror}") from error

    @contextmanager
    def _filling(self, path: Path, purpose: str) -> Iterator[None]:
        """Hold the lock on filling a file, and write into it who does."""
        deadline = time.monotonic() + self.wait_s

        def wait(descriptor: int) -> None:  # flock itself has no time limit
            self.check_open()
            if time.monotonic() >= deadline:
                holder = os.pread(descriptor, 4096, 0).decode(errors="replace")
                raise WaitTimeout(
                    f"{purpose} waited {self.wait_s:g} s for a copy in {self.folder}, which is "
                    f"held by {holder or 'an unknown process'}. Let it finish, or end it"
                )
            time.sleep(LOCK_POLL_S)

        descriptor = None
        while descriptor is None:
            self.check_open()
            descriptor = _locked(path, fcntl.LOCK_EX, os.O_RDWR | os.O_CREAT, wait)
        try:
            with suppress(OSError):  # a full disk: others wait for an unknown process then
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, os.fsencode(f"process {os.getpid()}, {purpose}"), 0)
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def _room(self, path: Path, purpose: str, size: int) -> int:
        """Bytes that a file may grow to before it asks again, at least `size`.

        Removes unused files if there is no room.  DataError: there is none even then.
        """
        limit = self.bytes_max or (shutil.disk_usage(self.folder).free + self._used()) // 2
        if size > (room := limit - self._used(but=path)):
            self._remove_unused()
            room = limit - self._used(but=path)
        if size > room:
            cause, more = "scratch_bytes", "Raise that"
            if not self.bytes_max:
                cause, more = "half of what its disk has free", "Make room"
            raise DataError(
                f"{self.folder}: {purpose} needs more than {size:,} bytes, {max(room, 0):,} of the "
                f"{limit:,} bytes of scratch are left ({cause}) beside what is in use. {more}, or "
                "choose another scratch_dir"
            )
        return min(room, size + LOOK_BYTES)

    def _own_files(self, suffix: str = "") -> Iterator[tuple[Path, int]]:
        for entry in sorted(os.scandir(self.folder), key=lambda entry: entry.name):
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                regular = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
                if regular and _OWN_NAME.fullmatch(entry.name) and entry.name.endswith(suffix):
                    yield Path(entry.path), status.st_size

    def _used(self, but: Path | None = None) -> int:
        return sum(
            size for path, size in self._own_files() if path != but and path.suffix != ".lock"
        )

    def _remove_unused(self, suffix: str = "") -> int:
        freed = 0
        for path, size in self._own_files(suffix):
            with suppress(BlockingIOError):
                descriptor = _locked(path, fcntl.LOCK_EX, wait=_in_use)
                # Unlink under the lock: without it the name could belong to a new file by now.
                if descriptor is not None:
                    path.unlink(missing_ok=True)
                    os.close(descriptor)
                    freed += size
        return freed

    def _make_folder(self) -> None:
        """Make the folder; DataError unless it belongs to this user.

        In another user's folder that user could swap the files under a training.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = os.lstat(self.folder)
        except OSError as error:
            raise DataError(
                f"cannot make the scratch folder {self.folder}: {error}. Choose another scratch_dir"
            ) from error
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise DataError(
                f"expected {self.folder} to be a folder of this user (uid {os.getuid()}), got one "
                f"of uid {status.st_uid} or no folder. Choose another scratch folder"
            )


def default_folder() -> Path:
    """This user's usual scratch folder; another one if the usual one is not safely this user's.

    In a temporary folder anyone may have made a folder of the usual name before.
    """
    uid = os.getuid()
    usual, mine = Path(tempfile.gettempdir()) / f"snailps-{uid}", partial(is_own, uid=uid)
    with suppress(OSError):
        if os.path.lexists(usual) and not mine(usual):
            # Others cannot make a folder of this user, so an existing one is safe.
            if not any(map(mine, usual.parent.glob(f"{usual.name}-*"))):
                tempfile.mkdtemp(prefix=f"{usual.name}-", dir=usual.parent)
            return min(filter(mine, usual.parent.glob(f"{usual.name}-*")), default=usual)
    return usual


def _locked(
    path: Path,
    how: int,
    flags: int = os.O_RDONLY,
    wait: Callable[[int], None] | None = None,
) -> int | None:
    """Open and lock a file; its descriptor, or None: it does not exist, or was removed before the
    lock was held.

    `wait` is called repeatedly while others hold the lock; None: wait without a limit.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno == errno.ENOENT and not flags & os.O_CREAT:
            return None
        raise DataError(f"cannot write to {path.parent}: {error.strerror}") from error
    with ExitStack() as stack:
        stack.callback(os.close, descriptor)
        while True:
            try:
                fcntl.flock(descriptor, how | (fcntl.LOCK_NB if wait else 0))
                break
            except BlockingIOError:
                assert wait is not None
            except OSError as error:
                raise DataError(
                    f"cannot lock files in {path.parent}: {error.strerror}. Choose another "
                    "scratch folder, on a disk of this machine"
                ) from error
            wait(descriptor)
        if os.fstat(descriptor).st_nlink:  # else it was removed between opening and locking
            stack.pop_all()
            return descriptor
    return None


def _in_use(descriptor: int) -> None:
    """A `wait` that gives up at once: another process holds the lock."""
    raise BlockingIOError
