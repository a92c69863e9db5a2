"""Quality of predictions: AUC, log loss, calibration, RMSE, deviance, accuracy.

    labels, scores, weights, a batch at a time -> Judge.add ... -> Judge.figures -> plain numbers

An example of weight w counts as w examples; one of weight 0 is left out.
Pure functions of arrays in float64; no files, no rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from snailps.models.stopping import Figures

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
BINS = 10
_ONES = np.empty(0)


def sigmoid(scores: Doubles) -> Doubles:
    """1 / (1 + exp(-scores)), without overflow."""
    part = np.exp(-np.abs(scores))
    return np.where(scores >= 0, 1 / (1 + part), part / (1 + part))


def log_sums(scores: Doubles) -> Doubles:
    """log sum exp of each row."""
    most = scores.max(axis=1)
    return np.asarray(most + np.log(np.exp(scores - most[:, None]).sum(axis=1)))


def expected(scores: Doubles) -> Doubles:
    """exp(scores), without overflow of it or of its square."""
    return np.asarray(np.exp(np.minimum(scores, 300)))


def poisson_deviance(counts: NDArray[Any], means: NDArray[Any]) -> NDArray[Any]:
    """Deviance of counts from Poisson distributions of these means; 0 where they are equal."""
    ratios = np.where(counts > 0, counts, 1) / np.maximum(means, np.finfo(np.float32).tiny)
    return np.asarray(2 * (means - counts + np.where(counts > 0, counts, 0) * np.log(ratios)))


def auc(
    labels: NDArray[np.bool_], scores: NDArray[Any], weights: Doubles | None = None
) -> float | None:
    """Share of pairs (a yes, a no) in which the yes has the higher score; ties count half.

    Exact, by ranks; a pair's weight is the product of its examples'.  None if there are no pairs.
    """
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    begins = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    ends = np.append(begins[1:], len(ordered))
    ones = np.ones(len(order)) if weights is None else weights[order]
    yes_before = np.concatenate(([0], np.cumsum(labels[order] * ones)))
    no_before = np.concatenate(([0], np.cumsum(~labels[order] * ones)))
    yes = yes_before[ends] - yes_before[begins]
    no = no_before[ends] - no_before[begins]
    pairs = float(yes_before[-1]) * float(no_before[-1])
    if pairs == 0:
        return None
    return float((yes * (no_before[begins] + no / 2)).sum() / pairs)


class Judge(ABC):
    """Accumulates labels and scores, and computes metrics from them."""

    compared: ClassVar[Figures]
    """Figures by which epochs may be compared; the first one is a mean loss."""

    def __init__(self) -> None:
        self._examples, self._sums = 0, np.zeros(1)

    def add(
        self, labels: NDArray[Any], scores: NDArray[Any], weights: NDArray[Any] = _ONES
    ) -> None:
        """Add labels (n,), scores (n, outputs) before any link, and weights (n,) (none: all 1)."""
        if not len(weights):
            weights = np.ones(len(labels))
        elif not (kept := weights > 0).all():
            labels, scores, weights = labels[kept], scores[kept], weights[kept]
        self._examples += len(labels)
        self._add(labels, scores, weights.astype(np.float64))

    def figures(self) -> dict[str, Any]:
        """Compute the metrics as plain numbers; ``examples`` counts those with a weight."""
        return {"examples": self._examples, **(self._figures() if self._examples else {})}

    @abstractmethod
    def _add(self, labels: NDArray[Any], scores: NDArray[Any], weights: Doubles) -> None:
        """Add examples whose weights are above 0."""

    @abstractmethod
    def _figures(self) -> dict[str, Any]:
        """Metrics of at least one example."""


class YesNo(Judge):
    """Labels above 0 mean yes, scores are log odds; 16 bytes an example stay in memory."""

    compared = MappingProxyType(
        {
            "loss": ("log_loss", "lower"),
            "accuracy": ("accuracy", "higher"),
            "auc": ("auc", "higher"),
        }
    )

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[tuple[NDArray[Any], ...]] = []

    def _add(self, labels: NDArray[Any], scores: NDArray[Any], weights: Doubles) -> None:
        self._parts.append((labels > 0, scores[:, 0], weights))

    def _figures(self) -> dict[str, Any]:
        """AUC, log loss, accuracy, calibration (mean prediction / mean label), reliability."""
        yes, scores, weights = map(np.concatenate, zip(*self._parts, strict=True))
        odds = scores.astype(np.float64)
        chances = sigmoid(odds)
        loss = np.logaddexp(0, np.where(yes, -odds, odds))
        total = weights.sum()
        observed = float(yes @ weights / total)
        return {
            "log_loss": float(loss @ weights / total),
            "auc": auc(yes, scores, weights),
            "accuracy": float(((odds > 0) == yes) @ weights / total),
            "calibration": float(chances @ weights / total / observed) if observed else None,
            "reliability": reliability(yes, chances, weights),
        }


def reliability(
    yes: NDArray[np.bool_], chances: Doubles, weights: Doubles | None = None
) -> list[dict[str, float]]:
    """Size, mean prediction and share of yes of `BINS` equal groups, ordered by prediction."""
    order = np.argsort(chances, kind="stable")
    ones = np.ones(len(order)) if weights is None else weights
    return [
        {
            "examples": len(part),
            "predicted": float(np.average(chances[part], weights=ones[part])),
            "observed": float(np.average(yes[part], weights=ones[part])),
        }
        for part in np.array_split(order, BINS)
        if len(part)
    ]


class Real(Judge):
    """Labels and scores are real numbers."""

    compared: ClassVar[Figures] = MappingProxyType(
        {"loss": ("rmse", "lower"), "rmse": ("rmse", "lower"), "mae": ("mae", "lower")}
    )

    def _add(self, labels: NDArray[Any], scores: NDArray[Any], weights: Doubles) -> None:
        said, true = scores[:, 0].astype(np.float64), labels.astype(np.float64)
        wrong = said - true
        sums = np.stack((np.ones(len(wrong)), wrong**2, np.abs(wrong), said, true))
        self._sums = self._sums + sums @ weights

    def _figures(self) -> dict[str, Any]:
        """RMSE, mean absolute error, mean prediction, mean label."""
        total, squares, sizes, said, true = self._sums.tolist()
        return {
            "rmse": float(np.sqrt(squares / total)),
            "mae": sizes / total,
            "mean_prediction": said / total,
            "mean_label": true / total,
        }


class Counts(Real):
    """Labels are counts, scores the logarithms of their means."""

    compared = MappingProxyType({**Real.compared, "loss": ("deviance", "lower")})

    def __init__(self) -> None:
        super().__init__()
        self._deviances = 0.0

    def _add(self, labels: NDArray[Any], scores: NDArray[Any], weights: Doubles) -> None:
        means = expected(scores.astype(np.float64))
        super()._add(labels, means, weights)
        self._deviances += float(poisson_deviance(labels, means[:, 0]) @ weights)

    def _figures(self) -> dict[str, Any]:
        """Mean deviance, and what `Real` has."""
        return {"deviance": self._deviances / float(self._sums[0]), **super()._figures()}


class Classes(Judge):
    """Labels are class numbers; scores are one a class."""

    compared = MappingProxyType({"loss": ("log_loss", "lower"), "accuracy": ("accuracy", "higher")})

    def _add(self, labels: NDArray[Any], scores: NDArray[Any], weights: Doubles) -> None:
        """A label that is no class counts as wrong, with the largest possible loss."""
        wide, own = scores.astype(np.float64), labels.astype(np.int64)
        known = (own >= 0) & (own < wide.shape[1]) & (own == labels)
        rows = np.arange(len(own))
        chosen = wide[rows, np.where(known, own, 0)]
        losses = log_sums(wide) - np.where(known, chosen, wide.min(axis=1, initial=np.inf))
        right = known & (wide.argmax(axis=1) == own)
        self._sums = self._sums + np.array((weights.sum(), losses @ weights, right @ weights))

    def _figures(self) -> dict[str, Any]:
        total, loss, right = self._sums.tolist()
        return {"log_loss": loss / total, "accuracy": right / total}
