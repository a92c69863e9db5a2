"""Matrix files, binary files of examples: the format, and blocks that are cut out of a file.

    head, size -> read_header -> Header -> sections: where each array lies
    file, ranges of bytes -> read_matrix_block -> bytes: a matrix file of these rows
    bytes -> read_header, Header.array -> arrays, not copied

Owns the layout (docs/sparse_data.md); the header determines a file's length.  Bytes [a, b) of a
file of B bytes have the rows ceil(a * rows / B) to before ceil(b * rows / B): **the blocks of a
file partition its rows, wherever it is cut**.  `_matrix.pyx` checks and converts arrays,
`data/matrix_writer.py` writes files.  Must not know text.
"""

from __future__ import annotations

import io
import math
import os
import struct
from collections.abc import Mapping, Sequence
from enum import IntFlag
from functools import lru_cache
from types import MappingProxyType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from snailps.dataclass import dataclass, replace
from snailps.errors import DataError
from snailps.files._matrix import first_not_finite, gathered

MAGIC = b"\x93SNAILX\n"
VERSION = 1
HEADER_BYTES = 64
ALIGNMENT = 64
OF_ROWS = ("labels", "weights")
"""Sections with one number per row; the others have one per entry, or are `ptr`."""
LABELS_MAX = 2
"""Largest value of the header's `labels`: earlier versions wrote 2 for whole numbers from 0 on."""
KEY_LIMIT = 1 << 63
"""Keys of examples are below; models use the others for rows of their own."""
HEAD_ROWS = 500
"""Rows of `head_of_matrix`."""
_HEADER = struct.Struct("<8sIIQQQQI")
AGAIN = "Write the file again with snailps.write_matrix"


class Flags(IntFlag):
    VALUES = 1
    """Entries have values; without it all are 1."""
    FIELDS = 2
    WIDE = 4
    """Keys of 64 bits instead of 32."""
    HASHED = 8
    """Keys are the upper 63 bits of hashes of names (sparse_data.md); else column numbers."""
    DENSE = 16
    """Rows of `columns` values, without pointers and keys."""
    BYTES = 32
    """Dense values are uint8."""
    WEIGHTS = 64
    WIDE_LABELS = 128
    """Labels are float64, written where one of them is no float32."""


@dataclass(frozen=True, slots=True)
class ArrayPlace:
    """Where an array lies in a file: from byte `start` to before `stop`."""

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """Values per example, which is an element of the first axis."""
        return math.prod(self.shape[1:])

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a matrix file, or of a block of one.

    `labels`: 0 if there are none.  Keys are below `columns`; 0: below `KEY_LIMIT`.  `first_row`:
    the number of a block's first row in its file, for messages.
    """

    flags: Flags
    labels: int
    rows: int
    nonzeros: int
    columns: int
    first_row: int = 0

    def pack(self) -> bytes:
        head = _HEADER.pack(
            MAGIC, VERSION, self.flags, self.rows, self.nonzeros, self.columns, self.first_row,
            self.labels,
        )  # fmt: skip
        return head.ljust(HEADER_BYTES, b"\0")

    @property
    def dense(self) -> bool:
        return Flags.DENSE in self.flags

    @property
    def key_limit(self) -> int:
        return self.columns or KEY_LIMIT

    def sections(self) -> Mapping[str, ArrayPlace]:
        """The arrays of the file by name, in order.  Nothing but the header decides where they lie,
        so a block can be fetched before the rest of the file."""
        return _sections_of(self)

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        stops = [section.stop for section in self.sections().values()]
        return aligned(max(stops, default=HEADER_BYTES))

    def array(self, data: bytes, name: str) -> NDArray[Any]:
        """An array of a file or block in memory, as a view; empty if the file has none."""
        section = self.sections().get(name)
        if section is None:
            return np.empty(0, np.int32 if name == "fields" else np.float32)
        count = math.prod(section.shape)
        return np.frombuffer(data, section.dtype, count, section.start)

    def rows_of(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """First and last (exclusive) row of ranges of bytes of the file."""
        rows, size = self.rows, self.size
        return [(-(-start * rows // size), -(-stop * rows // size)) for start, stop in ranges]


@lru_cache(maxsize=16)
def _sections_of(header: Header) -> Mapping[str, ArrayPlace]:
    """`Header.sections`; kept, because each thread asks for each array of each part of a block."""
    flags, rows, entries = header.flags, (header.rows,), (header.nonzeros,)
    arrays = {
        "labels": (header.labels, "<f8" if Flags.WIDE_LABELS in flags else "<f4", rows),
        "ptr": (not header.dense, "<i8", (header.rows + 1,)),
        "keys": (not header.dense, "<u8" if Flags.WIDE in flags else "<u4", entries),
        "values": (
            header.dense or Flags.VALUES in flags,
            "u1" if Flags.BYTES in flags else "<f4",
            (header.rows, header.columns) if header.dense else entries,
        ),
        "fields": (Flags.FIELDS in flags, "<i4", entries),
        "weights": (Flags.WEIGHTS in flags, "<f4", rows),
    }
    sections, offset = {}, HEADER_BYTES
    for name, (is_present, code, shape) in arrays.items():
        if is_present:
            sections[name] = ArrayPlace(offset, np.dtype(code), shape)
            offset = aligned(sections[name].stop)
    return MappingProxyType(sections)


def aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def is_matrix(head: bytes) -> bool:
    return head.startswith(MAGIC)


def read_header(head: bytes, size: int, path: str) -> Header:
    """Read and check the header of a file or block of `size` bytes; `path` is for messages.

    DataError: cut off, of another version, contradictory, or the length is not what it says.  After
    this check the header's numbers can be trusted as sizes of allocations.
    """
    if len(head) < HEADER_BYTES or not is_matrix(head):
        raise DataError(
            f"{path}: expected a matrix file of at least {HEADER_BYTES} bytes, got one that begins "
            f"with {head[:8].hex(' ') or 'nothing'}: it was cut off. {AGAIN}"
        )
    _, version, flags, rows, nonzeros, columns, first, labels = _HEADER.unpack_from(head)
    if version != VERSION or flags > sum(Flags) or labels > LABELS_MAX:
        raise DataError(
            f"{path}: expected a matrix file of version {VERSION}, got version {version}, flags "
            f"{flags:#x}, labels {labels}: a newer snailps wrote it, or it is damaged. {AGAIN}"
        )
    header = Header(Flags(flags), labels, rows, nonzeros, columns, first)
    if wrong := _contradiction(header, any(head[_HEADER.size : HEADER_BYTES])):
        raise DataError(f"{path}: its header contradicts itself: {wrong}. {AGAIN}")
    if header.size != size:
        raise DataError(
            f"{path}: expected {header.size:,} bytes for {rows:,} rows and {nonzeros:,} entries, "
            f"got {size:,}: it was cut off or changed. {AGAIN}"
        )
    if rows > size:  # rows without any section would take no bytes: any number of them fits
        raise DataError(
            f"{path}: expected rows of at least a byte each, got {rows:,} rows in {size:,} bytes. "
            f"{AGAIN}"
        )
    return header


def _contradiction(header: Header, trailing: bool) -> str:
    """What contradicts itself in a header; empty: nothing.

    `trailing`: bytes after its last field are not 0, so a later version may have given them a
    meaning.
    """
    flags = header.flags
    if trailing:
        return "bytes that have to be 0 are not"
    if header.columns > KEY_LIMIT:
        return f"{header.columns:,} columns"
    if header.dense:
        if header.nonzeros != header.rows * header.columns:
            return (
                f"{header.rows:,} dense rows of {header.columns:,} values, but "
                f"{header.nonzeros:,} in all"
            )
        if flags & (Flags.FIELDS | Flags.WIDE | Flags.HASHED):
            return "dense rows with keys or fields"
        return ""
    if Flags.BYTES in flags:
        return "sparse values in bytes"
    if Flags.HASHED in flags and (header.columns or Flags.WIDE not in flags):
        return "hashed keys below a number of columns, or of 32 bits"
    if Flags.WIDE not in flags and header.columns > 1 << 32:
        return f"{header.columns:,} columns, but keys of 32 bits"
    return ""


def read_matrix_block(
    file: IO[bytes], path: str, ranges: Sequence[tuple[int, int]], size: int
) -> bytes:
    """The rows of ranges of bytes of an open matrix file, as a matrix file; empty without rows.

    `ranges`: first and last (exclusive) bytes, ascending; `size`: the file's length.  Copies at the
    speed of memory, without the GIL.  Checks pointers at the ends of ranges only, which is all that
    the copy relies on; `data/examples.py` checks what is inside.
    """
    header = _header_of(file, path, size)
    return _rows(file, path, header, header.rows_of(ranges))


def rows_of_matrix(
    file: IO[bytes], path: str, ranges: Sequence[tuple[int, int]], size: int
) -> list[tuple[int, int]]:
    """First and last (exclusive) row of ranges of bytes of an open matrix file."""
    return _header_of(file, path, size).rows_of(ranges)


def head_of_matrix(file: IO[bytes], path: str) -> bytes:
    """The first `HEAD_ROWS` rows of an open matrix file, as a matrix file."""
    header = _header_of(file, path, file.seek(0, os.SEEK_END))
    return _rows(file, path, header, [(0, min(header.rows, HEAD_ROWS))])


def size_of_labels(file: IO[bytes], path: str) -> int:
    """Bytes that `labels_of_matrix` would read."""
    sections = _header_of(file, path, file.seek(0, os.SEEK_END)).sections()
    of_rows = [section for name, section in sections.items() if name in OF_ROWS]
    return sum(section.stop - section.start for section in of_rows)


def labels_of_matrix(file: IO[bytes], path: str) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Labels (float64; 0 if there are none) and weights (empty: none) of all rows of a file."""
    header = _header_of(file, path, file.seek(0, os.SEEK_END))
    arrays: dict[str, NDArray[Any]] = {
        "labels": np.zeros(header.rows),
        "weights": np.empty(0, np.float32),
    }
    for name, section in header.sections().items():
        if name in OF_ROWS:
            file.seek(section.start)
            data = file.read(section.stop - section.start)
            arrays[name] = np.frombuffer(data, section.dtype, header.rows)
    return arrays["labels"].astype(np.float64), arrays["weights"]


def _header_of(file: IO[bytes], path: str, size: int) -> Header:
    file.seek(0)
    return read_header(file.read(HEADER_BYTES), size, path)


def _rows(file: IO[bytes], path: str, header: Header, ranges: Sequence[tuple[int, int]]) -> bytes:
    """Ranges of rows as a matrix file: one pass over the pointers, then one gathering read."""
    wanted = np.array([(first, last) for first, last in ranges if first < last], np.int64)
    if not len(wanted):
        return b""
    sections, counts = header.sections(), wanted[:, 1] - wanted[:, 0]
    if header.dense:
        entries = wanted * header.columns
    else:
        pieces = _in_sequence(wanted + np.array([0, 1], np.int64), 0, sections["ptr"].start, 8)
        ptr = np.frombuffer(gather(file, 8 * int((counts + 1).sum()), [], pieces), "<i8")
        ends = np.cumsum(counts + 1) - 1
        entries = np.stack((ptr[ends - counts], ptr[ends]), axis=1)
        odd = (entries[:, 0] < 0) | (entries[:, 0] > entries[:, 1])
        for place in np.flatnonzero(odd | (entries[:, 1] > header.nonzeros)).tolist():
            (first, last), (begin, end) = wanted[place].tolist(), entries[place].tolist()
            raise DataError(
                f"{path}: rows {first:,} to {last - 1:,} have the entries {begin:,} to {end:,} "
                f"of {header.nonzeros:,}: the file is damaged. {AGAIN}"
            )
        # Shift the pointers of each range to follow those of the range before.
        before = np.cumsum(entries[:, 1] - entries[:, 0]) - entries[:, 1]
        ptr = np.delete(ptr, ends - counts) + np.repeat(before, counts)
    nonzeros = int((entries[:, 1] - entries[:, 0]).sum())
    # Right for the first range only; `blocks.place_in_file` places rows of the others.
    first_row = int(wanted[0, 0]) + header.first_row
    block = replace(header, rows=int(counts.sum()), nonzeros=nonzeros, first_row=first_row)
    copies, buffers = [np.empty((0, 3), np.int64)], [(0, block.pack())]
    for name, section in block.sections().items():
        if name == "ptr":
            buffers.append((section.start, bytes(8) + ptr.tobytes()))
        else:
            items = wanted if name in OF_ROWS else entries
            begin, item_bytes = sections[name].start, section.dtype.itemsize
            copies.append(_in_sequence(items, section.start, begin, item_bytes))
    return gather(file, block.size, buffers, np.concatenate(copies))


def _in_sequence(ranges: NDArray[np.int64], to: int, begin: int, item: int) -> NDArray[np.int64]:
    """Copies of ranges of items one after another: target offset, offset in the file, bytes.

    The section begins at byte `begin` of the file, the copies at `to`; an item has `item` bytes.
    """
    sizes = (ranges[:, 1] - ranges[:, 0]) * item
    return np.stack((to + np.cumsum(sizes) - sizes, begin + ranges[:, 0] * item, sizes), axis=1)


def gather(
    file: IO[bytes],
    size: int,
    buffers: list[tuple[int, bytes]],
    pieces: NDArray[np.int64] | list[tuple[int, int, int]],
) -> bytes:
    """`gathered` from an open file; from one without a descriptor (a driver's) by its `read`."""
    try:
        return gathered(file.fileno(), size, buffers, pieces)
    except io.UnsupportedOperation:
        copies = []
        for to, offset, length in np.asarray(pieces).tolist():
            file.seek(offset)
            copies.append((to, file.read(length)))
            if len(copies[-1][1]) < length:
                raise OSError(0, f"it ends before byte {offset + length:,}") from None
        return gathered(-1, size, sorted(buffers + copies), [])


def floats(values: NDArray[Any]) -> NDArray[np.float32]:
    """Numbers as float32, contiguous; those beyond its range become infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, np.float32)


def first_not_weight(weights: NDArray[np.float32]) -> int:
    """Index of the first number that is negative, NaN or infinite; -1: all are weights."""
    if (place := first_not_finite(weights)) >= 0 or len(weights) == 0:
        return place
    return int(weights.argmin()) if weights.min() < 0 else -1


def check_labels(head: bytes, path: str) -> None:
    """DataError: a matrix file without labels.  Other data passes."""
    if is_matrix(head) and not read_header(head, len(head), path).labels:
        raise DataError(f"{path} has no labels: write the file again, with y")


def even_rows(data: bytes, path: str, parts: int) -> list[int]:
    """Edges of at most `parts` ranges of a block's rows with about equally many entries."""
    header = read_header(data, len(data), path)
    if header.dense:
        return [0, header.rows]
    ptr = header.array(data, "ptr")
    wanted = np.linspace(float(ptr[0]), float(ptr[-1]), parts + 1)[1:-1]
    inner = np.clip(np.searchsorted(ptr, wanted), 0, header.rows)
    return sorted({0, *inner.tolist(), header.rows})
