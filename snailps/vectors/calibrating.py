"""Fits how a classifier's scores become probabilities and decisions, on held-out lines.

    MODEL.bin, labelled text -> scores of lines -> temperature -> thresholds -> MODEL.bin.json

A temperature divides all scores, so the best label stays the best.  It is chosen such that the best
label's probability says how often it is right.  A threshold is the least probability with which a
label is predicted, chosen for a precision or a recall.

References
----------
Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", 2017.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from snailps.dataclass import dataclass, replace
from snailps.errors import DataError, ModelFileError, shown_bytes
from snailps.vectors.calibration import Calibration, refuse_foreign, write_calibration
from snailps.vectors.fasttext_bin import BinModel
from snailps.vectors.files import open_bin
from snailps.vectors.label_prediction import LabelModel
from snailps.vectors.label_scores import Bins, LabelThreshold, check_finite, labelled
from snailps.vectors.labelled_lines import LabelledLines, labelled_lines, weights_hint
from snailps.vectors.words import to_text

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
_SURE = 1e-12
"""Least probability of a mistake that a line counts with: one mistake must not decide alone."""


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """What `calibrate` has fitted.

    Attributes
    ----------
    path : str
        The file beside the model's.
    lines : int
        Lines with a known label and a known word or end of line.
    skipped : int
        Other lines.
    sampled : int
        Lines by which the temperature was chosen, and whose errors are given: all, or every
        second, fourth, ... where there are very many.
    temperature : float
    calibration_error_before, calibration_error_after : float
        Expected calibration error on the sampled lines, without and with the temperature.
    thresholds : list of LabelThreshold
        Of each label, most lines first; empty without a wanted precision or recall.
    """

    path: str
    lines: int
    skipped: int
    sampled: int
    temperature: float
    calibration_error_before: float
    calibration_error_after: float
    thresholds: list[LabelThreshold]


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
    """Fit a classifier's temperature, and thresholds of its labels, and keep them beside its file.

    `LabelModel`, `snailps.load`, the commands and `snailps.fasttext` read them with the model; the
    model's file does not change.

    Parameters
    ----------
    model : path
        A .bin or .ftz of snailps or fastText, with the loss softmax, ova or ns.
    text : path, pair of texts and labels, table, or list of str
        Labelled lines that the model was not trained on: a file, folder, glob or URL in the format
        of its training; texts and their labels; a table; or lines that begin with their labels.  A
        label may be a list of labels, or a mapping from labels to weights.
    precision : float, optional
        Find for each label the threshold with the best recall whose precision is at least this,
        above 0 to 1.
    recall : float, optional
        Find the threshold with the best precision whose recall is at least this.
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
    The temperature minimises the log loss of "the best label is right".  Expected calibration error
    is the mean, over lines, of the distance between the share of right ones and the mean
    probability, in 15 equally wide bins of the best label's probability.

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
    sample = _Sample.of(lines.model, opened, lines.texts())
    if not sample.weights.any():
        more = ", and a weight above 0" if sample.lines else ""
        raise DataError(
            f"{lines.where}: none of its {sample.lines + sample.skipped:,} lines has both a label "
            f"and a word that the model knows{more}; its labels look like "
            f"{shown_bytes(plain.labels[0])}"
            f"{weights_hint(lines)}"
        )
    fitted = sample.temperature()
    errors = [sample.error(temperature) for temperature in (1.0, fitted)]
    calibration = Calibration(fitted)
    thresholds: list[LabelThreshold] = []
    if wanted:
        calibrated = LabelModel.of_model(replace(opened, calibration=calibration), model)
        thresholds = calibrated.reading_like(lines.model).thresholds(lines.texts, **wanted)
    calibration = Calibration(
        fitted,
        {to_text(entry.label): entry.threshold for entry in thresholds},
        {
            "lines": sample.lines,
            "sampled": len(sample.weights),
            "expected_calibration_error": {"before": errors[0], "after": errors[1]},
            **({"thresholds_for": wanted} if wanted else {}),
        },
    )
    path = write_calibration(model, calibration)
    return CalibrationReport(
        path=str(path),
        lines=sample.lines,
        skipped=sample.skipped,
        sampled=len(sample.weights),
        temperature=fitted,
        calibration_error_before=errors[0],
        calibration_error_after=errors[1],
        thresholds=thresholds,
    )


class _Sample(NamedTuple):
    """Labelled lines, or some of them: `hidden` float32[n, dim], score of the best label, weight of
    the line, share of it with which the best label is right; `outputs` float32[labels, dim]."""

    lines: int
    skipped: int
    is_softmax: bool
    hidden: NDArray[np.float32]
    best: NDArray[np.float32]
    weights: NDArray[np.float64]
    right: NDArray[np.float64]
    outputs: NDArray[np.float32]

    @classmethod
    def of(cls, plain: LabelModel, model: BinModel, texts: Iterable[bytes]) -> _Sample:
        outputs = np.array(model.output[:], np.float32)
        labels = len(outputs)
        most = min(LINES_MAX, max(LINES_MIN, SCORES_MAX // labels))
        parts, size, step, seen, skipped = list[Any](), 0, 1, 0, 0
        for lines, (best, hidden) in plain.best_and_hidden(texts):
            truth = labelled(lines, labels)
            skipped += int(len(truth.has) - truth.has.sum())
            numbers = np.flatnonzero(truth.has)
            rows = numbers[(seen + np.arange(len(numbers))) % step == 0]
            seen += len(numbers)
            score = np.einsum("ij,ij->i", hidden[rows], outputs[best[rows]])
            check_finite(score)
            weights = truth.every_weight.lines[rows]
            right = truth.weights_of(rows * labels + best[rows])
            parts.append((hidden[rows], score, weights, right))
            size += len(rows)
            while size > most:  # every second one of what there is, and of what comes
                joined = [np.concatenate(part)[::2] for part in zip(*parts, strict=True)]
                parts, step, size = [joined], 2 * step, len(joined[0])
        if not parts:
            parts = [(np.empty((0, outputs.shape[1]), np.float32), *np.empty((3, 0)))]
        hidden, score, weight, right = (np.concatenate(part) for part in zip(*parts, strict=True))
        return cls(seen, skipped, plain.loss == "softmax", hidden, score, weight, right, outputs)

    def confidence(self, temperature: float) -> NDArray[np.float64]:
        """Return the probability of the best label of each line, float64[n]."""
        if not self.is_softmax:
            scores: NDArray[np.float64] = self.best.astype(np.float64)
            return 1 / (1 + np.exp(-scores / temperature))
        with np.errstate(over="ignore"):  # of huge scores, whose labels are impossible
            parts = [
                np.exp((scores - top[:, None]) * np.float32(1 / temperature)).sum(1, np.float64)
                for scores, top in self._scores()
            ]
        sums: NDArray[np.float64] = np.concatenate(parts)
        return 1 / np.maximum(sums, 1)

    def _scores(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        step = max(1, _TOGETHER // len(self.outputs))
        for first in range(0, len(self.hidden), step):
            part = slice(first, first + step)
            yield self.hidden[part] @ self.outputs.T, self.best[part]

    def loss(self, temperature: float) -> float:
        """Return the log loss of "the best label is right"."""
        sure = np.clip(self.confidence(temperature), _SURE, 1 - _SURE)
        wrong = self.weights - self.right
        losses = np.log(sure) * self.right + np.log(1 - sure) * wrong
        return -float(losses.sum() / self.weights.sum())

    def error(self, temperature: float) -> float:
        """Return the expected calibration error."""
        bins = Bins()
        bins.add(self.confidence(temperature), self.right, self.weights)
        error = bins.error
        assert error is not None
        return error

    def temperature(self) -> float:
        """Return the temperature with the least loss: the best of a few, then a golden section."""
        tried = np.geomspace(LEAST, MOST, _COARSE)
        best = int(np.argmin([self.loss(float(value)) for value in tried]))
        low, high = (math.log(tried[min(max(at, 0), _COARSE - 1)]) for at in (best - 1, best + 1))
        return math.exp(_least(lambda x: self.loss(math.exp(x)), low, high))


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
