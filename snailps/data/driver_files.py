"""Files of a Python process, read by the processes of its cluster.

    driver:HOST:PORT/NUMBER/BYTES -> opened (by `use`) -> Remote: read(start, stop)
    Remote, ScratchFile -> DriverCopy: pieces are fetched when they are first read, and kept

Owns the names of such files and the local copies.  `use` sets how bytes travel: no sockets here.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Callable
from typing import Protocol

from snailps.data._matrix import gathered
from snailps.data.host_cache import ScratchFile
from snailps.errors import DataError

PREFIX = "driver:"
_PATH = re.compile(r"driver:(.+)/([0-9a-f]+)/([0-9]{1,18})")
PIECE_BYTES = 4 << 20
"""Most bytes of one request."""


class Remote(Protocol):
    """A file at its Python process."""

    def read(self, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop`, at most `PIECE_BYTES`; DataError if unavailable."""

    def close(self) -> None:
        """Close the connection."""


Opener = Callable[[str, str], Remote]
"""Address and number of a file -> the file."""


def nowhere(address: str, number: str) -> Remote:
    raise DataError(
        f"the data is in a Python process ({address}); only processes of its cluster can read it"
    )


open_remote: Opener = nowhere


def use(opener: Opener) -> None:
    """Set how this process reads such files: with the secret and certificates of its cluster."""
    global open_remote
    open_remote = opener


def driver_path(address: str, number: str, size: int) -> str:
    return f"{PREFIX}{address}/{number}/{size}"


def is_driver_file(path: str) -> bool:
    return path.startswith(PREFIX)


def size_of(path: str) -> int:
    return _parsed(path)[2]


def opened(path: str) -> Remote:
    """Open a file by its path; the first read reports what is wrong with the file."""
    address, number, _ = _parsed(path)
    return open_remote(address, number)


def _parsed(path: str) -> tuple[str, str, int]:
    found = _PATH.fullmatch(path)
    if found is None:
        raise DataError(f"expected {PREFIX}HOST:PORT/NUMBER/BYTES, got {path!r:.80}")
    return found[1], found[2], int(found[3])


class DriverCopy:
    """The pieces of a file that this process has read; threads may share it.

    `file` is empty, and then sparse; `close` closes it.
    """

    def __init__(self, path: str, file: ScratchFile) -> None:
        self.path, self.size = file.path, size_of(path)
        self._remote, self._file = opened(path), file
        file.grow(self.size)
        self._here = bytearray(-(-self.size // PIECE_BYTES))  # 1: this piece is local
        self._lock = threading.Lock()

    def read(self, start: int, stop: int) -> bytes:
        """Read bytes, fewer at the end of the file."""
        stop = min(stop, self.size)
        if start >= stop:
            return b""
        self.fetch(start, stop)
        try:
            return gathered(self._file.fileno(), stop - start, [], [(0, start, stop - start)])
        except OSError as error:
            raise DataError(f"{self.path}, the copy of the data here: {error.strerror}") from error

    def fetch(self, start: int, stop: int) -> None:
        """Fetch pieces that are not local yet."""
        first, last = start // PIECE_BYTES, -(-min(stop, self.size) // PIECE_BYTES)
        if all(self._here[first:last]):
            return
        with self._lock:
            for piece in range(first, last):
                if self._here[piece]:
                    continue
                at = piece * PIECE_BYTES
                self._file.write_at(self._remote.read(at, min(at + PIECE_BYTES, self.size)), at)
                self._here[piece] = 1

    def close(self) -> None:
        with self._lock:
            self._remote.close()
            self._file.close()


class DriverReader(io.RawIOBase):
    """A Python process's file as a file open for reading: of a copy, or by a path without one."""

    def __init__(self, file: DriverCopy | str) -> None:
        super().__init__()
        self._at, self._remote = 0, opened(file) if isinstance(file, str) else None
        self._size = size_of(file) if isinstance(file, str) else file.size
        self._read = self._fetched if isinstance(file, str) else file.read

    def _fetched(self, start: int, stop: int) -> bytes:
        """Bytes that are not kept."""
        assert self._remote is not None
        steps = range(start, min(stop, self._size), PIECE_BYTES)
        return b"".join(
            self._remote.read(at, min(at + PIECE_BYTES, stop, self._size)) for at in steps
        )

    def close(self) -> None:
        if self._remote is not None:
            self._remote.close()
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        stop = self._size if size is None or size < 0 else self._at + size
        data = self._read(self._at, stop)
        self._at += len(data)
        return data
