"""First vectors of words from a file: `pretrained` of models of text.

    settings + file -> with_dim -> settings whose dim is the file's
    file -> counted -> each word once, by which a vocabulary may grow
    file + vocabulary -> first_vectors -> ids of words with their vectors, in pieces

Runs at the master, before the training.  The model decides which row a vector becomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.api.worker import Results
from snailps.config import JobSettings
from snailps.data._text import WordCounter
from snailps.data.scratch import release_whole
from snailps.data.vocabulary import Vocabulary
from snailps.data.word_counts import SEPARATORS
from snailps.models.local_sgd import Floats
from snailps.models.packed_tables import opened, with_shape
from snailps.models.text_model import check_finite

if TYPE_CHECKING:
    from snailps.vectors.files import WordPieces

S = TypeVar("S", bound=JobSettings)


def with_dim(settings: S, explicit: Callable[[str], str | None]) -> S:
    """Take the dimension of the file in `pretrained`, if there is one."""
    path: str = settings.pretrained  # type: ignore[attr-defined]
    if not path:
        return settings
    return with_shape(settings, {"dim": _opened(settings).dim}, path, explicit)


def counted(settings: JobSettings) -> WordCounter:
    """Count the words of the file, each once, without those that no text can have."""
    counter = WordCounter()
    for words, _ in _opened(settings).pieces:
        counter.add([word for word in words if word and word.translate(None, SEPARATORS) == word])
    return counter


def first_vectors(
    results: Results, settings: JobSettings, vocabulary: Vocabulary
) -> Iterator[tuple[NDArray[np.int64], Floats]]:
    """Yield ids of the vocabulary's words that the file has, with their vectors, in pieces.

    Of a word that the file has twice, the first vector counts.
    """
    path: str = settings.pretrained  # type: ignore[attr-defined]
    is_missing = np.ones(len(vocabulary), np.bool_)
    word_num, _, pieces = _opened(settings)
    of_file = results.exporting.count(
        f"reading {path}", word_num, "words", pieces, lambda piece: len(piece[0])
    )
    for words, vectors in of_file:
        ids = vocabulary.lexicon.indices(words)
        _, first = np.unique(ids, return_index=True)
        rows = first[(ids[first] >= 0) & is_missing[ids[first]]]
        is_missing[ids[rows]] = False
        check_finite(path, vectors[rows])
        if len(rows):
            yield ids[rows], vectors[rows]
    release_whole(path)


def _opened(settings: JobSettings) -> WordPieces:
    # Here, because few jobs start from vectors, and every process imports the models' modules.
    from snailps.vectors.files import word_pieces

    return word_pieces(opened(settings, "pretrained"))
