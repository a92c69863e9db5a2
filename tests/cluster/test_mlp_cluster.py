"""Multilayer perceptrons on clusters of real processes: the contract of models, MNIST."""

import hashlib
import re
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest
from idx_files import pictures, write_pictures
from model_mixin import ModelContract
from processes import run_well
from test_cluster import figures_of

import snailps
from snailps import write_matrix
from snailps.models.mlp import read_npz

pytestmark = pytest.mark.limit(600)  # a job for each optimizer

COUNT = 1200


@pytest.mark.long(tests=["test_model_with_backup_period_and_interrupt_saves_both"])
class TestMlp(ModelContract):
    """Four pictures under noise."""

    job: ClassVar = {
        "worker_class": "snailps.models.mlp:Mlp",
        "labels": "input-labels",
        "test": "test",
        "test_labels": "test-labels",
        "hidden": 16,
        "batch_size": 20,
        "lr": 0.01,
        "epochs": 4,
    }
    kind = "examples"
    units = COUNT
    results = ("out.npz",)
    optimizers = ("adagrad", "adam", "momentum", "sgd")
    tables = ("dense0", "dense1", "biases", "global_step")

    @staticmethod
    def write_input(folder):
        write_pictures(folder, "input", COUNT, seed=1)
        write_pictures(folder, "test", 500, seed=2)

    def check_learnt(self, folder, figures):
        assert figures["test"]["examples"] == 500
        assert figures["test"]["accuracy"] > 0.6  # untrained .25
        assert figures["tests"][-1]["accuracy"] > 0.4
        net = read_npz(folder / "out.npz")
        images, labels = pictures(500, seed=2)
        found = net.scores(images.reshape(500, -1).astype(np.float32)).argmax(axis=1)
        assert (found == labels).mean() == pytest.approx(figures["test"]["accuracy"])
        with np.load(folder / "out.npz") as file:
            assert file["global_step"].tolist() == [figures["global_step"]]
        if "consistency" not in self.job:
            assert figures["global_step"] == figures["epochs"] * COUNT // 20
        return {"log_loss": figures["test"]["log_loss"]}


@pytest.mark.long
class TestMlpOfTwoLayers(TestMlp):
    """Sigmoids, momentum."""

    optimizers = ("momentum",)  # those of `TestMlp` know nothing of layers

    job: ClassVar = {
        **TestMlp.job, "hidden": "16, 8", "activation": "sigmoid", "optimizer": "momentum",
        "lr": 0.1, "epochs": 12,
    }  # fmt: skip
    tables = ("dense0", "dense1", "dense2", "biases", "global_step")


def run_mnist(folder, data_dir):
    """Figures of two workers."""
    images = data_dir / "mnist" / "train-images-idx3-ubyte.gz"
    job = {
        "worker_class": "snailps.models.mlp:Mlp", "input": images, "hidden": 32, "epochs": 2,
        "test": data_dir / "mnist" / "t10k-images-idx3-ubyte.gz", "scratch_dir": folder / "s",
    }  # fmt: skip
    return figures_of(run_well(folder, job=job, workers=2))


def test_mnist_two_workers_learn_digits_from_packed_files(tmp_path, data_dir):
    figures = run_mnist(tmp_path, data_dir)
    assert figures["examples"] == 120_000
    assert figures["test"]["accuracy"] > 0.5  # by chance .1; how good it is, tests/quality says


@pytest.mark.long
class TestMlpInStep(TestMlp):
    """With clocks: four micro-batches a step."""

    job: ClassVar = {
        **TestMlp.job, "consistency": "bsp", "batch_size": 40, "micro_batches": 4, "lr": 0.02,
    }  # fmt: skip

    def check_learnt(self, folder, figures):
        found = super().check_learnt(folder, figures)
        assert figures["global_step"] == figures["epochs"] * COUNT // 40
        return found


@pytest.mark.long
class TestMlpNotFarAhead(TestMlp):
    """With bounded staleness."""

    optimizers = ("adam", "momentum")

    job: ClassVar = {**TestMlp.job, "consistency": "ssp", "staleness": 1}


def run(folder, job, **nodes):
    return figures_of(run_well(folder, job=job, **nodes))


@pytest.mark.long(but=["momentum"])
@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_bsp_gives_the_same_file_whatever_the_workers_and_shards(tmp_path, optimizer):
    """1,190 examples in parts of 8: the last block of an epoch is short, and so is the last clock.

    Nets of two hidden layers; 1 or 4 shards, 1 to 4 workers.
    """
    write_pictures(tmp_path, "input", 1190, seed=1)
    job = {
        "worker_class": "snailps.models.mlp:Mlp", "input": "input", "labels": "input-labels",
        "hidden": "40, 8", "batch_size": 32, "micro_batches": 4, "consistency": "bsp",
        "optimizer": optimizer, "lr": 0.01, "epochs": 2,
    }  # fmt: skip
    found = []
    for servers, workers in [(1, 1), (4, 3), (2, 4)]:
        output = f"out{servers}{workers}"
        figures = run(tmp_path, {**job, "output": output}, servers=servers, workers=workers)
        assert figures["global_step"] == 75  # 298 blocks
        digest = hashlib.sha256((tmp_path / f"{output}.npz").read_bytes()).hexdigest()
        found.append((digest, figures["train_loss"]))
    assert len(set(found)) == 1, found


def test_arrays_of_each_format_give_the_same_file(tmp_path):
    """Pictures as idx, as .npy and as one dense matrix file."""
    write_pictures(tmp_path, "input", 400, seed=1)
    images, labels = pictures(400, seed=1)
    np.save(tmp_path / "X.npy", images)
    np.save(tmp_path / "y.npy", labels)
    write_matrix(tmp_path / "matrix", images, labels, dense=True)
    job = {
        "worker_class": "snailps.models.mlp:Mlp", "hidden": 8, "batch_size": 32,
        "micro_batches": 2, "consistency": "bsp", "epochs": 2, "output": "out",
        "overwrite": "true",
    }  # fmt: skip
    found = []
    for given, own in [("input", {"labels": "input-labels"}), ("X.npy", {}), ("matrix", {})]:
        figures = run(tmp_path, {**job, "input": given, "test": given, **own, **_tests_of(own)})
        digest = hashlib.sha256((tmp_path / "out.npz").read_bytes()).hexdigest()
        found.append((digest, figures["train_loss"], str(figures["test"])))
    assert len(set(found)) == 1, found
    net = snailps.load(tmp_path / "out.npz")
    rows = images.reshape(len(images), -1)
    for given in ("input", "X.npy", "matrix"):
        np.testing.assert_array_equal(net.predict(tmp_path / given), net.predict(rows))


def _tests_of(own):
    return {f"test_{name}": value for name, value in own.items()}


@pytest.mark.long
def test_example_of_rings_works_as_written(tmp_path, repo_root):
    """Its data, its settings: without clocks, and with, where the weights are the same twice."""
    text = (repo_root / "examples" / "rings.md").read_text()
    (make,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    subprocess.run([sys.executable, "-c", make], cwd=tmp_path, check=True, timeout=150)
    lines = (repo_root / "examples" / "rings.conf").read_text().splitlines()
    pairs = [line.partition(": ") for line in lines if line and not line.startswith("#")]
    job = {key: value for key, _, value in pairs}
    figures = run(tmp_path, job, workers=2)
    assert figures["ended_by"] == "target_loss"
    weights = []
    for workers in (1, 2):
        figures = run(tmp_path, {**job, "consistency": "bsp", "overwrite": "true"}, workers=workers)
        assert figures["ended_by"] == "target_loss"
        with np.load(tmp_path / "out" / "rings.npz") as file:
            weights.append([file[name].tobytes() for name in sorted(file.files)])
    assert weights[0] == weights[1]
