"""NumPy twin of kernels/_row_exchange.pyx: what is pushed of kept rows, what answers make of them.

Rows are packed: parts of `dim` columns without padding.
"""

import numpy as np

from snailps.kernels._row_exchange import (
    CORRELATION,
    FAR_OF_ALL,
    ONE_STEP,
    OTHERS_LEAST,
    QUIET_MAX,
)

SOLE = 2  # answers without a change


def share_of_delta(own, others):
    """The quotient of the ways that all workers go in turns and at once."""
    own = np.maximum(own, np.float32(1e-4))
    both = own + others
    return (np.expm1(-both) / np.expm1(-own) * (own / both)).astype(np.float32)


class Curvature:
    """DriftEstimate of rows without state: one curvature."""

    def __init__(self, a_step, far):
        self.a_step, self.far = a_step, far

    def steps(self, rows, deltas, counts):
        return counts * np.float32(self.a_step)

    def scale(self, rows, deltas, shares):
        deltas *= shares

    def shorten(self, rows, base, deltas, others):
        pass


class SparseDrift:
    """DriftEstimate of packed rows of sparse examples, the first `outputs` columns weights."""

    def __init__(self, settings, dim, outputs, eps, a_step, a_factor_step):
        self.settings, self.dim, self.outputs, self.eps = settings, dim, outputs, eps
        self.a_step, self.a_factor_step = np.float32(a_step), np.float32(a_factor_step)
        self.far = np.inf if settings.method == "ftrl" else 10.0

    def steps(self, rows, deltas, counts):
        s, dim = self.settings, self.dim
        own = counts * self.a_step
        if s.method == "sgd":
            return own
        at, least = (dim, self.eps) if s.method == "adagrad" else (2 * dim, s.beta)
        root = np.sqrt(rows[:, at : at + dim]) + np.float32(least)
        own = own / root[:, : self.outputs]
        seen = (deltas[:, at : at + dim] / root)[:, self.outputs :]
        factors = seen.sum(1, keepdims=True) * self.a_factor_step
        return np.hstack((own, np.broadcast_to(factors, seen.shape)))

    def scale(self, rows, deltas, shares):
        s, dim = self.settings, self.dim
        taken = deltas[:, :dim] * (1 - shares)
        deltas[:, :dim] -= taken
        if s.method == "ftrl":  # shards derive weights from z and n, so z must agree
            wanted = rows[:, :dim] - taken
            root = (s.beta + np.sqrt(rows[:, 2 * dim :])) / s.lr
            z = -wanted * root - s.l1 * np.sign(wanted)
            deltas[:, dim : 2 * dim] += np.where(wanted == 0, 0, z - rows[:, dim : 2 * dim])

    def shorten(self, rows, base, deltas, others):
        """AdaGrad's steps, as long as they are behind those of others."""
        if self.settings.method != "adagrad":
            return
        dim = self.dim
        before, own = base[:, dim:], deltas[:, dim:]
        least = np.sqrt(before) + 2 * np.float32(self.eps)
        ratio = (np.sqrt(before + own) + least) / (
            np.sqrt(before + own * (1 + others[:, None])) + least
        )
        taken = np.where(own > 0, deltas[:, :dim] * (1 - ratio), 0)
        deltas[:, :dim] -= taken
        rows[:, :dim] -= taken


class RowExchange:
    """All rows at once; a estimate as above, counts since the last exchange from the caller."""

    def __init__(self, rows, base, estimate, derive=None, dim=0):
        self.rows, self.base, self.estimate = rows, base, estimate
        self.derive, self.first = derive, dim if derive is not None else 0
        self.rest = np.zeros(len(rows), np.float32)
        self.quiet = np.zeros(len(rows), np.uint8)

    def send(self, counts, common, workers):
        """Deltas, and what the local copies give up of the rest."""
        deltas = self.rows - self.base
        given_up = np.zeros_like(deltas)
        if workers > 1:
            sole = self.quiet >= SOLE
            rows, whole = self.rows[sole], deltas[sole]
            counts = np.maximum(counts, 1) + self.rest
            others = np.maximum((counts - 1) / counts, OTHERS_LEAST) * np.float32(workers - 1)
            self.estimate.shorten(self.rows, self.base, deltas, others)
            self._share(counts, common, workers, deltas, given_up)
            self.rows[sole], deltas[sole], given_up[sole], self.rest[sole] = rows, whole, 0, 0
        self.base += deltas
        return deltas, given_up

    def _share(self, counts, common, workers, deltas, given_up):
        self.rest[:] = 0
        shared = np.flatnonzero(counts > ONE_STEP)
        if len(shared) == 0:
            return
        counts, common = counts[shared][:, None], common[shared][:, None]
        reduced, rows = deltas[shared], self.rows[shared]
        own = self.estimate.steps(rows, reduced, counts)
        beyond = np.maximum(own.max(axis=1, keepdims=True) * np.float32(workers) - 1, 0)
        held = 1 / (
            1 + np.square(beyond * common / FAR_OF_ALL) + np.square(beyond / self.estimate.far)
        )
        own = own * (np.float32(CORRELATION) * held + (1 - held))
        shares = share_of_delta(own, own * ((counts - 1) / counts * np.float32(workers - 1)))
        self.estimate.scale(rows, reduced, shares)
        self.rest[shared] = counts[:, 0] * (1 - shares.mean(axis=1)) * held[:, 0]
        given_up[shared] = (deltas[shared] - reduced) * (1 - held)
        deltas[shared] = reduced

    def merge(self, answers, given_up):
        changes = (answers[:, self.first :] != self.base[:, self.first :]).any(axis=1)
        self.quiet = np.where(changes, 0, np.minimum(self.quiet + 1, QUIET_MAX))
        changes |= given_up.any(axis=1)
        moved = self.rows + (answers - self.base - given_up)
        if self.derive is not None:
            self.derive(moved)
        self.rows[changes] = moved[changes]
        self.base = answers.copy()
