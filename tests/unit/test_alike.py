"""Several workers learn what one does: of each model, optimiser and loss (`alike`)."""

import functools

import pytest
from alike import CASES, SLOTS, WITHIN, WORKERS

SEVERAL = WORKERS[1:]
SMOKE = {
    "transe margin adagrad normalize",
    "rotate logistic adagrad",
    "transe logistic sgd",
    "mf softmax adagrad",
    "linear logistic adagrad",
    "fm squared sgd",
    "sparse_net multinomial adam",
    "classifier softmax add",
}
"""Models that eight workers train in each run of the tests."""


def marks(case, workers):
    return [] if case.name in SMOKE and workers == 8 else [pytest.mark.long]


def every(names=("case", "workers")):
    return pytest.mark.parametrize(
        names,
        [
            pytest.param(case, workers, id=f"{case.name}-{workers}", marks=marks(case, workers))
            for case in CASES
            for workers in SEVERAL
        ],
    )


@pytest.fixture(scope="session")
def of_one(tmp_path_factory):
    """What one worker learns."""

    @functools.cache
    def of_one(case, schedule):
        return case.run(tmp_path_factory.mktemp("one"), 1, schedule)

    return of_one


@every()
@pytest.mark.parametrize("schedule", ["async", pytest.param("ssp", marks=pytest.mark.long)])
def test_workers_learn_what_one_does(tmp_path, of_one, case, workers, schedule):
    figure = case.figure(tmp_path, workers, schedule)
    assert figure >= of_one(case, "async")[0] - WITHIN


@every()
def test_workers_of_common_steps_have_the_bits_of_one(tmp_path, of_one, case, workers):
    short = {"epochs": 1}
    _, rows = case.run(tmp_path, workers, "bsp", **short)
    assert rows == case.run(tmp_path / "one", 1, "bsp", **short)[1]
    assert SLOTS == 8
