"""The disk under checkpoints: the calls of the operating system that they need, and no more.

    folder, shard_file -> Disk -> OS_DISK: os, lock

Simulations have a disk of their own, which tears writes, flips bits and is full.  No formats here.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Protocol

from snailps.store.checkpoint.lock import take_folder

Bytes = bytes | memoryview


class Disk(Protocol):
    """Files and folders.  Failures are `OSError`, with `errno`; files are descriptors."""

    def create(self, path: Path, *, exclusive: bool = False, direct: bool = False) -> int:
        """Opens a file for writing, empty.

        `exclusive`: it must be new.  `direct`: past the page cache, where that can be.
        """

    def open(self, path: Path) -> int:
        """Opens a file for reading."""

    def write(self, file: int, data: Bytes, at: int) -> int:
        """Writes at a place; how many bytes, which may be fewer."""

    def read(self, file: int, into: memoryview, at: int) -> int:
        """Reads from a place; how many bytes, which may be fewer; 0 at the end."""

    def size(self, file: int) -> int:
        """Its length, bytes."""

    def fsync(self, file: int) -> None:
        """Makes what was written durable."""

    def close(self, file: int) -> None:
        """Closes it."""

    def names(self, folder: Path) -> list[str]:
        """What is in a folder."""

    def make_folder(self, path: Path) -> None:
        """Makes a new folder in one that is there."""

    def sync_folder(self, path: Path) -> None:
        """Makes the names in a folder durable."""

    def rename(self, old: Path, new: Path) -> None:
        """Gives a file or folder another name."""

    def remove(self, path: Path) -> None:
        """Removes a file."""

    def remove_tree(self, path: Path) -> None:
        """Removes a folder and what is in it, in as far as that can be."""

    def free_bytes(self, folder: Path) -> int:
        """Room for more."""

    def lock(self, folder: Path) -> int:
        """Makes a folder, with those above it, and takes it for this process, as long as it lives.

        Raises
        ------
        FolderTaken
            Another process has it.
        """

    def unlock(self, lock: int) -> None:
        """Lets others have it."""


class OsDisk:
    """That of the machine."""

    def create(self, path: Path, *, exclusive: bool = False, direct: bool = False) -> int:
        """See `Disk`."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        flags |= os.O_EXCL if exclusive else os.O_TRUNC
        if not direct:
            return os.open(path, flags, 0o666)
        try:
            return os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o666)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            path.unlink(missing_ok=True)
            return os.open(path, flags, 0o666)

    def open(self, path: Path) -> int:
        """See `Disk`."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def write(self, file: int, data: Bytes, at: int) -> int:
        """See `Disk`."""
        return os.pwrite(file, data, at)

    def read(self, file: int, into: memoryview, at: int) -> int:
        """See `Disk`."""
        return os.preadv(file, [into], at)

    def size(self, file: int) -> int:
        """See `Disk`."""
        return os.fstat(file).st_size

    def fsync(self, file: int) -> None:
        """See `Disk`."""
        os.fsync(file)

    def close(self, file: int) -> None:
        """See `Disk`."""
        os.close(file)

    def names(self, folder: Path) -> list[str]:
        """See `Disk`."""
        return os.listdir(folder)  # noqa: PTH208 - names, not paths

    def make_folder(self, path: Path) -> None:
        """See `Disk`."""
        path.mkdir()

    def sync_folder(self, path: Path) -> None:
        """See `Disk`."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """See `Disk`."""
        old.replace(new)

    def remove(self, path: Path) -> None:
        """See `Disk`."""
        path.unlink()

    def remove_tree(self, path: Path) -> None:
        """See `Disk`."""
        shutil.rmtree(path, ignore_errors=True)

    def free_bytes(self, folder: Path) -> int:
        """See `Disk`."""
        status = os.statvfs(folder)
        return status.f_bavail * status.f_frsize

    def lock(self, folder: Path) -> int:
        """See `Disk`."""
        return take_folder(folder)

    def unlock(self, lock: int) -> None:
        """See `Disk`."""
        os.close(lock)


OS_DISK: Disk = OsDisk()
LOST_WRITE = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
"""What a sync says when something that was written before is not on the disk."""


def read_file(disk: Disk, path: Path) -> bytes:
    """All of a file."""
    file = disk.open(path)
    try:
        data = bytearray(disk.size(file))
        read_at(disk, file, memoryview(data), 0)
    finally:
        disk.close(file)
    return bytes(data)


def read_at(disk: Disk, file: int, into: memoryview, at: int) -> int:
    """Fills `into` from a place of a file; how many bytes there were."""
    done = 0
    while done < len(into) and (n := disk.read(file, into[done:], at + done)):
        done += n
    return done


def write_at(disk: Disk, file: int, data: Bytes, at: int) -> None:
    """Writes all of `data` at a place of a file."""
    view, done = memoryview(data), 0
    while done < len(view):
        done += disk.write(file, view[done:], at + done)


def write_file(disk: Disk, path: Path, data: bytes) -> None:
    """Writes a file, and makes its content durable."""
    file = disk.create(path)
    try:
        write_at(disk, file, data, 0)
        disk.fsync(file)
    finally:
        disk.close(file)


def sync_folder(disk: Disk, path: Path) -> None:
    """Makes names durable; a file system may refuse this, but not lose what was written."""
    try:
        disk.sync_folder(path)
    except OSError as error:
        if error.errno in LOST_WRITE:
            raise
