"""Columns of tables that stand in the names of folders, as Hive has them: `day=7/part-0.parquet`.

    path, its part below the named folder -> marked -> folder/./day=7/part-0.parquet
    such a path -> columns_of_folders -> {"day": "7"}, a text as in a cell of CSV, or None

Only folders below what was named as input have columns: `lr=0.1/train.csv` is where a user keeps
things.  The path says where they begin, by `/./`, as for rsync: it is the same file, and whoever
opens it, in whatever process, knows its columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from snailps.data.columns import Kind, kind_of_cells, kinds_of_cells
from snailps.data.formats import format_of
from snailps.data.unpacking import MARK

_COLUMN = re.compile(r"(?:^|/)([^/=]+=[^/]*)/")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""What Hive and Spark write in the place of null."""


def marked(path: str, rest: str) -> str:
    """A file's path, `rest` of it below a named folder; marked if a table's columns are there."""
    first = _COLUMN.search(rest)
    if first is None or format_of(rest) is None or not path.endswith(f"/{rest}"):
        return path
    begin = len(path) - len(rest) + first.start(1)
    return f"{path[:begin]}./{path[begin:]}"


def columns_of_folders(path: str) -> dict[str, str | None]:
    """Columns and values in the names of folders; None: null."""
    found = MARK.search(path)
    if found is None:
        return {}
    pairs = [name.partition("=") for name in path[found.end() :].split("/")[:-1]]
    return {
        unquote(name): None if value == _NO_VALUE else unquote(value)
        for name, is_column, value in pairs
        if is_column and name
    }


def kinds_of_folders(paths: Iterable[str]) -> dict[str, Kind]:
    """Kind of each column in the names of folders: as in CSV, by its values in all files."""
    values: dict[str, set[bytes]] = {}
    for path in paths:
        for name, text in columns_of_folders(path).items():
            cells = [] if text is None else [text.encode("utf-8", "surrogateescape")]
            values.setdefault(name, set()).update(cells)
    kinds = {name: kinds_of_cells(cells) for name, cells in values.items()}
    return {name: kind_of_cells(some) for name, some in kinds.items() if some}
