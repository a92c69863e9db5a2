"""Tasks of a filter: files of the input, or parts of them, each with the name of its output.

paths -> tasks_of -> Task: path, name, part, bytes, version
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from snailps.data.formats import FORMATS, Format, format_of
from snailps.data.formats.table import TableFile, class_of, open_table
from snailps.data.unpacking import MARK, is_sequential, is_url, read_errors, version_of
from snailps.errors import ConfigError, DataError


def open_rows(path: str) -> TableFile:
    """Open a file of rows that some are taken of; DataError: it is read from its beginning only."""
    format = format_of(path)
    if format is not None and is_sequential(path) and not class_of(format).is_stream:
        raise DataError(
            f"{path}: filtering {FORMATS[format].title} needs a file that is not packed, and can "
            "be sought in"
        )
    return open_table(path)


class Task(NamedTuple):
    """A file of the input, or a part of it, and the name of its output.

    `version` of the file differs when its content does; empty: not known.
    """

    path: str
    name: str
    groups: tuple[int, int] | None
    bytes: int
    version: str


def tasks_of(paths: Sequence[str], column: str, task_bytes: int) -> list[Task]:
    """Parts of files, each with the name of its output: as below the folder that all are in.

    A file with parts, as the groups of rows of Parquet, is cut between them, so that none but a
    single one has more than `task_bytes`.
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
            raise ConfigError(f"{task.path} and {other.path} would both be {task.name}")
    return tasks


def names_of(paths: Sequence[str]) -> list[str]:
    """Relative names: below the folder that all local files are in, and that of all URLs.

    Columns in the names of folders stay there, even if all files have the same.
    """

    def parts_of(path: str) -> list[str]:
        words = urlsplit(path)
        host = words.netloc.rpartition("@")[2]
        parts = [host, *words.path.split("/")] if is_url(path) else path.split("/")
        return [part for part in parts if part not in ("", ".", "..")]

    def before_columns(path: str) -> int:
        mark = MARK.search(path)
        return len(parts_of(path[: mark.start()])) if mark else len(parts_of(path)) - 1

    same = {True: 0, False: 0}
    for kind in same:
        of_kind = [path for path in paths if is_url(path) == kind]
        split = [parts_of(path)[: before_columns(path)] for path in of_kind]
        pairs = zip(min(split, default=[]), max(split, default=[]), strict=False)
        same[kind] = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return ["/".join(parts_of(path)[same[is_url(path)] :]) for path in paths]


def version_now(path: str) -> str:
    """Return a text that differs when a file's content does; empty for some URLs, as unknown."""
    if is_url(path):
        return version_of(path)
    with read_errors(path):
        found = Path(path).stat()
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"{path} is no regular file, which a filter can read more than once")
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"


def _check(path: str, column: str) -> None:
    kind = format_of(path)
    if not class_of(kind).is_written:
        has = ", ".join(format.title for format in _tables())
        raise DataError(f"{path} is {kind}: filter has {has} and text")
    if kind is not None and not column:
        raise ConfigError(f"{path} is a table: name the column of its texts, --column NAME")
    if kind is None and column:
        *first, last = (format.endings[0] for format in _tables())
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
    if not class_of(format_of(path)).has_parts:
        return []
    with open_rows(path) as table:
        return table.cuts(task_bytes)
