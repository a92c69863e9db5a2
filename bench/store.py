#!/usr/bin/env python3
"""The store alone: no network, no client, one shard in one thread.

    sizes -> ShardStore, pushed and pulled as a shard does it -> rates, bytes, pauses
          -> one JSON object (--json), else lines of text

============  =====================================================================================
``lookups``   random existing keys a second of CPU time, small and large table, interleaved
``memory``    bytes that a full table takes, over the bytes of its rows
``pauses``    time of each single push while a table grows; page faults and other processes apart
``deletion``  deleting and creating rows again: rates, and memory before and after
``machine``   without our code: first touch of huge pages, pauses of plain computing
============  =====================================================================================

Calls go through Python's `ShardStore.push`, which sorts keys by fragment as a client does: about
0.1 ms for 100 keys and 0.3 ms for 655 that a shard would not spend.

    python bench/store.py --json
    python bench/store.py --only lookups --scale 0.1
"""

import argparse
import gc
import json
import mmap
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from snailps import kernels
from snailps.abi.key_hash import fragment_of
from snailps.store._store import ShardStore

FRAG_NUM = 1024
HUGE = 2 << 20
CALL_KEYS = 8192  # keys a call: 256 KiB of values at dim 8, what one sub-frame holds
REQUEST_KEYS = 1_000_000  # keys that a client sorts by fragment at once
PART_KEYS = 655  # of 256 KiB at dim 100
PAUSE_MS = 5.0
BINS_MS = [0.125, 0.25, 0.5, 1, 2, 3, 4, 5, 7, 10, 20, 50]
ROUNDS = 7


def say(text: str) -> None:
    """Progress goes to standard error: standard output is for the figures."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def from_proc(file: str, field: str) -> int:
    """Bytes of one line of a file in /proc that counts in kB."""
    for line in Path("/proc", file).read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"bench: no {field} in /proc/{file}: this needs Linux")


def make_store(dim: int) -> ShardStore:
    """A shard that owns every fragment, and table 0 of it: access method add, zeros at first."""
    store = ShardStore(FRAG_NUM, kernels.row_ops())
    store.own(range(FRAG_NUM))
    store.add_table(0, dim, 0, 0, 0.0, 1, ())
    return store


def fill(store: ShardStore, dim: int, rows: int, call: int = 65536) -> None:
    """Creates rows 0 .. rows - 1; the hash scatters them."""
    ones = np.ones((call, dim), np.float32)
    for seq, start in enumerate(range(0, rows, call), start=1):
        keys = np.arange(start, min(start + call, rows), dtype=np.uint64)
        store.push(0, 1, seq, keys, ones[: len(keys)])


@contextmanager
def undisturbed() -> Iterator[None]:
    """Disables garbage collection."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def enough_memory(needed: float, figures: dict[str, Any]) -> bool:
    """Whether it fits into two thirds of the free memory; if not, notes that in `figures`."""
    free = from_proc("meminfo", "MemAvailable")
    if needed > free * 2 / 3:
        figures["skipped"] = f"needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
    return "skipped" not in figures


# --- lookups -------------------------------------------------------------------------------------


def shuffled_rate(store: ShardStore, asked: np.ndarray) -> float:
    """Keys a second of CPU time, in calls of CALL_KEYS keys of any fragments."""
    begun = time.thread_time()
    for start in range(0, len(asked), CALL_KEYS):
        store.pull(0, asked[start : start + CALL_KEYS])
    return len(asked) / (time.thread_time() - begun)


def grouped_rate(store: ShardStore, asked: np.ndarray) -> float:
    """The same in one call a fragment, as a shard serves a large request."""
    owners = fragment_of(asked, FRAG_NUM)
    order = np.argsort(owners, kind="stable")
    bounds = np.searchsorted(owners[order], np.arange(1, FRAG_NUM))
    groups = np.split(asked[order], bounds)
    begun = time.thread_time()
    for keys in groups:
        store.pull(0, keys)
    return len(asked) / (time.thread_time() - begun)


def lookups(scale: float) -> dict[str, Any]:
    """Small and large table, interleaved, keys in random order and grouped by fragment."""
    dim, small, large = 8, 100_000, int(20_000_000 * scale)
    figures: dict[str, Any] = {"dim": dim, "rows_small": small, "rows_large": large}
    if not enough_memory(large * (8 + 4 * dim + 25), figures):
        return figures
    stores = {"small": make_store(dim), "large": make_store(dim)}
    fill(stores["small"], dim, small)
    fill(stores["large"], dim, large)
    rng = np.random.default_rng(1)
    rates: dict[str, list[float]] = {}
    for turn in range(ROUNDS):
        for name in ("small", "large") if turn % 2 else ("large", "small"):
            rows = {"small": small, "large": large}[name]
            asked = rng.integers(0, rows, REQUEST_KEYS, dtype=np.uint64)
            rates.setdefault(f"shuffled_{name}", []).append(shuffled_rate(stores[name], asked))
            rates.setdefault(f"grouped_{name}", []).append(grouped_rate(stores[name], asked))
    for name, found in rates.items():
        figures[f"{name}_keys_per_s"] = round(statistics.median(found))
    for order in ("shuffled", "grouped"):
        pairs = zip(rates[f"{order}_large"], rates[f"{order}_small"], strict=True)
        figures[f"{order}_ratio"] = round(statistics.median(a / b for a, b in pairs), 3)
    return figures


# --- memory --------------------------------------------------------------------------------------


def memory(scale: float) -> dict[str, Any]:
    """Memory by the store's own count and by the system's, relative to the bytes of the weights."""
    rows = int(10_000_000 * scale)
    found: dict[str, Any] = {"rows": rows}
    for dim in (100, 8, 1):
        figures: dict[str, Any] = {}
        found[f"dim_{dim}"] = figures
        if not enough_memory(rows * (8 + 4 * dim + 25) * 1.05, figures):
            continue
        before = from_proc("self/status", "VmRSS")
        store = make_store(dim)
        fill(store, dim, rows)
        taken = {"store": store.bytes, "resident": from_proc("self/status", "VmRSS") - before}
        for name, count in taken.items():
            figures[f"{name}_bytes_per_row"] = round(count / rows, 2)
            figures[f"{name}_over_rows"] = round(count / (rows * 4 * dim), 4)
        del store
    return found


# --- pauses --------------------------------------------------------------------------------------


def histogram(times_ms: np.ndarray) -> dict[str, int]:
    """Counts by upper limit in ms; the last bin has none."""
    counts = np.bincount(np.searchsorted(BINS_MS, times_ms), minlength=len(BINS_MS) + 1)
    names = [f"<={limit:g}" for limit in BINS_MS] + [f">{BINS_MS[-1]:g}"]
    return {name: int(n) for name, n in zip(names, counts, strict=True) if n}


def summary(times_ms: np.ndarray) -> dict[str, Any]:
    """Median, tail and worst of some times in ms."""
    if not len(times_ms):
        return {"count": 0}
    p50, p999 = np.quantile(times_ms, [0.5, 0.999])
    return {
        "count": len(times_ms),
        "p50_ms": round(float(p50), 3),
        "p99.9_ms": round(float(p999), 3),
        "worst_ms": round(float(times_ms.max()), 3),
        "over_5ms": int((times_ms > PAUSE_MS).sum()),
    }


def grow(dim: int, rows: int, keys_a_push: int) -> dict[str, Any]:
    """Successive pushes of new keys, each timed."""
    store = make_store(dim)
    ones = np.ones((keys_a_push, dim), np.float32)
    pushes = rows // keys_a_push
    wall, cpu = np.empty(pushes), np.empty(pushes)
    faults, switched = np.empty(pushes, np.int64), np.empty(pushes, np.int64)
    with undisturbed():
        used = resource.getrusage(resource.RUSAGE_THREAD)
        for i in range(pushes):
            keys = np.arange(i * keys_a_push, (i + 1) * keys_a_push, dtype=np.uint64)
            begun, cpu_begun = time.perf_counter_ns(), time.thread_time_ns()
            store.push(0, 1, i + 1, keys, ones)
            cpu[i] = (time.thread_time_ns() - cpu_begun) / 1e6
            wall[i] = (time.perf_counter_ns() - begun) / 1e6
            last, used = used, resource.getrusage(resource.RUSAGE_THREAD)
            faults[i] = used.ru_minflt - last.ru_minflt
            switched[i] = used.ru_nivcsw - last.ru_nivcsw
    alone = switched == 0
    return {
        "rows": store.rows(0),
        "wall": summary(wall),
        "wall_histogram": histogram(wall),
        "cpu": summary(cpu),
        "cpu_histogram": histogram(cpu),
        # Another process took the core during some pushes, which is not the store's time.
        "undisturbed_wall": summary(wall[alone]),
        # Rehashing, copying and applying alone: no page was touched for the first time.
        "without_faults_cpu": summary(cpu[faults == 0]),
        "with_faults_cpu": summary(cpu[faults > 0]),
        "faults_of_a_push_max": int(faults.max()),
        "total_s": round(float(wall.sum()) / 1e3, 1),
    }


def pauses(scale: float) -> dict[str, Any]:
    """A table grows by pushes of 100 and of 655 new keys."""
    rows = int(50_000_000 * scale)
    found: dict[str, Any] = {}
    for dim in (1, 8):
        for keys_a_push in (PART_KEYS, 100):
            figures: dict[str, Any] = {}
            found[f"dim_{dim}_keys_{keys_a_push}"] = figures
            if enough_memory(rows * (8 + 4 * dim + 25), figures):
                say(f"pauses: dim {dim}, {rows} rows, {keys_a_push} keys a push")
                figures |= grow(dim, rows, keys_a_push)
    return found


# --- deletion ------------------------------------------------------------------------------------


def deletion(scale: float) -> dict[str, Any]:
    """Ten rounds: a tenth of the rows is deleted, as many are created; then all are deleted."""
    dim, rows = 8, int(5_000_000 * scale)
    store = make_store(dim)
    fill(store, dim, rows)
    full = store.bytes
    tenth = rows // 10
    ones = np.ones((CALL_KEYS, dim), np.float32)
    deleted_s = created_s = 0.0
    seq = 1 << 40
    for turn in range(10):
        gone = np.arange(turn, rows, 10, dtype=np.uint64)[:tenth]
        begun = time.perf_counter()
        store.delete(0, gone)
        deleted_s += time.perf_counter() - begun
        for start in range(0, tenth, CALL_KEYS):
            fresh = gone[start : start + CALL_KEYS] + np.uint64(rows)
            begun = time.perf_counter()
            seq += 1
            store.push(0, 1, seq, fresh, ones[: len(fresh)])
            created_s += time.perf_counter() - begun
    figures: dict[str, Any] = {
        "rows": store.rows(0),
        "deleted_per_s": round(10 * tenth / deleted_s),
        "created_again_per_s": round(10 * tenth / created_s),
        "bytes_after_over_before": round(store.bytes / full, 4),
    }
    begun = time.perf_counter()
    store.delete(0, store.keys(0))
    figures["all_deleted_s"] = round(time.perf_counter() - begun, 3)
    for start in range(0, rows, CALL_KEYS):
        fresh = np.arange(start, min(start + CALL_KEYS, rows), dtype=np.uint64) + np.uint64(1 << 50)
        seq += 1
        store.push(0, 1, seq, fresh, ones[: len(fresh)])
    figures["bytes_filled_again_over_before"] = round(store.bytes / full, 4)
    return figures


# --- the machine's share -------------------------------------------------------------------------


def plain_work(count: int) -> np.ndarray:
    """CPU ms of each of `count` equal pieces of computing that touches no new memory."""
    numbers = np.random.default_rng(1).integers(0, 1 << 30, 60_000)
    work = numbers.copy()
    took = np.empty(count)
    for i in range(count):
        begun = time.thread_time_ns()
        work[:] = numbers
        work.sort()
        took[i] = (time.thread_time_ns() - begun) / 1e6
    return took


def machine(scale: float) -> dict[str, Any]:
    """First touch of each huge page of fresh memory, twice, and interruptions of plain computing.

    In a virtual machine a page may have to come from the host first; the second time it is there
    already.  Time that the host takes from the virtual machine counts as CPU time.
    """
    found: dict[str, Any] = {"plain_work_cpu": summary(plain_work(int(150_000 * scale)))}
    length = max(int((512 << 20) * scale) // HUGE, 8) * HUGE
    for name in ("huge_pages_first", "huge_pages_again"):
        area = mmap.mmap(-1, length + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        area.madvise(mmap.MADV_HUGEPAGE)
        took = np.empty(length // HUGE)
        for i in range(len(took)):
            begun = time.perf_counter_ns()
            area[i * HUGE] = 1
            took[i] = (time.perf_counter_ns() - begun) / 1e6
        found[name] = summary(took)
        area.close()
    return found


PARTS = {
    "machine": machine,
    "lookups": lookups,
    "memory": memory,
    "pauses": pauses,
    "deletion": deletion,
}


def main() -> None:
    """Run the parts asked for and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; may be repeated")
    parser.add_argument("--scale", type=float, default=1.0, help="of all large tables")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    asked = parser.parse_args()
    figures: dict[str, Any] = {"build": kernels.BUILD, "frag_num": FRAG_NUM}
    for name in asked.only or PARTS:
        say(name)
        figures[name] = PARTS[name](asked.scale)
    print(json.dumps(figures, indent=None if asked.json else 2))


if __name__ == "__main__":
    main()
