"""Sparse batches for tests, and what a table's shards should make of them, in NumPy."""

from __future__ import annotations

import numpy as np

from twins import kernels as twin


def batch(rng, examples, columns, entries, ones=False, empty=0.1):
    """A batch as CSR: ptr, keys, values; some examples empty, keys repeated within some."""
    counts = rng.integers(1, 2 * entries, examples)
    counts[rng.random(examples) < empty] = 0
    ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    keys = rng.integers(0, columns, ptr[-1]).astype(np.uint64)
    values = np.ones(ptr[-1]) if ones else rng.normal(size=ptr[-1])
    return ptr, keys, values.astype(np.float32)


class Reference:
    """A table of weights in float64, all rows there: init, product, step."""

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
