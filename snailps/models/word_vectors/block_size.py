"""Chooses the size of a block, so that its rows and pairs fit into a worker's memory.

    vocabulary + settings + bytes of the input -> fit_block -> bytes of a block

A block needs the rows of its different words, of their n-grams, and of its negatives.  Their number
is estimated with tokens drawn from the vocabulary; a real text repeats words nearby, and so needs
fewer rows.
"""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.data.vocabulary import Vocabulary
from snailps.data.word_counts import END_OF_LINE
from snailps.errors import ConfigError
from snailps.files.atomic import human_bytes
from snailps.models.word_vectors.row_classes import gram_rows
from snailps.models.word_vectors.settings import WordVectorSettings

NOISE_POOL_MIN = 20_000
NOISE_REUSE = 4
"""How often the kernel uses each negative drawn for a block, on average."""
COPIES = 4.5
"""Copies of a row at a worker: in training, as pulled, prefetched, as a delta; with room to
grow."""
PAIR_BYTES = 12
"""Memory of a pair while it is sorted and trained: its context twice, and its part of a bundle."""
BLOCKS = 2
"""Blocks whose pairs are in memory: one in training, the next in preparation."""
NARROWER = 0.8
BLOCK_BYTES_MIN = 4096


def pool_size(tokens: int) -> int:
    """Negatives drawn for a block of this many kept tokens."""
    return max(NOISE_POOL_MIN, tokens * kernels.SHARED // kernels.GROUP // NOISE_REUSE)


def draw(sums: NDArray[np.float64], num: int, seed: int) -> NDArray[np.int64]:
    """Draw `num` places of a distribution, given as running sums of its weights.

    One is drawn from each of `num` equal parts of the sum, so that places come in ascending order,
    and none has to be searched for.
    """
    at = np.random.default_rng(seed).random(num + 1)  # in the parts; one more, which is no draw
    ends = sums * (num / sums[-1]) if len(sums) else sums
    parts = np.minimum(ends.astype(np.int64), num)
    before = np.minimum(parts + (at[parts] < ends - parts), num)  # draws up to each place's end
    before[-1:] = num
    return np.repeat(np.arange(len(sums)), np.diff(before, prepend=0))


def rows_of_block(vocabulary: Vocabulary, s: WordVectorSettings, tokens: int) -> int:
    """Estimate, words by one draw, the rows of both tables that a block of `tokens` words needs."""
    rng = np.random.default_rng(s.seed)
    share = vocabulary.counts * vocabulary.keep_probability(s.sample) / vocabulary.tokens
    words = np.flatnonzero(rng.random(len(share)) < -np.expm1(-tokens * share))
    if s.loss == "hs":  # the paths of n of N words part log(N / n) levels above the leaves
        levels = 1 + np.log2(len(share) / max(1, len(words)))
        rows = len(words) + min(len(share), int(levels * len(words)))
    else:
        noise = vocabulary.noise(s.ns_exponent) * pool_size(int(tokens * share.sum()))
        touched = rng.random(len(share)) < -np.expm1(-noise)
        touched[words] = True
        rows = len(words) + int(touched.sum())
    return rows + round(gram_rows(s, vocabulary).of_text(tokens))


def fit_block(
    vocabulary: Vocabulary, s: WordVectorSettings, block_bytes: int, total_bytes: int
) -> int:
    """Choose a block of 4 KiB to `block_bytes` whose rows and pairs fit into memory."""
    size = float(block_bytes)
    while size > BLOCK_BYTES_MIN:
        needed = memory_of_block(vocabulary, s, size, total_bytes)
        if needed <= s.worker_memory:
            break
        # Rows grow more slowly than text, so this step never falls short by much.
        size = max(BLOCK_BYTES_MIN, size * min(NARROWER, s.worker_memory / needed))
    return min(block_bytes, int(size))


def check_block(vocabulary: Vocabulary, s: WordVectorSettings, size: int, total_bytes: int) -> None:
    """Refuse a `worker_memory` that even the smallest blocks exceed (`ConfigError`)."""
    needed = memory_of_block(vocabulary, s, size, total_bytes)
    if size <= BLOCK_BYTES_MIN and needed > s.worker_memory:
        raise ConfigError(
            f"worker_memory: {human_bytes(s.worker_memory)} are too little: the rows of a block of "
            f"{human_bytes(size)} take {human_bytes(ceil(needed))}; set it to {ceil(needed)} or "
            "more, or lower dim"
        )


def memory_of_block(
    vocabulary: Vocabulary, s: WordVectorSettings, size: float, total_bytes: int
) -> float:
    """Bytes that the rows and pairs of a block take at a worker."""
    floats = s.dim * (2 if s.optimizer == "adagrad" else 1)  # with the state
    kept = float((vocabulary.counts * vocabulary.keep_probability(s.sample)).sum())
    kept /= vocabulary.tokens
    tokens = int(size * tokens_per_byte(vocabulary, total_bytes))
    rows = rows_of_block(vocabulary, s, tokens) * COPIES * 4 * floats
    return rows + BLOCKS * pairs_bytes(s, int(tokens * kept))


def pairs_bytes(settings: WordVectorSettings, tokens: int) -> int:
    """Memory that the pairs of this many kept tokens take."""
    if settings.model != "skipgram":
        return 0
    return tokens * (settings.window + settings.reach_min) * PAIR_BYTES


def tokens_per_byte(vocabulary: Vocabulary, total_bytes: int) -> float:
    """Words in a byte of the input; a vocabulary that was extended also counts earlier texts."""
    return min(vocabulary.tokens / max(1, total_bytes), _words_per_byte(vocabulary))


def _words_per_byte(vocabulary: Vocabulary) -> float:
    """Words in a byte of a text made of this vocabulary."""
    sizes = vocabulary.words.lengths + 1  # and a blank
    if (end := vocabulary.index(END_OF_LINE)) >= 0:
        sizes[end] = 1
    return float(vocabulary.counts.sum() / (vocabulary.counts * sizes.astype(np.float64)).sum())
