"""scikit-learn's own checks of estimators, without a cluster; weights are made up.

Those that judge what was learnt are in tests/cluster/test_estimator_checks_cluster.py.
"""

import pickle

import learners
import numpy as np
import pytest

import snailps

pytest.importorskip("sklearn.utils.estimator_checks", reason="scikit-learn is not installed")
if not learners.can_say_cases():
    pytest.skip("this scikit-learn cannot say its checks one by one", allow_module_level=True)


@pytest.mark.filterwarnings(*learners.WARNINGS)
@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        pytest.param(estimator, check, id=f"{name}-{what}")
        for name, what, estimator, check in learners.cases()
        if what not in learners.JUDGED and what not in learners.EXCEPTIONS
    ],
)
def test_check_of_scikit_learn_passes(monkeypatch, estimator, check):
    learners.MadeUpJobs(monkeypatch)
    check(estimator)


def test_metadata_routing_gives_weights(monkeypatch):
    import sklearn
    from sklearn import base, exceptions, model_selection

    learners.MadeUpJobs(monkeypatch)
    given = []

    class Model(snailps.LogisticRegression):
        def fit(self, X, y, sample_weight=None):
            given.append(sample_weight.tolist())
            return super().fit(X, y, sample_weight)

    model, weights = Model(), np.array([1.0, 2, 3, 4])
    with pytest.raises(RuntimeError, match="metadata routing is off"):
        model.set_fit_request(sample_weight=True)
    X, y = np.eye(4), np.array([0, 1, 1, 0])
    folds = model_selection.PredefinedSplit([0, 0, 1, 1])
    how = {"cv": folds, "params": {"sample_weight": weights}, "error_score": "raise"}
    with sklearn.config_context(enable_metadata_routing=True):
        with pytest.raises(exceptions.UnsetMetadataPassedError):
            model_selection.cross_validate(model, X, y, **how)
        with pytest.raises(TypeError, match="no argument 'weight'; it takes sample_weight"):
            model.set_fit_request(weight=True)
        model.set_fit_request(sample_weight=True).set_score_request(sample_weight=False)
        model_selection.cross_validate(model, X, y, **how)
        copied = pickle.loads(pickle.dumps(base.clone(snailps.FastText())))
        requests = {"fit": {"column": None}, "partial_fit": {"column": None, "epochs": None}}
        assert str(copied.get_metadata_routing()) == str(requests)
        assert str(base.clone(model).get_metadata_routing()) == str(model.get_metadata_routing())
        assert "'sample_weight': True" in str(model.get_metadata_routing())
    assert given == [[3, 4], [1, 2]]
