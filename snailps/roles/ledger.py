"""Who works on which block: the master's book of leases for one pass over the input.

    take(node) -> entry number -> done(number)          release(node): its open leases come back

Pure bookkeeping: no files, no sockets, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from snailps.data.blocks import Block


@dataclass(frozen=True, slots=True)
class Entry:
    """A block in one epoch; `before` and `after` are the shares of all bytes up to it."""

    number: int
    block: Block
    epoch: int
    before: float
    after: float


class Ledger:
    """Leases of one pass: every block, `epochs` times, in order.

    Parameters
    ----------
    blocks : sequence of Block
        At least one.
    epochs : int
        How often each is handed out; entry ``e * len(blocks) + b`` is block b in epoch e.
    limit : int
        Most entries; 0: no limit.
    """

    def __init__(self, blocks: Sequence[Block], epochs: int = 1, limit: int = 0) -> None:
        self._blocks = tuple(blocks)
        self._size = min(len(self._blocks) * epochs, limit or len(self._blocks) * epochs)
        self._next = 0
        self._back: deque[int] = deque()
        self._leases: dict[int, int] = {}
        self._done: set[int] = set()
        self._closed = False
        sizes = [block.stop - block.start for block in self._blocks]
        self._epoch_bytes = sum(sizes)
        self._before = [0]
        for size in sizes:
            self._before.append(self._before[-1] + size)
        whole, rest = divmod(self._size, len(self._blocks))
        self._total_bytes = self._epoch_bytes * whole + self._before[rest]
        self._done_bytes = 0

    def entry(self, number: int) -> Entry:
        """The entry of a number."""
        epoch, index = divmod(number, len(self._blocks))
        base = epoch * self._epoch_bytes
        return Entry(
            number,
            self._blocks[index],
            epoch,
            (base + self._before[index]) / self._total_bytes,
            (base + self._before[index + 1]) / self._total_bytes,
        )

    def take(self, node: int) -> Entry | None:
        """Leases the next entry to a node; None when there is none to give just now."""
        if self._closed:
            return None
        if self._back:
            number = self._back.popleft()
        elif self._next < self._size:
            number = self._next
            self._next += 1
        else:
            return None
        self._leases[number] = node
        return self.entry(number)

    def done(self, number: int, node: int) -> bool:
        """Notes that a node finished an entry; False if the entry is not leased to it."""
        if self._leases.get(number) != node:
            return False
        del self._leases[number]
        self._done.add(number)
        block = self._blocks[number % len(self._blocks)]
        self._done_bytes += block.stop - block.start
        return True

    def release(self, node: int) -> list[int]:
        """Takes back what a node has leased, to be given out first; returns the numbers."""
        numbers = sorted(n for n, holder in self._leases.items() if holder == node)
        for number in numbers:
            del self._leases[number]
        self._back.extend(numbers)
        return numbers

    def close(self) -> None:
        """Gives out nothing more; what is leased may still be finished."""
        self._closed = True

    @property
    def closed(self) -> bool:
        """`close` was called."""
        return self._closed

    @property
    def over(self) -> bool:
        """Nothing left and nothing leased."""
        return not self._leases and (self._closed or (self._next >= self._size and not self._back))

    @property
    def progress(self) -> float:
        """Share of all bytes whose entries are done, 0 to 1."""
        return self._done_bytes / self._total_bytes

    @property
    def size(self) -> int:
        """Entries in all."""
        return self._size

    @property
    def leased(self) -> int:
        """Entries that somebody works on."""
        return len(self._leases)

    @property
    def finished(self) -> int:
        """Entries that are done."""
        return len(self._done)

    def holders(self) -> dict[int, list[int]]:
        """Leased entries by node."""
        result: dict[int, list[int]] = {}
        for number, node in self._leases.items():
            result.setdefault(node, []).append(number)
        return result
