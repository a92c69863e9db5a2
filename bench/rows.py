#!/usr/bin/env python3
"""Many rows: what they take at the servers and at a worker, and what a limit of rows costs.

    servers -> a driver, as a worker is one -> new ids pushed, pulled again -> memory, rows/s
    ids of a power law, each with a target -> gradients pushed to tables with room for all ids, or
    for some of them -> how far rows are from their targets

The first part fills one table of `rowwise_adagrad` with `--rows` ids, drawn from 2^64, and samples
the memory of each process from /proc.  The second trains tables with ids that come as in a stream
of clicks: id i of `--ids` with probability proportional to 1 / (i + 1), shuffled anew by a tenth
each tenth of the way, so that ids also go out of use.  A row learns a target of its id's own from
noisy gradients.  README.md here says more.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from cluster import joined  # first: it sets the path to the tree of this script
from words import fail, machine, say

import snailps
from snailps import Table, kernels, local_cluster
from snailps.local.driver import Driver

REQUEST = 200_000  # ids a push or pull
CHECKED = 50  # requests that are pulled again
DRAWN = 20_000  # ids of a request of the second part, repeated ones among them,
STEPS = 400  # ... and how many of those there are;
DRIFTS = 10  # so often a tenth of the ids is replaced by new ones
NOISE = 0.5  # standard deviation of a gradient, where targets have 1


def memory_of(pid: int) -> dict[str, int]:
    """Resident bytes of a process, now and at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {key: int(fields[key].split()[0]) * 1024 for key in ("VmRSS", "VmHWM")}


def ids_of(first: int, n: int) -> np.ndarray:
    """uint64 (n,): ids number first to first + n - 1, distinct and all over 2^64."""
    return np.arange(first, first + n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


# --- a large table -------------------------------------------------------------------------------


def fill(driver: Driver, args: argparse.Namespace, pids: list[int]) -> dict:
    """Fills a table and reads part of it again."""
    before = sum(memory_of(pid)["VmRSS"] for pid in pids)
    driver.declare(
        Table("rows", args.dim, access="rowwise_adagrad", lr=0.1, init="normal", scale=0.1)
    )
    values = np.full((REQUEST, args.dim), 0.01, np.float32)
    begin_s, told_s, slowest_s = time.perf_counter(), time.perf_counter(), 0.0
    for at in range(0, args.rows, REQUEST):
        ids = ids_of(at, min(REQUEST, args.rows - at))
        pushed_s = time.perf_counter()
        driver.push("rows", ids, values[: len(ids)])
        slowest_s = max(slowest_s, time.perf_counter() - pushed_s)
        if time.perf_counter() - told_s > 10:
            told_s = time.perf_counter()
            say(f"{at + len(ids):,} rows, {(at + len(ids)) / (told_s - begin_s):,.0f} rows/s")
    filled_s = time.perf_counter() - begin_s
    rng = np.random.default_rng(1)
    rows = np.empty((REQUEST, args.dim), np.float32)
    begin_s = time.perf_counter()
    for _ in range(CHECKED):
        some = np.sort(rng.integers(0, args.rows, REQUEST, dtype=np.uint64))
        driver.pull("rows", rng.permutation(some) * np.uint64(0x9E3779B97F4A7C15), rows)
        if not (rows != 0).any(axis=1).all():
            fail("a row that was pushed reads as zeros")
    pulled_s = time.perf_counter() - begin_s
    after = [memory_of(pid)["VmRSS"] for pid in pids]
    return {
        "rows": args.rows,
        "dim": args.dim,
        "bytes_a_row_as_floats": 4 * args.dim + 4,
        "bytes_a_row": round((sum(after) - before) / args.rows, 1),
        "server_memory_mb": [round(one / 1e6) for one in after],
        "driver_memory_max_mb": round(memory_of(os.getpid())["VmHWM"] / 1e6),
        "filled_rows_per_s": round(args.rows / filled_s),
        "slowest_push_s": round(slowest_s, 2),
        "random_pulls_rows_per_s": round(CHECKED * REQUEST / pulled_s),
    }


# --- a limit of rows -----------------------------------------------------------------------------


def targets_of(ids: np.ndarray, dim: int) -> np.ndarray:
    """float32 (n, dim): what the rows of these ids are to become, spread by 1."""
    mixed = (ids[:, None] + np.arange(dim, dtype=np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0x94D049BB133111EB)
    return ((mixed >> np.uint64(40)).astype(np.float32) / 2**23 - 1) * np.float32(np.sqrt(3))


def limits(driver: Driver, args: argparse.Namespace) -> list[dict]:
    """Trains the same stream with several limits of rows; the error over what came last."""
    chance = 1 / np.arange(1, args.ids + 1)
    edges = np.cumsum(chance / chance.sum())
    found = []
    for part in (1.0, 0.5, 0.25, 0.1):
        for admit in (0, 2) if part < 1 else (0,):
            rng = np.random.default_rng(1)
            number, fresh = rng.permutation(args.ids), args.ids
            name = f"limit-{part}-{admit}"
            rows_max = 0 if part == 1 else int(part * args.ids)
            table = Table(
                name,
                args.dim,
                access="rowwise_adagrad",
                lr=0.5,
                rows_max=rows_max,
                admit_after=admit,
            )
            driver.declare(table)
            squares = []
            for step in range(STEPS):
                if step and step % (STEPS // DRIFTS) == 0:
                    gone = rng.random(args.ids) < 0.1
                    number[gone] = np.arange(fresh, fresh + gone.sum())
                    fresh += gone.sum()
                drawn = np.unique(np.searchsorted(edges, rng.random(DRAWN)), return_counts=True)
                ids, counts = number[drawn[0].clip(0, args.ids - 1)].astype(np.uint64), drawn[1]
                ids *= np.uint64(0x9E3779B97F4A7C15)
                away = driver.pull(name, ids) - targets_of(ids, args.dim)
                if step >= STEPS * 3 // 4:
                    squares.append(np.average((away**2).mean(axis=1), weights=counts))
                noise = rng.normal(scale=NOISE, size=away.shape).astype(np.float32)
                driver.push(name, ids, away + noise)
            found.append(
                {
                    "rows_max_of_ids": part,
                    "admit_after": admit,
                    "ids_seen": int(fresh),
                    "mean_squared_error": round(float(np.mean(squares)), 4),
                }
            )
            say(json.dumps(found[-1]))
    return found


def main() -> None:
    """Measures, then prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--rows", type=int, default=5_000_000, help="of the large table; 0 leaves it out")
    add("--ids", type=int, default=1_000_000, help="of the tables with a limit; 0 leaves them out")
    add("--dim", type=int, default=8)
    add("--servers", type=int, default=2)
    add("--replication", choices=("none", "sync"), default="none", help="sync doubles the memory")
    args = parser.parse_args()
    if args.rows < 0 or args.ids < 0 or args.dim < 1 or args.servers < 1:
        parser.error("numbers must not be negative")
    figures: dict = {"machine": machine(), "snailps": snailps.__version__, "kernels": kernels.BUILD}
    with (
        local_cluster(
            servers=args.servers,
            workers=0,
            shard_num=1,
            replication=args.replication,
            log=sys.stderr,
        ) as cluster,
        joined(cluster.address) as driver,
    ):
        pids = [node["pid"] for node in cluster.status()["nodes"] if node["role"] == "server"]
        if len(pids) != args.servers:
            fail(f"{len(pids)} processes of servers found, {args.servers} expected")
        if args.ids:
            figures["limits"] = limits(driver, args)
        if args.rows:
            figures["large"] = fill(driver, args, pids)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
