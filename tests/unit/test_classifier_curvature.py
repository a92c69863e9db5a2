"""models.classifier.curvature: how steep the loss is in word rows and in label rows."""

import numpy as np
import pytest
from machine import peak_bytes

from snailps.models.classifier.curvature import (
    FEATURES_MAX,
    LEAD_MOST,
    LEAD_STEPS,
    LINES,
    OF_LABELS,
    STEP_MAX,
    Curvature,
)

DIM, STRIDE = 4, 8


def rows_of(rng, n, scale=1.0):
    rows = np.zeros((n, STRIDE), np.float32)
    rows[:, :DIM] = scale * rng.normal(size=(n, DIM))
    return rows


def measured(loss, inputs, outputs, ptr, features, labels=()):
    curvature = Curvature(loss, DIM)
    steps = np.asarray(labels, np.int32) if loss == "ns" else None
    curvature.begin(steps, len(ptr) - 1, len(outputs))
    curvature.begin_span(outputs)
    curvature.measure(inputs, outputs, np.asarray(ptr), np.asarray(features, np.int32))
    return curvature


def probabilities(loss, scores):
    if loss == "softmax":
        p = np.exp(scores - scores.max())
        return p / p.sum()
    return 1 / (1 + np.exp(-scores))


@pytest.mark.parametrize("loss", ["softmax", "ova"])
def test_steps_are_the_rates_and_the_curvatures_of_the_steepest_label(loss):
    rng = np.random.default_rng(0)
    inputs, outputs = rows_of(rng, 6), rows_of(rng, 3)
    ptr, features = [0, 2, 2, 5], [0, 1, 3, 3, 5]  # the second line is empty
    of_input, of_label = np.zeros(3), np.zeros(3)
    for words in ([0, 1], [3, 3, 5]):
        hidden = inputs[words, :DIM].mean(0)
        p = probabilities(loss, outputs[:, :DIM] @ hidden)
        of_input += p * (1 - p) * (outputs**2).sum(1) / 2
        of_label += p * (1 - p) * (hidden**2).sum() / 2
    got = measured(loss, inputs, outputs, ptr, features).steps(0.5, outputs, 0)
    np.testing.assert_allclose(
        got, (0.5 * of_input.max(), 0.5 * OF_LABELS * of_label.max()), rtol=1e-5
    )


def test_steps_on_one_label_are_the_second_derivative_of_the_loss():
    rng = np.random.default_rng(1)
    inputs, outputs = rows_of(rng, 1), rows_of(rng, 1)
    hidden, label = inputs[0, :DIM].astype(float), outputs[0, :DIM].astype(float)
    along, by = label / np.linalg.norm(label), 1e-3
    loss = [np.log1p(np.exp(-label @ (hidden + by * step * along))) for step in (-1, 0, 1)]
    curvature = measured("ova", inputs, outputs, [0, 1], [0])
    expected = (loss[0] - 2 * loss[1] + loss[2]) / by**2
    assert curvature.steps(1.0, outputs, 0)[0] == pytest.approx(expected, rel=1e-3)


def test_lines_without_features_in_front_of_more_label_rows_are_passed_over():
    rng = np.random.default_rng(2)
    inputs, few, more = rows_of(rng, 1), rows_of(rng, 2), rows_of(rng, 5)
    curvature = measured("ns", inputs, few, [0, 1], [0], [0, 1])
    ptr = np.array([0] * (LINES + 2) + [1])
    curvature.begin(np.arange(5, dtype=np.int32), len(ptr) - 1, 5)
    curvature.begin_span(more)
    curvature.measure(inputs, more, ptr, np.zeros(1, np.int32))
    alone = measured("ns", inputs, more, [0, 1], [0], np.repeat(np.arange(5), 2))
    assert curvature.steps(1.0, more, 0)[1] == pytest.approx(alone.steps(1.0, more, 0)[1])


def test_line_as_long_as_a_book_is_measured_at_its_beginning():
    rng = np.random.default_rng(3)
    inputs, outputs = rows_of(rng, 2), rows_of(rng, 2)
    features = np.repeat(np.arange(2), (FEATURES_MAX, 10 * FEATURES_MAX))
    found = []
    most = peak_bytes(
        lambda: found.append(measured("ova", inputs, outputs, [0, len(features)], features))
    )
    beginning = measured("ova", inputs, outputs, [0, 1], features[:1])
    np.testing.assert_allclose(
        found[0].steps(1.0, outputs, 0), beginning.steps(1.0, outputs, 0), rtol=1e-4
    )
    assert most < 4 * len(features) + 16 * FEATURES_MAX * STRIDE


def test_label_rows_at_zero_are_not_steep_for_words():
    inputs, outputs = rows_of(np.random.default_rng(2), 5), np.zeros((3, STRIDE), np.float32)
    curvature = measured("softmax", inputs, outputs, [0, 3, 5], np.arange(5))
    of_input, of_label = curvature.steps(0.1, outputs, 7)
    assert of_input == 0
    assert of_label > 0


def test_steps_reckon_with_workers_that_have_moved_label_rows_as_far():
    inputs, outputs = rows_of(np.random.default_rng(3), 5), rows_of(np.random.default_rng(4), 3)
    curvature = measured("softmax", inputs, outputs, [0, 3, 5], np.arange(5))
    resting = curvature.steps(0.1, outputs, 7)
    assert resting == pytest.approx(curvature.steps(0.1, outputs, 0))
    curvature.begin_span(0 * outputs)  # all of it is of this span
    np.testing.assert_allclose(
        curvature.steps(0.1, outputs, 7), [64 * step for step in resting], rtol=1e-4
    )


def test_labels_that_few_lines_sample_are_as_steep_as_often_as_they_are():
    inputs, outputs = rows_of(np.random.default_rng(5), 5), rows_of(np.random.default_rng(6), 2)
    outputs[1] = outputs[0]
    ptr, features = np.arange(6), np.arange(5)
    often = measured("ns", inputs, outputs, ptr, features, [0] * 5 + [1] * 5)
    rarely = measured("ns", inputs, outputs, ptr, features, [0, 1])
    assert rarely.steps(1.0, outputs, 0)[0] == pytest.approx(often.steps(1.0, outputs, 0)[0] / 5)


def test_it_is_measured_again_after_a_part_of_the_lines_so_far_and_in_each_block():
    inputs, outputs = rows_of(np.random.default_rng(7), 5), rows_of(np.random.default_rng(8), 2)
    curvature = Curvature("softmax", DIM)
    ptr, features = np.arange(6), np.arange(5, dtype=np.int32)
    again = []
    for span in range(64):
        if curvature.trained(LINES):
            again.append(span)
            curvature.measure(inputs, outputs, ptr, features)
    assert again[:8] == list(range(8))
    assert 15 < len(again) < 32
    curvature.begin(None, 5, 2)
    assert curvature.trained(0)


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e30])
def test_steps_of_rows_that_have_diverged_are_bounded(value):
    inputs, outputs = rows_of(np.random.default_rng(9), 5), rows_of(np.random.default_rng(10), 3)
    inputs[:, :DIM] *= 1e20
    outputs[1, 0] = value
    curvature = measured("softmax", inputs, outputs, [0, 3, 5], np.arange(5))
    for step in curvature.steps(0.1, outputs, 7):
        assert 0 <= step <= STEP_MAX


def test_block_without_features_is_not_measured():
    inputs, outputs = rows_of(np.random.default_rng(11), 5), rows_of(np.random.default_rng(12), 3)
    assert measured("softmax", inputs, outputs, [0, 0], []).steps(0.1, outputs, 1) == (0, 0)


def test_workers_lead_on_long_lines_while_label_rows_are_near_zero_and_never_again():
    """By as many steps as there are workers, but `LEAD_MOST`."""
    rng = np.random.default_rng(13)
    inputs, zero = rows_of(rng, 100), np.zeros((3, STRIDE), np.float32)
    lines = [measured("softmax", inputs, zero, [0, n], np.arange(n)) for n in (100, 50, 20)]
    longest, long, short = lines
    assert longest.lead(0.0, 8) == long.lead(0.0, 8) == 8
    assert longest.lead(0.0, 1000) == LEAD_MOST
    assert short.lead(0.0, 8) == 1
    step = 10 / LEAD_STEPS
    assert 1 < long.lead(step, 8) < longest.lead(step, 8) < 8
    assert long.lead(0.0, 8) < 8
    assert long.lead(STEP_MAX, 8) == 1
    assert longest.lead(step, 1) == 1
