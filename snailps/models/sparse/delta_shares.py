"""Scaling of the deltas that one of several workers pushes.

    Batch, trained rows, deltas -> steps of this worker, and of the others -> scaled deltas

This module estimates how far a block moves each row; `local_sgd.share_of_delta` has the formula,
`worker` moves the rows.  No pulls or pushes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from snailps.dataclass import dataclass
from snailps.kernels._row_exchange import DriftEstimate
from snailps.models.kept_rows import FAR
from snailps.models.local_sgd import share_of_delta
from snailps.models.losses import LOSSES
from snailps.models.sparse.batch import Batch, Floats
from snailps.models.sparse.settings import METHODS, SparseSettings

SQUARES_MAX = 1 << 21
"""Sum of squared gradients, float32, up to which it still grows by single examples' squares."""


class Step(NamedTuple):
    """How far one example moves its own score to its optimum.

    `rate` is the step size, `features` the mean number of features, the bias included, and
    `together` rate x curvature of the loss x sum of squared values of all features: the share by
    which a plain SGD step reduces the residual.
    """

    rate: float
    features: float
    together: float


@dataclass(frozen=True, slots=True)
class Shares:
    """Scales the deltas of a model's rows.

    A row's parts (weights, arrays of state) have `dim` floats in deltas and are `stride` floats
    apart in trained rows; the first `outputs` columns are weights, the others are factors.
    """

    settings: SparseSettings
    dim: int
    stride: int
    outputs: int
    eps: float

    def counts(self, batch: Batch, row_num: int) -> Floats:
        """Number of examples with each row's feature, float32 (row_num, 1)."""
        count = np.bincount(batch.places, minlength=row_num).astype(np.float32)
        if batch.bias >= 0:
            count[batch.bias] = len(batch)
        return count[:, None]

    def step(self, batch: Batch, rows: Floats, delta: Floats, rate: float) -> Step:
        """Mean step of a batch's examples; `rows` as trained, `delta` their changes."""
        seen = batch.bias >= 0 and self.counts_steps(rows[batch.bias])
        return self.step_of([batch], delta[batch.bias] if seen else None, rate)

    def counts_steps(self, bias_row: Floats) -> bool:
        """Whether steps show in the squares of the bias's row, as trained."""
        return float(bias_row[-self.stride :][: self.outputs].max()) <= SQUARES_MAX

    def step_of(self, batches: Sequence[Batch], bias_delta: Floats | None, rate: float) -> Step:
        """Mean step of examples of batches of equal rows; `bias_delta`: packed, None if unknown."""
        n, bias = sum(len(batch) for batch in batches), batches[0].bias >= 0
        entries = sum(len(batch.places) for batch in batches)
        squares = sum(float(np.dot(batch.values, batch.values)) for batch in batches) / n + bias
        mean = sum(float(batch.labels.sum()) for batch in batches) / n
        curvature = self._curvature(n, bias_delta, mean)
        return Step(rate, entries / n + bias, rate * curvature * squares)

    def scale(self, step: Step, others: int, rows: Floats, delta: Floats, count: Floats) -> None:
        """Reduce deltas, in place, whose sum with `others` would be too long a step.

        A row that c examples of the block use is moved c steps by this worker and c - 1 by each
        other one: a row of a single example is probably in no other block and needs its whole
        delta.  Threads may call it for different rows.
        """
        own = self.steps(step, rows, delta, count)
        rest = np.maximum(count - 1, 0) / np.maximum(count, 1) * np.float32(others)
        self.take(rows, delta, share_of_delta(own, own * rest))

    def take(self, rows: Floats, delta: Floats, shares: Floats) -> None:
        """Reduce deltas of weights to shares, (n, 1) or (n, dim), in place."""
        s, dim = self.settings, self.dim
        taken = delta[:, :dim] * (1 - shares)
        delta[:, :dim] -= taken
        if s.method == "ftrl":  # shards derive weights from z and n, so z must agree
            wanted = self._array(rows, 0) - taken
            root = (s.beta + np.sqrt(self._array(rows, 2))) / s.lr
            z = -wanted * root - s.l1 * np.sign(wanted)
            delta[:, dim : 2 * dim] += np.where(wanted == 0, 0, z - self._array(rows, 1))

    def steps(self, step: Step, rows: Floats, delta: Floats, count: Floats) -> Floats:
        """How far this worker has moved rows, `own` of `share_of_delta`: (n, 1) or (n, dim)."""
        s = self.settings
        own: Floats = count * np.float32(step.together)
        if s.method == "sgd":
            return own
        squares, least = (1, self.eps) if s.method == "adagrad" else (2, s.beta)
        root: Floats = np.sqrt(self._array(rows, squares))
        root += np.float32(least)
        own = own / root[:, : self.outputs]
        if self.dim == self.outputs:
            return own
        # The curvature in a factor differs from row to row and grows with the factors: sums of
        # squared gradients measure it.  All numbers of a factor move together, too.
        seen = delta[:, squares * self.dim : (squares + 1) * self.dim] / root
        factors = seen[:, self.outputs :].sum(1, keepdims=True)
        factors *= np.float32(step.rate * step.features)
        return np.hstack((own, np.broadcast_to(factors, (len(own), self.dim - self.outputs))))

    def _array(self, rows: Floats, number: int) -> Floats:
        """Weights (number 0) or an array of state of trained rows, without padding."""
        return rows[:, number * self.stride : number * self.stride + self.dim]

    def _curvature(self, n: int, bias_delta: Floats | None, mean_label: float) -> float:
        """Mean second derivative of the loss of n examples by their scores.

        For logistic losses and calibrated predictions it is the mean squared gradient, which the
        bias has summed up.
        """
        squares = None
        if bias_delta is not None and self.settings.method != "sgd":
            squares = float(bias_delta[-self.dim :][: self.outputs].mean()) / n
        return LOSSES[self.settings.loss].curvature(squares, mean_label)


def estimate_of(shares: Shares) -> DriftEstimate:
    """The `DriftEstimate` by which `kept_rows` measures and scales kept rows.

    Its sums are those of `Shares.steps` and `Shares.take`.
    """
    s = shares.settings
    return DriftEstimate(
        METHODS[s.method],
        shares.dim,
        outputs=shares.outputs,
        # FTRL's sums of squares shorten the sum of several workers' first steps, too.
        far=np.inf if s.method == "ftrl" else FAR,
        least=s.beta if s.method == "ftrl" else shares.eps,
        lr=s.lr,
        l1=s.l1,
        beta=s.beta,
    )


def set_step(estimate: DriftEstimate, step: Step) -> None:
    estimate.a_step, estimate.a_factor_step = step.together, step.rate * step.features
