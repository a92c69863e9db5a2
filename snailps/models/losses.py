"""The losses of models of examples: `LOSSES`, by the names that the setting `loss` takes.

    scores, labels -> loss, gradient     (`slopes`, of networks; the kernels have theirs, by `code`)
    scores -> `link` -> predictions;  labels, scores -> `judge` -> metrics

To add a loss, add an entry to `LOSSES`, and its kernel (docs/design/walk-model.md).  Pure functions
of arrays: no settings, files or rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data.encoding import Encoding
from snailps.dataclass import dataclass, replace
from snailps.models.sparse.metrics import (
    Classes,
    Counts,
    Doubles,
    Judge,
    Real,
    YesNo,
    expected,
    log_sums,
    poisson_deviance,
    sigmoid,
)

Floats = NDArray[np.float32]
CURVATURE = 0.2
"""Curvature of an example's log loss, P(yes) P(no), for typical predictions."""
STEEP = np.float32(7)
"""SNAIL_STEEP of the kernels: beyond this score the loss of counts continues as a straight line."""


def _slopes_of_logistic(scores: Floats, labels: Floats) -> tuple[Floats, Floats]:
    yes = labels > 0
    margin = np.where(yes, scores[:, 0], -scores[:, 0])
    losses = np.logaddexp(np.float32(0), -margin)
    chance_of_other = np.exp(-np.logaddexp(np.float32(0), margin))
    return losses, np.where(yes, -chance_of_other, chance_of_other)[:, None]


def _slopes_of_squared(scores: Floats, labels: Floats) -> tuple[Floats, Floats]:
    wrong = scores - labels[:, None]
    return (0.5 * wrong[:, 0] ** 2), wrong


def _slopes_of_multinomial(scores: Floats, labels: Floats) -> tuple[Floats, Floats]:
    own = labels.astype(np.int64)
    shifted = scores - scores.max(axis=1, keepdims=True)
    chances = np.exp(shifted)
    sums = chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(own))
    losses = np.log(sums[:, 0]) - shifted[rows, own]
    chances /= sums
    chances[rows, own] -= 1
    return losses, chances


def _slopes_of_poisson(scores: Floats, labels: Floats) -> tuple[Floats, Floats]:
    near = np.minimum(scores, STEEP + np.log(np.maximum(labels, 1))[:, None])
    means = np.exp(near)
    slopes = means - labels[:, None]
    return poisson_deviance(labels, means[:, 0]) / 2 + (slopes * (scores - near))[:, 0], slopes


def _by_their_mean(
    encoding: Encoding, targets: NDArray[Any], weights: NDArray[Any], has_constant: bool
) -> Encoding:
    """Use the mean as deviation: a score of 0, from which the bias starts, predicts the mean."""
    counts, of = np.maximum(targets, 0).astype(np.float64), weights if len(weights) else None
    mean = float(np.average(counts, weights=of))
    if not has_constant or mean == 0:
        return encoding
    constant = float(np.average(poisson_deviance(counts, np.array(mean)), weights=of)) / 2
    return replace(encoding, deviation=mean, constant=constant)


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss: what depends on it outside the kernels.

    The fields from `label_min` on matter only if labels are numbers (`classes` 0).  Their defaults
    are right for targets that are centred and scaled; `curvature`'s is right for classes.
    """

    code: int  # its number in the kernels
    classes: int | None  # of labels; 0: labels are numbers; None: as many as the setting says
    judge: Callable[[], Judge]
    link: Callable[[Doubles], Doubles]  # scores (n, outputs) -> predictions
    slopes: Callable[[Floats, Floats], tuple[Floats, Floats]]  # -> losses (n,), dloss/dscores
    solver: str  # solver_type in a LIBLINEAR file; empty: LIBLINEAR has no such model
    # (mean squared gradient or None, mean label) -> mean second derivative of the loss by the score
    curvature: Callable[[float | None, float], float] = lambda seen, mean: (
        CURVATURE if seen is None else seen
    )
    constant_loss: Callable[[Encoding], float] = lambda encoding: encoding.constant
    label_min: float = -np.inf  # a smaller label is refused
    degree: int = 0  # labels d times as large have d ** degree times the loss
    encoded: Callable[..., Encoding] = Encoding.centred  # labels -> how they are scaled to train
    # -> (a, b) such that a x score + b is the score for labels as they were written
    restored: Callable[[Encoding], tuple[float, float]] = lambda by: (by.deviation, by.centre)
    # (labels, predictions) -> the error of each example, from which R^2 or D^2 is computed
    deviance: Callable[[Doubles, Doubles], Doubles] = lambda labels, said: (labels - said) ** 2


LOSSES: Mapping[str, Loss] = {
    "logistic": Loss(
        0, 2, YesNo, lambda scores: sigmoid(scores[:, 0]), _slopes_of_logistic, "L2R_LR"
    ),
    "squared": Loss(
        1, 0, Real, lambda scores: scores[:, 0], _slopes_of_squared, "L2R_L2LOSS_SVR",
        curvature=lambda seen, mean: 1.0,
        degree=2,
        constant_loss=lambda by: 0.0 if by.is_plain_target else by.deviation**2 / 2,
    ),
    "multinomial": Loss(
        2, None, Classes, lambda scores: np.exp(scores - log_sums(scores)[:, None]),
        _slopes_of_multinomial,
        "MCSVM_CS",  # whose prediction is the class of the highest score
    ),
    "poisson": Loss(
        3, 0, Counts, lambda scores: expected(scores[:, 0]), _slopes_of_poisson, "",
        curvature=lambda seen, mean: mean,
        label_min=0.0,
        degree=1,
        encoded=_by_their_mean,
        restored=lambda by: (1.0, math.log(by.deviation)),
        deviance=poisson_deviance,
    ),
}  # fmt: skip
