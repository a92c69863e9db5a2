"""Owns the rows of a session on disk: the checkpoints that it makes by itself.

    start   folder -> newest checkpoint -> servers -> drivers may declare tables
    later   time or pushes since the last one -> Save -> checkpoint

    opening > found > [restoring >] open

Works between jobs only: a job has the servers for its own checkpoints (`JobController`), and a
driver's request has them for its folder (`row_requests.py`). `now` is monotonic seconds.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence

from snailps.errors import EXIT_FAILED, explain
from snailps.master.checkpoint_place import Hooks
from snailps.master.context import Context
from snailps.master.effects import Fact
from snailps.master.job.controller import JobController
from snailps.master.job.present import FailJob
from snailps.master.job.submissions import Submissions
from snailps.master.room_wait import RoomWait
from snailps.master.row_requests import RowRequests
from snailps.master.services import Opened, Services
from snailps.node.effects import WorkDone

log = logging.getLogger(__name__)


class State(enum.Enum):
    OPENING = "opening"  # its folder is read, beside the loop
    FOUND = "found"  # its checkpoints are known; waits for the cluster
    RESTORING = "restoring"  # servers take rows from a checkpoint
    # Drivers may declare tables. Not before: a table would be filled from the checkpoint under the
    # pushes of whoever declared it.
    OPEN = "open"


class SessionRows:
    def __init__(
        self,
        context: Context,
        services: Services,
        job_controller: JobController,
        submissions: Submissions,
        requests: RowRequests,
        fail_job: FailJob,
        end_unsaved: Callable[[str], None],  # the last checkpoint cannot be made
        facts: Sequence[Fact],  # of an earlier master
    ) -> None:
        self._out = context.out
        self._job_controller, self._submissions = job_controller, submissions
        self._requests = requests
        self._fail_job, self._end_unsaved = fail_job, end_unsaved
        self._room = RoomWait(context.settings.master_time_out)  # of the last checkpoint
        self._job = context.session
        # An earlier master has opened them: servers have rows that are newer than any checkpoint.
        self._opened_before = any(fact.kind == "open" for fact in facts)
        # Where drivers only watch they have no rows: nothing is opened here, nor saved.
        self._state = State.OPENING if context.life.drivers_work else State.OPEN
        hooks = Hooks(
            restored=lambda state, rows, now: self._open(now),
            not_restored=lambda error: fail_job(str(error)),
            saved=lambda completed, now: self._own_ended(now),
            not_saved=lambda why, now: self._own_ended(now, why),
            of_job=False,
        )
        self.checkpoints = job_controller.checkpoints.beside(services.more_files(), hooks)
        # Pushes and loads when the newest checkpoint was begun; None: rows may differ from it.
        self._saved: tuple[int, int] | None = None
        self._then: Callable[[], None] | None = None  # ends the session after its last checkpoint
        self._last_begun = False  # that checkpoint was begun

    # --- state ---------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether tables may be declared: rows of a checkpoint, if any, are restored."""
        return self._state is State.OPEN

    @property
    def busy(self) -> bool:
        """Whether servers save or take rows for the session, or are about to."""
        return not self.is_open or self.checkpoints.saver.running or self._requests.running

    @property
    def holds_rows(self) -> bool:
        """Whether rows are being saved or restored, so that no shard is to move."""
        if self._state in (State.FOUND, State.RESTORING):
            return True
        holds = self.checkpoints.saver.holds_rows or self.checkpoints.restorer.running
        return holds or self._requests.holds_rows

    def stood_still(self, seconds: float) -> None:
        self._room.stood_still(seconds)

    # --- the beginning -------------------------------------------------------------------------

    def begin(self) -> None:
        """Look for checkpoints of earlier sessions, beside the loop."""
        if not self.is_open:
            self._out.work(self._find, self._found, "checkpoint")

    def _find(self) -> Opened | None:
        begins = not self._opened_before
        return self.checkpoints.place.open(
            self._job, self._job.settings, resumes=begins, needed=begins
        )

    def _found(self, done: WorkDone, now: float) -> None:
        if done.error is not None:
            self._fail_job(explain(done.error), getattr(done.error, "exit_code", EXIT_FAILED))
            return
        self.checkpoints.opened(self._job, done.result, now, resumes=not self._opened_before)
        self._state = State.FOUND

    def _open(self, now: float) -> None:
        """Servers have the rows of the checkpoint, or there is none."""
        self._state = State.OPEN
        self._out.journal("open", {})
        self._requests.load_again()

    # --- the loop ------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        """Advance what is under way. Called in each turn, once the cluster is formed and members of
        an earlier master are back."""
        idle = self._submissions.idle
        free = not (self.busy or self._last_begun)
        if self._room.waits and not self._last_begun:
            free = free and self._room.is_due(now)
        if self._then is not None and idle and free:
            self._last_begun = True
            if self.checkpoints.place.writes:
                self.checkpoints.saver.begin(self._job, now)
            else:
                self._then()
        if self._state is not State.FOUND:
            return
        if self.checkpoints.place.resumes:
            self._state = State.RESTORING
            self.checkpoints.transfers.stop_all()
            self.checkpoints.restorer.restore(now)
        else:
            self._open(now)

    def check(self, now: float) -> None:
        """Begin a checkpoint of the session if one is due and rows have changed since the last."""
        if self.busy or not self._submissions.idle:
            return
        rows = self.checkpoints.saver.pushes, self._requests.loads
        if rows != self._saved and self.checkpoints.saver.check(self._job, now):
            self._saved = rows

    def save_last(self, then: Callable[[], None]) -> None:
        """Make a last checkpoint, if the session makes any, then end the session by `then`. The job
        at work fails: it would take the servers from that checkpoint."""
        # Rows that an earlier master had opened are newer than any checkpoint: wait until they are
        # open here, too.
        saves = self.checkpoints.place.writes if self.is_open else self._opened_before
        if not saves:
            then()
        elif self._then is None:
            self._then = then
            log.info("the session ends once its tables are saved")
            if self._job_controller.job is not None:
                self._fail_job("the session ends")

    def _own_ended(self, now: float, why: str = "") -> None:
        """The session's own checkpoint is complete, or has failed: `why`. The last one is tried
        again, as the session's rows are nowhere else."""
        if why:
            self._saved = None
        if self._then is None or not self._last_begun:
            return
        text = f"the tables of the session cannot be saved: {why}"
        if why and self._room.full(text, now):
            self._last_begun = False
        elif not why:
            self._then()
        else:
            self._end_unsaved(text)
