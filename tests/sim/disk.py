"""The journal's disk: real files in memory, from which a power cut takes what was not synced.

    journal -> DiskOs, in the place of `os` -> files below one folder of /dev/shm

It owns how much of each file is durable: its length at its last sync.  Faults: the disk is full, a
power cut tears off or zeroes the unsynced tail, a bit flips.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


class DiskOs:
    """Stands in for the module `os`, and notes which bytes of which files are durable."""

    def __init__(self, disk):
        self._disk = disk

    def __getattr__(self, name):
        return getattr(os, name)

    def open(self, path, flags, mode=0o777):
        """As `os.open`."""
        file = os.open(path, flags, mode)
        if flags & (os.O_WRONLY | os.O_RDWR):
            self._disk.opened(file, str(path), empty=bool(flags & os.O_TRUNC))
        return file

    def write(self, file, data):
        """As `os.write`, unless the disk is full."""
        self._disk.check_room()
        return os.write(file, data)

    def pwrite(self, file, data, at):
        """As `os.pwrite`, unless the disk is full."""
        self._disk.check_room()
        return os.pwrite(file, data, at)

    def fsync(self, file):
        """All of the file is safe."""
        self._disk.synced(file)

    fdatasync = fsync

    def close(self, file):
        """As `os.close`."""
        self._disk.closed(file)
        os.close(file)


class Disk:
    """The disk of one host.

    Parameters
    ----------
    world : World
    folder : Path
    """

    def __init__(self, world, folder):
        self.world, self.folder = world, folder
        self.os = DiskOs(self)
        self.full_until, self.was_full = 0.0, False
        self._open = {}  # descriptor -> path
        self._safe = {}  # inode -> bytes that are safe

    def check_room(self):
        """Refuses to write to a full disk."""
        if self.world.now < self.full_until:
            self.was_full = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def opened(self, file, path, *, empty):
        self._open[file] = path
        status = os.fstat(file)
        self._safe.setdefault(status.st_ino, 0 if empty else status.st_size)

    def synced(self, file):
        status = os.fstat(file)
        self._safe[status.st_ino] = status.st_size

    def closed(self, file):
        self._open.pop(file, None)

    def lose_power(self):
        """Tears the unsynced tail of each file off at some byte, or leaves zeros there."""
        rng = self.world.rng
        for path in sorted(self.folder.rglob("*")):
            if not path.is_file():
                continue
            status = path.stat()
            safe = self._safe.get(status.st_ino)
            if safe is None or safe >= status.st_size:
                continue
            length = rng.randint(safe, status.st_size)
            with open(path, "r+b") as file:
                file.truncate(length)
                if rng.random() < 0.3:
                    file.seek(0, os.SEEK_END)
                    file.write(bytes(rng.randint(1, status.st_size - length + 1)))
            self.world.say(
                "disk", f"{path.name}: {status.st_size} bytes, {safe} safe, {length} kept"
            )

    def flip_bit(self, name):
        """Flips a bit of the first file of this name; whether there is such a file."""
        for path in sorted(self.folder.rglob(name)):
            data = bytearray(path.read_bytes())
            if data:
                offset = self.world.rng.randrange(len(data))
                data[offset] ^= 1 << self.world.rng.randrange(8)
                Path(path).write_bytes(data)
                self.world.say(
                    "disk", f"{path.name}: a bit of byte {offset} of {len(data)} has flipped"
                )
                return True
        return False
