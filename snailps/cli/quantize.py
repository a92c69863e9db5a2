"""``snailps quantize``: makes a small .ftz of a fastText model, and says what that costs.

    MODEL.bin -> MODEL.ftz -> rows of size and rows before and after; with --test also precision

Parses and prints; `snailps.estimators.quantizing` does the work.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from snailps.cli.figures import size_text
from snailps.cli.options import TEXT_OPTIONS, OverwriteOption
from snailps.cli.printing import Cell, JsonObjectOption, live_line, print_json, print_rows
from snailps.cli.signals import exits_by_signals
from snailps.cli.signatures import options_of
from snailps.config.fields import bytes_of
from snailps.config.output import refuse_results
from snailps.outward import without_secrets

_DOING = {
    "retrain": "training the rows that are left",
    "quantize": "quantising",
    "test": "testing",
}
"""Step -> its words in the line of progress."""


@options_of("snailps.estimators.quantizing:quantize", without=("progress",))
def command(
    output: Annotated[
        Path, typer.Option(help="File to write; its name ends in .ftz.", metavar="FILE")
    ],
    size: Annotated[
        str,
        typer.Option(
            help="Largest size of a classifier's file, such as 2M: chooses --cutoff.",
            metavar="BYTES",
            show_default=False,
        ),
    ] = "",
    test: Annotated[
        str,
        typer.Option(
            help="Labelled text on which the classifier is scored before and after.",
            metavar="FILE",
            show_default=False,
        ),
    ] = "",
    overwrite: OverwriteOption = False,
    as_json: JsonObjectOption = False,
    **values: Any,
) -> None:
    """Write a quantised copy of a model, a tenth of its size, which fastText opens too.

    Parts of rows are replaced by the nearest of 256 centroids. The .ftz answers queries and
    predicts; no training goes on with it.

    For example: snailps quantize out/sections.bin --output sections.ftz --test held-out.txt

    Smaller, with the most important rows alone: --qnorm --cutoff 100000 --retrain train.txt

    In a pipe: name, before, after, separated by tabs: bytes, rows, and with --test the precision
    of the best label.
    """
    from snailps.estimators.quantizing import quantize
    from snailps.vectors.label_prediction import LabelModel, evaluate_labels

    refuse_results([output], [test], overwrite=overwrite)
    step, share = "quantize", 0.0
    model, reading = values["model"], {name: values[name] for name in TEXT_OPTIONS}

    def note(name: str, done: float) -> None:
        nonlocal step, share
        step, share = name, done

    def precision(path: Path) -> float | None:
        note("test", 0.0)
        return evaluate_labels(LabelModel(path), test, **reading).precision

    def line() -> str:
        return f"{_DOING[step]} {share:.0%}" if share else _DOING[step]

    before: dict[str, Any] = {}
    with exits_by_signals(), live_line(line):
        if test:  # first: a wrong file is refused before the work
            before["precision"] = precision(model)
        bound = bytes_of(size, "--size")
        report = quantize(output=output, size=bound, progress=note, **values)
        after = {"precision": precision(output)} if test else {}
    if as_json:
        scores: dict[str, Any] = {"test": without_secrets(test)} if test else {}
        for when, values in (("before", before), ("after", after)):
            scores |= {f"{name}_{when}": value for name, value in values.items()}
        print_json({"model": str(model), **asdict(report), **scores})
        return
    rows: list[tuple[Cell, ...]] = [
        ("bytes", report.bytes_before, report.bytes_after),
        ("rows", report.rows_before, report.rows_after),
        *((name, value, after[name]) for name, value in before.items()),
    ]
    print_rows(("", "before", "after"), rows, title=str(output))
    before_bytes, after_bytes = report.bytes_before, report.bytes_after
    change = f"{before_bytes / after_bytes:.1f} times smaller"
    if after_bytes >= before_bytes:
        change = f"no smaller than {model}, whose {report.rows_before:,} rows are too few"
    typer.echo(f"wrote {output}, {size_text(after_bytes)}: {change}", err=True)
