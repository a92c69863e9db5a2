"""``snailps vector``: the vectors of words.

    MODEL, words -> Vectors.vector -> one row per word

Parses and prints; the work is done in `snailps.vectors`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from snailps.cli.printing import JsonRowsOption, print_json, print_rows
from snailps.vectors.files import load


def command(
    model: Annotated[Path, typer.Argument(help="A .bin, .vec or .npz file.")],
    words: Annotated[list[str], typer.Argument(metavar="WORD...", help="Words.")],
    as_json: JsonRowsOption = False,
) -> None:
    """The vector of each WORD.

    With a .bin that has subwords, words that were never seen have vectors too.

    For example: snailps vector out/corpus.bin snail

    In a pipe: the word and its numbers, separated by tabs, one line per word.
    """
    vectors = load(model)
    if as_json:
        for word in words:
            print_json({"word": word, "vector": vectors.vector(word).tolist()})
        return
    # Five digits, as in a .vec file: more than the precision of training.
    rows = [(word, *(f"{value:.5g}" for value in vectors.vector(word).tolist())) for word in words]
    if not sys.stdout.isatty():
        print_rows((), rows)
        return
    print_rows(("word", "vector"), [(row[0], " ".join(row[1:])) for row in rows])
