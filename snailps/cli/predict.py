"""``snailps predict``: the labels that a classifier gives to text.

    MODEL, text (or standard input) -> LabelModel.predict -> rows of line, label, probability

Parses and prints; the work is done in `snailps.vectors`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from snailps.cli.printing import print_rows
from snailps.vectors.labels import LabelModel
from snailps.vectors.query import to_text

COLUMNS = ("line", "label", "probability")
_LINES_BYTES = 1 << 16

KOption = Annotated[int, typer.Option("-k", min=1, help="Most labels a line.")]
ThresholdOption = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Least probability of a label.")
]


def command(
    model: Annotated[Path, typer.Argument(help="A .bin of a classifier, fastText's own too.")],
    text: Annotated[str, typer.Argument(help="A line of text; `-`: lines of standard input.")],
    k: KOption = 1,
    threshold: ThresholdOption = 0.0,
) -> None:
    """The best labels of a text, with their probabilities.

    For example: snailps predict out/sections.bin "plays chess over the network" -k 3

    In a pipe: number of the line, label, probability, separated by tabs; a line without any known
    word, or without a label above the threshold, has `-` for both.
    """
    classifier = LabelModel(model)
    number = 0
    pieces = _input_lines() if text == "-" else iter([text.encode("utf-8", "surrogateescape")])
    for piece in pieces:
        rows: list[tuple[int, str | None, float | None]] = []
        for found in classifier.predict(piece, k, threshold):
            number += 1
            rows += [(number, to_text(label), p) for label, p in found] or [(number, None, None)]
        print_rows(COLUMNS, rows)


def _input_lines() -> Iterator[bytes]:
    """Standard input, some whole lines at a time; line by line from a person."""
    stream = typer.get_binary_stream("stdin")
    while lines := stream.readlines(1 if stream.isatty() else _LINES_BYTES):
        yield b"".join(lines)
