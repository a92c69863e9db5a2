"""Decides the sizes of the partitions of a chunk, by the speeds of the workers that get them.

checkouts: units, seconds -> speed of a worker -> sizes, where equal ones would take much longer

Other sizes than the last chunk's cost a barrier between the two, in which fast workers wait. So
sizes stay unless the gain is clear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

RATED_S, RATED_S_MAX = 0.5, 60.0
"""Seconds of checkouts from which a speed is made: fewer give none, of more the last ones count."""
UNEVEN, UNSURE = 1.2, 0.25
"""Sizes change where a chunk takes `UNEVEN` times the least possible. `UNSURE` is added for speeds
measured over `RATED_S`; it falls with the root of the seconds measured."""
SIZE_MEAN = 16
"""Mean size of partitions that differ, an integer each: the resolution of sizes."""
SIZE_MAX = 2.0
"""Largest size, as a multiple of the mean: a worker holds the pairs of its partition in memory."""


class Speeds:
    """What each worker has trained, in units and seconds of its checkouts."""

    def __init__(self, cores_of: Callable[[int], float]) -> None:
        self._cores_of = cores_of  # that a worker may keep busy
        self._work: dict[int, tuple[float, float]] = {}

    def trained(self, node: int, units: int, seconds: float) -> None:
        """A worker has trained a checkout."""
        before, spent = self._work.get(node, (0.0, 0.0))
        share = min(1.0, max(0.0, RATED_S_MAX - seconds) / max(spent, RATED_S))
        self._work[node] = before * share + units, spent * share + seconds

    def forget(self, node: int) -> None:
        self._work.pop(node, None)

    def of(self, node: int) -> float:
        """Units per second of a worker; 0: not known."""
        units, seconds = self._work.get(node, (0.0, 0.0))
        return units / seconds if seconds >= RATED_S else 0.0

    def sizes(
        self,
        owners: Mapping[int, int],  # part -> the worker that is to have it
        parts: int,
        # sizes in the chunk before, if it had as many parts; None: it had more or fewer
        before: tuple[int, ...] | None,
    ) -> tuple[int, ...]:
        """Sizes of the partitions, so that each takes the same time; empty: all alike."""
        workers = [owners.get(part, 0) for part in range(parts)]
        sizes = np.asarray(before or (SIZE_MEAN,) * parts, np.float64)
        if before is None:  # a worker without a speed is assumed to be as fast as its cores
            assumed = np.array([self._cores_of(worker) for worker in workers], np.float64)
        else:  # ... or as the worker whose part it takes
            assumed = sizes
        measured = np.array([self.of(worker) for worker in workers])
        rated = measured > 0
        clear = UNEVEN
        if rated.any():
            assumed = assumed * (measured[rated].sum() / assumed[rated].sum())
            seconds = min(self._work[workers[part]][1] for part in np.flatnonzero(rated).tolist())
            clear += UNSURE * (RATED_S / seconds) ** 0.5
        elif before is not None:
            return before
        speeds = np.where(rated, measured, assumed)
        best = _sizes_for(speeds)
        if _time(sizes, speeds) < clear * _time(best, speeds):
            return before or ()
        return tuple(best.tolist()) if len(set(best.tolist())) > 1 else ()


def _time(sizes: NDArray[Any], speeds: NDArray[np.float64]) -> float:
    """Time of a chunk, in any unit: of the partition that takes longest."""
    return float((sizes / speeds).max() / sizes.sum())


def _sizes_for(speeds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole sizes in proportion to speeds, none above `SIZE_MAX` of their mean."""
    shares = speeds / speeds.sum()
    most = SIZE_MAX / len(speeds)
    while (shares > most * (1 + 1e-9)).any():
        capped = shares >= most
        remaining = 1.0 - most * np.count_nonzero(capped)
        shares = np.where(capped, most, shares * (remaining / shares[~capped].sum()))
    whole: NDArray[np.int64] = np.floor(shares * SIZE_MEAN * len(speeds) + 0.5).astype(np.int64)
    return np.maximum(1, whole)
