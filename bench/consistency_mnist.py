#!/usr/bin/env python3
"""MNIST, the same net in each mode: accuracy, and the gain of a second worker.

    idx files -> snailps train mlp, interleaved -> accuracy by mode, examples/s of 1 and 2 workers
              -> one JSON object a run (--json), tables and targets (--table)

`rows` and `targets` are also the part "mnist" of consistency.py.  README.md here says what the
figures mean.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from words import ROOT, fail, machine, pythonpath, say

MNIST = Path(os.environ.get("SNAILPS_DATA") or ROOT.parent / "shared" / "data") / "mnist"
MODES = ("bsp", "async", "ssp")
WORKERS = (1, 2, 4)
ACCURACY_MIN = 0.97
SPEED_MIN = 1.5
SMALL = {"hidden": 100, "epochs": 8}
"""784-100-10, everything else as it comes."""
LARGE = {
    "hidden": 1024, "batch_size": 4096, "micro_batches": 4, "consistency": "bsp", "lr": 0.003,
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this part."""
    add = parser.add_argument
    add("--mnist", type=Path, default=MNIST, help="folder with the four idx files, packed or not")
    add("--modes", default=",".join(MODES), help="with commas: " + ", ".join(MODES))
    add("--speed-epochs", type=int, default=3, help="of each run for speed")
    add("--turns", type=int, default=2, help="runs of 1 and of 2 workers, as A B B A; 0: none")


def rows(args: argparse.Namespace, scratch: Path) -> list[dict]:
    """All runs in sequence; a dict each."""
    found = []
    for mode, workers in itertools.product(args.modes.split(","), WORKERS):
        if mode not in MODES:
            fail(f"--modes: unknown {mode!r}; known: {', '.join(MODES)}")
        found.append(run("accuracy", workers, {**SMALL, "consistency": mode}, args, scratch))
    speed = {**LARGE, "epochs": args.speed_epochs}
    for turn in range(args.turns):
        for workers in (1, 2) if turn % 2 == 0 else (2, 1):
            found.append(run("speed", workers, speed, args, scratch))
    return found


def run(kind: str, workers: int, settings: dict, args: argparse.Namespace, scratch: Path) -> dict:
    """One training; its figures."""
    words = [f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]
    if kind == "accuracy":  # the evaluations during training take time, too
        words += ["--test", of(args.mnist, "t10k")]
    command = [
        sys.executable, "-m", "snailps", "train", "mlp", "--train", of(args.mnist, "train"),
        "--output", str(scratch / "net"), "--workers", str(workers), "--threads", "1", "--json",
        "--overwrite", *words,
    ]  # fmt: skip
    say(f"{kind}: {settings['consistency']}, {workers} workers x 1 thread")
    path = os.pathsep.join(filter(None, [str(ROOT), pythonpath()]))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        fail(f"snailps train mlp ended with {done.returncode}:\n{done.stderr[-2000:]}")
    figures = json.loads(done.stdout.splitlines()[-1])
    kept = ("examples_per_s", "train_s", "train_loss", "global_step", "peak_rss_mb")
    return {
        "part": "mnist", "kind": kind, "mode": settings["consistency"], "workers": workers,
        "net": f"784-{settings['hidden']}-10",
        **{key: figures.get("test", {}).get(key) for key in ("accuracy", "log_loss")},
        **{key: figures[key] for key in kept},
    }  # fmt: skip


def of(folder: Path, name: str) -> str:
    """The file of images of that name."""
    for ending in ("", ".gz"):
        path = folder / f"{name}-images-idx3-ubyte{ending}"
        if path.exists():
            return str(path)
    return fail(f"--mnist: no {name}-images-idx3-ubyte or its .gz in {folder}")


def targets(found: list[dict]) -> list[dict]:
    """Targets, results, met or not."""
    judged = [
        verdict(f"mnist: {row['mode']}, {row['workers']} workers: accuracy", row["accuracy"],
                ACCURACY_MIN)
        for row in found
        if row["kind"] == "accuracy"
    ]  # fmt: skip
    speeds = [
        [row["examples_per_s"] for row in found if (row["kind"], row["workers"]) == ("speed", n)]
        for n in (1, 2)
    ]
    if all(speeds):
        ratio = statistics.fmean(speeds[1]) / statistics.fmean(speeds[0])
        judged.append(verdict("mnist: bsp, examples/s of 2 workers / of 1", ratio, SPEED_MIN))
    return judged


def verdict(name: str, value: float, least: float) -> dict:
    """A target and its result."""
    return {"target": f"{name} >= {least:g}", "value": round(value, 4), "met": value >= least}


def table(found: list[dict]) -> str:
    """The runs, then the targets, in Markdown."""
    names = ("kind", "mode", "net", "workers", "accuracy", "log_loss", "examples_per_s", "train_s")
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(str(row[name]) for name in names) + " |" for row in found]
    lines += ["", "| target | value | met |", "|---|---|---|"]
    lines += [f"| {one['target']} | {one['value']} | {one['met']} |" for one in targets(found)]
    return "\n".join(lines)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a run")
    parser.add_argument("--table", action="store_true", help="Markdown tables, and the targets")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="snailps-bench-") as folder:
        found = rows(args, Path(folder))
    if args.json:
        for row in found:
            print(json.dumps({**row, "machine": machine()}))
    if args.table or not args.json:
        print(table(found))


if __name__ == "__main__":
    main()
