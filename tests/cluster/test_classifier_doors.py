"""A classifier that a real job has trained: every door has the figure of its validation.

command: train --validation | held_out -> figures of the job
test, predict, quantize --test, calibrate, fastText's names, Python -> the same, and by hand
"""

import json

import numpy as np
import pytest
from processes import run_snailps

import snailps
import snailps.fasttext
from snailps.data.held_out import HeldOut

SEED = 7
WORDS = 100
"""Words of each class, and as many that all classes have."""
LABELS = ("a", "b", "c")
TRAINED, TESTED = 900, 90
FORMS = ("plain", "weights", "soft labels", "several labels", "own prefix", "normalize")


def lines_of(form, count, rng):
    """Labelled lines: two words of their class, one of all; every fifth one has a wrong label."""
    prefix = "T_" if form == "own prefix" else "__label__"
    lines = []
    for number in range(count):
        label = number % 3
        words = [f"w{label}_{word}" for word in rng.integers(WORDS, size=2)]
        words.append(f"all{rng.integers(WORDS)}")
        if form == "normalize":
            words = [word.upper() if rng.random() < 0.5 else word for word in words]
        said = (label + (number % 5 == 0)) % 3
        labels = [f"{prefix}{LABELS[said]}"]
        if form == "weights":
            labels.insert(0, f"{prefix}:{1 + number % 4}")
        if form == "soft labels":
            labels = [f"{prefix}{LABELS[said]}:0.75", f"{prefix}{LABELS[(said + 1) % 3]}:0.25"]
        if form == "several labels" and number % 2:
            labels.append(f"{prefix}{LABELS[(said + 1) % 3]}")
        lines.append(" ".join([*labels, *words]))
    return lines


def f1_by_hand(lines, guesses, prefix):
    """F1 of a guess a line: a label's weight in its line, times the line's, over all of them."""
    right = said = there = 0.0
    for line, guess in zip(lines, guesses, strict=True):
        words = [word.removeprefix(prefix) for word in line.split() if word.startswith(prefix)]
        parts = [word.partition(":") for word in words]
        weight = next((float(weight) for name, _, weight in parts if not name), 1.0)
        labels = {name: float(value or 1) for name, _, value in parts if name}
        right += weight * labels.get(guess, 0.0)
        said += weight * max(1.0, *labels.values())
        there += weight * sum(labels.values())
    return 2 * right / (said + there)


CELLS = [
    pytest.param(loss, form, marks=() if (loss, form) == ("ova", "weights") else pytest.mark.long)
    for loss in ("softmax", "hs", "ns", "ova")
    for form in FORMS
]


@pytest.mark.parametrize(("loss", "form"), CELLS)
def test_figure_of_a_training_is_that_of_every_door(tmp_path, loss, form):
    rng = np.random.default_rng(SEED)
    prefix = "T_" if form == "own prefix" else "__label__"
    soft = ("--soft-labels", "true") if form in ("weights", "soft labels") else ()
    trained, tested = lines_of(form, TRAINED, rng), lines_of(form, TESTED, rng)
    files = {"train.txt": trained, "valid.txt": tested}
    for name, lines in files.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    words = [
        "--loss", loss, "--dim", "8", "--epochs", "5", "--lr", "0.5", "--maxn", "0",
        "--threads", "1", "--label", prefix, *soft,
        *(("--normalize", "lower") if form == "normalize" else ()),
    ]  # fmt: skip

    def run(*given):
        return run_snailps(*given, cwd=tmp_path).stdout

    def train(output, *more):
        given = ("--input", "train.txt", "--output", output, *words, *more, "--json")
        return json.loads(run("train", "classifier", *given))

    figures = train("m", "--validation", "valid.txt")
    validated = figures["tests"][-1]["f1_at_1"]

    model = snailps.load(tmp_path / "m.bin")
    bare = [" ".join(w for w in line.split() if not w.startswith(prefix)) for line in tested]
    (tmp_path / "bare.txt").write_text("\n".join(bare) + "\n")
    guesses = [
        line.split("\t")[0] for line in run("predict", "m.bin", "--input", "bare.txt").splitlines()
    ]
    expected = f1_by_hand(tested, [guess.removeprefix(prefix) for guess in guesses], prefix)
    assert validated == pytest.approx(expected, abs=1e-6)
    report = json.loads(run("test", "m.bin", "valid.txt", *soft[:1], "--json"))
    assert report["f1"] == pytest.approx(expected, abs=1e-6)
    assert model.evaluate(tested, soft_labels=bool(soft)).f1 == pytest.approx(expected, abs=1e-6)
    if not soft:
        _, precision, recall = snailps.fasttext.load_model(tmp_path / "m.bin").test(
            tmp_path / "valid.txt"
        )
        f1 = 2 * precision * recall / (precision + recall)
        assert f1 == pytest.approx(expected, abs=1e-6)

    # The copy has a precision of its own, the same by every door; `before` is the model's.
    quantised = (
        "quantize",
        "m.bin",
        "--output",
        "m.ftz",
        "--test",
        "valid.txt",
        *soft[:1],
        "--json",
    )
    sizes = json.loads(run(*quantised))
    copy = snailps.load(tmp_path / "m.ftz").evaluate(tested, soft_labels=bool(soft))
    precisions = [sizes[f"precision_{when}"] for when in ("before", "after")]
    assert precisions == pytest.approx([report["precision"], copy.precision], abs=1e-6)

    # A calibration moves no label, so F1 stays, and makes its own lines' error no larger.
    if loss != "hs":
        calibrated = json.loads(run("calibrate", "m.bin", "valid.txt", *soft[:1], "--json"))
        before, after = (calibrated[f"calibration_error_{when}"] for when in ("before", "after"))
        assert after <= before + 1e-9
        again = json.loads(run("test", "m.bin", "valid.txt", *soft[:1], "--json"))
        assert again["f1"] == pytest.approx(expected, abs=1e-6)

    # Held-out lines: the figure is the finished model's on exactly these lines.
    held = train("h", "--set", "held_out=0.3", "--set", f"seed={SEED}")
    split = HeldOut.of(0.3, SEED, prefix.encode() if soft else b"")
    lines = split.held((tmp_path / "train.txt").read_bytes()).decode().splitlines()
    shown = snailps.load(tmp_path / "h.bin").evaluate(lines, soft_labels=bool(soft))
    assert held["tests"][-1]["f1_at_1"] == pytest.approx(shown.f1, abs=1e-6)


@pytest.mark.parametrize(("loss", "form"), CELLS)
def test_partial_fit_goes_on_in_each_cell_with_figures_by_hand(tmp_path, loss, form):
    """Through Python: half of the lines, then the others.  A prefix is what a file has: where it is
    the training's own, texts and labels come apart."""
    rng = np.random.default_rng(SEED)
    prefix = "T_" if form == "own prefix" else "__label__"
    soft = form in ("weights", "soft labels")
    trained, tested = lines_of(form, TRAINED, rng), lines_of(form, 10 * TESTED, rng)

    def bare(lines):
        return [" ".join(w for w in line.split() if not w.startswith(prefix)) for line in lines]

    def given(number):
        half = trained[number * TRAINED // 2 : (number + 1) * TRAINED // 2]
        if form == "own prefix":
            return bare(half), [line.split()[0].removeprefix(prefix) for line in half]
        path = tmp_path / f"{number}.txt"
        path.write_text("\n".join(half) + "\n")
        return (path,)

    def figure(number):
        model.save(tmp_path / f"{number}.bin")
        saved = snailps.load(tmp_path / f"{number}.bin")
        guesses = [str(guess) for guess in model.predict(bare(tested))]
        expected = f1_by_hand(tested, guesses, prefix)
        lines = [line.replace(prefix, "__label__") for line in tested]
        assert saved.evaluate(lines, soft_labels=soft).f1 == pytest.approx(expected, abs=1e-6)
        assert sorted(map(str, model.classes_)) == sorted(LABELS)
        return expected, int(saved.label_counts.sum())

    model = snailps.TextClassifier(
        loss=loss, dim=8, epochs=5, lr=0.5, maxn=0, seed=SEED, soft_labels=soft,
        **({"normalize": "lower"} if form == "normalize" else {}),
    )  # fmt: skip
    model.fit(*given(0))
    first, lines = figure(0)
    model.partial_fit(*given(1))
    second, more = figure(1)
    assert (more > lines) == (loss != "hs")  # a tree stays as it was made, and its counts with it
    assert second > first - 0.03  # of 900 lines: two deviations
    assert second > 0.5
