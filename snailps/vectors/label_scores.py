"""Scores of a classifier on a labelled text: precision, recall, F1, average precision.

    lines, their best labels -> Sums -> counts a label
    lines, probabilities of all labels, twice -> Ranking -> average precision, precision at a recall
    both -> scores_of -> LabelScores

Definitions are scikit-learn's where it has them, and fastText's: `precision_recall_fscore_support`,
`average_precision_score`, and the best precision of the thresholds that reach a recall.  Knows no
text and no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps.data._labelled import Lines
from snailps.dataclass import dataclass

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LabelScore:
    """Lines that have a label, times that it was `predicted`, and shares of both that are right.

    The last three of a ranking: see `LabelScores`.
    """

    label: bytes
    lines: int
    predicted: int
    precision: float | None
    recall: float | None
    f1: float | None
    average_precision: float | None = None
    precision_at_recall: float | None = None
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class MeanScores:
    """Means over the labels that lines have or that were predicted; what is undefined counts 0.

    `average_precision`: over the labels that lines have.
    """

    labels: int
    precision: float | None
    recall: float | None
    f1: float | None
    average_precision: float | None = None


@dataclass(frozen=True, slots=True)
class LabelScores:
    """Scores of the `k` best labels of each line; `labels` by falling number of lines.

    `precision`, `recall` and `f1` are of all labels together (micro), `macro` are means of labels.
    `lines`: those with a known label and a known word, or a known end, which count, as in fastText;
    `skipped`: the others.  With a ranking: `average_precision`, and the best
    `precision_at_recall` of `at_recall` or more with the `threshold` that has it.
    """

    k: int
    lines: int
    skipped: int
    precision: float | None
    recall: float | None
    f1: float | None
    macro: MeanScores
    labels: list[LabelScore]
    average_precision: float | None = None
    at_recall: float | None = None
    precision_at_recall: float | None = None
    threshold: float | None = None


class Sums:
    """Counts a label."""

    def __init__(self, labels: int) -> None:
        self.lines = self.skipped = 0
        self.gold = np.zeros(labels, np.int64)
        self.predicted = np.zeros(labels, np.int64)
        self.right = np.zeros(labels, np.int64)

    def add(
        self, lines: Lines, order: NDArray[np.int32], chances: NDArray[np.float32], threshold: float
    ) -> None:
        """Count lines with their best labels, of which those below the threshold do not count."""
        number, (has, pairs) = len(self.gold), labelled(lines, len(self.gold))
        self.lines += int(has.sum())
        self.skipped += int(len(has) - has.sum())
        chosen = (chances >= threshold) & has[:, None]
        found = (np.arange(len(has))[:, None] * number + order)[chosen]
        self.gold += np.bincount(pairs % number, minlength=number)
        self.predicted += np.bincount(found % number, minlength=number)
        right = found[np.isin(found, pairs)]
        self.right += np.bincount(right % number, minlength=number)


def labelled(lines: Lines, number: int) -> tuple[NDArray[np.bool_], Counts]:
    """Lines that count, and their labels as ``line * number + label``, each once."""
    has = (np.diff(lines.feature_ptr) > 0) & (np.diff(lines.label_ptr) > 0)
    owner = np.repeat(np.arange(len(has)), np.diff(lines.label_ptr))
    keep = has[owner]
    # A label repeated in a line counts once, as a prediction does.
    return has, np.unique(owner[keep] * number + lines.labels.astype(np.int64)[keep])


class _Curve(NamedTuple):
    """Points of precision-recall curves: curve, probability, lines right and all from there on."""

    curve: Counts
    chance: NDArray[np.float32]
    right: Counts
    all: Counts


class _Ranked:
    """Lines at and above each probability of a line that has the label, of several curves.

    A key is a curve and the bits of a probability: they are ordered as the probability is.
    """

    def __init__(self) -> None:
        self._parts: list[NDArray[np.uint64]] = []
        self._keys = np.empty(0, np.uint64)
        self._right = self._all = np.empty(0, np.int64)

    def has(self, keys: NDArray[np.uint64]) -> None:
        self._parts.append(keys)

    def sort(self) -> None:
        self._keys, self._right = np.unique(
            np.concatenate([np.empty(0, np.uint64), *self._parts]), return_counts=True
        )
        self._all, self._parts = np.zeros(len(self._keys), np.int64), []

    def count(self, keys: NDArray[np.uint64]) -> None:
        place = np.searchsorted(self._keys, keys, side="right") - 1
        same = (place >= 0) & (self._keys[place] >> np.uint64(32) == keys >> np.uint64(32))
        self._all += np.bincount(place[same], minlength=len(self._keys))

    def curve(self) -> _Curve:
        curve = (self._keys >> np.uint64(32)).astype(np.int64)
        chance = (self._keys & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.float32)
        last = np.searchsorted(curve, curve, side="right")  # after the last point of the curve
        sums = [np.append(np.cumsum(x[::-1])[::-1], 0) for x in (self._right, self._all)]
        right, every = (sums[at][:-1] - sums[at][last] for at in range(2))
        return _Curve(curve, chance, right, every)


class Ranking:
    """Average precision of each label and of all together, and the precision at a recall.

    Takes the lines twice, so that memory grows with the labels that lines have: first their own
    probabilities, then how many others are at or above each.
    """

    def __init__(self, labels: int) -> None:
        self._labels = labels
        self._each, self._together = _Ranked(), _Ranked()
        self._is_sorted = False

    def add(self, lines: Lines, chances: NDArray[np.float32]) -> None:
        """Take lines and the probabilities of all labels: all of a text, then `again`, all."""
        has, pairs = labelled(lines, self._labels)
        likely = np.nan_to_num(np.maximum(chances, 0), copy=False)
        if not self._is_sorted:
            of_lines, labels = np.divmod(pairs, self._labels)
            bits = _bits(likely[of_lines, labels])
            self._each.has(labels.astype(np.uint64) << np.uint64(32) | bits)
            self._together.has(bits)
        else:
            bits = _bits(likely[has])
            every = np.arange(self._labels, dtype=np.uint64) << np.uint64(32)
            self._each.count((bits | every).ravel())
            self._together.count(bits.ravel())

    def again(self) -> None:
        """What comes now are the same lines once more."""
        self._each.sort()
        self._together.sort()
        self._is_sorted = True

    def of_labels(self, recall: float | None) -> tuple[NDArray[np.float64], ...]:
        """Average precision, precision at a recall and its threshold of each label; NaN: none."""
        return _read(self._each.curve(), self._labels, recall)

    def of_all(self, recall: float | None) -> tuple[NDArray[np.float64], ...]:
        """The same of all labels together."""
        return _read(self._together.curve(), 1, recall)


def _bits(chances: NDArray[np.float32]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(chances).view(np.uint32).astype(np.uint64)


def _read(curve: _Curve, curves: int, recall: float | None) -> tuple[NDArray[np.float64], ...]:
    number = np.zeros(curves, np.int64)
    np.maximum.at(number, curve.curve, curve.right)
    goes_on = np.append(curve.curve[1:], -1) == curve.curve
    steps = curve.right - np.where(goes_on, np.append(curve.right[1:], 0), 0)
    precision = curve.right / curve.all
    weights = steps * precision / number[curve.curve]
    average = np.where(number > 0, np.bincount(curve.curve, weights, curves), np.nan)
    best, threshold = np.full(curves, np.nan), np.full(curves, np.nan)
    if recall is not None:
        reach = np.flatnonzero(curve.right / number[curve.curve] >= recall)
        # Of equal precisions the highest threshold: of each curve the last in this order.
        reach = reach[np.lexsort((curve.chance[reach], precision[reach], curve.curve[reach]))]
        best[curve.curve[reach]] = precision[reach]
        threshold[curve.curve[reach]] = curve.chance[reach]
    return average, best, threshold


def scores_of(
    names: Sequence[bytes], sums: Sums, k: int, ranking: Ranking | None, recall: float | None
) -> LabelScores:
    """All scores of some counts."""
    each = of_all = None
    if ranking is not None and sums.lines:
        each, of_all = ranking.of_labels(recall), ranking.of_all(recall)
    labels = [
        LabelScore(
            names[i],
            int(sums.gold[i]),
            int(sums.predicted[i]),
            _share(sums.right[i], sums.predicted[i]),
            _share(sums.right[i], sums.gold[i]),
            _share(2 * sums.right[i], sums.predicted[i] + sums.gold[i]),
            *([_number(x[i]) for x in each] if each else ()),
        )
        for i in np.argsort(-sums.gold, kind="stable").tolist()
    ]
    right, gold, predicted = sums.right.sum(), sums.gold.sum(), sums.predicted.sum()
    together = [_number(x[0]) for x in of_all] if of_all else [None] * 3
    met = [one for one in labels if one.lines or one.predicted]
    return LabelScores(
        k,
        sums.lines,
        sums.skipped,
        _share(right, predicted),
        _share(right, gold),
        _share(2 * right, predicted + gold),
        MeanScores(
            len(met),
            _mean([one.precision or 0.0 for one in met]),
            _mean([one.recall or 0.0 for one in met]),
            _mean([one.f1 or 0.0 for one in met]),
            _mean([x for one in labels if (x := one.average_precision) is not None]),
        ),
        labels,
        together[0],
        recall,
        *together[1:],
    )


def _share(part: np.int64, whole: np.int64) -> float | None:
    return float(part / whole) if whole else None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _number(value: np.float64) -> float | None:
    return None if np.isnan(value) else float(value)
