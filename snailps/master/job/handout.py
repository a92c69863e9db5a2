"""Gives the present job to workers: to all as its first pass begins, then to each that joins.

a worker joins -> start -> (end of the turn) report -> Start to it, the new number to the others
"""

from __future__ import annotations

from snailps.master.effects import Outbox
from snailps.master.job.present import PresentJob
from snailps.master.leases.adoption import adopt
from snailps.master.leases.service import LeaseService
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.master.phases import AT_WORK, JobPhase


class Handout:
    def __init__(
        self, out: Outbox, members: Membership, leases: LeaseService, present: PresentJob
    ) -> None:
        self._out, self._members = out, members
        self._leases, self._present = leases, present
        self._starting: dict[Member, None] = {}  # workers that joined, and get the job in `report`

    def start(self, member: Member) -> None:
        """Give a worker that joined the job, at the next `report`."""
        self._leases.notes.number_changed()
        self._starting[member] = None

    def report(self, now: float) -> None:
        """Report a changed number of workers to all, and the job to new ones. Called at the end of
        a turn of the loop: however many workers join in it, the others get one message."""
        coming, self._starting = self._starting, {}
        self._leases.notes.report(self._present.job, but=coming)
        workers = len(self._members.joined("worker")) if coming else 0
        for member in list(coming):
            if self._members.all.get(member.number) is member:
                self._start(member, workers)

    def start_all(self) -> None:
        workers = self._members.joined("worker")
        for member in workers:
            self._start(member, len(workers))

    def _start(self, member: Member, workers: int) -> None:
        self._starting.pop(member, None)  # it joined while the job began: `start_all` is enough
        job = self._present.job
        if job is None or self._present.phase not in AT_WORK or member.dropped:
            return
        member.job_given()
        if self._present.phase is JobPhase.TRAINING:
            self._out.journal("join", {"node": member.number})
            job.schedule.join(member.number)
        self._out.send(member.peer, job.start_message(workers))

    # --- workers of an earlier master, and of an earlier job --------------------------------------

    def came_back(self, member: Member, now: float) -> None:
        """Adopt what a worker of an earlier master has leased and reported."""
        job = self._present.job
        if job is None or not job.pass_:
            return
        if member.resume_state["started"]:
            adopt(self._out, job, member, now)
        else:
            self.start(member)
