"""The file of one shard in a checkpoint: sections of fragments, then an index of them.

    buffers of sections (_sections) -> ShardFileWriter -> file, past the page cache where it can
    file -> ShardFile -> header, index -> sections, each compared with its checksum

Owns header, index and the places of sections (docs/checkpoint_format.md).  Must not know the
manifest or a shard.  Threads may write different buffers of one file at the same time.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.abi.memory import private_memory
from snailps.dataclass import asdict, dataclass
from snailps.errors import FULL, CheckpointError
from snailps.store.checkpoint._crc32c import crc32c
from snailps.store.checkpoint.disk import OS_DISK, Disk, read_at, write_at

MAGIC = b"SNAILCKP"
FORMAT = 2
FORMATS = (1, FORMAT)
"""Formats that are read; in format 1 a fragment has one section."""
PAGE = 4096
"""Alignment of buffers' ends, in memory and in the file."""
BATCH_BYTES = 16 << 20
HUGE = 2 << 20
_HEADER = struct.Struct("<8sIIQQII")
_ENTRY = np.dtype(
    [("fragment", "<u4"), ("crc32c", "<u4"), ("at", "<u8"), ("bytes", "<u8"), ("rows", "<u8")]
)
Buffer = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A shard's file in the manifest: name, length, index offset, contents, index checksum."""

    name: str
    bytes: int
    index_at: int
    fragments: int
    sections: int
    rows: int
    index_crc32c: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: object, where: str) -> FileEntry:
        """Read a value of `to_dict`; `CheckpointError` for anything else."""
        if isinstance(data, dict) and "fragments" in data:
            data = {"sections": data["fragments"], **data}  # of format 1
        if not isinstance(data, dict) or set(data) != set(cls.__slots__):
            raise CheckpointError(f"{where}: file: expected {cls.__slots__}, got {data!r:.99}")
        name = data["name"]
        plain = isinstance(name, str) and name and name == Path(name).name
        numbers = [value for key, value in data.items() if key != "name"]
        if not plain or not all(type(n) is int and 0 <= n < 1 << 63 for n in numbers):
            raise CheckpointError(f"{where}: file: expected a name and numbers, got {data!r:.99}")
        return cls(**data)

    @property
    def index_bytes(self) -> int:
        return self.sections * _ENTRY.itemsize


def new_buffer(length: int) -> Buffer:
    """Allocate a page-aligned buffer of at least `length` bytes, to write past the page cache.

    Use it again: each new page costs system time.
    """
    memory = private_memory(max(_padded(length), PAGE), huge=length >= HUGE)
    return np.frombuffer(memory, np.uint8)


def write_error(path: Path, error: OSError) -> CheckpointError:
    """Make the error of a file that cannot be written, with the cause and what to do."""
    if error.errno in FULL:
        cause = f"the disk or quota of {path.parent} is full: make room, or keep fewer checkpoints"
    else:
        cause = f"{error.strerror or error}: correct that, or choose another checkpoint_dir"
    return CheckpointError(f"{path}: cannot be written, {cause}")


class ShardFileWriter:
    """Write a shard's new file; several threads may write buffers of it at the same time."""

    def __init__(
        self, path: Path, cluster_id: int, number: int, frag_num: int, disk: Disk = OS_DISK
    ) -> None:
        self.path, self._disk = path, disk
        self.written = 0
        self._lock = threading.Lock()
        self._entries: list[tuple[int, int, int, int, int]] = []
        try:
            # Past the page cache: no second copy in memory, and fsync has little to wait for.
            self._file = disk.create(path, exclusive=True, direct=True)
        except OSError as error:
            raise write_error(path, error) from error
        head = _HEADER.pack(MAGIC, FORMAT, PAGE, cluster_id, number, frag_num, 0)
        head = head[:-4] + crc32c(head[:-4]).to_bytes(4, "little")
        self._at = 0
        try:
            self._append(head)
        except BaseException:
            self.abandon()
            raise

    def write(
        self, buffer: Buffer, used: int, sections: Sequence[tuple[int, int, int, int]]
    ) -> int:
        """Write a buffer of sections, and note their checksums; return its offset in the file.

        `sections`: (fragment, offset in the buffer, bytes, rows) of each.
        """
        length = _padded(used)
        buffer[used:length] = 0
        with self._lock:
            offset = self._at
            self._at += length
        entries = [
            (fragment, crc32c(buffer[begin : begin + size]), offset + begin, size, rows)
            for fragment, begin, size, rows in sections
        ]
        try:
            write_at(self._disk, self._file, buffer.data[:length], offset)
        except OSError as error:
            raise write_error(self.path, error) from error
        with self._lock:
            self._entries += entries
            self.written += length
        return offset

    def close(self) -> FileEntry:
        """Write the index and sync the file; if that fails, remove the file."""
        index = np.array(sorted(self._entries), _ENTRY)
        data = index.tobytes()
        try:
            index_at = self._append(data)
            self._disk.fsync(self._file)
        except OSError as error:
            self.abandon()
            raise write_error(self.path, error) from error
        except BaseException:
            self.abandon()
            raise
        self._disk.close(self._file)
        self._file = -1
        fragments = len(np.unique(index["fragment"]))
        return FileEntry(
            self.path.name, self._at, index_at, fragments, len(index), int(index["rows"].sum()),
            crc32c(data),
        )  # fmt: skip

    def abandon(self) -> None:
        """Remove the file.  Idempotent."""
        if self._file >= 0:
            self._disk.close(self._file)
            self._file = -1
            with contextlib.suppress(FileNotFoundError):
                self._disk.remove(self.path)

    def _append(self, data: bytes) -> int:
        buffer = new_buffer(len(data))
        buffer[: len(data)] = np.frombuffer(data, np.uint8)
        return self.write(buffer, len(data), ())


class ShardFile:
    """Read a shard's file.

    `entry`, `cluster_id`, `number`, `frag_num` and `format_` are the manifest's.  `index` has the
    fields fragment, crc32c, at, bytes, rows of each section, with fragments ascending.
    `CheckpointError`: the file is missing, has another length, or is not the one that the manifest
    describes.
    """

    def __init__(
        self,
        folder: Path,
        entry: FileEntry,
        cluster_id: int,
        number: int,
        frag_num: int,
        disk: Disk = OS_DISK,
        format_: int = FORMAT,
    ) -> None:
        self.path, self._disk = folder / entry.name, disk
        try:
            file = disk.open(self.path)
            try:
                self._check_length(entry, disk.size(file))
                head = self._part(file, 0, _HEADER.size)
                data = self._part(file, entry.index_at, entry.index_bytes)
            finally:
                disk.close(file)
        except OSError as error:
            raise self._unreadable(error) from None
        if len(head) < _HEADER.size or crc32c(head[:-4]) != int.from_bytes(head[-4:], "little"):
            raise CheckpointError(f"{self.path}: its header is damaged")
        found = _HEADER.unpack(head)[:-1]
        expected = (MAGIC, format_, PAGE, cluster_id, number, frag_num)
        if found != expected:
            raise CheckpointError(
                f"{self.path}: it belongs to another checkpoint or format: its header says "
                f"{found}, expected {expected}"
            )
        if crc32c(data) != entry.index_crc32c:
            raise CheckpointError(f"{self.path}: its index is damaged")
        self.index = np.frombuffer(data, _ENTRY)
        self._frag_num = frag_num
        self._check_index(entry)

    def sections(self, owned: NDArray[np.bool_]) -> Iterator[tuple[int, Buffer]]:
        """Yield the sections of the fragments marked in `owned`, compared with their checksums.

        Each is (fragment, uint8 (n,)), valid until the next one, in the order of the file: sections
        of several fragments may be interleaved.
        """
        for batch in self.batches(owned):
            yield from batch

    def batches(self, owned: NDArray[np.bool_]) -> Iterator[list[tuple[int, Buffer]]]:
        """Yield `sections` in lists, each from one read and valid until the next."""
        wanted = self.index[owned[self.index["fragment"]]]
        wanted = wanted[np.argsort(wanted["at"])]
        buffer = new_buffer(BATCH_BYTES)
        first = 0
        file = self._open()
        try:
            while first < len(wanted):
                begin = int(wanted["at"][first])
                ends = (wanted["at"][first:] + wanted["bytes"][first:]).astype(np.int64) - begin
                last = first + max(1, int(np.searchsorted(ends, BATCH_BYTES, "right")))
                length = int(ends[last - first - 1])
                if length > len(buffer):
                    try:
                        buffer = new_buffer(length)
                    except (MemoryError, OSError):
                        raise CheckpointError(
                            f"{self.path}: no memory for a section of {length:,} bytes"
                        ) from None
                self._read(file, begin, buffer[:length])
                batch = []
                for entry in wanted[first:last]:
                    at = int(entry["at"]) - begin
                    section = buffer[at : at + int(entry["bytes"])]
                    self.check_section(entry, section)
                    batch.append((int(entry["fragment"]), section))
                yield batch
                first = last
        finally:
            self._disk.close(file)

    def check_section(self, entry: Any, section: Buffer) -> None:
        """Compare a section with its entry of the index; `CheckpointError` if they differ."""
        named = int.from_bytes(section[4:8].tobytes(), "little")
        if crc32c(section) != int(entry["crc32c"]) or named != int(entry["fragment"]):
            raise CheckpointError(
                f"{self.path}: the section of fragment {entry['fragment']} (bytes "
                f"{entry['at']:,} to {entry['at'] + entry['bytes']:,}) is damaged"
            )

    def _check_length(self, entry: FileEntry, length: int) -> None:
        """Compare lengths, before memory is allocated for the sizes in the entry."""
        if length != entry.bytes:
            raise CheckpointError(
                f"{self.path}: expected {entry.bytes:,} bytes, it has {length:,}: "
                "it was cut off or changed"
            )
        if entry.index_at + entry.index_bytes > length:
            raise CheckpointError(
                f"{self.path}: {entry.sections:,} sections from byte {entry.index_at:,} on do "
                f"not fit its {length:,} bytes"
            )

    def _check_index(self, entry: FileEntry) -> None:
        index = self.index
        placed = index[np.argsort(index["at"])]
        wrong = (
            len(index) != entry.sections
            or len(np.unique(index["fragment"])) != entry.fragments
            or (index["fragment"] >= self._frag_num).any()
            or (np.diff(index["fragment"].astype(np.int64)) < 0).any()
            or (index["at"] > entry.index_at).any()
            or (index["bytes"] > entry.index_at - index["at"]).any()
            or (placed["at"][1:] < (placed["at"] + placed["bytes"])[:-1]).any()
            or int(index["rows"].sum()) != entry.rows
        )
        if wrong:
            raise CheckpointError(f"{self.path}: its index contradicts itself or the manifest")

    def _read(self, file: int, at: int, into: Buffer) -> None:
        try:
            done = read_at(self._disk, file, into.data, at)
        except OSError as error:
            raise self._unreadable(error) from None
        if done < len(into):
            raise CheckpointError(f"{self.path}: it ends at byte {at + done:,}, too early")

    def _open(self) -> int:
        try:
            return self._disk.open(self.path)
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self.path}: cannot be read: {error.strerror}")

    def _part(self, file: int, at: int, length: int) -> bytes:
        """Read up to `length` bytes from an offset; fewer at the end of the file."""
        data = bytearray(length)
        return bytes(data[: read_at(self._disk, file, memoryview(data), at)])


def _padded(length: int) -> int:
    return -(-length // PAGE) * PAGE
