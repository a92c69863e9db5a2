"""What one of several workers pushes of what a block taught it: shares of differences of rows.

    Batch, trained rows, differences -> steps of this worker, and of the others -> what to push

How rows come and go is `worker`'s, the formula `local_sgd.share_of_delta`'s; here is how far a
block brings a row.  No rows are pulled or pushed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from snailps.models.local_sgd import share_of_delta
from snailps.models.sparse.batch import Batch, Floats
from snailps.models.sparse.settings import SparseSettings

CURVATURE = 0.2
"""Of an example's log loss: P(yes) P(no) where most predictions say something."""


class Step(NamedTuple):
    """How far an example brings its own score to where it wants it.

    Attributes
    ----------
    rate : float
        Step size.
    features : float
        Of an example, the bias included, on average.
    together : float
        Rate times bend of the loss times the squared values of *all* features of an example: its
        residual falls by this, in steps whose optimiser divides by nothing.
    """

    rate: float
    features: float
    together: float


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the differences of a model's rows.

    Attributes
    ----------
    settings : SparseSettings
    workers : int
        Of the job.
    loss : str
        ``logistic``, ``squared`` or ``multinomial``.
    dim : int
        Floats of a row's weights, and of each array of its state, in differences.
    stride : int
        From the beginning of one of these arrays to the next, in trained rows: `dim` and what pads
        them.
    outputs : int
        Columns of weights, the first ones; behind them lie factors.
    eps : float
        AdaGrad's.
    """

    settings: SparseSettings
    workers: int
    loss: str
    dim: int
    stride: int
    outputs: int
    eps: float

    def counts(self, batch: Batch, row_num: int) -> Floats:
        """Examples that have each row's feature, float32 (row_num, 1)."""
        count = np.bincount(batch.places, minlength=row_num).astype(np.float32)
        if batch.bias >= 0:
            count[batch.bias] = len(batch)
        return count[:, None]

    def step(self, batch: Batch, delta: Floats, rate: float) -> Step:
        """What a batch says of its examples' steps; `delta` as the batch has changed the rows."""
        n, bias = len(batch), batch.bias >= 0
        squares = float(np.dot(batch.values, batch.values)) / n + bias
        return Step(rate, len(batch.places) / n + bias, rate * self._bend(batch, delta) * squares)

    def scale(self, step: Step, rows: Floats, delta: Floats, count: Floats) -> None:
        """Takes from differences what several workers would go too far together.

        A row that c examples of the block have goes c steps of the way to where the workers all
        want it; and the others as far, see `share_of_delta`; less one example, for a row that only
        one has is likely to be in no other worker's block, and then its difference is needed whole.

        Parameters
        ----------
        step : Step
            As `step` tells.
        rows, delta : numpy.ndarray
            float32: rows as trained; what changed, weights and state, scaled in place.
        count : numpy.ndarray
            float32 (n, 1), as `counts` tells.

        Notes
        -----
        Threads may work on ranges of rows at once.
        """
        s, dim = self.settings, self.dim
        own = self._steps(step, rows, delta, count)
        rest = np.maximum(count - 1, 0) / np.maximum(count, 1) * np.float32(self.workers - 1)
        taken = delta[:, :dim] * (1 - share_of_delta(own, own * rest))
        delta[:, :dim] -= taken
        if s.method == "ftrl":  # the shards make weights of z and n: these have to say the same
            wanted = self._array(rows, 0) - taken
            root = (s.beta + np.sqrt(self._array(rows, 2))) / s.lr + s.l2
            z = -wanted * root - s.l1 * np.sign(wanted)
            delta[:, dim : 2 * dim] += np.where(wanted == 0, 0, z - self._array(rows, 1))

    def _steps(self, step: Step, rows: Floats, delta: Floats, count: Floats) -> Floats:
        """Of this worker: float32, (n, 1) or (n, dim)."""
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
        # How much the score bends with a factor is another matter for each row, and grows as
        # factors do: sums of squared gradients tell.  All numbers of a factor go together, too.
        seen = delta[:, squares * self.dim : (squares + 1) * self.dim] / root
        factors = seen[:, self.outputs :].sum(1, keepdims=True)
        factors *= np.float32(step.rate * step.features)
        return np.hstack((own, np.broadcast_to(factors, (len(own), self.dim - self.outputs))))

    def _array(self, rows: Floats, number: int) -> Floats:
        """Weights (number 0) or an array of the state of trained rows, without what pads them."""
        return rows[:, number * self.stride : number * self.stride + self.dim]

    def _bend(self, batch: Batch, delta: Floats) -> float:
        """Mean second derivative of an example's loss by its score.

        Where predictions are right on average, that of the logistic losses is the mean square of
        the gradients, which the bias has summed up.
        """
        if self.loss == "squared":
            return 1.0
        if batch.bias < 0 or self.settings.method == "sgd":
            return CURVATURE
        squares = delta[batch.bias, -self.dim :][: self.outputs]
        return float(squares.mean()) / len(batch)
