"""scikit-learn's own checks of what estimators learn, on a cluster of one thread, so jobs repeat.

The other checks run in tests/unit/test_estimator_checks.py, without a cluster.
"""

import io
import pickle

import learners
import numpy as np
import pytest

import snailps

checks = pytest.importorskip(
    "sklearn.utils.estimator_checks", reason="scikit-learn is not installed"
)
if not learners.can_say_cases():
    pytest.skip("this scikit-learn cannot say its checks one by one", allow_module_level=True)

pytestmark = [pytest.mark.filterwarnings(warning) for warning in learners.WARNINGS]

REAL = (*learners.JUDGED, "check_fit2d_1sample", "check_fit2d_1feature")
"""Checks of what was learnt, and of the least data that a job can have."""
MORE = {
    "LogisticRegression": (
        "check_classifiers_classes", "check_estimators_dtypes", "check_fit_idempotent",
    ),
    "FMRegressor": ("check_regressors_int", "check_fit_idempotent"),
    "MLPClassifier": ("check_classifiers_classes",),
}  # fmt: skip
"""Further checks, by estimator.  No check that repeats a fit is run on networks: whether a
batch sees the step of the one before it depends on timing."""
NETWORKS = ("SparseNetClassifier", "MLPClassifier")
"""Of `check_classifiers_train` they have the last case, read-only float32: the others differ in how
X is given, which all estimators take by the same code."""


def cases():
    """Estimator and check of each test."""
    every = list(learners.cases())
    last = {(name, what): number for number, (name, what, _, _) in enumerate(every)}
    for number, (name, what, estimator, check) in enumerate(every):
        if name in NETWORKS and what == "check_classifiers_train" and number < last[name, what]:
            continue
        marks = [] if name in MORE else [pytest.mark.long]
        if learners.EXCEPTIONS.get(what) == learners.STEPS and name == "LogisticRegression":
            marks.append(pytest.mark.xfail(reason=learners.STEPS, strict=True))
        elif what not in REAL and what not in MORE.get(name, ()):
            continue
        yield pytest.param(estimator, check, id=f"{name}-{what}", marks=marks)


@pytest.fixture(scope="module")
def cluster():
    """What the estimators train on, as they name none."""
    with snailps.cluster(threads=1, log=io.StringIO()) as made:
        yield made


@pytest.mark.parametrize(("estimator", "check"), list(cases()))
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
