"""Lock a folder for one process, as long as it lives.

take_folder(path) -> descriptor -> os.close, or the end of the process, unlocks it
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCK = "lock"


class FolderTaken(Exception):
    """The folder is in use; the text says by which process."""

    @property
    def is_own(self) -> bool:
        """Whether this process itself has it, for other files."""
        return str(self) == _own_name()


def _own_name() -> str:
    return f"process {os.getpid()} on {os.uname().nodename}"


def take_folder(path: Path) -> int:
    """Make and lock a folder; return the descriptor that keeps the lock."""
    path.mkdir(parents=True, exist_ok=True)
    lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(lock, 200, 0).decode(errors="replace").strip()
        os.close(lock)
        raise FolderTaken(owner or "unnamed") from None
    except OSError:  # a file system without locks
        os.close(lock)
        raise
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{_own_name()}\n".encode(), 0)
    except OSError:  # the disk is full
        (path / LOCK).unlink(missing_ok=True)
        os.close(lock)
        raise
    return lock
