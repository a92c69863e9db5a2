"""Tests the model after each epoch, keeps the rows of the best one, and ends the training.

    an epoch is done, all pushes acknowledged -> test -> [better: Save of all servers] -> next epoch
    no better figure for `stop_after` epochs -> the training ends -> Load of the best rows -> export

While an epoch is tested nothing is leased after it, so its rows stay as they are: the figure, the
rows that are kept, and the model that is exported in the end are of the same bits.  Rows are kept
as a checkpoint in a folder of its own.  `tested` is noted once the rows are kept; a master that
takes over before that tests the epoch again, on the same rows.  `now` is monotonic seconds.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from snailps.errors import EXIT_FAILED, SnailError, explain
from snailps.master.checkpoint_place import Hooks
from snailps.master.checkpoints import CheckpointController
from snailps.master.effects import Outbox
from snailps.master.job.epoch_figures import deciding_in
from snailps.master.job.job import Job
from snailps.master.job.looks import Course
from snailps.master.job.model_class import Look
from snailps.master.job.present import PresentJob
from snailps.master.job.record import JobRecord
from snailps.master.services import Completed, Opened, Services
from snailps.node.effects import WorkDone, ignored

log = logging.getLogger(__name__)

TRIES = 3
"""Tries of a test, or of keeping rows: a server may be lost meanwhile."""


class Step(enum.Enum):
    """What is under way."""

    TRAINING = "training"
    READING = "reading the validation data"  # beside the training
    TESTING = "testing"
    KEEPING = "keeping the rows"
    RESTORING = "restoring the best rows"
    OVER = "over"


_S = Step
STEPS: Mapping[Step, frozenset[Step]] = {
    _S.TRAINING: frozenset({_S.READING, _S.TESTING, _S.RESTORING, _S.OVER}),
    _S.READING: frozenset({_S.TRAINING, _S.OVER}),
    _S.TESTING: frozenset({_S.TRAINING, _S.KEEPING, _S.OVER}),
    _S.KEEPING: frozenset({_S.TRAINING, _S.OVER}),
    _S.RESTORING: frozenset({_S.OVER}),
    _S.OVER: frozenset(),
}
"""The steps that may follow each."""


class EpochTests:
    """The tests of one job after each epoch."""

    def __init__(
        self,
        job: Job,
        look: Look,
        name: str,  # of the job, unlike all others
        out: Outbox,
        present: PresentJob,
        services: Services,
        checkpoints: CheckpointController,  # of the job
        course: Course,
    ) -> None:
        self._job, self._look, self._name = job, look, name
        self._record = JobRecord(job)
        self._out, self._present, self._services = out, present, services
        self._checkpoints, self._course = checkpoints, course
        self._step = Step.TRAINING
        self._has_read = False
        self._test: dict[str, Any] = {}  # figures of the epoch whose rows are being kept
        self._failures = 0
        self._is_save_due = False  # a checkpoint of the job is under way
        self._files = services.more_files()
        self._taken = 0  # number of this use of the folder; 0: it is not open
        self._goes_on = False  # the same command continues: the folder's rows stay
        self._keeper = checkpoints.beside(
            self._files,
            Hooks(
                restored=lambda state, rows, now: self._restored(rows),
                not_restored=lambda error: course.fail_job(str(error), error.exit_code),
                saved=self._kept,
                not_saved=self._not_kept,
                level=logging.DEBUG,
                reports=False,
                kept=1,
                advice="The rows of the best epoch are lost: train again",
            ),
        )
        job.schedule.hold(job.tested.epochs + 1)

    def _go(self, step: Step) -> None:
        if step not in STEPS[self._step]:
            raise AssertionError(f"{self._step.name} does not lead to {step.name}")
        self._step = step

    # --- the loop --------------------------------------------------------------------------------

    def step(self, workers: set[int], now: float, *, rows_change: bool = False) -> None:
        """Test the epoch that is done, unless rows may still change: lost workers are not fenced.

        `workers`: those whose pushes may be under way.
        """
        if self._is_save_due:
            self._save(now)
        schedule = self._job.schedule
        if self._step is not Step.TRAINING or schedule.closed or schedule.over:
            return
        if not self._has_read and schedule.finished:
            self._has_read = True
            self._go(Step.READING)
            self._out.work(self._work(), self._read)
        elif schedule.at_hold and not (rows_change or schedule.pushing() & workers):
            self._begin_test(now)

    def ends(self, now: float) -> bool:
        """Whether the rows are those to be exported: test the last ones, then restore the best."""
        if self._step is Step.TRAINING:
            if self._job.tested.is_new(self._job.schedule.progress):
                self._begin_test(now)
            else:
                self._restore(now)
        return self._step is Step.OVER

    @property
    def holds_rows(self) -> bool:
        """Whether rows are being kept or restored: no shard is to move meanwhile."""
        return self._keeper.saver.holds_rows or self._step is Step.RESTORING

    @property
    def busy(self) -> bool:
        """Whether rows are being tested, kept or restored."""
        return self._step in (Step.TESTING, Step.KEEPING, Step.RESTORING)

    @property
    def text(self) -> str:
        """What is done beside the training, in words; empty: nothing."""
        return self._step.value if self.busy else ""

    def abandon(self) -> None:
        """The job has failed."""
        self._keeper.abandon("the job has failed")

    def close(self, *, goes_on: bool) -> None:
        """Remove the kept rows, unless the same command `goes_on` with the training.

        They may be an earlier master's, which has opened the folder.  What is under way, as the job
        has failed, ends without effect: a session may have its next job by then.
        """
        self._goes_on = goes_on
        if self._step is not Step.OVER:
            self._go(Step.OVER)
        if self._taken or self._job.tested.kept:
            if goes_on:
                end = partial(self._files.release, self._taken, "")
            else:
                settings = self._job.settings
                end = partial(self._files.discard_best, self._taken, settings, self._name)
            self._out.work(end, ignored, "checkpoint")
            self._taken = 0

    # --- a test ----------------------------------------------------------------------------------

    def _work(self) -> Any:
        reading, number = self._present.reading(settled=True), round(self._job.epochs_done)
        return partial(self._services.reader.look, self._job, [self._look], number, reading)

    def _read(self, done: WorkDone, now: float) -> None:
        """The validation data is read: what it lacks fails the job now, and not after an epoch."""
        if self._step is not Step.READING:
            return
        self._go(Step.TRAINING)
        if done.error is not None:
            self._fail(done.error)

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, SnailError):
            log.error("the test of the model failed", exc_info=error)
        code = error.exit_code if isinstance(error, SnailError) else EXIT_FAILED
        self._course.fail_job(f"the model could not be tested: {explain(error)}", code)

    def _begin_test(self, now: float) -> None:
        self._go(Step.TESTING)
        job = self._job
        epochs = round(job.epochs_done, 3)
        test = {
            "epoch": int(epochs) if epochs == int(epochs) else epochs,
            "progress": round(job.schedule.progress, 6),
            "at_s": round(job.clock.elapsed_s(now), 3),
        }
        self._out.work(self._work(), partial(self._tested, test))

    def _tested(self, test: dict[str, Any], done: WorkDone, now: float) -> None:
        if self._step is not Step.TESTING:
            return
        if done.error is not None:
            self._failures += 1
            if self._failures >= TRIES:
                self._fail(done.error)
            else:
                log.warning("the test of the model is repeated: %s", explain(done.error))
                self._go(Step.TRAINING)
            return
        (figures,) = done.result
        self._failures, self._test = 0, {**test, **figures}
        job = self._job
        if self._look.keeps and not job.schedule.over and job.tested.is_better(self._test):
            self._go(Step.KEEPING)
            self._keep(now)
        else:
            self._note("", now)

    # --- the best rows ---------------------------------------------------------------------------

    def _keep(self, now: float) -> None:
        if self._taken:
            self._save(now)
        else:
            self._out.work(self._open, self._opened, "checkpoint")

    def _open(self) -> Opened:
        opened = self._files.open_best(self._job.settings, self._name)
        self._files.clear()
        return opened

    def _opened(self, done: WorkDone, now: float) -> None:
        if done.error is not None:
            self._not_kept(explain(done.error), now)
            return
        self._taken = done.result.taken
        if self._step is not Step.KEEPING:
            # An earlier run's best rows may be there, to which a checkpoint leads back.
            self.close(goes_on=self._goes_on)
            return
        self._keeper.opened(self._record, done.result, now, resumes=False)
        self._save(now)

    def _save(self, now: float) -> None:
        self._is_save_due = self._checkpoints.saver.running
        if self._step is Step.KEEPING and not self._is_save_due:
            # Servers report by number: a late report of the job's checkpoint must match none here.
            transfers = self._keeper.transfers
            transfers.newest = max(transfers.newest, self._checkpoints.place.number)
            self._keeper.saver.begin(self._record, now)

    def _kept(self, completed: Completed, now: float) -> None:
        if self._step is Step.KEEPING:
            self._failures = 0
            self._note(completed.path, now)

    def _not_kept(self, why: str, now: float) -> None:
        if self._step is not Step.KEEPING:
            return
        self._failures += 1
        if self._failures < TRIES and self._taken:
            self._save(now)
            return
        self._failures = 0
        text = (
            f"the rows of epoch {self._test['epoch']} are not kept: {why}. If no later epoch is "
            "better, the last rows are saved"
        )
        self._out.happened("warning", "", text)
        self._out.say(text, logging.WARNING, reported=True)
        self._note("", now)

    def _note(self, kept: str, now: float) -> None:
        """An epoch is tested, and its rows are kept at a path; decide what follows."""
        job, test = self._job, self._test
        self._go(Step.TRAINING)
        done = job.schedule.progress
        self._out.journal("tested", {"test": test, "kept": kept, "done": done})
        job.epoch_tested(test, kept, done)
        if job.schedule.over or job.schedule.closed:
            return
        if job.tested.is_enough:
            text = "no figure is a number: the last rows are saved"
            if job.tested.best >= 0:
                best = job.tested.best_test
                name, figure = deciding_in(best)
                text = (
                    f"no better {name} since epoch {best['epoch']}, {figure:.4g}: the rows of that "
                    "epoch are saved"
                )
            self._out.say(text)
            self._course.end_early(job, "stop_after", now)
            return
        job.schedule.hold(job.tested.epochs + 1)
        self._course.leases_go_on(now)

    def _restore(self, now: float) -> None:
        """Have servers load the rows of the best epoch, unless they have them.

        If the last epoch is the best, they have them where nothing was kept: all workers had ended
        when it was tested.  Else a worker has pushed, as it ended, what it had held back.
        """
        tested = self._job.tested
        has_rows = tested.is_last_best and not tested.kept
        if not self._look.keeps or not tested.tests or has_rows:
            self._go(Step.OVER)
            return
        self._go(Step.RESTORING)
        if tested.kept:
            self._out.work(partial(self._services.more_files().find, tested.kept), self._found)
        else:
            self._keep_last("they were not kept")

    def _keep_last(self, why: str) -> None:
        epoch = self._job.tested.best_test["epoch"]
        text = f"the rows of the best epoch, {epoch}, cannot be saved: {why}. The last rows are"
        self._out.happened("warning", "", text)
        self._out.say(text, logging.WARNING, reported=True)
        self._job.tested.is_restored = False
        self._go(Step.OVER)

    def _found(self, done: WorkDone, now: float) -> None:
        if self._step is not Step.RESTORING:
            return
        if done.error is not None:
            self._keep_last(explain(done.error))
            return
        self._keeper.opened(self._record, done.result, now, resumes=True)
        self._keeper.restorer.restore(now)

    def _restored(self, rows: int) -> None:
        self._go(Step.OVER)
        self._job.tested.is_restored = True
        best = self._job.tested.best_test
        name, figure = deciding_in(best)
        self._out.say(
            f"the servers have the rows of epoch {best['epoch']} again, {rows:,} rows: its {name}, "
            f"{figure:.4g}, is the best"
        )
