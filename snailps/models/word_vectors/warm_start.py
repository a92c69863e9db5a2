"""Initial word vectors from an earlier model or a file of vectors.

    settings + header of a .bin or of vectors -> adopt -> settings
    counts of the new text + words of a .bin -> count_on -> Vocabulary
    .bin or vectors -> put_words, put_vectors -> rows of the tables, before the training

Runs once, at the master, so that no lost worker has written a row that another writes again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from snailps.api.worker import Results
from snailps.data._text import WordCounter
from snailps.data.vocabulary import Vocabulary
from snailps.errors import ConfigError
from snailps.models.ngram_rows import unpack_vocabulary
from snailps.models.packed_tables import opened, with_shape
from snailps.models.pretrained import first_vectors, with_dim
from snailps.models.text_model import put_model, vocabulary_of
from snailps.models.word_vectors.export import bag_means
from snailps.models.word_vectors.row_classes import classes_of
from snailps.models.word_vectors.settings import WordVectorSettings
from snailps.vectors.fasttext_bin import read_bin


def adopt(s: WordVectorSettings, explicit: Callable[[str], str | None]) -> WordVectorSettings:
    """Take the shape of the file that the training starts from."""
    path = s.continue_from
    if not path:
        return with_dim(s, explicit)
    header = read_bin(opened(s)).header  # refuses a .ftz
    header.refuse_floret(path)
    if header.model == "supervised" or header.loss not in ("ns", "hs"):
        raise ConfigError(
            f"{path}: continue_from: expected word vectors trained with negative sampling or "
            f"hierarchical softmax, got model {header.model!r} with loss {header.loss!r}, whose "
            "output rows are not words"
        )
    shape = header.shape
    if s.loss == "hs":  # the loss is the file's; of `ns` it may also be `nce`
        shape["loss"] = header.loss
    return with_shape(s, shape, path, explicit, header.habits)


def count_on(s: WordVectorSettings, counter: WordCounter) -> Vocabulary:
    """Make the vocabulary: words of the continued model, then words of the new text; with a tree by
    counts."""
    model = read_bin(opened(s))
    old = vocabulary_of(model.words, model.counts, model.header.tokens)
    grown = old.extended(counter, s.min_count, s.max_vocab)
    return grown.by_counts() if s.loss == "hs" else grown  # readers build the tree in this order


def put_words(results: Results) -> None:
    """Set all rows, input and output, from the `.bin` file."""
    assert isinstance(results.settings, WordVectorSettings)
    s, vocabulary = unpack_vocabulary(results.settings, results.summary)
    put_model(results, s, vocabulary, None, buckets=s.maxn > 0)


def put_vectors(results: Results) -> None:
    """Set the rows of the vocabulary's words from the file in `pretrained`.

    With subwords a word's vector is the mean of its bag.  N-grams that other words have start at
    random; the word's own row, which stands for its other n-grams (`row_classes`), is set such that
    the mean is the file's vector.
    """
    assert isinstance(results.settings, WordVectorSettings)
    s, vocabulary = unpack_vocabulary(results.settings, results.summary)
    classes = classes_of(s, vocabulary)
    for of_words, wanted in first_vectors(results, s, vocabulary):
        keys = of_words.astype(np.uint64)
        if s.maxn:
            in_both = vocabulary.words.take(of_words)
            means, own, shares = bag_means(results, s, classes, in_both, keys)
            wanted = own + (wanted - means) / shares[:, None]
        results.put("input", keys, wanted)
