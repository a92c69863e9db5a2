"""Decides when a checkpoint is made, and what belongs to it.

    due -> Save to every server -> Saved of all -> manifest, rename (`Files`) -> old ones removed

    begin > [withhold >] save > complete       failed: StopSaving, drop

A save is a record that each answer advances by a step. In brackets: in bsp, rows are saved as they
are at the beginning of a clock, and a slot of that clock is withheld until then. Servers write the
rows themselves; files of the master are touched by `checkpoint_files.py`, in works. What a folder
holds: `checkpoint_place.py`; which checkpoint is restored: `checkpoint_restorer.py`.

A checkpoint gets its name when all of it is on disk, and not before: whatever fails leaves a folder
without a name, which the next master removes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from snailps.dataclass import dataclass, field
from snailps.errors import CheckpointError, SnailError, explain
from snailps.master.broadcast import Broadcast
from snailps.master.checkpoint_match import RESUMED_WITH
from snailps.master.checkpoint_place import NOT_OPEN, CheckpointPlace, Hooks
from snailps.master.checkpoint_restorer import CheckpointRestorer
from snailps.master.effects import Outbox
from snailps.master.job.session import Record
from snailps.master.job.state import JobState
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.master.replication.shard_orders import ShardOrders
from snailps.master.replication.shard_reports import ShardReports
from snailps.master.services import Begun, Completed, Files, Opened
from snailps.master.transfers import LATE_S, Transfer, Transfers
from snailps.node.effects import WorkDone, ignored
from snailps.outward import outward, without_secrets
from snailps.store.checkpoint.manifest import BEST_ROWS
from snailps.transport import messages

log = logging.getLogger(__name__)

RETRY_S = 10.0
"""Least seconds between a failed save and the next one."""


@dataclass(eq=False, slots=True)
class _Saving(Transfer):
    record: Record = None  # type: ignore[assignment]
    tables: tuple[dict[str, Any], ...] = ()
    clock: int = -1  # in bsp: the clock of which a slot is withheld until the rows are saved
    state: JobState | None = None  # in bsp: as it is at the beginning of `clock`
    about: dict[str, Any] = field(default_factory=dict)
    begun: Begun | None = None
    files: list[dict[str, Any]] = field(default_factory=list)
    ordered: bool = False  # servers have the order to save


def _resume_leases(record: Record) -> None:
    """Release the entries that were withheld until the rows are copied."""
    if (slots := record.schedule.slots) is not None:
        slots.resume_leases()


class CheckpointSaver:
    def __init__(
        self,
        out: Outbox,
        members: Membership,
        shard_orders: ShardOrders,
        shard_reports: ShardReports,
        transfers: Transfers,
        place: CheckpointPlace,
        hooks: Hooks,
        *,
        shares_numbers: bool,  # with the session's other checkpoints
    ) -> None:
        self._out, self._members = out, members
        self._shard_orders, self._shard_reports = shard_orders, shard_reports
        self._transfers, self._place, self._hooks = transfers, place, hooks
        self._shares_numbers = shares_numbers
        self._saving: _Saving | None = None
        # When the last save began, or the wait for the next one; and the pushes at that time.
        self._begun_at, self._pushes_saved = 0.0, 0

    @property
    def running(self) -> bool:
        return self._saving is not None

    @property
    def holds_rows(self) -> bool:
        """Whether rows are being saved, or will be once no shard changes over."""
        return self._saving is not None and self._saving.state is not None

    # --- when --------------------------------------------------------------------------------

    def wait(self, now: float, *, pushes: int) -> None:
        """Count time to the next checkpoint from now, and pushes from so many."""
        self._begun_at, self._pushes_saved = now, pushes

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
        if self.running or not self._place.writes:
            return False
        pushes, settings = self.pushes, self._place.record.settings
        # The sum falls when a server is lost: its pushes are in no report any more.
        self._pushes_saved = min(self._pushes_saved, pushes)
        interval_s, period = settings.checkpoint_interval, settings.param_backup_period
        in_time = interval_s and now - self._begun_at >= interval_s
        # After a failure `_begun_at` may be ahead: pushes do not bring the next try forward.
        in_work = period and pushes - self._pushes_saved >= period
        return bool(in_time or (in_work and now >= self._begun_at))

    def step(self, now: float) -> None:
        if (saving := self._saving) is None:
            return
        if not (saving.ordered or saving.work):
            self._save_when_open(saving, now)
        elif why := saving.stalls(now):
            self._save_failed(saving, CheckpointError(why), now)

    def lost(self, member: Member, why: str, now: float) -> None:
        """Fail the save in which a lost server takes part: it can never be complete."""
        if self._saving is not None and self._saving.broadcast is not None:
            self._saving.broadcast.lost(member, why, now)

    # --- steps -------------------------------------------------------------------------------

    def begin(self, record: Record, now: float) -> None:
        self.wait(now, pushes=self.pushes)
        tables = tuple(
            {"number": number, "table": table.to_dict()}
            for number, table in self._members.table_registry.tables.values()
        )
        saving = self._saving = _Saving(self, [], now, record=record, tables=tables)
        self._transfers.begin(saving)
        saving.enter(now)
        needed = _bytes_of(self._members.joined("server"))
        # Above the number of any failed checkpoint: servers may still report on it.
        above = max(self._place.number, self._transfers.newest)
        begin = partial(self._begin, record, above, needed)
        saving.work = self._out.work(begin, partial(self._begun, saving), "checkpoint")

    def _begin(self, record: Record, above: int, needed: int) -> tuple[Opened | None, Begun]:
        """Begin a checkpoint beside the loop, in a folder that could not be opened before."""
        opened = None
        if self._place.taken == NOT_OPEN:
            opened = self._place.open(record, record.settings, resumes=False)
        return opened, self._place.files.begin(above, self._members.cluster_id, needed)

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
                self._out.work(partial(self._place.files.release, opened.taken, ""), ignored)
            return
        if begun is None:
            assert done.error is not None
            self._save_failed(saving, done.error, now)
            return
        if opened is not None:
            self._place.taken = opened.taken
        saving.begun = begun
        saving.number = self._place.number = begun.number
        if self._shares_numbers:
            self._transfers.newest = begun.number
        # Only once the folder is there, which may take long: all workers wait for a withheld slot.
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
            # Before servers are ordered to save: what is durable in this state, they have.
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
            loss="fail",  # its standby has the same rows, but as they are at another moment
            expects=messages.Saved,
        )

    def _written(self, saving: _Saving, broadcast: Broadcast, now: float) -> None:
        saving.enter(now)
        if broadcast.error:
            self._save_failed(saving, CheckpointError(broadcast.error), now)
            return
        # The rows are copied. What is left, syncing and naming, holds nobody up.
        _resume_leases(saving.record)
        saving.files = [item for saved in broadcast.answers.values() for item in saved.files]
        assert saving.begun is not None
        assert saving.state is not None
        complete = partial(
            self._place.files.complete,
            saving.begun,
            saving.files,
            saving.state,
            cluster_id=self._members.cluster_id,
            frag_num=self._members.frag_num,
            tables=saving.tables,
            about=saving.about,
            kept=self._hooks.kept or self._place.record.settings.checkpoints_kept,
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
        self._transfers.end(saving)
        self._place.completed(number, share, now)
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
        self._transfers.end(saving)
        if saving.broadcast is not None:
            saving.broadcast.forget()
        _resume_leases(saving.record)
        if not isinstance(error, SnailError):
            log.error("a checkpoint failed", exc_info=error)
        if saving.begun is not None:
            self._transfers.stop(saving.servers)
            self._drop(saving.begun)
        interval_s = self._place.record.settings.checkpoint_interval
        # Sooner than after an interval, but not at once: a full disk stays full for a while.
        self._begun_at = max(self._begun_at, now + RETRY_S - interval_s)
        newest = self._place.newest_good
        log.error(
            "CHECKPOINT FAILED, %s unsaved (%s): %s",
            saving.record.goes_on,
            f"newest good one: {newest[0]}" if newest else "there is none yet",
            explain(error),
        )
        text = f"a checkpoint failed: {explain(error)}; {saving.record.goes_on} unsaved"
        self._out.happened("warning", "", text)
        self._hooks.not_saved(explain(error), now)

    def _drop(self, begun: Begun) -> None:
        # Ignored: the next master removes what could not be removed by this one.
        self._out.work(partial(self._place.files.drop, begun), ignored, "checkpoint")

    def abandon(self) -> None:
        """Give up the save under way."""
        if (saving := self._saving) is None:
            return
        self._saving = None
        self._transfers.end(saving)
        saving.forget()
        _resume_leases(saving.record)
        if saving.begun is not None:
            self._drop(saving.begun)


class CheckpointController:
    """One folder: what is in it, what is saved to it, and what is restored from it."""

    def __init__(
        self,
        out: Outbox,
        members: Membership,
        shard_orders: ShardOrders,
        shard_reports: ShardReports,
        files: Files,
        hooks: Hooks,
        transfers: Transfers | None = None,  # of the cluster, with the session's other folders
    ) -> None:
        self._neighbours = (out, members, shard_orders, shard_reports)
        self.transfers = transfers or Transfers(members)
        self.place = CheckpointPlace(out, files, members)
        self.saver = CheckpointSaver(
            *self._neighbours, self.transfers, self.place, hooks,
            shares_numbers=transfers is not None,
        )  # fmt: skip
        self.restorer = CheckpointRestorer(
            out, members, shard_orders, self.transfers, self.place, hooks
        )

    def beside(self, files: Files, hooks: Hooks) -> CheckpointController:
        """Checkpoints of a session, in another folder."""
        return CheckpointController(*self._neighbours, files, hooks, self.transfers)

    def opened(self, record: Record, opened: Opened | None, now: float, *, resumes: bool) -> None:
        """Begin a job with the checkpoints found."""
        self.place.opened(record, opened, resumes=resumes)
        self.saver.wait(now, pushes=0)

    def abandon(self, why: str) -> None:
        """Give up the save or restore under way: the job has failed, and the servers stay."""
        if self.saver.running or self.restorer.running:
            log.warning("a checkpoint is given up: %s", why)
            self.saver.abandon()
            self.restorer.abandon()
            self.transfers.stop_all()


def _bytes_of(servers: Sequence[Member]) -> int:
    """About how many bytes a checkpoint takes on disk."""
    return sum(
        int(table["row_bytes"]) + 8 * int(table["rows"])
        for member in servers
        for shard in member.reports.stats.get("shards", [])
        for table in shard["tables"].values()
    )
