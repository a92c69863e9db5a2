"""The shared disk of checkpoints, in memory: an implementation of `Disk` with faults.

    store/checkpoint -> View of a process -> MemoryDisk: folders, files, and which bytes are durable

It owns what is durable: a file's bytes and a folder's names at their last sync.  Faults: full,
slow, a power cut (between any two calls), a flipped bit.  It must not know formats.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from snailps.store.checkpoint.lock import FolderTaken

PAGE = 4096


class PowerCut(BaseException):
    """The calling process died in this call.  No Exception: a dead process handles nothing."""


class File:
    """The bytes of a file, and the durable ones."""

    def __init__(self):
        self.data, self.safe = bytearray(), b""

    def lose_power(self, rng):
        """Keeps the durable bytes, and of each later page its new or its old content."""
        if self.data == self.safe:
            return
        length = rng.randint(*sorted((len(self.safe), len(self.data))))
        survivors = bytearray(self.safe[:length].ljust(length, b"\0"))
        for start in range(0, length, PAGE):
            if rng.random() < 0.5:
                survivors[start : start + PAGE] = self.data[
                    start : min(start + PAGE, length)
                ].ljust(min(PAGE, length - start), b"\0")
        self.data, self.safe = survivors, bytes(survivors)


class Folder:
    """The names in a folder, and the changes of them that are not durable yet."""

    def __init__(self):
        self.names, self.safe, self.changes = {}, {}, []

    def change(self, **names):
        """Adds names (a file or folder) and removes names (None), atomically."""
        _apply(self.names, names)
        self.changes.append(names)

    def sync(self):
        """Makes all names durable."""
        self.safe, self.changes = dict(self.names), []

    def lose_power(self, rng):
        """Keeps the first few changes since the last sync: a file system applies them in order."""
        for change in self.changes[: rng.randint(0, len(self.changes))]:
            _apply(self.safe, change)
        self.names = self.safe
        self.sync()
        for _, item in sorted(self.names.items()):
            item.lose_power(rng)


def _apply(names, change):
    for name, item in change.items():
        if item is None:
            names.pop(name, None)
        else:
            names[name] = item


class MemoryDisk:
    """The disk.

    Parameters
    ----------
    world : World

    Attributes
    ----------
    full_until, slow_until : float
    on_cut : callable or None
        Called in the `cut_in`-th call from now that changes something; its caller dies there.
    """

    def __init__(self, world):
        self.world = world
        self.root = Folder()
        self.root.sync()
        self.full_until = self.slow_until = 0.0
        self.on_cut, self.cut_in = None, 0
        self.locks = {}
        self._open = {}
        self._next = 3

    def lose_power(self):
        """Cuts the power: what was not synced is lost, all or in part."""
        self.root.lose_power(self.world.rng)
        self._open.clear()
        self.locks.clear()

    def flip_bit(self, folder):
        """Flips a bit of a file in a folder; False if it has no file."""
        item = self.find(folder)
        if not isinstance(item, Folder):
            return False
        files = [(name, file) for name, file in sorted(item.names.items()) if file.data]
        if not files:
            return False
        rng = self.world.rng
        name, file = files[rng.randrange(len(files))]
        offset = rng.randrange(len(file.data))
        file.data[offset] ^= 1 << rng.randrange(8)
        file.safe = bytes(file.data)
        self.world.say("disk", f"{folder}/{name}: a bit of byte {offset} has flipped")
        return True

    # --- for views --------------------------------------------------------------------------------

    def find(self, path):
        """The file or folder with this path, or None."""
        item = self.root
        for part in Path(path).parts[1:]:
            item = item.names.get(part) if isinstance(item, Folder) else None
        return item

    def folder(self, path):
        """The folder of this path."""
        item = self.find(path)
        if not isinstance(item, Folder):
            raise _error(errno.ENOENT, path)
        return item

    def changes(self):
        """Called before each change: counts down to `on_cut`."""
        if self.on_cut is not None:
            self.cut_in -= 1
            if self.cut_in <= 0:
                cut, self.on_cut = self.on_cut, None
                cut()

    def opened(self, file):
        """A descriptor."""
        self._next += 1
        self._open[self._next] = file
        return self._next

    def file(self, descriptor):
        """The file of a descriptor."""
        return self._open[descriptor]

    def closed(self, descriptor):
        """Forgets a descriptor."""
        self._open.pop(descriptor, None)


class View:
    """The disk as one process sees it: its locks go with it, and a dead process changes nothing."""

    def __init__(self, disk, process):
        self._disk, self._process = disk, process

    def _change(self, path=None, *, room=False):
        disk = self._disk
        if self._process.alive:
            disk.changes()
        if not self._process.alive:
            raise PowerCut
        if room and disk.world.now < disk.full_until:
            raise _error(errno.ENOSPC, path)

    def create(self, path, *, exclusive=False, direct=False):
        """See `Disk`."""
        self._change(path, room=True)
        folder = self._disk.folder(path.parent)
        if exclusive and path.name in folder.names:
            raise _error(errno.EEXIST, path)
        file = folder.names.get(path.name)
        if file is None:
            file = File()
            folder.change(**{path.name: file})
        file.data = bytearray()
        return self._disk.opened(file)

    def open(self, path):
        """See `Disk`."""
        file = self._disk.find(path)
        if not isinstance(file, File):
            raise _error(errno.ENOENT, path)
        return self._disk.opened(file)

    def write(self, file, data, at):
        """See `Disk`: a disk may take less than it is given."""
        self._change(room=True)
        data = bytes(data)
        if len(data) > PAGE and self._disk.world.rng.random() < 0.1:
            data = data[:PAGE]
        held = self._disk.file(file).data
        if len(held) < at:
            held.extend(bytes(at - len(held)))
        held[at : at + len(data)] = data
        return len(data)

    def read(self, file, into, at):
        """See `Disk`."""
        data = self._disk.file(file).data[at : at + len(into)]
        into[: len(data)] = data
        return len(data)

    def size(self, file):
        """See `Disk`."""
        return len(self._disk.file(file).data)

    def fsync(self, file):
        """See `Disk`."""
        self._change()
        opened = self._disk.file(file)
        opened.safe = bytes(opened.data)

    def close(self, file):
        """See `Disk`."""
        self._disk.closed(file)

    def names(self, folder):
        """See `Disk`."""
        return list(self._disk.folder(folder).names)

    def make_folder(self, path):
        """See `Disk`."""
        self._change(path, room=True)
        parent = self._disk.folder(path.parent)
        if path.name in parent.names:
            raise _error(errno.EEXIST, path)
        parent.change(**{path.name: Folder()})

    def sync_folder(self, path):
        """See `Disk`."""
        self._change()
        self._disk.folder(path).sync()

    def rename(self, old, new):
        """See `Disk`."""
        self._change()
        folder = self._disk.folder(old.parent)
        item = folder.names.get(old.name)
        if item is None:
            raise _error(errno.ENOENT, old)
        there = folder.names.get(new.name)
        if isinstance(there, Folder) and there.names:
            raise _error(errno.ENOTEMPTY, new)
        assert old.parent == new.parent
        folder.change(**{old.name: None, new.name: item})

    def remove(self, path):
        """See `Disk`."""
        self._change()
        folder = self._disk.folder(path.parent)
        if path.name not in folder.names:
            raise _error(errno.ENOENT, path)
        folder.change(**{path.name: None})

    def remove_tree(self, path):
        """See `Disk`."""
        item = self._disk.find(path)
        if not isinstance(item, Folder):
            return
        for name in sorted(item.names):
            self.remove(path / name)
        self.remove(path)

    def free_bytes(self, folder):
        """See `Disk`."""
        return 0 if self._disk.world.now < self._disk.full_until else 1 << 40

    def lock(self, folder):
        """See `Disk`."""
        disk = self._disk
        if disk.find(folder) is None:
            item = disk.root
            for part in folder.parts[1:]:
                if part not in item.names:
                    item.change(**{part: Folder()})
                item.sync()
                item = item.names[part]
        owner = disk.locks.get(str(folder))
        if owner is not None and owner.alive and owner is not self._process:
            raise FolderTaken(owner.name)
        disk.locks[str(folder)] = self._process
        return disk.opened(str(folder))

    def unlock(self, lock):
        """See `Disk`."""
        folder = self._disk.file(lock)
        self._disk.closed(lock)
        if self._disk.locks.get(folder) is self._process:
            del self._disk.locks[folder]


def _error(number, path=None):
    return OSError(number, os.strerror(number), str(path or ""))
