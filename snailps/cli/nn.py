"""``snailps nn``: the words nearest to a word, or the names nearest to a name.

    MODEL, words (or standard input) -> Vectors.neighbours -> rows of word, neighbour, cosine
    MODEL.npz of kge or mf, names -> NamedRows.neighbours -> the same

Parses and prints; the work is done in `snailps.vectors` and `snailps.models.embeddings`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Annotated, Any

import typer

from snailps.cli.named_rows import KindOption, ModelArgument, opened
from snailps.cli.printing import JsonRowsOption, print_rows
from snailps.errors import EXIT_WRONG, DataError
from snailps.vectors.query import Vectors
from snailps.vectors.words import to_text

COLUMNS = ("word", "neighbour", "cosine")
Find = Callable[[str, int], Iterable[tuple[Any, float]]]
"""Neighbours of a word, at most a number of them."""


def command(
    model: ModelArgument,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORD]...", help="Left out: one word a line of standard input."),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Neighbours a word.")] = 10,
    of: KindOption = "",
    as_json: JsonRowsOption = False,
) -> None:
    """The K words nearest to each WORD, by the cosine of their vectors.

    With a .bin that has subwords, words that were never seen have neighbours too.

    For example: snailps nn out/corpus.bin snail -k 5

    With a .npz of kge or mf: the K entities, relations, users or items nearest to each name.

    For example: snailps nn out/ratings.npz 4711 --of items

    In a pipe: word, neighbour, cosine, separated by tabs.
    """
    rows = opened(model, of)
    find: Find = rows.neighbours if isinstance(rows, Vectors) else partial(rows.neighbours, kind=of)
    for word in words or ():
        print_neighbours(find, word, k, as_json)
    if not words and not answer_input(find, k, as_json):
        raise typer.Exit(EXIT_WRONG)


def print_neighbours(find: Find, word: str, k: int, as_json: bool = False) -> None:
    rows = [(word, other, score) for other, score in find(word, k)]
    print_rows(COLUMNS, rows, as_json=as_json)


def answer_input(find: Find, k: int, as_json: bool = False) -> bool:
    """Answer one word per line; unknown ones are reported and skipped, and give False."""
    good = True
    for word in _input_words():
        try:
            print_neighbours(find, word, k, as_json)
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
