"""Kernels of product quantisation, in each build, against a plain twin."""

import numpy as np
import pytest
from twins import codebooks as twin

from snailps import kernels

BUILDS = kernels.builds_available()
CENTROIDS = kernels.CENTROIDS


def columns_of(points):
    """The points column by column, padded as the kernel wants them."""
    stride = -(-len(points) // kernels.POINTS) * kernels.POINTS
    columns = np.full((points.shape[1], stride), 1e9, np.float32)
    columns[:, : len(points)] = points.T
    return columns


def trained(build, points, centroids, rounds):
    centroids = np.array(centroids, np.float32)
    kernels.load(build).train_codebook(columns_of(points), len(points), centroids, rounds)
    return centroids


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5])
def test_a_round_moves_each_centroid_to_the_mean_of_its_points(build, width):
    rng = np.random.default_rng(width)
    points = rng.normal(size=(1000, width)).astype(np.float32)
    centroids = points[rng.choice(1000, CENTROIDS, replace=False)]
    expected = twin.round_of_means(points, centroids)
    np.testing.assert_allclose(trained(build, points, centroids, 1), expected, atol=1e-6)


@pytest.mark.parametrize("build", BUILDS)
def test_rounds_lower_the_error_until_nothing_moves(build):
    rng = np.random.default_rng(3)
    points = rng.normal(size=(1500, 2)).astype(np.float32)
    start = points[:CENTROIDS]
    errors = [twin.squared_error(points, trained(build, points, start, n)) for n in (0, 1, 3, 300)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.75 * errors[0]
    end = trained(build, points, start, 300)
    np.testing.assert_allclose(trained(build, points, end, 1), end, atol=1e-6)


@pytest.mark.parametrize("build", BUILDS)
def test_centroids_without_points_take_over_others(build):
    """Points of 200 places: all centroids begin at one of them, and each place gets its own."""
    places = np.random.default_rng(1).normal(size=(200, 2)).astype(np.float32)
    points = np.repeat(places, 5, axis=0)
    end = trained(build, points, np.repeat(places[:1], CENTROIDS, axis=0), 200)
    assert twin.squared_error(points, end) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize(("dim", "width"), [(1, 1), (7, 2), (8, 2), (9, 4), (11, 11), (33, 5)])
@pytest.mark.parametrize("count", [1, 63, 64, 150])
def test_codes_are_the_nearest_centroids_of_each_part(build, dim, width, count):
    rng = np.random.default_rng(dim)
    rows = rng.normal(size=(count, dim)).astype(np.float32)
    scales = rng.uniform(0.5, 2, count).astype(np.float32)
    starts = range(0, dim, width)
    parts = [rng.normal(size=(CENTROIDS, min(width, dim - s))).astype(np.float32) for s in starts]
    flat = np.concatenate([part.ravel() for part in parts])
    room = np.zeros(rows.nbytes + 1, np.uint8)
    room[1:] = rows.ravel().view(np.uint8)
    unaligned = room[1:].view(np.float32).reshape(rows.shape)
    for factors in (None, scales):
        codes = np.full((count, len(parts)), 77, np.uint8)
        kernels.load(build).encode_rows(unaligned, flat, width, codes, factors)
        scaled = rows if factors is None else rows * factors[:, None]
        for part, start in enumerate(starts):
            points = scaled[:, start : start + width]
            np.testing.assert_array_equal(codes[:, part], twin.nearest(points, parts[part]))


def test_arrays_that_do_not_fit_are_refused():
    made = kernels.load("base")
    columns, centroids = np.zeros((2, 64), np.float32), np.zeros((256, 2), np.float32)
    for bad in (0, 65):
        with pytest.raises(ValueError, match="as many points"):
            made.train_codebook(columns, bad, centroids, 1)
    with pytest.raises(ValueError, match="multiple of 64"):
        made.train_codebook(columns[:, :63].copy(), 63, centroids, 1)
    with pytest.raises(ValueError, match="centroids must be 256 x 2"):
        made.train_codebook(columns, 64, centroids[:255], 1)
    rows, flat = np.zeros((5, 7), np.float32), np.zeros(256 * 7, np.float32)
    codes = np.zeros((5, 4), np.uint8)
    made.encode_rows(rows, flat, 2, codes)
    for given in (
        (rows[:4], flat, 2, codes),
        (rows.astype(np.float64), flat, 2, codes),
        (np.zeros((5, 8), np.float32)[:, :7], flat, 2, codes),
        (rows, flat[1:].copy(), 2, codes),
        (rows, flat, 3, codes),
        (rows, flat, 0, codes),
        (rows, flat, 2, codes, np.ones(4, np.float32)),
    ):
        with pytest.raises(ValueError, match=r"rows must|do not make|scales must"):
            made.encode_rows(*given)
