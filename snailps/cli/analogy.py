"""``snailps analogy``: A is to B as what is to C?

    MODEL, three words -> Vectors.analogy -> rows of word, cosine

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
    a: Annotated[str, typer.Argument(metavar="A", help="berlin")],
    b: Annotated[str, typer.Argument(metavar="B", help="germany")],
    c: Annotated[str, typer.Argument(metavar="C", help="france")],
    k: Annotated[int, typer.Option("-k", min=1, help="Answers.")] = 10,
    as_json: JsonRowsOption = False,
) -> None:
    """The K words nearest to A - B + C: "berlin germany france" asks for paris.

    The same question as ``fasttext analogies``.

    For example: snailps analogy out/corpus.bin berlin germany france

    In a pipe: word, cosine, separated by a tab.
    """
    answers = load(model).analogy(a, b, c, k)
    print_rows(("word", "cosine"), answers, title=f"{a} - {b} + {c}", as_json=as_json)
