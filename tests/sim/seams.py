"""What the simulation puts in the place of parts of the product, all in one list.

    Seams(world) as a context -> the product's modules see a simulated disk, no threads, no sockets

The parts themselves are not touched.  Where the product has a door (`Services`, times as arguments)
the door is used; here is what has none yet.
"""

from __future__ import annotations

import threading
from datetime import datetime, timezone

from snailps.master import checkpoint_files, journal, takeover
from snailps.master.job import job as job_module
from snailps.server import checkpoints
from snailps.store.checkpoint import shard_file

BATCH_BYTES = 4096


class Seams:
    """Patches for the time of one run.

    Parameters
    ----------
    world : World
    disk : module-like
        In the place of `os` for the journal.
    is_there : callable
        Whether a process listens at an address.
    model : type
        The class of the job.
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
            (job_module, "load_class", lambda name, origin: model),
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
    """In the place of `datetime` for a checkpoint's manifest: each run has the same bytes."""

    @staticmethod
    def now(zone):
        """A time."""
        return datetime(2026, 1, 1, tzinfo=timezone.utc)


class Threads:
    """In the place of `threading` for a journal: its two threads become events.

    Attributes
    ----------
    owner : Process
        The process whose threads are being made; None: no process's.
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
        """Nothing to wait for: it runs as an event, or with its process does not run."""
