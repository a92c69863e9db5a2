"""The ledger of rounds: one entry for each worker that is drawn for a round.

    round -> workers drawn -> entries that are done -> the master closes it, the next one begins

A policy over the records of `Ledger`, which here are those of the present round.  No files, sockets
or time.  `job/round_controller.py` decides when a round is closed.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.master.leases.ledger import ANY_WORKER, MASTER, NO_RECORDS, Entry, Ledger, Wait
from snailps.master.leases.records import NO_RESULT, BlockRecords, BlockResult
from snailps.pieces import Piece
from snailps.transport.messages.terms import Step


class RoundLedger(Ledger):
    """A round at a time, an entry for each worker that is drawn for it. Entry ``r * W + i`` is
    round r of index i. A lost worker leaves its index, and the round continues without it; one that
    joins takes a free index, or waits for one. A round is over (`ready`) when all entries drawn are
    done or void; then the master closes it at the shards and calls `advance`."""

    def __init__(
        self,
        rounds: int,  # at most
        nodes: Sequence[int],  # the workers; the i-th has index i
        fraction: float = 1.0,  # share of the present workers that is drawn for a round
        seed: int = 1,
        first: int = 0,  # round to begin with; an earlier run has done those before
    ) -> None:
        super().__init__([Piece(stop=1)])
        self._rounds, self._width = rounds, len(nodes)
        self._fraction, self._seed = fraction, seed
        self._index = {node: index for index, node in enumerate(nodes)}
        self._spare: list[int] = []  # workers that joined and have no index yet
        self.round = first
        self._counted = 0
        self._voided: set[int] = set()  # late entries, until their workers report
        self._begun = 0  # rounds begun, counting repetitions
        self._woken_for = (-1, -1)
        self._begin()

    def entry(self, number: int) -> Entry:
        """The entry of a number of the present round, or of an earlier one."""
        round_, index = divmod(number, self._width)
        slot = self._slots.get(index, 0) if round_ == self.round else 0
        return Entry(
            number,
            Piece(),
            round_,
            round_ / self._rounds,
            (round_ + 1) / self._rounds,
            Step(round_, slot, len(self._drawn), index),
        )

    def epoch_of(self, number: int) -> int:
        return number // self._width

    def piece(self, number: int) -> Piece | None:
        """None: each worker finds its own data."""
        return None

    def _next_of(self, node: int) -> Entry | None:
        """The entry of a worker that is drawn for the round and has not had it yet."""
        index = self._index.get(node, -1)
        if self.closed or index not in self._waiting:
            return None
        self._waiting.remove(index)
        number = self.round * self._width + index
        self._voided.discard(number)  # it may be void for a journal that had lost this round
        self._lease(number, node)
        return self.entry(number)

    def woken(self, waiting: Container[int]) -> list[int]:
        """Workers drawn for a round that has begun since the last call."""
        if self._woken_for == (self.round, self._begun):
            return []
        self._woken_for = (self.round, self._begun)
        return [n for n in self._still(waiting) if self._index.get(n, -1) in self._waiting]

    def done(
        self, number: int, node: int, result: BlockResult = NO_RESULT, *, whole: bool = True
    ) -> bool:
        """A worker has sealed its contribution; False also if the entry is void."""
        if number in self._voided or self.records.holder(number) != node:
            self._voided.discard(number)
            return False
        self.records.finish(number, result)
        return True

    def claim(self, number: int, node: int) -> bool:
        """An entry of an earlier or a closed round is void."""
        if self.records.holder(number) == node:
            return True
        round_, index = divmod(number, self._width)
        # Leases are not in the journal: a worker that has left since may have had its entry.
        drawn = index in self._slots and self.records.is_waiting(number)
        if round_ != self.round or self._is_cut or not drawn:
            if not self.records.is_done(number):
                self._voided.add(number)
            return False
        self._waiting.discard(index)
        self._lease(number, node)
        return True

    def only(self, slots: Sequence[int]) -> None:
        """Close the round with these slots, which are done: no other counts."""
        self._cut()
        self._begin_records(slots)
        self._is_cut = True

    def _cut(self) -> list[int]:
        """Void the unfinished entries; their workers."""
        self._is_cut = True
        self._waiting.clear()
        nodes = list(self.records.holders())
        for node in nodes:
            self._voided.update(self._release_all(node))
        return nodes

    def is_void(self, number: int) -> bool:
        """Whether an entry came too late to count."""
        return number in self._voided

    def release(self, node: int) -> list[int]:
        """Void a worker's entry of the round: no other worker has its data."""
        return self._release_all(node)

    def join(self, node: int) -> None:
        """Give the worker a free index; without one it waits until one becomes free."""
        if node not in self._index and node not in self._spare:
            self._spare.append(node)
            self._fill()
            if not (self.begun or self._waiting):
                self._begin()

    def as_counted(self, workers: int) -> int:
        """The number of indices: a worker that comes later takes over the data of one."""
        return self._width

    def _fill(self) -> None:
        """Give free indices to waiting workers, in the order in which they joined."""
        free = sorted(set(range(self._width)) - set(self._index.values()))
        for index in free[: len(self._spare)]:
            self._index[self._spare.pop(0)] = index
            self._begun += 1  # it may be one that was drawn

    def leave(self, node: int) -> None:
        """A worker finishes its entry and takes nothing more."""
        self._spare = [other for other in self._spare if other != node]
        self._waiting.discard(self._index.pop(node, -1))
        self._fill()

    def retire(self, node: int) -> list[int]:
        """Take a worker out of the round and of later ones."""
        numbers = super().retire(node)
        if not (self.begun or self._waiting):  # none of the workers drawn is left
            self._begin()
        return numbers

    # --- rounds ------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """All workers that were drawn, and are still here, are done; at least one."""
        return bool(self.records.finished) and not self.leased and not self._waiting

    @property
    def begun(self) -> bool:
        """A worker has begun with the round."""
        return bool(self.leased or self.records.finished)

    @property
    def done_slots(self) -> list[int]:
        """Slots of the round that are done."""
        return sorted(self._slots[number % self._width] for number in self.records.done().tolist())

    def cut_off(self) -> list[int]:
        """Void the unfinished entries, if any is done; returns the late workers."""
        if not self.records.finished:
            return []
        return self._cut()

    def advance(self) -> None:
        """The round has been applied: begin the next one."""
        self._counted += self.records.finished
        self.round += 1
        self._begin()

    def _begin(self) -> None:
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
        self._begin_records()

    def _begin_records(self, slots: Sequence[int] = ()) -> None:
        """The records of the present round, with these slots done."""
        self._is_cut = False
        self.records = BlockRecords(self._width, self.round * self._width)
        for slot in slots:
            number = self.round * self._width + self._drawn[slot]
            self.records.lease(number, ANY_WORKER)
            self.records.finish(number, NO_RESULT)

    def snapshot(self) -> dict[str, Any]:
        held = {n % self._width: node for node, numbers in self.holders().items() for n in numbers}
        mine = {index for index, node in held.items() if self._index.get(node) == index}
        return {
            **super().snapshot(),
            "round": self.round,
            "index": sorted(self._index.items()),
            "spare": list(self._spare),
            "counted": self._counted,
            "drawn": list(self._drawn),
            "waiting": sorted(self._waiting | mine),
            "parts": self.done_slots,
        }

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        super().resume(snapshot)
        self.round, self._counted = int(snapshot["round"]), int(snapshot["counted"])
        self._index = {int(node): int(index) for node, index in snapshot["index"]}
        self._spare = [int(node) for node in snapshot["spare"]]
        self._drawn = [int(index) for index in snapshot["drawn"]]
        self._slots = {index: slot for slot, index in enumerate(self._drawn)}
        self._begun += 1
        self._waiting = {int(index) for index in snapshot["waiting"]}
        self._begin_records([int(slot) for slot in snapshot["parts"]])

    # --- what policies answer -------------------------------------------------------------------

    repeats = "rounds"
    needs = "clock"
    judged = "clock"

    @property
    def clock(self) -> int:
        return self.round

    def stage(self, epochs: int, *, at_most: bool) -> str:
        return f"round {self.round + 1} of {self._rounds}"

    def figures(self) -> dict[str, Any]:
        return {"rounds": self.round}

    def known(self) -> NDArray[Any]:
        """None: a snapshot is of the beginning of a round, and its state has the slots."""
        return NO_RECORDS

    def durable(self, clock: int = -1) -> NDArray[Any]:
        return NO_RECORDS

    def share(self, numbers: Collection[int] | NDArray[np.int64]) -> float:
        return self.progress

    # --- state -------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """All rounds are done, or no more are wanted."""
        return (self.closed and not self.leased) or self.round >= self._rounds

    @property
    def progress(self) -> float:
        return self.round / self._rounds

    @property
    def size(self) -> int:
        """Entries of all rounds, if all take part."""
        return self._counted + self.records.finished + self.leased + self._left

    @property
    def _left(self) -> int:
        later = max(0, self._rounds - self.round - 1)
        return len(self._waiting) + later * max(1, round(self._fraction * len(self._index)))

    @property
    def finished(self) -> int:
        """Entries that counted; at the end only entries of applied rounds."""
        return self._counted + (0 if self.over else self.records.finished)

    def clock_of(self, node: int) -> int | None:
        """The round, for a worker that takes part."""
        return self.round if node in self._index else None

    def wait_of(self, node: int) -> Wait:
        """The workers that are at work in the round."""
        others = Wait.for_some((n for n in self.records.holders() if n != node), "").nodes
        return Wait(others or (MASTER,), f"finish round {self.round + 1}")
