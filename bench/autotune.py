#!/usr/bin/env python3
"""Automatic settings: `snailps autotune` beside fastText's program, on one text, interleaved.

    train, validation, test -> both search and train (A B, B A, ...) -> F1 on the test, time, size

    python bench/autotune.py --program fastText/fasttext --train t.txt --validation v.txt \
        --test u.txt --seconds 120 --share 5 --seeds 3 --table

`--seconds` are processor seconds of fastText's search, and a `--share` of them are ours: at that
mark the search is interrupted (SIGINT), after which both train their best settings.  A quiet
machine with two cores is there after half as many seconds of fastText's duration.  Processor
seconds of the summary are of all processes, from start to end: search, final training, saving.
`snailps test` scores both files; its F1 is over all labels together.  A search that ends without a
model has no F1: fastText's final training may diverge, where its trial did not.
"""

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from quantise import snailps
from words import ROOT, fail, machine, pythonpath, report, say

FASTTEXT, OURS = "fasttext", "snailps"
TICKS = os.sysconf("SC_CLK_TCK")
LOOK_S = 0.1
FOREVER = 1_000_000


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--program", type=Path, help="fastText's command line program; without it ours alone")
    add("--train", type=Path, required=True, help="labelled text")
    add("--validation", type=Path, required=True, help="labelled text that judges trials")
    add("--test", type=Path, required=True, help="labelled text that judges both models")
    add("--seconds", type=float, default=120.0, help="processor seconds of fastText's search")
    add("--share", type=float, default=5.0, help="ours has 1 / SHARE of them")
    add("--seeds", type=int, default=3)
    add("--threads", type=int, default=2)
    add("--scratch", type=Path, help="folder for temporary files, default the system's")
    add("--json", action="store_true", help="one JSON object a system on standard output")
    add("--table", action="store_true", help="a Markdown table on standard output")
    args = parser.parse_args()
    for path in (args.train, args.validation, args.test, args.program):
        if path is not None and not path.is_file():
            fail(f"no such file: {path}")
    return args


def command_of(system: str, args: argparse.Namespace, prefix: Path, seed: int) -> list[str]:
    """One search with its final training."""
    if system == FASTTEXT:
        words = {
            "input": args.train, "output": prefix, "autotune-validation": args.validation,
            "autotune-duration": FOREVER, "thread": args.threads, "seed": seed,
        }  # fmt: skip
        options = [word for name, value in words.items() for word in (f"-{name}", str(value))]
        return [str(args.program), "supervised", *options]
    command = [sys.executable, "-m", "snailps", "autotune", "--json", "--overwrite"]
    command += ["--input", str(args.train), "--validation", str(args.validation)]
    command += ["--output", str(prefix), "--seconds", str(FOREVER)]
    return [*command, "--threads", str(args.threads), "--set", f"seed={seed}"]


def used(process: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def run(system: str, args: argparse.Namespace, prefix: Path, seed: int) -> dict:
    """Search until the mark, train, score."""
    mark = args.seconds if system == FASTTEXT else args.seconds / args.share
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), pythonpath()])))
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryFile(dir=args.scratch) as log:
        process = subprocess.Popen(
            command_of(system, args, prefix, seed),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
        )  # fmt: skip
        while process.poll() is None:
            if used(process.pid) >= mark:
                process.send_signal(signal.SIGINT)
                break
            time.sleep(LOOK_S)
        code = process.wait()
        if code:
            log.seek(0)
            say(f"{system} failed ({code}):\n{log.read()[-2000:].decode(errors='replace')}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    model = Path(f"{prefix}.bin")
    figures = {
        "f1": None if code else round(snailps("test", model, args.test)["f1"], 4),
        "cpu_s": cpu,
        "wall_s": time.perf_counter() - began,
        "bytes": 0 if code else model.stat().st_size,
    }
    say(f"{system}, seed {seed}: F1 {figures['f1']}, {cpu:.1f} processor seconds")
    for ending in (".bin", ".vec", ".report.html"):
        Path(f"{prefix}{ending}").unlink(missing_ok=True)
    return figures


def summary_of(system: str, runs: list[dict], args: argparse.Namespace) -> dict:
    """One system's runs: the mean of F1, medians of the others."""
    f1s = [one["f1"] for one in runs if one["f1"] is not None]
    return {
        "system": system,
        "f1": round(statistics.fmean(f1s), 4) if f1s else None,
        "f1_runs": [one["f1"] for one in runs],
        **{
            name: round(statistics.median(one[name] for one in runs), 1)
            for name in ("cpu_s", "wall_s", "bytes")
        },
        "search_cpu_s": args.seconds / (1 if system == FASTTEXT else args.share),
        "threads": args.threads,
        "machine": machine(),
    }


def table(summaries: list[dict]) -> str:
    """The summaries as a Markdown table."""
    names = ("system", "f1", "f1_runs", "search_cpu_s", "cpu_s", "bytes")
    rows = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    rows += ["| " + " | ".join(str(one[name]) for name in names) + " |" for one in summaries]
    return "\n".join(rows)


def main() -> None:
    """Search with both, interleaved, and print."""
    args = arguments()
    # A shell's background job ignores SIGINT, and so would the programs that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    systems = [FASTTEXT, OURS] if args.program else [OURS]
    runs: dict[str, list[dict]] = {system: [] for system in systems}
    with tempfile.TemporaryDirectory(prefix="snailps-bench-", dir=args.scratch) as folder:
        for seed in range(1, args.seeds + 1):
            # Forth, then back, so that drift (heat, other load) affects both equally.
            for system in systems if seed % 2 else systems[::-1]:
                runs[system].append(run(system, args, Path(folder) / system, seed))
    summaries = [summary_of(system, runs[system], args) for system in systems]
    report(args, summaries, table(summaries))


if __name__ == "__main__":
    main()
