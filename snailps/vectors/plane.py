"""Projects rows to a plane for the live page: similar rows are near each other.

    rows (n, dim) -> directions -> random projection, or principal components -> (n, 2) in [-1, 1]
    -> turned towards an earlier map, so that points do not jump

Must not know files or words.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SEED = 20_240_917
EDGE = 0.97
"""Share of the coordinates that lie inside the map; outliers are moved to its edge."""


def plane(rows: NDArray[np.float32], *, sharp: bool) -> NDArray[np.float32]:
    """Project rows (n, dim) to a plane: float32 (n, 2), from -1 to 1.

    `sharp` uses principal components; else two fixed random directions, which suit untrained rows:
    their principal components would be noise.
    """
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = (rows / np.maximum(lengths, 1e-12)).astype(np.float64)
    units -= units.mean(axis=0)
    if sharp and min(units.shape) >= 2:
        directions = np.linalg.svd(units, full_matrices=False)[2][:2].T
    else:
        drawn = np.random.default_rng(SEED).standard_normal((units.shape[1], 2))
        directions = np.linalg.qr(drawn)[0] if units.shape[1] >= 2 else np.ones((1, 2))
    points = units @ directions
    size = np.quantile(np.abs(points), EDGE) if points.size else 0.0
    clipped: NDArray[np.float64] = np.clip(points / max(size, 1e-12), -1.0, 1.0)
    return clipped.astype(np.float32)


def turned(places: NDArray[np.float32], like: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rotate or mirror points towards others (orthogonal Procrustes, Schoenemann, 1966)."""
    left, _, right = np.linalg.svd(places.astype(np.float64).T @ like.astype(np.float64))
    clipped: NDArray[np.float64] = np.clip(places @ (left @ right), -1.0, 1.0)
    return clipped.astype(np.float32)
