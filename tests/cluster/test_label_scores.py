"""Scores of classifiers beside scikit-learn, whose import is too much for tests/unit."""

import json
from functools import partial

import numpy as np
import pytest
from test_label_prediction import judged  # noqa: F401

from snailps.vectors.label_prediction import evaluate_labels


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize(("k", "threshold"), [(1, 0.0), (2, 0.1), (-1, 0.3)])
def test_scores_are_those_of_scikit_learn(judged, tmp_path, k, threshold, weighed):  # noqa: F811
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    model, path, truth, texts = judged
    weights, columns = np.ones(len(texts)), {}
    if weighed:
        weights = np.random.default_rng(8).integers(0, 8, len(texts)) / 4
        columns = {"column": "text", "label_column": "labels", "weight_column": "weight"}
        path = tmp_path / "t.jsonl"
        rows = zip(texts, truth, weights.tolist(), strict=True)
        path.write_text(
            "".join(
                json.dumps({"text": text, "labels": np.flatnonzero(own).tolist(), "weight": weight})
                + "\n"
                for text, own, weight in rows
            )
        )
    found = evaluate_labels(model, path, k, threshold, ranking=True, recall=0.8, **columns)
    chances = model.probabilities(texts)
    said = np.zeros_like(truth)
    order = np.argsort(-chances, axis=1)[:, : k if k > 0 else None]
    np.put_along_axis(said, order, 1, axis=1)
    said[chances < np.float32(threshold)] = 0
    judge = metrics.precision_recall_fscore_support
    micro = judge(truth, said, average="micro", zero_division=0, sample_weight=weights)[:3]
    assert (found.precision, found.recall, found.f1) == pytest.approx(micro)
    met = np.flatnonzero(truth.any(axis=0) | said.any(axis=0))
    mean = judge(truth, said, average="macro", labels=met, zero_division=0, sample_weight=weights)[
        :3
    ]
    macro = found.macro
    assert (macro.precision, macro.recall, macro.f1) == pytest.approx(mean)
    assert macro.labels == len(met)
    average = partial(metrics.average_precision_score, sample_weight=weights)
    assert found.average_precision == pytest.approx(average(truth, chances, average="micro"))
    mean = average(truth[:, :5], chances[:, :5], average="macro")
    assert macro.average_precision == pytest.approx(mean)
    for one in found.labels:
        number = int(one.label.removeprefix(b"__label__"))
        own, likely = truth[:, number], chances[:, number]
        if not own.any():
            ranked = one.average_precision, one.precision_at_recall, one.threshold
            assert ranked == (None, None, None)
            continue
        assert one.average_precision == pytest.approx(average(own, likely))
        precision, recall, _ = metrics.precision_recall_curve(own, likely, sample_weight=weights)
        assert one.precision_at_recall == pytest.approx(precision[recall >= 0.8].max())
        chosen = likely >= np.float32(one.threshold)  # the threshold does what it is said to do
        assert np.average(own[chosen], weights=weights[chosen]) == pytest.approx(
            one.precision_at_recall
        )
        assert weights[chosen] @ own[chosen] >= 0.8 * (weights @ own) - 1e-9
        assert one.lines == own.sum()
