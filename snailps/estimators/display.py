"""Displays of a training: a bar on terminals and in notebooks, lines elsewhere, or nothing.

    verbose, standard error -> display_of -> Display.show(report) -> screen
    bytes of data written so far -> SpoolDisplay.show -> screen

Everything goes to standard error, because standard output belongs to the user's program.  rich is
imported only when a bar is shown.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from snailps.errors import ParameterError
from snailps.estimators.monitor import Display

if TYPE_CHECKING:
    from rich.progress import Progress

BAR_STEPS = 1000
NOTEBOOK_CHARS = 30
SPOOL_FIRST_S, SPOOL_AGAIN_S, SPOOL_LINE_S = 1.0, 0.2, 10.0
"""Spooling is shown after a second, then redrawn in place every 0.2 s, or as a line every 10 s."""


def display_of(verbose: object, title: str) -> Display:
    """Choose the display for `verbose`: "auto" shows nothing unless a person may be watching."""
    check_verbose(verbose)
    is_auto = isinstance(verbose, str)
    if not is_auto and not verbose:
        return Display()
    if in_notebook():
        return NotebookDisplay(title)
    if sys.stderr.isatty():
        return BarDisplay(title)
    return Display() if is_auto else LineDisplay(title, sys.stderr)


def check_verbose(verbose: object) -> None:
    """Raise ParameterError unless `verbose` is "auto", a bool or a whole number from 0 on."""
    item = getattr(verbose, "item", None)
    value = item() if item is not None and getattr(verbose, "ndim", None) == 0 else verbose
    if value == "auto" if isinstance(value, str) else isinstance(value, int) and value >= 0:
        return
    raise ParameterError(
        f"verbose: expected True, False, 'auto' or a number from 0 on; got {verbose!r:.80}"
    )


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    current = shell.get_ipython() if shell is not None else None
    # Colab's and Databricks' shells are subclasses.
    return any(cls.__name__ == "ZMQInteractiveShell" for cls in type(current).__mro__)


class LineDisplay(Display):
    """Writes a line for each epoch, and a last one at the end."""

    def __init__(self, title: str, stream: TextIO) -> None:
        self._title, self._stream = title, stream
        self._epoch = 0

    def show(self, report: Mapping[str, Any]) -> None:
        """Write a line if an epoch has begun, or the training has ended."""
        if report["phase"] == "done" or (
            report["phase"] == "training" and report["epoch"] > self._epoch
        ):
            self._epoch = report["epoch"]
            print(f"{self._title}: {line_of(report)}", file=self._stream, flush=True)


class NotebookDisplay(Display):
    """A line of text in the cell's output, redrawn in place; works without ipywidgets."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._handle: Any = None

    def show(self, report: Mapping[str, Any]) -> None:
        done = report["phase"] == "done"
        share = 1.0 if done else report["progress"]
        filled = round(NOTEBOOK_CHARS * share)
        phase = "" if done else f" {report['phase']}"
        bar = "█" * filled + "░" * (NOTEBOOK_CHARS - filled)
        text = {"text/plain": f"{self._title}{phase} {bar} {share:4.0%} {line_of(report)}"}
        if self._handle is None:
            display = importlib.import_module("IPython.display").display
            self._handle = display(text, raw=True, display_id=True)
        else:
            self._handle.update(text, raw=True)


class BarDisplay(Display):
    """A bar with the loss, the speed and the time left."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._bar: Progress | None = None

    def show(self, report: Mapping[str, Any]) -> None:
        if self._bar is None:
            self._bar = self._begin()
            self._task = self._bar.add_task(self._title, total=BAR_STEPS, phase="", line="")
            self._phase = ""
        done = report["phase"] == "done"
        if report["phase"] != self._phase and not done:
            self._phase = report["phase"]
            self._bar.reset(self._task)
        share = 1.0 if done else report["progress"]
        self._bar.update(
            self._task, completed=BAR_STEPS * share, phase=self._phase, line=line_of(report)
        )

    def close(self) -> None:
        """Stop redrawing; the last bar stays on the screen."""
        if self._bar is not None:
            self._bar.stop()

    def _begin(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        bar = Progress(
            TextColumn("{task.description} {task.fields[phase]}", markup=False),
            BarColumn(30),
            TextColumn("{task.percentage:>3.0f}% {task.fields[line]}", markup=False),
            TimeRemainingColumn(),
            console=console,
        )
        bar.start()
        return bar


class SpoolDisplay:
    """Shows how much data has been spooled, if that takes longer than a second."""

    def __init__(
        self, verbose: object, title: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title, self._clock = title, clock
        shown = display_of(verbose, title)
        self._is_quiet = type(shown) is Display
        self._in_place = not isinstance(shown, LineDisplay)
        self._next = clock() + SPOOL_FIRST_S
        self._chars = 0

    def show(self, size: int) -> None:
        """Show the number of bytes written so far."""
        now = self._clock()
        if self._is_quiet or now < self._next:
            return
        self._next = now + (SPOOL_AGAIN_S if self._in_place else SPOOL_LINE_S)
        text = f"{self._title}: spooling: {size / 1e6:,.0f} MB"
        self._write(f"\r{text}" if self._in_place else f"{text}\n")
        self._chars = len(text)

    def close(self) -> None:
        """Erase a text that was drawn in place; lines stay."""
        if self._chars and self._in_place:
            self._write("\r" + " " * self._chars + "\r")

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def line_of(report: Mapping[str, Any]) -> str:
    """Format a report as a line: epoch, loss, speed."""
    parts = []
    if report["phase"] in ("training", "done"):
        of = ", at most " if report["at_most"] else "/"
        parts.append(f"epoch {report['epoch']}{of}{report['epochs']}")
    if report.get("loss") is not None:
        parts.append(f"loss {report['loss']:.4f}")
    for unit in ("words", "examples"):
        if report.get(f"{unit}_per_s"):
            parts.append(f"{report[f'{unit}_per_s']:,.0f} {unit}/s")
    if report.get("bytes_per_s"):
        parts.append(f"{report['bytes_per_s'] / 1e6:,.1f} MB/s")
    if report["phase"] == "done":
        parts.append(f"{report['seconds']:.1f} s")
    return ", ".join(parts)
