"""Who works on which block: the master's book of leases for one pass over the input.

    take(node) -> entry number -> done(number)          release(node): its open leases come back

`Ledger` gives blocks to whoever asks; `master/leases/` has the books that keep workers in step.
Pure bookkeeping: no files, no sockets, no time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from snailps.data.blocks import Block

LOSSES_MAX = 3
"""Workers that may be lost at one block; then it is taken for the reason."""

ANYBODY, MASTER = 0, -1
"""In the place of a worker's number."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A block in one epoch; `before` and `after` are the shares of all bytes up to it.

    `clock`, `slot`, `slots` and `index` are those of `api.worker.Block`.
    """

    number: int
    block: Block
    epoch: int
    before: float
    after: float
    clock: int = -1
    slot: int = 0
    slots: int = 1
    index: int = -1


NAMED_MAX = 8
"""Workers that are named one by one where others wait for them."""


class Wait(NamedTuple):
    """For whom a worker waits (`ANYBODY`, `MASTER`; none: its own last block), to do what."""

    nodes: tuple[int, ...]
    text: str

    @classmethod
    def for_some(cls, nodes: Iterable[int], text: str) -> Wait:
        """Of many only the first that are found: a thousand of them wait for a thousand."""
        return cls(tuple(sorted(islice(nodes, NAMED_MAX + 1))), text)

    def __str__(self) -> str:
        others = {ANYBODY: "whoever takes it", MASTER: "the master"}
        names = [others.get(node, f"worker {node}") for node in self.nodes[:NAMED_MAX]]
        names += ["..."] * (len(self.nodes) > NAMED_MAX)
        return f"{', '.join(names) or 'its own last block'} to {self.text}"


class Ledger:
    """Leases of one pass: every block, `epochs` times, in order.

    `woken` names who was refused and may go now: a block that is done is looked at once, not once
    for each of a thousand workers that wait.

    Parameters
    ----------
    blocks : sequence of Block
        At least one.
    epochs : int
        How often each is handed out; entry ``e * len(blocks) + b`` is block b in epoch e.
    limit : int
        Most entries; 0: no limit.
    done : collection of int
        Entries that an earlier run has done.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        epochs: int = 1,
        limit: int = 0,
        done: Collection[int] = (),
    ) -> None:
        self._blocks = tuple(blocks)
        self._size = min(len(self._blocks) * epochs, limit or len(self._blocks) * epochs)
        self._next = 0
        self._back: deque[int] = deque()
        self._leases: dict[int, int] = {}
        self._by_node: dict[int, set[int]] = {}  # the same by node, of those that have any
        self._refused: dict[int, None] = {}  # who got nothing when it asked last, first come first
        self._lost: dict[int, int] = {}
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
        for number in sorted(set(done)):
            if 0 <= number < self._size:
                self._finish(number)
        self._skip()

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

    # --- leases ------------------------------------------------------------------------------

    def take(self, node: int) -> Entry | None:
        """Leases the next entry to a node; None when there is none to give just now."""
        entry = self._next_of(node)
        if entry is None:
            self._refused.setdefault(node)
        else:
            self._refused.pop(node, None)
        return entry

    def woken(self, waiting: Container[int]) -> list[int]:
        """Nodes of those that wait which may get an entry now; each is to ask again, or is lost.

        Costs what there is to give.
        """
        if self._closed:
            return []
        count = len(self._back) + self._size - self._next
        return list(islice(self._still(waiting), count)) if count else []

    def _still(self, waiting: Container[int]) -> Iterable[int]:
        """Who was refused and waits; the others are forgotten."""
        gone = []
        try:
            for node in self._refused:
                if node in waiting:
                    yield node
                else:
                    gone.append(node)
        finally:
            for node in gone:
                del self._refused[node]

    def _next_of(self, node: int) -> Entry | None:
        if self._closed:
            return None
        if self._back:
            number = self._back.popleft()
        elif self._next < self._size:
            number = self._next
            self._next += 1
            self._skip()
        else:
            return None
        self._lease(number, node)
        return self.entry(number)

    def _lease(self, number: int, node: int) -> None:
        self._leases[number] = node
        self._by_node.setdefault(node, set()).add(number)

    def _unlease(self, number: int) -> int:
        """Nobody works on an entry any more; who did."""
        node = self._leases.pop(number)
        self._by_node[node].discard(number)
        if not self._by_node[node]:
            del self._by_node[node]
        return node

    def _unlease_all(self, node: int) -> list[int]:
        """The same of all that a node had; the numbers."""
        numbers = self.held_by(node)
        for number in numbers:
            self._unlease(number)
        return numbers

    def held_by(self, node: int) -> list[int]:
        """Entries that a node has leased, ascending."""
        return sorted(self._by_node.get(node, ()))

    def done(self, number: int, node: int) -> bool:
        """Notes that a node finished an entry; False if the entry is not leased to it."""
        if self._leases.get(number) != node:
            return False
        self._unlease(number)
        self._finish(number)
        return True

    def claim(self, number: int, node: int) -> bool:
        """Leases this very entry to a node: it was leased, as is known from elsewhere.

        False if it is done, or another's.
        """
        if number in self._done or not 0 <= number < self._size:
            return False
        if number not in self._leases:
            self._withdraw(number)
            self._lease(number, node)
        return self._leases[number] == node

    def _withdraw(self, number: int) -> None:
        """Takes an entry from those that are to be given out."""
        if number < self._next:
            self._back.remove(number)
            return
        self._back.extend(n for n in range(self._next, number) if n not in self._done)
        self._next = number + 1
        self._skip()

    def share(self, numbers: Sequence[int]) -> float:
        """Share of all bytes that these entries are, 0 to 1."""
        times = np.bincount(np.asarray(numbers, np.int64) % len(self._blocks))
        return int(times @ np.diff(self._before)[: len(times)]) / self._total_bytes

    def release(self, node: int) -> list[int]:
        """Takes back what a node has leased, to be given out first; returns the numbers."""
        numbers = self._unlease_all(node)
        self._back = deque(sorted([*self._back, *numbers]))
        return numbers

    def close(self) -> None:
        """Gives out nothing more; what is leased may still be finished."""
        self._closed = True

    # --- who belongs -------------------------------------------------------------------------

    def join(self, node: int) -> None:
        """A worker takes part from now on."""

    def retire(self, node: int) -> list[int]:
        """A worker takes part no more; returns the numbers of what it had leased."""
        return self.release(node)

    def blame(self, node: int) -> int:
        """A worker is lost: the entry at which `LOSSES_MAX` have been lost by now, or -1.

        Counts the entry that it worked on, its first one: what it had prefetched is innocent.
        """
        held = self.held_by(node)
        if not held:
            return -1
        first = held[0]
        return first if self.count_loss(first) >= LOSSES_MAX else -1

    def count_loss(self, number: int) -> int:
        """A worker was lost at an entry; how many by now."""
        self._lost[number] = self._lost.get(number, 0) + 1
        return self._lost[number]

    @property
    def losses(self) -> dict[int, int]:
        """Workers lost, by entry."""
        return dict(self._lost)

    def leave(self, node: int) -> None:
        """A worker finishes what it is at and takes nothing more."""

    def wait_of(self, node: int) -> Wait:
        """For whom a worker waits that gets no entry."""
        return Wait.for_some((n for n in self._by_node if n != node), "finish")

    def clock_of(self, node: int) -> int | None:
        """Where a worker stands; None where there are no clocks."""
        return None

    def held_up(self, node: int) -> Wait | None:
        """For whom a worker waits with what it has leased; None: it can train."""
        return None

    # --- where it stands ---------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """`close` was called."""
        return self._closed

    @property
    def drops(self) -> bool:
        """What is leased but not begun need not be trained any more."""
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

    @property
    def finished_numbers(self) -> frozenset[int]:
        """Numbers of the entries that are done."""
        return frozenset(self._done)

    def snapshot(self) -> dict[str, Any]:
        """What others than `finished_numbers` tell of the book; values for JSON, or arrays.

        Entries that are leased count as free: who has one says so (`claim`).
        """
        return {"losses": sorted(self._lost.items())}

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Stands where another book's `snapshot` was taken; new, with its entries `done`."""
        self._lost = {int(number): int(count) for number, count in snapshot["losses"]}

    def holders(self) -> dict[int, list[int]]:
        """Leased entries by node."""
        return {node: sorted(numbers) for node, numbers in self._by_node.items()}

    def _finish(self, number: int) -> None:
        self._done.add(number)
        block = self._blocks[number % len(self._blocks)]
        self._done_bytes += block.stop - block.start

    def _skip(self) -> None:
        """Steps over entries that are done already."""
        while self._next < self._size and self._next in self._done:
            self._next += 1
