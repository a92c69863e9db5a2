#!/usr/bin/env python3
"""Pages kept by a classifier, Parquet to Parquet: snailps.filter beside datatrove, in turns.

    corpus -> model and pages of bench/predict.py -> Parquet files -> each system in a process
           -> pages a second -> one JSON object a system (--json), a table

    python bench/filter.py --corpus text8like.txt.gz --table

predict: `predict_arrays` on the same texts, which are in memory as a column of Arrow's: what the
model alone takes.  filter: `snailps.filter`, reading and writing included, the model opened and its
hash taken.  datatrove: its own fastText filter in as many local workers.
"""

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from predict import DATA, WORK, make
from words import ROOT, fail, machine, peers_python, pythonpath, say

SYSTEMS = ("predict", "filter", "datatrove")
FILES = 8
BOUND = 0.5
KEEP = f'hq["__label__l0"] >= {BOUND}'


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--corpus", type=Path, default=DATA / "words" / "text8like.txt.gz")
    add("--work", default="pages", help=f"of {', '.join(WORK)}")
    add("--systems", default=",".join(SYSTEMS), help="the first one is the measure")
    add("--runs", type=int, default=3, help="of each system, in turns")
    add("--threads", type=int, default=2, help="threads, or datatrove's workers")
    add("--scale", type=float, default=1.0, help="of the number of pages")
    add("--scratch", type=Path, help="folder for temporary files, default the system's")
    add("--json", action="store_true", help="one JSON object a system on standard output")
    add("--table", action="store_true", help="a Markdown table on standard output")
    args = parser.parse_args()
    args.systems = args.systems.split(",")
    if unknown := {*args.systems} - {*SYSTEMS}:
        fail(f"unknown: {', '.join(sorted(unknown))}")
    if not args.corpus.is_file():
        fail(f"no such file: {args.corpus}")
    return args


def write_tables(texts: Path, folder: Path) -> int:
    """The pages in some Parquet files, with a column beside; their number."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = texts.read_text(encoding="utf-8").splitlines()
    folder.mkdir()
    for number in range(FILES):
        some = lines[number::FILES]
        ids = [f"{number}/{at}" for at in range(len(some))]
        pq.write_table(pa.table({"id": ids, "text": some}), folder / f"{number}.parquet")
    return len(lines)


def run_ours(job: dict) -> None:
    """A run of snailps in this process."""
    import pyarrow.parquet as pq

    import snailps

    filter_files = snailps.filter  # imported before the clock starts, as what the others take is
    if job["system"] == "predict":
        model = snailps.LabelModel(job["model"])
        texts = pq.read_table(job["input"])["text"]
        model.predict(texts[0].as_py())
        began = time.perf_counter()
        model.predict_arrays(texts, threads=job["threads"])
    else:
        began = time.perf_counter()
        filter_files(
            job["input"], column="text", models={"hq": job["model"]}, keep=KEEP,
            output=job["output"], threads=job["threads"],
        )  # fmt: skip
    print(json.dumps({"seconds": time.perf_counter() - began}))


def run(system: str, python: str, job: dict) -> dict:
    """One run in a process of its own, into a folder of its own."""
    with tempfile.TemporaryDirectory(dir=job["scratch"]) as name:
        job = {**job, "system": system, "output": f"{name}/out", "logs": f"{name}/logs"}
        command = [python, __file__, "--job", json.dumps(job)]
        if system == "datatrove":
            command = [python, str(ROOT / "bench" / "peers" / "filter_datatrove.py"), command[-1]]
        env = dict(os.environ)
        if system != "datatrove":
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), pythonpath()]))
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False
        )
        if done.returncode:
            fail(f"{system} failed:\n{done.stderr.strip()[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Make model and pages, run all in turns, print."""
    if sys.argv[1:2] == ["--job"]:
        run_ours(json.loads(sys.argv[2]))
        return
    args = arguments()
    opener = gzip.open if args.corpus.suffix == ".gz" else open
    with opener(args.corpus, "rt", encoding="utf-8") as file:
        words = file.read(60_000_000).split()
    pythons = dict.fromkeys(args.systems, sys.executable)
    if "datatrove" in pythons:
        pythons["datatrove"] = peers_python(None, "filter")
    with tempfile.TemporaryDirectory(prefix="snailps-bench-", dir=args.scratch) as name:
        folder = Path(name)
        model, texts = make(words, args.work, args.scale, folder)
        pages = write_tables(texts, folder / "in")
        say(f"{pages:,} pages, a model of {model.stat().st_size / 1e6:,.0f} MB")
        job = {"model": str(model), "input": str(folder / "in"), "files": FILES, "bound": BOUND}
        job |= {"threads": args.threads, "scratch": str(folder)}
        seconds: dict[str, list[float]] = {system: [] for system in args.systems}
        for number in range(args.runs):
            for system in args.systems if number % 2 == 0 else args.systems[::-1]:
                seconds[system].append(run(system, pythons[system], job)["seconds"])
    first = statistics.median(seconds[args.systems[0]])
    found = [
        {
            "system": system, "pages_per_s": round(pages / statistics.median(some), 1),
            "ratio": round(first / statistics.median(some), 3), "pages": pages, "work": args.work,
            "seconds": [round(one, 3) for one in some], "threads": args.threads,
            "machine": machine(),
        }
        for system, some in seconds.items()
    ]  # fmt: skip
    if args.json:
        for one in found:
            print(json.dumps(one))
    if args.table:
        print(f"| system | pages/s | x {args.systems[0]} |\n|---|---|---|")
        for one in found:
            print(f"| {one['system']} | {one['pages_per_s']:,.0f} | {one['ratio']:.2f} |")


if __name__ == "__main__":
    main()
