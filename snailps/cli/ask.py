"""Questions to a file of vectors: ``snailps nn``, ``similarity``, ``analogy`` and ``vector``.

    MODEL, words -> Vectors -> rows of words and figures
    MODEL.npz of kge or mf, names, their kind -> GraphModel, FactorModel -> the same

Parses and prints; the work is done in `snailps.vectors` and `snailps.models.embeddings`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snailps.cli.printing import JsonRowsOption, print_json, print_rows
from snailps.dataclass import dataclass
from snailps.errors import EXIT_WRONG, ConfigError, DataError
from snailps.vectors.files import load
from snailps.vectors.words import to_text

if TYPE_CHECKING:
    from snailps.models.embeddings.queries import FactorModel, GraphModel
    from snailps.vectors.query import Vectors

COLUMNS = ("word", "neighbour", "cosine")
ModelArgument = Annotated[
    Path, typer.Argument(help="A .bin, .vec or .npz file, of kge and mf, too.")
]
KindOption = Annotated[
    str,
    typer.Option(
        "--of",
        metavar="KIND",
        help="Of kge: entities or relations. Of mf: users or items. Left out: where the name is.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class Names:
    """Rows of the names of a kind (empty: any), asked as `Vectors` are."""

    model: GraphModel | FactorModel
    kind: str

    def neighbours(self, name: str, k: int) -> Any:
        return self.model.neighbours(name, k, self.kind)

    def similarity(self, a: str, b: str) -> float:
        return self.model.similarity(a, b, self.kind)

    def vector(self, name: str) -> Any:
        return self.model.vector(self.kind or self.model.kind_of(name), name)


def opened(path: Path, kind: str) -> Vectors | Names:
    """The rows of a file by word or name; refuses a `kind` that the file lacks."""
    if path.suffix == ".npz":
        from snailps.estimators.loading import embedding_of

        if (found := embedding_of(path)) is not None:
            return Names(found, found.checked(kind))
    if kind:
        raise ConfigError(f"--of {kind}: {path} has words, and no kinds of names")
    return load(path)


def ask_nn(
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
    rows, good = opened(model, of), True
    for word in words or _input_words():
        try:
            found = [(word, other, score) for other, score in rows.neighbours(word, k)]
            print_rows(COLUMNS, found, as_json=as_json)
        except DataError as error:
            if words:
                raise
            typer.echo(f"snailps nn: {error}".encode("utf-8", "replace"), err=True)
            good = False
    if not good:
        raise typer.Exit(EXIT_WRONG)


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


def ask_similarity(
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
    row = (a, b, opened(model, of).similarity(a, b))
    print_rows(("word", "other", "cosine"), [row], as_json=as_json)


def ask_analogy(
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


def ask_vector(
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
    rows = opened(model, of)
    vectors = [(word, rows.vector(word)) for word in words]
    if as_json:
        for word, vector in vectors:
            print_json({"word": word, "vector": vector.tolist()})
    elif sys.stdout.isatty():  # five digits, as in a .vec file
        texts = [(word, " ".join(f"{value:.5g}" for value in vector)) for word, vector in vectors]
        print_rows(("word", "vector"), texts)
    else:
        print_rows((), [(word, *vector) for word, vector in vectors])
