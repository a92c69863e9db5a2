"""``snailps autotune``: chooses the settings of a classifier, then trains it with them.

    texts, limits -> trials, as many as the time allows -> the best settings -> snailps train

Parses and prints; `models.classifier.tuning` searches, `snailps train classifier` trains.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from snailps import kernels
from snailps.cli.figures import size_text
from snailps.cli.known_classes import known_classes
from snailps.cli.options import OverwriteOption, SetOption
from snailps.cli.printing import Cell, JsonObjectOption, live_line, print_json, print_rows
from snailps.cli.signals import exits_by_signals
from snailps.cli.train import separate, train
from snailps.config import RawConfig
from snailps.config.fields import Settings, bytes_of
from snailps.config.output import check_output, refuse_results
from snailps.errors import EXIT_OK, ConfigError

_PATHS = ("input", "validation")
SHOWN = 10
"""Trials that a terminal shows."""


def command(
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "--train",
            help="Required. Labelled text: files, folders, globs, URLs.",
            metavar="PATH...",
            show_default=False,
        ),
    ] = None,
    validation: Annotated[
        list[str] | None,
        typer.Option(
            help="Labelled lines that judge trials. Instead of it: --set held_out=0.1.",
            metavar="PATH...",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str, typer.Option(help="Required. Prefix of the model's file.", show_default=False)
    ] = "",
    seconds: Annotated[
        float, typer.Option(help="Longest time of the search. The final training comes after it.")
    ] = 300.0,
    trials: Annotated[
        int,
        typer.Option(
            min=0,
            help="Most trials. If they end in time, a seed gives the same settings each time. 0: "
            "no limit.",
            metavar="N",
        ),
    ] = 0,
    metric: Annotated[
        str,
        typer.Option(
            help="f1, precision-at-recall:R or recall-at-precision:P, with :LABEL of one label; "
            "macro-f1, accuracy.",
            metavar="METRIC",
        ),
    ] = "f1",
    predictions: Annotated[
        int,
        typer.Option(
            "-k",
            "--predictions",
            min=-1,
            help="Labels predicted for a line; -1: all, not with F1. 0: 1 for F1, else all.",
            metavar="N",
            show_default=False,
        ),
    ] = 0,
    size: Annotated[
        str,
        typer.Option(
            help="Largest size of a quantised model (.ftz), such as 2M. Trials are judged by such "
            "models, and one is written beside the .bin, unless that is too small to be quantised.",
            metavar="BYTES",
            show_default=False,
        ),
    ] = "",
    threads: Annotated[
        int, typer.Option(min=0, max=256, help="Trials at the same time. 0: one per core.")
    ] = 0,
    sets: SetOption = None,
    overwrite: OverwriteOption = False,
    as_json: JsonObjectOption = False,
) -> None:
    """Choose rate, epochs, dimension and n-grams of a classifier, and train it.

    Short trainings of different settings are judged on the validation lines; the best third goes
    on with longer ones, and then changes of the best. Settings given by --set keep their value.
    Ctrl-C ends the search, and the best settings so far are trained.

    For example: snailps autotune --input train.txt --validation valid.txt --output out/sections

    In a pipe: one line a trial, separated by tabs: number, score, epochs trained, lr, epochs, dim,
    word_ngrams, minn, maxn, seconds.
    """
    from snailps.estimators.quantizing import shrinks_to
    from snailps.models.classifier.search import TUNED, fixed_of
    from snailps.models.classifier.settings import ClassifierSettings
    from snailps.models.classifier.trials import trained_texts
    from snailps.models.classifier.tuning import Effort, Tuner
    from snailps.vectors.files import open_bin
    from snailps.vectors.label_metrics import Metric
    from snailps.vectors.saving import save_model

    bound = bytes_of(size, "--size")
    values = {
        "input": separate("input", input or []),
        "validation": separate("validation", validation or []),
        "output": output,
    }
    given = {
        key: tuple(value) if key in _PATHS else value for key, value in values.items() if value
    }
    # As the training reads them.
    raw = RawConfig.load(None, environ=os.environ).merged(RawConfig.from_mapping(given, "--{key}"))
    raw = raw.merged(RawConfig.load(None, environ={}, overrides=sets or []))
    base = raw.build(ClassifierSettings, also_known=known_classes(raw))
    for key in ("input", "output"):
        if not getattr(base, key):
            raise ConfigError(f"--{key} is missing: snailps autotune --help shows how")
    files = [f"{base.output}.bin"]
    if bound:
        files.append(f"{base.output}.ftz")
    check_output(base.output)
    refuse_results(files, (*base.input, *base.validation), overwrite=overwrite)
    explicit = [key for key in TUNED if raw.explicit(key, ClassifierSettings)]
    fixed = fixed_of(base, explicit)
    unset = {*explicit} - fixed  # ``auto``: as chosen
    effort = Effort(seconds, trials, threads)
    shrink = shrinks_to(bound, base.seed) if bound else None
    tuner = Tuner(base, fixed, Metric.of(metric), predictions, effort, shrink)
    line = live_line(lambda: tuner.progress.line(effort))
    with exits_by_signals(), line, _interrupts(tuner.interrupt):
        try:
            tuning = tuner.run()
        except KeyboardInterrupt:
            typer.echo("interrupted before a trial was completed: nothing is trained", err=True)
            raise
    chosen = {key: f"{value}" for key, value in tuning.settings.items() if key not in fixed}
    words = ["snailps", "train", "classifier"]
    if not (base.stop_after or base.calibrate):  # a test after each epoch would only take time
        values.pop("validation")
        unset |= {"validation", "held_out"}
        if base.held_out:
            chosen["held_out"] = "0"
            base = replace(base, held_out=0.0)
    sets = [text for text in sets or [] if not _sets_any(text, unset, ClassifierSettings)]
    for key, value in (*values.items(), *chosen.items()):
        if value:
            words += [f"--{key.replace('_', '-')}", *([value] if isinstance(value, str) else value)]
    words += [word for text in sets for word in ("--set", text)]
    typer.echo(f"the best of {len(tuning.trials):,} trials: {shlex.join(words)}", err=True)
    options: dict[str, Any] = {"servers": 1, "workers": 1, "as_json": False, "sets": sets}
    options |= {key: value for key, value in values.items() if value}
    code = train("classifier", {**options, **chosen, "overwrite": overwrite})
    if code != EXIT_OK:
        raise typer.Exit(code)
    if bound:
        model = open_bin(files[0], "the .bin of a classifier")
        small = shrinks_to(bound, base.seed, kernels.cores())
        with exits_by_signals(), live_line(lambda: "quantising"):
            quantised = small(model, partial(trained_texts, base))
            if quantised is not model:
                save_model(files[1], quantised)
        if quantised is model:
            Path(files.pop()).unlink(missing_ok=True)  # of an earlier model
            typer.echo(
                f"{files[0]} has {size_text(Path(files[0]).stat().st_size)}, and too few rows to "
                "be quantised: no .ftz is needed",
                err=True,
            )
    if as_json:
        print_json({**asdict(tuning), "command": words, "files": files})
        return
    rows: list[tuple[Cell, ...]] = [
        (one.number, one.score, one.epochs, *one.settings.values(), one.seconds)
        for one in tuning.trials
    ]
    title = f"trials by {tuning.metric}"
    if sys.stdout.isatty():
        rows = sorted(rows, key=lambda row: row[1] or 0.0, reverse=True)[:SHOWN]
        title = f"the best {len(rows)} of {len(tuning.trials)} trials by {tuning.metric}"
    columns = ("trial", "score", "epochs trained", *tuning.settings, "seconds")
    print_rows(columns, rows, title=title)


def _sets_any(text: str, names: Iterable[str], cls: type[Settings]) -> bool:
    """Whether a ``--set`` text sets one of some settings."""
    raw = RawConfig.load(None, environ={}, overrides=[text])
    return any(raw.explicit(name, cls) for name in names)


@contextlib.contextmanager
def _interrupts(interrupt: Callable[[], None]) -> Iterator[None]:
    """Call `interrupt` at the first Ctrl-C in the block; a second one ends the command."""
    before = signal.getsignal(signal.SIGINT)

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        interrupt()

    if before is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
