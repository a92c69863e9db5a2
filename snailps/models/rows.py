"""Rows of one table at a worker: kept from block to block (`kept_rows`), or copied for one
(`copied_rows`).

    numbers of a block -> distinct -> keys -> find, ask: a place each
                                                        (ahead, in preparing threads)
    places -> ready: rows -> spans of examples, with `exchange` behind each -> close

`block_trainer` makes these calls; a model sees places and rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from snailps.dataclass import dataclass
from snailps.models.local_sgd import Floats, Keys, LocalSgd

Ids = NDArray[np.int32]
Trained = tuple[Floats, ...]
"""Rows of a table, as `RowLayout.make` lays them out: one array, or one a part."""
Scale = Callable[[Trained, Floats], None]
"""``scale(trained, deltas)`` turns deltas of packed rows into those to push."""

NO_KEYS, NO_PLACES = np.empty(0, np.uint64), np.empty(0, np.int32)
WHOLE = 1 << 30
"""A span of all examples of a block."""
MARKED_A_KEY = 12
"""Size of a table of marks, a number to look up, beyond which sorting is faster."""


def distinct(
    parts: Sequence[NDArray[np.integer]], bound: int
) -> tuple[NDArray[np.integer], list[Ids]]:
    """Distinct numbers of one array or more, below `bound`, ascending; the place of each entry."""
    sizes = [len(part) for part in parts]
    if bound > MARKED_A_KEY * sum(sizes):
        used, places = np.unique(np.concatenate(parts), return_inverse=True)
        return used, np.split(places.astype(np.int32), np.cumsum(sizes)[:-1])
    parts = [part.astype(np.int64, copy=False) for part in parts]  # NumPy would at each use
    used = _marked(parts, bound)
    place = np.empty(bound, np.int32)
    place[used] = np.arange(len(used), dtype=np.int32)
    return used, [place[part] for part in parts]


def ascending(places: Ids, bound: int) -> Ids:
    """Places below `bound`, each there once, ascending: memory is visited in order."""
    if bound > MARKED_A_KEY * len(places):
        ordered = np.sort(places)
        return ordered[np.diff(ordered, prepend=-1) > 0]
    return _marked([places], bound).astype(np.int32)


def _marked(parts: Sequence[NDArray[np.integer]], bound: int) -> NDArray[np.int64]:
    """Numbers below `bound` that are in some of the arrays, ascending."""
    seen = np.zeros(bound, np.bool_)
    for part in parts:
        seen[part] = True
    return np.flatnonzero(seen)


@dataclass(slots=True)
class Lookup:
    """Places of distinct keys of a block, which `ask` completes.

    Until then those at the indices `missing` are -1; `touched` are places that no block of this
    period has used.
    """

    keys: Keys
    places: Ids
    missing: Ids
    touched: Ids


class Rows(ABC):
    """Rows of one table, for the blocks of a worker in turn."""

    keeps: ClassVar[bool]
    """Whether a key keeps its place in later blocks, as long as `numbering` is the same."""
    numbering = 0

    def __init__(self, sgd: LocalSgd, table: str) -> None:
        self._sgd, self._table = sgd, table

    @property
    def are_shared(self) -> bool:
        """Whether other workers push to the rows, too.

        An only worker's deltas go as they are: without estimates, bases and answers it is faster
        and has room for more rows (docs/design/shared-rows.md).
        """
        return self._sgd.worker.workers > 1

    def _project(self, keys: Keys, packed: Floats) -> None:
        """Make of pulled rows what the model reads; a single worker's deltas are from what servers
        have, so that they end where it does.
        """
        if self._sgd.project is not None and self.are_shared:
            self._sgd.in_threads(self._sgd.project, keys, packed)

    @property
    def exchanges(self) -> bool:
        """Whether steps of other workers come between spans, so that own steps are counted."""
        return False

    @property
    def sends(self) -> bool:
        """Whether a closed period has rows left for `send_some`."""
        return False

    # --- in preparing threads, blocks in their order --------------------------------------------

    @abstractmethod
    def find(self, keys: Keys) -> Lookup:
        """Places of distinct keys of the next block; several threads may call it at once."""

    def find_again(self, places: Ids) -> Lookup:
        """Like `find`, for keys with known places in `numbering`."""
        raise NotImplementedError

    @abstractmethod
    def ask(self, found: Sequence[Lookup], size: float = np.inf) -> Any:
        """Complete the places of a block, and start to pull its rows; `size`: part of a period."""

    # --- in the training thread -----------------------------------------------------------------

    @abstractmethod
    def ready(self, asked: Any) -> Trained:
        """Wait for a block's rows, to be trained where they lie."""

    def saw(
        self, places: Ids, examples: int, share: float = 1.0, weights: Floats | None = None
    ) -> None:
        """Count steps on rows of the block that begins, of kept rows that others train, too.

        `places` (each as often as it gets a step, or with `weights` steps) are of a sample: a part
        `share` of the block, of `examples` examples in the unit of `exchange`.
        """
        return

    def span(self) -> int:
        """Examples to train before the next `exchange`; the rows are ready for them."""
        return WHOLE

    def exchange(self, examples: int) -> None:
        """Exchange rows with other workers, after so many examples; no kernel may run."""
        return

    def send_some(self) -> bool:
        """Send some rows of a closed period beside kernels; False if there are none."""
        return False

    @abstractmethod
    def close(self, asked: Any, scale: Scale | None = None) -> bool:
        """Push at the end of a block, if a period ends with it; whether one does."""

    @abstractmethod
    def flush(self) -> None:
        """Push all deltas, wait until they are acknowledged, and give arrays back."""

    def begin_known(self) -> None:
        """From now on servers may have rows that are new here."""
        return

    def workers_changed(self) -> None:
        """Other workers have come or gone, as many as before or not."""
        if self.are_shared:
            self.begin_known()
