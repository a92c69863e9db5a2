"""``snailps eval``: word vectors on files of word pairs and of analogies.

    MODEL, files -> rows of test, score, asked, skipped

Parses and prints; the work is done in `snailps.vectors`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from snailps.cli.printing import Cell, JsonObjectOption, print_json, print_rows
from snailps.errors import ConfigError

if TYPE_CHECKING:
    from snailps.vectors.evaluate import OovRule


def command(
    model: Annotated[Path, typer.Argument(help="Word vectors: a .bin, .vec or .npz file.")],
    similarity: Annotated[
        list[Path] | None,
        typer.Option(help="File of lines: word, word, score. May be given several times."),
    ] = None,
    analogies: Annotated[
        Path | None,
        typer.Option(help="File of lines of four words, in sections that begin with ': NAME'."),
    ] = None,
    restrict: Annotated[
        int, typer.Option(min=0, help="Analogies within the first N words; 0: all words.")
    ] = 0,
    oov: Annotated[
        Literal["skip", "subword"],
        typer.Option(help="Pairs with unknown words: skip them, or score them by subwords."),
    ] = "skip",
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="List the skipped pairs and questions.", metavar=""),
    ] = False,
    as_json: JsonObjectOption = False,
) -> None:
    """Score word vectors: Spearman correlation on similarity files, accuracy on analogies.

    Case is ignored. Lines with words outside the vocabulary are skipped and counted; --verbose and
    --json list them.

    For example: snailps eval out/corpus.bin --similarity wordsim353.tsv

    In a pipe: test, score, asked and skipped, separated by tabs; --verbose appends a line for each
    skipped pair or question, with its test.
    """
    figures = _evaluate(model, similarity or [], analogies, restrict, oov)
    if as_json:
        print_json(figures)
        return
    tests = list(_tests(figures))
    columns = ("test", "score", "asked", "skipped")
    print_rows(columns, [row for row, _ in tests], title=str(model))
    if verbose:
        skipped = [(row[0], " ".join(words)) for row, entries in tests for words in entries]
        print_rows(("test", "skipped"), skipped)


def _evaluate(
    model: Path, similarity: list[Path], analogies: Path | None, restrict: int, oov: OovRule
) -> dict[str, Any]:
    """Compute all scores as plain values, ready for JSON; an undefined score is None."""
    if not similarity and analogies is None:
        raise ConfigError("nothing to evaluate: give --similarity FILE, --analogies FILE, or both")
    from snailps.vectors.evaluate import evaluate_analogies, evaluate_similarity
    from snailps.vectors.files import load

    vectors = load(model)
    figures: dict[str, Any] = {
        "model": str(model),
        "words": len(vectors),
        "dim": vectors.dim,
        "oov": oov,
        "similarity": [
            {"file": str(path), **asdict(evaluate_similarity(vectors, path, oov))}
            for path in similarity
        ],
        "analogies": None,
    }
    if analogies is not None:
        result = asdict(evaluate_analogies(vectors, analogies, restrict))
        figures["analogies"] = {"file": str(analogies), "restrict": restrict, **result}
    return figures


def _tests(figures: dict[str, Any]) -> Iterator[tuple[tuple[Cell, ...], list[list[str]]]]:
    """Yield the row of each test, and the words of each pair or question that it skipped."""
    for scores in figures["similarity"]:
        row = (Path(scores["file"]).name, scores["spearman"], scores["pairs"], scores["oov"])
        yield row, scores["skipped"]
    if total := figures["analogies"]:
        name = Path(total["file"]).name
        parts = [(f"{name}: {part['name']}", part) for part in total["sections"]]
        for title, part in [(name, {**total, "skipped": []}), *parts]:
            yield (title, part["accuracy"], part["asked"], part["oov"]), part["skipped"]
