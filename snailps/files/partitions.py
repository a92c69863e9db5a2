"""Columns in the names of folders, as Hive writes tables: `day=7/part-0.parquet`.

    path, its part below the input folder -> marked -> folder/./day=7/part-0.parquet
    marked path -> columns_of_folders -> {"day": "7"}: a text, like a cell of CSV, or None

Only folders below the one that was named as input are columns: in `lr=0.1/train.csv` the folder is
just where a user keeps a file.  The mark `/./` in the path, as in rsync, says where columns begin.
For the operating system it is the same file, so the path is all that a worker needs to know.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from snailps.files.formats import format_of
from snailps.files.unpacking import MARK

_COLUMN = re.compile(r"(?:^|/)([^/=]+=[^/]*)/")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""What Hive and Spark write for null."""


def marked(path: str, relative: str) -> str:
    """A file's path with the mark in front of its first folder that is a column.

    `relative` is the end of the path, below the input folder.  Unchanged without such folders, and
    for files that are no tables.
    """
    first = _COLUMN.search(relative)
    if first is None or format_of(relative) is None or not path.endswith(f"/{relative}"):
        return path
    begin = len(path) - len(relative) + first.start(1)
    return f"{path[:begin]}./{path[begin:]}"


def columns_of_folders(path: str) -> dict[str, str | None]:
    """Values of the columns in the names of folders; None: null."""
    mark = MARK.search(path)
    if mark is None:
        return {}
    pairs = [name.partition("=") for name in path[mark.end() :].split("/")[:-1]]
    return {
        unquote(name): None if value == _NO_VALUE else unquote(value)
        for name, is_column, value in pairs
        if is_column and name
    }
