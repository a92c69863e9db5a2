"""Owns what workers are asked for while they work: their usage, and what they wait for.

    every second -> Ask(stats) to some workers -> `Member.reports`
    a call for the status -> Ask(stats) to those that are long at a block -> ReportStatus

Servers are asked for more, and all of them (`replication/shard_reports.py`).
"""

from __future__ import annotations

from functools import partial

from snailps.master.context import Context
from snailps.master.effects import ReportStatus
from snailps.master.events import Answer
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.transport import messages

USAGE_AT_ONCE = 50
"""Workers asked at once for their usage; each of a thousand is asked every 20 s."""
LONG_S = 2.0
"""Seconds at a block after which a worker is asked what it waits for, before a status is made."""
ASKED_MAX = 64
"""Most workers asked for one status: if more are stuck, these say why."""
ANSWER_S = 0.3
"""Seconds that a status waits for their answers."""


class WorkerReports:
    def __init__(self, context: Context, members: Membership) -> None:
        self._out, self._members = context.out, members
        self._usage_at = 0  # the last worker that was asked for its usage
        self._asked: set[int] = set()  # workers that were asked for a status, and have not answered
        self._status_calls: list[int] = []  # calls that wait for these answers
        self._status_due = 0.0

    def ask_usage(self) -> None:
        """Ask some workers for their usage, others the next time; servers report it with their
        stats."""
        workers = self._members.joined("worker")
        workers.sort(key=lambda worker: (worker.number <= self._usage_at, worker.number))
        for member in workers[:USAGE_AT_ONCE]:
            self._usage_at = member.number
            self._members.order(member, messages.Ask("stats"), partial(self._note_usage, member))

    def _note_usage(self, member: Member, answer: Answer, now: float) -> None:
        # Only the usage: what the worker waited for then may be over by the next status.
        if isinstance(answer, messages.Report):
            member.reports.take_usage(answer.data)

    def ask_status(self, call: int, now: float) -> None:
        """Answer a call with the status, soon: workers that are long at a block first report what
        they wait for."""
        if not self._status_calls:
            self._status_due = now + ANSWER_S
        self._status_calls.append(call)
        for member in self._members.nodes("worker"):
            if len(self._asked) >= ASKED_MAX:
                return
            long = member.block_since and now - member.block_since > LONG_S
            at_work = member.work.begun and not (member.finished or member.waits)
            if long and at_work and member.number not in self._asked:
                self._asked.add(member.number)
                self._members.order(
                    member, messages.Ask("stats"), partial(self._note_waits, member)
                )

    def _note_waits(self, member: Member, answer: Answer, now: float) -> None:
        self._asked.discard(member.number)
        if isinstance(answer, messages.Report):
            member.reports.take_stats(answer.data, now)

    def report_status(self, now: float) -> None:
        """Answer the status calls once the workers that were asked have answered, or time is up."""
        if self._status_calls and (not self._asked or now >= self._status_due):
            self._out.put(ReportStatus(self._status_calls))
            self._status_calls = []
            self._asked.clear()
