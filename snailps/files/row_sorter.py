"""Sorts any number of rows by key: an external merge sort with bounded memory.

    add(keys, rows) ... -> full buffer -> sorted run -> scratch file in the folder of the result
    runs -> merged a piece at a time -> keys(), pieces()

Memory is `RUN_BYTES` while rows are added and three times `MERGE_BYTES` while they are merged.  The
scratch file has no name, so it vanishes with the process.  Must not know tables or file formats.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
import numpy.typing as npt

from snailps.files.atomic import write_error
from snailps.files.write_behind import write_at

RUN_BYTES = 48 << 20
"""Bytes of rows sorted in memory; a smaller table never touches the disk."""
MERGE_BYTES = 16 << 20
"""Bytes read at a time from all runs together while they are merged."""
PIECE_BYTES = 4 << 20
RUN_ROWS_MIN, RUN_ROWS_MIN_WIDE = 16, 2
"""Fewest rows of a run that are read at a time: with less a merge of many runs is slow.  The second
number is for wide rows, 16 of which would exceed `RUN_READ_BYTES`."""
RUN_READ_BYTES = 64 << 10

Keys = npt.NDArray[np.uint64]
Float32 = npt.NDArray[np.float32]


S = TypeVar("S", bound="RowSorter")


class RowSorter:
    """Takes rows in any order and yields them by ascending key; a context manager.

    The scratch file is in the folder of `target`, which must have room for the result anyway.
    `count` rows were added; `first` and `last` are their smallest and largest key, 0 without rows.
    Call `add` for all rows before `keys` or `pieces`, which may be called several times.
    """

    def __init__(self, target: str | os.PathLike[str], dim: int) -> None:
        self.target = Path(os.path.realpath(target))
        self.dim, self._row_bytes = dim, 8 + 4 * dim
        self._rows_min = max(
            RUN_ROWS_MIN_WIDE, min(RUN_ROWS_MIN, RUN_READ_BYTES // self._row_bytes)
        )
        self._room = max(self._rows_min, RUN_BYTES // self._row_bytes)
        # Allocated at full size at once: pages that are never touched take no memory.
        self._run_keys: Keys = np.empty(self._room, np.uint64)
        self._run_rows: Float32 = np.empty((self._room, dim), np.float32)
        self._used = 0
        self._order: npt.NDArray[np.integer] = np.empty(0, np.int32)  # of the buffer, if known
        self._is_sorted = False  # the buffer itself
        self._scratch: IO[bytes] | None = None
        self._runs: list[tuple[int, int]] = []  # offset in the scratch file, number of rows
        self._end = 0
        self.count = self.first = self.last = 0

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, keys: Keys, rows: Float32) -> None:
        """Copy rows float32 (n, dim) with keys uint64 (n,); a key may come in one call only.

        Rows of other numbers are copied as words of 32 bits, and come out as these.
        """
        if len(keys) == 0:
            return
        if rows.dtype.kind in "iu":
            rows = rows.view(np.float32)
        low, high = int(keys.min()), int(keys.max())
        self.first = min(self.first, low) if self.count else low
        self.last = max(self.last, high)
        self.count += len(keys)
        done = 0
        while done < len(keys):
            if self._used == self._room:
                self._spill()
            n = min(len(keys) - done, self._room - self._used)
            self._run_keys[self._used : self._used + n] = keys[done : done + n]
            self._run_rows[self._used : self._used + n] = rows[done : done + n]
            self._used += n
            self._order, self._is_sorted = self._order[:0], False
            done += n

    def keys(self) -> Iterator[Keys]:
        """Yield all keys, ascending, a piece at a time; rows are not read."""
        for keys, _ in self._merged(with_rows=False):
            yield keys

    def pieces(self) -> Iterator[tuple[Keys, Float32]]:
        """Yield all keys, ascending, with their rows, a piece at a time."""
        return self._merged(with_rows=True)

    def spill(self) -> None:
        """Move the rows in memory to the scratch file, to free memory; after the last `add`."""
        if self._used:
            self._spill()
        self._forget_buffer()

    def close(self) -> None:
        """Free memory and disk space."""
        self._forget_buffer()
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    def _forget_buffer(self) -> None:
        self._run_keys, self._used = np.empty(0, np.uint64), 0
        self._order = self._order[:0].copy()
        self._run_rows = np.empty((0, self.dim), np.float32)

    def _ordered(self, with_rows: bool) -> Iterator[tuple[Keys, Float32]]:
        """Yield the rows in the buffer, sorted, a piece at a time."""
        step = max(1, PIECE_BYTES // self._row_bytes)
        if self.dim == 1 and self.last - self.first < 1 << 32:
            self._sort_numbers()
            for start in range(0, self._used, step):
                piece = slice(start, min(start + step, self._used))
                yield self._run_keys[piece], self._run_rows[piece if with_rows else slice(0)]
            return
        if len(self._order) != self._used:
            self._order = self._places()
        order = self._order
        for start in range(0, self._used, step):
            places = order[start : start + step]
            rows = self._run_rows.take(places, axis=0) if with_rows else self._run_rows[:0]
            yield self._run_keys.take(places), rows

    def _sort_numbers(self) -> None:
        """Sort the buffer in place: a key and a row of 32 bits each are sorted as one number."""
        if self._is_sorted:
            return
        keys, rows = self._run_keys[: self._used], self._run_rows[: self._used, 0]
        packed: Keys = (keys - np.uint64(self.first)) << np.uint64(32)
        packed |= rows.view(np.uint32)
        packed.sort()
        rows.view(np.uint32)[:] = packed  # the lower half
        np.right_shift(packed, np.uint64(32), out=keys)
        keys += np.uint64(self.first)
        self._is_sorted = True

    def _places(self) -> npt.NDArray[np.integer]:
        """Return the indices that sort the buffer by key."""
        keys = self._run_keys[: self._used]
        if self.last - self.first >= 1 << 32:
            order: npt.NDArray[np.intp] = np.argsort(keys)
            return order
        # Four times as fast as argsort: plain numbers are sorted, with the index in the lower half.
        packed: Keys = (keys - np.uint64(self.first)) << np.uint64(32)
        packed |= np.arange(len(keys), dtype=np.uint64)
        packed.sort()
        return packed.astype(np.uint32)

    def _spill(self) -> None:
        """Write the buffer as a sorted run: all keys, then all rows."""
        if self._scratch is None:
            try:
                folder = self.target.parent
                self._scratch = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed by close
            except OSError as error:
                raise write_error(self.target, error, None) from error
        begin, rows_at = self._end, self._end + 8 * self._used
        keys_at = begin
        for keys, rows in self._ordered(with_rows=True):
            keys_at = self._write(keys, keys_at)
            rows_at = self._write(rows, rows_at)
        self._end = rows_at
        self._runs.append((begin, self._used))
        self._used, self._order = 0, self._order[:0]

    def _write(self, array: npt.NDArray[np.generic], offset: int) -> int:
        assert self._scratch is not None
        try:
            write_at(self._scratch.fileno(), array.reshape(-1).view(np.uint8).data, offset)
        except OSError as error:
            raise write_error(self.target, error, None) from error
        return offset + array.nbytes

    def _merged(self, *, with_rows: bool) -> Iterator[tuple[Keys, Float32]]:
        if not self._runs:  # everything fitted into memory
            yield from self._ordered(with_rows)
            return
        self.spill()
        assert self._scratch is not None
        width = self._row_bytes if with_rows else 8
        step = max(self._rows_min, MERGE_BYTES // (len(self._runs) * width))
        dim = self.dim if with_rows else 0
        file = self._scratch.fileno()
        runs = [_SortedRun(file, offset, n, self.dim, dim, step) for offset, n in self._runs]
        while runs:
            for run in runs:
                run.fill()
            # A run's unread keys exceed its last read one.  So all keys up to the smallest of
            # these are in memory now, and can be sorted and yielded.
            bound = min((run.last for run in runs if run.unread), default=None)
            parts = [run.take(bound) for run in runs]
            keys = np.concatenate([part[0] for part in parts])
            order = np.argsort(keys)
            rows = np.concatenate([part[1] for part in parts])
            del parts
            yield keys.take(order), rows.take(order, axis=0)
            del keys, rows
            runs = [run for run in runs if run.unread or run.held]


class _SortedRun:
    """A sorted run in the scratch file, read a piece at a time; `width` 0 reads only its keys.

    `unread` rows are still in the file, `held` rows are in the buffer.
    """

    def __init__(self, file: int, offset: int, count: int, dim: int, width: int, step: int) -> None:
        self._file, self._keys_at, self._rows_at = file, offset, offset + 8 * count
        self._row_bytes, self._width = 4 * dim, width
        self._keys: Keys = np.empty(step, np.uint64)
        self._rows: Float32 = np.empty((step, width), np.float32)
        self.unread, self.held = count, 0

    @property
    def last(self) -> int:
        """The largest key read so far."""
        return int(self._keys[self.held - 1])

    def fill(self) -> None:
        """Read as many rows as fit into the buffer."""
        n = min(self.unread, len(self._keys) - self.held)
        if n == 0:
            return
        new = slice(self.held, self.held + n)
        self._keys_at = self._read(self._keys[new], self._keys_at)
        if self._width:
            self._rows_at = self._read(self._rows[new], self._rows_at)
        self.held += n
        self.unread -= n

    def take(self, bound: int | None) -> tuple[Keys, Float32]:
        """Remove and return (as copies) the buffered rows up to the key `bound`; None: all."""
        n = self.held
        if bound is not None:
            n = int(np.searchsorted(self._keys[: self.held], np.uint64(bound), "right"))
        taken = self._keys[:n].copy(), self._rows[:n].copy()
        self._keys[: self.held - n] = self._keys[n : self.held].copy()
        self._rows[: self.held - n] = self._rows[n : self.held].copy()
        self.held -= n
        return taken

    def _read(self, into: npt.NDArray[np.generic], offset: int) -> int:
        view = into.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(view):
            n = os.preadv(self._file, [view[done:]], offset + done)
            if n == 0:
                raise OSError(f"the scratch file ends too early, at byte {offset + done:,}")
            done += n
        return offset + done
