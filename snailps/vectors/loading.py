"""Opens whatever this product, fastText, word2vec or GloVe wrote: ``snailps.load``.

file of word vectors -> load -> Vectors            file of a classifier -> load -> LabelModel
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from snailps.errors import DataError
from snailps.vectors.fasttext_bin import MAGIC, read_header
from snailps.vectors.files import check_no_words, opened
from snailps.vectors.files import load as load_vectors
from snailps.vectors.label_prediction import LabelModel
from snailps.vectors.query import Vectors


def load(
    path: str | os.PathLike[str],
    *,
    words: str | os.PathLike[str] | Sequence[str] | Sequence[bytes] | None = None,
) -> Vectors | LabelModel:
    """Open a model's file for queries or predictions.

    Parameters
    ----------
    path : path
        Judged by its first bytes, not by its name.

        - fastText's .bin or .ftz (quantised, pruned), ours too: word vectors, or a classifier.
        - .vec, or word2vec's text: a first line ``words dim``.
        - word2vec's binary; GloVe's text, without a first line.
        - .npz: our vectors, and federated averaging's OUTPUT.weights.npz.
        - each of them packed by gzip.
    words : path or sequence of words, optional
        For vectors of federated averaging that were saved without words: the job's vocab.txt.

    Returns
    -------
    Vectors or LabelModel

    Raises
    ------
    ModelFileError
        Missing, unreadable, damaged, cut short or of another kind: the text says which, and what
        reads it.
    DataError
        `words` were given for a file that has words.

    Notes
    -----
    A .bin and a .npz are mapped, not read; a .npz is read through once to compare its checksum.
    Other files are read into memory, 4 x n x dim bytes.  A .gz is unpacked into a temporary file
    (in TMPDIR), which is gone with the object.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("compass.vec").write_text("2 3\\nnorth 0 1 0\\neast 1 0 0\\n")
    >>> wv = load("compass.vec")
    >>> wv
    Vectors(2 words, dim 3)
    >>> wv["east"]
    array([1., 0., 0.], dtype=float32)
    """
    if words is not None and not words:
        raise DataError("words: expected the words of a file's rows, got none")
    with opened(path) as file:
        start = file.read(4)
        file.seek(0)
        if start == MAGIC.to_bytes(4, "little") and read_header(path, file).model == "supervised":
            check_no_words(path, words)
            return LabelModel(path, file=file)
        return load_vectors(path, words=words, file=file)
