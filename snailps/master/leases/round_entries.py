"""Owns the entries of the present round: one for each worker that is drawn for it.

    begin: indices drawn -> entries leased -> done, or void -> ready -> closed -> advance

A part of the schedule of rounds, over its records, which are those of the present round. Must not
decide when a round is closed: `job/round_controller.py` does. Once it is, with the slots that were
sealed by then, an entry that comes late is void: shards have summed without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.master.leases.entries import Entry
from snailps.master.leases.records import NO_RESULT, BlockRecords
from snailps.master.leases.waits import ANY_WORKER
from snailps.pieces import Piece
from snailps.transport.messages.terms import Step


class Places:
    """The index of each worker, which says what data is its own; some workers wait for one."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self.width = len(nodes)
        """Indices in all."""
        self.index_of = {node: index for index, node in enumerate(nodes)}
        self.changes = 0
        """How often a worker got an index; wakes workers that wait for one."""
        self._spare: list[int] = []  # workers that joined and have no index yet

    def join(self, node: int) -> bool:
        """Give a worker a free index, or have it wait until one becomes free. False: it has one, or
        waits already."""
        if node in self.index_of or node in self._spare:
            return False
        self._spare.append(node)
        self._fill()
        return True

    def leave(self, node: int) -> int:
        """Free the index of a worker; -1: it had none."""
        self._spare = [other for other in self._spare if other != node]
        index = self.index_of.pop(node, -1)
        self._fill()
        return index

    def _fill(self) -> None:
        """Give free indices to waiting workers, in the order in which they joined."""
        free = sorted(set(range(self.width)) - set(self.index_of.values()))
        for index in free[: len(self._spare)]:
            self.index_of[self._spare.pop(0)] = index
            self.changes += 1

    def snapshot(self) -> dict[str, Any]:
        return {"index": sorted(self.index_of.items()), "spare": list(self._spare)}

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        self.index_of = {int(node): int(index) for node, index in snapshot["index"]}
        self._spare = [int(node) for node in snapshot["spare"]]


class Rounds:
    """Entry ``r * W + i`` is the one of index i in round r, for W indices."""

    def __init__(
        self,
        records: BlockRecords,  # for as many entries as there are indices
        places: Places,
        count: int,  # rounds at most
        fraction: float,  # share of the present workers that is drawn for a round
        seed: int,
        first: int,  # round to begin with; an earlier run has done those before
    ) -> None:
        self._records, self._places = records, places
        self.count, self._fraction, self._seed = count, fraction, seed
        self.round = first
        self.begins = 0
        """Rounds begun, repetitions included."""
        self.waiting: set[int] = set()
        """Indices that are drawn, and whose workers have not leased the entry yet."""
        self._voided: set[int] = set()  # entries that came too late, until their workers report
        self._is_cut = False  # the round takes no further entries
        self.counted = 0
        """Entries of rounds that were applied."""
        self.begin()

    @property
    def width(self) -> int:
        """Workers as models count them: one that joins later takes over the data of an index."""
        return self._places.width

    def of(self, node: int) -> int | None:
        """The present round, if a worker takes part; else None."""
        return self.round if node in self._places.index_of else None

    def entry(self, number: int) -> Entry:
        """The entry of a number of the present round, or of an earlier one."""
        round_, index = divmod(number, self.width)
        slot = self._slots.get(index, 0) if round_ == self.round else 0
        return Entry(
            number,
            Piece(),
            round_,
            (round_ / self.count, (round_ + 1) / self.count),
            Step(round_, slot, len(self._drawn), index),
        )

    def has(self, number: int) -> bool:
        return 0 <= number < self.count * self.width

    def epoch_of(self, number: int) -> int:
        return number // self.width

    @property
    def results_per_epoch(self) -> int:
        """One for each index."""
        return self.width

    @property
    def progress(self) -> float:
        """Share of all rounds that is applied, 0 to 1."""
        return self.round / self.count

    def share(self, numbers: Sequence[int] | NDArray[np.int64]) -> float:
        """Share of all rounds that is applied: a checkpoint is made at the beginning of a round."""
        return self.progress

    def number_of(self, index: int) -> int:
        """The entry of an index in the present round."""
        return self.round * self.width + index

    # --- the course of a round -------------------------------------------------------------------

    def begin(self) -> None:
        """Draw workers for the present round from those with an index. By seed and round alone, so
        that a master that takes over draws the same."""
        here = sorted(self._places.index_of.values())
        count = max(1, round(self._fraction * len(here))) if here else 0
        drawn = here
        if count < len(here):
            rng = np.random.default_rng((self._seed, self.round))
            drawn = sorted(rng.choice(here, count, replace=False).tolist())
        self.begins += 1
        self._drawn: list[int] = drawn
        self._slots = {index: slot for slot, index in enumerate(drawn)}
        self.waiting = set(drawn) if self.round < self.count else set()
        self._begin_records()

    def _begin_records(self, slots: Sequence[int] = ()) -> None:
        """The records of the present round, with these slots done."""
        self._is_cut = False
        self._records.begin(self.round * self.width)
        for slot in slots:
            number = self.number_of(self._drawn[slot])
            self._records.lease(number, ANY_WORKER)
            self._records.finish(number, NO_RESULT)

    @property
    def begun(self) -> bool:
        """A worker has begun with the round."""
        return bool(self._records.leased or self._records.finished)

    @property
    def is_empty(self) -> bool:
        """Whether all workers drawn are gone before one has begun: the round is drawn again."""
        return not (self.begun or self.waiting)

    @property
    def ready(self) -> bool:
        """Whether all workers that were drawn and are still here are done, and at least one is."""
        return bool(self._records.finished) and not (self._records.leased or self.waiting)

    @property
    def done_slots(self) -> list[int]:
        """Slots of the round that are done."""
        return sorted(self._slots[number % self.width] for number in self._records.done().tolist())

    def cut_off(self) -> list[int]:
        """Void the unfinished entries if at least one is done, as the deadline is over; returns the
        late workers. A round without any contribution would have no mean."""
        return self._cut() if self._records.finished else []

    def only(self, slots: Sequence[int]) -> None:
        """Close the round with these slots, as an earlier master ordered: no other counts."""
        self._cut()
        self._begin_records(slots)
        self._is_cut = True

    def _cut(self) -> list[int]:
        """Void the unfinished entries; returns their workers."""
        self._is_cut = True
        self.waiting.clear()
        nodes = list(self._records.holders())
        for node in nodes:
            numbers = self._records.held_by(node)
            self._voided.update(numbers)
            for number in numbers:
                self._records.release(number)
        return nodes

    def advance(self) -> None:
        """The round has been applied: begin the next one."""
        self.counted += self._records.finished
        self.round += 1
        self.begin()

    # --- entries ---------------------------------------------------------------------------------

    def take(self, index: int, node: int) -> Entry | None:
        """Lease the entry of an index; None: the index is not drawn, or its entry is leased."""
        if index not in self.waiting:
            return None
        self.waiting.remove(index)
        number = self.number_of(index)
        self._voided.discard(number)  # `adopt` may have voided it: the journal had lost this round
        self._records.lease(number, node)
        return self.entry(number)

    def adopt(self, number: int, node: int) -> bool:
        """Lease this entry to a worker that reports to hold it; an entry of an earlier or a closed
        round is void."""
        round_, index = divmod(number, self.width)
        # Another worker may have this index now: leases are not in the journal, so nobody knows
        # that one that has left since had leased the entry.
        drawn = index in self._slots and self._records.is_waiting(number)
        if round_ != self.round or self._is_cut or not drawn:
            if not self._records.is_done(number):
                self._voided.add(number)
            return False
        self.waiting.discard(index)
        self._records.lease(number, node)
        return True

    def is_void(self, number: int) -> bool:
        """Whether an entry came too late to count."""
        return number in self._voided

    def refuse(self, number: int) -> None:
        """The worker of a void entry has reported it."""
        self._voided.discard(number)

    # --- figures ---------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Entries of all rounds, if the workers stay as many as now."""
        later = max(0, self.count - self.round - 1)
        here = len(self._places.index_of)
        to_come = len(self.waiting) + later * max(1, round(self._fraction * here))
        return self.counted + self._records.finished + self._records.leased + to_come

    def stage(self) -> str:
        """Progress in words."""
        return f"round {self.round + 1} of {self.count}"

    def figures(self) -> dict[str, Any]:
        return {"rounds": self.round}

    # --- state -----------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        indices = self._places.index_of
        held = {
            number % self.width: node
            for node in self._records.holders()
            for number in self._records.held_by(node)
        }
        leased_now = {index for index, node in held.items() if indices.get(node) == index}
        return {
            "round": self.round,
            "counted": self.counted,
            "drawn": list(self._drawn),
            "waiting": sorted(self.waiting | leased_now),
            "parts": self.done_slots,
        }

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        self.round, self.counted = int(snapshot["round"]), int(snapshot["counted"])
        self._drawn = [int(index) for index in snapshot["drawn"]]
        self._slots = {index: slot for slot, index in enumerate(self._drawn)}
        self.begins += 1
        self.waiting = {int(index) for index in snapshot["waiting"]}
        self._begin_records([int(slot) for slot in snapshot["parts"]])
