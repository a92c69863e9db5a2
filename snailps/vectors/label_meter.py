"""Scores of each label at every threshold: what fastText's ``get_meter`` returns.

    lines, their best labels -> Meter -> scores and truth, precision-recall curves

Keeps the scores of all predictions: 9 bytes for each line and label.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from snailps.data._labelled import Lines
from snailps.errors import DataError
from snailps.vectors.label_scores import labelled

Float64 = NDArray[np.float64]
_NOT_PREDICTED = np.float32(-1)
"""The score of a line's label that is not among its predictions."""


class Meter:
    """Scores of predictions on labelled lines.

    Parameters
    ----------
    labels : sequence of str
        Of the model, with their prefix.
    answers : iterable of (Lines, (int32[n, k], float32[n, k]))
        Lines, and the numbers and probabilities of their best labels.
    """

    def __init__(
        self,
        labels: Sequence[str],
        answers: Iterable[tuple[Lines, tuple[NDArray[np.int32], NDArray[np.float32]]]],
    ) -> None:
        self._numbers = {label: number for number, label in enumerate(labels)}
        count = len(labels)
        self._gold = np.zeros(count, np.int64)
        numbers = [np.empty(0, np.int32)]
        scores = [np.empty(0, np.float32)]
        truth = [np.empty(0, np.bool_)]
        for lines, (best, chances) in answers:
            has, true, _ = labelled(lines, count)
            self._gold += np.bincount(true % count, minlength=count)
            rows = np.flatnonzero(has)
            guesses = (rows[:, None] * count + best[rows]).ravel()
            missed = np.setdiff1d(true, guesses, assume_unique=True)
            numbers += [best[rows].ravel(), (missed % count).astype(np.int32)]
            scores += [chances[rows].ravel(), np.full(len(missed), _NOT_PREDICTED)]
            truth += [np.isin(guesses, true), np.ones(len(missed), bool)]
        score, is_true = np.concatenate(scores), np.concatenate(truth)
        order = np.lexsort((is_true, score))
        self._label, self._score, self._is_true = (
            np.concatenate(numbers)[order],
            score[order],
            is_true[order],
        )

    def score_vs_true(self, label: str) -> tuple[Float64, Float64]:
        """Return the scores of a label's predictions, ascending, and whether each was right.

        Returns
        -------
        float64[n], float64[n]
            Probabilities, and 1 or 0.  A line that has the label without a prediction of it has the
            score -1.

        Raises
        ------
        DataError
            The model has no such label.
        """
        of_label = self._label == self._number(label)
        return self._score[of_label].astype(np.float64), self._is_true[of_label].astype(np.float64)

    def precision_recall_curve(self, label: str | None = None) -> tuple[Float64, Float64]:
        """Return precision and recall at each threshold, from the highest threshold on.

        Parameters
        ----------
        label : str, optional
            By default predictions of all labels are counted together.

        Returns
        -------
        float64[n], float64[n]
            The last pair is (1, 0).  Both are empty if nothing was predicted.
        """
        number = None if not label else self._number(label)
        of_label = slice(None) if number is None else self._label == number
        scores, right = self._score[of_label][::-1], self._is_true[of_label][::-1]
        reachable = scores >= 0
        scores, right = scores[reachable], right[reachable]
        if not len(scores):
            return np.empty(0), np.empty(0)
        lines = int(self._gold.sum() if number is None else self._gold[number])
        last = np.append(scores[1:] != scores[:-1], True)  # of equal scores
        hits = np.cumsum(right)[last]
        predicted = np.flatnonzero(last) + 1
        # Beyond the first threshold that finds all, precision can only fall.
        end = int(np.searchsorted(hits, lines)) + 1
        precision = hits[:end] / predicted[:end]
        recall = hits[:end] / lines if lines else np.full(len(precision), np.nan)
        return np.append(precision, 1.0), np.append(recall, 0.0)

    def precision_at_recall(self, recall: float, label: str | None = None) -> float:
        """Return the best precision at a recall of at least `recall`; 0 if none reaches it."""
        precision, reached = self.precision_recall_curve(label)
        return float(precision[reached >= recall].max(initial=0.0))

    def recall_at_precision(self, precision: float, label: str | None = None) -> float:
        """Return the best recall at a precision of at least `precision`; 0 if none reaches it."""
        reached, recall = self.precision_recall_curve(label)
        return float(recall[reached >= precision].max(initial=0.0))

    def _number(self, label: str) -> int:
        if label not in self._numbers:
            raise DataError(
                f"label: expected one of the model's {len(self._numbers):,}, such as "
                f"{next(iter(self._numbers))!r:.60}; got {label!r:.60}"
            )
        return self._numbers[label]
