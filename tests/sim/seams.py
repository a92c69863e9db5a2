"""The parts of the product that the simulation replaces, in one list.

    Seams(world) as a context -> the product's modules see a simulated disk, no threads, no sockets

Where the product takes a neighbour or a time as an argument (`Services`, `Disk`), the simulation
passes its own.  This module patches the modules that take no argument for it.
"""

from __future__ import annotations

import threading
from datetime import datetime, timezone

from snailps.master import checkpoint_files, journal, takeover
from snailps.master.job import model_class
from snailps.server import checkpoints
from snailps.store.checkpoint import shard_file

BATCH_BYTES = 4096


class Seams:
    """Patches for the time of one run.

    Parameters
    ----------
    world : World
    disk : module-like
        Replaces `os` in the journal.
    is_there : callable
        Tells whether a process listens at an address.
    model : type
        The class that every job loads.
    journal_bytes : int
        Length at which the journal is compacted.
    """

    def __init__(self, *, disk, threads, is_there, model, journal_bytes):
        self._patches = [
            (journal, "os", disk),
            (journal, "threading", threads),
            (journal, "GROWN_BYTES", journal_bytes),
            (journal, "GROWN_SHARE", 1),
            (takeover, "is_there", is_there),
            # The class is found by its name and its files are looked at each time: 10 ms.
            (model_class, "load_class", lambda name, origin: model),
            # Buffers of 16 MiB cost a seed more than all that is in them.
            (checkpoints, "BATCH_BYTES", BATCH_BYTES),
            (shard_file, "BATCH_BYTES", BATCH_BYTES),
            (checkpoint_files, "datetime", Calendar),
        ]
        self._former = []

    def __enter__(self):
        for place, name, value in self._patches:
            self._former.append((place, name, getattr(place, name)))
            setattr(place, name, value)
        return self

    def __exit__(self, *failure):
        while self._former:
            setattr(*self._former.pop())


class Calendar:
    """Replaces `datetime` in manifests of checkpoints, so that each run writes the same bytes."""

    @staticmethod
    def now(zone):
        """A time."""
        return datetime(2026, 1, 1, tzinfo=timezone.utc)


class Threads:
    """Replaces `threading` in the journal: its two threads become events.

    Attributes
    ----------
    owner : Process
        The process for which threads are made at the moment, or None.
    """

    Event, RLock = threading.Event, threading.RLock

    def __init__(self):
        self.owner = None

    def Thread(self, *, target, args=(), name="", daemon=True):
        """A thread of the present owner."""
        return _Thread(self.owner, target, args, name)


class _Thread:
    def __init__(self, owner, target, args, name):
        self._owner, self._target, self._args, self._name = owner, target, args, name

    def start(self):
        if self._name == "snailps-journal":
            self._owner.sync_later()
        else:
            self._owner.after(self._owner.world.rng.uniform(0.001, 0.5), self._run)

    def _run(self):
        with self._owner.as_owner():
            self._target(*self._args)

    def join(self, limit_s=None):
        """Returns at once: the thread is an event, which has run, or died with its process."""
