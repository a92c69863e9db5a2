"""Rows of one table copied for one block: pulled ahead, trained, pushed as differences.

    keys -> PULL (while the block before trains) -> load -> trained rows -> delta, scaled -> PUSH

For jobs with clocks (bsp, ssp), which define whose steps a block reads, and for rows that servers
delete, which a kept copy would not notice.  Invariants:

* A pull overtakes this worker's pushes that wait for the socket.  It may lack the deltas of pushes
  that were not done when it started, and of later ones; `ready` adds them (`Worker.correct`).
* A push starts when the one before is done.  So a pull lacks that one and all later ones: usually
  two, more where blocks of a lost worker are trained in between.
* The array of a push is not used again while a pull may lack that push.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from snailps.api.worker import Pending
from snailps.dataclass import dataclass, field
from snailps.models.local_sgd import Floats, Keys, LocalSgd
from snailps.models.rows import NO_PLACES, WHOLE, RowPlaces, Rows, Scale, Trained

NO_ROWS = np.empty((0, 0), np.float32)


@dataclass(eq=False)
class CopiedBlock:
    """The rows of a block.

    `pull` gets them ahead; `ready` pulls the rows at the places `moving` again, or all rows if
    `pull` is None.  `base` are the packed rows as pulled, and once they are `pushed` their deltas.
    `since` is the number of the first push that the pull may lack.
    """

    keys: Keys
    pull: Pending | None
    moving: NDArray[np.int64] | None
    since: int = 0
    base: Floats = field(default_factory=lambda: NO_ROWS)
    trained: Trained = ()
    pushed: bool = False


class CopiedRows(Rows):
    """Copies of a table's rows, made anew for each block.

    ``apart(rows)``, if given, is the number of examples after which a block of `rows` rows pushes
    them and pulls them again, because all workers train them all the time.  Nothing is then pulled
    ahead.
    """

    keeps = False

    def __init__(
        self, sgd: LocalSgd, table: str, *, apart: Callable[[int], int] | None = None
    ) -> None:
        super().__init__(sgd, table)
        self._apart = apart
        self._pushes: deque[Pending] = deque()  # under way, or lacked by a pull; oldest first
        self._first = 0  # number of the oldest of these, counting all pushes
        self._done = 0  # number of the first push that may not be done
        self._ahead: list[weakref.ref[CopiedBlock]] = []  # prepared blocks, not trained or dropped
        self._copies: CopiedBlock | None = None  # the block in training, with `apart`

    def find(self, keys: Keys) -> RowPlaces:
        return RowPlaces(keys, NO_PLACES, NO_PLACES, NO_PLACES)

    def ask(
        self,
        found: Sequence[RowPlaces],
        size: float = np.inf,
        moving: NDArray[np.int64] | None = None,
    ) -> CopiedBlock:
        """Number a block's keys, and start to pull its rows.

        Rows at the places `moving` are pulled again when the block is trained: other workers change
        them much, and the steps that all workers make from old copies would add up to one that is
        too long.
        """
        if len(found) == 1:
            keys = found[0].keys
            found[0].places = np.arange(len(keys), dtype=np.int32)
        else:
            all_keys = np.concatenate([lookup.keys for lookup in found])
            keys, joined = np.unique(all_keys, return_inverse=True)
            edges = np.cumsum([len(lookup.keys) for lookup in found])[:-1]
            for lookup, places in zip(found, np.split(joined.astype(np.int32), edges), strict=True):
                lookup.places = places
        asked = CopiedBlock(keys, None, moving)
        if self._apart is None:
            asked.since = self._done
            self._ahead.append(weakref.ref(asked))  # before the pull: `_settle` sees it
            asked.pull = self._sgd.pull_rows(self._table, keys)
        return asked

    def ready(self, asked: CopiedBlock) -> Trained:
        """Wait for the rows, and add this worker's deltas that the pull lacks."""
        sgd = self._sgd
        if asked.pull is None:
            self._copies = asked
        self._take(asked, asked.pull or sgd.pull_rows(self._table, asked.keys))
        if asked.moving is not None:
            again = asked.keys[asked.moving]
            pull = sgd.worker.pull_async(self._table, again, state=sgd.state)
            moving = pull.wait()
            self._project(again, moving)
            asked.base[asked.moving] = moving
        asked.trained = sgd.make_trained(len(asked.keys))
        sgd.in_threads(sgd.layout.load, asked.base, *asked.trained)
        return asked.trained

    def _take(self, copies: CopiedBlock, pull: Pending) -> None:
        """Wait for packed rows, and add this worker's deltas that they lack."""
        sgd = self._sgd
        copies.base, copies.pushed = pull.wait(), False
        corrected = sum(sgd.worker.correct(pull, push) for push in self._pushes)
        if corrected and sgd.derive is not None:
            sgd.in_threads(sgd.derive, copies.base)
        self._project(copies.keys, copies.base)
        for ref in tuple(self._ahead):  # removed one by one: the preparing thread appends others
            if ref() in (None, copies):
                self._ahead.remove(ref)
        self._settle()

    def span(self) -> int:
        """Examples of the next span; with `apart`, pulls the rows again after `exchange`."""
        sgd, copies = self._sgd, self._copies
        if copies is not None and copies.pushed:
            self._take(copies, sgd.pull_rows(self._table, copies.keys))
            sgd.in_threads(sgd.layout.load, copies.base, *copies.trained)
        if copies is None or self._apart is None or not self.sharing.others_push:
            return WHOLE
        return self._apart(len(copies.keys))

    def exchange(self, examples: int) -> None:
        if self._copies is not None:
            self._push(self._copies, None)

    def close(self, asked: CopiedBlock, scale: Scale | None = None) -> bool:
        """Push the deltas; `asked` must not be used afterwards."""
        if not asked.pushed:
            self._push(asked, scale)
        self._sgd.give_trained(asked.trained)
        self._copies = None
        return True

    def _push(self, copies: CopiedBlock, scale: Scale | None) -> None:
        sgd, deltas = self._sgd, copies.base
        sgd.in_threads(sgd.layout.subtract, deltas, *copies.trained)
        if scale is not None and self.sharing.others_push:
            scale(copies.trained, deltas)
        self._wait()
        self._settle()
        push = sgd.worker.push_async(self._table, copies.keys, deltas, state=sgd.state)
        self._pushes.append(push)
        copies.pushed = True

    def flush(self) -> None:
        self._wait()
        self._settle()

    def _wait(self) -> None:
        for push in self._pushes:
            push.wait()
        self._done = self._first + len(self._pushes)

    def _settle(self) -> None:
        """Take back the arrays of pushes that are done, and that no pull lacks."""
        ahead = [asked.since for ref in tuple(self._ahead) if (asked := ref()) is not None]
        while self._first < min([self._done, *ahead]):
            self._sgd.packed.give(self._pushes.popleft().wait())
            self._first += 1
