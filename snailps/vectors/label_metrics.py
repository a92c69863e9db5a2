"""What a classifier is judged by when its settings are chosen: one number of held-out lines.

    "f1:__label__chess" -> Metric.of -> Metric
    Metric, labels, lines and their best labels -> value -> 0 to 1, more is better

F1 is over all labels together (micro) or of one, `macro-f1` its mean over the labels that occur,
`accuracy` the share of lines whose best label is right; the levels are points of `label_meter`'s
curves.  `loss` is for tests after each epoch alone, which have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from snailps.data._labelled import Lines
from snailps.data.label_words import no_label, prefix_of, word_of
from snailps.dataclass import dataclass
from snailps.errors import DataError
from snailps.vectors.label_meter import Meter
from snailps.vectors.label_scores import LabelScoreSums, scores_of
from snailps.vectors.words import to_bytes, to_text

Answers = Iterable[tuple[Lines, tuple[NDArray[np.int32], NDArray[np.float32]]]]

F1, PRECISION_AT_RECALL, RECALL_AT_PRECISION = "f1", "precision-at-recall", "recall-at-precision"
MACRO_F1, ACCURACY, LOSS = "macro-f1", "accuracy", "loss"
OF_ALL = (MACRO_F1, ACCURACY, LOSS)
"""Figures that are of all labels only."""
_FORMS = (
    f"{F1}, {F1}:LABEL, {', '.join(OF_ALL)}, {PRECISION_AT_RECALL}:R or {RECALL_AT_PRECISION}:P "
    "with R and P from 0 to 1, and :LABEL after them for one label"
)


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of predictions, 0 to 1 but for the loss.

    Attributes
    ----------
    name : {"f1", "macro-f1", "accuracy", "loss", "precision-at-recall", "recall-at-precision"}
    level : float
        The recall, or the precision, that has to be reached; 0 for F1.
    label : str
        With or without the prefix of all labels; empty: all labels together.
    """

    name: str = F1
    level: float = 0.0
    label: str = ""

    @classmethod
    def of(cls, text: str) -> Metric:
        """Read ``NAME[:LEVEL][:LABEL]``; a label may have colons.

        Raises
        ------
        DataError
            Another name, or a level that is no share.
        """
        name, _, rest = str(text).partition(":")
        if name == F1:
            return cls(F1, 0.0, rest)
        if name in OF_ALL and not rest:
            return cls(name)
        level, _, label = rest.partition(":")
        try:
            share = float(level)
        except ValueError:
            share = math.nan
        if name not in (PRECISION_AT_RECALL, RECALL_AT_PRECISION) or not 0 < share <= 1:
            raise DataError(f"metric: expected {_FORMS}; got {text!r:.80}")
        return cls(name, share, label)

    def __str__(self) -> str:
        parts = [self.name, f"{self.level:g}" if self.level else "", self.label]
        return ":".join(part for part in parts if part)

    @property
    def predictions(self) -> int:
        """Labels a line to predict where nothing else is said: for curves all of them (-1)."""
        return -1 if self.level else 1

    def check(self, labels: Sequence[str]) -> None:
        """Refuse a label that is not among `labels`, with a DataError."""
        if self.label:
            self._number(labels)

    def of_sums(self, sums: LabelScoreSums, labels: Sequence[str]) -> float:
        """Return F1 or accuracy, of counts of the best labels."""
        if self.name == MACRO_F1:
            names = [to_bytes(name) for name in labels]
            return scores_of(names, sums, 1, None, None).macro.f1 or 0.0
        of_label = self._number(labels) if self.label else slice(None)
        right, predicted, gold = (
            float(np.sum(counts[of_label])) for counts in (sums.right, sums.predicted, sums.gold)
        )
        if self.name == ACCURACY:
            return right / predicted if predicted else 0.0
        return 2 * right / (predicted + gold) if predicted + gold else 0.0

    def value(self, labels: Sequence[str], answers: Answers) -> float:
        """Return the figure of held-out lines with the numbers and probabilities of their best
        labels.

        Raises
        ------
        DataError
            The metric's label is not among `labels`, or no line has both a known label and a known
            word.
        """
        if self.level:
            meter = Meter(labels, answers)
            of = (
                meter.precision_at_recall
                if self.name == PRECISION_AT_RECALL
                else meter.recall_at_precision
            )
            return of(self.level, labels[self._number(labels)] if self.label else None)
        sums = LabelScoreSums(len(labels))
        for lines, (best, chances) in answers:
            width = 1 if self.name == ACCURACY else None
            sums.add(lines, best[:, :width], chances[:, :width], 0.0)
        if not sums.lines:
            raise DataError(
                f"none of the {sums.skipped:,} lines of validation has both a label and a word of "
                f"the input; its labels look like {labels[0]!r:.60}"
            )
        if not sums.gold.any():
            raise DataError(
                f"expected a weight above 0 of a line or a label of validation, got 0 for all "
                f"{sums.lines:,} lines: there is nothing to measure"
            )
        return self.of_sums(sums, labels)

    def _number(self, labels: Sequence[str]) -> int:
        """Return the number of the metric's label, which may lack the prefix of all labels, and
        then be as it was before it became a word (`word_of`).
        """
        names = list(labels)
        prefix = to_text(prefix_of([to_bytes(name) for name in names]))
        for name in (self.label, prefix + self.label, prefix + word_of(self.label)):
            if name in names:
                return names.index(name)
        raise DataError(f"metric: {no_label(self.label, names, prefix)}")
