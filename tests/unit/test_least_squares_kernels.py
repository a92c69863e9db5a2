"""kernels.solve_rows and add_gram against their NumPy twin, in every build."""

import numpy as np
import pytest
from twins import least_squares as twin

from snailps import kernels

builds = pytest.mark.parametrize("build", kernels.builds_available())


class System:
    """Names with few, many and no entries; other rows are normal, the Gram matrix is theirs."""

    def __init__(self, dim=20, others=400, counts=(3, 0, 1, 40, 7, 4500), weighted=False):
        rng = np.random.default_rng(dim)
        self.dim = dim
        self.others = kernels.padded(others, dim)
        self.others[:, :dim] = rng.normal(0, 0.3, (others, dim))
        stride = self.others.shape[1]
        self.gram = np.ascontiguousarray(0.01 * self.others.T @ self.others)
        self.ptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        self.places = rng.integers(0, others, self.ptr[-1]).astype(np.int32)
        self.weights = rng.normal(1, 1, len(self.places) * weighted).astype(np.float32)
        self.penalties = rng.uniform(0.05, 2, len(counts)).astype(np.float32)
        self.rows = kernels.padded(len(counts), stride)

    @property
    def arguments(self):
        return self.others, self.gram, self.ptr, self.places, self.weights, self.penalties

    def solve(self, build=kernels.BUILD, steps=5, first=0, last=None):
        last = len(self.rows) if last is None else last
        self.rows[first:last] = 7  # is overwritten, and not begun with
        return kernels.load(build).solve_rows(
            *self.arguments, self.rows, steps=steps, first=first, last=last
        )


@builds
@pytest.mark.parametrize("dim", [3, 16, 64, 100])
@pytest.mark.parametrize("weighted", [False, True])
def test_solve_rows_equals_twin(build, dim, weighted):
    system = System(dim, weighted=weighted)
    loss = system.solve(build)
    rows, wanted = twin.solve_rows(*system.arguments, 5)
    np.testing.assert_allclose(system.rows, rows, atol=3e-4)
    assert loss == pytest.approx(wanted, rel=1e-3)
    assert not system.rows[:, dim:].any()
    assert not system.rows[1].any()  # a name without entries


@builds
def test_enough_steps_solve_exactly(build):
    system = System(dim=8)
    system.solve(build, steps=30)
    rows, _ = twin.solve_rows(*System(dim=8).arguments, None)
    np.testing.assert_allclose(system.rows[:, :8], rows[:, :8], atol=2e-4)


def test_a_row_depends_on_its_own_entries_alone():
    system = System()
    system.solve()
    alone, whole = [], system.rows.copy()
    for name in range(len(whole)):
        system.solve(first=name, last=name + 1)
        alone.append(system.rows[name].copy())
    np.testing.assert_array_equal(alone, whole)


@builds
@pytest.mark.parametrize("count", [0, 1, 63, 200])
def test_add_gram_equals_twin_whoever_adds_which_rows(build, count):
    rng = np.random.default_rng(count)
    rows = kernels.padded(count, 40)
    rows[:, :40] = rng.normal(0, 1, (count, 40))
    load = kernels.load(build)
    whole, shared = (np.ones((48, 48)) for _ in range(2))
    load.add_gram(rows, whole, first=0, last=48)
    for first, last in ((40, 48), (0, 7), (7, 40)):
        load.add_gram(rows, shared, first=first, last=last)
    wanted = 1 + rows.T.astype(float) @ rows
    np.testing.assert_allclose(whole, wanted, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(whole, shared)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gram", np.zeros((16, 32), np.float32), "gram as many rows"),
        ("penalties", np.ones(2, np.float32), "of the 6 rows"),
        ("weights", np.ones(2, np.float32), "number an entry"),
        ("places", np.full(4551, 400, np.int32), "others"),
    ],
)
def test_solve_rows_refuses_what_it_would_read_outside_of(name, value, message):
    system = System()
    setattr(system, name, value)
    with pytest.raises(ValueError, match=message):
        system.solve()
