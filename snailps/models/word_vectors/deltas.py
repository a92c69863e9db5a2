"""Arrays of rows on their way between server and kernel, and how much of a delta to push.

    Shelf.take(n) -> array -> pull, train, push -> Shelf.give(array)

No keys, no words.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

CURVATURE = 0.1
"""Of a row's loss, a gradient; see `share_of_delta`.  2 workers, 17 M words, subwords: WS-353,
SimLex, analogies .540 .253 .450 without scaling, .594 .295 .470 at 0.01, .600 .304 .484 at 0.1,
.593 .303 .487 at 0.3; one worker .614 .310 .474."""


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
