"""Tracks what servers write to and read from checkpoints at the orders of this master.

    begin(transfer) -> Saved, Loaded, losses of servers, turns of the loop -> end(transfer)

One for the cluster: a save of the job, one of its best epoch and one of the session have a folder
each, and the same servers. A note goes to the transfer with its number, so whoever sends notes on
needs to know no owner. Must not know what a save or a restore does next (`checkpoints.py`,
`checkpoint_restorer.py`). `now` is monotonic seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from snailps.dataclass import dataclass
from snailps.master.broadcast import Broadcast
from snailps.master.events import Answer
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.transport import messages

log = logging.getLogger(__name__)

LATE_S = 10.0
"""Seconds without a byte written or read after which the log says so."""
STALL_S = 120.0
"""Seconds without a byte written or read after which a save or restore is given up."""


class TransferOwner(Protocol):
    def step(self, now: float) -> None:
        """Advance the transfer, or give it up: called in each turn while it is under way."""

    def lost(self, member: Member, why: str, now: float) -> None:
        """A server is gone."""


@dataclass(eq=False, slots=True)
class Transfer:
    """A save or a restore: its servers, and those that have not answered."""

    owner: TransferOwner
    servers: list[Member]
    begun_at: float
    number: int = -1  # of the checkpoint; -1: not known yet, so that no note is of it
    broadcast: Broadcast | None = None  # the order under way
    moved: int = -1  # bytes that servers have written or read, as last reported
    # when `moved` changed or the stage began, plus the time that this process was stopped since
    since: float = 0.0
    late: bool = False  # the log has said that this stage is late
    work: int = 0  # number of the work beside the loop; 0: none
    stage: str = ""  # what servers do while there is no `broadcast`, for an error

    def enter(self, now: float, stage: str = "make their tables") -> None:
        self.forget()
        self.moved, self.since, self.late = -1, now, False
        self.stage = stage

    def forget(self) -> None:
        """Ignore what is still answered to the order under way."""
        if self.broadcast is not None:
            self.broadcast.forget()
            self.broadcast = None

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
            return f"servers did not {self.stage} in {STALL_S:.0f} s"
        moved = self.moved_bytes()
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

    def moved_bytes(self) -> int:
        return sum(int(member.reports.stats.get("saved_bytes", 0)) for member in self.servers)


class Transfers:
    def __init__(self, members: Membership) -> None:
        self._members = members
        self._open: list[Transfer] = []
        self.newest = 0
        """The highest number of any checkpoint of a session. Servers report by number, so two of
        its folders must not use the same one."""

    def begin(self, transfer: Transfer) -> None:
        self._open.append(transfer)

    def end(self, transfer: Transfer) -> None:
        self._open.remove(transfer)

    # Of a copy: what a transfer is given may end it, and begin the next one.

    def heard(self, member: Member, note: messages.Saved | messages.Loaded, now: float) -> None:
        """Take a server's report. One with another number is of a checkpoint that was given up."""
        for transfer in [*self._open]:
            broadcast = transfer.broadcast
            if broadcast is not None and transfer.number == note.number:
                broadcast.heard(member, note, now)

    def lost(self, member: Member, why: str, now: float) -> None:
        """A server is gone."""
        for transfer in [*self._open]:
            transfer.owner.lost(member, why, now)

    def step(self, now: float) -> None:
        for transfer in [*self._open]:
            transfer.owner.step(now)

    def stood_still(self, seconds: float) -> None:
        """Extend limits: the master was stopped, and the servers perhaps with it."""
        for transfer in self._open:
            transfer.since += seconds

    def stop(self, servers: Sequence[Member]) -> None:
        """Have servers end saves and loads, whose numbers are over."""
        order = messages.StopSaving()
        for member in servers:
            self._members.order(member, order, _unheard)

    def stop_all(self) -> None:
        """Have all servers end saves and loads, also those that a lost master ordered."""
        self.stop(self._members.nodes("server"))


def _unheard(answer: Answer, now: float) -> None:
    """Ignore the answer to `StopSaving`: a server that refuses reports by a number that is over."""
