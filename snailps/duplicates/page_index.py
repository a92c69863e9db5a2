"""An index of kept pages: what later searches compare with, and never remove.

    keys, facts and sets of kept pages -> write_segment -> one file a run, a segment
    segments -> IndexedPages: chunks of keys, facts and sets of pages, by their numbers

Owns the format (docs/duplicates.md) and the folder.  A segment appears complete or not at all, and
each part of it is checked as it is read.  No file stays open: there may be more segments than
files that a process may open.  Must not know how pages were found, nor who removes what.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate, chain
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from snailps.duplicates._pages import PageKeys
from snailps.duplicates.search import CHUNK_PAGES, Ints, KeyChunk, Keys
from snailps.errors import ConfigError, DataError
from snailps.files.atomic import atomic_file, unfinished_of

MAGIC, FORMAT = "snailps pages", 1
HEADER_BYTES, BLOCK_BYTES = 4096, 1 << 16
CHUNK_GRAMS = 1 << 20
"""3-grams that are read at once, 4 MiB, or those of one page."""
ENDING = ".pages"
_NAME = re.compile(r"(\d{6})-([0-9a-f]{32})\.pages")
_LOCK = "lock"
SECTIONS = "facts", "keys", "begins", "grams", "files"
FACTS = np.dtype([("words", "<u4"), ("file", "<u4"), ("row", "<u8"), ("exact", "<u8", (2,))])
"""Of a page: its words, its file in the list of files, its row there, from 1, and the hash of all
its words."""


def key_settings(keys: PageKeys) -> dict[str, int]:
    """What the keys of two pages must share to be compared."""
    names = "bands", "rows", "windows", "window", "seed"
    return {name: getattr(keys, name) for name in names}


class IndexedFile(NamedTuple):
    """A file whose pages are in a segment."""

    path: str
    version: str


class Segment:
    """A file of pages; DataError: it is damaged, or of another version or other keys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._count = PageKeys().count + 1
        header = self._header()
        self.pages: int = header["pages"]
        self._sections: Mapping[str, Sequence[int]] = header["sections"]

    def _header(self) -> dict[str, Any]:
        with self.path.open("rb") as file:
            block = file.read(HEADER_BYTES)
        words, _, rest = block[:-4].partition(b"\n")
        if words != f"{MAGIC} {FORMAT}".encode():
            if words.startswith(f"{MAGIC} ".encode()):
                format = words[len(MAGIC) + 1 :].decode("ascii", "replace")
                raise self._other(f"has the format {format}, and this version reads {FORMAT}")
            raise self._damaged("its header")
        if len(block) < HEADER_BYTES or zlib.crc32(block[:-4]) != int.from_bytes(
            block[-4:], "little"
        ):
            raise self._damaged("its header")
        header: dict[str, Any] = json.loads(rest)
        if header["keys"] != (here := key_settings(PageKeys())):
            raise self._other(f"has keys of {header['keys']}, and this version makes {here}")
        begin, size = header["sections"][SECTIONS[-1]]
        sums = -(-(begin + size - HEADER_BYTES) // BLOCK_BYTES)
        if self.path.stat().st_size != begin + size + 4 * (sums + 1):
            raise self._damaged("its length")
        return header

    def _other(self, what: str) -> DataError:
        return DataError(
            f"{self.path} {what}: begin another index, or use the version that made it"
        )

    def _damaged(self, what: str) -> DataError:
        return DataError(
            f"{self.path} is damaged ({what}): copy it again from where it was made, or delete it, "
            "and with it what later dumps are compared with"
        )

    @cached_property
    def _sums(self) -> NDArray[np.uint32]:
        """CRC-32 of each block after the header."""
        begin, size = self._sections[SECTIONS[-1]]
        data = self._raw(begin + size, self.path.stat().st_size - begin - size)
        if zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise self._damaged("its sums")
        return np.frombuffer(data[:-4], "<u4")

    @cached_property
    def digest(self) -> str:
        """A hash of all that is in it, as far as its sums tell."""
        return hashlib.sha256(self._raw(0, HEADER_BYTES) + self._sums.tobytes()).hexdigest()

    def _raw(self, begin: int, size: int) -> bytes:
        with self.path.open("rb") as file:
            data = os.pread(file.fileno(), size, begin)
        if len(data) < size:
            raise self._damaged("its length")
        return data

    def read(self, section: str, begin: int, size: int) -> memoryview:
        """Some bytes of a section, once their blocks are checked."""
        start, whole = self._sections[section]
        if begin + size > whole:
            raise self._damaged(section)
        first = (start + begin - HEADER_BYTES) // BLOCK_BYTES
        end = -(-(start + begin + size - HEADER_BYTES) // BLOCK_BYTES)
        offset = HEADER_BYTES + first * BLOCK_BYTES
        last = sum(self._sections[SECTIONS[-1]])
        data = memoryview(self._raw(offset, min(HEADER_BYTES + end * BLOCK_BYTES, last) - offset))
        for block in range(first, end):
            at = (block - first) * BLOCK_BYTES
            if zlib.crc32(data[at : at + BLOCK_BYTES]) != self._sums[block]:
                raise self._damaged(f"block {block:,}")
        at = start + begin - offset
        return data[at : at + size]

    def rows(self, section: str, dtype: np.dtype[Any], first: int, count: int) -> NDArray[Any]:
        size = dtype.itemsize
        return np.frombuffer(self.read(section, first * size, count * size), dtype)

    def files(self) -> list[IndexedFile]:
        lines = bytes(self.read("files", 0, self._sections["files"][1])).splitlines()
        return [IndexedFile(*json.loads(line)) for line in lines]

    def keys(self, first: int, count: int) -> Keys:
        rows = self.rows("keys", np.dtype("<u8"), first * self._count, count * self._count)
        return rows.reshape(count, self._count)

    def load(self, first: int) -> tuple[Keys, NDArray[np.uint32]]:
        """Keys and words of a chunk."""
        count = min(CHUNK_PAGES, self.pages - first)
        return self.keys(first, count), self.rows("facts", FACTS, first, count)["words"]

    def facts(self, pages: Ints) -> NDArray[Any]:
        return self._gathered("facts", FACTS, pages)

    def begins(self, pages: Ints) -> Ints:
        """Where the sets of pages begin and end, (n, 2)."""
        number = np.dtype("<i8")
        return np.column_stack([
            self._gathered("begins", number, pages), self._gathered("begins", number, pages + 1)
        ])  # fmt: skip

    def _gathered(self, section: str, dtype: np.dtype[Any], rows: Ints) -> NDArray[Any]:
        """Some rows of a section, ascending; those of neighbouring blocks are read at once."""
        gathered = np.empty(len(rows), dtype)
        gap = max(1, BLOCK_BYTES // dtype.itemsize)
        cuts = np.flatnonzero(np.diff(rows, prepend=rows[:1] - 2 * gap) > gap)
        for begin, end in zip(cuts, [*cuts[1:], len(rows)], strict=True):
            # In steps: rows that are dense may be all of a large section.
            for at in range(begin, end, CHUNK_PAGES):
                here = rows[at : min(end, at + CHUNK_PAGES)]
                count = int(here[-1] - here[0]) + 1
                gathered[at : at + len(here)] = self.rows(section, dtype, int(here[0]), count)[
                    here - here[0]
                ]
        return gathered

    def grams(self, begin: int, end: int) -> NDArray[np.uint32]:
        return self.rows("grams", np.dtype("<u4"), begin, end - begin)


class IndexedPages:
    """The pages of some segments, numbered one segment after the other, from `first`."""

    def __init__(self, segments: Sequence[Segment], first: int = 0) -> None:
        self.segments, self.first = segments, first
        self._starts = [0, *accumulate(segment.pages for segment in self.segments)]

    @classmethod
    def of(cls, folder: Path, names: Sequence[str]) -> IndexedPages:
        return cls([Segment(folder / name) for name in names])

    def after(self, pages: int) -> IndexedPages:
        """The same pages, numbered after so many others."""
        return IndexedPages(self.segments, pages)

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def digest(self) -> str:
        lines = (f"{segment.path.name} {segment.digest}\n" for segment in self.segments)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @cached_property
    def parts(self) -> list[tuple[int, int]]:
        """Chunks: the segment, and the first page in it."""
        return [
            (number, page)
            for number, segment in enumerate(self.segments)
            for page in range(0, segment.pages, CHUNK_PAGES)
        ]

    def chunk(self, part: int) -> KeyChunk:
        number, page = self.parts[part]
        load = partial(self.segments[number].load, page)
        return KeyChunk(self.first + self._starts[number] + page, load, is_old=True)

    def _by_segment(self, pages: Ints) -> Iterator[tuple[Segment, Ints, slice]]:
        """Of pages, ascending: each segment, their rows in it, and their places."""
        rows = pages - self.first
        bounds = np.searchsorted(rows, self._starts)
        for number, segment in enumerate(self.segments):
            here = slice(int(bounds[number]), int(bounds[number + 1]))
            if here.stop > here.start:
                yield segment, rows[here] - self._starts[number], here

    def facts(self, pages: Ints) -> NDArray[Any]:
        """`FACTS` of pages, ascending."""
        facts = np.empty(len(pages), FACTS)
        for segment, rows, here in self._by_segment(pages):
            facts[here] = segment.facts(rows)
        return facts

    def names(self, pages: Ints) -> list[tuple[str, int]]:
        """File, as its run named it, and row of pages, ascending."""
        names: list[tuple[str, int]] = []
        for segment, rows, _ in self._by_segment(pages):
            files = segment.files()
            facts = segment.facts(rows)
            names += [
                (files[file].path, row)
                for file, row in zip(facts["file"].tolist(), facts["row"].tolist(), strict=True)
            ]
        return names

    def sets(self, pages: Ints) -> Iterator[tuple[NDArray[np.uint32], Ints]]:
        """Sets of pages, ascending: 3-grams, and where each page's begin, as of `sets_of`."""
        for segment, rows, _ in self._by_segment(pages):
            begins, ends = segment.begins(rows).T
            at = 0
            while at < len(rows):
                after = int(np.searchsorted(ends, begins[at] + CHUNK_GRAMS, side="right"))
                here = slice(at, max(after, at + 1))
                at, low = here.stop, int(begins[here.start])
                grams = segment.grams(low, int(ends[at - 1]))
                spans = zip((begins[here] - low).tolist(), (ends[here] - low).tolist(), strict=True)
                yield (
                    np.concatenate([grams[begin:end] for begin, end in spans]),
                    np.concatenate([[0], np.cumsum(ends[here] - begins[here])]),
                )

    # As of `PageSets`, for pages in any order.

    def places(self, pages: Ints) -> Ints:
        return pages

    def sizes(self, places: Ints) -> Ints:
        pages, back = np.unique(places, return_inverse=True)
        sizes = np.empty(len(pages), np.int64)
        for segment, rows, here in self._by_segment(pages):
            sizes[here] = np.diff(segment.begins(rows))[:, 0]
        return sizes[back]

    def grams(self, place: int) -> NDArray[np.uint32]:
        number = bisect_right(self._starts, place - self.first) - 1
        segment = self.segments[number]
        row = np.array([place - self.first - self._starts[number]])
        return segment.grams(*segment.begins(row)[0].tolist())


class SetsOfSegment(Protocol):
    """Sets of pages that follow each other."""

    sizes: Ints
    """Of each page."""

    def grams(self) -> Iterator[NDArray[np.uint32]]: ...


class _BlockWriter:
    """Writes bytes, and notes the CRC-32 of each block."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._sum, self._room, self._sums = file, 0, BLOCK_BYTES, list[int]()

    def write(self, data: bytes | NDArray[Any]) -> None:
        rest = memoryview(data if isinstance(data, bytes) else data.tobytes())
        self._file.write(rest)
        while rest:
            part, rest = rest[: self._room], rest[self._room :]
            self._sum, self._room = zlib.crc32(part, self._sum), self._room - len(part)
            if not self._room:
                self._end_block()

    def _end_block(self) -> None:
        self._sums.append(self._sum)
        self._sum, self._room = 0, BLOCK_BYTES

    def finish(self) -> None:
        if self._room < BLOCK_BYTES:
            self._end_block()
        sums = np.array(self._sums, "<u4").tobytes()
        self._file.write(sums + zlib.crc32(sums).to_bytes(4, "little"))


def write_segment(
    path: Path,
    command: str,
    files: Sequence[IndexedFile],
    facts: Callable[[], Iterator[NDArray[Any]]],
    keys: Callable[[], Iterator[NDArray[Any]]],
    sets: Sequence[SetsOfSegment],
) -> None:
    """Write a segment: `FACTS` and keys of its pages, in any portions, and their sets."""
    lines = "".join(json.dumps(file) + "\n" for file in files).encode()
    pages = sum(len(each.sizes) for each in sets)
    grams = sum(int(each.sizes.sum()) for each in sets)
    key_bytes = 8 * (PageKeys().count + 1)
    sizes = FACTS.itemsize * pages, key_bytes * pages, 8 * (pages + 1), 4 * grams, len(lines)
    begins = accumulate(sizes, initial=HEADER_BYTES)
    header = {
        "command": command, "keys": key_settings(PageKeys()), "pages": pages,
        "sections": dict(zip(SECTIONS, zip(begins, sizes, strict=False), strict=True)),
    }  # fmt: skip
    text = f"{MAGIC} {FORMAT}\n{json.dumps(header)}\n".encode().ljust(HEADER_BYTES - 4)
    with atomic_file(path) as file:
        file.write(text + zlib.crc32(text).to_bytes(4, "little"))
        writer = _BlockWriter(file)
        for part in chain(facts(), keys()):
            writer.write(part)
        end = np.zeros(1, "<i8")
        writer.write(end)
        for each in sets:
            ends = end + np.cumsum(each.sizes, dtype="<i8")
            writer.write(ends)
            end = ends[-1:] if len(ends) else end
        for part in chain.from_iterable(each.grams() for each in sets):
            writer.write(part)
        writer.write(lines)
        writer.finish()
        if file.tell() != HEADER_BYTES + sum(sizes) + 4 * (-(-sum(sizes) // BLOCK_BYTES) + 1):
            raise AssertionError(f"{path}: {file.tell():,} bytes, not of {pages:,} pages")


class IndexFolder:
    """The folder of an index, locked by one run; `option`: what a message calls it.

    ConfigError: it holds something else, or another run has it.
    """

    def __init__(self, folder: Path, option: str) -> None:
        self.folder, self._option, self._lock = folder, option, -1

    def begin(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for part in unfinished_of(self._begun()):
                part.unlink(missing_ok=True)
            others = [p.name for p in self.folder.iterdir() if not _is_of_index(p.name)]
        except BlockingIOError:
            self.close()
            raise ConfigError(
                f"{self._option} {self.folder}: another run appends to this index: wait for it"
            ) from None
        except OSError as error:
            raise ConfigError(f"{self._option} {self.folder}: {error.strerror or error}") from error
        if others:
            raise ConfigError(
                f"{self._option} {self.folder} holds {min(others)}, which is no part of an index: "
                "name an empty folder, or one that an earlier run made"
            )

    def _begun(self) -> Iterator[Path]:
        """Segments that killed runs have begun."""
        for path in self.folder.glob(".*.part"):
            name = path.name[1:].split(".", 1)[0] + ENDING
            if _NAME.fullmatch(name):
                yield self.folder / name

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @staticmethod
    def name(number: int, command: str) -> str:
        """The name of a segment of a command, a hash of at least 32 hexadecimal digits."""
        return f"{number:06d}-{command[:32]}{ENDING}"

    def names(self) -> list[str]:
        """Names of all segments, the first one first."""
        return sorted(p.name for p in self.folder.iterdir() if _NAME.fullmatch(p.name))

    def before(self, command: str) -> tuple[list[str], str]:
        """The segments that count for a command, and the name of its own.

        Once its own is there, only those before it count: the same command finds the same again.
        """
        names = self.names()
        for place, name in enumerate(names):
            if name.endswith(f"-{command[:32]}{ENDING}"):
                return names[:place], name
        following = 1 + max((int(name[:6]) for name in names), default=0)
        return names, self.name(following, command)


def _is_of_index(name: str) -> bool:
    return name == _LOCK or _NAME.fullmatch(name) is not None
