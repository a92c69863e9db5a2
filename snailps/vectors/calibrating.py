"""Fits how a classifier's scores become probabilities and decisions, on held-out lines.

    MODEL.bin, labelled text -> scores -> temperature, shift -> thresholds -> MODEL.bin.json

A temperature divides all scores, so the best label stays the best.  Where lines have one label and
probabilities add up to 1, it is chosen such that the best label's probability says how often it is
right.  Where each label is judged by itself, a shift is added, because a temperature cannot move
the probability 1/2: of lines of one label both are a logistic regression of "the best label is
right", and others have a shift of their own, because the best label is right more often than
another one of the same score; of lines of several labels they are a regression over all pairs of a
line and a label, with two shifts only where one would raise the error of best labels.  A threshold
is the least probability with which a label is predicted, chosen for a precision or a recall.

References
----------
Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", 2017.
Platt, "Probabilistic Outputs for Support Vector Machines", 1999: the regression and its targets.
Lin, Lin, Weng, "A Note on Platt's Probabilistic Outputs for Support Vector Machines", 2007.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from snailps.dataclass import dataclass, replace
from snailps.errors import DataError, ModelFileError, shown_bytes
from snailps.vectors.calibration import (
    TEMPERATURE_LEAST,
    Calibration,
    refuse_foreign,
    write_calibration,
)
from snailps.vectors.fasttext_bin import BinModel
from snailps.vectors.files import open_bin
from snailps.vectors.label_prediction import LabelModel
from snailps.vectors.label_scores import Bins, LabelThreshold, check_finite, labelled
from snailps.vectors.labelled_lines import (
    LabelledLines,
    labelled_lines,
    warn_of_weights,
    weights_hint,
)
from snailps.vectors.words import to_text

log = logging.getLogger(__name__)

Floats: TypeAlias = NDArray[np.float64]
Path_: TypeAlias = "str | os.PathLike[str]"

LINES_MAX = 1 << 17
"""Lines of which a temperature is fitted, at most; of more every second, fourth, ... one."""
SCORES_MAX = 1 << 24
"""Scores of lines from which a temperature is fitted, at most."""
LINES_MIN = 1 << 11
"""Lines that are taken even if they have more scores."""
_TOGETHER = 1 << 22
"""Scores computed at a time."""
LEAST, MOST = 1 / 64, 64.0
"""Temperatures that are tried."""
_COARSE, _FINE = 25, 24
_NEWTON = 100
"""Most steps of the regression."""
_SURE = 1e-12
"""Least probability of a mistake that a line counts with: one mistake must not decide alone."""
_HALVINGS = 60
_EVENTS = 20
"""Least number of right lines, and of wrong ones, for a shift: ten for each number that is fitted.
"""
_LINES_LEAST = 20
"""Least number of lines for any calibration: of 3 the temperature was 1 or 64, as they fell."""
_SEVERAL = 0.01
"""Share of lines of several labels from which each label is judged by itself."""
_BINS = 1 << 14
"""Pairs of a line and a label are summed up by so many equal parts of the range of scores."""
_ODDS_LEAST = 1e-30
"""Least share of the other labels: logarithms of odds stay finite."""


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """What `calibrate` has fitted.

    Attributes
    ----------
    path : str
        The file beside the model's; empty: nothing was written.
    lines : int
        Lines with a known label and a known word or end of line.
    skipped : int
        Other lines.
    sampled : int
        Lines by which the temperature was chosen, and whose errors are given: all, or every
        second, fourth, ... where there are very many.
    temperature : float
        1 where a calibration would have raised the error.
    calibration_error_before, calibration_error_after : float
        Expected calibration error on the sampled lines, without and with the calibration.
    thresholds : list of LabelThreshold
        Of each label, most lines first; empty without a wanted precision or recall.
    shift : float
        Added to the divided scores where each label is judged by itself; else 0.
    apart : bool
        Whether the probabilities of a softmax no longer add up to 1, because lines have several
        labels.
    """

    path: str
    lines: int
    skipped: int
    sampled: int
    temperature: float
    calibration_error_before: float
    calibration_error_after: float
    thresholds: list[LabelThreshold]
    shift: float = 0.0
    apart: bool = False


def calibrate(
    model: Path_,
    text: Any,
    *,
    precision: float | None = None,
    recall: float | None = None,
    column: str = "",
    label_column: str = "",
    weight_column: str = "",
    soft_labels: bool = False,
) -> CalibrationReport:
    """Fit a classifier's probabilities and thresholds of its labels; keep both beside its file.

    `LabelModel`, `snailps.load`, the commands and `snailps.fasttext` read them with the model; the
    model's file does not change.

    Parameters
    ----------
    model : path
        Classifier: a .bin or .ftz of snailps or fastText, with the loss softmax, ova or ns.
    text : path, pair of texts and labels, table, or list of str
        Labelled lines that the model was not trained on: a file, folder, glob or URL in the format
        of its training; texts and their labels; a table; or lines that begin with their labels.  A
        label may be a list of labels, or a mapping from labels to weights.
    precision : float, 0 to 1, optional
        Find for each label the threshold with the best recall whose precision is at least this,
        which is above 0.
    recall : float, 0 to 1, optional
        Find for each label the threshold with the best precision whose recall is at least this.
    column, label_column, weight_column : str
        Columns of texts, labels and weights of texts, where `text` is a table.
    soft_labels : bool
        Whether labels in lines may have weights, as in ``__label__a:0.75``.

    Returns
    -------
    CalibrationReport

    Raises
    ------
    DataError
        A parameter is out of range; both `precision` and `recall`; no line has a label of the
        model.
    ModelFileError
        The model is missing, damaged, no classifier or of hierarchical softmax; or the file cannot
        be written, or is there and no calibration.

    Notes
    -----
    The temperature minimises the log loss of "the best label is right"; with ova and ns also a
    shift, and other labels have a shift of their own. Where more than one line in a hundred has
    several labels, temperature and shift minimise the log loss of all pairs of a line and a
    label; with softmax probabilities then no longer add up to 1. The order of a line's labels
    stays. As Platt's, targets are a little above 0 and below 1: of 30 lines that are all right
    the best label gets 31/32. Expected calibration error is the mean, over lines, of the distance
    between the share of right ones and the mean probability, in 15 equally wide bins of the best
    label's probability. If it would rise, a warning says so, and nothing is written; thresholds
    are then of the probabilities as they were.

    A label that is in no line, or never reaches the precision, gets no threshold and is not
    predicted.

    Examples
    --------
    >>> report = snailps.calibrate("sections.bin", "held-out.txt", precision=0.9)  # doctest: +SKIP
    >>> report.temperature  # doctest: +SKIP
    2.71
    """
    wanted = {
        name: share
        for name, share in (("precision", precision), ("recall", recall))
        if share is not None
    }
    for name, share in wanted.items():
        if not 0 < share <= 1:
            raise DataError(f"{name}: expected a share, above 0 to 1, got {share!r:.60}")
    if len(wanted) > 1:
        raise DataError("expected a precision or a recall for the thresholds, got both")
    columns = {"column": column, "label_column": label_column, "weight_column": weight_column}

    def lines_for(plain: LabelModel) -> LabelledLines:
        return labelled_lines(plain, text, **columns, soft_labels=soft_labels)

    return calibrate_on(model, lines_for, wanted)


def calibrate_on(
    model: Path_,
    lines_for: Callable[[LabelModel], LabelledLines],
    wanted: Mapping[str, float] = MappingProxyType({}),
) -> CalibrationReport:
    """Do what `calibrate` does, on the lines ``lines_for(model)``; `wanted` is a precision or a
    recall."""
    refuse_foreign(model)
    opened = open_bin(model, "a classifier (a .bin)", calibrated=False)
    plain = LabelModel.of_model(opened, model)
    if plain.loss == "hs":
        raise ModelFileError(
            f"{model}: expected the loss softmax, ova or ns, got hs: probabilities of hierarchical "
            "softmax are products along a tree, which a temperature does not calibrate"
        )
    lines = lines_for(plain)
    sample = _LabelledSample.of(lines.model, opened, lines.texts())
    if not sample.weights.any():
        more = ", and a weight above 0" if sample.lines else ""
        raise DataError(
            f"{lines.where}: none of its {sample.lines + sample.skipped:,} lines has both a label "
            f"and a word that the model knows{more}; its labels look like "
            f"{shown_bytes(plain.labels[0])}"
            f"{weights_hint(lines)}"
        )
    warn_of_weights(lines)
    fitted = sample.calibration() if sample.is_enough else Calibration()
    errors = [sample.error(by) for by in (Calibration(), fitted)]
    if not sample.is_enough:
        log.warning(
            "%s: expected at least %d labelled lines for a calibration, better some hundreds, "
            "got %d: probabilities stay as trained. Give more lines, or leave it out",
            lines.where, _LINES_LEAST, sample.lines,
        )  # fmt: skip
    elif not errors[1] <= errors[0]:
        log.warning(
            "%s: a calibration would raise the calibration error on its own %s lines from %.4f to "
            "%.4f: probabilities stay as trained. %s, or leave it out",
            lines.where, f"{len(sample.weights):,}", *errors, sample.advice,
        )  # fmt: skip
        fitted, errors[1] = Calibration(), errors[0]
    thresholds: list[LabelThreshold] = []
    if wanted:
        calibrated = LabelModel.of_model(replace(opened, calibration=fitted), model)
        thresholds = calibrated.reading_like(lines.model).thresholds(lines.texts, **wanted)
    calibration = replace(
        fitted,
        thresholds={to_text(entry.label): entry.threshold for entry in thresholds},
        about={
            "lines": sample.lines,
            "sampled": len(sample.weights),
            "expected_calibration_error": {"before": errors[0], "after": errors[1]},
            **({"thresholds_for": wanted} if wanted else {}),
        },
    )
    is_new = fitted.changes_probabilities or thresholds
    return CalibrationReport(
        path=str(write_calibration(model, calibration)) if is_new else "",
        lines=sample.lines,
        skipped=sample.skipped,
        sampled=len(sample.weights),
        temperature=fitted.temperature,
        calibration_error_before=errors[0],
        calibration_error_after=errors[1],
        thresholds=thresholds,
        shift=fitted.shift,
        apart=fitted.apart,
    )


class _LineLabels(NamedTuple):
    """Labels that lines have: number of the line, label, weight; by rising numbers."""

    lines: NDArray[np.int64]
    labels: NDArray[np.int64]
    weights: NDArray[np.float64]


class _LabelledSample(NamedTuple):
    """Labelled lines, or some of them: `hidden` float32[n, dim], the best label and its score,
    weight of the line, weight with which the best label is right; `outputs` float32[labels, dim].
    """

    lines: int
    skipped: int
    is_softmax: bool
    has_several: bool
    hidden: NDArray[np.float32]
    best: NDArray[np.int64]
    score: NDArray[np.float32]
    weights: NDArray[np.float64]
    right: NDArray[np.float64]
    pairs: _LineLabels
    outputs: NDArray[np.float32]

    @classmethod
    def of(cls, plain: LabelModel, model: BinModel, texts: Iterable[bytes]) -> _LabelledSample:
        outputs = np.array(model.output[:], np.float32)
        labels = len(outputs)
        most = min(LINES_MAX, max(LINES_MIN, SCORES_MAX // labels))
        parts, pairs = list[Any](), list[Any]()
        size, step, seen, skipped, several = 0, 1, 0, 0, 0
        for lines, (best, hidden) in plain.best_and_hidden(texts):
            truth = labelled(lines, labels)
            skipped += int(len(truth.has) - truth.has.sum())
            numbers = np.flatnonzero(truth.has)
            places = seen + np.cumsum(truth.has) - 1
            rows = numbers[places[numbers] % step == 0]
            seen += len(numbers)
            score = np.einsum("ij,ij->i", hidden[rows], outputs[best[rows]])
            check_finite(score)
            of_lines, of_pairs = truth.every_weight
            owners, of_labels = np.divmod(truth.pairs, labels)
            several += int((np.bincount(owners, of_pairs, len(of_lines)) > 1.01 * of_lines).sum())
            right = truth.weights_of(rows * labels + best[rows])
            parts.append((hidden[rows], best[rows].astype(np.int64), score, of_lines[rows], right))
            pairs.append((places[owners], of_labels, of_pairs))
            size += len(rows)
            while size > most:  # every second one of what there is, and of what comes
                joined = [np.concatenate(part)[::2] for part in zip(*parts, strict=True)]
                parts, step, size = [joined], 2 * step, len(joined[0])
                pairs = [_of_every(step, pairs)]
        if not parts:
            parts = [(np.empty((0, outputs.shape[1]), np.float32), *np.empty((4, 0)))]
            pairs = [np.empty((3, 0))]
        hidden, numbers, score, weights, right = (
            np.concatenate(part) for part in zip(*parts, strict=True)
        )
        places, of_labels, of_pairs = _of_every(step, pairs)
        truth_pairs = _LineLabels(places // step, of_labels, of_pairs)
        has_several = several > _SEVERAL * seen
        return cls(
            seen, skipped, plain.loss == "softmax", has_several, hidden, numbers, score, weights,
            right, truth_pairs, outputs,
        )  # fmt: skip

    @property
    def is_enough(self) -> bool:
        """Whether a temperature can be told from these lines; one of weight n counts as n."""
        return float(self.weights.sum()) * self._lines_a_weight > _LINES_LEAST - 0.5

    @property
    def _lines_a_weight(self) -> float:
        return max(1.0, float(np.count_nonzero(self.weights) / self.weights.sum()))

    def confidence(self, by: Calibration) -> NDArray[np.float64]:
        """Return the probability of the best label of each line, float64[n]."""
        if by.apart or not self.is_softmax:
            scores = self._best_odds() / by.temperature + by.shift
            with np.errstate(over="ignore"):
                chances: NDArray[np.float64] = 1 / (1 + np.exp(-scores))
            return chances
        with np.errstate(over="ignore"):  # of huge scores, whose labels are impossible
            parts = [
                np.exp((scores - top[:, None]) * np.float32(1 / by.temperature)).sum(1, np.float64)
                for scores, top in self._scores()
            ]
        sums: NDArray[np.float64] = np.concatenate(parts)
        return 1 / np.maximum(sums, 1)

    def _best_odds(self) -> Floats:
        if not self.is_softmax:
            return self.score.astype(np.float64)
        rows = [(odds, best) for odds, best, _ in self._odds()]
        return np.concatenate([odds[np.arange(len(odds)), best] for odds, best in rows])

    def _scores(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        for part in self._parts():
            yield self.hidden[part] @ self.outputs.T, self.score[part]

    def _parts(self) -> Iterator[slice]:
        step = max(1, _TOGETHER // len(self.outputs))
        for first in range(0, len(self.hidden), step):
            yield slice(first, min(first + step, len(self.hidden)))

    def _odds(self) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64], slice]]:
        """Yield the logarithms of the odds of all labels, and the best labels, of some lines."""
        for part, (scores, top) in zip(self._parts(), self._scores(), strict=True):
            best, rows = self.best[part], np.arange(len(scores))
            odds = scores.astype(np.float64)
            if self.is_softmax:
                shares = np.exp(odds - top[:, None])
                others = shares.sum(1, keepdims=True) - shares
                shares[rows, best] = 0
                others[rows, best] = shares.sum(1)
                odds -= top[:, None] + np.log(np.maximum(others, _ODDS_LEAST))
            yield odds, best, part

    def loss(self, temperature: float) -> float:
        """Return the log loss of "the best label is right"."""
        sure = np.clip(self.confidence(Calibration(temperature)), _SURE, 1 - _SURE)
        yes, no = _targets(self.right, self.weights, self._lines_a_weight)
        return -float((np.log(sure) * yes + np.log(1 - sure) * no).sum() / self.weights.sum())

    def error(self, by: Calibration) -> float:
        """Return the expected calibration error."""
        bins = Bins()
        bins.add(self.confidence(by), self.right, self.weights)
        error = bins.error
        assert error is not None
        return error

    @property
    def advice(self) -> str:
        """What makes a calibration better where this sample's raises the error."""
        if self.has_several and self.is_softmax:
            return (
                "Lines have several labels, among which softmax shares one probability: what fits "
                "all of them does not fit the best one. Train with loss ova, which gives each "
                "label a probability of its own"
            )
        return "Give more lines"

    def calibration(self) -> Calibration:
        """Return what has the least loss."""
        lines, least = self._lines_a_weight, TEMPERATURE_LEAST
        if self.has_several:
            slope, shift = _logistic(*self._sums(), lines)
            if not least <= slope <= 1 / least:
                return Calibration()  # labels that lines have do not score higher than others
            together = Calibration(1 / slope, {}, {}, shift, shift, apart=self.is_softmax)
            of_best = _shift(slope, self._best_odds(), self.right, self.weights, lines)
            of_others = _shift(slope, *self._sums(without_best=True), lines)
            # Two shifts change the order of pairs of different lines: only where one is no good.
            if of_best < of_others or self.error(together) <= self.error(Calibration()):
                return together
            return replace(together, shift=of_best, shift_of_others=of_others)
        right, every = float(self.right.sum()) * lines, float(self.weights.sum()) * lines
        if not self.is_softmax and min(right, every - right) >= _EVENTS:
            slope, shift = _logistic(self._best_odds(), self.right, self.weights, lines)
            if least <= slope <= 1 / least:
                of_others = shift
                if len(self.outputs) > 1:  # no higher: the order of a line's labels stays
                    of_others = min(shift, _shift(slope, *self._sums(without_best=True), lines))
                return Calibration(1 / slope, {}, {}, shift, of_others)
        return Calibration(self._temperature())

    def _temperature(self) -> float:
        """Return the temperature with the least loss: the best of a few, then a golden section."""
        tried = np.geomspace(LEAST, MOST, _COARSE)
        best = int(np.argmin([self.loss(float(value)) for value in tried]))
        low, high = (math.log(tried[min(max(at, 0), _COARSE - 1)]) for at in (best - 1, best + 1))
        return math.exp(_least(lambda x: self.loss(math.exp(x)), low, high))

    def _sums(self, *, without_best: bool = False) -> tuple[Floats, Floats, Floats]:
        """Return pairs of a line and a label, summed up where their odds are about the same: mean
        odds, weight of pairs where the line has the label, and of all.
        """
        edges = [(odds.min(), odds.max()) for odds, _, _ in self._odds()]
        low, high = min(least for least, _ in edges), max(most for _, most in edges)
        width = max(high - low, 1e-30) / _BINS
        odds_sum, right, every = np.zeros((3, _BINS))
        labels = len(self.outputs)
        for odds, best, part in self._odds():
            places = np.minimum((odds - low) / width, _BINS - 1).astype(np.int64)
            weights = np.repeat(self.weights[part], labels)
            if without_best:
                weights[np.arange(len(odds)) * labels + best] = 0
            every += np.bincount(places.ravel(), weights, _BINS)
            odds_sum += np.bincount(places.ravel(), weights * odds.ravel(), _BINS)
            of_part = slice(*np.searchsorted(self.pairs.lines, (part.start, part.stop)))
            at = self.pairs.lines[of_part] - part.start, self.pairs.labels[of_part]
            of_pairs = self.pairs.weights[of_part]
            if without_best:
                of_pairs = np.where(best[at[0]] == at[1], 0, of_pairs)
            right += np.bincount(places[at], of_pairs, _BINS)
        met = every > 0
        return odds_sum[met] / every[met], np.minimum(right, every)[met], every[met]


def _of_every(step: int, pairs: list[Any]) -> tuple[NDArray[Any], ...]:
    """Join the pairs of every second, fourth, ... line."""
    joined = [np.concatenate(part) for part in zip(*pairs, strict=True)]
    chosen = joined[0] % step == 0
    return tuple(
        part[chosen].astype(kind)
        for part, kind in zip(joined, (np.int64, np.int64, np.float64), strict=True)
    )


def _targets(right: Floats, every: Floats, lines_a_weight: float) -> tuple[Floats, Floats]:
    """Return weights of yes and no by Platt's targets: of n that are right (n + 1) / (n + 2), of
    others 1 / (n + 2), so that a few lines that are all right say nothing is certain.

    A line of weight n counts as n lines; but weights that are all small do not make lines fewer.
    """
    wrong = every - right
    yes = _target(float(right.sum()) * lines_a_weight)
    no = 1 - _target(float(wrong.sum()) * lines_a_weight)
    return right * yes + wrong * no, right * (1 - yes) + wrong * (1 - no)


def _target(number: float) -> float:
    return (number + 1) / (number + 2)


def _logistic(
    scores: Floats, right: Floats, every: Floats, lines_a_weight: float
) -> tuple[float, float]:
    """Return slope and shift of a logistic regression, by Newton's method with halved steps."""
    yes, no = _targets(right, every, lines_a_weight)
    weights = yes + no
    centre, scale = float(np.average(scores, weights=weights)), 1.0
    scale = float(np.sqrt(np.average((scores - centre) ** 2, weights=weights))) or 1.0
    x = (scores - centre) / scale
    at = np.array([1.0, math.log(yes.sum() / no.sum())])

    def loss(values: Floats) -> float:
        z = values[0] * x + values[1]
        return float((np.logaddexp(0, -z) * yes + np.logaddexp(0, z) * no).sum())

    now = loss(at)
    for _ in range(_NEWTON):
        chance = 1 / (1 + np.exp(-np.clip(at[0] * x + at[1], -500, 500)))
        slopes, curves = weights * chance - yes, weights * chance * (1 - chance)
        gradient = np.array([slopes @ x, slopes.sum()])
        mixed = curves @ x
        bend = np.array([[curves @ (x * x), mixed], [mixed, curves.sum()]])
        step = np.linalg.solve(bend + 1e-12 * np.trace(bend) * np.eye(2) + 1e-300, gradient)
        size = 1.0
        while (then := loss(at - size * step)) > now and size > 1e-10:
            size /= 2
        if not then < now:
            break
        at, now = at - size * step, then
    slope = float(at[0]) / scale
    return slope, float(at[1]) - slope * centre


def _shift(slope: float, scores: Floats, right: Floats, every: Floats, lines: float) -> float:
    """Return the shift of a logistic regression whose slope is known, by halving."""
    yes, no = _targets(right, every, lines)
    scores, weights = slope * scores, yes + no
    # Between these all probabilities are below, and above, the share that is wanted.
    middle = math.log(yes.sum() / no.sum())
    low, high = middle - float(scores.max()), middle - float(scores.min())
    for _ in range(_HALVINGS):
        at = (low + high) / 2
        is_low = (weights / (1 + np.exp(-np.clip(scores + at, -500, 500)))).sum() < yes.sum()
        low, high = (at, high) if is_low else (low, at)
    return (low + high) / 2


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function is least between two places, by golden section."""
    share = (math.sqrt(5) - 1) / 2
    left, right = high - share * (high - low), low + share * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(_FINE):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - share * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + share * (high - low)
            at_right = function(right)
    return (low + high) / 2
