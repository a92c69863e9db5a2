#!/usr/bin/env python3
"""Reading text: speed of one core in counting and encoding words and unpacking a `.gz`.

    corpus -> blocks as workers read them -> count, merge, encode -> words/s on one core
           -> one JSON object (--json), a table for docs/benchmarks.md (--table)

Timed is what a worker does with each block: reading it from the file (which the page cache
holds, after the warm-up), and the loop over its bytes.  Time is processor time, medians over runs.
"""

import argparse
import datetime
import gzip
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from words import fail, machine, report, say

from snailps.data._text import WordCounter
from snailps.data.blocks import Source, cut, read_block
from snailps.data.scratch import Scratch
from snailps.data.vocabulary import Vocabulary

BLOCK_BYTES = 6 << 20
SAMPLE = 1e-4
TARGETS = {"count": 5e6, "encode": 20e6}
ROWS = {
    "count": "counting",
    "survey": "counting, dumping and merging, as worker and master do",
    "vocabulary": "choosing and sorting the vocabulary",
    "encode": "encoding, with subsampling",
    "encode_all": "encoding, every word kept",
    "count_gz": "unpacking a `.gz` and counting it",
}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--corpus", required=True, type=Path, help="a plain text file")
    add("--min-count", type=int, default=5)
    add("--runs", type=int, default=5)
    add("--json", action="store_true", help="one JSON object on standard output")
    add("--table", action="store_true", help="a Markdown table on standard output")
    args = parser.parse_args()
    if not args.corpus.is_file():
        fail(f"no such file: {args.corpus}")
    return args


def blocks_of(path: Path, scratch: Scratch) -> Iterator[bytes]:
    """The blocks of a file, as a worker reads them."""
    size = scratch.local(str(path)).stat().st_size
    for block in cut([Source(str(path), size)], BLOCK_BYTES):
        yield read_block(block.path, block.start, block.stop, unit="word", scratch=scratch)


def counted(path: Path, scratch: Scratch) -> WordCounter:
    """Counts of a whole file."""
    counter = WordCounter()
    for data in blocks_of(path, scratch):
        counter.count(data)
    return counter


def surveyed(path: Path, scratch: Scratch) -> WordCounter:
    """The same by the parts that workers send."""
    whole = WordCounter()
    for data in blocks_of(path, scratch):
        part = WordCounter()
        part.count(data)
        whole.merge(part.dump())
    return whole


def seconds(work: Callable[[], object]) -> float:
    """Processor time of `work`: independent of other load on the core."""
    begin_s = time.process_time()
    work()
    return time.process_time() - begin_s


def measure(args: argparse.Namespace, folder: Path) -> dict:
    """All figures of a corpus."""
    scratch = Scratch(str(folder / "scratch"), 0)
    counter = counted(args.corpus, scratch)
    vocabulary = Vocabulary.from_counter(counter, args.min_count)
    lexicon, keep = vocabulary.lexicon, vocabulary.keep_probability(SAMPLE)
    packed = folder / f"{args.corpus.name}.gz"
    say(f"{counter.tokens:,} tokens, {len(counter):,} words; packing a copy")
    with open(args.corpus, "rb") as plain, gzip.open(packed, "wb", 6) as out:
        shutil.copyfileobj(plain, out, 1 << 22)

    def encode(keep_of: object) -> None:
        for data in blocks_of(args.corpus, scratch):
            lexicon.encode(data, keep_of, 1)

    def from_packed() -> None:
        fresh = Scratch(str(folder / "fresh"), 0)
        counted(packed, fresh)
        fresh.close()
        fresh.clean()

    jobs: dict[str, Callable[[], object]] = {
        "count": lambda: counted(args.corpus, scratch),
        "survey": lambda: surveyed(args.corpus, scratch),
        "vocabulary": lambda: Vocabulary.from_counter(counter, args.min_count),
        "encode": lambda: encode(keep),
        "encode_all": lambda: encode(None),
        "count_gz": from_packed,
    }
    runs: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(args.runs):
        for name, work in jobs.items():
            runs[name].append(seconds(work))
    result = {
        "corpus": args.corpus.name, "bytes": args.corpus.stat().st_size,
        "tokens": counter.tokens, "distinct": len(counter), "vocabulary": len(vocabulary),
        "min_count": args.min_count, "runs": args.runs, "machine": machine(),
        "date": datetime.date.today().isoformat(),
    }  # fmt: skip
    for name, taken in runs.items():
        result[f"{name}_s"] = round(statistics.median(taken), 4)
        result[f"{name}_words_per_s"] = round(counter.tokens / statistics.median(taken))
        result[f"{name}_s_runs"] = [round(one, 4) for one in taken]
    result["targets"] = {
        f"{name} >= {least / 1e6:.0f} M words/s": result[f"{name}_words_per_s"] >= least
        for name, least in TARGETS.items()
    }
    return result


def table(result: dict) -> str:
    """The figures as a Markdown table."""
    rows = ["| on one core | CPU seconds | M words/s | MB/s |", "|---|---|---|---|"]
    for name, text in ROWS.items():
        taken = result[f"{name}_s"]
        per_s = f"{result['bytes'] / taken / 1e6:.0f}", f"{result['tokens'] / taken / 1e6:.1f}"
        rows.append(f"| {text} | {taken:.2f} | {per_s[1]} | {per_s[0]} |")
    return "\n".join(rows)


def main() -> None:
    """Measure, print."""
    args = arguments()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(prefix="snailps-bench-") as folder:
        result = measure(args, Path(folder))
    report(args, [result], table(result))


if __name__ == "__main__":
    main()
