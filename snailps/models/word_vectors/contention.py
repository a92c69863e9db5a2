"""Estimates for rows that several workers train: steps of other workers, curvature of the loss.

    vocabulary, settings -> WordContention -> steps_elsewhere: expected of other workers, by row
    a trained block -> curvatures_of: curvature of the loss in input rows and in output rows

Without a rotation (`bsp`, `ssp`, `max_steps`, texts of few words) `local_sgd.Contention` scales
deltas by them; CBOW in a rotation exchanges input rows by the steps.  No pulls or pushes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from snailps.data._subwords import subwords_csr
from snailps.data.vocabulary import Vocabulary
from snailps.models.local_sgd import Floats, Keys
from snailps.models.ngram_rows import WORDS_AT_ONCE
from snailps.models.text_model import BUCKET_KEY
from snailps.models.word_vectors.examples import Bags, Ints
from snailps.models.word_vectors.outputs import OutputRows, Targets
from snailps.models.word_vectors.settings import WordVectorSettings

PAIRS = 2000
"""Word pairs of a block on which the curvature is measured."""


class WordContention:
    """Expects how often other workers step on each row, and measures curvatures.

    The first estimate comes from the vocabulary.  Counts of this worker's blocks get more weight
    with each block: the vocabulary may come from other texts (`continue_from`), and a text may
    change.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        settings: WordVectorSettings,
        outputs_of: OutputRows,
        workers: int,
    ) -> None:
        s = self._settings = settings
        kept = vocabulary.counts * vocabulary.keep_probability(s.sample)
        inputs, outputs = steps_a_word(s)
        # Steps of all other workers while this one trains one kept word.
        others = workers - 1
        words = (kept / kept.sum() * others).astype(np.float32)
        self._words = words * np.float32(inputs)
        self._outputs = outputs_of.steps(words).astype(np.float32) * np.float32(outputs)
        self._buckets = np.zeros(s.bucket if s.maxn else 0, np.float32)
        for first in range(0, len(words) if s.maxn else 0, WORDS_AT_ONCE):
            some = np.arange(first, min(first + WORDS_AT_ONCE, len(words)))
            ptr, ids = subwords_csr(vocabulary.words.take(some), s.minn, s.maxn, s.bucket)
            steps = np.repeat(self._words[some], np.diff(ptr))
            grams = ids >= len(some)
            np.add.at(self._buckets, ids[grams] - len(some), steps[grams])
        self._tokens = 0.0  # weight of these three
        self._others = np.float32(others)

    def saw(
        self, tokens: int, input_keys: Keys, output_keys: Keys, steps: tuple[Floats, Floats]
    ) -> None:
        """Add a block of this worker: its kept words, its keys, and the steps on each key.

        The vocabulary's estimate has the weight of the first block.
        """
        before = self._tokens or float(tokens)
        self._tokens = before + tokens
        places = self._places(input_keys)
        met = (*(steps[0][at] for at, _ in places), steps[1])
        rows = (*(rows for _, rows in places), output_keys.astype(np.int64))
        for rates, at, own in zip(
            (self._words, self._buckets, self._outputs), rows, met, strict=True
        ):
            rates *= np.float32(before / self._tokens)
            rates[at] += own * (self._others / np.float32(self._tokens))

    def steps_elsewhere(
        self, tokens: int, input_keys: Keys, output_keys: Keys
    ) -> tuple[Floats, Floats]:
        """Steps expected of other workers on these rows while this one trains `tokens`."""
        (_, words), (_, buckets) = self._places(input_keys)
        inputs = np.concatenate((self._words[words], self._buckets[buckets]))
        size = np.float32(tokens)
        return inputs * size, self._outputs[output_keys.astype(np.int64)] * size

    def steps_beside(
        self, tokens: int, input_keys: Keys, output_keys: Keys, steps: tuple[Floats, Floats]
    ) -> tuple[Floats, Floats]:
        """Estimate steps from this block: the mean of the vocabulary's estimate and its own steps.

        Equals `saw` and `steps_elsewhere` for a worker's first block, without changing anything.
        """
        half = np.float32(0.5)
        of_vocabulary = self.steps_elsewhere(tokens, input_keys, output_keys)
        inputs, outputs = (
            half * (expected + own * self._others)
            for expected, own in zip(of_vocabulary, steps, strict=True)
        )
        return inputs, outputs

    @staticmethod
    def _places(
        input_keys: Keys,
    ) -> tuple[tuple[slice, NDArray[np.int64]], tuple[slice, NDArray[np.int64]]]:
        """Where keys of words are, with the words' numbers; and the same for buckets."""
        words = int(np.searchsorted(input_keys >= BUCKET_KEY, True))
        buckets = input_keys[words:] - np.uint64(BUCKET_KEY)
        return (
            (slice(0, words), input_keys[:words].astype(np.int64)),
            (slice(words, None), buckets.astype(np.int64)),
        )

    def curvatures_of(
        self, tokens: Ints, bags: Bags, judges: Targets, local: Sequence[Floats]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Measure the loss's curvature for a step in an input and in an output row, (dim, dim)
        each.

        A pair's loss is a sum of logistic functions of products of a hidden vector and an output
        row.  So the curvature in one of them is the slope of that function times the other's outer
        product with itself.
        """
        dim = self._settings.dim
        tokens = tokens[tokens >= 0]
        reach = min(2, self._settings.window)
        at = _spread(max(0, len(tokens) - 2 * reach), PAIRS) + reach
        if len(at) == 0:
            nothing = np.zeros((dim, dim), np.float32)
            return nothing, nothing
        inputs, outputs = local[0][:, :dim], local[1][:, :dim]
        if self._settings.model == "skipgram":
            hidden = _means(inputs, tokens[at], bags)
            targets = tokens[at + 1]
        else:
            sides = [step for step in range(-reach, reach + 1) if step]
            means = [_means(inputs, tokens[at + step], bags) for step in sides]
            hidden = np.mean(means, axis=0, dtype=np.float32)
            targets = tokens[at]
        return judges.curvatures(hidden, targets, outputs, self._settings.negatives)


def steps_a_word(settings: WordVectorSettings) -> tuple[float, float]:
    """Mean steps that a word of the text makes on its input row, and on its output row.

    With skip-gram a word is a centre with each of its contexts, and a context as often.  With CBOW
    it is a context as often, but a target once.
    """
    contexts = float(settings.window + settings.reach_min)  # of a mean window, both sides
    return contexts, contexts if settings.model == "skipgram" else 1.0


def _spread(size: int, most: int) -> NDArray[np.int64]:
    """Choose up to `most` places below `size`, one at random in each stretch.

    Equidistant places would be the same words of each line, if lines have equal lengths.
    """
    num = min(size, most)
    shift = np.random.default_rng(size).random(num) if num < size else 0.0
    return ((np.arange(num) + shift) * (size / max(1, num))).astype(np.int64)


def _means(rows: Floats, words: Ints, bags: Bags) -> Floats:
    """Compute hidden vectors of words: the means of their bags."""
    sizes, members, weights = bags.entries(words)
    begins = np.cumsum(sizes) - sizes
    sums = np.add.reduceat(rows[members] * weights[:, None], begins)
    means: Floats = (sums / np.add.reduceat(weights, begins)[:, None]).astype(np.float32)
    return means
