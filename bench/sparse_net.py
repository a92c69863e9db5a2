#!/usr/bin/env python3
"""A sparse first layer behind a slow network: products at the shards, or rows at the worker.

    netns.linked -> server with W | capped wire | driver: steps by each way, interleaved
                 -> bytes a step, steps/s; one JSON object a way (--json), tables (--table)

    products    a batch's entries go to the shards, m x h comes back, dL/dZ goes, W stays
    rows        the rows of the batch's features are pulled, their gradients pushed
    whole       all of W is pulled, its whole gradient pushed, as systems without sparse pulls do

All three take the same steps: Z = X W, a second layer of one output (ReLU, logistic loss), its
dL/dZ, one step of AdaGrad at the shard.  Products and rows have two batches in flight; the whole
matrix has not, because there is no gain in it: its wire is busy all the time, and memory would
double.  README.md here says what the figures mean.  It needs root, `ip` and `tc`.
"""

import argparse
import datetime
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from capped import session
from netns import NotPermitted, linked
from words import ROOT, fail, machine, say

sys.path.insert(0, str(ROOT))

from snailps import Table, kernels
from snailps.data._key_numbering import number_keys
from snailps.kernels import WIRE_TYPES
from snailps.local.driver import Driver

WAYS = ("products", "products float16", "rows", "whole")
SPREADS = ("uniform", "power")
POOL = 16
"""Different batches; they come round again."""
EXPONENT = 1.1
FILL_ROWS = 1 << 15
WARM_STEPS = 2


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--mbit", type=float, default=1200.0, help="the cap of each direction, Mbit/s")
    add("--features", type=int, default=1 << 20, help="rows of W")
    add("--hidden", default="50,400", help="columns of W, with commas")
    add("--batch", type=int, default=1024, help="examples")
    add("--entries", type=int, default=100, help="features of an example")
    add("--spread", default=",".join(SPREADS), help="how features are drawn: uniform, power")
    add("--ways", default=",".join(WAYS), help="with commas: " + ", ".join(WAYS))
    add("--shards", type=int, default=2, help="of the server")
    add("--seconds", type=float, default=5.0, help="of each way in each run, at least one step")
    add("--runs", type=int, default=1, help="runs of each way, interleaved")
    add("--scratch", type=Path, help="folder for temporary files, default the system's")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="for all processes")
    add("--json", action="store_true", help="one JSON object a way on standard output")
    add("--table", action="store_true", help="a Markdown table on standard output")
    args = parser.parse_args()
    args.hidden = [int(text) for text in args.hidden.split(",")]
    for name, known in (("ways", WAYS), ("spread", SPREADS)):
        setattr(args, name, getattr(args, name).split(","))
        unknown = [one for one in getattr(args, name) if one not in known]
        if unknown:
            fail(f"--{name}: unknown {unknown[0]!r}; known: {', '.join(known)}")
    args.set.append(f"shard_num={args.shards}")
    return args


class Batch(NamedTuple):
    """Examples as CSR, with the batch's distinct features beside, and their numbers."""

    ptr: np.ndarray  # int64 (m + 1,)
    keys: np.ndarray  # uint64 (entries,)
    values: np.ndarray  # float32 (entries,)
    labels: np.ndarray  # float32 (m,)
    unique: np.ndarray  # uint64 (u,)
    places: np.ndarray  # int32 (entries,): keys = unique[places]


def batches(args: argparse.Namespace, spread: str) -> list[Batch]:
    """A pool of batches: values normal, labels by a coin."""
    rng = np.random.default_rng([1, SPREADS.index(spread)])
    scattered = rng.permutation(args.features).astype(np.uint64)
    pool = []
    for _ in range(POOL):
        count = args.batch * args.entries
        drawn = rng.random(count)
        if spread == "power":
            power = 1.0 - EXPONENT
            drawn = (1 + drawn * ((args.features + 1) ** power - 1)) ** (1 / power) - 1
            drawn /= args.features
        at = np.minimum((drawn * args.features).astype(np.int64), args.features - 1)
        keys = scattered[at]
        unique, places = number_keys(keys)
        pool.append(
            Batch(
                np.arange(0, count + 1, args.entries, dtype=np.int64),
                keys,
                rng.standard_normal(count, np.float32),
                (rng.random(args.batch) < 0.5).astype(np.float32),
                unique.copy(),
                places.copy(),
            )
        )
    return pool


class Head:
    """The small dense part: ReLU, one output, logistic loss.  Z -> dL/dZ, float32 (m, h)."""

    def __init__(self, hidden: int) -> None:
        rng = np.random.default_rng(2)
        self.weights = rng.standard_normal(hidden, np.float32) / np.float32(np.sqrt(hidden))

    def __call__(self, z: np.ndarray, labels: np.ndarray) -> np.ndarray:
        scores = np.maximum(z, 0) @ self.weights
        wrong = (1.0 / (1.0 + np.exp(-scores)) - labels).astype(np.float32) / len(labels)
        return wrong[:, None] * self.weights * (z > 0)


# --- the three ways: each is a generator that takes one step each time it is asked ----------------


def by_products(
    driver: Driver, table: Table, number: int, pool: list[Batch], wire: int
) -> Iterator[None]:
    """Sends entries, gets products, sends dL/dZ; the next batch's entries are sent before that."""
    client, head = driver.client, Head(table.dim)

    def ahead(step: int):
        batch = pool[step % len(pool)]
        return client.forward_async(number, batch.ptr, batch.keys, batch.values, table.dim, wire)

    step, coming, back = 0, ahead(0), None
    while True:
        forward, coming = coming, ahead(step + 1)
        dz = head(forward.wait(), pool[step % len(pool)].labels)
        if back is not None:
            back.wait()
        back = client.backward_async(forward, dz, wire)
        step += 1
        yield


def by_rows(
    driver: Driver, table: Table, number: int, pool: list[Batch], wire: int
) -> Iterator[None]:
    """Rows of the distinct features here, their gradients there; the next rows are asked for
    before this batch's are computed with."""
    client, head = driver.client, Head(table.dim)
    most = max(len(batch.unique) for batch in pool)
    rows = [np.empty((most, table.dim), np.float32) for _ in range(2)]
    gradients = [np.empty((most, table.dim), np.float32) for _ in range(2)]
    z = np.empty((len(pool[0].labels), table.dim), np.float32)

    def ahead(step: int):
        batch = pool[step % len(pool)]
        into = rows[step % 2][: len(batch.unique)]
        return client.pull_async(number, batch.unique, into, wire=wire, ahead=True)

    step, coming, pushes = 0, ahead(0), [None, None]
    while True:
        batch = pool[step % len(pool)]
        here = coming.wait()
        coming = ahead(step + 1)
        kernels.csr_product(batch.ptr, batch.places, batch.values, here, z)
        dz = head(z, batch.labels)
        if pushes[step % 2] is not None:
            pushes[step % 2].wait()
        gradient = gradients[step % 2][: len(batch.unique)]
        kernels.csr_gradients(batch.ptr, batch.places, batch.values, dz, gradient)
        pushes[step % 2] = client.push_async(number, batch.unique, gradient, wire=wire)
        step += 1
        yield


def by_whole(
    driver: Driver, table: Table, number: int, pool: list[Batch], wire: int, features: int
) -> Iterator[None]:
    """Pulls all of W, pushes its whole gradient, in one and the same array."""
    client, head = driver.client, Head(table.dim)
    every = np.arange(features, dtype=np.uint64)
    whole = np.empty((features, table.dim), np.float32)
    z = np.empty((len(pool[0].labels), table.dim), np.float32)
    step = 0
    while True:
        batch = pool[step % len(pool)]
        client.pull(number, every, whole, wire=wire)
        places = batch.keys.astype(np.int32)
        kernels.csr_product(batch.ptr, places, batch.values, whole, z)
        kernels.csr_gradients(batch.ptr, places, batch.values, head(z, batch.labels), whole)
        client.push(number, every, whole, wire=wire)
        step += 1
        yield


# --- measuring ------------------------------------------------------------------------------------


def take(driver: Driver, steps: Iterator[None], seconds: float, warm: int) -> dict:
    """Steps for this many seconds: steps/s, and bytes per step, both ways."""
    for _ in range(warm):
        next(steps)
    before, begin_s = driver.client.counters(), time.perf_counter()
    taken = 0
    while taken == 0 or time.perf_counter() - begin_s < seconds:
        next(steps)
        taken += 1
    spent_s, after = time.perf_counter() - begin_s, driver.client.counters()
    steps.close()
    driver.client.flush()
    return {
        "steps_per_s": taken / spent_s,
        **{
            f"{name}_per_step": (after[name] - before[name]) / taken
            for name in ("bytes_in", "bytes_out")
        },
    }


def measure(link, folder: Path, args: argparse.Namespace, hidden: int, spread: str) -> list[dict]:
    """All ways on one table, interleaved; a row each."""
    pool = batches(args, spread)
    link.cap(None)
    with session(link, folder, args.set) as driver:
        table = Table("first", hidden, access="adagrad", lr=0.05, wire="float32")
        driver.declare(table)
        number, _ = driver._find("first")
        fill(driver, args.features, hidden)
        link.cap(args.mbit)
        float32, float16 = WIRE_TYPES["float32"], WIRE_TYPES["float16"]
        common = (driver, table, number, pool)
        ways: dict[str, Callable[[], Iterator[None]]] = {
            "products": lambda: by_products(*common, float32),
            "products float16": lambda: by_products(*common, float16),
            "rows": lambda: by_rows(*common, float32),
            "whole": lambda: by_whole(*common, float32, args.features),
        }
        found: dict[str, list[dict]] = {way: [] for way in args.ways}
        for run in range(args.runs):
            for way in args.ways if run % 2 == 0 else args.ways[::-1]:
                figures = take(
                    driver, ways[way](), args.seconds, 0 if way == "whole" else WARM_STEPS
                )
                found[way].append(figures)
                say(f"h {hidden}, {spread}, {way}: {figures['steps_per_s']:.3g} steps/s")
    distinct = statistics.fmean(len(batch.unique) for batch in pool)
    return [summarise(way, found, args, hidden, spread, distinct) for way in args.ways]


def fill(driver: Driver, features: int, hidden: int) -> None:
    """Creates all rows: otherwise the first steps of one method would include that."""
    rng = np.random.default_rng(3)
    some = rng.standard_normal((FILL_ROWS, hidden), np.float32)
    for begin in range(0, features, FILL_ROWS):
        keys = np.arange(begin, min(features, begin + FILL_ROWS), dtype=np.uint64)
        driver.push("first", keys, some[: len(keys)])


def summarise(
    way: str, found: dict, args: argparse.Namespace, hidden: int, spread: str, distinct: float
) -> dict:
    """One method as one row: medians, and the speed of products relative to it."""

    def median(which: str, name: str) -> float:
        return statistics.median(run[name] for run in found[which])

    row = {
        "way": way, "hidden": hidden, "spread": spread, "features": args.features,
        "weight_bytes": args.features * hidden * 4, "batch": args.batch,
        "entries": args.entries, "distinct": round(distinct), "mbit": args.mbit,
        "shards": args.shards, "runs": args.runs,
        "steps_per_s": float(f"{median(way, 'steps_per_s'):.4g}"),
        "bytes_in_per_step": round(median(way, "bytes_in_per_step")),
        "bytes_out_per_step": round(median(way, "bytes_out_per_step")),
        "steps_per_s_runs": [float(f"{run['steps_per_s']:.4g}") for run in found[way]],
    }  # fmt: skip
    if "products" in found:
        faster = median("products", "steps_per_s") / median(way, "steps_per_s")
        row["products_faster"] = float(f"{faster:.4g}")
    return row


def targets(rows: list[dict]) -> list[dict]:
    """Targets for products at h = 400, uniform features, 2^20 rows; met or not."""
    found = []
    for way, bound in (("whole", 100.0), ("rows", 3.0)):
        for row in rows:
            if row["way"] == way and row["hidden"] == 400 and row["spread"] == "uniform":
                value = row.get("products_faster")
                met = None if value is None or row["features"] != 1 << 20 else value >= bound
                name = f"products / {way}, steps/s, h 400 >= {bound:g}"
                found.append({"target": name, "value": value, "met": met})
    return found


def table_of(rows: list[dict], verdicts: list[dict]) -> str:
    """Rows and targets as Markdown."""
    head = ("hidden", "spread", "distinct", "way", "bytes_in_per_step", "bytes_out_per_step",
            "steps_per_s", "products_faster")  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        cells = [row.get(name, "") for name in head]
        shown = [f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells]
        lines.append("| " + " | ".join(shown) + " |")
    lines += ["", "| target | value | |", "|---|---|---|"] if verdicts else []
    for verdict in verdicts:
        said = {True: "met", False: "missed", None: "other sizes"}[verdict["met"]]
        lines.append(f"| {verdict['target']} | {verdict['value']} | {said} |")
    return "\n".join(lines)


def main() -> None:
    """Make the link, measure, print."""
    args = arguments()
    rows = []
    try:
        with (
            tempfile.TemporaryDirectory(prefix="snailps-bench-", dir=args.scratch) as folder,
            linked() as link,
        ):
            for hidden in args.hidden:
                for spread in args.spread:
                    rows += measure(link, Path(folder), args, hidden, spread)
    except NotPermitted as error:
        fail(str(error))
    verdicts = targets(rows)
    about = {"machine": machine(), "date": datetime.date.today().isoformat()}
    if args.json:
        for row in [*rows, *verdicts]:
            print(json.dumps({**row, **about}), flush=True)
    if args.table or not args.json:
        print(table_of(rows, verdicts), flush=True)


if __name__ == "__main__":
    main()
