"""How many rows n-grams are hashed to, where `bucket` is `auto`: as many as the text has use for.

    words -> distinct_ngrams -> rows -> with_rows -> a summary that tells the number
    settings, summary -> surveyed -> settings whose `bucket` is a number, the summary of before
    settings, vocabulary -> pack_vocabulary -> summary -> unpack_vocabulary -> both

The number is a fact of the survey: the master chooses it once, and workers, a master that takes
over, checkpoints and files have it from the summary.  A summary that tells none means `ROWS_MAX`:
those of large texts, and of jobs that were saved before there was a choice.  No tables.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.data._subwords import subwords_csr
from snailps.data.packed_words import PackedWords
from snailps.data.vocabulary import Vocabulary

if TYPE_CHECKING:
    from snailps.models.classifier.settings import ClassifierSettings
    from snailps.models.word_vectors.settings import WordVectorSettings

S = TypeVar("S", "WordVectorSettings", "ClassifierSettings")

log = logging.getLogger(__name__)

AUTO = 0
"""Value of `bucket` in settings that leave the number to the text."""
ROWS_MAX = 2_000_000
"""fastText's number."""
ROWS_A_NGRAM = 4
"""One n-gram in five then shares its row.  docs/design/ngram-rows.md has the quality of the vectors
with 1 to 33 rows for each n-gram."""
DIGITS = 2
"""Of the number of rows, which is rounded up."""
WORDS_AT_ONCE = 50_000
_HASHES = 1 << 30
"""Range in which n-grams are told apart: of a million, five hundred are taken for others."""
_MAGIC = b"SNNG"
_HEAD = len(_MAGIC) + 8


def distinct_ngrams(words: Sequence[bytes], minn: int, maxn: int, enough: int) -> int:
    """Number of different n-grams of the words; not more than `enough`, where counting ends.

    Parameters
    ----------
    words : sequence of bytes
    minn, maxn : int
        Shortest and longest n-gram, in characters.
    enough : int

    Notes
    -----
    A text of 20 MB with 29,000 words takes 0.2 s, one of 100 MB with 68,000 words 0.7 s.  Memory is
    that of `enough` numbers and of the n-grams of `WORDS_AT_ONCE` words.
    """
    packed = PackedWords.of(words)
    found: NDArray[np.int32] = np.zeros(0, np.int32)
    for first in range(0, len(packed), WORDS_AT_ONCE):
        some = packed[first : first + WORDS_AT_ONCE]
        _, ids = subwords_csr(some, minn, maxn, _HASHES)
        all_ = np.concatenate((found, ids[ids >= len(some)] - np.int32(len(some))))
        all_.sort()  # np.unique would import numpy.ma
        found = all_[np.diff(all_, prepend=np.int32(-1)) > 0]
        if len(found) >= enough:
            break
    return min(enough, len(found))


def rows_for(ngrams: int, places: int = 0) -> int:
    """Rows for so many different n-grams of characters, and places of those of words.

    At most `ROWS_MAX`.
    """
    rows = max(1, ngrams * ROWS_A_NGRAM + places)
    unit: int = 10 ** max(0, len(str(rows)) - DIGITS)
    return min(ROWS_MAX, -(-rows // unit) * unit)


def chosen(s: S, words: Sequence[bytes], places: int = 0) -> int:
    """The number of rows of a job; logs it where it is for this to choose.

    Parameters
    ----------
    s : settings
    words : sequence of bytes
        Their n-grams of characters count, if there are any.
    places : int
        Places of the text where an n-gram of words begins.  Those are not told apart: in short
        texts half of them are different ones, and a classifier minds collisions less.
    """
    if s.bucket != AUTO:
        return s.bucket
    ngrams = 0
    if s.maxn and places < ROWS_MAX:
        ngrams = distinct_ngrams(words, s.minn, s.maxn, ROWS_MAX // ROWS_A_NGRAM)
    rows = rows_for(ngrams, places)
    if rows < ROWS_MAX:
        of_words = f" and {places:,} places of those of words" if places else ""
        log.info("bucket: auto: %s rows for %s n-grams%s", f"{rows:,}", f"{ngrams:,}", of_words)
    return rows


def with_rows(summary: bytes, rows: int) -> bytes:
    """The summary, and how many rows its n-grams have."""
    if rows == ROWS_MAX:
        return summary
    return _MAGIC + rows.to_bytes(8, "little") + summary


def surveyed(settings: S, summary: bytes) -> tuple[S, bytes]:
    """Settings whose `bucket` is a number, and the summary as it was before `with_rows`.

    A number that the settings have stays.
    """
    rows = ROWS_MAX
    if summary[: len(_MAGIC)] == _MAGIC:
        rows = int.from_bytes(summary[len(_MAGIC) : _HEAD], "little")
        summary = summary[_HEAD:]
    return replace(settings, bucket=settings.bucket or rows), summary


def pack_vocabulary(s: WordVectorSettings, vocabulary: Vocabulary) -> bytes:
    """A summary of the vocabulary and of how many rows its n-grams have, if there are any."""
    rows = chosen(s, vocabulary.words) if s.maxn else ROWS_MAX
    return with_rows(vocabulary.to_bytes(), rows)


def unpack_vocabulary(
    s: WordVectorSettings, summary: bytes
) -> tuple[WordVectorSettings, Vocabulary]:
    """The settings as `surveyed`, and the vocabulary.

    Raises
    ------
    DataError
        The bytes are no such summary.
    """
    s, packed = surveyed(s, summary)
    return s, Vocabulary.from_bytes(packed)
