"""The vocabulary: words, their order, and probabilities that follow from their counts.

    WordCounter -> Vocabulary.from_counter -> words by falling count
    WordCounter -> Vocabulary.labels_from_counter -> a classifier's labels, likewise
    Vocabulary -> keep_probability (subsampling), noise (negative samples)
    Vocabulary -> to_bytes -> (another node) from_bytes -> the same Vocabulary

Owns which words a model has, and their ids: workers count, the master chooses, and a word's place
is its id in every table of every process.  Must not know subwords or sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from snailps.data._text import Lexicon, WordCounter
from snailps.data.packed_words import PackedWords
from snailps.data.word_counts import END_OF_LINE, pack, unpack
from snailps.dataclass import dataclass, field
from snailps.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

LABEL_PREFIX = b"__label__"
_MAGIC = b"SNVO"


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The words of a model; a word's place is its id.

    `words`: by falling count, equal counts by ascending bytes (but see `extended`).  `counts`:
    int64 (n,), at least 1.  `tokens`: all tokens of the input, including words that were left out,
    as fastText counts them; frequencies are relative to it.
    """

    words: PackedWords
    counts: NDArray[np.int64]
    tokens: int
    _lexicons: list[Lexicon] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", PackedWords.of(self.words))

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def from_counter(
        cls,
        counter: WordCounter,
        min_count: int,
        max_size: int = 0,
        *,
        label_prefix: bytes = LABEL_PREFIX,
    ) -> Vocabulary:
        """The words that occur at least `min_count` times, at most `max_size` of them (0: all).

        `</s>` is a word like any other.  Words that begin with `label_prefix` are labels and left
        out, as in fastText; empty: there are no labels.  Ties have a fixed order, unlike in
        fastText, so that every run gives a word the same id.  DataError: no words are left.
        """
        counts = counter.counts()
        words = counter.words()
        if len(words) == 0 or (len(words) == 1 and words[0] == END_OF_LINE):
            raise DataError("no words: the input holds only blanks. Check the paths of the input")
        wanted = counts >= min_count
        if label_prefix:
            wanted &= ~words.begin_with(label_prefix)
        if not wanted.any():
            most = int(counts.max())
            raise DataError(
                f"no words left: min_count is {min_count}, the most frequent of {len(counts):,} "
                f"words occurs {f'{most:,} times' if most > 1 else 'once'}. Lower min_count or "
                "give more text"
            )
        return cls(*_chosen(words, counts, wanted, max_size or None), counter.tokens)

    @classmethod
    def labels_from_counter(
        cls, counter: WordCounter, min_count: int, label_prefix: bytes = LABEL_PREFIX
    ) -> Vocabulary:
        """A classifier's labels: words that begin with `label_prefix`; DataError: none is left."""
        counts = counter.counts()
        words = counter.words()
        labels = words.begin_with(label_prefix)
        wanted = labels & (counts >= min_count)
        if not wanted.any():
            why = (
                f"none of its {int(labels.sum()):,} labels occurs {min_count:,} times"
                if labels.any()
                else f"no word of it begins with {label_prefix.decode(errors='replace')!r}"
            )
            raise DataError(
                f"the input has no labels to learn: {why}. A line should look like "
                f"'{label_prefix.decode(errors='replace')}sport the match was won late'; of a "
                "table, label_column names the column of labels"
            )
        return cls(*_chosen(words, counts, wanted), counter.tokens)

    def extended(
        self,
        counter: WordCounter,
        min_count: int,
        max_size: int = 0,
        *,
        labels: bool = False,
        label_prefix: bytes = LABEL_PREFIX,
    ) -> Vocabulary:
        """The vocabulary of this text and further text: old words keep their ids, new ones follow.

        `min_count` and `max_size` apply to new words; all old ones stay.  `labels`: new words are
        labels, else they are not.  Counts and tokens are added up, so counts fall within the old
        words and within the new ones, not overall.
        """
        more, words = counter.counts(), counter.words()
        ids = self.lexicon.indices(words)
        counts = self.counts + self.counts_in(counter)
        wanted = (ids < 0) & (more >= min_count) & (words.begin_with(label_prefix) == labels)
        room = max(0, max_size - len(self)) if max_size else None
        new, new_counts = _chosen(words, more, wanted, room)
        return Vocabulary(
            self.words + new,
            np.concatenate((counts, new_counts)),
            self.tokens + counter.tokens,
        )

    def counts_in(self, counter: WordCounter) -> NDArray[np.int64]:
        """Occurrences of these words in another text, int64 (n,)."""
        ids, counts = self.lexicon.indices(counter.words()), np.zeros(len(self), np.int64)
        counts[ids[ids >= 0]] = counter.counts()[ids >= 0]
        return counts

    def by_counts(self) -> Vocabulary:
        """The same words by falling counts, as in a vocabulary that was made at once."""
        order = self.words.order(self.counts)
        return Vocabulary(self.words.take(order), self.counts[order], self.tokens)

    @property
    def lexicon(self) -> Lexicon:
        """Looks up ids, for blocks of text; built at the first use."""
        if not self._lexicons:
            self._lexicons.append(Lexicon(self.words))
        return self._lexicons[0]

    def index(self, word: bytes) -> int:
        return self.lexicon.index(word)

    def keep_probability(self, sample: float) -> NDArray[np.float32]:
        """Probability of training on an occurrence of each word, float32 (n,), above 0.

        min(1, sqrt(sample / f) + sample / f), f = count / tokens, as word2vec.c and fastText
        compute it (T. Mikolov et al., NIPS 2013).  `sample` is fastText's `t`; 0: all are 1.
        """
        if sample < 0:
            raise ValueError(f"expected a sample of 0 or more, got {sample}")
        if sample == 0:
            return np.ones(len(self), dtype=np.float32)
        # Rounded to float32 as in fastText, so that the same words are dropped.
        frequency = (self.counts.astype(np.float32) / np.float32(self.tokens)).astype(np.float64)
        ratio = sample / frequency
        keep: NDArray[np.float32] = np.minimum(np.sqrt(ratio) + ratio, 1.0).astype(np.float32)
        return keep

    def noise(self, power: float = 0.5) -> NDArray[np.float64]:
        """Probability of each word as a negative sample, count^power / sum, float64 (n,).

        `power` is 0.5 in fastText, 0.75 in word2vec, 0 for all words alike.
        """
        weights: NDArray[np.float64] = self.counts.astype(np.float64) ** power
        weights /= weights.sum()
        return weights

    def to_bytes(self) -> bytes:
        ends = self.words.starts[1:] - self.words.starts[0]
        return pack(_MAGIC, self.counts, ends, self.words.joined(), self.tokens)

    @classmethod
    def from_bytes(cls, data: bytes) -> Vocabulary:
        """Read what `to_bytes` wrote, or raise DataError; words and counts are views of `data`.

        Builds the lexicon at once (32 to 64 bytes a word): it finds a word that occurs twice.
        """
        packed = unpack(_MAGIC, data, complete=False)
        starts = np.zeros(len(packed.ends) + 1, np.uint64)
        starts[1:] = packed.ends
        vocabulary = cls(PackedWords(packed.text, starts), packed.counts, packed.tokens)
        try:
            len(vocabulary.lexicon)
        except ValueError as error:
            raise DataError(
                f"cannot read a vocabulary of {len(starts) - 1} words: {error}. Check that all "
                "nodes run the same version of snailps"
            ) from None
        return vocabulary


def _chosen(
    words: PackedWords,
    counts: NDArray[np.int64],
    wanted: NDArray[np.bool_],
    size_max: int | None = None,
) -> tuple[PackedWords, NDArray[np.int64]]:
    """At most `size_max` of the wanted words, and their counts, in the order of a vocabulary."""
    ids = np.flatnonzero(wanted)
    ids = ids[words.take(ids).order(counts[ids])][:size_max]
    return words.take(ids), counts[ids]
