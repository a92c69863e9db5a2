"""api.row_updates, models.row_bounds: each model says which of its changes are no steps."""

import numpy as np
import pytest

from snailps.api.row_updates import RowUpdate
from snailps.api.worker import load_class
from snailps.models import CLASSES
from snailps.models.row_bounds import ROW_BOUND, are_bounded, make_unit


@pytest.mark.parametrize("name", CLASSES)
def test_model_says_how_its_updates_reach_other_workers(name):
    updates = load_class(CLASSES[name], "a test").row_updates
    assert updates
    assert all(isinstance(kind, RowUpdate) for kind in updates.values())


def test_vectors_become_unit_vectors_but_those_that_are_or_have_no_direction():
    rows = np.float32([[3, 4], [0.6, 0.8], [0, 0], [0, 2e9], [1e-9, 0]])
    before = rows.copy()
    make_unit(rows)
    np.testing.assert_allclose(rows[[0, 3]], [[0.6, 0.8], [0, 1]], rtol=1e-6)
    np.testing.assert_array_equal(rows[[1, 2, 4]], before[[1, 2, 4]])


@pytest.mark.parametrize("value", [2 * ROW_BOUND, -2 * ROW_BOUND, np.inf, -np.inf, np.nan])
def test_rows_with_one_value_beyond_the_bound_are_not_bounded(value):
    rows = np.zeros((5, 4), np.float32)
    assert are_bounded(rows)
    assert are_bounded(rows[:0])
    rows[3, 2] = value
    assert not are_bounded(rows)
