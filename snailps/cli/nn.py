"""``snailps nn``: the words nearest to a word.

    MODEL, words (or standard input) -> Vectors.neighbours -> rows of word, neighbour, cosine

Parses and prints; the work is done in `snailps.vectors`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from snailps.cli.printing import JsonRowsOption, print_rows
from snailps.errors import EXIT_WRONG, DataError
from snailps.vectors.files import load
from snailps.vectors.query import Vectors
from snailps.vectors.words import to_text

COLUMNS = ("word", "neighbour", "cosine")


def command(
    model: Annotated[Path, typer.Argument(help="A .bin, .vec or .npz file.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORD]...", help="Left out: one word a line of standard input."),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Neighbours a word.")] = 10,
    as_json: JsonRowsOption = False,
) -> None:
    """The K words nearest to each WORD, by the cosine of their vectors.

    With a .bin that has subwords, words that were never seen have neighbours too.

    For example: snailps nn out/corpus.bin snail -k 5

    In a pipe: word, neighbour, cosine, separated by tabs.
    """
    vectors = load(model)
    for word in words or ():
        print_neighbours(vectors, word, k, as_json)
    if not words and not answer_input(vectors, k, as_json):
        raise typer.Exit(EXIT_WRONG)


def print_neighbours(vectors: Vectors, word: str, k: int, as_json: bool = False) -> None:
    """Print one word's neighbours."""
    rows = [(word, other, score) for other, score in vectors.neighbours(word, k)]
    print_rows(COLUMNS, rows, as_json=as_json)


def answer_input(vectors: Vectors, k: int, as_json: bool = False) -> bool:
    """Answer one word per line; unknown ones are reported and skipped, and give False."""
    good = True
    for word in _input_words():
        try:
            print_neighbours(vectors, word, k, as_json)
        except DataError as error:
            typer.echo(f"snailps nn: {error}".encode("utf-8", "replace"), err=True)
            good = False
    return good


def _input_words() -> Iterator[str]:
    stream = typer.get_binary_stream("stdin")
    ask = sys.stdin.isatty()
    while True:
        if ask:
            typer.echo("word (end with Ctrl-D): ", err=True, nl=False)
        line = stream.readline()
        if not line:
            return
        if word := line.strip():
            yield to_text(word)
