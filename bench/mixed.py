"""One client process of the mixed pulls of transport.py; several run at once.

    address, file of keys -> connections -> "ready" -> "go" -> pulls of 100 or of all rows
        -> {"small_ms": [...], "big": n}

A thread and a client for each connection: all that takes time runs without the GIL.
"""

import contextlib
import json
import sys
import threading
import time

import numpy as np
from cluster import Ours, joined

from snailps import Table
from snailps.local.driver import Driver

SMALL_ROWS = 100


def work(
    driver: Driver,
    kind: str,
    keys: np.ndarray,
    rng: np.random.Generator,
    go: threading.Event,
    seconds: float,
    small_ms: list[float],
    big: list[int],
) -> None:
    """Pulls of one kind for some seconds, one request at a time."""
    table = Ours(driver, Table("mixed", 100), keys[:0])
    shuffled = [rng.permutation(keys)[None] for _ in range(8)]
    go.wait()
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        if kind == "big":
            table.pull(shuffled[rng.integers(len(shuffled))])
            big.append(1)
        else:
            at = rng.integers(len(keys) - SMALL_ROWS)
            small_ms.append(table.pull(shuffled[0][:, at : at + SMALL_ROWS].copy()) * 1e3)


def main() -> None:
    """address, file, kind, connections, seed, seconds."""
    address, file, kind, connections, seed, seconds = sys.argv[1:]
    keys = np.fromfile(file, np.uint64)
    go = threading.Event()
    small_ms: list[float] = []
    big: list[int] = []
    with contextlib.ExitStack() as stack:
        threads = []
        for i in range(int(connections)):
            driver = stack.enter_context(joined(address))
            rng = np.random.default_rng([int(seed), i])
            threads.append(
                threading.Thread(
                    target=work, args=(driver, kind, keys, rng, go, float(seconds), small_ms, big)
                )
            )
            threads[-1].start()
        print("ready", flush=True)
        sys.stdin.readline()
        go.set()
        for thread in threads:
            thread.join()
    print(json.dumps({"small_ms": small_ms, "big": len(big)}), flush=True)


if __name__ == "__main__":
    main()
