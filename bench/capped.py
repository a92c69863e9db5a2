#!/usr/bin/env python3
"""snailps through a network of 1 Gbit/s: rows beside iperf3, word vectors beside no cap.

    netns.linked -> server | capped wire | pulls, pushes, iperf3, interleaved -> goodput, share
                 -> master, server | wire, capped or not | worker trains          -> words/s, ratio

Real processes in two network namespaces; README.md here says what the figures mean.  It needs
root, `ip`, `tc` and, for the rows, iperf3.
"""

import argparse
import contextlib
import dataclasses
import datetime
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from netns import Link, NotPermitted, Side, linked
from words import HERE, ROOT, fail, judge, machine, mean, pythonpath, say

sys.path.insert(0, str(HERE.parent))

from snailps import Table
from snailps.config import ClusterSettings, RawConfig
from snailps.local.driver import Driver

WIRES = ("float32", "float16", "int8", "auto")
DIM = 100
ROWS = 200_000
REQUEST_ROWS = 100_000
PORT = 16831  # no other process is in these namespaces
START_S = 60.0
END_S = 30.0
TAIL_LINES = 15


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--mbit", type=float, default=1000.0, help="the cap of each direction, Mbit/s")
    add("--runs", type=int, default=3, help="runs of each, interleaved")
    add("--no-rows", action="store_true", help="leave out pulls and pushes of rows")
    add("--seconds", type=float, default=3.0, help="of each pull, push and iperf3")
    add("--wires", default=",".join(WIRES), help="wire types of the tables")
    add("--corpus", type=Path, help="a plain text file for word vectors; none: leave them out")
    add("--model", choices=("fasttext", "word2vec"), default="fasttext")
    add("--epochs", type=int, default=5)
    add("--threads", type=int, default=2, help="of the worker")
    add("--similarity", action="append", default=[], type=Path, metavar="FILE")
    add("--analogies", type=Path, metavar="FILE")
    add("--limit-s", type=float, default=3600.0, help="longest time of one training")
    add("--scratch", type=Path, help="folder for temporary files, default the system's")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="for all processes")
    add("--json", action="store_true", help="one JSON object a row on standard output")
    add("--table", action="store_true", help="Markdown tables on standard output")
    args = parser.parse_args()
    args.wires = args.wires.split(",")
    for file in (args.corpus, args.analogies, *args.similarity):
        if file and not file.is_file():
            fail(f"no such file: {file}")
    if args.no_rows and not args.corpus:
        fail("nothing to run: --no-rows and no --corpus")
    if not args.no_rows and not shutil.which("iperf3"):
        fail("no iperf3 to compare with: apt-get install iperf3; or --no-rows")
    return args


class Cluster:
    """Processes of one cluster, each on its side of the link, with one .conf file for all."""

    def __init__(self, link: Link, folder: Path, settings: dict, sets: list[str]) -> None:
        self.link, self.folder = link, folder
        self.settings = {
            "master_addr": f"{link.far.address}:{PORT}",
            "shard_num": 1,
            "insecure": "true",
            **settings,
        }
        self.settings |= dict(pair.split("=", 1) for pair in sets)
        self.file = folder / "cluster.conf"
        self.file.write_text("".join(f"{k}: {v}\n" for k, v in self.settings.items()))
        self.processes: dict[str, subprocess.Popen] = {}

    def start(self, role: str, side: Side, *options: str) -> None:
        """Starts a process; its output goes to a file of its own."""
        command = [sys.executable, "-m", "snailps", role, "-c", str(self.file), *options]
        with open(self.folder / f"{role}.log", "w") as errors:
            self.processes[role] = self.link.start(
                side, command, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=dict(os.environ, PYTHONPATH=f"{ROOT}{os.pathsep}{pythonpath()}"),
            )  # fmt: skip

    def finish(self, limit_s: float) -> str:
        """Output of the master, once all have ended by themselves; else the bench ends."""
        out = {}
        until = time.monotonic() + limit_s
        for role, process in self.processes.items():
            try:
                out[role] = process.communicate(timeout=max(0.1, until - time.monotonic()))[0]
            except subprocess.TimeoutExpired:
                self.fail(f"the {role} has not ended after {limit_s:.0f} s")
            if process.returncode:
                self.fail(f"the {role} ended with code {process.returncode}")
        return out["master"]

    def fail(self, text: str) -> None:
        """Ends the bench with one sentence and the last lines of every process."""
        for role in self.processes:
            lines = (self.folder / f"{role}.log").read_text(errors="replace").splitlines()
            text += "\n".join(["", f"--- {role}", *lines[-TAIL_LINES:]])
        fail(text)


@contextlib.contextmanager
def session(link: Link, folder: Path, sets: list[str]) -> Iterator[Driver]:
    """Master and server on the far side, this process on the near side; tables only."""
    size = {"expected_node_num": 1, "expected_servers": 1, "log_level": "warning"}
    cluster = Cluster(link, folder, size, sets)
    cluster.start("master", link.far, "--session")
    cluster.start("server", link.far)
    known = {field.name for field in dataclasses.fields(ClusterSettings)}
    own = {key: value for key, value in cluster.settings.items() if key in known}
    driver = Driver(RawConfig.from_mapping(own, "capped.py").build(ClusterSettings))
    try:
        with link.inside(link.near):
            driver.join()
        until = time.monotonic() + START_S
        while not driver.routed.is_set() or driver.status()["phase"] == "forming":
            if driver.ended.wait(0.05) or time.monotonic() > until:
                cluster.fail("the cluster has not started")
        yield driver
        driver.shut_down()
    finally:
        driver.close()
    cluster.finish(END_S)


@contextlib.contextmanager
def iperf_server(link: Link) -> Iterator[None]:
    """iperf3's other end, listening."""
    command = ["iperf3", "--server", "--forceflush"]
    process = link.start(
        link.far, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if not any("listening" in line for line in iter(process.stdout.readline, "")):
        fail("iperf3 --server has ended")
    try:
        yield
    finally:
        process.terminate()
        process.communicate()


def iperf(link: Link, seconds: float, *, towards_us: bool) -> float:
    """MB/s of TCP payload that iperf3 receives, without its first second."""
    command = ["iperf3", "--client", link.far.address, "--json", "--omit", "1"]
    command += ["--time", str(max(1, round(seconds))), *(["--reverse"] if towards_us else [])]
    child = link.start(link.near, command, stdout=subprocess.PIPE, text=True)
    told = json.loads(child.communicate(timeout=seconds + END_S)[0])
    if "error" in told:
        fail(f"{' '.join(command)}: {told['error']}")
    return told["end"]["sum_received"]["bits_per_second"] / 8e6


def through(
    driver: Driver, table: str, seconds: float, rng: np.random.Generator, kind: str
) -> dict:
    """Whole requests in sequence for this many seconds, from and into one and the same
    array, as a worker's blocks do: fresh memory costs more here than the network."""
    rows = rng.standard_normal((REQUEST_ROWS, DIM), np.float32)
    before = driver.client.counters()
    spent_s, requests = 0.0, 0
    while spent_s < seconds:
        keys = rng.permutation(ROWS)[:REQUEST_ROWS].astype(np.uint64)
        begin = time.perf_counter()
        if kind == "pull":
            driver.pull(table, keys, rows)
        else:
            driver.push(table, keys, rows)
        spent_s += time.perf_counter() - begin
        requests += 1
    after = driver.client.counters()
    way = "bytes_in" if kind == "pull" else "bytes_out"
    return {
        f"{kind}_rows_per_s": requests * REQUEST_ROWS / spent_s,
        f"{kind}_wire_mb_per_s": (after[way] - before[way]) / spent_s / 1e6,
    }


def measure_rows(link: Link, folder: Path, args: argparse.Namespace) -> list[dict]:
    """Pulls and pushes of every wire type, and iperf3, interleaved."""
    has_wire = "wire" in {field.name for field in dataclasses.fields(Table)}
    wires = [wire for wire in args.wires if has_wire or wire == "float32"]
    rng = np.random.default_rng(1)
    rounds: list[dict[str, dict]] = []
    link.cap(None)
    with session(link, folder, args.set) as driver, iperf_server(link):
        for wire in wires:
            driver.declare(Table(wire, DIM, **({"wire": wire} if has_wire else {})))
            values = rng.standard_normal((ROWS, DIM), np.float32)
            driver.push_async(wire, np.arange(ROWS, dtype=np.uint64), values).wait()
        link.cap(args.mbit)
        for run in range(args.runs):
            found: dict[str, dict] = {}
            # Forth, then back, so that drift affects all of them equally.
            for name in ["iperf3", *wires] if run % 2 == 0 else [*wires[::-1], "iperf3"]:
                if name == "iperf3":
                    ways = {"pull": True, "push": False}
                    found[name] = {w: iperf(link, args.seconds, towards_us=ways[w]) for w in ways}
                    say("iperf3: {pull:.1f} and {push:.1f} MB/s".format(**found[name]))
                else:
                    found[name] = {}
                    for kind in ("pull", "push"):
                        found[name] |= through(driver, name, args.seconds, rng, kind)
                    say(
                        "{0}: pull {pull_wire_mb_per_s:.1f}, push {push_wire_mb_per_s:.1f} "
                        "MB/s on the wire".format(name, **found[name])
                    )
            rounds.append(found)
    results = [summarise_rows(wire, rounds, args) for wire in wires]
    for wire in args.wires:
        if wire not in wires:
            say(f"{wire}: left out, tables have no wire type here")
            results.append({"kind": "rows", "wire": wire, "skipped": "Table has no field `wire`"})
    return results


def summarise_rows(wire: str, rounds: list[dict[str, dict]], args: argparse.Namespace) -> dict:
    """One wire type's rounds as one object: medians."""
    result = {"kind": "rows", "wire": wire, "mbit": args.mbit, "runs": args.runs, "dim": DIM}
    for kind in ("pull", "push"):
        rows = statistics.median(found[wire][f"{kind}_rows_per_s"] for found in rounds)
        goods = [found[wire][f"{kind}_wire_mb_per_s"] for found in rounds]
        peers = [found["iperf3"][kind] for found in rounds]
        shares = [good / peer for good, peer in zip(goods, peers, strict=True)]
        result |= {
            f"{kind}_rows_per_s": round(rows),
            f"{kind}_row_mb_per_s": round(rows * DIM * 4 / 1e6, 1),
            f"{kind}_wire_mb_per_s": round(statistics.median(goods), 1),
            f"{kind}_iperf3_mb_per_s": round(statistics.median(peers), 1),
            f"{kind}_share": round(statistics.median(shares), 3),
            f"{kind}_share_runs": [round(share, 3) for share in shares],
        }
    return result


def train(link: Link, folder: Path, args: argparse.Namespace, mbit: float | None) -> dict:
    """One training by a worker on the near side, its rows on the far side; figures."""
    link.cap(mbit)
    prefix = folder / "vectors"
    judged = bool(args.similarity or args.analogies)
    job = {
        "worker_class": "snailps.models.word_vectors:WordVectors",
        "input": f'"{args.corpus.resolve()}"', "epochs": args.epochs, "threads": args.threads,
        "expected_node_num": 2, "expected_servers": 1,
    }  # fmt: skip
    if judged:
        job |= {"output": f'"{prefix}"', "formats": "vec"}
    if args.model == "word2vec":
        job |= {"minn": 0, "maxn": 0}
    cluster = Cluster(link, folder, job, args.set)
    cluster.start("master", link.far, "--json")
    cluster.start("server", link.far)
    cluster.start("worker", link.near)
    figures = json.loads(cluster.finish(args.limit_s))
    figures["quality"] = judge(args, Path(f"{prefix}.vec"))
    what = "no cap" if mbit is None else f"{mbit:g} Mbit/s"
    moved = figures["words_per_s"] * figures["bytes_per_word"] / 1e6
    say(f"{what}: {figures['words_per_s']:,.0f} words/s, {moved:.0f} MB/s both ways")
    return figures


def measure_words(link: Link, folder: Path, args: argparse.Namespace) -> list[dict]:
    """Trains without and with the cap, interleaved."""
    caps = (None, args.mbit)
    found: dict[float | None, list[dict]] = {cap: [] for cap in caps}
    for run in range(args.runs):
        for cap in caps if run % 2 == 0 else caps[::-1]:
            found[cap].append(train(link, folder, args, cap))
    ratios = [b["words_per_s"] / a["words_per_s"] for a, b in zip(*found.values(), strict=True)]
    results = []
    for cap, runs in found.items():
        words_per_s = statistics.median(run["words_per_s"] for run in runs)
        bytes_per_word = statistics.median(run["bytes_per_word"] for run in runs)
        scores = runs[0]["quality"]
        results.append(
            {
                "kind": "words", "mbit": cap, "model": args.model, "corpus": args.corpus.name,
                "epochs": args.epochs, "threads": args.threads, "runs": args.runs,
                "words_per_s": round(words_per_s),
                "words_per_s_runs": [round(run["words_per_s"]) for run in runs],
                "ratio": 1.0 if cap is None else round(statistics.median(ratios), 3),
                "bytes_per_word": round(bytes_per_word, 1),
                "wire_mb_per_s": round(words_per_s * bytes_per_word / 1e6, 1),
                "blocks": runs[0]["blocks"],
                "train_loss": mean([run["train_loss"] for run in runs]),
                "quality": {name: mean([run["quality"][name] for run in runs]) for name in scores},
            }
        )  # fmt: skip
    return results


def tables(results: list[dict]) -> str:
    """The results as Markdown."""
    heads = {
        "rows": ("wire", "pull_rows_per_s", "pull_row_mb_per_s", "pull_wire_mb_per_s",
                 "pull_iperf3_mb_per_s", "pull_share", "push_rows_per_s", "push_row_mb_per_s",
                 "push_wire_mb_per_s", "push_iperf3_mb_per_s", "push_share"),
        "words": ("mbit", "words_per_s", "ratio", "bytes_per_word", "wire_mb_per_s", "blocks",
                  "train_loss"),
    }  # fmt: skip
    lines = []
    for kind, head in heads.items():
        chosen = [row for row in results if row["kind"] == kind and "skipped" not in row]
        if chosen:
            extra = list(chosen[0].get("quality", ()))
            lines += [
                "| " + " | ".join([*head, *extra]) + " |",
                "|---" * len([*head, *extra]) + "|",
            ]
        for row in chosen:
            cells = [row[name] for name in head] + [row["quality"][name] for name in extra]
            lines.append("| " + " | ".join("none" if c is None else f"{c}" for c in cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Make the link, measure, print."""
    args = arguments()
    # The client's log lines, such as the chosen wire type.
    logging.basicConfig(level=logging.INFO, format="bench: %(message)s", stream=sys.stderr)
    results = []
    try:
        with (
            tempfile.TemporaryDirectory(prefix="snailps-bench-", dir=args.scratch) as folder,
            linked() as link,
        ):
            if not args.no_rows:
                results += measure_rows(link, Path(folder), args)
            if args.corpus:
                results += measure_words(link, Path(folder), args)
    except NotPermitted as error:
        fail(str(error))
    about = {"machine": machine(), "date": datetime.date.today().isoformat()}
    if args.json:
        for row in results:
            print(json.dumps({**row, **about}), flush=True)
    if args.table or not args.json:
        print(tables(results), flush=True)


if __name__ == "__main__":
    main()
