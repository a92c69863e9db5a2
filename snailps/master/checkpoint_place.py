"""Owns what a job's folder of checkpoints is to the job: what is in it, and what was added.

    open -> opened -> candidates, newest first -> restored | completed ... -> ended, forget

Says from which checkpoint the same command goes on. Must not know when one is made, nor what
servers do for it; files are touched by `checkpoint_files.py`, in works.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from functools import partial
from typing import Any

from snailps.config import CheckpointSettings
from snailps.dataclass import dataclass
from snailps.errors import SnailError, explain
from snailps.master.checkpoint_match import CheckpointMatch
from snailps.master.effects import Outbox
from snailps.master.job.session import Record, SessionJob
from snailps.master.job.state import JobState
from snailps.master.membership import Membership
from snailps.master.services import Candidate, Completed, Files, Opened
from snailps.node.effects import ignored
from snailps.node.status import CheckpointStatus

log = logging.getLogger(__name__)

NOT_OPEN = -1
"""Number of a folder's use while the folder could not be opened: the next save tries again."""


def _nothing(result: Any, now: float) -> None:
    """Nothing follows."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the owner of a folder does after a checkpoint."""

    restored: Callable[[JobState, int, float], None]  # with the number of rows
    not_restored: Callable[[SnailError], None]
    saved: Callable[[Completed, float], None] = _nothing  # it has its name
    not_saved: Callable[[str, float], None] = _nothing  # the log says why, too
    # whether a checkpoint saved or restored is news for users
    reports: bool = True
    kept: int = 0  # most checkpoints in the folder; 0: by the settings
    # whether restored tables belong to the present job; else they are a session's
    of_job: bool = True
    # whether tables that a session's last job had are that job's again, for the next one to drop
    jobs_again: bool = True
    level: int = logging.WARNING  # of the line about what was restored
    advice: str = "Mend one, or begin anew with --fresh"  # where none could be used


class CheckpointPlace:
    def __init__(self, out: Outbox, files: Files, members: Membership) -> None:
        self._out, self.files = out, files
        self.match = CheckpointMatch(members)
        self.record: Record
        self._reset()

    def _reset(self) -> None:
        self.taken = 0  # number of this use of the folder
        self.path = ""  # of the folder; empty: the job has no checkpoints
        self.candidates: list[Candidate] = []
        """Not restored, and not found to be of no use, yet; newest first."""
        self.number = 0
        """Of the newest checkpoint that was begun."""
        self.saved = 0
        self.continued_from = 0
        self._newest: tuple[int, float] | None = None  # number, share of the training
        self._saved_at: float | None = None  # when, if this run made it

    # --- the beginning of a job --------------------------------------------------------------

    def check_opened(self, record: Record, opened: Opened | None) -> None:
        """Refuse the checkpoints of another job; beside the loop."""
        for candidate in opened.candidates if opened is not None else ():
            self.match.check_same(record, candidate)
        if opened is not None:
            self.files.clear()

    def open(
        self,
        record: Record,
        settings: CheckpointSettings,
        *,
        resumes: bool,
        needed: bool = True,
        anyway: bool = False,
    ) -> Opened | None:
        """Open the folder, and refuse the checkpoints of another job; beside the loop. A job that
        goes on from the journal has not `needed` them: servers have its rows. Then whatever is
        wrong here is a warning, and the next save opens the folder again."""
        opened = None
        try:
            is_session = isinstance(record, SessionJob)
            opened = self.files.open(
                settings, resumes=resumes, anyway=anyway, of_session=is_session
            )
            self.check_opened(record, opened)
        except Exception as error:
            if opened is not None:
                self.files.release(opened.taken, "")
            if needed:
                raise
            text = "the checkpoints cannot be used: %s. %s, and its next checkpoint tries again"
            log.warning(text, explain(error), record.goes_on[:1].upper() + record.goes_on[1:])
            return Opened(NOT_OPEN, self.files.path_of(settings), [])
        return opened

    def opened(self, record: Record, opened: Opened | None, *, resumes: bool) -> None:
        """Begin a job with the checkpoints found. Without `resumes` it continues from the journal:
        servers still have its rows, which are newer than any checkpoint."""
        self._reset()
        self.record = record
        if opened is None:
            return
        self.path, self.taken, self.candidates = opened.path, opened.taken, [*opened.candidates]
        if not resumes and self.candidates:
            newest = self.candidates[0]
            self._newest = (newest.number, float(newest.manifest.job["progress"]))
            self.candidates = []

    # --- what is in it -----------------------------------------------------------------------

    @property
    def resumes(self) -> bool:
        """Whether there is a checkpoint to restore."""
        return bool(self.candidates)

    @property
    def writes(self) -> bool:
        """Whether checkpoints of this job are made."""
        if not self.path:
            return False
        settings = self.record.settings
        return bool(settings.checkpoint_interval or settings.param_backup_period)

    @property
    def newest_good(self) -> tuple[int, float] | None:
        """Number and share of the checkpoint from which the same command goes on, if any."""
        if not self.candidates:
            return self._newest
        return self.candidates[0].number, float(self.candidates[0].manifest.job["progress"])

    @property
    def can_resume(self) -> bool:
        """Whether the same command goes on from a complete checkpoint of this job."""
        return bool(self.path) and self.newest_good is not None

    def completed(self, number: int, share: float, now: float) -> None:
        self.saved += 1
        self._newest, self._saved_at = (number, share), now

    def restored(self, candidate: Candidate, share: float) -> None:
        self.continued_from, self._newest = candidate.number, (candidate.number, share)
        self.candidates = []

    # --- its end -----------------------------------------------------------------------------

    def ended(self, why: str) -> None:
        """Close a finished job's folder; with a `why`, nothing may resume from its checkpoints."""
        if why:
            self.path = ""
        release = partial(self.files.release, self.taken, why)
        self._out.work(release, ignored, "checkpoint")

    def forget(self) -> None:
        self.ended("")
        self.path = ""

    # --- for users ---------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """Metrics; empty without checkpoints. An interrupted run resumes from ``checkpoint``."""
        counts = {"checkpoints": self.saved, "continued_from": self.continued_from}
        figures: dict[str, Any] = {name: count for name, count in counts.items() if count}
        if self.path and self._newest is not None:
            number, share = self._newest
            figures["checkpoint"] = {"number": number, "progress": share, "path": self.path}
        return figures

    def status(self, now: float, *, writing: bool) -> CheckpointStatus | None:
        if not self.path:
            return None
        number, share = self.newest_good or (0, 0.0)
        return {
            "number": number,
            "progress": share,
            "age_s": None if self._saved_at is None else now - self._saved_at,
            "path": self.path,
            "writing": writing,
        }

    def advice(self) -> str:
        """From which checkpoint a failed job or session can resume, in words for users; empty
        without checkpoints."""
        if not self.path:
            return ""
        if self.newest_good is None:
            return "No checkpoint was complete yet"
        number, share = self.newest_good
        what = self.record.describe_share(share)
        return f"The same command goes on from checkpoint {number}, {what}, in {self.path}"

    def advice_to_export(self) -> str:
        """How to export again after a failed export, in words for users."""
        assert self._newest is not None
        return (
            f"The trained rows are checkpoint {self._newest[0]} in {self.path}: the same command "
            f"with --set checkpoint_dir={shlex.quote(self.path)} exports them, without training"
        )
