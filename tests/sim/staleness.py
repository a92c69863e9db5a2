"""Bounded staleness, checked from outside: who may begin a block, and what its rows must contain.

    Done, as the master hears it -> blocks by worker -> Leased: none too far ahead
                                                     -> rows of that block: each worker's progress

Every worker adds 1 to a row of its own with each block.  A block is reported when its pushes are
acknowledged, so rows pulled after a lease contain all that was reported before that lease.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PROGRESS = 1 << 32
"""Keys of workers' progress: one each, by its number."""


@dataclass
class Staleness:
    """The blocks that workers of an `ssp` job have finished, and the rows promised to each lease.

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
        """Notes that a worker has reported a block."""
        self.done.setdefault(node, set()).add(number)

    def level(self):
        """An epoch is tested: all is done and pushed, and workers go on from one clock."""
        self._base.clear()

    def lease(self, node, number, schedule):
        """Notes a lease; a line of text if it is too early, else None."""
        self._promised[node, number] = {other: len(seen) for other, seen in self.done.items()}
        # A worker that comes back to another master may have reported a block that is leased yet.
        held = set(schedule.records.held_by(node)) - self.done.get(node, set())
        mine = self._clock(node, schedule) + len(held) - 1
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
        """Keys of progress rows to pull with a block."""
        return [PROGRESS + other for other in self._promised[node, number]]

    def check(self, node, number, rows):
        """Checks the rows of a block; a line of text if they lack a promised push, else None."""
        for other, least in self._promised[node, number].items():
            progress = float(rows[PROGRESS + other][0])
            if progress < least:
                return (
                    f"worker {node} begins block {number} with {progress:g} blocks of worker "
                    f"{other}, which had reported {least} before it was leased"
                )
        return None

    def _clock(self, node, schedule):
        done = len(self.done.get(node, ()))
        return self._base.setdefault(node, schedule.clock_of(node) - done) + done
