"""Estimators on a real cluster: fit, partial_fit, neighbours, errors, scikit-learn."""

import io
from functools import partial
from pathlib import Path

import docstrings
import numpy as np
import pytest

import snailps
from snailps.errors import ClusterError, DataError, ParameterError

PAIRS = [("king", "queen"), ("cat", "dog"), ("red", "blue"), ("one", "two")]
QUIET = {"min_count": 1, "dim": 24, "epochs": 20, "lr": 0.05, "sample": 0}


def sentences(n=400):
    """Of pairs of words that share their contexts."""
    rng = np.random.default_rng(3)
    made = []
    for i in range(n):
        at = i % len(PAIRS)
        context = [f"c{at}{rng.integers(4)}" for _ in range(6)]
        context[int(rng.integers(6))] = PAIRS[at][int(rng.integers(2))]
        made.append(context)
    return made


@pytest.fixture(scope="module")
def cluster():
    """A session for several fits."""
    with snailps.local_cluster(threads=1, log=io.StringIO()) as made:
        yield made


def test_fit_of_token_lists_finds_words_of_like_contexts(cluster):
    heard = []
    model = snailps.Word2Vec(**QUIET, cluster=cluster, callbacks=[heard.append])
    model.fit(sentences())
    for one, other in PAIRS:
        near = [word for word in model.wv.words if word[0] != "c" or word == "cat"]
        assert model.wv.most_similar(one, restrict_vocab=near, topn=1)[0].word == other
    losses = [one["loss"] for one in model.history_]
    assert len(losses) == 20
    assert losses[-1] < losses[0]
    assert model.figures_["words"] == 20 * 400 * 7
    assert heard[-1]["phase"] == "done"
    assert heard[-1]["epoch"] == heard[-1]["epochs"] == 20
    assert model.transform(["king", ["queen", "cat"]]).shape == (2, 24)


def bucket_of(model):
    """How many rows of n-grams a fitted model has."""
    return model._header.bucket


def packed_of(model):
    """The tables of a fitted model, with the state from which it trains on."""
    return model._packed


def test_partial_fit_adds_words_and_keeps_the_others(cluster, tmp_path):
    model = snailps.FastText(**QUIET, cluster=cluster).fit(sentences())
    rows = bucket_of(model)
    assert rows < 10_000  # it is auto
    before = list(model.wv.words)
    king, queen = model.wv["king"], model.wv["queen"]
    model.set_params(lr=1e-4, epochs=1)
    model.partial_fit(" ".join(words).replace("cat", "lynx") for words in sentences())
    assert list(model.wv.words)[: len(before)] == before
    assert list(model.wv.words)[len(before) :] == ["lynx"]
    assert bucket_of(model) == rows  # those of the first fit
    assert np.abs(model.wv["king"] - king).max() < 0.05
    assert np.dot(model.wv["king"], queen) > 0
    assert [one["epoch"] for one in model.history_] == list(range(1, 22))
    model.save(tmp_path / "m.bin")
    loaded = snailps.FastText.load(tmp_path / "m.bin", epochs=1, min_count=1, cluster=cluster)
    loaded.partial_fit([["lynx", "puma"]] * 20)
    assert loaded.wv.words[-1] == "puma"


def test_fit_of_a_file_equals_that_of_its_sentences(cluster, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("".join(" ".join(words) + "\n" for words in sentences(100)))
    made = []
    for data in (str(file), sentences(100), [" ".join(words) for words in sentences(100)]):
        model = snailps.Word2Vec(dim=8, min_count=1, epochs=2, consistency="bsp", cluster=cluster)
        made.append(model.fit(data).wv.vectors)
    assert (made[0] == made[1]).all()
    assert (made[0] == made[2]).all()


def test_fit_of_a_table_in_a_file_equals_that_of_its_rows(cluster, tmp_path):
    rng = np.random.default_rng(5)
    rows = [{"city": str(rng.integers(9)), "age": rng.integers(90) / 128} for _ in range(600)]
    labels = ["yes" if row["city"] > "4" else "no" for row in rows]
    file = tmp_path / "visits.csv"
    lines = [f"{row['city']}x,{row['age']},{y}" for row, y in zip(rows, labels, strict=True)]
    file.write_text("\n".join(["city,age,clicked", *lines]) + "\n")
    rows = [{**row, "city": row["city"] + "x"} for row in rows]
    made = [
        snailps.LogisticRegression(consistency="bsp", epochs=3, cluster=cluster).fit(*given)
        for given in ((file, "clicked"), (rows, labels))
    ]
    assert made[0].classes_.tolist() == ["no", "yes"]
    # Entries of tables have fields, those of dicts do not: blocks, and so steps, are others.
    wanted = pytest.approx(made[1].predict_proba(rows), abs=0.02)
    assert made[0].predict_proba(file) == wanted
    assert made[0].score(file) > 0.9


def test_fit_of_lines_that_number_from_one_refuses_arrays_that_number_from_zero(cluster, tmp_path):
    rng = np.random.default_rng(6)
    rows = rng.standard_normal((300, 6))
    labels = (rows @ [1, -2, 1, 0.5, -1, 2] > 0).astype(int)
    file = tmp_path / "lines.svm"
    with file.open("w") as lines:
        for row, label in zip(rows, labels, strict=True):
            lines.write(
                f"{label} " + " ".join(f"{i + 1}:{v:.4f}" for i, v in enumerate(row)) + "\n"
            )
    model = snailps.LogisticRegression(cluster=cluster).fit(file)
    assert model.score(file) > 0.9
    for use in (model.predict, lambda rows: model.partial_fit(rows, labels)):
        with pytest.raises(DataError, match=r"columns 0 to 5, but .* up to 6: .* empty column 0"):
            use(rows)
    assert model.score(np.pad(rows, ((0, 0), (1, 0))), labels) == model.score(file)


def test_twenty_fits_leave_the_rows_of_one(cluster):
    x = np.eye(400, dtype=np.float32)
    y = np.arange(400) % 2
    held = []
    for number in range(20):
        if number % 5:
            model = snailps.LogisticRegression(epochs=1, cluster=cluster)
        else:
            model = snailps.FMClassifier(epochs=1, factors=4 + number % 3, cluster=cluster)
        model.fit(x, y)
        status = cluster.status()
        held.append(sum(shard["bytes"] for shard in status["shards"]))
        assert sum(shard["rows"] for shard in status["shards"]) <= 401
        assert status["session"]["tables"] <= 2
    assert held[-1] < 1.02 * held[9]  # pointers to tables and marks stay


def test_errors_leave_the_session_alive(cluster):
    model = snailps.Word2Vec(dim=8, min_count=10_000, cluster=cluster)
    with pytest.raises(ClusterError, match=r"no words left: min_count is 10000.*Lower min_count"):
        model.fit(sentences(20))
    with pytest.raises(DataError, match="is no file, folder, glob or URL"):
        model.fit("king queen")
    with pytest.raises(ParameterError, match="workers: expected none with a cluster"):
        model.set_params(workers=2).fit(sentences(20))
    model.set_params(workers=None, min_count=1, epochs=1).fit(sentences(20))
    assert "king" in model.wv


def test_scikit_learn_clones_tags_and_pipelines(cluster):
    sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from sklearn.exceptions import NotFittedError
    from sklearn.pipeline import make_pipeline
    from sklearn.utils import get_tags
    from sklearn.utils.validation import check_is_fitted

    model = snailps.FastText(dim=8, min_count=1, bucket=100, epochs=1, cluster=cluster)
    copy = sklearn.base.clone(model)
    assert copy is not model
    assert copy.get_params() == model.get_params()
    with pytest.raises(NotFittedError, match="not fitted"):
        check_is_fitted(model)
    assert get_tags(model).input_tags.string
    pipeline = make_pipeline(model)
    assert pipeline.set_params(fasttext__dim=4).fit_transform(sentences(20)).shape == (20, 4)
    check_is_fitted(pipeline[0])


def test_examples_of_the_page_run(tmp_path, monkeypatch):
    """Those that tests/unit skips, because they start a cluster."""
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    text = page.partition("## Models as objects")[2].partition("\n## ")[0]
    monkeypatch.chdir(tmp_path)
    docstrings.run_page(text.replace(docstrings.SKIP, ""))


def test_classifier_learns_and_goes_on_with_new_labels(cluster):
    texts, labels = sentences(200), [PAIRS[i % len(PAIRS)][0] for i in range(200)]
    model = snailps.TextClassifier(dim=8, epochs=10, lr=0.5, cluster=cluster).fit(texts, labels)
    assert model.score(texts, labels) > 0.95
    more = [["wind", "rain", "snow"]] * 40
    model.partial_fit(more + texts[:40], ["bad weather"] * 40 + labels[:40])
    assert "bad weather" in model.classes_
    assert model.predict(["wind and snow"]).tolist() == ["bad weather"]
    assert model.score(texts, labels) > 0.95
    assert model.history_[-1]["epoch"] == 20


def test_classifier_in_cross_validation_and_grid_search(cluster):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from sklearn.model_selection import GridSearchCV, cross_val_score

    texts = [" ".join(words) for words in sentences(80)]
    labels = [PAIRS[i % len(PAIRS)][0] for i in range(80)]
    model = snailps.TextClassifier(dim=4, epochs=5, lr=0.5, cluster=cluster)
    assert cross_val_score(model, texts, labels, cv=2).mean() > 0.8
    search = GridSearchCV(model, {"lr": [1e-6, 0.5]}, cv=2).fit(texts, labels)
    assert search.best_params_ == {"lr": 0.5}


def test_callback_that_returns_false_ends_the_training_with_a_model(cluster):
    # Of so small a text, `sample` leaves some epochs without a pair, which have no loss.
    model = snailps.Word2Vec(dim=8, min_count=1, sample=0, epochs=100_000, cluster=cluster)
    model.set_params(callbacks=[lambda told: told["phase"] != "training" or told["epoch"] < 5])
    model.fit(sentences(50))
    assert "king" in model.wv
    assert model.figures_["ended_by"] == "interrupt"
    assert 4 <= len(model.history_) < 100_000
    model.set_params(callbacks=(), epochs=1).fit(sentences(20))
    assert model.figures_["ended_by"] == "epochs"


def test_callback_that_raises_ends_the_job_and_keeps_the_session(cluster):
    def enough(told):
        if told["phase"] == "training":
            raise RuntimeError("enough")

    model = snailps.Word2Vec(dim=8, min_count=1, epochs=100_000, cluster=cluster)
    with pytest.raises(RuntimeError, match="enough"):
        model.set_params(callbacks=[enough]).fit(sentences(50))
    assert not hasattr(model, "wv")
    model.set_params(callbacks=(), epochs=1).fit(sentences(20))
    assert "king" in model.wv


def test_linear_models_learn_weights(cluster):
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    rng = np.random.default_rng(1)
    dense = rng.normal(size=(2000, 10)).astype(np.float32) * (rng.random((2000, 10)) < 0.4)
    X, weights = sparse.csr_matrix(dense), rng.normal(size=10)
    wanted = dense @ weights + 1
    regression = snailps.LinearRegression(epochs=10, cluster=cluster).fit(X, wanted)
    assert regression.score(dense, wanted) > 0.99
    assert regression.coef_[0] == pytest.approx(weights, abs=0.1)
    labels = np.where(wanted > 1, "high", "low")
    model = snailps.LogisticRegression(epochs=10, cluster=cluster).fit(X, labels)
    assert model.score(X, labels) > 0.95
    parts = np.digitize(wanted, [0.5, 1.5])
    assert snailps.LogisticRegression(cluster=cluster).fit(dense, parts).score(X, parts) > 0.85


@pytest.mark.parametrize(
    "name", ["LogisticRegression", "FMClassifier", "SparseNetClassifier", "MLPClassifier"]
)
def test_columns_far_from_zero_are_learnt_and_one_wrong_value_spoils_none(cluster, name):
    rng = np.random.default_rng(7)
    z = rng.normal(size=(1200, 4))
    y = (z @ [2, -1, 1, 0.5] > 0).astype(int)
    x = z * [10, 8, 1e-2, 1] + [2000, 290, 1, 0]
    wrong = x.copy()
    wrong[17] = [1e30, -1e30, 99_999, 1e9]
    model = getattr(snailps, name)(seed=1, verbose=False, cluster=cluster)
    assert model.fit(x[:900], y[:900]).score(x[900:], y[900:]) > 0.95
    with pytest.warns(UserWarning, match="in all epochs\\) are beyond 64 times"):
        model.fit(wrong[:900], y[:900])
    assert model.score(x[900:], y[900:]) > 0.95


def test_line_through_few_points_is_that_of_least_squares(cluster):
    x = np.arange(100.0)[:, None]
    y = 3 * x[:, 0] + np.random.default_rng(0).normal(size=100)
    model = snailps.LinearRegression(cluster=cluster).fit(x, y)
    assert model.figures_["ended_by"] == "converged"
    wanted = np.polyfit(x[:, 0], y, 1)
    np.testing.assert_allclose([model.coef_[0, 0], model.intercept_[0]], wanted, atol=0.2)
    errors = np.array([y - model.predict(x), y - np.polyval(wanted, x[:, 0])])
    assert np.square(errors[0]).mean() < 1.02 * np.square(errors[1]).mean()


def test_regression_of_numbers_far_from_zero(cluster):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(2000, 5))
    y = X @ [3, -2, 1, 0, 5] * 40 + 1500
    model = snailps.LinearRegression(epochs=10, cluster=cluster).fit(X, y)
    assert model.score(X, y) > 0.98
    assert model.history_[-1]["loss"] < y.var()
    machine = snailps.FMRegressor(factors=2, epochs=10, cluster=cluster).fit(X, y)
    assert machine.score(X, y) > 0.9


@pytest.mark.parametrize("mean", [0.05, 3, 500])
def test_poisson_regression_is_as_good_as_a_solver(cluster, mean):
    linear = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")
    rng = np.random.default_rng(4)
    X = rng.normal(size=(4000, 8))
    y = rng.poisson(mean * np.exp(X @ [0.4, -0.3, 0.2, 0, 0.1, 0, 0, -0.2]))
    model = snailps.PoissonRegressor(epochs=20, cluster=cluster).fit(X[:3000], y[:3000])
    wanted = linear.PoissonRegressor(alpha=0).fit(X[:3000], y[:3000])
    assert model.score(X[3000:], y[3000:]) > wanted.score(X[3000:], y[3000:]) - 0.02
    assert 2 * model.history_[-1]["loss"] < 1.3 * model.evaluate(X, y)["deviance"]


def of_least_loss(X, y, l2, squared):
    """Weights, the constant's last, where mean loss + l2 / 2 |w|^2 is least: Newton's steps."""
    X = np.hstack([X, np.ones((len(X), 1))])
    w = np.zeros(X.shape[1])
    for _ in range(30):
        found = X @ w if squared else 1 / (1 + np.exp(-X @ w))
        curved = np.ones(len(X)) if squared else found * (1 - found)
        hessian = (X * curved[:, None]).T @ X / len(X) + l2 * np.eye(len(w))
        w -= np.linalg.solve(hessian, X.T @ (found - y) / len(X) + l2 * w)
    return w


@pytest.mark.long(but=["ftrl"])
@pytest.mark.parametrize("optimizer", ["ftrl", "adagrad", "sgd"])
def test_l2_is_in_each_loss_whatever_the_optimizer_and_more_epochs_do_not_undo_it(
    cluster, optimizer
):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 5))
    truth = X @ [1, -1, 0.5, 0, 2]
    labels = (rng.random(3000) < 1 / (1 + np.exp(-truth - 1))).astype(int)
    numbers = truth + rng.normal(size=3000)
    numbers = (numbers - numbers.mean()) / numbers.std()
    free_ways = [(10, {}), (40, {})]
    clocked = [(8, {"consistency": "bsp", "micro_batches": 2})]
    for made, y, ways in (
        (snailps.LogisticRegression, labels, [*free_ways, *clocked]),
        (snailps.LinearRegression, numbers, free_ways),
    ):
        wanted = of_least_loss(X, y, 0.1, made is snailps.LinearRegression)
        free = of_least_loss(X, y, 0, made is snailps.LinearRegression)
        near = 0.05 * abs(wanted).max()
        assert abs(free - wanted).max() > 1.7 * near
        for epochs, options in ways:
            model = made(l2=0.1, optimizer=optimizer, epochs=epochs, cluster=cluster, **options)
            model.fit(X, y)
            found = np.append(model.coef_, model.intercept_)
            assert abs(found - wanted).max() < near, (made, epochs, options)


def test_l1_of_ftrl_makes_the_zeros_of_its_sum_beside_the_losses_of_all_epochs(cluster):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(3000, 8))
    y = X @ [1, -0.8, 0.6, 0.2, 0, 0, 0, 0] + 0.5 * rng.normal(size=3000)
    y = (y - y.mean()) / y.std()
    pull = abs(X.T @ y) / len(X)  # what a column's weight gains, if all weights are 0
    l1 = 0.25  # of each example's loss
    model = snailps.LinearRegression(l1=l1 * 3000 * 20, epochs=20, cluster=cluster).fit(X, y)
    assert (model.coef_[0] != 0).tolist() == [True, True, True, False, False, False, False, False]
    assert pull[3] < l1 < pull[2]
    free = of_least_loss(X[:, :3], y, 0, squared=True)[:3]
    assert abs(model.coef_[0, :3] / free - 1).max() < 0.25
    assert 1 - l1 / pull[2] < 0.5  # what lasso leaves of the third one


def test_linear_models_go_on_with_batches(cluster, tmp_path):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(4000, 5))
    y = np.where(X @ [3, -2, 1, 0, 5] > 0, "yes", "no")
    parts = np.array_split(np.arange(len(X)), 4)
    model = snailps.LogisticRegression(cluster=cluster)
    for part in parts:
        model.partial_fit(X[part], y[part], classes=["no", "yes"])
    whole = snailps.LogisticRegression(epochs=1, cluster=cluster).fit(X, y)
    assert model.score(X, y) > whole.score(X, y) - 0.02
    assert model.coef_ == pytest.approx(whole.coef_, rel=0.3, abs=0.1)
    model.save(tmp_path / "m.npz")
    loaded = snailps.LogisticRegression.load(tmp_path / "m.npz", cluster=cluster)
    assert loaded.predict(X).tolist() == model.predict(X).tolist()
    loaded.partial_fit(X[:100] + 20, ["maybe"] * 100)
    assert loaded.classes_.tolist() == ["maybe", "no", "yes"]
    assert loaded.predict_proba(X).shape == (4000, 3)
    steps = snailps.LogisticRegression(optimizer="adagrad", cluster=cluster)
    assert steps.partial_fit(X, y).partial_fit(X, y).score(X, y) > 0.9


def sorted_classes(seed=8, n=2400):
    """Training rows sorted by one of three classes, columns overlapping; the same mixed; test."""
    rng = np.random.default_rng(seed)
    y = np.sort(rng.integers(0, 3, n))
    X = rng.normal(size=(n, 12)) + 0.7 * rng.normal(size=(3, 12))[y]
    rows = rng.permutation(n)
    test, mixed = rows[: n // 4], rows[n // 4 :]
    ordered = np.sort(mixed)
    return [(X[some], y[some]) for some in (ordered, mixed, test)]


@pytest.mark.parametrize(
    ("make", "classes"),
    [
        (partial(snailps.LogisticRegression, optimizer="ftrl"), 3),
        (partial(snailps.LogisticRegression, optimizer="adagrad"), 3),
        (partial(snailps.LogisticRegression, optimizer="sgd"), 3),
        (snailps.FMClassifier, 2),
        (partial(snailps.SparseNetClassifier, epochs=20), 3),
    ],
)
def test_rows_sorted_by_class_are_learnt_as_shuffled_ones(cluster, tmp_path, make, classes):
    ordered, mixed, test = [(X, np.minimum(y, classes - 1)) for X, y in sorted_classes()]
    of_ordered, of_mixed = (make(cluster=cluster).fit(*some) for some in (ordered, mixed))
    assert of_ordered.score(*test) > max(0.75, of_mixed.score(*test) - 0.02)
    by_steps = make(cluster=cluster)
    for _ in range(5):
        by_steps.partial_fit(*ordered)
    assert by_steps.score(*test) > of_mixed.score(*test) - 0.04
    lines = [
        f"{y} " + " ".join(f"{key}:{value:.5f}" for key, value in enumerate(row))
        for row, y in zip(*ordered, strict=True)
    ]
    path = tmp_path / "sorted.svm"
    path.write_text("\n".join(lines))
    of_file = make(cluster=cluster).fit(str(path))
    assert of_file.score(*test) > of_mixed.score(*test) - 0.02


def test_seed_determines_the_order_and_no_shuffle_keeps_it(cluster):
    X, y = sorted_classes()[0]
    make = partial(snailps.LogisticRegression, optimizer="adagrad", epochs=3, cluster=cluster)
    same, again, other = (make(seed=seed).fit(X, y).coef_ for seed in (1, 1, 2))
    assert np.array_equal(same, again)
    assert not np.array_equal(same, other)
    given, as_given = (make(seed=seed, shuffle=False).fit(X, y) for seed in (1, 2))
    assert np.array_equal(given.coef_, as_given.coef_)
    mixed = make(seed=1).fit(X, y)
    assert given.score(X, y) < mixed.score(X, y) - 0.05  # the last class is in the weights


def test_machine_of_dicts_learns_pairs(cluster):
    rng = np.random.default_rng(4)
    users, films = rng.integers(0, 8, 4000), rng.integers(0, 8, 4000)
    rows = [{"user": f"u{u}", "film": f"f{f}"} for u, f in zip(users, films, strict=True)]
    likes = (users + films) % 2
    model = snailps.FMClassifier(epochs=20, cluster=cluster).fit(rows, likes)
    assert model.score(rows, likes) > 0.95
    fields = snailps.FMClassifier(epochs=20, fields="columns", cluster=cluster)
    one_hot = np.hstack([np.eye(8)[users], np.eye(8)[films]])
    fields.set_params(fields=[0] * 8 + [1] * 8).fit(one_hot, likes)
    assert fields.score(one_hot, likes) > 0.95


def test_machines_go_on_with_batches(cluster, tmp_path):
    rng = np.random.default_rng(6)
    users, films = rng.integers(0, 8, 4000), rng.integers(0, 8, 4000)
    rows = [{"user": f"u{u}", "film": f"f{f}"} for u, f in zip(users, films, strict=True)]
    likes = (users + films) % 2
    for optimizer in ("adagrad", "ftrl"):
        model = snailps.FMClassifier(optimizer=optimizer, cluster=cluster)
        for _ in range(2):
            model.partial_fit(rows[:2000], likes[:2000], classes=[0, 1])
        model.save(tmp_path / "m.npz")
        loaded = snailps.FMClassifier.load(tmp_path / "m.npz", cluster=cluster)
        before = dict(_rows(packed_of(loaded)["weights"]))
        loaded.partial_fit([{"other": "o1"}] * 20, [1] * 20)
        after = dict(_rows(packed_of(loaded)["weights"]))
        changed = [key for key in before if before[key] != after[key]]
        assert len(changed) == 1, optimizer  # the bias
        assert len(after) == len(before) + 1
    for _ in range(12):
        loaded.partial_fit(rows[2000:], likes[2000:])
    assert loaded.score(rows, likes) > 0.95
    X = rng.normal(size=(2000, 5))
    y = X @ [3, -2, 1, 0, 5] * 40 + 1500
    machine = snailps.FMRegressor(factors=2, cluster=cluster)
    for part in np.array_split(np.arange(2000), 4) * 5:
        machine.partial_fit(X[part], y[part])
    assert machine.score(X, y) > 0.9


def _rows(packed):
    return zip(packed.keys.tolist(), packed.rows.tolist(), strict=True)


def test_networks_learn_what_is_not_linear(cluster):
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    rng = np.random.default_rng(5)
    X = rng.normal(size=(3000, 2)).astype(np.float32)
    y = np.where(X[:, 0] * X[:, 1] > 0, "same", "other")
    model = snailps.MLPClassifier(
        hidden=(30, 10), epochs=40, batch_size=64, lr=0.01, cluster=cluster
    ).fit(X, y)
    assert model.score(X, y) > 0.9
    assert model.score(sparse.csr_matrix(X), y) == model.score(X, y)
    rows = [{"a": str(a > 0), "b": str(b > 0)} for a, b in X.tolist()]
    net = snailps.SparseNetClassifier(hidden=(20, 10), epochs=20, batch_size=64, cluster=cluster)
    assert net.fit(rows, y).score(rows, y) > 0.9


@pytest.mark.long(but=["adam"])
@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_perceptrons_go_on_with_batches(cluster, optimizer, tmp_path):
    rng = np.random.default_rng(7)
    X = rng.normal(size=(2000, 2)).astype(np.float32)
    y = np.where(X[:, 0] * X[:, 1] > 0, "same", "other")
    rate = {"adam": 0.01, "momentum": 0.05}[optimizer]
    shape = {"hidden": (30, 10), "batch_size": 64, "lr": rate, "optimizer": optimizer}
    model = snailps.MLPClassifier(**shape, cluster=cluster)
    for part in np.array_split(np.arange(2000), 2) * 6:
        model.partial_fit(X[part], y[part], classes=["other", "same"])
    model.save(tmp_path / "m.npz")
    loaded = snailps.MLPClassifier.load(tmp_path / "m.npz", cluster=cluster)
    assert loaded.score(X, y) == model.score(X, y)
    before = packed_of(loaded)
    loaded.partial_fit(X[:1], y[:1], sample_weight=[1e-20])
    steps = [tables["global_step"].rows[0, 0] for tables in (before, packed_of(loaded))]
    assert steps == [12 * 16, 12 * 16 + 1]
    for _ in range(6):
        loaded.partial_fit(X, y)
    assert loaded.score(X, y) > 0.9
    far = X[X[:, 0] > 1]
    loaded.partial_fit(far, ["far"] * len(far))
    assert loaded.classes_.tolist() == ["far", "other", "same"]
    near = X[:, 0] < 0
    assert (loaded.predict(X[near]) == y[near]).mean() > 0.5


@pytest.mark.long(but=["auto"])
@pytest.mark.parametrize("optimizer", ["auto", "adam", "ftrl"])
def test_sparse_networks_go_on_with_batches(cluster, optimizer):
    rng = np.random.default_rng(8)
    X = rng.normal(size=(2000, 2))
    y = np.where(X[:, 0] * X[:, 1] > 0, "same", "other")
    rows = [{"a": str(a > 0), "b": str(b > 0)} for a, b in X.tolist()]
    rate = {"adam": 0.01}.get(optimizer, 0.05)
    net = snailps.SparseNetClassifier(
        hidden=(20, 10), batch_size=64, lr=rate, optimizer=optimizer, cluster=cluster
    )
    for _ in range(10):
        net.partial_fit(rows, y)
    score = net.score(rows, y)
    assert score > 0.9
    if optimizer == "auto":
        more = [{"a": "none"}] * 200 + rows[:1000]
        labels = ["none"] * 200 + y[:1000].tolist()
        order = rng.permutation(1200)
        net.partial_fit([more[at] for at in order], [labels[at] for at in order])
        assert net.classes_.tolist() == ["none", "other", "same"]
        assert net.score(more, labels) > 0.9


def test_weights_of_zero_leave_examples_out(cluster):
    X = np.vstack([np.eye(2)] * 200)
    y = np.array([0, 1] * 200)
    wrong = 1 - y
    both, labels = np.vstack([X, X]), np.concatenate([y, wrong])
    weights = np.concatenate([np.ones(len(y)), np.zeros(len(y))])
    for cls in (snailps.LogisticRegression, snailps.FMClassifier, snailps.MLPClassifier):
        model = cls(epochs=20, cluster=cluster).fit(both, labels, sample_weight=weights)
        assert model.score(X, y) == 1, cls


def test_threads_of_one_cluster_keep_their_models(cluster):
    from concurrent.futures import ThreadPoolExecutor

    def fit(n):
        X = np.eye(n + 2)[np.arange(400) % (n + 2)]
        model = snailps.LogisticRegression(epochs=2, cluster=cluster)
        return model.fit(X, np.arange(400) % (n + 2)).coef_.shape

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(fit, range(1, 5))) == [(n + 2, n + 2) for n in range(1, 5)]


def test_fit_trains_small_data_until_the_loss_stops_falling_and_else_warns(cluster):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 4))
    y = (x[:, 0] + rng.normal(0, 0.5, 200) > 0).astype(int)
    heard = []
    auto = snailps.LogisticRegression(cluster=cluster, callbacks=heard.append).fit(x, y)
    figures = auto.figures_
    assert figures["ended_by"] == "converged"
    assert 5 < figures["epochs"] < 300
    assert len(auto.history_) >= figures["epochs"] - 1
    assert heard[-1]["epochs"] == figures["epochs"]
    assert {one["at_most"] for one in heard if one["phase"] == "training"} <= {True}
    with pytest.warns(snailps.ConvergenceWarning, match="falls .*% an epoch after 3 epochs"):
        snailps.LogisticRegression(cluster=cluster, epochs=3).fit(x, y)
    assert snailps.LogisticRegression(cluster=cluster, epochs=None).fit(x, y).history_
