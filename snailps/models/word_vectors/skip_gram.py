"""Skip-gram on the sorted pairs of a block, in the threads of a worker.

    tokens -> deal_centres: which thread has which centre words
           -> each thread: its pairs, sorted into bundles -> trained

A thread trains the pairs of its own centres, so that no other one writes their input rows; output
rows, and those of n-grams, are written by all (Hogwild).  docs/design/word-pairs.md says why pairs
are sorted at all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from snailps.models.word_vectors.settings import WordVectorSettings

BUNDLE = 8
"""Contexts that a centre word is trained with at a time, at most; see docs/design/word-pairs.md."""
PAIR_BYTES = 12
"""Memory of a pair while it is sorted and trained: its context twice, and its part of a bundle."""

Ints = NDArray[np.int32]


def deal_centres(tokens: Ints, words: int, threads: int, seed: int) -> NDArray[np.uint16] | None:
    """Thread of each of `words` words, so that all have about as many tokens; None for one thread.

    The words come in a random order, because bundles of rare words are smaller than those of
    frequent ones and take longer a pair.
    """
    if threads == 1:
        return None
    counts = np.bincount(tokens[tokens >= 0], minlength=words)
    order = np.random.default_rng(seed).permutation(words)
    dealt = counts[order]
    middle = np.cumsum(dealt) - dealt / 2  # so that a very frequent word fills a thread alone
    threads_of = np.empty(words, np.uint16)
    threads_of[order] = np.minimum(middle * (threads / max(1, dealt.sum())), threads - 1)
    return threads_of


def pairs_bytes(settings: WordVectorSettings, tokens: int) -> int:
    """Memory that the pairs of so many kept tokens take."""
    if settings.model != "skipgram":
        return 0
    return tokens * (settings.window + 1) * PAIR_BYTES
