"""Scores of each label at every threshold: what fastText's ``get_meter`` returns.

    lines, their best labels -> Meter -> scores and truth, precision-recall curves

Keeps the scores of all predictions: 9 bytes for each line and label, 25 where lines have weights.
A prediction counts with the weight of its line, and a right one with that of the label
(`label_scores.PredictionWeights`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from snailps.data._labelled import Lines
from snailps.errors import DataError
from snailps.vectors.label_scores import labelled, rounding_of, shares

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
        self._gold = np.zeros(count)
        numbers = [np.empty(0, np.int32)]
        scores = [np.empty(0, np.float32)]
        truth = [np.empty(0, np.bool_)]
        weights = [np.empty((2, 0))]
        for lines, (best, chances) in answers:
            pairs = labelled(lines, count)
            has, true, of_lines = pairs
            of_pairs = None if of_lines is None else of_lines.pairs
            self._gold += np.bincount(true % count, of_pairs, minlength=count)
            rows = np.flatnonzero(has)
            guesses = (rows[:, None] * count + best[rows]).ravel()
            missed = np.setdiff1d(true, guesses, assume_unique=True)
            numbers += [best[rows].ravel(), (missed % count).astype(np.int32)]
            scores += [chances[rows].ravel(), np.full(len(missed), _NOT_PREDICTED)]
            truth += [np.isin(guesses, true), np.ones(len(missed), bool)]
            if of_lines is not None:
                of_guesses = np.repeat(of_lines.lines[rows], best.shape[1])
                weights += [np.stack((of_guesses, pairs.weights_of(guesses)))]
                weights += [np.zeros((2, len(missed)))]  # which is no prediction
        score, is_true = np.concatenate(scores), np.concatenate(truth)
        order = np.lexsort((is_true, score))
        self._label, self._score, self._is_true = (
            np.concatenate(numbers)[order],
            score[order],
            is_true[order],
        )
        self._weights = np.concatenate(weights, axis=1)[:, order] if len(weights) > 1 else None
        """Of each prediction, and of the line's label if it is right; None: all are 1."""
        self._rounding = rounding_of(len(score), has_weights=self._weights is not None)

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
        chosen = self._score >= 0
        if number is not None:
            chosen &= self._label == number
        places = np.flatnonzero(chosen)[::-1]
        if not len(places):
            return np.empty(0), np.empty(0)
        scores = self._score[places]
        last = np.append(scores[1:] != scores[:-1], True)  # of equal scores
        hits: Float64
        predicted: Float64
        if self._weights is None:
            hits = np.cumsum(self._is_true[places], dtype=np.float64)[last]
            predicted = (np.flatnonzero(last) + 1).astype(np.float64)
        else:
            predicted, hits = np.cumsum(self._weights[:, places], axis=1)[:, last]
        lines = float(self._gold.sum() if number is None else self._gold[number])
        # All lines are found, but for the rounding of the sums.
        has_all = hits >= lines * (1 - self._rounding)
        # Beyond the first threshold that finds all, precision can only fall.
        end = int(np.argmax(has_all)) + 1 if has_all.any() else len(hits)
        hits, predicted, has_all = hits[:end], predicted[:end], has_all[:end]
        precision = shares(hits, predicted)
        recall = np.where(has_all, 1.0, hits / lines) if lines else np.full(end, np.nan)
        return np.append(precision, 1.0), np.append(recall, 0.0)

    def precision_at_recall(self, recall: float, label: str | None = None) -> float:
        """Return the best precision at a recall of at least `recall`; 0 if none reaches it."""
        precision, reached = self.precision_recall_curve(label)
        least = recall * (1 - self._rounding)
        return float(precision[reached >= least].max(initial=0.0))

    def recall_at_precision(self, precision: float, label: str | None = None) -> float:
        """Return the best recall at a precision of at least `precision`; 0 if none reaches it."""
        reached, recall = self.precision_recall_curve(label)
        least = precision * (1 - self._rounding)
        return float(recall[reached >= least].max(initial=0.0))

    def _number(self, label: str) -> int:
        if label not in self._numbers:
            raise DataError(
                f"label: expected one of the model's {len(self._numbers):,}, such as "
                f"{next(iter(self._numbers))!r:.60}; got {label!r:.60}"
            )
        return self._numbers[label]
