"""Owns what there is to train: every block of the input, once in each epoch, in a fixed or drawn
order.

    number <-> (epoch, place in its order) -> Entry: block, epoch, shares of all bytes

Must not know workers: schedules decide who trains an entry, records keep what became of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from snailps.abi.key_hash import order as permutation
from snailps.dataclass import dataclass
from snailps.pieces import Piece
from snailps.transport.messages.terms import Terms


@dataclass(frozen=True, slots=True)
class Entry:
    """A block in one epoch, under the terms of the schedule.

    `progress`: shares of all bytes before and after it, 0 to 1; learning rates follow from them.
    """

    number: int
    piece: Piece
    epoch: int
    progress: tuple[float, float]
    terms: Terms | None = None


ORDERS_KEPT = 4
"""Epochs whose order stays in memory: entries leased at the same time are of few epochs."""


class EpochOrder:
    """The order of an epoch's blocks, and how many bytes are before each."""

    def __init__(self, blocks: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        self.blocks = blocks  # int64 (n,): the block at each place
        # int64 (n + 1,): bytes before each place, and all
        self.before = np.concatenate(([0], np.cumsum(sizes[blocks])))


class Plan(Protocol):
    """What there is to train: the entries of a schedule, by their numbers."""

    def entry(self, number: int) -> Entry:
        """The entry of a number."""

    def has(self, number: int) -> bool:
        """Whether there is an entry of this number, or will be."""

    def epoch_of(self, number: int) -> int:
        """The epoch, or round, of an entry."""

    @property
    def results_per_epoch(self) -> int:
        """How many losses an epoch has."""

    def share(self, numbers: Sequence[int] | NDArray[np.int64]) -> float:
        """Share of all bytes that these entries are, 0 to 1."""


class Entries:
    """Entry ``e * len(blocks) + i`` is the i-th block of epoch e."""

    def __init__(
        self,
        blocks: Sequence[Piece],  # at least one
        epochs: int = 1,
        limit: int = 0,  # most entries; 0: no limit
        # seed that, with the epoch, decides the order of the blocks; None: as they are
        order: int | None = None,
    ) -> None:
        self.blocks = tuple(blocks)
        self.count = min(len(self.blocks) * epochs, limit or len(self.blocks) * epochs)
        self._sizes = np.array([block.stop - block.start for block in self.blocks], np.int64)
        self._order, self._orders = order, dict[int, EpochOrder]()
        self._plain = EpochOrder(np.arange(len(self.blocks)), self._sizes)
        self._epoch_bytes = int(self._sizes.sum())
        self.total_bytes = max(1, self.bytes_before(self.count))
        self.part = min(1.0, self.total_bytes / max(1, epochs * self._epoch_bytes))
        """Share of all epochs that these entries are: below 1 with a `limit`."""

    def entry(self, number: int) -> Entry:
        epoch, place = divmod(number, len(self.blocks))
        order, base = self._order_of(epoch), epoch * self._epoch_bytes
        return Entry(
            number,
            self.blocks[order.blocks[place]],
            epoch,
            (
                (base + int(order.before[place])) / self.total_bytes,
                (base + int(order.before[place + 1])) / self.total_bytes,
            ),
        )

    def has(self, number: int) -> bool:
        return 0 <= number < self.count

    def epoch_of(self, number: int) -> int:
        return number // len(self.blocks)

    @property
    def results_per_epoch(self) -> int:
        """One for each block."""
        return len(self.blocks)

    def share(self, numbers: Sequence[int] | NDArray[np.int64]) -> float:
        return self.bytes_of_all(np.asarray(numbers, np.int64)) / self.total_bytes

    def first_of(self, epoch: int) -> int:
        """The first entry of an epoch."""
        return epoch * len(self.blocks)

    def of_epoch(self, epoch: int) -> NDArray[np.int64]:
        """The block at each place of an epoch."""
        return self._order_of(epoch).blocks

    def _order_of(self, epoch: int) -> EpochOrder:
        if self._order is None:
            return self._plain
        order = self._orders.get(epoch)
        if order is None:
            drawn = permutation(len(self.blocks), self._order, epoch)
            order = self._orders[epoch] = EpochOrder(drawn, self._sizes)
            if len(self._orders) > ORDERS_KEPT:
                del self._orders[next(iter(self._orders))]
        return order

    def bytes_before(self, number: int) -> int:
        """Bytes of all entries before one."""
        epoch, place = divmod(number, len(self.blocks))
        before = int(self._order_of(epoch).before[place]) if place else 0
        return epoch * self._epoch_bytes + before

    def bytes_of(self, number: int) -> int:
        epoch, place = divmod(number, len(self.blocks))
        return int(self._sizes[self.of_epoch(epoch)[place]])

    def bytes_of_all(self, numbers: NDArray[np.int64]) -> int:
        """Bytes of these entries."""
        epochs, places = np.divmod(numbers, len(self.blocks))
        begun, counts = np.unique(epochs, return_counts=True)
        whole = begun[counts == len(self.blocks)]
        total = len(whole) * self._epoch_bytes
        for epoch in begun[counts < len(self.blocks)].tolist():
            in_epoch = self.of_epoch(epoch)[places[epochs == epoch]]
            total += int(self._sizes[in_epoch].sum())
        return total
