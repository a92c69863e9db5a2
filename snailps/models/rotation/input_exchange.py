"""Exchange of rows of which workers train copies: input rows that several parts have.

    exchange: share of the delta -> PUSH, PULL behind it -> merged
    push_all: all deltas so far -> PUSH
    close:    last deltas -> PUSH, acknowledged

With skip-gram, words of several input partitions have an n-gram, so several workers train copies of
its row; with CBOW all rows are such copies.  A copy is exchanged when all workers together are
expected to have made `Sharing.steps_apart` steps on the row; the worker pushes the share of its
delta that its part of the way has if all pull to the same optimum.

With a curvature c a step, a row that makes s steps goes 1 - exp(-c s) of its way.  t workers that
make s steps each on copies go t times that by sums, and 1 - exp(-c s t) one after the other: the
share is the quotient.  It is 1 for one worker and for few steps, 1 / t for many.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.worker import Block, Pending
from snailps.dataclass import dataclass
from snailps.kernels._row_exchange import share_of_delta
from snailps.models.local_sgd import Floats
from snailps.models.rotation.partition_rows import PartitionRows, Places, Push


@dataclass(frozen=True, slots=True)
class Sharing:
    """How often and by which share the rows of a lease travel."""

    crowding: NDArray[Any]
    """Steps of all workers over those of this one; 1: no other part has the row."""
    own: NDArray[Any]
    """Steps of this worker in the lease."""
    way: NDArray[Any]
    """Rate x curvature of all these steps."""
    steps_apart: NDArray[Any] | float
    """Steps of all workers between two exchanges, of each row or of any."""
    turns: int
    """How often in a checkout rows may be exchanged."""


class InputExchange:
    """The input rows of a lease: `places` of `rows`; without `sharing` no other part has any.

    A checkout has `turns` turns.  `exchange` is called behind `turns_apart` of them, with no kernel
    at work.  `opened` rows were pulled at first, `exchanged` were pulled or pushed since.
    """

    def __init__(
        self, rows: PartitionRows, places: Places, sharing: Sharing | None, block: Block
    ) -> None:
        self.rows, self._all = rows, places
        self.shares, self.turns, self.exchanged = sharing is not None, 1, 0
        self._begun, self._half = 0, 1  # turn of the last exchange; half of what one took
        self._open: tuple[NDArray[np.int64], Floats, Pending, Pending] | None = None
        if sharing is None:
            self.opened = rows.open(places)
            return
        assert places is not None
        self._places = places
        self.turns, self.crowding = sharing.turns, sharing.crowding
        shared = self.crowding > 1
        last = self._last = block.output_parts * self.turns
        apart = sharing.steps_apart / np.maximum(sharing.own * self.crowding, 1e-9) * last
        # Each turn looks for rows that are due, and most rows of n-grams never are.
        self._among = np.flatnonzero(shared & (apart < last))
        self._every = np.maximum(apart[self._among], 1).astype(np.int32)  # turns between two
        self._number = block.had * self.turns
        self._due = self._every + self._number  # turn of the next one
        self._way = sharing.way / last
        self._sent = np.full(len(places), self._number)  # turn of the last exchange
        self.opened = rows.open(places, shared)

    @property
    def turns_apart(self) -> int:
        """Turns until the next `exchange`.  To look more often for what is under way would stop the
        kernels, and find nothing."""
        return 1 if self._open is None else self._half

    def exchange(self, number: int) -> None:
        """After turn `number`, from 1 on: merges what has come, starts to exchange what is due.

        While rows are on their way nothing else is sent, and nothing waits for them: on a slow
        network rows are exchanged less often, by smaller shares.
        """
        if not self.shares:
            return
        self._number = number
        if not self._merge(wait=False) or number >= self._last:
            return
        found = np.flatnonzero(self._due <= number)
        if not len(found):
            return
        self._begun, self._due[found] = number, number + self._every[found]
        due = self._among[found]
        places = self._places[due]
        deltas = self.rows.deltas(places, self.shares_of(due))
        self._sent[due] = number
        keys = self.rows.keys[places]
        push = self.rows.push(keys, deltas)
        pull = self.rows.pull(keys, self.rows.take(len(keys)))
        self._open = (places, deltas, push, pull)
        self.exchanged += 2 * len(due)

    def push_all(self) -> Collection[Push]:
        """Between two checkouts: pushes all deltas so far, the last few for
        `PartitionRows.wait_for`.

        Of rows that other parts have, too, the share that is due after these steps, as in `close`.
        """
        return self.rows.push_all(self._all, self._last_shares())

    def close(self) -> None:
        """Pushes all deltas and waits until they are acknowledged."""
        self.rows.close(self._all, self._last_shares())

    def _last_shares(self) -> Floats | None:
        """Merges what is under way; shares of all rows, which then count as sent."""
        if not self.shares:
            return None
        self._merge(wait=True)
        shares = self.shares_of(np.arange(len(self._places)))
        self._sent[:] = self._number
        return shares

    def shares_of(self, at: NDArray[np.int64]) -> Floats:
        """Share of each delta to push, by the steps since the row was sent before."""
        way = (self._way[at] * (self._number - self._sent[at])).astype(np.float32)
        return share_of_delta(way, way * (self.crowding[at] - 1).astype(np.float32))

    def _merge(self, wait: bool) -> bool:
        """Takes merged rows, and adds this worker's steps since it sent its own.

        False if they have not come yet, and are not waited for.
        """
        if self._open is None:
            return True
        places, deltas, push, pull = self._open
        if not (wait or (push.done and pull.done)):
            return False
        push.wait()
        merged = pull.wait()
        self.rows.merge(places, merged)
        for array in (deltas, merged):
            self.rows.give(array)
        self._open = None
        self._half = max(1, (self._number - self._begun) // 2)
        return True
