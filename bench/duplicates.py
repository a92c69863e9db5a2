#!/usr/bin/env python3
"""What near-duplicates are found by, stage by stage, beside packages that make signatures.

    corpus -> pages of 600 words -> keys, sets, merges, table, benchmarks -> microseconds a page
    the same pages -> rensa, datasketch, dupekit in a process each -> microseconds a page

    python bench/duplicates.py --corpus novels.txt.gz --table

Processor time of one thread, the least of all runs; rounds are interleaved.  A page of ours has 24
keys: 18 bands of 9, and 6 windows.  Peers make 112 hashes, in 14 bands where they make keys.
dupekit needs Python 3.12: it is left out where the peers' Python is older (`--peers-python`).
"""

import argparse
import gzip
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from words import HERE, corpus_of, fail, machine, peers_python, say

from snailps.duplicates._pages import BenchmarkWindows, KeyTable, PageKeys, sets_of, shared_grams

WORDS = 600
PEERS = ("rensa", "datasketch", "dupekit")
LINES = 3600
"""Lines of 5 to 60 words, as a benchmark, of text that the pages do not have."""
AGAIN = 0.15
"""Share of a page's keys that are drawn from all pages' keys: twice as many come again."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--corpus", type=Path, help="default: the one in SNAILPS_DATA")
    add("--pages", type=int, default=400, help="of 600 words")
    add("--table-pages", type=int, default=1_000_000, help="whose keys the table gets")
    add("--table-batch", type=int, default=10_000, help="pages whose keys it gets in a call")
    add("--peers", default=",".join(PEERS), help="'' for none")
    add("--peers-python", help="a Python that has the peers, instead of .bench-venv-duplicates")
    add("--rounds", type=int, default=3, help="of all systems, interleaved")
    add("--runs", type=int, default=9, help="of each stage in a round")
    add("--json", action="store_true", help="one JSON object on standard output")
    add("--table", action="store_true", help="a Markdown table on standard output")
    args = parser.parse_args()
    args.peers = [peer for peer in args.peers.split(",") if peer]
    if unknown := {*args.peers} - {*PEERS}:
        fail(f"unknown peer {min(unknown)!r}: expected some of {', '.join(PEERS)}")
    args.corpus = corpus_of(args.corpus)
    return args


def batch(texts: list[bytes]) -> tuple[bytes, np.ndarray]:
    """Texts in one buffer, and where each begins."""
    return b"".join(texts), np.cumsum([0, *map(len, texts)])


def stages(pages: list[bytes], lines: list[bytes]) -> dict:
    """Each stage as a call, and what its time is divided by."""
    data, keys, bands = batch(pages), PageKeys(), PageKeys(14, 8, 0)
    count = len(pages)
    nothing, searched = BenchmarkWindows(*batch([])), BenchmarkWindows(*batch(lines))
    grams, first = sets_of(*data)
    left = np.arange(count)
    right = (left * 7 + 3) % count
    return {
        "keys, 18 x 9 + 6 windows": lambda: keys.of(*data),
        "keys, 14 x 8": lambda: bands.of(*data),
        "sets": lambda: sets_of(*data),
        "two sets merged": lambda: shared_grams(grams, first, left, right),
        "words and a search for nothing": lambda: nothing.of(*data),
        f"words and {LINES:,} lines of benchmarks": lambda: searched.of(*data),
    }


def table_stages(pages: int, at_once: int) -> dict[str, float]:
    """Microseconds a page of the table's three passes, of invented keys."""
    table, count, spent = KeyTable(pages * 24), pages * 24, {}
    for name in ("note", "push", "pull"):
        spent[name] = 0.0
        for begin in range(0, count, at_once * 24):
            rng = np.random.default_rng(begin)
            keys = np.arange(begin, min(begin + at_once * 24, count), dtype=np.uint64)
            again = rng.random(len(keys)) < AGAIN
            keys[again] = rng.integers(0, count, again.sum())
            values = keys // np.uint64(24)
            keys *= np.uint64(0x9E3779B97F4A7C15)
            began = time.process_time()
            getattr(table, name)(*((keys, values) if name == "push" else (keys,)))
            spent[name] += time.process_time() - began
    return {f"table, {name}": seconds / pages * 1e6 for name, seconds in spent.items()} | {
        "table, all three": sum(spent.values()) / pages * 1e6
    }


def run_peer(python: str, peer: str, pages: Path, runs: int) -> dict[str, float]:
    """Microseconds a page of each way that a peer has."""
    job = json.dumps({"peer": peer, "pages": str(pages), "runs": runs})
    script = str(HERE / "peers" / "keys_of_pages.py")
    done = subprocess.run([python, script, job], stdout=subprocess.PIPE, text=True, check=True)
    return {f"{peer}, {way}": spent for way, spent in json.loads(done.stdout).items()}


def main() -> None:
    """Cut pages, run all, interleaved, print."""
    args = arguments()
    opener = gzip.open if args.corpus.suffix == ".gz" else open
    with opener(args.corpus, "rb") as file:
        words = file.read(8 * WORDS * (args.pages + LINES // 10)).split()
    pages = [b" ".join(words[at : at + WORDS]) for at in range(0, args.pages * WORDS, WORDS)]
    rng = np.random.default_rng(1)
    begins = rng.integers(args.pages * WORDS, len(words) - 60, LINES)
    lines = [b" ".join(words[at : at + int(rng.integers(5, 61))]) for at in begins]
    python = peers_python(args.peers_python, "duplicates") if args.peers else ""
    least: dict[str, float] = {}
    ours = stages(pages, lines)
    with tempfile.TemporaryDirectory(prefix="snailps-bench-") as name:
        file = Path(name) / "pages.txt"
        file.write_bytes(b"\n".join(pages))
        for number in range(args.rounds):
            say(f"round {number + 1} of {args.rounds}")
            spent = {}
            for stage, call in ours.items():
                for _ in range(args.runs):
                    began = time.process_time()
                    call()
                    now = (time.process_time() - began) / len(pages) * 1e6
                    spent[stage] = min(now, spent.get(stage, now))
            spent |= table_stages(args.table_pages, args.table_batch)
            for peer in args.peers:
                spent |= run_peer(python, peer, file, max(1, args.runs // 3))
            for stage, now in spent.items():
                least[stage] = min(now, least.get(stage, now))
    size = sum(map(len, pages)) / len(pages)
    if args.json:
        print(json.dumps({"us": least, "bytes_a_page": size, "machine": machine()}))
    if args.table:
        keys = least["keys, 18 x 9 + 6 windows"]
        print(f"Pages of {WORDS} words, {size:,.0f} bytes.\n")
        print("| stage or peer | us a page | x our keys |\n|---|---|---|")
        for stage, spent in least.items():
            print(f"| {stage} | {spent:.2f} | {spent / keys:.1f} |")


if __name__ == "__main__":
    main()
