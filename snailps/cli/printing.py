"""Output of query commands: a table on a terminal, tab-separated lines everywhere else.

    columns, rows -> print_rows -> standard output          figures -> print_json -> one line

A person can read the answer, and `cut`, `sort` and `awk` can use it.  Must not know commands.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TextIO

import typer

Cell = str | int | float | None
JsonRowsOption = Annotated[
    bool,
    typer.Option("--json", help="Print a JSON object a row, with names.", metavar=""),
]
JsonObjectOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of rows.", metavar="")
]


def is_live(stream: TextIO) -> bool:
    """Whether a display may be redrawn in place: a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def print_rows(
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    title: str = "",
    *,
    as_json: bool = False,
) -> None:
    """Print rows under `columns`: four decimals in a table, six in a line; None as ``-``.

    Words that are not UTF-8 are written as their original bytes (lines) or marked (table).  With
    `as_json` each row is a JSON object on a line of its own, with the columns as names.
    """
    if as_json:
        for row in rows:
            cells = [_printable(cell) if isinstance(cell, str) else cell for cell in row]
            print_json(dict(zip(columns, cells, strict=True)))
        return
    if sys.stdout.isatty():
        _print_table(columns, rows, title)
        return
    for row in rows:
        line = "\t".join(_text(cell, 6) for cell in row) + "\n"
        typer.echo(line.encode("utf-8", "surrogateescape"), nl=False)


def print_figures(figures: Mapping[str, Any]) -> None:
    """Print figures by name, a row each; a list of figures as a separate table."""
    plain = {name: value for name, value in figures.items() if not isinstance(value, list)}
    print_rows(("figure", "value"), plain.items())
    for name, rows in figures.items():
        if isinstance(rows, list) and rows:
            print_rows(tuple(rows[0]), [tuple(row.values()) for row in rows], title=name)


def print_json(figures: Mapping[str, Any]) -> None:
    """Print one JSON object on one line; NaN and infinite figures as null."""
    typer.echo(json.dumps(_finite(figures), allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], title: str) -> None:
    # Imported here, so that a command in a pipe starts faster.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(_printable(title)) if title else None, title_justify="left")
    lines = [list(row) for row in rows]
    for place, column in enumerate(columns):
        numeric = all(not isinstance(line[place], str) for line in lines)
        table.add_column(column, justify="right" if numeric else "left")
    for line in lines:
        table.add_row(*(Text(_printable(_text(cell, 4))) for cell in line))
    Console().print(table)


def _text(cell: Cell, decimals: int) -> str:
    if cell is None:
        return "-"
    return f"{cell:.{decimals}f}" if isinstance(cell, float) else str(cell)


def _printable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
