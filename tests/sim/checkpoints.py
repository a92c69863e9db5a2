"""The history of a job's checkpoints: which are whole, which are damaged, which were restored.

    files of a master -> Watched -> History: begun, whole, damaged; restored -> invariants.py

The files are the product's own.  This module owns when each checkpoint was begun, written and
restored, which no file records.
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
    """A checkpoint that all servers have written.

    Attributes
    ----------
    begun_at, written_at : float
        When its position was taken, and when its last row was copied.
    done : list of int
        Blocks whose pushes it includes.
    clock : int
        Its clock in bsp.
    whole : bool
        Whether the product has given it its name.
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
    """A training was restored from an older checkpoint, which makes this one void."""

    @property
    def is_good(self):
        """Whether a training could go on from it."""
        return self.whole and not (self.damaged or self.pruned or self.passed)


@dataclass
class Restored:
    """A training that began: from a checkpoint, or with no rows (None)."""

    at: float
    checkpoint: Checkpoint | None


class History:
    """The checkpoints of a job, and of each attempt at it."""

    def __init__(self):
        self.all = {}
        self.restored = []
        self.problems = []

    def newest(self):
        """The newest good checkpoint, or None."""
        good = [checkpoint for checkpoint in self.all.values() if checkpoint.is_good]
        return max(good, key=lambda checkpoint: checkpoint.number, default=None)

    @property
    def refusable(self):
        """Whether the master must refuse to begin: there were checkpoints, and none is good."""
        damaged = any(checkpoint.damaged for checkpoint in self.all.values())
        return self.newest() is None and damaged

    def begins(self, at, number):
        """Notes from which checkpoint a training begins (0: none); that one, or None."""
        newest, checkpoint = self.newest(), self.all.get(number)
        if number and checkpoint is None:
            self.problems.append(f"went on from checkpoint {number}, which was never written")
        least = newest.number if newest is not None else 0
        if number < least:
            self.problems.append(f"went on from checkpoint {number}, and {least} is whole")
        self.restored.append(Restored(at, checkpoint))
        for other in self.all.values():
            other.passed = other.passed or other.number > number
        return checkpoint

    def loaded(self, at):
        """The history, if a driver then loads the rows of the newest one."""
        history = History()
        history.restored = [*self.restored, Restored(at, self.newest())]
        return history

    def fate(self, drawn_at, acked_at):
        """How often, least and most, a push may be in the rows after the restores since."""
        least, most = int(acked_at is not None), 1
        for restored in self.restored:
            if restored.at < drawn_at:
                continue
            checkpoint = restored.checkpoint
            written_at = checkpoint.written_at if checkpoint is not None else -math.inf
            begun_at = checkpoint.begun_at if checkpoint is not None else -math.inf
            if drawn_at > written_at:
                return 0, 0
            if acked_at is None or acked_at > begun_at:
                least = 0
        return least, most


class Watched(CheckpointFiles):
    """The product's checkpoint files at a master, which report to the history."""

    def __init__(self, cluster, process):
        super().__init__(View(cluster.shared_disk, process))
        self._cluster = cluster
        self._begun_at = 0.0
        self._are_best = False

    def open_best(self, settings, name):
        """Rows of the best epoch are no checkpoint that a run goes on from."""
        self._are_best = True
        return super().open_best(settings, name)

    @property
    def begin(self):
        """A property: the controller reads it in the step in which it takes the position."""
        self._begun_at = self._cluster.world.now
        return super().begin

    def complete(self, begun, files, snapshot, **about):
        """Notes what the checkpoint includes, then that it is whole."""
        cluster = self._cluster
        is_other = self._are_best or not cluster.saves_job_to(Path(begun.part).parent)
        if is_other:
            return super().complete(begun, files, snapshot, **about)
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
        """Notes which checkpoints were removed: never one of the newest `kept`.

        The folder is FOLDER, or one beside the output for the rows of a failed export.
        """
        history, disk = self._cluster.history, self._cluster.shared_disk
        on_disk = {n for n in history.all if disk.find(f"{folder}/checkpoint-{n:06d}") is not None}
        whole = {number for number, checkpoint in history.all.items() if checkpoint.whole}
        numbers = sorted(on_disk | whole)
        for number in numbers:
            history.all[number].pruned = number not in on_disk
            if number not in on_disk and number in numbers[-kept:]:
                history.problems.append(
                    f"checkpoint {number} was removed, of {numbers}, and {kept} are kept"
                )
