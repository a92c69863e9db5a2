#!/usr/bin/env python3
"""Parsing speed of sparse examples: MB/s and examples/s per core, by format.

    seeded text, or --file -> ExampleReader.read -> Examples -> number_keys, Admission.count

Seconds are this thread's processor time, best of --runs, independent of other load.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from snailps.data._admission import Admission  # noqa: E402
from snailps.data._key_numbering import number_keys  # noqa: E402
from snailps.data.examples import ExampleReader  # noqa: E402

FIELDS = 39
CELL_COLUMNS = "label:label, n1..n13:numeric log, c1..c26:categorical"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--examples", type=int, default=60_000, help="of each text, about")
    add("--runs", type=int, default=7, help="of each text; the best one counts")
    add("--file", type=Path, help="a file of your own instead of the seeded texts")
    add("--columns", default="", help="of --file, if it is CSV or TSV")
    add("--json", action="store_true", help="one JSON object a line instead of a table")
    return parser.parse_args()


def texts(n: int) -> list[tuple[str, str, str, bytes]]:
    """(name, format, columns, text) of everything that is measured."""
    rng = np.random.default_rng(5)
    keys = (rng.pareto(1.1, (n, FIELDS)) * 50).astype(np.int64) % (1 << 22)
    values = rng.random((n, FIELDS))
    labels = rng.integers(0, 2, n)

    def lines(entry: Callable[[int, int], str], separator: str = " ") -> bytes:
        rows = (
            separator.join([str(labels[i]), *(entry(i, j) for j in range(FIELDS))])
            for i in range(n)
        )
        return ("\n".join(rows) + "\n").encode()

    def cell(i: int, j: int) -> str:
        return str(keys[i, j]) if j < 13 else f"{keys[i, j] * 2654435761 % (1 << 32):08x}"

    return [
        ("libsvm, values 1", "libsvm", "", lines(lambda i, j: f"{keys[i, j]}:1")),
        ("libsvm, 6 digits", "libsvm", "", lines(lambda i, j: f"{keys[i, j]}:{values[i, j]:.6g}")),
        ("libsvm, 17 digits", "libsvm", "",
         lines(lambda i, j: f"{keys[i, j]}:{values[i, j]:.17g}")),
        ("libffm, values 1", "libffm", "", lines(lambda i, j: f"{j}:{keys[i, j]}:1")),
        ("libffm, 6 digits", "libffm", "",
         lines(lambda i, j: f"{j}:{keys[i, j]}:{values[i, j]:.6g}")),
        ("csv, 13 numbers, 26 categories", "csv", CELL_COLUMNS, lines(cell, ",")),
        ("tsv, the same", "tsv", CELL_COLUMNS, lines(cell, "\t")),
    ]  # fmt: skip


def best_s(runs: int, work: Callable[[], object]) -> float:
    """Least processor time of several calls, in seconds."""
    took = []
    for _ in range(runs):
        begin = time.thread_time_ns()
        work()
        took.append(time.thread_time_ns() - begin)
    return min(took) / 1e9


def measure(name: str, format: str, columns: str, text: bytes, runs: int) -> dict[str, object]:
    """One line of the table."""
    reader = ExampleReader(format, columns=columns)
    found = reader.read(text)
    read_s = best_s(runs, lambda: reader.read(text))
    number_s = best_s(runs, lambda: number_keys(found.keys))
    admission = Admission(3, max(1, len(found.keys) // 4))
    count_s = best_s(runs, lambda: admission.count(found.keys))
    return {
        "text": name,
        "mb": round(len(text) / 1e6, 1),
        "mb_s": round(len(text) / read_s / 1e6),
        "examples_s": round(len(found.labels) / read_s),
        "entries_s": round(len(found.keys) / read_s),
        "numbered_s": round(len(found.keys) / number_s),
        "counted_s": round(len(found.keys) / count_s),
    }


def main() -> None:
    """Measures and prints."""
    args = arguments()
    if args.file:
        data = args.file.read_bytes()
        jobs = [(args.file.name, "auto", args.columns, data)]
    else:
        jobs = texts(args.examples)
    if not args.json:
        print(f"{'text':32}{'MB':>7}{'MB/s':>7}{'M examples/s':>14}{'M entries/s':>13}"
              f"{'M numbered/s':>14}{'M counted/s':>13}")  # fmt: skip
    for job in jobs:
        line = measure(*job, args.runs)
        if args.json:
            print(json.dumps(line))
            continue
        print(f"{line['text']:32}{line['mb']:7}{line['mb_s']:7}{line['examples_s'] / 1e6:14.2f}"
              f"{line['entries_s'] / 1e6:13.1f}{line['numbered_s'] / 1e6:14.1f}"
              f"{line['counted_s'] / 1e6:13.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
