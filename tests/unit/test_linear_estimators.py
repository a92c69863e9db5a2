"""Estimators of rows of matrices and tables, without a cluster; jobs are made up."""

import contextlib
import copy
import math
import pathlib
import pickle
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from completing import completed
from emulated import trained
from twins.kernels import ftrl_weights

import snailps
from snailps.api.results import Results
from snailps.api.tables import Table, Tensor
from snailps.api.worker import load_class
from snailps.cli.model_kinds import judge_examples
from snailps.data._examples import hash_bytes
from snailps.data._text import hashes_of_rows
from snailps.data.encoding import Encoding
from snailps.data.feature_rows import DictRows
from snailps.data.held_out import HeldOut
from snailps.errors import (
    ConfigError,
    DataError,
    ModelFileError,
    NotFitted,
    ParameterError,
    SnailError,
)
from snailps.estimators import base, mlp, sparse
from snailps.estimators.jobs import FinishedJob
from snailps.estimators.validation import numbered
from snailps.files.blocks import InputFile
from snailps.files.input_files import InputFiles
from snailps.files.matrix_file import read_header
from snailps.files.model_file import header_of, settings_of
from snailps.files.scratch import Scratch
from snailps.models.class_weights import balanced
from snailps.models.mlp import MlpSettings
from snailps.models.mlp.files import SavedNet
from snailps.models.packed_tables import (
    GrownClasses,
    Packed,
    grown,
    put_tables,
    read_packed,
    state_arrays,
    widened,
    write_packed,
)
from snailps.models.sparse import warm_start
from snailps.models.sparse.batch import BIAS_KEY
from snailps.models.sparse.evaluate import check_input
from snailps.models.sparse.export import SavedModel, read_npz, write_saved
from snailps.models.sparse.fm import FactorizationMachine, FmSettings
from snailps.models.sparse.linear import Linear, LinearSettings
from snailps.models.sparse.settings import SparseSettings

with contextlib.suppress(ImportError):  # which takes longer than a test may
    import pyarrow  # noqa: F401

X = np.array([[1, 0], [0, 2], [1, 1], [0, 0]], np.float32)


class Jobs:
    """In the place of `run_job`: weights are 0 and 2, with a bias of 0.5, negative for odd ones.

    They are learnt of encoded labels and values, as a job does it.
    """

    def __init__(self):
        self.asked, self.labels, self.weights, self.before = [], [], [], []
        self.encodings = []

    @contextlib.contextmanager
    def __call__(self, worker_class, settings, given, monitor, *, packed, **_):
        with open(given.path, "rb") as file:
            data = file.read()
        header = read_header(data, len(data), given.path)
        cls = load_class(worker_class, "the job")
        asked = {name: value for name, value in settings.items() if name != "encoding"}
        adopted = completed(
            cls, cls.Settings(worker_class=worker_class, input=(given.path,), **settings)
        )
        encoding = Encoding.of_text(adopted.encoding)
        self.encodings.append(encoding)
        self.labels.append(encoding.labels_of(header.array(data, "labels")).tolist())
        self.weights.append(header.array(data, "weights").tolist())
        if "continue_from" in settings:
            self.before.append(read_packed(settings["continue_from"]))
        self.asked.append((worker_class, asked))
        outputs = settings.get("classes", 1)
        signs = np.where(np.arange(outputs) % 2, -1, 1)
        keys = np.array([1, BIAS_KEY], np.uint64)  # a row of zeros is left out
        rows = (np.array([[2], [0.5]]) * signs).astype(np.float32)
        known = {k: v for k, v in asked.items() if k not in ("continue_from", "epochs")}
        self.saved = self.model({**known, "encoding": encoding.text}, keys, rows)
        loss = encoding.deviation**2
        monitor.finish({"train_loss": loss}, [{"epoch": 1, "loss": loss, "examples_per_s": 1.0}])
        assert packed
        state = Packed(keys, np.hstack([rows, rows + 10, rows + 20]))
        yield FinishedJob({"train_loss": loss}, ["model.npz"], self.tables(state))

    def tables(self, state):
        return {"weights": state}

    def model(self, settings, keys, rows):
        name = "snailps.models.sparse.linear:Linear"
        return finished(Linear, LinearSettings(worker_class=name, **settings), keys, rows)


def finished(cls, settings, keys, rows):
    """The model of a file, of rows as they were trained."""
    tables = {"weights": Table("weights", rows.shape[1])}
    found = {"weights": rows[keys == BIAS_KEY]}
    results = Results(settings, b"", {}, None, {"weights": 0}, tables, 0)
    results.pull = lambda table, _: found[table]
    extras = cls.decoded_extras(results)
    centred = cls.centred_rows(results)
    return SavedModel(cls, settings, keys, cls.decoded(settings, keys, rows, centred), extras)


@pytest.fixture
def jobs(monkeypatch):
    made = Jobs()
    monkeypatch.setattr(base, "run_job", made)
    monkeypatch.setattr(sparse, "read_npz", lambda path: made.saved)
    return made


# --- linear models --------------------------------------------------------------------------------


def test_fit_gives_weights_by_column(jobs):
    model = snailps.LogisticRegression(l2=0.5).fit(X, ["no", "yes", "yes", "no"])
    assert jobs.asked == [("snailps.models.sparse.linear:Linear", {"l2": 0.5})]
    assert jobs.labels == [[0, 1, 1, 0]]
    assert model.coef_.tolist() == [[0, 2]]
    assert model.intercept_.tolist() == [0.5]
    assert model.n_features_in_ == 2
    assert model.classes_.tolist() == ["no", "yes"]
    scores = [0.5, 4.5, 2.5, 0.5]
    assert model.decision_function(X).tolist() == scores
    assert model.predict(X).tolist() == ["yes"] * 4
    assert model.predict_proba(X)[:, 1] == pytest.approx(1 / (1 + np.exp(-np.array(scores))))
    assert np.exp(model.predict_log_proba(X)) == pytest.approx(model.predict_proba(X))
    assert model.score(X, ["yes", "yes", "no", "yes"]) == 0.75
    assert model.score(X, ["yes", "yes", "no", "yes"], sample_weight=[1, 1, 0, 1]) == 1
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert other.predict(X).tolist() == ["yes"] * 4


def test_label_of_weight_0_may_be_any_at_both_doors(jobs):
    model = snailps.LogisticRegression().fit(X, ["no", "yes", "no", "no"])
    told, weights = ["yes", "other", "no", "yes"], [1, 0, 1, 1]
    assert model.score(X, told, sample_weight=weights) == pytest.approx(2 / 3)
    figures = model.evaluate(X, told, sample_weight=weights)
    assert (figures["examples"], figures["accuracy"]) == (3, pytest.approx(2 / 3))
    with pytest.raises(DataError, match="label 'other' is none of the model's classes"):
        model.evaluate(X, told)


def test_several_classes_are_multinomial(jobs):
    model = snailps.LogisticRegression().fit(X, [3, 1, 2, 1])
    assert jobs.asked[0][1] == {"loss": "multinomial", "classes": 3}
    assert model.coef_.shape == (3, 2)
    chances = model.predict_proba(X)
    assert chances.shape == (4, 3)
    assert chances.sum(axis=1) == pytest.approx(1)
    assert model.predict(X).tolist() == [1] * 4


def test_weights_of_examples_and_of_classes_are_multiplied(jobs):
    model = snailps.LogisticRegression(class_weight={1: 2.0, 3: 10})
    model.fit(X, [3, 1, 2, 1], sample_weight=[1, 2, 3, 0.5])
    assert jobs.weights[-1] == [10, 4, 3, 1]
    model.set_params(class_weight="balanced").fit(X, [3, 1, 3, 3])
    assert jobs.weights[-1] == pytest.approx([4 / 6, 2, 4 / 6, 4 / 6])
    # Example weights count in the sizes of classes: those of 1 weigh 6 together, of 3 weigh 2.
    model.fit(X, [3, 1, 3, 1], sample_weight=[1, 2, 1, 4])
    assert jobs.weights[-1] == pytest.approx([2, 2 * 4 / 6, 2, 4 * 4 / 6])
    model.set_params(class_weight=None).fit(X, [3, 1, 2, 1])
    assert jobs.weights[-1] == []
    for wrong in ({9: 1}, 3, "even", {1: -1}, {1: "x"}, {1: 0, 2: 0, 3: 0.0}):
        with pytest.raises(DataError, match="class_weight"):
            model.set_params(class_weight=wrong).fit(X, [3, 1, 2, 1])


@pytest.mark.parametrize("sample_weight", [None, np.arange(60) % 3 + 0.5])
def test_classes_weigh_in_the_training_alone_and_balance_by_trained_rows(jobs, sample_weight):
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(60, 3)).astype(np.float32), (np.arange(60) % 5 == 0).astype(int)
    model = snailps.LogisticRegression(held_out=0.4, seed=7)
    model.set_params(class_weight={1: 2.5}).fit(x, y, sample_weight=sample_weight)
    assert jobs.asked[-1][1]["class_weights"] == ["1.0", "2.5"]
    wanted = [] if sample_weight is None else sample_weight.tolist()
    assert jobs.weights[-1] == wanted
    model.set_params(class_weight="balanced").fit(x, y, sample_weight=sample_weight)
    assert jobs.weights[-1] == wanted
    hashes = hashes_of_rows(
        y.astype(float), np.arange(0, 181, 3), np.tile(np.arange(3), 60).astype(np.uint64),
        x.ravel(), np.zeros(0, np.int32), 7,
    )  # fmt: skip
    trained = hashes < HeldOut.of(0.4, 7).least
    assert 10 < trained.sum() < 55
    ones = np.ones(60) if sample_weight is None else sample_weight
    factors = list(map(float, jobs.asked[-1][1]["class_weights"]))
    assert factors == pytest.approx(balanced(np.bincount(y[trained], ones[trained])))
    assert factors != pytest.approx(balanced(np.bincount(y, ones)), rel=1e-3)
    model.set_params(held_out=0.0).fit(x, y, sample_weight=sample_weight)
    assert "class_weights" not in jobs.asked[-1][1]


@pytest.mark.parametrize(
    "kind", [snailps.LogisticRegression, snailps.FMClassifier, snailps.SparseNetClassifier]
)
def test_rows_held_out_unasked_do_not_count_with_the_weights_of_classes(monkeypatch, kind):
    asked, y = [], np.arange(60) % 5 == 0

    def stop(worker_class, settings, given, monitor, **_):
        data = pathlib.Path(given.path).read_bytes()
        weights = read_header(data, len(data), given.path).array(data, "weights")
        asked.append((settings.get("class_weights"), weights.tolist()))
        raise ZeroDivisionError

    monkeypatch.setattr(base, "run_job", stop)
    unasked = load_class(kind.worker_class, "the job").learns_by_heart  # where `epochs` is auto
    for parameters in ({}, {"held_out": 0.2}, {"epochs": 3}):
        with pytest.raises(ZeroDivisionError):
            kind(class_weight={1: 2.5}, **parameters).fit(np.eye(60, 3), y)
    tested, whole = (["1.0", "2.5"], []), (None, np.where(y, 2.5, 1).tolist())
    assert asked == [tested if unasked else whole, tested, whole]


def test_parameter_that_the_job_refuses_is_refused_by_the_name_of_the_estimator(monkeypatch):
    def refuse(*_, **__):
        raise ConfigError(text)

    monkeypatch.setattr(base, "run_job", refuse)
    text = "stop_by: expected a figure of this model's tests, loss, accuracy, auc; got 'f1:1'"
    with pytest.raises(ParameterError, match=r"^LogisticRegression: stop_by: expected a figure"):
        snailps.LogisticRegression().fit(X, [0, 1, 1, 0])
    text = "frag_num: of the cluster"
    with pytest.raises(ConfigError, match=r"^frag_num") as caught:
        snailps.LogisticRegression().fit(X, [0, 1, 1, 0])
    assert not isinstance(caught.value, ParameterError)


def test_linear_regression_learns_scaled_numbers_and_scales_back(jobs):
    y = np.array([100.0, 300, 100, 300])
    model = snailps.LinearRegression().fit(X, y)
    assert jobs.asked[0][1] == {"loss": "squared"}
    assert jobs.labels[0] == [-1, 1, -1, 1]
    assert model.coef_.tolist() == [[0, 200]]
    assert model.intercept_.tolist() == [250]
    assert model.predict(X).tolist() == [250, 650, 450, 250]
    assert model.history_[0]["loss"] == model.figures_["train_loss"] == 10_000
    snailps.LinearRegression(bias=False).fit(X, [3.0, 3, 3, 3])
    assert jobs.labels[1] == [1, 1, 1, 1]


def test_poisson_regression_learns_parts_of_the_mean_and_scales_back(jobs, tmp_path, monkeypatch):
    y = np.array([0.0, 20, 40, 20])
    model = snailps.PoissonRegressor().fit(X, y)
    assert jobs.asked[0][1] == {"loss": "poisson"}
    assert jobs.labels[0] == [0, 1, 2, 1]
    assert model.coef_.tolist() == [[0, 2]]
    assert model.intercept_ == pytest.approx(0.5 + np.log(20))
    assert model.predict(X) == pytest.approx(20 * np.exp([0.5, 4.5, 2.5, 0.5]))
    assert model.score(X, model.predict(X)) == pytest.approx(1)
    model.save(tmp_path / "p.npz")
    monkeypatch.setattr(sparse, "read_npz", read_npz)
    assert type(snailps.load(tmp_path / "p.npz")) is snailps.PoissonRegressor
    with pytest.raises(ModelFileError, match="it is one of PoissonRegressor"):
        snailps.LinearRegression.load(tmp_path / "p.npz")
    with pytest.raises(DataError, match="expected numbers of at least 0, got -1"):
        snailps.PoissonRegressor().fit(X, [1, -1, 2, 3])


def test_numbers_far_from_zero_keep_their_digits_also_in_files(jobs, tmp_path, monkeypatch):
    y = 1.7e9 + np.array([0.0, 4, 0, 4])
    model = snailps.LinearRegression().fit(X, y)
    assert model.predict(X) - 1.7e9 == pytest.approx([3, 11, 7, 3])
    model.save(tmp_path / "m.npz")
    monkeypatch.setattr(sparse, "read_npz", read_npz)
    loaded = snailps.load(tmp_path / "m.npz")
    assert loaded.predict(X).tolist() == model.predict(X).tolist()
    assert loaded.intercept_.tolist() == model.intercept_.tolist()
    whole = read_npz(tmp_path / "m.npz")  # other programs have mean and bias in one number
    assert whole.rows[whole.keys == BIAS_KEY, 0] == np.float32(model.intercept_[0])


def test_score_of_a_regression_takes_columns_and_constants(jobs):
    model = snailps.LinearRegression().fit(X, [1, 3, 1, 3])
    said = model.predict(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a column, where scikit-learn is imported
        assert model.score(X, said[:, None]) == 1
    assert model.score(X[:1], said[:1]) == 1
    assert model.score(X[:1], said[:1] + 1) == 0
    with pytest.raises(DataError, match="expected 4 labels"):
        model.score(X, said[:1])
    with pytest.raises(DataError, match="expected numbers"):
        model.fit(X, ["a", "b", "c", "d"])


@pytest.mark.parametrize("weights", [None, [0.0, 3.0, 0.7, 2.0, 1.0, 1.0, 0.1]])
@pytest.mark.parametrize("number", [0.1, 0.7, 1 / 3, 19.99, 1.7e9 + 0.1, -0.7, 0.0])
def test_equal_targets_have_no_deviation_whatever_their_mean_rounds_to(jobs, number, weights):
    x, y = np.ones((7, 2)), np.full(7, number)
    if weights is not None:
        y[0] = 5.0  # has no weight
    model = snailps.LinearRegression().fit(x, y, sample_weight=weights)
    assert (jobs.encodings[0].centre, jobs.encodings[0].deviation) == (number, 1.0)
    assert jobs.labels[0][1:] == [0.0] * 6
    said = model.predict(x)
    assert model.score(x, said, sample_weight=weights) == 1.0
    assert model.score(x, y, sample_weight=weights) in (0.0, 1.0)


def test_targets_of_files_are_scaled_before_they_are_rounded(jobs, tmp_path):
    path = tmp_path / "x.libsvm"
    path.write_text("1700000000.25 0:1\n1700000000.75 1:1\n")
    snailps.LinearRegression().fit(path)
    assert jobs.labels == [[-1.0, 1.0]]


def test_classes_of_files_beyond_float32_stay_apart(jobs, tmp_path):
    ids = [16_777_216, 16_777_217, 20_240_131_001, 20_240_131_002]
    path = tmp_path / "x.libsvm"
    path.write_text("".join(f"{one} 0:1\n" for one in ids))
    assert snailps.LogisticRegression().fit(path).classes_.tolist() == ids
    assert jobs.labels == [[0, 1, 2, 3]]
    snailps.write_matrix(tmp_path / "x.mx", np.eye(4), ids)
    assert snailps.LogisticRegression().fit(tmp_path / "x.mx").classes_.tolist() == ids


def test_classes_that_float64_cannot_tell_apart_are_refused(jobs, tmp_path):
    path = tmp_path / "x.libsvm"
    path.write_text("9007199254740992 0:1\n9007199254740993 1:1\n")
    with pytest.raises(DataError, match="9007199254740992 is a float64, which cannot hold"):
        snailps.LogisticRegression().fit(path)
    ids = [2**53, 2**53 + 1]
    assert snailps.LogisticRegression().fit(X[:2], ids).classes_.tolist() == ids
    table = tmp_path / "x.csv"
    table.write_text("a,y\n" + "".join(f"1,{one}\n" for one in ids))
    assert snailps.LogisticRegression().fit(table, "y").classes_.tolist() == ids
    table.write_text("a,y\n" + "".join(f"1,{one}\n" for one in [2**63 + 2**12, 2**63 + 2**13]))
    with pytest.raises(DataError, match="is a float64, which cannot hold"):
        snailps.LogisticRegression().fit(table, "y")


@pytest.mark.parametrize("given", [list, partial(np.array, dtype=np.uint64)])
def test_classes_beyond_63_bits_are_named_to_partial_fit(jobs, given):
    ids = [7, (1 << 63) + 1, (1 << 63) + 2]
    y = np.array([ids[at] for at in (2, 0, 1, 1)], np.uint64)
    model = snailps.LogisticRegression().partial_fit(X, y, classes=given(ids))
    assert model.classes_.tolist() == ids
    assert jobs.labels == [[2, 0, 1, 1]]


def test_partial_fit_with_another_seed_is_refused_if_it_divides_the_rows(jobs):
    rows, y = np.tile(X, (25, 1)) + np.arange(100)[:, None], [0, 1, 1, 0] * 25
    model = snailps.LogisticRegression(held_out=0.1, seed=7).fit(rows, y)
    model.set_params(seed=8)
    with pytest.raises(ParameterError, match="seed: the fitted model has 7, got 8"):
        model.partial_fit(rows, y)
    model.set_params(held_out=0.0).partial_fit(rows, y)


def test_partial_fit_of_few_rows_tests_none_of_them_only_because_an_opened_file_did(jobs, tmp_path):
    rows, y = np.tile(X, (25, 1)) + np.arange(100)[:, None], [0, 1, 1, 0] * 25
    model = snailps.LogisticRegression(held_out=0.2).fit(rows, y)
    model.partial_fit(rows, y)
    model.save(tmp_path / "m.npz")
    extras = {**jobs.saved.extras, **state_arrays(jobs.before[-1])}
    saved = replace(jobs.saved, extras=extras)

    def loaded(**parameters):
        jobs.saved = saved
        return snailps.LogisticRegression.load(tmp_path / "m.npz", **parameters)

    loaded().partial_fit(rows, y)
    loaded().set_params(stop_after=2).partial_fit(rows, y)
    loaded(held_out=0.2).partial_fit(rows, y)
    loaded().partial_fit(np.tile(rows, (10, 1)), y * 10)
    shares = [settings.get("held_out", 0.2) for _, settings in jobs.asked]
    assert shares == [0.2, 0.2, 0.0, 0.2, 0.2, 0.2]


def test_partial_fit_goes_on_with_weights_and_state(jobs):
    model = snailps.LogisticRegression()
    assert model.partial_fit(X, [0, 0, 0, 0], classes=[0, 1]).classes_.tolist() == [0, 1]
    model.partial_fit(X, [1, 1, 1, 1])
    assert [settings.get("epochs") for _, settings in jobs.asked] == [1, 1]
    before = jobs.before[0]["weights"]
    assert before.keys.tolist() == [1, BIAS_KEY]
    assert before.rows.tolist() == [[2, 12, 22], [0.5, 10.5, 20.5]]
    assert jobs.labels == [[0] * 4, [1] * 4]
    assert [one["epoch"] for one in model.history_] == [1, 2]
    for epochs in (3, "auto"):
        model.partial_fit(X, [1, 1, 1, 1], epochs=epochs)
        assert jobs.asked[-1][1]["epochs"] == epochs
    with pytest.raises(ParameterError, match="epochs"):
        model.partial_fit(X, [1, 1, 1, 1], epochs=0)
    with pytest.raises(DataError, match="X has 1 features, but LogisticRegression is expecting 2"):
        model.partial_fit(X[:, :1], [1, 1, 1, 1])
    for fitted, other in (("auto", "sgd"), ("sgd", "auto")):
        model = snailps.LogisticRegression(optimizer=fitted).fit(X, [0, 1, 0, 1])
        with pytest.raises(ParameterError, match=f"optimizer: the fitted model has '{fitted}'"):
            model.set_params(optimizer=other).partial_fit(X, [0, 1, 0, 1])
    with pytest.raises(DataError, match=r"got one class.*classes="):
        snailps.LogisticRegression().partial_fit(X, [1, 1, 1, 1])


@pytest.mark.parametrize("kind", ["array", "table", "table with texts"])
@pytest.mark.parametrize("name", ["LogisticRegression", "LinearRegression"])
def test_partial_fit_tells_columns_of_another_size(jobs, kind, name):
    def given(times):
        if kind == "array":
            return X * [times, 1]
        columns = {"a": X[:, 0] * times, "b": X[:, 1], "c": list("xyxy")}
        pandas = pytest.importorskip("pandas")
        return pandas.DataFrame(columns)[["a", "b"] + ["c"] * (kind == "table with texts")]

    model = getattr(snailps, name)()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(given(1), [0, 1, 0, 1]).partial_fit(given(20), [0, 1, 0, 1])
    column = "0" if kind == "array" else "'a'"
    expected = f"{name}: values of column {column} are 1,000 times larger .* call fit with all"
    with pytest.warns(UserWarning, match=expected):
        model.partial_fit(given(1000), [0, 1, 0, 1])


def test_partial_fit_adds_classes(jobs):
    model = snailps.LogisticRegression().fit(X, ["b", "d", "b", "d"])
    model.partial_fit(X, ["a", "b", "c", "d"])
    assert model.classes_.tolist() == ["a", "b", "c", "d"]
    assert jobs.asked[1][1]["classes"] == 4
    rows = jobs.before[0]["weights"].rows
    assert rows.shape == (2, 12)
    assert rows[0].tolist() == [0, 0, 0, 2, 0, 0, 0, 12, 0, 0, 0, 22]


def test_grown_keeps_places_of_several_classes():
    before = Packed(np.array([7], np.uint64), np.arange(1, 10, dtype=np.float32).reshape(1, 9))
    classes = GrownClasses.of_counts(np.array([0, 2, 3]), np.array([50.0, 25, 15, 10]))
    after = grown(before, classes, bias=9)
    assert after.rows.tolist() == [[1, 0, 2, 3, 4, 0, 5, 6, 7, 0, 8, 9]]
    scores = grown(before, classes, bias=7).rows[0, :4]
    chances = np.exp(scores - np.logaddexp.reduce(scores))
    assert chances[1] == pytest.approx(0.25)
    assert scores[[0, 2, 3]].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("counts", "share"),
    [([2000, 2000, 1], 1 / 4001), ([0, 0, 7], 1 / 3), ([90, 10, 0], 0.5 / 100.5)],
)
def test_new_class_begins_with_its_share_and_no_more_than_an_equal_one(counts, share):
    classes = GrownClasses.of_counts(np.array([0, 1]), np.array(counts, float))
    scores = np.array([0, 1.5, 0], np.float32)
    classes.begin(scores)
    assert np.exp(scores[2] - np.logaddexp.reduce(scores)) == pytest.approx(share)


def test_partial_fit_of_a_regression_keeps_its_scale(jobs):
    model = snailps.LinearRegression().partial_fit(X, [100.0, 300, 100, 300])
    model.partial_fit(X, [500.0, 500, 500, 500])
    assert jobs.labels == [[-1, 1, -1, 1], [3, 3, 3, 3]]
    assert model.coef_.tolist() == [[0, 200]]


def test_sparsify_gives_weights_of_any_number_of_columns(jobs):
    scipy = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    wide = scipy.csr_matrix(([1.0, 2.0], [1, 1 << 30], [0, 1, 2]), shape=(2, 1 << 31))
    model = snailps.LogisticRegression().fit(wide, [0, 1])
    with pytest.raises(DataError, match="sparsify"):
        model.coef_  # noqa: B018
    assert model.sparsify().coef_.nnz == 1
    assert model.decision_function(wide).tolist() == [2.5, 0.5]


def test_files_keep_classes_names_and_state(jobs, tmp_path, monkeypatch):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["a", "b"])
    model = snailps.LogisticRegression(l2=0.5).fit(frame, [3, 1, 2, 1])
    model.save(tmp_path / "m.npz")
    monkeypatch.setattr(sparse, "read_npz", read_npz)
    loaded = snailps.LogisticRegression.load(tmp_path / "m.npz", lr=0.2)
    assert (loaded.l2, loaded.lr) == (0.5, 0.2)
    assert loaded.classes_.tolist() == [1, 2, 3]
    assert loaded.predict(frame).tolist() == model.predict(frame).tolist()
    assert loaded.score(frame, [1, 1, 1, 1]) == 1
    states = [one._packed["weights"].rows.tolist() for one in (loaded, model)]
    assert states[0] == states[1]
    again = snailps.load(tmp_path / "m.npz")
    assert type(again) is snailps.LogisticRegression
    assert again.predict(frame).tolist() == model.predict(frame).tolist()
    with pytest.raises(DataError, match=r"names should match.* got 'b' instead of 'a'"):
        loaded.predict(frame[["b", "a"]])
    with pytest.raises(ModelFileError, match="it is one of LogisticRegression"):
        snailps.LinearRegression.load(tmp_path / "m.npz")
    monkeypatch.setattr(sparse, "read_npz", lambda path: jobs.saved)
    regression = snailps.LinearRegression().fit(X, [100.0, 300, 100, 300])
    regression.save(tmp_path / "r.npz")
    monkeypatch.setattr(sparse, "read_npz", read_npz)
    assert type(snailps.load(tmp_path / "r.npz")) is snailps.LinearRegression
    loaded = snailps.LinearRegression.load(tmp_path / "r.npz")
    assert loaded.predict(X).tolist() == regression.predict(X).tolist()


@pytest.fixture
def clicks(tmp_path):
    path = tmp_path / "clicks.csv"
    path.write_text("a,b,clicked,more\n" + "1,0,no,5\n0,2,yes,5\n1,1,yes,5\n0,0,no,5\n")
    return path


def test_files_are_fitted_and_predicted_as_arrays(jobs, clicks, tmp_path, monkeypatch):
    model = snailps.LogisticRegression().fit(clicks, "clicked", columns=["more:ignore"])
    assert jobs.labels == [[0, 1, 1, 0]]
    assert model.columns_ == ("a:numeric", "b:numeric", "clicked:label", "more:ignore")
    assert model.feature_names_in_.tolist() == ["a", "b"]
    assert model.coef_.tolist() == [[0, 2]]
    assert model.predict(str(clicks)).tolist() == model.predict(X).tolist()
    assert model.score(clicks) == model.score(clicks, "clicked") == 0.5
    model.partial_fit(clicks)
    model.partial_fit(X, ["no", "yes", "yes", "no"])
    assert model.columns_[2] == "clicked:label"
    model.save(tmp_path / "m.npz")
    monkeypatch.setattr(sparse, "read_npz", read_npz)
    assert snailps.load(tmp_path / "m.npz").score(clicks) == 0.5
    with pytest.raises(DataError, match="got a list"):
        model.fit(clicks, [0, 1, 1, 0])
    with pytest.raises(DataError, match=r"X is a list of names of files.* of pathlib\.Path"):
        model.fit([str(clicks)], "clicked")
    with pytest.raises(DataError, match=r"X is a list of names of files"):
        model.predict([str(clicks)])
    lines = tmp_path / "clicks.svm"
    lines.write_text("1 0:1\n")
    for use in (model.predict, model.score):
        with pytest.raises(DataError, match=r"svm is no table: .* fitted on .*\('a', 'b'\)"):
            use(lines)
    with pytest.raises(DataError, match=r"no file, folder, glob or URL .*; rows are a matrix"):
        model.predict("clicks")
    with pytest.raises(DataError, match="the fitted model has its own, columns_"):
        model.partial_fit(clicks, "clicked", columns=["a:ignore"])
    with pytest.raises(DataError, match="columns: expected none unless X is a file, got a ndarray"):
        model.fit(X, [0, 1, 1, 0], columns=["a:ignore"])


def test_table_in_memory_has_the_kinds_of_the_columns_of_the_files(jobs, clicks):
    pandas = pytest.importorskip("pandas")
    model = snailps.LogisticRegression().fit(clicks, "clicked", columns=["more:categorical"])
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "more": [5, 5, 5, 5]})
    assert model.partial_fit(frame, ["no", "yes", "yes", "no"]).score(frame, ["yes"] * 4) == 1


def test_balanced_weights_are_those_of_the_labels_of_a_file(jobs, tmp_path):
    (tmp_path / "x.svm").write_text("-1 0:1\n3 1:2\n3 1:1\n3\n")
    model = snailps.LogisticRegression(class_weight="balanced").fit(tmp_path / "x.svm")
    assert model.classes_.tolist() == [-1, 3]
    assert jobs.weights[-1] == pytest.approx([2, 4 / 6, 4 / 6, 4 / 6])
    assert not hasattr(model, "n_features_in_")


@pytest.mark.parametrize("labels", [(0, 1, 1, 0), ("no", "yes", "yes", "no")])
def test_a_column_of_weights_is_read_by_training_and_figures_and_is_no_feature(
    jobs, tmp_path, monkeypatch, labels
):
    rows = zip(X.tolist(), labels, (1, 2, 0.5, 3), strict=True)
    text = "".join(f"{a:g},{b:g},{y},{w}\n" for (a, b), y, w in rows)
    path, plain = tmp_path / "x.csv", tmp_path / "plain.csv"
    path.write_text("a,b,y,w\n" + text)
    plain.write_text(
        "a,b,y\n" + "".join(f"{a:g},{b:g},{y}\n" for (a, b), y in zip(X, labels, strict=True))
    )
    model = snailps.LogisticRegression().fit(path, "y", "w")
    assert jobs.weights[-1] == [1, 2, 0.5, 3]
    assert model.feature_names_in_.tolist() == ["a", "b"]
    wanted = model.evaluate(X, labels, [1, 2, 0.5, 3])
    assert model.evaluate(path) == model.evaluate(path, "y", "w") == wanted
    assert model.score(path) == model.score(X, labels, [1, 2, 0.5, 3])
    one_each = model.evaluate(X, labels)
    assert model.evaluate(plain) == model.evaluate(path, sample_weight=1) == one_each != wanted
    model.partial_fit(path, "y")
    assert jobs.weights[-1] == [1, 2, 0.5, 3]
    other = snailps.LogisticRegression().fit(plain, "y")
    other.partial_fit(path, "y", sample_weight="w")
    assert jobs.weights[-1] == [1, 2, 0.5, 3]
    model.save(tmp_path / "m.npz")
    monkeypatch.setattr(sparse, "read_npz", read_npz)
    assert snailps.load(tmp_path / "m.npz").evaluate(path) == wanted


def test_a_column_that_cannot_have_the_weights_is_refused(jobs, tmp_path):
    path, lines, wrong = tmp_path / "x.csv", tmp_path / "x.svm", tmp_path / "wrong.csv"
    path.write_text("a,b,y,w\n1,0,0,1\n0,2,1,1\n")
    wrong.write_text("a,b,y,w\n1,0,0,1\n0,2,1,\n")
    lines.write_text("0 0:1\n1 1:2\n")
    fit = snailps.LogisticRegression().fit
    with pytest.raises(DataError, match="has no column 'v'"):
        fit(path, "y", "v")
    with pytest.raises(DataError, match=r"line 3, column 7: expected a weight, a finite number of"):
        fit(wrong, "y", "w")
    with pytest.raises(DataError, match="a name is for a column of tables in files, got 'w'"):
        fit(X, [0, 1, 1, 0], "w")
    with pytest.raises(DataError, match=r"sample_weight: there is no column 'w': .* is no table"):
        fit(lines, None, "w")
    with pytest.raises(DataError, match="column 'y' has the labels: expected another one"):
        fit(path, "y", "y")
    with pytest.raises(DataError, match="column 'a' is a feature of the model"):
        fit(path, "y", "w").score(path, sample_weight="a")
    with pytest.raises(DataError, match=r"columns: w is weight_column: leave it out"):
        fit(path, "y", "w", columns=["w:numeric"])


def test_regression_of_a_file_scales_its_numbers(jobs, tmp_path):
    (tmp_path / "x.csv").write_text("a,b,y\n1,0,100\n0,2,300\n1,1,100\n0,0,300\n")
    model = snailps.LinearRegression().fit(tmp_path / "x.csv", "y")
    assert jobs.labels[0] == [-1, 1, -1, 1]
    assert model.predict(tmp_path / "x.csv").tolist() == [250, 650, 450, 250]
    wanted = [100, 300, 100, 300]
    assert model.score(tmp_path / "x.csv") == model.score(X, wanted)


def test_score_with_labels_of_another_kind_is_refused(jobs):
    model = snailps.LogisticRegression().fit(X, ["0", "1", "1", "0"])
    with pytest.raises(DataError, match="expected labels like '1'"):
        model.score(X, [0, 1, 1, 0])


# --- data -----------------------------------------------------------------------------------------


def test_kinds_of_matrices_are_read_alike(jobs):
    scipy = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    model = snailps.LogisticRegression().fit(X, [0, 1, 1, 0])
    expected = model.decision_function(X).tolist()
    more = [X.tolist(), X.astype(object), X.copy("F")]
    for given in (scipy.csr_matrix(X), scipy.coo_array(X), *more):
        model.fit(given, [0, 1, 1, 0])
        assert model.decision_function(given).tolist() == expected


def test_tables_with_texts_and_dicts_are_known_by_name(jobs):
    rows = [{"city": "Berlin"}, {"city": "Rome", "age": 3}]
    model = snailps.LogisticRegression().fit(rows, [0, 1])
    assert model.decision_function(rows).tolist() == [0.5, 0.5]
    assert not hasattr(model, "coef_")
    assert not hasattr(model, "n_features_in_")
    with pytest.raises(DataError, match="was fitted on features by name"):
        model.predict(X)


# --- the shape that was learnt --------------------------------------------------------------------


def knows(model, **rows):
    """The fitted model with these weights of features by name, ``age=1`` or ``zip={"1000": 2}``."""
    found = {BIAS_KEY: 0.0}
    for name, weights in rows.items():
        seed = hash_bytes(0, name.encode())
        for text, weight in (weights if isinstance(weights, dict) else {"": weights}).items():
            found[hash_bytes(seed, text.encode()) >> 1] = weight
    keys = np.array(sorted(found), np.uint64)
    values = np.array([[found[key]] for key in keys.tolist()], np.float32)
    model._model = replace(model._model, keys=keys, rows=values)
    return model


def asked(model, X):
    return model.decision_function(X).tolist()


@pytest.fixture
def people(jobs, monkeypatch, tmp_path):
    """A model of a table in memory, also from its file, that knows two places and the age."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"zip": ["1000", "1001"], "age": [20, 40]})
    model = knows(
        snailps.LogisticRegression().fit(frame, [0, 1]), zip={"1000": 1, "1001": 2}, age=4
    )
    model.save(tmp_path / "m.npz")
    monkeypatch.setattr(sparse, "read_npz", read_npz)
    return [model, snailps.load(tmp_path / "m.npz")]


def test_table_in_memory_is_asked_with_the_kinds_that_it_was_fitted_with(people, tmp_path):
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    polars = pytest.importorskip("polars")
    rows = [{"zip": "1000", "age": 20}, {"zip": "1001", "age": 40}]
    numbers = [{"zip": 1000, "age": 20}, {"zip": 1001, "age": 40}]
    file = tmp_path / "x.csv"
    file.write_text("zip,age\n1000,20\n1001,40\n")
    for model in people:
        assert model.columns_ == ("zip:categorical", "age:numeric")
        for given in (
            pandas.DataFrame(rows), pandas.DataFrame(numbers), polars.DataFrame(numbers),
            pandas.DataFrame(rows).astype({"zip": "category"}),
            pandas.DataFrame(numbers).astype({"zip": float}), pandas.DataFrame(rows, dtype=object),
            pyarrow.Table.from_pylist(numbers), rows, numbers, str(file),
        ):  # fmt: skip
            assert asked(model, given) == [81, 162]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_column_that_never_had_a_value_is_of_numbers_as_in_files(jobs, library):
    module = pytest.importorskip(library)
    of = module.table if library == "pyarrow" else module.DataFrame
    model = snailps.LogisticRegression().fit(of({"zip": [None, None], "age": [20, 40]}), [0, 1])
    assert model.columns_ == ("zip:numeric", "age:numeric")
    with pytest.raises(DataError, match=r"column 'zip', row 0 is 'x' .*: expected a number"):
        model.partial_fit(of({"zip": ["x", None], "age": [20, 40]}), [0, 1])


def test_file_that_lacks_the_kinds_of_its_columns_goes_by_the_types_of_a_batch(people, tmp_path):
    pandas = pytest.importorskip("pandas")
    model = people[1]
    model._declared = ()  # as of 0.1.0
    model.save(tmp_path / "old.npz")
    old = snailps.load(tmp_path / "old.npz")
    assert old.columns_ == ()
    assert asked(old, pandas.DataFrame({"zip": ["1000", "1001"], "age": [20, 40]})) == [81, 162]
    assert asked(old, pandas.DataFrame({"zip": [np.nan, np.nan], "age": [20, 40]})) == [80, 160]


def test_missing_values_of_a_batch_make_no_entry_whatever_their_type(people, tmp_path):
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    polars = pytest.importorskip("polars")
    file = tmp_path / "x.csv"
    file.write_text("zip,age\n,20\n,40\n")
    for model in people:
        for none in (None, np.nan, pandas.NA, ""):
            assert asked(model, pandas.DataFrame({"zip": [none, none], "age": [20, 40]})) == [
                80,
                160,
            ]
        for none in (None, np.nan, pandas.NA):
            given = {"zip": ["1000", "1001"], "age": [none, none]}
            assert asked(model, pandas.DataFrame(given)) == [1, 2]
        empty = {"zip": [None, None], "age": [20, 40]}
        dicts = [{"age": 20}, {"age": 40, "zip": None}]
        for given in (pyarrow.table(empty), polars.DataFrame(empty), dicts, str(file)):
            assert asked(model, given) == [80, 160]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"zip": ["1000"], "age": ["old"]}, "column 'age', row 0 is 'old' .*: expected a number"),
        ({"zip": ["1000"], "age": ["20"]}, "column 'age', row 0 is '20' .*: expected a number"),
        ({"zip": ["1000"], "years": [20]}, "got 'years' instead of 'age'"),
        ([{"zip": "1000", "age": "20"}], "column 'age', row 0 is '20' .*: expected a number"),
        (
            [{"Zip": "1000"}],
            "none of the model's columns, which are 'zip', 'age'; element 0 has 'Zip'",
        ),
        ([{"zip": [1]}], "column 'zip', row 0 is .*: expected a text or a number"),
        ([{"zip": "1000"}, 3], "element 1 is 3 .*: expected a dict"),
        ([[1, 2]], "fitted on features by name .* X has columns by number"),
    ],
)
def test_row_that_does_not_fit_names_its_column(people, given, text):
    if isinstance(given, dict):
        given = pytest.importorskip("pandas").DataFrame(given)
    for model in people:
        with pytest.raises(DataError, match=text):
            model.predict(given)
        for use in (model.score, model.evaluate):
            with pytest.raises(DataError, match=text):
                use(given, [1])
        with pytest.raises(DataError, match=text):
            model.partial_fit(given, [1] * len(given))


def test_dicts_have_the_kinds_of_their_names(jobs, monkeypatch, tmp_path):
    pandas = pytest.importorskip("pandas")
    rows = [{"zip": "1000", "age": 20, "any": 1}, {"zip": "1001", "any": "x"}]
    model = knows(snailps.LogisticRegression().fit(rows, [0, 1]), zip={"1000": 1}, age=4, any=8)
    model.save(tmp_path / "m.npz")
    with monkeypatch.context() as patch:
        patch.setattr(sparse, "read_npz", read_npz)
        loaded = snailps.load(tmp_path / "m.npz")
    file = tmp_path / "x.jsonl"
    file.write_text('{"zip": 1000, "age": 20}\n')
    for one in (model, loaded):
        for given in (
            [{"zip": "1000", "age": 20}], [{"zip": "1000", "age": 20, "new": "y"}],
            pandas.DataFrame([{"zip": 1000, "age": 20}]), str(file),
        ):  # fmt: skip
            assert asked(one, given) == [81]
        assert asked(one, [{"any": 2}, {"any": "x"}]) == [16, 0]
        with pytest.raises(DataError, match="0 has a number for 'zip', which was a text"):
            one.predict([{"zip": 1000}])
        with pytest.raises(DataError, match="0 has a text for 'age', which was a number"):
            one.partial_fit([{"age": "20"}], [1])
        with pytest.raises(DataError, match=r"column 'age', row 0 is 'x' .*: expected a number"):
            one.predict(pandas.DataFrame([{"age": "x"}]))
    model.partial_fit([{"new": 1}, {"zip": "1002"}], [0, 1])
    with pytest.raises(DataError, match="0 has a text for 'new', which was a number"):
        model.predict([{"new": "1"}])


def test_kinds_of_very_many_names_are_not_kept(monkeypatch):
    monkeypatch.setattr("snailps.data.feature_rows.KINDS_MAX", 2)
    rows = DictRows([{"a": 1, "b": "x", "c": 1}])
    assert sum(piece.rows for piece in rows.pieces()) == 1
    assert rows.kinds() == {}


def test_table_of_numbers_is_asked_for_numbers_by_column(jobs):
    pandas = pytest.importorskip("pandas")
    model = snailps.LogisticRegression().fit(pandas.DataFrame(X, columns=["a", "b"]), [0, 1, 1, 0])
    assert asked(model, [{"a": 0, "b": 2}]) == asked(model, X[1:2]) == [4.5]
    with pytest.raises(DataError, match=r"column 'b', row 1 is 'x' .*: expected a number, since"):
        model.predict(pandas.DataFrame({"a": [1, 2], "b": [1, "x"]}))
    when = pandas.to_datetime(["2026-01-01", "2026-01-02"])
    with pytest.raises(
        DataError, match=r"column 'b', row 0 is Timestamp.*: expected a number, since"
    ):
        model.predict(pandas.DataFrame({"a": [1, 2], "b": when}))


def test_lines_numbered_from_1_are_refused_by_a_model_of_an_array(jobs, tmp_path):
    model = snailps.LogisticRegression().fit(X, [0, 1, 1, 0])
    lines = tmp_path / "x.svm"
    lines.write_text("0 1:1\n1 2:2\n")
    wanted = r"column 2: LogisticRegression was fitted on columns 0 to 1\. Lines .* from 1"
    for use in (model.predict, model.score, model.evaluate, model.partial_fit):
        with pytest.raises(DataError, match=wanted):
            use(lines)
    lines.write_text("0 0:1\n1 1:2\n")
    assert asked(model, lines) == [0.5, 4.5]


def test_elements_that_a_mask_hides_are_refused_at_every_door(jobs, tmp_path):
    y, hidden = [0, 1, 1, 0], np.ma.masked_equal(X, 2)
    model = snailps.LogisticRegression().fit(np.ma.array(X), np.ma.array(y))
    weights = np.ma.masked_equal([1, 2, 3, 4], 2)
    for use in (
        lambda: model.fit(hidden, y), lambda: model.predict(hidden),
        lambda: model.fit(X, np.ma.masked_equal(y, 0)),
        lambda: model.fit(X, y, sample_weight=weights),
        lambda: snailps.LinearRegression().fit(X, np.ma.masked_equal(y, 0)),
        lambda: snailps.write_matrix(tmp_path / "x.mx", hidden, y),
        lambda: snailps.write_matrix(tmp_path / "x.mx", X, np.ma.masked_equal(y, 0)),
        lambda: snailps.write_matrix(tmp_path / "x.mx", X, y, sample_weight=weights),
        lambda: snailps.MatrixFactorization().fit(np.ma.masked_equal(X.astype(int), 2)),
    ):  # fmt: skip
        with pytest.raises(DataError, match=r"masked one that hides [12]: give"):
            use()


@pytest.mark.parametrize(
    ("given", "labels", "text"),
    [
        (X[0], [1, 0], "Reshape your data"),
        (X[None], [1, 0], "Expected 2D array"),
        (X, [1, 1, 1, 1], "y: expected labels of two classes at least .* got one class"),
        (X, [1, 0], "y: expected 4 labels, one for each row of X; got 2"),
        (X * np.nan, [1, 0, 1, 0], "NaN"),
        (X + np.inf, [1, 0, 1, 0], "NaN|inf"),
        (X, None, "requires y to be passed, but the target y is None"),
        (X, [0.5, 1.5, 2.5, 3.5], "Unknown label type: continuous"),
        (X, [np.nan, 1, 0, 1], "NaN|missing"),
        (X[:, :0], [1, 0, 1, 0], r"0 feature\(s\) \(shape=\(4, 0\)\) while a minimum of 1 is"),
        (X[:0], [], "0 sample"),
        (X * 1j, [1, 0, 1, 0], "Complex data not supported"),
        ([[1, 2], [3]], [1, 0], "equally many"),
        (np.array([["a", "b"]]), [1], "expected numbers"),
        ("a.svm", [1], "'a.svm' is no file, folder, glob or URL"),
        (b"a.svm", [1], "path of a file as a str or Path; got a bytes"),
        (X, np.eye(4), "y should be a 1d array"),
    ],
)
def test_wrong_data_is_refused(jobs, given, labels, text):
    with pytest.raises(DataError, match=text) as caught:
        snailps.LogisticRegression().fit(given, labels)
    assert isinstance(caught.value, ValueError)
    assert jobs.asked == []


def test_elements_that_are_no_numbers_are_a_type_error(jobs):
    given = X.astype(object)
    given[0, 0] = {"foo": "bar"}
    with pytest.raises(TypeError, match=r"argument must be .* string.* number"):
        snailps.LogisticRegression().fit(given, [1, 0, 1, 0])


@pytest.mark.parametrize(
    ("weights", "text"),
    [([1, 1], "shape"), (np.ones((4, 2)), "shape"), ([0] * 4, "all weights are zero"),
     ([1, 1, 1, -1], "at least 0"), ([1, 0, 0, 1], "one class"), (["a"] * 4, "numbers")],
)  # fmt: skip
def test_wrong_weights_are_refused(jobs, weights, text):
    with pytest.raises(DataError, match=text):
        snailps.LogisticRegression().fit(X, [1, 0, 0, 1], sample_weight=weights)


def test_wrong_use_is_refused(jobs):
    model = snailps.LogisticRegression()
    with pytest.raises(NotFitted, match="call fit first") as caught:
        model.predict(X)
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
    model.fit(X, [1, 0, 1, 0])
    with pytest.raises(DataError, match="X has 1 features, but LogisticRegression is expecting 2"):
        model.predict(X[:, :1])
    for wrong in (np.nan, np.inf):
        with pytest.raises(DataError, match=r"NaN|inf"):
            model.predict(X * 0 + wrong)
    with pytest.raises(ParameterError, match="unknown parameter 'loss'"):
        snailps.LogisticRegression(loss="squared")
    with pytest.raises(ParameterError, match="lr"):
        snailps.LogisticRegression(lr=-1).fit(X, [1, 0, 1, 0])
    with pytest.raises(ParameterError, match="unknown parameter 'stop_after'"):
        snailps.MLPClassifier(stop_after=2)  # holds nothing out


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, -100, 127, 3, -128] * 60, np.int8),
        np.array([(1 << 64) - 1, (1 << 64) - 3, (1 << 64) - 1], np.uint64),
        np.array([-(1 << 63), (1 << 63) - 1, 0], np.int64),
        np.array([-(1 << 63), 2 - (1 << 63), 2 - (1 << 63)], np.int64),
        np.array([-2047, 2048] * 2100, np.float16),
        np.array([2.0, -0.0, 0.0, 2.0]),
        np.array([1e300, -1e300]),
        np.array([True, False, True]),
        np.array([True]),
        np.array(["b", "a", "b"]),
        np.array([], np.int64),
    ],
    ids=lambda labels: f"{labels.dtype}-{len(labels)}",
)
def test_labels_are_numbered_as_by_numpy(labels):
    classes, numbers = numbered(labels)
    expected, places = np.unique(labels, return_inverse=True)
    assert (classes.dtype, numbers.dtype) == (expected.dtype, np.int64)
    assert classes.tolist() == expected.tolist()
    assert numbers.tolist() == places.tolist()


@pytest.mark.parametrize("labels", [["b", "a", "b", "a"], [3, -1, 3, 3], [True, False, True, True]])
def test_labels_of_arrays_are_numbered_as_those_of_lists(jobs, labels):
    pandas = pytest.importorskip("pandas")
    for given in (labels, np.array(labels), np.array(labels, object), pandas.Series(labels)):
        model = snailps.LogisticRegression().fit(X, given)
        assert model.classes_.tolist() == sorted(set(labels))
        assert jobs.labels[-1] == [sorted(set(labels)).index(label) for label in labels]


# --- the other models -----------------------------------------------------------------------------


def test_machine_for_numbers_scales_weights_and_factors(jobs, monkeypatch):
    def model(settings, keys, rows):
        s = FmSettings(worker_class="snailps.models.sparse.fm:FactorizationMachine", **settings)
        rows = np.array([[1, 0.5], [2, 1], [0.5, 0]], np.float32)
        return finished(FactorizationMachine, s, np.array([0, 1, BIAS_KEY], np.uint64), rows)

    monkeypatch.setattr(jobs, "model", model)
    y = np.array([100.0, 300, 100, 300])
    found = snailps.FMRegressor(factors=1).fit(X, y)
    assert jobs.asked[0][1] == {"loss": "squared", "factors": 1}
    # (bias + w x + v0 v1 x0 x1) * 100 + 200
    assert found.predict(X) == pytest.approx([350, 650, 600, 250])


def test_fields_of_columns_give_their_number(jobs):
    with pytest.raises(ParameterError, match="fields: expected a number"):
        snailps.FMClassifier(fields=[0]).fit(X, [1, 0, 1, 0])
    assert jobs.asked == []
    fields = snailps.FMClassifier.parameters
    assert "fields" in fields.defaults
    assert "fields" not in fields.by_name
    with contextlib.suppress(TypeError, AttributeError):  # of the made-up model
        snailps.FMClassifier(fields=[0, 2]).fit(X, [1, 0, 1, 0])
    assert jobs.asked[-1][1]["fields"] == 3


def test_machine_refuses_three_classes(jobs):
    with pytest.raises(DataError, match="Only binary classification is supported"):
        snailps.FMClassifier().fit(X, [1, 2, 3, 1])
    for given in ({"y": [1, 2, 1, 1], "classes": [1, 2, 3]}, {"y": [1, 2, 3, 1]}):
        with pytest.raises(DataError, match="Only binary classification is supported"):
            snailps.FMClassifier().partial_fit(X, **given)
    assert jobs.asked == []


@pytest.fixture
def machines(jobs, monkeypatch):
    def model(settings, keys, rows):
        s = FmSettings(worker_class="snailps.models.sparse.fm:FactorizationMachine", **settings)
        return finished(FactorizationMachine, s, keys, np.hstack([rows, rows]))

    monkeypatch.setattr(jobs, "model", model)
    return jobs


def test_machine_goes_on_with_weights_factors_and_state(machines, monkeypatch, tmp_path):
    def load(**parameters):
        with monkeypatch.context() as real:
            real.setattr(sparse, "read_npz", read_npz)
            return snailps.FMClassifier.load(tmp_path / "m.npz", **parameters)

    model = snailps.FMClassifier(factors=1).partial_fit(X, [0, 0, 0, 0], classes=[0, 1])
    model.save(tmp_path / "m.npz")
    for goes_on in (model, load()):
        goes_on.partial_fit(X, [1, 0, 1, 1])
        assert machines.before[-1]["weights"].rows.tolist() == [[2, 12, 22], [0.5, 10.5, 20.5]]
        assert machines.labels[-1] == [1, 0, 1, 1]
        assert goes_on.classes_.tolist() == [0, 1]
    for name, value in {"factors": 2, "optimizer": "sgd"}.items():
        with pytest.raises(ParameterError, match=f"{name}: the fitted model has"):
            load(**{name: value}).partial_fit(X, [1] * 4)
    with pytest.raises(DataError, match="X has 1 features, but FMClassifier is expecting 2"):
        model.partial_fit(X[:, :1], [1, 1, 1, 1])


def test_machine_goes_on_with_the_fields_that_it_has(machines):
    model = snailps.FMClassifier(factors=1, fields=[0, 1]).partial_fit(X, [1, 0, 1, 0])
    assert model.partial_fit(X, [1, 0, 1, 0]) is model
    for other in ([1, 0], None):
        with pytest.raises(ParameterError, match="fields: the fitted model has others"):
            model.set_params(fields=other).partial_fit(X, [1, 0, 1, 0])


PAIRS = [(n % 20, 20 + n // 20) for n in range(200)]
FIELD_OF_COLUMN = [0] * 20 + [1] * 10


def trained_by_command(folder, kind):
    """A field-aware machine as ``snailps train fm`` writes it, its examples and its figures."""
    labels = [(user + item) % 2 for user, item in PAIRS]
    entries = pytest.importorskip("scipy.sparse").csr_matrix(
        (np.ones(2 * len(PAIRS), np.float32), np.array(PAIRS).ravel(), np.arange(0, 401, 2)),
        shape=(len(PAIRS), 30),
    )
    path, more = folder / f"d.{kind}", {}
    if kind == "ffm":
        lines = zip(labels, PAIRS, strict=True)
        path.write_text("".join(f"{y} 0:{u}:1 1:{v}:1\n" for y, (u, v) in lines))
    elif kind == "mx":
        fields = np.array(FIELD_OF_COLUMN, np.int32)
        snailps.write_matrix(str(path), entries, labels, fields=fields)
    else:
        lines = zip(labels, PAIRS, strict=True)
        path.write_text("".join(f"{y},u{u},v{v}\n" for y, (u, v) in lines))
        more = {"columns": "y:label, u:categorical, v:categorical", "format": "csv"}
    words = {
        "worker_class": "snailps.models.sparse.fm:FactorizationMachine", "input": path,
        "test": path, "output": folder / "m", "epochs": 2, "fields": 2, "keep_state": "always",
        **more,
    }  # fmt: skip
    with trained({name: str(value) for name, value in words.items()}, 1) as (cls, results):
        figures = cls.judge(results)["test"]
        cls.export(results)
    return path, entries, labels, figures["log_loss"]


@pytest.mark.parametrize("kind", ["ffm", "mx", "csv"])
def test_machine_of_a_command_reads_fields_where_its_examples_have_them(tmp_path, kind):
    path, entries, labels, log_loss = trained_by_command(tmp_path, kind)
    model = snailps.FMClassifier.load(tmp_path / "m.npz")
    assert model.fields == "columns"
    if kind == "csv":
        rows = [{"u": f"u{u}", "v": f"v{v}"} for u, v in PAIRS]
        assert model.evaluate(rows, labels)["log_loss"] == pytest.approx(log_loss, abs=1e-6)
        return
    model.save(tmp_path / "again.npz")
    for asked in (model, snailps.FMClassifier.load(tmp_path / "again.npz")):
        assert asked.evaluate(str(path))["log_loss"] == pytest.approx(log_loss, abs=1e-6)
        with pytest.raises(ParameterError, match=r"fields 0 to 1, as the model has, for 30 colum"):
            asked.predict(entries)
        asked.set_params(fields=FIELD_OF_COLUMN)
        assert asked.evaluate(entries, labels)["log_loss"] == pytest.approx(log_loss, abs=1e-6)


@pytest.mark.parametrize("kind", ["ffm", "mx", "csv"])
def test_machine_of_a_command_goes_on_with_its_number_of_fields(
    machines, monkeypatch, tmp_path, kind
):
    path, entries, labels, _ = trained_by_command(tmp_path, kind)
    monkeypatch.setattr(sparse, "read_npz", read_npz)
    X, y, parameters = str(path), None, {}
    if kind == "csv":
        X, y = [{"u": "u1", "v": "v20"}, {"u": "u2", "v": "v21"}], [0, 1]
    elif kind == "mx":
        X, y, parameters = entries, labels, {"fields": FIELD_OF_COLUMN}
    model = snailps.FMClassifier.load(tmp_path / "m.npz", **parameters)
    with contextlib.suppress(TypeError, AttributeError, ValueError):  # of the made-up model
        model.partial_fit(X, y)
    assert machines.asked[-1][1]["fields"] == 2


def test_machine_of_lines_with_fields_goes_on_when_it_is_loaded(machines, monkeypatch, tmp_path):
    lines = tmp_path / "x.ffm"
    lines.write_text("1 0:0:1 1:1:2\n0 0:0:1 1:1:1\n")
    snailps.FMClassifier(factors=1, fields="columns").fit(lines).save(tmp_path / "m.npz")
    with monkeypatch.context() as real:
        real.setattr(sparse, "read_npz", read_npz)
        loaded = snailps.FMClassifier.load(tmp_path / "m.npz")
        assert snailps.FMClassifier.load(tmp_path / "m.npz", fields=[0, 1]).fields == [0, 1]
    assert loaded.partial_fit(lines).fields == "columns"
    assert machines.asked[-1][1]["fields"] == 2


def test_machine_for_numbers_goes_on_with_its_scale(machines):
    model = snailps.FMRegressor(factors=1).partial_fit(X, [100.0, 300, 100, 300])
    model.partial_fit(X, [500.0, 500, 500, 500])
    assert machines.labels == [[-1, 1, -1, 1], [3, 3, 3, 3]]
    # what the next job goes on with is not scaled back
    assert machines.before[0]["weights"].rows[0].tolist() == [2, 12, 22]


def test_rows_of_a_file_to_go_on_with_are_checked(tmp_path):
    table = Table("weights", 2, access="ftrl", lr=0.1)
    results = Results(
        SparseSettings(continue_from=str(tmp_path / "m.npz")),
        b"", {}, None, {"weights": 0}, {"weights": table}, 0,
    )  # fmt: skip
    keys = np.array([3, 5], np.uint64)
    rows = np.ones((2, 5), np.float32)
    write_packed(str(tmp_path / "m.npz"), {"weights": Packed(keys, rows)})
    with pytest.raises(ModelFileError, match=r"weights: expected rows of 6 numbers.* got 5"):
        put_tables(results)
    write_packed(str(tmp_path / "m.npz"), {"bias": Packed(keys, rows)})
    with pytest.raises(ModelFileError, match=r"table bias: expected tables \['weights'\]"):
        put_tables(results)
    np.savez(tmp_path / "m.npz", keys=keys, rows=rows)
    with pytest.raises(ModelFileError, match=r"state of their optimizer, .* got .*arrays"):
        put_tables(results)


@pytest.mark.parametrize("changed", [{}, {"lr": 0.01}, {"beta": 3.0}, {"l1": 2.0}])
def test_rows_to_go_on_with_keep_their_weights_with_another_step_size(tmp_path, changed):
    path, before = str(tmp_path / "m.npz"), {"access": "ftrl", "lr": 0.1, "beta": 1.0, "l1": 0.5}
    table = Table("weights", 2, **before | changed)
    z, n = np.array([[-3, 0.75], [4, -0.5]]), np.array([[2.0, 0], [9, 100]])
    w = ftrl_weights(Table("weights", 2, **before).store_arguments()[5], z, n)
    assert (w == 0).sum() == 1
    packed = Packed(np.array([3, 5], np.uint64), np.hstack((w, z, n)).astype(np.float32))
    write_packed(path, {"weights": packed})
    taken = []
    results = Results(
        SparseSettings(continue_from=path), b"", {}, None, {"weights": 0}, {"weights": table}, 0
    )
    results.put_packed = lambda name, pieces: taken.extend(pieces)
    put_tables(results)
    ((keys, rows),) = taken
    rows = rows.astype(np.float64)
    assert keys.tolist() == [3, 5]
    assert (rows[:, :2] == packed.rows[:, :2]).all()
    assert (rows[:, 4:] == n).all()
    hyper = table.store_arguments()[5]
    assert ftrl_weights(hyper, rows[:, 2:4], n) == pytest.approx(w, rel=1e-5, abs=1e-9)
    assert changed or (rows[:, 2:4] == packed.rows[:, 2:4]).all()


def test_file_of_a_command_does_not_tell_the_number_of_columns(jobs, tmp_path, monkeypatch):
    monkeypatch.setattr(sparse, "read_npz", read_npz)
    keys, rows = np.array([1, BIAS_KEY], np.uint64), np.array([[2], [0.5]], np.float32)
    write_saved(tmp_path / "m.npz", jobs.model({}, keys, rows), {})
    model = snailps.load(tmp_path / "m.npz")
    assert not hasattr(model, "n_features_in_")
    wide = np.hstack([X, np.ones((4, 9), np.float32)])
    assert model.decision_function(wide).tolist() == model.decision_function(X).tolist()
    assert model.coef_.tolist() == [[0, 2]]
    with pytest.raises(NotFitted, match=r"without the optimizer's state: call fit"):
        model.partial_fit(X, [0, 1, 1, 0])


@pytest.mark.parametrize("hidden", [(3, 2), [3, 2], np.array([3, 2])])
def test_widths_are_numbers(jobs, hidden):
    models = snailps.SparseNetClassifier(hidden=hidden), snailps.MLPClassifier(hidden=7)
    assert [model._checked()["hidden"] for model in models] == [("3", "2"), ("7",)]
    for wrong in ((), 0, "x", (3, 1.5), True, None):
        with pytest.raises(ParameterError, match="hidden: expected a width"):
            snailps.MLPClassifier(hidden=wrong).fit(X, [1, 0, 1, 0])


def test_perceptron_predicts_by_its_layers_and_goes_through_files(jobs, monkeypatch, tmp_path):
    settings = MlpSettings(hidden=("2",), inputs=2, classes=2)
    arrays = {tensor.name: np.ones(tensor.shape, np.float32) for tensor in settings.tensors}
    arrays["dense1"] = np.array([[0, 1], [0, 1]], np.float32)
    net = SavedNet(settings, arrays)
    monkeypatch.setattr(mlp, "read_npz", lambda path: net)
    monkeypatch.setattr(jobs, "model", lambda *_: None)
    bytes_ = X.astype(np.uint8)
    model = snailps.MLPClassifier(hidden=2).fit(bytes_, ["a", "b", "a", "b"])
    assert jobs.asked[0][1] == {"hidden": ("2",), "classes": 2, "inputs": 2}
    assert model.decision_function(X).tolist() == model.decision_function(bytes_).tolist()
    assert model.predict(X).tolist() == ["b"] * 4
    monkeypatch.undo()
    model.save(tmp_path / "m.npz")
    assert type(snailps.load(tmp_path / "m.npz")) is snailps.MLPClassifier
    loaded = snailps.MLPClassifier.load(tmp_path / "m.npz")
    assert sorted(mlp.read_npz(tmp_path / "m.npz").arrays) == sorted(arrays)
    assert (loaded.hidden, loaded.epochs) == ((2,), "auto")
    assert loaded.predict_proba(X).tolist() == model.predict_proba(X).tolist()
    with pytest.raises(DataError, match="takes no texts and no dicts"):
        snailps.MLPClassifier().fit([{"a": 1}, {"a": 2}], [0, 1])


@pytest.mark.parametrize(
    ("x", "y", "text"),
    [
        ("clicks.parquet", [0, 1], "'clicks.parquet' is no file, folder, glob or URL"),
        (pathlib.Path("clicks.csv"), [0, 1], "'clicks.csv' is no file, folder, glob or URL"),
        ((row for row in X), [0, 1], r"got a generator: give list\(X\)"),
        ({"a": [1.0, 2.0]}, [0, 1], "got a dict: give a DataFrame of it"),
        (X, "clicked", r"got the str 'clicked'. If it names a column of X"),
    ],
)
def test_data_of_other_kinds_is_refused_with_what_to_give(x, y, text):
    with pytest.raises(DataError, match=text):
        snailps.LogisticRegression().fit(x, y)


@pytest.mark.parametrize("access", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("rows", [2, 700])
def test_widened_keeps_weights_and_state_by_place(access, rows):
    before, after = (Tensor("t", (rows, n), access=access, lr=0.1) for n in (2, 4))
    rng = np.random.default_rng(rows)
    parts = {"sgd": 1, "momentum": 2, "adam": 3}[access]
    arrays = [rng.normal(size=before.shape).astype(np.float32) for _ in range(parts)]
    counts = [np.full((len(before.keys()), 1), 7, np.float32)] * (access == "adam")
    packed = Packed(before.keys(), np.hstack([before.to_rows(one) for one in arrays] + counts))
    found = widened(packed, before, after, np.array([1, 3]))
    dim = after.table().dim
    assert found.rows.shape == (len(after.keys()), dim + after.table().state_floats)
    for number, array in enumerate(arrays):
        made = after.from_rows(np.ascontiguousarray(found.rows[:, number * dim :][:, :dim]))
        assert np.array_equal(made[:, [1, 3]], array)
        assert not made[:, [0, 2]].any()
    assert (found.rows[:, dim * parts :] == 7).all()
    with pytest.raises(ModelFileError, match="tensor t: expected"):
        widened(Packed(packed.keys[1:], packed.rows[1:]), before, after, np.array([1, 3]))


def test_perceptron_goes_on_with_state_and_new_classes(jobs, monkeypatch, tmp_path):
    def tensors(classes):
        return MlpSettings(hidden=("2",), inputs=2, classes=classes).tensors

    def read(path):
        classes = jobs.asked[-1][1]["classes"]
        settings = MlpSettings(hidden=("2",), inputs=2, classes=classes)
        return SavedNet(settings, {t.name: np.ones(t.shape, np.float32) for t in tensors(classes)})

    def tables(_):
        return {
            t.name: Packed(t.keys(), np.full((len(t.keys()), 3 * t.size + 1), 5, np.float32))
            for t in tensors(jobs.asked[-1][1]["classes"])
        }

    monkeypatch.setattr(jobs, "tables", tables)
    monkeypatch.setattr(jobs, "model", lambda *_: None)
    with monkeypatch.context() as made_up:
        made_up.setattr(mlp, "read_npz", read)
        model = snailps.MLPClassifier(hidden=2).partial_fit(X, ["a", "c", "a", "c"])
        model.save(tmp_path / "m.npz")
    loaded = snailps.MLPClassifier.load(tmp_path / "m.npz")
    assert loaded.hidden == (2,)
    monkeypatch.setattr(mlp, "read_npz", read)
    loaded.partial_fit(X, ["a", "b", "a", "b"])
    assert jobs.asked[-1][1]["classes"] == 3
    assert loaded.classes_.tolist() == ["a", "b", "c"]
    before = jobs.before[-1]
    assert before["dense1"].rows[0].tolist() == [5, 0, 5, 5, 0, 5] * 3 + [5]
    first = 5 + math.log(2 * 0.25 / 0.75)  # a quarter of the examples so far
    biases = before["biases"].rows[0]
    assert biases[3] == pytest.approx(first)
    assert np.delete(biases, 3).tolist() == [5] * 4 + [5, 5, 5, 0, 5] * 2 + [5]
    assert before["dense0"].rows[0].tolist() == [5] * 13
    loaded.partial_fit(X, ["a"] * 4)
    assert jobs.before[-1]["dense1"].rows[0].tolist() == [5] * 19
    for name, value in {"hidden": 3, "activation": "sigmoid", "optimizer": "sgd"}.items():
        other = copy.deepcopy(loaded).set_params(**{name: value})
        with pytest.raises(ParameterError, match=f"{name}: the fitted model has"):
            other.partial_fit(X, ["a"] * 4)


@pytest.mark.parametrize("name", ["weights.keys", "x"])
def test_continue_from_a_file_without_state_says_what_is_expected(tmp_path, name):
    np.savez(tmp_path / "m.npz", **{name: np.zeros(2, np.uint64)})
    with pytest.raises(ModelFileError, match="continue_from: expected weights with the state"):
        read_packed(str(tmp_path / "m.npz"))


def continuing(cls, path, **settings):
    """Settings as of ``--NAME VALUE``, after `adopt`."""
    given = {"input": ("x.svm",), "continue_from": str(path), **settings}
    raw = cls.Settings(**given)
    return warm_start.adopt(cls, raw, lambda name: f"--{name}" if name in settings else None)


@pytest.mark.parametrize(
    ("label", "weight", "what"),
    [
        ("", "w", r"^--weight-column: there is no column 'w': .* is no table"),
        ("y", "", r"^--label-column: there is no column 'y': .* is no table"),
        ("", "", r"t\.svm, line 1, column 5: expected a finite number"),
    ],
)
def test_error_of_a_command_names_its_option(saved, tmp_path, label, weight, what):
    (tmp_path / "t.svm").write_text("0 0:x\n")
    with pytest.raises(DataError, match=what):
        judge_examples(saved, str(tmp_path / "t.svm"), label, weight, as_json=False)


@pytest.fixture
def saved(jobs, tmp_path):
    model = snailps.LogisticRegression(lr=0.5, l2=0.1, epochs=7).fit(X, [-1, 3, 3, -1])
    model.save(tmp_path / "m.npz")
    return tmp_path / "m.npz"


def test_command_that_continues_takes_what_the_model_has(saved):
    found = continuing(Linear, saved)
    assert (found.lr, found.l2, found.loss, found.method) == (0.5, 0.1, "logistic", "ftrl")
    assert (found.epochs, found.keep_state) == (0, "always")
    found = continuing(Linear, saved, lr=0.2, epochs=2, keep_state="never")
    assert (found.lr, found.l2, found.epochs, found.keep_state) == (0.2, 0.1, 2, "never")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"bias": False}, "--bias: expected true, as in .*m.npz, .* got false"),
        ({"loss": "squared"}, "--loss: expected logistic, as in .*m.npz"),
        ({"optimizer": "sgd"}, "--optimizer: expected ftrl, as in .*m.npz"),
        ({"hash_bits": 9}, "--hash_bits: hash_bits: expected 0, as in .*m.npz"),
        ({"label_column": "y"}, "model has columns by number, and the input features by name"),
    ],
)
def test_command_that_continues_refuses_another_shape(saved, settings, text):
    with pytest.raises(ConfigError, match=text):
        continuing(Linear, saved, **settings)
    with pytest.raises(ConfigError, match=r"expected a model of FactorizationMachine, got one of"):
        continuing(FactorizationMachine, saved)


def test_command_that_continues_has_the_columns_of_the_model(people, tmp_path):
    path = tmp_path / "m.npz"
    with pytest.raises(ConfigError, match=r"model has features by name .* input columns by number"):
        continuing(Linear, path)
    found = continuing(Linear, path, label_column="y", columns=("id:ignore",))
    assert found.columns == ("zip:categorical", "age:numeric", "id:ignore")
    with pytest.raises(ConfigError, match=r"--columns: columns: got zip:numeric: the model"):
        continuing(Linear, path, label_column="y", columns=("zip:numeric",))


def test_command_that_continues_adds_labels_of_the_input(jobs, saved, tmp_path):
    lines = tmp_path / "x.svm"

    def labelled(cls, path, text, **settings):
        lines.write_text(text)
        found = continuing(cls, path, **settings)
        with Scratch(str(tmp_path / "scratch"), 0) as scratch:
            files = InputFiles([InputFile(str(lines), lines.stat().st_size)], scratch)
            return warm_start.with_labels(cls, found, files)

    same = labelled(Linear, saved, "-1 0:1\n3 1:1\n")
    assert (same.loss, same.classes) == ("logistic", 0)
    assert Encoding.of_text(same.encoding).constant == pytest.approx(np.log(2))
    assert Encoding.of_text(same.encoding).labels == (-1, 3)
    more = labelled(Linear, saved, "3 0:1\n0.5 1:1\n")
    assert (more.loss, more.classes) == ("multinomial", 3)
    assert Encoding.of_text(more.encoding).labels == (-1, 0.5, 3)
    check_input(Linear, continuing(Linear, saved, input=(str(lines),)))
    with pytest.raises(DataError, match=r"expected labels of 4 classes, .* got -1, 3, 5"):
        labelled(Linear, saved, "5 0:1\n", loss="multinomial", classes=4)


def test_command_that_continues_a_balanced_model_balances_its_own_lines(jobs, tmp_path):
    """The file has numbers, of two classes of that text: a third class ended with them."""
    of_file = Encoding(labels=(0.0, 1.0), is_measured=True, is_balanced=True)
    snailps.LogisticRegression().fit(X, [0, 1, 1, 0]).save(path := tmp_path / "m.npz")
    with np.load(path) as file:
        arrays = dict(file)

    def write(encoding):  # as a command does
        of_job = {"class_weights": "2, 0.666667", "encoding": encoding.text}
        header = header_of({**settings_of(arrays["about"]), **of_job})
        np.savez(path, **{**arrays, "about": header})

    write(of_file)
    assert continuing(Linear, path).class_weights == ("balanced",)
    assert continuing(Linear, path, class_weights=("1", "3")).class_weights == ("1", "3")
    write(replace(of_file, is_balanced=False))
    assert continuing(Linear, path).class_weights == ("2", "0.666667")


@pytest.mark.parametrize("text", ["weights alone", "no archive", "nothing"])
def test_command_that_continues_says_what_the_file_lacks(jobs, saved, tmp_path, text):
    wanted, path = "continue_from: expected the .npz of a model, got", tmp_path / "other.npz"
    if text == "weights alone":
        write_saved(path, jobs.saved, {})
        wanted = "weights without the state of their optimizer.* with keep_state: always"
    elif text == "no archive":
        path.write_text("x")
    else:
        wanted = "other.npz: continue_from: No such file"
    with pytest.raises(SnailError, match=wanted):
        continuing(Linear, path)
