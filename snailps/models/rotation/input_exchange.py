"""Exchange of input rows that several partitions have, so that workers train copies of them.

    exchange: share of the delta -> PUSH, then PULL -> merged
    push_all: all deltas so far -> PUSH
    close:    last deltas -> PUSH, acknowledged

Owns when each copy travels, and the share of its delta.  With skip-gram, words of several input
partitions may have the same n-gram, so several workers train copies of its row; with CBOW all rows
are such copies.  A copy is exchanged when all workers together are expected to have made
`Sharing.steps_apart` steps on the row.

The share: with curvature c a step, a row goes 1 - exp(-c s) of its way to the optimum in s steps.
If t workers make s steps each on copies, their sum goes t times that; one after the other they
would go 1 - exp(-c s t).  The share is the quotient: 1 for one worker or few steps, 1 / t for many.
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
class Held:
    """Rows that are exchanged at the ends of runs only: others stand for them until then."""

    rows: NDArray[np.bool_]
    """Whether each row of the lease is held."""
    turns: int
    """Turns of a run, a divisor of `Sharing.turns`."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """What decides how often each row of a lease travels, and which share of its delta."""

    crowding: NDArray[Any]
    """For each row, steps of all workers / steps of this worker; 1: no other partition has it."""
    own: NDArray[Any]
    """For each row, steps of this worker in the lease."""
    way: NDArray[Any]
    """For each row, rate x curvature x these steps."""
    steps_apart: NDArray[Any] | float
    """Steps of all workers between two exchanges."""
    turns: int
    """Most exchanges in a checkout."""
    held: Held | None = None
    """None: any row may travel after each turn."""


class InputExchange:
    """The input rows of a lease, at `places` of `rows`.

    `sharing` None: no other partition has any of them, and nothing is exchanged.  A checkout is
    divided into `turns` turns; `exchange` is called after `turns_apart` of them, while no kernel
    runs.  `opened` counts the rows that were pulled at first, `exchanged` those pulled or pushed
    since.
    """

    def __init__(
        self, rows: PartitionRows, places: Places, sharing: Sharing | None, block: Block
    ) -> None:
        self.rows, self._all = rows, places
        self.shares, self.turns, self.exchanged = sharing is not None, 1, 0
        self._begun, self._half = 0, 1  # turn of the last exchange; half of the turns it took
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
        # Each turn looks for rows that are due; most rows of n-grams never are, and are left out.
        self._among = np.flatnonzero(shared & (apart < last))
        self._every = np.maximum(apart[self._among], 1).astype(
            np.int32
        )  # turns between two exchanges
        held = sharing.held or Held(np.zeros(len(places), np.bool_), last)
        self._held, self._run = held.rows[self._among], held.turns
        self._number = block.had * self.turns
        self._due = self._every + self._number  # turn of the next exchange
        self._way = sharing.way / last
        self._sent = np.full(len(places), self._number)  # turn of the last exchange
        self.opened = rows.open(places, shared)

    @property
    def turns_apart(self) -> int:
        """Turns until the next `exchange`.

        While rows are under way, half as many as the last exchange took: to look earlier would stop
        the kernels for nothing.
        """
        return 1 if self._open is None else self._half

    def exchange(self, number: int) -> None:
        """Merge rows that have come, and start to exchange rows that are due, after turn `number`
        (counted from 1 over the lease).

        While rows are under way nothing else is sent, and nothing waits for them: on a slow network
        rows are exchanged less often, with smaller shares.  The end of a run waits for what is
        under way, or held rows might miss their turn again and again.  Not the lease's last run:
        another worker may wait for its output rows, and `close` exchanges all rows.
        """
        if not self.shares:
            return
        self._number = number
        if number >= self._last:
            return
        ends = number % self._run == 0
        if not self._merge(wait=ends):
            return
        is_due = self._due <= number
        now_due = np.flatnonzero(is_due if ends else is_due & ~self._held)
        if not len(now_due):
            return
        self._begun, self._due[now_due] = number, number + self._every[now_due]
        due = self._among[now_due]
        places = self._places[due]
        deltas = self.rows.deltas(places, self.shares_of(due))
        self._sent[due] = number
        keys = self.rows.keys[places]
        push = self.rows.push(keys, deltas)
        pull = self.rows.pull(keys, self.rows.take(len(keys)))
        self._open = (places, deltas, push, pull)
        self.exchanged += 2 * len(due)

    def push_all(self) -> Collection[Push]:
        """Push all deltas so far, between two checkouts; `PartitionRows.wait_for` the result.

        For rows that other partitions have, too, their share, as in `close`.
        """
        return self.rows.push_all(self._all, self._last_shares())

    def close(self) -> None:
        """Push all deltas, and wait until they are acknowledged."""
        self.rows.close(self._all, self._last_shares())

    def _last_shares(self) -> Floats | None:
        """Merge what is under way; returns the shares of all rows, which then count as sent."""
        if not self.shares:
            return None
        self._merge(wait=True)
        shares = self.shares_of(np.arange(len(self._places)))
        self._sent[:] = self._number
        return shares

    def shares_of(self, at: NDArray[np.int64]) -> Floats:
        """Share of each delta to push, by the steps since the row was last sent."""
        way = (self._way[at] * (self._number - self._sent[at])).astype(np.float32)
        return share_of_delta(way, way * (self.crowding[at] - 1).astype(np.float32))

    def _merge(self, wait: bool) -> bool:
        """Take merged rows, and add this worker's steps since it sent its own.

        False: they have not come yet, and `wait` is false.
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
