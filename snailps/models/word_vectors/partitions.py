"""Splits the words of a vocabulary into partitions.

    words of a text, masses of words -> most_parts, parts_by_words -> partitions at most
    vocabulary, masses, sizes -> assign_by_grams -> partition of each word; those with each n-gram

Pure functions of their arguments, so that master and workers agree.  `plan.py` says into how many
chunks a training goes, `rotation.py` trains.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from snailps.api.rotation import outputs_for
from snailps.data._subwords import (
    assign_bags,
    count_bits,
    number_bags,
    subwords_csr,
    sum_bags,
)
from snailps.data.vocabulary import Vocabulary
from snailps.models.ngram_rows import WORDS_AT_ONCE
from snailps.models.rotation.splits import PLACED_SINGLY
from snailps.models.word_vectors.plan import TRAININGS
from snailps.models.word_vectors.settings import WordVectorSettings

CHECKOUT_WORDS_MIN = min(training.checkout_words for training in TRAININGS.values())
"""Words of a checkout below which there are fewer partitions than workers."""
PART_WORDS = 64
"""Least words of an output partition, from which the negatives of its pairs come."""
FREQUENT_SHARE = 0.85
"""Largest share of one word in an output partition's text: its pairs need other words as negatives.
"""
PARTS_ROOM = 16
"""Input partitions for which a job has room at least, because workers may join."""
LOAD_BEYOND, LOAD_LACK = 0.02, 0.1
"""Shares by which the load of a partition may exceed its size, and fall short of it, where words
are split by their n-grams."""
PIECES_KEPT = 4
"""Pieces of a vocabulary (`WORDS_AT_ONCE` words) whose n-grams stay in memory: 4 MB each."""
STEPS_APART = 300.0
"""Steps of other workers on an n-gram's row between two exchanges."""


def most_parts(tokens: float, workers: int) -> int:
    """Most input partitions for a text of `tokens` words: checkouts must not be too short."""
    by_words = int((tokens / (2 * CHECKOUT_WORDS_MIN)) ** 0.5)
    return max(1, min(max(PARTS_ROOM, 2 * workers), by_words))


def parts_by_words(mass: NDArray[np.float64]) -> int:
    """Most input partitions such that each output partition's words are a sample of all negatives.

    Few words, or one word that is a large part of the text, allow few partitions; 0: the text
    cannot be split at all.
    """
    falling = np.sort(mass)[::-1]
    before = np.concatenate(([0.0], falling.cumsum()))
    outputs = np.array(list(map(outputs_for, range(1, len(mass) // PART_WORDS + 1))), np.int64)
    outputs = outputs[outputs * PART_WORDS <= len(mass)]
    others = before[-1] - before[np.minimum(PLACED_SINGLY * outputs, len(mass))]
    part = np.maximum(before[-1], falling[:1] * outputs + others)  # its mass, times `outputs`
    return int(np.count_nonzero(falling[:1] * outputs <= FREQUENT_SHARE * part))


def assign_by_grams(
    vocabulary: Vocabulary,
    s: WordVectorSettings,
    mass: NDArray[np.float64],
    sizes: Sequence[int],
    *,
    together: bool = True,
) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
    """Split words so that few partitions have the same n-gram.

    Returns the partition of each word, int32 (words,), and for each bucket the number of partitions
    that have one of its n-grams, int16 (bucket,).  Sums of `mass` are in proportion to `sizes`, as
    in `assign`.  Words come by falling mass: each goes to the partition that has most of its
    n-grams and still has room; without `together`, to the partition with the smallest load.
    """
    parts = len(sizes)
    order = np.argsort(-mass, kind="stable")
    pieces = np.array_split(order, len(order) // WORDS_AT_ONCE + 1)
    numbers, count = np.zeros(s.bucket, np.int32), 0

    def bags_of(piece: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        nonlocal count
        ptr, ids = subwords_csr(vocabulary.words.take(piece), s.minn, s.maxn, s.bucket)
        count = number_bags(ptr, ids, numbers, count)
        return ptr, ids

    bags = list(map(bags_of, pieces)) if len(pieces) <= PIECES_KEPT else None
    sums = np.zeros((s.bucket + 1, 2))  # steps on an n-gram, and words that have it
    for piece, bag in zip(pieces, bags or map(bags_of, pieces), strict=True):
        sum_bags(*bag, mass[piece], sums)
    sums = sums[: count + 1]
    # What a row costs in one more partition: a pull, a push, and an exchange every so many steps;
    # shared by the words that have it, as moving one of many of them changes little.
    worth = ((1.0 + sums[:, 0] / STEPS_APART) / np.maximum(sums[:, 1], 1.0)).astype(np.float32)
    worth *= together
    has = np.zeros((count + 1, -(-parts // 64)), np.uint64)
    # What partitions have beyond their share, the last one lacks.
    beyond = min(LOAD_BEYOND, LOAD_LACK * min(sizes) / max(1, sum(sizes) - min(sizes)))
    load, most = np.zeros(parts), np.asarray(sizes, np.float64)
    most *= float(mass.sum()) / most.sum() * (1.0 + beyond)
    part_of = np.empty(len(mass), np.int32)
    for piece, bag in zip(pieces, bags or map(bags_of, pieces), strict=True):
        places = np.empty(len(piece), np.int32)
        assign_bags(*bag, mass[piece], worth, has, load, most, places)
        part_of[piece] = places
    return part_of, count_bits(has).astype(np.int16)[numbers]
