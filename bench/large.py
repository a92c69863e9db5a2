#!/usr/bin/env python3
"""Memory of each process with a large vocabulary or corpus.

    corpus -> one with --invent words more, or its text under --files names
           -> snailps train -> memory of master, servers and workers, second by second
           -> one JSON object (--json), a table for docs/benchmarks.md (--table)

`--invent 2000000 --dim 300` makes tables that one process would not like to hold; `--files 100`
makes an input of a hundred times the corpus, as hard links.  Memory is resident (VmRSS), which
counts what processes share in each of them.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import watch
from invent import invent
from words import ROOT, fail, machine, pythonpath, report, say

ROLES = ("master", "server", "worker")
SAMPLE_S = 0.5


def arguments() -> argparse.Namespace:
    """The command line; unknown options are passed to snailps."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="Options not listed here go to snailps train, such as --dim 300, --threads 2, "
        "--min-count 1, --max-seconds 120, --formats bin.",
    )
    add = parser.add_argument
    add("--corpus", required=True, type=Path, help="a plain text file of a-z")
    add("--invent", type=int, default=0, help="words to add to the vocabulary")
    add("--files", type=int, default=1, help="how many names the text has")
    add("--model", choices=("fasttext", "word2vec"), default="fasttext")
    add("--servers", type=int, default=1)
    add("--workers", type=int, default=1)
    add("--scratch", type=Path, help="folder for the corpus and the result")
    add("--limit-s", type=float, default=1800.0)
    add("--series", type=float, default=0.0, help="seconds between rows of memory on stderr")
    add("--json", action="store_true", help="one JSON object on standard output")
    add("--table", action="store_true", help="a Markdown table on standard output")
    args, args.more = parser.parse_known_args()
    if not args.corpus.is_file():
        fail(f"no such file: {args.corpus}")
    return args


class Roles:
    """Samples the memory of a cluster's processes, role by role, in a thread of its own."""

    def __init__(self, pid: int, series_s: float) -> None:
        self._pid, self._series_s = pid, series_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peaks: dict[int, tuple[str, int]] = {}
        self.sum_peak_mb = 0
        self._thread.start()

    def stop(self) -> None:
        """Ends the sampling."""
        self._stop.set()
        self._thread.join()

    def peaks_mb(self, role: str) -> list[int]:
        """Highest memory of each process of a role."""
        return [peak for name, peak in self.peaks.values() if name == role]

    def _watch(self) -> None:
        begin_s = shown_s = time.monotonic()
        while not self._stop.wait(SAMPLE_S):
            now: dict[str, list[int]] = {}
            for pid in watch.tree_of(self._pid):
                role = role_of(pid)
                mb = (watch._field_kb(pid, "status", "VmRSS:") or 0) // 1024
                if mb == 0:  # it has ended, and its command line is gone
                    continue
                now.setdefault(role, []).append(mb)
                self.peaks[pid] = (role, max(mb, self.peaks.get(pid, ("", 0))[1]))
            self.sum_peak_mb = max(self.sum_peak_mb, sum(map(sum, now.values())))
            if self._series_s and time.monotonic() - shown_s >= self._series_s:
                shown_s = time.monotonic()
                say(f"{shown_s - begin_s:5.0f} s  {now}")


def role_of(pid: int) -> str:
    """Role of a process of `snailps train`, by its command line."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "other"
    return next((word for word in words[2:5] if word in ROLES), "train")


def inputs(args: argparse.Namespace, folder: Path) -> list[str]:
    """The words of the command line that name the input."""
    text = args.corpus
    if args.invent:
        text = folder / f"{args.corpus.name}.{args.invent}"
        say(f"inventing {args.invent:,} words")
        invent(args.corpus, args.invent, text)
    if args.files == 1:
        return ["--input", str(text)]
    (folder / "input").mkdir()
    first = folder / "input" / "part-000"
    first.write_bytes(text.read_bytes())
    for number in range(1, args.files):
        (folder / "input" / f"part-{number:03}").hardlink_to(first)
    return ["--input", str(folder / "input")]


def run(args: argparse.Namespace, folder: Path) -> dict:
    """One training, watched."""
    command = [sys.executable, "-m", "snailps", "train", args.model, *inputs(args, folder)]
    command += ["--servers", str(args.servers), "--workers", str(args.workers), "--json"]
    command += ["--output", str(folder / "result"), "--overwrite", *args.more]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), pythonpath()])))
    say(" ".join(command))
    with open(folder / "log", "wb") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=env,
            start_new_session=True,
        )  # fmt: skip
    roles = Roles(child.pid, args.series)
    try:
        out, _ = child.communicate(timeout=args.limit_s)
    except BaseException:
        watch._end_group(child.pid)
        child.wait()
        raise
    finally:
        roles.stop()
    if child.returncode:
        fail(f"code {child.returncode}:\n{(folder / 'log').read_text()[-2000:]}")
    figures = json.loads(out.decode().strip().splitlines()[-1])
    files = {Path(name).suffix: Path(name).stat().st_size for name in figures.get("files", [])}
    kept = (
        "words",
        "words_per_s",
        "train_s",
        "survey_s",
        "export_s",
        "wall_s",
        "blocks",
        "rows",
        "blocks_per_epoch",
        "block_words_max",
        "bytes_per_word",
        "vocabulary",
        "ended_by",
    )
    return {
        **{name: figures[name] for name in kept if name in figures},
        **{f"{role}_peak_mb": roles.peaks_mb(role) for role in ROLES},
        "sum_peak_mb": roles.sum_peak_mb, "file_bytes": files, "command": command[3:],
        "machine": machine(), "date": datetime.date.today().isoformat(),
    }  # fmt: skip


def table(result: dict) -> str:
    """Memory and figures as a Markdown table."""
    rows = ["| | |", "|---|---|"]
    for role in ROLES:
        rows.append(f"| {role}: peak, MB | {', '.join(map(str, result[f'{role}_peak_mb']))} |")
    for name, value in result.items():
        if isinstance(value, int | float | str) and name not in ("machine", "date"):
            rows.append(
                f"| {name} | {value:,} |" if name != "ended_by" else f"| {name} | {value} |"
            )
    return "\n".join(rows)


def main() -> None:
    """Make the input, train, print."""
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="snailps-bench-", dir=args.scratch) as folder:
        result = run(args, Path(folder))
    report(args, [result], table(result))


if __name__ == "__main__":
    main()
