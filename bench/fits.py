#!/usr/bin/env python3
"""A pass of logistic regression on a matrix in memory: a fit on a running cluster, and SGD.

    matrix, labels of planted weights -> LogisticRegression.fit -> seconds of its parts, log loss
                                      -> SGDClassifier.fit      -> seconds, log loss

They are interleaved, so that other load meets both alike.  Seconds are of the clock ("wall") and
of the processor: of this process and of all processes of the cluster, with the kernel's work for
them.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import snailps  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
HELD_OUT = 50_000
EXPONENT = 3.0
"""Column k is drawn as often as k ** -(1 + 1 / EXPONENT)."""
FORMS = ("zipf", "uniform", "whole", "array")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--rows", type=int, default=1_000_000)
    add("--values", type=int, default=40, help="drawn for a row; equal ones are summed")
    add("--columns", type=int, default=1 << 18, help="of zipf and uniform")
    add("--form", choices=FORMS, default=FORMS[0], help="of the matrix; see `examples`")
    add("--runs", type=int, default=5, help="turns; medians are shown")
    add("--epochs", type=int, default=1)
    add("--threads", type=int, default=0, help="of the worker; 0: one a core")
    add("--parameters", default="{}", help="of LogisticRegression, JSON")
    add("--no-sgd", action="store_true", help="the fit alone")
    add("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args()


def examples(rows: int, values: int, columns: int, form: str = FORMS[0]) -> tuple[Any, np.ndarray]:
    """A matrix, and labels of a planted linear model.

    A CSR matrix whose columns follow Zipf's law, or are equally frequent (``uniform``); numbers of
    a normal distribution in `values` columns, as a CSR matrix of whole rows or as an ``array``.
    """
    rng = np.random.default_rng(7)
    if form in ("whole", "array"):
        x, columns = rng.normal(size=(rows, values)), values
        x = sparse.csr_matrix(x) if form == "whole" else x
    else:
        keys = np.empty(rows * values, np.int32)
        for first in range(0, len(keys), 1 << 22):
            part = keys[first : first + (1 << 22)]
            drawn = rng.random(len(part))
            numbers = (1 - drawn) ** -EXPONENT if form == "zipf" else 1 + drawn * columns
            part[:] = np.minimum(numbers, columns) - 1
        ptr = np.arange(0, len(keys) + 1, values)
        x = sparse.csr_matrix((np.ones(len(keys)), keys, ptr), (rows, columns))
        x.sum_duplicates()
    scores = x @ rng.normal(0, 0.15, columns)
    return x, (rng.random(rows) < 1 / (1 + np.exp(-(scores - np.median(scores))))).astype(np.int64)


def spent(pids: list[int]) -> float:
    """Processor time of this process and of others so far, seconds."""
    own = sum(os.times()[:2])
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        own += (int(fields[11]) + int(fields[12])) / TICKS
    return own


def log_loss(said: np.ndarray, y: np.ndarray) -> float:
    """Mean of -log of the probability of the true label."""
    right = np.clip(np.where(y == 1, said[:, 1], 1 - said[:, 1]), 1e-15, 1)
    return float(-np.log(right).mean())


def measured(do: Callable[[], object], pids: list[int]) -> dict[str, float]:
    """Wall and processor time of a call."""
    before, begun = spent(pids), time.monotonic()
    do()
    return {"wall": time.monotonic() - begun, "processor": spent(pids) - before}


def main() -> None:
    """Measures and prints."""
    args = arguments()
    x, y = examples(args.rows + HELD_OUT, args.values, args.columns, args.form)
    x, x_test, y, y_test = x[: args.rows], x[args.rows :], y[: args.rows], y[args.rows :]
    entries = x.nnz if sparse.issparse(x) else x.size
    model = snailps.LogisticRegression(
        epochs=args.epochs, verbose=False, **json.loads(args.parameters)
    )
    turns: dict[str, tuple[Any, list[dict[str, float]]]] = {"fit": (model, [])}
    if not args.no_sgd:
        from sklearn.linear_model import SGDClassifier

        turns["sgd"] = SGDClassifier(loss="log_loss", max_iter=args.epochs, tol=None), []
    with snailps.cluster(**({"threads": args.threads} if args.threads else {})) as cluster:
        model.fit(x[:100], y[:100])  # the first job of a cluster imports
        pids = [node["pid"] for node in cluster.status()["nodes"] if node["pid"] != os.getpid()]
        pids += [child.process.pid for child in cluster._launcher.children[:1]]
        for _ in range(args.runs):
            for name, (estimator, found) in turns.items():
                found.append(measured(lambda: estimator.fit(x, y), pids))  # noqa: B023
                if name == "fit":
                    names = ("train_s", "survey_s", "wall_s")
                    found[-1] |= {key: model.figures_[key] for key in names}
    shown = {}
    for name, (estimator, found) in turns.items():
        shown[name] = {key: statistics.median(one[key] for one in found) for key in found[0]}
        shown[name]["log_loss"] = log_loss(estimator.predict_proba(x_test), y_test)
    if args.json:
        print(json.dumps({"entries": entries, **shown}))
        return
    print(f"{args.rows:,} rows, {entries:,} entries, {x.shape[1]:,} columns")
    for name, figures in shown.items():
        print(f"{name}: " + ", ".join(f"{key} {value:.3f}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
