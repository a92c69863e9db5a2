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
    model: Annotated[Path, typer.Argument(help="A .bin, .vec or .npz file.")],
    similarity: Annotated[
        list[Path] | None,
        typer.Option(help="Lines of word, word, score.  May be given several times."),
    ] = None,
    analogies: Annotated[
        Path | None, typer.Option(help="Lines of four words under ': section' lines.")
    ] = None,
    restrict: Annotated[
        int, typer.Option(min=0, help="Analogies among the first N words only; 0: all.")
    ] = 0,
    oov: Annotated[
        Literal["skip", "subword"],
        typer.Option(help="Pairs with unknown words: left out, or scored by subwords."),
    ] = "skip",
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Name the pairs and questions skipped.", metavar=""),
    ] = False,
    as_json: JsonObjectOption = False,
) -> None:
    """Score a model: Spearman correlation on similarity files, accuracy on an analogy file.

    Words may differ in case.  Words outside the vocabulary are skipped and counted; --verbose and
    --json list them.

    For example: snailps eval out/corpus.bin --similarity wordsim353.tsv

    In a pipe: test, score, asked, skipped, separated by tabs; with --verbose followed by lines of
    test and skipped words.
    """
    figures = _evaluate(model, similarity or [], analogies, restrict, oov)
    if as_json:
        print_json(figures)
        return
    tests = list(_tests(figures))
    columns = ("test", "score", "asked", "skipped")
    print_rows(columns, [row for row, _ in tests], title=str(model))
    if verbose:
        skipped = [(row[0], " ".join(words)) for row, some in tests for words in some]
        print_rows(("test", "skipped"), skipped)


def _evaluate(
    model: Path, similarity: list[Path], analogies: Path | None, restrict: int, oov: OovRule
) -> dict[str, Any]:
    """All scores of a model as plain values, ready for JSON; an undefined score is None."""
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
    """The row of each test, and the words of each pair or question that it skipped."""
    for one in figures["similarity"]:
        row = (Path(one["file"]).name, one["spearman"], one["pairs"], one["oov"])
        yield row, one["skipped"]
    if found := figures["analogies"]:
        name = Path(found["file"]).name
        parts = [(f"{name}: {part['name']}", part) for part in found["sections"]]
        for title, part in [(name, {**found, "skipped": []}), *parts]:
            yield (title, part["accuracy"], part["asked"], part["oov"]), part["skipped"]
