"""Owns the rows of a session on disk: its own checkpoints, and those that its drivers ask for.

    start   folder -> newest checkpoint -> servers -> drivers may declare tables
    later   time or pushes since the last one -> Save -> checkpoint
    SaveRows, LoadRows of a driver -> the same, with a folder of the driver's -> Report, or why not

    opening > [restoring >] open

Works between jobs only: a job has the servers for its own checkpoints (`JobController`). One thing
at a time, as servers know one checkpoint. Drivers may declare tables only once the state is open: a
table that was declared before would be filled from the checkpoint under their pushes. `now` is
monotonic seconds.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from snailps.dataclass import dataclass, replace
from snailps.errors import EXIT_FAILED, CheckpointError, ClusterError, SnailError, explain
from snailps.master.checkpoint_place import Hooks
from snailps.master.checkpoints import CheckpointController
from snailps.master.context import Context
from snailps.master.effects import Fact
from snailps.master.job.controller import JobController
from snailps.master.job.present import FailJob
from snailps.master.job.submissions import Submissions
from snailps.master.member import Member
from snailps.master.room_wait import RoomWait
from snailps.master.services import Opened, Services
from snailps.node.effects import WorkDone, ignored
from snailps.transport import messages

log = logging.getLogger(__name__)


class State(enum.Enum):
    OPENING = "opening"  # its folder is read, beside the loop
    FOUND = "found"  # its checkpoints are known; waits for the cluster
    RESTORING = "restoring"  # servers take rows from a checkpoint
    OPEN = "open"  # drivers may declare tables


@dataclass(eq=False, slots=True)
class _Request:
    """A driver's call to save or load rows, while it is carried out."""

    call: int  # 0: the call was made to an earlier master
    folder: str
    controller: CheckpointController
    taken: int = 0
    path: str = ""
    loads: bool = False  # rows change from now on


class SessionRows:
    def __init__(
        self,
        context: Context,
        services: Services,
        job_controller: JobController,
        submissions: Submissions,
        fail_job: FailJob,
        end_unsaved: Callable[[str], None],  # the last checkpoint cannot be made
        facts: Sequence[Fact],  # of an earlier master
    ) -> None:
        self._out, self._services = context.out, services
        self._job_controller, self._submissions = job_controller, submissions
        self._fail_job, self._end_unsaved = fail_job, end_unsaved
        self._room = RoomWait(context.settings.master_time_out)  # of the last checkpoint
        # Where drivers only watch they have no rows: nothing is opened here, nor saved.
        self._has_rows, self._job = context.life.drivers_work, context.session
        # An earlier master has opened them: servers have rows that are newer than any checkpoint.
        self._opened_before = any(fact.kind == "open" for fact in facts)
        # The folder over which it was lost, as it loaded rows; empty: none.
        loads = [fact.data["folder"] for fact in facts if fact.kind == "load"]
        self._cut_load = loads[-1] if loads else ""
        self._state = State.OPENING if self._has_rows else State.OPEN
        hooks = Hooks(
            restored=lambda state, rows, now: self._open(now),
            not_restored=lambda error: fail_job(str(error)),
            saved=lambda completed, now: self._own_ended(now),
            not_saved=lambda why, now: self._own_ended(now, why),
            of_job=False,
        )
        self.checkpoints = job_controller.checkpoints.beside(services.more_files(), hooks)
        self._request: _Request | None = None
        self._pushes = -1  # pushes when the newest checkpoint was begun; -1: rows differ from it
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
        return not self.is_open or self.checkpoints.saver.running or self._request is not None

    @property
    def holds_rows(self) -> bool:
        """Whether rows are being saved or restored, so that no shard is to move."""
        if self._state in (State.FOUND, State.RESTORING):
            return True
        return any(each.saver.holds_rows or each.restorer.running for each in self._controllers())

    def _controllers(self) -> Iterator[CheckpointController]:
        yield self.checkpoints
        if self._request is not None:
            yield self._request.controller

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
        if self._cut_load:  # its driver may be lost, too, and tables have a part of their rows
            self._load(0, self._cut_load)

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
        pushes = self.checkpoints.saver.pushes
        if pushes != self._pushes and self.checkpoints.saver.check(self._job, now):
            self._pushes = pushes

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
            self._pushes = -1
        if self._then is None or not self._last_begun:
            return
        text = f"the tables of the session cannot be saved: {why}"
        if why and self._room.full(text, now):
            self._last_begun = False
        elif not why:
            self._then()
        else:
            self._end_unsaved(text)

    # --- what drivers ask for ------------------------------------------------------------------

    def save(self, member: Member, message: messages.SaveRows, call: int, now: float) -> None:
        request = self._take(call, message.folder)
        settings = replace(self._job.settings, checkpoint_dir=message.folder)
        find = partial(request.controller.place.open, self._job, settings, resumes=False)
        self._out.work(find, partial(self._ready_to_save, request), "checkpoint")

    def _ready_to_save(self, request: _Request, done: WorkDone, now: float) -> None:
        if self._begins(request, done, now, resumes=False):
            request.controller.saver.begin(self._job, now)

    def load(self, member: Member, message: messages.LoadRows, call: int, now: float) -> None:
        self._load(call, message.folder)

    def _load(self, call: int, folder: str) -> None:
        request = self._take(call, folder)

        def find() -> Opened:
            opened = request.controller.place.files.find(folder)
            for candidate in opened.candidates:
                request.controller.place.match.check_rows(self._job, candidate)
            return opened

        self._out.work(find, partial(self._ready_to_load, request), "checkpoint")

    def _ready_to_load(self, request: _Request, done: WorkDone, now: float) -> None:
        if self._begins(request, done, now, resumes=True):
            request.path = done.result.candidates[0].path
            self._pushes = -1  # whether it succeeds or not, rows change
            request.loads = True
            self._out.journal("load", {"folder": request.folder})
            request.controller.restorer.restore(now)

    def _take(self, call: int, folder: str) -> _Request:
        if not self._has_rows:
            raise ClusterError(
                "this cluster runs a job of its own, whose checkpoints save its rows: only a "
                "session saves and loads rows for a driver"
            )
        if not self._submissions.idle:
            raise ClusterError(
                "a job is at work here, and its rows are its own: wait for its end, and ask again"
            )
        hooks = Hooks(
            restored=lambda state, rows, now: self._loaded(rows),
            not_restored=self._answer,
            saved=lambda completed, now: self._answer(_report(completed.path, completed.rows)),
            not_saved=self._not_saved,
            of_job=False,
            jobs_again=False,  # a driver that loads rows wants them for the jobs that follow
            level=logging.INFO,
            advice="Rows of its tables may be gone here: load another checkpoint",
        )
        controller = self.checkpoints.beside(self._services.more_files(), hooks)
        self._request = _Request(call, folder, controller)
        return self._request

    def _begins(self, request: _Request, done: WorkDone, now: float, *, resumes: bool) -> bool:
        """Whether a request's folder can be used; else its driver gets the reason."""
        if done.error is not None:
            error = done.error
            self._answer(error if isinstance(error, SnailError) else ClusterError(explain(error)))
            return False
        request.taken = done.result.taken
        request.controller.opened(self._job, done.result, now, resumes=resumes)
        return True

    def _loaded(self, rows: int) -> None:
        assert self._request is not None
        self._answer(_report(self._request.path, rows))

    def _not_saved(self, why: str, now: float) -> None:
        self._answer(CheckpointError(f"the rows are not saved: {why}. Save them again"))

    def _answer(self, answer: messages.Message | SnailError) -> None:
        """End a driver's request."""
        request, self._request = self._request, None
        assert request is not None
        if request.loads or not request.call:
            self._out.journal("load", {"folder": ""})
        if request.call:
            self._out.reply(request.call, answer)
        else:
            self._say_reloaded(request.folder, answer)
        release = partial(request.controller.place.files.release, request.taken, "")
        self._out.work(release, ignored, "checkpoint")

    def _say_reloaded(self, folder: str, answer: messages.Message | SnailError) -> None:
        text = f"the master was lost while a driver loaded the rows of {folder}"
        if isinstance(answer, SnailError):
            text += f", and they cannot be loaded again: tables have a part of them. {answer}"
            log.error("%s", text)
        else:
            text += ": they are loaded again"
            log.warning("%s", text)
        self._out.happened("warning", "", text)


def _report(path: str, rows: int) -> messages.Report:
    return messages.Report({"path": path, "rows": rows})
