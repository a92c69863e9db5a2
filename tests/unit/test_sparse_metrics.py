"""Metrics by loss: known answers, ties, batches that add up, labels that are none."""

import itertools
import math

import numpy as np
import pytest

from snailps.models.losses import LOSSES
from snailps.models.sparse import metrics


def judged(loss, labels, scores, pieces=1):
    judge = LOSSES[loss].judge()
    scores = np.array(scores, np.float32)
    scores = scores[:, None] if scores.ndim == 1 else scores
    labels = np.array(labels, np.float32)
    for part in np.array_split(np.arange(len(labels)), pieces):
        judge.add(labels[part], scores[part])
    return judge.figures()


def pairs_auc(yes, scores):
    won = [
        (a > b) + (a == b) / 2
        for (a, i), (b, j) in itertools.product(zip(scores, yes, strict=True), repeat=2)
        if i and not j
    ]
    return sum(won) / len(won)


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_auc_with_ties_equals_count_of_pairs(levels):
    rng = np.random.default_rng(levels)
    yes, scores = rng.random(60) < 0.3, rng.integers(0, levels, 60) / 7
    assert metrics.auc(yes, scores) == pytest.approx(pairs_auc(yes, scores), abs=1e-12)


@pytest.mark.parametrize("yes", [[True, True], [False], []])
def test_auc_without_pairs_is_not_known(yes):
    assert metrics.auc(np.array(yes, bool), np.arange(len(yes))) is None


def test_yes_no_of_known_scores_gives_known_figures():
    odds = math.log(3)  # P = 3/4
    found = judged("logistic", [1, -1, 1, 0], [odds, odds, -odds, -odds])
    assert found["examples"] == 4
    assert found["log_loss"] == pytest.approx(-(math.log(0.75) + math.log(0.25)) / 2, rel=1e-6)
    assert found["accuracy"] == 0.5
    assert found["auc"] == 0.5
    assert found["calibration"] == pytest.approx(1.0)


def test_yes_no_in_pieces_equals_at_once():
    rng = np.random.default_rng(5)
    labels, scores = rng.integers(0, 2, 500), rng.normal(0, 2, 500)
    assert judged("logistic", labels, scores, 7) == judged("logistic", labels, scores)


def test_yes_no_with_far_scores_has_finite_loss():
    found = judged("logistic", [1, 0], [-1e30, 1e30])
    assert found["log_loss"] == pytest.approx(1e30)
    assert found["accuracy"] == 0


def test_yes_no_without_a_yes_has_no_calibration():
    found = judged("logistic", [0, 0], [1.0, 2.0])
    assert (found["calibration"], found["auc"]) == (None, None)


def test_reliability_of_calibrated_predictions_lies_on_the_diagonal():
    rng = np.random.default_rng(8)
    chances = rng.random(50_000)
    table = metrics.reliability(rng.random(50_000) < chances, chances)
    assert len(table) == metrics.BINS
    assert sum(row["examples"] for row in table) == 50_000
    for row in table:
        assert row["observed"] == pytest.approx(row["predicted"], abs=0.03)


def test_real_of_known_scores_gives_known_figures():
    found = judged("squared", [1, 2, 3], [2.0, 2.0, 1.0], 2)
    assert found["rmse"] == pytest.approx(math.sqrt(5 / 3))
    assert found["mae"] == pytest.approx(1.0)
    assert (found["mean_prediction"], found["mean_label"]) == (pytest.approx(5 / 3), 2.0)


def test_counts_of_known_scores_give_known_figures():
    found = judged("poisson", [0, 2], np.log([1.0, 1.0]), 2)
    assert found["deviance"] == pytest.approx((2 + 2 * (2 * math.log(2) - 1)) / 2)
    assert (found["mean_prediction"], found["mean_label"]) == (pytest.approx(1), 1)
    assert judged("poisson", [3], [math.log(3)])["deviance"] == pytest.approx(0, abs=1e-6)
    assert math.isfinite(judged("poisson", [3], [1e30])["deviance"])


def test_classes_of_known_scores_gives_known_figures():
    scores = np.log([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]])
    found = judged("multinomial", [0, 1], scores)
    assert found["log_loss"] == pytest.approx(-(math.log(0.5) + math.log(0.1)) / 2, rel=1e-6)
    assert found["accuracy"] == 0.5


@pytest.mark.parametrize("label", [3, -1, 0.5])
def test_classes_with_label_that_is_none_counts_as_wrong(label):
    scores = np.log([[0.5, 0.3, 0.2]])
    found = judged("multinomial", [label], scores)
    assert found["accuracy"] == 0
    assert found["log_loss"] == pytest.approx(-math.log(0.2), rel=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_judge_of_nothing_says_so(loss):
    assert judged(loss, [], np.zeros((0, 2)))["examples"] == 0


def test_predictions_of_losses_follow_their_links():
    scores = np.array([[0.0, math.log(3)]])
    assert LOSSES["logistic"].link(scores).tolist() == [0.5]
    assert LOSSES["squared"].link(scores).tolist() == [0.0]
    np.testing.assert_allclose(LOSSES["multinomial"].link(scores), [[0.25, 0.75]])
