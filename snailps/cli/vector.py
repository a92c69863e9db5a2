"""``snailps vector``: the vectors of words, or the rows of names.

    MODEL, words -> Vectors.vector, NamedRows.vector -> one row per word

Parses and prints; the work is done in `snailps.vectors` and `snailps.models.embeddings`.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from snailps.cli.named_rows import KindOption, ModelArgument, opened
from snailps.cli.printing import JsonRowsOption, print_json, print_rows
from snailps.vectors.query import Vectors


def command(
    model: ModelArgument,
    words: Annotated[list[str], typer.Argument(metavar="WORD...", help="Words.")],
    of: KindOption = "",
    as_json: JsonRowsOption = False,
) -> None:
    """The vector of each WORD.

    With a .bin that has subwords, words that were never seen have vectors too.

    With a .npz of kge or mf: the row of each name; of ratings the bias is the first number.

    For example: snailps vector out/corpus.bin snail

    In a pipe: the word and its numbers, separated by tabs, one line per word.
    """
    found = opened(model, of)
    if isinstance(found, Vectors):
        vectors = {word: found.vector(word) for word in words}
    else:
        vectors = {name: found.vector(of or found.kind_of(name), name) for name in words}
    if as_json:
        for word in words:
            print_json({"word": word, "vector": vectors[word].tolist()})
        return
    # Five digits, as in a .vec file: more than the precision of training.
    rows = [(word, *(f"{value:.5g}" for value in vectors[word].tolist())) for word in words]
    if not sys.stdout.isatty():
        print_rows((), rows)
        return
    print_rows(("word", "vector"), [(row[0], " ".join(row[1:])) for row in rows])
