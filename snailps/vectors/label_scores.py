"""Scores of a classifier on a labelled text: precision, recall, F1, average precision.

    lines, their best labels -> Sums -> counts per label
    lines, probabilities of all labels, twice -> Ranking -> average precision, precision at a recall
    both -> scores_of -> LabelScores

The definitions are scikit-learn's (`precision_recall_fscore_support`, `average_precision_score`);
the precision at a recall is the best one of all thresholds that reach the recall, as in fastText.
Weights of lines (`Lines.line_weights`) are its `sample_weight`.
Must not know texts or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps.data._labelled import Lines
from snailps.dataclass import dataclass
from snailps.errors import DataError

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


def check_finite(values: NDArray[np.float32]) -> None:
    """Refuse lines whose probabilities or scores are NaN or infinite: rows of the model are.

    Raises
    ------
    DataError
    """
    wrong = len(values) - int(np.isfinite(values).sum())
    if wrong:
        raise DataError(
            f"the probabilities of {wrong:,} of {len(values):,} lines are not finite: the training "
            "of the model diverged, or its file is damaged; train again with a lower learning rate"
        )


@dataclass(frozen=True, slots=True)
class LabelScore:
    """Scores of one label: `lines` have it, it was `predicted` that often.

    `precision` is the share of predictions that are right, `recall` the share of lines that were
    found; None if undefined.  The last three are set only with a ranking: see `LabelScores`.
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
    """Macro averages over the labels that occur in lines or predictions; undefined counts as 0.

    `average_precision` is the mean over the labels that occur in lines.
    """

    labels: int
    precision: float | None
    recall: float | None
    f1: float | None
    average_precision: float | None = None


@dataclass(frozen=True, slots=True)
class LabelScores:
    """Scores of the `k` best labels of each line; `labels` are sorted by falling number of lines.

    `precision`, `recall` and `f1` are micro averages over all labels, `macro` has their means.
    `lines` counts lines with a known label and a known word or end of line, as fastText does;
    `skipped` the others, which do not enter any score.  With a ranking there are also
    `average_precision`, and the best `precision_at_recall` among thresholds with a recall of at
    least `at_recall`, with that `threshold`.

    `calibration_error` is the expected calibration error: the mean, over lines, of |share of right
    ones - mean probability| in 15 equally wide bins of the best label's probability;
    `uncalibrated_error` is the same without the model's calibration, if it has one.
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
    calibration_error: float | None = None
    uncalibrated_error: float | None = None


@dataclass(frozen=True, slots=True)
class LabelThreshold:
    """The least probability with which a label is predicted, and what it leads to.

    `lines` have the label, `predicted` lines reach the threshold, whatever they weigh; precision
    and recall are by weight.  `threshold` is None, and so are
    the others, if no threshold reaches what was wanted.
    """

    label: bytes
    lines: int
    threshold: float | None
    precision: float | None
    recall: float | None
    predicted: int | None


class Bins:
    """Lines by the probability of their best label: the expected calibration error of these.

    Bin i of 15 has probabilities above i / 15 up to (i + 1) / 15; 0 is in the first one.
    """

    NUMBER = 15

    def __init__(self) -> None:
        self._lines, self._right, self._chance = np.zeros((3, self.NUMBER))

    def add(
        self, chances: NDArray[Any], right: NDArray[Any], weights: Floats | None = None
    ) -> None:
        """Add lines: probabilities of their best labels, and whether these are right.

        With `weights` of the lines, `right` is the weight of the best label, at most that.
        """
        values = chances.astype(np.float64)
        places = np.ceil(values * self.NUMBER).astype(np.int64) - 1
        places = np.clip(places, 0, self.NUMBER - 1)
        self._lines += np.bincount(places, weights, self.NUMBER)
        self._right += np.bincount(places, right, self.NUMBER)
        shares = values if weights is None else values * weights
        self._chance += np.bincount(places, shares, self.NUMBER)

    @property
    def error(self) -> float | None:
        lines = self._lines.sum()
        return float(np.abs(self._right - self._chance).sum() / lines) if lines else None


class LabelScoreSums:
    """Sums over lines, by label: those that have it (`gold`), its predictions, and the right ones.

    A line counts with its weight, a label of it with that times its own.  `lines_with` and
    `times_predicted` count lines, whatever their weights.  `bins` has the best label of each line,
    whatever the threshold.
    """

    def __init__(self, labels: int) -> None:
        self.lines = self.skipped = 0
        self.lines_with, self.times_predicted = np.zeros((2, labels), np.int64)
        self.gold, self.predicted, self.right = np.zeros((3, labels))
        self.bins = Bins()

    def add(
        self,
        lines: Lines,
        order: NDArray[np.int32],
        chances: NDArray[np.float32],
        threshold: float | NDArray[np.float32],
    ) -> None:
        """Add lines and their best labels; labels below the threshold are not predicted."""
        number, known = len(self.gold), labelled(lines, len(self.gold))
        has, pairs, weights = known
        check_finite(chances[has, 0])
        self.lines += int(has.sum())
        self.skipped += int(len(has) - has.sum())
        chosen = (chances >= threshold) & has[:, None]
        guesses = (np.arange(len(has))[:, None] * number + order)[chosen]
        lines_with = np.bincount(pairs % number, minlength=number)
        predicted = np.bincount(guesses % number, minlength=number)
        self.lines_with += lines_with
        self.times_predicted += predicted
        is_right = np.isin(pairs, guesses)
        best = (np.arange(len(has)) * number + order[:, 0])[has]
        if weights is None:
            self.gold += lines_with
            self.predicted += predicted
            self.right += np.bincount(pairs[is_right] % number, minlength=number)
            self.bins.add(chances[has, 0], np.isin(best, pairs))
            return
        self.bins.add(chances[has, 0], known.weights_of(best), weights.lines[has])
        self.gold += np.bincount(pairs % number, weights.pairs, number)
        self.predicted += np.bincount(guesses % number, weights.lines[guesses // number], number)
        self.right += np.bincount(pairs[is_right] % number, weights.pairs[is_right], number)


class PredictionWeights(NamedTuple):
    """Weights of a prediction of each line, and of the labels (`LabelPairs.pairs`), multiplied by
    the weights of their lines.

    A prediction counts like its line, or like the largest of the line's labels if that is more:
    one of ``__label__a:3`` is right three times of three.
    """

    lines: Floats
    pairs: Floats


class LabelPairs(NamedTuple):
    """Which lines count, and their labels as ``line * number + label``, each once, in rising order;
    their weights, or None: all are 1.
    """

    has: NDArray[np.bool_]
    pairs: Counts
    weights: PredictionWeights | None

    @property
    def every_weight(self) -> PredictionWeights:
        """The weights, ones if there are none."""
        return self.weights or PredictionWeights(np.ones(len(self.has)), np.ones(len(self.pairs)))

    def weights_of(self, wanted: Counts) -> Floats:
        """Return the weights of some ``line * number + label``; 0 where a line lacks the label."""
        weights = np.zeros(len(wanted))
        if len(self.pairs):
            places = np.minimum(np.searchsorted(self.pairs, wanted), len(self.pairs) - 1)
            of_pairs = self.every_weight.pairs[places]
            weights = np.where(self.pairs[places] == wanted, of_pairs, 0.0)
        return weights


def labelled(lines: Lines, number: int) -> LabelPairs:
    """Return the labels of lines that have features, of `number` labels in all."""
    has = (np.diff(lines.feature_ptr) > 0) & (np.diff(lines.label_ptr) > 0)
    owner = np.repeat(np.arange(len(has)), np.diff(lines.label_ptr))
    keep = has[owner]
    # A label repeated in a line counts once, as a prediction does.
    pairs, first = np.unique(
        owner[keep] * number + lines.labels.astype(np.int64)[keep], return_index=True
    )
    if not len(lines.line_weights):
        return LabelPairs(has, pairs, None)
    of_lines = lines.line_weights.astype(np.float64)
    # Lines of which only the texts have weights have none by label.
    by_label = lines.label_weights if len(lines.label_weights) else np.ones(len(lines.labels))
    of_labels = np.nan_to_num(by_label.astype(np.float64), nan=1.0)[keep][first]
    largest = np.ones(len(has))
    np.maximum.at(largest, pairs // number, of_labels)
    weights = PredictionWeights(of_lines * largest, of_lines[pairs // number] * of_labels)
    return LabelPairs(has, pairs, weights)


class _Curve(NamedTuple):
    """Points of precision-recall curves, ascending by curve and probability.

    `right` and `all` are sums over the lines at or above the point's probability.
    """

    curve: Counts
    chance: NDArray[np.float32]
    right: Floats
    all: Floats


class _Ranked:
    """Sums up, for several curves, the lines at each probability of a line that has the label.

    A key is the curve's number and the bits of the probability, which are positive floats and so
    sort like the probabilities.
    """

    def __init__(self) -> None:
        self._parts: list[NDArray[np.uint64]] = []
        self._weights: list[Floats] = []
        self._keys = np.empty(0, np.uint64)
        self._right = self._all = np.empty(0)

    def has(self, keys: NDArray[np.uint64], weights: Floats) -> None:
        self._parts.append(keys)
        self._weights.append(weights)

    def sort(self) -> None:
        keys = np.concatenate([np.empty(0, np.uint64), *self._parts])
        self._keys, places = np.unique(keys, return_inverse=True)
        weights = np.concatenate([np.empty(0), *self._weights])
        self._right = np.bincount(places, weights, len(self._keys)).astype(np.float64)
        self._all, self._parts, self._weights = np.zeros(len(self._keys)), [], []

    def count(self, keys: NDArray[np.uint64], weights: Floats) -> None:
        place = np.searchsorted(self._keys, keys, side="right") - 1
        same = (place >= 0) & (self._keys[place] >> np.uint64(32) == keys >> np.uint64(32))
        self._all += np.bincount(place[same], weights[same], len(self._keys))

    def curve(self) -> _Curve:
        curve = (self._keys >> np.uint64(32)).astype(np.int64)
        chance = (self._keys & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.float32)
        last = np.searchsorted(curve, curve, side="right")  # after the last point of the curve
        sums = [np.append(np.cumsum(x[::-1])[::-1], 0) for x in (self._right, self._all)]
        right, every = (total[:-1] - total[last] for total in sums)
        return _Curve(curve, chance, right, every)


class Ranking:
    """Average precision of each label and of all together, and the precision at a recall.

    It needs the lines twice: first it stores the probabilities of the labels that lines have, then
    it counts how many other lines are at or above each.  Memory thus grows with the labels of the
    lines, not with lines x labels.
    """

    def __init__(self, labels: int) -> None:
        self._labels = labels
        self._each, self._together = _Ranked(), _Ranked()
        self._unweighted: _Ranked | None = None  # of each label, if lines have weights
        self._is_sorted = False

    def add(self, lines: Lines, chances: NDArray[np.float32]) -> None:
        """Add lines and the probabilities of all labels; call it for all lines before `again`."""
        truth = labelled(lines, self._labels)
        (has, pairs, _), weights = truth, truth.every_weight
        likely = np.nan_to_num(np.maximum(chances, 0), copy=False)
        if not self._is_sorted:
            of_lines, labels = np.divmod(pairs, self._labels)
            bits = _bits(likely[of_lines, labels])
            keys = labels.astype(np.uint64) << np.uint64(32) | bits
            if truth.weights is not None:
                self._unweighted = self._unweighted or _Ranked()
                self._unweighted.has(keys, np.ones(len(keys)))
            self._each.has(keys, weights.pairs)
            self._together.has(bits, weights.pairs)
        else:
            bits = _bits(likely[has])
            every = np.arange(self._labels, dtype=np.uint64) << np.uint64(32)
            of_pairs = np.repeat(weights.lines[has], self._labels)
            keys = (bits | every).ravel()
            if self._unweighted is not None:
                self._unweighted.count(keys, np.ones(len(keys)))
            self._each.count(keys, of_pairs)
            self._together.count(bits.ravel(), of_pairs)

    @property
    def _has_weights(self) -> bool:
        return self._unweighted is not None

    def again(self) -> None:
        """Begin the second pass: `add` gets the same lines once more."""
        for ranked in (self._each, self._together, self._unweighted):
            if ranked is not None:
                ranked.sort()
        self._is_sorted = True

    def thresholds(
        self, names: Sequence[bytes], *, precision: float = 0.0, recall: float = 0.0
    ) -> list[LabelThreshold]:
        """Return the best threshold of each label for a precision or a recall, most lines first.

        Of the thresholds that reach both the best has the highest value of the one that is 0.
        """
        curve, number = self._each.curve(), np.zeros(self._labels)
        np.maximum.at(number, curve.curve, curve.right)
        # The same points, as both have the same keys.
        counts = curve if self._unweighted is None else self._unweighted.curve()
        having = np.zeros(self._labels, np.int64)
        np.maximum.at(having, counts.curve, counts.right.astype(np.int64))
        points = np.full(self._labels, -1)
        reach = _reaching(curve, number, precision, recall, has_weights=self._has_weights)
        points[curve.curve[reach]] = reach  # of a label the last one, its best, counts
        entries = []
        for label in np.argsort(-having, kind="stable").tolist():
            point = points[label]
            reached: tuple[Any, ...] = (None, None, None, None)
            if point >= 0:
                right = float(curve.right[point])
                of_guesses, of_lines = right / float(curve.all[point]), right / float(number[label])
                chance, predicted = float(curve.chance[point]), int(counts.all[point])
                reached = (chance, of_guesses, of_lines, predicted)
            entries.append(LabelThreshold(names[label], int(having[label]), *reached))
        return entries

    def of_labels(self, recall: float | None) -> tuple[NDArray[np.float64], ...]:
        """Return average precision, precision at a recall and its threshold per label, or NaN."""
        return _read(self._each.curve(), self._labels, recall, has_weights=self._has_weights)

    def of_all(self, recall: float | None) -> tuple[NDArray[np.float64], ...]:
        """Return the same three figures for all labels together."""
        return _read(self._together.curve(), 1, recall, has_weights=self._has_weights)


def _bits(chances: NDArray[np.float32]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(chances).view(np.uint32).astype(np.uint64)


def _read(
    curve: _Curve, curves: int, recall: float | None, *, has_weights: bool
) -> tuple[NDArray[np.float64], ...]:
    number = np.zeros(curves)
    np.maximum.at(number, curve.curve, curve.right)
    goes_on = np.append(curve.curve[1:], -1) == curve.curve
    steps = curve.right - np.where(goes_on, np.append(curve.right[1:], 0), 0)
    precision = shares(curve.right, curve.all)
    weights = shares(steps * precision, number[curve.curve])
    average = np.where(number > 0, np.bincount(curve.curve, weights, curves), np.nan)
    best, threshold = np.full(curves, np.nan), np.full(curves, np.nan)
    if recall is not None:
        reach = _reaching(curve, number, 0.0, recall, has_weights=has_weights)
        best[curve.curve[reach]] = precision[reach]
        threshold[curve.curve[reach]] = curve.chance[reach]
    return average, best, threshold


def rounding_of(terms: int, *, has_weights: bool) -> float:
    """How much smaller a share of sums of so many weights may come out, relatively.

    Weights are float32: .1 is not ten times .01, though a share of lines is what it is.
    """
    eps = float(np.finfo(np.float32).eps + 2 * terms * np.finfo(np.float64).eps)
    return eps if has_weights else 0.0


def shares(part: Floats, whole: Floats) -> Floats:
    """Divide; 0 where the whole is 0, because all lines weigh 0."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def _reaching(
    curve: _Curve, number: Floats, precision: float, recall: float, *, has_weights: bool
) -> Counts:
    """Return the points that reach a precision and a recall, each curve's best one last.

    The best has the highest precision if that is 0, else the highest recall; among equal ones it
    has the highest threshold.
    """
    share_right = shares(curve.right, curve.all)
    share_found = shares(curve.right, number[curve.curve])
    rounded = 1 - rounding_of(len(curve.right), has_weights=has_weights)
    reach = np.flatnonzero((share_right >= precision * rounded) & (share_found >= recall * rounded))
    best = share_found if precision else share_right
    return reach[np.lexsort((curve.chance[reach], best[reach], curve.curve[reach]))]


def scores_of(
    names: Sequence[bytes],
    sums: LabelScoreSums,
    k: int,
    ranking: Ranking | None,
    recall: float | None,
) -> LabelScores:
    """Compute all scores from counts and, if there is one, a ranking."""
    each = of_all = None
    if ranking is not None and sums.lines:
        each, of_all = ranking.of_labels(recall), ranking.of_all(recall)
    labels = [
        LabelScore(
            names[i],
            int(sums.lines_with[i]),
            int(sums.times_predicted[i]),
            _share(sums.right[i], sums.predicted[i]),
            _share(sums.right[i], sums.gold[i]),
            _share(2 * sums.right[i], sums.predicted[i] + sums.gold[i]),
            *([_number(x[i]) for x in each] if each else ()),
        )
        for i in np.argsort(-sums.lines_with, kind="stable").tolist()
    ]
    right, gold, predicted = sums.right.sum(), sums.gold.sum(), sums.predicted.sum()
    together = [_number(x[0]) for x in of_all] if of_all else [None] * 3
    occurring = [score for score in labels if score.lines or score.predicted]
    return LabelScores(
        k,
        sums.lines,
        sums.skipped,
        _share(right, predicted),
        _share(right, gold),
        _share(2 * right, predicted + gold),
        MeanScores(
            len(occurring),
            _mean([score.precision or 0.0 for score in occurring]),
            _mean([score.recall or 0.0 for score in occurring]),
            _mean([score.f1 or 0.0 for score in occurring]),
            _mean([x for score in labels if (x := score.average_precision) is not None]),
        ),
        labels,
        together[0],
        recall,
        *together[1:],
    )


def _share(part: np.float64, whole: np.float64) -> float | None:
    return float(part / whole) if whole else None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _number(value: np.float64) -> float | None:
    return None if np.isnan(value) else float(value)
