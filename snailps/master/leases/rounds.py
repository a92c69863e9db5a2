"""Decides who trains in which round: the schedule of rounds, an entry for each worker drawn.

    round -> workers drawn -> entries that are done -> the master closes it, the next one begins

A policy over the records of `Schedule`, which here are those of the present round only;
`round_entries.py` has the course of a round. No files, sockets or time: the deadline of a round is
kept by `job/round_controller.py`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from snailps.master.leases.entries import Entry
from snailps.master.leases.records import NO_RESULT, BlockRecords, BlockResult
from snailps.master.leases.round_entries import Places, Rounds
from snailps.master.leases.schedule import NO_RECORDS, Schedule
from snailps.master.leases.waits import MASTER, Wait


class RoundSchedule(Schedule):
    """A round at a time, an entry for each worker that is drawn for it.

    Each worker has an index, which says what data is its own. A lost worker leaves its index, and
    the round continues without it; a worker that joins takes a free index, or waits for one. A
    round is over (`Rounds.ready`) when all entries drawn are done or void; then the master closes
    it at the shards and calls `Rounds.advance`.
    """

    rounds: Rounds

    def __init__(
        self,
        count: int,  # rounds at most
        nodes: Sequence[int],  # the workers; the i-th has index i
        fraction: float = 1.0,  # share of the present workers that is drawn for a round
        seed: int = 1,
        first: int = 0,  # round to begin with; an earlier run has done those before
    ) -> None:
        super().__init__(BlockRecords(len(nodes)), nodes)
        self._places = Places(nodes)
        self.plan = self.rounds = Rounds(self.records, self._places, count, fraction, seed, first)
        self._woken_for = (-1, -1, -1)

    @property
    def epoch(self) -> int:
        return self.rounds.round

    def _next_of(self, node: int) -> Entry | None:
        """The entry of a worker that is drawn for the round and has not had it yet."""
        if self.closed:
            return None
        return self.rounds.take(self._places.index_of.get(node, -1), node)

    def woken(self, waiting: Container[int]) -> list[int]:
        """Workers drawn for a round that has begun since the last call, and workers that got an
        index that was drawn."""
        rounds, index_of = self.rounds, self._places.index_of
        news = (rounds.round, rounds.begins, self._places.changes)
        if self._woken_for == news:
            return []
        self._woken_for = news
        return [n for n in self._still(waiting) if index_of.get(n, -1) in rounds.waiting]

    def wait_of(self, node: int) -> Wait:
        """The workers that are at work in the round."""
        others = super().wait_of(node).nodes
        return Wait(others or (MASTER,), f"finish round {self.rounds.round + 1}")

    def done(self, number: int, node: int, result: BlockResult = NO_RESULT) -> bool:
        """A worker has sealed its contribution; False also if the entry is void."""
        if self.rounds.is_void(number) or not super().done(number, node, result):
            self.rounds.refuse(number)
            return False
        return True

    def claim(self, number: int, node: int) -> bool:
        """An entry of an earlier or a closed round is void."""
        return self.records.holder(number) == node or self.rounds.adopt(number, node)

    def release(self, node: int) -> list[int]:
        """End the leases of a worker. Nobody else gets its entry: no other worker has its data."""
        return self._release_all(node)

    def join(self, node: int) -> None:
        super().join(node)
        if self._places.join(node) and self.rounds.is_empty:
            self.rounds.begin()

    def leave(self, node: int) -> None:
        super().leave(node)
        self.rounds.waiting.discard(self._places.leave(node))

    def retire(self, node: int) -> list[int]:
        """Take a worker out of the round and of later ones."""
        numbers = super().retire(node)
        if self.rounds.is_empty:
            self.rounds.begin()
        return numbers

    @property
    def over(self) -> bool:
        """All rounds are done, or no more are wanted."""
        is_last = self.rounds.round >= self.rounds.count
        return (self.closed and not self.records.leased) or is_last

    @property
    def progress(self) -> float:
        return self.rounds.progress

    @property
    def size(self) -> int:
        return self.rounds.size

    @property
    def finished(self) -> int:
        """Entries that counted; at the end only entries of applied rounds."""
        return self.rounds.counted + (0 if self.over else self.records.finished)

    def known(self) -> NDArray[Any]:
        """No records: `snapshot` has the slots of the present round that are done."""
        return NO_RECORDS

    def durable(self) -> NDArray[Any]:
        return NO_RECORDS

    def snapshot(self) -> dict[str, Any]:
        return {**super().snapshot(), **self._places.snapshot(), **self.rounds.snapshot()}

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        super().resume(snapshot)
        self._places.resume(snapshot)
        self.workers = dict.fromkeys(self._places.index_of)
        self.rounds.resume(snapshot)
