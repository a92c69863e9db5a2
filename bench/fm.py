"""Speed and quality of the factorization machine's kernel alone: no network, no text, no blocks.

    features and labels as arrays -> rows -> kernels.train_fm on N threads -> figures

Data: a LIBSVM file, planted interactions, or random features of which few are frequent.  What is
measured is the ceiling that a cluster can reach on this machine.  Reports examples/s of wall time
and of CPU time: on a busy machine only the latter holds still.

    python bench/fm.py --random 1000000 --features 14 --rows 1048576 --factors 8 --threads 2
    python bench/fm.py --train a9a --test a9a.t --epochs 10
    python bench/fm.py --planted 200000 --fields
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import reference_fm as reference

from snailps import kernels

METHODS = {"sgd": 1, "adagrad": 2, "ftrl": 4}
Data = tuple[np.ndarray, ...]  # ptr, places, values, fields, labels


def arrays(examples: reference.Examples, fields: bool) -> Data:
    """The kernel's arrays of examples in the reference's form; field: the column."""
    used = examples.values != 0
    ptr = np.concatenate([[0], np.cumsum(used.sum(1))]).astype(np.int64)
    columns = np.broadcast_to(np.arange(used.shape[1]), used.shape)
    return (
        ptr,
        examples.features[used].astype(np.int32),
        examples.values[used].astype(np.float32),
        columns[used].astype(np.int32) if fields else np.zeros(0, np.int32),
        (2 * examples.labels - 1).astype(np.float32),
    )


def drawn(examples: int, features: int, rows: int, seed: int) -> Data:
    """Features by a power law (Zipf with exponent 1, as clicks have it), labels at random."""
    rng = np.random.default_rng(seed)
    places = (rows ** rng.random(examples * features)).astype(np.int32) - 1
    return (
        np.arange(examples + 1, dtype=np.int64) * features,
        places,
        np.ones(len(places), np.float32),
        np.tile(np.arange(features, dtype=np.int32), examples),
        rng.choice([-1.0, 1.0], examples).astype(np.float32),
    )


def first_rows(row_num: int, field_num: int, o: argparse.Namespace) -> np.ndarray:
    """Rows with factors of standard deviation `scale`, zero weights and first state."""
    parts = {"sgd": 1, "adagrad": 2, "ftrl": 3}[o.method]
    dim = 1 + o.factors * field_num
    stride = -(-dim // kernels.PAD) * kernels.PAD
    rows = kernels.padded(row_num, parts * stride)
    rng = np.random.default_rng(o.seed)
    for part in np.array_split(rows, 64):
        part[:, 1:dim] = rng.standard_normal((len(part), dim - 1), np.float32) * o.scale
    if o.method == "ftrl":
        rows[:, stride : 2 * stride] = -rows[:, :stride] * (o.beta / o.lr + o.l2)
    return rows


def settings(o: argparse.Namespace, field_num: int, bias: int) -> dict[str, float]:
    """Constant arguments of `kernels.train_fm`."""
    ftrl = o.method == "ftrl"
    return {
        "factors": o.factors, "field_num": field_num, "loss": 0, "method": METHODS[o.method],
        "bias": bias, "lr_start": o.lr, "lr_stop": o.lr, "eps": o.eps, "l1": o.l1, "l2": o.l2,
        "beta": o.beta, "factor_l2": o.l2 if ftrl else o.factor_l2,
    }  # fmt: skip


def epoch(
    rows: np.ndarray, data: Data, keywords: dict[str, float], threads: int, hot: int
) -> tuple[float, float, float]:
    """One pass by all threads: loss, wall seconds, CPU seconds."""
    weights = np.zeros(0, np.float32)
    edges = np.linspace(0, len(data[-1]), threads + 1).astype(int)
    results: list[tuple[float, float]] = []

    def run(first: int, last: int) -> None:
        begun = time.thread_time()
        loss, _ = kernels.train_fm(
            rows, *data, weights, **keywords, hot=hot if threads > 1 else 0, first=first, last=last
        )
        results.append((loss, time.thread_time() - begun))

    workers = [threading.Thread(target=run, args=(edges[t], edges[t + 1])) for t in range(threads)]
    begun = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    wall = time.perf_counter() - begun
    return sum(r[0] for r in results) / len(data[-1]), wall, sum(r[1] for r in results)


def train(
    data: Data, row_num: int, o: argparse.Namespace, look: Callable[[np.ndarray], float | None]
) -> dict[str, object]:
    """All epochs; `look` evaluates the rows after each."""
    field_num = int(data[3].max()) + 1 if o.fields else 1
    if not o.fields:
        data = (*data[:3], np.zeros(0, np.int32), data[4])
    rows = first_rows(row_num + 1, field_num, o)
    keywords = settings(o, field_num, row_num)
    wall_s = cpu_s = 0.0
    progressive, tests = [], []
    for _ in range(o.epochs):
        loss, wall, cpu = epoch(rows, data, keywords, o.threads, min(o.hot, row_num))
        wall_s, cpu_s = wall_s + wall, cpu_s + cpu
        progressive.append(round(loss, 5))
        tests.append(look(rows))
    seen = len(data[-1]) * o.epochs
    return {
        "build": kernels.BUILD,
        "examples_per_s": seen / wall_s,
        "examples_per_cpu_s": seen / cpu_s,
        "progressive_log_loss": progressive,
        "test_log_loss": [round(t, 5) for t in tests if t is not None],
    }


def tester(
    test: reference.Examples, o: argparse.Namespace, row_num: int
) -> Callable[[np.ndarray], float]:
    """Log loss of rows on a test set."""
    *data, _ = arrays(test, o.fields)
    field_num = test.features.shape[1] if o.fields else 1

    def look(rows: np.ndarray) -> float:
        scores = kernels.fm_scores(
            rows, *data, factors=o.factors, field_num=field_num, bias=row_num
        )
        return reference.log_loss(test.labels, scores.astype(np.float64))

    return look


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, train, print one JSON object."""
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--train", type=Path)
    p.add_argument("--test", type=Path)
    p.add_argument("--planted", type=int, metavar="EXAMPLES")
    p.add_argument("--random", type=int, metavar="EXAMPLES")
    p.add_argument("--features", type=int, default=14, help="of a random example")
    p.add_argument("--rows", type=int, default=1 << 20, help="of random examples")
    p.add_argument("--fields", action="store_true", help="field-aware; field: the column")
    p.add_argument("--method", choices=list(METHODS), default="adagrad")
    for name, kind, default in (
        ("factors", int, 8), ("epochs", int, 5), ("threads", int, 1), ("hot", int, 256),
        ("lr", float, 0.1), ("eps", float, 1.0), ("l1", float, 0.0),
        ("l2", float, 0.0), ("factor-l2", float, 0.0), ("beta", float, 1.0),
        ("scale", float, 0.05), ("seed", int, 1),
    ):  # fmt: skip
        p.add_argument(f"--{name}", type=kind, default=default)
    o = p.parse_args(arguments)
    look: Callable[[np.ndarray], float | None] = lambda rows: None  # noqa: E731
    if o.random:
        data, row_num = drawn(o.random, o.features, o.rows, o.seed), o.rows
    elif o.planted:
        found = reference.planted(o.planted)
        row_num = found.field_num * found.value_num
        data, look = arrays(found.train, o.fields), tester(found.test, o, row_num)
    elif o.train and o.test:
        pair = [reference.Examples(*reference.read_libsvm(path)) for path in (o.train, o.test)]
        row_num = 1 + max(int(examples.features.max()) for examples in pair)
        data, look = arrays(pair[0], o.fields), tester(pair[1], o, row_num)
    else:
        p.error("--random, --planted, or --train and --test")
    print(json.dumps(train(data, row_num, o, look)))


if __name__ == "__main__":
    main()
