"""Quality of predictions: AUC, log loss, calibration, RMSE, accuracy.

    labels, scores, a batch at a time -> Judge.add ... -> Judge.figures -> plain numbers

Pure functions of arrays in float64; no files, no rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Judged = tuple[NDArray[np.float32], NDArray[np.float32] | None, int]
"""Labels (n,) and scores (n, outputs) of a batch, None where it is empty; lines left out."""
BINS = 10


class Judge(Protocol):
    """Accumulates labels and scores, and computes figures of them."""

    def add(self, labels: NDArray[np.float32], scores: NDArray[np.float32]) -> None:
        """Adds labels, float32 (n,), as written, and scores, (n, outputs), before any link."""

    def figures(self) -> dict[str, Any]:
        """Plain numbers by name; `examples` first."""


def judge_of(loss: str) -> Judge:
    """The judge of a loss: ``logistic``, ``squared``, ``multinomial``."""
    kinds: dict[str, type[Judge]] = {"logistic": YesNo, "squared": Real, "multinomial": Classes}
    return kinds[loss]()


def judge(loss: str, batches: Iterable[Judged]) -> dict[str, Any]:
    """Figures of a model: those of its loss, and `bad_lines` if there were any."""
    judge, bad_lines = judge_of(loss), 0
    for labels, scores, bad in batches:
        bad_lines += bad
        if scores is not None:
            judge.add(labels, scores)
    figures = judge.figures()
    return {**figures, "bad_lines": bad_lines} if bad_lines else figures


def probabilities(loss: str, scores: NDArray[np.float32]) -> Doubles:
    """Of scores (n, outputs): P(yes) (n,), values (n,), or P of each class (n, outputs)."""
    wide = scores.astype(np.float64)
    if loss == "logistic":
        return sigmoid(wide[:, 0])
    if loss == "squared":
        return np.asarray(wide[:, 0])
    return np.asarray(np.exp(wide - log_sums(wide)[:, None]))


def sigmoid(scores: Doubles) -> Doubles:
    """1 / (1 + exp(-scores)), without overflow."""
    part = np.exp(-np.abs(scores))
    return np.where(scores >= 0, 1 / (1 + part), part / (1 + part))


def log_sums(scores: Doubles) -> Doubles:
    """log sum exp of each row."""
    most = scores.max(axis=1)
    return np.asarray(most + np.log(np.exp(scores - most[:, None]).sum(axis=1)))


def auc(labels: NDArray[np.bool_], scores: NDArray[Any]) -> float | None:
    """Share of pairs (a yes, a no) in which the yes has the higher score; ties count half.

    Exact, by ranks; None if there are no such pairs.
    """
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    begins = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    ends = np.append(begins[1:], len(ordered))
    yes_before = np.concatenate(([0], np.cumsum(labels[order])))
    yes = yes_before[ends] - yes_before[begins]
    no = (ends - begins) - yes
    no_below = np.cumsum(no) - no
    pairs = int(yes.sum()) * int(no.sum())
    if pairs == 0:
        return None
    return float((yes * (no_below + no / 2)).sum() / pairs)


class _Collected:
    """Keeps labels and scores of all batches: 8 bytes an example for one output."""

    def __init__(self) -> None:
        self._labels: list[NDArray[np.float32]] = []
        self._scores: list[NDArray[np.float32]] = []

    def add(self, labels: NDArray[np.float32], scores: NDArray[np.float32]) -> None:
        """Takes a batch."""
        self._labels.append(labels)
        self._scores.append(scores)

    def _all(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        if not self._labels:
            return np.zeros(0, np.float32), np.zeros((0, 1), np.float32)
        return np.concatenate(self._labels), np.concatenate(self._scores)


class YesNo(_Collected):
    """Labels above 0 mean yes; scores are log odds."""

    def figures(self) -> dict[str, Any]:
        """AUC, log loss, accuracy, calibration (mean prediction / mean label), reliability."""
        labels, scores = self._all()
        n, yes, odds = len(labels), labels > 0, scores[:, 0].astype(np.float64)
        if n == 0:
            return {"examples": 0}
        chances = sigmoid(odds)
        return {
            "examples": n,
            "log_loss": float(np.logaddexp(0, np.where(yes, -odds, odds)).mean()),
            "auc": auc(yes, scores[:, 0]),
            "accuracy": float(((odds > 0) == yes).mean()),
            "calibration": float(chances.mean() / yes.mean()) if yes.any() else None,
            "reliability": reliability(yes, chances),
        }


def reliability(yes: NDArray[np.bool_], chances: Doubles) -> list[dict[str, float]]:
    """Calibration of `BINS` equally large groups of examples, ordered by prediction.

    Returns
    -------
    list of dict
        ``examples``, ``predicted`` (mean prediction) and ``observed`` (share of yes) of each.
    """
    order = np.argsort(chances, kind="stable")
    return [
        {
            "examples": len(part),
            "predicted": float(chances[part].mean()),
            "observed": float(yes[part].mean()),
        }
        for part in np.array_split(order, BINS)
        if len(part)
    ]


class Real:
    """Labels and scores are real numbers."""

    def __init__(self) -> None:
        self._sums = np.zeros(5)

    def add(self, labels: NDArray[np.float32], scores: NDArray[np.float32]) -> None:
        """Takes a batch."""
        said, true = scores[:, 0].astype(np.float64), labels.astype(np.float64)
        wrong = said - true
        self._sums += len(labels), (wrong**2).sum(), np.abs(wrong).sum(), said.sum(), true.sum()

    def figures(self) -> dict[str, Any]:
        """RMSE, mean absolute error, mean prediction, mean label."""
        n, squares, sizes, said, true = self._sums.tolist()
        if n == 0:
            return {"examples": 0}
        return {
            "examples": int(n),
            "rmse": float(np.sqrt(squares / n)),
            "mae": sizes / n,
            "mean_prediction": said / n,
            "mean_label": true / n,
        }


class Classes:
    """Labels are class numbers; scores are one a class."""

    def __init__(self) -> None:
        self._sums = np.zeros(3)

    def add(self, labels: NDArray[np.float32], scores: NDArray[np.float32]) -> None:
        """Takes a batch; a label that is no class counts as wrong, with the worst loss there is."""
        wide, own = scores.astype(np.float64), labels.astype(np.int64)
        known = (own >= 0) & (own < wide.shape[1]) & (own == labels)
        rows = np.arange(len(own))
        chosen = wide[rows, np.where(known, own, 0)]
        losses = log_sums(wide) - np.where(known, chosen, wide.min(axis=1, initial=np.inf))
        right = known & (wide.argmax(axis=1) == own)
        self._sums += len(own), losses.sum(), right.sum()

    def figures(self) -> dict[str, Any]:
        """Log loss and accuracy."""
        n, loss, right = self._sums.tolist()
        if n == 0:
            return {"examples": 0}
        return {"examples": int(n), "log_loss": loss / n, "accuracy": right / n}
