"""``snailps test``: scores a model on a file of labelled texts, examples or names.

    text      labelled text        -> rows of label, lines, precision, recall
    examples  a file as trained on -> the figures of a training's `test`
    names     lines of names       -> figures of ranks, lists or values

Parses and prints; the work is done in `snailps.vectors` and `snailps.estimators`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from snailps.cli.figures import counted
from snailps.cli.model_kinds import (
    judge_examples,
    kind_of,
    print_judgement,
    readable,
)
from snailps.cli.printing import Cell, JsonObjectOption, print_json, print_rows
from snailps.cli.signatures import options_of
from snailps.errors import ConfigError
from snailps.outward import without_secrets
from snailps.vectors.words import to_text

_OF_TEXTS = dict.fromkeys(
    ("--threshold", "--column", "--soft-labels", "--average-precision", "--at-recall"),
    "{option} is for classifiers of text (.bin): leave it out",
)
_NO_LISTS = "-k is for classifiers of text (.bin) and rankings of mf: leave it out"
_REFUSED = {
    "text": {"--known": "--known is for a .npz of kge or mf: leave it out"},
    "examples": {
        **_OF_TEXTS,
        "-k": _NO_LISTS,
        "--known": "--known is for a .npz of kge or mf, and {model} is a model of examples",
    },
    "names": {
        **_OF_TEXTS,
        "--weight-column": "--weight-column: {model} is a model of names, whose lines have none",
        "--label-column": "--label-column: {model} is a model of names, whose lines have no labels",
    },
}
"""Kind of model -> options that it does not take, and why."""


@options_of("snailps.vectors.label_prediction:LabelModel.evaluate")
def command(
    model: Annotated[
        Path,
        typer.Argument(
            help="Model file: a classifier's .bin (fastText's too) or the .npz of any other model. "
            "Not word vectors."
        ),
    ],
    text: Annotated[
        str,
        typer.Argument(
            help="Labelled test data in the format of the training: for a classifier lines of "
            "labels and words. `-`: standard input.",
            metavar="FILE",
        ),
    ],
    k: Annotated[
        int | None,
        typer.Option(
            "-k",
            min=-1,
            help="Labels per line, at most: 1 by default; -1: all. For a ranking of mf: length of "
            "the lists, by default the model's top.",
            show_default=False,
        ),
    ] = None,
    known: Annotated[
        list[str] | None,
        typer.Option(
            help="For kge and mf: a file of known answers, such as the training's, that ranks and "
            "lists leave out. May be given several times.",
            metavar="FILE",
        ),
    ] = None,
    as_json: JsonObjectOption = False,
    **values: Any,
) -> None:
    """Print precision, recall and F1 of the K best labels of each line, in total and per label.

    Precision: share of the predicted labels that are right. Recall: share of the true labels that
    are predicted. F1: their harmonic mean. Lines are left out that have no known label, or neither
    a known word nor an end of line, as in fastText.

    For example: snailps test out/sections.bin held-out.txt -k 1

    With a table: snailps test out/stars.bin held-out.parquet --column text --label-column stars

    With --weight-column a text or example counts in all figures but lines and predictions as often
    as its weight says, as with scikit-learn's sample_weight. With --soft-labels labels of texts
    have weights, too, as in the training.

    To find the threshold for a recall of .9: snailps test hq.bin held-out.txt --at-recall .9

    In a pipe: label, its lines, its predictions, precision, recall, F1 (then average precision,
    precision at the recall, threshold), separated by tabs. The first row, `all`, counts all labels
    together (micro average), the second, `macro`, is the mean over the labels.

    For a .npz: the figures that training prints for --test, by the weights of the training's
    column where the table has it. kge: MRR and hits@k, raw and filtered. mf: errors of ratings, or
    recall, NDCG, precision, MAP and coverage of ranked lists of K items, with the number of users
    who had a relevant item or had none.

    For example: snailps test out/graph.npz test.txt --known train.txt --known valid.txt

    With longer lists: snailps test out/plays.npz held-out.txt -k 20 --json
    """
    kind = kind_of(model, "text")
    options = {"-k": k is not None, "--known": known}
    for name, value in values.items():
        # By identity: a threshold of 0.0 is equal to False, and is given.
        is_given = value is not None and value is not False and value != ""
        options[f"--{name.replace('_', '-')}"] = is_given
    for option in (name for name, is_given in options.items() if is_given):
        if (why := _REFUSED[kind].get(option)) and model.exists():
            raise ConfigError(why.format(option=option, model=model))
    if kind == "examples":
        label_column, weight_column = values["label_column"], values["weight_column"]
        judge_examples(model, text, label_column, weight_column, as_json=as_json)
        return
    if kind == "names":
        judge_names(model, text, known or [], k, as_json=as_json)
        return
    from snailps.vectors.label_prediction import LabelModel, evaluate_labels

    k = 1 if k is None else k
    average_precision, at_recall = values.pop("average_precision"), values.pop("at_recall")
    if text == "-" and (average_precision or at_recall is not None):
        raise ConfigError(
            "--average-precision and --at-recall read the lines three times: give a file, not -"
        )
    scores = evaluate_labels(
        LabelModel(model), readable(text), k, ranking=average_precision, recall=at_recall, **values
    )
    labels = [{**asdict(entry), "label": to_text(entry.label)} for entry in scores.labels]
    if as_json:
        print_json(
            {"model": str(model), "file": without_secrets(text), **asdict(scores), "labels": labels}
        )
        return
    title = f"{model} at k = {k}"
    if scores.skipped:
        title += f", {counted(scores.skipped, 'line')} left out"
    count = sum(entry.predicted for entry in scores.labels)
    columns = {
        "label": "label", "lines": "lines", "predicted": "predicted", "precision": "precision",
    }  # fmt: skip
    columns |= {"recall": "recall", "f1": "F1"}
    if average_precision:
        columns["average_precision"] = "average precision"
    if at_recall is not None:
        columns |= {"precision_at_recall": f"precision at {at_recall:g}", "threshold": "threshold"}
    first = {**asdict(scores), "label": "all", "predicted": count}
    second = {**asdict(scores.macro), "label": "macro"}
    rows: list[tuple[Cell, ...]] = [
        tuple(row.get(name) for name in columns) for row in (first, second, *labels)
    ]
    print_rows(tuple(columns.values()), rows, title=title)
    error, before = scores.calibration_error, scores.uncalibrated_error
    if error is not None:
        by = "not calibrated" if before is None else f"{before:.4f} before calibration"
        typer.echo(f"expected calibration error: {error:.4f} ({by})", err=True)


def judge_names(model: Path, file: str, known: list[str], k: int | None, *, as_json: bool) -> None:
    """Print the figures of names' ranks, lists of `k` items (None: as many as the model says), or
    values; answers in `known` files are left out."""
    from snailps.estimators.loading import fitted_of

    fitted = fitted_of(model)
    if k is not None:
        if not fitted.has_lists:
            raise ConfigError(_NO_LISTS)
        if k < 1:
            raise ConfigError(f"-k: expected lists of 1 item or more, got {k}")
        fitted.set_params(top=k)
    figures = fitted.judged_by(readable(file), list(map(Path, known)) or None)
    print_judgement(model, file, figures, as_json=as_json)
