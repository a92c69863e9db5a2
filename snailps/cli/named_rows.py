"""Files that commands on word vectors read, too: knowledge graphs and matrix factorisations.

    MODEL, kind -> opened -> Vectors, or rows of a kind of names

Owns the option for the kind of names; `models.embeddings` owns rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snailps.errors import ConfigError
from snailps.estimators.loading import embedding_of
from snailps.vectors.files import load

if TYPE_CHECKING:
    from snailps.models.embeddings.queries import FactorModel, GraphModel
    from snailps.vectors.query import Vectors

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


def opened(path: Path, kind: str = "") -> Vectors | GraphModel | FactorModel:
    """The rows of a file by word or, of the `kind`, by name; refuses a kind that the file lacks."""
    if path.suffix == ".npz" and (found := embedding_of(path)) is not None:
        found.checked(kind)
        return found
    if kind:
        raise ConfigError(f"--of {kind}: {path} has words, and no kinds of names")
    return load(path)
