"""Input rows that the same words have: one row stands for all of them.

    vocabulary, settings -> classes_of -> RowClasses
                         -> gram_rows -> GramRows: how often a text uses the rows that are stored
    bags of subwords -> RowClasses.bags -> bags of the rows that stand for others, with weights
    buckets -> RowClasses.keys -> the key of the row that stands for each

n-grams that occur in exactly the same words, each as often, only ever meet in the sums of these
words, and get the same gradients: started alike they stay equal.  So a class of m such rows is one
row, the first of them, that counts m times in the sums of its words' bags and takes the steps of
one.  A word's own row is in a class with the n-grams that no other word has.

Follows from vocabulary and settings alone, so master and workers agree.  Does not know tables.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from snailps.data._subwords import sign_bags, subwords_csr
from snailps.data.vocabulary import Vocabulary
from snailps.dataclass import dataclass
from snailps.models.local_sgd import Floats, Keys
from snailps.models.ngram_rows import WORDS_AT_ONCE, unpack_vocabulary
from snailps.models.text_model import BUCKET_KEY
from snailps.models.word_vectors.settings import WordVectorSettings

BUCKETS_MAX = 1 << 22
"""Most buckets that are looked at: 12 bytes each while classes are made.  With more, each row
stands for itself."""

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RowClasses:
    """The rows of words, then of buckets, by their numbers."""

    words: int
    """How many rows are words' own."""
    roles: Ints
    """How many rows each row stands for; -1 - r where row r stands for it; 0: no word has it."""

    @property
    def rows(self) -> int:
        """How many rows there are: of words, and of n-grams that no word's row stands for."""
        return int(np.count_nonzero(self.roles > 0))

    def bags(
        self, ptr: NDArray[np.int64], ids: Ints, own: Keys
    ) -> tuple[NDArray[np.int64], Ints, Floats]:
        """Leave out of bags of `subwords_csr` the rows for which others stand.

        `own` are the keys of the words.  Returns pointers, ids, and the weight of each.
        """
        grams = ids >= len(own)
        roles = np.empty(len(ids), np.int32)
        roles[~grams] = self.roles[own.astype(np.int64)]
        roles[grams] = self.roles[ids[grams] + np.int64(self.words - len(own))]
        stand = roles > 0
        ends = np.concatenate(([0], stand.cumsum()))[ptr]
        return ends, ids[stand], roles[stand].astype(np.float32)

    def keys(self, first: int, last: int) -> Keys:
        """Keys of the rows that stand for the buckets from `first` to `last - 1`."""
        buckets = np.arange(self.words + first, self.words + last)
        roles = self.roles[buckets]
        rows = np.where(roles < 0, -1 - roles, buckets).astype(np.uint64)
        rows[rows >= self.words] += np.uint64(BUCKET_KEY - self.words)
        return rows


@dataclass(frozen=True, slots=True)
class GramRows:
    """The rows of n-grams that no other row stands for, of the words of a vocabulary.

    A row that is also a word's own is left out.
    """

    words: NDArray[np.float64]
    """How many words have each row."""
    shares: NDArray[np.float64]
    """Share of the words of a text, those that are left out too, that are trained with the row."""

    def of_text(self, tokens: float) -> float:
        """Expect how many rows a text of `tokens` words drawn from the vocabulary has."""
        return float(-np.expm1(-tokens * self.shares).sum())

    def in_shares(self, shares: int) -> float:
        """Expect how many rows equal random shares of the words have, all shares together."""
        return float(shares * (1.0 - (1.0 - 1.0 / shares) ** self.words).sum())


@lru_cache(maxsize=1)
def gram_rows(s: WordVectorSettings, vocabulary: Vocabulary) -> GramRows:
    """Count the rows of n-grams, empty without any; the last result is kept for the next call.

    Takes 2 us a word, so ask only where the number decides.
    """
    if not s.maxn:
        return GramRows(np.zeros(0), np.zeros(0))
    kept = vocabulary.counts * vocabulary.keep_probability(s.sample) / vocabulary.tokens
    uses, shares = np.zeros(s.bucket), np.zeros(s.bucket)
    for at in range(0, len(vocabulary), WORDS_AT_ONCE):
        piece = vocabulary.words[at : at + WORDS_AT_ONCE]
        ptr, ids = subwords_csr(piece, s.minn, s.maxn, s.bucket)
        grams = ids >= len(piece)
        buckets = ids[grams] - np.int32(len(piece))
        share = np.repeat(kept[at : at + len(piece)], np.diff(ptr))[grams]
        uses += np.bincount(buckets, minlength=s.bucket)
        shares += np.bincount(buckets, share, s.bucket)
    classes = classes_of(s, vocabulary)
    stored = np.flatnonzero(uses if classes is None else classes.roles[len(vocabulary) :] > 0)
    return GramRows(uses[stored], shares[stored])


@lru_cache(maxsize=1)
def classes_in(s: WordVectorSettings, summary: bytes) -> RowClasses | None:
    """`classes_of` the vocabulary in a summary; the last result is kept for the next call."""
    return classes_of(*unpack_vocabulary(s, summary))


def classes_of(s: WordVectorSettings, vocabulary: Vocabulary) -> RowClasses | None:
    """Find the rows that always stay equal; None: each row stands for itself.

    None also where rows do not start alike, because they come from a model (`continue_from`).
    """
    if not s.maxn or s.continue_from or s.bucket > BUCKETS_MAX:
        return None
    words = len(vocabulary)
    signs = np.zeros(words + s.bucket, np.uint64)  # of the words that have a row; 0: none has it
    for at in range(0, words, WORDS_AT_ONCE):
        piece = vocabulary.words[at : at + WORDS_AT_ONCE]
        sign_bags(*subwords_csr(piece, s.minn, s.maxn, s.bucket), at, words, signs)
    used = np.flatnonzero(signs).astype(np.int32)
    used = used[np.argsort(signs[used], kind="stable")]  # of equal ones the lowest number first
    signs = signs[used]
    begins = np.flatnonzero(np.concatenate(([True], signs[1:] != signs[:-1]))[: len(used)])
    sizes = np.diff(begins, append=len(used))
    roles = np.zeros(words + s.bucket, np.int32)
    roles[used] = -1 - np.repeat(used[begins], sizes)
    roles[used[begins]] = sizes
    return RowClasses(words, roles)
