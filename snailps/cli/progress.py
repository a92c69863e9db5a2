"""The display of a running job: live on a terminal, plain lines elsewhere.

    master -> Status (plain dict) -> Progress.update -> stream (standard error)
    figures -> Ending -> Progress.close -> the frame, or the lines, that stay

Owns the layout of the display, and the estimate of the remaining time; `node/phrases.py` has the
words.  Must not know sockets, roles or threads: the owner of a status calls `Progress.update`, and
the clock is an argument.  Never writes to standard output, which is for the run's result.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from snailps.cli.end_panel import STYLES, Ending, end_lines, end_picture
from snailps.cli.figures import (
    ASCII_SPARKS,
    SPARKS,
    Course,
    count_text,
    seconds_text,
    short_seconds_text,
    size_text,
    sparkline,
)
from snailps.node.phrases import lasts, phase_words, process_name, state_words
from snailps.node.status import EventStatus, NodeStatus, Phase, Status

if TYPE_CHECKING:  # imported where a terminal is drawn
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table

REDRAW_S = 0.2  # seconds on a terminal: looks live at negligible cost
ETA_WINDOW_S = 30.0
ETA_STEPS_MIN = 3
FORMING_S = 2.0
"""A cluster that forms within these seconds is reported in one line."""
SPARK_COLUMNS = 40
NARROW = 100
"""Terminals with fewer columns have no room for hosts and process ids."""
_SHARED: tuple[Phase, ...] = ("survey", "loading", "restoring", "training", "exporting")
"""Phases whose progress is shown."""
_BEFORE: tuple[Phase, ...] = ("forming", "preparing", "ready")


class Eta:
    """Seconds left, from the recent rate of progress.

    Only moments at which progress *changed* count, as it moves in steps of a block: those of the
    last `window_s` seconds, or the last `ETA_STEPS_MIN` steps if these are further apart.  A change
    of phase resets the estimate.
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
            return None  # stalled for far longer than a usual step
        left_s = (1.0 - last) * span_s / (last - first)
        return max(0.0, left_s - min(idle_s, step_s))


class Progress:
    """Shows a run on a stream, live on a `terminal` (`printing.is_live`); call it from one thread.

    Plain lines are `interval_s` apart; news (another phase, wait, message, event) is written at
    once.  `verbose`: also blocks, and each process with its states.  `hint` is a line below the
    live display.  A stream that breaks (a closed pipe) silences the display, it does not end the
    run.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        terminal: bool,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = 5.0,
        verbose: bool = False,
        hint: str = "",
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._interval_s = interval_s
        self._verbose = verbose
        self.hint = hint
        self._eta = Eta()
        self._losses = Course()
        self._drawn_s: float | None = None
        self._news: tuple[str, ...] = ()
        self._states: dict[tuple[str, int], str] = {}
        self._told: set[tuple[str, str, str]] = set()
        self._is_up = False
        self._earlier_s = 0.0
        self._validation: Mapping[str, Sequence[Sequence[Any]]] = {}
        self._silent = False
        self._live: Live | None = None
        self.last: Status | None = None
        if terminal:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=stream, force_terminal=True, highlight=False)
            self._live = Live(
                console=console,
                auto_refresh=False,  # no thread of rich's: `update` is the only writer
                redirect_stdout=False,
                redirect_stderr=False,
                transient=True,  # the panel stays at the end
            )

    @property
    def losses(self) -> Sequence[float]:
        return self._losses.values

    def update(self, status: Status) -> None:
        """Show `status` if it is time to, or if it brings news."""
        now = self._clock()
        if self.last is not None and status["elapsed_s"] + self._earlier_s < self.last["elapsed_s"]:
            self._earlier_s = self.last["elapsed_s"]  # another master, whose time starts anew
        if self._earlier_s:
            status = {**status, "elapsed_s": status["elapsed_s"] + self._earlier_s}
        self.last = status
        self._eta.note(now, status["phase"], status["progress"])
        if status["phase"] == "training" and status["loss"] is not None:
            self._losses.note(status["loss"])
        self._guarded(lambda: self._say_news(status))
        self._guarded(lambda: self._draw(status, now, force=False))
        self.validate(status.get("validation", {}))

    def validate(self, found: Mapping[str, Sequence[Sequence[Any]]]) -> None:
        """Write `Status.validation` of the model's inspector, one line per name, once."""
        if found and found != self._validation:
            self._validation = found
            width = max(len(name) for name in found)
            for name, pairs in found.items():
                near = ", ".join(f"{other} {figure:.4g}" for other, figure in pairs)
                line = f"  {name:>{width}}: {near or 'not known'}"
                # Words may be invalid UTF-8: such bytes are lone surrogates here.
                self.say(line.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))

    def say(self, line: str, style: str = "") -> None:
        """Write a line of text, such as a log line, above the display."""
        if self._live is not None:
            from rich.text import Text

            console = self._live.console
            text = Text(line, style=style)
            self._guarded(lambda: console.print(text, highlight=False, soft_wrap=True))
        else:
            self._guarded(lambda: print(line, file=self._stream, flush=True))

    def close(self, ending: Ending | None = None) -> None:
        """End the display with `ending`, if given; nothing is shown after it."""
        if self._live is not None:
            self._guarded(self._live.stop)
        if ending is not None and ending.facts:
            self._guarded(lambda: self._show_end(ending))
        self._silent = True

    def _show_end(self, ending: Ending) -> None:
        if self._live is not None:
            console = self._live.console
            console.print(end_picture(ending, ascii_only=console.options.ascii_only))
        else:
            for line in end_lines(ending):
                print(line, file=self._stream, flush=True)

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
        if not (due or force or news != self._news):
            return
        eta_s = self._eta_s(status, now)
        if self._live is None:
            if self._is_quiet(status):
                return
            self._drawn_s, self._news = now, news
            print(line_of(status, eta_s, verbose=self._verbose), file=self._stream, flush=True)
            return
        self._drawn_s, self._news = now, news
        if not self._live.is_started:
            self._live.start()
        picture = picture_of(
            status,
            eta_s,
            losses=self._losses.values,
            size=self._live.console.size,
            ascii_only=self._live.console.options.ascii_only,
            verbose=self._verbose,
            hint=self.hint,
        )
        self._live.update(picture, refresh=True)

    def _is_quiet(self, status: Status) -> bool:
        """Whether a line would tell a user nothing: all is well, and news follows soon."""
        if self._verbose or status["message"]:
            return False
        soon = status["phase"] in _BEFORE and status["elapsed_s"] < FORMING_S
        return soon or (status["phase"] == "exporting" and not status["pass_"])

    def _say_news(self, status: Status) -> None:
        """A line for each event of the cluster; with `verbose`, of each process, too."""
        if self._verbose:
            self._say_states(status)
        if not self._is_up and status["nodes"] and status["phase"] not in _BEFORE:
            self._is_up = True
            self.say(f"{_cluster(status)} is up after {short_seconds_text(status['elapsed_s'])}")
            joined = [event for event in status.get("events", ()) if event["kind"] == "joined"]
            self._told.update(map(_key, joined))  # they are in that line
        if self._is_up:
            # That the cluster is complete, an event without a process, is in the line above, too.
            news = [
                event
                for event in status.get("events", ())
                if _key(event) not in self._told and (event["kind"] != "joined" or event["who"])
            ]
            # Losses first, then what follows from them.
            news.sort(key=lambda event: (round(event["at_s"], 1), event["kind"] != "lost"))
            for event in news:
                self._told.add(_key(event))
                if event["kind"] != "checkpoint" or self._verbose:  # quiet while all is well
                    style = {"lost": "red", "warning": "yellow", "checkpoint": "dim"}
                    when = f"[{seconds_text(max(0.0, event['at_s'] + self._earlier_s))}] "
                    self.say(when + event["text"], style.get(event["kind"], "green"))

    def _say_states(self, status: Status) -> None:
        """A line for every process that is new or changed its state."""
        for node in status["nodes"]:
            name = (node["role"], node["id"])
            if self._states.get(name) != node["state"]:
                self._states[name] = node["state"]
                where = f"{process_name(*name)} ({node['host']}, process {node['pid']})"
                waits = f", waits for {waits_text(node)}" if node["waits"] else ""
                self.say(f"{_stamp(status)} {where}: {state_words(node)[0]}{waits}")

    def _eta_s(self, status: Status, now: float) -> float | None:
        if status["phase"] not in _SHARED or status["waiting_for"]:
            return None
        return self._eta.seconds(now) if status["eta_s"] is None else status["eta_s"]


def line_of(status: Status, eta_s: float | None, *, verbose: bool = False) -> str:
    """The status as one plain line without its end."""
    parts = [*_figures(status), *_left(status, eta_s), *_lr(status)]
    parts += [*_blocks(status, verbose), *_message(status)]
    share = f" {_percent(status)}" if _percent(status) else ""
    doing = f", {status['pass_']}" if status["pass_"] else ""
    waits = f", waits for {status['waiting_for']}" if status["waiting_for"] else ""
    figures = "".join(f", {part}" for part in parts)
    return f"{_stamp(status)} {phase_words(status)}{share}{doing}{waits}{figures}"


def picture_of(
    status: Status,
    eta_s: float | None,
    *,
    losses: Sequence[float] = (),
    size: tuple[int, int] = (80, 25),
    ascii_only: bool = False,
    verbose: bool = False,
    hint: str = "",
) -> RenderableType:
    """The status for a terminal of `size` columns and lines.

    A bar over the whole width, a line of figures, a row per process (those that wait or are lost
    first, if there is no room for all).
    """
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    failed = status["phase"] == "failed"
    doing = f", {status['pass_']}" if status["pass_"] and status["phase"] != "exporting" else ""
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(no_wrap=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True, justify="right")
    head = Text(phase_words(status) + doing, style="bold red" if failed else "bold")
    right = [text for text in (_percent(status), *_left(status, eta_s)) if text]
    if status["phase"] in _SHARED:
        bar.add_row(head, ProgressBar(completed=status["progress"], total=1.0), "  ".join(right))
    else:
        bar.add_row(head, "", seconds_text(status["elapsed_s"]))
    # The loss is the last: its course is drawn after it.
    figures = [*_blocks(status, verbose), *(_lr(status) if verbose else ()), *_figures(status)]
    if status["phase"] == "exporting" and status["pass_"]:
        figures.append(status["pass_"])
    second = Text((" - " if ascii_only else " · ").join(figures))
    if status["phase"] == "training" and len(losses) > 1:
        signs = ASCII_SPARKS if ascii_only else SPARKS
        room = min(SPARK_COLUMNS, size[0] - second.cell_len - 2)
        second.append(" " + sparkline(losses, room, signs), style="cyan")
    parts: list[RenderableType] = [bar, second]
    if status["waiting_for"]:
        parts.append(Text(f"waits for {status['waiting_for']}", style="yellow"))
    if status["message"]:
        parts.append(Text(status["message"], style="red" if failed else "yellow"))
    if status["nodes"]:
        parts.append(_processes(status, size, ascii_only=ascii_only))
    if hint and status["phase"] in ("survey", "loading", "training"):
        parts.append(Text(hint, style="dim"))
    return Group(*parts)


def _processes(status: Status, size: tuple[int, int], *, ascii_only: bool) -> Table:
    """A row a process: its state, its figures, its wait."""
    from rich.table import Table
    from rich.text import Text

    columns, height = size
    nodes = sorted(status["nodes"], key=lambda node: (node["role"], node["id"]))
    room = max(4, height - 8)
    left = 0
    if len(nodes) > room:  # those that are not well first
        nodes.sort(key=lambda node: state_words(node)[1] == "good")
        left = len(nodes) - room + 1
        nodes = nodes[: room - 1]
        nodes.sort(key=lambda node: (node["role"], node["id"]))
    held: dict[int, list[int]] = {}
    for shard in status.get("shards", ()):
        sums = held.setdefault(shard["primary"], [0, 0])
        sums[0] += shard["rows"]
        sums[1] += shard["bytes"]
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(overflow="fold")
    if columns >= NARROW:
        table.add_column(no_wrap=True, style="dim", justify="right")
    for node in nodes:
        words, mood = state_words(node)
        style = STYLES[mood]
        figure = "" if node["rate"] is None else f"{count_text(node['rate'])} {status['unit']}/s"
        if node["role"] == "server":
            rows, size_bytes = held.get(node["id"], (0, 0))
            figure = f"{count_text(rows)} rows, {size_text(size_bytes)}" if rows else ""
        told = node["waits"] and (lasts(node["waits_s"]) or status["phase"] != "training")
        waits = f"waits for {waits_text(node)}" if told else ""
        dot = Text("* " if ascii_only else "● ", style=style or "dim")
        row = [
            dot.append(process_name(node["role"], node["id"]), style="default"),
            Text(words, style=style),
            Text(figure),
            Text(waits, style="yellow"),
        ]
        if columns >= NARROW:
            row.append(Text(f"{node['host']}, process {node['pid']}"))
        table.add_row(*row)
    if left:
        table.add_row(Text(f"  and {left} more", style="dim"))
    return table


def waits_text(node: NodeStatus) -> str:
    """What a process waits for, and how long it has waited if a second or more."""
    long = node["waits"] and lasts(node["waits_s"])
    return f"{node['waits']}, for {node['waits_s']:.0f} s now" if long else node["waits"]


def _key(event: EventStatus) -> tuple[str, str, str]:
    # Without its time: a master that takes over counts from its own beginning.
    return event["kind"], event["who"], event["text"]


def _cluster(status: Status) -> str:
    counts = {
        role: sum(node["role"] == role for node in status["nodes"]) for role in ("server", "worker")
    }
    counted = [f"{n} {role}{'' if n == 1 else 's'}" for role, n in counts.items()]
    return f"cluster of {', '.join(counted)}"


def _stamp(status: Status) -> str:
    return f"[{seconds_text(status['elapsed_s'])}]"


def _percent(status: Status) -> str:
    """The finished share, if known; 100.0% is shown only when all of it is."""
    if status["phase"] not in _SHARED or not (status["progress"] or status["phase"] == "training"):
        return ""
    return f"{int(status['progress'] * 1000) / 10:.1f}%"


def _left(status: Status, eta_s: float | None) -> list[str]:
    most = "at most " if "at most" in status["pass_"] else ""
    return [f"{most}{seconds_text(eta_s)} left"] if eta_s is not None else []


def _figures(status: Status) -> list[str]:
    figures = []
    if status["phase"] in ("survey", "training"):
        if status["units_per_s"] > 0:
            figures.append(f"{count_text(status['units_per_s'])} {status['unit']}/s")
        if status["loss"] is not None:
            figures.append(f"loss {status['loss']:.4f}")
    return figures


def _lr(status: Status) -> list[str]:
    if status["phase"] != "training" or status["lr"] is None:
        return []
    return [f"learning rate {status['lr']:.3g}"]


def _blocks(status: Status, verbose: bool) -> list[str]:
    if not verbose or status["phase"] not in ("survey", "training"):
        return []
    blocks = status["blocks"]
    return [f"blocks: {blocks['done']} done {blocks['leased']} at work {blocks['left']} left"]


def _message(status: Status) -> list[str]:
    return [status["message"]] if status["message"] else []


__all__ = ["Eta", "Progress", "count_text", "line_of", "picture_of", "seconds_text"]
