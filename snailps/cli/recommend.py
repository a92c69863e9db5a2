"""``snailps recommend``: the best items of all users of a model, to a file or a pipe.

OUTPUT.npz of mf -> best_lists -> ListWriter -> user, item, value

Checks the options against each other; `models.embeddings.lists` scores and writes.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Annotated, Literal

import typer

from snailps.cli.options import OverwriteOption, rows_file
from snailps.errors import ConfigError, SnailError


def command(
    model: Annotated[Path, typer.Argument(help="A .npz of mf.")],
    output: Annotated[
        Path | None,
        typer.Option(help="File for the lists; by default, and by `-`, standard output."),
    ] = None,
    format: Annotated[Literal["tsv", "parquet"], typer.Option(help="Format of the lists.")] = "tsv",
    k: Annotated[int, typer.Option("-k", min=1, help="Items per user, at most.")] = 10,
    known: Annotated[
        list[str] | None,
        typer.Option(
            help="Lines of users and items to leave out, such as the training's. A model of loss "
            "als has these itself. May be given several times.",
            metavar="FILE",
        ),
    ] = None,
    only: Annotated[
        Path | None,
        typer.Option(help="Recommend only the items in this file, one a line.", metavar="FILE"),
    ] = None,
    threads: Annotated[int, typer.Option(min=0, help="Number of threads; 0: one per core.")] = 0,
    overwrite: OverwriteOption = False,
) -> None:
    """Recommend the K best items to every user of a model.

    Exact, on all cores: the lists that scoring every item would give. A model of loss als leaves
    out what the user has in the training.

    For example: snailps recommend out/plays.npz --output lists.parquet --format parquet

    With a catalogue: snailps recommend out/plays.npz -k 20 --only in-stock.txt --output lists.tsv

    Each row has user, item and value, the best item of a user first; in a file of lines separated
    by tabs. A user has fewer rows where fewer items are left.
    """
    import numpy as np

    from snailps.cli.signals import exits_by_signals
    from snailps.config.output import refuse_results
    from snailps.files.atomic import atomic_file
    from snailps.models.embeddings.lists import ListWriter, best_lists
    from snailps.models.embeddings.queries import FactorModel

    output = rows_file(output, format)
    if output is not None:
        read = [model, *(known or ()), *([only] if only is not None else ())]
        refuse_results([output], read, overwrite=overwrite)
    factors = FactorModel(model)
    known_pairs = []
    for path in known or ():
        try:
            of_file = factors.pairs_in(path)
        except SnailError as error:
            raise ConfigError(f"--known {path}: {error}") from None
        known_pairs.append(of_file)
        if not of_file.size:
            typer.echo(
                f"--known {path}: no line names a user and an item of the model: nothing more is "
                "left out",
                err=True,
            )
    items = None
    if only is not None:
        try:
            items = only.read_text("utf-8", "surrogateescape").split("\n")
        except OSError as error:
            raise ConfigError(f"--only {only}: {error.strerror}") from None
        items = [item.removesuffix("\r") for item in items if item.strip()]
        if not items:
            raise ConfigError(f"--only {only}: expected the names of items, one a line, got none")
        unknown = [items[line] for line in np.flatnonzero(factors.numbers("items", items) < 0)]
        if 0 < len(unknown) < len(items):
            typer.echo(
                f"--only {only}: {len(unknown):,} of {len(items):,} names are unknown and left "
                f"out; the first is {unknown[0]!r:.60}",
                err=True,
            )
    with ExitStack() as stack:
        stack.enter_context(exits_by_signals())
        file: IO[bytes] = sys.stdout.buffer
        if output is not None:
            file = stack.enter_context(atomic_file(output))
        writer = ListWriter(factors, file, format)
        for lists in best_lists(factors, k, known=known_pairs, only=items, threads=threads):
            writer.write(lists)
        writer.close()
        file.flush()
    if output is not None:
        typer.echo(f"wrote {output}: lists of {writer.users:,} users", err=True)
    if writer.without:
        text = f"users without a list, as no item is left for them: {writer.without:,}"
        typer.echo(text, err=True)
