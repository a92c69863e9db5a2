"""A file that is written by its own thread, past the page cache where possible.

    bytes in order -> pieces of 4 MiB, one filled while others wait or are written -> file

The thread that makes the bytes neither waits for the disk nor copies them into the page cache, and
nothing is left for fsync to wait for.  Must not know what is in the file.
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
"""Pieces that are written at a time; the client receives as many others meanwhile."""


class WriteBehind(io.RawIOBase):
    """A new file, to write and to seek in what is written; not to read.

    `path` is empty; closes `descriptor`, which is its; `explain` makes the error of an `OSError`.
    Whole pieces go past the page cache; the rest at the end, and what is written again, through
    it.  An error of the thread is raised by a later call, `sync` at the latest.
    """

    def __init__(
        self, path: Path, descriptor: int, explain: Callable[[OSError], Exception]
    ) -> None:
        super().__init__()
        self._path, self._cached, self._explain = path, descriptor, explain
        self._direct: int | None = None
        self._thread = ThreadPoolExecutor(1, "snailps-write")
        self._under_way: deque[tuple[Future[None], mmap.mmap]] = deque()
        self._piece = mmap.mmap(-1, PIECE_BYTES)  # takes memory as far as it is used
        self._begin = 0  # of the piece, in the file
        self._filled = 0  # of the piece, bytes
        self._at = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset that is written already, or to the end."""
        end = self._begin + self._filled
        place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: end}[whence]
        if not 0 <= place <= end:
            raise ValueError(f"place {place} of a file of which {end} bytes are written")
        self._at = place
        return place

    def write(self, data: Any) -> int:
        """Take all of `data`, which may change afterwards."""
        view = memoryview(data).cast("B")
        left = view
        try:
            while left:
                left = left[self._take(left) :]
        except OSError as error:
            raise self._explain(error) from error
        return len(view)

    def sync(self) -> None:
        """Write what is left, durably."""
        try:
            self._wait(0)
            write_at(self._cached, memoryview(self._piece)[: self._filled], self._begin)
            os.fsync(self._cached)
        except OSError as error:
            raise self._explain(error) from error

    def close(self) -> None:
        """End the thread; what `sync` has not written is lost."""
        if self.closed:
            return
        super().close()
        self._thread.shutdown()
        for descriptor in (self._cached, self._direct):
            if descriptor is not None:
                os.close(descriptor)

    def _take(self, data: memoryview) -> int:
        place = self._at - self._begin
        if place < 0:  # written, or being written
            n = min(len(data), -place)
            self._wait(0)
            write_at(self._cached, data[:n], self._at)
        else:
            n = min(len(data), PIECE_BYTES - place)
            self._piece[place : place + n] = data[:n]
            self._filled = max(self._filled, place + n)
        self._at += n
        if self._filled == PIECE_BYTES:
            done = self._thread.submit(self._write_piece, self._piece, self._begin)
            self._under_way.append((done, self._piece))
            self._piece = self._wait(PIECES_UNDER_WAY) or mmap.mmap(-1, PIECE_BYTES)
            self._begin, self._filled = self._begin + PIECE_BYTES, 0
        return n

    def _wait(self, left: int) -> mmap.mmap | None:
        """Wait until `left` pieces are under way; raise an error of theirs; return a free piece."""
        free = None
        while len(self._under_way) > left:
            self._under_way[0][0].result()
            _, free = self._under_way.popleft()
        return free

    def _write_piece(self, piece: mmap.mmap, at: int) -> None:
        if at == 0:  # some file systems refuse it
            with suppress(OSError):
                self._direct = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | _DIRECT)
        view = memoryview(piece)
        if self._direct is not None:
            try:
                write_at(self._direct, view, at)
                return
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        write_at(self._cached, view, at)


_DIRECT = getattr(os, "O_DIRECT", 0)


def write_at(file: int, data: bytes | memoryview, at: int) -> None:
    """Write all of `data` at an offset of a descriptor."""
    view = memoryview(data)
    while view:
        done = os.pwrite(file, view, at)
        view, at = view[done:], at + done
