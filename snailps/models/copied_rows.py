"""Rows of one table copied for one block: pulled ahead, trained, pushed as differences.

    keys -> PULL (while the block before trains) -> load -> trained rows -> delta, scaled -> PUSH

For clocks (bsp, ssp), which define whose steps a block reads, and for rows that servers delete.
Invariants:

* A pull overtakes own pushes that wait for the socket.  It may lack the deltas of pushes that
  were not done when it started, and of later ones; `ready` adds these (`Worker.correct`).
* A push starts when the previous one is done, so a pull lacks the last two.
* The array of a push is not reused while a pull may lack the push.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from snailps.api.worker import Pending
from snailps.dataclass import dataclass, field
from snailps.models.local_sgd import Floats, Keys, LocalSgd
from snailps.models.rows import NO_PLACES, WHOLE, Lookup, Rows, Scale, Trained

NO_ROWS = np.empty((0, 0), np.float32)
BEHIND = 1
"""Pushes besides the last one that a pull may lack: of the one block that is prepared ahead."""


@dataclass(slots=True)
class CopiedBlock:
    """A block's rows; `ready` pulls those at the places `moving` again, and all without `pull`.

    `base` are packed rows as pulled, until they are `pushed`.
    """

    keys: Keys
    pull: Pending | None
    moving: NDArray[np.int64] | None
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
        self._pushes: list[Pending] = []  # in flight or still needed, oldest first
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
        pull = self._sgd.pull_rows(self._table, keys) if self._apart is None else None
        return CopiedBlock(keys, pull, moving)

    def ready(self, asked: CopiedBlock) -> Trained:
        """Own deltas are in the rows, whenever they were pulled."""
        sgd = self._sgd
        if asked.pull is None:
            self._copies = asked
        self._take(asked, asked.pull or sgd.pull_rows(self._table, asked.keys))
        if asked.moving is not None:
            again = asked.keys[asked.moving]
            pull = sgd.worker.pull_async(self._table, again, state=sgd.state)
            asked.base[asked.moving] = pull.wait()
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
        self._settle(BEHIND)

    def span(self) -> int:
        """Return the examples of a span; with `apart`, pull rows that were pushed again."""
        sgd, copies = self._sgd, self._copies
        if copies is not None and copies.pushed:
            self._take(copies, sgd.pull_rows(self._table, copies.keys))
            sgd.in_threads(sgd.layout.load, copies.base, *copies.trained)
        return WHOLE if copies is None or self._apart is None else self._apart(len(copies.keys))

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
        for push in self._pushes:
            push.wait()
        self._settle(BEHIND)
        push = sgd.worker.push_async(self._table, copies.keys, deltas, state=sgd.state)
        self._pushes.append(push)
        copies.pushed = True

    def flush(self) -> None:
        self._settle(0)

    def _settle(self, kept: int) -> None:
        """Wait for all pushes but the newest `kept`, and take their arrays back."""
        while len(self._pushes) > kept:
            self._sgd.packed.give(self._pushes.pop(0).wait())
