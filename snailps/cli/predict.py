"""``snailps predict``: labels of text by a classifier, predictions for examples by a sparse model.

    MODEL.bin, text (or standard input) -> LabelModel.predict -> rows of line, label, probability
    MODEL.npz, file (or standard input) -> estimator.predictions -> a line of numbers an example
    MODEL.npz of kge or mf, lines with a ? -> answers -> rows of line, name, score

Parses and prints; the work is done in `snailps.vectors` and `snailps.estimators`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from snailps.cli.printing import print_figures, print_json, print_rows
from snailps.data.file_kinds import HEAD_BYTES, refuse_foreign
from snailps.errors import ConfigError
from snailps.estimators.loading import embedding_of, rows_model_of
from snailps.vectors.label_prediction import LabelModel
from snailps.vectors.words import to_text

if TYPE_CHECKING:
    from snailps.models.embeddings.queries import FactorModel, GraphModel

ANSWERS = ("line", "name", "score")
COLUMNS = ("line", "label", "probability")
_LINES_BYTES = 1 << 16

KOption = Annotated[int, typer.Option("-k", min=1, help="Most labels a line.")]
ThresholdOption = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Least probability of a label.")
]


def command(
    model: Annotated[
        Path,
        typer.Argument(
            help="A .bin of a classifier, fastText's own too; a .npz of a sparse model, kge or mf."
        ),
    ],
    text: Annotated[
        str,
        typer.Argument(help="A line of text, for a .npz a file; `-`: lines of standard input."),
    ],
    k: KOption = 1,
    threshold: ThresholdOption = 0.0,
    metrics: Annotated[
        bool,
        typer.Option(
            "--metrics",
            help="With a .npz: print metrics of the predictions instead of the predictions.",
            metavar="",
        ),
    ] = False,
    label_column: Annotated[
        str,
        typer.Option(
            help="With --metrics: the column of a table that has the labels, if it is another "
            "than in training.",
            metavar="NAME",
        ),
    ] = "",
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print a JSON object a row, with names.", metavar=""),
    ] = False,
) -> None:
    """The best labels of a text, with their probabilities; or predictions for a file of examples.

    With --json: an object a line with line, label, probability, or with the scores of an example.

    For example: snailps predict out/sections.bin "plays chess over the network" -k 3

    In a pipe: number of the line, label, probability, separated by tabs; a line without a label
    above the threshold has `-` for both. A line without a known word, even an empty one, is judged
    by its end, as by fastText.

    With a .npz: one line per example with the probability of yes, the value, or the probability of
    each class, separated by tabs. Lines of LIBSVM must have labels; only --metrics uses them.

    For example: snailps predict out/clicks.npz test.svm --metrics

    With a .npz of kge or mf: a line per line of the file with its score; for a line with ? as head,
    tail or item the K best names.

    For example: snailps predict out/graph.npz questions.txt -k 5
    """
    if model.suffix == ".npz":
        if (embeddings := embedding_of(model)) is not None:
            _answer(embeddings, text, k, metrics, as_json)
            return
        _predict_examples(model, text, metrics, label_column, as_json)
        return
    if metrics:
        raise ConfigError("--metrics is for a .npz; snailps test judges classifiers")
    classifier = LabelModel(model)
    number = 0
    line = text.removesuffix("\n") + "\n"  # also for an empty line
    pieces = _input_lines() if text == "-" else iter([line.encode("utf-8", "surrogateescape")])
    for lines in classifier.predict_pieces(pieces, k, threshold):
        rows: list[tuple[int, str | None, float | None]] = []
        for found in lines:
            number += 1
            rows += [(number, to_text(label), p) for label, p in found] or [(number, None, None)]
        print_rows(COLUMNS, rows, as_json=as_json)


def _answer(
    model: GraphModel | FactorModel, file: str, k: int, metrics: bool, as_json: bool
) -> None:
    """Print scores of lines, or the best names in the place of a ``?``."""
    if metrics:
        raise ConfigError(f"--metrics: {model.path} is judged when it is trained, by --test")
    data = typer.get_binary_stream("stdin").read() if file == "-" else Path(file).read_bytes()
    for number, best in enumerate(model.answers(data, k), 1):
        print_rows(ANSWERS, [(number, *entry) for entry in best], as_json=as_json)


def _predict_examples(
    model: Path, file: str, metrics: bool, label_column: str, as_json: bool
) -> None:
    estimator = rows_model_of(model)
    path = "/dev/stdin" if file == "-" else file
    if metrics:
        figures = estimator.evaluate(path, label_column or None)
        if as_json:
            print_json({"model": str(model), "file": file, **figures})
        else:
            print_figures(figures)
        return
    for scores in estimator.predictions(path):
        lines = scores if scores.ndim == 2 else scores[:, None]
        if as_json:
            for values in np.asarray(lines).tolist():
                print_json({"scores": values})
            continue
        rows = ("\t".join(map("{:.6g}".format, line)) for line in np.asarray(lines).tolist())
        typer.echo("\n".join(rows), nl=len(lines) > 0)


def _input_lines() -> Iterator[bytes]:
    """Standard input, some whole lines at a time; line by line from a terminal."""
    stream = typer.get_binary_stream("stdin")
    head = True
    while lines := stream.readlines(1 if stream.isatty() else _LINES_BYTES):
        data = b"".join(lines)
        if head:
            refuse_foreign(data[:HEAD_BYTES], "standard input", text=True)
            head = False
        yield data
