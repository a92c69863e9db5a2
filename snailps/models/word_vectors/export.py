"""Result files of word vectors, and neighbours of a few words during the training.

    vocabulary + tables "input", "output" -> write_files -> .bin, .vec, .npz, in pieces
    vectors of the frequent words -> neighbours of `validation_words`

Computes a word's vector from its rows; no training.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.worker import Results
from snailps.data.vocabulary import Vocabulary
from snailps.models.local_sgd import Floats, Keys
from snailps.models.ngram_rows import unpack_vocabulary
from snailps.models.text_model import bucket_keys, key_ranges, normal_form_of, write_model
from snailps.models.word_vectors.examples import Ints, bags_of, times_of
from snailps.models.word_vectors.row_classes import RowClasses, classes_of
from snailps.models.word_vectors.settings import WordVectorSettings
from snailps.vectors.fasttext_bin import bin_bytes
from snailps.vectors.saving import warn_of_normal_form, write_npz
from snailps.vectors.text_files import write_vec
from snailps.vectors.words import to_bytes

WORDS_TOGETHER = 5_000
"""Words whose bags are pulled together: some 30,000 rows."""
SUBWORDS = 6
"""Average rows of a word's bag that no other word pulled with it has."""
TEXT = 4
"""Time to write a row as text, as a multiple of binary."""
CANDIDATES = 20_000
"""How many of the most frequent words may be neighbours."""
NEIGHBOURS = 5
VEC_WORD_BYTES = 2
"""The blank after a word, or after its last number, and the end of the line."""
VEC_NUMBER_BYTES = 8.0, 0.47
"""Bytes of a number of a `.vec` with its blank: for dim 1, and for each power of ten of dim."""
FEW_WORDS, ENOUGH_WORDS = 5_000_000, 10_000_000
"""Words trained, over all epochs: with fewer, vectors begin to differ only.  Mean cosine of two
frequent words of 208,000 and 135,000 words of text: .53 to 1.0 after 1 M words, .13 to .63 after 3
to 4 M, .05 to .13 after 8 M and more."""
NPZ_HEAD_BYTES = 753
NPZ_FORM_BYTES = 250
"""Bytes of the array of a normal form besides its letters."""
NPZ_WORD_BYTES = 9
"""A line feed, and a count of 8 bytes."""


def write_files(results: Results) -> Mapping[str, Any]:
    """Write the model in each of its `formats`; rows travel in pieces."""
    assert isinstance(results.settings, WordVectorSettings)
    s, vocabulary = unpack_vocabulary(results.settings, results.summary)
    words, classes = vocabulary.words, classes_of(s, vocabulary)
    files = []
    progress = results.exporting
    progress.plan([part for name in s.formats for part in _parts(name, s, len(words))])
    for name in s.formats:
        path = f"{s.output}.{name}"
        chunks = word_rows(results, s, classes, words)
        counted = progress.count(f"writing {path}", len(words), "words", chunks)  # begins when used
        if name == "vec":
            warn_of_normal_form(path, s.normalize)
            write_vec(path, words, counted, s.dim)
        elif name == "npz":
            write_npz(path, words, counted, s.dim, vocabulary.counts, s.normalize)
        else:
            own = {"window": s.window, "model": s.model, "sample": s.sample}
            buckets, loss = s.bucket if s.maxn else 0, "hs" if s.loss == "hs" else "ns"
            keys = bucket_keys if classes is None else classes.keys
            write_model(results, path, vocabulary, vocabulary, buckets, s, keys, loss=loss, **own)
        files.append(path)
        progress.wrote(path)
    return {"files": files, "vocabulary": len(words), **_few(s, vocabulary)}


def _few(s: WordVectorSettings, vocabulary: Vocabulary) -> dict[str, int]:
    """Return with how many epochs enough words would be trained, if they are few.

    Nothing if a model goes on, whose earlier words are not known here.
    """
    in_text = int(vocabulary.counts.sum())
    if s.continue_from or not 0 < in_text * s.epochs < FEW_WORDS:
        return {}
    return {"wants_epochs": math.ceil(ENOUGH_WORDS / in_text)}


def file_sizes(s: WordVectorSettings, vocabulary: Vocabulary) -> dict[str, int]:
    """Estimate the bytes of each file, by path; exact except for `.vec`, which is text."""
    n, floats, letters = len(vocabulary), len(vocabulary) * s.dim, vocabulary.words.letters
    first, more = VEC_NUMBER_BYTES
    sizes = {
        "bin": bin_bytes([vocabulary.words], 2 * n + (s.bucket if s.maxn else 0), s.dim),
        "vec": letters + n * VEC_WORD_BYTES + round(floats * (first + more * math.log10(s.dim))),
        "npz": NPZ_HEAD_BYTES + letters + n * NPZ_WORD_BYTES + 4 * floats + _form_bytes(s),
    }
    return {f"{s.output}.{name}": sizes[name] for name in s.formats}


def _form_bytes(s: WordVectorSettings) -> int:
    """Bytes of the normal form in a `.npz`."""
    return NPZ_FORM_BYTES + len(s.normalize) if s.normalize else 0


def _parts(name: str, s: WordVectorSettings, words: int) -> list[float]:
    """Relative durations of a file's parts, about in rows."""
    if name == "bin":
        return [words + (s.bucket if s.maxn else 0), words]
    rows = words * (SUBWORDS if s.maxn else 1)
    return [rows * TEXT if name == "vec" else rows]


def word_rows(
    results: Results, s: WordVectorSettings, classes: RowClasses | None, words: Sequence[bytes]
) -> Iterator[Floats]:
    """Yield the vectors of the first words of the vocabulary that has these `classes`, in pieces.

    A vector is the mean of the rows of a word and its subwords.
    """
    if not s.maxn:
        yield from key_ranges(results, "input", (0, len(words)))
        return
    pulled: deque[tuple[NDArray[np.int64], Ints, Floats | None]] = deque()

    def keys() -> Iterator[Keys]:
        for at in range(0, len(words), WORDS_TOGETHER):
            piece = words[at : at + WORDS_TOGETHER]
            own = np.arange(at, at + len(piece), dtype=np.uint64)
            ptr, members, weights, all_keys = bags_of(s, classes, piece, own)
            pulled.append((ptr, members, weights))
            yield all_keys

    for rows in results.pulls("input", keys()):
        yield _means(rows, *pulled.popleft())


def bag_means(
    results: Results,
    s: WordVectorSettings,
    classes: RowClasses | None,
    words: Sequence[bytes],
    keys: Keys,
) -> tuple[Floats, Floats, Floats]:
    """Read vectors of words with subwords, their own rows (`keys`), and the shares of these."""
    ptr, members, weights, all_keys = bags_of(s, classes, words, keys)
    rows = results.pull("input", all_keys)
    times = times_of(members, weights)
    # A bag begins with its own row.
    shares = np.divide(times[ptr[:-1]], np.add.reduceat(times, ptr[:-1]), dtype=np.float32)
    return _means(rows, ptr, members, weights), rows[: len(words)], shares


def _means(rows: Floats, ptr: NDArray[np.int64], members: Ints, weights: Floats | None) -> Floats:
    """Compute the mean of each bag of rows, float32 (n, dim)."""
    dim = rows.shape[1]
    padded = kernels.padded(len(rows), dim)
    kernels.copy_rows(rows, padded)
    means = np.empty((len(ptr) - 1, dim), np.float32)
    kernels.bag_means(padded, ptr, members, means, weights)
    return means


def neighbours(results: Results) -> Mapping[str, Sequence[tuple[str, float]]]:
    """Find neighbours of each of `validation_words`, with cosines; none of an unknown word."""
    assert isinstance(results.settings, WordVectorSettings)
    s, vocabulary = unpack_vocabulary(results.settings, results.summary)
    words, classes = list(vocabulary.words[:CANDIDATES]), classes_of(s, vocabulary)
    chunks = list(word_rows(results, s, classes, words))
    normal_form = normal_form_of(s.normalize)
    ids = sorted({vocabulary.index(normal_form(to_bytes(word))) for word in s.validation_words})
    if rare := [i for i in ids if i >= len(words)]:
        keys = np.array(rare, np.uint64)
        names = [vocabulary.words[i] for i in rare]
        chunks.append(
            bag_means(results, s, classes, names, keys)[0]
            if s.maxn
            else results.pull("input", keys)
        )
        words += names
    from snailps.vectors.query import Vectors  # here: only a job with `validation_words` needs it

    vectors = Vectors(words, np.concatenate(chunks), normalize=s.normalize)
    return {
        word: [(near, round(cosine, 4)) for near, cosine in vectors.neighbours(word, NEIGHBOURS)]
        if word in vectors
        else []
        for word in s.validation_words
    }
