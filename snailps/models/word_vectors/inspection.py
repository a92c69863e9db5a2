"""What word vectors look like while they are trained: neighbours of a few words.

tables -> vectors of the frequent words -> neighbours of `validation_words`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from snailps.api.worker import Results
from snailps.data.vocabulary import Vocabulary
from snailps.models.word_vectors.export import bag_means, word_rows
from snailps.models.word_vectors.settings import WordVectorSettings
from snailps.vectors import Vectors
from snailps.vectors.query import to_bytes

CANDIDATES = 20_000
"""Neighbours are looked for among so many words, the most frequent ones: a look pulls some 60,000
rows, whatever the size of the vocabulary."""
NEIGHBOURS = 5


def neighbours(results: Results) -> Mapping[str, Sequence[tuple[str, float]]]:
    """Neighbours of each of `validation_words` and their cosines; none for an unknown word."""
    s = results.settings
    assert isinstance(s, WordVectorSettings)
    vocabulary = Vocabulary.from_bytes(results.summary)
    words = list(vocabulary.words[:CANDIDATES])
    chunks = list(word_rows(results, s, words))
    ids = sorted({vocabulary.index(to_bytes(word)) for word in s.validation_words})
    if rare := [i for i in ids if i >= len(words)]:
        keys = np.array(rare, np.uint64)
        names = [vocabulary.words[i] for i in rare]
        chunks.append(
            bag_means(results, s, names, keys)[0] if s.maxn else results.pull("input", keys)
        )
        words += names
    vectors = Vectors(words, np.concatenate(chunks))
    return {
        word: [(near, round(cosine, 4)) for near, cosine in vectors.neighbours(word, NEIGHBOURS)]
        if word in vectors
        else []
        for word in s.validation_words
    }
