"""Local SGD on copies of rows: what models that push differences have in common.

    keys -> pull_copies (beside the training) -> load_copies -> padded arrays -> kernel threads
         -> push_copies: one delta a row, scaled where several workers train on a row at once

Here is how rows come, wait, and go; which rows a block needs and what is done to them is the
model's.

What holds
----------
* A pull goes ahead of pushes that still wait for the socket, so that rows come in while deltas go
  out.  It may lack what pushes add that were not done when it was called, and later ones.
* A push begins only when the one before it is done.  So when the pulls of block n are called, while
  block n - 1 trains, at most the push of block n - 2 is under way; that of n - 1 follows: its rows
  are corrected with these two, and no third one can be missing.
* A push's arrays stay as they are until then, which is longer than until it is done.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.config import JobSettings
from snailps.errors import ConfigError
from snailps.roles.worker import Pending, Results, Worker

BUCKET_KEY = 1 << 40
"""Key of hash bucket 0 in a table whose word i is key i: a vocabulary may grow, no bucket moves."""
BLOCK_BYTES_MAX = 6 << 20
"""A million words of English: larger blocks pull fewer rows a word, but take memory twice over."""
EXPORT_ROWS = 50_000

Floats = NDArray[np.float32]
Keys = NDArray[np.uint64]


class Shelf:
    """Row arrays kept for the next block: a fresh one costs a page fault every 4 KiB."""

    def __init__(self, make: Callable[[int], Floats]) -> None:
        self._make = make
        self._free: list[Floats] = []
        self._lent: dict[int, Floats] = {}
        self._lock = threading.Lock()

    def take(self, n: int) -> Floats:
        """An array of `n` rows; what is in it is left from before."""
        with self._lock:
            fitting = [array for array in self._free if len(array) >= n]
            if fitting:
                whole = min(fitting, key=len)
                self._free = [array for array in self._free if array is not whole]
            else:
                self._free = self._free[1:]  # too small for today's blocks
                whole = self._make(n + n // 8)
            view = whole[:n]
            self._lent[id(view)] = whole
            return view

    def give(self, view: Floats) -> None:
        """Takes an array back."""
        with self._lock:
            self._free.append(self._lent.pop(id(view)))


@dataclass(slots=True)
class Copies:
    """Rows that a block trains on: on their way, then as pulled (`bases`) and to train (`local`).

    One entry a table, in the order of `pull_copies`.
    """

    keys: Mapping[str, Keys]
    pulls: tuple[Pending, ...]
    bases: list[Floats]
    local: list[Floats]


class LocalSgd(Worker):
    """A worker that trains on copies of a block's rows and pushes what changed.

    Its tables must all be of one `dim` and of access method ``add``.  A subclass calls
    `set_up_copies` in its `setup`, `pull_copies` in `prepare`, the other two in `train`.
    """

    @classmethod
    def check(cls, settings: JobSettings) -> None:
        """Deltas of local SGD are added up: no other access method fits."""
        if settings.optimizer not in ("auto", "add"):
            raise ConfigError(
                f"optimizer: {settings.optimizer} does not fit {cls.__name__}, whose workers push "
                "differences: leave it at auto"
            )

    @classmethod
    def block_bytes(cls, settings: JobSettings, total_bytes: int, workers: int) -> int:
        """A tenth of an epoch; several workers, each with a block at work and one prefetched,
        hold a twentieth together.  At most 6 MiB.
        """
        share = total_bytes // 10 if workers == 1 else total_bytes // (40 * workers)
        return max(512, min(BLOCK_BYTES_MAX, share))

    def set_up_copies(self, dim: int) -> None:
        """Gets ready for rows of `dim` columns."""
        self._dim = dim
        self._pool = ThreadPoolExecutor(self.threads, "snailps-train")
        self._bases = Shelf(lambda n: np.empty((n, dim), np.float32))
        self._locals = Shelf(lambda n: kernels.padded(n, dim))
        self._pushes: list[tuple[Pending, ...]] = []  # the last two blocks', oldest first

    def pull_copies(self, keys: Mapping[str, Keys]) -> Copies:
        """Starts to pull rows: table -> keys, each of them once; the same tables each time."""
        pulls = [
            self.pull_async(table, wanted, self._bases.take(len(wanted)), ahead=True)
            for table, wanted in keys.items()
        ]
        return Copies(keys, tuple(pulls), [], [])

    def load_copies(self, copies: Copies) -> list[Floats]:
        """Waits for the rows; padded arrays (see `kernels.padded`) to train on, one a table."""
        for at, pull in enumerate(copies.pulls):
            copies.bases.append(pull.wait())
            for pushes in self._pushes:
                self.correct(pull, pushes[at])
        self._settle(1)  # the older one was done before the pulls of any later block were called
        for base in copies.bases:
            rows = self._locals.take(len(base))
            self._in_threads(kernels.copy_rows, base, rows)
            copies.local.append(rows)
        return copies.local

    def push_copies(
        self, copies: Copies, steps: Sequence[Floats], step_sizes: Sequence[float]
    ) -> None:
        """Starts to push what training changed.

        Parameters
        ----------
        copies : Copies
            Not to be used any more.
        steps : sequence of numpy.ndarray
            About how many gradients each row of each table got; float32.  Only used, and so may
            be empty otherwise, where there are several workers.
        step_sizes : sequence of float
            For each table, rate times curvature of one of them: see `share_of_delta`.
        """
        for at, (new, base) in enumerate(zip(copies.local, copies.bases, strict=True)):
            self._in_threads(_subtract, new[:, : self._dim], base)
            self._locals.give(new)
            if self.workers > 1:
                share = share_of_delta(steps[at] * np.float32(step_sizes[at]), self.workers)
                self._in_threads(_scale, base, share[:, None])
        for pushes in self._pushes:  # the last had all of this block's training to arrive
            for push in pushes:
                push.wait()
        self._pushes.append(
            tuple(
                self.push_async(table, keys, base)
                for (table, keys), base in zip(copies.keys.items(), copies.bases, strict=True)
            )
        )

    def finish(self) -> None:
        """Waits for the last pushes and takes their arrays back."""
        self._settle(0)
        self._pool.shutdown()

    def _settle(self, kept: int) -> None:
        """Waits for all pushes but the newest `kept`, and takes their arrays back."""
        while len(self._pushes) > kept:
            for push in self._pushes.pop(0):
                self._bases.give(push.wait())

    def _in_threads(self, function: Callable[..., None], *arrays: Floats) -> None:
        """Calls a row-wise kernel on row ranges, a thread each."""
        edges = np.linspace(0, len(arrays[0]), self.threads + 1).astype(int).tolist()
        tasks = [
            self._pool.submit(function, *(array[a:b] for array in arrays))
            for a, b in itertools.pairwise(edges)
        ]
        for task in tasks:
            task.result()


def share_of_delta(steps: Floats, workers: int) -> Floats:
    """Part of a row's delta to push when `workers` train on it at once.

    Think of a row's loss as a bowl: n steps of curvature h and rate r bring the row to a share
    ``c = exp(-h r n)`` of its distance from the minimum.  Workers that start from one copy all go
    ``1 - c`` of the way; their sum would go too far, while doing the same steps in turns goes
    ``1 - c^workers``.  So each pushes ``(1 - c^workers) / (workers (1 - c))`` of its delta: all of
    it for a rarely touched row, its share of a mean for one that has arrived.

    Parameters
    ----------
    steps : numpy.ndarray
        float32 (n,): ``h r n`` of each row, 0 or more.
    workers : int
        At least 1.

    Returns
    -------
    numpy.ndarray
        float32 (n,), from ``1 / workers`` to 1.
    """
    left = np.exp(-np.maximum(steps, 1e-3))
    share: Floats = ((1 - left**workers) / (workers * (1 - left))).astype(np.float32)
    return share


def key_ranges(results: Results, table: str, *ranges: tuple[int, int]) -> Iterator[Floats]:
    """Rows of key ranges (first, count) at the master, in pieces."""
    for first, count in ranges:
        for at in range(0, count, EXPORT_ROWS):
            size = min(EXPORT_ROWS, count - at)
            yield results.pull(table, np.arange(size, dtype=np.uint64) + np.uint64(first + at))


def _scale(rows: Floats, factor: Floats) -> None:
    rows *= factor


def _subtract(new: Floats, base: Floats) -> None:
    """``base = new - base``: what training changed."""
    np.subtract(new, base, out=base)
