"""Shows a running job: live on a terminal, as plain lines elsewhere.

    master -> Status (plain dict) -> Progress.update -> View -> stream (standard error)
    figures -> Ending -> Progress.close -> the frame, or the lines, that stay

Decides what is shown when, and estimates the remaining time; `view.py` has the words, and
`printing.py` the layout.  Must not know sockets, roles or threads: the owner of a status calls
`Progress.update` from a single thread, and the clock is an argument.  Never writes to standard
output, which belongs to the run's result.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from snailps.cli.figures import seconds_text, short_seconds_text
from snailps.cli.printing import end_lines, end_picture, live_picture
from snailps.cli.view import SHARED, EndingText, View, cluster_words, figures_text, view_of
from snailps.node.course import Course
from snailps.node.status import EventStatus, Phase, Status

if TYPE_CHECKING:  # imported where a terminal is drawn
    from rich.live import Live

LOSSES_MAX = 256  # points of the curve
REDRAW_S = 0.2  # seconds on a terminal: looks live at negligible cost
ETA_WINDOW_S = 30.0
ETA_STEPS_MIN = 3
FORMING_S = 2.0
"""A cluster that forms within these seconds is reported in one line."""
_BEFORE: tuple[Phase, ...] = ("forming", "preparing", "ready")


class Eta:
    """Estimates the seconds left from the recent rate of progress.

    Progress moves in steps of a block, so only moments at which it *changed* count: those within
    the last `window_s` seconds, or the last `ETA_STEPS_MIN` ones if steps are slower than that.  A
    change of phase resets the estimate.
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
        """Return the seconds left; None before three steps, and when progress has stalled."""
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
    """Shows a run on a stream, live on a `terminal` (`printing.is_live`).

    Plain lines are `interval_s` apart; news (another phase, wait, message, event) is written at
    once.  `verbose` adds blocks, and each process with its states.  `hint` is a line below the
    live display.  A stream that breaks (a closed pipe) silences the display and leaves the run
    alone.  Not thread-safe.
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
        self._losses = Course(LOSSES_MAX)
        self._drawn_s: float | None = None
        self._news: tuple[str, ...] = ()
        self._states: dict[str, str] = {}
        self._reported: set[tuple[str, str, str]] = set()
        self._is_up = False
        self._earlier_s = 0.0
        self._validation: Mapping[str, Sequence[Sequence[Any]]] = {}
        self._tests = 0
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
        return [loss for _, loss in self._losses.points]

    def update(self, status: Status) -> None:
        """Show `status` if the interval is over, or if it brings news."""
        now = self._clock()
        if self.last is not None and status["elapsed_s"] + self._earlier_s < self.last["elapsed_s"]:
            # Another master has taken over and counts from its own start: users see one time.
            self._earlier_s = self.last["elapsed_s"]
        if self._earlier_s:
            status = {**status, "elapsed_s": status["elapsed_s"] + self._earlier_s}
        self.last = status
        self._eta.note(now, status["phase"], status["progress"])
        loss, at_s = status["loss"], status["elapsed_s"]
        if status["phase"] == "training" and loss is not None and self._losses.is_due(at_s):
            self._losses.append((at_s, loss))
        view = view_of(status, self._eta_s(status, now))
        self._guarded(lambda: self._say_news(status, view))
        self._guarded(lambda: self._draw(status, view, now))
        self.validate(status.get("validation", {}))
        self._report_tests(status.get("tests", []))

    def _report_tests(self, tests: Sequence[Mapping[str, float]]) -> None:
        """Write the figures of each test during the training, a line each."""
        first = self._tests if self._tests <= len(tests) else 0  # another job's tests are fewer
        for test in tests[first:]:
            after = f"epoch {test['epoch']:g}" if "epoch" in test else f"{test['progress']:.0%}"
            self.say(f"  test after {after}: {figures_text(test)}")
        self._tests = len(tests)

    def validate(self, validation: Mapping[str, Sequence[Sequence[Any]]]) -> None:
        """Write what the model's inspector found, one line per name; the same only once."""
        if validation and validation != self._validation:
            self._validation = validation
            width = max(len(name) for name in validation)
            for name, pairs in validation.items():
                neighbours = ", ".join(f"{other} {figure:.4g}" for other, figure in pairs)
                line = f"  {name:>{width}}: {neighbours or 'not known'}"
                # Words may be invalid UTF-8: such bytes are lone surrogates here.
                self.say(line.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))

    def say(self, line: str, style: str = "") -> None:
        """Write a line, such as a log line, above the live display."""
        if self._live is not None:
            from rich.text import Text

            console = self._live.console
            text = Text(line, style=style)
            self._guarded(lambda: console.print(text, highlight=False, soft_wrap=True))
        else:
            self._guarded(lambda: print(line, file=self._stream, flush=True))

    def close(self, ending: EndingText | None = None) -> None:
        """End the display, with `ending` as its last part; later calls show nothing."""
        if self._live is not None:
            self._guarded(self._live.stop)
        if ending is not None and ending.facts:
            self._guarded(lambda: self._show_end(ending))
        self._silent = True

    def _show_end(self, ending: EndingText) -> None:
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

    def _draw(self, status: Status, view: View, now: float) -> None:
        period_s = self._interval_s if self._live is None else REDRAW_S
        due = self._drawn_s is None or now - self._drawn_s >= period_s
        news = (status["phase"], status["waiting_for"], status["message"])
        if not (due or news != self._news):
            return
        if self._live is None and self._is_quiet(status):
            return
        self._drawn_s, self._news = now, news
        if self._live is None:
            print(view.line(verbose=self._verbose), file=self._stream, flush=True)
            return
        if not self._live.is_started:
            self._live.start()
        picture = live_picture(
            view,
            losses=self.losses,
            size=self._live.console.size,
            ascii_only=self._live.console.options.ascii_only,
            verbose=self._verbose,
            hint=self.hint,
        )
        self._live.update(picture, refresh=True)

    def _is_quiet(self, status: Status) -> bool:
        """Whether a line would be noise: all is well, and news follows within a moment."""
        if self._verbose or status["message"]:
            return False
        soon = status["phase"] in _BEFORE and status["elapsed_s"] < FORMING_S
        return soon or (status["phase"] == "exporting" and not status["pass_"])

    def _say_news(self, status: Status, view: View) -> None:
        """Write a line for each new event; with `verbose` also for each process that changed."""
        if self._verbose:
            self._say_states(view)
        if not self._is_up and status["nodes"] and status["phase"] not in _BEFORE:
            self._is_up = True
            self.say(
                f"{cluster_words(status)} is up after {short_seconds_text(status['elapsed_s'])}"
            )
            if address := status["master"]["metrics"]:
                self.say(
                    f"metrics at http://{address}/metrics; other processes' addresses: snailps "
                    "status --json"
                )
            joined = [event for event in status.get("events", ()) if event["kind"] == "joined"]
            self._reported.update(map(_key, joined))  # the line on the cluster counts them
        if self._is_up:
            # An event "joined" without a process says that the cluster is complete, as that line.
            news = [
                event
                for event in status.get("events", ())
                if _key(event) not in self._reported and (event["kind"] != "joined" or event["who"])
            ]
            # Losses first, then what follows from them.
            news.sort(key=lambda event: (round(event["at_s"], 1), event["kind"] != "lost"))
            for event in news:
                self._reported.add(_key(event))
                if event["kind"] != "checkpoint" or self._verbose:  # quiet while all is well
                    style = {"lost": "red", "warning": "yellow", "checkpoint": "dim"}
                    when = f"[{seconds_text(max(0.0, event['at_s'] + self._earlier_s))}] "
                    self.say(when + event["text"], style.get(event["kind"], "green"))

    def _say_states(self, view: View) -> None:
        """Write a line for every process that is new or has changed its state."""
        for process in view.processes:
            state = process.node["state"]
            if self._states.get(process.name) != state:
                self._states[process.name] = state
                waits = f", {process.waits}" if process.waits else ""
                where = f"{process.name} ({process.where})"
                self.say(f"[{view.elapsed}] {where}: {process.words}{waits}")

    def _eta_s(self, status: Status, now: float) -> float | None:
        if status["phase"] not in SHARED or status["waiting_for"]:
            return None
        return self._eta.seconds(now) if status["eta_s"] is None else status["eta_s"]


def _key(event: EventStatus) -> tuple[str, str, str]:
    # Without the time: a master that takes over reports the same event with another time.
    return event["kind"], event["who"], event["text"]
