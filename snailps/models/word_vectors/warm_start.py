"""Initial word vectors from an earlier model or a file of vectors.

    settings + header of a .bin or .vec -> adopt -> settings
    counts of the new text + words of a .bin -> count_on -> Vocabulary
    .bin or .vec -> put_model, put_vectors -> rows of the tables, before the training

All of it runs once, at the master, so that the loss of a worker does not write a row twice.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.worker import Results
from snailps.data._text import WordCounter
from snailps.data.packed_words import PackedWords
from snailps.data.vocabulary import Vocabulary
from snailps.errors import ConfigError, ModelFileError
from snailps.models.local_sgd import Floats
from snailps.models.text_model import BUCKET_KEY, export_rows
from snailps.models.word_vectors.export import bag_means
from snailps.models.word_vectors.settings import WordVectorSettings
from snailps.vectors import BinModel, read_bin, read_header, read_vec, vec_shape

PUT_SHARE = 4
"""A piece of rows that are put is so much smaller than one that is pulled: more are in memory, as
found, as wanted and as pushed."""


def adopt(s: WordVectorSettings, explicit: Callable[[str], str | None]) -> WordVectorSettings:
    """The settings with the shape of the file that the training starts from.

    Raises
    ------
    ConfigError
        The user set another shape, or training cannot continue from this kind of model.
    ModelFileError
        The file cannot be read.
    """
    path = s.continue_from or s.pretrained
    if not path:
        return s
    theirs = _shape_of(path) if s.continue_from else {"dim": vec_shape(path)[1]}
    for name, value in theirs.items():
        where = explicit(name)
        if where is not None and getattr(s, name) != value:
            raise ConfigError(
                f"{where}: {name}: expected {value}, as in {path}, which the training begins "
                f"with; got {getattr(s, name)}. Leave {name} out, or begin without that file"
            )
    return replace(s, **theirs)


def _shape_of(path: str) -> dict[str, Any]:
    """The settings that follow from a .bin file."""
    header = read_header(path)
    if header.model == "supervised" or header.loss != "ns":
        raise ConfigError(
            f"{path}: continue_from: expected word vectors trained with negative sampling, got "
            f"model {header.model!r} with loss {header.loss!r}, whose output rows are not words"
        )
    shape: dict[str, Any] = {"dim": header.dim, "model": header.model}
    if header.bucket == 0 or header.maxn < max(header.minn, 1):
        return {**shape, "maxn": 0}
    # fastText takes a `minn` of 0 for 1.
    return {**shape, "minn": max(header.minn, 1), "maxn": header.maxn, "bucket": header.bucket}


def count_on(s: WordVectorSettings, counter: WordCounter) -> Vocabulary:
    """The words of the model that training continues from, then those of the new text."""
    model = read_bin(s.continue_from)
    counts = np.maximum(model.counts, 1)
    old = Vocabulary(
        PackedWords.of(model.words), counts, max(model.header.tokens, int(counts.sum()))
    )
    return old.extended(counter, s.min_count, s.max_vocab)


def put_model(results: Results) -> None:
    """Sets all rows, input and output, from the `.bin` file.

    Raises
    ------
    ModelFileError
        The file has changed since the survey, or has values that are not finite.
    """
    s = results.settings
    assert isinstance(s, WordVectorSettings)
    model = read_bin(s.continue_from)
    n = len(model.words)
    if Vocabulary.from_bytes(results.summary).words[:n] != PackedWords.of(model.words):
        raise ModelFileError(f"{s.continue_from}: changed while its text was counted; start again")
    model.mapped.madvise(mmap.MADV_SEQUENTIAL)
    _put(results, model, "input", 0, model.input[:n])
    _put(results, model, "output", 0, model.output[:])
    if s.maxn:
        _put(results, model, "input", BUCKET_KEY, model.input[n:])


def _put(results: Results, model: BinModel, table: str, first_key: int, rows: Floats) -> None:
    """Sets rows of a matrix of `model`, in pieces, with consecutive keys from `first_key`."""
    step = max(1, export_rows(rows.shape[1]) // PUT_SHARE)

    def pieces() -> Iterator[tuple[NDArray[np.uint64], Floats]]:
        for at in range(0, len(rows), step):
            piece = np.array(rows[at : at + step])  # a copy: what is mapped is not aligned
            model.mapped.madvise(mmap.MADV_DONTNEED)  # pages that were read are this process's
            _check_finite(results, piece)
            yield np.arange(len(piece), dtype=np.uint64) + np.uint64(first_key + at), piece

    results.puts(table, pieces())


def _check_finite(results: Results, rows: Floats) -> None:
    if not np.isfinite(rows).all():
        s = results.settings
        assert isinstance(s, WordVectorSettings)
        raise ModelFileError(
            f"{s.continue_from or s.pretrained}: holds values that are no numbers: its training "
            "diverged, or the file is damaged"
        )


def put_vectors(results: Results) -> None:
    """Sets the rows of words of the vocabulary from the `.vec` file.

    With subwords a word's vector is the mean of its bag: its own row is set so that this mean is
    the vector of the file, and its n-grams start at random.
    """
    s = results.settings
    assert isinstance(s, WordVectorSettings)
    vocabulary = Vocabulary.from_bytes(results.summary)
    fresh = np.ones(len(vocabulary), np.bool_)  # of a word that occurs twice, the first counts
    for words, vectors in read_vec(s.pretrained):
        ids = vocabulary.lexicon.indices(words)
        _, first = np.unique(ids, return_index=True)
        rows = first[(ids[first] >= 0) & fresh[ids[first]]]
        known = ids[rows]
        fresh[known] = False
        if len(known) == 0:
            continue
        keys, wanted = known.astype(np.uint64), vectors[rows]
        if s.maxn:
            found = vocabulary.words.take(known)
            means, own, sizes = bag_means(results, s, found, keys)
            wanted = own + (wanted - means) * sizes[:, None].astype(np.float32)
        _check_finite(results, wanted)
        results.put("input", keys, wanted)
