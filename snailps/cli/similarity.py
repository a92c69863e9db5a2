"""``snailps similarity``: the cosine similarity of two words, or of two names.

    MODEL, two words -> Vectors.similarity, NamedRows.similarity -> one row

Parses and prints; the work is done in `snailps.vectors` and `snailps.models.embeddings`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from snailps.cli.named_rows import KindOption, ModelArgument, opened
from snailps.cli.printing import JsonRowsOption, print_rows
from snailps.vectors.query import Vectors


def command(
    model: ModelArgument,
    a: Annotated[str, typer.Argument(metavar="A", help="A word.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    of: KindOption = "",
    as_json: JsonRowsOption = False,
) -> None:
    """Cosine of the vectors of A and B: 1 alike, 0 unrelated, -1 opposite.

    With a .npz of kge or mf: of the rows of two names of one kind.

    For example: snailps similarity out/corpus.bin snail slug

    In a pipe: A, B, cosine, separated by tabs.
    """
    found = opened(model, of)
    cosine = found.similarity(a, b) if isinstance(found, Vectors) else found.similarity(a, b, of)
    rows = [(a, b, cosine)]
    print_rows(("word", "other", "cosine"), rows, as_json=as_json)
