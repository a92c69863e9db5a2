"""What the master, or a signal, has asked of the job at work; set by other threads than its own."""

from __future__ import annotations

import threading


class Orders:
    """The orders of one worker, through successive jobs."""

    def __init__(self) -> None:
        self.leaving = False
        """Finish the present block, return the next ones, then leave."""
        self.workers = 1
        self.workers_changed = threading.Event()
        """Also where one has come for another: the number alone would not tell."""
        self.came_back = threading.Event()
        """A lost worker's block waits to be leased again."""

    def begin(self, workers: int) -> None:
        """Another job begins, with so many workers."""
        self.workers = workers
        self.workers_changed.clear()
