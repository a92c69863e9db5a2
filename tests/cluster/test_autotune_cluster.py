"""Searches whose best settings are trained on a cluster: a command, estimators."""

import json
import subprocess
import sys

import numpy as np
import pytest

import snailps
from snailps import fasttext
from snailps.vectors.label_prediction import LabelModel, evaluate_labels

LIMIT_S = 120


def lines_of(count, seed):
    """Lines whose label is the order of two words."""
    for label, first, last in np.random.default_rng(seed).integers(0, (2, 300, 300), (count, 3)):
        yield f"__label__{'yx'[label]} w{first} {('x y', 'y x')[label]} w{last}"


def write(path, count, seed):
    path.write_text("\n".join(lines_of(count, seed)) + "\n")
    return path


def test_command_trains_the_settings_that_it_found(tmp_path):
    train, valid = write(tmp_path / "train", 500, 1), write(tmp_path / "valid", 200, 2)
    words = [
        "autotune", "--input", train, "--validation", valid, "--output", tmp_path / "model",
        "--trials", 3, "--size", "40K", "--set", "dim=8", "--json",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "snailps", *map(str, words)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["ended"] == "trials"
    assert len(figures["trials"]) == 3
    assert figures["settings"]["dim"] == 8
    assert figures["settings"]["word_ngrams"] == 2
    assert figures["files"] == [str(tmp_path / "model.bin"), str(tmp_path / "model.ftz")]
    small = tmp_path / "model.ftz"
    assert small.stat().st_size <= 40 << 10
    for path in figures["files"]:
        assert evaluate_labels(LabelModel(path), valid).f1 > 0.95
    assert str(figures["settings"]["lr"]) in figures["command"]


@pytest.mark.filterwarnings("ignore::snailps.ConvergenceWarning")
def test_estimators_have_the_settings_that_were_found(tmp_path):
    train, valid = write(tmp_path / "train", 500, 1), write(tmp_path / "valid", 200, 2)
    texts, labels = ([line.split(" ", 1)[i] for line in lines_of(500, 1)] for i in (1, 0))
    with snailps.local_cluster(workers=1):
        model = snailps.TextClassifier(dim=8, held_out=0.2).autotune(texts, labels, trials=3)
        assert len(model.tuning_.trials) == 3
        assert (model.dim, model.word_ngrams) == (8, 2)
        assert model.score(texts, labels) > 0.95
        same = fasttext.train_supervised(
            str(train), dim=8, autotuneValidationFile=str(valid), autotuneDuration=1, verbose=0
        )
    assert (same.dim, same.is_quantized()) == (8, False)
    assert same.test(str(valid))[1] > 0.5
