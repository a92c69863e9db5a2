"""Looks at a job's rows at each tenth of its training, beside it.

    registry.named("tests_in_training") -> Tenths, EpochTests
    due -> PresentJob.reading -> Work(services.reader.look) -> Job.looked

`now` is monotonic seconds.
"""

from __future__ import annotations

from functools import partial

from snailps.master.effects import Outbox
from snailps.master.job.epoch_tests import EpochTests as EpochTests
from snailps.master.job.job import Job
from snailps.master.job.model_class import Look
from snailps.master.job.present import PresentJob
from snailps.master.services import Reader
from snailps.node.effects import WorkDone

INSPECTIONS = 10
"""Moments of one training at which looks are due."""
SHARE_MAX = 0.05
"""Share of the time of a training that its looks take, but for the first two."""


class Tenths:
    def __init__(
        self, job: Job, looks: list[Look], out: Outbox, present: PresentJob, reader: Reader
    ) -> None:
        self._job, self._looks = job, looks
        self._out, self._present, self._reader = out, present, reader
        self._count = -1  # the tenth that was looked at last; -1: none, nor the beginning
        self._spent_s = -1.0  # by looks but the first; -1: before that
        self.running = False

    def resume(self, now: float) -> None:
        """Go on with a training of an earlier master."""
        self._count = int(self._job.progress(now) * INSPECTIONS)

    def step(self, now: float) -> None:
        """Look at the rows at each tenth of the training, or less often where that would take too
        much of its time; at its beginning, too, where files may have to be read first."""
        due = int(self._job.progress(now) * INSPECTIONS)
        if due <= self._count or self.running:
            return
        if self._spent_s > SHARE_MAX * self._job.clock.elapsed_s(now):
            return
        self._count = due
        looks = self._looks if due else [look for look in self._looks if "begin" in look.when]
        if looks:
            self.running = True
            look = partial(self._reader.look, self._job, looks, due, self._present.reading())
            progress = round(self._job.progress(now), 3) if due else None
            self._out.work(look, partial(self._done, now, progress))

    def _done(self, begun: float, progress: float | None, done: WorkDone, now: float) -> None:
        self.running = False
        # The first one may have read files for the others.
        self._spent_s = 0.0 if self._spent_s < 0 else self._spent_s + now - begun
        self._job.looked(done.result or (), now, progress)
