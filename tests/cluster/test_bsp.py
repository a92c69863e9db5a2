"""Synchronous steps on clusters of real processes: the same bits with any workers and losses."""

import functools
import hashlib
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from idx_files import write_pictures
from processes import Cluster, Gate, run_well
from test_cluster import figures_of
from texts import write_planted, write_topics

pytestmark = pytest.mark.limit(600)  # several clusters a test


def write_field_examples(path):
    """Two fields of small numbers, labelled by whether they match."""
    rng = np.random.default_rng(3)
    with path.open("w") as file:
        for a, b in rng.integers(0, 8, (1500, 2)):
            file.write(f"{(a + b + 1) % 2} {a + 1}:1 {b + 101}:1\n")


def write_labelled(path):
    """The topics' lines, with their labels."""
    write_topics(path, 900)
    lines = path.read_text().splitlines()
    labels = ["__label__animal", "__label__tool"]
    path.write_text("".join(f"{labels[at % 2]} {line}\n" for at, line in enumerate(lines)))


MODELS = {
    "logistic": (
        lambda path: write_planted(path, 1500),
        {"worker_class": "clock_models:GatedLinear", "block_bytes": 8000, "epochs": 2},
    ),
    "words": (
        lambda path: write_topics(path, 900),
        {
            "worker_class": "clock_models:GatedWords", "dim": 12, "min_count": 1, "bucket": 2000,
            "block_bytes": 5000, "epochs": 2, "sample": 0,
        },
    ),
    "fm": (
        write_field_examples,
        {"worker_class": "clock_models:GatedFm", "block_bytes": 1500, "epochs": 2, "factors": 4},
    ),
    "classifier": (
        write_labelled,
        {
            "worker_class": "clock_models:GatedClassifier", "dim": 8, "block_bytes": 5000,
            "epochs": 2, "word_ngrams": 2, "bucket": 2000, "min_count": 1,
        },
    ),
    "sparse_net": (
        write_field_examples,
        {"worker_class": "clock_models:GatedNet", "block_bytes": 1500, "epochs": 2, "hidden": 8},
    ),
    "mlp": (
        lambda path: write_pictures(path.parent, path.name, 430, seed=1),
        {
            "worker_class": "clock_models:GatedMlp", "hidden": "30, 40", "batch_size": 60,
            "epochs": 2, "lr": 0.01,
        },
    ),
}  # fmt: skip


def prepare(tmp_path, model, **settings):
    """Writes the input of a model; the settings of its job."""
    write, job = MODELS[model]
    path = tmp_path / "input"
    if not path.exists():
        write(path)
    common = {"consistency": "bsp", "micro_batches": 3, "on_node_loss": "recover"}
    if model == "mlp":
        common["labels"] = f"{path}-labels"
    return {**job, "input": str(path), "output": "out", **common, **settings}


def files_of(folder):
    """Hash of each result file but the report, which tells times."""
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("out*"))
        if path.name != "out.report.html"
    }
    assert "out.tables.npz" in found
    assert len(found) > 1
    return found


def run(tmp_path, job, workers, servers):
    """Result files, hashed, and figures of a run."""
    folder = tmp_path / f"{workers}-{servers}-{time.monotonic_ns()}"
    folder.mkdir()
    master = run_well(folder, job=job, workers=workers, servers=servers)
    assert ("workers train at a time" in master.stderr) == (
        workers > job.get("micro_batches", workers)
    )
    return files_of(folder), figures_of(master)


@functools.cache
def undisturbed(base, model):
    """Result files, hashed, and figures of a model's run with one worker and one server.

    `base` is the folder of this test run's folders.
    """
    folder = base / f"undisturbed-{model}"
    folder.mkdir()
    return run(folder, prepare(folder, model), 1, 1)


@pytest.mark.long(but=["logistic", "words"])
@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("logistic", [(3, 4), (4, 1)]),
        ("words", [(3, 2)]),
        ("mlp", [(2, 4)]),
        ("fm", [(3, 2)]),
        ("classifier", [(2, 3)]),
        ("sparse_net", [(3, 4)]),
    ],
    ids=["logistic", "words", "mlp", "fm", "classifier", "sparse_net"],
)
def test_bsp_with_any_number_of_workers_and_shards_gives_the_same_bits(tmp_path, model, sizes):
    first, figures = undisturbed(tmp_path.parent, model)
    assert figures["clocks"] == -(-figures["blocks"] // 3) > 3
    assert figures["loss_by_epoch"][1] < figures["loss_by_epoch"][0]
    job = prepare(tmp_path, model)
    for workers, servers in sizes:
        hashes, other = run(tmp_path, job, workers, servers)
        assert hashes == first
        assert other["loss_by_epoch"] == figures["loss_by_epoch"]


@pytest.mark.long(but=["logistic"])
@pytest.mark.parametrize("model", ["logistic", "classifier"])
def test_bsp_with_one_micro_batch_keeps_no_rows_at_a_worker(tmp_path, model):
    job = prepare(tmp_path, model, micro_batches=1)
    assert run(tmp_path, job, 1, 1)[0] == run(tmp_path, job, 2, 1)[0]


def kill_who_stands_at(gate):
    """SIGKILL for the worker at a gate that the test has met; its process id."""
    pid = gate.pid  # once: the next one to train its block stands there, too
    os.kill(pid, signal.SIGKILL)
    return pid


@pytest.mark.long(but=["words"])
@pytest.mark.parametrize("model", ["logistic", "words", "mlp"])
def test_bsp_with_workers_killed_in_the_middle_gives_the_same_bits(tmp_path, model):
    folder = tmp_path / "killed"
    folder.mkdir()
    gates = tmp_path / "gates"
    # One before it has pushed, one when it has pushed, one when the master knows and no shard does.
    stages = [Gate(gates, 4, "before"), Gate(gates, 8, "after"), Gate(gates, 11, "seal")]
    job = prepare(tmp_path, model, gates=str(gates))
    with Cluster(folder, job=job, workers=5, servers=2) as cluster:
        master = cluster.master()
        cluster.nodes()
        killed = []
        for gate in stages:
            gate.meet()
            killed.append(kill_who_stands_at(gate))
            master.wait_line(rf"process {killed[-1]}\) is lost: .* The others go on")
            gate.open()
        codes = {process.pid: process.wait() for process in cluster.processes}
        assert {pid: code for pid, code in codes.items() if code} == dict.fromkeys(
            killed, -signal.SIGKILL
        )
        figures = figures_of(master)
        assert figures["progress"] == 1
    found = files_of(folder)
    # The gates' folder is a setting, which a model's file names.
    plain, _ = undisturbed(tmp_path.parent, model)
    assert found["out.tables.npz"] == plain["out.tables.npz"]
    assert {name for name in found if found[name] != plain[name]} <= {"out.npz"}


def test_bsp_with_a_worker_killed_when_some_shards_have_its_seal_gives_the_same_bits(tmp_path):
    folder, gates = tmp_path / "killed", tmp_path / "gates"
    folder.mkdir()
    gates.mkdir()
    torn = gates / "torn-5"
    torn.touch()
    job = prepare(tmp_path, "logistic", gates=str(gates))
    with Cluster(folder, job=job, workers=3, servers=4) as cluster:
        master = cluster.master()
        cluster.nodes()
        master.wait_line("is lost: .* The others go on")
        codes = {process.pid: process.wait() for process in cluster.processes}
        killed = int(Path(f"{torn}.pid").read_text())
        assert {pid: code for pid, code in codes.items() if code} == {killed: -signal.SIGKILL}
    plain, _ = undisturbed(tmp_path.parent, "logistic")
    assert files_of(folder)["out.tables.npz"] == plain["out.tables.npz"]


def test_bsp_worker_that_comes_and_one_that_leaves_do_not_change_the_bits(tmp_path):
    folder = tmp_path / "moved"
    folder.mkdir()
    gates = tmp_path / "gates"
    gate = Gate(gates, 3, "before")
    job = prepare(tmp_path, "logistic", gates=str(gates))
    with Cluster(folder, job=job, workers=2, servers=1) as cluster:
        master, *_ = cluster.started_at(gate)
        leaver = gate.who(cluster.processes)
        newcomer = cluster.start("worker")
        cluster.await_joined(newcomer)
        leaver.send(signal.SIGTERM)
        leaver_name = cluster.name_of(leaver)
        master.wait_line(rf"{leaver_name} .*SIGTERM")
        gate.open()
        assert cluster.codes() == [0] * 5, master.stderr
    plain, _ = undisturbed(tmp_path.parent, "logistic")
    assert files_of(folder)["out.tables.npz"] == plain["out.tables.npz"]


@pytest.mark.long(but=["setup"])
@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("setup", r"pull\(\) outside prepare\(\) and train\(\)"),
        ("prepare", r"push_async\(\) in prepare\(\).* wait and push in train\(\)"),
    ],
    ids=["setup", "prepare"],
)
def test_bsp_model_that_pulls_or_pushes_at_no_moment_is_told_what_to_do(tmp_path, where, words):
    (tmp_path / "in.txt").write_text("1\n2\n3\n" * 50)
    job = {
        "worker_class": "clock_models:Early", "input": "in.txt", "consistency": "bsp",
        "fails_in": where,
    }  # fmt: skip
    with Cluster(tmp_path, job=job) as cluster:
        master = cluster.master()
        cluster.nodes()
        assert master.wait() == 1
        assert re.search(words, master.errors[0]), master.errors
        cluster.codes()
