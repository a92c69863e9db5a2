"""One meaning of data: a model says the same of the same examples, in each form, at each door.

Forms: array, CSR, DataFrame, lines of LIBSVM, CSV, Parquet, matrix file.  Doors: `predict`,
`score`, `evaluate`, a saved and loaded model, ``snailps predict`` with and without ``--metrics``;
``snailps train`` with ``--test``.  Columns and targets are of very different size, some columns
far from 0.
"""

import json

import numpy as np
import pandas as pd
import pytest
from processes import run_snailps
from scipy import sparse
from sklearn.datasets import dump_svmlight_file
from test_cli import call

import snailps
from snailps import write_matrix
from snailps.errors import DataError

ROWS, COLUMNS = 300, 7
MODELS = {
    "logistic": (snailps.LogisticRegression, [3, 7]),
    "texts": (snailps.LogisticRegression, ["no", "yes"]),
    "multinomial": (snailps.LogisticRegression, [1, 2, 5]),
    "linear": (snailps.LinearRegression, None),
    "fm": (snailps.FMClassifier, [1, 2]),
    "fm regression": (snailps.FMRegressor, None),
    "net": (snailps.SparseNetClassifier, [1, 2, 3]),
    "mlp": (snailps.MLPClassifier, [1, 2, 3]),
}


@pytest.fixture(scope="module")
def cluster():
    with snailps.cluster(threads=1) as cluster:
        yield cluster


FAR = [0, 0, 0, 0, 0, 2000, 290]
"""Years and kelvins."""
ROUNDING = 2e-4
"""Of scores in float32 of targets round 300, in their unit."""


def examples(labels):
    """Numbers that float32 and six digits of text have exactly, with zeros."""
    rng = np.random.default_rng(4)
    x = np.round(rng.normal(size=(ROWS, COLUMNS)), 2).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = 0
    told = x @ np.linspace(-1, 1, COLUMNS)
    x = np.round(x * [1, 1000, 1, 0.01, 1, 10, 8] + FAR, 4).astype(np.float32)
    if labels is None:
        return x, np.round(300 + 7 * told, 2)
    edges = np.quantile(told, np.arange(1, len(labels)) / len(labels))
    return x, np.array(labels)[np.searchsorted(edges, told)]


def forms_of(folder, x, y):
    """The same examples in each form: X, y."""
    names = [f"c{at}" for at in range(x.shape[1])]
    frame = pd.DataFrame(x, columns=names)
    table = frame.assign(y=y)
    table.to_csv(folder / "t.csv", index=False)
    table.to_parquet(folder / "t.parquet")
    by_number = {"array": (x, y), "CSR": (sparse.csr_matrix(x), y)}
    if np.asarray(y).dtype.kind != "U":
        dump_svmlight_file(x.astype(np.float64), y, str(folder / "t.svm"))
        write_matrix(folder / "t.matrix", x, y)
        by_number |= {"LIBSVM": (folder / "t.svm", None), "matrix": (folder / "t.matrix", None)}
    by_name = {
        "DataFrame": (frame, y),
        "CSV": (folder / "t.csv", "y"),
        "Parquet": (folder / "t.parquet", "y"),
    }
    return by_number, by_name


def flat(figures):
    """Figures as plain numbers."""
    parts = figures.pop("reliability", [])
    return figures | {f"{at} {key}": part[key] for at, part in enumerate(parts) for key in part}


@pytest.mark.parametrize("forms", ["by number", "by name"])
@pytest.mark.parametrize("name", MODELS)
def test_model_says_the_same_of_the_same_examples(
    cluster, tmp_path, monkeypatch, capsys, name, forms
):
    kind, labels = MODELS[name]
    x, y = examples(labels)
    chosen = forms_of(tmp_path, x, y)[forms == "by name"]
    first = next(iter(chosen.values()))
    model = kind(epochs=2, lr=0.05, verbose=False, cluster=cluster).fit(*first)
    said, score, figures = (
        model.predict(first[0]),
        model.score(*first),
        flat(model.evaluate(*first)),
    )
    numbers = np.concatenate(list(model.predictions(first[0])))
    model.save(tmp_path / "m.npz")
    loaded = snailps.load(tmp_path / "m.npz")
    for form, (X, told) in chosen.items():
        for one in (model, loaded):
            np.testing.assert_array_equal(one.predict(X), said, err_msg=form)
            assert one.score(X, told) == pytest.approx(score, rel=1e-6), form
            assert flat(one.evaluate(X, told)) == pytest.approx(figures, rel=1e-5), form
        if not hasattr(X, "suffix"):
            continue
        words = ["predict", str(tmp_path / "m.npz"), str(X)]
        code, printed, refused = call(monkeypatch, capsys, *words)
        assert code == 0, refused
        found = np.array([line.split("\t") for line in printed.splitlines()], float)
        np.testing.assert_allclose(found.reshape(numbers.shape), numbers, rtol=2e-5, atol=1e-6)
        again = np.concatenate(list(loaded.predictions(X)))
        np.testing.assert_array_equal(found.reshape(again.shape), again, err_msg=form)
        of_table = ["--label-column", told] if told else []
        _, printed, _ = call(monkeypatch, capsys, *words, "--metrics", "--json", *of_table)
        printed = flat(json.loads(printed))
        assert {key: printed[key] for key in figures} == pytest.approx(figures, rel=1e-5), form


COMMANDS = {
    "logistic": ["logistic"],
    "multinomial": ["logistic", "--loss", "multinomial", "--classes", "3"],
    "linear": ["logistic", "--loss", "squared"],
    "fm": ["fm"],
    "fm regression": ["fm", "--loss", "squared"],
    "net": ["sparse_net", "--loss", "multinomial", "--classes", "3"],
}


@pytest.mark.long(
    but=[
        "logistic-LIBSVM", "logistic-CSV", "logistic-Parquet", "logistic-matrix",
        "multinomial-CSV", "linear-LIBSVM", "fm-matrix", "fm regression-CSV", "net-Parquet",
    ]
)  # fmt: skip
@pytest.mark.parametrize("form", ["LIBSVM", "CSV", "Parquet", "matrix"])
@pytest.mark.parametrize("name", COMMANDS)
def test_command_means_what_python_means(tmp_path, monkeypatch, capsys, name, form):
    _, labels = MODELS[name]
    x, y = examples(labels)
    by_number, by_name = forms_of(tmp_path, x, y)
    path, label = {**by_number, **by_name}[form]
    of_table = ["--label-column", label] if label else []
    words = ["--input", path, "--test", path, "--output", tmp_path / "m", "--epochs", 40, "--json"]
    trained = run_snailps("train", *COMMANDS[name], *words, "--workers", 1, *of_table)
    figures = flat(json.loads(trained.stdout)["test"])
    model = snailps.load(tmp_path / "m.npz")
    if labels is not None:
        assert model.classes_.tolist() == labels
        assert figures["accuracy"] > 0.9
    else:
        assert figures["rmse"] < 0.2 * y.std()
    # What columns far from 0 add to a score the constant takes away again, in float32.
    near = {"rel": 1e-4, "abs": ROUNDING if labels is None else 0}
    for X, told in (by_name if label else by_number).values():
        assert flat(model.evaluate(X, told)) == pytest.approx(figures, **near)
    _, printed, refused = call(
        monkeypatch, capsys, "predict", str(tmp_path / "m.npz"), str(path), "--metrics", "--json"
    )
    printed = flat(json.loads(printed))
    assert {key: printed[key] for key in figures} == pytest.approx(figures, **near), refused


@pytest.mark.long(but=["net"])
@pytest.mark.parametrize("name", ["logistic", "fm", "net"])
def test_features_without_a_row_count_as_in_the_file(tmp_path, monkeypatch, capsys, name):
    """Half of an example's features are rare, and left out by `min_count`."""
    rng = np.random.default_rng(1)
    weights = rng.normal(0, 1.5, 51)
    for file, rows in (("train.svm", 900), ("test.svm", 300)):
        x = rng.integers(1, 51, (rows, 5))
        rare = 1000 + rng.integers(0, 10**7, (rows, 20))
        told = (weights[x].sum(1) > 0).astype(int)
        lines = [
            f"{label} " + " ".join(f"{feature}:1" for feature in sorted({*own, *more})) + "\n"
            for label, own, more in zip(told, x.tolist(), rare.tolist(), strict=True)
        ]
        (tmp_path / file).write_text("".join(lines))
    command = ["sparse_net"] if name == "net" else COMMANDS[name]
    files = ["--input", tmp_path / "train.svm", "--test", tmp_path / "test.svm"]
    words = ["--output", tmp_path / "m", "--epochs", 3, "--min-count", 3, "--workers", 1, "--json"]
    figures = flat(json.loads(run_snailps("train", *command, *files, *words).stdout)["test"])
    _, printed, refused = call(
        monkeypatch, capsys, "predict", str(tmp_path / "m.npz"), str(tmp_path / "test.svm"),
        "--metrics", "--json",
    )  # fmt: skip
    printed = flat(json.loads(printed))
    assert {key: printed[key] for key in figures} == pytest.approx(figures, rel=1e-4), refused


DECLARED = "clicked:label, age:numeric bucket 30 50, city:categorical, n1..n2:numeric, no:ignore"
NAMES = ["clicked", "age", "city", "n1", "n2", "no"]


def clicks(folder):
    """A table of clicks, as files with names of its columns, in another order, and without."""
    rng = np.random.default_rng(3)
    age, city = rng.integers(15, 80, ROWS), rng.integers(0, 4, ROWS)
    more = rng.integers(0, 9, (2, ROWS))
    clicked = (rng.random(ROWS) < 0.2 + 0.6 * (age > 50) * (city > 1)).astype(int)
    cells = [clicked, age, np.array(["w", "x", "y", "city"])[city], *more, np.arange(ROWS)]
    table = pd.DataFrame(dict(zip(NAMES, cells, strict=True)))
    table.to_csv(folder / "named.csv", index=False)
    table[NAMES[::-1]].to_csv(folder / "turned.csv", index=False)
    table[NAMES[1:]].to_csv(folder / "unlabelled.csv", index=False)
    table.to_parquet(folder / "t.parquet")
    table.to_csv(folder / "bare.csv", index=False, header=False)
    table.to_csv(folder / "bare.txt", index=False, header=False)
    return table


@pytest.mark.parametrize("trained", ["named.csv", "bare.csv"])
def test_model_of_declared_columns_knows_its_labels(tmp_path, monkeypatch, capsys, trained):
    monkeypatch.chdir(tmp_path)
    table = clicks(tmp_path)
    code, told, refused = call(
        monkeypatch, capsys, "train", "logistic", "--train", trained, "--test", trained,
        "--columns", DECLARED, "--output", "m", "--threads", "1", "--json",
    )  # fmt: skip
    assert code == 0, refused
    tested = flat(json.loads(told.splitlines()[-1])["test"])
    model = snailps.load("m.npz")
    said = model.predict_proba("bare.csv")
    np.testing.assert_array_equal(model.predict_proba("unlabelled.csv"), said)
    np.testing.assert_array_equal(model.predict_proba(table[NAMES[1:5]]), said)
    score = (said.argmax(1) == table["clicked"]).mean()
    for file in ("named.csv", "turned.csv", "t.parquet", "bare.csv", "bare.txt"):
        np.testing.assert_allclose(model.predict_proba(file), said, rtol=1e-6, err_msg=file)
        for label in (None, "clicked"):
            assert model.score(file, label) == pytest.approx(score), file
        code, printed, refused = call(
            monkeypatch, capsys, "predict", "m.npz", file, "--metrics", "--json"
        )
        assert code == 0, refused
        printed = flat(json.loads(printed))
        assert {key: printed[key] for key in tested} == pytest.approx(tested, rel=1e-5), file
    with pytest.raises(DataError, match=r"has no column names .* labels in 'clicked'; got 'x'"):
        model.score("bare.csv", "x")


@pytest.mark.parametrize(("kind", "form"), [("u1", "matrix"), ("f4", "npy")])
def test_command_and_python_read_pictures_alike(tmp_path, form, kind):
    rng = np.random.default_rng(5)
    y = rng.integers(0, 3, 600)
    x = np.clip(rng.normal(120 + 40 * (np.arange(8) % 3 == y[:, None]), 25), 0, 255).astype(kind)
    if form == "matrix":
        write_matrix(tmp_path / "t.mx", x, y, dense=True)
    else:
        np.save(tmp_path / "X.npy", x)
        np.save(tmp_path / "y.npy", y)
    path = tmp_path / {"matrix": "t.mx", "npy": "X.npy"}[form]
    words = ["--input", path, "--test", path, "--output", tmp_path / "m", "--epochs", 30, "--json"]
    trained = run_snailps("train", "mlp", *words, "--workers", 1)
    figures = json.loads(trained.stdout)["test"]
    assert figures["accuracy"] > 0.7
    model = snailps.load(tmp_path / "m.npz")
    assert model.evaluate(x, y) == pytest.approx(figures, rel=1e-4)
    assert model.evaluate(x.astype(float), y) == pytest.approx(figures, rel=1e-4)


@pytest.mark.parametrize(
    ("form", "labels"), [("t.csv", ["no", "yes"]), ("t.parquet", ["b, c", "a", "ü d"])]
)
def test_command_and_python_know_the_same_labels_that_are_texts(
    cluster, tmp_path, monkeypatch, capsys, form, labels
):
    monkeypatch.chdir(tmp_path)
    x, y = examples(labels)
    order = np.argsort(y, kind="stable")
    forms_of(tmp_path, x[order], y[order])
    words = ["train", "logistic", "--input", form, "--label-column", "y", "--test", form]
    code, printed, refused = call(
        monkeypatch, capsys, *words, "--output", "m", "--epochs", "20", "--threads", "1", "--json"
    )
    assert code == 0, refused
    tested = flat(json.loads(printed.splitlines()[-1])["test"])
    model = snailps.load("m.npz")
    assert model.classes_.tolist() == sorted(labels)
    assert model.score(form) > 0.9
    python = snailps.LogisticRegression(epochs=20, cluster=cluster, verbose=False).fit(form, "y")
    for one in (model, python):
        assert flat(one.evaluate(form, "y")) == pytest.approx(tested, rel=1e-4)
    _, printed, refused = call(monkeypatch, capsys, "predict", "m.npz", form, "--json")
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [row["label"] for row in rows] == model.predict(form).tolist(), refused
