"""The model of `stop_after` is the tested one: its file has the figure of its epoch.

Of each model that is tested after its epochs, by several workers, in each consistency: what is
pushed while an epoch is tested or kept would change the file's figure.  Figures of a test have six
digits.
"""

import json

import numpy as np
import pytest
from processes import run_snailps

WORKERS, LINES, COLUMNS, DIGITS = 4, 1200, 60, 2e-6


def write_examples(path, seed, classes=False):
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(1).normal(0, 0.8, COLUMNS)
    with path.open("w") as file:
        for _ in range(LINES):
            used = np.sort(rng.choice(COLUMNS, 6, replace=False))
            value = truth[used].sum() + rng.normal(0, 0.5)
            label = int(value > 0) if classes else f"{value:.3f}"
            file.write(f"{label} {' '.join(f'{key + 1}:1' for key in used)}\n")


def write_texts(path, seed):
    rng = np.random.default_rng(seed)
    with path.open("w") as file:
        for number in rng.integers(0, 40, LINES).tolist():
            other = int(rng.integers(0, 40))
            file.write(f"__label__{(number + (rng.random() < 0.2)) % 2} w{number} v{other}\n")


def write_pairs(path):
    rng = np.random.default_rng(1)
    with path.open("w") as file:
        for user, item in zip(rng.integers(0, 60, LINES), rng.zipf(1.3, LINES) % 50, strict=True):
            file.write(f"u{user},i{(item + user) % 50},{1 + (user + item) % 5}\n")


CONSISTENCIES = ("async", "ssp", "bsp")
CELLS = {
    **{f"squared-{c}": ("logistic", c, ("loss=squared", "optimizer=sgd")) for c in CONSISTENCIES},
    **{f"classifier-{c}": ("classifier", c, ("dim=8",)) for c in CONSISTENCIES},
    **{f"ratings-{c}": ("mf", c, ("loss=squared",)) for c in CONSISTENCIES},
    **{f"rankings-{c}": ("mf", c, ("loss=softmax",)) for c in CONSISTENCIES},
    "als-async": ("mf", "async", ("loss=als",)),
    **{f"fm-{c}": ("fm", c, ("factors=2",)) for c in ("async", "bsp")},
    **{f"sparse_net-{c}": ("sparse_net", c, ("hidden=4",)) for c in ("async", "bsp")},
}


@pytest.mark.long(but=["squared-async", "rankings-async"])
@pytest.mark.parametrize("cell", CELLS)
def test_file_has_the_figure_that_its_epoch_was_tested_with(tmp_path, cell):
    model, consistency, settings = CELLS[cell]
    train, valid = tmp_path / "train.txt", tmp_path / "valid.txt"
    words = ["train", model, "--train", train, "--output", tmp_path / "o", "--json"]
    words += ["--workers", WORKERS, "--epochs", 8, "--stop-after", 2]
    words += [word for one in (*settings, "block_bytes=1500") for word in ("--set", one)]
    words += ["--set", f"consistency={consistency}"]
    if consistency == "ssp":
        words += ["--set", "staleness=1"]
    if model == "mf":
        write_pairs(train)
        words += ["--held-out", 0.2, "--held-out-by", "user", "--set", "dim=4"]
    else:
        for path, seed in ((train, 1), (valid, 2)):
            if model == "classifier":
                write_texts(path, seed)
            else:
                write_examples(path, seed, classes=model != "logistic")
        words += ["--validation", valid]
    run = json.loads(run_snailps(*words).stdout.splitlines()[-1])
    assert run["workers"] > 1
    test = next(test for test in run["tests"] if test["epoch"] == run["best_epoch"])
    assert run["saved_epoch"] == run["best_epoch"]
    if model == "mf":
        figures, digits = run["test"], 1e-5  # of all users: there are fewer than are drawn
    else:
        asked = ["test"] if model == "classifier" else ["predict", "--metrics"]
        file = tmp_path / ("o.bin" if model == "classifier" else "o.npz")
        said = run_snailps(asked[0], file, valid, *asked[1:], "--json").stdout
        figures, digits = json.loads(said.splitlines()[-1]), DIGITS
        figures = {"f1_at_1": figures.get("f1"), **figures}
    names = test.keys() & figures.keys()
    assert names - {"epoch"}
    for name in names:
        assert figures[name] == pytest.approx(test[name], abs=digits), name
