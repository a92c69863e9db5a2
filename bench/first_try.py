#!/usr/bin/env python3
"""What a first fit gives: default settings, data as loaded, scikit-learn's defaults beside.

    data set -> five splits, in the order of the file -> fit, score of ours and of the counterpart
             -> mean score of each, their difference, seconds of a fit

Nothing is scaled, shuffled or tuned.  Scores are accuracies of classifiers and R^2 of regressions
(of ratings, too).  Data that are not on this machine are left out, and said.
"""

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from words import test_data

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
SPLITS = 5

Data = tuple[Any, np.ndarray]


class Case(NamedTuple):
    """A data set, and the models that are tried on it, by the names of `MODELS`."""

    load: Callable[[], Data]
    models: tuple[str, ...]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--cases", default="", help="names, separated by commas; default: all")
    add("--models", default="", help="names, separated by commas; default: all")
    add("--splits", type=int, default=SPLITS, help="how many of the five splits")
    add("--times", action="store_true", help="seconds of the first and of later small fits, alone")
    add("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args()


# --- data --------------------------------------------------------------------------------------


def bundled(name: str) -> Callable[[], Data]:
    """A data set that scikit-learn has with it."""

    def load() -> Data:
        from sklearn import datasets

        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        return x, y

    return load


def file_of(name: str) -> Path:
    """A file of the test data."""
    if (file := test_data(name)) is None:
        raise FileNotFoundError(f"no {name}: set SNAILPS_DATA to the folder of the test data")
    return file


def a9a() -> Data:
    """UCI Adult as LIBSVM, sparse."""
    from sklearn.datasets import load_svmlight_file

    x, y = load_svmlight_file(str(file_of("a9a/a9a")))
    return x, y.astype(int)


def mnist() -> Data:
    """The first 10,000 pictures, bytes."""
    files = ("train-images-idx3-ubyte.gz", 16, 784), ("train-labels-idx1-ubyte.gz", 8, 1)
    x, y = (
        np.frombuffer(
            gzip.decompress(file_of(f"mnist/{name}").read_bytes()), np.uint8, -1, header
        ).reshape(-1, width)[:10_000]
        for name, header, width in files
    )
    return x, y[:, 0].astype(int)


def descriptions() -> Data:
    """Debian's packages: description -> section, of sections with 200 packages or more."""
    told = subprocess.run(
        ["apt-cache", "dumpavail"], capture_output=True, text=True, check=True, errors="replace"
    ).stdout
    found: dict[str, list[str]] = {}
    for entry in told.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in entry.split("\n") if ": " in line[:40])
        if "Section" in fields and "Description" in fields:
            text = entry[entry.index("\nDescription: ") + 14 :].split("\nDescription-md5")[0]
            found.setdefault(fields["Section"], []).append(" ".join(text.split()))
    kept = {section: texts[:400] for section, texts in sorted(found.items()) if len(texts) >= 200}
    if not kept:
        raise FileNotFoundError("no descriptions: apt-get update")
    texts = [text for section in kept.values() for text in section]
    return texts, np.repeat(list(kept), [len(section) for section in kept.values()])


def planted(rng: np.random.Generator, rows: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Ten columns and the chance of a yes, of a linear model."""
    x = rng.normal(size=(rows, 10))
    return x, 1 / (1 + np.exp(-(x @ np.linspace(-2, 2, 10))))


def logistic(change: Callable[[np.ndarray, np.ndarray], Data] | None = None) -> Callable[[], Data]:
    """Labels of a planted logistic model, as `change` makes them."""

    def load() -> Data:
        rng = np.random.default_rng(5)
        x, chance = planted(rng)
        y = (rng.random(len(x)) < chance).astype(int)
        return (x, y) if change is None else change(x, y)

    return load


def with_timestamp(x: np.ndarray, y: np.ndarray) -> Data:
    """A column of seconds since 1970 beside the others."""
    return np.column_stack([x, 1.7e9 + np.arange(len(x)) * 60.0]), y


def with_ids(x: np.ndarray, y: np.ndarray) -> Data:
    """A column of ids of 19 digits beside the others."""
    ids = 1.7e18 + np.random.default_rng(2).integers(0, 1 << 40, len(x)) * 1e5
    return np.column_stack([x, ids]), y


def far_from_0(x: np.ndarray, y: np.ndarray) -> Data:
    """Columns as years and kelvins are."""
    return x * np.resize([10.0, 8], x.shape[1]) + np.resize([2000.0, 290], x.shape[1]), y


def sorted_by_label(x: np.ndarray, y: np.ndarray) -> Data:
    """All of one class first."""
    order = np.argsort(y, kind="stable")
    return x[order], y[order]


def rare(x: np.ndarray, y: np.ndarray) -> Data:
    """One positive in a hundred."""
    yes, no = np.flatnonzero(y), np.flatnonzero(y == 0)
    kept = np.sort(np.concatenate([no, yes[: len(no) // 99]]))
    return x[kept], y[kept]


def machine() -> Data:
    """Targets of a planted factorization machine."""
    rng = np.random.default_rng(6)
    x = (rng.random((4000, 30)) < 0.2).astype(float)
    weights, factors = rng.normal(size=30), rng.normal(0, 0.7, (30, 4))
    pairs = ((x @ factors) ** 2 - (x**2) @ factors**2).sum(1) / 2
    return x, x @ weights + pairs + rng.normal(0, 0.2, len(x))


def ratings(low: float, high: float) -> Callable[[], Data]:
    """Ratings from `low` to `high` by users of items, of planted factors."""

    def load() -> Data:
        rng = np.random.default_rng(8)
        users, items = rng.normal(size=(300, 3)), rng.normal(size=(200, 3))
        who, what = rng.integers(0, 300, 20_000), rng.integers(0, 200, 20_000)
        told = (users[who] * items[what]).sum(1) + rng.normal(0, 0.3, len(who))
        told = np.clip((told + 4) / 8, 0, 1) * (high - low) + low
        return [(f"u{u}", f"i{i}") for u, i in zip(who, what, strict=True)], told

    return load


LINEAR = ("LogisticRegression", "FMClassifier", "SparseNetClassifier", "MLPClassifier")
TWO = LINEAR
MANY = ("LogisticRegression", "SparseNetClassifier", "MLPClassifier")
REAL = ("LinearRegression", "FMRegressor")
CASES = {
    "iris": Case(bundled("iris"), MANY),
    "wine": Case(bundled("wine"), MANY),
    "breast_cancer": Case(bundled("breast_cancer"), TWO),
    "digits": Case(bundled("digits"), MANY),
    "diabetes": Case(bundled("diabetes"), REAL),
    "a9a": Case(a9a, ("LogisticRegression", "FMClassifier", "SparseNetClassifier")),
    "mnist": Case(mnist, MANY),
    "debian": Case(descriptions, ("TextClassifier",)),
    "planted": Case(logistic(), TWO),
    "timestamp": Case(logistic(with_timestamp), TWO),
    "ids": Case(logistic(with_ids), TWO),
    "far from 0": Case(logistic(far_from_0), TWO),
    "sorted": Case(logistic(sorted_by_label), TWO),
    "rare": Case(logistic(rare), TWO),
    "labels 1 and 2": Case(logistic(lambda x, y: (x, y + 1)), TWO),
    "strings": Case(logistic(lambda x, y: (x, np.array(["no", "yes"])[y])), TWO),
    "planted fm": Case(machine, REAL),
    "ratings 1 to 5": Case(ratings(1, 5), ("MatrixFactorization",)),
    "ratings 0 to 1": Case(ratings(0, 1), ("MatrixFactorization",)),
    "ratings 20 to 100": Case(ratings(20, 100), ("MatrixFactorization",)),
}


# --- models ------------------------------------------------------------------------------------


def counterpart(name: str) -> Any:
    """What scikit-learn has for it, with its defaults."""
    from sklearn import feature_extraction, linear_model, neural_network, pipeline

    if name in ("LogisticRegression", "FMClassifier"):
        return linear_model.LogisticRegression()
    if name == "LinearRegression":
        return linear_model.LinearRegression()
    if name == "FMRegressor":
        from sklearn.preprocessing import PolynomialFeatures

        pairs = PolynomialFeatures(interaction_only=True)
        return pipeline.make_pipeline(pairs, linear_model.Ridge())
    if name in ("SparseNetClassifier", "MLPClassifier"):
        return neural_network.MLPClassifier(random_state=0)
    if name == "TextClassifier":
        words = feature_extraction.text.TfidfVectorizer()
        return pipeline.make_pipeline(words, linear_model.LogisticRegression())
    return Effects()


class Effects:
    """Ridge regression on who and what: scikit-learn has no matrix factorisation of ratings."""

    def fit(self, x: list[tuple[str, str]], y: np.ndarray) -> "Effects":
        """Learns an effect of each name."""
        from sklearn import linear_model, pipeline, preprocessing

        coded = preprocessing.OneHotEncoder(handle_unknown="ignore")
        self.model = pipeline.make_pipeline(coded, linear_model.Ridge()).fit(np.array(x), y)
        return self

    def predict(self, x: list[tuple[str, str]]) -> np.ndarray:
        """Values of pairs."""
        return np.asarray(self.model.predict(np.array(x)))


def ours(name: str) -> Any:
    """The estimator of that name, with its defaults."""
    import snailps

    return getattr(snailps, name)(verbose=False)


def taken(x: Any, rows: np.ndarray) -> Any:
    """Rows of whatever holds the examples."""
    return [x[row] for row in rows] if isinstance(x, list) else x[rows]


def splits(y: np.ndarray, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows to train and to test on, each ascending."""
    from sklearn.model_selection import KFold, StratifiedKFold

    kind = KFold if y.dtype.kind == "f" else StratifiedKFold
    for number, rows in enumerate(kind(SPLITS, shuffle=True, random_state=0).split(y, y)):
        if number < count:
            yield rows


def score(said: np.ndarray, y: np.ndarray) -> float:
    """Accuracy, or R^2 of numbers."""
    if y.dtype.kind == "f":
        return float(1 - ((said - y) ** 2).sum() / ((y - y.mean()) ** 2).sum())
    return float((said == y).mean())


def tried(model: Any, x: Any, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> dict[str, Any]:
    """Score and seconds of a fit; what it said instead, where it fails."""
    begun = time.monotonic()
    try:
        model.fit(taken(x, train), y[train])
        wall_s = time.monotonic() - begun
        return {"score": score(np.asarray(model.predict(taken(x, test))), y[test]), "s": wall_s}
    except Exception as error:  # of any kind: it is what a user sees
        return {"score": float("nan"), "s": time.monotonic() - begun, "error": str(error)[:200]}


def compare(case: Case, name: str, count: int, data: Data) -> dict[str, Any]:
    """Both on all splits."""
    found: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": []}
    x, y = data
    for train, test in splits(y, count):
        found["ours"].append(tried(ours(name), x, y, train, test))
        found["theirs"].append(tried(counterpart(name), x, y, train, test))
    means = {key: statistics.fmean(one["score"] for one in rows) for key, rows in found.items()}
    seconds = {
        f"{key}_s": statistics.median(one["s"] for one in rows) for key, rows in found.items()
    }
    errors = [one["error"] for one in found["ours"] if "error" in one][:1]
    return means | seconds | {"difference": means["ours"] - means["theirs"], "errors": errors}


def times() -> dict[str, float]:
    """Seconds of the first fit of small data in a process, and of later ones."""
    x, y = logistic()()
    found = []
    for _ in range(6):
        begun = time.monotonic()
        ours("LogisticRegression").fit(x[:150, :4], y[:150])
        found.append(time.monotonic() - begun)
    return {"first": found[0], "later": statistics.median(found[1:])}


def main() -> None:
    """Measures and prints."""
    args = arguments()
    warnings.simplefilter("ignore")
    if args.times:
        print(json.dumps(times()))
        return
    chosen = [name for name in args.cases.split(",") if name] or list(CASES)
    models = [name for name in args.models.split(",") if name]
    found: dict[str, dict[str, Any]] = {}
    for name in chosen:
        try:
            data = CASES[name].load()
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{name}: left out: {error}", file=sys.stderr)
            continue
        for model in CASES[name].models:
            if models and model not in models:
                continue
            row = found[f"{name}: {model}"] = compare(CASES[name], model, args.splits, data)
            if not args.json:
                print(
                    f"{name:18} {model:20} {row['ours']:7.3f} {row['theirs']:7.3f} "
                    f"{row['difference']:+7.3f}  {row['ours_s']:6.2f} s {row['theirs_s']:6.2f} s "
                    f"{' '.join(row['errors'])}",
                    flush=True,
                )
    gaps = [row["difference"] for row in found.values()]
    if args.json:
        print(json.dumps(found))
    elif gaps:
        print(f"mean difference {np.nanmean(gaps):+.3f}, worst {np.nanmin(gaps):+.3f}, failed "
              f"{sum(np.isnan(gaps))}")  # fmt: skip


if __name__ == "__main__":
    main()
