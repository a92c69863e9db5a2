"""scikit-learn's own checks of estimators, on a cluster of one thread, so that jobs repeat."""

import io
import pickle
import warnings

import numpy as np
import pytest

import snailps

checks = pytest.importorskip(
    "sklearn.utils.estimator_checks", reason="scikit-learn is not installed"
)
if not hasattr(checks, "estimator_checks_generator"):  # before 1.6
    pytest.skip("this scikit-learn cannot say which checks may fail", allow_module_level=True)

pytestmark = [
    # Estimators are none of BaseEstimator's: scikit-learn is no dependency.
    pytest.mark.filterwarnings("ignore:Estimator .* does not inherit from:UserWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning"),
]

ESTIMATORS = [
    snailps.LogisticRegression(epochs=20),
    snailps.LinearRegression(epochs=20),
    snailps.FMClassifier(epochs=20),
    snailps.FMRegressor(epochs=20),
    snailps.SparseNetClassifier(hidden=20, epochs=40, batch_size=64),
    snailps.MLPClassifier(hidden=20, epochs=40, batch_size=32, lr=0.01),
]
STEPS = (
    "an example is a step: one of weight 2 is a longer step, two of weight 1 are two shorter ones"
)
EXCEPTIONS = {
    "check_sample_weight_equivalence_on_dense_data": STEPS,
    "check_sample_weight_equivalence_on_sparse_data": STEPS,
    "check_array_api_input": "arrays of other namespaces are converted by NumPy",
}
"""Checks that may fail, with the reason."""
NETWORKS = ("SparseNetClassifier", "MLPClassifier")
UNREPEATABLE = {
    "check_fit_idempotent": "batches in flight at once see each other's steps or not, as they come",
    "check_supervised_y_2d": "batches in flight at once see each other's steps or not",
    "check_estimator_sparse_array": "compares predictions of two fits",
    "check_estimator_sparse_matrix": "compares predictions of two fits",
    "check_classifier_data_not_an_array": "compares predictions of two fits",
    "check_sample_weights_not_an_array": "compares predictions of two fits",
    "check_pipeline_consistency": "compares predictions of two fits",
}
"""The same of networks, whose optimizer runs at the server."""


def cases():
    """Estimator and check of each test; names of both."""
    found = []
    for estimator in ESTIMATORS:
        name = type(estimator).__name__
        may_fail = EXCEPTIONS | (UNREPEATABLE if name in NETWORKS else {})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for one, check in checks.estimator_checks_generator(estimator):
                function = check
                while hasattr(function, "func"):  # partial
                    function = function.func
                what = function.__name__
                marks = [pytest.mark.xfail(reason=may_fail[what])] if what in may_fail else []
                found.append(pytest.param(one, check, id=f"{name}-{what}", marks=marks))
    return found


@pytest.fixture(scope="module")
def cluster():
    """What the estimators train on, as they name none."""
    with snailps.cluster(threads=1, log=io.StringIO()) as made:
        yield made


@pytest.mark.long
@pytest.mark.parametrize(("estimator", "check"), cases())
def test_check_of_scikit_learn_passes(cluster, estimator, check):
    check(estimator)


# --- text: X is none of scikit-learn's, which skips everything ------------------------------------

TEXTS = ["calm sea", "storm at sea", "calm lake", "storm on the lake"] * 10
LABELS = ["calm", "storm"] * 20
OF_TEXT = [
    snailps.FastText(dim=4, min_count=1, bucket=100, epochs=1),
    snailps.Word2Vec(dim=4, min_count=1, epochs=1),
    snailps.TextClassifier(dim=4, epochs=1),
]
WITHOUT_DATA = [
    "check_estimator_cloneable", "check_estimator_tags_renamed", "check_valid_tag_types",
    "check_estimator_repr", "check_no_attributes_set_in_init", "check_get_params_invariance",
    "check_set_params", "check_do_not_raise_errors_in_init_or_set_params",
    "check_parameters_default_constructible", "check_mixin_order",
]  # fmt: skip


@pytest.mark.parametrize("check", WITHOUT_DATA)
@pytest.mark.parametrize("estimator", OF_TEXT, ids=lambda one: type(one).__name__)
def test_check_without_data_passes_for_text(estimator, check):
    if not hasattr(checks, check):
        pytest.skip("this scikit-learn has no such check")
    getattr(checks, check)(type(estimator).__name__, estimator)


@pytest.mark.parametrize("original", OF_TEXT, ids=lambda one: type(one).__name__)
def test_conventions_hold_for_text(cluster, original):
    from sklearn.base import clone
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    model = clone(original)
    ask = "predict" if hasattr(model, "predict") else "transform"
    with pytest.raises(NotFittedError):
        getattr(model, ask)(TEXTS)
    with pytest.raises(NotFittedError):
        check_is_fitted(model)
    parameters = model.get_params()
    assert model.fit(TEXTS, LABELS) is model
    check_is_fitted(model)
    assert model.get_params() == parameters
    added = {name for name in vars(model) if name not in parameters}
    assert all(name.startswith("_") or name.endswith("_") for name in added)
    before = dict(vars(model))
    said = getattr(model, ask)(TEXTS)
    assert vars(model).keys() == before.keys()
    other = pickle.loads(pickle.dumps(model))
    assert (np.asarray(getattr(other, ask)(TEXTS)) == np.asarray(said)).all()


def test_vectors_in_a_pipeline_with_frames(cluster):
    pandas = pytest.importorskip("pandas")
    from sklearn.pipeline import make_pipeline
    from sklearn.utils import get_tags

    vectors = snailps.FastText(dim=4, min_count=1, bucket=100, epochs=1, column="text")
    assert get_tags(vectors).transformer_tags is not None
    frame = pandas.DataFrame({"text": TEXTS, "place": LABELS})
    pipeline = make_pipeline(vectors, snailps.LogisticRegression(epochs=1))
    pipeline.set_output(transform="pandas").fit(frame, LABELS)
    assert list(pipeline[-1].feature_names_in_)[:2] == ["fasttext0", "fasttext1"]
    assert pipeline.predict(frame).shape == (len(TEXTS),)
