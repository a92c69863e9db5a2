"""Bounded staleness, checked from outside: who may begin a block, and what its rows must contain.

    Done, as the master hears it -> blocks by worker -> Leased: none too far ahead
                                                     -> rows of that block: each worker's progress

Every worker adds 1 to a row of its own with each block.  A block is reported when its pushes are
acknowledged, so rows that are pulled behind a lease contain all that was reported before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PROGRESS = 1 << 32
"""Keys of workers' progress: one each, by its number."""


@dataclass
class Staleness:
    """What the workers of a job in `ssp` have finished, and what they are promised.

    Attributes
    ----------
    done : dict
        By worker: numbers of the blocks that it has reported.
    """

    bound: int
    done: dict = field(default_factory=dict)
    _base: dict = field(default_factory=dict)  # by worker: its clock when it took part first
    _promised: dict = field(default_factory=dict)  # by worker and block: blocks by worker

    def report(self, node, number):
        """The master hears that a worker has finished a block."""
        self.done.setdefault(node, set()).add(number)

    def lease(self, node, number, schedule):
        """The master leases a block; a line where that is too early, else None."""
        self._promised[node, number] = {other: len(seen) for other, seen in self.done.items()}
        held = schedule.records.count_of(node) - 1
        mine = self._clock(node, schedule) + held
        for other in schedule.workers:
            if other == node or not (schedule.records.count_of(other) or schedule.has_left(other)):
                continue
            ahead = mine - self._clock(other, schedule)
            if ahead > self.bound:
                return (
                    f"worker {node} begins block {number} {ahead} ahead of worker {other}, "
                    f"the bound is {self.bound}"
                )
        return None

    def keys(self, node, number):
        """The rows to be pulled with a block, beside its own."""
        return [PROGRESS + other for other in self._promised[node, number]]

    def check(self, node, number, rows):
        """The rows of a block are there; a line where they lack what was promised, else None."""
        for other, least in self._promised[node, number].items():
            found = float(rows[PROGRESS + other][0])
            if found < least:
                return (
                    f"worker {node} begins block {number} with {found:g} blocks of worker {other}, "
                    f"which had reported {least} before it was leased"
                )
        return None

    def _clock(self, node, schedule):
        done = len(self.done.get(node, ()))
        return self._base.setdefault(node, schedule.clock_of(node) - done) + done
