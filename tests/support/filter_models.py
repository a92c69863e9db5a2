"""A filter whose worker is stuck at the end of its first task, to be killed there."""

import os
import signal

from snailps.filtering import worker


class StuckFilter(worker.Filter):
    """The first one of all workers to have written an output waits for its end, unless told."""

    def setup(self):
        super().setup()
        save = self._job.results.save

        def save_or_wait(*result):
            try:
                note = os.open(
                    self._job.results.folder / ".snailps" / "stuck", os.O_CREAT | os.O_EXCL | 1
                )
            except FileExistsError:
                return save(*result)
            os.write(note, b"%d\n" % os.getpid())
            os.close(note)
            while True:
                signal.pause()

        self._job.results.save = save_or_wait
