"""models.row_updates: what workers push as a sum is a step, and every model says what is not."""

import numpy as np
import pytest
from alike import BY_NAME
from emulated import trained

from snailps.api.worker import load_class
from snailps.models import CLASSES
from snailps.models.row_updates import ROW_BOUND, RowUpdate, are_bounded, make_unit

RATE = 1e-6
STEPPED = [
    "transe margin adagrad normalize",
    "transe margin sgd normalize",
    "rotate logistic adagrad",
    "complex softmax sgd",
    "mf squared sgd",
    "mf pairwise adagrad",
    "linear multinomial ftrl",
    "linear logistic sgd",
    "fm squared adagrad",
    "sparse_net logistic adagrad",
    "mlp multinomial sgd",
    "skipgram ns adagrad",
    "cbow ns add",
    "classifier softmax add",
]
NO_STEPS = {"text", "lines", "global_step"}
"""Tables of what is written, or counted, once."""


@pytest.mark.parametrize("schedule", ["async", "bsp"])
@pytest.mark.parametrize("name", STEPPED)
def test_workers_with_a_rate_of_nearly_zero_change_no_row(tmp_path, name, schedule):
    """Else what they change is no step of a gradient, and N of them change it N times."""
    case = BY_NAME[name]
    job = case.job(tmp_path, schedule) | {"lr": RATE, "epochs": 1}
    with trained(job, 2) as (_, results):
        for table, declared in results.tables.items():
            if table in NO_STEPS:
                continue
            for keys, rows in results.scan(table):
                first = np.empty_like(rows)
                declared.fill_first(keys, first)
                np.testing.assert_allclose(rows, first, atol=1e-3)


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
