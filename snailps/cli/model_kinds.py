"""Knows the kinds of model files that ``snailps predict`` and ``test`` take, and what both share.

    MODEL -> kind_of -> text: a classifier's .bin        LabelModel
                        examples: .npz of their models   an estimator of rows
                        names: .npz of kge and mf        an estimator of names

A command decides by the kind, in a single place, what it does and which options it refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from snailps.cli.printing import print_figures, print_json
from snailps.errors import DataError
from snailps.files.file_kinds import whole_lines
from snailps.outward import without_secrets

_LINES_BYTES = 1 << 16
_OPTIONS = {"y": "--label-column", "sample_weight": "--weight-column"}
"""Arguments of `evaluate`, as its errors call them, and the options that users have given."""

KOption = Annotated[int, typer.Option("-k", min=-1, help="At most K labels per line; -1: all.")]
ThresholdOption = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=1.0,
        help="Only labels of at least this probability. Default: the model's own thresholds, if it "
        "has some.",
        show_default=False,
    ),
]


def kind_of(model: Path, other: str) -> str:
    """Tell the kind of a model file: text, examples or names.

    `other` is the answer for a .npz that is none of them; its reader refuses it with a reason.
    """
    if model.suffix != ".npz":
        return "text"
    from snailps.estimators import loading

    return loading.kind_of(model) or other


def readable(file: str) -> str:
    """Return the path of a file argument; `-` is standard input."""
    return "/dev/stdin" if file == "-" else file


def input_lines() -> Iterator[bytes]:
    """Yield standard input in pieces of whole lines; line by line from a terminal."""
    stream = typer.get_binary_stream("stdin")
    yield from whole_lines(stream, "standard input", 1 if stream.isatty() else _LINES_BYTES)


def judge_examples(
    model: Path, file: str, label_column: str, weight_column: str, *, as_json: bool
) -> None:
    """Print a model's figures on a file, the same that a training prints for `test`."""
    from snailps.estimators.loading import fitted_of

    fitted = fitted_of(model)
    try:
        figures = fitted.evaluate(readable(file), label_column or None, weight_column or None)
    except DataError as error:
        argument, _, what = str(error).partition(": ")
        if argument not in _OPTIONS:
            raise
        raise DataError(f"{_OPTIONS[argument]}: {what}") from None
    print_judgement(model, file, figures, as_json=as_json)


def print_judgement(model: Path, file: str, figures: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json({"model": str(model), "file": without_secrets(readable(file)), **figures})
    else:
        print_figures(figures)
