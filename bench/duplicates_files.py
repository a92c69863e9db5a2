#!/usr/bin/env python3
"""Parquet to Parquet without near-duplicates, beside datatrove and dupekit; what dup adds.

    pages of novels, half of them with copies -> files -> snailps filter, and each peer
    -> processor seconds, rows that stay
    the same files, by a classifier -> with and without dup -> processor seconds

    python bench/duplicates_files.py --table
    python bench/duplicates_files.py --peers dupekit --peers-python PYTHON

Processor seconds are of whole commands, all their processes; medians of interleaved runs.  Peers
run once a round: datatrove's four steps with two workers, dupekit's keys by two processes and the
closure of all groups that share a band.  They remove what probably shares something: what stays
differs.
"""

import argparse
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from duplicates_found import planted
from words import HERE, corpus_of, machine, peers_python, say

PR_SET_CHILD_SUBREAPER = 36
FILES = 8
KEEP = "not (dup.contained >= .98 or dup.near >= .85)"


def run(command: list[str]) -> tuple[dict[str, float], str]:
    """Processor and wall seconds of a command and its children; its output."""
    # A fork server outlives its parent, unwaited for: as its reaper this process gets its times.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    wall = time.perf_counter() - began
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_s": cpu, "wall_s": wall}, done.stdout


def ours(files: Path, output: Path, keep: str, *options: str) -> dict[str, float]:
    """What a filter of ours takes, and keeps."""
    command = [sys.executable, "-m", "snailps", "filter", "--input", str(files), "--column", "text",
               "--keep", keep, "--output", str(output), "--json", *options]  # fmt: skip
    spent, printed = run(command)
    return spent | {"kept": json.loads(printed)["kept"]}


def classifier(folder: Path, pages: list[str]) -> Path:
    """A classifier of pages, pairs of words, two labels drawn by a word."""
    lines = [f"__label__{'hi' if len(page) % 2 else 'lo'} {page[:2000]}\n" for page in pages[:2000]]
    text = folder / "labelled.txt"
    text.write_text("".join(lines))
    command = [
        sys.executable, "-m", "snailps", "train", "classifier", "--input", str(text),
        "--output", str(folder / "model"), "--dim", "50", "--word-ngrams", "2", "--epochs", "2",
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=sys.stderr, stderr=subprocess.DEVNULL)
    return folder / "model.bin"


def main() -> None:
    """Write the files, run all, interleaved, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--corpus", type=Path, help="default: the one in SNAILPS_DATA")
    add("--pages", type=int, default=8000)
    add("--peers", default="datatrove,dupekit", help="'' for none")
    add("--peers-python", help="a Python that has the peers, instead of .bench-venv-duplicates")
    add("--rounds", type=int, default=3)
    add("--json", action="store_true")
    add("--table", action="store_true")
    args = parser.parse_args()
    args.peers = [peer for peer in args.peers.split(",") if peer]
    pages = planted(corpus_of(args.corpus), args.pages)
    python = peers_python(args.peers_python, "duplicates") if args.peers else ""
    runs: dict[str, list[dict]] = {}
    with tempfile.TemporaryDirectory(prefix="snailps-bench-") as name:
        folder = Path(name)
        files = folder / "in"
        files.mkdir()
        for file in range(FILES):
            texts = pages[file::FILES]
            ids = [f"{file}-{at}" for at in range(len(texts))]
            pq.write_table(pa.table({"id": ids, "text": texts}), files / f"{file}.parquet")
        model = classifier(folder, pages)
        score = 'hq["__label__hi"] >= .2'
        for number in range(args.rounds):
            say(f"round {number + 1} of {args.rounds}")
            made = {
                "copies": ours(files, folder / f"a{number}", KEEP),
                "classifier": ours(files, folder / f"b{number}", score, "--model", f"hq={model}"),
                "classifier and copies": ours(
                    files, folder / f"c{number}", f"{score} and {KEEP}", "--model", f"hq={model}"
                ),
            }
            for peer in args.peers:
                job = {"peer": peer, "input": str(files), "output": str(folder / f"{peer}{number}"),
                       "scratch": str(folder / f"s{peer}{number}"), "workers": 2,
                       "files": FILES}  # fmt: skip
                spent, printed = run(
                    [python, str(HERE / "peers" / "remove_duplicates.py"), json.dumps(job)]
                )
                made[peer] = spent | {"kept": json.loads(printed.splitlines()[-1])["kept"]}
            for system, spent in made.items():
                runs.setdefault(system, []).append(spent)
    found = {
        system: {part: statistics.median(run[part] for run in of_system) for part in of_system[0]}
        for system, of_system in runs.items()
    }
    if args.json:
        print(json.dumps({"systems": found, "pages": len(pages), "machine": machine()}))
    if args.table:
        print(f"{len(pages):,} pages, {sum(map(len, pages)) / 1e6:.0f} MB.\n")
        print("| | processor s | wall s | stay | processor s / copies' |\n|---|---|---|---|---|")
        for system, of in found.items():
            ratio = of["cpu_s"] / found["copies"]["cpu_s"]
            seconds = f"{of['cpu_s']:.2f} | {of['wall_s']:.2f}"
            print(f"| {system} | {seconds} | {of['kept']:,} | {ratio:.2f} |")
        added = found["classifier and copies"]["cpu_s"] / found["classifier"]["cpu_s"]
        print(f"\nCopies beside a classifier: {added:.2f} of its time alone.")


if __name__ == "__main__":
    main()
