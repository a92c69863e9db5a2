"""Sparse batches, and the results that a table's shards should compute from them, in NumPy."""

from __future__ import annotations

import itertools

import numpy as np
from twins import kernels as twin


def batch(rng, examples, columns, entries, ones=False, empty=0.1):
    """A batch as CSR: ptr, keys, values; with empty examples and repeated keys."""
    counts = rng.integers(1, 2 * entries, examples)
    counts[rng.random(examples) < empty] = 0
    ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    keys = rng.integers(0, columns, ptr[-1]).astype(np.uint64)
    values = np.ones(ptr[-1]) if ones else rng.normal(size=ptr[-1])
    return ptr, keys, values.astype(np.float32)


class Reference:
    """A table of weights in float64 with all rows present: init, product, step."""

    def __init__(self, columns, dim, access, hyper, kind=1, scale=0.1, seed=5, state=0):
        self.access, self.hyper, self.dim = access, np.zeros(8, np.float32), dim
        self.hyper[: len(hyper)] = hyper
        self.rows = np.zeros((columns, dim * (1 + state) + (access == 3)))
        for key in range(columns):
            self.rows[key, :dim] = twin.init_row(kind, scale, seed, key, dim)

    def forward(self, ptr, keys, values):
        z = np.zeros((len(ptr) - 1, self.dim))
        of = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
        np.add.at(z, of, values[:, None] * self.rows[keys.astype(int), : self.dim])
        return z

    def backward(self, ptr, keys, values, dz):
        of = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
        unique, place = np.unique(keys.astype(int), return_inverse=True)
        gradient = np.zeros((len(unique), self.dim))
        np.add.at(gradient, place, values[:, None] * dz[of])
        for key, value in zip(unique, gradient, strict=True):
            self.rows[key] = twin.apply_row(self.access, self.hyper, self.rows[key], value)


class ReferenceNet:
    """A network with a sparse first layer: float64, one process, no optimisation.

    Parameters
    ----------
    columns : int
        Number of features.
    sizes : sequence of int
        Width of the first layer, of further hidden ones, outputs.
    in_flight : int
        Batches under way: the first layer of a batch lacks the steps of `in_flight - 1` others.
    """

    def __init__(
        self, columns, sizes, *, activation="relu", loss="logistic", access=2, hyper=(0.05, 1e-8),
        init_scale=0.05, seed=0, in_flight=1,
    ):  # fmt: skip
        self.sizes, self.activation, self.loss, self.in_flight = sizes, activation, loss, in_flight
        self.first = Reference(
            columns, sizes[0], access, hyper, 1, init_scale, seed, {1: 0, 2: 1, 3: 2}[access]
        )
        self.dense, self.states = [], []
        for into, out in itertools.pairwise(sizes):
            self._tensor(into * out, 1, (6 / (into + out)) ** 0.5, seed)
        self._tensor(sum(sizes), 0, 0.0, seed)

    def _tensor(self, size, kind, scale, seed):
        """A tensor as servers keep it: rows of up to 1,024 values, each with its state."""
        dim = min(size, 1024)
        chunks = -(-size // dim)
        first = [twin.init_row(kind, scale, seed, key, dim) for key in range(chunks)]
        state = self.first.rows.shape[1] - self.first.dim
        per_row = state // self.first.dim * dim + (self.first.access == 3)
        rows = np.zeros((chunks, dim + per_row))
        rows[:, :dim] = first
        self.states.append((rows, dim, size))

    def parameters(self):
        """Weight matrices, then a bias for each layer."""
        flat = [rows[:, :dim].reshape(-1)[:size] for rows, dim, size in self.states]
        shapes = itertools.pairwise(self.sizes)
        weights = [values.reshape(shape) for values, shape in zip(flat[:-1], shapes, strict=True)]
        return weights, np.split(flat[-1], np.cumsum(self.sizes)[:-1])

    def train(self, batches):
        """Trains batches (ptr, keys, values, labels); the mean loss of each before its step."""
        losses, z = [], []
        ahead = 0
        for number, (ptr, keys, values, labels) in enumerate(batches):
            while ahead < min(len(batches), number + self.in_flight):
                z.append(self.first.forward(*batches[ahead][:3]))
                ahead += 1
            loss, dz, gradients = self.step(z[number], labels)
            self.first.backward(ptr, keys, values, dz)
            for (rows, dim, size), gradient in zip(self.states, gradients, strict=True):
                padded = np.zeros(rows.shape[0] * dim)
                padded[:size] = gradient.reshape(-1)
                for key, value in enumerate(padded.reshape(-1, dim)):
                    rows[key] = twin.apply_row(
                        self.first.access, self.first.hyper, rows[key], value
                    )
            losses.append(loss)
        return losses

    def scores(self, z):
        return self._layers(z)[-1]

    def step(self, z, labels):
        """Mean loss, dL/dZ, gradients of weights and biases."""
        weights, _ = self.parameters()
        outputs = self._layers(z)
        loss, delta = self._loss(outputs[-1], labels)
        delta = delta / len(labels)
        of_weights, of_biases = [], [delta.sum(axis=0)]
        for number in range(len(weights) - 1, -1, -1):
            below = outputs[number]
            of_weights.insert(0, below.T @ delta)
            slope = below > 0 if self.activation == "relu" else below * (1 - below)
            delta = (delta @ weights[number].T) * slope
            of_biases.insert(0, delta.sum(axis=0))
        return loss.mean(), delta, [*of_weights, np.concatenate(of_biases)]

    def _layers(self, z):
        weights, biases = self.parameters()
        outputs = []
        x = z + biases[0]
        for number in range(len(biases)):
            last = number == len(biases) - 1
            if not last:
                x = np.maximum(x, 0) if self.activation == "relu" else 1 / (1 + np.exp(-x))
            outputs.append(x)
            if not last:
                x = x @ weights[number] + biases[number + 1]
        return outputs

    def _loss(self, scores, labels):
        """Loss of each example, and the gradient of the loss by the scores."""
        if self.loss == "squared":
            return 0.5 * (scores[:, 0] - labels) ** 2, scores - labels[:, None]
        if self.loss == "logistic":
            chance = 1 / (1 + np.exp(-scores[:, 0]))
            yes = labels > 0
            return -np.log(np.where(yes, chance, 1 - chance)), (chance - yes)[:, None]
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        truth = np.eye(scores.shape[1])[labels.astype(int)]
        return -np.log((chances * truth).sum(axis=1)), chances - truth


def libsvm(ptr, keys, values, labels):
    """The examples as LIBSVM text."""
    lines = []
    for i, label in enumerate(labels):
        entries = range(ptr[i], ptr[i + 1])
        lines.append(" ".join([f"{label:g}", *(f"{keys[k]}:{values[k]:.9g}" for k in entries)]))
    return ("\n".join(lines) + "\n").encode()
