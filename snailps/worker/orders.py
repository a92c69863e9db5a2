"""What the master, or a signal, has asked of a worker meanwhile: flags between threads.

The control connection's reader and the signal handler set them; the thread that trains reads them
between two blocks, and clears the events.
"""

from __future__ import annotations

import threading


class Orders:
    """The orders of a worker process; the same object through all its jobs."""

    def __init__(self) -> None:
        self.leaving = False
        """Finish the block in training, return those leased ahead, then leave the cluster."""
        self.workers = 1
        self.workers_changed = threading.Event()
        """Set at each change, also when one worker replaces another and `workers` stays equal."""
        self.came_back = threading.Event()
        """A block of a lost worker waits to be leased again: with clocks, by one who waits."""

    def begin(self, workers: int) -> None:
        """Start another job, with this number of workers; `leaving` stays."""
        self.workers = workers
        self.workers_changed.clear()
