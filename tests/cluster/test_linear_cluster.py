"""models.sparse.linear on clusters: the contract of models, whole jobs, a9a."""

import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from model_mixin import ModelContract
from processes import Cluster, Gate, run_snailps, run_well
from scipy import sparse
from test_cli import call
from test_cli_cluster import Run
from test_cluster import figures_of
from test_linear import FEATURES, TRUE, planted
from waiting import until

import snailps
from snailps import write_matrix
from snailps.data.example_files import lines_of
from snailps.data.examples import ExampleReader
from snailps.errors import ClusterError, DataError
from snailps.estimators.loading import load
from snailps.master.journal import FACTS, decode
from snailps.models.sparse.batch import BIAS_KEY, TABLE
from snailps.models.sparse.export import read_npz

# --- whole jobs --------------------------------------------------------------------------------


@pytest.mark.long(
    tests=["test_model_with_same_seed_gives_identical_files_and_with_other_seed_others"]
)
class TestLogisticModel(ModelContract):
    """Logistic regression comes near the planted weights."""

    job: ClassVar = {
        "worker_class": "snailps.models.sparse.linear:Linear",
        "test": "test.svm",
        "epochs": 4,
        "lr": 0.3,
        "optimizer": "ftrl",
    }
    units = 4000
    results = ("out.npz",)
    optimizers = ("sgd", "adagrad")
    tables = (TABLE,)

    @staticmethod
    def write_input(folder):
        (folder / "input").write_text(planted(4000, 1))
        (folder / "test.svm").write_text(planted(1000, 2))

    def check_learnt(self, folder, figures):
        assert figures["test"]["examples"] == 1000
        assert figures["test"]["log_loss"] < 0.56  # .42 of the planted weights, untrained .69
        assert figures["test"]["auc"] > 0.7  # untrained .5
        saved = read_npz(folder / "out.npz")
        weights = saved.rows_of(np.arange(1, FEATURES + 1, dtype=np.uint64))[:, 0]
        correlation = np.corrcoef(weights, TRUE)[0, 1]
        assert correlation > 0.5
        names = ("log_loss", "auc", "calibration")
        return {name: figures["test"][name] for name in names} | {"correlation": correlation}


@pytest.mark.long(but=["multinomial"])
@pytest.mark.parametrize("loss", ["squared", "multinomial"])
def test_other_losses_on_cluster_learn(tmp_path, loss):
    (tmp_path / "input").write_text(planted(4000, 1, loss))
    (tmp_path / "test.svm").write_text(planted(500, 2, loss))
    job = {**TestLogisticModel.job, "input": "input", "output": "out", "loss": loss}
    if loss == "multinomial":
        job["classes"] = 3
    master = run_well(tmp_path, job=job)
    test = figures_of(master)["test"]
    if loss == "squared":
        assert test["rmse"] < 0.2  # the noise has 0.1, the labels 3.4
    else:
        assert test["accuracy"] > 0.9
    figures = load(tmp_path / "out.npz").evaluate(tmp_path / "test.svm")
    assert figures == pytest.approx(test, rel=1e-5)


def test_job_with_min_count_and_bad_lines_counts_and_leaves_out(tmp_path):
    text = planted(1000, 1) + "1 77:1\nnonsense here\n"
    (tmp_path / "input").write_text(text)
    job = {**TestLogisticModel.job, "test": "", "input": "input", "output": "out"}
    job |= {"min_count": 2, "expected_features": 1000, "on_bad_line": "skip", "format": "libsvm"}
    figures = figures_of(run_well(tmp_path, job=job, workers=2))
    assert figures["bad_lines"] == 1
    assert figures["examples"] == 4 * 1001
    assert figures["survey_s"] > 0
    saved = read_npz(tmp_path / "out.npz")
    assert 77 not in saved.keys.tolist()
    assert figures["features"] == FEATURES


def test_job_with_expiry_deletes_rows_not_touched_for_long(tmp_path):
    early = "".join(f"1 {1000 + i}:1 1:1\n" for i in range(200))
    (tmp_path / "input").write_text(early + planted(12_000, 1))
    job = {**TestLogisticModel.job, "test": "", "input": "input", "output": "out"}
    job |= {"epochs": 1, "expire_after": 0.001, "block_bytes": 4000}  # 1,000 examples
    job |= {"worker_class": "clock_models:GatedLinear", "gates": tmp_path / "gates"}
    gates = [Gate(tmp_path / "gates", block, "before") for block in (20, 40)]
    with Cluster(tmp_path, job=job) as cluster:
        master = cluster.master()
        cluster.nodes()
        tick = 24  # by then the early blocks are pushed
        for gate in gates:  # a tick waits until all servers have had the one before
            gate.meet()
            tick = tick_above(tick, tmp_path / "out.journal")
            gate.open()
        assert cluster.codes() == [0] * 3, master.stderr
    figures = figures_of(master)
    assert figures["expired"] == 200
    with np.load(tmp_path / "out.npz") as saved:
        assert saved["keys"].tolist() == [*range(1, FEATURES + 1), BIAS_KEY]


def tick_above(tick, journal):
    """Waits for a later tick of the clock of tables that forget; the latest."""

    def later():
        facts, _ = decode((journal / FACTS).read_bytes())
        latest = max((fact.data["tick"] for fact in facts if fact.kind == "tick"), default=0)
        return latest if latest > tick else 0

    return until(later, f"a tick after {tick}")


@pytest.mark.long(but=["csv-2"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("ending", ["svm", "csv"])
def test_sorted_file_is_learnt_as_a_shuffled_one(tmp_path, monkeypatch, capsys, ending, workers):
    """In 15 blocks or more, by which no line is far from lines of its class in the file.

    And so is a file of each class.
    """
    monkeypatch.chdir(tmp_path)
    lines = planted(4000, 1).splitlines()
    test = planted(1000, 2).splitlines()
    options = []
    if ending == "csv":
        table = [csv_of(line) for line in (*lines, *test)]
        lines, test = table[:4000], table[4000:]
        columns = ["label:label", *(f"f{key}:numeric" for key in range(1, FEATURES + 1))]
        options = ["--columns", ", ".join(columns), "--format", "csv"]
    Path(f"test.{ending}").write_text("\n".join(test))
    accuracies = []
    no, yes = ([line for line in lines if line[0] == label] for label in "01")
    for name, parts in (("sorted", [no + yes]), ("files", [no, yes]), ("mixed", [lines])):
        inputs = [f"{name}{number}.{ending}" for number in range(len(parts))]
        for path, some in zip(inputs, parts, strict=True):
            Path(path).write_text("\n".join(some))
        code, out, err = call(
            monkeypatch, capsys, "train", "logistic", "--input", ",".join(inputs),
            "--test", f"test.{ending}", "--workers", str(workers), "--threads", "1",
            "--output", name, "--json", *options,
        )  # fmt: skip
        assert code == 0, err
        accuracies.append(json.loads(out)["test"]["accuracy"])
    if workers == 1:  # whose steps are the same each time
        assert min(accuracies[:2]) > accuracies[2] - 0.02
    assert min(accuracies) > 0.7  # of two workers, too: .8 as a rule, by chance .5


def csv_of(line):
    """A line of LIBSVM as one of CSV, a column a feature."""
    label, *entries = line.split()
    values = dict(entry.split(":") for entry in entries)
    return ",".join([label, *(values.get(str(key), "") for key in range(1, FEATURES + 1))])


def test_job_with_malformed_line_ends_naming_it(tmp_path):
    (tmp_path / "input").write_text(planted(2000, 1) + "1 3:x\n" + planted(10, 1))
    job = {**TestLogisticModel.job, "test": "", "input": "input", "output": "out"}
    with Cluster(tmp_path, job=job) as cluster:
        master = cluster.master()
        cluster.nodes()
        assert cluster.codes()[0] == 2
        assert any("line 2001, column 5" in error for error in master.errors), master.stderr


def test_error_behind_the_head_of_a_test_file_does_not_cost_the_model(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("a.svm").write_text(planted(2000, 1))
    head = planted(4000, 2)
    Path("b.svm").write_text(head + "1 3:x\n")  # more than what is checked before the training
    train = ("train", "logistic", "--train", "a.svm", "--output", "out", "--threads", "1")
    code, out, err = call(monkeypatch, capsys, *train, "--test", "b.svm", "--json")
    assert code == 2, err
    assert "quality: not tested: " in err
    assert "b.svm, line 4001, column 5" in json.loads(out)["not_tested"]
    assert len(read_npz("out.npz").keys)
    Path("empty.svm").touch()
    code, _, err = call(monkeypatch, capsys, *train, "--test", "empty.svm", "--overwrite")
    assert code == 2
    assert "test: " in err
    assert "empty.svm is empty" in err


# --- files -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a model that `snailps train logistic` made, and its figures."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "a.svm").write_text(planted(2000, 1))
    (folder / "b.svm").write_text(planted(2000, 3))
    (folder / "test.svm").write_text(planted(500, 2))
    options = ["--train", "a.svm", "b.svm", "--test", "test.svm", "--output", "out.npz"]
    options += ["--epochs", "2", "--formats", "npz,liblinear", "--json"]
    with Run(folder, "train", "logistic", *options) as run:
        assert run.wait() == 0, run.stderr
        return folder, json.loads(run.stdout)


def test_predict_of_examples_prints_a_probability_a_line(trained, monkeypatch, capsys):
    folder, figures = trained
    path = str(folder / "test.svm")
    code, out, _ = call(monkeypatch, capsys, "predict", str(folder / "out.npz"), path)
    assert code == 0
    said = np.array([float(line) for line in out.splitlines()])
    labels = np.array([float(line.split()[0]) for line in open(path)])  # noqa: SIM115
    loss = -np.log(np.where(labels > 0, said, 1 - said)).mean()
    assert loss == pytest.approx(figures["test"]["log_loss"], rel=1e-4)
    for option in ("-k=2", "--threshold=.5"):
        words = ["predict", str(folder / "out.npz"), path, *option.split("=")]
        code, out, told = call(monkeypatch, capsys, *words)
        assert (code, out) == (2, "")
        assert "choose labels of texts" in told


def test_predict_prints_numbers_that_are_read_as_those_of_python(tmp_path, monkeypatch, capsys):
    x = np.random.default_rng(0).normal(size=(400, 2))
    y = 1.7e9 + 1000 * x[:, 0]  # of times in seconds six digits say nothing
    model = snailps.LinearRegression(workers=1, epochs=3, verbose=False).fit(x, y)
    model.save(tmp_path / "m.npz")
    rows = np.c_[y, x]
    np.savetxt(tmp_path / "x.svm", rows, fmt=["%.0f", "0:%.6f", "1:%.6f"])
    files = [str(tmp_path / name) for name in ("m.npz", "x.svm")]
    code, out, _ = call(monkeypatch, capsys, "predict", *files)
    assert code == 0
    found = np.array(out.split(), float)
    np.testing.assert_array_equal(found, model.predict(files[1]))
    assert len(set(found)) == 400


def test_predict_with_metrics_tells_the_figures_of_training(trained, monkeypatch, capsys):
    folder, figures = trained
    arguments = ["predict", str(folder / "out.npz"), str(folder / "test.svm"), "--metrics"]
    code, out, _ = call(monkeypatch, capsys, *arguments, "--json")
    assert code == 0
    told = json.loads(out)
    assert told["auc"] == pytest.approx(figures["test"]["auc"], rel=1e-6)
    code, out, _ = call(monkeypatch, capsys, *arguments)
    assert f"auc\t{told['auc']!r}\n" in out


def test_predict_of_a_matrix_file_prints_what_text_gives(trained, tmp_path, monkeypatch, capsys):
    folder, _ = trained
    model, path = str(folder / "out.npz"), str(folder / "test.svm")
    found = ExampleReader("libsvm").read((folder / "test.svm").read_bytes())
    rows = sparse.csr_matrix((found.values, found.keys.astype(np.int64), found.ptr))
    write_matrix(tmp_path / "test", rows, found.labels)
    write_matrix(tmp_path / "unlabelled", rows)
    _, expected, _ = call(monkeypatch, capsys, "predict", model, path)
    for name in ("test", "unlabelled"):
        code, out, _ = call(monkeypatch, capsys, "predict", model, str(tmp_path / name))
        assert (code, out) == (0, expected)
    code, out, _ = call(monkeypatch, capsys, "predict", model, str(tmp_path / "test"), "--metrics")
    assert (code, "log_loss" in out) == (0, True)
    code, _, err = call(
        monkeypatch, capsys, "predict", model, str(tmp_path / "unlabelled"), "--metrics"
    )
    assert code != 0
    assert "has no labels" in err


def test_matrix_file_from_standard_input_is_refused(tmp_path):
    write_matrix(tmp_path / "a", np.eye(3), [1, 0, 1])
    with (tmp_path / "a").open("rb") as file, pytest.raises(DataError, match="name the file"):
        list(lines_of(file, "standard input"))


def test_liblinear_text_has_the_weights_of_the_npz(trained):
    folder, _ = trained
    lines = (folder / "out.liblinear").read_text().splitlines()
    assert lines[:6] == [
        "solver_type L2R_LR", "nr_class 2", "label 1 -1", f"nr_feature {FEATURES}", "bias 1", "w",
    ]  # fmt: skip
    weights = np.array([float(line) for line in lines[6:]], np.float32)
    saved = read_npz(folder / "out.npz")
    assert saved.keys.tolist() == [*range(1, FEATURES + 1), BIAS_KEY]
    np.testing.assert_array_equal(weights, saved.rows[:, 0])


def test_train_logistic_of_several_files_tells_test_figures(trained):
    _, figures = trained
    assert figures["examples"] == 8000
    assert figures["test"]["examples"] == 500
    assert len(figures["test"]["reliability"]) == 10
    assert figures["files"] == ["out.npz", "out.liblinear"]


# --- real data ---------------------------------------------------------------------------------

SKLEARN_LOG_LOSS, SKLEARN_AUC = 0.324065, 0.902217
"""scikit-learn's LogisticRegression(max_iter=2000, tol=1e-8) on a9a, judged on a9a.t."""


def run_a9a(folder, data_dir, workers=1, method="auto"):
    """Figures of the test examples; each worker has one thread."""
    a9a = data_dir / "a9a"
    options = ["--train", str(a9a / "a9a"), "--test", str(a9a / "a9a.t"), "--json"]
    options += ["--workers", str(workers), "--optimizer", method, "--threads", "1"]
    with Run(folder, "train", "logistic", *options) as run:
        assert run.wait() == 0, run.stderr
        return json.loads(run.stdout)["test"]


@pytest.mark.long(but=["auto"])
@pytest.mark.parametrize("method", ["auto", "adagrad", "sgd"])
def test_a9a_with_defaults_equals_converged_solver(tmp_path, data_dir, method):
    """By one thread, whose steps are the same each time; of several workers, see tests/quality."""
    test = run_a9a(tmp_path, data_dir, method=method)
    assert test["log_loss"] == pytest.approx(SKLEARN_LOG_LOSS, abs=0.002)
    assert test["auc"] == pytest.approx(SKLEARN_AUC, abs=0.002)
    assert test["calibration"] == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize("model", ["logistic", "fm", "sparse_net"])
def test_values_beyond_the_scale_of_their_column_are_told_and_predicted_as_trained(tmp_path, model):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5000, 2))
    y = (x.sum(1) + rng.logistic(size=5000) > 0).astype(int)
    x[rng.random(5000) < 0.004, 1] *= 1e7
    table = tmp_path / "t.csv"
    rows = zip(y.tolist(), *x.round(5).T.tolist(), strict=True)
    table.write_text("y,a,b\n" + "".join(f"{k},{a},{b}\n" for k, a, b in rows))
    words = ["--input", table, "--label-column", "y", "--test", table, "--output", tmp_path / "m"]
    trained = run_snailps("train", model, *words, "--epochs", 10, "--workers", 1, "--json")
    figures = json.loads(trained.stdout)
    assert list(figures["clipped"]) == ["b"]
    assert figures["clipped"]["b"] > 10 * 10
    assert figures["test"]["log_loss"] == pytest.approx(figures["train_loss"], abs=0.02)
    found = load(tmp_path / "m.npz").evaluate(table)
    assert found["log_loss"] == pytest.approx(figures["test"]["log_loss"], rel=1e-5)


def test_more_values_beyond_their_scale_than_a_few_are_refused_with_figures():
    rng = np.random.default_rng(0)
    x = 100 * rng.normal(size=(2000, 2))
    y = (x.sum(1) > 0).astype(int)
    with snailps.cluster(threads=1) as cluster:
        model = snailps.LogisticRegression(cluster=cluster, verbose=False).fit(x, y)
        before = model.coef_.copy()
        x[::50, 1] *= 1e6
        why = r"40 of 2,000 examples have a value of column 1 that is beyond 64 times its scale"
        with pytest.raises(ClusterError, match=why), pytest.warns(match="times larger"):
            model.partial_fit(x, y)
        np.testing.assert_array_equal(model.coef_, before)
