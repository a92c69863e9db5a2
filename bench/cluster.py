"""A table of a snailps cluster as the benchmarks drive it.

    address of a master -> joined -> Driver (one compiled client, as a worker has)
    Driver, Table, keys -> Ours -> pull, push -> seconds

Only the calls are timed, not the preparation of keys and arrays.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

# The tree of this file, for this process and its children.
ROOT = str(Path(__file__).resolve().parent.parent)
sys.path.insert(0, ROOT)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))

from snailps import Table  # noqa: E402
from snailps.config import ClusterSettings, RawConfig  # noqa: E402
from snailps.local.driver import Driver  # noqa: E402

LOAD_ROWS = 200_000
JOIN_S = 30.0


@contextlib.contextmanager
def joined(address: str) -> Iterator[Driver]:
    """A driver of the cluster at `address`: like a worker, it has one client of its own."""
    raw = RawConfig.from_mapping({"master_addr": address, "log_level": "warning"}, "bench")
    driver = Driver(raw.build(ClusterSettings))
    driver.join()
    try:
        if not driver.routed.wait(JOIN_S) or driver.ended.is_set():
            sys.exit(f"bench: no route from the master at {address}: {driver.verdict.text}")
        yield driver
    finally:
        driver.close()


class Ours:
    """A table of a snailps cluster, with the interface of `Bare`."""

    def __init__(self, driver: Driver, table: Table, keys: np.ndarray) -> None:
        driver.declare(table)
        self._driver, self._table = driver, table
        self._rows = np.empty((0, table.dim), np.float32)
        for at in range(0, len(keys), LOAD_ROWS):
            some = keys[at : at + LOAD_ROWS]
            content = np.arange(at, at + len(some)) % 1000
            values = np.repeat(content.astype(np.float32)[:, None], table.dim, axis=1)
            driver.push(table.name, some, values)

    def pull(self, keys: np.ndarray) -> float:
        """One pull for each row of `keys` into one and the same array, as a worker's blocks do."""
        rows = self._array(keys.shape[1])
        begin_s = time.perf_counter()
        for some in keys:
            self._driver.pull(self._table.name, some, rows)
        return time.perf_counter() - begin_s

    def push(self, keys: np.ndarray) -> float:
        """One push of ones for each row of `keys`."""
        rows = self._array(keys.shape[1])
        rows[:] = 1
        begin_s = time.perf_counter()
        for some in keys:
            self._driver.push(self._table.name, some, rows)
        return time.perf_counter() - begin_s

    @property
    def sum(self) -> float:
        """Bytes of the rows of the last request."""
        return float(self._rows.sum(dtype=np.float64))

    def _array(self, n: int) -> np.ndarray:
        if len(self._rows) != n:
            self._rows = np.zeros((n, self._table.dim), np.float32)
        return self._rows
