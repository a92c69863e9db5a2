"""Which files are tables: the formats that have rows, known by their endings.

    path -> format_of -> the name of its format

`data/formats/` has a module a format, which reads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from snailps.files.unpacking import bare_name


class Format(NamedTuple):
    """A format; `reader`: module of data/formats/ and class; `said`: what a message calls its files
    where text is expected, if not the name."""

    name: str
    title: str
    endings: tuple[str, ...]
    reader: str
    said: str = ""


_ARROW = (".arrow", ".feather", ".arrows", ".ipc")
FORMATS = {
    format.name: format
    for format in (
        Format(
            "parquet", "Parquet", (".parquet", ".parq"), "parquet.ParquetFile", "is a Parquet file"
        ),
        Format("arrow", "Arrow", _ARROW, "arrow.ArrowFile", "is an Arrow file"),
        Format("orc", "ORC", (".orc",), "orc.OrcFile", "is an ORC file"),
        Format(
            "jsonl",
            "JSON lines",
            (".jsonl", ".ndjson"),
            "json_lines.JsonLinesFile",
            "has JSON lines",
        ),
        Format("csv", "CSV", (".csv",), "separated.SeparatedFile"),
        Format("tsv", "TSV", (".tsv",), "separated.SeparatedFile"),
    )
}  # fmt: skip
_BY_ENDING = {ending: format.name for format in FORMATS.values() for ending in format.endings}
*_FIRST, _LAST = (ending for format in FORMATS.values() for ending in format.endings[:2])
ENDINGS = f"{', '.join(_FIRST)} or {_LAST}, packed or not"
"""The usual file endings, for messages."""


def format_of(path: str) -> str | None:
    """The format of a table, by its file ending (.gz and the like apart); None: no table."""
    return _BY_ENDING.get(Path(bare_name(path)).suffix)
