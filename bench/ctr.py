#!/usr/bin/env python3
"""Synthetic data with planted weights: clicks on categorical fields, as text for several systems.

    Plan (sizes, seed) -> Truth (weights, intercept) -> chunks of examples -> train and test files
                       -> truth.npz (what was planted, how often each feature came)
                       -> plan.json (written last: the folder is complete)

It owns the data and what may be said about a model of it (`recovered`).  No model, no process.

An example has one value of each field, so one feature a field, each of value 1.  A field's values
follow a power law; a feature's number says nothing about how frequent it is.  The click is drawn
with the logistic probability of a planted linear model, or of a planted factorization machine
(`factors` > 0), so the best possible log loss is known too.

The same examples go to each format, with the same information: a feature is a decimal number, and
its value, which is always 1, is written only where the format demands it (LIBSVM: ``123:1``, VW:
``123``, whose file is a quarter shorter).  Feature numbers begin at 1 and fill their range: Vowpal
Wabbit with ``-b log2(features)`` takes a number for itself and gives each a weight of its own.
"""

import argparse
import contextlib
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

CHUNK = 1 << 15
"""Examples made at a time: 1.3 M features of 39 fields, about 60 MB of arrays."""
SAMPLE_CHUNKS = 4
"""Chunks that the intercept is fitted to; none of them is written."""
FIELD_MIN = 4
"""Values of the smallest field."""
VERSION = 1
"""Goes up when the same plan gives other data."""


@dataclass(frozen=True)
class Plan:
    """What to make; the same plan gives the same data.

    Attributes
    ----------
    examples, test_examples : int
        Of the two files.
    fields, features : int
        Features of one example, and of all fields together.
    exponent : float
        P(a field's r-th value) ~ r ** -exponent; not 1.
    density, weight_sd : float
        Share of features with a weight at all, and the standard deviation of those.
    factors, factor_sd : int, float
        Planted factors of each feature (0: a linear model), and their standard deviation.
    click_rate : float
        Mean of the labels.
    formats : tuple of str
        Any of ``libsvm``, ``vw``, ``libffm``.
    """

    examples: int = 5_000_000
    test_examples: int = 500_000
    fields: int = 39
    features: int = 1 << 22
    exponent: float = 1.1
    density: float = 0.3
    weight_sd: float = 0.4
    factors: int = 0
    factor_sd: float = 0.0
    click_rate: float = 0.2
    seed: int = 1
    formats: tuple[str, ...] = ("libsvm", "vw")

    def key(self) -> str:
        """Name of this data."""
        return hashlib.sha256(json.dumps([VERSION, asdict(self)]).encode()).hexdigest()[:12]


FM_PLAN = Plan(
    examples=300_000, test_examples=100_000, fields=14, features=1000, factors=4,
    factor_sd=0.35, weight_sd=0.3, formats=("libsvm", "vw", "libffm"),
)  # fmt: skip
"""Interactions that a linear model cannot see, as many features an example as a9a has."""


class Truth(NamedTuple):
    """The planted model.  Arrays are indexed by feature number - 1."""

    weights: np.ndarray  # float32 (features,)
    factors: np.ndarray  # float32 (features, k)
    intercept: float
    begins: np.ndarray  # int64 (fields + 1,): field f has the features begins[f]:begins[f+1]
    shuffled: np.ndarray  # int32 (features,): place of the r-th most frequent value of each field


class Made(NamedTuple):
    """A folder with data.  `train`, `test`: format -> file."""

    train: dict[str, Path]
    test: dict[str, Path]
    plan: Plan
    facts: dict


# --- drawing ------------------------------------------------------------------------------------


def field_begins(plan: Plan) -> np.ndarray:
    """Fields grow geometrically from a few values to the share that fills `features`."""
    low, high = 1.0, float(plan.features)
    steps = np.arange(plan.fields)
    for _ in range(200):
        ratio = (low + high) / 2
        with np.errstate(over="ignore"):
            total = (FIELD_MIN * ratio**steps).sum()
        low, high = (ratio, high) if total < plan.features else (low, ratio)
    sizes = np.maximum(FIELD_MIN, (FIELD_MIN * low**steps)).astype(np.int64)
    sizes[-1] += plan.features - sizes.sum()
    return np.concatenate([[0], np.cumsum(sizes)])


def plant(plan: Plan) -> Truth:
    """Draws the weights, then fits the intercept to the click rate of the plan."""
    rng = np.random.default_rng([plan.seed, 0])
    n = plan.features
    weights = (rng.standard_normal(n, np.float32) * np.float32(plan.weight_sd)) * (
        rng.random(n, np.float32) < plan.density
    )
    factors = rng.standard_normal((n, plan.factors), np.float32) * np.float32(plan.factor_sd)
    begins = field_begins(plan)
    shuffled = np.empty(n, np.int32)
    for begin, end in itertools.pairwise(begins):
        shuffled[begin:end] = rng.permutation(np.arange(begin, end, dtype=np.int32))
    truth = Truth(weights, factors, 0.0, begins, shuffled)
    sample = np.concatenate(
        [scores(plan, truth, draw(plan, truth, -1 - i, CHUNK)[0]) for i in range(SAMPLE_CHUNKS)]
    )
    low, high = -100.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sigmoid(sample + middle).mean() < plan.click_rate else (
            low, middle,
        )  # fmt: skip
    return truth._replace(intercept=low)


def draw(
    plan: Plan, truth: Truth, chunk: int, count: int
) -> tuple[np.ndarray, np.random.Generator]:
    """Features of one chunk, int32 (count, fields), from 0, ascending in a row; and the generator,
    to go on with.  Chunks below 0 are for fitting only."""
    rng = np.random.default_rng([plan.seed, 1 + (chunk if chunk >= 0 else (1 << 40) - chunk)])
    sizes = np.diff(truth.begins).astype(np.float32)
    # Inverse of the distribution function of a power law cut off at the field's size.
    power = np.float32(1.0 - plan.exponent)
    ranks = rng.random((count, plan.fields), np.float32)
    ranks *= (sizes + 1) ** power - 1
    ranks += 1
    np.log(ranks, out=ranks)
    ranks /= power
    np.exp(ranks, out=ranks)
    places = ranks.astype(np.int32)
    places -= 1
    np.clip(places, 0, (sizes - 1).astype(np.int32), out=places)
    places += truth.begins[:-1].astype(np.int32)
    return truth.shuffled[places], rng


def scores(plan: Plan, truth: Truth, ids: np.ndarray) -> np.ndarray:
    """Scores of the planted model for each row, before the logistic function."""
    total = truth.weights[ids].sum(axis=1, dtype=np.float64) + truth.intercept
    if plan.factors:
        rows = truth.factors[ids]
        of_sum = (rows.sum(axis=1) ** 2).sum(axis=1)
        total += 0.5 * (of_sum - (rows**2).sum(axis=(1, 2)))
    return total


def sigmoid(x: np.ndarray) -> np.ndarray:
    """The logistic function."""
    return 1.0 / (1.0 + np.exp(-x))


# --- writing ------------------------------------------------------------------------------------


HEADS = {"libsvm": (b"0", b"1"), "libffm": (b"0", b"1"), "vw": (b"-1 |", b"1 |")}
"""What a line without and with a click begins with."""


class Writer:
    """One format: text of every feature made once, a chunk's text by one gather.

    Notes
    -----
    Each token has a fixed width, filled up with NUL bytes, which are deleted at the end: that is
    a copy at memory speed.
    """

    def __init__(self, format_: str, truth: Truth) -> None:
        self.heads = np.array(HEADS[format_])
        n = len(truth.weights)
        digits = len(str(n))
        pieces = [np.full((n, 1), ord(" "), np.uint8)]
        if format_ == "libffm":
            fields = np.repeat(np.arange(len(truth.begins) - 1), np.diff(truth.begins))
            pieces += [as_digits(fields, len(str(len(truth.begins)))), constant(n, b":")]
        pieces.append(as_digits(np.arange(1, n + 1), digits))
        if format_ != "vw":
            pieces.append(constant(n, b":1"))
        table = np.concatenate(pieces, axis=1)
        self.tokens = np.ascontiguousarray(table).view(f"V{table.shape[1]}").ravel()

    def text(self, ids: np.ndarray, labels: np.ndarray) -> bytes:
        """The lines of a chunk."""
        count, fields = ids.shape
        width = self.tokens.dtype.itemsize
        head = self.heads.dtype.itemsize
        lines = np.zeros((count, head + fields * width + 1), np.uint8)
        lines[:, :head] = self.heads[labels].view(np.uint8).reshape(count, head)
        lines[:, head:-1] = self.tokens[ids].view(np.uint8).reshape(count, fields * width)
        lines[:, -1] = ord("\n")
        return lines.tobytes().translate(None, b"\0")


def as_digits(numbers: np.ndarray, width: int) -> np.ndarray:
    """Decimal digits, uint8 (n, width), NUL bytes in front instead of leading zeros."""
    digits = np.empty((len(numbers), width), np.uint8)
    rest = numbers.astype(np.int64)
    for place in range(width - 1, -1, -1):
        digits[:, place] = np.where((rest > 0) | (place == width - 1), rest % 10 + ord("0"), 0)
        rest //= 10
    return digits


def constant(n: int, text: bytes) -> np.ndarray:
    """The same text in every row."""
    return np.tile(np.frombuffer(text, np.uint8), (n, 1))


def chunks(examples: int, first: int) -> Iterator[tuple[int, int]]:
    """(number, examples) of each chunk of a file; `first` is the number of its first chunk."""
    for number, begin in enumerate(range(0, examples, CHUNK), start=first):
        yield number, min(CHUNK, examples - begin)


def write(plan: Plan, truth: Truth, files: dict[str, Path], examples: int, first: int) -> dict:
    """Writes one set of examples in all formats; returns facts about them."""
    writers = {name: Writer(name, truth) for name in files}
    counts = np.zeros(plan.features, np.int64)
    clicks, loss = 0, 0.0
    begin_s = time.perf_counter()
    with contextlib.ExitStack() as stack:
        outs = {name: stack.enter_context(open(path, "wb")) for name, path in files.items()}
        for number, count in chunks(examples, first):
            ids, rng = draw(plan, truth, number, count)
            logits = scores(plan, truth, ids)
            labels = (rng.random(count) < sigmoid(logits)).astype(np.int8)
            clicks += int(labels.sum())
            loss += float(np.logaddexp(0.0, np.where(labels == 1, -logits, logits)).sum())
            counts += np.bincount(ids.ravel(), minlength=plan.features)
            for name, out in outs.items():
                out.write(writers[name].text(ids, labels))
    return {
        "counts": counts,
        "examples": examples,
        "click_rate": clicks / examples,
        "best_log_loss": loss / examples,
        "examples_per_s": examples / (time.perf_counter() - begin_s),
    }


def make(plan: Plan, folder: Path) -> Made:
    """The data of a plan, in a folder of its own below `folder`; made only once.

    Parameters
    ----------
    plan : Plan
        What to make.
    folder : Path
        Data of other plans may be there too.

    Returns
    -------
    Made
    """
    home = folder / f"{'fm' if plan.factors else 'ctr'}-{plan.key()}"
    names = {"libsvm": "svm", "vw": "vw", "libffm": "ffm"}
    paths = {
        part: {name: home / f"{part}.{names[name]}" for name in plan.formats}
        for part in ("train", "test")
    }
    done = home / "plan.json"
    if not done.is_file():
        home.mkdir(parents=True, exist_ok=True)
        truth = plant(plan)
        train = write(plan, truth, paths["train"], plan.examples, 0)
        after = -(-plan.examples // CHUNK)
        test = write(plan, truth, paths["test"], plan.test_examples, after)
        np.savez(
            home / "truth.npz", weights=truth.weights, factors=truth.factors,
            intercept=truth.intercept, begins=truth.begins, counts=train.pop("counts"),
        )  # fmt: skip
        del test["counts"]
        facts = {"plan": asdict(plan), "train": train, "test": test}
        partial = home / "plan.json.part"
        partial.write_text(json.dumps(facts, indent=1) + "\n")
        partial.replace(done)
    return Made(paths["train"], paths["test"], plan, json.loads(done.read_text()))


# --- comparing ----------------------------------------------------------------------------------


def recovered(truth_file: Path, found: np.ndarray, seen_min: int = 1000) -> dict:
    """Agreement of a model's weights with the planted ones.

    Parameters
    ----------
    truth_file : Path
        ``truth.npz`` of the folder.
    found : ndarray, float, shape (features,)
        Weight of feature number i + 1; 0 where the model has none.
    seen_min : int
        Features that occur at least this often in the training file are compared: ten occurrences
        do not determine a weight, for any system.

    Returns
    -------
    dict
        ``correlation`` (Pearson) and ``slope`` (of found on planted), over ``features`` features.

    Notes
    -----
    A constant may move from all weights of a field to the intercept without changing any
    prediction, so the mean of each field, weighted by counts, is taken from both first.
    """
    with np.load(truth_file) as truth:
        planted, counts, begins = truth["weights"], truth["counts"], truth["begins"]
    known = counts >= seen_min
    field = np.repeat(np.arange(len(begins) - 1), np.diff(begins))[known]
    times = counts[known].astype(np.float64)
    total = np.bincount(field, times)
    both = []
    for weights in (planted, found):
        weights = np.asarray(weights, np.float64)[known]
        sums = np.bincount(field, times * weights)
        both.append(weights - (sums / np.maximum(total, 1.0))[field])
    a, b = both
    return {
        "correlation": float(np.corrcoef(a, b)[0, 1]),
        "slope": float((a * b).sum() / (a * a).sum()),
        "features": int(known.sum()),
    }


def main() -> None:
    """Makes a folder of data from the command line; prints facts about it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the data goes, in a folder of its own")
    parser.add_argument("--kind", choices=("ctr", "fm"), default="ctr")
    parser.add_argument("--examples", type=int, help="of the training file")
    parser.add_argument("--test-examples", type=int)
    parser.add_argument("--features", type=int)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    given = asdict(FM_PLAN if args.kind == "fm" else Plan())
    for name in ("examples", "test_examples", "features", "seed"):
        if getattr(args, name) is not None:
            given[name] = getattr(args, name)
    made = make(Plan(**given), args.folder)
    print(json.dumps({**made.facts, "folder": str(next(iter(made.train.values())).parent)}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
