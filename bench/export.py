#!/usr/bin/env python3
"""Export of a large sparse model: duration, and memory of each process.

    random features, each once -> LIBSVM -> snailps train -> its export, watched
        -> seconds, GB/s, memory (VmRSS) before and at most, the slowest status
        -> one JSON object (--json), a line for docs/benchmarks.md (--table)

Only the export is measured; the memory before it is taken at the last moment of the training.
`--size` counts keys and weights as they are written.  README.md here says more.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import watch
from large import role_of
from words import ROOT, fail, machine, pythonpath, say

sys.path.insert(0, str(ROOT))

from snailps.config import ClusterSettings
from snailps.errors import SnailError
from snailps.node.run_registry import trust_at
from snailps.node.status_line import StatusLine

SAMPLE_S = 0.1
WIDTHS = {"logistic": 1, "fm": 17, "sparse_net": 50}
OPTIONS = {
    "logistic": [],
    "fm": ["--factors", "16"],
    "sparse_net": ["--hidden", "50"],
}
FEATURES = 50  # of an example
ROLES = ("master", "server", "worker")


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """The command line; unknown options are passed to snailps."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="Options not listed here go to snailps train, such as --first-layer worker.",
    )
    add = parser.add_argument
    add("--size", type=float, default=300.0, help="of the table, MB")
    add("--model", choices=sorted(WIDTHS), default="sparse_net")
    add("--servers", type=int, default=1)
    add("--workers", type=int, default=1)
    add("--scratch", type=Path, help="folder for temporary files, default the system's")
    add("--limit", type=float, default=1800.0, help="seconds")
    add("--json", action="store_true", help="one JSON object on standard output")
    add("--table", action="store_true", help="a line of a Markdown table on standard output")
    return parser.parse_known_args()


def write_examples(path: Path, features: int) -> None:
    """Examples in which each feature is once, in random order."""
    keys = np.random.default_rng(1).permutation(features) + 1
    with path.open("w") as file:
        for at in range(0, features, FEATURES):
            entries = " ".join(f"{key}:1" for key in np.sort(keys[at : at + FEATURES]).tolist())
            file.write(f"{at // FEATURES % 2} {entries}\n")


class Watcher:
    """Samples memory by process and the duration of status requests during the export."""

    def __init__(self, pid: int) -> None:
        self._pid, self._stop = pid, threading.Event()
        self.address = ""
        self.before: dict[int, float] = {}
        self.peaks: dict[int, tuple[str, float]] = {}
        self.exporting = False
        self.slowest_s = 0.0
        self.asked = 0
        self._threads = [threading.Thread(target=f, daemon=True) for f in (self._watch, self._ask)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the sampling."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def grown_mb(self, role: str) -> tuple[float, float]:
        """Memory before and at most during the export, of a role's largest process."""
        of_role = [
            (self.before.get(p, 0.0), mb) for p, (name, mb) in self.peaks.items() if name == role
        ]
        return max(of_role, key=lambda pair: pair[1] - pair[0], default=(0.0, 0.0))

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            for pid in watch.tree_of(self._pid):
                mb = (watch._field_kb(pid, "status", "VmRSS:") or 0) / 1000
                if not mb:
                    continue
                if self.exporting:
                    role = role_of(pid)
                    self.peaks[pid] = (role, max(mb, self.peaks.get(pid, ("", 0.0))[1]))
                else:
                    self.before[pid] = mb

    def _ask(self) -> None:
        line = None
        while not self._stop.wait(SAMPLE_S):
            if not self.address:
                continue
            try:
                line = line or StatusLine(self.address, trust_at(self.address, ClusterSettings()))
                begin = time.monotonic()
                phase = line.look(60.0)["phase"]
            except SnailError:
                continue  # not there yet, or gone
            if phase == "exporting":
                self.exporting = True
                self.asked += 1
                self.slowest_s = max(self.slowest_s, time.monotonic() - begin)


def run(args: argparse.Namespace, more: list[str], folder: Path) -> dict:
    """One training, its export watched."""
    width = WIDTHS[args.model]
    features = int(args.size * 1e6 / (8 + 4 * width))
    say(f"writing examples of {features:,} features")
    write_examples(folder / "in.svm", features)
    command = [
        sys.executable,
        "-m",
        "snailps",
        "train",
        args.model,
        "--input",
        str(folder / "in.svm"),
    ]
    command += ["--output", str(folder / "model"), "--overwrite", "--epochs", "1", "--json"]
    command += OPTIONS[args.model]
    command += ["--servers", str(args.servers), "--workers", str(args.workers), *more]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), pythonpath()])))
    say(" ".join(command))
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
        text=True, cwd=folder,
    )  # fmt: skip
    watcher = Watcher(child.pid)
    timer = threading.Timer(args.limit, child.terminate)
    timer.start()
    log = []
    for line in child.stderr:
        log.append(line)
        if found := re.search(r"master_addr=(\S+)", line):
            watcher.address = found[1]
        if "exporting" in line:
            say(line.strip())
    text = child.stdout.read()
    code = child.wait()
    timer.cancel()
    watcher.stop()
    if code != 0:
        fail(f"snailps ended with {code}: {''.join(log[-5:])}")
    figures = json.loads(text)
    size = (folder / "model.npz").stat().st_size
    found = {"model": args.model, "servers": args.servers, "more": " ".join(more)}
    found |= {"file_mb": round(size / 1e6, 1), "export_s": figures["export_s"]}
    found["gb_per_s"] = round(size / 1e9 / figures["export_s"], 3)
    for role in ROLES:
        before, most = watcher.grown_mb(role)
        found |= {f"{role}_before_mb": round(before, 1), f"{role}_peak_mb": round(most, 1)}
    found |= {"status_asked": watcher.asked, "status_slowest_s": round(watcher.slowest_s, 3)}
    return {**found, "machine": machine()}


def main() -> None:
    """Measures and prints."""
    args, more = arguments()
    with tempfile.TemporaryDirectory(prefix="snailps-export-", dir=args.scratch) as folder:
        found = run(args, more, Path(folder))
    for role in ROLES:
        before, most = found[f"{role}_before_mb"], found[f"{role}_peak_mb"]
        say(f"{role}: {before:.0f} MB before, {most:.0f} MB at most, {most - before:+.0f}")
    say(f"{found['file_mb']:.0f} MB in {found['export_s']:.1f} s, {found['gb_per_s']:.2f} GB/s")
    if args.json:
        print(json.dumps(found))
    if args.table:
        grown = found["master_peak_mb"] - found["master_before_mb"]
        print("| model | file | s | GB/s | master grew by | slowest status |")
        print("|---|---|---|---|---|---|")
        print(
            f"| {found['model']} {found['more']} | {found['file_mb']:,.0f} MB "
            f"| {found['export_s']:.1f} | {found['gb_per_s']:.2f} | {grown:.0f} MB "
            f"| {found['status_slowest_s']:.2f} s |"
        )


if __name__ == "__main__":
    main()
