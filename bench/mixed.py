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
from snailps.roles.driver import Driver

BIG_ONE_IN = 10
SMALL_ROWS = 100


def work(driver: Driver, keys: np.ndarray, rng: np.random.Generator, go: threading.Event,
         seconds: float, small_ms: list[float], big: list[int]) -> None:  # fmt: skip
    """Pulls for some seconds, one request at a time."""
    small, large = (Ours(driver, Table("mixed", 100), keys[:0]) for _ in range(2))
    shuffled = [rng.permutation(keys)[None] for _ in range(8)]
    go.wait()
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        if rng.integers(BIG_ONE_IN) == 0:
            large.pull(shuffled[rng.integers(len(shuffled))])
            big.append(1)
        else:
            small_ms.append(small.pull(rng.choice(keys, (1, SMALL_ROWS))) * 1e3)


def main() -> None:
    """address, file, connections, seed, seconds."""
    address, file, connections, seed, seconds = sys.argv[1:]
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
                    target=work, args=(driver, keys, rng, go, float(seconds), small_ms, big)
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
