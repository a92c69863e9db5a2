"""``snailps calibrate``: makes a classifier's probabilities true, and finds thresholds of labels.

    MODEL.bin, labelled text -> MODEL.bin.json -> temperature, shift, errors; thresholds

Parses and prints; `snailps.vectors.calibrating` does the work.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from snailps.cli.figures import counted
from snailps.cli.model_kinds import kind_of, readable
from snailps.cli.options import OverwriteOption
from snailps.cli.printing import JsonObjectOption, live_line, print_json, print_rows
from snailps.cli.signals import exits_by_signals
from snailps.cli.signatures import options_of
from snailps.config.output import refuse_existing
from snailps.errors import ConfigError
from snailps.outward import without_secrets
from snailps.vectors.words import to_text


@options_of("snailps.vectors.calibrating:calibrate")
def command(
    text: Annotated[
        str,
        typer.Argument(
            help="Labelled lines that it was not trained on, in the format of the training.",
            metavar="FILE",
        ),
    ],
    overwrite: OverwriteOption = False,
    as_json: JsonObjectOption = False,
    **values: Any,
) -> None:
    """Make a classifier's probabilities say how often its labels are right.

    Writes MODEL.json beside the model: a temperature, by which scores are divided; a shift, where
    each label is judged by itself; and with --precision or --recall a threshold for each label. All
    commands read it with the model, whose file does not change: copy both. Nothing is written if
    the error would rise.

    For example: snailps calibrate out/sections.bin held-out.txt

    Labels that are right in nine of ten cases: snailps calibrate out/sections.bin held-out.txt
    --precision .9

    In a pipe: label, its lines, threshold, precision, recall, predictions, separated by tabs. A
    label that no threshold brings to the precision has none, and is not predicted.
    """
    from snailps.vectors.calibrating import calibrate
    from snailps.vectors.calibration import path_beside

    model = values["model"]
    if kind_of(model, "text") != "text":
        raise ConfigError(f"{model}: expected a classifier of text (.bin), got a .npz")
    if text == "-":
        raise ConfigError("the lines are read three times: give a file, not -")
    if not overwrite:
        refuse_existing(
            [str(path_beside(model))], unfinished=False, option="calibration",
            keep="calibrate a copy of the model",
        )  # fmt: skip
    with exits_by_signals(), live_line(lambda: "calibrating"):
        report = calibrate(text=readable(text), **values)
    labels = [{**asdict(entry), "label": to_text(entry.label)} for entry in report.thresholds]
    if as_json:
        shown = {"model": str(model), "file": without_secrets(text), **asdict(report)}
        print_json({**shown, "thresholds": labels})
        return
    if labels:
        columns = ("label", "lines", "threshold", "precision", "recall", "predicted")
        print_rows(columns, [tuple(row[name] for name in columns) for row in labels])
    error, after = report.calibration_error_before, report.calibration_error_after
    some = f"{report.sampled:,} of " if report.sampled < report.lines else ""
    shift = f", shift {report.shift:.4g}" if report.shift else ""
    done = f"wrote {report.path}" if report.path else "nothing was written"
    typer.echo(
        f"temperature {report.temperature:.4g}{shift}: expected calibration error {error:.4f} -> "
        f"{after:.4f} on {some}{counted(report.lines, 'line')}; {done}",
        err=True,
    )
