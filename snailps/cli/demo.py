"""``snailps demo``: train word vectors on the prose in Python's own library, on five processes.

Owns the text and the settings of the demonstration; `train` runs it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from snailps.cli.options import OverwriteOption, SetOption
from snailps.cli.train import train
from snailps.data.stdlib_prose import write_prose
from snailps.vectors.files import load

WORDS = ("socket", "thread", "exception", "integer", "directory", "unpicklably")


def command(
    output: Annotated[
        Path | None,
        typer.Option(help="Prefix of result files. Without it none are kept.", metavar="PATH"),
    ] = None,
    epochs: Annotated[
        int, typer.Option(min=1, help="Passes over the text: more is better, slower.", metavar="N")
    ] = 40,
    overwrite: OverwriteOption = False,
    sets: SetOption = None,
) -> None:
    """Train fastText vectors on 1 master, 2 servers and 2 workers, and show nearest neighbours.

    The text is every docstring and comment of the running Python's standard library, so nothing
    is downloaded. Takes 15 to 30 s on two cores.

    For example: snailps demo --output out/demo
    """
    with tempfile.TemporaryDirectory(prefix="snailps-demo-") as folder:
        text = Path(folder) / "prose.txt"
        words = write_prose(str(text))
        typer.echo(f"{words:,} words of prose from Python's standard library", err=True)
        prefix = output or Path(folder) / "demo"
        code = train(
            "fasttext",
            {
                "servers": 2,
                "workers": 2,
                "as_json": False,
                "input": [str(text)],
                "output": str(prefix),
                "epochs": str(epochs),
                "bucket": "200000",
                "min_count": "5",
                "formats": "bin",
                "overwrite": overwrite,
                "sets": sets,
            },
            kept=output is not None,
            needed=("input", "output", "formats"),
        )
        if code:
            raise typer.Exit(code)
        vectors = load(f"{prefix}.bin")
        typer.echo("nearest words (the last word is not in the text; its subwords are):", err=True)
        for word in WORDS:
            line = "  ".join(f"{other} {score:.2f}" for other, score in vectors.neighbours(word, 5))
            typer.echo(f"{word:>14}  {line}")
