"""Filters whose first worker waits in the middle of a task, until the test says that it may go on.

worker -> note(folder), with the process's id -> the test removes it, or kills a process
"""

import os
import time
from pathlib import Path

from snailps.filtering import worker


def note(folder):
    """Where the worker that waits leaves the id of its process; it goes on when that is empty."""
    return Path(folder) / ".snailps" / "stuck"


class StuckFilter(worker.Filter):
    """The first one of all workers whose output is there waits before it says so."""

    waits_at = "save"

    def setup(self):
        super().setup()
        results = self._job.results
        call = getattr(results, self.waits_at)

        def wait_and_call(*words):
            self.wait()
            return call(*words)

        setattr(results, self.waits_at, wait_and_call)

    def wait(self):
        path = note(self._job.results.folder)
        try:
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return
        os.write(file, b"%d\n" % os.getpid())
        os.close(file)
        while path.stat().st_size:
            time.sleep(0.01)


class StuckWriting(StuckFilter):
    """The first one waits with its output written, but not there yet: a hidden file."""

    waits_at = "is_current"


class StuckNoting(worker.Filter):
    """The first one waits with a task's pass made, its pushes at the servers, before it says so."""

    waits_in = "pairs", 1
    wait = StuckFilter.wait

    def _search(self, block, terms):
        units = super()._search(block, terms)
        if (self.settings.phase, terms.pass_index) == self.waits_in:
            self.wait()
        return units


class StuckPushing(StuckNoting):
    waits_in = "pairs", 2


class StuckPulling(StuckNoting):
    waits_in = "pairs", 3


class StuckReading(StuckNoting):
    waits_in = "overlaps", 0


class StuckComparing(StuckNoting):
    waits_in = "overlaps", 1
