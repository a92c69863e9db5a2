"""Tasks of a filter: input files or parts of them, each with the name of its output.

    paths -> tasks_of -> Task: path, name, part, bytes, version

Owns the names of outputs and how a changed input is noticed.  Must not know models or conditions.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from snailps.data.formats.table import TableFile, class_of, open_table
from snailps.errors import ConfigError, DataError
from snailps.files.formats import FORMATS, Format, format_of
from snailps.files.unpacking import MARK, is_sequential, is_url, read_errors, version_of
from snailps.vectors.calibration import path_beside


def open_rows(path: str, *, skips_bad: bool = False) -> TableFile:
    """Open a file to filter; `skips_bad` as in `open_table`.

    DataError: a packed Parquet, Arrow or ORC file, which cannot be read without seeking.
    """
    format = format_of(path)
    if format is not None and is_sequential(path) and not class_of(format).is_stream:
        raise DataError(
            f"{path}: filtering {FORMATS[format].title} needs a file that is not packed, because "
            "its parts are read out of order: unpack it"
        )
    return open_table(path, skips_bad=skips_bad)


class Task(NamedTuple):
    """An input file, or a part of it, and the name of its output.

    `groups`: row groups or stripes, first and after the last; None: the whole file.  `version`
    changes when the file's content does; empty: unknown (a URL without ETag and date).
    """

    path: str
    name: str
    groups: tuple[int, int] | None
    bytes: int
    version: str


def task_line(task: Task) -> bytes:
    """A task as a line of a list for workers."""
    return json.dumps(task).encode() + b"\n"


def task_of(line: bytes) -> Task:
    path, name, groups, size, version = json.loads(line)
    return Task(path, name, tuple(groups) if groups else None, size, version)


def tasks_of(paths: Sequence[str], column: str, task_bytes: int) -> list[Task]:
    """Tasks of these files, in their order; outputs are named as in `names_of`.

    A file with parts (row groups of Parquet, stripes of ORC) is cut between them into tasks of at
    most `task_bytes`, or of a single part that is larger.  Its outputs are ``name-00000.parquet``,
    ...  ConfigError: two tasks would have the same output.
    """
    tasks: list[Task] = []
    for path, name in zip(paths, names_of(paths), strict=True):
        _check(path, column)
        version, cuts = version_now(path), _cuts(path, task_bytes)
        if len(cuts) < 2:
            size = cuts[0][1] if cuts else _size(path)
            tasks.append(Task(path, name, None, size, version))
            continue
        ending = f".{format_of(path)}"
        stem = name.removesuffix(ending)
        tasks += [
            Task(path, f"{stem}-{number:05d}{ending}", groups, size, version)
            for number, (groups, size) in enumerate(cuts)
        ]
    first: dict[str, Task] = {}
    for task in tasks:
        other = first.setdefault(task.name, task)
        if other is not task:
            raise ConfigError(
                f"{task.path} and {other.path} would both be written to {task.name}: rename one"
            )
    return tasks


def names_of(paths: Sequence[str]) -> list[str]:
    """Relative names: paths below the folder that all local files share, or that all URLs share.

    Folders that name a column (``day=7/``) stay in the name even if all files share them: a reader
    of the outputs finds the column there.
    """

    def parts_of(path: str) -> list[str]:
        words = urlsplit(path)
        host = words.netloc.rpartition("@")[2]
        parts = [host, *words.path.split("/")] if is_url(path) else path.split("/")
        return [part for part in parts if part not in ("", ".", "..")]

    def before_columns(path: str) -> int:
        mark = MARK.search(path)
        return len(parts_of(path[: mark.start()])) if mark else len(parts_of(path)) - 1

    shared = {True: 0, False: 0}  # leading parts that all have, of URLs and of local files
    for are_urls in shared:
        alike = [path for path in paths if is_url(path) == are_urls]
        folders = [parts_of(path)[: before_columns(path)] for path in alike]
        # What the first and the last one in sorted order share, all between them share.
        pairs = zip(min(folders, default=[]), max(folders, default=[]), strict=False)
        shared[are_urls] = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return ["/".join(parts_of(path)[shared[is_url(path)] :]) for path in paths]


def version_now(path: str) -> str:
    """A text that changes when a file's content does: its size, time and inode.

    Of a URL its ETag or date; empty if the server names neither.  DataError: a pipe or a device,
    which cannot be read again.
    """
    if is_url(path):
        return version_of(path)
    with read_errors(path):
        status = Path(path).stat()
    if not stat.S_ISREG(status.st_mode):
        raise DataError(
            f"{path} is no regular file, and a filter reads its input more than once: write what "
            "it has into a file"
        )
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"


def version_of_model(path: str) -> str:
    """`version_now` of a model's file and of the calibration beside it, if there is one."""
    beside = path_beside(path)
    if not beside.exists():
        return version_now(path)
    return f"{version_now(path)} {version_now(str(beside))}"


def _check(path: str, column: str) -> None:
    """ConfigError or DataError: a format that is not filtered, or a column too many or too few."""
    format = format_of(path)
    if not class_of(format).is_written:
        titles = ", ".join(table.title for table in _tables())
        raise DataError(f"{path} is {format}: filter reads {titles} and text: convert it")
    if format is not None and not column:
        raise ConfigError(f"{path} is a table: name the column of its texts, --column NAME")
    if format is None and column:
        *first, last = (table.endings[0] for table in _tables())
        raise ConfigError(
            f"--column {column}: {path} is text, by its name, and has no columns; tables are "
            f"{', '.join(first)} and {last}"
        )


def _tables() -> list[Format]:
    """The formats of tables that are filtered."""
    return [format for format in FORMATS.values() if class_of(format.name).is_written]


def _size(path: str) -> int:
    return 0 if is_url(path) else Path(path).stat().st_size


def _cuts(path: str, task_bytes: int) -> list[tuple[tuple[int, int], int]]:
    """`TableFile.cuts` of a file; empty: it has no parts."""
    if not class_of(format_of(path)).has_parts:
        return []
    with open_rows(path) as table:
        return table.cuts(task_bytes)
