"""The example: its README works as written, and it learns what it should."""

import numpy as np
import pytest

from examples.logistic import auc


@pytest.mark.parametrize(
    ("labels", "scores", "expected"),
    [
        ([0, 0, 1, 1], [1, 2, 3, 4], 1.0),
        ([1, 1, 0, 0], [1, 2, 3, 4], 0.0),
        ([0, 1, 0, 1], [1, 1, 1, 1], 0.5),
        ([0, 1, 1], [2, 2, 3], 0.75),
        ([1, 1], [1, 2], None),
        ([], [], None),
    ],
)
def test_auc_known_answers(labels, scores, expected):
    assert auc(np.array(labels, bool), np.array(scores, float)) == expected


def test_auc_is_the_share_of_pairs_in_order():
    random = np.random.default_rng(1)
    labels, scores = random.random(200) < 0.3, random.integers(0, 20, 200).astype(float)
    difference = scores[labels][:, None] - scores[~labels]
    share = float(((difference > 0) + (difference == 0) / 2).mean())
    assert auc(labels, scores) == pytest.approx(share, rel=1e-12)
