"""The book of leases of rounds: one entry for each worker that is drawn for a round.

    round -> who takes part -> parts that are done -> the master closes it, the next one begins

Pure bookkeeping: no files, no sockets, no time.  When a round is closed is
`job/round_controller.py`'s matter.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from snailps.data.blocks import Block
from snailps.master.leases.ledger import MASTER, Entry, Ledger, Wait


class RoundLedger(Ledger):
    """A round at a time, an entry for each worker that is drawn for it.

    Parameters
    ----------
    rounds : int
        At most so many.
    nodes : sequence of int
        The workers; the i-th has index i.
    fraction : float
        Share of the present workers that is drawn for a round.
    seed : int
    first : int
        Round to begin with; an earlier run has done those before.

    Notes
    -----
    Entry ``r * W + i`` is round r of index i.  A worker that is lost leaves its index, and the
    round goes on without it; one that comes takes a free index.  A round is over (`ready`) when all
    that were drawn are done or void; then the master closes it at the shards and calls `advance`.
    """

    def __init__(
        self,
        rounds: int,
        nodes: Sequence[int],
        fraction: float = 1.0,
        seed: int = 1,
        first: int = 0,
    ) -> None:
        super().__init__([Block(0, "", 0, 1)])
        self._rounds, self._width = rounds, len(nodes)
        self._fraction, self._seed = fraction, seed
        self._index = {node: index for index, node in enumerate(nodes)}
        self.round = first
        self._counted = 0
        self._voided: set[int] = set()  # entries of this and of earlier rounds, while leased
        self._begun = 0  # how often a round was begun, each some times perhaps
        self._woken_for = (-1, -1)
        self._begin()

    def entry(self, number: int) -> Entry:
        """The entry of a number of the present round, or of an earlier one."""
        round_, index = divmod(number, self._width)
        slot = self._slots.get(index, 0) if round_ == self.round else 0
        return Entry(
            number,
            Block(index, "", 0, 0),
            round_,
            round_ / self._rounds,
            (round_ + 1) / self._rounds,
            round_,
            slot,
            len(self._drawn),
            index,
        )

    def _next_of(self, node: int) -> Entry | None:
        """Its part of the round, of a worker that is drawn and has not had it yet."""
        index = self._index.get(node, -1)
        if self._closed or index not in self._waiting:
            return None
        self._waiting.remove(index)
        number = self.round * self._width + index
        self._lease(number, node)
        return self.entry(number)

    def woken(self, waiting: Container[int]) -> list[int]:
        """Those that are drawn for a round that has begun since this was asked."""
        if self._woken_for == (self.round, self._begun):
            return []
        self._woken_for = (self.round, self._begun)
        return [n for n in self._still(waiting) if self._index.get(n, -1) in self._waiting]

    def done(self, number: int, node: int) -> bool:
        """Notes that a worker has sealed its part; False also for a part that was void."""
        if number in self._voided or self._leases.get(number) != node:
            self._voided.discard(number)
            return False
        self._unlease(number)
        self._parts.append(self._slots[number % self._width])
        return True

    def claim(self, number: int, node: int) -> bool:
        """Leases this very part to a worker; what is of an earlier or a closed round is void."""
        if self._leases.get(number) == node:
            return True
        round_, index = divmod(number, self._width)
        if round_ != self.round or index not in self._waiting:
            if round_ < self.round or index not in (self._drawn[slot] for slot in self._parts):
                self._voided.add(number)
            return False
        self._waiting.remove(index)
        self._lease(number, node)
        return True

    def only(self, parts: Sequence[int]) -> None:
        """The round is being closed with these slots, which are done: nothing else of it counts."""
        self._parts[:] = parts
        self._waiting.clear()
        self._void_leased()

    def _void_leased(self) -> None:
        self._voided.update(self._leases)
        for node in list(self._by_node):
            self._unlease_all(node)

    def is_void(self, number: int) -> bool:
        """Whether a part came too late to count."""
        return number in self._voided

    def release(self, node: int) -> list[int]:
        """A worker's part of the round is void: nobody else has its data."""
        return self._unlease_all(node)

    def join(self, node: int) -> None:
        """Takes a free index, if there is one; without, it waits for one."""
        free = sorted(set(range(self._width)) - set(self._index.values()))
        if node not in self._index and free:
            self._index[node] = free[0]
            self._begun += 1  # it may be one that was drawn
            if not (self._leases or self._waiting or self._parts):
                self._begin()

    def leave(self, node: int) -> None:
        """Asks nothing more of a worker than what it is at."""
        self._waiting.discard(self._index.pop(node, -1))

    def retire(self, node: int) -> list[int]:
        """Takes a worker out of the round and of those to come."""
        self.leave(node)
        numbers = self.release(node)
        if not (self._leases or self._waiting or self._parts):  # none of them is left
            self._begin()
        return numbers

    # --- rounds ------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Everybody that was drawn, and is still here, is done; at least one."""
        return bool(self._parts) and not self._leases and not self._waiting

    @property
    def begun(self) -> bool:
        """Somebody has begun with the round."""
        return bool(self._leases or self._parts)

    @property
    def parts(self) -> list[int]:
        """Slots of the round that are done."""
        return sorted(self._parts)

    def cut_off(self) -> list[int]:
        """Goes on without those that are not done, if anybody is; returns their nodes."""
        if not self._parts:
            return []
        late = list(self._leases.values())
        self._void_leased()
        self._waiting.clear()
        return late

    def advance(self) -> None:
        """The round has been applied: on to the next one."""
        self._counted += len(self._parts)
        self.round += 1
        self._begin()

    def _begin(self) -> None:
        """Draws who takes part in the round."""
        here = sorted(self._index.values())
        count = max(1, round(self._fraction * len(here))) if here else 0
        drawn = here
        if count < len(here):
            rng = np.random.default_rng((self._seed, self.round))
            drawn = sorted(rng.choice(here, count, replace=False).tolist())
        self._begun += 1
        self._drawn: list[int] = drawn
        self._slots = {index: slot for slot, index in enumerate(drawn)}
        self._waiting: set[int] = set(drawn) if self.round < self._rounds else set()
        self._parts: list[int] = []

    def snapshot(self) -> dict[str, Any]:
        """As of `Ledger`."""
        held = {number % self._width: node for number, node in self._leases.items()}
        mine = {index for index, node in held.items() if self._index.get(node) == index}
        return {
            **super().snapshot(),
            "round": self.round,
            "index": sorted(self._index.items()),
            "counted": self._counted,
            "drawn": list(self._drawn),
            "waiting": sorted(self._waiting | mine),
            "parts": list(self._parts),
        }

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """As of `Ledger`."""
        super().resume(snapshot)
        self.round, self._counted = int(snapshot["round"]), int(snapshot["counted"])
        self._index = {int(node): int(index) for node, index in snapshot["index"]}
        self._drawn = [int(index) for index in snapshot["drawn"]]
        self._slots = {index: slot for slot, index in enumerate(self._drawn)}
        self._begun += 1
        self._waiting = {int(index) for index in snapshot["waiting"]}
        self._parts = [int(slot) for slot in snapshot["parts"]]

    # --- where it stands ---------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """All rounds are done, or no more are wanted."""
        return (self._closed and not self._leases) or self.round >= self._rounds

    @property
    def progress(self) -> float:
        """Share of the rounds that are done."""
        return self.round / self._rounds

    @property
    def size(self) -> int:
        """Entries of all rounds, if all take part."""
        return self._counted + len(self._parts) + len(self._leases) + self._left

    @property
    def _left(self) -> int:
        later = max(0, self._rounds - self.round - 1)
        return len(self._waiting) + later * max(1, round(self._fraction * len(self._index)))

    @property
    def finished(self) -> int:
        """Entries that counted; at the end only those of rounds that were applied."""
        return self._counted + (0 if self.over else len(self._parts))

    def clock_of(self, node: int) -> int | None:
        """The round, of a worker that takes part."""
        return self.round if node in self._index else None

    def wait_of(self, node: int) -> Wait:
        """Those that are at work in the round."""
        others = Wait.for_some((n for n in self._by_node if n != node), "").nodes
        return Wait(others or (MASTER,), f"finish round {self.round + 1}")
