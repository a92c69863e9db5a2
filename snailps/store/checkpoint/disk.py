"""The disk under checkpoints: the system calls that they need, in one replaceable object.

    folder, shard_file -> Disk -> OS_DISK: os, lock

Simulations have another disk, which tears writes, flips bits and gets full.  Must not know formats.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from snailps.errors import FULL
from snailps.store.checkpoint.lock import take_folder

Bytes = bytes | memoryview


class Disk:
    """Files as descriptors, and folders; failures are `OSError` with `errno`."""

    def create(self, path: Path, *, exclusive: bool = False, direct: bool = False) -> int:
        """Open an empty file for writing; `direct`: past the page cache, where possible."""
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
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def write(self, file: int, data: Bytes, at: int) -> int:
        """Write at an offset; return how many bytes were written, maybe fewer than given."""
        return os.pwrite(file, data, at)

    def read(self, file: int, into: memoryview, at: int) -> int:
        """Read from an offset; return how many bytes were read, maybe fewer than asked; 0 at the
        end."""
        return os.preadv(file, [into], at)

    def size(self, file: int) -> int:
        return os.fstat(file).st_size

    def fsync(self, file: int) -> None:
        os.fsync(file)

    def close(self, file: int) -> None:
        os.close(file)

    def names(self, folder: Path) -> list[str]:
        return os.listdir(folder)  # noqa: PTH208 - names, not paths

    def make_folder(self, path: Path) -> None:
        path.mkdir()

    def sync_folder(self, path: Path) -> None:
        """Sync the names in a folder."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        old.replace(new)

    def remove(self, path: Path) -> None:
        path.unlink()

    def remove_tree(self, path: Path) -> None:
        """Remove a folder with its content, as far as possible."""
        shutil.rmtree(path, ignore_errors=True)

    def free_bytes(self, folder: Path) -> int:
        status = os.statvfs(folder)
        return status.f_bavail * status.f_frsize

    def lock(self, folder: Path) -> int:
        """Make a folder and lock it until this process ends, or raise `FolderTaken`."""
        return take_folder(folder)

    def unlock(self, lock: int) -> None:
        os.close(lock)


OS_DISK = Disk()
LOST_WRITE = (errno.EIO, *FULL)
"""Errors of a sync that mean that earlier writes are lost."""


def read_file(disk: Disk, path: Path) -> bytes:
    file = disk.open(path)
    try:
        data = bytearray(disk.size(file))
        read_at(disk, file, memoryview(data), 0)
    finally:
        disk.close(file)
    return bytes(data)


def read_at(disk: Disk, file: int, into: memoryview, at: int) -> int:
    """Fill `into` from an offset of a file, up to the file's end; return the number of bytes."""
    done = 0
    while done < len(into) and (n := disk.read(file, into[done:], at + done)):
        done += n
    return done


def write_at(disk: Disk, file: int, data: Bytes, at: int) -> None:
    """Write all of `data` at an offset of a file."""
    view, done = memoryview(data), 0
    while done < len(view):
        done += disk.write(file, view[done:], at + done)


def write_file(disk: Disk, path: Path, data: bytes) -> None:
    """Write a file, and sync its content."""
    file = disk.create(path)
    try:
        write_at(disk, file, data, 0)
        disk.fsync(file)
    finally:
        disk.close(file)


def sync_folder(disk: Disk, path: Path) -> None:
    """Sync names.  A file system that refuses to sync folders is ignored; lost writes are not."""
    try:
        disk.sync_folder(path)
    except OSError as error:
        if error.errno in LOST_WRITE:
            raise
