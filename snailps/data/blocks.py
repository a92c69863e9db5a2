"""Input files, their division into blocks, and the bytes of a block.

    files, folders, globs -> expand -> Sources -> cut -> Pieces (what the master leases)
    Piece -> strands -> ranges of its file: one, or some all over it
          -> read_block -> the bytes of the units that begin in it

A unit is a word or a line, and belongs to the block that holds its first byte, so a cut may fall
anywhere.  **The blocks of a file, read in order, are the file, byte for byte, and no unit is
split.**  A block spread in strands, or over several files (`joined`), has the same units in
another order.  Matrix files (`matrix_file`) are cut by rows; a block of one is a matrix file, too.
No vocabulary, no leases.
"""

from __future__ import annotations

import glob
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, NoReturn

from snailps.config.fields import home_expanded
from snailps.data.driver_files import is_driver_file, size_of
from snailps.data.file_kinds import (
    BOM,
    CSV_BYTES,
    HEAD_BYTES,
    UNIT_BYTES_MAX,
    first_line_of,
    refuse_foreign,
    refuse_header,
)
from snailps.data.lakes import files_of_table, kind_of_folder
from snailps.data.matrix_file import (
    HEADER_BYTES,
    gather,
    head_of_matrix,
    is_matrix,
    read_matrix_block,
    rows_of_matrix,
)
from snailps.data.partitions import columns_of_folders, marked
from snailps.data.reading import Reading
from snailps.data.scratch import Scratch, open_input
from snailps.data.unpacking import (
    DAMAGED,
    MARK,
    files_of_url,
    in_hidden_folder,
    is_hidden,
    is_packed,
    is_url,
    open_content,
    read_errors,
    root_of_pattern,
)
from snailps.data.word_counts import SEPARATORS
from snailps.dataclass import dataclass
from snailps.errors import DataError
from snailps.pieces import Piece

Unit = Literal["word", "line"]
Place = Callable[[int], tuple[str, int]]
"""Byte i of a text, or row i of a matrix file -> file, byte or row there, -1 if unknown."""

OF_FILTERS = frozenset(("_manifest.json", "_report.html"))
"""Files that `snailps filter` leaves beside its outputs, in a folder that may be input again."""
# Read step of the search for the end of a unit: a word ends within the first one.
STEP_BYTES = 1 << 16
# The same for a part's lines, and for strands.
STEP_BYTES_PART = 1 << 12
# Ranges of a spread block.  Of a file sorted by class each block's share of a class is off by a
# 32nd at most; a block of 8 MiB is read in steps of 256 KiB.
STRANDS = 32
# 0, 16, 8, 24, ...: bits reversed.
_BANDS = [int(f"{band:05b}"[::-1], 2) for band in range(STRANDS)]
# Requested instead of a unit: the head of a block's file.
HEAD = "head"

# A unit begins at 0 and behind each of these.  So a newline stays with the word before it, and a
# blank between words is a unit of its own.
_ENDS = {"word": re.compile(b"[%b]" % SEPARATORS), "line": re.compile(rb"\n")}
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """One input file: absolute path or URL, bytes of its content (of a table: of what is read)."""

    path: str
    bytes: int


def expand(inputs: Sequence[str], scratch: Scratch) -> list[Source]:
    """The input files, in the order of `inputs`, each once, all checked to be readable.

    `inputs` are files, folders (all files below by name, without hidden ones), glob patterns (`**`
    crosses folders) and URLs; a name that exists is never a pattern.  `scratch` unpacks files,
    which is the only way to learn their size, and reads tables.  Refuses what is missing, empty, no
    regular file, or of a format that no model reads.
    """
    if not inputs:
        raise DataError("expected at least one input file, folder or pattern, got none")
    sources = [Source(path, _readable_bytes(path, scratch)) for path in files_of(inputs)]
    _refuse_empty([source.path for source in sources if source.bytes == 0], len(sources))
    return sources


def openable(inputs: Sequence[str]) -> list[str]:
    """The input files as `expand` finds them, each opened, and none copied or unpacked."""
    paths, empty = files_of(inputs), []
    for path in paths:
        if is_driver_file(path):
            continue
        with read_errors(path):
            if not is_url(path) and not stat.S_ISREG(Path(path).stat().st_mode):
                raise DataError(f"expected a regular file, got something else: {path}")
            with open_content(path) as file:
                if not file.read(1):
                    empty.append(path)
    _refuse_empty(empty, len(paths))
    return paths


def _refuse_empty(empty: list[str], count: int) -> None:
    if empty and len(empty) == count:
        raise DataError(f"the input is empty: {_names(empty)} has no content. Name a file that has")
    if empty:
        raise DataError(
            f"an input file is empty: {_names(empty)}. Remove it or leave it out; "
            "a file that should have content may have been cut off"
        )


def files_of(inputs: Sequence[str]) -> list[str]:
    """Absolute paths of the input files; see `expand`.

    Names that begin with a dot or underscore are hidden in a named folder, and folders of such
    names in patterns that do not name them.  A folder with a list of its files, as Delta's, has
    these files.  A file below several named folders has the columns of the topmost one.
    """
    tables: dict[str, Listed | None] = {}
    files: dict[str, str] = {}
    for text in inputs:
        for path in _files_of(text, tables):
            file = MARK.sub("/", path, count=1)
            before = columns_of_folders(files.setdefault(file, path))
            if len(columns_of_folders(path)) > len(before):
                files[file] = path
    return list(files.values())


def test_files(paths: Sequence[str]) -> list[str]:
    """`files_of` test files; refuses empty ones and pipes, as a training comes before they are
    read."""
    found = files_of(paths)
    for path in found:
        if is_driver_file(path) or is_url(path):
            continue
        if not Path(path).is_file():
            raise DataError(f"expected a regular file, got something else: {path}")
        with read_errors(path), open_input(path) as file:
            if not file.read(1):
                raise DataError(f"{path} is empty: name a file that has content, or leave it out")
    return found


def head_of(path: str) -> bytes:
    """The first whole lines of a file's content, up to 64 KiB; of a matrix file its first rows.

    Empty if unreadable: no regular file, one endless line, a packed matrix file.
    """
    try:
        if not (is_driver_file(path) or is_url(path) or Path(path).is_file()):
            return b""
        with open_input(path) as file:
            data = file.read(STEP_BYTES)
            if not is_driver_file(path):
                refuse_foreign(data[:HEAD_BYTES], path)
            if is_matrix(data):
                packed = is_packed(path) or is_url(path)
                return b"" if packed else head_of_matrix(file, path)
            return data if len(data) < STEP_BYTES else data[: data.rfind(b"\n") + 1]
    except (OSError, *DAMAGED):  # `expand` raises the error again
        return b""


def read_head(path: str, scratch: Scratch) -> bytes:
    """The beginning of a file, up to its `first_line_of`: how its lines are to be read."""
    with read_errors(path), scratch.open(path) as file:
        data = b""
        while step := file.read(max(STEP_BYTES, len(data))):
            data += step
            line = first_line_of(data)
            end = data.find(b"\n", data.index(line)) if line else -1
            if end >= 0:
                return data[:end]
            if len(data) > UNIT_BYTES_MAX:
                raise DataError(f"{path} has no line in {len(data):,} bytes: is it text?")
        return data


def cut(sources: Sequence[Source], block_bytes: int) -> list[Piece]:
    """Cut each source into even pieces of 1 to `block_bytes` bytes."""
    if block_bytes < 1:
        raise ValueError(f"expected block_bytes of at least 1, got {block_bytes}")
    pieces: list[Piece] = []
    for source in sources:
        count = -(-source.bytes // block_bytes)
        for i in range(count):
            start, stop = source.bytes * i // count, source.bytes * (i + 1) // count
            pieces.append(Piece(source.path, start, stop))
    return pieces


def strands(start: int, stop: int, spread: int) -> list[tuple[int, int]]:
    """The ranges of a file that a block consists of, none of them empty.

    A file of `spread` bytes has `STRANDS` bands of equal length; the block takes [start / STRANDS,
    stop / STRANDS) of each.  So **blocks that partition the file partition it when spread, too**.
    The order of the bands spreads each part of the block as well; the file's beginning is first.
    With `spread` 0 a block is one range.
    """
    if not spread:
        return [(start, stop)] if start < stop else []
    ranges = [
        (-(-(band * spread + start) // STRANDS), -(-(band * spread + stop) // STRANDS))
        for band in _BANDS
    ]
    return [(first, last) for first, last in ranges if first < last]


def read_block(path: str, start: int, stop: int, *, unit: Unit, scratch: Scratch) -> bytes:
    """The bytes of the units whose first byte lies in a block.

    Of a matrix file, read by lines: some of its rows, as a matrix file.  Refuses a file that became
    shorter, or has a unit above 1 GiB.  Finds the ends of a range in steps, then reads between them
    in one piece, without another copy.
    """
    if not 0 <= start <= stop:
        raise ValueError(f"expected 0 <= start <= stop, got {start} and {stop}")
    if start == stop:
        return b""
    return read_ranges(path, [(start, stop)], stop, unit=unit, scratch=scratch)


def read_ranges(
    path: str, ranges: Sequence[tuple[int, int]], least_bytes: int, *, unit: Unit, scratch: Scratch
) -> bytes:
    """Read ranges, one or more, as `read_block` does, of a file of at least `least_bytes`."""
    try:
        with scratch.open(path) as file:
            size = file.seek(0, os.SEEK_END)
            if size < least_bytes:
                raise shorter(path, least_bytes, size)
            if unit == "line" and is_matrix_file(file):
                return read_matrix_block(file, path, ranges, size)
            step_bytes = STEP_BYTES if len(ranges) == 1 else STEP_BYTES_PART
            at, pieces = 0, []
            for first, last in whole_units(file, path, ranges, size, unit, step_bytes):
                pieces.append((at, first, last - first))
                at += last - first
            return gather(file, at, [], pieces)
    except OSError as error:
        start, stop = min(ranges)[0], max(ranges)[1]
        raise DataError(
            f"cannot read {path} (bytes {start:,} to {stop:,}): {error.strerror or error}. "
            "The input has to stay where it is until the job ends"
        ) from error


def is_matrix_file(file: BinaryIO) -> bool:
    """Whether an open file is a matrix file; leaves the position behind the header."""
    file.seek(0)
    return is_matrix(file.read(HEADER_BYTES))


def shorter(path: str, expected: int, got: int) -> DataError:
    return DataError(
        f"{path} became shorter: expected at least {expected:,} bytes, got {got:,}. "
        "Do not change the input during a job"
    )


def place_in_file(
    path: str, ranges: Sequence[tuple[int, int]], offset: int, *, unit: Unit, scratch: Scratch
) -> int:
    """Position in the file of byte `offset` of what `read_ranges` returned; -1: unreadable.

    Of a matrix file the number of the row that is row `offset` there.
    """
    try:
        with scratch.open(path) as file:
            size = file.seek(0, os.SEEK_END)
            if unit == "line" and is_matrix_file(file):
                return _place(rows_of_matrix(file, path, ranges, size), offset)
            return _place(whole_units(file, path, ranges, size, unit), offset)
    except (OSError, DataError):
        return -1


def _place(ranges: Sequence[tuple[int, int]], offset: int) -> int:
    for first, last in ranges:
        if offset < last - first:
            return first + offset
        offset -= last - first
    return -1


def whole_units(
    file: BinaryIO,
    path: str,
    ranges: Sequence[tuple[int, int]],
    size: int,
    unit: Unit,
    step_bytes: int = STEP_BYTES,
) -> list[tuple[int, int]]:
    """The units that begin in each of these ranges of a file, as ranges, none of them empty.

    The end of the file comes last, as its last line may have no newline.
    """
    end, found = _ENDS[unit], []
    for start, stop in ranges:
        # The byte before decides whether a unit begins at `start`.
        first = behind_unit(file, end, path, start - 1, stop, step_bytes) if start else 0
        if first < stop:  # else no unit begins in the range
            last = behind_unit(file, end, path, stop - 1, size, step_bytes)
            found.append((first, last))
    return sorted(found, key=lambda one: one[1] == size)


def read_at(file: BinaryIO, at: int, size: int) -> bytes:
    """Up to `size` bytes of a file; of a local one by one call."""
    try:
        return os.pread(file.fileno(), size, at)
    except OSError:  # io.UnsupportedOperation, or what reading raises again
        file.seek(at)
        return file.read(size)


def even_parts(ranges: Sequence[tuple[int, int]], parts: int) -> list[list[tuple[int, int]]]:
    """Ranges in sequence, cut into `parts` parts of about the same length."""
    total, at = sum(last - first for first, last in ranges), 0
    found: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
    for first, last in ranges:
        while first < last:
            part = at * parts // total
            behind = -(-(part + 1) * total // parts)  # this part's end in the sequence
            stop = min(last, first + behind - at)
            found[part].append((first, stop))
            at, first = at + stop - first, stop
    return found


def behind_unit(
    file: BinaryIO,
    end: re.Pattern[bytes],
    path: str,
    at: int,
    stop: int,
    step_bytes: int = STEP_BYTES,
) -> int:
    """The end of the unit that byte `at` belongs to; at most `stop`."""
    begin = at
    while at < stop and (step := read_at(file, at, step_bytes)):
        found = end.search(step)
        if found:
            return min(at + found.end(), stop)
        at += len(step)
        if at - begin > UNIT_BYTES_MAX:
            raise DataError(
                f"{path} has no separator in {at - begin:,} bytes from byte {begin:,} on: "
                "is it text?"
            )
    return stop


Listed = tuple[str, str, frozenset[str]]
"""A folder with a list of its files (`lakes`): the folder, its kind, the files that are listed."""


def _files_of(text: str, tables: dict[str, Listed | None]) -> list[str]:
    if is_driver_file(text):
        return [text]
    if is_url(text):
        return [marked(url, rest) for url, rest in files_of_url(text)]
    path = Path(home_expanded(text))
    if path.is_dir():
        files = list(_files_below(_absolute(path), tables))
        if not files:
            raise DataError(f"expected files in the folder {text}, found none (hidden ones apart)")
        return files
    if os.path.lexists(path):
        file = _absolute(path)
        if (table := _table_around(str(Path(file).parent), tables)) and file not in table[2]:
            raise DataError(
                f"{file} is in the {table[1]} table {table[0]}, and none of its files as it is "
                "now: name the folder"
            )
        return [file]
    if not glob.has_magic(text):
        raise DataError(
            f"input not found: {text} does not exist (seen from {Path.cwd()}). "
            "Correct the path, or mount its folder here"
        )
    found = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 (may be absolute)
    root, files = root_of_pattern(str(path)), []
    folder = _absolute(Path(root))
    for name in found:
        rest = name.removeprefix(root)
        if Path(name).is_dir() or Path(name).name in OF_FILTERS or in_hidden_folder(rest, text):
            continue
        file = _absolute(Path(folder, rest))
        table = _table_around(str(Path(file).parent), tables)
        if table is None or file in table[2]:
            files.append(marked(file, rest))
    if not files:
        raise DataError(f"the pattern {text} matches no file (seen from {Path.cwd()})")
    return files


def _absolute(path: Path) -> str:
    """One name for a file, also through another folder's ``..``."""
    return str(path.resolve() if ".." in path.parts else path.absolute())


def _table_around(folder: str, tables: dict[str, Listed | None]) -> Listed | None:
    """The table with a list of its files that a folder is, or is in; `tables`: those of folders
    that were asked of."""
    if folder not in tables:
        kind = kind_of_folder(folder)
        if kind is not None and kind != "splits of save_to_disk":
            tables[folder] = folder, kind, frozenset(files_of_table(folder, kind))
        else:
            above = str(Path(folder).parent)
            tables[folder] = None if above == folder else _table_around(above, tables)
    return tables[folder]


def _files_below(folder: str, tables: dict[str, Listed | None]) -> Iterator[str]:
    """Files of a folder and of those below, linked ones too; no folder twice."""
    seen: set[tuple[int, int]] = set()
    around = _table_around(folder, tables)

    def refuse(error: OSError) -> NoReturn:
        raise DataError(f"cannot list the folder {error.filename}: {error.strerror}") from error

    for where, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        try:
            found = Path(where).stat()
        except OSError as error:
            refuse(error)
        if (place := (found.st_dev, found.st_ino)) in seen:
            folders.clear()
            continue
        seen.add(place)
        kind = None if around else kind_of_folder(where)
        table = around
        if kind is not None:
            table = where, kind, frozenset(files_of_table(where, kind))
        if table is not None and table[0] == where:
            folders.clear()
            files = sorted(table[2])
        else:
            folders[:] = sorted(name for name in folders if not is_hidden(name))
            visible = (name for name in sorted(names) if not is_hidden(name))
            files = [str(Path(where) / name) for name in visible if name not in OF_FILTERS]
        for file in files:
            if table is None or file in table[2]:
                # The transforms of an Iceberg table, as day(at), are no columns.
                is_column = table is None or table[1] != "Iceberg"
                yield marked(file, os.path.relpath(file, folder)) if is_column else file


def _readable_bytes(path: str, scratch: Scratch) -> int:
    """Size of a file's content; opens it, so that a job does not start on what it cannot read."""
    if is_driver_file(path):
        with open_input(path) as file:
            file.read(1)
        return size_of(path)
    with read_errors(path):
        # Before opening: opening a named pipe would wait for a writer.
        if not is_url(path) and not stat.S_ISREG(Path(path).stat().st_mode):
            raise DataError(f"expected a regular file, got something else: {path}")
        local = scratch.local(path)
        with local.open("rb") as file:
            reading = Reading() if scratch.tables is None else scratch.tables.reading
            text = reading.form == "text"
            head = file.read(CSV_BYTES if text else HEAD_BYTES)
            refuse_foreign(head[:HEAD_BYTES], path, text=text)
            if text and not reading.column:
                refuse_header(head, path)
            if text and head.startswith(BOM):
                log.warning(
                    "%s begins with a byte order mark, which is read as letters of its first word, "
                    "as by fastText: sed -i '1s/^\\xef\\xbb\\xbf//' FILE removes it", path,
                )  # fmt: skip
            return os.fstat(file.fileno()).st_size


def _names(paths: list[str]) -> str:
    shown = ", ".join(paths[:3])
    return shown if len(paths) <= 3 else f"{shown} and {len(paths) - 3} more"
