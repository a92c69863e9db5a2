"""Several files cut into blocks as one; the texts of a block, and its parts for threads.

    InputFile, each -> join -> Joined: one, or several in sequence, as one -> cut -> blocks
    a block of it -> Joined.files -> the files that it has bytes of       (what a lease contains)
    these -> texts_of -> Ranges -> read_text -> bytes
          -> open_parts -> TextParts: each thread reads one (also of a single file)

A folder with a file per class, day or user is as sorted as one file of them all would be, so blocks
are spread over all of its files, or as many as a lease can list.  A text is what is parsed at once:
it begins where a file begins, or contains no file's beginning, because a header applies to the
lines after it.  Of matrix files a text is the rows of one file.
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

from snailps.errors import DataError
from snailps.files._matrix import gathered
from snailps.files.blocks import (
    STEP_BYTES_PART,
    InputFile,
    Place,
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
from snailps.files.driver_files import is_driver_file
from snailps.files.scratch import Scratch
from snailps.files.unpacking import bare_name, is_url
from snailps.pieces import FILES_MAX, JoinedFile

OPEN_MAX = 64
"""Files that a block has open at a time: a process may have about 1,000 descriptors."""
NAME_CHARS = 128
"""This many characters of a path count as one of a lease's `FILES_MAX` files."""
_CELLS = (".csv", ".tsv")
"""Endings that are joined apart: all files of a block are parsed by the rules of its first one."""


class Range(NamedTuple):
    """Bytes of a file; `newline`: 1 if one has to be added, since the file lacks its last one."""

    file: JoinedFile
    first: int
    last: int
    newline: int = 0


class Text(NamedTuple):
    """Whole lines, or a matrix file, and where they come from (as for `ExampleReader.read`)."""

    data: bytes
    path: str
    start: int
    place: Place | None = None


class Joined:
    """Several files treated as one stream, sorted by name whatever the order of the input.

    `source` is the stream; of several files its path is only a name for messages.  `by_file`: each
    file is a text of its own.
    """

    def __init__(self, sources: Sequence[InputFile], scratch: Scratch, *, by_file: bool) -> None:
        ordered = sorted(sources, key=lambda source: source.path)
        *self._begins, total = itertools.accumulate((source.bytes for source in ordered), initial=0)
        self._files = [
            JoinedFile(source.path, begin, source.bytes, scratch.version(source.path))
            for source, begin in zip(ordered, self._begins, strict=True)
        ]
        sizes = (1 + len(source.path) // NAME_CHARS for source in ordered)
        self._sizes = list(itertools.accumulate(sizes, initial=0))
        """For each file, how much of a lease the names of all files before it take, in files."""
        self.by_file, self.source = by_file, ordered[0]
        if len(ordered) > 1:
            self.source = InputFile(f"{ordered[0].path} and {len(ordered) - 1:,} more", total)

    def files(self, start: int, stop: int) -> list[JoinedFile]:
        """The files, at least one, that a block has bytes of."""
        if len(self._files) == 1:
            return self._files
        spans = self._spans(start, stop)
        numbers = {number for first, last in spans for number in range(first, last)}
        return [self._files[number] for number in sorted(numbers)]

    def cut(self, block_bytes: int) -> Iterator[tuple[int, int]]:
        """Begin and end of equal blocks of 1 to `block_bytes` bytes.

        A block with bytes of more files than a lease can list is halved until it fits.
        """
        todo = [(block.start, block.stop) for block in reversed(cut([self.source], block_bytes))]
        while todo:
            start, stop = todo.pop()
            spans = self._spans(start, stop)
            if sum(self._sizes[last] - self._sizes[first] for first, last in spans) <= FILES_MAX:
                yield start, stop
            else:  # ends: a block of one byte has bytes of one file
                middle = (start + stop) // 2
                todo += [(middle, stop), (start, middle)]

    def _spans(self, start: int, stop: int) -> list[tuple[int, int]]:
        """By strand of a block, the number of its first file, and of the file after its last."""
        return [
            (bisect.bisect_right(self._begins, first) - 1, bisect.bisect_left(self._begins, last))
            for first, last in strands(start, stop, self.source.bytes) or [(start, start + 1)]
        ]


def join(sources: Sequence[InputFile], scratch: Scratch, unit: Unit) -> list[Joined]:
    """Group sources: files of lines of the same kind are cut as one, all others by themselves.

    Single files come first.  URLs are not joined: a host fetches a file when it needs it, and a
    block over all files would make every host fetch all of them.
    """
    single, by_kind = list[list[InputFile]](), dict[tuple[bool, str], list[InputFile]]()
    for source in sources:
        if unit == "word" or is_driver_file(source.path) or is_url(source.path):
            single.append([source])
            continue
        ending = Path(bare_name(source.path)).suffix
        with scratch.open(source.path) as file:
            kind = is_matrix_file(file), ending if ending in _CELLS else ""
        by_kind.setdefault(kind, []).append(source)
    groups = [(True, group) for group in single]
    groups += [(kind[0], group) for kind, group in by_kind.items()]
    groups.sort(key=lambda item: len(item[1]) > 1)
    return [
        Joined(group, scratch, by_file=is_matrix or len(group) == 1) for is_matrix, group in groups
    ]


def texts_of(
    files: Sequence[JoinedFile], start: int, stop: int, spread: int, *, by_file: bool = False
) -> list[list[Range]]:
    """The texts of a block over these files, each as the ranges in which its lines begin."""
    ranges = _ranges_in(files, strands(start, stop, spread))
    if not by_file:
        return _cut_at_beginnings(ranges)
    by_path: dict[str, list[Range]] = {}
    for range_ in ranges:
        by_path.setdefault(range_.file.path, []).append(range_)
    return list(by_path.values())


def _ranges_in(files: Sequence[JoinedFile], ranges: Iterable[tuple[int, int]]) -> Iterator[Range]:
    """Translate ranges of a sequence of files to ranges of the files."""
    begins = [file.begin for file in files]
    for first, last in ranges:
        number, offset = bisect.bisect_right(begins, first) - 1, first
        while offset < last:
            file = files[number]
            stop = min(last, file.begin + file.bytes)
            yield Range(file, offset - file.begin, stop - file.begin)
            offset, number = stop, number + 1


def _cut_at_beginnings(ranges: Iterable[Range]) -> list[list[Range]]:
    """Group ranges into texts: a new one begins with each file, since a file may have a header."""
    texts: list[list[Range]] = []
    for range_ in ranges:
        if not texts or range_.first == 0:
            texts.append([])
        texts[-1].append(range_)
    return texts


def read_text(
    ranges: Sequence[Range], scratch: Scratch, *, by_file: bool = False, unit: Unit = "line"
) -> bytes:
    """The lines that begin in these ranges, each with its newline.

    With `by_file` all ranges are of one file: the words, lines or rows that begin in them, as they
    are stored.
    """
    if by_file:
        file = ranges[0].file
        return read_ranges(file.path, _bare(ranges), file.bytes, unit=unit, scratch=scratch)
    parts = [files.read(whole) for files, whole in _in_few_files(ranges, scratch)]
    return parts[0] if len(parts) == 1 else b"".join(parts)


def place_in_text(
    ranges: Sequence[Range],
    scratch: Scratch,
    offset: int,
    *,
    by_file: bool = False,
    unit: Unit = "line",
) -> tuple[str, int]:
    """File, and position there, of byte or row `offset` of what `read_text` returned (`Place`)."""
    if by_file:
        path = ranges[0].file.path
        return path, place_in_file(path, _bare(ranges), offset, unit=unit, scratch=scratch)
    with contextlib.suppress(DataError):
        groups = (whole for _, whole in _in_few_files(ranges, scratch))
        return _place(itertools.chain.from_iterable(groups), offset)
    return ranges[0].file.path, -1


def _bare(ranges: Sequence[Range]) -> list[tuple[int, int]]:
    return [(range_.first, range_.last) for range_ in ranges]


def _in_few_files(
    ranges: Sequence[Range], scratch: Scratch
) -> Iterator[tuple[OpenFiles, list[Range]]]:
    """The whole lines of consecutive ranges, with at most `OPEN_MAX` files open at a time."""
    numbers: dict[JoinedFile, int] = {}
    groups = itertools.groupby(
        ranges, lambda range_: numbers.setdefault(range_.file, len(numbers)) // OPEN_MAX
    )
    for group in (list(group) for _, group in groups):
        with contextlib.closing(OpenFiles({range_.file for range_ in group}, scratch)) as files:
            yield files, files.whole(group)


def _place(whole: Iterable[Range], offset: int) -> tuple[str, int]:
    """File, and offset there, of byte `offset` of whole lines; -1: beyond all of them."""
    path = ""
    for range_ in whole:
        path, length = range_.file.path, range_.last - range_.first + range_.newline
        if offset < length:
            return path, range_.first + offset
        offset -= length
    return path, -1


class OpenFiles:
    """Some files, open, with the sizes that they have now; call `close`.

    DataError: one is unreadable, or shorter than when the blocks were cut.
    """

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
        lines: list[Range] = []
        for range_ in ranges:
            path = range_.file.path
            file, size = self._files[path]
            try:
                for first, last in whole_units(
                    file, path, [(range_.first, range_.last)], size, "line", STEP_BYTES_PART
                ):
                    # Without a newline the next file's first line would continue this one.
                    lacks_newline = last == size and read_at(file, last - 1, 1) != b"\n"
                    lines.append(Range(range_.file, first, last, int(lacks_newline)))
            except OSError as error:
                raise _unreadable(path, error) from error
        return lines

    def read(self, whole: Sequence[Range]) -> bytes:
        """The bytes of whole lines, in this order; threads may call it at the same time."""
        length, pieces, newlines, descriptors = 0, [], [], []
        try:
            for file, first, last, newline in whole:
                descriptors.append(self._files[file.path][0].fileno())
                pieces.append((length, first, last - first))
                length += last - first
                if newline:
                    newlines.append((length, b"\n"))
                    length += 1
            return gathered(descriptors, length, newlines, pieces) if pieces else b""
        except OSError as error:
            raise _unreadable(whole[0].file.path, error) from error


def _unreadable(path: str, error: OSError) -> DataError:
    return DataError(
        f"cannot read {path}: {error.strerror or error}. Leave the input where it is until the job "
        "ends"
    )


class TextParts:
    """A block's lines, divided into parts for threads; made by `open_parts`, and to be closed.

    `parts`: by part and text, the ranges of whole lines.
    """

    def __init__(self, files: OpenFiles, parts: list[list[list[Range]]]) -> None:
        self.parts, self._files, self.close = parts, files, files.close

    def texts(self, part: int) -> Iterator[Text]:
        """The texts of a part, each read when it is asked for; each thread takes another part."""
        for ranges in self.parts[part]:
            start = min(range_.first for range_ in ranges)
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

    The thread that parses a part also reads it, so that it parses from its own cache.  None: read
    the block as one, because it would have a single part, or the files are too many, unreadable
    (reading them reports it), matrix files, or a driver's.
    """
    parts = (stop - start) // part_bytes
    if parts < 2 or len(files) > OPEN_MAX or is_driver_file(files[0].path):
        return None
    with contextlib.suppress(DataError), contextlib.ExitStack() as stack:
        opened = stack.enter_context(contextlib.closing(OpenFiles(files, scratch)))
        if not opened.is_matrix():
            whole = [
                [opened.whole(text) for text in _cut_at_beginnings(_ranges_in(files, ranges))]
                for ranges in even_parts(strands(start, stop, spread), parts)
            ]
            non_empty = [[text for text in texts if text] for texts in whole]
            stack.pop_all()
            return TextParts(opened, [texts for texts in non_empty if texts] or [[]])
    return None
