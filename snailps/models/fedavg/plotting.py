"""Plots of runs: loss on the test windows against windows per learner, and against seconds.

    OUTPUT.history.jsonl of each run -> one picture, two plots side by side

Only this module imports matplotlib, and only for a plot.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from snailps.errors import ConfigError, DataError
from snailps.files.atomic import atomic_file
from snailps.files.extras import optional_module

_AXES = (("windows_per_learner", "windows per learner"), ("seconds", "seconds"))


def read_history(path: Path) -> tuple[dict[str, Any], list[dict[str, float]]]:
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise DataError(f"{path}: cannot read this history of rounds: {error.strerror}") from None
    except ValueError:  # whose text would quote the parser
        lines = []
    keys = {"round", "loss", *(key for key, _ in _AXES)}
    run = lines[0] if lines and isinstance(lines[0], dict) else {"target": ""}
    fits = isinstance(run.get("data_name", ""), str) and all(
        isinstance(run.get(key, 0), int) for key in ("workers", "learners", "pipelines")
    )
    fits = fits and isinstance(run.get("target", 0), int | float)
    good = all(
        isinstance(line, dict)
        and all(isinstance(line.get(k), int | float) and math.isfinite(line[k]) for k in keys)
        for line in lines[1:]
    )
    if len(lines) < 2 or not fits or not good:
        raise DataError(
            f"{path}: expected a line about the run and lines of rounds with {sorted(keys)}; "
            "`snailps train fedavg` writes OUTPUT.history.jsonl"
        )
    return lines[0], lines[1:]


def label_of(run: dict[str, Any], path: Path) -> str:
    """The run in words; `learners` 0 is a thread each, whose number the master does not know."""
    workers, learners = int(run.get("workers") or 1), int(run.get("learners", 1))
    pipelines = int(run.get("pipelines", 1)) or learners
    counts = [_count(workers * learners, "learner") if learners else _count(workers, "worker")]
    if pipelines:
        counts.append(_count(workers * pipelines, "pipeline"))
    return f"{run.get('data_name', path.stem)}: {', '.join(counts)}"


def _count(number: int, of: str) -> str:
    return f"{number} {of}{'s' * (number != 1)}"


def as_text(label: str) -> str:
    """A label whose text matplotlib neither reads as mathematics nor hides."""
    return (" " if label.startswith("_") else "") + label.replace("$", r"\$")


def plot_histories(paths: Sequence[Path], picture: Path) -> None:
    """Draw the histories of runs into a picture; a `ConfigError` without matplotlib."""
    if not picture.suffix[1:]:  # matplotlib would write another file, whose name ends in .png
        raise ConfigError(
            f"--into: {picture}: expected a name that ends in .png, .svg or .pdf, which is the "
            "picture's format"
        )
    runs = [(path, *read_history(path)) for path in paths]
    backend = optional_module("matplotlib.backends.backend_agg", "a plot", "snailps[plot]")
    figure = optional_module("matplotlib.figure", "a plot", "snailps[plot]").Figure(
        figsize=(11, 4.5), layout="constrained"
    )
    backend.FigureCanvasAgg(figure)
    for axes, (key, name) in zip(figure.subplots(1, 2, sharey=True), _AXES, strict=True):
        for path, run, rounds in runs:
            axes.plot(
                [line[key] for line in rounds],
                [line["loss"] for line in rounds],
                label=as_text(label_of(run, path)),
            )
        targets = {run["target"] for _, run, _ in runs if run.get("target")}
        for target in sorted(targets):
            axes.axhline(target, color="grey", linewidth=0.8, linestyle="--")
        axes.set_xlabel(name)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("loss on the test windows")
    figure.axes[0].legend()
    try:
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=120, format=picture.suffix[1:])
        with atomic_file(picture) as file:
            file.write(drawn.getbuffer())
    except ValueError as error:
        raise ConfigError(f"--into: {picture}: cannot write the picture: {error}") from None
