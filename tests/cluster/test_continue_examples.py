"""``snailps train --continue-from`` of models of examples is `partial_fit` of the same files."""

import json

import numpy as np
import pytest
from processes import run_snailps

import snailps

CASES = {
    "logistic": ("logistic", [], 2, snailps.LogisticRegression),
    "multinomial": (
        "logistic", ["--loss", "multinomial", "--classes", "3"], 3, snailps.LogisticRegression,
    ),
    "squared": ("logistic", ["--loss", "squared"], 0, snailps.LinearRegression),
    "poisson": ("logistic", ["--loss", "poisson"], 0, snailps.PoissonRegressor),
    "fm": ("fm", [], 2, snailps.FMClassifier),
    "sparse_net": ("sparse_net", ["--hidden", "5"], 2, snailps.SparseNetClassifier),
}  # fmt: skip
ROUNDING = 1e-3
"""Of probabilities, and of parts of a number: text and float32 have other digits; 10 of a net."""


def write_day(path, seed, classes, header="", names=None):
    rng = np.random.default_rng(seed)
    x = np.round(rng.normal(size=(600, 4)) * [1, 50, 0.02, 1], 4)
    told = x @ [1, 0.02, -40, 0.5] + rng.normal(size=600)
    y = np.digitize(told, np.linspace(-1, 1, classes - 1) if classes > 2 else [0]).tolist()
    if not classes:
        y = np.round(np.exp(told / 3), 3).tolist()
    lines = [header] * bool(header)
    for label, row, town in zip(y, x.tolist(), rng.integers(1000, 1003, 600), strict=True):
        if header:
            lines.append(",".join(map(str, [names[label], *row, town])))
        else:
            cells = (f"{key}:{value}" for key, value in enumerate(row, 1))
            lines.append(" ".join([str(label), *cells]))
    path.write_text("\n".join(lines) + "\n")


def train(folder, model, day, output, *more):
    given = ["train", model, "--train", day, "--output", output, "--threads", "1"]
    return run_snailps(*given, "--shuffle", "false", *more, cwd=folder)


@pytest.fixture(scope="module")
def cluster():
    with snailps.cluster(threads=1) as cluster:
        yield cluster


def same(one, other, file, rounding=ROUNDING):
    found = [np.concatenate(list(model.predictions(str(file)))) for model in (one, other)]
    assert found[0] == pytest.approx(found[1], rel=rounding, abs=rounding)


@pytest.mark.long(but=["logistic", "fm"])
@pytest.mark.parametrize("case", CASES)
def test_command_goes_on_as_partial_fit_does(tmp_path, cluster, case):
    model, options, classes, estimator = CASES[case]
    for number in (1, 2):
        write_day(tmp_path / f"{number}.svm", number, classes)
    train(tmp_path, model, "1.svm", "a", *options)
    train(tmp_path, model, "2.svm", "b", "--continue-from", "a.npz", "--epochs", "2")
    first = snailps.load(tmp_path / "a.npz")
    assert isinstance(first, estimator)
    before = np.concatenate(list(first.predictions(str(tmp_path / "2.svm"))))
    first.set_params(cluster=cluster).partial_fit(tmp_path / "2.svm", epochs=2)
    second = snailps.load(tmp_path / "b.npz")
    rounding = ROUNDING * (10 if case == "sparse_net" else 1)
    same(first, second, tmp_path / "2.svm", rounding)
    after = np.concatenate(list(second.predictions(str(tmp_path / "2.svm"))))
    assert np.abs(after - before).max() > 3 * rounding


@pytest.mark.long(but=["texts"])
@pytest.mark.parametrize("names", [["b", "d", "a", "c"], [3, 7, 4, 1]], ids=["texts", "numbers"])
def test_command_goes_on_with_new_labels_columns_and_a_saved_estimator(tmp_path, cluster, names):
    header = "y,a,b,c,d,town"
    write_day(tmp_path / "1.csv", 1, 2, header, names)
    write_day(tmp_path / "2.csv", 2, 4, header, names)
    how = {"cluster": cluster, "epochs": 3, "shuffle": False}
    first = snailps.LogisticRegression(**how).fit(
        tmp_path / "1.csv", "y", columns=["town:categorical"]
    )
    first.save(tmp_path / "a.npz")
    train(tmp_path, "logistic", "2.csv", "b", "--continue-from", "a.npz", "--epochs", "1")
    second = snailps.load(tmp_path / "b.npz")
    assert second.columns_ == first.columns_
    assert second.classes_.tolist() == sorted(names)
    same(first.partial_fit(tmp_path / "2.csv"), second, tmp_path / "2.csv")
    # What the command has continued goes on, in both ways.
    train(tmp_path, "logistic", "1.csv", "c", "--continue-from", "b.npz", "--epochs", "1")
    second.set_params(cluster=cluster).partial_fit(tmp_path / "1.csv")
    same(second, snailps.load(tmp_path / "c.npz"), tmp_path / "1.csv")


NAMED = {
    "kge": (snailps.KnowledgeGraph, "kge", ["--dim", "8"]),
    "ratings": (snailps.MatrixFactorization, "mf", ["--dim", "4"]),
    "rankings": (snailps.MatrixFactorization, "mf", ["--dim", "4", "--loss", "softmax"]),
    "choices": (snailps.MatrixFactorization, "mf", ["--dim", "4", "--loss", "als"]),
}


def write_names(path, model, seed):
    """600 lines of 40 names, or of 60 or 80 in later files."""
    rng, names = np.random.default_rng(seed), 20 * (1 + seed)
    rows = rng.integers(0, names, (600, 2)).tolist()
    if model == "kge":
        lines = (f"e{a}\tr{(a + b) % 3}\te{b}\n" for a, b in rows)
    else:
        lines = (f"u{a}\ti{b}\t{1 + (a * b) % 5}\n" for a, b in rows)
    path.write_text("".join(lines))


@pytest.mark.long(but=["kge"])
@pytest.mark.parametrize("case", NAMED)
def test_command_goes_on_with_names_as_partial_fit_does_to_the_bit(tmp_path, cluster, case):
    estimator, model, options = NAMED[case]
    for seed in (1, 2, 3):
        write_names(tmp_path / f"{seed}.tsv", model, seed)
    common = ["--epochs", "2", "--threads", "1", "--json"]

    def train(number, *more):
        words = ["train", model, "--train", f"{number}.tsv", "--output", f"{number}", *more]
        done = run_snailps(*words, "--test", "3.tsv", *common, cwd=tmp_path)
        return json.loads(done.stdout.splitlines()[-1])["test"]

    train(1, *options)
    figures = train(2, "--continue-from", "1.npz")
    known = ["--known", "2.tsv"] * (case != "choices")  # whose file has all lines
    judged = run_snailps("test", "2.npz", "3.tsv", *known, "--json", cwd=tmp_path)
    assert json.loads(judged.stdout).items() >= figures.items()
    first = estimator.load(tmp_path / "1.npz", cluster=cluster, verbose=False)
    first.partial_fit(tmp_path / "2.tsv", epochs=2).save(tmp_path / "python.npz")
    with np.load(tmp_path / "2.npz") as ours, np.load(tmp_path / "python.npz") as theirs:
        assert {*ours.files} == {*theirs.files}
        for name in {*ours.files} - {"about"}:
            assert np.array_equal(ours[name], theirs[name]), name
