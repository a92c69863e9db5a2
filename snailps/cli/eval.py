"""``snailps eval``: scores of a model on similarity and analogy files.

    MODEL, files -> vectors.evaluate -> rows of test, score, asked, skipped; or one JSON object

Parses and prints; `evaluate` does the work.
"""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from snailps.cli.printing import Cell, print_json, print_rows
from snailps.errors import ConfigError
from snailps.vectors.evaluate import OovRule, evaluate_analogies, evaluate_similarity
from snailps.vectors.files import load


class Oov(str, Enum):
    """`OovRule` as choices of an option."""

    skip = "skip"
    subword = "subword"


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
        Oov, typer.Option(help="Pairs with unknown words: left out, or scored by subwords.")
    ] = Oov.skip,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Name the pairs and questions skipped.", metavar=""),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of rows.", metavar="")
    ] = False,
) -> None:
    """Score a model: Spearman correlation on similarity files, accuracy on an analogy file.

    Words are lower-cased.  Words outside the vocabulary are skipped and counted; --verbose and
    --json list them.

    For example: snailps eval out/corpus.bin --similarity wordsim353.tsv

    In a pipe: test, score, asked, skipped, separated by tabs; with --verbose followed by lines of
    test and skipped words.
    """
    figures = evaluate(model, similarity or [], analogies, restrict, oov.value)
    if as_json:
        print_json(figures)
        return
    print_rows(("test", "score", "asked", "skipped"), _rows(figures), title=str(model))
    if verbose:
        print_rows(("test", "skipped"), _skipped(figures))


def evaluate(
    model: Path,
    similarity: list[Path],
    analogies: Path | None,
    restrict: int = 0,
    oov: OovRule = "skip",
) -> dict[str, Any]:
    """All scores of a model as plain values, ready for JSON; an undefined score is None."""
    if not similarity and analogies is None:
        raise ConfigError("nothing to evaluate: give --similarity FILE, --analogies FILE, or both")
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


def _skipped(figures: dict[str, Any]) -> list[tuple[Cell, ...]]:
    """A row for each pair or question that was skipped, with tests named as in `_rows`."""
    found: list[tuple[str, Any]] = [
        (Path(entry["file"]).name, entry["skipped"]) for entry in figures["similarity"]
    ]
    if analogies := figures["analogies"]:
        name = Path(analogies["file"]).name
        found += [(f"{name}: {part['name']}", part["skipped"]) for part in analogies["sections"]]
    return [(test, " ".join(words)) for test, skipped in found for words in skipped]


def _rows(figures: dict[str, Any]) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = [
        (Path(entry["file"]).name, entry["spearman"], entry["pairs"], entry["oov"])
        for entry in figures["similarity"]
    ]
    if found := figures["analogies"]:
        name = Path(found["file"]).name
        rows.append((name, found["accuracy"], found["asked"], found["oov"]))
        rows += [
            (f"{name}: {part['name']}", part["accuracy"], part["asked"], part["oov"])
            for part in found["sections"]
        ]
    return rows
