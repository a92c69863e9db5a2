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
from snailps.cli.options import (
    ColumnOption,
    LabelColumnOption,
    OverwriteOption,
    SoftLabelsOption,
    WeightColumnOption,
)
from snailps.cli.printing import Cell, JsonObjectOption, live_line, print_json, print_rows
from snailps.cli.signals import exits_by_signals
from snailps.config.fields import bytes_of
from snailps.config.output import refuse_existing, refuse_sources
from snailps.outward import without_secrets

_DOING = {
    "retrain": "training the rows that are left",
    "quantize": "quantising",
    "test": "testing",
}
"""Step -> its words in the line of progress."""


def command(
    model: Annotated[
        Path,
        typer.Argument(
            help="Model file: the .bin of a classifier or of word vectors (fastText's and floret's "
            "too)."
        ),
    ],
    output: Annotated[
        Path, typer.Option(help="File to write; its name ends in .ftz.", metavar="FILE")
    ],
    dsub: Annotated[
        int, typer.Option(min=1, help="Numbers of a row that share one byte.", metavar="N")
    ] = 2,
    qnorm: Annotated[
        bool | None,
        typer.Option(
            "--qnorm/--no-qnorm",
            help="Quantise lengths of rows apart from their directions. Default: of word vectors "
            "only.",
            show_default=False,
        ),
    ] = None,
    qout: Annotated[
        bool,
        typer.Option(
            "--qout",
            help="Quantise label rows too; the classifier has at least 256 labels.",
            metavar="",
        ),
    ] = False,
    cutoff: Annotated[
        int,
        typer.Option(
            min=0,
            help="Keep the N longest input rows; of word vectors all words stay. 0: all rows.",
            metavar="N",
        ),
    ] = 0,
    size: Annotated[
        str,
        typer.Option(
            help="Largest size of a classifier's file, such as 2M: chooses --cutoff.",
            metavar="BYTES",
            show_default=False,
        ),
    ] = "",
    retrain: Annotated[
        str,
        typer.Option(
            help="Labelled text on which a classifier is trained on after --cutoff or --size.",
            metavar="FILE",
            show_default=False,
        ),
    ] = "",
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of --retrain.", metavar="N")] = 5,
    lr: Annotated[
        float, typer.Option(help="Learning rate at the start of --retrain.", metavar="RATE")
    ] = 0.05,
    test: Annotated[
        str,
        typer.Option(
            help="Labelled text on which the classifier is scored before and after.",
            metavar="FILE",
            show_default=False,
        ),
    ] = "",
    column: ColumnOption = "",
    label_column: LabelColumnOption = "",
    weight_column: WeightColumnOption = "",
    soft_labels: SoftLabelsOption = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the codebooks and of --retrain.")] = 0,
    threads: Annotated[int, typer.Option(min=0, help="0: one per core.")] = 0,
    overwrite: OverwriteOption = False,
    as_json: JsonObjectOption = False,
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

    refuse_sources([output], [test], "--output")
    if not overwrite:
        refuse_existing([str(output)], unfinished=False, option="--output")
    step, share = "quantize", 0.0
    reading: dict[str, Any] = {
        "column": column, "label_column": label_column, "weight_column": weight_column,
        "soft_labels": soft_labels,
    }  # fmt: skip

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
        report = quantize(
            model, output, dsub=dsub, qnorm=qnorm, qout=qout, cutoff=cutoff,
            size=bytes_of(size, "--size"), retrain=retrain,
            epochs=epochs, lr=lr, seed=seed, threads=threads, progress=note, **reading,
        )  # fmt: skip
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
