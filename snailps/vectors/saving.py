"""Writes word vectors as .npz, .vec, .bin or .ftz, chosen by the ending of the name.

    words, chunks of rows, a fastText model -> save_vectors -> .vec, .npz, .bin, .ftz

`files` reads these formats.  Must not know how vectors were trained.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from snailps.data.packed_words import PackedWords
from snailps.errors import ModelFileError
from snailps.files.atomic import atomic_file
from snailps.files.model_file import model_writer
from snailps.vectors.calibration import refuse_foreign, write_calibration
from snailps.vectors.fasttext_bin import BinModel, Rows, check_words, checked_chunks, write_bin
from snailps.vectors.quantised import QuantisedRows
from snailps.vectors.text_files import write_vec

log = logging.getLogger(__name__)

Float32 = npt.NDArray[np.float32]
Path_: TypeAlias = "str | os.PathLike[str]"

_BYTES_TOGETHER = 1 << 24
"""Bytes of a matrix that are copied into a .bin at a time."""


def save_vectors(
    path: Path_,
    words: Sequence[bytes],
    chunks: Iterable[Float32],
    dim: int,
    model: BinModel | None,
    normalize: str = "",
) -> None:
    """Write vectors in the format of the path's ending.

    `model` is the fastText model that the vectors come from; only with one can a .bin be written.
    """
    ending = os.path.splitext(path)[1]  # noqa: PTH122
    if ending == ".npz":
        write_npz(path, words, chunks, dim, None if model is None else model.counts, normalize)
    elif ending == ".vec":
        warn_of_normal_form(path, normalize)
        write_vec(path, words, chunks, dim)
    elif ending in (".bin", ".ftz"):
        save_model(path, model)
    else:
        raise ModelFileError(
            f"{path}: expected a name that ends in .npz (full precision), .vec (text), .bin or "
            f".ftz (fastText's), got {ending or 'no ending'}"
        )


def write_npz(
    path: Path_,
    words: Sequence[bytes],
    chunks: Iterable[Float32],
    dim: int,
    counts: Sequence[int] | npt.NDArray[np.int64] | None = None,
    normalize: str = "",
) -> None:
    """Write ``vectors`` float32[n, dim], ``words`` (bytes, joined by newlines), and ``counts``.

    ``normalize``, if it is not empty, is an array of bytes, too.
    """
    check_words(path, words, newlines_only=True)
    newlines = np.full((len(words), 1), ord("\n"), np.uint8)
    text = PackedWords.of(words).with_tails(newlines)[:-1]
    size = 4 * len(words) * dim + text.nbytes + (0 if counts is None else 8 * len(words))
    with model_writer(path, size) as file:
        file.add("words", text)
        if counts is not None:
            numbers = np.asarray(counts, dtype=np.int64)
            if numbers.shape != (len(words),):
                raise ModelFileError(
                    f"{path}: expected {len(words)} counts, got shape {numbers.shape}"
                )
            file.add("counts", numbers)
        if normalize:
            file.add("normalize", np.frombuffer(normalize.encode(), np.uint8))
        rows = checked_chunks(path, "vectors", chunks, len(words), dim)
        file.add_pieces("vectors", np.float32, (len(words), dim), rows)


def warn_of_normal_form(path: Path_, normalize: str) -> None:
    """Log that a format without a place for the normal form loses it, if there is one."""
    if normalize:
        log.warning(
            "%s: this format cannot keep the normal form (%s): ask it for words in that form. A "
            ".npz or .bin keeps it",
            os.fspath(path), normalize,
        )  # fmt: skip


def write_word2vec(
    path: Path_, words: Sequence[bytes], chunks: Iterable[Float32], dim: int
) -> None:
    """Write word2vec's binary: ``n dim``, then a word, a blank and float32[dim] for each row."""
    check_words(path, words, newlines_only=True)
    done = 0
    with atomic_file(path) as file:
        file.write(b"%d %d\n" % (len(words), dim))
        for chunk in checked_chunks(path, "vectors", chunks, len(words), dim):
            for word, row in zip(words[done : done + len(chunk)], chunk, strict=True):
                file.write(word + b" " + row.astype("<f4").tobytes())
            done += len(chunk)


def save_model(path: Path_, model: BinModel | None) -> None:
    """Write a whole fastText model, a .bin, or a .ftz if its rows are quantised."""
    ending = os.path.splitext(path)[1]  # noqa: PTH122
    if model is None:
        raise ModelFileError(
            f"{path}: a {ending} holds a whole fastText model, with counts and output rows, which "
            "these vectors do not have; save them as .npz or .vec"
        )
    is_quantised = isinstance(model.input, QuantisedRows)
    if (ending == ".ftz") != is_quantised:
        expected, state, hint = ".bin", "not quantised", "snailps.quantize makes a .ftz of a .bin"
        if is_quantised:
            expected, state, hint = ".ftz", "quantised", "the full rows are in the .bin before it"
        raise ModelFileError(
            f"{path}: expected a name that ends in {expected}, because the model is {state}; {hint}"
        )
    save_bin(path, model)


def save_bin(path: Path_, model: BinModel) -> None:
    """Write an opened fastText model whatever the ending of `path`, its calibration beside it."""
    if model.calibration is not None:
        refuse_foreign(path)  # before the model is replaced
    write_bin(
        path,
        model.header,
        model.words,
        model.counts,
        _pieces(model.input),
        _pieces(model.output),
        model.labels,
        model.label_counts,
        model.pruned,
    )
    if model.calibration is not None:
        write_calibration(path, model.calibration)


def _pieces(rows: Rows) -> Iterable[Float32] | QuantisedRows:
    if isinstance(rows, QuantisedRows):
        return rows
    step = max(1, _BYTES_TOGETHER // (4 * rows.shape[1]))
    return (np.array(rows[at : at + step]) for at in range(0, len(rows), step))
