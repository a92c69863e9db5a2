"""Lays out what commands print: rows, JSON lines, and the frames and lines of a run.

    columns, rows -> print_rows -> a table on a terminal, tab-separated lines everywhere else
    figures       -> print_json -> one line
    View, Section, Ending (view.py) -> lines, or a picture for a terminal

Must not know the commands or choose words: `view.py` has the words of a run.
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

    from snailps.cli.view import EndingText, Process, View
    from snailps.node.phrases import Mood
    from snailps.node.status import Status

Cell = str | int | float | None
SPARK_COLUMNS = 40
"""Largest width of the curve of the loss."""
NARROW = 100
"""Terminals with fewer columns do not show hosts and process ids."""
STYLES: Mapping[Mood, str] = {"good": "green", "idle": "", "waits": "yellow", "bad": "red"}
SHOW_S = 0.2
LINE_S, LINE_S_MAX = 5.0, 60.0
"""Without a terminal, seconds between the first lines of progress, and at most."""
_HEAD_LINES = 8
"""Lines of a page on a terminal that are not rows: titles, blank lines, the head."""
JsonRowsOption = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object per row.", metavar=""),
]
JsonObjectOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of rows.", metavar="")
]


def is_live(stream: TextIO) -> bool:
    """Whether a display may be redrawn in place: a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


@contextlib.contextmanager
def live_line(line: Callable[[], str]) -> Iterator[None]:
    """Show `line()`, the progress of the block, on standard error while the block runs.

    On a terminal it is one line, redrawn; elsewhere, such as under cron or Slurm, a line is printed
    after 5 s and then at growing intervals of up to a minute.
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
    """Print rows: as a table on a terminal, else as tab-separated lines; None as ``-``.

    A table has four decimals.  Lines have floats in full precision, so that a program reads the
    same value.  Words that are not UTF-8 are written as their original bytes in lines, and with
    replacement characters in a table.  With `as_json` each row is a JSON object on its own line,
    with the columns as keys.
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
    """Print figures by name, one per row; a list of figures becomes a table of its own."""
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
    # rich is imported only for a terminal: without it a command in a pipe starts faster.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(_printable(title)) if title else None, title_justify="left")
    lines = [list(row) for row in rows]
    for index, column in enumerate(columns):
        numeric = all(not isinstance(line[index], str) for line in lines)
        table.add_column(column, justify="right" if numeric else "left")
    for line in lines:
        table.add_row(*(Text(_printable(_rounded(_plain(cell)))) for cell in line))
    Console().print(table)


def _rounded(cell: Cell) -> str:
    """Format a cell of a table for people: floats with four decimals."""
    if cell is None:
        return "-"
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)


def _plain(cell: Any) -> Cell:
    """Convert a NumPy scalar to a Python number."""
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
    """Draw a running job for a terminal of `size` columns and lines.

    A bar over the whole width, a line of figures, a row per process.  If there is no room for all
    processes, those that wait or are lost are shown first.
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
    # The loss comes last, because its curve is drawn after it.
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
    """Draw a row per process: its state, its figures, its wait."""
    from rich.table import Table
    from rich.text import Text

    def order(process: Process) -> tuple[str, int]:
        return process.node["role"], process.node["id"]

    columns, height = size
    shown = sorted(processes, key=order)
    room, omitted = max(4, height - 8), 0
    if len(shown) > room:  # processes that need attention first
        omitted = len(shown) - room + 1
        shown.sort(key=lambda process: process.mood == "good")
        shown = sorted(shown[: room - 1], key=order)
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
    if omitted:
        table.add_row(Text(f"  and {omitted} more", style="dim"))
    return table


def page_lines(status: Status, *, tables: bool = False) -> list[str]:
    """Write the page of `snailps status` as lines."""
    from snailps.cli.view import page_of

    lines, sections = page_of(status, tables=tables)
    for section in sections:
        lines += ["", *section.lines()]
    return lines


def page_picture(status: Status, height: int, width: int = 80) -> RenderableType:
    """Draw the page for a terminal; rows and columns that do not fit are omitted."""
    from rich.console import Group
    from rich.text import Text

    from snailps.cli.view import page_of

    head, sections = page_of(status)
    # Notes and waits come first, because they are short and say what is wrong; processes and
    # shards share the remaining lines.
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


def end_lines(ending: EndingText) -> list[str]:
    """Write the facts of an end as plain ASCII lines, each of which makes sense alone."""
    lines = []
    for label, texts in ending.facts:
        if label in ("why", "reliability"):  # an error line has the reason, a table the groups
            continue
        start = label if label in ("wrote", "trained") else f"{label}:"
        several = label in ("wrote", "survived", "faults")
        lines += [f"{start} {text}" for text in (texts if several else [", ".join(texts)])]
    return [line.replace("→", "->") for line in lines]


def end_picture(ending: EndingText, *, ascii_only: bool = False) -> RenderableType:
    """Draw the facts of an end in a frame."""
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
