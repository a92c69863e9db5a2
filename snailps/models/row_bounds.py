"""Bounds of rows: of their weights, beyond which a training has diverged, and of unit vectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


LOSS_BOUND = 100.0
"""`Limited.loss_bound` of models whose rows begin near zero."""
ROW_BOUND = 1e6
"""Weights beyond it have diverged: with float32 a score has no digit behind the point then."""
UNIT_ERROR = 1e-5
"""Squared lengths so near to 1 are left: a row that nobody has changed comes back to the bit."""
UNIT_LEAST = 1e-12
"""Squared length below which a vector has no direction."""


def are_bounded(rows: Floats) -> bool:
    """Whether all weights are within `ROW_BOUND`: kernels that clip scores hide what is not, a NaN
    too."""
    if not rows.size:
        return True
    return bool(rows.min() >= -ROW_BOUND and rows.max() <= ROW_BOUND)


def make_unit(rows: Floats) -> None:
    """Make vectors (n, dim) unit vectors, in place."""
    squares = np.einsum("ij,ij->i", rows, rows)
    wrong = np.flatnonzero((np.abs(squares - 1) > UNIT_ERROR) & (squares > UNIT_LEAST))
    if len(wrong):
        rows[wrong] /= np.sqrt(squares[wrong])[:, None]
