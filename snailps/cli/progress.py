"""The display of a running job: live on a terminal, plain lines elsewhere.

    master -> Status (plain dict) -> Progress.update -> stream (standard error)

Owns the wording and the layout of the display, and the estimate of the remaining time.  Must not
know sockets, roles or threads: the owner of a status calls `Progress.update`, and the clock is an
argument.  Standard output is never written: it is for the run's result.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from snailps.node.status import NodeStatus, Status

REDRAW_S = 0.2  # a terminal: five redraws a second look live at negligible cost
ETA_WINDOW_S = 30.0
ETA_STEPS_MIN = 3
BAR_COLUMNS = 30
_SHARED = ("survey", "training", "exporting")
"""Phases whose progress is shown."""


class Eta:
    """Seconds left, from the recent rate of progress.

    Only the moments at which progress *changed* count: it moves in steps of a block, and between
    two steps there is no new information.  The last `window_s` seconds are used, or the last
    `ETA_STEPS_MIN` steps if these are further apart, so neither a slow start nor long blocks
    distort the estimate.  A change of phase resets it.
    """

    def __init__(self, window_s: float = ETA_WINDOW_S) -> None:
        self._window_s = window_s
        self._steps: deque[tuple[float, float]] = deque()
        self._phase = ""

    def note(self, now: float, phase: str, progress: float) -> None:
        """Record one observation; `now` in seconds of any steady clock."""
        if phase != self._phase or (self._steps and progress < self._steps[-1][1]):
            self._steps.clear()
            self._phase = phase
        if not self._steps or progress > self._steps[-1][1]:
            self._steps.append((now, progress))
        while len(self._steps) > ETA_STEPS_MIN and self._steps[1][0] <= now - self._window_s:
            self._steps.popleft()

    def seconds(self, now: float) -> float | None:
        """Seconds left, or None while too little is known or when progress has stalled."""
        if len(self._steps) < ETA_STEPS_MIN:
            return None
        (first_s, first), (last_s, last) = self._steps[0], self._steps[-1]
        span_s = last_s - first_s
        if span_s <= 0:
            return None
        step_s = span_s / (len(self._steps) - 1)
        idle_s = now - last_s
        if idle_s > 3 * step_s + self._window_s:
            return None  # stalled for far longer than a usual step: no estimate is possible
        left_s = (1.0 - last) * span_s / (last - first)
        return max(0.0, left_s - min(idle_s, step_s))


class Progress:
    """Shows a run on a stream; one object a run.

    Parameters
    ----------
    stream : TextIO
        Where to write; standard error in the commands.
    terminal : bool
        True for the live display, False for plain lines.
    clock : callable, optional
        Steady seconds, default `time.monotonic`.
    interval_s : float, optional
        Seconds between two plain lines, default 5.  News (another phase, another thing waited
        for, a message, a node's new state) is written at once.

    Notes
    -----
    Call it from one thread.  A stream that breaks (a closed pipe) silences the display, it does
    not end the run.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        terminal: bool,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = 5.0,
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._interval_s = interval_s
        self._eta = Eta()
        self._drawn_s: float | None = None
        self._news: tuple[str, str, str] = ("", "", "")
        self._states: dict[tuple[str, int], str] = {}
        self._validation: Mapping[str, Sequence[Sequence[Any]]] = {}
        self._silent = False
        self._live: Live | None = None
        if terminal:
            console = Console(file=stream, force_terminal=True)
            self._live = Live(
                console=console,
                auto_refresh=False,  # no thread of rich's: `update` is the only writer
                redirect_stdout=False,
                redirect_stderr=False,
            )

    def update(self, status: Status) -> None:
        """Show `status` if it is time to, or if it brings news."""
        now = self._clock()
        self._eta.note(now, status["phase"], status["progress"])
        self._guarded(lambda: self._draw(status, now, force=False))
        self.validate(status.get("validation", {}))

    def validate(self, found: Mapping[str, Sequence[Sequence[Any]]]) -> None:
        """Write what the model's inspector found, one line per name, unless already written.

        Parameters
        ----------
        found : mapping
            Name -> pairs of another name and a figure, as `Status.validation`.
        """
        if found and found != self._validation:
            self._validation = found
            width = max(len(name) for name in found)
            for name, pairs in found.items():
                near = ", ".join(f"{other} {figure:.4g}" for other, figure in pairs)
                line = f"  {name:>{width}}: {near or 'not known'}"
                # Words may be invalid UTF-8: such bytes are lone surrogates here.
                self.say(line.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))

    def say(self, line: str) -> None:
        """Write a line of text, such as a log line, above the display."""
        if self._live is not None and self._live.is_started:
            console = self._live.console
            self._guarded(lambda: console.print(Text(line), highlight=False, soft_wrap=True))
        else:
            self._guarded(lambda: print(line, file=self._stream, flush=True))

    def close(self, status: Status | None = None) -> None:
        """Show the last status, if given, and restore the terminal; nothing is shown after it."""
        if status is not None:
            last, now = status, self._clock()
            self._eta.note(now, last["phase"], last["progress"])
            self._guarded(lambda: self._draw(last, now, force=True))
        if self._live is not None:
            self._guarded(self._live.stop)
        self._silent = True

    def _guarded(self, draw: Callable[[], None]) -> None:
        if self._silent:
            return
        try:
            draw()
        except (OSError, ValueError):  # ValueError: the stream was closed
            self._silent = True

    def _draw(self, status: Status, now: float, *, force: bool) -> None:
        period_s = self._interval_s if self._live is None else REDRAW_S
        due = self._drawn_s is None or now - self._drawn_s >= period_s
        news = (status["phase"], status["waiting_for"], status["message"])
        if self._live is None:
            self._write_node_news(status)
        if not (due or force or news != self._news):
            return
        self._drawn_s, self._news = now, news
        eta_s = self._eta_s(status, now)
        if self._live is None:
            print(line_of(status, eta_s), file=self._stream, flush=True)
            return
        if not self._live.is_started:
            self._live.start()
        self._live.update(picture_of(status, eta_s), refresh=True)

    def _write_node_news(self, status: Status) -> None:
        """A line for every process that is new or changed its state."""
        for node in status["nodes"]:
            name = (node["role"], node["id"])
            if self._states.get(name) != node["state"]:
                self._states[name] = node["state"]
                where = f"{node['role']} {node['id']} ({node['host']}:{node['pid']})"
                waits = f", waits for {waits_text(node)}" if node["waits"] else ""
                line = f"{_stamp(status)} {where}: {node['state']}{waits}"
                print(line, file=self._stream, flush=True)

    def _eta_s(self, status: Status, now: float) -> float | None:
        if status["phase"] not in _SHARED or status["waiting_for"]:
            return None
        return self._eta.seconds(now) if status["eta_s"] is None else status["eta_s"]


def line_of(status: Status, eta_s: float | None) -> str:
    """The status as one plain line without its end."""
    return f"{_stamp(status)} {_head(status)}{''.join(f', {f}' for f in _figures(status, eta_s))}"


def picture_of(status: Status, eta_s: float | None) -> RenderableType:
    """The status for a terminal: bar, figures, one row per process."""
    failed = status["phase"] == "failed"
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        Text(_head(status), style="bold red" if failed else "bold"),
        ProgressBar(total=1.0, completed=status["progress"], width=BAR_COLUMNS),
        Text(seconds_text(status["elapsed_s"])),
    )
    nodes = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("process", "host:pid", "state", f"{status['unit']}/s", "waits for"):
        nodes.add_column(column, no_wrap=True, overflow="ellipsis")
    for node in status["nodes"]:
        nodes.add_row(
            Text(f"{node['role']} {node['id']}"),
            Text(f"{node['host']}:{node['pid']}"),
            Text(node["state"]),
            Text("" if node["rate"] is None else count_text(node["rate"])),
            Text(waits_text(node), style="yellow"),
        )
    parts: list[RenderableType] = [bar, Text(" · ".join(_figures(status, eta_s)))]
    return Group(*parts, nodes) if status["nodes"] else Group(*parts)


def waits_text(node: NodeStatus) -> str:
    """What a process waits for, and how long it has waited if a second or more."""
    long = node["waits"] and node["waits_s"] >= 1
    return f"{node['waits']}, for {node['waits_s']:.0f} s now" if long else node["waits"]


def count_text(count: float) -> str:
    """A count in at most four digits: ``950``, ``12.3 k``, ``1.23 M``, ``4.56 G``."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            scaled = count / limit
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f} {unit}"
    return f"{count:.0f}"


def seconds_text(seconds: float) -> str:
    """A duration in its two largest units: ``42 s``, ``3 min 05 s``, ``2 h 07 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _stamp(status: Status) -> str:
    return f"[{seconds_text(status['elapsed_s'])}]"


def _head(status: Status) -> str:
    """Phase and pass, the share done if there is one, and what the run waits for."""
    head: str = status["phase"]
    if status["phase"] in _SHARED and (status["phase"] != "exporting" or status["pass_"]):
        # Rounded down: 100.0% is shown only when all of it is done.
        head += f" {int(status['progress'] * 1000) / 10:.1f}%"
    if status["pass_"]:
        head += f", {status['pass_']}"
    if status["waiting_for"]:
        head += f", waits for {status['waiting_for']}"
    return head


def _figures(status: Status, eta_s: float | None) -> list[str]:
    figures = []
    if status["phase"] in ("survey", "training"):
        if status["units_per_s"] > 0:
            figures.append(f"{count_text(status['units_per_s'])} {status['unit']}/s")
        if status["loss"] is not None:
            figures.append(f"loss {status['loss']:.4f}")
        if status["lr"] is not None:
            figures.append(f"lr {status['lr']:.5f}")
        figures.append("ETA unknown yet" if eta_s is None else f"ETA {seconds_text(eta_s)}")
        blocks = status["blocks"]
        figures.append(
            f"blocks {blocks['done']} done {blocks['leased']} leased {blocks['left']} left"
        )
    if status["phase"] == "exporting" and eta_s is not None:
        figures.append(f"ETA {seconds_text(eta_s)}")
    if status["message"]:
        figures.append(status["message"])
    return figures
