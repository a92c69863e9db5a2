"""Owns messages that cannot be taken yet: which have to wait, and until when.

    all but `BEFORE_THE_JOB`   while members of an earlier master come back
    Declare                    until the cluster is formed, and a session's rows are open
    Submit, SaveRows, LoadRows one at a time, in their sequence: servers save for one at a time

Must not know what a message does.
"""

from __future__ import annotations

from collections.abc import Callable

from snailps.errors import ClusterError
from snailps.master.effects import Outbox
from snailps.master.events import Received
from snailps.master.job.submissions import Submissions
from snailps.master.lifecycle import Lifecycle
from snailps.master.member import Member
from snailps.master.session_rows import SessionRows
from snailps.transport import messages

BEFORE_THE_JOB = (messages.Register, messages.Rejoin, messages.Ask)
"""Messages that are handled while members of an earlier master come back."""
_NEEDS_ROWS = (messages.Submit, messages.SaveRows, messages.LoadRows)
"""Calls that wait while a session saves or loads rows."""


class WaitingMessages:
    def __init__(
        self, out: Outbox, lifecycle: Lifecycle, rows: SessionRows, submissions: Submissions
    ) -> None:
        self._out, self._lifecycle = out, lifecycle
        self._rows, self._submissions = rows, submissions
        self._events: list[Received] = []  # in their sequence
        self._have_waited = False  # the calls that are being taken have waited for rows

    def put(self, event: Received) -> None:
        self._events.append(event)

    def take_all(self, take: Callable[[Received, float], None], now: float, *, rows: bool) -> None:
        """Have all be taken; some may come back here. `rows`: they have waited for rows, or for the
        cluster, and not for members to return."""
        events, self._events, self._have_waited = self._events, [], rows
        for event in events:
            take(event, now)
        self._have_waited = False

    def waits(self, message: messages.Message, now: float) -> bool:
        """Whether a call has to wait."""
        if isinstance(message, messages.Declare):
            # While the cluster forms servers may still be replaced, and their shards moved.
            return self._lifecycle.forming or not self._rows.is_open
        if not isinstance(message, _NEEDS_ROWS) or self._lifecycle.forming:
            return False
        # Behind an earlier one: drivers that save or load rows in close succession must not keep a
        # job from beginning.
        is_behind = any(isinstance(event.message, _NEEDS_ROWS) for event in self._events)
        if isinstance(message, messages.Submit):
            # A checkpoint of the session that is due goes first: with jobs in close succession
            # there may be no other time for it. But one only: if a checkpoint takes longer than its
            # interval, the next one is due when it ends.
            if not self._have_waited:
                self._rows.check(now)
            return self._rows.busy or is_behind
        return self._rows.busy or self._submissions.loading or is_behind

    def cancel_jobs(self, member: Member) -> None:
        """A driver cancels its jobs: one that still waits for the rows never begins."""
        for event in [*self._events]:
            if isinstance(event.message, messages.Submit) and event.peer == member.peer:
                self._events.remove(event)
                assert event.call is not None
                self._out.reply(event.call, ClusterError("the job was cancelled"))
