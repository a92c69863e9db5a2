"""The rows of one table at a worker: kept from block to block, or copied for one block.

    numbers of a block -> distinct -> keys -> find, ask: a place each
                                                        (ahead, in preparing threads)
    places -> ready: rows -> spans of examples, with `exchange` after each -> close

Owns the protocol of these calls (`Rows`), and what follows from other workers on the same rows
(`RowSharing`); `kept_rows` and `copied_rows` are its two kinds.  `block_trainer` makes the calls,
and a model sees places and rows alone.
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
"""Rows of a table as `RowLayout.make` lays them out: one array, or an array for each part."""
Scale = Callable[[Trained, Floats], None]
"""``scale(trained, deltas)`` changes deltas of packed rows, in place, into the deltas to push."""

NO_KEYS, NO_PLACES = np.empty(0, np.uint64), np.empty(0, np.int32)
WHOLE = 1 << 30
"""A span that has all examples of a block."""
MARKED_A_KEY = 12
"""Marks per number looked up beyond which sorting is faster than a table of marks."""


@dataclass(frozen=True, slots=True)
class RowSharing:
    """What a worker does with its rows, given who else trains them."""

    others_push: bool
    """Other workers push to the rows.  Then a row in memory needs its base, what servers have is
    projected where it is read, and deltas are pushed by share.  Without others, deltas go as they
    are: without estimates, bases and answers a worker is faster and has room for more rows
    (docs/lab/shared-rows.md, "Memory")."""
    memory_bytes: int
    """Memory of one table's kept rows and their numbering."""


SHARED = RowSharing(others_push=True, memory_bytes=512 << 20)
ALONE = RowSharing(others_push=False, memory_bytes=1 << 30)
"""Twice the memory: rows that just do not fit would be pulled again and again.  It saves 10.9 to
8.1 s of processor time with the classifier's pairs of words."""


def distinct(
    parts: Sequence[NDArray[np.integer]], bound: int
) -> tuple[NDArray[np.integer], list[Ids]]:
    """The distinct numbers below `bound` in all arrays, ascending, and each entry's place there."""
    sizes = [len(part) for part in parts]
    if bound > MARKED_A_KEY * sum(sizes):
        used, places = np.unique(np.concatenate(parts), return_inverse=True)
        return used, np.split(places.astype(np.int32), np.cumsum(sizes)[:-1])
    parts = [part.astype(np.int64, copy=False) for part in parts]  # not at each use
    used = _marked(parts, bound)
    place = np.empty(bound, np.int32)
    place[used] = np.arange(len(used), dtype=np.int32)
    return used, [place[part] for part in parts]


def ascending(places: Ids, bound: int) -> Ids:
    """The distinct places below `bound`, ascending, so that memory is visited in order."""
    if bound > MARKED_A_KEY * len(places):
        ordered = np.sort(places)
        return ordered[np.diff(ordered, prepend=-1) > 0]
    return _marked([places], bound).astype(np.int32)


def _marked(parts: Sequence[NDArray[np.integer]], bound: int) -> NDArray[np.int64]:
    """Numbers below `bound` that are in any of the arrays, ascending."""
    seen = np.zeros(bound, np.bool_)
    for part in parts:
        seen[part] = True
    return np.flatnonzero(seen)


@dataclass(slots=True)
class RowPlaces:
    """The places of distinct keys of a block.

    Places at the indices `missing` are -1 until `ask` gives them; `touched` are the places that no
    earlier block of this period has used.
    """

    keys: Keys
    places: Ids
    missing: Ids
    touched: Ids


class Rows(ABC):
    """Rows of one table, for one block of a worker after the other."""

    keeps: ClassVar[bool]
    """Whether a key has the same place in later blocks, as long as `numbering` is the same."""
    numbering = 0
    """Changes when places are given anew."""

    def __init__(self, sgd: LocalSgd, table: str) -> None:
        self._sgd, self._table = sgd, table

    @property
    def sharing(self) -> RowSharing:
        """By the number of workers now; it changes between two blocks only."""
        return SHARED if self._sgd.worker.workers > 1 else ALONE

    def _project(self, keys: Keys, packed: Floats) -> None:
        """Turn pulled rows into what the model reads (`RowUpdate.READ`), in place.

        A single worker's rows stay as they are: it has trained them, and its deltas start from what
        servers have, so that servers end with its rows to the bit.
        """
        if self._sgd.project is not None and self.sharing.others_push:
            self._sgd.in_threads(self._sgd.project, keys, packed)

    @property
    def exchanges(self) -> bool:
        """Whether rows are exchanged between spans, so that this worker's steps are counted."""
        return False

    @property
    def sends(self) -> bool:
        """Whether a closed period has left rows to `send_some`."""
        return False

    # --- in preparing threads, blocks in their order --------------------------------------------

    @abstractmethod
    def find(self, keys: Keys) -> RowPlaces:
        """Look up the places of distinct keys of the next block; several threads may do so."""

    def find_again(self, places: Ids) -> RowPlaces:
        """Like `find`, for keys whose places in this `numbering` the caller has kept."""
        raise NotImplementedError

    @abstractmethod
    def ask(self, found: Sequence[RowPlaces], size: float = np.inf) -> Any:
        """Complete the places of a block, and start to pull its rows.

        `size` is the part of a push period that the block is.
        """

    # --- in the training thread -----------------------------------------------------------------

    @abstractmethod
    def ready(self, asked: Any) -> Trained:
        """Wait for a block's rows, which are trained in place."""

    def saw(
        self, places: Ids, examples: int, share: float = 1.0, weights: Floats | None = None
    ) -> None:
        """Count the steps that the block to be trained makes on rows, if others train them, too.

        `places` lists each row as often as it gets a step (or once, with `weights` steps) in a
        sample of the block: a part `share` of it, `examples` in the unit of `exchange`.
        """
        return

    def span(self) -> int:
        """Examples to train before the next `exchange`."""
        return WHOLE

    def exchange(self, examples: int) -> None:
        """Exchange rows with other workers, after `examples` more; no kernel may be running."""
        return

    def send_some(self) -> bool:
        """Send some rows of a closed period, beside kernels; False: none is left."""
        return False

    @abstractmethod
    def close(self, asked: Any, scale: Scale | None = None) -> bool:
        """End a block; push its deltas if a period ends with it.  Returns whether one does."""

    def push_all(self) -> None:
        """Push all deltas in the middle of a training, and wait until servers have them."""
        return

    @abstractmethod
    def flush(self) -> None:
        """Push all deltas, wait until servers have acknowledged them, and give arrays back."""

    def begin_known(self) -> None:
        """Expect servers to have rows that are new here, from now on."""
        return

    def workers_changed(self) -> None:
        """Other workers have come or gone; their number may be the same as before."""
        if self.sharing.others_push:
            self.begin_known()
