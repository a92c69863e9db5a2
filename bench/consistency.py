#!/usr/bin/env python3
"""Consistency: bit-identical results for any workers, bounded staleness, and what both cost.

    identity   the same job with 1 to 4 workers, 1 and 4 shards, one killed -> hashes of the results
    ssp        one worker of four five times slower, or a tenth of all blocks: async, ssp, bsp
               -> seconds, waiting, loss
    mnist      a dense net in each mode (consistency_mnist.py)
               -> one JSON object a run (--json), a table and targets a part (--table)

README.md here says what the figures mean.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from words import HERE, ROOT, fail, machine, say

sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(ROOT), str(HERE), os.environ.get("PYTHONPATH")])
)

from snailps.cli.masters import ask
from snailps.config import RawConfig
from snailps.errors import SnailError
from snailps.local.launcher import Launcher
from snailps.local.run import LOCAL
from snailps.transport.security.trust import Trust

DATA = Path(os.environ.get("SNAILPS_DATA") or ROOT.parent / "shared" / "data")
LIMIT_S = 600.0
KILLED_AT = 0.3
"""Share of the training after which the identity part kills a worker."""
SLOWNESS = 5.0
WORKERS = 4
STALENESS = (0, 2, 8)
EPOCHS = 6
SLOW = {"one worker": 0.0, "a tenth of blocks": 0.1}
"""Kind of slowness -> share of stalling blocks."""
NOISE = 0.05
"""Of seconds between runs."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A cluster on this machine."""

    workers: int
    servers: int
    killed: bool = False

    @property
    def name(self) -> str:
        """In tables."""
        killed = ", one killed -9" if self.killed else ""
        return f"{self.workers} workers, {self.servers} shards{killed}"


MATRIX = (
    Setup(1, 1), Setup(2, 1), Setup(3, 4), Setup(4, 4), Setup(4, 1), Setup(3, 4, killed=True),
    Setup(2, 1, killed=True),
)  # fmt: skip


def run(setup: Setup, settings: dict[str, object]) -> dict:
    """One job on a cluster of processes; its figures."""
    lines: list[str] = []
    given = {
        **LOCAL, "log_level": "warning", "threads": 1, "shard_num": 1, "on_node_loss": "recover",
        **settings,
    }  # fmt: skip
    launcher = Launcher(
        RawConfig.from_mapping(given, "the bench"), servers=setup.servers, workers=setup.workers,
        on_line=lambda name, line: lines.append(f"{name}: {line}"),
    )  # fmt: skip
    begin = time.monotonic()
    try:
        try:
            launcher.start()
        except SnailError as error:
            fail(f"{error}:\n" + "\n".join(lines))
        killed = setup.killed and kill_one(launcher)
        while launcher.poll() is None and time.monotonic() - begin < LIMIT_S:
            launcher.wait(0.5)
    finally:
        if launcher.poll() is None:
            launcher.interrupt()
            launcher.interrupt()
        launcher.end()
    if launcher.poll() != 0:
        fail(f"{setup.name} ended with {launcher.poll()}:\n" + "\n".join(lines[-15:]))
    if setup.killed and not killed:
        fail(f"{setup.name}: the job was over before a worker was killed")
    return json.loads(launcher.output())


def kill_one(launcher: Launcher) -> bool:
    """SIGKILL for the last worker, in the middle of the training; False: the job ended before."""
    while launcher.poll() is None:
        try:
            status = ask(launcher.address, trust=Trust(launcher.secret))
        except SnailError:
            continue
        if status["phase"] == "training" and status["progress"] >= KILLED_AT:
            os.kill(launcher.children[-1].process.pid, signal.SIGKILL)
            return True
        launcher.wait(0.02)
    return False


# --- identity ------------------------------------------------------------------------------------


def identity_jobs(scratch: Path) -> dict[str, dict[str, object]]:
    """Jobs whose result must not depend on the number of workers."""
    text = scratch / "words.txt"
    corpus = DATA / "moby_dick" / "moby_dick.txt"
    if corpus.exists():
        text.write_bytes(corpus.read_bytes()[:600_000])
    else:
        fail(f"no {corpus}: the identity part needs the data of docs/benchmarks.md")
    bsp = {"consistency": "bsp", "micro_batches": 4}
    jobs: dict[str, dict[str, object]] = {
        "logistic": {
            "worker_class": "snailps.models.sparse.linear:Linear", "epochs": 3,
            "input": DATA / "a9a" / "a9a", **bsp,
        },
        "words": {
            "worker_class": "snailps.models.word_vectors:WordVectors", "input": text, "epochs": 2,
            "dim": 50, "min_count": 2, "bucket": 20_000, **bsp,
        },
    }  # fmt: skip
    if importlib.util.find_spec("snailps.models.mlp") is not None:
        jobs["mlp"] = {
            "worker_class": "snailps.models.mlp:Mlp", "epochs": 3, "hidden": 64,
            "input": DATA / "mnist" / "t10k-images-idx3-ubyte.gz", "batch_size": 400, **bsp,
        }  # fmt: skip
    return jobs


def identity(args: argparse.Namespace, scratch: Path) -> list[dict]:
    """Hash of the result files of each job on each cluster, but for the report of the run."""
    found = []
    for name, settings in identity_jobs(scratch).items():
        if args.jobs and name not in args.jobs.split(","):
            continue
        for setup in MATRIX:
            folder = scratch / f"{name}-{MATRIX.index(setup)}"
            folder.mkdir()
            say(f"identity: {name}, {setup.name}")
            figures = run(setup, {**settings, "output": folder / "result"})
            whole = hashlib.sha256()
            for path in sorted(set(folder.iterdir()) - set(folder.glob("*.report.html"))):
                whole.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
            row = {"part": "identity", "job": name, "cluster": setup.name}
            row |= {"sha256": whole.hexdigest()[:16], "train_loss": figures["train_loss"]}
            row |= {"train_s": figures["train_s"], "clocks": figures["clocks"]}
            found.append(row)
    return found


def identity_targets(found: list[dict]) -> list[dict]:
    """Target: one hash per job."""
    judged = []
    for job in dict.fromkeys(row["job"] for row in found):
        hashes = {row["sha256"] for row in found if row["job"] == job}
        num = sum(row["job"] == job for row in found)
        judged.append(
            {
                "target": f"identity: {job}: different results of {num} clusters = 1",
                "value": len(hashes),
                "met": len(hashes) == 1,
            }
        )
    return judged


# --- bounded staleness ---------------------------------------------------------------------------


def ssp(args: argparse.Namespace, scratch: Path) -> list[dict]:
    """One worker of four is five times slower, or a tenth of all blocks; blocks are assigned."""
    modes: list[tuple[str, dict[str, object]]] = [
        ("async", {"consistency": "async", "assign": "own"}),
        *((f"ssp, staleness {n}", {"consistency": "ssp", "staleness": n}) for n in STALENESS[::-1]),
        ("bsp", {"consistency": "bsp", "micro_batches": WORKERS}),
    ]
    found = []
    for (slow, stalls), (name, settings) in itertools.product(SLOW.items(), modes):
        notes = scratch / f"notes-{len(found)}"
        notes.mkdir()
        say(f"ssp: {slow}, {name}")
        figures = run(
            Setup(WORKERS, 1),
            {
                "worker_class": "paced:Paced", "input": DATA / "a9a" / "a9a",
                "test": DATA / "a9a" / "a9a.t", "epochs": EPOCHS, "block_bytes": 80_000,
                "slowness": SLOWNESS, "stalls": stalls, "notes": notes, "output": notes / "model",
                **settings,
            },
        )  # fmt: skip
        workers = [json.loads(path.read_text()) for path in notes.glob("*.json")]
        waited = sorted(figures.get("waited_s", {}).values())
        found.append(
            {
                "part": "ssp", "slow": slow, "mode": name, "train_s": figures["train_s"],
                "ahead_max": figures.get("ahead_max"),
                "busy_s_least": min(one["busy_s"] for one in workers),
                "busy_s_most": max(one["busy_s"] for one in workers),
                "waited_s_most": waited[-1] if waited else None,
                "train_loss": round(figures["train_loss"], 5),
                "test_log_loss": round(figures["test"]["log_loss"], 5),
            }
        )  # fmt: skip
    return found


def ssp_targets(found: list[dict]) -> list[dict]:
    """No lead above `staleness`; a time between async's and bsp's, to within noise."""
    judged = []
    for slow in SLOW:
        by_mode = {row["mode"]: row for row in found if row["slow"] == slow}
        low, high = by_mode["async"]["train_s"], by_mode["bsp"]["train_s"]
        for mode, row in by_mode.items():
            if not mode.startswith("ssp"):
                continue
            bound = int(mode.split()[-1])
            ahead, seconds = row["ahead_max"], row["train_s"]
            judged.append(
                {
                    "target": f"{slow}, {mode}: blocks ahead of the slowest <= {bound}",
                    "value": ahead,
                    "met": ahead <= bound,
                }
            )
            judged.append(
                {
                    "target": f"{slow}, {mode}: seconds from async's {low:.1f} to bsp's {high:.1f} "
                    f"+-{NOISE:.0%}",
                    "value": seconds,
                    "met": (1 - NOISE) * low <= seconds <= (1 + NOISE) * high,
                }
            )
    return judged


# --- all parts -----------------------------------------------------------------------------------

Part = tuple[Callable[[argparse.Namespace, Path], list[dict]], Callable[[list[dict]], list[dict]]]
PARTS: dict[str, Part] = {
    "identity": (identity, identity_targets),
    "ssp": (ssp, ssp_targets),
}
OF_OTHERS = {"mnist": "consistency_mnist"}
"""Parts in files of their own, which have `add_arguments`, `rows` and `targets`."""


def main() -> None:
    """Runs the parts and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parts", help="with commas, default all")
    parser.add_argument("--jobs", default="", help="of identity, with commas, default all")
    parser.add_argument("--json", action="store_true", help="one JSON object a run")
    parser.add_argument("--table", action="store_true", help="Markdown tables and targets")
    for name, file in OF_OTHERS.items():
        if (HERE / f"{file}.py").exists():
            module = importlib.import_module(file)
            module.add_arguments(parser)
            PARTS[name] = (module.rows, module.targets)
    args = parser.parse_args()
    say(machine())
    for name in args.parts.split(",") if args.parts else PARTS:
        if name not in PARTS:
            fail(f"--parts: unknown {name!r}; known: {', '.join(PARTS)}")
        rows, targets = PARTS[name]
        with tempfile.TemporaryDirectory(prefix="snailps-bench-") as scratch:
            found = rows(args, Path(scratch))
        if args.json:
            print("\n".join(json.dumps(row) for row in found), flush=True)
        if args.table:
            print("\n".join(table(found)), "", *target_lines(targets(found)), sep="\n", flush=True)


def table(found: list[dict]) -> list[str]:
    """Rows in Markdown."""
    names = [name for name in found[0] if name != "part"]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return lines + ["| " + " | ".join(str(row.get(name)) for name in names) + " |" for row in found]


def target_lines(judged: list[dict]) -> list[str]:
    """Targets and results."""
    lines = ["| target | value | met |", "|---|---|---|"]
    return lines + [f"| {one['target']} | {one['value']} | {one['met']} |" for one in judged]


if __name__ == "__main__":
    main()
