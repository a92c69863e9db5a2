"""Formats of files that have rows: a module of this package each, and the table of them all.

    path -> format_of -> the name of its format, by its ending

A further format is a module whose `File` is a `TableFile` (table.py), and a row here: then it is
read in training, fit, predict and evaluation, and filtered if it has a `target`.  A module is
imported when the first such file is opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from snailps.data.unpacking import bare_name


class Format(NamedTuple):
    """`said`: what a message says of a file that is no text for any model."""

    name: str
    title: str
    endings: tuple[str, ...]
    module: str
    said: str = ""


_ARROW = (".arrow", ".feather", ".arrows", ".ipc")
FORMATS = {
    format.name: format
    for format in (
        Format("parquet", "Parquet", (".parquet", ".parq"), "parquet", "is a Parquet file"),
        Format("arrow", "Arrow", _ARROW, "arrow", "is an Arrow file"),
        Format("orc", "ORC", (".orc",), "orc", "is an ORC file"),
        Format("jsonl", "JSON lines", (".jsonl", ".ndjson"), "json_lines", "has JSON lines"),
        Format("csv", "CSV", (".csv",), "separated"),
        Format("tsv", "TSV", (".tsv",), "separated"),
    )
}
_BY_ENDING = {ending: format.name for format in FORMATS.values() for ending in format.endings}
*_FIRST, _LAST = (ending for format in FORMATS.values() for ending in format.endings[:2])
ENDINGS = f"{', '.join(_FIRST)} or {_LAST}, packed or not"
"""The usual endings, for messages."""


def format_of(path: str) -> str | None:
    """The format of a table, by its ending; None: it is another file."""
    return _BY_ENDING.get(Path(bare_name(path)).suffix)
