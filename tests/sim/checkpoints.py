"""What a run knows of its checkpoints: which are whole, which are damaged, from which it went on.

    files of a master -> Watched -> History: begun, whole, damaged; restored -> invariants.py

The files are the product's own; here is what happened when, which no file says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from snailps.master.checkpoint_files import CheckpointFiles
from tests.sim.memory_disk import View
from tests.sim.rotation import numbers_done

FOLDER = "/shared/checkpoints"


@dataclass
class Checkpoint:
    """One that all servers have written.

    Attributes
    ----------
    begun_at, written_at : float
        Its position is of the first; its rows were copied between the two.
    done : list of int
        The blocks in it.
    clock : int
        In bsp.
    whole : bool
        The product has said so.
    """

    number: int
    begun_at: float
    written_at: float
    done: list
    clock: int
    whole: bool = False
    damaged: bool = False
    pruned: bool = False
    passed: bool = False
    """A training went on from an older one, as if this one were not there."""

    @property
    def is_good(self):
        """Whether a training could go on from it."""
        return self.whole and not (self.damaged or self.pruned or self.passed)


@dataclass
class Restored:
    """A training that began, from a checkpoint or from nothing (None)."""

    at: float
    checkpoint: Checkpoint | None


class History:
    """The checkpoints of a run."""

    def __init__(self):
        self.all = {}
        self.restored = []
        self.problems = []

    def newest(self):
        """The newest that is whole and not damaged; None: there is none."""
        good = [one for one in self.all.values() if one.is_good]
        return max(good, key=lambda one: one.number, default=None)

    @property
    def refusable(self):
        """Whether none is good and some were: a run is to be refused then."""
        return self.newest() is None and any(one.damaged for one in self.all.values())

    def begins(self, at, number):
        """A training begins, from a checkpoint, or from nothing (0); which one that is, or None."""
        newest, found = self.newest(), self.all.get(number)
        if number and found is None:
            self.problems.append(f"went on from checkpoint {number}, which was never written")
        least = newest.number if newest is not None else 0
        if number < least:
            self.problems.append(f"went on from checkpoint {number}, and {least} is whole")
        self.restored.append(Restored(at, found))
        for one in self.all.values():
            one.passed = one.passed or one.number > number
        return found

    def fate(self, drawn_at, acked_at):
        """Least and most often that a push may be in the rows, as of what was restored since."""
        least, most = int(acked_at is not None), 1
        for restored in self.restored:
            if restored.at < drawn_at:
                continue
            one = restored.checkpoint
            written_at = one.written_at if one is not None else -math.inf
            begun_at = one.begun_at if one is not None else -math.inf
            if drawn_at > written_at:
                return 0, 0
            if acked_at is None or acked_at > begun_at:
                least = 0
        return least, most


class Watched(CheckpointFiles):
    """The product's files of a master, and what is told of them to the history."""

    def __init__(self, cluster, process):
        super().__init__(View(cluster.shared_disk, process))
        self._cluster = cluster
        self._begun_at = 0.0

    @property
    def begin(self):
        """The controller takes the position and this method in one step: that is the moment."""
        self._begun_at = self._cluster.world.now
        return super().begin

    def complete(self, begun, files, snapshot, **about):
        """Notes what will be in it, then that it is whole."""
        cluster = self._cluster
        made = Checkpoint(
            begun.number, self._begun_at, cluster.world.now, numbers_done(snapshot), snapshot.clock
        )
        cluster.history.all[begun.number] = made
        completed = super().complete(begun, files, snapshot, **about)
        made.whole = True
        self._note_pruned(about["kept"], Path(completed.path).parent)
        cluster.world.say("disk", f"checkpoint {begun.number} is whole, clock {made.clock}")
        return completed

    def _note_pruned(self, kept, folder):
        """Notes which are gone: never one of the newest, as many as are kept.

        The folder is FOLDER, or beside the output: of rows that a failed export keeps.
        """
        history, disk = self._cluster.history, self._cluster.shared_disk
        there = {n for n in history.all if disk.find(f"{folder}/checkpoint-{n:06d}") is not None}
        known = sorted(there | {n for n, one in history.all.items() if one.whole})
        for number in known:
            history.all[number].pruned = number not in there
            if number not in there and number in known[-kept:]:
                history.problems.append(
                    f"checkpoint {number} was removed, of {known}, and {kept} are kept"
                )
