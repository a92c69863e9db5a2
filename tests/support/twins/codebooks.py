"""Product quantisation, plainly: nearest centroids, and k-means by them."""

import numpy as np


def nearest(points, centroids):
    """Number of the nearest centroid of each point; of equally near ones the first."""
    differences = points[:, None, :].astype(np.float64) - centroids[None].astype(np.float64)
    return np.argmin((differences**2).sum(axis=2), axis=1)


def squared_error(points, centroids):
    """Sum of squared distances to the nearest centroids."""
    return float(((points - centroids[nearest(points, centroids)]) ** 2).sum())


def round_of_means(points, centroids):
    """A round of Lloyd's algorithm in which no centroid is left without points."""
    numbers = nearest(points, centroids)
    assert len(set(numbers.tolist())) == len(centroids)
    return np.stack([points[numbers == c].mean(axis=0) for c in range(len(centroids))])
