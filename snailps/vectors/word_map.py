"""Draws a map of words: their vectors projected to a plane, by matplotlib.

    unit vectors -> principal_plane -> points and shares of the variance -> draw_map -> Axes

matplotlib is optional, so only `draw_map` imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from snailps.files.extras import optional_module

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


def principal_plane(vectors: Float32) -> tuple[Float64, Float64]:
    """Project at least 2 vectors to the plane of their two largest variances.

    Returns points float64[n, 2] with mean 0, and the axes' shares of the variance, float64[2].  The
    largest absolute coordinate of an axis is positive, so that the same vectors always give the
    same map.  Pearson, "On Lines and Planes of Closest Fit to Systems of Points in Space", 1901.
    """
    centred = vectors.astype(np.float64)
    centred -= centred.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(vectors), 2))
    shares = np.zeros(2)
    axes = min(2, len(sizes))
    points[:, :axes] = left[:, :axes] * sizes[:axes]
    total = float(sizes @ sizes)
    if total > 0:
        shares[:axes] = sizes[:axes] ** 2 / total
    far = np.abs(points).argmax(axis=0)
    points *= np.where(points[far, [0, 1]] < 0, -1.0, 1.0)
    return points, shares


def draw_map(words: Sequence[str], vectors: Float32, ax: Axes | None, labels: bool) -> Axes:
    """Draw words at their points on `ax`, or on a new figure."""
    points, shares = principal_plane(vectors)
    if ax is None:
        pyplot = optional_module("matplotlib.pyplot", "a map of words", "snailps[plot]")
        _, ax = pyplot.subplots(figsize=(8, 6), layout="constrained")
    assert ax is not None
    ax.scatter(points[:, 0], points[:, 1], s=12, alpha=0.7)
    if labels:
        for word, point in zip(words, points, strict=True):
            # `$` would begin a formula, and matplotlib cannot draw lone surrogates.
            text = word.encode("utf-8", "replace").decode().replace("$", r"\$")
            ax.annotate(text, point, xytext=(3, 3), textcoords="offset points", fontsize=8)
    ax.set_xlabel(f"first component, {shares[0]:.0%} of the variance")
    ax.set_ylabel(f"second component, {shares[1]:.0%} of the variance")
    ax.grid(alpha=0.3)
    return ax
