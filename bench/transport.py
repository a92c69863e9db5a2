#!/usr/bin/env python3
"""Pulls and pushes beside a bare socket loop, in one run, interleaved.

    local_cluster: 1 server, 1 shard -> Driver (the compiled client) -> pull, push -> seconds
    bare/bare.c: blocking server and client, same keys and copies    -> pull, push -> seconds
        -> medians, ratios -> one JSON object (--json) or a table

Every process is a real one and all traffic goes over the loopback.  Only pull() and push() are
timed, from the call until the rows are in the caller's array or the push is acknowledged, with
fresh shuffled keys of existing rows each time.  README.md here says more.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from bare.loop import COMPILER, Bare, build
from cluster import Ours, joined  # first: it sets the path to the tree of this script
from words import fail, machine, say

import snailps
from snailps import Table, kernels, local_cluster
from snailps.local.driver import Driver

PARTS = ("pull", "push", "small", "wire", "access", "narrow_dims", "lookup", "shards", "mixed")
WIRES = ("float16", "int8", "auto")
ACCESS = {
    "add": {},
    "sgd": {"lr": 0.01},
    "adagrad": {"lr": 0.01},
    "ftrl": {"lr": 0.01, "l1": 1e-4, "l2": 1e-4},
    "adam": {"lr": 0.001},
}
SMALL_ROWS = 100
CONNECTIONS, MIXED_PROCESSES = 16, 4
TARGETS = (  # (name, figure, divided by figure or None, comparison, bound)
    ("pull / bare loop", "pull_rows_per_s", "limit_pull_rows_per_s", ">=", 0.85),
    ("push add / bare loop", "push_rows_per_s", "limit_push_rows_per_s", ">=", 0.8),
    ("push adagrad / add", "push_rows_per_s_adagrad", "push_rows_per_s_add", ">=", 0.7),
    ("push ftrl / add", "push_rows_per_s_ftrl", "push_rows_per_s_add", ">=", 0.7),
    ("pull float16 / float32", "pull_rows_per_s_float16", "pull_rows_per_s_float32", ">=", 1.5),
    ("push float16 / float32", "push_rows_per_s_float16", "push_rows_per_s_float32", ">=", 1.5),
    ("100-row pull / bare loop", "small_pull_us", "limit_small_pull_us", "<=", 1.6),
    ("100-row pulls of 16 mixed, p99 ms", "mixed_small_pull_p99_ms", None, "<", 5.0),
    ("keys/s pulled at dim 1", "pull_keys_per_s_dim1", None, ">=", 15e6),
    ("lookups, 20 M rows / 100,000", "lookup_rate_20m_rows", "lookup_rate_100k_rows", ">=", 0.5),
    ("pull, 2 shards / 1", "pull_rows_per_s_2_shards", "pull_rows_per_s_1_shard", ">=", 1.0),
    ("pull, 4 shards / 1", "pull_rows_per_s_4_shards", "pull_rows_per_s_1_shard", ">=", 1.0),
    ("push, 2 shards / 1", "push_rows_per_s_2_shards", "push_rows_per_s_1_shard", ">=", 1.0),
    ("push, 4 shards / 1", "push_rows_per_s_4_shards", "push_rows_per_s_1_shard", ">=", 1.0),
)


class Bench:
    """What all parts share: options, the cluster with one shard, the bare program, the figures."""

    def __init__(self, args: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self.args, self.stack = args, stack
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.program = build(self.folder)
        self.rng = np.random.default_rng(1)
        self.figures: dict[str, float | None] = {}
        self.runs: dict[str, list[float]] = {}
        self.rows, self.requests = (2_000, 2) if args.quick else (100_000, 10)
        self.keys = self.random_keys(self.rows)
        self.address, self.driver = self.cluster(1, 1)

    def random_keys(self, n: int) -> np.ndarray:
        """uint64 (n,); that two of 20 M are the same has a chance of 1 in 100,000."""
        return self.rng.integers(0, 2**64, n, dtype=np.uint64)

    def cluster(self, servers: int, shard_num: int) -> tuple[str, Driver]:
        """A cluster without workers, which this process joins as a driver."""
        found = local_cluster(servers=servers, workers=0, shard_num=shard_num, log=sys.stderr)
        address = self.stack.enter_context(found).address
        return address, self.stack.enter_context(joined(address))

    def ours(self, name: str, dim: int, keys: np.ndarray, **options: object) -> Ours:
        """A new table with a row for each key."""
        return Ours(self.driver, Table(name, dim, **options), keys)

    def bare(self, keys: np.ndarray, dim: int, over: str = "tcp", core: int | None = None) -> Bare:
        """The bare loop with the same table."""
        return self.stack.enter_context(Bare(self.program, self.folder, keys, dim, over, core))

    def draw(self, keys: np.ndarray, n: int, requests: int) -> np.ndarray:
        """uint64 (requests, n): all keys shuffled, each time anew, or any of them."""
        if n == len(keys):
            return np.stack([self.rng.permutation(keys) for _ in range(requests)])
        return keys[self.rng.integers(0, len(keys), (requests, n))]

    def measure(
        self, what: str, systems: dict, keys: np.ndarray | dict, n: int, requests: int
    ) -> dict[str, list[float]]:
        """Seconds per request of each system, by run: A B C, C B A, ... after a warm-up."""
        times: dict[str, list[float]] = {name: [] for name in systems}
        for run in range(self.args.runs + 1):
            for name in list(systems) if run % 2 else reversed(systems):
                table = keys[name] if isinstance(keys, dict) else keys
                seconds = getattr(systems[name], what)(self.draw(table, n, requests))
                if run:
                    times[name].append(seconds / requests)
        return times

    def rates(self, times: dict[str, list[float]], n: int) -> None:
        """Rows/s (or keys/s) as figures, by their keys."""
        for key, seconds in times.items():
            self.keep(key, n / statistics.median(seconds), [n / s for s in seconds], 0)

    def micros(self, times: dict[str, list[float]]) -> None:
        """Microseconds a request as figures."""
        for key, seconds in times.items():
            self.keep(key, statistics.median(seconds) * 1e6, [s * 1e6 for s in seconds], 1)

    def keep(self, key: str, value: float, runs: list[float], digits: int) -> None:
        """A figure, the median of its runs."""
        self.figures[key] = round(value, digits)
        self.runs[key] = [round(one, digits) for one in runs]
        say(f"{key} {value:,.{digits}f}")


def check(system: Ours | Bare, keys: np.ndarray, dim: int) -> None:
    """Checks rows: row i of a new table has the value i % 1000."""
    system.pull(keys[None])
    expected = float((np.arange(len(keys)) % 1000).sum() * dim)
    if system.sum != expected:
        fail(f"{type(system).__name__}: pulled rows have the sum {system.sum}, not {expected}")


# --- the parts -----------------------------------------------------------------------------------


def part_dim_100(bench: Bench, parts: set[str]) -> None:
    """Pull, push and small pull of float32, beside the bare loop (and one over Unix sockets)."""
    ours = bench.ours("dim-100", 100, bench.keys)
    limits = {"limit_{}": bench.bare(bench.keys, 100)}
    if bench.args.unix:
        limits["limit_{}_unix"] = bench.bare(bench.keys, 100, "unix")
    for system in (ours, *limits.values()):
        check(system, bench.keys, 100)
    for what in ("pull", "push"):
        if what in parts:
            key = f"{what}_rows_per_s"
            systems = {key: ours, **{name.format(key): limit for name, limit in limits.items()}}
            times = bench.measure(what, systems, bench.keys, bench.rows, bench.requests)
            bench.rates(times, bench.rows)
    if "small" in parts:
        key = "small_pull_us"
        core = min(os.sched_getaffinity(0))
        limits["limit_{}_one_core"] = bench.bare(bench.keys, 100, core=core)
        systems = {key: ours, **{name.format(key): limit for name, limit in limits.items()}}
        bench.micros(bench.measure("pull", systems, bench.keys, SMALL_ROWS, 100 * bench.requests))


def part_wire(bench: Bench) -> None:
    """The same for each wire type, interleaved with float32."""
    jobs = ("pull_rows_per_s", "push_rows_per_s", "small_pull_us")
    if "wire" not in Table.__slots__:
        say("wire types are not there yet")
        bench.figures |= {f"{job}_{wire}": None for wire in WIRES for job in jobs}
        return
    tables = {
        wire: bench.ours(f"wire-{wire}", 100, bench.keys, wire=wire) for wire in ("float32", *WIRES)
    }
    for what in ("pull", "push"):
        systems = {f"{what}_rows_per_s_{wire}": table for wire, table in tables.items()}
        times = bench.measure(what, systems, bench.keys, bench.rows, bench.requests // 2)
        bench.rates(times, bench.rows)
    systems = {f"small_pull_us_{wire}": table for wire, table in tables.items()}
    bench.micros(bench.measure("pull", systems, bench.keys, SMALL_ROWS, 40 * bench.requests))


def part_access(bench: Bench) -> None:
    """Pushes, by access method."""
    systems = {
        f"push_rows_per_s_{access}": bench.ours(
            f"access-{access}", 100, bench.keys, access=access, **options
        )
        for access, options in ACCESS.items()
    }
    times = bench.measure("push", systems, bench.keys, bench.rows, bench.requests // 2)
    bench.rates(times, bench.rows)


def part_narrow_dims(bench: Bench) -> None:
    """Narrow rows, a million keys a request."""
    n = 10 * bench.rows
    keys = bench.random_keys(n)
    for dim in (1, 8):
        key = f"pull_keys_per_s_dim{dim}"
        systems = {key: bench.ours(f"dim-{dim}", dim, keys), f"limit_{key}": bench.bare(keys, dim)}
        for system in systems.values():
            check(system, keys, dim)
        bench.rates(bench.measure("pull", systems, keys, n, 2), n)


def part_lookup(bench: Bench) -> None:
    """Random keys of a table larger than the caches, and of one of 100,000 rows."""
    keys = {
        "lookup_rate_20m_rows": bench.random_keys(200 * bench.rows),
        "lookup_rate_100k_rows": bench.keys,
    }
    systems = {}
    for key, some in keys.items():
        begin_s = time.perf_counter()
        systems[key] = bench.ours(key, 8, some)
        say(f"{len(some):,} rows loaded in {time.perf_counter() - begin_s:.1f} s")
    # Random keys of the small table, too, not all of them in turn.
    times = bench.measure("pull", systems, keys, bench.rows - 1, bench.requests)
    bench.rates(times, bench.rows - 1)


def part_shards(bench: Bench) -> None:
    """One, two and four shards; a server has no more of them than there are cores."""
    cores = len(os.sched_getaffinity(0))
    systems = {}
    for shards in (1, 2, 4):
        shard_num = min(shards, cores)
        _, driver = bench.cluster(-(-shards // shard_num), shard_num)
        name = f"{shards}_shard" + "s" * (shards > 1)
        systems[name] = Ours(driver, Table("dim-100", 100), bench.keys)
        check(systems[name], bench.keys, 100)
    for what in ("pull", "push"):
        named = {f"{what}_rows_per_s_{name}": system for name, system in systems.items()}
        times = bench.measure(what, named, bench.keys, bench.rows, bench.requests // 2)
        bench.rates(times, bench.rows)


def part_mixed(bench: Bench) -> None:
    """16 connections, half of them pull 100,000 rows at a time, half 100; how long those take.

    Each kind has processes of its own: what a client of both does between its small pulls would
    be counted as their time, where 16 of them share two cores.
    """
    bench.ours("mixed", 100, bench.keys)
    file = bench.folder / "mixed-keys"
    bench.keys.tofile(file)
    each = CONNECTIONS // MIXED_PROCESSES
    seconds = 1.0 if bench.args.quick else 8.0
    words = [sys.executable, str(Path(__file__).with_name("mixed.py")), bench.address, str(file)]
    clients = [
        subprocess.Popen(
            [*words, "big" if seed % 2 else "small", str(each), str(seed), str(seconds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for seed in range(MIXED_PROCESSES)
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        for client in clients:
            stack.enter_context(client)
        for client in clients:
            if client.stdout.readline() != "ready\n":
                fail("a client of the mixed pulls could not begin")
        for client in clients:
            client.stdin.write("go\n")
            client.stdin.flush()
        results = [json.loads(client.stdout.readline()) for client in clients]
    small_ms = np.concatenate([result["small_ms"] for result in results])
    for percent in (50, 99):
        key = f"mixed_small_pull_p{percent}_ms"
        of_each = [
            np.percentile(result["small_ms"], percent) for result in results if result["small_ms"]
        ]
        bench.keep(key, float(np.percentile(small_ms, percent)), of_each, 2)
    big_s = sum(result["big"] for result in results) / seconds
    bench.figures["mixed_small_pulls"] = len(small_ms)
    bench.figures["mixed_big_pull_rows_per_s"] = round(big_s * bench.rows)


# --- the end -------------------------------------------------------------------------------------


def verdicts(figures: dict, quick: bool) -> list[dict]:
    """Targets, results, met or not; None: not measured, or on small sizes."""
    rows = []
    for name, key, by, comparison, bound in TARGETS:
        value = figures.get(key)
        if value is not None and by is not None:
            value = round(value / figures[by], 3) if figures.get(by) else None
        met = None
        if value is not None and not quick:
            met = {">=": value >= bound, "<=": value <= bound, "<": value < bound}[comparison]
        rows.append({"target": f"{name} {comparison} {bound:g}", "value": value, "met": met})
    return rows


def about(args: argparse.Namespace) -> dict:
    """Date, machine, versions and command."""
    compiler = subprocess.run([*COMPILER.split(), "--version"], capture_output=True, text=True)
    return {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
        "machine": machine(),
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "versions": {
            "snailps": snailps.__version__,
            "kernels": kernels.BUILD,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "cc": compiler.stdout.partition("\n")[0],
        },
        "command": shlex.join(["python", "bench/transport.py", *sys.argv[1:]]),
        "runs": args.runs,
    }


def show(figures: dict, rows: list[dict]) -> None:
    """Figures and targets as text."""
    width = max(map(len, [*figures, *(row["target"] for row in rows)]))
    for key, value in figures.items():
        print(f"{key:{width}}  {'not there yet' if value is None else f'{value:,}':>14}")
    print()
    for row in rows:
        if row["value"] is not None:
            verdict = {True: "met", False: "MISSED", None: "(toy sizes)"}[row["met"]]
            print(f"{row['target']:{width}}  {row['value']:>14,}  {verdict}")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--only", default=",".join(PARTS), help="parts, with commas: " + ", ".join(PARTS))
    add("--runs", type=int, default=7, help="runs of each system, interleaved; figures are medians")
    add("--unix", action="store_true", help="the bare loop over Unix sockets too")
    add("--quick", action="store_true", help="small sizes: to see that it works")
    add("--json", action="store_true", help="one JSON object on standard output")
    args = parser.parse_args()
    args.only = set(args.only.split(","))
    if args.only - set(PARTS):
        fail(f"unknown part {min(args.only - set(PARTS))!r}; known: {', '.join(PARTS)}")
    if args.runs < 1:
        fail(f"--runs {args.runs}: at least 1")
    return args


def main() -> None:
    """Measures, then prints."""
    args = arguments()
    facts = about(args)
    with contextlib.ExitStack() as stack:
        bench = Bench(args, stack)
        if args.only & {"pull", "push", "small"}:
            part_dim_100(bench, args.only)
        for name, part in (
            ("wire", part_wire), ("access", part_access), ("narrow_dims", part_narrow_dims),
            ("shards", part_shards), ("mixed", part_mixed), ("lookup", part_lookup),
        ):  # fmt: skip
            if name in args.only:
                begin_s = time.perf_counter()
                part(bench)
                say(f"part {name} took {time.perf_counter() - begin_s:.0f} s")
    rows = verdicts(bench.figures, args.quick)
    if args.json:
        print(json.dumps({**bench.figures, "targets": rows, **facts, "single_runs": bench.runs}))
    else:
        show(bench.figures, rows)


if __name__ == "__main__":
    main()
