"""Measures the curvature of a classifier's loss along its rows; deltas are scaled by it.

    some lines, kept rows of both tables -> Curvature.measure -> p (1 - p) of each label, |h|^2
    rate, current label rows             -> Curvature.steps -> rate x curvature of a step on a row

A constant would not do: label rows start at zero, and at the end the loss is some hundred times as
steep as at the beginning.  Exchanges and tables are in `models/kept_rows.py`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.models.local_sgd import Floats

LINES = 16
"""Lines of one measurement."""
FEATURES_MAX = 4096
"""Most features of a measured line, which may be a whole book."""
AGAIN = 8
"""Curvature is measured in each block, and again after 1 / AGAIN of the lines so far."""
OF_LABELS = 0.3
"""Factor of a label row's curvature, because few steps go in its steepest direction."""

LEAD_STEPS = 20.0
"""A worker leads as long as a line needs more of its own steps than these until its score is right.
"""
LEAD_OWN = 0.025
"""Part of a line's step on its rows that reaches its mean, from which no worker leads: lines of 30
words lose up to .03 of the accuracy (docs/lab/shared-rows.md)."""
LEAD_MOST = 16
"""Most steps for one."""

STEP_MAX = 1e6


class Curvature:
    """The curvature of one line's loss in the rows of a classifier's two tables.

    With h the mean of a line's word rows, u a label's row and p its probability, the curvature is
    p (1 - p) u u' in h, and p (1 - p) h h' in u.  Label rows are about orthogonal, so the largest
    of the former counts, not their sum.
    """

    def __init__(self, loss: str, dim: int) -> None:
        self._loss, self._dim = loss, dim
        self._lines, self._next = 0, 0.0
        self._met: Floats = np.ones(1, np.float32)
        self._spread: Floats = np.zeros(1, np.float32)
        self._of_label = 0.0
        self._own, self._flat = 0.0, 1.0
        self._before: Floats = np.zeros((0, dim), np.float32)

    def begin(self, steps: NDArray[np.int32] | None, line_num: int, row_num: int) -> None:
        """Count a block's steps on output rows from the row of each; None: lines step on all."""
        self._next = 0.0
        if steps is not None:
            met = np.bincount(steps, minlength=row_num) / max(1, line_num)
            self._met = met.astype(np.float32)

    def trained(self, lines: int) -> bool:
        """Count trained lines; returns whether to measure the curvature again."""
        self._lines += lines
        return self._lines >= self._next

    def measure(
        self, inputs: Floats, outputs: Floats, ptr: NDArray[np.int64], features: NDArray[np.int32]
    ) -> None:
        """Measure at the first lines with features; line i has ``features[ptr[i]:ptr[i + 1]]``."""
        self._next = self._lines * (1 + 1 / AGAIN)
        lines = np.flatnonzero(np.diff(ptr))[:LINES]
        if len(lines) == 0:
            return
        bags = [features[ptr[line] : ptr[line + 1]][:FEATURES_MAX] for line in lines.tolist()]
        means = np.empty((len(bags), self._dim), np.float32)
        bag_ptr = np.cumsum([0, *map(len, bags)])
        kernels.bag_means(inputs, bag_ptr, np.concatenate(bags), means)
        self._own = float(np.median([_weight_of_own(bag) for bag in bags]))
        hidden = means.astype(np.float64)
        scores = hidden @ outputs[:, : self._dim].T
        with np.errstate(over="ignore", invalid="ignore"):  # if rows diverge, the loss shows it
            if self._loss == "softmax":
                p = np.exp(scores - scores.max(1, keepdims=True))
                p /= p.sum(1, keepdims=True)
            else:
                p = 1 / (1 + np.exp(-np.clip(scores, -30, 30)))
            spread = p * (1 - p)
            self._spread = spread.mean(0)
            self._of_label = float((np.square(hidden).sum(1) @ spread).max() / len(hidden))

    def begin_span(self, outputs: Floats) -> None:
        """Remember the label rows before a span is trained."""
        self._before = outputs.copy()

    def steps(self, rate: float, outputs: Floats, others: int) -> tuple[float, float]:
        """Rate x curvature of a line in word rows, and in label rows.

        Uses label rows as they will be when the `others` have moved them as far as this worker has:
        while all grow from zero, the curvature of this worker's own rows is far too small.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            before = float(np.square(outputs).sum())
            outputs = outputs + np.float32(others) * (outputs - self._before)
            squares = np.einsum("ij,ij->i", outputs, outputs)
            of_input = float((squares * self._spread * self._met).max())
            grown = max(1.0, float(squares.sum()) / before) if before > 0 else 1.0
        return _bounded(rate * of_input), _bounded(rate * OF_LABELS * self._of_label * grown)

    def lead(self, step: float, workers: int) -> float:
        """Steps that a worker takes on word rows for one of its own, 1 to `workers`.

        `step` is rate x curvature of a line in word rows.  While all rows grow from zero by each
        other, the gradients of other workers are like those here, and what a copy lacks of their
        steps, all later steps lack.  Never rises: later, what lines have in common is learnt.
        """
        still = 1 - LEAD_STEPS * step * self._own if self._own < LEAD_OWN else 0.0
        self._flat = min(self._flat, max(0.0, still))
        return 1 + (min(workers, LEAD_MOST) - 1) * self._flat


def _weight_of_own(features: NDArray[np.int32]) -> float:
    """How far a line's step moves its mean, of what it moves a row: 1 / n with n different rows."""
    counts = np.unique(features, return_counts=True)[1]
    return float(np.square(counts / len(features)).sum())


def _bounded(step: float) -> float:
    return min(step, STEP_MAX) if step >= 0 else STEP_MAX  # also for NaN
