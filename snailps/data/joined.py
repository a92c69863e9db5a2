"""Blocks over several files, which are cut as one; the texts of a block, and its parts for threads.

    Sources -> join -> Joined: a file, or files in sequence, as one Source -> cut -> blocks
    a block of it -> Joined.files -> the files that it has bytes of       (what a lease contains)
    these -> texts_of -> Ranges -> read_text -> bytes
          -> open_parts -> TextParts, of one file, too: threads read one each

A file per class, day or user is sorted as one file of them all would be, so their blocks are spread
over all of them, or over as many as a lease can list.  A text begins with a file, or has no file's
beginning: a first line (a header) holds for the lines behind it.  Of matrix files a text is some
rows of one.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from snailps.data._matrix import gathered
from snailps.data.blocks import (
    STEP_BYTES_PART,
    Place,
    Source,
    Unit,
    cut,
    even_parts,
    is_matrix_file,
    place_in_file,
    read_at,
    read_ranges,
    shorter,
    strands,
    whole_units,
)
from snailps.data.driver_files import is_driver_file
from snailps.data.scratch import Scratch
from snailps.data.unpacking import bare_name, is_url
from snailps.errors import DataError
from snailps.pieces import FILES_MAX, JoinedFile

OPEN_MAX = 64
NAME_CHARS = 128
"""So much of a name counts as one of the `FILES_MAX` files of a block."""
_CELLS = (".csv", ".tsv")
"""Files of one block are read by the rules of its first one."""


class Range(NamedTuple):
    """Bytes of a file; `newline` is 1 if a newline must follow, as the file lacks its last one."""

    file: JoinedFile
    first: int
    last: int
    newline: int = 0


class Text(NamedTuple):
    """Whole lines, or a matrix file, and their origin."""

    data: bytes
    path: str
    start: int
    place: Place | None = None


class Joined:
    """Files that are cut as one, in the order of their names, in any order of the input.

    Of several the path of `source` is a name for messages; `by_file`: each is a text of its own.
    """

    def __init__(self, sources: Sequence[Source], scratch: Scratch, *, by_file: bool) -> None:
        ordered = sorted(sources, key=lambda one: one.path)
        *self._begins, total = itertools.accumulate((one.bytes for one in ordered), initial=0)
        self._files = [
            JoinedFile(one.path, begin, one.bytes, scratch.version(one.path))
            for one, begin in zip(ordered, self._begins, strict=True)
        ]
        sizes = (1 + len(one.path) // NAME_CHARS for one in ordered)
        self._sizes = list(itertools.accumulate(sizes, initial=0))  # of the files before each
        self.by_file, self.source = by_file, ordered[0]
        if len(ordered) > 1:
            self.source = Source(f"{ordered[0].path} and {len(ordered) - 1:,} more", total)

    def files(self, start: int, stop: int) -> list[JoinedFile]:
        """The files, at least one, that a block has bytes of."""
        if len(self._files) == 1:
            return self._files
        found = {at for first, last in self._spans(start, stop) for at in range(first, last)}
        return [self._files[at] for at in sorted(found)]

    def cut(self, block_bytes: int) -> Iterator[tuple[int, int]]:
        """Begin and end of even blocks of 1 to `block_bytes` bytes, halved where one has bytes of
        more than `FILES_MAX` files."""
        todo = [(block.start, block.stop) for block in reversed(cut([self.source], block_bytes))]
        while todo:
            start, stop = todo.pop()
            spans = self._spans(start, stop)
            if sum(self._sizes[last] - self._sizes[first] for first, last in spans) <= FILES_MAX:
                yield start, stop
            else:  # a block of one byte has bytes of few
                middle = (start + stop) // 2
                todo += [(middle, stop), (start, middle)]

    def _spans(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Numbers of the first file of each strand of a block, and of that behind its last."""
        return [
            (bisect.bisect_right(self._begins, first) - 1, bisect.bisect_left(self._begins, last))
            for first, last in strands(start, stop, self.source.bytes) or [(start, start + 1)]
        ]


def join(sources: Sequence[Source], scratch: Scratch, unit: Unit) -> list[Joined]:
    """Files of lines that are cut as one, by their kind, behind sources that are cut by themselves.

    URLs are not joined: a host fetches a file when it needs it.
    """
    apart, kinds = list[list[Source]](), dict[tuple[bool, str], list[Source]]()
    for one in sources:
        if unit == "word" or is_driver_file(one.path) or is_url(one.path):
            apart.append([one])
            continue
        ending = Path(bare_name(one.path)).suffix
        with scratch.open(one.path) as file:
            kind = is_matrix_file(file), ending if ending in _CELLS else ""
        kinds.setdefault(kind, []).append(one)
    found = [((True, ""), some) for some in apart] + list(kinds.items())
    found.sort(key=lambda one: len(one[1]) > 1)
    return [Joined(some, scratch, by_file=kind[0] or len(some) == 1) for kind, some in found]


def texts_of(
    files: Sequence[JoinedFile], start: int, stop: int, spread: int, *, by_file: bool = False
) -> list[list[Range]]:
    """The ranges of each text of a block over these files; its lines begin in them."""
    ranges = _ranges_in(files, strands(start, stop, spread))
    if not by_file:
        return _cut_at_beginnings(ranges)
    of_file: dict[str, list[Range]] = {}
    for one in ranges:
        of_file.setdefault(one.file.path, []).append(one)
    return list(of_file.values())


def _ranges_in(files: Sequence[JoinedFile], ranges: Iterable[tuple[int, int]]) -> Iterator[Range]:
    """Translate ranges of a sequence of files to ranges of the files."""
    begins = [file.begin for file in files]
    for first, last in ranges:
        at, place = bisect.bisect_right(begins, first) - 1, first
        while place < last:
            file = files[at]
            behind = min(last, file.begin + file.bytes)
            yield Range(file, place - file.begin, behind - file.begin)
            place, at = behind, at + 1


def _cut_at_beginnings(ranges: Iterable[Range]) -> list[list[Range]]:
    texts: list[list[Range]] = []
    for one in ranges:
        if not texts or one.first == 0:
            texts.append([])
        texts[-1].append(one)
    return texts


def read_text(
    ranges: Sequence[Range], scratch: Scratch, *, by_file: bool = False, unit: Unit = "line"
) -> bytes:
    """The lines that begin in these ranges, each with its newline.

    With `by_file` what begins in these ranges of one file, as it is: words, lines, rows.
    """
    if by_file:
        file = ranges[0].file
        return read_ranges(file.path, _bare(ranges), file.bytes, unit=unit, scratch=scratch)
    found = [files.read(whole) for files, whole in _in_few_files(ranges, scratch)]
    return found[0] if len(found) == 1 else b"".join(found)


def place_in_text(
    ranges: Sequence[Range],
    scratch: Scratch,
    offset: int,
    *,
    by_file: bool = False,
    unit: Unit = "line",
) -> tuple[str, int]:
    """Position of byte or row `offset` of what `read_text` returned; see `Place`."""
    if by_file:
        path = ranges[0].file.path
        return path, place_in_file(path, _bare(ranges), offset, unit=unit, scratch=scratch)
    with contextlib.suppress(DataError):
        some = (whole for _, whole in _in_few_files(ranges, scratch))
        return _place(itertools.chain.from_iterable(some), offset)
    return ranges[0].file.path, -1


def _bare(ranges: Sequence[Range]) -> list[tuple[int, int]]:
    return [(one.first, one.last) for one in ranges]


def _in_few_files(
    ranges: Sequence[Range], scratch: Scratch
) -> Iterator[tuple[OpenFiles, list[Range]]]:
    """The whole lines of ranges in sequence, with at most `OPEN_MAX` files open at a time."""
    numbers: dict[JoinedFile, int] = {}
    some = itertools.groupby(
        ranges, lambda one: numbers.setdefault(one.file, len(numbers)) // OPEN_MAX
    )
    for few in (list(group) for _, group in some):
        with contextlib.closing(OpenFiles({one.file for one in few}, scratch)) as files:
            yield files, files.whole(few)


def _place(whole: Iterable[Range], offset: int) -> tuple[str, int]:
    """Position of byte `offset` of whole lines; -1: in none of them."""
    path = ""
    for one in whole:
        path, length = one.file.path, one.last - one.first + one.newline
        if offset < length:
            return path, one.first + offset
        offset -= length
    return path, -1


class OpenFiles:
    def __init__(self, files: Iterable[JoinedFile], scratch: Scratch) -> None:
        self._files: dict[str, tuple[BinaryIO, int]] = {}
        with contextlib.ExitStack() as stack:
            for path, _, least, _ in files:
                try:
                    file = scratch.open(path)
                    stack.callback(file.close)
                    size = file.seek(0, os.SEEK_END)
                except OSError as error:
                    raise _unreadable(path, error) from error
                if size < least:
                    raise shorter(path, least, size)
                self._files[path] = file, size
            self.close = stack.pop_all().close

    def is_matrix(self) -> bool:
        return is_matrix_file(next(iter(self._files.values()))[0])

    def whole(self, ranges: Iterable[Range]) -> list[Range]:
        """The lines that begin in each of these ranges, as ranges, none of them empty."""
        found: list[Range] = []
        for one in ranges:
            path = one.file.path
            file, size = self._files[path]
            try:
                for first, last in whole_units(
                    file, path, [(one.first, one.last)], size, "line", STEP_BYTES_PART
                ):
                    lacks = last == size and read_at(file, last - 1, 1) != b"\n"
                    found.append(Range(one.file, first, last, int(lacks)))
            except OSError as error:
                raise _unreadable(path, error) from error
        return found

    def read(self, whole: Sequence[Range]) -> bytes:
        """The bytes of whole lines, in this order; threads may call it at once."""
        at, pieces, newlines, descriptors = 0, [], [], []
        try:
            for file, first, last, newline in whole:
                descriptors.append(self._files[file.path][0].fileno())
                pieces.append((at, first, last - first))
                at += last - first
                if newline:
                    newlines.append((at, b"\n"))
                    at += 1
            return gathered(descriptors, at, newlines, pieces) if pieces else b""
        except OSError as error:
            raise _unreadable(whole[0].file.path, error) from error


def _unreadable(path: str, error: OSError) -> DataError:
    return DataError(
        f"cannot read {path}: {error.strerror or error}. The input has to stay where it is until "
        "the job ends"
    )


class TextParts:
    """A block's lines in parts of whole lines; made by `open_parts`.

    `parts` has the ranges of whole lines of each text of each part.
    """

    def __init__(self, files: OpenFiles, parts: list[list[list[Range]]]) -> None:
        self.parts, self._files, self.close = parts, files, files.close

    def texts(self, part: int) -> Iterator[Text]:
        """The texts of a part, each read when it is asked for; threads may call it at once."""
        for ranges in self.parts[part]:
            start = min(one.first for one in ranges)
            path = ranges[0].file.path
            yield Text(self._files.read(ranges), path, start, partial(_place, ranges))


def open_parts(
    files: Sequence[JoinedFile],
    start: int,
    stop: int,
    part_bytes: int,
    scratch: Scratch,
    spread: int = 0,
) -> TextParts | None:
    """The lines whose first byte lies in a block over these files, in parts of about `part_bytes`.

    None: read them as one, as there are no two parts, or the files are unreadable, too many, or no
    local text.  The thread that parses a part also copies it, while it is in a near cache.
    """
    parts = (stop - start) // part_bytes
    if parts < 2 or len(files) > OPEN_MAX or is_driver_file(files[0].path):
        return None
    with contextlib.suppress(DataError), contextlib.ExitStack() as stack:
        opened = stack.enter_context(contextlib.closing(OpenFiles(files, scratch)))
        if not opened.is_matrix():
            found = [
                [opened.whole(text) for text in _cut_at_beginnings(_ranges_in(files, ranges))]
                for ranges in even_parts(strands(start, stop, spread), parts)
            ]
            whole = [[text for text in texts if text] for texts in found]
            stack.pop_all()
            return TextParts(opened, [texts for texts in whole if texts] or [[]])
    return None
