"""Sizes of the partitions of a chunk by the speeds of the workers that are to have them.

checkouts: units, seconds -> speed of a worker -> sizes, where all alike would take much longer
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

RATED_S, RATED_S_MAX = 0.5, 60.0
"""Seconds of checkouts of which a speed is made: with fewer it is none, of more the last ones."""
UNEVEN, UNSURE = 1.2, 0.25
"""Time of a chunk over the least possible from which on sizes change, which costs a barrier.
`UNSURE` is added for speeds of `RATED_S`, and less of it as the root of their seconds grows."""
SIZE_MEAN = 16
"""Mean size of partitions that differ."""
SIZE_MAX = 2.0
"""The largest, of the mean: a worker has pairs of so much text in memory."""


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
        """Units a second of a worker; 0: not known."""
        units, seconds = self._work.get(node, (0.0, 0.0))
        return units / seconds if seconds >= RATED_S else 0.0

    def sizes(
        self,
        owners: Mapping[int, int],  # part -> who is to have it
        parts: int,
        before: tuple[int, ...] | None,  # sizes of as many as now; None: there were more or fewer
    ) -> tuple[int, ...]:
        """Sizes of partitions, so that workers need the same time for each; empty: all alike."""
        old = np.asarray(before or (SIZE_MEAN,) * parts, np.float64)
        speeds = np.array([self.of(owners.get(part, 0)) for part in range(parts)])
        known = speeds > 0
        if before is not None and not known.any():
            return before
        # A worker that is new, in the place of another one, is taken to be as fast; where there are
        # more or fewer places, to be as fast as its cores.
        guess = old
        if before is None:
            cores = [self._cores_of(owners.get(part, 0)) for part in range(parts)]
            guess = np.array(cores, np.float64)
        uneven = UNEVEN
        if known.any():
            guess = guess * (speeds[known].sum() / guess[known].sum())
            seconds = min(self._work[owners[part]][1] for part in np.flatnonzero(known).tolist())
            uneven += UNSURE * (RATED_S / seconds) ** 0.5
        speeds = np.where(known, speeds, guess)
        new = _sizes_for(speeds)
        if (old / speeds).max() / old.sum() < uneven * (new / speeds).max() / new.sum():
            return before or ()
        return tuple(new.tolist()) if len(set(new.tolist())) > 1 else ()


def _sizes_for(speeds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole sizes in proportion to speeds, none above `SIZE_MAX` of their mean."""
    shares = speeds / speeds.sum()
    most = SIZE_MAX / len(speeds)
    while (shares > most * (1 + 1e-9)).any():
        capped = shares >= most
        rest = 1.0 - most * np.count_nonzero(capped)
        shares = np.where(capped, most, shares * (rest / shares[~capped].sum()))
    whole: NDArray[np.int64] = np.floor(shares * SIZE_MEAN * len(speeds) + 0.5).astype(np.int64)
    return np.maximum(1, whole)
