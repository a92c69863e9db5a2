"""Writes word vectors in the format that a file's name ends in.

words, chunks of rows -> save_vectors -> .vec, .npz        with a fastText model -> .bin
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from snailps.errors import ModelFileError
from snailps.vectors.fasttext_bin import BinModel, write_bin
from snailps.vectors.files import write_npz, write_vec
from snailps.vectors.quantised import QuantisedRows

Float32 = npt.NDArray[np.float32]
_BYTES_TOGETHER = 1 << 24


def save_vectors(
    path: str | os.PathLike[str],
    words: Sequence[bytes],
    chunks: Iterable[Float32],
    dim: int,
    model: BinModel | None,
) -> None:
    """Writes a file; `model` is what the vectors were read from if that was a fastText model.

    Raises
    ------
    ModelFileError
        The ending is none of these, the file cannot be written, or lacks what a .bin needs.
    """
    ending = os.path.splitext(path)[1]  # noqa: PTH122
    if ending == ".vec":
        write_vec(path, words, chunks, dim)
    elif ending == ".npz":
        write_npz(path, words, chunks, dim, None if model is None else model.counts)
    elif ending == ".bin":
        _save_bin(path, model)
    else:
        raise ModelFileError(
            f"{path}: expected a name that ends in .npz (full precision), .vec (text) or .bin "
            f"(fastText's), got {ending or 'no ending'}"
        )


def _save_bin(path: str | os.PathLike[str], model: BinModel | None) -> None:
    if model is None:
        raise ModelFileError(
            f"{path}: a .bin holds a whole fastText model, with counts and output rows, which "
            "these vectors do not have; save them as .npz or .vec"
        )
    if isinstance(model.input, QuantisedRows) or isinstance(model.output, QuantisedRows):
        raise ModelFileError(
            f"{path}: these vectors are of a quantised model, whose .ftz is smaller; copy that, or "
            "save the vectors of its words as .npz or .vec"
        )
    write_bin(
        path,
        model.header,
        model.words,
        model.counts,
        _pieces(model.input),
        _pieces(model.output),
        model.labels,
        model.label_counts,
    )


def _pieces(rows: Float32) -> Iterator[Float32]:
    step = max(1, _BYTES_TOGETHER // (4 * rows.shape[1]))
    for at in range(0, len(rows), step):
        yield np.array(rows[at : at + step])
