"""Files that a Python process (a driver) serves to the processes of its cluster.

    driver:HOST:PORT/NUMBER/BYTES -> opened -> Remote: read(start, stop)
    Remote, ScratchFile -> DriverCopy: each piece is fetched when it is first read, and kept

Owns the names of such files and the local copies.  Must not know sockets: `use` sets how bytes
travel.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Callable
from typing import Protocol

from snailps.errors import DataError
from snailps.files._matrix import gathered
from snailps.files.host_cache import ScratchFile

PREFIX = "driver:"
_PATH = re.compile(r"driver:(.+)/([0-9a-f]+)/([0-9]{1,18})")
PIECE_BYTES = 4 << 20
"""Bytes of a piece, the most that one request asks for."""


class Remote(Protocol):
    """A connection to the process that serves a file."""

    def read(self, start: int, stop: int) -> bytes:
        """Bytes `start` to before `stop`, at most `PIECE_BYTES`; DataError: unavailable."""

    def close(self) -> None:
        """Close the connection."""


Opener = Callable[[str, str], Remote]
"""From a file's address and number, a connection."""


def nowhere(address: str, number: str) -> Remote:
    raise DataError(
        f"the data is served by a Python process ({address}), and only processes of its cluster "
        "can read it"
    )


open_remote: Opener = nowhere


def use(opener: Opener) -> None:
    """Set how this process opens such files: with its cluster's secret and certificates."""
    global open_remote
    open_remote = opener


def driver_path(address: str, number: str, size: int) -> str:
    return f"{PREFIX}{address}/{number}/{size}"


def is_driver_file(path: str) -> bool:
    return path.startswith(PREFIX)


def size_of(path: str) -> int:
    return _parsed(path)[2]


def opened(path: str) -> Remote:
    """Open a file by its path.  Whether it can be read shows in the first read."""
    address, number, _ = _parsed(path)
    return open_remote(address, number)


def _parsed(path: str) -> tuple[str, str, int]:
    """Address, number and bytes of a path."""
    match = _PATH.fullmatch(path)
    if match is None:
        raise DataError(f"expected {PREFIX}HOST:PORT/NUMBER/BYTES, got {path!r:.80}")
    return match[1], match[2], int(match[3])


class DriverCopy:
    """The pieces of a file that this process has read so far; threads may share it.

    `file` is an empty scratch file, which becomes sparse; `close` closes it.
    """

    def __init__(self, path: str, file: ScratchFile) -> None:
        self.path, self.size = file.path, size_of(path)
        self._remote, self._file = opened(path), file
        file.grow(self.size)
        self._is_local = bytearray(-(-self.size // PIECE_BYTES))
        """By piece: 1 once it is in the file, so that readers need no lock for it."""
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
            raise DataError(
                f"cannot read {self.path}, this host's copy of the data: {error.strerror}. Leave "
                "the scratch folder alone until the job ends"
            ) from error

    def fetch(self, start: int, stop: int) -> None:
        """Make the pieces with bytes `start` to before `stop` local."""
        first, last = start // PIECE_BYTES, -(-min(stop, self.size) // PIECE_BYTES)
        if all(self._is_local[first:last]):
            return
        with self._lock:
            for piece in range(first, last):
                if self._is_local[piece]:
                    continue
                begin = piece * PIECE_BYTES
                data = self._remote.read(begin, min(begin + PIECE_BYTES, self.size))
                self._file.write_at(data, begin)
                self._is_local[piece] = 1  # after the write: a reader does not lock

    def close(self) -> None:
        with self._lock:
            self._remote.close()
            self._file.close()


class DriverReader(io.RawIOBase):
    """A driver's file, open for reading: from a copy, or by its path, without keeping anything."""

    def __init__(self, file: DriverCopy | str) -> None:
        super().__init__()
        self._offset, self._remote = 0, opened(file) if isinstance(file, str) else None
        self._size = size_of(file) if isinstance(file, str) else file.size
        self._read = self._fetched if isinstance(file, str) else file.read

    def _fetched(self, start: int, stop: int) -> bytes:
        """Bytes straight from the driver, which are not kept."""
        assert self._remote is not None
        steps = range(start, min(stop, self._size), PIECE_BYTES)
        return b"".join(
            self._remote.read(begin, min(begin + PIECE_BYTES, stop, self._size)) for begin in steps
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
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._offset, os.SEEK_END: self._size}[whence]
        self._offset = base + offset
        return self._offset

    def read(self, size: int | None = -1, /) -> bytes:
        stop = self._size if size is None or size < 0 else self._offset + size
        data = self._read(self._offset, stop)
        self._offset += len(data)
        return data
