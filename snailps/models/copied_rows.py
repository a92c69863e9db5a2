"""Rows of one table copied for one block: pulled ahead, trained, pushed as differences.

    keys -> PULL (while the block before trains) -> load -> trained rows -> delta, scaled -> PUSH

For clocks (bsp, ssp), which define whose steps a block reads, and for rows that servers delete.
Invariants:

* A pull overtakes own pushes that wait for the socket.  It may lack the deltas of pushes that
  were not done when it started, and of later ones; `ready` adds these (`Worker.correct`).
* A push starts when the previous one is done, so a pull lacks that one and all later ones: two
  where the next block is prepared, more where returned blocks are trained before it.
* The array of a push is not reused while a pull may lack the push.
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
from snailps.models.rows import NO_PLACES, WHOLE, Lookup, Rows, Scale, Trained

NO_ROWS = np.empty((0, 0), np.float32)


@dataclass(eq=False)
class CopiedBlock:
    """A block's rows; `ready` pulls those at the places `moving` again, and all without `pull`.

    `base` are packed rows as pulled, until they are `pushed`; `since` is the first push that the
    pull may lack.
    """

    keys: Keys
    pull: Pending | None
    moving: NDArray[np.int64] | None
    since: int = 0
    base: Floats = field(default_factory=lambda: NO_ROWS)
    trained: Trained = ()
    pushed: bool = False


class CopiedRows(Rows):
    """Copies of the rows of a table.

    With ``apart(rows)``, a block's rows are pushed and pulled again every so many examples, as rows
    that all workers train all the time should be: the first pull is that of `ready`.
    """

    keeps = False

    def __init__(
        self, sgd: LocalSgd, table: str, *, apart: Callable[[int], int] | None = None
    ) -> None:
        super().__init__(sgd, table)
        self._apart = apart
        self._pushes: deque[Pending] = deque()  # in flight or still needed, oldest first
        self._first = 0  # number of the oldest one, of all pushes
        self._done = 0  # number of the first one that may not be done
        self._ahead: list[weakref.ref[CopiedBlock]] = []  # prepared, and not trained yet or dropped
        self._copies: CopiedBlock | None = None  # in training, with `apart`

    def find(self, keys: Keys) -> Lookup:
        return Lookup(keys, NO_PLACES, NO_PLACES, NO_PLACES)

    def ask(
        self,
        found: Sequence[Lookup],
        size: float = np.inf,
        moving: NDArray[np.int64] | None = None,
    ) -> CopiedBlock:
        """Start to pull; other workers change rows at the places `moving` much.

        The steps of all workers on an old copy of those would add up to too long a step.
        """
        if len(found) == 1:
            keys = found[0].keys
            found[0].places = np.arange(len(keys), dtype=np.int32)
        else:
            keys, joined = np.unique(np.concatenate([f.keys for f in found]), return_inverse=True)
            edges = np.cumsum([len(one.keys) for one in found])[:-1]
            for one, places in zip(found, np.split(joined.astype(np.int32), edges), strict=True):
                one.places = places
        asked = CopiedBlock(keys, None, moving)
        if self._apart is None:
            asked.since = self._done
            self._ahead.append(weakref.ref(asked))  # before the pull: `_settle` sees it
            asked.pull = self._sgd.pull_rows(self._table, keys)
        return asked

    def ready(self, asked: CopiedBlock) -> Trained:
        """Own deltas are in the rows, whenever they were pulled."""
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
        """Wait for packed rows, and add own deltas that they lack."""
        sgd = self._sgd
        copies.base, copies.pushed = pull.wait(), False
        corrected = sum(sgd.worker.correct(pull, push) for push in self._pushes)
        if corrected and sgd.derive is not None:
            sgd.in_threads(sgd.derive, copies.base)
        self._project(copies.keys, copies.base)
        for ref in tuple(self._ahead):  # in place: the preparing thread adds some
            if ref() in (None, copies):
                self._ahead.remove(ref)
        self._settle()

    def span(self) -> int:
        """Return the examples of a span; with `apart`, pull rows that were pushed again."""
        sgd, copies = self._sgd, self._copies
        if copies is not None and copies.pushed:
            self._take(copies, sgd.pull_rows(self._table, copies.keys))
            sgd.in_threads(sgd.layout.load, copies.base, *copies.trained)
        if copies is None or self._apart is None or not self.are_shared:
            return WHOLE
        return self._apart(len(copies.keys))

    def exchange(self, examples: int) -> None:
        if self._copies is not None:
            self._push(self._copies, None)

    def close(self, asked: CopiedBlock, scale: Scale | None = None) -> bool:
        """Push the deltas; `asked` is not to be used afterwards."""
        if not asked.pushed:
            self._push(asked, scale)
        self._sgd.give_trained(asked.trained)
        self._copies = None
        return True

    def _push(self, copies: CopiedBlock, scale: Scale | None) -> None:
        sgd, deltas = self._sgd, copies.base
        sgd.in_threads(sgd.layout.subtract, deltas, *copies.trained)
        if scale is not None and self.are_shared:
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
        """Take back the arrays of pushes that are done and in all pulls."""
        ahead = [asked.since for ref in tuple(self._ahead) if (asked := ref()) is not None]
        while self._first < min([self._done, *ahead]):
            self._sgd.packed.give(self._pushes.popleft().wait())
            self._first += 1
