"""fastText's ``fasttext.util``: test, nearest neighbour, fewer dimensions, published vectors."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.errors import DataError
from snailps.fasttext.model import Model

__all__ = ["download_model", "find_nearest_neighbor", "reduce_model", "test"]

ADDRESS = "https://dl.fbaipublicfiles.com/fasttext/vectors-crawl"
"""Where fastText's authors publish vectors of 157 languages."""
_ROWS = 100_000
"""Rows from which the axes of `reduce_model` are computed, as in fastText."""


def test(
    predictions: Sequence[Sequence[str]],
    labels: Sequence[Sequence[str]],
    k: int = 1,  # noqa: PT028
) -> tuple[float, float]:
    """Return precision and recall at `k` of predictions, as a model's `test` computes them.

    Parameters
    ----------
    predictions : sequence of n sequences of str
        Predicted labels of each line, `k` or fewer.
    labels : sequence of n sequences of str
        True labels of each line.
    k : int
    """
    right = sum(
        label in of_line
        for guesses, of_line in zip(predictions, labels, strict=True)
        for label in guesses
    )
    return right / (k * len(labels)), right / sum(map(len, labels))


def find_nearest_neighbor(
    query: NDArray[Any],
    vectors: NDArray[Any],
    ban_set: Container[int],
    cossims: NDArray[Any] | None = None,
) -> int:
    """Return the row of the largest product with a query, without banned rows.

    Parameters
    ----------
    query : float[dim]
    vectors : float[n, dim]
    ban_set : container of int
    cossims : float[n], optional
        Receives the products.

    Raises
    ------
    DataError
        All rows are banned.
    """
    products = np.matmul(vectors, query, out=cossims)
    for row in np.argsort(-products, kind="stable").tolist():
        if row not in ban_set:
            return int(row)
    raise DataError(f"ban_set: all {len(vectors):,} rows are banned")


def reduce_model(ft_model: Model, target_dim: int) -> Model:
    """Project a model's rows to their directions of largest variance (PCA), in place.

    Parameters
    ----------
    ft_model : Model
        Not quantised.
    target_dim : int
        1 to the model's dimension.

    Returns
    -------
    Model
        The same object.

    Notes
    -----
    The directions are sorted by variance, largest first.  fastText takes the
    directions that ``numpy.linalg.eig`` happens to return first.
    """
    inputs = ft_model.get_input_matrix()
    if not 1 <= target_dim <= inputs.shape[1]:
        raise DataError(f"target_dim: expected 1 to {inputs.shape[1]}, got {target_dim!r:.60}")
    sample = inputs[:_ROWS] - inputs[:_ROWS].mean(axis=0)
    _, axes = np.linalg.eigh(sample.T @ sample)  # by rising variance
    basis = axes[:, ::-1][:, :target_dim]
    ft_model.set_matrices(inputs @ basis, ft_model.get_output_matrix() @ basis)
    return ft_model


def download_model(
    lang_id: str, if_exists: str = "strict", dimension: int | None = None
) -> str | None:
    """Fetch published vectors of a language, ``cc.LANG.300.bin``, into the working directory.

    Parameters
    ----------
    lang_id : str
        Code of the language, such as ``"en"``.
    if_exists : {"strict", "ignore", "overwrite"}
        If the file is there.  "strict": print so, and return None.  "ignore": keep it.
        "overwrite": fetch it again.
    dimension : None
        Ignored, as in fastText; `reduce_model` makes shorter vectors.

    Returns
    -------
    str or None
        Name of the file.

    Raises
    ------
    DataError
        There are no vectors of the language, or they cannot be fetched.

    Notes
    -----
    Some 4.5 GB are fetched and 7.2 GB unpacked.  The file appears when it is complete.
    """
    if not lang_id.isalpha():
        raise DataError(
            f"lang_id: expected the code of a language such as 'en', got {lang_id!r:.60}"
        )
    name = f"cc.{lang_id}.300.bin"
    if os.path.exists(name) and if_exists != "overwrite":  # noqa: PTH110
        if if_exists == "ignore":
            return name
        print(f"{name} is there: if_exists='ignore' uses it, 'overwrite' fetches it again")
        return None
    _fetch(f"{ADDRESS}/{name}.gz", Path(name))
    return name


def _fetch(address: str, path: Path) -> None:
    """Unpack what a server sends into a file."""
    from urllib.request import urlopen

    partial = path.with_name(f".{path.name}.part")
    try:
        print(f"fetching {address}", file=sys.stderr)
        with urlopen(address) as answer, gzip.open(answer) as unpacked, partial.open("wb") as file:
            shutil.copyfileobj(unpacked, file, 1 << 20)
        partial.rename(path)
    except (OSError, EOFError) as error:
        raise DataError(f"{address}: cannot be fetched: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
