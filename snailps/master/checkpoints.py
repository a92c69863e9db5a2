"""Checkpoints at the master: when one is due, what belongs to it, and going on from one.

    due -> Position, Save to every server -> Saved of all -> manifest, rename -> old ones removed
    candidates, newest first -> Load to every server -> Loaded of all -> the job goes on

A save or a restore is a thread that reads like what it does, from top to bottom; it talks with
servers through a `ServerChannel`.  It knows no rows: servers write and read those themselves.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from snailps.api.tables import Table
from snailps.config import CHECKPOINT_SETTINGS, JobSettings, to_mapping
from snailps.errors import CheckpointError, ConfigError, SnailError
from snailps.master.job.job import Job
from snailps.master.job.position import Position, pack, unpack
from snailps.master.leases import BspLedger, RoundLedger
from snailps.master.member import Answer, Member
from snailps.master.membership import Membership
from snailps.master.server_channel import ServerChannel
from snailps.node.background import in_thread
from snailps.node.process import explain
from snailps.node.status import CheckpointStatus
from snailps.store.checkpoint.folder import (
    BEGUN,
    CheckpointFolder,
    Found,
    read_course,
    write_course,
)
from snailps.store.checkpoint.manifest import Manifest
from snailps.store.checkpoint.shard_file import FileEntry
from snailps.transport import messages

log = logging.getLogger(__name__)

RETRY_S = 10.0
"""At least so long after one that failed."""
_MAY_DIFFER = {
    *CHECKPOINT_SETTINGS,
    "input", "output", "test", "formats", "scratch_dir", "scratch_bytes", "epochs", "max_steps",
    "max_seconds", "target_loss", "rounds", "target", "deadline",
}  # fmt: skip
"""Settings with which a job is still the same one.  Of the input, the files found are compared."""


class CheckpointController:
    """The checkpoints of the job that the master is at.

    Parameters
    ----------
    members : Membership
    on_restored : callable
        Told the position once the servers have their rows.
    fail : callable
        Ends the cluster, with a sentence.
    """

    def __init__(
        self,
        members: Membership,
        *,
        on_restored: Callable[[Position], None],
        fail: Callable[[str], None],
    ) -> None:
        self._members, self._on_restored, self._fail = members, on_restored, fail
        self._channel = ServerChannel(members)
        self._saving: Future[str] | None = None
        self._restoring: Future[Position] | None = None
        self._reset(None)

    def _reset(self, folder: CheckpointFolder | None) -> None:
        self._folder = folder
        self._candidates: list[tuple[Found, Position]] = []
        self._interval_s, self._period, self._kept = 0.0, 0, 1
        self._begun_at = time.monotonic()
        self._pushes_saved = 0
        self._number = 0  # of the newest that was begun
        self.saved = 0
        self.continued_from = 0
        self._newest: tuple[int, float] | None = None  # number, share of the training
        self._saved_at: float | None = None  # when, if this run made it

    # --- the beginning of a job --------------------------------------------------------------

    def open(self, job: Job, *, resumes: bool = True) -> None:
        """Looks, beside the loop, for checkpoints that the job goes on from.

        Where not `resumes`, the job goes on from its journal, and its tables are with the servers.

        Raises
        ------
        SnailError
            The folder is another job's, cannot be used, or holds damaged ones only.
        """
        settings = job.settings
        if self._folder is not None:
            self._folder.release()
        self._reset(None)
        on = settings.checkpoint_interval or settings.param_backup_period
        if not (on or settings.checkpoint_dir):
            return
        path = folder_of(settings)
        folder = CheckpointFolder(path)
        folder.take()
        self._reset(folder)
        self._interval_s, self._period = settings.checkpoint_interval, settings.param_backup_period
        self._kept = settings.checkpoints_kept
        if settings.fresh and resumes:
            folder.set_passed("begun anew with --fresh")
        bad = []
        for one in folder.candidates():
            if one.state == "good":
                assert one.manifest is not None
                position = unpack(read_course(one.path, one.manifest))
                self._check_same(job, one, position)
                self._candidates.append((one, position))
            else:
                log.warning("checkpoint %d is %s: %s", one.number, one.state, one.why)
                bad.append(one)
        if not self._candidates and any(one.state == "damaged" for one in bad):
            raise CheckpointError(
                f"{path}: no checkpoint here is good, and {bad[0].number} is {bad[0].state}: "
                f"{bad[0].why}. Mend it, or begin anew with --fresh"
            )
        folder.clear()
        if not resumes and self._candidates:
            found, _ = self._candidates[0]
            assert found.manifest is not None
            self._newest = (found.number, float(found.manifest.job["progress"]))
            self._candidates.clear()

    @property
    def resumes(self) -> bool:
        """Whether there is something to go on from."""
        return bool(self._candidates)

    def restore(self) -> None:
        """Has the servers take their rows from the newest good one; `on_restored` follows."""
        self._channel.drain()
        self._restoring = in_thread("snailps-restore", self._restore)

    def forget_others(self) -> None:
        """Has servers drop what a master that was lost told them to save or to load."""
        self._channel.order(self._members.nodes("server"), messages.StopSaving())

    def _check_same(self, job: Job, found: Found, position: Position) -> None:
        """Refuses a checkpoint of another job."""
        assert found.manifest is not None
        theirs, ours = found.manifest.job, _identity(job)
        differ = [
            f"{name} is {ours[name]} here and {theirs.get(name)} there"
            for name in ours
            if theirs.get(name) != ours[name]
        ]
        if sorted(position.sources) != sorted(job.input.sources):
            differ.append("the input has other files, or files of other lengths")
        if found.manifest.frag_num != self._members.frag_num:
            differ.append(
                f"frag_num is {self._members.frag_num} here and {found.manifest.frag_num} there"
            )
        if differ:
            raise ConfigError(
                f"{found.path} is a checkpoint of another job: {'; '.join(differ[:3])}. Choose "
                "another checkpoint_dir, or begin anew with --fresh"
            )

    # --- the loop ----------------------------------------------------------------------------

    def step(self) -> None:
        """Runs what the threads asked for, and sees to what has ended.  Of the master's loop."""
        self._channel.step()
        if self._restoring is not None and self._restoring.done():
            restoring, self._restoring = self._restoring, None
            try:
                position = restoring.result()
            except SnailError as error:
                self._fail(str(error))
            except Exception as error:
                log.exception("restoring failed")
                self._fail(f"restoring failed at the master: {explain(error)}")
            else:
                self._candidates.clear()
                self._on_restored(position)
        if self._saving is not None and self._saving.done():
            saving, self._saving = self._saving, None
            try:
                log.info("%s", saving.result())
            except Exception as error:
                if not isinstance(error, SnailError):
                    log.exception("a checkpoint failed")
                self._begun_at = max(self._begun_at, time.monotonic() + RETRY_S - self._interval_s)
                log.error(
                    "CHECKPOINT FAILED, training goes on unsaved (%s): %s",
                    f"newest good one: {self._newest[0]}" if self._newest else "there is none yet",
                    explain(error),
                )

    def training_begins(self) -> None:
        """Counts the time to the first checkpoint from now."""
        self._begun_at = time.monotonic()

    def check(self, job: Job) -> None:
        """Begins a checkpoint if one is due."""
        if self.running or self._folder is None or not (self._interval_s or self._period):
            return
        now = time.monotonic()
        pushes = self._members.shard_sum("pushes")
        self._pushes_saved = min(self._pushes_saved, pushes)  # a lost server's do not count
        in_time = self._interval_s and now - self._begun_at >= self._interval_s
        in_work = self._period and pushes - self._pushes_saved >= self._period
        if in_time or (in_work and now >= self._begun_at):
            self.begin(job)

    def begin(self, job: Job) -> None:
        """Begins a checkpoint of the job as it is now."""
        assert self._folder is not None
        self._begun_at = time.monotonic()
        self._pushes_saved = self._members.shard_sum("pushes")
        self._channel.drain()
        stepped = job.clocked and not job.rounds
        clock = job.ledger.round if isinstance(job.ledger, RoundLedger) else -1
        position = None if stepped else self._position(job, clock)
        tables = tuple(
            {"number": number, "table": table.to_dict()}
            for number, table in self._members.table_registry.tables.values()
        )
        servers = self._members.joined("server")
        self._saving = in_thread(
            "snailps-checkpoint", lambda: self._save(job, servers, tables, position)
        )

    def _position(self, job: Job, clock: int) -> tuple[Position, dict[str, Any]]:
        """Where the job is, and what the manifest says of it.  Of the master's loop."""
        position = job.position(clock)
        position.figures["ticks"] = self.ticks
        assert job.ledger is not None
        share = job.ledger.progress if job.rounds else job.ledger.share(position.done)
        about = {**_identity(job), "progress": share, "units": position.units}
        about |= {"counts": job.cls.counts, "settings": dict(to_mapping(job.settings))}
        return position, about

    ticks: tuple[int, ...] = (0,)
    """The clock of the tables that forget rows; the course keeps it."""

    @property
    def writes(self) -> bool:
        """Whether checkpoints are made of this job."""
        return self._folder is not None and bool(self._interval_s or self._period)

    @property
    def running(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._saving is not None

    def heard(self, member: Member, message: messages.Saved | messages.Loaded) -> None:
        """A server tells how its part went; ignored where no checkpoint is under way."""
        if self._saving is not None or self._restoring is not None:
            self._channel.heard(member, message)

    def lost(self, member: Member, why: str) -> None:
        """A server is gone: what is being saved cannot become whole."""
        self._channel.lost(member, why)

    def abandon(self, why: str) -> None:
        """The job has failed, the servers live on: gives up what is being saved or restored."""
        if self._saving is None and self._restoring is None:
            return
        log.warning("a checkpoint is given up: %s", why)
        self._saving = self._restoring = None  # the thread ends unheard
        self._channel.close()
        self._channel = ServerChannel(self._members)
        self.forget_others()

    def ended(self, why: str) -> None:
        """The job is over: nothing goes on from its checkpoints; empty `why`: something may."""
        if self._folder is not None:
            if why:
                with contextlib.suppress(SnailError, OSError):
                    self._folder.set_passed(why)
            self._folder.release()
            self._folder = None

    def close(self) -> None:
        """Ends what is under way."""
        self._channel.close()

    def figures(self) -> dict[str, int]:
        """Figures of the run; nothing where there are no checkpoints."""
        found = {"checkpoints": self.saved, "continued_from": self.continued_from}
        return {name: number for name, number in found.items() if number}

    def status(self) -> CheckpointStatus | None:
        """The newest one, and whether one is written; None where there are none to be."""
        if self._folder is None:
            return None
        number, share = self._newest or (0, 0.0)
        age_s = None if self._saved_at is None else time.monotonic() - self._saved_at
        path = str(self._folder.path)
        return {
            "number": number,
            "progress": share,
            "age_s": age_s,
            "path": path,
            "writing": self.running,
        }

    def advice(self) -> str:
        """What a failed job's user should know of its checkpoints; empty without any."""
        if self._folder is None:
            return ""
        if self._newest is None:
            return "No checkpoint was complete yet"
        number, share = self._newest
        return (
            f"The same command goes on from checkpoint {number}, {share:.0%} of the training, in "
            f"{self._folder.path}"
        )

    # --- the threads ---------------------------------------------------------------------------

    def _restore(self) -> Position:
        for found, position in self._candidates:
            assert found.manifest is not None
            begin = time.monotonic()
            servers = self._members.joined("server")
            try:
                tables = self._declare(found.manifest)
                self._channel.order(servers, messages.Load(found.number, str(found.path), tables))
                loaded = self._channel.collect(servers, messages.Loaded, found.number)
            except CheckpointError as error:
                log.warning("checkpoint %d cannot be used: %s", found.number, error)
                self._channel.order(servers, messages.StopSaving())
                continue
            share = float(found.manifest.job["progress"])
            log.warning(
                "continuing from checkpoint %d of %s: %.0f%% of the training, %s rows in %.1f s",
                found.number, found.manifest.saved_at, 100 * share,
                f"{sum(part.rows for part in loaded):,}", time.monotonic() - begin,
            )  # fmt: skip
            self.continued_from, self._newest = found.number, (found.number, share)
            return position
        assert self._folder is not None
        raise CheckpointError(
            f"{self._folder.path}: no checkpoint could be used, see above. Mend one, or begin anew "
            "with --fresh"
        )

    def _declare(self, manifest: Manifest) -> list[list[int]]:
        """Has the servers make the tables; pairs of their numbers in the files and here."""
        tables = [Table.from_dict(item["table"]) for item in manifest.tables]
        answers: list[Answer] = []
        asked: list[bool] = []

        def look() -> Answer | None:
            if not asked:
                asked.append(True)
                self._members.table_registry.adopt(tables, answers.append)
            return answers[0] if answers else None

        answer = self._channel.in_loop(look)
        if isinstance(answer, SnailError):
            raise answer
        assert isinstance(answer, messages.Declared)
        return [
            [item["number"], number]
            for item, number in zip(manifest.tables, answer.numbers, strict=True)
        ]

    def _save(
        self,
        job: Job,
        servers: list[Member],
        tables: tuple[dict[str, Any], ...],
        position: tuple[Position, dict[str, Any]] | None,
    ) -> str:
        """Writes a checkpoint; returns a sentence about it.

        Without a position, in bsp, it is that of the clock at whose beginning the rows are saved.
        """
        folder = self._folder
        assert folder is not None
        begin = time.monotonic()
        saved_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        _check_room(folder.path, servers)
        # Not the number of one that failed: of that a server may still tell.
        number = self._number = max(folder.next_number(), self._number + 1)
        part = folder.begin(number)
        try:
            (part / BEGUN).write_text(f"{self._members.life:016x}\n")
            clock = self._channel.freeze(servers) if position is None else -1
            self._channel.order(servers, messages.Save(number, str(part), clock))
            told = self._channel.collect(servers, messages.Saved, number)
            if position is None:
                position = self._channel.in_loop(lambda: self._when_done(job, clock))
            where, about = position
            files = [
                FileEntry.from_dict(item, f"checkpoint {number}")
                for saved in told
                for item in saved.files
            ]
            course = write_course(part, pack(where))
            (part / BEGUN).unlink()
            manifest = Manifest(
                number, self._members.life, saved_at, self._members.frag_num, tables,
                tuple(files), about, course,
            )  # fmt: skip
            path = folder.complete(part, manifest)
        except BaseException:
            self._channel.order(servers, messages.StopSaving())
            # Servers that still write are told to stop, and find their files gone.
            shutil.rmtree(part, ignore_errors=True)
            raise
        took = time.monotonic() - begin
        self.saved += 1
        self._newest, self._saved_at = (number, float(about["progress"])), time.monotonic()
        folder.prune(self._kept)
        share = about["progress"]
        return (
            f"checkpoint {number}: {share:.0%} of the training, {manifest.rows:,} rows, "
            f"{manifest.total_bytes / 1e6:,.1f} MB in {took:.2f} s, to {path}"
        )

    def _when_done(self, job: Job, clock: int) -> tuple[Position, dict[str, Any]] | None:
        """The position at a clock, once every worker has told its part of those before it."""
        assert isinstance(job.ledger, BspLedger)
        return self._position(job, clock) if job.ledger.open_clock >= clock else None


def folder_of(settings: JobSettings) -> Path:
    """Where a job's checkpoints are."""
    if settings.checkpoint_dir:
        return Path(settings.checkpoint_dir).expanduser().absolute()
    return Path(f"{settings.output}.checkpoints" if settings.output else "checkpoints").absolute()


def _identity(job: Job) -> dict[str, str]:
    """What must be equal for a job to be the same: its class, and settings that shape it."""
    settings = to_mapping(job.settings)
    return {
        "worker_class": job.worker_class,
        **{name: text for name, text in settings.items() if name not in _MAY_DIFFER},
    }


def _check_room(path: Path, servers: list[Member]) -> None:
    """Refuses to begin what the disk cannot hold."""
    needed = sum(
        int(table["row_bytes"]) + 8 * int(table["rows"])
        for member in servers
        for shard in member.stats.get("shards", [])
        for table in shard["tables"].values()
    )
    try:
        status = os.statvfs(path)
    except OSError:
        return
    free = status.f_bavail * status.f_frsize
    if free < needed:
        raise CheckpointError(
            f"{path}: the disk is full: a checkpoint needs {needed / 1e6:,.1f} MB, "
            f"{free / 1e6:,.1f} MB are free. Make room, or keep fewer (checkpoints_kept)"
        )
