"""`LogisticRegression` and `LinearRegression` without a cluster; jobs are made up."""

import contextlib
import pickle

import numpy as np
import pytest

import snailps
from snailps.errors import DataError, NotFitted, ParameterError
from snailps.estimators import base, linear
from snailps.estimators.jobs import Finished
from snailps.estimators.labels import numbered
from snailps.models.sparse.batch import BIAS_KEY
from snailps.models.sparse.export import SavedModel

X = np.array([[1, 0], [0, 2], [1, 1], [0, 0]], np.float32)


@pytest.fixture
def jobs(monkeypatch):
    """Models whose weights are 0 and 2, with a bias of 0.5, negative for odd classes."""
    asked = []

    @contextlib.contextmanager
    def run(worker_class, settings, given, monitor, **_):
        asked.append((settings, given.units))
        outputs = settings.get("classes", 1)
        signs = np.where(np.arange(outputs) % 2, -1, 1)
        keys = np.array([1, BIAS_KEY], np.uint64)  # a row of zeros is left out
        rows = (np.array([[2], [0.5]]) * signs).astype(np.float32)
        saved = SavedModel(None, None, keys, rows, {})
        monkeypatch.setattr(linear, "read_npz", lambda path: saved)
        monitor.finish({}, [{"epoch": 1, "loss": 1.0, "examples_per_s": 1.0}])
        yield Finished({}, ["model.npz"])

    monkeypatch.setattr(base, "run_job", run)
    return asked


def test_fit_gives_weights_by_column(jobs):
    model = snailps.LogisticRegression(l2=0.5).fit(X, ["no", "yes", "yes", "no"])
    assert jobs == [({"l2": 0.5}, 4)]
    assert model.coef_.tolist() == [[0, 2]]
    assert model.intercept_.tolist() == [0.5]
    assert model.n_features_in_ == 2
    assert model.classes_.tolist() == ["no", "yes"]
    scores = [0.5, 4.5, 2.5, 0.5]
    assert model.decision_function(X).tolist() == scores
    assert model.predict(X).tolist() == ["yes"] * 4
    assert model.predict_proba(X)[:, 1] == pytest.approx(1 / (1 + np.exp(-np.array(scores))))
    assert model.score(X, ["yes", "yes", "no", "yes"]) == 0.75
    assert pickle.loads(pickle.dumps(model)).predict(X).tolist() == ["yes"] * 4


def test_several_classes_are_multinomial(jobs):
    model = snailps.LogisticRegression().fit(X, [3, 1, 2, 1])
    assert jobs[0][0] == {"loss": "multinomial", "classes": 3}
    assert model.coef_.shape == (3, 2)
    chances = model.predict_proba(X)
    assert chances.shape == (4, 3)
    assert chances.sum(axis=1) == pytest.approx(1)
    assert model.predict(X).tolist() == [1] * 4


def test_linear_regression_predicts_numbers(jobs):
    model = snailps.LinearRegression().fit(X, [0.5, 4.5, 2.5, 0.5])
    assert jobs[0][0] == {"loss": "squared"}
    assert model.predict(X).tolist() == [0.5, 4.5, 2.5, 0.5]
    assert model.score(X, [0.5, 4.5, 2.5, 0.5]) == 1.0


def test_csr_is_read_as_arrays_are(jobs):
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    model = snailps.LinearRegression().fit(sparse.csr_matrix(X), [0.5, 4.5, 2.5, 0.5])
    assert model.predict(sparse.csr_matrix(X)).tolist() == model.predict(X).tolist()


@pytest.mark.parametrize(
    ("given", "labels", "text"),
    [
        (
            [[1, 2], [3, 4]],
            [1, 0],
            "X: expected a matrix of scipy.sparse or a NumPy array of two axes",
        ),
        (X[0], [1, 0], "X: expected a matrix .* got ndarray"),
        (X, [1, 1, 1, 1], r"y: expected two different labels at least, got 1: \[1\]"),
        (X, [1, 0], "4"),
        (X * np.nan, [1, 0, 1, 0], "nan|finite"),
        (X, None, "y: expected a label for each"),
    ],
)
def test_wrong_data_is_refused(jobs, given, labels, text):
    with pytest.raises(DataError, match=text):
        snailps.LogisticRegression().fit(given, labels)


def test_wrong_use_is_refused(jobs):
    model = snailps.LogisticRegression()
    with pytest.raises(NotFitted, match="call fit first"):
        model.predict(X)
    with pytest.raises(DataError, match="expected 2 columns, as in fit; got 1"):
        model.fit(X, [1, 0, 1, 0]).predict(X[:, :1])
    with pytest.raises(ParameterError, match="unknown parameter 'loss'"):
        snailps.LogisticRegression(loss="squared")


@pytest.mark.parametrize("labels", [["b", "a", "b"], [3, -1, 3], [True, False, True]])
def test_labels_of_arrays_are_numbered_as_those_of_lists(labels):
    for given in (labels, np.array(labels)):
        classes, numbers = numbered(given)
        assert classes.tolist() == sorted(set(labels))
        assert numbers.tolist() == [1, 0, 1]
