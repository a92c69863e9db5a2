"""bench/: the click data says the same in every format, and the judge's figures are right."""

import importlib
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from processes import PACKAGE

BENCH = PACKAGE / "bench"
LIMIT_S = 300


@pytest.fixture
def bench(monkeypatch):
    """Imports a module of bench/."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


@pytest.fixture
def ctr(bench):
    return bench("ctr")


@pytest.fixture
def judge(bench):
    return bench("judge")


@pytest.fixture
def plan(ctr, monkeypatch):
    # Several chunks, the last one short.
    monkeypatch.setattr(ctr, "CHUNK", 1000)
    return ctr.Plan(
        examples=4500, test_examples=500, fields=7, features=3000, seed=5,
        formats=("libsvm", "vw", "libffm"),
    )  # fmt: skip


def entries(path, format_):
    """(label above zero, feature numbers) of each line, and the fields if they are written."""
    for line in path.read_text().splitlines():
        head, *words = line.replace("|", " ").split()
        parts = [word.split(":") for word in words]
        if format_ == "vw":
            assert head in ("-1", "1")
            yield head == "1", [int(part[0]) for part in parts], None
        else:
            assert head in ("0", "1")
            assert all(part[-1] == "1" for part in parts)
            fields = [int(part[0]) for part in parts] if format_ == "libffm" else None
            yield head == "1", [int(part[-2]) for part in parts], fields


@pytest.mark.parametrize("factors", [0, 3])
def test_click_data_formats_hold_the_same_examples(ctr, plan, tmp_path, factors):
    plan = replace(plan, factors=factors, factor_sd=0.3 if factors else 0.0)
    made = ctr.make(plan, tmp_path)
    begins = ctr.field_begins(plan)
    for part, count in ((made.train, plan.examples), (made.test, plan.test_examples)):
        lines = 0
        for svm, vw, ffm in zip(*(entries(part[f], f) for f in plan.formats), strict=True):
            assert svm[:2] == vw[:2] == ffm[:2]
            numbers = np.array(svm[1])
            assert len(numbers) == plan.fields
            # One value of each field, and a field's features lie together.
            assert np.all((begins[:-1] < numbers) & (numbers <= begins[1:]))
            assert ffm[2] == list(range(plan.fields))
            lines += 1
        assert lines == count


def test_click_data_follows_plan_and_truth(ctr, plan, tmp_path):
    plan = replace(plan, click_rate=0.3)
    made = ctr.make(plan, tmp_path)
    truth = np.load(made.train["vw"].parent / "truth.npz")
    counts = np.zeros(plan.features, np.int64)
    clicks, logits = [], []
    for clicked, numbers, _ in entries(made.train["libsvm"], "libsvm"):
        places = np.array(numbers) - 1
        counts[places] += 1
        clicks.append(clicked)
        logits.append(truth["intercept"] + truth["weights"][places].sum())
    clicks, logits = np.array(clicks), np.array(logits)
    assert np.array_equal(truth["counts"], counts)
    # Five standard deviations of a mean of so many labels.
    assert abs(clicks.mean() - 0.3) < 5 * np.sqrt(0.21 / len(clicks))
    loss = np.logaddexp(0, np.where(clicks, -logits, logits)).mean()
    assert loss == pytest.approx(made.facts["train"]["best_log_loss"], abs=1e-6)
    assert made.facts["train"]["click_rate"] == pytest.approx(clicks.mean())
    # The planted probability is the one that the labels were drawn with.
    expected = 1 / (1 + np.exp(-logits))
    for low, high in ((0.0, 0.2), (0.2, 0.5), (0.5, 1.0)):
        part = (expected >= low) & (expected < high)
        noise = np.sqrt((expected * (1 - expected))[part].sum()) / part.sum()
        assert abs(clicks[part].mean() - expected[part].mean()) < 5 * noise


def test_recovered_ignores_what_moves_between_a_field_and_the_intercept(ctr, plan, tmp_path):
    made = ctr.make(plan, tmp_path)
    truth = made.train["vw"].parent / "truth.npz"
    with np.load(truth) as planted:
        weights, begins = planted["weights"], planted["begins"]
    field = np.repeat(np.arange(plan.fields), np.diff(begins))
    moved = ctr.recovered(truth, 0.5 * weights + np.arange(plan.fields)[field], seen_min=10)
    assert moved["correlation"] == pytest.approx(1.0)
    assert moved["slope"] == pytest.approx(0.5)
    noise = np.random.default_rng(3).permutation(weights)
    assert abs(ctr.recovered(truth, noise, seen_min=10)["correlation"]) < 0.2


def test_judge_known_answers(judge):
    clicked = np.array([True, False, True, False])
    found = judge.quality(clicked, np.array([0.8, 0.4, 0.4, 0.2]))
    # Pairs: 0.8 beats both, 0.4 beats 0.2 and ties with 0.4.
    assert found["auc"] == pytest.approx(3.5 / 4)
    assert found["log_loss"] == pytest.approx(-np.log([0.8, 0.6, 0.4, 0.8]).mean())
    assert found["calibration"] == pytest.approx(1.8 / 2)


@pytest.mark.parametrize("ending", ["\n", ""])
def test_judge_reads_labels_and_numbers(judge, tmp_path, ending, monkeypatch):
    monkeypatch.setattr(judge, "READ_BYTES", 3)
    file = tmp_path / "lines"
    file.write_text("\n".join(["1 3:1", "-1 | 3", "+1 4:1", "0 | 2"]) + ending)
    assert judge.labels_of(file).tolist() == [True, False, True, False]
    file.write_text("\n".join(["0.25", "1e-3", "1"]) + ending)
    assert judge.numbers_of(file).tolist() == [0.25, 0.001, 1.0]
    file.write_text("\n".join(["0.25 x", "1e-3 y"]) + ending)
    assert judge.numbers_of(file).tolist() == [0.25, 0.001]


def test_ctr_command_makes_data_once_and_prints_facts(tmp_path):
    command = [sys.executable, str(BENCH / "ctr.py"), str(tmp_path), "--kind=fm"]
    command += ["--examples=1000", "--test-examples=300", "--features=2000"]
    told = []
    for _ in range(2):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S,
            check=True,
        )  # fmt: skip
        told.append(json.loads(done.stdout))
    assert told[0] == told[1]
    assert told[0]["plan"]["factors"] > 0
    assert len(list(tmp_path.iterdir())) == 1


def row(job, system, **figures):
    return {"job": job, "system": system, **figures}


def test_report_compares_with_the_faster_peer_and_with_the_better_one(bench):
    rows = [
        row("ctr", "snailps", examples_per_s=900, log_loss=0.4074, correlation=0.96),
        row("ctr", "quick", examples_per_s=500, log_loss=0.41, correlation=0.95),
        row("ctr", "good", examples_per_s=300, log_loss=0.4062, correlation=0.98),
    ]
    found = {
        one["target"]: (one["value"], one["met"])
        for one in bench("sparse_report").targets(rows, False)
    }
    assert found == {
        "ctr: examples/s / vowpal wabbit's faster >= 1.5": (1.8, True),
        "ctr: log loss - vowpal wabbit's better <= 0.001": (0.0012, False),
        "ctr: correlation with planted weights >= 0.9": (0.96, True),
        "ctr: vowpal wabbit's correlation - ours <= 0.01": (0.02, False),
    }
    assert {one["met"] for one in bench("sparse_report").targets(rows, True)} == {None}


def test_report_tells_workers_apart_by_the_spread_of_seeds(bench):
    rows = [
        row("workers", "snailps", workers=1, log_loss=0.4, log_loss_spread=0.0001),
        row("workers", "snailps", workers=2, log_loss=0.4004, log_loss_spread=0.0002),
        row("workers", "snailps", workers=4, log_loss=0.402, log_loss_spread=0.0003),
    ]
    assert [one["met"] for one in bench("sparse_report").targets(rows, False)] == [True, False]


def test_snailps_weights_leave_the_bias_out(bench, tmp_path):
    systems = bench("linear_systems")
    np.savez(
        tmp_path / "m.npz",
        keys=np.array([2, 5, 2**64 - 1], np.uint64),
        rows=np.array([[0.5], [-1.0], [9.0]], np.float32),
    )
    job = systems.Job("x", {}, {}, 1, 5, 1.0)
    found = systems.Snailps("snailps").weights(job, tmp_path / "m")
    assert found.tolist() == [0, 0.5, 0, 0, -1.0]
