#!/usr/bin/env python3
"""One classifier in several processes: their memory, and how soon a large one answers.

    random rows -> model.bin -> 1 and --processes processes label texts -> proportional set sizes
                             -> a process opens it and labels a text    -> seconds

    python bench/mapped.py --mb 250 --processes 4
    python bench/mapped.py --mb 4000 --words 100_000 --processes 0

Memory is the growth of PSS (a page that n processes share counts 1/n for each) since the imports,
while all have the model open and have looked up nearly all rows.  `cold`: the file was dropped from
the system's cache before.  The model is made in --scratch, and removed.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from words import ROOT, fail, machine, pythonpath, say

DIM = 100
LABELS = 20
CHUNK = 1 << 16
TEXT_WORDS = 1000


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--mb", type=int, default=250, help="of the model")
    add("--words", type=int, default=100_000, help="of the model; the rest are rows of word pairs")
    add("--processes", type=int, default=4, help="that share it; 0: only open it")
    add("--scratch", type=Path, help="folder for the model, default the system's")
    return parser.parse_args()


def write_model(path: Path, size: int, words: int) -> int:
    """A classifier of `size` bytes with random rows; their number."""
    import numpy as np

    from snailps.vectors.fasttext_bin import BinHeader, write_bin

    rows = max(size // (4 * DIM), words + 1000)
    drawn = np.random.default_rng(1).normal(size=(CHUNK, DIM)).astype(np.float32)
    header = BinHeader(
        dim=DIM, bucket=rows - words, word_ngrams=2, model="supervised", loss="softmax", min_count=1
    )
    names = [b"</s>", *(b"w%d" % number for number in range(words - 1))]
    chunks = (drawn[: min(CHUNK, rows - first)] for first in range(0, rows, CHUNK))
    labels = [b"__label__%d" % number for number in range(LABELS)]
    write_bin(path, header, names, [1] * words, chunks, [drawn[:LABELS]], labels, [1] * LABELS)
    return rows


def pss_kb() -> int:
    """Of this process."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))


def use(job: dict) -> None:
    """Open the model, label texts, tell seconds and memory; each step waits for a line of input."""
    from snailps.vectors.label_prediction import LabelModel

    drawn = random.Random(job["seed"])

    def text() -> str:
        return " ".join(f"w{drawn.randrange(job['words'] - 1)}" for _ in range(TEXT_WORDS))

    def tell(**figures: float) -> None:
        print(json.dumps(figures), flush=True)
        sys.stdin.readline()

    first = text()
    tell()
    before = pss_kb()
    tell()
    began, spent = time.perf_counter(), time.process_time()
    model = LabelModel(job["model"])
    opened = time.perf_counter()
    model.predict(first)
    done, spent = time.perf_counter(), time.process_time() - spent
    for _ in range(job["texts"] // 20):
        model.predict_arrays([text() for _ in range(20)], threads=1)
    tell(load_s=opened - began, first_s=done - opened, both_cpu_s=spent)
    tell(kb=pss_kb() - before)


def run(model: Path, count: int, words: int, texts: int) -> list[dict]:
    """The answers of this many processes, which go through the steps together."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), pythonpath()]))}
    started = []
    for number in range(count):
        job = {"model": str(model), "words": words, "texts": texts, "seed": number}
        started.append(subprocess.Popen(
            [sys.executable, __file__, "--job", json.dumps(job)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env=env,
        ))  # fmt: skip
    found: list[dict] = [{} for _ in started]
    try:
        for _ in range(4):
            for figures, one in zip(found, started, strict=True):
                line = one.stdout.readline() or fail("a process ended early")
                figures.update(json.loads(line))
            for one in started:
                one.stdin.write("\n")
                one.stdin.flush()
    finally:
        for one in started:
            one.communicate()
    return found


def drop_from_cache(path: Path) -> None:
    """Have the next reader read from the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    """Make the model, open it, share it, print."""
    if sys.argv[1:2] == ["--job"]:
        use(json.loads(sys.argv[2]))
        return
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="snailps-bench-", dir=args.scratch) as name:
        path = Path(name) / "model.bin"
        sys.path[:0] = [str(ROOT)]
        rows = write_model(path, args.mb * 1_000_000, args.words)
        found = {"model_mb": round(path.stat().st_size / 1e6), "words": args.words, "rows": rows}
        say(f"a model of {found['model_mb']:,} MB with {args.words:,} words")
        for way in ("cold", "warm"):
            if way == "cold":
                drop_from_cache(path)
            (one,) = run(path, 1, args.words, 0)
            found |= {
                f"{way}_{part}": round(one[part], 3) for part in ("load_s", "first_s", "both_cpu_s")
            }
        if args.processes:
            texts = 3 * rows // TEXT_WORDS
            (one,) = run(path, 1, args.words, texts)
            several = run(path, args.processes, args.words, texts)
            together = sum(figures["kb"] for figures in several)
            found |= {"mb_of_1": one["kb"] >> 10, f"mb_of_{args.processes}": together >> 10}
            found["ratio"] = round(together / one["kb"], 3)
        print(json.dumps({**found, "machine": machine()}))


if __name__ == "__main__":
    main()
