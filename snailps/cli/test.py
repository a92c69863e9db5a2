"""``snailps test``: precision and recall of a classifier on labelled text.

    MODEL, FILE -> evaluate_labels -> rows of label, lines, precision, recall; or one JSON object

Parses and prints; `evaluate_labels` does the work.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from snailps.cli.predict import KOption, ThresholdOption
from snailps.cli.printing import Cell, print_json, print_rows
from snailps.vectors.label_prediction import LabelModel, LabelScores, evaluate_labels
from snailps.vectors.words import to_text

COLUMNS = ("label", "lines", "said", "precision", "recall")


def command(
    model: Annotated[Path, typer.Argument(help="A .bin of a classifier, fastText's own too.")],
    file: Annotated[
        str, typer.Argument(help="Lines of labels and words, or a table, as for training.")
    ],
    k: KOption = 1,
    threshold: ThresholdOption = 0.0,
    column: Annotated[
        str, typer.Option(help="Of a table: the column of the texts.", show_default=False)
    ] = "",
    label_column: Annotated[
        str, typer.Option(help="Of a table: the column of their labels.", show_default=False)
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of rows.", metavar="")
    ] = False,
) -> None:
    """Precision and recall of the K best labels of each line, in total and per label.

    Precision: the share of predicted labels that the lines have. Recall: the share of the lines'
    labels that were predicted. Lines without a known label, or without a known word or end, are
    left out, as in fastText.

    For example: snailps test out/sections.bin held-out.txt -k 1; of a table:
    snailps test out/stars.bin held-out.parquet --column text --label-column stars

    In a pipe: label, lines that have it, times it was predicted, precision, recall, separated by
    tabs; the first row, `all`, is for all labels together.
    """
    scores = evaluate_labels(
        LabelModel(model), file, k, threshold, column=column, label_column=label_column
    )
    if as_json:
        print_json(_figures(model, file, scores))
        return
    title = f"{model} at k = {k}" + (f", {scores.skipped:,} lines left out" * bool(scores.skipped))
    print_rows(COLUMNS, _rows(scores), title=title)


def _figures(model: Path, file: str, scores: LabelScores) -> dict[str, Any]:
    figures = {"model": str(model), "file": file, **asdict(scores)}
    for entry in figures["labels"]:
        entry["label"] = to_text(entry["label"])
    return figures


def _rows(scores: LabelScores) -> list[tuple[Cell, ...]]:
    said = sum(entry.predicted for entry in scores.labels)
    rows: list[tuple[Cell, ...]] = [("all", scores.lines, said, scores.precision, scores.recall)]
    rows += [
        (to_text(entry.label), entry.lines, entry.predicted, entry.precision, entry.recall)
        for entry in scores.labels
    ]
    return rows
