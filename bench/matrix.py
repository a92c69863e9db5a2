#!/usr/bin/env python3
"""Matrix files: seconds to write a CSR matrix, to read it, and to train on it, without a cluster.

    seeded CSR -> write_matrix -> file -> read_block -> ExampleReader -> KeptNumbers -> train_linear

Seconds are this process's processor time, of the kernel's calls too, best of --runs: independent of
other load, or nearly.  --sgd compares with scikit-learn's SGDClassifier, one pass.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import sparse

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from snailps import kernels, write_matrix  # noqa: E402
from snailps.data._key_numbering import KeptNumbers  # noqa: E402
from snailps.data.blocks import Source, cut, read_block  # noqa: E402
from snailps.data.examples import ExampleReader  # noqa: E402
from snailps.data.scratch import Scratch  # noqa: E402

BLOCK_BYTES = 16 << 20
FTRL = 4


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--rows", type=int, default=1_000_000)
    add("--values", type=int, default=40, help="of a row")
    add("--columns", type=int, default=1 << 20)
    add("--runs", type=int, default=3, help="the best one counts")
    add("--sgd", action="store_true", help="SGDClassifier's pass, too (scikit-learn)")
    add("--json", action="store_true", help="one JSON object a line instead of a table")
    return parser.parse_args()


def best(runs: int, measured: Callable[[], None]) -> float:
    """Least processor time of some runs."""
    found = []
    for _ in range(runs):
        begin = time.process_time()
        measured()
        found.append(time.process_time() - begin)
    return min(found)


def one_pass(path: Path, columns: int) -> Counter[str]:
    """Seconds of each part of a pass of logistic regression, one thread."""
    seconds: Counter[str] = Counter()
    numbers, reader, scratch = KeptNumbers(columns + 1), ExampleReader(), Scratch("", 0)
    rows, no_weights = np.zeros((columns, 3), np.float32), np.zeros(0, np.float32)
    numbers.begin_period()
    for block in cut([Source(str(path), path.stat().st_size)], BLOCK_BYTES):
        times = [time.thread_time()]
        data = read_block(block.path, block.start, block.stop, unit="line", scratch=scratch)
        times.append(time.thread_time())
        found = reader.read(data, block.path, block.start)
        times.append(time.thread_time())
        places, missing, _ = numbers.find(found.keys)
        numbers.number(found.keys, missing, places)
        times.append(time.thread_time())
        kernels.train_linear(
            rows, found.ptr, places, found.values, found.labels, no_weights, outputs=1, loss=0,
            method=FTRL, bias=-1, hot=0, lr_start=0.1, lr_stop=0.1, eps=1e-8, l1=0, l2=0, beta=1,
            first=0, last=len(found.labels),
        )  # fmt: skip
        times.append(time.thread_time())
        for name, spent in zip(("copy", "check", "number", "train"), np.diff(times), strict=True):
            seconds[name] += float(spent)
    return seconds


def main() -> None:
    """Measures and prints."""
    args = arguments()
    rng = np.random.default_rng(5)
    count = args.rows * args.values
    keys = rng.integers(0, args.columns, count).astype(np.int32)
    ptr = np.arange(0, count + 1, args.values, dtype=np.int32)
    y = rng.integers(0, 2, args.rows)
    for name, values in (("float64", rng.random(count)), ("ones", np.ones(count))):
        x = sparse.csr_matrix((values, keys, ptr), (args.rows, args.columns))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "x.mx"
            figures = {"write": best(args.runs, lambda: write_matrix(path, x, y))}  # noqa: B023
            figures["bytes"] = path.stat().st_size
            passes = [one_pass(path, args.columns) for _ in range(args.runs)]
            figures |= min(passes, key=lambda seconds: sum(seconds.values()))
        if args.sgd:
            from sklearn.linear_model import SGDClassifier

            model = SGDClassifier(loss="log_loss", max_iter=1, tol=None)
            figures["sgd"] = best(args.runs, lambda: model.fit(x, y))  # noqa: B023
        if args.json:
            print(json.dumps({"values": name, **figures}))
        else:
            shown = [f"{key} {value:.3f}" for key, value in figures.items() if key != "bytes"]
            print(f"{name}: {figures['bytes']:,} bytes; seconds: {', '.join(shown)}")


if __name__ == "__main__":
    main()
