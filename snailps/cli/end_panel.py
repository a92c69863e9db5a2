"""The end of a run: files, figures, and the command to try next.

    figures, last Status, course of the loss -> ending_of -> Ending -> end_lines -> plain lines
                                                                    -> end_picture -> terminal

Owns the wording and the layout of the end, and looks up file sizes.  Must not know sockets or
processes.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snailps.cli import FAULTS, FAULTS_MAX
from snailps.cli.figures import ASCII_SPARKS, SPARKS, short_seconds_text, size_text, sparkline
from snailps.node.phrases import Mood
from snailps.node.status import Status

if TYPE_CHECKING:  # imported where a terminal is drawn
    from rich.console import RenderableType

TESTS_MAX = 4
SPARK_COLUMNS = 40
"""Width of the curve of the loss, at most."""
STYLES: Mapping[Mood, str] = {"good": "green", "idle": "", "waits": "yellow", "bad": "red"}
ENDS = {
    "interrupt": "ended early by Ctrl-C",
    "converged": "the loss has stopped falling",
    "target_loss": "target_loss is reached",
    "max_steps": "max_steps is reached",
    "max_seconds": "max_seconds is reached",
}
"""`ended_by` -> words, unless the training ended as planned."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended: `mood` as `phrases.Mood`, facts as label -> lines.

    `losses`, the course of the loss, are drawn after the fact "loss".
    """

    title: str
    mood: Mood
    facts: list[tuple[str, list[str]]]
    losses: Sequence[float] = field(default=())


def ending_of(
    figures: Mapping[str, Any],
    *,
    job: str = "",
    status: Status | None = None,
    losses: Sequence[float] = (),
    kept: bool = True,
    why: str = "",
) -> Ending:
    """What is shown at the end.

    `figures` are the master's, empty if it ended without any; `status` is the last one seen.  `job`
    is a `Status.job_name`, or empty.  `why`: the run failed or was interrupted before a model was
    saved.  Files are named if `kept`.
    """
    unit = "words" if "words" in figures else "examples"
    facts: list[tuple[str, list[str]]] = []
    files = [str(path) for path in figures.get("files", [])] if kept else []
    by = ENDS.get(str(figures.get("ended_by", "")), "")
    if figures.get("ended_by") == "interrupt" and not figures.get("files"):
        why = why or "interrupted; nothing was saved"
    name = job or "the model"
    if why:
        mood: Mood = "waits" if "interrupted" in why else "bad"
        title = f"{name}: {'interrupted' if mood == 'waits' else 'failed'}"
        facts.append(("why", [why]))
    else:
        mood = "waits" if figures.get("ended_by") == "interrupt" else "good"
        title = f"{name} is trained"
        if by:
            share = figures.get("progress")
            title += f": {by}"
            if figures["ended_by"] == "converged":  # it was only a limit
                title += f", after {figures['epochs']} epochs"
            elif share is not None:
                title += f", {share:.0%} done"
    facts.append(("wrote", [_file_line(path) for path in files]))
    if kept and figures.get("report"):
        facts.append(("report", [f"{_file_line(str(figures['report']))}: open it in a browser"]))
    facts.append(("trained", _trained(figures, unit)))
    if not why:
        facts.append(("loss", _loss(figures, losses)))
    if words := figures.get("vocabulary"):
        facts.append(("vocabulary", [f"{words:,} words"]))
    facts.append(("quality", _quality(figures.get("test"))))
    facts.append(("reliability", _reliability(figures.get("test"))))
    if bad := figures.get("bad_lines"):
        facts.append(("left out", [f"{bad:,} malformed lines of the input"]))
    if (moved := figures.get(f"bytes_per_{unit[:-1]}")) is not None and figures.get("servers"):
        moved_text = f"{moved:,.{0 if moved >= 10 else 1}f}"
        facts.append(("network", [f"{moved_text} bytes {_a(unit[:-1])} sent"]))
    facts.append(("survived" if not why else "faults", _faults(status)))
    if why or figures.get("ended_by") == "interrupt":
        left = figures.get("checkpoint") or (None if status is None else status.get("checkpoint"))
        facts.append(("saved", _saved(left, bool(files))))
    if (wall_s := figures.get("wall_s")) is not None:
        facts.append(("time", [_times(figures, wall_s)]))
    facts.append(("next", _next(job, files)))
    return Ending(title, mood, [fact for fact in facts if fact[1]], losses)


def end_lines(ending: Ending) -> list[str]:
    """The facts as plain ASCII lines, each complete in itself."""
    lines = []
    for label, told in ending.facts:
        if label in ("why", "reliability"):  # shown when it happened; a table of the result
            continue
        if label in ("wrote", "survived", "faults"):
            lines += [f"{label}: {one}" if label != "wrote" else f"wrote {one}" for one in told]
        else:
            lines.append(f"{label} {', '.join(told)}" if label == "trained" else
                         f"{label}: {', '.join(told)}")  # fmt: skip
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
    for label, told in ending.facts:
        text = Text("\n".join(told))
        if label == "loss":
            signs = ASCII_SPARKS if ascii_only else SPARKS
            text.append("  " + sparkline(ending.losses, SPARK_COLUMNS, signs), style="cyan")
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


def _a(unit: str) -> str:
    return f"{'an' if unit[0] in 'aeiou' else 'a'} {unit}"


def _file_line(path: str) -> str:
    try:
        return f"{path} ({size_text(Path(path).stat().st_size)})"
    except OSError:  # on the master's host, or moved already
        return path


def _trained(figures: Mapping[str, Any], unit: str) -> list[str]:
    speed = figures.get(f"{unit}_per_s")
    if not speed:
        return []
    text = f"{figures[unit]:,} {unit} in {short_seconds_text(figures['train_s'])}"
    return [f"{text}, {speed:,.0f} {unit}/s"]


def _loss(figures: Mapping[str, Any], losses: Sequence[float]) -> list[str]:
    epochs = [loss for loss in figures.get("loss_by_epoch") or () if loss is not None]
    course = epochs if len(epochs) > 1 else [*losses[:1], *epochs[-1:]]
    if not course:
        return []
    falls = figures.get("loss_falls")
    more = [f"still falling {falls:.0%} an epoch: more epochs would help"] if falls else []
    constant = figures.get("constant_loss")
    if constant:
        more.append(f"a constant's is {constant:.4f}: check labels and columns")
    if len(course) == 1 or f"{course[0]:.4f}" == f"{course[-1]:.4f}":
        return [f"{course[-1]:.4f}", *more]
    return [f"{course[0]:.4f} → {course[-1]:.4f}", *more]


def _quality(test: Any) -> list[str]:
    if not isinstance(test, Mapping):
        return []
    told = [
        f"{name.replace('_', ' ')} {value:.4g}"
        for name, value in test.items()
        if isinstance(value, float)
    ]
    return [", ".join(told[:TESTS_MAX])] if told else []


def _reliability(test: Any) -> list[str]:
    """Predicted and observed shares of groups of a test's examples with similar predictions."""
    parts = test.get("reliability") if isinstance(test, Mapping) else None
    if not parts:
        return []
    names = ("predicted", "observed")
    rows = [" ".join(f"{part[name]:.2f}" for part in parts) for name in names]
    head = f"shares of yes, {len(parts)} parts of the test from low to high"
    return [head, *(f"{name:9} {row}" for name, row in zip(names, rows, strict=True))]


def _faults(status: Status | None) -> list[str]:
    if status is None:
        return []
    told = [event["text"] for event in status.get("events", ()) if event["kind"] in FAULTS]
    if len(told) > FAULTS_MAX:
        return [f"{len(told) - FAULTS_MAX + 1} earlier faults", *told[1 - FAULTS_MAX :]]
    return told


def _saved(checkpoint: Mapping[str, Any] | None, wrote: bool) -> list[str]:
    if checkpoint is not None and checkpoint["number"]:
        return [
            f"checkpoint {checkpoint['number']} ({checkpoint['progress']:.0%} of the training) in "
            f"{checkpoint['path']}: the same command goes on from there"
        ]
    if wrote:
        return ["the model so far; there is no checkpoint to go on from (checkpoint_interval)"]
    return ["nothing: there is no checkpoint (checkpoint_interval)"]


def _times(figures: Mapping[str, Any], wall_s: float) -> str:
    parts = [("counting", "survey_s"), ("training", "train_s"), ("saving", "export_s")]
    told = [f"{name} {short_seconds_text(figures[key])}" for name, key in parts if figures.get(key)]
    whole = f"{short_seconds_text(wall_s)} in all"
    return f"{whole}: {', '.join(told)}" if told else whole


def _next(job: str, files: Sequence[str]) -> list[str]:
    """The command to try next, by the kind of model."""
    if not files:
        return []
    best = next((path for path in files if path.endswith((".bin", ".npz"))), files[0])
    shown = shlex.quote(best)
    if job in ("fasttext", "word2vec", "fedavg"):
        return [f"snailps nn {shown} WORD"]
    if job == "classifier":
        return [f'snailps predict {shown} "some text"']
    if job in ("kge", "mf"):
        return [f"snailps predict {shown} FILE -k 5"]
    if job in ("logistic", "fm") and best.endswith(".npz"):
        return [f"snailps predict {shown} FILE"]
    return []
