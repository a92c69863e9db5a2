"""Input files, how they are cut into blocks, and the bytes of a block.

    files, folders, globs -> expand -> InputFile, each -> cut -> Pieces (what the master leases)
    Piece -> strands -> ranges of its file: one, or 32 spread over it
          -> read_block -> the bytes of the units that begin in it

A unit is a word or a line.  It belongs to the block that holds its first byte, so a cut may fall
anywhere.  **The blocks of a file, read in order, are the file, byte for byte, and no unit is
split.**  A block spread in strands, or over several files (`joined`), has the same units in
another order.  Matrix files (`matrix_file`) are cut by rows, and a block of one is a matrix file.
Input files must stay as they are during a job: one that became shorter is refused, but one that was
rewritten with the same length is not noticed.
Must not know vocabularies or leases.
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

from snailps.config.fields import GONE, current_folder, home_expanded
from snailps.dataclass import dataclass
from snailps.errors import DataError
from snailps.files.driver_files import is_driver_file, size_of
from snailps.files.file_kinds import (
    BOM,
    CSV_BYTES,
    HEAD_BYTES,
    SEPARATORS,
    SHOWING_BYTES,
    UNIT_BYTES_MAX,
    first_line_of,
    refuse_foreign,
)
from snailps.files.lakes import files_of_table, kind_of_folder, refuse_listed_elsewhere
from snailps.files.matrix_file import (
    HEADER_BYTES,
    gather,
    head_of_matrix,
    is_matrix,
    read_matrix_block,
    rows_of_matrix,
)
from snailps.files.partitions import columns_of_folders, marked
from snailps.files.reading import Reading
from snailps.files.scratch import Scratch, open_input
from snailps.files.unpacking import (
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
from snailps.pieces import Piece

Unit = Literal["word", "line"]
Place = Callable[[int], tuple[str, int]]
"""Byte of a text, or row of a matrix file -> its file, and byte or row there (-1: unknown)."""

OF_FILTERS = frozenset(("_manifest.json", "_report.html"))
"""Files that `snailps filter` leaves beside its outputs, in a folder that may be input again."""
STEP_BYTES = 1 << 16
"""Read step of the search for the end of a unit: nearly every word ends within the first step."""
STEP_BYTES_PART = 1 << 12
"""The same where many ends are searched: the parts of a block, and strands."""
STRANDS = 32
"""Ranges of a spread block.

In a file sorted by class each block's share of a class is off by a 32nd at most; a block of 8 MiB
is still read in steps of 256 KiB."""
_BANDS = [int(f"{band:05b}"[::-1], 2) for band in range(STRANDS)]
"""Order of a block's strands: 0, 16, 8, 24, ..., the bits reversed."""
HEAD = "head"
"""What a worker may ask for instead of a unit: the head of a block's file."""

# A unit begins at 0 and after each of these bytes.  So a newline stays with the word before it, and
# a blank between words is a unit of its own.
_ENDS = {"word": re.compile(b"[%b]" % SEPARATORS), "line": re.compile(rb"\n")}
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InputFile:
    """An input file: absolute path or URL; bytes of its content, or of what is made of a table."""

    path: str
    bytes: int


def expand(inputs: Sequence[str], scratch: Scratch) -> list[InputFile]:
    """The input files in the order of `inputs`, each once, all checked to be readable.

    `inputs` are files, folders (all files below by name, hidden ones apart), glob patterns (`**`
    crosses folders) and URLs; a name that exists is never a pattern.  `scratch` unpacks files, the
    only way to learn their size, and reads tables.  DataError: a file is missing, empty, no regular
    file, or of a format that no model reads.
    """
    if not inputs:
        raise DataError("expected at least one input file, folder or pattern, got none")
    sources = [InputFile(path, _readable_bytes(path, scratch)) for path in files_of(inputs)]
    _refuse_empty([source.path for source in sources if source.bytes == 0], len(sources))
    return sources


def openable(inputs: Sequence[str]) -> list[str]:
    """The input files that `expand` would find, each opened once, without copying or unpacking."""
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
            f"an input file is empty: {_names(empty)}. Remove it or leave it out. If it should "
            "have content, it may have been cut off"
        )


def files_of(inputs: Sequence[str]) -> list[str]:
    """Absolute paths of the input files, each once; see `expand`.

    Names that begin with a dot or underscore are hidden in a named folder; folders with such names
    also in patterns that do not name them.  A folder with a list of its files, such as a Delta
    table, has these files and no others.  A file below several named folders has the columns of the
    topmost one.
    """
    tables: dict[str, Listed | None] = {}
    paths: dict[str, str] = {}
    """By path without mark, the path with most columns."""
    for text in inputs:
        with read_errors(text):  # also of a folder on the way that may not be entered
            files = _files_of(text, tables)
        for path in files:
            file = MARK.sub("/", path, count=1)
            columns = columns_of_folders(paths.setdefault(file, path))
            if len(columns_of_folders(path)) > len(columns):
                paths[file] = path
    return list(paths.values())


def test_files(paths: Sequence[str]) -> list[str]:
    """`files_of` test files; DataError for an empty one or a pipe.

    They are read after the training, so their faults are looked for before it.
    """
    files = files_of(paths)
    for path in files:
        if is_driver_file(path) or is_url(path):
            continue
        if not Path(path).is_file():
            raise DataError(f"expected a regular file, got something else: {path}")
        with read_errors(path), open_input(path) as file:
            if not file.read(1):
                raise DataError(f"{path} is empty: name a file that has content, or leave it out")
    return files


def head_of(path: str, line_bytes: int = STEP_BYTES) -> bytes:
    """The first whole lines of a file's content, up to 64 KiB; a matrix file's first rows.

    A longer first line is read to its end, if that is among the first `line_bytes`, about.  Empty
    for a pipe, a file with one endless line, a packed matrix file, or an unreadable file.
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
            if len(data) < STEP_BYTES:
                return data
            while b"\n" not in data and len(data) < line_bytes:
                if not (step := file.read(len(data))):
                    return data
                data += step
            return data[: data.rfind(b"\n") + 1]
    except (OSError, *DAMAGED):  # `expand` reports it, with the path and what to do
        return b""


def read_head(path: str, scratch: Scratch) -> bytes:
    """The beginning of a file: its `first_line_of`, which says how to read all of its lines, and
    `SHOWING_BYTES` of what follows, which say whether that line names columns.

    A block in the middle of the file cannot tell its format by itself.
    """
    with read_errors(path), scratch.open(path) as file:
        data = b""
        while step := file.read(max(STEP_BYTES, len(data))):
            data += step
            line = first_line_of(data)
            end = data.find(b"\n", data.index(line)) if line else -1
            if end >= 0 and len(data) > end + SHOWING_BYTES:
                return data[: end + 1 + SHOWING_BYTES]
            if len(data) > UNIT_BYTES_MAX:
                raise DataError(f"{path} has no line in {len(data):,} bytes: is it text?")
        return data


def cut(sources: Sequence[InputFile], block_bytes: int) -> list[Piece]:
    """Cut each source into equal pieces of 1 to `block_bytes` bytes."""
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

    A file of `spread` bytes has `STRANDS` bands of equal length; the block takes bytes
    [start / STRANDS, stop / STRANDS) of each.  So **blocks that partition the file partition it
    when they are spread, too**.  Bands come in the order of `_BANDS`, so that each part of a block
    is spread over the file as well; the file's beginning comes first.  With `spread` 0 a block is
    one range.
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

    A matrix file, read by lines, gives the block's rows as a matrix file.  DataError: the file
    became shorter, has a unit above 1 GiB, or is unreadable.  Finds the ends of a range in small
    steps, then reads all between them at once, without a further copy.
    """
    if not 0 <= start <= stop:
        raise ValueError(f"expected 0 <= start <= stop, got {start} and {stop}")
    if start == stop:
        return b""
    return read_ranges(path, [(start, stop)], stop, unit=unit, scratch=scratch)


def read_ranges(
    path: str, ranges: Sequence[tuple[int, int]], least_bytes: int, *, unit: Unit, scratch: Scratch
) -> bytes:
    """As `read_block`, for one or more ranges of a file of at least `least_bytes`.

    A shorter file changed since the blocks were cut: some blocks would silently be empty.
    """
    try:
        with scratch.open(path) as file:
            size = file.seek(0, os.SEEK_END)
            if size < least_bytes:
                raise shorter(path, least_bytes, size)
            if unit == "line" and is_matrix_file(file):
                return read_matrix_block(file, path, ranges, size)
            step_bytes = STEP_BYTES if len(ranges) == 1 else STEP_BYTES_PART
            length, pieces = 0, []
            for first, last in whole_units(file, path, ranges, size, unit, step_bytes):
                pieces.append((length, first, last - first))
                length += last - first
            return gather(file, length, [], pieces)
    except OSError as error:
        start, stop = min(ranges)[0], max(ranges)[1]
        raise DataError(
            f"cannot read {path} (bytes {start:,} to {stop:,}): {error.strerror or error}. "
            "Leave the input where it is until the job ends"
        ) from error


def is_matrix_file(file: BinaryIO) -> bool:
    """Whether an open file is a matrix file; moves its position to the end of the header."""
    file.seek(0)
    return is_matrix(file.read(HEADER_BYTES))


def shorter(path: str, expected: int, got: int) -> DataError:
    """The error of a file that has fewer bytes than when its blocks were cut."""
    return DataError(
        f"{path} became shorter: expected at least {expected:,} bytes, got {got:,}. "
        "Do not change the input during a job"
    )


def place_in_file(
    path: str, ranges: Sequence[tuple[int, int]], offset: int, *, unit: Unit, scratch: Scratch
) -> int:
    """Where byte `offset` of what `read_ranges` returned is in the file; -1: unreadable.

    For a matrix file: the number in the file of row `offset` of the block.  For messages, so it may
    read again what the message is about.
    """
    try:
        with scratch.open(path) as file:
            size = file.seek(0, os.SEEK_END)
            if unit == "line" and is_matrix_file(file):
                return _place(rows_of_matrix(file, path, ranges, size), offset)
            return _place(whole_units(file, path, ranges, size, unit), offset)
    except (OSError, DataError):
        return -1  # the caller has a message of its own, which must not be lost to this one


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

    The range that ends with the file comes last: the file's last line may lack its newline, and
    a range after it would continue that line.
    """
    end, units = _ENDS[unit], []
    for start, stop in ranges:
        # The byte before decides whether a unit begins at `start`.
        first = behind_unit(file, end, path, start - 1, stop, step_bytes) if start else 0
        if first < stop:  # else no unit begins in the range
            last = behind_unit(file, end, path, stop - 1, size, step_bytes)
            units.append((first, last))
    return sorted(units, key=lambda range_: range_[1] == size)


def read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    """Up to `size` bytes at an offset; for a local file by one system call."""
    try:
        return os.pread(file.fileno(), size, offset)
    except OSError:  # no descriptor (io.UnsupportedOperation), or an error that `read` raises again
        file.seek(offset)
        return file.read(size)


def even_parts(ranges: Sequence[tuple[int, int]], parts: int) -> list[list[tuple[int, int]]]:
    """Ranges, taken as one sequence, cut into `parts` parts of about equal length."""
    total, done = sum(last - first for first, last in ranges), 0
    cut_parts: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
    for first, last in ranges:
        while first < last:
            part = done * parts // total
            part_end = -(-(part + 1) * total // parts)  # in the sequence
            stop = min(last, first + part_end - done)
            cut_parts[part].append((first, stop))
            done, first = done + stop - first, stop
    return cut_parts


def behind_unit(
    file: BinaryIO,
    end: re.Pattern[bytes],
    path: str,
    begin: int,
    stop: int,
    step_bytes: int = STEP_BYTES,
) -> int:
    """The end of the unit that byte `begin` belongs to; at most `stop`."""
    offset = begin
    while offset < stop and (step := read_at(file, offset, step_bytes)):
        match = end.search(step)
        if match:
            return min(offset + match.end(), stop)
        offset += len(step)
        if offset - begin > UNIT_BYTES_MAX:
            raise DataError(
                f"{path} has no separator in {offset - begin:,} bytes from byte {begin:,} on: "
                "is it text?"
            )
    return stop


Listed = tuple[str, str, frozenset[str]]
"""A folder with a list of its files (`lakes`): the folder, its kind, the listed files."""


def _files_of(text: str, tables: dict[str, Listed | None]) -> list[str]:
    """The files of one name of the input; `tables` as in `_table_around`."""
    if is_driver_file(text):
        return [text]
    if is_url(text):
        urls = files_of_url(text)
        for url, _ in urls:
            refuse_listed_elsewhere(url)
        return [marked(url, relative) for url, relative in urls]
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
                f"{file} is in the {table[1]} table {table[0]}, whose list does not have it: an "
                "earlier version's file, probably. Name the folder"
            )
        if table is None:
            refuse_listed_elsewhere(file)
        return [file]
    if not glob.has_magic(text):
        raise DataError(
            f"input not found: {text} does not exist (seen from {current_folder(GONE)}). "
            "Correct the path, or mount its folder here"
        )
    matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 (may be absolute)
    root, files = root_of_pattern(str(path)), []
    folder = _absolute(Path(root))
    for name in matches:
        relative = name.removeprefix(root)
        if Path(name).is_dir() or Path(name).name in OF_FILTERS:
            continue
        if in_hidden_folder(relative, text):
            continue
        file = _absolute(Path(folder, relative))
        table = _table_around(str(Path(file).parent), tables)
        if table is None or file in table[2]:
            files.append(_listed(file, relative, table))
    if not files:
        raise DataError(f"the pattern {text} matches no file (seen from {current_folder(GONE)})")
    return files


def _absolute(path: Path) -> str:
    """An absolute path; the same one for a file that is reached through ``..``."""
    return str(path.resolve() if ".." in path.parts else path.absolute())


def _table_around(folder: str, tables: dict[str, Listed | None]) -> Listed | None:
    """The table with a list of its files at a folder or above it; None: there is none.

    `tables` caches answers by folder: most files of an input share a few folders.
    """
    if folder not in tables:
        kind = kind_of_folder(folder)
        if kind is not None and kind != "splits of save_to_disk":
            tables[folder] = folder, kind, frozenset(files_of_table(folder, kind))
        else:
            above = str(Path(folder).parent)
            tables[folder] = None if above == folder else _table_around(above, tables)
    return tables[folder]


def _files_below(folder: str, tables: dict[str, Listed | None]) -> Iterator[str]:
    """Files of a folder and of the folders below it, through links too, in order of their names.

    No folder is entered twice: a link to a folder above would never end.
    """
    entered: set[tuple[int, int]] = set()
    around = _table_around(folder, tables)

    def refuse(error: OSError) -> NoReturn:
        raise DataError(f"cannot list the folder {error.filename}: {error.strerror}") from error

    for where, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        try:
            status = Path(where).stat()
        except OSError as error:
            refuse(error)
        if (identity := (status.st_dev, status.st_ino)) in entered:
            folders.clear()
            continue
        entered.add(identity)
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
                yield _listed(file, os.path.relpath(file, folder), table)


def _listed(file: str, relative: str, table: Listed | None) -> str:
    """The path of a file that was found by a folder or pattern, marked if folders are columns."""
    if table is None:
        refuse_listed_elsewhere(file)
    # Folders of an Iceberg table are named after transforms, such as day(at): the column itself is
    # in the files.
    elif table[1] == "Iceberg":
        return file
    return marked(file, relative)


def _readable_bytes(path: str, scratch: Scratch) -> int:
    """Size of a file's content.

    Opens the file and looks at its beginning, so that a job does not start on what it cannot read.
    """
    if is_driver_file(path):
        with open_input(path) as file:
            file.read(1)
        return size_of(path)
    with read_errors(path):
        # Checked before opening: opening a named pipe would wait for a writer.
        if not is_url(path) and not stat.S_ISREG(Path(path).stat().st_mode):
            raise DataError(f"expected a regular file, got something else: {path}")
        local = scratch.local(path)
        with local.open("rb") as file:
            reading = scratch.tables or Reading()
            text = reading.form == "text"
            head = file.read(CSV_BYTES if text else HEAD_BYTES)
            refuse_foreign(head[:HEAD_BYTES], path, text=text)
            reading.refuse_header(head, path)
            if text and head.startswith(BOM):
                log.warning(
                    "%s begins with a byte order mark, which becomes part of its first word, as in "
                    "fastText: sed -i '1s/^\\xef\\xbb\\xbf//' FILE removes it", path,
                )  # fmt: skip
            return os.fstat(file.fileno()).st_size


def _names(paths: list[str]) -> str:
    shown = ", ".join(paths[:3])
    return shown if len(paths) <= 3 else f"{shown} and {len(paths) - 3} more"
