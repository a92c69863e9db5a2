"""Owns what drivers ask for: to save their tables in a folder, or to load the rows of one.

    SaveRows, LoadRows -> folder is read -> Save | Load at the servers -> Report, or why not

One request at a time, as servers know one checkpoint; `core.py` has the others wait. Must not know
the checkpoints that a session makes by itself (`session_rows.py`). `now` is monotonic seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from snailps.dataclass import dataclass, replace
from snailps.errors import CheckpointError, ClusterError, SnailError, explain
from snailps.master.checkpoint_place import Hooks
from snailps.master.checkpoints import CheckpointController
from snailps.master.context import Context
from snailps.master.effects import Fact
from snailps.master.job.submissions import Submissions
from snailps.master.member import Member
from snailps.master.services import Files, Opened, Services
from snailps.node.effects import WorkDone, ignored
from snailps.transport import messages

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Request:
    """A driver's call, while it is carried out."""

    call: int  # 0: the call was made to an earlier master
    folder: str
    controller: CheckpointController
    taken: int = 0
    path: str = ""
    loads: bool = False  # rows change from now on


class RowRequests:
    def __init__(
        self,
        context: Context,
        services: Services,
        submissions: Submissions,
        beside: Callable[[Files, Hooks], CheckpointController],  # for another folder
        facts: Sequence[Fact],  # of an earlier master
    ) -> None:
        self._out, self._services = context.out, services
        self._submissions, self._beside = submissions, beside
        # Where drivers only watch they have no rows.
        self._has_rows, self._job = context.life.drivers_work, context.session
        # The folder over which an earlier master was lost, as it loaded rows; empty: none.
        folders = [fact.data["folder"] for fact in facts if fact.kind == "load"]
        self._cut_load = folders[-1] if folders else ""
        self._request: _Request | None = None
        self.loads = 0
        """Loads begun: each changes rows, though it may fail."""

    @property
    def running(self) -> bool:
        return self._request is not None

    @property
    def holds_rows(self) -> bool:
        """Whether rows are being saved or loaded, so that no shard is to move."""
        if self._request is None:
            return False
        controller = self._request.controller
        return controller.saver.holds_rows or controller.restorer.running

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

    def load_again(self) -> None:
        """Repeat a load over which an earlier master was lost: its driver may be lost, too, and
        tables would stay with a part of their rows."""
        if self._cut_load:
            self._load(0, self._cut_load)

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
            self.loads += 1
            request.loads = True
            # Before any server is ordered to read: a master that takes over finds it, and repeats
            # the load.
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
        controller = self._beside(self._services.more_files(), hooks)
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
