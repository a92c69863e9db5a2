"""Sparse networks on clusters of real processes: the contract of models, files, predictions."""

import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from model_mixin import ModelContract
from processes import run_well
from test_cluster import figures_of

import snailps
from snailps.estimators.loading import load

pytestmark = pytest.mark.limit(600)  # a job for each optimizer

LINES = 4000
VALUES = 8
"""Of each of the two fields; a label says whether both values are odd or both even."""


def write_parity(path, lines, seed=1):
    """What no linear model can tell: the label is 1 where the two features' numbers match."""
    rng = np.random.default_rng(seed)
    with path.open("w") as file:
        for a, b in rng.integers(0, VALUES, (lines, 2)):
            file.write(f"{(a + b + 1) % 2} {a + 1}:1 {b + 101}:1\n")


@pytest.mark.long(
    tests=[
        "test_model_with_same_seed_gives_identical_files_and_with_other_seed_others",
        "test_model_with_backup_period_and_interrupt_saves_both",
    ]
)
class TestSparseNet(ModelContract):
    """Two odd or two even numbers: a matter of both."""

    job: ClassVar = {
        "worker_class": "snailps.models.sparse.net:Net",
        "test": "test",
        "hidden": 16,
        "batch_size": 100,
        "first_layer": "servers",
        "init_scale": 0.5,
        "epochs": 8,
    }
    kind = "examples"
    units = LINES
    results = ("out.npz",)
    optimizers = ("sgd", "adagrad", "adam", "ftrl")
    tables = ("weights", "dense1", "biases")

    @staticmethod
    def write_input(folder):
        write_parity(folder / "input", LINES)
        write_parity(folder / "test", 1000, seed=2)

    def check_learnt(self, folder, figures):
        assert figures["test"]["examples"] == 1000
        assert figures["test"]["auc"] > 0.75  # untrained .5
        assert figures["features"] == 2 * VALUES
        again = load(folder / "out.npz").evaluate(folder / "test")
        for name in ("auc", "log_loss", "accuracy"):
            assert again[name] == pytest.approx(figures["test"][name], rel=1e-4)
        return {"auc": again["auc"], "log_loss": again["log_loss"]}


@pytest.mark.long
class TestSparseNetAtTheWorker(TestSparseNet):
    """Rows pulled, gradients pushed; two hidden layers."""

    job: ClassVar = {
        **TestSparseNet.job, "first_layer": "worker", "hidden": "16, 8", "activation": "sigmoid",
        "optimizer": "adam", "lr": 0.02,
    }  # fmt: skip
    tables = ("weights", "dense1", "dense2", "biases")


@pytest.mark.long(but=["2"])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_both_ways_give_the_same_model(tmp_path, in_flight):
    """One worker, one seed: products at the servers or here, to rounding."""
    found = []
    for place in ("servers", "worker"):
        TestSparseNet().run(
            tmp_path / place, first_layer=place, in_flight=in_flight, epochs=2, servers=2,
            wire="float32",
        )  # fmt: skip
        with np.load(tmp_path / place / "out.npz") as file:
            found.append({name: file[name] for name in file.files if name != "about"})
    assert found[0].keys() == found[1].keys()
    for name, array in found[0].items():
        assert np.allclose(array, found[1][name], rtol=1e-3, atol=1e-4)


def test_auto_says_what_it_chose(tmp_path):
    figures = TestSparseNet().run(tmp_path, first_layer="auto", epochs=1, hidden=256)
    assert figures["examples"] == LINES


@pytest.mark.long
def test_shipped_example_learns_what_its_page_says(tmp_path):
    """examples/pairs.md: its data, its settings; nine in ten is all that there is to know."""
    examples = Path(__file__).resolve().parents[2] / "examples"
    code = re.search(r"```python\n(.*?)```", (examples / "pairs.md").read_text(), re.S).group(1)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=150)
    lines = (examples / "pairs.conf").read_text().splitlines()
    pairs = [line.partition(": ") for line in lines if line and not line.startswith("#")]
    job = {key: value for key, _, value in pairs}
    figures = figures_of(run_well(tmp_path, job=job, servers=2, workers=2))
    assert figures["test"]["accuracy"] > 0.7  # two workers: .9 as a rule, by chance .5
    assert load(tmp_path / "out" / "pairs.npz").classes_.tolist() == [0, 1]


@pytest.mark.parametrize("kind", [snailps.FMClassifier, snailps.SparseNetClassifier])
def test_few_lines_are_not_learnt_by_heart(kind):
    """2,000 lines of a linear rule with noise: chosen epochs predict others about as well as five.

    Trained as long as the training's loss falls, both are worse than a constant, .69.
    """
    rng = np.random.default_rng(7)
    weights = rng.normal(0, 0.8, 100)
    X = rng.normal(0, 1, (4000, 100)) * (rng.random((4000, 100)) < 0.06)
    y = (rng.random(4000) < 1 / (1 + np.exp(-X @ weights))).astype(int)

    def log_loss(**given):
        model = kind(verbose=False, seed=1, **given).fit(X[:2000], y[:2000])
        likely = np.clip(model.predict_proba(X[2000:])[:, 1], 1e-9, 1 - 1e-9)
        return -np.log(np.where(y[2000:], likely, 1 - likely)).mean()

    with snailps.cluster(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert log_loss() < log_loss(epochs=5) + 0.05
