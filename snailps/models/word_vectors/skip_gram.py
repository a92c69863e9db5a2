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
RUN_MAX = 16
"""Bundles of a word that are trained one after the other, with its hidden vector at hand."""
RUN_WORDS = 4096
"""The most frequent words, from which `longest_run` estimates how much bags share."""
_SHARED_MAX = 4.0
"""Gradients of other words that a hidden vector may lack in a run.  Natural text has 0.8 in a run
of 16; 120 words made of the same ten characters have 3.7 in a run of 1, and diverge from 15."""
PAIR_BYTES = 12
"""Memory of a pair while it is sorted and trained: its context twice, and its part of a bundle."""

LANES = 16
"""Words that the kernel trains side by side."""

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


def longest_run(
    kept: NDArray[np.float64], bag_ptr: NDArray[np.int64], bag_rows: Ints, threads: int
) -> int:
    """How many bundles of a word may be trained in a run: fewer where bags share most rows.

    What the other words in training change in rows of its bag, a word's hidden vector gets to know
    at the end of its run.

    Parameters
    ----------
    kept : float64 (words,)
        How often each word is trained.
    bag_ptr, bag_rows : int64 (words + 1,), int32
        Its rows.
    threads : int
        Each has `LANES` words in training.
    """
    sizes = np.diff(bag_ptr)
    share = np.repeat(kept / kept.sum(), sizes)
    of_others = np.bincount(bag_rows, weights=share)[bag_rows] - share
    shared = (LANES * threads - 1) * float((share * of_others / np.repeat(sizes, sizes)).sum())
    return int(np.clip(_SHARED_MAX / max(shared, 1e-9), 1, RUN_MAX))


def pairs_bytes(settings: WordVectorSettings, tokens: int) -> int:
    """Memory that the pairs of so many kept tokens take."""
    if settings.model != "skipgram":
        return 0
    return tokens * (settings.window + 1) * PAIR_BYTES
