"""A reference factorization machine in NumPy, and data with planted interactions.

    examples (feature numbers, values, labels) -> fit: minibatches, Adam, float64 -> scores
    seed -> planted: one feature a field, labels drawn from a known machine -> examples

Nothing is shared with snailps: another optimiser, minibatches in place of single examples, another
start.  What both find must agree in log loss, not in weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(slots=True)
class Examples:
    """As many columns as the longest example has features; value 0 stands for none."""

    features: Ints  # (n, m)
    values: Array  # (n, m)
    labels: Array  # (n,), 0 or 1 or a real number


@dataclass(slots=True)
class Machine:
    """Bias, weights (features,), factors (features, k)."""

    bias: Array
    weights: Array
    factors: Array

    def scores(self, examples: Examples) -> Array:
        """Of all examples, (n,)."""
        pieces = np.array_split(np.arange(len(examples.labels)), 1 + len(examples.labels) // 4096)
        return np.concatenate([self._scores(examples, rows)[0] for rows in pieces])

    def _scores(self, examples: Examples, rows: Ints) -> tuple[Array, Array, Array]:
        x = examples.values[rows]
        at = examples.features[rows]
        parts = self.factors[at] * x[:, :, None]  # (b, m, k)
        sums = parts.sum(1)
        pairs = 0.5 * ((sums**2).sum(1) - (parts**2).sum((1, 2)))
        score = self.bias[0] + (self.weights[at] * x).sum(1) + pairs
        return score, parts, sums

    def gradients(
        self, examples: Examples, rows: Ints, loss: str
    ) -> tuple[float, tuple[Array, Array, Array]]:
        """Mean loss of a batch, and the gradients of bias, weights and factors."""
        score, parts, sums = self._scores(examples, rows)
        y, x, at = examples.labels[rows], examples.values[rows], examples.features[rows]
        if loss == "logistic":
            value = np.logaddexp(0, np.where(y > 0, -score, score)).mean()
            wrong = 1 / (1 + np.exp(-score)) - (y > 0)
        else:
            wrong = score - y
            value = (wrong**2).mean() / 2
        wrong = wrong / len(rows)
        by = wrong[:, None] * x  # (b, m)
        size, k = self.factors.shape
        weights = np.bincount(at.ravel(), by.ravel(), size)
        pulls = by[:, :, None] * (sums[:, None, :] - parts)
        factors = np.stack(
            [np.bincount(at.ravel(), pulls[:, :, f].ravel(), size) for f in range(k)], 1
        )
        return float(value), (np.array([wrong.sum()]), weights, factors)


def fit(
    examples: Examples,
    feature_num: int,
    *,
    factors: int = 8,
    epochs: int = 20,
    batch: int = 256,
    lr: float = 0.003,
    l2: float = 0.0,
    factor_l2: float = 0.0,
    scale: float = 0.05,
    loss: str = "logistic",
    seed: int = 1,
) -> Machine:
    """A machine trained by Adam on shuffled minibatches, its rate falling to 0 as a cosine.

    `l2` and `factor_l2` are penalties an example: half of them times the squares.
    """
    rng = np.random.default_rng(seed)
    machine = Machine(
        np.zeros(1), np.zeros(feature_num), rng.normal(0, scale, (feature_num, factors))
    )
    parameters = (machine.bias, machine.weights, machine.factors)
    decay = (0.0, l2, factor_l2)
    moments = [(np.zeros_like(p), np.zeros_like(p)) for p in parameters]
    n = len(examples.labels)
    steps, done = epochs * -(-n // batch), 0
    for _ in range(epochs):
        for rows in np.array_split(rng.permutation(n), -(-n // batch)):
            done += 1
            rate = lr * 0.5 * (1 + np.cos(np.pi * done / steps))
            _, gradients = machine.gradients(examples, rows, loss)
            for p, g, (m, v), by in zip(parameters, gradients, moments, decay, strict=True):
                g = g + by * p
                m += 0.1 * (g - m)
                v += 0.001 * (g * g - v)
                p -= rate * (m / (1 - 0.9**done)) / (np.sqrt(v / (1 - 0.999**done)) + 1e-8)
    return machine


def log_loss(labels: Array, scores: Array) -> float:
    """Mean log loss."""
    return float(np.logaddexp(0, np.where(labels > 0, -scores, scores)).mean())


# ---- data ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Planted:
    """Examples drawn from a known machine; feature = field * value_num + value."""

    train: Examples
    test: Examples
    truth: Machine
    field_num: int
    value_num: int
    best: float = field(default=0.0)  # test log loss of the truth itself


def planted(
    examples: int,
    *,
    field_num: int = 14,
    value_num: int = 20,
    factors: int = 4,
    strength: float = 0.35,
    tests: int = 50_000,
    seed: int = 7,
) -> Planted:
    """One feature of each field in every example, values 1; more than half of it interactions."""
    rng = np.random.default_rng(seed)
    size = field_num * value_num
    truth = Machine(
        np.array([-0.5]),
        rng.normal(0, 0.3, size),
        rng.normal(0, strength, (size, factors)),
    )
    n = examples + tests
    at = rng.integers(0, value_num, (n, field_num)) + value_num * np.arange(field_num)
    whole = Examples(at, np.ones(at.shape), np.zeros(n))
    scores = truth.scores(whole)
    whole.labels[:] = rng.random(n) < 1 / (1 + np.exp(-scores))
    train, test = (
        Examples(whole.features[part], whole.values[part], whole.labels[part])
        for part in (slice(0, examples), slice(examples, n))
    )
    best = log_loss(test.labels, scores[examples:])
    return Planted(train, test, truth, field_num, value_num, best)


def interactions(factors: Array, field_num: int) -> Array:
    """Products of all pairs of features of different fields, centred by rows and columns.

    In one-hot fields a part of an interaction that depends on one of its features only can as
    well be a linear weight; what is left after centring is what data can tell.
    """
    parts = factors.reshape(field_num, -1, factors.shape[1])
    found = []
    for a in range(field_num):
        for b in range(a):
            m = parts[a] @ parts[b].T
            m = m - m.mean(0) - m.mean(1)[:, None] + m.mean()
            found.append(m.ravel())
    return np.concatenate(found)


def write_libsvm(path: Path, examples: Examples) -> None:
    """Examples with values of 1, as text."""
    rows = (" ".join(f"{key}:1" for key in row) for row in examples.features.tolist())
    with path.open("w") as file:
        for label, row in zip(examples.labels.tolist(), rows, strict=True):
            file.write(f"{label:.0f} {row}\n")
