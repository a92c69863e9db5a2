"""Measures how far the steps of a block go; the deltas of several workers are scaled by that.

    batches, what the bias learnt from them -> Shares.measure -> Shares.estimate, a `DriftEstimate`

`kernels/_row_exchange.pyx` computes the shares, and `worker` moves the rows: no pulls or pushes
here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from snailps.kernels._row_exchange import DriftEstimate
from snailps.models.kept_rows import FAR
from snailps.models.losses import LOSSES
from snailps.models.sparse.batch import Batch, Floats
from snailps.models.sparse.settings import METHODS, SparseSettings

SQUARES_MAX = 1 << 21
"""Sum of squared gradients, float32, up to which the square of a single example still adds to
it."""


class Shares:
    """Measures how far the steps of a model go.

    The first `outputs` of its `dim` columns are weights of outputs, the others factors; `eps` is
    AdaGrad's.
    """

    def __init__(self, settings: SparseSettings, dim: int, *, outputs: int, eps: float) -> None:
        s = self._settings = settings
        self._dim, self._outputs = dim, outputs
        self.estimate = DriftEstimate(
            METHODS[s.method],
            dim,
            outputs=outputs,
            # FTRL's sums of squares shorten the sum of several workers' first steps, too.
            far=np.inf if s.method == "ftrl" else FAR,
            least=s.beta if s.method == "ftrl" else eps,
            lr=s.lr,
            l1=s.l1,
            beta=s.beta,
        )

    def measure(self, batches: Sequence[Batch], bias_delta: Floats | None, rate: float) -> None:
        """Set the mean step of the batches' examples; `bias_delta` is packed, None if unknown.

        A step is rate x curvature of the loss x sum of squared values of all features with the
        bias: the share by which a step of plain SGD reduces the residual.
        """
        n, bias = sum(len(batch) for batch in batches), batches[0].bias >= 0
        entries = sum(len(batch.places) for batch in batches)
        squares = sum(float(np.dot(batch.values, batch.values)) for batch in batches) / n + bias
        mean = sum(float(batch.labels.sum()) for batch in batches) / n
        self.estimate.a_step = rate * self._curvature(n, bias_delta, mean) * squares
        self.estimate.a_factor_step = rate * (entries / n + bias)

    def shows_steps(self, bias_squares: Floats) -> bool:
        """Whether single steps still show in the bias's sums of squares, of its outputs first."""
        return float(bias_squares[: self._outputs].max()) <= SQUARES_MAX

    def _curvature(self, n: int, bias_delta: Floats | None, mean_label: float) -> float:
        """Mean second derivative of the loss of n examples by their scores.

        For logistic losses and calibrated predictions it is the mean squared gradient, which the
        state of the bias has summed up.
        """
        squares = None
        if bias_delta is not None and self._settings.method != "sgd":
            squares = float(bias_delta[-self._dim :][: self._outputs].mean()) / n
        return LOSSES[self._settings.loss].curvature(squares, mean_label)
