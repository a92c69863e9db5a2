"""``snailps predict``: prints labels of texts, predictions for examples, answers about names.

    text      TEXT       -> rows of line, label, probability
              --input    -> `labelling`: a line of labels a line of the files
    examples  FILE       -> a line of numbers an example
              --metrics  -> figures of the file's labels
    names     FILE       -> rows of line, name, score

Parses and prints; the work is done in `snailps.vectors` and `snailps.estimators`, of which each
kind of model imports its own part.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from snailps.cli.figures import counted
from snailps.cli.model_kinds import (
    KOption,
    ThresholdOption,
    input_lines,
    judge_examples,
    kind_of,
    readable,
)
from snailps.cli.options import OverwriteOption
from snailps.cli.printing import JsonRowsOption, print_json, print_rows
from snailps.errors import ConfigError, DataError
from snailps.files.file_kinds import whole_lines
from snailps.files.unpacking import open_content, read_errors
from snailps.vectors.words import to_text

_INPUT = (
    "--input labels files by a classifier (.bin) and writes --format tsv, jsonl or parquet: it "
    "takes neither --json nor --metrics"
)
_REFUSED = {
    ("text", "--metrics"): "--metrics is for a .npz; for a classifier use snailps test",
    ("names", "--metrics"): "--metrics: for this model use snailps test {model} {file}",
}
"""(kind of model, way of asking) -> why this is refused, and what to use instead."""


def command(
    model: Annotated[
        Path,
        typer.Argument(
            help="Model file: a classifier's .bin (fastText's too) or the .npz of any other model. "
            "Not word vectors."
        ),
    ],
    text: Annotated[
        str | None,
        typer.Argument(
            help="A line of text to label; for a .npz a file of examples. `-`: standard input.",
            show_default=False,
        ),
    ] = None,
    k: KOption = 1,
    threshold: ThresholdOption = None,
    input: Annotated[
        list[str] | None,
        typer.Option(
            help="Instead of TEXT: a file, folder, glob, URL or `-` (standard input). Each line, "
            "or row of a table, is labelled by one line of output. May be given several times.",
            metavar="FILE",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="With --input: file for the labels; `-`: standard output.", metavar="FILE"
        ),
    ] = None,
    format: Annotated[
        Literal["tsv", "jsonl", "parquet"],
        typer.Option(help="With --input: format of the output."),
    ] = "tsv",
    column: Annotated[
        str,
        typer.Option(help="With --input: column with the text, in tables.", metavar="NAME"),
    ] = "",
    threads: Annotated[
        int, typer.Option(min=0, help="With --input: number of threads; 0: one per core.")
    ] = 0,
    overwrite: OverwriteOption = False,
    metrics: Annotated[
        bool,
        typer.Option(
            "--metrics",
            help="For a .npz: print metrics by the file's labels instead of predictions.",
            metavar="",
        ),
    ] = False,
    label_column: Annotated[
        str,
        typer.Option(
            help="With --metrics: column with the labels, in tables; by default the one of the "
            "training.",
            metavar="NAME",
        ),
    ] = "",
    weight_column: Annotated[
        str,
        typer.Option(
            help="With --metrics: column with the weights, in tables; by default the one of the "
            "training, if the table has it.",
            metavar="NAME",
        ),
    ] = "",
    as_json: JsonRowsOption = False,
) -> None:
    """Predict labels of a text with their probabilities, or predict for a file of examples.

    For example: snailps predict out/sections.bin "plays chess over the network" -k 3

    To label files on all cores: snailps predict out/sections.bin --input 'web/*.jsonl.gz'
    --column text

    The output then has one line per input line: its labels and probabilities, separated by tabs, or
    `-` for both, so that `paste` puts them beside the input. With --format jsonl or parquet a line
    has two lists.

    Without --input, in a pipe: line number, label and probability in full precision, separated by
    tabs; a line that has no label above the threshold gets `-` for both. A line without a known
    word, even an empty one, is labelled by its end-of-line token, as in fastText.

    For a .npz: one line per example with the probability of the positive class, the value, or the
    probability of each class, separated by tabs, in full precision. Lines of LIBSVM must have
    labels, but only --metrics uses them.

    For example: snailps predict out/clicks.npz test.svm --metrics

    For a .npz of kge or mf: the score of each line of the file; for a line with ? as head, tail or
    item the K best names.

    For example: snailps predict out/graph.npz questions.txt -k 5

    With --json each line is an object: line, label and probability, or the scores of an example.
    """
    kind = kind_of(model, "examples")
    if input or output is not None:
        way = "--input"
        if kind != "text":
            raise ConfigError(
                f"--input and --output are for a classifier (.bin): snailps predict {model} FILE "
                "prints what this model predicts"
            )
        if text is not None or not input:
            hint = f"; did you mean --input {text}?" if text and names_file(text) else ""
            raise ConfigError(
                f"give either a TEXT to label, or --input FILE to label its lines{hint}"
            )
        if metrics or as_json:
            raise ConfigError(_INPUT)
    else:
        way = "--metrics" if metrics else "TEXT"
        if column or threads or overwrite or format != "tsv":
            raise ConfigError("--column, --threads, --format and --overwrite are for --input FILE")
        if text is None:
            raise ConfigError("nothing to label: give a TEXT, or --input FILE to label its lines")
    if kind == "examples" and (k != 1 or threshold is not None):
        raise ConfigError(
            f"-k and --threshold choose labels of texts, and {model} predicts examples: each line "
            "has the numbers of all classes. Leave both out"
        )
    if kind == "names" and threshold is not None:
        raise ConfigError(
            f"--threshold is for labels of texts, and {model} has names: leave it out"
        )
    for option, name in (("--label-column", label_column), ("--weight-column", weight_column)):
        if name and way != "--metrics":
            raise ConfigError(f"{option} is for --metrics: leave it out")
    file = text or ""
    match kind, way:
        case "text", "TEXT":
            if names_file(file):  # as fastText's command takes it
                typer.echo(
                    f"snailps: labels the name {file!r} as a text; --input {file} labels the lines "
                    "of the file",
                    err=True,
                )
            label_text(model, file, k, threshold, as_json=as_json)
        case "text", "--input":
            from snailps.cli.labelling import Labels, label_lines

            labels = Labels(output, format, k, threshold)
            label_lines(model, input or [], labels, column, threads, overwrite=overwrite)
        case "examples", "TEXT":
            print_predictions(model, file, as_json=as_json)
        case "examples", "--metrics":
            judge_examples(model, file, label_column, weight_column, as_json=as_json)
        case "names", "TEXT":
            answer(model, file, k, as_json=as_json)
        case refused:
            raise ConfigError(_REFUSED[refused].format(model=model, file=file))


def names_file(text: str) -> bool:
    return os.path.isfile(text)  # noqa: PTH113 (of a long text Path.is_file raises)


def label_text(model: Path, text: str, k: int, threshold: float | None, *, as_json: bool) -> None:
    """Print the best labels of a text, or of each line of standard input if it is ``-``."""
    import numpy as np

    from snailps.vectors.label_prediction import LabelModel

    classifier = LabelModel(model)
    number = 0
    line = text.removesuffix("\n") + "\n"  # an empty text is one empty line, not none
    pieces = input_lines() if text == "-" else iter([line.encode("utf-8", "surrogateescape")])
    for lines in classifier.predict_pieces(pieces, k, threshold):
        rows: list[tuple[int, str | None, Any]] = []
        for labels in lines:
            number += 1
            # Probabilities are float32: 0.9, not 0.8999999761581421.
            rows += [(number, to_text(label), np.float32(p)) for label, p in labels]
            if not labels:
                rows.append((number, None, None))
        print_rows(("line", "label", "probability"), rows, as_json=as_json)


def print_predictions(model: Path, file: str, *, as_json: bool) -> None:
    """Print the probabilities, or the value, for each example of a file."""
    from snailps.estimators.loading import fitted_of

    estimator = fitted_of(model)
    names = getattr(estimator, "classes_", [])
    for scores in estimator.predictions(readable(file)):
        lines = (scores if scores.ndim == 2 else scores[:, None]).tolist()
        if as_json:
            best = scores.argmax(1) if scores.ndim == 2 else (scores > 0.5).astype(int)
            for values, number in zip(lines, best.tolist(), strict=True):
                of_class = isinstance(name := names[number] if len(names) else 0, str)
                print_json({"scores": values, **({"label": str(name)} if of_class else {})})
            continue
        rows = ("\t".join(map(repr, line)) for line in lines)
        typer.echo("\n".join(rows), nl=len(lines) > 0)


def answer(path: Path, file: str, k: int, *, as_json: bool) -> None:
    """Print the score of each line, or the best names for its ``?``."""
    from snailps.estimators.loading import embedding_of

    if k < 1:
        raise ConfigError(
            f"-k: expected at least 1 name, got {k}: only labels of texts have -1 for all"
        )
    model, unknown, why = embedding_of(path), 0, ""
    assert model is not None
    with ExitStack() as stack:
        stack.enter_context(read_errors(file))
        pieces, name = input_lines(), "standard input"
        if file != "-":
            pieces, name = whole_lines(stack.enter_context(open_content(file)), file), file
        for number, best in enumerate(model.answers(pieces, k, name), 1):
            rows: list[tuple[Any, ...]] = [(number, None, None)]
            if isinstance(best, DataError):
                unknown, why = unknown + 1, why or f"line {number}: {best}"
            elif best:
                rows = [(number, *entry) for entry in best]
            print_rows(("line", "name", "score"), rows, as_json=as_json)
    if unknown:
        typer.echo(
            f"snailps: {counted(unknown, 'line has', 'lines have')} unknown names and no score; "
            f"the first is {why}",
            err=True,
        )
