"""Plans a training of word vectors in a rotation: its chunks, by traffic, memory and checkouts.

    vocabulary, settings, parts -> chunks_of -> chunks of an epoch; checkouts_of_one
    vocabulary, settings, tokens -> keeps_all_rows, keeps_near, keeps_part -> what fits into memory

Owns the numbers of the plan.  Pure functions of their arguments, so that master and workers agree;
`partitions.py` splits the words, `rotation.py` trains.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import numpy as np

from snailps import kernels
from snailps.api.rotation import OUTPUTS_PER_INPUT, outputs_for
from snailps.data.vocabulary import Vocabulary
from snailps.models.word_vectors.block_size import COPIES, NOISE_REUSE, pairs_bytes
from snailps.models.word_vectors.row_classes import gram_rows
from snailps.models.word_vectors.settings import WordVectorSettings


class TrainingKind(NamedTuple):
    """What a plan knows of a kind of training."""

    bytes_a_word: float
    """Most traffic of rows that chunks cause, at all workers together, without exchanges."""
    checkout_words: int
    """Least words of a checkout, on average: 10,000 take some 25 ms of one core."""
    workers_min: int = 1
    """Traffic is planned for at least this many workers: few learn better from large checkouts."""


TRAININGS = {
    ("skipgram", False): TrainingKind(bytes_a_word=73.0, checkout_words=2_000),
    ("skipgram", True): TrainingKind(bytes_a_word=122.0, checkout_words=10_000, workers_min=3),
    ("cbow", False): TrainingKind(bytes_a_word=200.0, checkout_words=10_000, workers_min=4),
    ("cbow", True): TrainingKind(bytes_a_word=180.0, checkout_words=10_000, workers_min=4),
}
"""By model, and whether words have n-grams."""

# --- chunks: how often workers see what others have learnt
CHUNKS_MAX = 40
CHUNKS_ENOUGH, CHUNKS_ENOUGH_SMALL, CHUNKS_ENOUGH_ADAGRAD = 6, 20, 60
"""Chunks of a training beyond which workers learn no more from each other.  The others are for
skip-gram of words alone: in a small training, and with AdaGrad, whose first steps in a lease go
furthest."""
CHUNKS_ENOUGH_CBOW = 3
"""`CHUNKS_ENOUGH` of CBOW with n-grams, which learns more in large checkouts."""
SMALL_WORDS = 2_400_000
"""Most words of a small training; with three times as many it is large."""
LEASE_WORDS, LEASE_WORDS_SOLE = 4_000_000, 16_000_000
"""Most words of a lease, if traffic allows.  They are in memory as sorted pairs of two leases,
unless a single worker reads them piece by piece, and are trained again if the worker is lost."""

# --- memory of a worker
CBOW_TOKEN_BYTES = 46
"""Memory of a kept token while a lease is prepared: its number, output partition and place."""
ID_BYTES, NEAR_ID_BYTES = 8, 12
"""Memory of a token while skip-gram sorts its pairs: its id and its centre's; if only tokens near a
worker's words are in memory, also its place."""
NEAR_SHARE = 0.5
"""Share of a chunk's ids that are near a worker's words, below which other ids may be left out."""
IDS_SHARE = 0.25
"""Share of `worker_memory` that all ids of a chunk must take before any are left out: to find near
ids takes a third of the time of preparing a lease."""
PAIRS_SHARE = 2
"""Number of chunks whose pairs are in memory: one in training, the next being sorted."""

# --- a single worker, which has all rows and reads pieces of text
SOLE_COPIES = 1.2
"""Copies of a row: one to train on, padded."""
PIECE_TOKENS, PIECE_TOKENS_GRAMS = 200_000, 1_000_000
"""Kept words of a checkout in a chunk of one partition; with fewer, rows of n-grams would fit the
subject of that piece of text."""
PIECE_DIM = 100
"""Length of vectors beyond which a checkout has fewer words: it should take some seconds."""
PIECES = 3
"""Pieces in memory at a time: one in training, one prepared, one of the next chunk."""


def training_of(s: WordVectorSettings) -> TrainingKind:
    return TRAININGS[s.model, s.maxn > 0]


def chunks_of(
    vocabulary: Vocabulary, settings: WordVectorSettings, tokens: float, parts: int
) -> int:
    """Choose the chunks of an epoch, whose text has `tokens` words.

    With more chunks a worker sees sooner what others have learnt; but in each chunk every worker
    has every output row once, so traffic grows with their number.  So there are enough chunks, or
    fewer where traffic would be too large or checkouts too short.  A single worker with all rows
    has nothing to see.
    """
    s = settings
    text = _chunks_of_text(vocabulary, s, tokens / max(2, parts))  # another worker may join
    if parts == 1 and keeps_all_rows(vocabulary, s):
        return max(1, text, ceil(tokens / LEASE_WORDS_SOLE))
    enough = max(chunks_enough(s, tokens), ceil(tokens / parts / LEASE_WORDS))
    both_ways = 2 * _row_bytes(s) * _rows_of_workers(vocabulary, s, parts)
    by_traffic = _bytes_a_word(s) * tokens / both_ways
    by_checkouts = tokens / (outputs_for(parts) * parts * training_of(s).checkout_words)
    chunks = max(1, text, round(min(enough, by_traffic, by_checkouts, CHUNKS_MAX)))
    return chunks_that_fit(vocabulary, s, tokens, chunks, parts)


def words_alone(s: WordVectorSettings) -> bool:
    """Whether this is skip-gram without n-grams, where an input row has the pairs of one word."""
    return s.model == "skipgram" and s.maxn == 0


def chunks_enough(s: WordVectorSettings, tokens: float) -> int:
    """Chunks of an epoch of `tokens` words beyond which workers learn no more from each other."""
    if not words_alone(s):
        enough: float = CHUNKS_ENOUGH_CBOW if s.model == "cbow" and s.maxn else CHUNKS_ENOUGH
    elif s.optimizer == "adagrad":
        enough = CHUNKS_ENOUGH_ADAGRAD
    else:
        of_small = CHUNKS_ENOUGH_SMALL * min(1.0, SMALL_WORDS / (tokens * s.epochs))
        enough = max(CHUNKS_ENOUGH, of_small)
    return ceil(enough / s.epochs)


def checkouts_of_one(vocabulary: Vocabulary, settings: WordVectorSettings, tokens: float) -> int:
    """Checkouts of a chunk of `tokens` words that has one partition."""
    if not keeps_all_rows(vocabulary, settings):
        return OUTPUTS_PER_INPUT
    kept = tokens * _kept_share(vocabulary, settings)
    return max(OUTPUTS_PER_INPUT, ceil(kept / piece_tokens(settings)))


def keeps_part(s: WordVectorSettings, rows: int, tokens: int) -> bool:
    """Whether a worker has memory for the input `rows` of a partition, and for kept `tokens`."""
    return rows * COPIES * _row_bytes(s) + PAIRS_SHARE * _text_bytes(s, tokens) <= s.worker_memory


def keeps_all_rows(vocabulary: Vocabulary, s: WordVectorSettings) -> bool:
    """Whether a worker has memory for all rows and a few pieces of text."""
    room = float(s.worker_memory) - PIECES * _text_bytes(s, piece_tokens(s))
    room -= 2.0 * len(vocabulary) * _row_bytes(s) * SOLE_COPIES
    if room < 0:
        return False
    most = room / (_row_bytes(s) * SOLE_COPIES)  # rows of n-grams
    if s.bucket <= most:
        return True
    return len(gram_rows(s, vocabulary).words) <= most


def piece_tokens(s: WordVectorSettings) -> int:
    """Most kept words of a piece: fewer with long vectors, as a training ends between pieces."""
    if not s.maxn:
        return PIECE_TOKENS
    return max(PIECE_TOKENS, PIECE_TOKENS_GRAMS * PIECE_DIM // max(PIECE_DIM, s.dim))


def keeps_near(s: WordVectorSettings, parts: int, tokens: float) -> bool:
    """Whether each worker of skip-gram reads only the ids of a chunk that are near its words, since
    all would take too much memory.
    """
    is_large = ID_BYTES * tokens > IDS_SHARE * s.worker_memory
    return is_large and 2 * s.window + 1 < NEAR_SHARE * parts


def id_bytes(s: WordVectorSettings, parts: int, tokens: float) -> float:
    """Memory of a chunk's ids while a worker of skip-gram sorts its pairs."""
    if keeps_near(s, parts, tokens):
        return NEAR_ID_BYTES * tokens * (2 * s.window + 1) / parts
    return ID_BYTES * tokens


def _row_bytes(s: WordVectorSettings) -> int:
    return 4 * s.dim * (2 if s.optimizer == "adagrad" else 1)


def _kept_share(vocabulary: Vocabulary, s: WordVectorSettings) -> float:
    """Share of the text's words that are kept (`sample`)."""
    kept = float(vocabulary.counts @ vocabulary.keep_probability(s.sample))
    return kept / vocabulary.tokens


def _chunks_of_text(vocabulary: Vocabulary, s: WordVectorSettings, tokens: float) -> int:
    """Least chunks of `tokens` words such that a worker has memory for its share of each."""
    text = _text_bytes(s, int(tokens * _kept_share(vocabulary, s)))
    return ceil(PAIRS_SHARE * text / s.worker_memory)


def _text_bytes(s: WordVectorSettings, tokens: int) -> int:
    """Memory that kept tokens of a chunk take: their pairs, or with CBOW the tokens."""
    return tokens * CBOW_TOKEN_BYTES if s.model == "cbow" else pairs_bytes(s, tokens)


def _bytes_a_word(s: WordVectorSettings) -> float:
    """Most traffic that chunks may cause; AdaGrad's rows are twice as large, and need more."""
    doubled = words_alone(s) and s.optimizer == "adagrad"
    return training_of(s).bytes_a_word * (2 if doubled else 1)


def _rows_of_workers(vocabulary: Vocabulary, s: WordVectorSettings, workers: int) -> float:
    """Count the rows that travel in a chunk, because several workers need them in its course."""
    workers = max(training_of(s).workers_min, workers)
    if s.model == "cbow":
        return workers * (2.0 * len(vocabulary) + len(gram_rows(s, vocabulary).words))
    return float(workers * len(vocabulary)) + gram_rows(s, vocabulary).in_shares(workers)


def chunks_that_fit(
    vocabulary: Vocabulary,
    settings: WordVectorSettings,
    tokens: float,
    chunks: int,
    workers: int = 1,
) -> int:
    """Choose `chunks` or more, so that each worker has memory for its share of a chunk.

    The share is pairs, and rows of words, n-grams and negatives.  Skip-gram splits words, so that a
    worker has few of them; CBOW splits text.  To sort its pairs, a worker of skip-gram also has the
    ids near its words: with few workers, those of the whole chunk.
    """
    s = settings
    kept = vocabulary.counts * vocabulary.keep_probability(s.sample) / vocabulary.tokens
    noise = vocabulary.noise(s.ns_exponent)
    noise *= kept.sum() * kernels.SHARED / kernels.GROUP / NOISE_REUSE / noise.sum()
    grams = gram_rows(s, vocabulary)
    row_bytes = COPIES * _row_bytes(s)
    share = 1.0 if s.model == "cbow" else 1.0 / workers
    while chunks * workers < tokens:
        size = tokens / chunks / workers  # of a worker
        met = size / share
        rows = -np.expm1(-met * kept).sum() - np.expm1(-met * (kept + noise)).sum()
        rows *= share
        rows += grams.of_text(size)
        needed = rows * row_bytes + _text_bytes(s, int(size * kept.sum()))
        if s.model != "cbow":
            needed += id_bytes(s, workers, met * kept.sum())
        if needed <= s.worker_memory:
            break
        chunks += chunks // 4 + 1
    return chunks
