"""Decides when a checkpoint is made, what belongs to it, and which one is restored.

    due -> Save to every server -> Saved of all -> manifest, rename (`Files`) -> old ones removed
    candidates, newest first -> Load to every server -> Loaded of all -> the job resumes

    saving      begin > [withhold >] save > complete        failed: StopSaving, drop
    restoring   state > tables > load > done                failed: StopSaving, the next candidate
                a server is lost: StopSaving, the same one again once its standbys serve

Both are records that each answer advances by a step. In brackets: in bsp, rows are saved as they
are at the beginning of a clock, and a slot of that clock is withheld until then. Servers write and
read the rows themselves; files of the master are touched by `checkpoint_files.py`, in works.

A checkpoint gets its name when all of it is on disk, and not before: whatever fails leaves a folder
without a name, which the next master removes. The job's state is dumped before servers are ordered
to save, so a block that counts as durable in the state has its rows in the files.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from snailps.api.export_progress import SHARE_MIN
from snailps.api.tables import Table
from snailps.config import CheckpointSettings
from snailps.dataclass import dataclass, field
from snailps.errors import CheckpointError, SnailError, explain
from snailps.master.broadcast import Broadcast
from snailps.master.checkpoint_match import RESUMED_WITH, CheckpointMatch
from snailps.master.effects import Outbox
from snailps.master.events import Answer
from snailps.master.job.session import Record
from snailps.master.job.state import JobState
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.master.replication.shard_orders import ShardOrders
from snailps.master.replication.shard_reports import ShardReports
from snailps.master.services import Begun, Candidate, Completed, Files, Opened
from snailps.node.effects import WorkDone
from snailps.node.status import EVENT_REPORTED, CheckpointStatus
from snailps.outward import outward, without_secrets
from snailps.store.checkpoint.manifest import BEST_ROWS, Manifest
from snailps.transport import messages

log = logging.getLogger(__name__)

LATE_S = 10.0
"""Seconds without a byte written or read after which the log says so."""
STALL_S = 120.0
"""Seconds without a byte written or read after which a save or restore is given up."""
RETRY_S = 10.0
"""Least seconds between a failed save and the next one."""
NOT_OPEN = -1
"""Number of a folder's use while the folder could not be opened: the next save tries again."""


@dataclass(eq=False, slots=True)
class _Pending:
    """A save or a restore: its servers, and those that have not answered."""

    servers: list[Member]
    begun_at: float
    broadcast: Broadcast | None = None  # the order under way
    moved: int = -1  # bytes that servers have written or read, as last reported
    # when `moved` changed or the step began, plus the time that this process was stopped since
    since: float = 0.0
    late: bool = False  # the log has said that this step is late
    work: int = 0  # number of the work beside the loop; 0: none
    step: str = ""  # what servers do while there is no `broadcast`, for an error

    def enter(self, now: float, step: str = "make their tables") -> None:
        self.moved, self.since, self.late, self.broadcast = -1, now, False, None
        self.step = step

    def stalls(self, now: float) -> str:
        """Why this is to be given up; empty while it makes progress."""
        broadcast = self.broadcast
        if broadcast is None:
            silent_s = now - self.since
            if self.work and silent_s > LATE_S and not self.late:
                self.late = True
                log.warning("a checkpoint waits for the disk of the master: %.0f s", silent_s)
            if self.work or silent_s <= STALL_S:
                return ""
            return f"servers did not {self.step} in {STALL_S:.0f} s"
        moved = sum(int(member.reports.stats.get("saved_bytes", 0)) for member in self.servers)
        if moved != self.moved:
            self.moved, self.since, self.late = moved, now, False
        silent_s = now - self.since
        if silent_s > LATE_S and not self.late:
            self.late = True
            log.warning(
                "a checkpoint waits for %s: not a byte in %.0f s", broadcast.waits_for, silent_s
            )
        if silent_s > STALL_S:
            return (
                f"waited for {broadcast.waits_for}: not a byte in {STALL_S:.0f} s; is the disk "
                "stuck?"
            )
        return ""


@dataclass(eq=False, slots=True)
class _Saving(_Pending):
    record: Record = None  # type: ignore[assignment]
    tables: tuple[dict[str, Any], ...] = ()
    clock: int = -1  # in bsp: the clock of which a slot is withheld until the rows are saved
    state: JobState | None = None  # in bsp: as it is at the beginning of `clock`
    about: dict[str, Any] = field(default_factory=dict)
    begun: Begun | None = None
    files: list[dict[str, Any]] = field(default_factory=list)
    ordered: bool = False  # servers have the order to save

    @property
    def number(self) -> int:
        return self.begun.number if self.begun is not None else -1


@dataclass(eq=False, slots=True)
class _Restoring(_Pending):
    """A restore from the first candidate that can be used."""

    left: list[Candidate] = field(default_factory=list)  # not tried yet, newest first
    state: JobState | None = None  # of the first of these
    # A server was lost: the restore begins again when its standbys serve (`waits`) and the other
    # servers have stopped reading (`stopping`).
    waits: bool = False
    stopping: bool = False
    failures: list[str] = field(default_factory=list)  # why earlier candidates could not be used

    @property
    def number(self) -> int:
        return self.left[0].number if self.left else -1


@dataclass(slots=True)
class Numbers:
    """The highest number of any checkpoint of a session. Servers report by number, so two folders
    must not use the same one."""

    newest: int = 0


def _nothing(result: Any, now: float) -> None:
    """Nothing follows."""


def _resume_leases(record: Record) -> None:
    """Release the entries that were withheld until the rows are copied."""
    if (slots := record.schedule.slots) is not None:
        slots.resume_leases()


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a controller's owner does after a checkpoint."""

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


class CheckpointController:
    def __init__(
        self,
        out: Outbox,
        members: Membership,
        shard_orders: ShardOrders,
        shard_reports: ShardReports,
        files: Files,
        hooks: Hooks,
        numbers: Numbers | None = None,  # shared with the session's other checkpoints
    ) -> None:
        self._out, self._members = out, members
        self._shard_orders, self._shard_reports = shard_orders, shard_reports
        self._files, self._hooks, self.numbers = files, hooks, numbers or Numbers()
        self._shares_numbers = numbers is not None
        self._saving: _Saving | None = None
        self._restoring: _Restoring | None = None
        self._begun_at = 0.0
        self.match = CheckpointMatch(members)
        self._record: Record
        self._reset()

    def beside(self, files: Files, hooks: Hooks) -> CheckpointController:
        """Checkpoints of a session, in another folder."""
        return CheckpointController(
            self._out, self._members, self._shard_orders, self._shard_reports, files, hooks,
            self.numbers,
        )  # fmt: skip

    def _reset(self) -> None:
        self._taken = 0  # number of this use of the folder
        self._path = ""  # of the folder; empty: the job has no checkpoints
        self._candidates: list[Candidate] = []
        self._interval_s, self._period, self._kept = 0.0, 0, 1
        self._pushes_saved = 0  # pushes when the last save began
        self._number = 0  # of the newest checkpoint that was begun
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
            self._files.clear()

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
            opened = self._files.open(settings, resumes=resumes, anyway=anyway)
            self.check_opened(record, opened)
        except Exception as error:
            if opened is not None:
                self._files.release(opened.taken, "")
            if needed:
                raise
            text = "the checkpoints cannot be used: %s. %s, and its next checkpoint tries again"
            log.warning(text, explain(error), record.goes_on[:1].upper() + record.goes_on[1:])
            return Opened(NOT_OPEN, self._files.path_of(settings), [])
        return opened

    def opened(self, record: Record, opened: Opened | None, now: float, *, resumes: bool) -> None:
        """Begin a job with the checkpoints found. Without `resumes` it continues from the journal:
        servers still have its rows, which are newer than any checkpoint."""
        self._reset()
        self._record, self._begun_at = record, now
        if opened is None:
            return
        settings = record.settings
        self._path, self._candidates = opened.path, opened.candidates
        self._taken = opened.taken
        self._interval_s, self._period = settings.checkpoint_interval, settings.param_backup_period
        self._kept = self._hooks.kept or settings.checkpoints_kept
        if not resumes and self._candidates:
            newest = self._candidates[0]
            self._newest = (newest.number, float(newest.manifest.job["progress"]))
            self._candidates = []

    @property
    def resumes(self) -> bool:
        """Whether there is a checkpoint to restore."""
        return bool(self._candidates)

    def restored(self, now: float) -> tuple[float, str, float | None]:
        """Progress of a restore: share (0 to 1), text, and seconds left if known."""
        restoring = self._restoring
        if restoring is None or not restoring.left:
            return 0.0, "", None
        candidate = restoring.left[0]
        text = f"reading checkpoint {candidate.number}"
        total = sum(file.bytes for file in candidate.manifest.files)
        if restoring.broadcast is None or not total:
            return 0.0, text, None
        done = sum(int(member.reports.stats.get("saved_bytes", 0)) for member in restoring.servers)
        share = min(1.0, done / total)
        text += f", {min(done, total) / 1e6:,.0f} of {total / 1e6:,.0f} MB"
        left_s = (now - restoring.begun_at) * (1 - share) / share if share >= SHARE_MIN else None
        return share, text, left_s

    def forget_others(self) -> None:
        """Have servers end saves and loads that a lost master ordered."""
        self._stop_saving(self._members.nodes("server"))

    # --- the loop ----------------------------------------------------------------------------

    def stood_still(self, seconds: float) -> None:
        """Extend limits: the master was stopped, and the servers perhaps with it."""
        for pending in (self._saving, self._restoring):
            if pending is not None:
                pending.since += seconds

    def step(self, now: float) -> None:
        saving = self._saving
        if saving is not None:
            if not (saving.ordered or saving.work):
                self._save_when_open(saving, now)
            elif why := saving.stalls(now):
                self._save_failed(saving, CheckpointError(why), now)
        if (restoring := self._restoring) is None:
            return
        if restoring.waits and not restoring.stopping:
            if not self._shard_orders.moving:  # a change-over has a limit of its own
                self._try_next(restoring, now)
        elif why := restoring.stalls(now):
            self._load_failed(restoring, why, now)

    def training_begins(self, now: float) -> None:
        """Count time and pushes to the first checkpoint from now."""
        self._begun_at = now
        self._pushes_saved = self.pushes  # of earlier jobs of a session

    def check(self, record: Record, now: float) -> bool:
        """Begin a checkpoint if one is due and no shard changes over; whether it was begun."""
        begins = not self._shard_orders.moving and self.is_due(now)
        if begins:
            self.begin(record, now)
        return begins

    @property
    def pushes(self) -> int:
        """Pushes to all shards, as last reported."""
        return self._shard_reports.sum("pushes")

    def is_due(self, now: float) -> bool:
        """Whether a checkpoint is due, by time or by pushes."""
        if self.running or not self.writes:
            return False
        pushes = self.pushes
        # The sum falls when a server is lost: its pushes are in no report any more.
        self._pushes_saved = min(self._pushes_saved, pushes)
        in_time = self._interval_s and now - self._begun_at >= self._interval_s
        in_work = self._period and pushes - self._pushes_saved >= self._period
        return bool(in_time or (in_work and now >= self._begun_at))

    @property
    def number(self) -> int:
        """Number of the newest checkpoint that was begun."""
        return self._number

    @property
    def writes(self) -> bool:
        """Whether checkpoints of this job are made."""
        return bool(self._path) and bool(self._interval_s or self._period)

    @property
    def _good(self) -> tuple[int, float] | None:
        """Number and share of the checkpoint from which the same command goes on, if any."""
        candidates = self._candidates if self._restoring is None else self._restoring.left
        if not candidates:
            return self._newest
        return candidates[0].number, float(candidates[0].manifest.job["progress"])

    @property
    def can_resume(self) -> bool:
        """Whether the same command goes on from a complete checkpoint of this job."""
        return bool(self._path) and self._good is not None

    @property
    def running(self) -> bool:
        return self._saving is not None

    @property
    def restoring(self) -> bool:
        return self._restoring is not None

    @property
    def holds_rows(self) -> bool:
        """Whether rows are being saved, or will be once no shard changes over."""
        return self._saving is not None and self._saving.state is not None

    def heard(self, member: Member, message: messages.Saved | messages.Loaded, now: float) -> None:
        """Take a server's report; ignored while no checkpoint is under way."""
        saved = isinstance(message, messages.Saved)
        pending: _Saving | _Restoring | None = self._saving if saved else self._restoring
        # Another number belongs to a checkpoint that was given up.
        if pending is not None and pending.broadcast and message.number == pending.number:
            pending.broadcast.heard(member, message, now)

    def lost(self, member: Member, why: str, now: float) -> None:
        """Fail the save in which a lost server takes part: it can never be complete. Begin a
        restore again: the checkpoint is still good, and loaded rows replace what is there."""
        if self._saving is not None and self._saving.broadcast is not None:
            self._saving.broadcast.lost(member, why, now)
        if (restoring := self._restoring) is None:
            return
        log.warning("checkpoint %d is read again: %s is lost", restoring.number, member.name)
        if restoring.broadcast is not None:
            restoring.broadcast.forget()
        others = [server for server in restoring.servers if server is not member]
        # If another server is lost before these have answered, the remaining ones are asked again.
        candidates, failures = restoring.left, restoring.failures
        restoring = _Restoring(others, now, left=candidates, waits=True, failures=failures)
        self._restoring = restoring
        restoring.enter(now, "stop reading")
        # Once these have answered, no `Loaded` of what they have read so far can come any more.
        stop, stopped = messages.StopSaving(), partial(self._stopped, restoring)
        restoring.stopping = True
        Broadcast(self._out, others, stop, stopped, now, loss="drop")

    def _stopped(self, restoring: _Restoring, broadcast: Broadcast, now: float) -> None:
        restoring.stopping = False

    def abandon(self, why: str) -> None:
        """Give up the save or restore under way: the job has failed, and the servers stay."""
        if self._saving is None and self._restoring is None:
            return
        log.warning("a checkpoint is given up: %s", why)
        for pending in (self._saving, self._restoring):
            if pending is not None and pending.broadcast is not None:
                pending.broadcast.forget()
        saving, self._saving, self._restoring = self._saving, None, None
        if saving is not None:
            _resume_leases(saving.record)
            if saving.begun is not None:
                self._drop(saving.begun)
        self.forget_others()

    def ended(self, why: str) -> None:
        """Close a finished job's folder; with a `why`, nothing may resume from its checkpoints."""
        if why:
            self._path = ""
        release = partial(self._files.release, self._taken, why)
        self._out.work(release, _ignored, "checkpoint")

    def forget(self) -> None:
        self.ended("")
        self._path = ""

    def figures(self) -> dict[str, Any]:
        """Metrics; empty without checkpoints. An interrupted run resumes from ``checkpoint``."""
        counts = {"checkpoints": self.saved, "continued_from": self.continued_from}
        figures: dict[str, Any] = {name: count for name, count in counts.items() if count}
        if self._path and self._newest is not None:
            number, share = self._newest
            figures["checkpoint"] = {"number": number, "progress": share, "path": self._path}
        return figures

    def status(self, now: float) -> CheckpointStatus | None:
        if not self._path:
            return None
        number, share = self._good or (0, 0.0)
        return {
            "number": number,
            "progress": share,
            "age_s": None if self._saved_at is None else now - self._saved_at,
            "path": self._path,
            "writing": self.running,
        }

    def advice(self) -> str:
        """From which checkpoint a failed job can resume, in words for users; empty without
        checkpoints."""
        if not self._path:
            return ""
        if self._good is None:
            return "No checkpoint was complete yet"
        number, share = self._good
        return (
            f"The same command goes on from checkpoint {number}, {share:.0%} of the training, in "
            f"{self._path}"
        )

    def advice_to_export(self) -> str:
        """How to export again after a failed export, in words for users."""
        assert self._newest is not None
        return (
            f"The trained rows are checkpoint {self._newest[0]} in {self._path}: the same command "
            f"with --set checkpoint_dir={shlex.quote(self._path)} exports them, without training"
        )

    def _stop_saving(self, servers: Sequence[Member]) -> None:
        order = messages.StopSaving()
        for member in servers:
            self._members.order(member, order, _unheard)

    # --- saving ------------------------------------------------------------------------------

    def begin(self, record: Record, now: float) -> None:
        self._begun_at = now
        self._pushes_saved = self.pushes
        tables = tuple(
            {"number": number, "table": table.to_dict()}
            for number, table in self._members.table_registry.tables.values()
        )
        saving = self._saving = _Saving([], now, record=record, tables=tables)
        saving.enter(now)
        needed = _bytes_of(self._members.joined("server"))
        # Above the number of any failed checkpoint: servers may still report on it.
        above = max(self._number, self.numbers.newest)
        begin = partial(self._begin, record, above, needed)
        saving.work = self._out.work(begin, partial(self._begun, saving), "checkpoint")

    def _begin(self, record: Record, above: int, needed: int) -> tuple[Opened | None, Begun]:
        """Begin a checkpoint beside the loop, in a folder that could not be opened before."""
        opened = None
        if self._taken == NOT_OPEN:
            opened = self.open(record, record.settings, resumes=False)
        return opened, self._files.begin(above, self._members.cluster_id, needed)

    def dump_job(self, record: Record, clock: int, now: float) -> tuple[JobState, dict[str, Any]]:
        """State of the job at this clock, and its description for the manifest."""
        state = record.dump(now, clock=clock)
        share = record.schedule.plan.share(state.done)
        about = {**record.identity(RESUMED_WITH), "progress": share, "units": state.units}
        about |= {
            "counts": record.unit,
            "settings": outward(record.plain_settings(), without_secrets),
        }
        registry = self._members.table_registry
        about["tables_of_job"] = registry.used if self._hooks.of_job else [*registry.of_job]
        if best_rows := state.figures.get("tested", {}).get("kept", ""):
            about[BEST_ROWS] = best_rows
        return state, about

    def _begun(self, saving: _Saving, done: WorkDone, now: float) -> None:
        saving.work = 0
        saving.enter(now)
        opened, begun = done.result if done.error is None else (None, None)
        if self._saving is not saving:  # given up meanwhile
            if begun is not None:
                self._drop(begun)
            if opened is not None:
                self._out.work(partial(self._files.release, opened.taken, ""), _ignored)
            return
        if begun is None:
            assert done.error is not None
            self._save_failed(saving, done.error, now)
            return
        if opened is not None:
            self._taken = opened.taken
        saving.begun = begun
        self._number = begun.number
        if self._shares_numbers:
            self.numbers.newest = self._number
        if (slots := saving.record.schedule.slots) is not None:
            saving.clock = slots.withhold(saving.number)
        self._save_when_open(saving, now)

    def _save_when_open(self, saving: _Saving, now: float) -> None:
        """Order the save; in bsp once its clock is open, and until then nothing is held up. From
        the dump of the state on no shard begins to move; one that changes over is waited for."""
        slots = saving.record.schedule.slots
        if saving.begun is None:
            return
        if saving.state is None:
            if slots is not None and not slots.comes(saving.clock):
                why = f"the training ends before clock {saving.clock}, whose rows it was to save"
                self._save_failed(saving, CheckpointError(why), now)
                return
            if slots is not None and slots.open < saving.clock:
                self._report_late(saving, slots.open, now)
                return
            saving.state, saving.about = self.dump_job(saving.record, saving.clock, now)
        if not self._shard_orders.moving:
            self._order_save(saving, now)

    def _report_late(self, saving: _Saving, open_clock: int, now: float) -> None:
        if not saving.late and now - saving.since > LATE_S:
            saving.late = True
            log.info(
                "checkpoint %d waits for clock %d to begin; the present one is %d",
                saving.number, saving.clock, open_clock,
            )  # fmt: skip

    def _order_save(self, saving: _Saving, now: float) -> None:
        assert saving.begun is not None
        saving.enter(now)
        saving.ordered, saving.servers = True, self._members.joined("server")
        order = messages.Save(saving.begun.number, saving.begun.part, saving.clock)
        saving.broadcast = Broadcast(
            self._out,
            saving.servers,
            order,
            partial(self._written, saving),
            now,
            loss="fail",
            expects=messages.Saved,
        )

    def _written(self, saving: _Saving, broadcast: Broadcast, now: float) -> None:
        saving.enter(now)
        if broadcast.error:
            self._save_failed(saving, CheckpointError(broadcast.error), now)
            return
        _resume_leases(saving.record)
        saving.files = [item for saved in broadcast.answers.values() for item in saved.files]
        assert saving.begun is not None
        assert saving.state is not None
        complete = partial(
            self._files.complete,
            saving.begun,
            saving.files,
            saving.state,
            cluster_id=self._members.cluster_id,
            frag_num=self._members.frag_num,
            tables=saving.tables,
            about=saving.about,
            kept=self._kept,
        )
        saving.work = self._out.work(complete, partial(self._completed, saving), "checkpoint")

    def _completed(self, saving: _Saving, done: WorkDone, now: float) -> None:
        saving.work = 0
        if self._saving is not saving:
            return
        if done.error is not None:
            self._save_failed(saving, done.error, now)
            return
        assert saving.begun is not None
        completed: Completed = done.result
        number, share = saving.begun.number, float(saving.about["progress"])
        self._saving = None
        self.saved += 1
        self._newest, self._saved_at = (number, share), now
        what = saving.record.describe_share(share)
        log.log(
            logging.INFO if self._hooks.reports else logging.DEBUG,
            "checkpoint %d: %s, %s rows, %s MB in %.2f s, to %s",
            number, what, f"{completed.rows:,}", f"{completed.total_bytes / 1e6:,.1f}",
            now - saving.begun_at, completed.path,
        )  # fmt: skip
        text = f"checkpoint {number} saved: {what}"
        if self._hooks.reports:
            self._out.happened("checkpoint", "", f"{text}, {completed.total_bytes / 1e6:,.1f} MB")
        self._hooks.saved(completed, now)

    def _save_failed(self, saving: _Saving, error: BaseException, now: float) -> None:
        self._saving = None
        if saving.broadcast is not None:
            saving.broadcast.forget()
        _resume_leases(saving.record)
        if not isinstance(error, SnailError):
            log.error("a checkpoint failed", exc_info=error)
        if saving.begun is not None:
            self._stop_saving(saving.servers)
            self._drop(saving.begun)
        self._begun_at = max(self._begun_at, now + RETRY_S - self._interval_s)
        log.error(
            "CHECKPOINT FAILED, %s unsaved (%s): %s",
            saving.record.goes_on,
            f"newest good one: {self._newest[0]}" if self._newest else "there is none yet",
            explain(error),
        )
        text = f"a checkpoint failed: {explain(error)}; {saving.record.goes_on} unsaved"
        self._out.happened("warning", "", text)
        self._hooks.not_saved(explain(error), now)

    def _drop(self, begun: Begun) -> None:
        self._out.work(partial(self._files.drop, begun), _ignored, "checkpoint")

    # --- restoring ---------------------------------------------------------------------------

    def restore(self, now: float) -> None:
        """Restore the newest candidate that can be used; `Hooks.restored` follows, or
        `not_restored`."""
        restoring = self._restoring = _Restoring([], now, left=list(self._candidates))
        self._try_next(restoring, now)

    def _try_next(self, restoring: _Restoring, now: float) -> None:
        restoring.enter(now)
        restoring.waits = restoring.stopping = False
        if not restoring.left:
            self._restoring, self._candidates = None, []
            why = "; ".join(restoring.failures)
            text = f"{self._path}: no checkpoint could be used: {why}. {self._hooks.advice}"
            self._hooks.not_restored(CheckpointError(text))
            return
        candidate, restoring.begun_at, restoring.servers = restoring.left[0], now, []
        restoring.state = None
        read = partial(self._files.read_state, candidate)
        restoring.work = self._out.work(
            read, partial(self._state_read, restoring, candidate), "checkpoint"
        )

    def _state_read(
        self, restoring: _Restoring, candidate: Candidate, done: WorkDone, now: float
    ) -> None:
        restoring.work = 0
        if self._restoring is not restoring:
            return
        restoring.enter(now)
        if done.error is not None:
            self._load_failed(restoring, explain(done.error), now)
            return
        restoring.state, restoring.servers = done.result, self._members.joined("server")
        manifest = candidate.manifest
        tables = [(item["number"], Table.from_dict(item["table"])) for item in manifest.tables]
        of_job = manifest.job.get("tables_of_job", ()) if self._hooks.jobs_again else ()
        if self._hooks.of_job:
            tables = [pair for pair in tables if self._belongs(pair[1].name, manifest)]
            of_job = [table.name for _, table in tables]
        made = partial(self._tables_made, restoring, candidate, [number for number, _ in tables])
        declared = [table for _, table in tables]
        self._members.table_registry.adopt(declared, made, now, of_job=of_job)

    def _belongs(self, name: str, manifest: Manifest) -> bool:
        """Whether a job restores a table. One that a driver has declared, and the job has not used,
        stays as it is: the driver may have pushed to it since."""
        used = manifest.job.get("tables_of_job")  # None: written before this was noted
        return used is None or name in used or not self._members.table_registry.is_of_driver(name)

    def _tables_made(
        self,
        restoring: _Restoring,
        candidate: Candidate,
        saved: Sequence[int],  # numbers of the tables when they were saved
        answer: Answer,
        now: float,
    ) -> None:
        if self._restoring is not restoring or restoring.left[:1] != [candidate]:
            return
        if not isinstance(answer, messages.Declared):
            self._restoring = None
            assert isinstance(answer, SnailError)
            self._hooks.not_restored(answer)
            return
        tables = [list(pair) for pair in zip(saved, answer.numbers, strict=True)]
        restoring.enter(now)
        restoring.broadcast = Broadcast(
            self._out,
            restoring.servers,
            messages.Load(candidate.number, candidate.path, tables),
            partial(self._loaded, restoring),
            now,
            loss="wait",  # `lost` begins the restore again
            expects=messages.Loaded,
        )

    def _loaded(self, restoring: _Restoring, broadcast: Broadcast, now: float) -> None:
        if broadcast.error:
            self._load_failed(restoring, broadcast.error, now)
            return
        candidate = restoring.left[0]
        share = float(candidate.manifest.job["progress"])
        rows = sum(part.rows for part in broadcast.answers.values())
        what = self._record.describe_share(share)
        log.log(
            self._hooks.level,
            "continuing from checkpoint %d of %s: %s, %s rows in %.1f s",
            candidate.number, candidate.manifest.saved_at, what, f"{rows:,}",
            now - restoring.begun_at, extra=EVENT_REPORTED,
        )  # fmt: skip
        if self._hooks.reports:
            text = f"goes on from checkpoint {candidate.number}: {what}"
            self._out.happened("restored", "", text)
        self.continued_from, self._newest = candidate.number, (candidate.number, share)
        self._restoring = None
        self._candidates = []
        assert restoring.state is not None
        self._hooks.restored(restoring.state, rows, now)

    def _load_failed(self, restoring: _Restoring, why: str, now: float) -> None:
        candidate = restoring.left.pop(0)
        if restoring.broadcast is not None:
            restoring.broadcast.forget()
        log.warning("checkpoint %d cannot be used: %s", candidate.number, why)
        restoring.failures.append(f"checkpoint {candidate.number}: {why}")
        self._stop_saving(restoring.servers)
        self._try_next(restoring, now)


def _unheard(answer: Answer, now: float) -> None:
    """Ignore the answer to `StopSaving`: a server that refuses reports by a number that is over."""


def _ignored(done: WorkDone, now: float) -> None:
    """Ignore the result: the next master removes what could not be removed by this one."""


def _bytes_of(servers: Sequence[Member]) -> int:
    """About how many bytes a checkpoint takes on disk."""
    return sum(
        int(table["row_bytes"]) + 8 * int(table["rows"])
        for member in servers
        for shard in member.reports.stats.get("shards", [])
        for table in shard["tables"].values()
    )
