"""How many rows n-grams are hashed to with ``bucket: auto``: the survey chooses.

    words -> distinct_ngrams -> rows -> with_rows -> a summary with the number
    settings, summary -> surveyed -> settings whose `bucket` is a number, summary without it
    settings, vocabulary -> pack_vocabulary -> summary -> unpack_vocabulary -> both

The master chooses once; workers, a master that takes over, checkpoints and files read the number
from the summary.  A summary without it (of a large text, or from before 0.1) means `ROWS_MAX`.
Knows no tables.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import Field, replace
from functools import lru_cache
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.data._subwords import subwords_csr
from snailps.data.packed_words import PackedWords
from snailps.data.vocabulary import Vocabulary

log = logging.getLogger(__name__)

AUTO = 0
"""Value of `bucket` that leaves the number to the text."""
ROWS_MAX = 2_000_000
"""fastText's number."""
ROWS_A_NGRAM = 4
"""With it one n-gram in five shares its row; quality by this number: docs/lab/ngram-rows.md."""
DIGITS = 2
"""Significant digits of the number of rows, which is rounded up."""
WORDS_AT_ONCE = 50_000
_HASHES = 1 << 30
"""Range of the hashes that are counted: of a million n-grams, about five hundred collide."""
_MAGIC = b"SNNG"
_HEAD = len(_MAGIC) + 8


class Grams(Protocol):
    """Settings of a model whose words have n-grams of characters."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def minn(self) -> int: ...

    @property
    def maxn(self) -> int: ...

    @property
    def bucket(self) -> int: ...


S = TypeVar("S", bound=Grams)


def distinct_ngrams(words: Sequence[bytes], minn: int, maxn: int, enough: int) -> int:
    """Count the different n-grams of `minn` to `maxn` characters, up to `enough`."""
    packed = PackedWords.of(words)
    hashes: NDArray[np.int32] = np.zeros(0, np.int32)
    for first in range(0, len(packed), WORDS_AT_ONCE):
        piece = packed[first : first + WORDS_AT_ONCE]
        _, ids = subwords_csr(piece, minn, maxn, _HASHES)
        merged = np.concatenate((hashes, ids[ids >= len(piece)] - np.int32(len(piece))))
        merged.sort()  # np.unique would import numpy.ma
        hashes = merged[np.diff(merged, prepend=np.int32(-1)) > 0]
        if len(hashes) >= enough:
            break
    return min(enough, len(hashes))


def rows_for(ngrams: int, places: int = 0) -> int:
    """Choose rows for `ngrams` different n-grams of characters and `places` n-grams of words."""
    rows = max(1, ngrams * ROWS_A_NGRAM + places)
    unit: int = 10 ** max(0, len(str(rows)) - DIGITS)
    return min(ROWS_MAX, -(-rows // unit) * unit)


def chosen(s: Grams, words: Sequence[bytes], places: int = 0) -> int:
    """The number of rows of a job; logged if it is chosen here.

    `places` counts all occurrences of n-grams of words: in short texts half of them differ, and
    collisions cost a classifier less.
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
    """Append the number of rows to the summary."""
    if rows == ROWS_MAX:
        return summary
    return _MAGIC + rows.to_bytes(8, "little") + summary


def surveyed(settings: S, summary: bytes) -> tuple[S, bytes]:
    """The settings with a number as `bucket` (the user's, if set), and the summary without it."""
    rows = ROWS_MAX
    if summary[: len(_MAGIC)] == _MAGIC:
        rows = int.from_bytes(summary[len(_MAGIC) : _HEAD], "little")
        summary = summary[_HEAD:]
    return replace(settings, bucket=settings.bucket or rows), summary


def pack_vocabulary(s: Grams, vocabulary: Vocabulary) -> bytes:
    rows = chosen(s, vocabulary.words) if s.maxn else ROWS_MAX
    return with_rows(vocabulary.to_bytes(), rows)


def unpack_vocabulary(s: S, summary: bytes) -> tuple[S, Vocabulary]:
    """The settings of `surveyed`, and the vocabulary."""
    s, packed = surveyed(s, summary)
    return s, _unpacked(packed)


@lru_cache(maxsize=1)
def _unpacked(packed: bytes) -> Vocabulary:
    """Unpack a vocabulary; the last one is kept, as a plan asks for it several times."""
    return Vocabulary.from_bytes(packed)
