"""Sends workers notes on each other: how many there are, and how far the slowest one is.

workers come, go, advance -> report, once a turn -> Workers, Slowest -> all workers
"""

from __future__ import annotations

from collections.abc import Container

from snailps.master.effects import Outbox
from snailps.master.job.job import Job
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.transport import messages


class WorkerNotes:
    def __init__(self, out: Outbox, members: Membership) -> None:
        self._out, self._members = out, members
        self._sent_clock = -1  # the slowest clock, as workers know it
        self._number_changed = False  # of workers, since the last `report`

    def send(self, message: messages.Message) -> None:
        for member in self._members.joined("worker"):
            self._out.send(member.peer, message)

    def number_changed(self) -> None:
        """The number of workers changed: the next `report` sends it, except with clocks."""
        self._number_changed = True

    def repeat(self) -> None:
        """Have the next `report` send the clock again: a lost master may not have sent it."""
        self._sent_clock = -1

    def report(self, job: Job | None, but: Container[Member] = ()) -> None:
        """Report what has changed. Once in a turn of the loop: with a thousand workers that join, a
        note to all for each is a million."""
        changed, self._number_changed = self._number_changed, False
        if job is None or not job.pass_:
            return
        # With clocks the number of slots counts, and not who trains them.
        if changed and not job.model.clocked:
            workers = self._members.joined("worker")
            note = messages.Workers(job.as_counted(len(workers)))
            for member in workers:
                if member not in but:
                    self._out.send(member.peer, note)
        pace = job.schedule.pace
        if pace is None or not pace.is_bound:
            return
        clock, node = pace.slowest()
        if clock != self._sent_clock:
            self._sent_clock = clock
            slowest = messages.Slowest(clock, node)
            for member in self._members.joined("worker"):
                if not member.finished:
                    self._out.send(member.peer, slowest)
