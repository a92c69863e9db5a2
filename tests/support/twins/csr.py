"""NumPy twins of snailps/kernels/_csr.h: products with a sparse matrix, plainly, in float64."""

from __future__ import annotations

import numpy as np


def dense(ptr, rows, values, columns):
    """The matrix, examples by columns; entries of the same place add up."""
    whole = np.zeros((len(ptr) - 1, columns))
    examples = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    np.add.at(whole, (examples, rows[: ptr[-1]]), values[: ptr[-1]])
    return whole


def csr_product(ptr, rows, values, table):
    return dense(ptr, rows, values, len(table)) @ table.astype(np.float64)


def csr_gradients(ptr, rows, values, dz, columns):
    return dense(ptr, rows, values, columns).T @ dz.astype(np.float64)
