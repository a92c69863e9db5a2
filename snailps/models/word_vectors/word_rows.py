"""The rows of the vocabulary's words at a worker: bags of input rows, noise, divergence.

    summary -> setup -> vocabulary, keep, sgd      words -> bags: which input rows make up each

What the trainers of a rotation (`rotation`, `skip_gram`, `cbow`) and the block trainer (`model`)
have in common.  Knows no block, no lease and no example.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from snailps.data.vocabulary import Vocabulary
from snailps.models.block_trainer import Sums
from snailps.models.local_sgd import Floats, Keys, LocalSgd, RowLayout
from snailps.models.ngram_rows import unpack_vocabulary
from snailps.models.text_model import TextModel
from snailps.models.word_vectors.contention import WordContention
from snailps.models.word_vectors.examples import Bags, bags_of
from snailps.models.word_vectors.outputs import output_rows
from snailps.models.word_vectors.row_classes import RowClasses, classes_of
from snailps.models.word_vectors.settings import WordVectorSettings

LOSS_DIVERGED = 4.0
"""Mean loss, in that of untrained rows, from which the training has diverged."""
PAIRS_JUDGED = 1000
"""Least pairs of a mean loss that is judged."""


class WordRows(TextModel):
    """A worker's vocabulary and the rows of its words, after `setup`."""

    settings: WordVectorSettings
    vocabulary: Vocabulary
    keep: Floats
    """Probability with which an occurrence of each word is trained (`sample`)."""

    def setup(self) -> None:
        """Unpack the vocabulary, and make what follows from it."""
        self.settings, self.vocabulary = unpack_vocabulary(self.settings, self.summary)
        s = self.settings
        self.keep = self.vocabulary.keep_probability(s.sample)
        self.outputs = output_rows(self.vocabulary, s)
        self._loss_untrained = self.outputs.loss_untrained
        self._contention: tuple[int, WordContention] | None = None  # workers, their estimates
        squares = s.optimizer == "adagrad"
        self.sgd = LocalSgd(self, RowLayout.padded(s.dim, 1 + squares, split=True), state=squares)

    def contention(self, workers: int) -> WordContention | None:
        """Estimates for `workers`; None for 1.  The first call may take a second."""
        if workers == 1:
            return None
        if self._contention is None or self._contention[0] != workers:
            estimates = WordContention(self.vocabulary, self.settings, self.outputs, workers)
            self._contention = workers, estimates
        return self._contention[1]

    def bags(self, present: NDArray[np.int64]) -> tuple[Bags, Keys]:
        """Bags of the present words, with local rows, and the keys of these rows to pull."""
        own = present.astype(np.uint64)
        if self.settings.maxn == 0:
            ptr = np.arange(len(present) + 1, dtype=np.int64)
            return Bags.of(ptr, ptr[:-1].astype(np.int32), None, len(own)), own
        words = self.vocabulary.words.take(present)
        ptr, rows, weights, keys = bags_of(self.settings, self._classes, words, own)
        return Bags.of(ptr, rows, weights, len(keys)), keys

    @cached_property
    def _classes(self) -> RowClasses | None:
        return classes_of(self.settings, self.vocabulary)

    def figures_of(self, results: Sequence[Sums], finite: bool = True) -> dict[str, float]:
        """Add up losses and examples.

        The loss is infinite once its mean shows divergence, and NaN if rows are not `finite`:
        either ends the job.
        """
        loss, pairs = sum(loss for loss, _ in results), sum(count for _, count in results)
        if pairs >= PAIRS_JUDGED and loss > LOSS_DIVERGED * self._loss_untrained * pairs:
            loss = math.inf
        return {"loss": float(loss) if finite else math.nan, "examples": float(pairs)}
