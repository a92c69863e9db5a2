"""``snailps similarity``: the cosine similarity of two words.

    MODEL, two words -> Vectors.similarity -> one row

Parses and prints; the work is done in `snailps.vectors`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snailps.cli.printing import JsonRowsOption, print_rows
from snailps.vectors.files import load


def command(
    model: Annotated[Path, typer.Argument(help="A .bin, .vec or .npz file.")],
    a: Annotated[str, typer.Argument(metavar="A", help="A word.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    as_json: JsonRowsOption = False,
) -> None:
    """Cosine of the vectors of A and B: 1 alike, 0 unrelated, -1 opposite.

    For example: snailps similarity out/corpus.bin snail slug

    In a pipe: A, B, cosine, separated by tabs.
    """
    rows = [(a, b, load(model).similarity(a, b))]
    print_rows(("word", "other", "cosine"), rows, as_json=as_json)
