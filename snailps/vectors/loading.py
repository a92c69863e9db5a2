"""Opens what this product, fastText, word2vec or GloVe wrote: models of words and of texts.

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
    """Opens a model of words or of texts, judged by the first bytes of its file.

    Parameters, errors and notes are those of ``snailps.load``, which opens other models, too.

    Returns
    -------
    Vectors or LabelModel
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
