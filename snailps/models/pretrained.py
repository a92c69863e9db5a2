"""First vectors of words from a file: `pretrained` of models of text.

    settings + file -> with_dim -> settings whose dim is the file's
    file -> counted -> each word once, by which a vocabulary may grow
    file + vocabulary -> first_vectors -> ids of words with their vectors, in pieces

Runs at the master, before the training.  The model decides which row a vector becomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.api.worker import Results
from snailps.config import JobSettings
from snailps.data._text import WordCounter
from snailps.data.vocabulary import LABEL_PREFIX, Vocabulary
from snailps.files.file_kinds import SEPARATORS
from snailps.files.scratch import release_whole
from snailps.models.local_sgd import Floats
from snailps.models.packed_tables import opened, with_shape
from snailps.models.text_model import check_finite, normal_form_of

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
    counter, form = WordCounter(), _form_of(settings)
    for words, _ in _opened(settings).pieces:
        counter.add([word for word in form(words) if word])
    return counter


def first_vectors(
    results: Results, settings: JobSettings, vocabulary: Vocabulary
) -> Iterator[tuple[NDArray[np.int64], Floats]]:
    """Yield ids of the vocabulary's words that the file has, with their vectors, in pieces.

    Of a word that the file has twice, also in two forms, the first vector counts.
    """
    form = _form_of(settings)
    path: str = settings.pretrained  # type: ignore[attr-defined]
    is_missing = np.ones(len(vocabulary), np.bool_)
    word_num, _, pieces = _opened(settings)
    of_file = results.exporting.count(
        f"reading {path}", word_num, "words", pieces, lambda piece: len(piece[0])
    )
    for words, vectors in of_file:
        ids = vocabulary.lexicon.indices(form(words))
        _, first = np.unique(ids, return_index=True)
        rows = first[(ids[first] >= 0) & is_missing[ids[first]]]
        is_missing[ids[rows]] = False
        check_finite(path, vectors[rows])
        if len(rows):
            yield ids[rows], vectors[rows]
    release_whole(path)


def _form_of(settings: JobSettings) -> Callable[[Sequence[bytes]], list[bytes]]:
    """Return what gives words the normal form of the texts; no bytes for what no text can have."""
    prefix = getattr(settings, "label", "").encode() or LABEL_PREFIX
    normal = normal_form_of(settings.normalize, prefix)  # type: ignore[attr-defined]

    def whole(words: Sequence[bytes]) -> list[bytes]:
        return [word if word.translate(None, SEPARATORS) == word else b"" for word in words]

    def of(words: Sequence[bytes]) -> list[bytes]:
        return whole(normal(b"".join(word + b"\n" for word in whole(words))).split(b"\n")[:-1])

    return of


def _opened(settings: JobSettings) -> WordPieces:
    # Here, because few jobs start from vectors, and every process imports the models' modules.
    from snailps.vectors.files import word_pieces

    return word_pieces(opened(settings, "pretrained"))
