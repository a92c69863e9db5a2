"""Output: rows of query commands, JSON lines, the panels and lines of a run.

    columns, rows -> print_rows -> a table on a terminal, tab-separated lines everywhere else
    figures       -> print_json -> one line
    View, Section, Ending (view.py) -> lines, or a picture for a terminal

Must not know commands, nor the words of what it prints.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from snailps.cli.figures import ASCII_SPARKS, SPARKS, sparkline

if TYPE_CHECKING:  # imported where a terminal is drawn, or a run shown
    from rich.console import RenderableType

    from snailps.cli.view import Ending, Process, View
    from snailps.node.phrases import Mood
    from snailps.node.status import Status

Cell = str | int | float | None
SPARK_COLUMNS = 40
"""Width of the curve of the loss, at most."""
NARROW = 100
"""Terminals with fewer columns have no room for hosts and process ids."""
STYLES: Mapping[Mood, str] = {"good": "green", "idle": "", "waits": "yellow", "bad": "red"}
SHOW_S = 0.2
LINE_S, LINE_S_MAX = 5.0, 60.0
"""Seconds between lines where there is no terminal: the first, and the longest."""
_HEAD_LINES = 8
"""Lines of a page on a terminal for titles, blank lines and the head."""
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


@contextlib.contextmanager
def live_line(line: Callable[[], str]) -> Iterator[None]:
    """Show how far something is while the block lasts, at the end of standard error.

    On a terminal in one line; elsewhere, as under cron or Slurm, in lines that are further and
    further apart, up to a minute.
    """
    live, over = is_live(sys.stderr), threading.Event()

    def show() -> None:
        pause = SHOW_S if live else LINE_S
        while not over.wait(pause):
            sys.stderr.write(f"\r\033[K{line()}" if live else f"{line()}\n")
            sys.stderr.flush()
            pause = pause if live else min(pause * 1.5, LINE_S_MAX)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if live:
            sys.stderr.write("\r\033[K")


def print_rows(
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    title: str = "",
    *,
    as_json: bool = False,
) -> None:
    """Print rows under `columns`: four decimals in a table, in a line all digits; None as ``-``.

    What a line has of a float, of Python or NumPy, is read as that float again.

    Words that are not UTF-8 are written as their original bytes (lines) or marked (table).  With
    `as_json` each row is a JSON object on a line of its own, with the columns as names.
    """
    if as_json:
        for row in rows:
            cells = [_printable(cell) if isinstance(cell, str) else _plain(cell) for cell in row]
            print_json(dict(zip(columns, cells, strict=True)))
        return
    if sys.stdout.isatty():
        _print_table(columns, rows, title)
        return
    for row in rows:
        line = "\t".join("-" if cell is None else str(cell) for cell in row) + "\n"
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
    from snailps.node.status import json_text

    typer.echo(json_text(figures))


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
        table.add_row(*(Text(_printable(_rounded(_plain(cell)))) for cell in line))
    Console().print(table)


def _rounded(cell: Cell) -> str:
    """A cell of a table that people read."""
    if cell is None:
        return "-"
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)


def _plain(cell: Any) -> Cell:
    """A Python number in the place of a NumPy scalar."""
    plain: Cell = cell.item() if hasattr(cell, "item") else cell
    return plain


def _printable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


# --- a run ----------------------------------------------------------------------------------------


def live_picture(
    view: View,
    *,
    losses: Sequence[float] = (),
    size: tuple[int, int] = (80, 25),
    ascii_only: bool = False,
    verbose: bool = False,
    hint: str = "",
) -> RenderableType:
    """A running job, for a terminal of `size` columns and lines.

    A bar over the whole width, a line of figures, a row per process (those that wait or are lost
    first, if there is no room for all).
    """
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    from snailps.cli.view import SHARED

    failed, saves = view.phase == "failed", view.phase == "exporting"
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(no_wrap=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True, justify="right")
    doing = view.doing if saves or not view.step else f"{view.doing}, {view.step}"
    head = Text(doing, style="bold red" if failed else "bold")
    if view.phase in SHARED:
        right = "  ".join(text for text in (view.share, view.left) if text)
        bar.add_row(head, ProgressBar(completed=view.progress, total=1.0), right)
    else:
        bar.add_row(head, "", view.elapsed)
    # The loss is the last: its course is drawn after it.
    figures = (*((view.blocks, view.lr) if verbose else ()), *view.figures, view.step * saves)
    second = Text((" - " if ascii_only else " · ").join(text for text in figures if text))
    if view.phase == "training" and len(losses) > 1:
        room = min(SPARK_COLUMNS, size[0] - second.cell_len - 2)
        second.append(" " + _curve(losses, room, ascii_only), style="cyan")
    parts: list[RenderableType] = [bar, second]
    if view.waits:
        parts.append(Text(view.waits, style="yellow"))
    if view.message:
        parts.append(Text(view.message, style="red" if failed else "yellow"))
    if view.processes:
        parts.append(_process_table(view.processes, size, ascii_only=ascii_only))
    if hint and view.phase in ("survey", "loading", "training"):
        parts.append(Text(hint, style="dim"))
    return Group(*parts)


def _curve(losses: Sequence[float], room: int, ascii_only: bool) -> str:
    return sparkline(losses, room, ASCII_SPARKS if ascii_only else SPARKS)


def _process_table(
    processes: Sequence[Process], size: tuple[int, int], *, ascii_only: bool
) -> RenderableType:
    """A row a process: its state, its figures, its wait."""
    from rich.table import Table
    from rich.text import Text

    def place(process: Process) -> tuple[str, int]:
        return process.node["role"], process.node["id"]

    columns, height = size
    shown = sorted(processes, key=place)
    room, left = max(4, height - 8), 0
    if len(shown) > room:  # those that are not well first
        left = len(shown) - room + 1
        shown.sort(key=lambda process: process.mood == "good")
        shown = sorted(shown[: room - 1], key=place)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(overflow="fold")
    if columns >= NARROW:
        table.add_column(no_wrap=True, style="dim", justify="right")
    for process in shown:
        style = STYLES[process.mood]
        dot = Text("* " if ascii_only else "● ", style=style or "dim")
        row = [
            dot.append(process.name, style="default"),
            Text(process.words, style=style),
            Text(process.figure),
            Text(process.waits if process.is_waiting else "", style="yellow"),
        ]
        if columns >= NARROW:
            row.append(Text(process.where))
        table.add_row(*row)
    if left:
        table.add_row(Text(f"  and {left} more", style="dim"))
    return table


def page_lines(status: Status, *, tables: bool = False) -> list[str]:
    """The page of `snailps status`."""
    from snailps.cli.view import page_of

    lines, sections = page_of(status, tables=tables)
    for section in sections:
        lines += ["", *section.lines()]
    return lines


def page_picture(status: Status, height: int, width: int = 80) -> RenderableType:
    """The page for a terminal of `height` lines; rows and columns that do not fit are omitted."""
    from rich.console import Group
    from rich.text import Text

    from snailps.cli.view import page_of

    head, sections = page_of(status)
    # Notes and waits are short and matter most; processes and shards share the remaining lines.
    fixed = sum(len(s.cut(height // 3).rows) for s in sections if not s.is_long)
    long = sum(s.is_long for s in sections)
    room = max(4, (height - _HEAD_LINES - fixed) // max(1, long) - 2)
    parts = [Text(line) for line in head]
    for section in sections:
        shown = section.cut(room if section.is_long else max(2, height // 3)).fitted(width)
        head_style, style = ("dim", "") if section.columns else ("yellow", "yellow")
        first, *others = shown.lines()
        texts = [Text(first, style=head_style), *(Text(line, style=style) for line in others)]
        for text in texts if section.is_long else ():  # a row is one line
            text.no_wrap, text.overflow = True, "ellipsis"
        parts += [Text(""), *texts]
    return Group(*parts)


def end_lines(ending: Ending) -> list[str]:
    """The facts as plain ASCII lines, each complete in itself."""
    lines = []
    for label, texts in ending.facts:
        if label in ("why", "reliability"):  # shown when it happened; a table of the result
            continue
        start = label if label in ("wrote", "trained") else f"{label}:"
        several = label in ("wrote", "survived", "faults")
        lines += [f"{start} {text}" for text in (texts if several else [", ".join(texts)])]
    return [line.replace("→", "->") for line in lines]


def end_picture(ending: Ending, *, ascii_only: bool = False) -> RenderableType:
    """The facts in a frame."""
    from rich import box
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    style = STYLES[ending.mood]
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, texts in ending.facts:
        text = Text("\n".join(texts))
        if label == "loss":
            text.append("  " + _curve(ending.losses, SPARK_COLUMNS, ascii_only), style="cyan")
        elif label == "next":
            text.stylize("bold")
        elif label == "why":
            text.stylize(style)
        grid.add_row(label, text)
    return Panel(
        grid,
        title=Text(ending.title, style=f"bold {style}"),
        title_align="left",
        border_style=style,
        box=box.ASCII if ascii_only else box.ROUNDED,
        padding=(0, 1),
    )
