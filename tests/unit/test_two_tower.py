"""models.two_tower: gradients against differences, and what is learnt."""

import numpy as np
import pytest

from snailps.models.two_tower import Side, cross_entropy


def test_gradients_are_those_of_differences():
    random = np.random.default_rng(1)
    queries, items = random.normal(size=(2, 5, 3)).astype(np.float32)
    _, gradients = cross_entropy(queries, items, 0.5)
    for rows, gradient in zip((queries, items), gradients, strict=True):
        for at in np.ndindex(rows.shape):
            before, sides = rows[at], []
            for step in (1e-2, -1e-2):
                rows[at] = before + step
                sides.append(cross_entropy(queries, items, 0.5)[0])
            rows[at] = before
            assert gradient[at] == pytest.approx((sides[0] - sides[1]) / 2e-2, abs=2e-2)


def test_a_line_is_the_mean_of_its_words():
    side = Side.of([["a", "b"], ["b"], ["c", "a", "a"]])
    rows = np.eye(3, dtype=np.float32)
    a, b, c = (rows[side.places[at]] for at in (0, 1, 3))
    np.testing.assert_allclose(side.means(rows, slice(0, 2)), [(a + b) / 2, b])
    np.testing.assert_allclose(side.means(rows, slice(2, 3)), [(c + 2 * a) / 3])
