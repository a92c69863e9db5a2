"""Rows in a plane, to be looked at: a map in which those that are alike are near each other.

    rows (n, dim) -> directions -> random projection, or principal components -> (n, 2) in [-1, 1]
    -> turned to lie like an earlier map

No files, no words.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SEED = 20_240_917
EDGE = 0.97
"""Share of the coordinates that are within the map; the others lie at its edge."""


def plane(rows: NDArray[np.float32], *, sharp: bool) -> NDArray[np.float32]:
    """Places of rows (n, dim) in a plane: float32 (n, 2), from -1 to 1.

    `sharp`: by principal components; else by two fixed random directions, for untrained rows.
    """
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = (rows / np.maximum(lengths, 1e-12)).astype(np.float64)
    units -= units.mean(axis=0)
    if sharp and min(units.shape) >= 2:
        directions = np.linalg.svd(units, full_matrices=False)[2][:2].T
    else:
        drawn = np.random.default_rng(SEED).standard_normal((units.shape[1], 2))
        directions = np.linalg.qr(drawn)[0] if units.shape[1] >= 2 else np.ones((1, 2))
    found = units @ directions
    size = np.quantile(np.abs(found), EDGE) if found.size else 0.0
    clipped: NDArray[np.float64] = np.clip(found / max(size, 1e-12), -1.0, 1.0)
    return clipped.astype(np.float32)


def turned(places: NDArray[np.float32], like: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rotate or mirror places as near to others as possible (Schoenemann, Procrustes, 1966)."""
    left, _, right = np.linalg.svd(places.astype(np.float64).T @ like.astype(np.float64))
    clipped: NDArray[np.float64] = np.clip(places @ (left @ right), -1.0, 1.0)
    return clipped.astype(np.float32)
