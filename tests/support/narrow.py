"""What products of bfloat16 may change in a training of a few groups."""

from __future__ import annotations

import numpy as np
import pytest

from snailps import kernels

HALF_BIT = 2.0**-9
"""How far a factor is moved by its rounding, of its size."""

narrow_builds = pytest.mark.parametrize(
    "build",
    [b for b in kernels.builds_available() if kernels.load(b).narrow_products() != "none"]
    or [pytest.param("avx512", marks=pytest.mark.skip("no products of bfloat16 here"))],
)


def assert_rounded_alike(toy, build, dim, state=dict, **changed):
    """Trained narrowly, rows make the steps of float32, but for what rounding two factors moves.

    `state` makes arguments that a training changes.
    """
    wide, narrow = (toy.train(build, narrow=on, **state(), **changed) for on in (False, True))
    assert narrow[3] == wide[3] > 0
    assert narrow[2] == pytest.approx(wide[2], rel=8 * HALF_BIT)
    differ = False
    for before, a, b in zip((toy.inputs, toy.outputs), wide, narrow, strict=False):
        steps, others = (rows[:, :dim] - before[:, :dim] for rows in (a, b))
        most = np.abs(steps).max()
        assert np.abs(steps - others).max() <= 16 * HALF_BIT * most
        assert np.square(steps - others).mean() <= (2 * HALF_BIT) ** 2 * np.square(steps).mean()
        assert not b[:, dim:].any()
        differ |= (steps != others).any()
    assert differ  # it did round
