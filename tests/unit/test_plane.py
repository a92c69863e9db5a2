"""Maps of rows: groups that differ are apart, and a map lies like the one before."""

import numpy as np
import pytest

from snailps.master.job.model_reader import plane, turned


def groups(rng, dim=20):
    centres = np.eye(3, dim) * 5
    return np.repeat(centres, 10, axis=0) + rng.normal(0, 0.1, (30, dim))


def test_sharp_map_keeps_groups_apart():
    places = plane(groups(np.random.default_rng(1)).astype(np.float32), sharp=True)
    middles = places.reshape(3, 10, 2).mean(axis=1)
    within = np.abs(places.reshape(3, 10, 2) - middles[:, None]).max()
    between = min(np.linalg.norm(middles[i] - middles[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    assert between > 5 * within


@pytest.mark.parametrize("sharp", [True, False])
@pytest.mark.parametrize("shape", [(3, 1), (3, 2), (150, 100), (2, 5)])
def test_places_are_within_the_map(sharp, shape):
    rows = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    places = plane(rows, sharp=sharp)
    assert places.dtype == np.float32
    assert np.isfinite(places).all()
    assert np.abs(places).max() <= 1


def test_rows_of_zeros_have_places():
    assert np.isfinite(plane(np.zeros((5, 8), np.float32), sharp=True)).all()


def test_drawn_directions_are_always_the_same():
    rows = np.random.default_rng(3).normal(size=(9, 6)).astype(np.float32)
    assert np.array_equal(plane(rows, sharp=False), plane(rows, sharp=False))


def test_mirrored_and_turned_map_is_turned_back():
    places = np.random.default_rng(4).uniform(-0.6, 0.6, (40, 2)).astype(np.float32)
    angle = 2.0
    turn = np.array([[np.cos(angle), np.sin(angle)], [np.sin(angle), -np.cos(angle)]])
    assert np.allclose(turned((places @ turn).astype(np.float32), places), places, atol=1e-5)
