"""How steep the loss of a classifier is in its rows, which decides how several workers add up.

    some lines, kept rows of both tables -> Curvature.measure -> p (1 - p) of each label, |h|^2
    rate, label rows as they are         -> Curvature.steps -> rate x curvature of a step on a row

Label rows begin at zero and are some hundred times as steep at the end, so a constant is wrong by
as much: deltas of word rows are reduced while words and labels grow by each other and should add
up, and go too far later.  No exchange and no tables: `models/shared_rows.py` has these.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from snailps.models.local_sgd import Floats

LINES = 16
"""Lines that are measured at a time: a tenth of a millisecond of memory moves."""
FEATURES_MAX = 4096
"""Features of such a line, the first ones: their rows are copied, and a line may be a book."""
AGAIN = 8
"""Part of the lines so far after which it is measured again, besides in each block."""
OF_LABELS = 0.3
"""Weight of a label row's curvature: that of the steepest label along the steepest direction, which
most steps do not follow.  8 workers, docs/design/shared-rows.md: shares by 1 are too small, those
by 0.1 diverge on real text at a rate of 0.5."""

STEP_MAX = 1e6


class Curvature:
    """Curvature of the loss, a line, in the rows of a classifier's two tables.

    Parameters
    ----------
    loss : {"softmax", "ova", "ns"}
    dim : int

    Notes
    -----
    With h the mean of a line's word rows, u a label's row and p its probability, the loss has the
    curvature p (1 - p) u u' in h, and p (1 - p) h h' in u.  The first is summed over labels, whose
    rows are about orthogonal; so the largest one counts.
    """

    def __init__(self, loss: str, dim: int) -> None:
        self._loss, self._dim = loss, dim
        self._lines, self._next = 0, 0.0
        self._met: Floats = np.ones(1, np.float32)
        self._spread: Floats = np.zeros(1, np.float32)
        self._of_label = 0.0
        self._before: Floats = np.zeros((0, dim), np.float32)

    def begin(self, labels: NDArray[np.int32], line_num: int, label_num: int) -> None:
        """Counts how often a block's lines make a step on each label row.

        Parameters
        ----------
        labels : numpy.ndarray
            int32: with negative sampling, places of labels and negatives of all lines.
        line_num : int
        label_num : int
            Label rows.
        """
        self._next = 0.0
        if self._loss == "ns":
            met = np.bincount(labels, minlength=label_num) / max(1, line_num)
            self._met = met.astype(np.float32)

    def trained(self, lines: int) -> bool:
        """Takes note of lines that were trained; whether it is to be measured again."""
        self._lines += lines
        return self._lines >= self._next

    def measure(
        self, inputs: Floats, outputs: Floats, ptr: NDArray[np.int64], features: NDArray[np.int32]
    ) -> None:
        """Measures it at some lines.

        Parameters
        ----------
        inputs, outputs : numpy.ndarray
            float32 (n, stride): rows as trained.
        ptr, features : numpy.ndarray
            int64, int32: line i has the features ``features[ptr[i]:ptr[i + 1]]``, rows of
            `inputs`.  The first `LINES` that have any are taken, of each `FEATURES_MAX`.
        """
        self._next = self._lines * (1 + 1 / AGAIN)
        lines = np.flatnonzero(np.diff(ptr))[:LINES]
        if len(lines) == 0:
            return
        bags = [features[ptr[line] : ptr[line + 1]][:FEATURES_MAX] for line in lines.tolist()]
        hidden = np.stack([inputs[bag, : self._dim].mean(0, np.float64) for bag in bags])
        scores = hidden @ outputs[:, : self._dim].T
        with np.errstate(over="ignore", invalid="ignore"):  # rows that diverge: the loss tells
            if self._loss == "softmax":
                p = np.exp(scores - scores.max(1, keepdims=True))
                p /= p.sum(1, keepdims=True)
            else:
                p = 1 / (1 + np.exp(-np.clip(scores, -30, 30)))
            spread = p * (1 - p)
            self._spread = spread.mean(0)
            self._of_label = float((np.square(hidden).sum(1) @ spread).max() / len(hidden))

    def begin_span(self, outputs: Floats) -> None:
        """Takes note of the label rows before some lines are trained."""
        self._before = outputs.copy()

    def steps(self, rate: float, outputs: Floats, others: int) -> tuple[float, float]:
        """Rate x curvature of a line in its word rows, all of them together, and in label rows.

        Parameters
        ----------
        rate : float
        outputs : numpy.ndarray
            float32 (n, stride): label rows as trained.
        others : int
            Workers that have meanwhile moved their label rows as far, in the same direction.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            before = float(np.square(outputs).sum())
            outputs = outputs + np.float32(others) * (outputs - self._before)
            squares = np.einsum("ij,ij->i", outputs, outputs)
            of_input = float((squares * self._spread * self._met).max())
            grown = max(1.0, float(squares.sum()) / before) if before > 0 else 1.0
        return _bounded(rate * of_input), _bounded(rate * OF_LABELS * self._of_label * grown)


def _bounded(step: float) -> float:
    """A step that exchanges can reckon with, also of rows that have diverged."""
    return min(step, STEP_MAX) if step >= 0 else STEP_MAX  # NaN
