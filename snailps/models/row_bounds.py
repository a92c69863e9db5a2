"""Bounds of rows: weights beyond which a training has diverged, and lengths of unit vectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


LOSS_BOUND = 100.0
"""`Limited.loss_bound` of models whose rows start near zero."""
ROW_BOUND = 1e6
"""A weight beyond it has diverged: in float32, scores then have no digit after the point."""
UNIT_ERROR = 1e-5
"""A squared length this near to 1 stays, so that an unchanged row comes back to the bit."""
UNIT_LEAST = 1e-12
"""Squared length below which a vector has no direction."""


def are_bounded(rows: Floats) -> bool:
    """Whether all weights are within `ROW_BOUND`.

    Kernels that clip scores hide larger weights, and NaN, from the loss.
    """
    if not rows.size:
        return True
    return bool(rows.min() >= -ROW_BOUND and rows.max() <= ROW_BOUND)


def make_unit(rows: Floats) -> None:
    """Scale vectors (n, dim) to length 1, in place."""
    squares = np.einsum("ij,ij->i", rows, rows)
    wrong = np.flatnonzero((np.abs(squares - 1) > UNIT_ERROR) & (squares > UNIT_LEAST))
    if len(wrong):
        rows[wrong] /= np.sqrt(squares[wrong])[:, None]
