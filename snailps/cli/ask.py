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
    Path,
    typer.Argument(help="Model file: word vectors (.bin, .vec, .npz), or a .npz of kge or mf."),
]
KindOption = Annotated[
    str,
    typer.Option(
        "--of",
        metavar="KIND",
        help="Kind of the names. kge: entities or relations; mf: users or items. "
        "By default the kind that has the name.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class Names:
    """The rows of a kge or mf model by name, with the methods of `Vectors` that commands call.

    `kind` empty: the kind that has the name.
    """

    model: GraphModel | FactorModel
    kind: str

    def neighbours(self, name: str, k: int) -> Any:
        return self.model.neighbours(name, k, self.kind)

    def similarity(self, a: str, b: str) -> float:
        return self.model.similarity(a, b, self.kind)

    def vector(self, name: str) -> Any:
        return self.model.vector(self.kind or self.model.kind_of(name), name)


def opened(path: Path, kind: str) -> Vectors | Names:
    """Open a model file for questions by word or name; `ConfigError` for a `kind` it lacks."""
    if path.suffix == ".npz":
        from snailps.estimators.loading import embedding_of

        if (model := embedding_of(path)) is not None:
            return Names(model, model.checked(kind))
    if kind:
        raise ConfigError(
            f"--of {kind}: {path} holds word vectors, and words have no kinds: leave --of out"
        )
    return load(path)


def ask_nn(
    model: ModelArgument,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]...", help="By default standard input is read, one word per line."
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Neighbours per word.")] = 10,
    of: KindOption = "",
    as_json: JsonRowsOption = False,
) -> None:
    """Print the K nearest neighbours of each WORD by cosine similarity.

    A .bin with subwords also has neighbours for words that are not in its vocabulary.

    For example: snailps nn out/corpus.bin snail -k 5

    For a .npz of kge or mf: the K entities, relations, users or items nearest to each name.

    For example: snailps nn out/ratings.npz 4711 --of items

    In a pipe: word, neighbour and cosine, separated by tabs.
    """
    rows, all_known = opened(model, of), True
    for word in words or _input_words():
        try:
            neighbours = [(word, other, score) for other, score in rows.neighbours(word, k)]
            print_rows(COLUMNS, neighbours, as_json=as_json)
        except DataError as error:
            if words:
                raise
            # In a stream of words one unknown word must not end the answers to the others: the
            # exit code at the end, 2, says that there was one.
            typer.echo(f"snailps nn: {error}".encode("utf-8", "replace"), err=True)
            all_known = False
    if not all_known:
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
    b: Annotated[str, typer.Argument(metavar="B", help="The word to compare it with.")],
    of: KindOption = "",
    as_json: JsonRowsOption = False,
) -> None:
    """Print the cosine similarity of A and B: 1 same direction, 0 unrelated, -1 opposite.

    For a .npz of kge or mf: A and B are names of one kind.

    For example: snailps similarity out/corpus.bin snail slug

    In a pipe: A, B and cosine, separated by tabs.
    """
    row = (a, b, opened(model, of).similarity(a, b))
    print_rows(("word", "other", "cosine"), [row], as_json=as_json)


def ask_analogy(
    model: Annotated[Path, typer.Argument(help="Word vectors: a .bin, .vec or .npz file.")],
    a: Annotated[str, typer.Argument(metavar="A", help="Word that is added: berlin.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Word that is subtracted: germany.")],
    c: Annotated[str, typer.Argument(metavar="C", help="Word that is added: france.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Number of answers.")] = 10,
    as_json: JsonRowsOption = False,
) -> None:
    """Print the K words nearest to A - B + C: "berlin germany france" asks for paris.

    The same order of words as in ``fasttext analogies``.

    For example: snailps analogy out/corpus.bin berlin germany france

    In a pipe: word and cosine, separated by a tab.
    """
    answers = load(model).analogy(a, b, c, k)
    print_rows(("word", "cosine"), answers, title=f"{a} - {b} + {c}", as_json=as_json)


def ask_vector(
    model: ModelArgument,
    words: Annotated[list[str], typer.Argument(metavar="WORD...", help="Words or names.")],
    of: KindOption = "",
    as_json: JsonRowsOption = False,
) -> None:
    """Print the vector of each WORD.

    A .bin with subwords also has vectors for words that are not in its vocabulary.

    For a .npz of kge or mf: the row of each name; in a model of ratings its first number is the
    bias.

    For example: snailps vector out/corpus.bin snail

    In a pipe: one line per word, the word and its numbers separated by tabs.
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
