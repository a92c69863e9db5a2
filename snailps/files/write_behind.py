"""A file written by its own thread, past the page cache where possible.

    bytes in order -> pieces of 4 MiB, one filled while others wait or are written -> file

The thread that makes the bytes neither waits for the disk nor copies them into the page cache, and
fsync finds nothing to wait for.  Must not know what is in the file.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

PIECE_BYTES = 4 << 20
PIECES_UNDER_WAY = 4
"""Pieces that wait to be written.  More of them would only take memory: the disk is the limit."""


class WriteBehind(io.RawIOBase):
    """A new file for writing, also again at an earlier offset; it cannot be read.

    `path` is an empty file and `descriptor` an open one of it, which this object closes; `explain`
    turns an OSError into the error that is raised.  Whole pieces bypass the page cache; the last,
    partial one and rewritten bytes go through it.  An error of the thread is raised by a later
    call, by `sync` at the latest: without `sync` nothing is certain.
    """

    def __init__(
        self, path: Path, descriptor: int, explain: Callable[[OSError], Exception]
    ) -> None:
        super().__init__()
        self._path, self._cached, self._explain = path, descriptor, explain
        self._direct: int | None = None
        self._thread = ThreadPoolExecutor(1, "snailps-write")
        self._under_way: deque[tuple[Future[None], mmap.mmap]] = deque()
        # Anonymous mappings: page-aligned, as direct writes need, and small files touch little.
        self._piece = mmap.mmap(-1, PIECE_BYTES)
        self._begin = 0  # offset of the piece in the file
        self._filled = 0  # bytes in the piece
        self._offset = 0  # where the next write goes

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset that was written already, or to the end."""
        end = self._begin + self._filled
        target = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._offset, os.SEEK_END: end}[whence]
        if not 0 <= target <= end:
            raise ValueError(f"expected an offset of 0 to the {end} bytes written, got {target}")
        self._offset = target
        return target

    def write(self, data: Any) -> int:
        """Copy all of `data`, which may change afterwards."""
        view = memoryview(data).cast("B")
        unwritten = view
        try:
            while unwritten:
                unwritten = unwritten[self._take(unwritten) :]
        except OSError as error:
            raise self._explain(error) from error
        return len(view)

    def sync(self) -> None:
        """Write all that is still buffered, durably; raise any error that the thread had."""
        try:
            self._wait(0)
            write_at(self._cached, memoryview(self._piece)[: self._filled], self._begin)
            os.fsync(self._cached)
        except OSError as error:
            raise self._explain(error) from error

    def close(self) -> None:
        """End the thread; bytes that `sync` has not written are lost."""
        if self.closed:
            return
        super().close()
        self._thread.shutdown()
        for descriptor in (self._cached, self._direct):
            if descriptor is not None:
                os.close(descriptor)

    def _take(self, data: memoryview) -> int:
        """Take some of `data`, at least a byte; how many."""
        place = self._offset - self._begin
        if place < 0:  # in a piece that was handed to the thread, which may be writing it
            n = min(len(data), -place)
            self._wait(0)
            write_at(self._cached, data[:n], self._offset)
        else:
            n = min(len(data), PIECE_BYTES - place)
            self._piece[place : place + n] = data[:n]
            self._filled = max(self._filled, place + n)
        self._offset += n
        if self._filled == PIECE_BYTES:
            done = self._thread.submit(self._write_piece, self._piece, self._begin)
            self._under_way.append((done, self._piece))
            self._piece = self._wait(PIECES_UNDER_WAY) or mmap.mmap(-1, PIECE_BYTES)
            self._begin, self._filled = self._begin + PIECE_BYTES, 0
        return n

    def _wait(self, most: int) -> mmap.mmap | None:
        """Wait until at most `most` pieces are under way; a piece that is free again, or None.

        Raises the error of a piece that could not be written.
        """
        free = None
        while len(self._under_way) > most:
            self._under_way[0][0].result()
            _, free = self._under_way.popleft()
        return free

    def _write_piece(self, piece: mmap.mmap, offset: int) -> None:
        """Write a whole piece; in the thread."""
        if offset == 0:
            with suppress(OSError):  # some file systems have no direct writes
                self._direct = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | _DIRECT)
        view = memoryview(piece)
        if self._direct is not None:
            try:
                write_at(self._direct, view, offset)
                return
            except OSError as error:  # others open the file, and refuse only the write
                if error.errno != errno.EINVAL:
                    raise
        write_at(self._cached, view, offset)


_DIRECT = getattr(os, "O_DIRECT", 0)


def write_at(file: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at an offset of a descriptor."""
    view = memoryview(data)
    while view:
        done = os.pwrite(file, view, offset)
        view, offset = view[done:], offset + done
