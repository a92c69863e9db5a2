"""Questions to a model's file: ``snailps nn``, ``similarity``, ``analogy``, ``vector``, ``dump``.

    MODEL, words -> Vectors -> rows of words and figures
    MODEL.npz of kge or mf, names, their kind -> GraphModel, FactorModel -> the same
    MODEL.bin -> dump -> what the file has, row by row

Parses and prints; the work is done in `snailps.vectors` and `snailps.models.embeddings`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from snailps.cli.printing import JsonRowsOption, print_json, print_rows
from snailps.dataclass import dataclass
from snailps.errors import EXIT_WRONG, ConfigError, DataError
from snailps.vectors.files import load, load_model, open_bin
from snailps.vectors.label_prediction import LabelModel, training_prefix
from snailps.vectors.words import Words, to_text

if TYPE_CHECKING:
    from snailps.models.embeddings.queries import FactorModel, GraphModel
    from snailps.vectors.query import Vectors

COLUMNS = ("word", "neighbour", "cosine")
_ROWS_TOGETHER = 4096
"""Rows of a matrix that are read and printed at a time."""
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
class AskedRows:
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


def opened(path: Path, kind: str) -> Vectors | AskedRows:
    """Open a model file for questions by word or name; `ConfigError` for a `kind` it lacks."""
    if path.suffix == ".npz":
        from snailps.estimators.loading import embedding_of

        if (model := embedding_of(path)) is not None:
            return AskedRows(model, model.checked(kind))
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
    rows = opened(model, of)

    def answer(word: str) -> None:
        neighbours = [(word, other, score) for other, score in rows.neighbours(word, k)]
        print_rows(COLUMNS, neighbours, as_json=as_json)

    _ask_each("nn", words, answer)


def _ask_each(
    command: str, questions: list[str] | None, answer: Callable[[str], None], *, blank: bool = False
) -> None:
    """Answer the questions of the command line, or lines of standard input, if `blank` all."""
    all_known = True
    for question in questions or _input_words(blank=blank):
        try:
            answer(question)
        except DataError as error:
            if questions:
                raise
            # In a stream of words one unknown word must not end the answers to the others: the
            # exit code at the end, 2, says that there was one.
            typer.echo(f"snailps {command}: {error}".encode("utf-8", "replace"), err=True)
            all_known = False
    if not all_known:
        raise typer.Exit(EXIT_WRONG)


def _input_words(*, blank: bool) -> Iterator[str]:
    stream = typer.get_binary_stream("stdin")
    ask = sys.stdin.isatty()
    while True:
        if ask:
            typer.echo("word (end with Ctrl-D): ", err=True, nl=False)
        line = stream.readline()
        if not line:
            return
        if (word := line.strip()) or blank:
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
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[A B C]",
            help="A is added, B subtracted, C added: berlin germany france. By default standard "
            "input is read, three words per line.",
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of answers.")] = 10,
    as_json: JsonRowsOption = False,
) -> None:
    """Print the K words nearest to A - B + C: "berlin germany france" asks for paris.

    The same order of words as in ``fasttext analogies``.

    For example: snailps analogy out/corpus.bin berlin germany france

    In a pipe: word and cosine, separated by a tab.
    """
    vectors = load(model)

    def answer(question: str) -> None:
        asked = question.split(" ") if words else question.split()
        if len(asked) != 3:
            raise DataError(f"expected three words, A - B + C, got {len(asked)}: {question!r:.60}")
        a, b, c = asked
        answers = vectors.analogy(a, b, c, k)
        print_rows(("word", "cosine"), answers, title=f"{a} - {b} + {c}", as_json=as_json)

    _ask_each("analogy", [" ".join(words)] if words else None, answer)


def ask_vector(
    model: ModelArgument,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]...",
            help="Words or names. By default standard input is read, one per line.",
        ),
    ] = None,
    of: KindOption = "",
    sentences: Annotated[
        bool,
        typer.Option(
            "--sentences",
            metavar="",
            help="Each WORD, or line of standard input, is a sentence: print its vector alone.",
        ),
    ] = False,
    ngrams: Annotated[
        bool,
        typer.Option(
            "--ngrams",
            metavar="",
            help="Print each WORD's own row and the rows of its n-grams, whose mean is its vector.",
        ),
    ] = False,
    as_json: JsonRowsOption = False,
) -> None:
    """Print the vector of each WORD.

    A .bin with subwords also has vectors for words that are not in its vocabulary.

    For a .npz of kge or mf: the row of each name; in a model of ratings its first number is the
    bias.

    For example: snailps vector out/corpus.bin snail

    With --sentences: the vector of a line. Of a classifier: the mean of the rows of its words and
    n-grams; else the mean of the words' vectors at length 1.

    In a pipe: one line per word, the word and its numbers separated by tabs; of sentences the
    numbers alone.
    """
    if sentences or ngrams:
        if of or (sentences and ngrams):
            raise ConfigError("give one of --of, --sentences and --ngrams")
        rows: Any = load_model(model)
    else:
        rows = opened(model, of)
    vectors = rows.wv if ngrams and isinstance(rows, LabelModel) else rows

    def answer(word: str) -> None:
        if ngrams:
            texts, numbers = vectors.subwords(word)
            named = [
                (to_text(text), vectors.mean(np.array([number])))
                for text, number in zip(texts, numbers.tolist(), strict=True)
            ]
        else:
            named = [(word, rows.sentence_vector(word) if sentences else rows.vector(word))]
        _print_vectors(named, with_names=not sentences, as_json=as_json)

    # The vector of a sentence is its line's: `paste` puts it beside the line, an empty one too.
    _ask_each("vector", words, answer, blank=sentences)


def _print_vectors(named: list[tuple[str, Any]], *, as_json: bool, with_names: bool = True) -> None:
    """Print names and vectors; without `with_names`, a pipe gets the numbers alone."""
    if as_json:
        for word, vector in named:
            print_json({"word" if with_names else "sentence": word, "vector": vector.tolist()})
    elif sys.stdout.isatty():  # five digits, as in a .vec file
        texts = [(word, " ".join(f"{value:.5g}" for value in vector)) for word, vector in named]
        print_rows(("word", "vector"), texts)
    else:
        print_rows((), [(word, *vector)[0 if with_names else 1 :] for word, vector in named])


def ask_dump(
    model: Annotated[Path, typer.Argument(help="A .bin or .ftz of snailps or fastText.")],
    part: Annotated[
        Literal["args", "dict", "input", "output"],
        typer.Argument(
            help="args: arguments of the training, by fastText's names. dict: words and labels "
            "with their counts. input: the rows of words, then of n-grams. output: the rows of "
            "labels, or of words as contexts; with the loss hs of the nodes of its tree, by number."
        ),
    ],
    as_json: JsonRowsOption = False,
) -> None:
    """Print a part of a .bin or .ftz file, one row per line.

    For example: snailps dump out/sections.bin dict

    In a pipe: columns are separated by tabs. Rows of input and output begin with their word, or
    their number if they are of n-grams or of a tree's nodes.
    """
    from snailps.fasttext.arguments import arguments_in

    fitted = open_bin(model, "a .bin or .ftz")
    labels = [to_text(label) for label in fitted.labels]
    names: Sequence[str] = Words(fitted.words)
    if part == "args":
        values = arguments_in(fitted.header).items()
        rows = [(name, getattr(value, "name", value)) for name, value in values]
        if fitted.header.normalize:  # no argument of fastText's
            rows.append(("normalize", fitted.header.normalize))
        if fitted.header.prefix:
            rows.append(("label", to_text(training_prefix(fitted))))
        print_rows(("argument", "value"), rows, as_json=as_json)
    elif part == "dict":
        words = zip(names, fitted.counts.tolist(), strict=True)
        of_labels = zip(labels, fitted.label_counts.tolist(), strict=True)
        print_rows(
            ("entry", "count", "kind"),
            chain(((*word, "word") for word in words), ((*label, "label") for label in of_labels)),
            as_json=as_json,
        )
    else:
        is_output = part == "output"
        matrix = fitted.output if is_output else fitted.input
        if is_output and fitted.header.loss == "hs":
            names = ()  # a row is of an inner node, and the last one of none
        elif is_output and fitted.header.model == "supervised":
            names = labels
        for start in range(0, len(matrix), _ROWS_TOGETHER):
            piece = np.array(matrix[start : start + _ROWS_TOGETHER])
            of_rows = [*names[start : start + len(piece)]]
            of_rows += [str(start + row) for row in range(len(of_rows), len(piece))]
            _print_vectors(list(zip(of_rows, piece, strict=True)), as_json=as_json)
