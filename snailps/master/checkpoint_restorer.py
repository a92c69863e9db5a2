"""Restores the rows of the newest checkpoint that can be used.

    candidates, newest first -> Load to every server -> Loaded of all -> the job resumes

    state > tables > load > done       failed: StopSaving, the next candidate
    a server is lost: StopSaving, the same one again once its standbys serve

A lost server spoils no checkpoint: it is as good as it was, and what is loaded replaces the rows
that are there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from snailps.api.export_progress import SHARE_MIN
from snailps.api.tables import Table
from snailps.dataclass import dataclass, field
from snailps.errors import CheckpointError, SnailError, explain
from snailps.master.broadcast import Broadcast
from snailps.master.checkpoint_place import CheckpointPlace, Hooks
from snailps.master.effects import Outbox
from snailps.master.events import Answer
from snailps.master.job.state import JobState
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.master.replication.shard_orders import ShardOrders
from snailps.master.services import Candidate
from snailps.master.transfers import Transfer, Transfers
from snailps.node.effects import WorkDone
from snailps.node.status import EVENT_REPORTED
from snailps.store.checkpoint.manifest import Manifest
from snailps.transport import messages

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Restoring(Transfer):
    """A restore of the first candidate of the place."""

    state: JobState | None = None  # of that candidate
    # A server was lost: the restore begins again when its standbys serve (`waits`) and the other
    # servers have stopped reading (`stopping`).
    waits: bool = False
    stopping: bool = False
    failures: list[str] = field(default_factory=list)  # why earlier candidates could not be used


class CheckpointRestorer:
    def __init__(
        self,
        out: Outbox,
        members: Membership,
        shard_orders: ShardOrders,
        transfers: Transfers,
        place: CheckpointPlace,
        hooks: Hooks,
    ) -> None:
        self._out, self._members, self._shard_orders = out, members, shard_orders
        self._transfers, self._place, self._hooks = transfers, place, hooks
        self._restoring: _Restoring | None = None

    @property
    def running(self) -> bool:
        return self._restoring is not None

    def progress(self, now: float) -> tuple[float, str, float | None]:
        """Share restored (0 to 1), text, and seconds left if known."""
        restoring = self._restoring
        if restoring is None:
            return 0.0, "", None
        candidate = self._place.candidates[0]
        text = f"reading checkpoint {candidate.number}"
        total = sum(file.bytes for file in candidate.manifest.files)
        if restoring.broadcast is None or not total:
            return 0.0, text, None
        done = restoring.moved_bytes()
        share = min(1.0, done / total)
        text += f", {min(done, total) / 1e6:,.0f} of {total / 1e6:,.0f} MB"
        left_s = (now - restoring.begun_at) * (1 - share) / share if share >= SHARE_MIN else None
        return share, text, left_s

    # --- steps -------------------------------------------------------------------------------

    def restore(self, now: float) -> None:
        """Restore the newest candidate that can be used; `Hooks.restored` follows, or
        `not_restored`."""
        self._try_next(self._begin(_Restoring(self, [], now)), now)

    def _begin(self, restoring: _Restoring) -> _Restoring:
        self._restoring = restoring
        self._transfers.begin(restoring)
        return restoring

    def _end(self) -> None:
        assert self._restoring is not None
        self._restoring.forget()
        self._transfers.end(self._restoring)
        self._restoring = None

    def _try_next(self, restoring: _Restoring, now: float) -> None:
        restoring.enter(now)
        restoring.waits = restoring.stopping = False
        if not self._place.candidates:
            self._end()
            why = "; ".join(restoring.failures)
            text = f"{self._place.path}: no checkpoint could be used: {why}. {self._hooks.advice}"
            self._hooks.not_restored(CheckpointError(text))
            return
        candidate, restoring.begun_at, restoring.servers = self._place.candidates[0], now, []
        restoring.number, restoring.state = candidate.number, None
        read = partial(self._place.files.read_state, candidate)
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
            self._failed(restoring, explain(done.error), now)
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
        # The second test: the same transfer may have given up this candidate since.
        if self._restoring is not restoring or restoring.number != candidate.number:
            return
        if not isinstance(answer, messages.Declared):
            self._end()
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
            self._failed(restoring, broadcast.error, now)
            return
        candidate = self._place.candidates[0]
        share = float(candidate.manifest.job["progress"])
        rows = sum(part.rows for part in broadcast.answers.values())
        what = self._place.record.describe_share(share)
        log.log(
            self._hooks.level,
            "continuing from checkpoint %d of %s: %s, %s rows in %.1f s",
            candidate.number, candidate.manifest.saved_at, what, f"{rows:,}",
            now - restoring.begun_at, extra=EVENT_REPORTED,
        )  # fmt: skip
        if self._hooks.reports:
            text = f"goes on from checkpoint {candidate.number}: {what}"
            self._out.happened("restored", "", text)
        self._place.restored(candidate, share)
        self._end()
        assert restoring.state is not None
        self._hooks.restored(restoring.state, rows, now)

    def _failed(self, restoring: _Restoring, why: str, now: float) -> None:
        candidate = self._place.candidates.pop(0)
        log.warning("checkpoint %d cannot be used: %s", candidate.number, why)
        restoring.failures.append(f"checkpoint {candidate.number}: {why}")
        # Some may still read it: their rows would come over those of the next one.
        self._transfers.stop(restoring.servers)
        self._try_next(restoring, now)

    # --- the loop ----------------------------------------------------------------------------

    def step(self, now: float) -> None:
        if (restoring := self._restoring) is None:
            return
        if restoring.waits and not restoring.stopping:
            if not self._shard_orders.moving:  # a change-over has a limit of its own
                self._try_next(restoring, now)
        elif why := restoring.stalls(now):
            self._failed(restoring, why, now)

    def lost(self, member: Member, why: str, now: float) -> None:
        """Begin again: the checkpoint is still good, and loaded rows replace what is there."""
        if (restoring := self._restoring) is None:
            return
        log.warning("checkpoint %d is read again: %s is lost", restoring.number, member.name)
        others = [server for server in restoring.servers if server is not member]
        # A new transfer: if another server is lost before these have answered, the remaining ones
        # are asked again, and their first answers do not count.
        self._end()
        restoring = self._begin(
            _Restoring(self, others, now, restoring.number, waits=True, failures=restoring.failures)
        )
        restoring.enter(now, "stop reading")
        # Once these have answered, no `Loaded` of what they have read so far can come any more.
        stop, stopped = messages.StopSaving(), partial(self._stopped, restoring)
        restoring.stopping = True
        Broadcast(self._out, others, stop, stopped, now, loss="drop")

    def _stopped(self, restoring: _Restoring, broadcast: Broadcast, now: float) -> None:
        restoring.stopping = False

    def abandon(self) -> None:
        """Give up the restore under way."""
        if self._restoring is not None:
            self._end()
